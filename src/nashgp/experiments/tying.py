"""Parameters tied or not, depth 1 to 5, on the standard UCI splits: the paper's tables of tying.

    nashgp run tying --games paper anchored --sets boston energy --splits 0 1 2

In the paper's game, rates, networks and noise are the paper's; steps and draws are ours, the same
for every set. Beside the scores stand the discriminator's accuracy and its log ratio over the last
tenth of the steps: where draws of posterior and prior are told apart with ease, the ratio says
little of the KL. The anchored game is played over all layers, in the last third of the steps, from
where DSVI has arrived. The published train and test MLL are printed beside.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nashgp.experiments import cells

GAMES, TYINGS = ("paper", "anchored"), ("tied", "naive")
MIXED_SHARE = 1 / 3  # of the steps, with an anchored generator
PUBLISHED = {  # Yu et al. (2019), tables 3 and 4: train (where printed) and test MLL by depth
    ("boston", "naive"): ((-1.86, -1.76, -1.64, -1.52, -1.51), (-2.21, -2.37, -2.48, -2.51, -2.57)),
    ("boston", "tied"): ((-1.91, -1.79, -1.77, -1.84, -1.83), (-2.09, -2.08, -2.13, -2.09, -2.10)),
    ("energy", "naive"): ((-0.12, 0.03, 0.18, 0.20, 0.21), (-0.44, -0.31, -0.34, -0.47, -0.58)),
    ("energy", "tied"): ((-0.16, -0.11, -0.02, 0.10, 0.17), (-0.32, -0.34, -0.23, -0.01, 0.13)),
    ("power", "naive"): (None, (-2.77, -2.79, -2.74, -2.73, -2.75)),
    ("power", "tied"): (None, (-2.76, -2.69, -2.67, -2.70, -2.71)),
    ("wine-red", "naive"): (None, (-0.97, -0.94, -0.96, -0.97, -0.97)),
    ("wine-red", "tied"): (None, (-0.84, -0.81, -0.86, -0.86, -0.85)),
    ("protein", "naive"): (None, (-2.83, -2.72, -2.69, -2.70, -2.67)),
    ("protein", "tied"): (None, (-2.73, -2.57, -2.56, -2.59, -2.62)),
}


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one fit; `tying` is "tied" or "naive"."""

    game: str = "paper"
    tying: str = "tied"
    depth: int = 2
    num_inducing: int = 128
    num_steps: int = 2_000
    num_samples: int = 5
    num_player1_steps: int = 1
    discriminator_rate: float = 0.05
    dtype: str = "float32"
    seed: int = 0

    def check(self) -> None:
        super().check()
        cells.check_name("games", self.game, GAMES)
        cells.check_name("tyings", self.tying, TYINGS)

    def run(self) -> cells.Scores:
        from nashgp.recipes import Config

        config = Config(self.depth, None, self.num_inducing)
        fit = self._play if self.game == "paper" else self._mix
        return cells.score_fit(self, config, fit, dtype=self.dtype, seed=self.seed)

    def _play(self, key, start, data):
        from nashgp import train
        from nashgp.engines import PaperGame

        engine = PaperGame(
            num_samples=self.num_samples,
            tied=self.tying == "tied",
            num_player1_steps=self.num_player1_steps,
            discriminator_rate=self.discriminator_rate,
        )
        return train.run(key, engine, start, data, num_steps=self.num_steps, num_kept=cells.SAMPLES)

    def _mix(self, key, start, data):
        """DSVI, then the anchored game over it; Player 2's networks are tied or not."""
        import jax.random as jr

        from nashgp import recipes, train
        from nashgp.engines import DSVI

        first, second = jr.split(key)
        mixed = max(1, round(MIXED_SHARE * self.num_steps))
        before = self.num_steps - mixed
        engine = DSVI(0.01, 1, 0.0, decay_steps=before)
        middle = train.run(first, engine, start, data, num_steps=before).fitted
        middle = recipes.anchor(middle, whole=True, seed=self.seed, tied=self.tying == "tied")
        engine = DSVI(0.01, self.num_samples, 0.0, True, mixed, network_rate=3e-4)
        return train.run(second, engine, middle, data, num_steps=mixed, num_kept=cells.SAMPLES)


STUDY = cells.Study(
    "tying",
    Cell,
    full={
        "sets": ["boston", "energy"],
        "splits": [0, 1, 2],
        "games": list(GAMES),
        "tyings": list(TYINGS),
        "depths": [1, 2, 3, 4, 5],
    },
    quick={
        "sets": ["boston"],
        "splits": [0],
        "games": list(GAMES),
        "tyings": list(TYINGS),
        "depths": [2],
        "jobs": 1,
        "num_steps": 20,
        "num_inducing": 10,
    },
    axes=("game", "set", "tying", "depth", "split"),
    label=lambda cell: f"{cell.game} {cell.set} {cell.tying} depth {cell.depth}",
    base={"tying": "naive"},
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Run what is missing; print the table, and train and test MLL beside the published ones."""
    status = STUDY.main(options)
    print(beside(cells.scored(STUDY.folder(options))))
    return status


def beside(records: Sequence[Mapping[str, Any]]) -> str:
    """Mean train / test MLL by depth, and what the paper has."""
    found: dict[tuple[str, str, str], dict[int, list[tuple[float, float]]]] = {}
    for record in records:
        cell, scores = record["cell"], record["scores"]
        of = found.setdefault((cell["set"], cell["game"], cell["tying"]), {})
        of.setdefault(cell["depth"], []).append((scores["train_mll"], scores["mll"]))
    lines = ["train / test MLL by depth"]
    for name in sorted({key[0] for key in found}):
        for (_, game, tying), depths in sorted(
            item for item in found.items() if item[0][0] == name
        ):
            shown = [(depth, *np.mean(depths[depth], axis=0)) for depth in sorted(depths)]
            lines.append(_line(name, f"{game} {tying}", shown))
        for tying in TYINGS:
            train, test = PUBLISHED.get((name, tying), (None, ()))
            shown = [(d, train[d - 1] if train else None, mll) for d, mll in enumerate(test, 1)]
            if shown:
                lines.append(_line(name, f"published {tying}", shown))
    return "\n".join(lines)


def _line(name: str, kind: str, shown: Sequence[tuple[int, float | None, float]]) -> str:
    """One line of the table; the paper does not print all training scores."""
    pairs = [
        f"{depth}: {'' if train is None else f'{train:.2f}'} / {test:.2f}"
        for depth, train, test in shown
    ]
    return f"{name:>10} {kind:<16} " + "   ".join(pairs)
