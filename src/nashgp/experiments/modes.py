"""Whether an engine finds modes that are far apart, with their weights.

    nashgp run modes

Two posteriors that are known: the paper's diamond with five modes (see `synthetic`), and a mirrored
two-layer model with two of weight 1/2. `gaussian` is one Gaussian; `anchored` are forty anchored
games side by side, scattered over the prior, tempered, and blended into the mixture with the
largest bound. Ten learning rates over two decades on the diamond, five seeds; one rate on the
mirror.
"""

import dataclasses
import time

import numpy as np

from nashgp.experiments import cells
from nashgp.experiments.synthetic import MIDDLE_RATE, NUM_DRAWS, RATES, score

MIRROR_DRAWS = 2_000
MIRROR_RATE = 0.01


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one fit; `split` is its seed. The frame climbs at twice the `rate`."""

    kind: str = "anchored"
    rate: float = MIDDLE_RATE
    num_starts: int = 40
    num_samples: int = 8
    first_weight: float = 0.003
    num_steps: int = 3_000

    def check(self) -> None:
        """The rows are part of the problem, any seed will do."""

    def run(self) -> cells.Scores:
        import jax.random as jr

        from nashgp import recipes, train
        from nashgp.engines import DSVI, Starts, Tempered
        from nashgp.experiments import diamond, mirror

        fitted, data = {"diamond": diamond, "mirror": mirror}[self.set].problem()
        engine = DSVI(
            2.0 * self.rate,
            self.num_samples,
            draw_inducing=True,
            decay_steps=self.num_steps,
            network_rate=self.rate,
            model_rate=0.0,
        )
        if self.kind == "anchored":
            fitted = recipes.anchor(
                fitted, whole=True, seed=self.split, noise_dim=2, width=16, first_mix=0.5
            )
            warm_up = max(1, 2 * self.num_steps // 3)
            engine = Tempered(engine, warm_up, self.first_weight)
            engine = Starts(engine, self.num_starts, scatter=1.0, blended=True)
        began = time.perf_counter()
        outcome = train.run(
            jr.key(self.split), engine, fitted, data, num_steps=self.num_steps, chunk=1_000
        )
        scores: cells.Scores = {
            "seconds": time.perf_counter() - began,
            "objective": float(np.mean(outcome.history.objective[-self.num_steps // 10 :])),
        }
        model, key = outcome.fitted.model, jr.key(self.split + 1)
        if self.set == "diamond":
            white = outcome.fitted.posterior.sample(key, model, NUM_DRAWS)[0]
            found = score(np.asarray(white, np.float64).ravel() * diamond.PRIOR_VARIANCE**0.5)
            return scores | {name: found[name] for name in ("jsd", "jsd_floor", "modes", "mass")}
        values = outcome.fitted.posterior.sample(key, model, MIRROR_DRAWS)
        share = float(np.mean(mirror.rising(model, values) > 0.0))
        return scores | {"share": share, "modes": int(share > 0.05) + int(share < 0.95)}


STUDY = cells.Study(
    "modes",
    Cell,
    full={
        "sets": ["diamond", "mirror"],
        "splits": [0, 1, 2, 3, 4],
        "kinds": ["gaussian", "anchored"],
        "rates": sorted({*RATES, MIRROR_RATE}),
        "jobs": 1,
    },
    quick={
        "sets": ["diamond", "mirror"],
        "splits": [0],
        "kinds": ["anchored"],
        "rates": [MIDDLE_RATE, MIRROR_RATE],
        "jobs": 1,
        "num_starts": 3,
        "num_steps": 20,
    },
    axes=("set", "kind", "rate", "split"),
    label=lambda cell: f"{cell.set} {cell.kind} rate {cell.rate:g}",
    keep=lambda cell: (
        (cell.rate == MIRROR_RATE)
        if cell.set == "mirror"
        else cell.rate in RATES and (cell.kind == "anchored" or cell.rate == MIDDLE_RATE)
    ),
)
add_arguments, main = STUDY.add_arguments, STUDY.main
