"""The paper's faces: a map of two dimensions, and faces of which the lower half is hidden.

    nashgp run freyface

The first 1,000 images of the film are mapped; in the others the lower half is hidden, and each
method is scored on it: mean log density of a hidden pixel given the upper half, and RMSE of the
mean, in grey levels. `anchored` and `gaussian` are both a `DeepGPLVM`, by the posterior of its
latents; the second also has one Gaussian for the latent of a new face, at its highest mode. `pca`
is probabilistic PCA with as many components, whose conditional is known. The figure has
faces over the map, the posterior of a half face on a grid with draws of it, and two completions.
"""

import argparse
import dataclasses
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from nashgp import datasets
from nashgp.errors import InputError
from nashgp.experiments import cells

METHODS = ("anchored", "gaussian", "pca")
NUM_TRAIN = 1_000
SHAPE = (28, 20)
NUM_HIDDEN = 280  # pixels, the lower half
GRID = 60  # points on each side of the map
NUM_DRAWS = 50  # of a completed face, for its mean


class Halves(NamedTuple):
    """What a method says of hidden halves: their log density in a row, and their mean."""

    log_density: Float[np.ndarray, " N"]
    mean: Float[np.ndarray, "N U"]


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one map; `split` is its seed, and without inducing inputs they are 0."""

    method: str = "anchored"
    num_layers: int = 2
    hidden_dim: int = 100
    num_inducing: int = 100
    num_steps: int = 500
    num_mixture: int = 10
    num_rows: int = NUM_TRAIN
    num_test: int = 965
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
        error = found.mean - test[:, -NUM_HIDDEN:]
        return {
            "mll": float(np.mean(found.log_density)) / NUM_HIDDEN,
            "rmse": float(np.sqrt(np.mean(error**2))),
            "seconds": time.perf_counter() - began,
        } | more

    def _pca(self, rows: np.ndarray, test: np.ndarray) -> tuple[Halves, cells.Scores]:
        """The conditional of a Gaussian with the covariance of probabilistic PCA."""
        from sklearn.decomposition import PCA

        fit = PCA(2).fit(rows)
        covariance, centre = fit.get_covariance(), fit.mean_
        u = slice(-NUM_HIDDEN, None)
        o = slice(0, -NUM_HIDDEN)
        gain = np.linalg.solve(covariance[o, o], covariance[o, u]).T
        mean = centre[u] + (test[:, o] - centre[o]) @ gain.T
        rest = covariance[u, u] - gain @ covariance[o, u]
        chol = np.linalg.cholesky(rest)
        white = np.linalg.solve(chol, (test[:, u] - mean).T)
        log_det = 2.0 * np.sum(np.log(np.diag(chol))) + NUM_HIDDEN * np.log(2.0 * np.pi)
        return Halves(-0.5 * (np.sum(white**2, axis=0) + log_det), mean), {}

    def _map(
        self, rows: np.ndarray, test: np.ndarray, half: np.ndarray
    ) -> tuple[Halves, cells.Scores]:
        from nashgp import DeepGPLVM

        model = DeepGPLVM(
            2,
            self.num_layers,
            hidden_dim=self.hidden_dim,
            num_inducing=self.num_inducing or None,
            posterior=self.method,
            num_steps=self.num_steps,
            num_mixture=self.num_mixture,
            dtype=self.dtype,
            random_state=self.split,
        ).fit(rows)
        if self.method == "gaussian":
            return one_gaussian(model, test, half), {}
        mean = np.mean(model.reconstruct(half, NUM_DRAWS), axis=2)[:, -NUM_HIDDEN:]
        density = model.score_samples(test) - model.score_samples(half)
        return Halves(density, mean), panels(model, test, half)


def one_gaussian(model: Any, test: np.ndarray, half: np.ndarray) -> Halves:
    """Halves by one Gaussian for the latent of each face, around its highest mode."""
    from scipy.special import logsumexp
    from scipy.stats import norm

    from nashgp import placing

    key, num = model.key_, {"num_samples": model.num_mixture}
    given, hidden = ((part - model.centre_) / model.unit_ for part in (half, test.copy()))
    hidden[:, :-NUM_HIDDEN] = np.nan
    summits = placing.find_summits(key, model.fitted_, given, **num)
    rows, best = np.arange(len(test)), np.argmax(summits.log_share, axis=1)
    place, root = (np.asarray(part)[rows, best] for part in summits[:2])
    eta = np.random.default_rng(0).normal(size=(NUM_DRAWS, 2))
    x = place[:, None] + np.einsum("ndk,jk->njd", root, eta)
    log_p = placing.log_joint(key, model.fitted_, x, hidden, **num) - norm.logpdf(x).sum(axis=2)
    density = logsumexp(log_p, axis=1) - np.log(NUM_DRAWS)
    mean = np.mean([model.inverse_transform(x[:, j]) for j in range(NUM_DRAWS)], axis=0)
    unit = NUM_HIDDEN * np.log(model.unit_[0])
    return Halves(density - unit, mean[:, -NUM_HIDDEN:])


def panels(model: Any, test: np.ndarray, half: np.ndarray) -> cells.Scores:
    """What the figure shows, of the half face whose latent is most in doubt."""
    drawn = model.sample_latent(half, 200)
    doubt = int(np.argmax(np.sum(np.var(drawn, axis=2), axis=1)))
    trained = model.embedding_
    low, high = np.quantile(trained, [0.01, 0.99], axis=0)
    sides = np.linspace(low, high, 8).T
    over = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)
    latents = drawn[doubt].T
    every = np.concatenate([trained, latents])
    low, high = every.min(axis=0) - 0.5, every.max(axis=0) + 0.5
    grid = np.stack(np.meshgrid(*np.linspace(low, high, GRID).T), axis=-1).reshape(-1, 2)
    log_p = model.latent_log_density(half[[doubt]], grid)[0]
    ends = latents[np.argsort(latents[:, 0])[[10, 190]]]  # from both sides of the map
    whole = np.where(np.isnan(half[doubt]), model.inverse_transform(ends), half[doubt])
    return {
        "faces": np.clip(np.rint(model.inverse_transform(over)), 0, 255).astype(int).tolist(),
        "embedding": np.round(trained, 3).tolist(),
        "extent": [low.tolist(), high.tolist()],
        "log_posterior": np.round(log_p - log_p.max(), 3).tolist(),
        "draws": np.round(latents, 3).tolist(),
        "truth": test[doubt].astype(int).tolist(),
        "completed": np.clip(np.rint(whole), 0, 255).astype(int).tolist(),
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
    },
    axes=("set", "method", "split"),
    label=lambda cell: cell.method,
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Map and score what is missing, print the table and draw the figure."""
    status = STUDY.main(options)
    results = STUDY.folder(options)
    for path in draw(results):
        print(os.fspath(path))
    return status


def draw(results: Path) -> list[Path]:
    """The figure of each map in a folder."""
    from nashgp.experiments import plots

    made = []
    for record in cells.scored(results):
        if "faces" in record["scores"]:
            made.append(results / f"faces-{record['cell']['split']}.png")
            shown = {name: np.array(record["scores"][name]) for name in plots.Faces._fields}
            plots.faces(plots.Faces(**shown)).savefig(made[-1], dpi=130)
    return made
