"""The paper's faces: a map of two dimensions, and faces of which the lower half is hidden.

    nashgp run freyface

The first 1,000 images of the film are mapped; in the others the lower half is hidden, and each
method is scored on it: mean log density of a hidden pixel given the upper half, and RMSE of the
mean, in grey levels. `anchored` and `gaussian` are both a `DeepGPLVM`, by the posterior of its
latents; the second also has one Gaussian for the latent of a new face, at its highest mode. `pca`
is probabilistic PCA with as many components, whose conditional is known. All see pixels that are
standardised by the mapped faces, and with all of them a face has a noise scale of its own, which
its upper half tells of (`tail` of `DeepGPLVM`): these faces come later in the film than those that
were mapped, and many are like none of them. `MLL normal` is without that scale.

The true posterior of a half face's latent is computed on a grid, and two approximations of it are
compared by draws: the implicit one and one Gaussian. `JSD` is over blocks of the grid, with that of
draws of the true posterior as its floor; `found` is the share of faces with several modes (see
`nashgp.experiments.basins`) whose modes all have draws. The figures have faces over the map and
along a line, the three posteriors of the half face with the largest second mode, and its
completions from both modes.
"""

import argparse
import copy
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from nashgp import datasets
from nashgp.errors import InputError
from nashgp.experiments import basins, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("anchored", "gaussian", "pca")
NUM_TRAIN = 1_000
SHAPE = (28, 20)
NUM_HIDDEN = 280  # pixels, the lower half
NUM_DRAWS = 50  # of a completed face, for its mean
COARSE, FINE, BLOCK = 150, 60, 5  # points on a side: of the map, of a posterior, of a block of it
FAR = 5.0  # how far from the middle of the map a latent may be looked for
NUM_JUDGED = 500  # draws of a latent that are compared with the grid
TINY = 1e-300  # of a probability, the half of which is still a number


class Halves(NamedTuple):
    """What a method says of hidden halves: their log density in a row, and their mean.

    `log_normal` is their log density if all rows share one scale of the noise.
    """

    log_density: Float[np.ndarray, " N"]
    log_normal: Float[np.ndarray, " N"]
    mean: Float[np.ndarray, "N U"]


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one map; `split` is its seed, and without inducing inputs they are 0.

    One in `every` test faces has its posterior computed on a grid.
    """

    method: str = "anchored"
    num_layers: int = 2
    hidden_dim: int = 100
    num_inducing: int = 100
    num_steps: int = 500
    num_mixture: int = 10
    num_rows: int = NUM_TRAIN
    num_test: int = 965
    every: int = 4
    tail: float = 4.0
    standardize: bool = True
    dtype: str = "float32"

    def check(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"--methods must be of {', '.join(METHODS)}; got {self.method}.")
        datasets.load_faces()

    def run(self) -> cells.Scores:
        faces = datasets.load_faces().reshape(-1, SHAPE[0] * SHAPE[1]).astype(np.float64)
        rows, test = faces[: self.num_rows], faces[NUM_TRAIN:][: self.num_test]
        half = test.copy()
        half[:, -NUM_HIDDEN:] = np.nan
        began = time.perf_counter()
        found, more = self._pca(rows, test) if self.method == "pca" else self._map(rows, test, half)
        squares = np.mean((found.mean - test[:, -NUM_HIDDEN:]) ** 2, axis=1)
        density = found.log_density / NUM_HIDDEN
        return {
            "mll": float(np.mean(density)),
            "mll_normal": float(np.mean(found.log_normal)) / NUM_HIDDEN,
            "rmse": float(np.sqrt(np.mean(squares))),
            "face_mll": density.round(4).tolist(),
            "face_rmse": np.sqrt(squares).round(3).tolist(),
            "seconds": time.perf_counter() - began,
        } | more

    def _pca(self, rows: np.ndarray, test: np.ndarray) -> tuple[Halves, cells.Scores]:
        """The conditionals of a Student-t and a normal with probabilistic PCA's covariance."""
        from scipy.special import gammaln
        from sklearn.decomposition import PCA

        unit = np.std(rows, axis=0) if self.standardize else np.ones(rows.shape[1])
        fit = PCA(2).fit(rows / unit)
        covariance, centre = unit[:, None] * fit.get_covariance() * unit, unit * fit.mean_
        u = slice(-NUM_HIDDEN, None)
        o = slice(0, -NUM_HIDDEN)
        gain = np.linalg.solve(covariance[o, o], covariance[o, u]).T
        seen = test[:, o] - centre[o]
        mean = centre[u] + seen @ gain.T
        rest = covariance[u, u] - gain @ covariance[o, u]
        chol = np.linalg.cholesky(rest)
        square = np.sum(np.linalg.solve(chol, (test[:, u] - mean).T) ** 2, axis=0)
        log_det = 2.0 * np.sum(np.log(np.diag(chol)))
        normal = -0.5 * (square + log_det + NUM_HIDDEN * np.log(2.0 * np.pi))

        known = np.sum(seen * np.linalg.solve(covariance[o, o], seen.T).T, axis=1)
        before, after = self.tail + known, self.tail + known + square
        degrees = self.tail + len(covariance) - NUM_HIDDEN
        law = gammaln(0.5 * (degrees + NUM_HIDDEN)) - gammaln(0.5 * degrees)
        law = law - 0.5 * (NUM_HIDDEN * np.log(np.pi * before) + log_det)
        density = law - 0.5 * (degrees + NUM_HIDDEN) * np.log(after / before)
        return Halves(density, normal, mean), {}

    def _map(
        self, rows: np.ndarray, test: np.ndarray, half: np.ndarray
    ) -> tuple[Halves, cells.Scores]:
        from nashgp import DeepGPLVM

        model = DeepGPLVM(
            2,
            self.num_layers,
            hidden_dim=self.hidden_dim,
            num_inducing=self.num_inducing or None,
            engine={"anchored": "ipvi", "gaussian": "dsvi"}[self.method],
            num_steps=self.num_steps,
            num_mixture=self.num_mixture,
            standardize=self.standardize,
            tail=self.tail,
            dtype=self.dtype,
            random_state=self.split,
        ).fit(rows)
        judged = judge(model, half[:: self.every])
        normal = copy.copy(model).set_params(tail=np.inf)
        if self.method == "gaussian":
            density, mean = one_gaussian(model, test, half)
            return Halves(density, one_gaussian(normal, test, half)[0], mean), judged.scores
        mean = np.mean(model.reconstruct(half, NUM_DRAWS), axis=2)[:, -NUM_HIDDEN:]
        density, one_noise = (
            each.score_samples(test) - each.score_samples(half) for each in (model, normal)
        )
        shown = panels(model, judged, test[:: self.every], half[:: self.every])
        return Halves(density, one_noise, mean), judged.scores | shown


def one_gaussian(
    model: Any, test: np.ndarray, half: np.ndarray
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, "N U"]]:
    """Halves by one Gaussian for the latent of each face, around its highest mode.

    Their log density is `log E p(y_U | x, y_O)`, their mean `E f(x)`.
    """
    from scipy.special import logsumexp

    x = gaussian_draws(model, half, NUM_DRAWS)
    each = log_joint(model, x, test) - log_joint(model, x, half)
    density = logsumexp(each, axis=1) - np.log(NUM_DRAWS)
    mean = np.mean([model.inverse_transform(x[:, j]) for j in range(NUM_DRAWS)], axis=0)
    return density - np.sum(np.log(model.unit_[-NUM_HIDDEN:])), mean[:, -NUM_HIDDEN:]


def log_joint(
    model: Any, x: Float[np.ndarray, "N J 2"], rows: np.ndarray
) -> Float[np.ndarray, "N J"]:
    """`log p(x, y_O)` of faces at latents of their own, in the units of the model."""
    from nashgp import placing

    given = (rows - model.centre_) / model.unit_
    return placing.log_joint(model.key_, model.fitted_, x, given, **_law(model))


def _law(model: Any) -> dict[str, Any]:
    """What `nashgp.placing` is told of the entries of a row."""
    return {"num_samples": model.num_mixture, "tail": model.tail}


def gaussian_draws(model: Any, half: np.ndarray, num: int) -> Float[np.ndarray, "N S 2"]:
    """Draws of one Gaussian for the latent of each face, with the curvature at its highest mode."""
    from nashgp import placing

    given = (half - model.centre_) / model.unit_
    summits = placing.find_summits(model.key_, model.fitted_, given, **_law(model))
    rows, best = np.arange(len(half)), np.argmax(summits.log_share, axis=1)
    place, root = (np.asarray(part, np.float64)[rows, best] for part in summits[:2])
    eta = np.random.default_rng(0).normal(size=(num, 2))
    return place[:, None] + np.einsum("ndk,jk->njd", root, eta)


# ---- the posterior of a latent ------------------------------------------------------------------


class Judged(NamedTuple):
    """True posteriors on grids of their own, draws of two approximations, and what these score."""

    low: Float[np.ndarray, "N 2"]
    step: Float[np.ndarray, "N 2"]
    log_p: Float[np.ndarray, "N F F"]
    doubt: Float[np.ndarray, " N"]
    draws: dict[str, Float[np.ndarray, "N S 2"]]
    scores: cells.Scores


def judge(model: Any, half: np.ndarray) -> Judged:
    """How far the implicit posterior and one Gaussian are from the truth, and who finds modes."""
    low, step, log_p = true_posteriors(model, half)
    found = [basins.find_basins(one) for one in log_p]
    draws = {
        "implicit": np.moveaxis(model.sample_latent(half, NUM_JUDGED), 2, 1),
        "gaussian": gaussian_draws(model, half, NUM_JUDGED),
        "floor": _exact(low, step, log_p),
    }
    several = [n for n, one in enumerate(found) if one.num_modes > 1]
    scores: cells.Scores = {"faces_judged": len(half), "bimodal": len(several)}
    for name, x in draws.items():
        places = np.rint((x - low[:, None]) / step[:, None]).astype(int)
        jsd = [divergence(*pair) for pair in zip(log_p, places, strict=True)]
        scores[f"jsd_{name}"] = float(np.mean(jsd))
        inside = np.clip(places, 0, FINE - 1)
        hits = [found[n].found(inside[n]) for n in several]
        scores[f"found_{name}"] = float(np.mean(hits)) if hits else float("nan")
    doubt = np.array([one.doubt if one.num_modes > 1 else 0.0 for one in found])
    return Judged(low, step, log_p, doubt, draws, scores)


def true_posteriors(
    model: Any, half: np.ndarray
) -> tuple[Float[np.ndarray, "N 2"], Float[np.ndarray, "N 2"], Float[np.ndarray, "N F F"]]:
    """`log p(x, y_O)` on a grid around all that matters of it: its corner, its step, its heights.

    What matters is found on one grid over the whole map.
    """
    trained = model.embedding_
    sides = np.linspace(
        np.minimum(trained.min(axis=0) - 1.0, -FAR),
        np.maximum(trained.max(axis=0) + 1.0, FAR),
        COARSE,
    ).T
    points = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    coarse = model.latent_log_density(half, points)
    matters = coarse > np.max(coarse, axis=1, keepdims=True) - basins.DEPTH
    cell = sides[:, 1] - sides[:, 0]
    low = np.array([points[one].min(axis=0) for one in matters]) - cell
    high = np.array([points[one].max(axis=0) for one in matters]) + cell
    step = (high - low) / (FINE - 1)
    place = np.stack(np.meshgrid(np.arange(FINE), np.arange(FINE), indexing="ij"), axis=-1)
    x = low[:, None] + step[:, None] * place.reshape(1, -1, 2)
    return low, step, log_joint(model, x, half).reshape(-1, FINE, FINE)


def _exact(low: np.ndarray, step: np.ndarray, log_p: np.ndarray) -> Float[np.ndarray, "N S 2"]:
    """Draws of the true posteriors, by the cells of their grids."""
    random, drawn = np.random.default_rng(0), []
    for corner, size, heights in zip(low, step, log_p, strict=True):
        p = np.exp(heights - np.max(heights)).ravel()
        cell = random.choice(len(p), NUM_JUDGED, p=p / np.sum(p))
        drawn.append(corner + size * np.stack(np.unravel_index(cell, heights.shape), axis=1))
    return np.array(drawn)


def divergence(log_p: Float[np.ndarray, "F F"], places: Int[np.ndarray, "S 2"]) -> float:
    """Jensen-Shannon divergence, in nats, between a posterior and draws, over blocks of cells.

    Draws beyond the grid are in a block of their own, where the posterior has nothing.
    """
    from scipy.spatial.distance import jensenshannon

    side = FINE // BLOCK
    p = np.exp(log_p - np.max(log_p)).reshape(side, BLOCK, side, BLOCK).sum(axis=(1, 3)).ravel()
    p = np.where(p < TINY * np.sum(p), 0.0, p / np.sum(p))
    inside = np.all((places >= 0) & (places < FINE), axis=1)
    block = np.where(inside, places[:, 0] // BLOCK * side + places[:, 1] // BLOCK, side**2)
    q = np.bincount(block, minlength=side**2 + 1)
    return float(jensenshannon(np.append(p, 0.0), q) ** 2)


def panels(model: Any, judged: Judged, test: np.ndarray, half: np.ndarray) -> cells.Scores:
    """What the figures show: the map, a line across it, and the half face most in doubt."""
    trained = model.embedding_
    low, high = np.quantile(trained, [0.01, 0.99], axis=0)
    over = np.stack(np.meshgrid(*np.linspace(low, high, 8).T), axis=-1).reshape(-1, 2)
    ends = trained[np.argsort(trained[:, 0])[[10, -10]]]  # across the map
    line = np.linspace(ends[0], ends[1], 10)
    n = int(np.argmax(judged.doubt))
    of, heights = basins.find_basins(judged.log_p[n]), judged.log_p[n]
    completed = []
    for number in range(min(2, len(of.mass))):  # draws of the face at the summit of each basin
        summit = np.unravel_index(
            np.argmax(np.where(of.label == number, heights, -np.inf)), heights.shape
        )
        at = judged.low[n] + judged.step[n] * np.array(summit)
        completed.append(np.where(np.isnan(half[n]), model.inverse_transform(at[None])[0], half[n]))

    def grey(images: Any) -> list:
        return np.clip(np.rint(images), 0, 255).astype(int).tolist()

    return {
        "faces": grey(model.inverse_transform(over)),
        "line": grey(model.inverse_transform(line)),
        "ends": np.round(ends, 3).tolist(),
        "embedding": np.round(trained, 3).tolist(),
        "extent": [judged.low[n].tolist(), (judged.low[n] + FINE * judged.step[n]).tolist()],
        "log_posterior": np.round(heights - heights.max(), 3).tolist(),
        "implicit": np.round(judged.draws["implicit"][n, :200], 3).tolist(),
        "gaussian": np.round(judged.draws["gaussian"][n, :200], 3).tolist(),
        "truth": grey(test[n]),
        "completed": grey(completed),
    }


STUDY = cells.Study(
    "freyface",
    Cell,
    full={"sets": ["freyface"], "methods": list(METHODS), "splits": [0], "jobs": 1},
    quick={
        "sets": ["freyface"],
        "methods": list(METHODS),
        "splits": [0],
        "jobs": 1,
        "num_layers": 1,
        "num_inducing": 20,
        "num_steps": 20,
        "num_mixture": 2,
        "num_rows": 100,
        "num_test": 8,
        "every": 2,
    },
    axes=("set", "method", "split"),
    label=lambda cell: cell.method,
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Map and score what is missing, print the table and draw the figure."""
    status = STUDY.main(options)
    results = STUDY.folder(options)
    print(beside(cells.scored(results)))
    cells.save_figures(figures(results), results)
    return status


def beside(records: list[dict]) -> str:
    """The anchored map minus the others, paired over faces; log density and RMSE of a half."""
    found = {(r["cell"]["method"], r["cell"]["split"]): r["scores"] for r in records}
    lines = []
    for (method, split), scores in found.items():
        ours = found.get(("anchored", split))
        if method == "anchored" or ours is None:
            continue
        parts = []
        for key in ("face_mll", "face_rmse"):
            mean, error = cells.mean_and_error(np.subtract(ours[key], scores[key]).tolist())
            parts.append(f"{key.removeprefix('face_')} {mean:+.4f} ± {error:.4f}")
        lines.append(f"anchored minus {method}, split {split}: {', '.join(parts)}")
    return "\n".join(lines)


def figures(results: Path, *, stacked: bool = False) -> dict[str, "Figure"]:
    """The map of each seed, and its half face."""
    from nashgp.experiments import plots

    del stacked  # pictures have one shape
    made = {}
    for record in cells.scored(results):
        if "faces" in record["scores"]:
            shown = {name: np.array(record["scores"][name]) for name in plots.Faces._fields}
            split = record["cell"]["split"]
            made[f"map-{split}"] = plots.face_map(plots.Faces(**shown))
            made[f"half-{split}"] = plots.half_face(plots.Faces(**shown))
    return made
