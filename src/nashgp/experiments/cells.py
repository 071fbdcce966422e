"""Studies on the UCI sets: cells that are run side by side, saved one by one, and tabulated."""

import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
from jaxtyping import Float

from nashgp import datasets
from nashgp.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORES = os.cpu_count() or 1
SAMPLES = 200  # posterior draws in the predictive mixture of a test row
LEVELS = np.arange(1, 20) / 20  # of the quantiles behind a calibration curve
NUM_MARKS = 50  # points of a training curve
PACKAGES = ("nashgp", "jax", "jaxlib", "equinox", "optax", "numpy")
CAPTURED: dict[str, Any] = {"check": True, "capture_output": True, "text": True}

Scores = dict[str, Any]  # numbers, and lists of numbers for figures


@dataclasses.dataclass(frozen=True)
class Cell:
    """Everything that determines one result; a study adds its settings."""

    set: str
    split: int

    def run(self) -> Scores:
        """Fit on the training rows of the split and score its test rows."""
        raise InputError(f"{type(self).__name__} does not say what to run.")

    def run_in(self, results: Path) -> Scores:
        """The same, for cells that share files in the folder of their results."""
        del results
        return self.run()

    def check(self) -> None:
        """Raise for a wrong name, folder or split: the caller's mistake and no failed run."""
        datasets.load(self.set).split(self.split)

    def path(self, results: Path) -> Path:
        """The file of this result; a change of any setting changes its name."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        return results / f"{self.set}-{self.split}-{name}.json"


def check_name(option: str, value: str, known: Iterable[str]) -> None:
    """Raise for what is none of the known values of an option."""
    if value not in (names := list(known)):
        raise InputError(f"--{option} has no {value!r}; choose from {', '.join(names)}.")


def evaluate(key, fitted, scaling, x, y, num_samples: int = SAMPLES) -> Scores:
    """Test scores of a one-target model, in the units of the targets."""
    from nashgp import metrics, predict

    inputs, targets = scaling.forward(x, y)
    unit = float(scaling.y_scale[0])

    def of(summary, *others):
        return predict.summarise(summary, key, fitted, inputs, *others, num_samples=num_samples)

    mean, variance = (part[:, 0] for part in of(predict.moments))
    parts, spreads = (part[:, :, 0].T for part in of(predict.components))
    levels = predict.quantiles([0.05, 0.25, 0.75, 0.95], variance.dtype)
    low90, low50, high50, high90 = of(levels)[:, 0].T
    t = targets[:, 0]
    return {
        "mll": log_density(key, fitted, scaling, x, y, num_samples),
        "mll_moment_matched": float(np.mean(metrics.moment_matched_log_density(mean, variance, t)))
        - np.log(unit),
        "crps": unit * float(np.mean(metrics.crps_gaussian_mixture(parts, spreads, t))),
        "rmse": unit * metrics.rmse(mean, t),
        "coverage50": metrics.coverage(low50, high50, t),
        "coverage90": metrics.coverage(low90, high90, t),
        **calibration(of(predict.cdf, targets)[:, 0]),
    }


def calibration(cdf: Float[np.ndarray, " N"]) -> Scores:
    """Calibration error, and how many of the test targets lie below each predicted quantile."""
    from nashgp import metrics

    return {
        "calibration_error": metrics.calibration_error(cdf),
        "below": np.sum(cdf <= LEVELS[:, None], axis=1).tolist(),
        "num_test": len(cdf),
    }


def trace(objective: Float[np.ndarray, " steps *lanes"], num_rows: int) -> Scores:
    """The objective per row on its way: medians of up to fifty stretches of the steps."""
    means = objective.reshape(len(objective), -1).mean(1) / num_rows
    stretches = np.array_split(means, min(NUM_MARKS, len(means)))
    medians = [float(f"{np.median(stretch):.5g}") for stretch in stretches]
    return {"trace": medians, "trace_steps": len(means)}


def fit_and_score(cell: Cell, config, engine, *, num_steps: int, dtype: str, seed: int) -> Scores:
    """Fit a one-target model on the training rows of a split, and score both kinds of rows."""
    from nashgp import train

    def fit(key, start, data):
        return train.run(key, engine, start, data, num_steps=num_steps, num_kept=SAMPLES)

    return score_fit(cell, config, fit, dtype=dtype, seed=seed)


def score_fit(cell: Cell, config, fit, *, dtype: str, seed: int) -> Scores:
    """Score `fit(key, start, data)`, the outcome of any training, on both kinds of rows."""
    import jax.random as jr

    from nashgp import recipes
    from nashgp.batch import make_data
    from nashgp.scaling import Scaling

    x, y, x_test, y_test = datasets.load(cell.set).split(cell.split)
    scaling = Scaling.from_rows(x, y)
    data = make_data(*scaling.forward(x, y), dtype=dtype)
    began = time.perf_counter()
    start = recipes.build(np.asarray(data.x), 1, config, seed=seed, dtype=dtype)
    key, score = jr.split(jr.key(seed))
    outcome = fit(key, start, data)
    seconds = time.perf_counter() - began
    scores = evaluate(score, outcome.fitted, scaling, x_test, y_test)
    last = slice(-max(1, len(outcome.history.objective) // 10), None)
    ends = {name: float(np.mean(values[last])) for name, values in outcome.history.info.items()}
    scores["objective_per_row"] = ends.pop("objective") / len(data)
    scores["train_mll"] = log_density(score, outcome.fitted, scaling, x, y)
    return scores | ends | trace(outcome.history.objective, len(data)) | {"seconds": seconds}


def score_estimator(
    model, x, y, x_test, y_test, *, seed: int, train=None, num_samples: int = SAMPLES
) -> Scores:
    """Fit a `DeepGPRegressor` to training rows, and score both kinds of rows.

    `train` are the training rows to score, if not all.
    """
    import jax.random as jr

    began = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - began

    def rows(x, y):
        return jr.key(seed), model.fitted_, model.scaling_, x[:, model.kept_], y, num_samples

    scores = evaluate(*rows(x_test, y_test)) | trace(model.history_.objective, len(x))
    return scores | {"train_mll": log_density(*rows(*(train or (x, y)))), "seconds": seconds}


def log_density(key, fitted, scaling, x, y, num_samples: int = SAMPLES) -> float:
    """Mean log density of some rows under the predictive mixture, in the units of the targets."""
    from nashgp import predict

    rows = scaling.forward(x, y)
    values = predict.summarise(predict.log_density, key, fitted, *rows, num_samples=num_samples)
    return float(np.mean(values)) - float(np.log(scaling.y_scale[0]))


def work(cell: Cell, results: Path) -> Cell:
    """Run one cell and save it, failure included."""
    pin()
    began = time.perf_counter()
    try:
        outcome: dict[str, Any] = {"scores": cell.run_in(results)}
    except Exception:  # a failed run is a result too
        outcome = {"failure": traceback.format_exc(limit=3)}
    record = {
        "cell": dataclasses.asdict(cell),
        "commit": commit(),
        "versions": {name: version(name) for name in PACKAGES},
        "seed": getattr(cell, "seed", cell.split),  # a split of made-up rows is a seed
        "seconds": time.perf_counter() - began,
    }
    with datasets.whole_file(cell.path(results)) as partial:
        partial.write_text(json.dumps(record | outcome, indent=1) + "\n")
    return cell


def saved(cell: Cell, results: Path) -> dict[str, Any] | None:
    """The record of a finished cell; one that cannot be read is none, and is made again."""
    try:
        record = json.loads(cell.path(results).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def records(results: Path) -> dict[str, dict[str, Any]]:
    """All records in a folder by the names of their files; one that cannot be read has failed."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(results.glob("*.json")):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            record = {"cell": {}, "failure": f"{path.name} is damaged: {error}"}
        if isinstance(record, dict) and isinstance(record.get("cell"), dict):
            found[path.name] = record
    return found


def scored(results: Path) -> list[dict[str, Any]]:
    """The records in a folder that have scores, whatever their settings."""
    return [record for record in records(results).values() if "scores" in record]


def save_figures(figures: Mapping[str, "Figure"], results: Path) -> None:
    """Write figures beside the results, and print where they are."""
    for name, figure in figures.items():
        path = results / f"{name}.png"
        figure.savefig(path, dpi=130)
        print(os.fspath(path))


@functools.cache
def commit() -> str | None:
    """The commit of the source, with a plus sign if tracked files differ; None if there is none."""
    git = ["git", "-C", str(Path(__file__).parent)]
    describe = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:  # a package installed below another repository is not of its commit
        subprocess.run([*git, "ls-files", "--error-unmatch", "cells.py"], **CAPTURED)
        return subprocess.run([*git, *describe], **CAPTURED).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def work_all(cells: Sequence[Cell], results: Path, jobs: int) -> Iterator[Cell]:
    """Run cells side by side, and hand each back when it is saved.

    In processes of this machine, or wherever joblib's active backend says:

        with joblib.parallel_config(backend="dask"): ...
    """
    run: Any = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    yield from run(joblib.delayed(work)(cell, results) for cell in cells)


def pin() -> None:
    """Give a worker of joblib's own one core: two fits on one each finish before two on both."""
    kind, _, number = multiprocessing.current_process().name.partition("-")
    if kind == "LokyProcess" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))  # one alone from the second cell on
        os.sched_setaffinity(0, {cores[int(number) % len(cores)]})


def left(elapsed: float, done: int, total: int) -> str:
    """How long the rest will take if it goes on like this."""
    minutes, seconds = divmod(round(elapsed / done * (total - done)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d} left"


def mean_and_error(values: Sequence[float | int]) -> tuple[float, float]:
    """Mean and its standard error; that of a single value is not known."""
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)


COLUMNS = {  # heading -> key of a score
    "MLL": "mll",
    "ELBO": "elbo",
    "ELBO error": "elbo_error",
    "ELBO std.": "elbo_standardised",
    "ELBO/row": "elbo_per_row",
    "SW excess": "sliced_excess",
    "SW floor": "sliced_floor",
    "MMD excess": "mmd_excess",
    "JSD": "jsd",
    "JSD implicit": "jsd_implicit",
    "JSD Gaussian": "jsd_gaussian",
    "JSD floor": "jsd_floor",
    "bimodal": "bimodal",
    "found": "found_implicit",
    "found G.": "found_gaussian",
    "share": "share",
    "modes": "modes",
    "p-value": "p_value",
    "spread": "rank_spread",
    "parameters": "parameters",
    "MLL mm": "mll_moment_matched",
    "MLL normal": "mll_normal",
    "train MLL": "train_mll",
    "RMSE": "rmse",
    "CRPS": "crps",
    "cov 50": "coverage50",
    "cov 90": "coverage90",
    "cal": "calibration_error",
    "Brier": "brier",
    "ECE": "ece",
    "obj/row": "objective_per_row",
    "accuracy": "accuracy",
    "log ratio": "log_ratio",
    "KL": "kl",
    "R-hat": "rhat",
    "noise": "noise",
    "mean err": "mean_error",
    "cov err": "covariance_error",
    "var err": "variance_error",
    "corr err": "correlation_error",
    "5 % err": "low_error",
    "95 % err": "high_error",
    "held out": "held_out_mll",
    "settled s": "seconds_to_settle",
    "step ms": "step_ms",
    "draw ms": "draw_ms",
    "100 draws s": "draws_seconds",
    "predict ms": "predict_ms",
    "epoch s": "epoch_seconds",
    "peak MB": "peak_mb",
    "seconds": "seconds",
}


def protocol(cell: Mapping[str, Any]) -> str:
    """How the rows of a cell were split, where a study has several ways."""
    return cell.get("protocol", "")


def plural(axis: str) -> str:
    """The name of the option that takes several values of a setting."""
    return axis if axis.endswith("s") else f"{axis}s"


@dataclasses.dataclass(frozen=True)
class Study:
    """A grid of cells behind `nashgp run NAME`.

    `axes` are the settings that vary, each with an option in the plural; `full` and `quick` hold
    their values and those of other settings that differ from the defaults of `cell`. Where not all
    of `full` is worth its time, `plan` has the parts that are, each with what differs from `full`:
    they are run unless an option names values of an axis.
    """

    name: str
    cell: type[Cell]
    full: dict[str, Any]
    quick: dict[str, Any]
    axes: tuple[str, ...] = ("set", "split")
    label: Callable[[Any], str] = lambda cell: cell.set
    keep: Callable[[Any], bool] = lambda cell: True  # which points of the grid make sense
    plan: Sequence[Mapping[str, Any]] = ({},)
    base: dict[str, Any] | None = None  # settings that make a cell the one others are compared with
    # Only cells of one part are compared with each other.
    part: Callable[[Mapping[str, Any]], str] = protocol

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Options; those not given have the values of `full` or `quick`, then of the cell."""

        def add(name: str, **settings: Any) -> None:
            parser.add_argument(
                f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, **settings
            )

        parser.add_argument("--quick", action="store_true", help="one split, a few steps: seconds")
        parser.add_argument(
            "--results", type=Path, metavar="FOLDER", help=f"default results/{self.name}"
        )
        add("jobs", type=int, help="processes at once")
        for field in dataclasses.fields(self.cell):
            if field.name in self.axes:
                values = " ".join(map(str, self.full[plural(field.name)]))
                add(plural(field.name), nargs="+", type=field.type, help=f"default {values}")
            elif field.type is bool:
                add(field.name, action=argparse.BooleanOptionalAction)
            else:
                add(field.name, type=field.type, help=f"default {field.default}")

    def main(self, options: argparse.Namespace) -> int:
        """Run the cells that are not finished and print the table; 1 if any has failed."""
        given = {name: value for name, value in vars(options).items() if name in self._names()}
        results = self.folder(options)
        usual = self.quick if options.quick else self.full
        jobs = ({"jobs": CORES} | usual | given)["jobs"]
        if jobs < 1:
            raise InputError(f"--jobs must be at least 1, got {jobs}.")
        named = any(plural(axis) in given for axis in self.axes)
        cells = self.grid(usual | given) if named or options.quick else self.planned(given)
        for cell in cells:
            cell.check()
        try:
            results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--results {results} cannot be made ({error.strerror}).") from error
        datasets.sweep(results)
        missing, began = [cell for cell in cells if not saved(cell, results)], time.perf_counter()
        for number, cell in enumerate(work_all(missing, results, jobs), start=1):
            rest = left(time.perf_counter() - began, number, len(missing))
            name = f"{self.label(cell)} split {cell.split}"
            print(f"[{number}/{len(missing)}] {name}, {rest}", flush=True)
        print(self.table(cells, results))
        return int(any("failure" in (saved(cell, results) or {}) for cell in cells))

    def grid(self, settings: Mapping[str, Any]) -> list[Cell]:
        """The cells of `full`, of `quick`, or of what else gives every axis its values."""
        fixed = {name: value for name, value in settings.items() if name != "jobs"}
        values = [fixed.pop(plural(axis)) for axis in self.axes]
        points = (dict(zip(self.axes, point, strict=True)) for point in itertools.product(*values))
        return list(filter(self.keep, (self.cell(**point, **fixed) for point in points)))

    def planned(self, given: Mapping[str, Any] | None = None) -> list[Cell]:
        """The cells that are worth their time, with other values of fixed settings if any."""
        parts = (self.grid({**self.full, **part, **(given or {})}) for part in self.plan)
        return list(dict.fromkeys(cell for part in parts for cell in part))

    def folder(self, options: argparse.Namespace) -> Path:
        """Where the results are; a quick look must not end up among those of the full run."""
        name = f"{self.name}_quick" if options.quick else self.name
        return options.results or Path("results", name)

    def _names(self) -> set[str]:
        names = {field.name for field in dataclasses.fields(self.cell)}
        return {plural(name) if name in self.axes else name for name in names} | {"jobs"}

    def table(self, cells: Sequence[Cell], results: Path) -> str:
        """Mean ± standard error over splits; failures are counted, never dropped silently."""
        groups: dict[str, list[Cell]] = {}
        for cell in cells:
            groups.setdefault(self.label(cell), []).append(cell)
        width = max(map(len, groups), default=0)
        records = {
            label: [record for cell in group if (record := saved(cell, results))]
            for label, group in groups.items()
        }
        scores = {
            label: [record["scores"] for record in of if "scores" in record]
            for label, of in records.items()
        }
        first = [of[0] for of in scores.values() if of]
        shown = {name: key for name, key in COLUMNS.items() if any(key in one for one in first)}
        lines = [f"{'':{width}} done failed" + "".join(f"{name:>17}" for name in shown)]
        for label, done in scores.items():
            line = f"{label:{width}} {len(done):4d} {len(records[label]) - len(done):6d}"
            for key in shown.values() if done else ():
                line += _entry([one[key] for one in done if key in one])
            lines.append(line.rstrip())
        return "\n".join(lines)


def _entry(values: Sequence[float | int]) -> str:
    """Mean ± standard error as a column of a table, blank where there is nothing."""
    if not values:
        return " " * 17
    mean, error = mean_and_error(values)
    return f" {mean:8.3f}" + (f" ± {error:5.3f}" if np.isfinite(error) else " " * 8)
