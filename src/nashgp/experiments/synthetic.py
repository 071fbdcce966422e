"""The paper's synthetic study: a posterior of five modes, and how well the game finds them.

    nashgp run synthetic

Two grids of games on the diamond data: generators of about 300 parameters at ten learning rates of
the discriminator, and generators from tens to thousands of parameters at one. Each game is scored
against the exact posterior at x = 0: Jensen-Shannon divergence (in nats, from a histogram), mean
log density of the exact posterior's draws under q, and the number of modes. Stabilisers that are
on: networks scaled to the prior's spread; noise on what Player 1 sees, which falls by equal factors
and then goes; a rate of Player 2 that falls while Player 1's does not; and two starts, of which the
one with the larger bound stays (estimated as in the paper, by a Player 1 that goes on alone). The
generator's noise has ten dimensions: of one, any flat piece of the map is a spike of q, too fine
for Player 1 to see.

The same scores of SGHMC chains, from `nashgp.experiments.chains`, stand beside them in the figure,
whose panels are those of the paper's; a second figure has the panels of its appendix.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.ndimage import gaussian_filter1d

from nashgp.experiments import cells, chains

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EDGES = np.linspace(-14.0, 14.0, 561)
CENTRES_OF_BINS = 0.5 * (EDGES[1:] + EDGES[:-1])
WIDTH = float(EDGES[1] - EDGES[0])
NUM_DRAWS = 200_000
SMOOTHING = 0.1  # bandwidth of the density behind the mean log density
FOUND = 0.25  # share of a mode's mass, within three standard deviations, that counts ...
PEAK = 2.0  # ... if the density there is so many times that between it and its neighbours
RATES = tuple(float(f"{rate:.3g}") for rate in np.geomspace(3e-4, 3e-2, 10))
SIZES = ("1x2", "1x4", "1x8", "2x8", "3x9", "3x32")  # hidden layers x width
PAPER_SIZE, MIDDLE_RATE = "3x9", RATES[5]
JUDGING_RATE = 0.003  # of Player 1 when it goes on alone: the same for all games


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one game; `split` is its seed.

    `size` and `discriminator` are the hidden layers of the players' networks.
    """

    size: str = PAPER_SIZE
    rate: float = MIDDLE_RATE
    discriminator: str = "3x32"
    generator_rate: float = 0.01
    num_player1_steps: int = 3
    num_samples: int = 256
    noise_dim: int = 10
    instance_noise: float = 10.0
    last_noise: float = 0.5
    warm_up: float = 0.6  # the share of steps with noise on what Player 1 sees
    steady_discriminator: bool = True
    num_starts: int = 2  # the one with the larger bound stays
    num_steps: int = 20_000

    def check(self) -> None:
        """The rows are those of the paper, any seed will do."""

    def run(self) -> cells.Scores:
        """The game with the largest bound, and what all of them came to."""
        began = time.perf_counter()
        games = [self._play(start) for start in range(self.num_starts)]
        best = max(games, key=lambda game: game["elbo"])
        return best | {
            "elbos": [game["elbo"] for game in games],
            "jsds": [game["jsd"] for game in games],
            "seconds": time.perf_counter() - began,
        }

    def _play(self, start: int) -> cells.Scores:
        """One game, and its bound by a Player 1 that goes on alone."""
        import jax.random as jr

        from nashgp import train
        from nashgp.engines import PaperGame, estimate_elbo
        from nashgp.experiments import diamond
        from nashgp.posteriors import GeneratedPosterior

        (depth, width), (judge_depth, judge_width) = (
            map(int, layers.split("x")) for layers in (self.size, self.discriminator)
        )
        engine = PaperGame(
            learning_rate=0.0,
            generator_rate=self.generator_rate,
            discriminator_rate=self.rate,
            num_player1_steps=self.num_player1_steps,
            num_samples=self.num_samples,
            noise_dim=self.noise_dim,
            depth=depth,
            width=width,
            discriminator_depth=judge_depth,
            discriminator_width=judge_width,
            instance_noise=self.instance_noise,
            last_noise=self.last_noise,
            warm_up=round(self.warm_up * self.num_steps),
            decay_steps=self.num_steps,
            steady_discriminator=self.steady_discriminator,
        )
        fitted, data = diamond.problem()
        play, judge, draw = jr.split(jr.fold_in(jr.key(self.split), start), 3)
        outcome = train.run(play, engine, fitted, data, num_steps=self.num_steps, chunk=1_000)
        judging = dataclasses.replace(engine, discriminator_rate=JUDGING_RATE)
        bound = estimate_elbo(
            judge, judging, outcome.fitted, data, num_steps=self.num_steps // 5, num_draws=20_000
        )
        posterior, info = outcome.fitted.posterior, outcome.history.info
        assert isinstance(posterior, GeneratedPosterior)
        white = posterior.sample(draw, outcome.fitted.model, NUM_DRAWS)[0]
        draws = np.asarray(white, np.float64).ravel() * diamond.PRIOR_VARIANCE**0.5
        return score(draws) | {
            "elbo": bound.value,
            "parameters": posterior.generator.networks[0].num_parameters,
            "accuracy": float(np.mean(info["accuracy"][-1_000:])),
            "log_ratio": float(np.mean(info["log_ratio"][-1_000:])),
        }


def score(draws: Float[np.ndarray, " S"], seed: int = 0) -> cells.Scores:
    """Distance of draws of `f(0)` from the exact posterior, with its Monte Carlo error."""
    from nashgp.experiments.diamond import CENTRES, Truth

    truth = Truth()
    exact = truth.density(CENTRES_OF_BINS) * WIDTH
    counts, _ = np.histogram(draws, EDGES)
    outside = len(draws) - int(np.sum(counts))  # as far off as can be
    random = np.random.default_rng(seed)
    share = np.append(counts, outside) / len(draws)
    again = random.multinomial(len(draws), share, size=30) / len(draws)
    perfect = random.multinomial(len(draws), exact / np.sum(exact)) / len(draws)
    density = gaussian_filter1d(counts / len(draws) / WIDTH, SMOOTHING / WIDTH, mode="constant")
    mass = np.array([np.mean(np.abs(draws - centre) < 1.5) for centre in CENTRES])
    on, left, right = (
        np.array([np.mean(np.abs(draws - at) < 0.5) for at in CENTRES + shift])
        for shift in (0.0, -2.0, 2.0)
    )
    found = (mass > FOUND * truth.weights) & (on > PEAK * np.maximum(left, right))
    return {
        "jsd": jensen_shannon(np.append(exact, 0.0), share),
        "jsd_error": float(np.std([jensen_shannon(np.append(exact, 0.0), one) for one in again])),
        "jsd_floor": jensen_shannon(exact, perfect),
        "mll": float(np.sum(exact * np.log(density + 1e-6))),
        "modes": int(np.sum(found)),
        "mass": [round(float(one), 4) for one in mass],
        "density": [round(float(one), 5) for one in density[::2]],
    }


def jensen_shannon(p: Float[np.ndarray, " B"], q: Float[np.ndarray, " B"]) -> float:
    """`½ KL(p ‖ m) + ½ KL(q ‖ m)` with `m` half of each, in nats."""
    m = 0.5 * (p + q)

    def kl(a: np.ndarray) -> float:
        some = a > 0.0
        return float(np.sum(a[some] * np.log(a[some] / m[some])))

    return 0.5 * (kl(p) + kl(q))


STUDY = cells.Study(
    "synthetic",
    Cell,
    full={
        "sets": ["diamond"],
        "splits": [0, 1, 2, 3, 4],
        "sizes": list(SIZES),
        "rates": list(RATES),
    },
    quick={
        "sets": ["diamond"],
        "splits": [0],
        "sizes": [PAPER_SIZE],
        "rates": [MIDDLE_RATE],
        "jobs": 1,
        "num_steps": 50,
    },
    axes=("set", "size", "rate", "split"),
    label=lambda cell: f"size {cell.size} rate {cell.rate:g}",
    keep=lambda cell: cell.size == PAPER_SIZE or cell.rate == MIDDLE_RATE,
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Play and sample what is missing, print the tables and draw the figures."""
    status = STUDY.main(options)
    results = STUDY.folder(options)
    beside = argparse.Namespace(quick=options.quick, results=options.results and results / "sghmc")
    if "jobs" in options:
        beside.jobs = options.jobs
    status = chains.STUDY.main(beside) or status
    sampled = chains.STUDY.folder(beside)
    cells.save_figures(figures(results) | chains.figures(sampled), results)
    return status


def stabilisers(cell: Cell) -> str:
    """Those that are on, for the figure."""
    parts = ["networks in units of the prior's spread", "falling rate of Player 2"]
    if not cell.steady_discriminator:
        parts[-1] = "falling rates"
    if cell.instance_noise:
        last = f" to {cell.last_noise:g}" if cell.last_noise else ""
        parts.append(
            f"noise on what Player 1 sees (from {cell.instance_noise:g}{last} mode widths over the "
            f"first {cell.warm_up:.0%} of steps)"
        )
    parts.append(f"{cell.num_player1_steps} moves of Player 1 to one of Player 2")
    if cell.num_starts > 1:
        parts.append(f"the best of {cell.num_starts} starts by the bound")
    return "; ".join([*parts, f"generator's noise in {cell.noise_dim} dimensions"])


def figures(results: Path, *, stacked: bool = False) -> dict[str, "Figure"]:
    """Exact posterior, and how near games and chains come to it, as in the paper."""
    from nashgp.experiments import plots
    from nashgp.experiments.diamond import CENTRES, Truth

    records = cells.scored(results)
    games = [
        plots.Game(
            rate=record["cell"]["rate"],
            size=record["scores"]["parameters"],
            swept=record["cell"]["size"] == PAPER_SIZE,
            **{key: record["scores"][key] for key in ("jsd", "mll", "modes")},
            density=np.array(record["scores"]["density"]),
        )
        for record in records
    ]
    name = chains.STUDY.name + results.name.removeprefix(STUDY.name)  # with `_quick` if it has that
    places = results / "sghmc", results.with_name(name)
    sampled = [record for place in places for record in cells.scored(place)]
    truth = Truth()
    x = np.linspace(-1.0, 1.0, 201)
    f = CENTRES_OF_BINS[::2]
    bumps = CENTRES[:, None] * np.exp(-8.0 * x**2) + truth.shift[:, None]
    apart = (f[:, None, None] - bumps.T[None]) ** 2 / truth.variance
    surface = np.exp(-0.5 * apart) @ truth.weights
    swept, density = chains.sweep(sampled, "η"), truth.density(f)
    named = stabilisers(Cell(**records[0]["cell"]) if records else Cell("diamond", 0))
    return {
        "synthetic": plots.diamond(
            x, f, surface, density, games, MIDDLE_RATE, swept, named, stacked=stacked
        )
    }
