"""Posteriors over inducing values. All answer `sample_and_kl(key, model, num)`."""

from nashgp.posteriors.base import AbstractPosterior, Fitted, sample_prior
from nashgp.posteriors.gaussian import GaussianPosterior, gaussian_posterior

__all__ = [
    "AbstractPosterior",
    "Fitted",
    "GaussianPosterior",
    "gaussian_posterior",
    "sample_prior",
]
