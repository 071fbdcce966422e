"""SGHMC on the standard UCI splits: its authors' settings, and hyperparameters that are held early.

    nashgp run sghmc-uci --sets boston --splits 0 1 2

Two layers, RBF kernels, 100 inducing inputs, all rows in each step (mini-batches of 10,000 in the
authors' code), 10,000 steps of burn-in and 100 draws at a distance of 50, the same for every set.
"published" lets hyperparameters climb during the whole burn-in. "held" sets a fifth of the
training rows aside, looks at them five times in the burn-in, and goes back to the hyperparameters
whose draws predicted them best, if that is clearly better than at its end; then all training rows
make the draws. Test rows decide nothing. `rhat` is the largest of the log density and of the
functions at the inducing inputs; `looks` are the mean held-out scores, in standardised units.
"""

import dataclasses

from nashgp import datasets
from nashgp.experiments import cells

HELD_OUT = 0.2


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one fit; `kind` is "published" or "held"."""

    kind: str = "published"
    num_layers: int = 2
    num_inducing: int = 100
    num_steps: int = 15_000
    num_draws: int = 100
    num_chains: int = 1
    power: float = 1.0
    window: int = 1
    dtype: str = "float32"
    seed: int = 0

    def run(self) -> cells.Scores:
        import warnings

        import numpy as np

        from nashgp import DeepGPRegressor
        from nashgp.errors import UnsettledChainsWarning

        model = DeepGPRegressor(
            engine="sghmc",
            kernel="rbf",
            num_layers=self.num_layers,
            num_inducing=self.num_inducing,
            num_steps=self.num_steps,
            num_mixture=self.num_draws,
            power=self.power,
            batch_size=10_000,
            validation_fraction=HELD_OUT if self.kind == "held" else 0.0,
            dtype=self.dtype,
            random_state=self.seed,
            engine_options={"num_chains": self.num_chains, "window": self.window},
        )
        rows = datasets.load(self.set).split(self.split)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsettledChainsWarning)  # it is in the scores
            scores = cells.score_estimator(model, *rows, seed=self.seed)
        looks = model.history_.validation
        report, noise = model.chains_, model.noise_std_
        assert noise is not None
        return scores | {
            "noise": float(noise[0]),
            "steps": model.num_steps_,
            "looks": looks[np.isfinite(looks)].round(3).tolist(),
            "rhat": report.worst,
            "effective": report.effective,
        }


STUDY = cells.Study(
    "sghmc_uci",
    Cell,
    full={
        "sets": ["boston", "concrete", "energy", "wine-red"],
        "splits": list(range(10)),
        "kinds": ["published", "held"],
    },
    quick={
        "sets": ["boston"],
        "splits": [0],
        "kinds": ["published", "held"],
        "jobs": 1,
        "num_steps": 60,
        "num_inducing": 10,
        "num_draws": 10,
    },
    axes=("set", "kind", "split"),
    label=lambda cell: f"{cell.set} {cell.kind}",
    base={"kind": "published"},
)
add_arguments, main = STUDY.add_arguments, STUDY.main
