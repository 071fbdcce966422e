"""The regressor as it comes on the standard UCI splits: every setting chosen on training rows.

    nashgp run auto-uci --sets boston concrete energy wine-red --splits 0 1 2 3 4 5 6 7 8 9

Nothing is set but the seed and the engine, by default that of the estimator. What the estimator
chose is saved with the scores.
"""

import dataclasses

from nashgp import datasets
from nashgp.experiments import cells


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """One fit; `num_steps` 0 stands for the estimator's own choice."""

    engine: str = "ipvi"
    num_steps: int = 0
    seed: int = 0

    def run(self) -> cells.Scores:
        from nashgp import DeepGPRegressor

        model = DeepGPRegressor(
            engine=self.engine,
            random_state=self.seed,
            num_steps=self.num_steps or None,
            num_mixture=cells.SAMPLES,
        )
        rows = datasets.load(self.set).split(self.split)
        return cells.score_estimator(model, *rows, seed=self.seed) | {
            "powers": model.powers_,
            "num_inducing": model.num_inducing_,
            "num_restarts": model.num_restarts_,
            "remembers": model.remembers_,
        }


STUDY = cells.Study(
    "auto_uci",
    Cell,
    full={
        "sets": ["boston", "concrete", "energy", "wine-red"],
        "engines": ["ipvi"],
        "splits": list(range(10)),
    },
    quick={"sets": ["boston"], "engines": ["ipvi"], "splits": [0], "jobs": 1, "num_steps": 20},
    axes=("set", "engine", "split"),
    label=lambda cell: f"{cell.set} {cell.engine}",
)
add_arguments, main = STUDY.add_arguments, STUDY.main
