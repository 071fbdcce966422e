"""Data term and last layer on the standard UCI splits: three treatments, three powers.

    nashgp run power-uci --sets boston concrete energy wine-red --splits 0 1 2 3 4

`closed` integrates all inducing values out row by row (DSVI), `drawn` draws them, `collapsed`
draws the hidden ones and integrates the last layer out exactly. Two layers, the same start and
optimiser for all; a collapsed last layer has no parameters to wait for and gets fewer steps.
"""

import dataclasses

from nashgp.experiments import cells

NUM_STEPS = {"closed": 1_000, "drawn": 1_000, "collapsed": 500}


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one fit; `num_steps` 0 stands for those of the method."""

    method: str = "collapsed"
    power: float = 0.5
    num_layers: int = 2
    num_inducing: int = 128
    num_steps: int = 0
    num_samples: int = 1
    learning_rate: float = 0.02
    hidden_scale: float = 1e-2
    dtype: str = "float32"
    seed: int = 0

    def run(self) -> cells.Scores:
        from nashgp.engines import DSVI, Collapsed
        from nashgp.recipes import Config

        num_steps = self.num_steps or NUM_STEPS[self.method]
        common = self.learning_rate, self.num_samples, self.power
        if self.method == "collapsed":
            engine = Collapsed(*common, decay_steps=num_steps)
        else:
            engine = DSVI(*common, draw_inducing=self.method == "drawn", decay_steps=num_steps)
        config = Config(self.num_layers, None, self.num_inducing, hidden_scale=self.hidden_scale)
        return cells.fit_and_score(
            self, config, engine, num_steps=num_steps, dtype=self.dtype, seed=self.seed
        )


STUDY = cells.Study(
    "power_uci",
    Cell,
    full={
        "sets": ["boston", "concrete", "energy", "wine-red"],
        "splits": [0, 1, 2, 3, 4],
        "methods": list(NUM_STEPS),
        "powers": [0.0, 0.5, 1.0],
    },
    quick={
        "sets": ["boston"],
        "splits": [0],
        "methods": list(NUM_STEPS),
        "powers": [0.5],
        "jobs": 1,
        "num_steps": 20,
        "num_inducing": 10,
    },
    axes=("set", "method", "power", "split"),
    label=lambda cell: f"{cell.set} {cell.method} power {cell.power:g}",
    base={"method": "closed", "power": 0.0},
)
add_arguments, main = STUDY.add_arguments, STUDY.main
