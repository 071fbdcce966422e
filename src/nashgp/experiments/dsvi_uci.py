"""DSVI as published on the standard UCI splits: two layers, 128 inducing inputs.

    nashgp run dsvi-uci --sets boston concrete energy --splits 0 1 2 3 4

Every finished cell is saved at once below the results folder and skipped the next time. Objective,
optimiser and hidden start are the published ones; noise 0.1, lengthscale √D and 5,000 steps are
ours, the same for every set. Earlier prototypes had met test rows of these splits with that start.
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from nashgp import datasets
from nashgp.errors import InputError
from nashgp.scaling import Scaling

CORES = os.cpu_count() or 1
FULL = {"sets": ["boston", "concrete", "energy"], "splits": [0, 1, 2, 3, 4], "jobs": CORES}
QUICK = {"sets": ["boston"], "splits": [0], "jobs": 1, "num_steps": 20, "num_inducing": 10}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Everything that determines one result."""

    set: str
    split: int
    num_layers: int = 2
    num_inducing: int = 128
    num_steps: int = 5_000
    num_samples: int = 1
    learning_rate: float = 0.01
    hidden_scale: float = 1e-5
    noise: float = 0.1
    draw_inducing: bool = False
    power: float = 0.0
    dtype: str = "float64"
    seed: int = 0

    def path(self, results: Path) -> Path:
        """The file of this result; a change of any setting changes its name."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        return results / f"{self.set}-{self.split}-{name}.json"


def run(cell: Cell) -> dict[str, float]:
    """Fit on the training rows of one split, score on its test rows in original units."""
    import jax.random as jr

    from nashgp import recipes, train
    from nashgp.batch import make_data
    from nashgp.engines import DSVI

    x, y, x_test, y_test = datasets.load(cell.set).split(cell.split)
    scaling = Scaling.from_rows(x, y)
    data = make_data(*scaling.forward(x, y), dtype=cell.dtype)
    config = recipes.Config(
        num_layers=cell.num_layers,
        num_inducing=cell.num_inducing,
        hidden_scale=cell.hidden_scale,
        noise=cell.noise,
    )
    engine = DSVI(cell.learning_rate, cell.num_samples, cell.power, cell.draw_inducing)
    began = time.perf_counter()
    start = recipes.build(np.asarray(data.x), 1, config, seed=cell.seed, dtype=cell.dtype)
    fit, score = jr.split(jr.key(cell.seed))
    outcome = train.run(fit, engine, start, data, num_steps=cell.num_steps)
    seconds = time.perf_counter() - began
    scores = evaluate(score, outcome.fitted, scaling, x_test, y_test)
    tail = outcome.history.objective[-100:]
    return scores | {"objective_per_row": float(np.mean(tail)) / len(data), "seconds": seconds}


def evaluate(key, fitted, scaling, x, y, num_samples: int = 200) -> dict[str, float]:
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
        "mll": float(np.mean(of(predict.log_density, targets))) - np.log(unit),
        "mll_moment_matched": float(np.mean(metrics.moment_matched_log_density(mean, variance, t)))
        - np.log(unit),
        "crps": unit * float(np.mean(metrics.crps_gaussian_mixture(parts, spreads, t))),
        "rmse": unit * metrics.rmse(mean, t),
        "coverage50": metrics.coverage(low50, high50, t),
        "coverage90": metrics.coverage(low90, high90, t),
        "calibration_error": metrics.calibration_error(of(predict.cdf, targets)[:, 0]),
    }


def work(cell: Cell, results: Path) -> Cell:
    """Run one cell and save it, failure included."""
    began = time.perf_counter()
    try:
        outcome = {"scores": run(cell)}
    except Exception:  # a failed run is a result too
        outcome = {"failure": traceback.format_exc(limit=3), "seconds": time.perf_counter() - began}
    packages = {name: version(name) for name in ("nashgp", "jax", "equinox", "optax", "numpy")}
    record = {"cell": dataclasses.asdict(cell), "versions": packages} | outcome
    with datasets.whole_file(cell.path(results)) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")
    return cell


def work_all(cells: list[Cell], results: Path, jobs: int) -> Iterator[Cell]:
    """Run cells side by side, each process on a core of its own."""
    places = itertools.repeat(results)
    if jobs == 1:
        yield from map(work, cells, places)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork would copy JAX's threads half-way
    cores = spawn.Queue()
    for job in range(jobs):
        cores.put(job % CORES)
    with concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=spawn, initializer=pin, initargs=(cores,)
    ) as pool:
        yield from pool.map(work, cells, places)


def pin(cores: "multiprocessing.Queue[int]") -> None:
    """Give each worker one core: two single-core fits finish before two fits on two cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})


COLUMNS = {  # heading -> key of a score
    "MLL": "mll",
    "MLL mm": "mll_moment_matched",
    "RMSE": "rmse",
    "CRPS": "crps",
    "cov 50": "coverage50",
    "cov 90": "coverage90",
    "cal": "calibration_error",
    "obj/row": "objective_per_row",
    "seconds": "seconds",
}


def table(cells: Iterable[Cell], results: Path) -> str:
    """Mean ± standard error over splits; failures are counted, never dropped silently."""
    lines = [f"{'set':10} done failed" + "".join(f"{head:>17}" for head in COLUMNS)]
    for name, group in itertools.groupby(cells, key=lambda cell: cell.set):
        paths = [cell.path(results) for cell in group]
        records = [json.loads(path.read_text()) for path in paths if path.exists()]
        done = [record["scores"] for record in records if "scores" in record]
        line = f"{name:10} {len(done):4d} {len(records) - len(done):6d}"
        for key in COLUMNS.values() if done else ():
            values = np.array([scores[key] for scores in done])
            error = values.std(ddof=1) / len(done) ** 0.5 if len(done) > 1 else np.nan
            line += f"{values.mean():9.3f} ± {error:5.3f}"
        lines.append(line)
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options; those not given have the values of `FULL` or `QUICK`, then those of `Cell`."""

    def add(name: str, **settings: Any) -> None:
        parser.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, **settings)

    parser.add_argument("--quick", action="store_true", help="one split, a few steps: seconds")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="default results/dsvi_uci")
    add("sets", nargs="+", metavar="SET", help="data sets; `nashgp data` lists them")
    add("splits", nargs="+", type=int, metavar="SPLIT", help="numbers of the splits, from 0")
    add("jobs", type=int, help="processes at once")
    for field in dataclasses.fields(Cell)[2:]:
        if field.type is bool:
            add(field.name, action="store_true")
        else:
            add(field.name, type=field.type, help=f"default {field.default}")


def main(options: argparse.Namespace) -> int:
    """Run the cells that are not finished and print the table; 1 if any has failed."""
    given = dict(vars(options))
    quick, results = given.pop("quick"), given.pop("results")
    if results is None:  # a quick look must not end up among the results
        results = Path("results", "dsvi_uci_quick" if quick else "dsvi_uci")
    settings = (QUICK if quick else FULL) | given
    sets, splits, jobs = settings.pop("sets"), settings.pop("splits"), settings.pop("jobs")
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}.")
    for name in sets:  # a wrong name, folder or split is the caller's mistake, not a failed run
        data = datasets.load(name)
        for split in splits:
            data.split(split)
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--results {results} cannot be made ({error.strerror}).") from error
    cells = [Cell(name, split, **settings) for name in sets for split in splits]
    missing = [cell for cell in cells if not cell.path(results).exists()]
    for number, cell in enumerate(work_all(missing, results, jobs), start=1):
        print(f"[{number}/{len(missing)}] {cell.set} split {cell.split}", flush=True)
    print(table(cells, results))
    return int(any("failure" in json.loads(cell.path(results).read_text()) for cell in cells))
