"""Observation models: what a target is, given the function values behind it.

| likelihood   | targets                | `log p(y | f)`                                      |
|--------------|------------------------|-----------------------------------------------------|
| `Gaussian`   | real numbers           | normal around `f`, noise constant or a function of x |
| `StudentT`   | real, with outliers    | heavy-tailed around `f`                             |
| `Bernoulli`  | 0 or 1                 | `Φ(f)` is the probability of 1                      |
| `Poisson`    | counts                 | rate `exp(f)`                                       |
| `RobustMax`  | labels `0 .. C-1`      | the largest of `C` functions, up to rare mistakes   |
| `Softmax`    | labels `0 .. C-1`      | probabilities proportional to `exp(f_c)`            |

Targets are floats `[N, Q]`; labels and counts are floats that hold whole numbers.
"""

from nashgp.likelihoods.base import AbstractLikelihood, AbstractScalar, masked_sum
from nashgp.likelihoods.classes import AbstractClasses, RobustMax, Softmax
from nashgp.likelihoods.continuous import Gaussian, StudentT, has_varying_noise
from nashgp.likelihoods.discrete import Bernoulli, Poisson
from nashgp.likelihoods.fields import Field

__all__ = [
    "AbstractClasses",
    "AbstractLikelihood",
    "AbstractScalar",
    "Bernoulli",
    "Field",
    "Gaussian",
    "Poisson",
    "RobustMax",
    "Softmax",
    "StudentT",
    "has_varying_noise",
    "masked_sum",
]
