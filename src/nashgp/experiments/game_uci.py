"""The paper's game on the standard UCI splits: depth 1 to 5, parameters tied or not.

    nashgp run game-uci --sets boston energy --splits 0 1 2

Rates, networks and noise are the paper's; steps and draws are ours, the same for every set. Beside
the scores stand the discriminator's accuracy and its log ratio over the last tenth of the steps:
where draws of posterior and prior are told apart with ease, the ratio says little of the KL.
"""

import dataclasses

from nashgp.experiments import cells


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one fit; `tying` is "tied" or "naive"."""

    tying: str = "tied"
    depth: int = 2
    num_inducing: int = 128
    num_steps: int = 2_000
    num_samples: int = 5
    num_player1_steps: int = 1
    discriminator_rate: float = 0.05
    dtype: str = "float32"
    seed: int = 0

    def run(self) -> cells.Scores:
        from nashgp.engines import PaperGame
        from nashgp.recipes import Config

        engine = PaperGame(
            num_samples=self.num_samples,
            tied=self.tying == "tied",
            num_player1_steps=self.num_player1_steps,
            discriminator_rate=self.discriminator_rate,
        )
        config = Config(self.depth, None, self.num_inducing)
        return cells.fit_and_score(
            self, config, engine, num_steps=self.num_steps, dtype=self.dtype, seed=self.seed
        )


STUDY = cells.Study(
    "game_uci",
    Cell,
    full={
        "sets": ["boston", "energy"],
        "splits": [0, 1, 2],
        "tyings": ["tied", "naive"],
        "depths": [1, 2, 3, 4, 5],
    },
    quick={
        "sets": ["boston"],
        "splits": [0],
        "tyings": ["tied", "naive"],
        "depths": [2],
        "jobs": 1,
        "num_steps": 20,
        "num_inducing": 10,
    },
    axes=("set", "tying", "depth", "split"),
    label=lambda cell: f"{cell.set} {cell.tying} depth {cell.depth}",
    base={"tying": "naive"},
)
add_arguments, main = STUDY.add_arguments, STUDY.main
