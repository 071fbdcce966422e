"""What sharing parameters over inducing inputs does to the speed of the game.

    nashgp run tying-speed

One training step, one compiled call for 100 joint draws of all inducing values, and one prediction
of the test rows, with tied and naive players on the same model and rows. Each is the fastest of
several, on a machine that should do nothing else.
"""

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from nashgp import datasets
from nashgp.experiments import cells

NUM_DRAWS, REPEATS, STEPS = 100, 5, 20


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The size of the model; `tying` is "tied" or "naive"."""

    tying: str = "tied"
    depth: int = 4
    num_inducing: int = 128
    num_samples: int = 10
    steps: int = STEPS
    dtype: str = "float32"

    def run(self) -> cells.Scores:
        import equinox as eqx
        import jax
        import jax.random as jr

        from nashgp import predict, recipes, train
        from nashgp.batch import make_data
        from nashgp.engines import PaperGame
        from nashgp.posteriors import GeneratedPosterior
        from nashgp.scaling import Scaling

        x, y, x_test, _ = datasets.load(self.set).split(self.split)
        scaling = Scaling.from_rows(x, y)
        data = make_data(*scaling.forward(x, y), dtype=self.dtype)
        config = recipes.Config(self.depth, None, self.num_inducing)
        start = recipes.build(np.asarray(data.x), 1, config, dtype=self.dtype)
        engine = PaperGame(num_samples=self.num_samples, tied=self.tying == "tied")
        outcome = train.run(
            jr.key(0),
            engine,
            start,
            data,
            num_steps=(REPEATS + 2) * self.steps,  # the first ones are compiled and paced
            chunk=self.steps,
        )
        fitted, posterior = outcome.fitted, outcome.fitted.posterior
        assert isinstance(posterior, GeneratedPosterior)
        draw = eqx.filter_jit(lambda key: posterior.sample(key, fitted.model, NUM_DRAWS))
        inputs = scaling.inputs(x_test)

        def answer() -> object:
            return predict.summarise(
                predict.moments, jr.key(1), fitted, inputs, num_samples=NUM_DRAWS
            )

        return {
            "parameters": sum(
                leaf.size
                for player in (posterior.generator, posterior.discriminator)
                for leaf in jax.tree.leaves(player.networks)
            ),
            "step_ms": 1e3 * float(np.min(np.diff(outcome.history.seconds)[1:])) / self.steps,
            "draw_ms": 1e3 * fastest(lambda: jax.block_until_ready(draw(jr.key(0)))),
            "predict_ms": 1e3 * fastest(answer),
        }


def fastest(call: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls after the first, which compiles."""
    call()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


STUDY = cells.Study(
    "tying_speed",
    Cell,
    full={
        "sets": ["boston"],
        "splits": [0],
        "depths": [1, 2, 4],
        "tyings": ["tied", "naive"],
        "jobs": 1,
    },
    quick={
        "sets": ["boston"],
        "splits": [0],
        "depths": [2],
        "tyings": ["tied", "naive"],
        "jobs": 1,
        "num_inducing": 10,
        "steps": 2,
    },
    axes=("set", "depth", "tying", "split"),
    label=lambda cell: f"{cell.set} {cell.tying} depth {cell.depth}",
)
add_arguments, main = STUDY.add_arguments, STUDY.main
