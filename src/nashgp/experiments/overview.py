"""Saved studies as one page: what was run, who was better at what, and what is missing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nashgp.errors import InputError
from nashgp.experiments import cells, comparing, pages, plots, published, studies
from nashgp.experiments.pages import DASH, Picture, both

MOST = 8  # curves in a panel, as many as there are colours
NOTES = {  # key of a score -> what it is
    "mll": "MLL: mean log density of the test targets under the predictive mixture, or of draws of "
    "the exact posterior where that is known; higher is better",
    "mll_moment_matched": "MLL mm: the same under a Gaussian with the mixture's moments",
    "train_mll": "train MLL: MLL of the training rows",
    "rmse": "RMSE: in the units of the target; lower is better",
    "crps": "CRPS: in the units of the target; lower is better",
    "coverage50": "cov 50, cov 90: share of test targets in central intervals; 0.5 and 0.9 are "
    "right",
    "calibration_error": "cal: mean distance of the calibration curve from the diagonal",
    "objective_per_row": "obj/row: what training maximised at its end, per training row",
    "accuracy": "accuracy: of a classifier, or of the discriminator where a game is played",
    "sliced_excess": "SW, MMD excess: distances of draws from a reference, less those of the "
    "reference from itself; 0 is perfect",
    "jsd": "JSD: Jensen-Shannon divergence from the exact posterior, in nats",
    "held_out_mll": "held out: MLL of training rows that were set aside",
    "seconds": "seconds: median of a fit, compilation included; other work ran beside many",
}


class Section(NamedTuple):
    """A study on the page."""

    saved: studies.Saved
    headline: str
    pictures: Mapping[str, Picture]
    parts: Sequence["Shown"]


class Shown(NamedTuple):
    """What can be compared within a study, ready for the template."""

    part: studies.Part
    pictures: Mapping[str, Picture]
    glance: Mapping[str, Sequence[tuple[str, bool]]]  # method -> MLL of each set, if it is the best
    ranks: Sequence[tuple[str, str, Sequence[str]]]  # method, mean place, places
    keys: Mapping[str, str]  # headings of differences


def write(results: Path, out: Path) -> Path:
    """Write the page `out` from the studies in `results`; nothing is fitted.

    A name that ends in `.md` asks for Markdown: the tables without the figures.
    """
    found = studies.find(results)
    if not found:
        raise InputError(
            f"--results {results} holds no results; run `nashgp run demo` or another experiment "
            "of `nashgp run --list`, and pass the folder where it saved them."
        )
    lacks: list[str] = []
    there = {key for saved in found for part in saved.parts for key in part.columns.values()}
    plain = out.suffix == ".md"
    sections = [_section(saved, lacks, plain=plain) for saved in found]
    return pages.write(
        out,
        "studies.md.j2" if plain else "studies.html.j2",
        sections=sections,
        failures=[failure for saved in found for failure in saved.failures],
        lacks=[*_lacking(found, alone=found[0].folder == results), *lacks],
        commits=_told(found, "commit"),
        versions=_told(found, "versions"),
        notes=[note for key, note in NOTES.items() if key in there],
        tables=_published() if any(part.is_benchmark for s in found for part in s.parts) else {},
        sets=published.SETS,
        text=text,
        stated=stated,
        dash=DASH,
    )


def text(pair: tuple[float, float] | None, sign: str = "") -> str:
    """`mean ± standard error` if there is one, with as many digits as are worth reading."""
    if pair is None:
        return DASH
    known = [abs(value) for value in pair if math.isfinite(value)]
    place = math.floor(math.log10(max(*known, 1e-9)))  # of the first digit
    if not any(known) or (len(known) == 1 and pair[0] == round(pair[0])):
        digits = 0  # a count
    else:
        digits = 3 if place in (-1, 0) else max(0, 2 - place if place > 0 else 1 - place)
    return _joined(*pair, digits, sign)


def stated(pair: tuple[float, float] | None) -> str:
    """A published figure with the digits that were published."""
    if pair is None:
        return DASH
    known = [value for value in pair if math.isfinite(value)]
    return _joined(*pair, max(len(str(value).partition(".")[2]) for value in known))


def _joined(mean: float, error: float, digits: int, sign: str = "") -> str:
    shown = f"{mean:{sign}.{digits}f}"
    return f"{shown} ± {error:.{digits}f}" if math.isfinite(error) else shown


def _place(number: float | None) -> str:
    return DASH if number is None else f"{number:.0f}"


def _section(saved: studies.Saved, lacks: list[str], *, plain: bool) -> Section:
    headline = (saved.module.__doc__ or "").partition("\n")[0] if saved.module else ""
    parts = [_shown(part, number, plain=plain) for number, part in enumerate(saved.parts)]
    pictures = {}
    if hasattr(saved.module, "figures") and saved.done and not plain:
        try:
            pictures = dict(_figures(saved))
        except Exception as error:  # a record that a study cannot draw must not cost the page
            lacks.append(f"{saved.name}: its figures cannot be drawn ({error!r}).")
    return Section(saved, headline, pictures, parts)


def _figures(saved: studies.Saved) -> Iterator[tuple[str, Picture]]:
    """The figures that a study draws by itself."""
    draw: Any = saved.module
    wide, narrow = draw.figures(saved.folder), draw.figures(saved.folder, stacked=True)
    caption = draw.figures.__doc__.partition("\n")[0]
    for name, figure in wide.items():
        images = pages.png(figure), pages.png(narrow[name])
        said = caption if len(wide) == 1 else f"{name}: {caption}"
        alt = f"{saved.name}, {name}: {caption} The numbers are in the tables below."
        yield f"{saved.name}-{name}", Picture(name, said, *images, alt)


def _shown(part: studies.Part, number: int, *, plain: bool) -> Shown:
    places = comparing.ranks(part.of("mll")) if part.is_benchmark else {}
    means = {name: cells.mean_and_error(list(of.values())) for name, of in places.items()}
    order = sorted(means, key=lambda name: means[name])
    ranked = [
        (name, text(means[name]), [_place(places[name].get(of)) for of in part.found])
        for name in order
    ]
    pictures = {}
    if part.is_benchmark and not plain:
        best = comparing.standings(part.of("mll"))[:MOST]
        chosen = [name for name in part.methods if name in best]
        name = f"{part.saved.name}-{number}"
        for make in (_dots, _places, _calibration, _training):
            if made := make(part, chosen):
                pictures[f"{name}{make.__name__}"] = made
    keys = {
        head: key
        for head, key in studies.PAIRED.items()
        if any(key in row.scores for row in part.differences)
    }
    worth = len(ranked) > 1 and len(part.found) > 1
    glance = _glance(part) if part.is_benchmark and len(part.found) > 1 else {}
    return Shown(part, pictures, glance, ranked if worth else [], keys)


def _glance(part: studies.Part) -> dict[str, list[tuple[str, bool]]]:
    """Test log density of every method on every set, and whether no mean of ours is higher.

    A mean over fewer splits than others have says over how many.
    """
    shown: dict[str, list[tuple[str, bool]]] = {method: [] for method in part.methods}
    for methods in part.of("mll").values():
        means = {name: cells.mean_and_error(list(of.values())) for name, of in methods.items()}
        best, most = max(mean for mean, _ in means.values()), max(map(len, methods.values()))
        for method, entries in shown.items():
            num, pair = len(methods.get(method, {})), means.get(method)
            few = f" ({num} of {most})" if 0 < num < most else ""
            entries.append((text(pair) + few, pair is not None and pair[0] == best))
    return shown


# ---- figures --------------------------------------------------------------------------------


def _dots(part: studies.Part, chosen: Sequence[str]) -> Picture | None:
    """Figure 4 of the paper, with published figures beside ours."""
    del chosen
    found = part.of("mll")
    labels = [name for name in part.methods if any(name in of for of in found.values())]
    beside: dict[str, dict[str, tuple[float, float]]] = {}
    for name in found if part.name != "extrapolation" else ():
        for row in published.rows(name):
            pair = row.scores.get("mll") or row.scores.get("mll_moment_matched")
            if pair:
                beside.setdefault(name, {})[f"{row.name} (publ.)"] = pair
    theirs = (
        " Hollow and grey: published figures, most of other splits; the tables name their sources. "
        "IPVI's are of Gaussians with matched moments."
    )
    return Picture(
        "Test log density",
        "Dots are means over splits and bars one standard error; higher is better."
        + (theirs if beside else ""),
        *both(comparing.figure, found, labels, beside),
        f"Dots and bars: test log density of {len(labels)} methods on {', '.join(found)}; the "
        "numbers are in the tables below.",
    )


def _places(part: studies.Part, chosen: Sequence[str]) -> Picture | None:
    """The ranking that sums the sets up, where there are several."""
    del chosen
    found = part.of("mll")
    labels = [name for name in part.methods if name in comparing.ranks(found)]
    if len(labels) < 2 or len(found) < 2:
        return None
    return Picture(
        "Ranks by test log density",
        "Mean place over the sets and its standard error, 1 is the best: among the methods that "
        "all sets have, on the splits that all of those have.",
        *both(comparing.rank_figure, found, labels),
        f"Dots and bars: mean rank of {len(labels)} methods over {len(found)} sets; the numbers "
        "are in the table of ranks.",
    )


def _calibration(part: studies.Part, chosen: Sequence[str]) -> Picture | None:
    """Shares of targets below predicted quantiles, of the methods with the most splits."""
    sets = []
    for name, methods in part.found.items():
        below, num = {}, {}
        for method in chosen:
            curves = [s for s in methods.get(method, {}).values() if "below" in s]
            if curves:
                below[method] = np.sum([scores["below"] for scores in curves], axis=0)
                num[method] = sum(scores["num_test"] for scores in curves)
        most = max(num.values(), default=0)
        below = {method: counts for method, counts in below.items() if num[method] == most}
        if below:
            sets.append(plots.Calibration(name, cells.LEVELS, most, below))
    if not sets:
        return None
    return Picture(
        "Are the quantiles right?",
        "The share of test targets below each predicted quantile, all splits together; methods "
        "with fewer test rows than others are left out. A calibrated method stays in the grey "
        "band at about 95 % of the levels." + _best(part, chosen),
        *both(plots.calibration, sets, plots.colours(chosen)),
        f"Calibration curves on {', '.join(one.title for one in sets)}; calibration errors are in "
        "the tables below.",
    )


def _training(part: studies.Part, chosen: Sequence[str]) -> Picture | None:
    """The objective of the first split on its way."""
    sets = []
    for name, methods in part.found.items():
        first = {m: methods[m][min(methods[m])] for m in chosen if m in methods}
        first = {m: s for m, s in first.items() if np.all(np.isfinite(s.get("trace", [np.nan])))}
        if first:
            traces = {method: np.array(scores["trace"]) for method, scores in first.items()}
            seconds = {method: scores["seconds"] for method, scores in first.items()}
            steps = {method: scores["trace_steps"] for method, scores in first.items()}
            sets.append(plots.Training(name, traces, seconds, steps))
    if not sets:
        return None
    return Picture(
        "Training, first split",
        "What the engine maximised, per training row of standardised targets, as medians of "
        "stretches of the steps. Different engines maximise different things."
        + _best(part, chosen),
        *both(plots.training, sets, plots.colours(chosen)),
        f"Training curves on {', '.join(one.title for one in sets)}.",
    )


def _best(part: studies.Part, chosen: Sequence[str]) -> str:
    return f" Shown are the {MOST} best by place." if len(chosen) < len(part.methods) else ""


# ---- what was run, and what was not ---------------------------------------------------------


def _lacking(found: Sequence[studies.Saved], *, alone: bool) -> Iterator[str]:
    """What a reader may expect and will not find, a sentence for each study.

    A folder that is itself a study has no place for others.
    """
    for saved in found:
        lacks = []
        if saved.planned is None:
            lacks.append("no experiment is called so, and what is missing is not known")
        elif saved.missing:
            lacks.append(f"{saved.missing} of {len(saved.planned)} cells have no file")
        if saved.outside:
            lacks.append(f"{saved.outside} cells are not of the plan, and are shown too")
        done = [record for part in saved.parts if part.is_benchmark for record in part.records]
        bare = sum("below" not in record["scores"] for record in done)
        if bare:
            lacks.append(f"{bare} cells were saved without calibration and training curves")
        if lacks:
            yield f"{saved.name}: {'; '.join(lacks)}."
    if not alone and (names := studies.absent(found)):
        yield f"There is no folder of {', '.join(names)}."


def _published() -> dict[str, list[tuple[str, list[str], str]]]:
    """Every published figure: heading -> name, a text for each set, source."""
    heads = {key: head for head, key in cells.COLUMNS.items()}
    return {
        heads[key]: [
            (name, [stated(pair) for pair in values], source)
            for (name, source), values in table.items()
        ]
        for key, table in published.TABLES.items()
    }


def _told(found: Sequence[studies.Saved], key: str) -> dict[str, list[str]]:
    """Each value that the cells recorded, as text, with the studies that recorded it."""
    told: dict[str, list[str]] = {}
    for saved in found:
        for value in saved.values(key):
            if isinstance(value, dict):
                value = ", ".join(f"{package} {number}" for package, number in value.items())
            told.setdefault(value or "not recorded", []).append(saved.name)
    return told
