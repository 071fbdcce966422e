"""Posteriors over inducing values: those that training improves, and those made of draws."""

from nashgp.posteriors.anchored import (
    AnchoredPosterior,
    Coupling,
    Critic,
    Information,
    Mix,
    Pool,
    Recogniser,
    anchored_posterior,
    measure_information,
)
from nashgp.posteriors.base import (
    AbstractPosterior,
    AbstractVariational,
    Ensemble,
    Fitted,
    members_of,
    sample_prior,
)
from nashgp.posteriors.collapsed import CollapsedPosterior, ToppedPosterior
from nashgp.posteriors.drawn import DrawnPosterior
from nashgp.posteriors.gaussian import GaussianPosterior, gaussian_posterior
from nashgp.posteriors.generated import (
    Discriminator,
    GeneratedPosterior,
    Generator,
    generated_posterior,
)
from nashgp.posteriors.latents import (
    AbstractLatents,
    AnchoredLatents,
    Below,
    Columns,
    GaussianLatents,
    LatentPosterior,
    anchored_latents,
)
from nashgp.posteriors.mixture import MixturePosterior

__all__ = [
    "AbstractLatents",
    "AbstractPosterior",
    "AbstractVariational",
    "AnchoredLatents",
    "AnchoredPosterior",
    "Below",
    "CollapsedPosterior",
    "Columns",
    "Coupling",
    "Critic",
    "Discriminator",
    "DrawnPosterior",
    "Ensemble",
    "Fitted",
    "GaussianLatents",
    "GaussianPosterior",
    "GeneratedPosterior",
    "Generator",
    "Information",
    "LatentPosterior",
    "Mix",
    "MixturePosterior",
    "Pool",
    "Recogniser",
    "ToppedPosterior",
    "anchored_latents",
    "anchored_posterior",
    "gaussian_posterior",
    "generated_posterior",
    "measure_information",
    "members_of",
    "sample_prior",
]
