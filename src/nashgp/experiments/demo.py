"""Deep GPs beside the usual methods on data that need no download, with a report.

    nashgp run demo

fits every method to every split of a made-up step and a set that comes with scikit-learn, prints a
table and writes `demo/report.html`. Every finished fit is saved at once below `demo/results` and
skipped the next time. No method is tuned: settings are defaults or bound the time.
"""

import argparse
import dataclasses
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from nashgp import DeepGPRegressor, metrics, recipes
from nashgp.datasets import whole_file
from nashgp.errors import InputError
from nashgp.estimators import training
from nashgp.experiments.cells import commit

OUT = Path("demo")

Vector = Float[np.ndarray, " N"]
Table = Float[np.ndarray, "N D"]
Quantiles = Float[np.ndarray, "N T"]

# Midpoints of 30 equal parts of (0, 1). Each is a model of its own for boosting, which sets the
# number; 30 is one that has the ends of the 90 % interval, 0.05 and 0.95, among the midpoints.
LEVELS = (np.arange(30) + 0.5) / 30.0
BANDS = np.array([0.025, 0.1, 0.25, 0.75, 0.9, 0.975])  # 95, 80 and 50 % in the pictures
NUM_FOLDS = 5  # test rows of different splits are different rows
PACKAGES = ("nashgp", "jax", "equinox", "optax", "numpy", "scipy", "scikit-learn")


@dataclasses.dataclass(frozen=True)
class Size:
    """How much to compute."""

    sets: tuple[str, ...] = ("step", "diabetes")
    num_splits: int = 2
    max_rows: int = 1_000
    step_rows: tuple[int, int] = (100, 500)  # training, test
    num_steps: int | None = None  # the estimator's own choice
    sampler_steps: int = 2_000
    num_inducing: int = 32
    num_mixture: int = 100
    num_trees: int = 100


FULL = Size()
QUICK = Size(
    sets=("step",),  # compilation takes most of the seconds, and every set compiles anew
    num_splits=2,
    max_rows=40,
    step_rows=(20, 30),
    num_steps=40,
    sampler_steps=40,
    num_inducing=8,
    num_mixture=10,
    num_trees=3,
)


# ---- data -----------------------------------------------------------------------------------


class Split(NamedTuple):
    """Training and test rows."""

    x: Table
    y: Vector
    x_test: Float[np.ndarray, "T D"]
    y_test: Float[np.ndarray, " T"]


ABOUT = {
    "step": "A step from -1 to 1 at x = 0 with normal noise of standard deviation 0.1, made up: "
    "every split draws new rows.",
    "diabetes": "Progression of diabetes after one year from ten measurements of 442 patients "
    "(load_diabetes of scikit-learn).",
}


def step(split: int, num_train: int, num_test: int) -> Split:
    random = np.random.default_rng([2019, split])
    x = random.uniform(-1.0, 1.0, size=(num_train + num_test, 1))
    y = np.where(x[:, 0] > 0.0, 1.0, -1.0) + 0.1 * random.normal(size=len(x))
    return Split(x[:num_train], y[:num_train], x[num_train:], y[num_train:])


def diabetes(split: int, max_rows: int) -> Split:
    """One of five folds as test rows, the others to learn from."""
    found: Any = load_diabetes()
    x, y = found.data, found.target
    order = np.random.default_rng(2019).permutation(len(x))[:max_rows]
    test = np.array_split(order, NUM_FOLDS)[split]
    train = np.setdiff1d(order, test)
    return Split(x[train], y[train], x[test], y[test])


def load(name: str, split: int, size: Size) -> Split:
    return step(split, *size.step_rows) if name == "step" else diabetes(split, size.max_rows)


# ---- methods --------------------------------------------------------------------------------


@runtime_checkable
class Method(Protocol):
    """What every method can be asked: quantiles at `LEVELS`, a log density if it has one."""

    settings: dict[str, Any]

    def fit(self, x: Table, y: Vector) -> None: ...
    def mean(self, x: Table) -> Vector: ...
    def quantiles(self, x: Table) -> Quantiles: ...
    def log_density(self, x: Table, y: Vector) -> Vector | None: ...


class NashGP:
    """The estimator of this package at its defaults, apart from what `Size` makes smaller."""

    def __init__(self, engine: str, num_layers: int, size: Size, seed: int):
        own = {"sghmc": size.sampler_steps}  # its own number would take minutes
        self.estimator = DeepGPRegressor(
            engine=engine,
            num_layers=num_layers,
            num_inducing=size.num_inducing,
            num_steps=own.get(engine, size.num_steps),
            num_mixture=size.num_mixture,
            random_state=seed,
        )
        start = {
            "hidden_scale": training.HIDDEN_SCALE
        }  # no argument of the estimator, but a choice
        self.settings: dict[str, Any] = self.estimator.get_params() | start

    def fit(self, x: Table, y: Vector) -> None:
        self.estimator.fit(x, y)
        if self.estimator.history_.interrupted:  # the estimator would go on with what it has
            raise KeyboardInterrupt

    def mean(self, x: Table) -> Vector:
        return np.asarray(self.estimator.predict(x))

    def quantiles(self, x: Table) -> Quantiles:
        return self.both(x)[:, : len(LEVELS)]

    def both(self, x: Table) -> Quantiles:
        """Quantiles at `LEVELS` and `BANDS`: compiled once, scores and pictures use it."""
        return self.estimator.predict_quantiles(x, [*LEVELS, *BANDS])

    def log_density(self, x: Table, y: Vector) -> Vector | None:
        return self.estimator.log_density(x, y)


class ExactGP:
    """scikit-learn's exact Gaussian process with a lengthscale for each column."""

    def __init__(self, size: Size, seed: int):
        del size
        self.settings: dict[str, Any] = {
            "kernel": "ConstantKernel * RBF(one lengthscale per column) + WhiteKernel",
            "inputs": "StandardScaler",
            "normalize_y": True,
            "n_restarts_optimizer": 1,
            "random_state": seed,
        }

    def fit(self, x: Table, y: Vector) -> None:
        lengthscale: Any = np.ones(x.shape[1])  # scikit-learn's annotation says float
        kernel = ConstantKernel() * RBF(lengthscale) + WhiteKernel()
        options = {name: self.settings[name] for name in ("normalize_y", "n_restarts_optimizer")}
        seed = self.settings["random_state"]
        model = GaussianProcessRegressor(kernel, random_state=seed, **options)
        self.model: Pipeline = make_pipeline(StandardScaler(), model).fit(x, y)

    def mean(self, x: Table) -> Vector:
        return self.model.predict(x)

    def quantiles(self, x: Table) -> Quantiles:
        mean, std = self.model.predict(x, return_std=True)
        return mean[:, None] + std[:, None] * ndtri(LEVELS)

    def log_density(self, x: Table, y: Vector) -> Vector | None:
        mean, std = self.model.predict(x, return_std=True)
        return metrics.moment_matched_log_density(mean, std**2, y)


class Boosting:
    """Gradient boosting: a model of the mean and one for each quantile level; no density."""

    def __init__(self, size: Size, seed: int):
        self.settings: dict[str, Any] = {"max_iter": size.num_trees, "random_state": seed}

    @threadpool_limits.wrap(limits=1)  # of rows so few, threads would only wait for one another
    def fit(self, x: Table, y: Vector) -> None:
        self.model = HistGradientBoostingRegressor(**self.settings).fit(x, y)
        self.levels = [
            HistGradientBoostingRegressor(loss="quantile", quantile=level, **self.settings)
            for level in LEVELS
        ]
        for model in self.levels:
            model.fit(x, y)

    def mean(self, x: Table) -> Vector:
        return self.model.predict(x)

    def quantiles(self, x: Table) -> Quantiles:
        """Sorted, since separate models may cross; sorting never makes the CRPS worse."""
        return np.sort(np.stack([model.predict(x) for model in self.levels], axis=1), axis=1)

    def log_density(self, x: Table, y: Vector) -> Vector | None:
        del x, y
        return None


def methods() -> dict[str, Callable[[Size, int], Method]]:
    """Every method by its label: each engine, the first at depth two and one, the references."""
    table: dict[str, Callable[[Size, int], Method]] = {}
    for engine in recipes.ENGINES:
        for label, depth in (("deep GP", 2), ("one layer", 1)):
            if depth == 2 or engine == "ipvi":
                table[f"{label}, {engine}"] = lambda size, seed, engine=engine, depth=depth: NashGP(
                    engine, depth, size, seed
                )
    return table | {"exact GP": ExactGP, "boosting": Boosting}


# ---- one fit --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Cell:
    """Everything that determines one result."""

    set: str
    method: str
    split: int
    size: Size

    def make(self) -> Method:
        return methods()[self.method](self.size, self.split)

    @property
    def name(self) -> str:
        """The name of its files; a change of any setting changes it."""
        rows = self.size.step_rows if self.set == "step" else self.size.max_rows
        settings = {"rows": rows, "levels": LEVELS.tolist()} | self.make().settings
        text = json.dumps(settings, sort_keys=True, default=repr)
        label = self.method.replace(", ", "-").replace(" ", "-")
        return f"{self.set}-{label}-{self.split}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def crps_quantiles(quantiles: Quantiles, y: Vector) -> Vector:
    """Continuous ranked probability score from quantiles at T midpoints `τ = (t + ½) / T`.

        CRPS = 2 ∫ ρ_τ(y − q_τ) dτ ≈ (2 / T) Σ_τ ρ_τ(y − q_τ),    ρ_τ(u) = max(τ u, (τ − 1) u)

    With 30 levels a Gaussian's score comes out 0.1 % high on average, 0.01 σ at most.
    """
    num = quantiles.shape[1]
    levels = (np.arange(num) + 0.5) / num
    off = y[:, None] - quantiles
    return 2.0 * np.mean(np.maximum(levels * off, (levels - 1.0) * off), axis=1)


def scores(method: Method, rows: Split) -> dict[str, Any]:
    """Scores on the test rows, in the units of the target."""
    quantiles = method.quantiles(rows.x_test)
    low, high = (int(np.argmin(np.abs(LEVELS - tail))) for tail in (0.05, 0.95))
    density = method.log_density(rows.x_test, rows.y_test)
    found = {
        "mll": None if density is None else float(np.mean(density)),
        "rmse": metrics.rmse(method.mean(rows.x_test), rows.y_test),
        "crps": float(np.mean(crps_quantiles(quantiles, rows.y_test))),
        "coverage90": metrics.coverage(quantiles[:, low], quantiles[:, high], rows.y_test),
    }
    bad = [name for name, value in found.items() if value is not None and not np.isfinite(value)]
    if bad:
        raise ArithmeticError(f"not finite: {', '.join(bad)}")
    below = np.sum(rows.y_test[:, None] <= quantiles, axis=0)
    return {"scores": found, "below": below.tolist(), "num_test": len(rows.y_test)}


def arrays(cell: Cell, method: Method, rows: Split) -> dict[str, np.ndarray]:
    """What the figures need of a first split: the training history, and pictures of the step."""
    if cell.split > 0 or not isinstance(method, NashGP):
        return {}
    estimator, history = method.estimator, method.estimator.history_
    found = {
        "objective": history.objective.astype(np.float32) / len(rows.y),
        "seconds": history.seconds[-1:],
    }
    if cell.set != "step":
        return found
    grid = np.linspace(-1.15, 1.15, 401 if cell.size == FULL else 41)
    outputs = estimator.sample_functions(12, random_state=cell.split).layers(grid[:, None])
    draws = outputs[-1][:, 0] * estimator.scaling_.y_scale + estimator.scaling_.y_mean
    return found | {
        "x": rows.x[:, 0],
        "y": rows.y,
        "grid": grid,
        "mean": method.mean(grid[:, None]),
        "bands": method.both(grid[:, None])[:, len(LEVELS) :],
        "draws": draws,
        "hidden": outputs[0][:, 0],
    }


def work(cell: Cell, results: Path) -> None:
    """Fit and score one cell and save it, failure included."""
    record: dict[str, Any] = {
        "set": cell.set,
        "method": cell.method,
        "split": cell.split,
        "commit": commit(),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
    }
    pictures: dict[str, np.ndarray] = {}
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            rows, method = load(cell.set, cell.split, cell.size), cell.make()
            record["settings"], record["num_train"] = method.settings, len(rows.y)
            began = time.perf_counter()
            method.fit(rows.x, rows.y)
            seconds = time.perf_counter() - began
            if isinstance(method, NashGP):
                record["events"] = list(method.estimator.history_.events)
            record |= scores(method, rows)
            record["scores"]["seconds"] = seconds
            if isinstance(method, NashGP):
                record["information"] = method.estimator.information_
            pictures = arrays(cell, method, rows)
        except Exception as error:  # a failed fit is a result too
            record.pop("scores", None)
            record["failure"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            record["traceback"] = traceback.format_exc(limit=3)
            record["seconds"] = time.perf_counter() - began
    record["warnings"] = sorted({f"{one.category.__name__}: {one.message}" for one in said})
    if pictures:
        with whole_file(results / f"{cell.name}.npz") as partial:
            np.savez_compressed(partial, **pictures)  # pyright: ignore[reportArgumentType]
    _write(results / f"{cell.name}.json", record)


def _write(path: Path, record: Mapping[str, Any]) -> None:
    with whole_file(path) as partial:
        partial.write_text(json.dumps(record, indent=1, default=repr, allow_nan=False) + "\n")


# ---- all of them ----------------------------------------------------------------------------


def cells(size: Size) -> Iterator[Cell]:
    for name in size.sets:
        for method in methods():
            for split in range(size.num_splits):
                yield Cell(name, method, split, size)


def is_done(cell: Cell, results: Path) -> bool:
    """Whether there is a readable result; one that a crash has cut off is computed again."""
    try:
        json.loads((results / f"{cell.name}.json").read_text())
    except (OSError, ValueError):
        return False
    return True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="FOLDER", help="default %(default)s"
    )
    parser.add_argument("--quick", action="store_true", help="everything tiny: seconds")


def main(options: argparse.Namespace) -> int:
    """Run the fits that are not finished, print the table, write the report; 1 if any failed."""
    for package in ("matplotlib", "jinja2"):  # better now than after the fits
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"The demo needs the package {package}; run `pip install 'nashgp[report]'`."
            )
    from nashgp.experiments import report

    results, size = options.out / "results", QUICK if options.quick else FULL
    try:
        (options.out / "figures").mkdir(parents=True, exist_ok=True)
        results.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {options.out} cannot be made ({error.strerror}).") from error
    every = list(cells(size))
    _write(results / "demo.json", _plan(every, options))
    finished = _work_all([cell for cell in every if not is_done(cell, results)], results)

    found = report.read(results)
    print(report.table(found))
    pictures = report.pictures(found)
    for name, picture in pictures.items():
        (options.out / "figures" / f"{name}.png").write_bytes(picture.wide)
    print(f"report: {report.page(found, pictures, options.out / 'report.html')}")
    if not finished:
        print("nashgp: interrupted; run the same command to go on.", file=sys.stderr)
        return 130
    return int(any(fit.failure for fit in found.fits))


def _plan(every: list[Cell], options: argparse.Namespace) -> dict[str, Any]:
    """What a report has to know of the whole: which fits belong to it, and how it was made."""
    size, out = every[0].size, shlex.quote(str(options.out))
    command = ["nashgp run demo", *[f"--out {out}"] * (options.out != OUT)]
    return {
        "command": " ".join([*command, *["--quick"] * options.quick]),
        "again": f"nashgp report --results {out}/results --out {out}/report.html",
        "size": dataclasses.asdict(size),
        "sets": {name: ABOUT[name] for name in size.sets},
        "levels": LEVELS.tolist(),
        "cells": [
            {"set": one.set, "method": one.method, "split": one.split, "file": one.name}
            for one in every
        ],
    }


def _work_all(missing: list[Cell], results: Path) -> bool:
    """Whether all were worked through rather than ended by `Ctrl-C`."""
    bar = tqdm(missing, unit="fit", disable=not missing)
    try:
        for cell in bar:
            bar.set_postfix_str(f"{cell.set}, {cell.method}")
            work(cell, results)
    except KeyboardInterrupt:
        return False
    finally:
        bar.close()
    return True
