"""SGHMC on the paper's posterior of five modes: step size, friction, gradient noise and start.

`nashgp run synthetic` runs these cells beside its games. One setting varies at a time, the others
are those of the paper's appendix: η = 0.3, α = 0.4, V = 0.1, init = 4. They refer to `u`, as do
those of the plain sampler (Chen et al. 2014): the burn-in has no steps, so no scale adapts.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nashgp.experiments import cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = {"η": 0.3, "init": 4.0, "V": 0.1, "α": 0.4}
FIELDS = {"η": "eta", "init": "init", "V": "noise", "α": "friction"}
SWEEPS = {
    "η": (0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6),
    "init": (0.0, 4.0, 8.0, 20.0),
    "V": (0.0, 0.1, 1.0, 2.0),
    "α": (0.1, 0.2, 0.4, 0.8),
}


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one chain; `split` is its seed."""

    eta: float = BASE["η"]
    init: float = BASE["init"]
    noise: float = BASE["V"]
    friction: float = BASE["α"]
    num_draws: int = 20_000
    spacing: int = 5

    def check(self) -> None:
        """The rows are those of the paper, any seed will do."""

    def run(self) -> cells.Scores:
        import jax.random as jr

        from nashgp import train
        from nashgp.engines import SGHMC
        from nashgp.experiments import diamond, synthetic
        from nashgp.posteriors import DrawnPosterior

        unit = diamond.PRIOR_VARIANCE**0.5  # of u, where the sampler's is one
        engine = SGHMC(
            step_size=self.eta**0.5 / unit,
            friction=self.friction,
            gradient_noise=self.noise * unit**2,
            start=self.init / unit,
            burn_in=0,
            spacing=self.spacing,
            num_draws=self.num_draws,
        )
        fitted, data = diamond.problem()
        num_steps = self.num_draws * self.spacing
        began = time.perf_counter()
        outcome = train.run(
            jr.key(self.split),
            engine,
            fitted,
            data,
            num_steps=num_steps,
            chunk=max(1, num_steps // 4),
            num_kept=self.num_draws,
        )
        seconds = time.perf_counter() - began
        posterior = outcome.fitted.posterior
        assert isinstance(posterior, DrawnPosterior)
        draws = np.asarray(posterior.values[0], np.float64).ravel() * unit
        return synthetic.score(draws) | {"seconds": seconds}


def _varies_one(cell: Cell) -> bool:
    return sum(getattr(cell, FIELDS[name]) != value for name, value in BASE.items()) <= 1


STUDY = cells.Study(
    "synthetic_sghmc",
    Cell,
    full={
        "sets": ["diamond"],
        "etas": list(SWEEPS["η"]),
        "inits": list(SWEEPS["init"]),
        "noises": list(SWEEPS["V"]),
        "frictions": list(SWEEPS["α"]),
        "splits": [0, 1, 2, 3, 4],
    },
    quick={
        "sets": ["diamond"],
        "etas": [BASE["η"]],
        "inits": [BASE["init"]],
        "noises": [BASE["V"]],
        "frictions": [BASE["α"]],
        "splits": [0],
        "jobs": 1,
        "num_draws": 500,
    },
    axes=("set", "eta", "init", "noise", "friction", "split"),
    label=lambda cell: f"η {cell.eta:g} init {cell.init:g} V {cell.noise:g} α {cell.friction:g}",
    keep=_varies_one,
)


def figures(results: Path, *, stacked: bool = False) -> dict[str, "Figure"]:
    """Densities at x = 0 of chains, by start, gradient noise and friction: the paper's appendix."""
    from nashgp.experiments import plots
    from nashgp.experiments.diamond import Truth
    from nashgp.experiments.synthetic import CENTRES_OF_BINS

    f, sampled = CENTRES_OF_BINS[::2], cells.scored(results)
    sweeps = {name: sweep(sampled, name) for name in BASE if name != "η"}
    density = Truth().density(f)
    return {"sghmc": plots.sampler_settings(f, density, sweeps, BASE, stacked=stacked)}


def sweep(records: Sequence[dict], name: str) -> list[Any]:
    """Each `plots.Chain` in which one setting varies and the others do not."""
    from nashgp.experiments.plots import Chain

    found = []
    for record in records:
        settings = {key: record["cell"][field] for key, field in FIELDS.items()}
        if all(settings[key] == value for key, value in BASE.items() if key != name):
            scores = record["scores"]
            density = np.array(scores["density"])
            found.append(Chain(settings, scores["jsd"], scores["mll"], density))
    return found
