"""Posteriors over inducing values: those that training improves, and those made of draws."""

from nashgp.posteriors.base import AbstractPosterior, AbstractVariational, Fitted, sample_prior
from nashgp.posteriors.collapsed import CollapsedPosterior
from nashgp.posteriors.gaussian import GaussianPosterior, gaussian_posterior

__all__ = [
    "AbstractPosterior",
    "AbstractVariational",
    "CollapsedPosterior",
    "Fitted",
    "GaussianPosterior",
    "gaussian_posterior",
    "sample_prior",
]
