"""Every engine at every depth on the UCI sets: figure 4 of the paper, with references beside.

    nashgp run uci
    nashgp run uci --sets boston energy --splits 0 1 2 --depths 1 2 3

The first runs what the study plans: all engines on the small sets, some of them on the larger.
Methods: `ipvi` is the regressor as it comes, at depth 0 with a depth that held-out training rows
choose; `gaussian` the same without the game; `dsvi`, `paper` and `sghmc` have the settings of their
authors where those are known, RBF kernels and our number of steps. `boosting` and `neighbours` are
scikit-learn's, with normal errors of the spread that cross-validation inside the training rows
finds. Protocols: `standard` splits, or `extrapolation`, where the half of the rows that lies beyond
the median along a random direction is predicted from the other half. Standard splits from 10 on are
a part of their own, the confirmation: they were not met before the recipe was fixed. `dsvi` at
depth 1 is the sparse GP. A figure for each part is written beside the results.
"""

import argparse
import dataclasses
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from nashgp import datasets
from nashgp.experiments import cells, comparing
from nashgp.experiments.comparing import Found

DEFAULTS: dict[str, Any] = {"num_mixture": cells.SAMPLES, "dtype": "auto"}
PUBLISHED: dict[str, Any] = {"kernel": "rbf", "num_inducing": 128}
ENGINES: dict[str, dict[str, Any]] = {  # settings of `DeepGPRegressor`
    "ipvi": {},
    "gaussian": {"engine": "dsvi"},
    "dsvi": PUBLISHED
    | {
        "engine": "dsvi",
        "last_layer": "gradient",
        "power": 0.0,
        "learning_rate": 0.01,
        "num_steps": 5_000,
    },
    "paper": PUBLISHED  # as `nashgp run tying` plays it
    | {"game": "paper", "num_steps": 2_000, "num_samples": 5, "dtype": "float32"},
    "sghmc": {"engine": "sghmc", "kernel": "rbf", "num_inducing": 100, "batch_size": 10_000}
    | {"num_mixture": 100},
}
REFERENCES = ("boosting", "neighbours")
SMALL, LARGER = ["boston", "concrete", "energy", "wine-red"], ["kin8nm", "power"]
BEYOND = {"protocols": ["extrapolation"], "sets": SMALL[:3], "splits": list(range(5))}
PROTOCOLS = ("standard", "extrapolation")
PARTS = ("standard", "confirmation", "extrapolation")
CONFIRMING = 10  # the first standard split that was kept until all was settled
NUM_FOLDS = 5

Rows = Float[np.ndarray, "_ _"]
Vector = Float[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """One fit; a depth of 0 is chosen on training rows, `num_steps` 0 is the method's own."""

    method: str = "ipvi"
    depth: int = 2
    protocol: str = "standard"
    num_steps: int = 0
    seed: int = 0

    def check(self) -> None:
        super().check()
        cells.check_name("methods", self.method, (*ENGINES, *REFERENCES))
        cells.check_name("protocols", self.protocol, PROTOCOLS)

    def run(self) -> cells.Scores:
        rows = split_rows(self.set, self.split, self.protocol)
        if self.method in REFERENCES:
            return reference(self.method, *rows, seed=self.seed)
        from nashgp import DeepGPRegressor
        from nashgp.errors import UnsettledChainsWarning, UntrustedRatioWarning

        settings = DEFAULTS | ENGINES[self.method] | {"num_layers": self.depth or "auto"}
        if self.num_steps:
            settings["num_steps"] = self.num_steps
        model = DeepGPRegressor(**settings, random_state=self.seed)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            scores = cells.score_estimator(model, *rows, seed=self.seed)
        doubts = (UnsettledChainsWarning, UntrustedRatioWarning)
        return scores | {
            "num_layers": model.num_layers_,
            "doubted": float(any(issubclass(each.category, doubts) for each in given)),
        }


def split_rows(name: str, split: int, protocol: str) -> tuple[Rows, Rows, Rows, Rows]:
    """Training and test rows; an extrapolation is cut at the median along a direction of its own.

    The direction and the units of the columns know nothing of the targets.
    """
    data = datasets.load(name)
    if protocol == "standard":
        return data.split(split)
    spread = np.std(data.x, axis=0)
    units = (data.x - np.mean(data.x, axis=0)) / np.where(spread > 0.0, spread, 1.0)
    place = units @ np.random.default_rng([2019, split]).normal(size=units.shape[1])
    beyond = place > np.median(place)
    return data.x[~beyond], data.y[~beyond], data.x[beyond], data.y[beyond]


def reference(method: str, x: Rows, y: Rows, x_test: Rows, y_test: Rows, *, seed: int):
    """Scores of scikit-learn's regressor with `N(prediction, s²)`, s from rows it did not see."""
    from sklearn.model_selection import KFold, cross_val_predict

    model, target = _regressor(method, len(x), seed), y[:, 0]
    began = time.perf_counter()
    folds = KFold(NUM_FOLDS, shuffle=True, random_state=seed)
    spread = float(np.std(target - cross_val_predict(model, x, target, cv=folds)))
    model.fit(x, target)
    seconds = time.perf_counter() - began
    scores = normal_scores(model.predict(x_test), spread, y_test[:, 0])
    train = normal_scores(model.predict(x), spread, target)
    return scores | {"train_mll": train["mll"], "seconds": seconds}


def _regressor(method: str, num_rows: int, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if method == "boosting":
        return HistGradientBoostingRegressor(random_state=seed)
    nearest = make_pipeline(StandardScaler(), KNeighborsRegressor(weights="distance"))
    num = [num for num in (2, 4, 8, 16, 32) if 2 * num <= num_rows]
    return GridSearchCV(nearest, {"kneighborsregressor__n_neighbors": num}, cv=NUM_FOLDS)


def normal_scores(mean: Vector, spread: float, y: Vector) -> cells.Scores:
    """The scores of `cells.evaluate` for `N(mean, spread²)`, which is its own moment match."""
    from scipy.special import ndtr, ndtri

    from nashgp import metrics

    variance = np.full_like(mean, spread**2)
    mll = float(np.mean(metrics.moment_matched_log_density(mean, variance, y)))
    crps = metrics.crps_gaussian_mixture(mean[None], variance[None], y)

    def covered(share: float) -> float:
        reach = spread * ndtri(0.5 + 0.5 * share)
        return metrics.coverage(mean - reach, mean + reach, y)

    return {
        "mll": mll,
        "mll_moment_matched": mll,
        "crps": float(np.mean(crps)),
        "rmse": metrics.rmse(mean, y),
        "coverage50": covered(0.5),
        "coverage90": covered(0.9),
        **cells.calibration(ndtr((y - mean) / spread)),
    }


def label(cell: cells.Cell | Mapping[str, Any]) -> str:
    """A method and its depth, as the figure names them."""
    found = cell if isinstance(cell, Mapping) else dataclasses.asdict(cell)
    if found["method"] in REFERENCES:
        return found["method"]
    return f"{found['method']} {found['depth'] or 'auto'}"


def part(cell: Mapping[str, Any]) -> str:
    """Which cells are compared with each other."""
    confirms = cell["protocol"] == "standard" and cell["split"] >= CONFIRMING
    return "confirmation" if confirms else cell["protocol"]


STUDY = cells.Study(
    "uci",
    Cell,
    full={
        "protocols": ["standard"],
        "sets": [*SMALL, *LARGER, "protein"],
        "methods": [*ENGINES, *REFERENCES],
        "depths": [1, 2, 3, 4, 5],
        "splits": list(range(10)),
    },
    quick={
        "protocols": ["standard"],
        "sets": ["boston"],
        "methods": ["gaussian", *REFERENCES],
        "depths": [1],
        "splits": [0],
        "jobs": 1,
        "num_steps": 5,
    },
    plan=[
        {"methods": list(REFERENCES)},
        {"sets": SMALL, "methods": list(ENGINES), "depths": [1, 2, 3]},
        {"sets": SMALL, "methods": ["ipvi"], "depths": [0], "splits": list(range(20))},
        {"sets": ["boston", "energy"], "methods": list(ENGINES), "depths": [4, 5]}
        | {"splits": list(range(5))},
        {"sets": LARGER, "methods": ["ipvi", "dsvi"], "depths": [1, 2, 3], "splits": [0, 1, 2]},
        {"sets": LARGER, "methods": ["ipvi"], "depths": [0], "splits": [0, 1, 2]},
        {"sets": LARGER, "methods": ["sghmc"], "depths": [1, 2, 3], "splits": [0]},
        {"sets": ["protein"], "methods": ["ipvi", "dsvi"], "depths": [1, 2], "splits": [0, 1]},
        {"sets": ["protein"], "methods": ["ipvi"], "depths": [0], "splits": [0, 1]},
        {"sets": ["protein"], "methods": ["sghmc"], "depths": [1, 2], "splits": [0]},
        BEYOND | {"methods": ["ipvi", "gaussian", "dsvi", "sghmc"], "depths": [2]},
        BEYOND | {"methods": list(REFERENCES)},
    ],
    axes=("protocol", "set", "method", "depth", "split"),
    label=lambda cell: f"{cell.protocol} {cell.set} {label(cell)}",
    base={"method": "dsvi"},
    part=part,
    keep=lambda cell: (
        (cell.method not in REFERENCES or cell.depth == 1)
        and (cell.depth > 0 or cell.method == "ipvi")
        and cell.split < datasets.num_splits(cell.set)
    ),
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Run what is missing; print the table, ranks and paired differences, and draw the figures."""
    status = STUDY.main(options)
    results = STUDY.folder(options)
    records = cells.scored(results)
    for name in PARTS:
        found = gather([r for r in records if part(r["cell"]) == name])
        if found:
            print(f"\n{name}: ranks, 1 is the best\n{ranking(found)}")
            print(f"\n{name}: test MLL minus that of dsvi, paired\n{differences(found)}")
            print(draw(found, results / f"{name}.png"))
    return status


def gather(records: Sequence[Mapping[str, Any]]) -> Found:
    """Test MLL by set, method and split."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for record in records:
        cell = record["cell"]
        of_set = found.setdefault(cell["set"], {})
        of_set.setdefault(label(cell), {})[cell["split"]] = record["scores"]["mll"]
    return found


def ranking(found: Found) -> str:
    """Mean place of each method over the sets, the best first."""
    means = {name: np.mean(list(of.values())) for name, of in comparing.ranks(found).items()}
    order = sorted(means, key=lambda name: means[name])
    return "\n".join(f"{name:>16} {means[name]:6.2f}" for name in order)


def differences(found: Found) -> str:
    """Each method minus dsvi of the same depth, on the splits that both have."""
    lines = []
    for name, of_set in found.items():
        for method, scores in of_set.items():
            base = of_set.get(f"dsvi {method.split()[-1]}", {})
            apart = comparing.paired(scores, base)
            if apart and base is not scores:
                mean, error = cells.mean_and_error(apart)
                lines.append(
                    f"{name:>10} {method:>16} {len(apart):3d} splits {mean:+.3f} ± {error:.3f}"
                )
    return "\n".join(lines) or "(dsvi is not run)"


def draw(found: Found, path: Any) -> Any:
    """Dots and bars of test MLL, a panel for each set and one of ranks."""
    order = list(ENGINES | dict.fromkeys(REFERENCES))
    names = dict.fromkeys(name for of_set in found.values() for name in of_set)
    labels = sorted(names, key=lambda name: (order.index(name.split()[0]), name))
    comparing.figure(found, labels).savefig(path, dpi=110)
    return path
