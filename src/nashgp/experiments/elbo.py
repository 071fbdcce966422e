"""The ELBO of every depth on Boston: table 6 of the paper, at power 0 and with its error.

    nashgp run elbo --methods dsvi gaussian anchored paper --depths 1 2 3 4 5

The evidence lower bound in nats over all training rows of a split, for targets in their own units
(`elbo`) and standardised ones (`elbo_standardised`); they differ by the rows times the log of the
targets' spread. `dsvi` is the Gaussian as published, deep from the start; `gaussian` the same that
has grown from a single layer; `anchored` goes on from there with a generator for the last part of
the same number of steps. All three bound the evidence, and their error is that of the draws.
`paper` is the paper's game, and its number what the paper does: Player 1 goes on alone,
then its log ratio stands for the KL. That bounds nothing where posterior and prior are told apart
with ease, which the accuracy beside it tells.
"""

import argparse
import dataclasses

import numpy as np

from nashgp import datasets
from nashgp.experiments import cells

PUBLISHED = {  # Yu et al. (2019), table 6; its units and rows are not stated
    1: (-956.57, -934.07),
    2: (-850.54, -846.65),
    3: (-836.13, -846.45),
    4: (-787.10, -776.93),
    5: (-770.67, -758.42),
}
SHALLOW_SHARE = 1 / 3  # of the steps of what grows, with a single layer
MIXED_SHARE = 1 / 3  # of the steps, with a generator
METHODS = ("dsvi", "gaussian", "anchored", "paper")
NUM_ESTIMATES, NUM_DRAWS = 50, 10  # draws of each estimate; their spread tells the error


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """One fit; `method` is of `METHODS`."""

    method: str = "dsvi"
    depth: int = 2
    num_inducing: int = 128
    num_steps: int = 5_000
    num_samples: int = 5
    dtype: str = "float32"
    seed: int = 0

    def check(self) -> None:
        super().check()
        cells.check_name("methods", self.method, METHODS)

    def run(self) -> cells.Scores:
        import jax.random as jr

        from nashgp import recipes
        from nashgp.batch import make_data
        from nashgp.precision import scope
        from nashgp.scaling import Scaling

        x, y, _, _ = datasets.load(self.set).split(self.split)
        scaling = Scaling.from_rows(x, y)
        data = make_data(*scaling.forward(x, y), dtype=self.dtype)
        grows = self.method in ("gaussian", "anchored")
        config = recipes.Config(1 if grows else self.depth, None, self.num_inducing)
        start = recipes.build(np.asarray(data.x), 1, config, seed=self.seed, dtype=self.dtype)
        play = self._play if self.method == "paper" else self._climb
        with scope(self.dtype):
            value, error, more = play(jr.key(self.seed), start, data)
        units = len(x) * float(np.log(scaling.y_scale[0]))
        return {
            "elbo": value - units,
            "elbo_standardised": value,
            "elbo_error": error,
            "elbo_per_row": (value - units) / len(x),
            **more,
        }

    def _climb(self, key, start, data) -> tuple[float, float, cells.Scores]:
        """A Gaussian, grown and mixed if asked for; all count the same number of steps."""
        import equinox as eqx
        import jax.random as jr

        from nashgp import recipes, train
        from nashgp.engines import DSVI
        from nashgp.engines.objectives import objective

        zeroth, first, second, last = jr.split(key, 4)
        mixed = round(MIXED_SHARE * self.num_steps) if self.method == "anchored" else 0
        deep, fitted = self.num_steps - mixed, start
        if len(start.model.layers) < self.depth:
            shallow = round(SHALLOW_SHARE * self.num_steps)
            deep -= shallow
            engine = DSVI(0.01, 1, 0.0, decay_steps=shallow)
            fitted = train.run(zeroth, engine, start, data, num_steps=shallow).fitted
            fitted = recipes.deepen(fitted, self.depth)
        engine = DSVI(0.01, 1, 0.0, decay_steps=deep)
        fitted = train.run(first, engine, fitted, data, num_steps=deep).fitted
        if mixed:
            fitted = recipes.anchor(fitted, whole=True, seed=self.seed)
            engine = DSVI(0.01, self.num_samples, 0.0, True, mixed, network_rate=3e-4)
            fitted = train.run(second, engine, fitted, data, num_steps=mixed).fitted

        @eqx.filter_jit
        def estimate(key, fitted):
            drawn = bool(mixed)
            options = {"num_samples": NUM_DRAWS, "draw_inducing": drawn}
            return objective(key, fitted, data.all(), **options)

        values = [float(estimate(each, fitted)) for each in jr.split(last, NUM_ESTIMATES)]
        return float(np.mean(values)), float(np.std(values, ddof=1)) / len(values) ** 0.5, {}

    def _play(self, key, start, data) -> tuple[float, float, cells.Scores]:
        """The paper's game, then Player 1 alone."""
        import jax.random as jr

        from nashgp import train
        from nashgp.engines import PaperGame, estimate_elbo

        first, second = jr.split(key)
        engine = PaperGame(num_samples=self.num_samples)
        outcome = train.run(first, engine, start, data, num_steps=self.num_steps)
        more = {"num_steps": max(1, self.num_steps // 5), "num_draws": NUM_ESTIMATES * NUM_DRAWS}
        found = estimate_elbo(second, engine, outcome.fitted, data, **more)
        seen = outcome.history.info
        last = slice(-max(1, len(seen["accuracy"]) // 10), None)
        told = {name: float(np.mean(seen[name][last])) for name in ("accuracy", "log_ratio")}
        return found.value, found.error, told


STUDY = cells.Study(
    "elbo",
    Cell,
    full={
        "sets": ["boston"],
        "splits": list(range(10)),
        "methods": list(METHODS),
        "depths": [1, 2, 3, 4, 5],
    },
    quick={
        "sets": ["boston"],
        "splits": [0],
        "methods": list(METHODS),
        "depths": [2],
        "jobs": 1,
        "num_inducing": 8,
        "num_steps": 6,
    },
    plan=[{"splits": [0, 1]}],
    axes=("set", "method", "depth", "split"),
    label=lambda cell: f"{cell.set} {cell.method} depth {cell.depth}",
    base={"method": "dsvi"},
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Run what is missing and print the table, with the published one below it."""
    status = STUDY.main(options)
    print("\npublished, Boston, units and rows not stated: depth, DSVI, IPVI")
    for depth, (dsvi, ipvi) in PUBLISHED.items():
        print(f"{depth:5d} {dsvi:9.2f} {ipvi:9.2f}")
    return status
