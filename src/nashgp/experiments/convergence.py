"""How fast each treatment converges: objective and held-out rows against steps and seconds.

    nashgp run convergence --sets boston kin8nm

A tenth of the *training* rows of a split is held out; its test rows are never met. `published` is
DSVI with Adam from its published start; `closed`, `drawn`, `natural` and `collapsed` share another
start; `grown` is what the estimator does with one power: a shallow model first, then a deep one.
Seconds are wall time of training and compilation. A figure for each set is written beside the
results.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from nashgp import datasets
from nashgp.experiments import cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELD_OUT = 0.1
NUM_MARKS = 50  # times that the held-out rows are scored
WITHIN = 0.02  # nats
NUM_STEPS = {
    "published": 5_000,
    "closed": 3_000,
    "drawn": 3_000,
    "natural": 800,
    "collapsed": 500,
    "grown": 500,
}
ALL_ROWS = ("collapsed", "grown")  # need every row in each step
FULL_BATCH_ROWS, BATCH_SIZE = 1_000, 512  # of the others


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one fit; `num_steps` 0 stands for those of the method."""

    method: str = "collapsed"
    power: float = 0.5
    num_layers: int = 2
    num_inducing: int = 128
    num_steps: int = 0
    dtype: str = "float64"
    seed: int = 0

    def run(self) -> cells.Scores:
        from nashgp import recipes
        from nashgp.batch import make_data
        from nashgp.scaling import Scaling

        x, y, _, _ = datasets.load(self.set).split(self.split)
        order = np.random.default_rng(self.seed).permutation(len(x))
        held, learn = np.split(order, [round(HELD_OUT * len(x))])
        scaling = Scaling.from_rows(x[learn], y[learn])
        data, apart = (
            make_data(*scaling.forward(x[rows], y[rows]), dtype=self.dtype)
            for rows in (learn, held)
        )
        total = self.num_steps or NUM_STEPS[self.method]
        grown = self.method == "grown"
        config = recipes.Config(
            num_layers=1 if grown else self.num_layers,
            num_inducing=self.num_inducing,
            kernel="rbf+matern32" if grown else "rbf",
            hidden_scale=1e-5 if self.method == "published" else 1e-3,
        )
        start = recipes.build(np.asarray(data.x), 1, config, seed=self.seed, dtype=self.dtype)
        if grown:
            first = self._train(start, data, apart, 3 * total // 5)
            start = recipes.deepen(first.fitted, self.num_layers)
            second = self._train(start, data, apart, total - 3 * total // 5)
            history = first.history.followed_by(second.history)
        else:
            history = self._train(start, data, apart, total).history
        held_out = history.validation - np.log(scaling.y_scale[0])
        objective = np.split(history.objective / len(learn), history.step[:-1])
        place = settled(held_out)
        return {
            "step": history.step.tolist(),
            "second": history.seconds.tolist(),
            "held_out": held_out.tolist(),
            "objective": [float(np.mean(part)) for part in objective],
            "held_out_mll": float(held_out[-1]),
            "steps_to_settle": float(history.step[place]),
            "seconds_to_settle": float(history.seconds[place]),
            "seconds": float(history.seconds[-1]),
        }

    def _train(self, start, data, apart, num_steps: int):
        import jax.random as jr

        from nashgp import train

        all_rows = self.method in ALL_ROWS or len(data) <= FULL_BATCH_ROWS
        return train.run(
            jr.key(self.seed),
            self._engine(num_steps),
            start,
            data,
            num_steps=num_steps,
            batch_size=None if all_rows else BATCH_SIZE,
            chunk=max(1, num_steps // NUM_MARKS),
            validation=train.Validation(apart, patience=num_steps),  # never stops the run
            num_kept=0,
        )

    def _engine(self, num_steps: int):
        from nashgp.engines import DSVI, Collapsed, NaturalGradient

        if self.method == "published":
            return DSVI(0.01, 1, self.power)
        if self.method in ALL_ROWS:
            return Collapsed(0.03, 1, self.power, decay_steps=num_steps)
        if self.method == "natural":
            return NaturalGradient(0.1, 1, self.power, decay_steps=num_steps)
        return DSVI(0.02, 1, self.power, self.method == "drawn", decay_steps=num_steps)


def settled(values: Float[np.ndarray, " marks"], within: float = WITHIN) -> int:
    """The first place from which on all values are within a distance of the last, or above."""
    below = np.flatnonzero(values < values[-1] - within)
    return int(below[-1]) + 1 if len(below) else 0


def reached(values: Sequence[float], target: float) -> int | None:
    """The first place where a value is at least the target."""
    places = np.flatnonzero(np.asarray(values) >= target)
    return int(places[0]) if len(places) else None


STUDY = cells.Study(
    "convergence",
    Cell,
    full={
        "sets": ["boston", "kin8nm"],
        "splits": [0],
        "methods": list(NUM_STEPS),
        "powers": [0.0, 0.5, 1.0],
        "jobs": 1,  # seconds are compared
    },
    quick={
        "sets": ["boston"],
        "splits": [0],
        "methods": ["published", "natural", "grown"],
        "powers": [0.0],
        "jobs": 1,
        "num_steps": 20,
        "num_inducing": 10,
    },
    axes=("set", "method", "power", "split"),
    label=lambda cell: f"{cell.set} {cell.method} power {cell.power:g}",
    keep=lambda cell: cell.method != "published" or cell.power == 0.0,
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Run what is missing, print the tables and draw a figure for each set."""
    status = STUDY.main(options)
    results = STUDY.folder(options)
    for name, of_set in _by_set(results).items():
        print(speedups(name, of_set))
    cells.save_figures(figures(results), results)
    return status


def _by_set(results: Path) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for record in sorted(cells.scored(results), key=lambda record: record["cell"]["set"]):
        found.setdefault(record["cell"]["set"], []).append(record)
    return found


def figures(results: Path, *, stacked: bool = False) -> dict[str, "Figure"]:
    """Held-out MLL and objective of every fit against steps and seconds, compilation included."""
    from nashgp.experiments import plots

    made = {}
    for name, of_set in _by_set(results).items():
        curves = [
            plots.Curve(
                label=record["cell"]["method"],
                group=f"power {record['cell']['power']:g}",
                **{k: np.array(record["scores"][k]) for k in plots.Curve._fields[2:]},
            )
            for record in sorted(of_set, key=_order)
        ]
        made[name] = plots.convergence(curves, plots.colours(list(NUM_STEPS)), stacked=stacked)
    return made


def _order(record: dict) -> tuple[int, float]:
    return list(NUM_STEPS).index(record["cell"]["method"]), record["cell"]["power"]


def speedups(name: str, records: Sequence[dict]) -> str:
    """Times of published DSVI at power 0 over those of the rest: to settle, and to its level."""
    lines = [f"{name}: times over those of published DSVI (power 0)"]
    published = [r for r in records if (r["cell"]["method"], r["cell"]["power"]) == _PUBLISHED]
    if not published:
        return "\n".join([*lines, "  (not run)"])
    base = published[0]["scores"]
    for record in sorted(records, key=_order):
        scores, cell = record["scores"], record["cell"]
        place = reached(scores["held_out"], base["held_out_mll"] - WITHIN)
        level = "never" if place is None else f"{scores['second'][place]:.1f} s"
        ratio = base["seconds_to_settle"] / scores["seconds_to_settle"]
        lines.append(
            f"  {cell['method']:>10} power {cell['power']:<4g} final {scores['held_out_mll']:7.3f}"
            f"  settles after {scores['steps_to_settle']:5.0f} steps,"
            f" {scores['seconds_to_settle']:6.1f} s ({ratio:5.1f}x)"
            f"  at the published level after {level}"
        )
    return "\n".join(lines)


_PUBLISHED = ("published", 0.0)
