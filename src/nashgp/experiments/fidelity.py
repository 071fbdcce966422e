"""How faithful posteriors are: draws of each engine against long NUTS chains.

    nashgp run fidelity

Small deep GPs of one, two and three layers with one common target each (see `targets`). `gaussian`
is DSVI's posterior, a Gaussian for each layer; `collapsed` has the last layer integrated out, where
normal noise allows it, and a Gaussian for each layer below. `anchored` is the anchored game as the
library plays it: around `collapsed` where there is one, around `gaussian` elsewhere, and on the
bimodal target twenty scattered, tempered and blended ones. `weighed` are its draws where it covers
all layers, resampled by importance weights. `sghmc` are many chains of the sampler.
All know the hyperparameters. Distances between draws are in excess of their floor, reference
against reference. Errors of the function over a grid of inputs are in standard deviations of the
reference's function, those of the variance relative. `matched` is the distance of the Gaussian with
the reference's mean and covariance: how far the target is from any Gaussian. Reference draws are
kept as small files beside the results and used again. A figure is written beside the results.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from nashgp.errors import InputError
from nashgp.experiments import cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nashgp.batch import Data
    from nashgp.experiments.targets import Reference
    from nashgp.posteriors import Fitted

KINDS = ("gaussian", "collapsed", "anchored", "weighed", "sghmc")
COLLAPSIBLE = ("few-rows", "step", "three-layers")  # deep, with normal noise and one mode
NAMES = (  # those of `targets`, known here before JAX is
    "sine",
    "all-ones",
    "outliers",
    "few-rows",
    "step",
    "gate",
    "three-layers",
    "mirror",
)
GRID = np.linspace(-1.3, 1.3, 41)[:, None]  # a little beyond the rows
NUM_DRAWS = 5_000
NUM_SPLITS = 5  # random halves of the reference


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one fit; `split` is its seed. The sampler has steps of its own."""

    kind: str = "anchored"
    rate: float = 0.02
    network_rate: float = 0.003
    num_samples: int = 8
    num_steps: int = 3_000
    noise_dim: int = 4
    num_weighed: int = 20_000
    num_starts: int = 20
    num_chains: int = 100
    sampler_steps: int = 3_000
    step_size: float = 0.05
    reference_steps: int = 3_000
    reference_warm_up: int = 1_000
    loose: bool = False

    def check(self) -> None:
        if self.set not in NAMES:
            raise InputError(f"--sets must be of {', '.join(NAMES)}; got {self.set}.")
        if self.kind not in KINDS:
            raise InputError(f"--kinds must be of {', '.join(KINDS)}; got {self.kind}.")

    def run_in(self, results: Path) -> cells.Scores:
        from nashgp.experiments import targets

        truth = targets.reference(
            self.set,
            results,
            num_steps=self.reference_steps,
            num_warm_up=self.reference_warm_up,
            loose=self.loose,
        )
        fitted, data = targets.problem(self.set)
        began = time.perf_counter()
        found = self._fit(fitted, data)
        draws, extra = self._draw(found, data)
        seconds = time.perf_counter() - began
        reference = truth.draws.astype(np.float64)
        return (
            _distances(draws, reference)
            | _errors(*(_functions(fitted, one) for one in (draws, reference)))
            | _recipe(truth)
            | {"matched": _matched(reference), "seconds": seconds}
            | extra
        )

    def _draw(self, found: "Fitted", data: "Data") -> tuple[Float[np.ndarray, "S D"], cells.Scores]:
        """Draws of what was found, weighed against the target if asked for."""
        import jax.random as jr

        from nashgp import diagnostics, weighing

        key = jr.key(self.split + 1)
        if self.kind != "weighed":
            return diagnostics.flat(found.posterior.sample(key, found.model, NUM_DRAWS)), {}
        all_, shape = weighing.weigh(key, found, data, self.num_weighed).smoothed()
        draws = all_.resample(jr.fold_in(key, 1), NUM_DRAWS)
        return diagnostics.flat(draws), {"pareto_k": shape, "effective": all_.effective}

    def _fit(self, fitted: "Fitted", data: "Data") -> "Fitted":
        import jax.random as jr

        from nashgp import train
        from nashgp.engines import SGHMC

        key = jr.key(self.split)
        if self.kind == "sghmc":
            half = self.sampler_steps // 2
            kept = max(1, NUM_DRAWS // self.num_chains)
            sampler = SGHMC(
                step_size=self.step_size,
                start=None,
                burn_in=half,
                spacing=max(1, half // kept),
                freeze=0,
                num_chains=self.num_chains,
                num_draws=kept,
            )
            kept *= self.num_chains
            return train.run(
                key, sampler, _spread(fitted), data, num_steps=2 * half, chunk=1_000, num_kept=kept
            ).fitted
        engine, start = self._game(fitted)
        return train.run(
            key, engine, start, data, num_steps=self.num_steps, chunk=1_000, num_kept=NUM_DRAWS
        ).fitted

    def _game(self, fitted: "Fitted"):
        """An engine and what it starts from."""
        from nashgp import recipes
        from nashgp.engines import DSVI, Collapsed, Starts, Tempered
        from nashgp.experiments import targets

        whole = self.kind == "gaussian" or self.set not in COLLAPSIBLE
        kind = DSVI if whole else Collapsed
        engine = kind(
            self.rate,
            self.num_samples,
            decay_steps=self.num_steps,
            network_rate=self.network_rate,
            model_rate=0.0,
            power=0.0,
            **({"draw_inducing": True} if whole else {}),
        )
        if not whole:
            fitted = targets.averaged(fitted)
        if self.kind not in ("anchored", "weighed"):
            return engine, fitted
        shape = {"seed": self.split, "width": 16, "first_mix": 0.5}
        if self.set != "mirror":
            return engine, recipes.anchor(fitted, whole=whole, noise_dim=self.noise_dim, **shape)
        warm_up = max(1, 2 * self.num_steps // 3)
        blended = Starts(Tempered(engine, warm_up, 0.003), self.num_starts, 1.0, blended=True)
        return blended, recipes.anchor(fitted, whole=True, noise_dim=2, **shape)


def _spread(fitted: "Fitted") -> "Fitted":
    """The same model at its prior, where chains begin."""
    from nashgp.posteriors import Fitted, gaussian_posterior

    model = fitted.model
    return Fitted(model, gaussian_posterior(model, hidden_scale=1.0, last_scale=1.0))


def _distances(
    draws: Float[np.ndarray, "S D"], reference: Float[np.ndarray, "R D"]
) -> cells.Scores:
    """Sliced Wasserstein and MMD in excess of their floors, with standard errors."""
    from nashgp import diagnostics

    measures = {"sliced": diagnostics.sliced_wasserstein, "mmd": diagnostics.mmd}
    found = diagnostics.compare(draws, reference, distances=measures, num_splits=NUM_SPLITS)
    scores: cells.Scores = {}
    for name, distance in found.items():
        scores[f"{name}_excess"] = distance.excess
        scores[f"{name}_error"] = float(np.hypot(distance.error, distance.floor_error))
        scores[f"{name}_floor"] = distance.floor
    return scores


def _matched(reference: Float[np.ndarray, "R D"]) -> float:
    """Excess distance of the Gaussian that has the reference's mean and covariance."""
    random = np.random.default_rng(0)
    moments = np.mean(reference, axis=0), np.cov(reference.T)
    return _distances(random.multivariate_normal(*moments, NUM_DRAWS), reference)["sliced_excess"]


def _functions(fitted: "Fitted", flat: Float[np.ndarray, "S D"]) -> Float[np.ndarray, "S G"]:
    """Every draw's function over the grid."""
    import jax.numpy as jnp

    from nashgp.experiments import targets

    values = targets.split(fitted.model, jnp.asarray(flat, "float32"))
    return np.asarray(targets.functions(fitted.model, values, jnp.asarray(GRID, "float32")))


def _errors(ours: Float[np.ndarray, "S G"], truth: Float[np.ndarray, "R G"]) -> cells.Scores:
    """Mean, tail quantiles and variance of the function: root mean squares over the grid."""
    spread = np.std(truth, axis=0)

    def apart(summary) -> float:
        return float(np.sqrt(np.mean(((summary(ours) - summary(truth)) / spread) ** 2)))

    ratio = np.var(ours, axis=0) / spread**2
    return {
        "mean_error": apart(lambda f: np.mean(f, axis=0)),
        "variance_error": float(np.sqrt(np.mean((ratio - 1.0) ** 2))),
        "low_error": apart(lambda f: np.quantile(f, 0.05, axis=0)),
        "high_error": apart(lambda f: np.quantile(f, 0.95, axis=0)),
    }


def _recipe(truth: "Reference") -> cells.Scores:
    """How the reference was made, and whether its chains agree."""
    names = ("seed", "num_chains", "num_warm_up", "num_steps", "divergences", "effective")
    recipe = {f"reference_{name}": getattr(truth, name) for name in names}
    return recipe | {"reference_rhat": truth.rhat, "reference_settled": truth.settled}


STUDY = cells.Study(
    "fidelity",
    Cell,
    full={"sets": list(NAMES), "splits": list(range(5)), "kinds": list(KINDS), "jobs": 1},
    quick={
        "sets": ["all-ones", "mirror"],
        "splits": [0],
        "kinds": list(KINDS),
        "jobs": 1,
        "num_steps": 20,
        "num_starts": 3,
        "num_chains": 20,
        "sampler_steps": 200,
        "reference_steps": 40,
        "reference_warm_up": 30,
        "loose": True,
    },
    axes=("set", "kind", "split"),
    label=lambda cell: f"{cell.set} {cell.kind}",
    base={"kind": "gaussian"},
    keep=lambda cell: (
        cell.kind not in ("collapsed", "weighed")
        or (cell.kind == "collapsed") == (cell.set in COLLAPSIBLE)
    ),
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Run what is missing, print the tables and draw the figure."""
    status = STUDY.main(options)
    results = STUDY.folder(options)
    if done := cells.scored(results):
        print(ratios(done))
        cells.save_figures(figures(results), results)
    return status


def figures(results: Path, *, stacked: bool = False) -> dict[str, "Figure"]:
    """Distances from the reference in excess of its own; 0, the broken line, is perfect."""
    from nashgp.experiments import plots

    done = cells.scored(results)
    panels = [
        [plots.Comparison(f"{name}, {what}", _values(done, name, key)) for what, key in SHOWN]
        for name in _names(done)
    ]
    if not panels:
        return {}
    figure = plots.comparison(panels, plots.colours(KINDS), zero=True, stacked=stacked)
    return {"fidelity": figure}


SHOWN = (("sliced Wasserstein", "sliced"), ("MMD", "mmd"))


def _names(records: list[dict]) -> list[str]:
    """The targets that there are, in the order of the study."""
    there = {record["cell"]["set"] for record in records}
    return [name for name in NAMES if name in there]


def _values(records: list[dict], name: str, key: str) -> dict[str, tuple[float, float] | None]:
    """Mean excess of a distance over seeds, with its standard error, of each engine."""
    found: dict[str, tuple[float, float] | None] = {}
    for kind in KINDS:
        of_kind = [
            record["scores"]
            for record in records
            if (record["cell"]["set"], record["cell"]["kind"]) == (name, kind)
        ]
        excess, error = (
            [scores[f"{key}_{part}"] for scores in of_kind] for part in ("excess", "error")
        )
        found[kind] = (float(np.mean(excess)), float(np.mean(error))) if of_kind else None
    return found


def ratios(records: list[dict]) -> str:
    """Sliced Wasserstein excesses, and those of better posteriors over the Gaussian's."""
    lines = ["sliced Wasserstein, in excess of the floor"]
    for name in _names(records):
        found = _values(records, name, "sliced")
        matched = next(r["scores"]["matched"] for r in records if r["cell"]["set"] == name)
        line = f"  {name:14} moment-matched {matched:7.4f}"
        for kind, value in found.items():
            line += f"  {kind} " + ("      -" if value is None else f"{value[0]:7.4f}")
        gaussian = found["gaussian"]
        for kind in ("collapsed", "anchored", "weighed"):
            game = found[kind]
            line += f"  {kind}/gaussian {game[0] / gaussian[0]:.2f}" if game and gaussian else ""
        lines.append(line)
    return "\n".join(lines)
