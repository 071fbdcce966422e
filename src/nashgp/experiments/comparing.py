"""Methods side by side on many sets: places, paired differences, and figure 4 of the paper."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nashgp.experiments.cells import mean_and_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nashgp.experiments.plots import Comparison

Splits = Mapping[int, float]
Found = Mapping[str, Mapping[str, Splits]]  # set -> method -> split -> score, higher is better
Pair = tuple[float, float]  # mean and standard error


def ranks(found: Found) -> dict[str, dict[str, float]]:
    """The place of each method on each set, among those that all sets have.

    By the mean over the splits that all of them have; a set without such splits ranks nothing.
    """
    common = sorted(set.intersection(*map(set, found.values()))) if found else []
    places: dict[str, dict[str, float]] = {name: {} for name in common}
    for of, methods in found.items():
        splits = set.intersection(*(set(methods[name]) for name in common)) if common else set()
        means = {name: np.mean([methods[name][s] for s in splits]) for name in common if splits}
        for place, name in enumerate(sorted(means, key=lambda name: -means[name]), start=1):
            places[name][of] = float(place)
    return {name: of_sets for name, of_sets in places.items() if of_sets}


def standings(found: Found) -> list[str]:
    """All methods, the best first: by their place on each set over how many that set has.

    Unlike `ranks` it leaves nobody out, and does not ask for the same splits.
    """
    parts: dict[str, list[float]] = {}
    for methods in found.values():
        order = sorted(methods, key=lambda name: -np.mean(list(methods[name].values())))
        for place, name in enumerate(order, start=1):
            parts.setdefault(name, []).append(place / len(order))
    return sorted(parts, key=lambda name: np.mean(parts[name]))


def paired(scores: Splits, base: Splits) -> list[float]:
    """A score minus that of the base, on the splits that both have."""
    return [scores[split] - base[split] for split in sorted(scores.keys() & base.keys())]


def figure(
    found: Found,
    labels: Sequence[str],
    beside: Mapping[str, Mapping[str, Pair]] | None = None,
    *,
    stacked: bool = False,
) -> "Figure":
    """Dots and bars of test MLL, a panel for each set.

    Methods whose names begin with the same word share a colour. What stands `beside` ours, by set,
    has hollow dots; where nothing does, a panel of places is the last.
    """
    from nashgp.experiments import plots

    beside = beside or {}
    theirs = dict.fromkeys(name for of_set in beside.values() for name in of_set)
    panels = [
        plots.Comparison(
            f"{of}: test MLL",
            {name: mean_and_error(list(scores.values())) for name, scores in methods.items()}
            | dict(beside.get(of, {})),
        )
        for of, methods in found.items()
    ]
    if not theirs and len(found) > 1:
        panels.append(_places(found))
    rows = [panels[i : i + 2] for i in range(0, len(panels), 2)]
    palette = _palette(labels) | dict.fromkeys(theirs, plots.MUTED)
    return plots.comparison(rows, palette, stacked=stacked, hollow=theirs)


def rank_figure(found: Found, labels: Sequence[str], *, stacked: bool = False) -> "Figure":
    """Dots and bars of mean places alone."""
    from nashgp.experiments import plots

    return plots.comparison([[_places(found)]], _palette(labels), stacked=stacked)


def _places(found: Found) -> "Comparison":
    from nashgp.experiments import plots

    places = {name: mean_and_error(list(of.values())) for name, of in ranks(found).items()}
    return plots.Comparison("mean rank (1 is the best)", places)


def _palette(labels: Sequence[str]) -> dict[str, str]:
    from nashgp.experiments import plots

    families = plots.colours(list(dict.fromkeys(label.split()[0] for label in labels)))
    return {label: families[label.split()[0]] for label in labels}
