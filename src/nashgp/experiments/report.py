"""The saved fits of the demo as a table and as one page that needs nothing beside it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nashgp.errors import InputError
from nashgp.experiments import overview, pages, plots
from nashgp.experiments.pages import DASH, Picture, both

SCORES = {  # key -> heading
    "mll": "MLL",
    "rmse": "RMSE",
    "crps": "CRPS",
    "coverage90": "90 % cover",
    "seconds": "seconds",
}


class Fit(NamedTuple):
    """One cell of the demo: `scores` if it is done, `failure` if it failed, neither if not run."""

    set: str
    method: str
    split: int
    record: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    @property
    def scores(self) -> Mapping[str, float | None] | None:
        return self.record.get("scores")

    @property
    def failure(self) -> str | None:
        return self.record.get("failure")


class Results(NamedTuple):
    """Everything that was saved: `demo.json` with the plan, and the fits."""

    plan: Mapping[str, Any]
    fits: list[Fit]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(fit.method for fit in self.fits))

    def of(self, name: str, method: str) -> list[Fit]:
        return [fit for fit in self.fits if (fit.set, fit.method) == (name, method)]


def read(results: Path) -> Results:
    """The fits that the plan in `results` names, whatever else lies in the folder."""
    try:
        plan = json.loads((results / "demo.json").read_text())
    except FileNotFoundError as error:
        raise InputError(
            f"{results} holds no results of the demo; run `nashgp run demo` and pass the folder "
            "`results` that it makes."
        ) from error
    except ValueError as error:
        raise InputError(f"{results / 'demo.json'} is damaged; run the demo again.") from error
    fits = [
        Fit(
            cell["set"],
            cell["method"],
            cell["split"],
            _record(results / f"{cell['file']}.json"),
            _arrays(results / f"{cell['file']}.npz"),
        )
        for cell in plan["cells"]
    ]
    return Results(plan, fits)


def _record(path: Path) -> dict[str, Any]:
    """A saved record; one that cannot be read counts as failed, one that is absent as not run."""
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
        if "failure" not in record:
            values = [record["scores"][key] for key in SCORES]
            if not all(value is None or np.isfinite(value) for value in values):
                raise ValueError("a score is not finite")
        return record
    except (ValueError, TypeError, KeyError) as error:
        return {"failure": f"{path.name} is damaged: {error}"}


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError):
        return {}


# ---- table ----------------------------------------------------------------------------------


class Row(NamedTuple):
    """One method on one set: counts, and (mean, standard error) of each score over its splits."""

    set: str
    method: str
    done: int
    failed: int
    planned: int
    scores: Mapping[str, tuple[float, float] | None]

    def text(self, key: str) -> str:
        """`mean ± standard error`, three significant digits of the mean or three decimals."""
        pair = self.scores[key]
        if pair is None:
            return DASH
        mean, error = pair
        digits = 3
        if key in ("rmse", "crps", "seconds") and mean > 0.0:
            digits = int(np.clip(2 - np.floor(np.log10(mean)), 0, 3))
        return f"{mean:.{digits}f} ± " + (f"{error:.{digits}f}" if np.isfinite(error) else DASH)


def rows(results: Results) -> Iterator[Row]:
    for name in results.plan["sets"]:
        for method in results.methods:
            fits = results.of(name, method)
            done = [fit.scores for fit in fits if fit.scores is not None]
            failed = sum(fit.failure is not None for fit in fits)
            found = {key: _mean([scores[key] for scores in done]) for key in SCORES}
            yield Row(name, method, len(done), failed, len(fits), found)


def _mean(values: list[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    error = np.std(known, ddof=1) / len(known) ** 0.5 if len(known) > 1 else np.nan
    return float(np.mean(known)), float(error)


def table(results: Results) -> str:
    """The table for a terminal: failures are counted, never dropped."""
    every = list(rows(results))
    width = max(len(row.method) for row in every)
    lines = []
    for name in results.plan["sets"]:
        heads = "".join(f"{head:>18}" for head in SCORES.values())
        lines += ["", f"{name:{width}}  done failed" + heads]
        for row in every:
            if row.set == name:
                cells = "".join(f"{row.text(key):>18}" for key in SCORES)
                lines.append(
                    f"{row.method:{width}}  {row.done}/{row.planned} {row.failed:7d}{cells}"
                )
    lines += ["", *notes(results)]
    return "\n".join(lines)


def notes(results: Results) -> list[str]:
    """What a reader of the table has to know."""
    num = len(results.plan["levels"])
    return [
        "Mean ± standard error over splits, on test rows, in the units of the target.",
        "MLL: mean log density of the test targets, higher is better; boosting has no density.",
        f"CRPS: from {num} quantiles, in the same way for every method; lower is better.",
        "90 % cover: share of test targets inside the central 90 % interval; 0.9 is right.",
        "seconds: of one fit; for nashgp the first split includes compilation.",
    ]


# ---- figures --------------------------------------------------------------------------------


def pictures(results: Results) -> dict[str, Picture]:
    """Every figure whose fits are there."""
    makers = (_step, _layers, _comparison, _calibration, _training)
    return {name: picture for make in makers for name, picture in make(results)}


Named = Iterator[tuple[str, Picture]]


def _step(results: Results) -> Named:
    """The first engine: two layers beside one."""
    fits = [fit for fit in results.fits if "bands" in fit.arrays and fit.scores is not None]
    fans = []
    for fit in fits[:2]:
        title = f"{fit.method}: test MLL {(fit.scores or {})['mll']:.2f}"
        fans.append(plots.Fan(title, *(fit.arrays[key] for key in plots.Fan._fields[1:])))
    if fans:
        yield (
            "step",
            Picture(
                "A step, one draw of the data",
                "One layer has a single lengthscale: to follow the jump it has to be wiggly "
                "everywhere, or to smooth the jump. A second layer can stretch the input near "
                "the jump and stay flat elsewhere. Bands hold the stated share of new targets.",
                *both(plots.fan, fans),
            ),
        )


def _layers(results: Results) -> Named:
    deep = [fit for fit in results.fits if "hidden" in fit.arrays and "deep" in fit.method]
    if deep:
        found = deep[0].arrays
        of = plots.Layers(*(found[key] for key in ("x", "y", "grid", "hidden", "draws")))
        yield (
            "layers",
            Picture(
                f"Layer by layer: {deep[0].method}",
                "Twelve functions drawn from the posterior. Where layer 1 is steep, the input is "
                "stretched, and a smooth layer 2 becomes a jump of the whole. Layer 1 has no "
                "units, and its sign is arbitrary.",
                *both(plots.layers, of),
            ),
        )


def _comparison(results: Results) -> Named:
    palette = plots.colours(results.methods)
    found = {(row.set, row.method): row.scores for row in rows(results) if row.done}
    if found:
        panels = [
            [
                plots.Comparison(
                    f"{name}: {SCORES[key]} ({better} is better)",
                    {m: found[name, m][key] for m in results.methods if (name, m) in found},
                )
                for key, better in (("mll", "higher"), ("rmse", "lower"), ("crps", "lower"))
            ]
            for name in results.plan["sets"]
        ]
        yield (
            "comparison",
            Picture(
                "All methods on all sets",
                "Dots are means over the splits and bars one standard error; differences of the "
                "size of the bars say little. No dot: the method has no such score, or no fit is "
                "done.",
                *both(plots.comparison, panels, palette),
            ),
        )


def _calibration(results: Results) -> Named:
    palette = plots.colours(results.methods)
    levels = np.asarray(results.plan["levels"])
    sets = []
    for name in results.plan["sets"]:
        below, num = {}, {}
        for method in results.methods:
            done = [fit.record for fit in results.of(name, method) if fit.scores is not None]
            if done:
                below[method] = np.sum([record["below"] for record in done], axis=0)
                num[method] = sum(record["num_test"] for record in done)
        # Methods with fewer splits than others, after a failure, would need a band of their own.
        most = max(num.values(), default=0)
        below = {method: counts for method, counts in below.items() if num[method] == most}
        if below:
            sets.append(plots.Calibration(name, levels, most, below))
    if sets:
        yield (
            "calibration",
            Picture(
                "Are the quantiles right?",
                "The share of test targets below each predicted quantile, all splits together. "
                "A calibrated method stays in the grey band at about 95 % of the levels. Where a "
                "curve is flatter than the diagonal in the middle, the intervals are too narrow; "
                "where it is steeper, they are too wide.",
                *both(plots.calibration, sets, palette),
            ),
        )


def _training(results: Results) -> Named:
    palette = plots.colours(results.methods)
    sets = []
    for name in results.plan["sets"]:
        fits = {
            f.method: f.arrays for f in results.fits if f.set == name and "objective" in f.arrays
        }
        if fits:
            objective = {method: found["objective"] for method, found in fits.items()}
            seconds = {method: float(found["seconds"][-1]) for method, found in fits.items()}
            sets.append(plots.Training(name, objective, seconds))
    if sets:
        yield (
            "training",
            Picture(
                "Training, first split",
                "What the engine maximises, per training row of standardised targets: for ipvi and "
                "dsvi the objective at the power that was chosen, at power 0 a lower bound on the "
                "log evidence; for sghmc the log density of its state. Faint: every step; strong: "
                "running medians. The first tenth may lie below the picture.",
                *both(plots.training, sets, palette),
            ),
        )


# ---- page -----------------------------------------------------------------------------------


def write(results: Path, out: Path) -> Path:
    """Write the page `out` from what the demo or studies saved in `results`; nothing is fitted."""
    if not (results / "demo.json").exists():
        return overview.write(results, out)
    found = read(results)
    return page(found, pictures(found), out)


def page(found: Results, pictures: Mapping[str, Picture], out: Path) -> Path:
    """The same, from results that are read and figures that are drawn."""
    return pages.write(
        out,
        "report.html.j2",
        plan=found.plan,
        scores=SCORES,
        rows=list(rows(found)),
        notes=notes(found),
        missing=sum(not fit.record for fit in found.fits),
        informed=[fit for fit in found.fits if fit.record.get("information")],
        failures=[fit for fit in found.fits if fit.failure],
        warnings=_warnings(found),
        events=[(fit, event) for fit in found.fits for event in fit.record.get("events", ())],
        settings=_settings(found),
        versions=_distinct(found, "versions"),
        machines=_distinct(found, "machine"),
        sizes=_sizes(found),
        pictures=pictures,
    )


def _distinct(results: Results, key: str) -> list[Any]:
    """The different values that the fits recorded, in order."""
    values = [fit.record[key] for fit in results.fits if key in fit.record]
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _warnings(results: Results) -> dict[str, int]:
    """How many fits gave each warning, shortened to its first sentence."""
    counts: dict[str, int] = {}
    for fit in results.fits:
        said = {text.split(". ")[0] for text in fit.record.get("warnings", ())}
        for text in sorted(f"{fit.set}, {fit.method}: {one}" for one in said):
            counts[text] = counts.get(text, 0) + 1
    return counts


def _settings(results: Results) -> dict[str, dict[str, Any]]:
    """The settings of each method, without the seed, which is the number of the split."""
    found: dict[str, dict[str, Any]] = {}
    for fit in results.fits:
        given = dict(fit.record.get("settings", {}))
        given.pop("random_state", None)
        found.setdefault(fit.method, {}).update(given)
    return found


def _sizes(results: Results) -> dict[str, str]:
    """Training and test rows of each set, over its splits."""
    sizes = {}
    for name in results.plan["sets"]:
        records = [fit.record for fit in results.fits if fit.set == name and fit.scores is not None]
        counts = sorted({(record["num_train"], record["num_test"]) for record in records})
        sizes[name] = " or ".join(
            f"{train} training and {test} test rows" for train, test in counts
        )
    return sizes
