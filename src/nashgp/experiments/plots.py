"""Figures: each a function from arrays to a matplotlib `Figure`, free of pyplot's global state.

Panels lie side by side, or below each other when `stacked`, for a narrow screen.
"""

import functools
import textwrap
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from scipy.ndimage import median_filter
from scipy.stats import binom

# Okabe and Ito (2008): told apart with every common kind of colour blindness.
BLUE, INK, MUTED = "#0072B2", "#222222", "#777777"
COLOURS = (BLUE, "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")

BANDS = {  # tints of the same blue, from the outside in
    "95 % of targets": "#DDEBF5",
    "80 % of targets": "#B3D3E9",
    "50 % of targets": "#7FB6DA",
}

WIDE, NARROW = 8.6, 4.2  # inches
FAR, SEVERAL = 5.0, 8  # quartile ranges from the middle half of so many means: told in words
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    @functools.wraps(draw)
    def styled(*args: Any, **options: Any) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **options)

    return styled


def _panels(
    num: int, stacked: bool, height: float, **options: Any
) -> tuple[Figure, Sequence[Axes]]:
    """A figure with `num` panels, three in a row or all in a column, each `height` inches high."""
    ncols = 1 if stacked else min(num, 3)
    nrows = -(-num // ncols)
    figure = Figure(figsize=(NARROW if stacked else WIDE, nrows * height), layout="constrained")
    panels = list(figure.subplots(nrows, ncols, squeeze=False, **options).ravel())
    for axes in panels[num:]:
        axes.set_visible(False)
    return figure, panels[:num]


def colours(labels: Sequence[str]) -> dict[str, str]:
    """A colour for each label, the same whenever the labels are."""
    return {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}


# ---- the step -------------------------------------------------------------------------------


class Fan(NamedTuple):
    """Predictions on a line: `bands` are quantiles from the outside in, lower then upper."""

    title: str
    x: Float[np.ndarray, " N"]
    y: Float[np.ndarray, " N"]
    grid: Float[np.ndarray, " G"]
    mean: Float[np.ndarray, " G"]
    bands: Float[np.ndarray, "G 6"]
    draws: Float[np.ndarray, "G S"]


@_styled
def fan(fans: Sequence[Fan], *, stacked: bool = False, num_draws: int = 4) -> Figure:
    """Training rows, mean, nested 50, 80 and 95 % bands and a few functions."""
    figure, panels = _panels(len(fans), stacked, 3.1, sharex=True, sharey=True)
    for axes, one in zip(panels, fans, strict=True):
        for i, (label, colour) in enumerate(BANDS.items()):
            low, high = one.bands[:, i], one.bands[:, -1 - i]
            axes.fill_between(one.grid, low, high, color=colour, lw=0, label=label)
        lines = axes.plot(one.grid, one.draws[:, :num_draws], color=INK, lw=0.6, alpha=0.55)
        lines[0].set_label("function draws")
        axes.plot(one.grid, one.mean, color=BLUE, lw=1.8, label="mean")
        axes.plot(one.x, one.y, ".", color=INK, ms=4.5, mew=0, alpha=0.75, label="training rows")
        axes.set_title(one.title)
        axes.margins(x=0)
    low = min(min(one.y.min(), one.bands.min()) for one in fans)
    high = max(max(one.y.max(), one.bands.max()) for one in fans)
    panels[0].set_ylim(max(low, -2.6), min(high, 2.6))
    for axes in panels if stacked else panels[:1]:
        axes.set_ylabel("y")
    for axes in panels[-1:] if stacked else panels:
        axes.set_xlabel("x")
    _legend_below(figure, panels[0], 2 if stacked else 6)
    return figure


def _legend_below(figure: Figure, axes: Axes, ncols: int) -> None:
    """Names below all panels, in at most `ncols` columns and no more than there is room for.

    The figure grows by their lines, so that panels keep their height.
    """
    handles, labels = axes.get_legend_handles_labels()
    column = 0.068 * max(map(len, labels)) + 0.5  # inches: the longest name, its line and a gap
    ncols = max(1, min(ncols, int(figure.get_figwidth() / column)))
    figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(labels) // ncols))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=ncols, columnspacing=1.4, fontsize=8.5
    )


class Layers(NamedTuple):
    """Function draws of a model of two layers: `top` holds the composed functions."""

    x: Float[np.ndarray, " N"]
    y: Float[np.ndarray, " N"]
    grid: Float[np.ndarray, " G"]
    hidden: Float[np.ndarray, "G S"]
    top: Float[np.ndarray, "G S"]


@_styled
def layers(of: Layers, *, stacked: bool = False) -> Figure:
    """What each layer does to the line: the first, the second on its outputs, and both."""
    figure, (first, second, both) = _panels(3, stacked, 2.9)
    thin = {"color": BLUE, "lw": 0.9, "alpha": 0.5}
    first.plot(of.grid, of.hidden, **thin)
    first.set(title="Layer 1", xlabel="x", ylabel="h, output of layer 1")
    # Layer 2 is a function of h alone: over a bend of h a draw runs back along its own line.
    second.plot(of.hidden, of.top, **thin)
    second.set(title="Layer 2", xlabel="h, output of layer 1", ylabel="output of layer 2")
    both.plot(of.grid, of.top, **thin)
    both.plot(of.x, of.y, ".", color=INK, ms=4, mew=0, alpha=0.7)
    both.set(title="Both, with the training rows", xlabel="x", ylabel="y")
    for axes in (first, both):
        axes.margins(x=0)
    return figure


# ---- all sets -------------------------------------------------------------------------------


class Calibration(NamedTuple):
    """Per method, how many of `num` test rows lie at or below each predicted quantile."""

    title: str
    levels: Float[np.ndarray, " T"]
    num: int
    below: Mapping[str, Int[np.ndarray, " T"]]


@_styled
def calibration(
    sets: Sequence[Calibration], palette: Mapping[str, str], *, stacked: bool = False
) -> Figure:
    """Observed share against quantile level, with a pointwise 95 % band for a calibrated one."""
    figure, panels = _panels(len(sets), stacked, 3.4)
    for axes, one in zip(panels, sets, strict=True):
        low, high = (binom.ppf(tail, one.num, one.levels) / one.num for tail in (0.025, 0.975))
        axes.fill_between(one.levels, low, high, color=MUTED, alpha=0.18, lw=0, label="95 % band")
        axes.plot([0, 1], [0, 1], color=MUTED, lw=0.8, ls=(0, (4, 3)))
        for label, below in one.below.items():
            axes.plot(one.levels, below / one.num, color=palette[label], lw=1.6, label=label)
        axes.set(title=f"{one.title} ({one.num} test rows)", xlabel="quantile level")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    for axes in panels if stacked else panels[::3]:
        axes.set_ylabel("share of targets below")
    _legend_below(figure, panels[0], 2 if stacked else 5)
    return figure


class Training(NamedTuple):
    """Per method, the objective per row on its way, and the seconds of the whole.

    There is a value for every step, or values at equal distances over `num_steps`.
    """

    title: str
    objective: Mapping[str, Float[np.ndarray, " _"]]
    seconds: Mapping[str, float]
    num_steps: Mapping[str, int] = {}


MOST_INSIDE = 4  # more names would hide the curves


@_styled
def training(
    sets: Sequence[Training], palette: Mapping[str, str], *, stacked: bool = False
) -> Figure:
    """Objective per row against steps: each step faint, a running median strong."""
    most = max(len(one.objective) for one in sets)
    crowded = most > MOST_INSIDE
    figure, panels = _panels(len(sets), stacked, 2.9 + 0.17 * most * crowded)
    for axes, one in zip(panels, sets, strict=True):
        shown = []
        for label, objective in one.objective.items():
            smooth = _smooth(objective)
            named = f"{label}: {one.seconds[label]:.1f} s"
            step = np.linspace(0, one.num_steps.get(label, len(objective)) - 1, len(objective))
            axes.plot(step, objective, color=palette[label], lw=0.5, alpha=0.2)
            axes.plot(step, smooth, color=palette[label], lw=1.8, label=named)
            shown.append(smooth[len(smooth) // 10 :])  # the plunge of the first steps is off scale
        low, high = np.min(np.concatenate(shown)), np.max(np.concatenate(shown))
        room = 0.06 * (high - low) + 1e-9
        axes.set(title=one.title, xlabel="step", ylim=(low - room, high + 2.0 * room))
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
        axes.margins(x=0)
        if crowded:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8)
        else:
            axes.legend(loc="lower right", fontsize=8)
    for axes in panels if stacked else panels[::3]:
        axes.set_ylabel("objective per training row")
    return figure


def _smooth(values: Float[np.ndarray, " _"]) -> Float[np.ndarray, " _"]:
    """Running medians of 3 % of the values: single bad steps leave no trace."""
    return median_filter(values.astype(float), max(1, round(0.03 * len(values))), mode="nearest")


class Curve(NamedTuple):
    """One fit as it went: the panels are shared by the curves of a group."""

    label: str
    group: str
    step: Int[np.ndarray, " marks"]
    second: Float[np.ndarray, " marks"]
    held_out: Float[np.ndarray, " marks"]
    objective: Float[np.ndarray, " marks"]


@_styled
def convergence(
    curves: Sequence[Curve], palette: Mapping[str, str], *, stacked: bool = False
) -> Figure:
    """Held-out log density and objective, each against steps and seconds; stacked, the first."""
    groups = list(dict.fromkeys(curve.group for curve in curves))
    columns = [("held_out", "step"), ("held_out", "second"), ("objective", "step")]
    columns = columns[1:2] if stacked else [*columns, ("objective", "second")]
    names = {"held_out": "held-out MLL", "objective": "objective per row"}
    width = NARROW if stacked else 1.35 * WIDE
    figure = Figure(figsize=(width, 2.5 * len(groups) + 0.5), layout="constrained")
    grid = figure.subplots(len(groups), len(columns), squeeze=False, sharex="col")
    for group, row in zip(groups, grid, strict=True):
        members = [curve for curve in curves if curve.group == group]
        for (what, against), axes in zip(columns, row, strict=True):
            for one in members:
                at, value = getattr(one, against), getattr(one, what)
                axes.plot(at, value, color=palette[one.label], lw=1.4, label=one.label)
            late = np.concatenate([getattr(c, what)[len(c.step) // 3 :] for c in members])
            low, high = np.min(late), np.max(late)
            room = 0.15 * (high - low) + 1e-9  # the way up from the start is off scale
            axes.set(xscale="log", ylim=(low - room, high + room), title=f"{group}, {names[what]}")
            axes.xaxis.set_minor_formatter(NullFormatter())  # labels between powers would collide
    for axes, (_, against) in zip(grid[-1], columns, strict=True):
        axes.set_xlabel({"step": "step", "second": "seconds"}[against])
    fullest = max(grid[:, 0], key=lambda axes: len(axes.lines))
    _legend_below(figure, fullest, 3 if stacked else len(palette))
    return figure


class Pace(NamedTuple):
    """The score of test rows as training went on, against its seconds."""

    label: str
    second: Float[np.ndarray, " marks"]
    mll: Float[np.ndarray, " marks"]


@_styled
def paces(of: Sequence[Pace], palette: Mapping[str, str], *, stacked: bool = False) -> Figure:
    """Test log density against seconds of training, one line for each engine."""
    figure, (axes,) = _panels(1, stacked, 3.4)
    for one in of:
        axes.plot(one.second, one.mll, color=palette[one.label], lw=1.6, label=one.label)
    late = np.concatenate([one.mll[len(one.mll) // 3 :] for one in of])
    room = 0.15 * (np.max(late) - np.min(late)) + 1e-9  # the way up from the start is off scale
    axes.set(xscale="log", xlabel="seconds of training", ylabel="test MLL")
    axes.set_ylim(np.min(late) - room, np.max(late) + room)
    if len(of) > 4:
        _legend_below(figure, axes, 2 if stacked else 4)
    else:
        axes.legend(loc="lower right", fontsize=8)
    return figure


class Growth(NamedTuple):
    """Time of a step against one size of the problem."""

    letter: str
    size: Float[np.ndarray, " sizes"]
    step_ms: Float[np.ndarray, " sizes"]


@_styled
def costs(of: Sequence[Growth], middle: str, *, stacked: bool = False) -> Figure:
    """Time of a step against each size, with a line of slope 1 through the last point."""
    figure, panels = _panels(len(of), stacked, 2.6, sharey=True)
    for one, axes in zip(of, panels, strict=True):
        linear = one.step_ms[-1] * one.size / one.size[-1]
        axes.plot(one.size, linear, color="0.6", lw=1.0, ls="--", label="linear")
        axes.plot(one.size, one.step_ms, color=COLOURS[0], lw=1.6, marker="o", ms=3.5)
        axes.set(xscale="log", yscale="log", xlabel=one.letter)
        axes.set_xticks(one.size, [f"{size:g}" for size in one.size])
        axes.xaxis.set_minor_formatter(NullFormatter())
    panels[0].set_ylabel("ms per step")
    panels[0].legend(loc="upper left", fontsize=8)
    figure.suptitle(f"One size at a time, the others {middle}", fontsize=9)
    return figure


class Game(NamedTuple):
    """One game on the diamond: its settings, its scores, its density on the grid."""

    rate: float
    size: int
    swept: bool  # whether it belongs to the sweep over rates
    jsd: float
    mll: float
    modes: int
    density: Float[np.ndarray, " G"]


class Chain(NamedTuple):
    """One run of a sampler on the diamond: its settings, its scores, its density on the grid."""

    settings: Mapping[str, float]
    jsd: float
    mll: float
    density: Float[np.ndarray, " G"]


@_styled
def diamond(
    x: Float[np.ndarray, " X"],
    f: Float[np.ndarray, " G"],
    surface: Float[np.ndarray, "G X"],
    truth: Float[np.ndarray, " G"],
    games: Sequence[Game],
    middle: float,
    chains: Sequence[Chain],
    stabilisers: str,
    *,
    stacked: bool = False,
) -> Figure:
    """Ground truth; of the game and of a sampler, scores against settings and densities at zero.

    Above them, the stabilisers of the game.
    """
    size = (NARROW, 16.4) if stacked else (1.7 * WIDE, 6.4)
    figure = Figure(figsize=size, layout="constrained")
    wide = 60 if stacked else 160
    figure.suptitle(textwrap.fill(f"Game with {stabilisers}", wide), fontsize=9)
    grid = figure.subplots(6, 1) if stacked else figure.subplots(2, 3)
    ground, rates, steps, sizes, densities, sampled = grid.ravel()
    ground.pcolormesh(x, f, surface, cmap="Blues", shading="auto", rasterized=True)
    ground.set(title="(a) exact posterior", xlabel="x", ylabel="f", ylim=(-11, 11))

    swept = [game for game in games if game.swept]
    _both_scores(rates, [(game.rate, game) for game in swept])
    rates.set(title="(b) game: about 300 parameters", xscale="log")
    rates.set_xlabel("learning rate of the discriminator")
    _both_scores(steps, [(chain.settings["η"], chain) for chain in chains])
    steps.set(title="(e) SGHMC", xscale="log", xlabel="step size η")

    others = [game for game in games if game.rate == middle]
    for modes in sorted({game.modes for game in others}):
        some = [game for game in others if game.modes == modes]
        sizes.scatter(
            [game.jsd for game in some],
            [game.mll for game in some],
            c=np.log10([game.size for game in some]),
            marker=MARKERS[modes],
            cmap="viridis",
            vmin=1.0,
            vmax=4.0,
            label=f"{modes} modes",
        )
    sizes.set(title="(c) generators of several sizes", xlabel="JSD", ylabel="mean log density")
    _densities(sampled, f, truth, chains, "η")
    sampled.set_title("(f) SGHMC: q(f; x = 0)")
    sizes.legend(fontsize=8)
    if sizes.collections:
        bar = figure.colorbar(sizes.collections[0], ax=sizes, ticks=[1, 2, 3, 4])
        bar.ax.set_yticklabels(["10", "100", "1,000", "10,000"])
        bar.set_label("parameters")

    densities.fill_between(f, truth, color="#DDEBF5", lw=0, label="exact")
    first = {game.rate: game for game in reversed(swept)}
    for number, rate in enumerate(sorted(first)[::3]):
        colour = COLOURS[number % len(COLOURS)]
        densities.plot(f, first[rate].density, color=colour, lw=1.0, label=f"rate {rate:g}")
    densities.set(title="(d) game: q(f; x = 0)", xlabel="f", ylabel="density", xlim=(-11, 11))
    densities.legend(fontsize=8)
    return figure


@_styled
def sampler_settings(
    f: Float[np.ndarray, " G"],
    truth: Float[np.ndarray, " G"],
    sweeps: Mapping[str, Sequence[Chain]],
    base: Mapping[str, float],
    *,
    stacked: bool = False,
) -> Figure:
    """Densities at zero of a sampler, a panel for each setting that varies while others stay."""
    figure, panels = _panels(len(sweeps), stacked, 3.0)
    for axes, (name, chains) in zip(panels, sweeps.items(), strict=True):
        _densities(axes, f, truth, chains, name)
        others = ", ".join(f"{key} = {value:g}" for key, value in base.items() if key != name)
        axes.set_title(others)
    return figure


def _both_scores(axes: Axes, runs: Sequence[tuple[float, Game | Chain]]) -> None:
    """JSD to the left and mean log density to the right: each run a dot, medians a line."""
    for name, colour in (("jsd", BLUE), ("mll", COLOURS[1])):
        side = axes if name == "jsd" else axes.twinx()
        at = sorted({place for place, _ in runs})
        found = [[getattr(run, name) for where, run in runs if where == place] for place in at]
        side.plot(at, [np.median(one) for one in found], color=colour, lw=1.8)
        for place, values in zip(at, found, strict=True):
            side.plot([place] * len(values), values, ".", color=colour, ms=4, alpha=0.6)
        label = {"jsd": "JSD in nats", "mll": "mean log density"}[name]
        side.set_ylabel(label, color=colour)


def _densities(
    axes: Axes,
    f: Float[np.ndarray, " G"],
    truth: Float[np.ndarray, " G"],
    chains: Sequence[Chain],
    name: str,
) -> None:
    """The first chain at each of up to four values of a setting, over the exact density."""
    axes.fill_between(f, truth, color="#DDEBF5", lw=0, label="exact")
    first = {chain.settings[name]: chain for chain in reversed(chains)}
    values = sorted(first)
    shown = values if len(values) <= 4 else [values[i * (len(values) - 1) // 3] for i in range(4)]
    for number, value in enumerate(shown):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(f, first[value].density, color=colour, lw=1.0, label=f"{name} = {value:g}")
    top = 2.2 * float(np.max(truth))
    axes.set(xlabel="f", ylabel="density", xlim=(-11, 11), ylim=(0.0, top))
    axes.legend(fontsize=8)


class Comparison(NamedTuple):
    """One score of one set: mean and standard error per method, None where not defined."""

    title: str
    values: Mapping[str, tuple[float, float] | None]


@_styled
def comparison(
    rows: Sequence[Sequence[Comparison]],
    palette: Mapping[str, str],
    *,
    stacked: bool = False,
    zero: bool = False,
    hollow: Container[str] = (),
) -> Figure:
    """Dots with standard errors, a panel for each set (row) and score (column).

    The last row may be shorter. With `zero`, a line is drawn where nothing is left to gain. Dots
    of `hollow` methods are not filled. A method far from all others has its number at the rim, or
    the others could not be told apart.
    """
    height = 0.68 + 0.23 * len(palette)
    nrows, ncols = (sum(map(len, rows)), 1) if stacked else (len(rows), len(rows[0]))
    figure = Figure(figsize=(NARROW if stacked else WIDE, nrows * height), layout="constrained")
    grid = figure.subplots(nrows, ncols, squeeze=False)
    panels = [panel for row in rows for panel in row]
    for number, (axes, one) in enumerate(zip(grid.ravel(), panels, strict=False)):
        _dots(axes, one, palette, hollow, labelled=stacked or number % ncols == 0)
        if zero:
            axes.axvline(0.0, color=MUTED, lw=0.8, ls=(0, (4, 3)), zorder=0)
    for axes in grid.ravel()[len(panels) :]:
        axes.set_visible(False)
    return figure


def _dots(
    axes: Axes,
    one: Comparison,
    palette: Mapping[str, str],
    hollow: Container[str],
    *,
    labelled: bool,
) -> None:
    low, high = _fences([value[0] for value in one.values.values() if value])
    for place, (label, colour) in enumerate(palette.items()):
        value = one.values.get(label)
        axes.axhline(place, color=MUTED, lw=0.4, alpha=0.35, zorder=0)
        if value is None and label in hollow:
            continue
        if value is None:
            _beside_dots(axes, place, 0.5, "none", MUTED)
            continue
        mean, error = value
        if not low <= mean <= high:
            known = f" ± {error:.2f}" if np.isfinite(error) else ""
            _beside_dots(axes, place, float(mean > high), f"{mean:.2f}{known}", colour)
            continue
        marker = MARKERS[place % len(MARKERS)]
        face = "white" if label in hollow else colour
        axes.errorbar(mean, place, xerr=error, fmt=marker, color=colour, mfc=face, ms=5.5, lw=1.5)
    axes.set_yticks(range(len(palette)), list(palette) if labelled else [""] * len(palette))
    axes.set(ylim=(len(palette) - 0.5, -0.5), title=one.title)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(4))


def _fences(means: Sequence[float]) -> tuple[float, float]:
    """Where an axis may end without hiding more than what lies far from all the rest."""
    if len(means) < SEVERAL:
        return -np.inf, np.inf
    low, high = np.percentile(means, [25, 75])
    return low - FAR * (high - low), high + FAR * (high - low)


def _beside_dots(axes: Axes, place: int, across: float, text: str, colour: str) -> None:
    """Words where a dot would be: at the left (0), in the middle, or at the right (1)."""
    if across != 0.5:
        text = f"{text} ▸" if across else f"◂ {text}"
    axes.text(
        across,
        place,
        text,
        color=colour,
        fontsize=8,
        ha={0.0: "left", 1.0: "right"}.get(across, "center"),
        va="center",
        transform=axes.get_yaxis_transform(),
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )


class Faces(NamedTuple):
    """A map of images with two latents, and one image of which the lower half was hidden."""

    faces: Int[np.ndarray, "K Q"]
    line: Int[np.ndarray, "T Q"]
    ends: Float[np.ndarray, "2 2"]
    embedding: Float[np.ndarray, "N 2"]
    extent: Float[np.ndarray, "2 2"]
    log_posterior: Float[np.ndarray, "F F"]
    implicit: Float[np.ndarray, "S 2"]
    gaussian: Float[np.ndarray, "S 2"]
    truth: Int[np.ndarray, " Q"]
    completed: Int[np.ndarray, "C Q"]


def _strip(axes: Axes, images: Sequence[np.ndarray], shape: tuple[int, int], title: str) -> None:
    """Images side by side."""
    row = np.concatenate([image.reshape(shape) for image in images], axis=1)
    axes.imshow(row, cmap="gray", vmin=0, vmax=255)
    axes.set(title=title, xticks=[], yticks=[])


@_styled
def face_map(of: Faces, shape: tuple[int, int] = (28, 20)) -> Figure:
    """Images over the map, where the rows are on it, and images along a line across it."""
    figure = Figure(figsize=(WIDE, 5.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.0, 1.2], height_ratios=[4.0, 1.0])
    whole, map_, line = (figure.add_subplot(grid[at]) for at in ((0, 0), (0, 1), (1, slice(None))))
    side = round(len(of.faces) ** 0.5)
    tiles = of.faces.reshape(side, side, *shape)[::-1]  # the second latent grows upwards
    whole.imshow(np.concatenate(np.concatenate(tiles, axis=1), axis=1), cmap="gray", aspect="equal")
    whole.set(title="faces over the map", xticks=[], yticks=[])
    map_.plot(*of.embedding.T, ".", color=MUTED, markersize=2.5, alpha=0.6)
    map_.plot(*of.ends.T, color=COLOURS[4], lw=1.4, marker="o", ms=4)
    map_.set(title="the faces of the fit", xlabel="latent 1", ylabel="latent 2")
    _strip(line, list(of.line), shape, "along the line")
    return figure


@_styled
def half_face(of: Faces, shape: tuple[int, int] = (28, 20)) -> Figure:
    """The posterior of a half image's latent, two approximations of it, and completions."""
    figure = Figure(figsize=(WIDE, 5.0), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=[3.0, 2.0])
    (x0, y0), (x1, y1) = of.extent
    for number, (name, draws) in enumerate(
        {"true posterior": None, "implicit": of.implicit, "one Gaussian": of.gaussian}.items()
    ):
        axes = figure.add_subplot(grid[0, number])
        density = np.exp(of.log_posterior).T
        box = (x0, x1, y0, y1)
        axes.imshow(density, origin="lower", extent=box, cmap="Blues", aspect="auto")
        if draws is not None:
            axes.plot(*draws.T, ".", color=COLOURS[4], markersize=3.0, alpha=0.5)
        axes.set(title=name, xlabel="latent 1", xlim=(x0, x1), ylim=(y0, y1))
        if number == 0:
            axes.set_ylabel("latent 2")
    seen = of.truth.copy()
    seen[len(seen) // 2 :] = 0
    names = "what is seen, the face, and a completion from each mode"
    _strip(figure.add_subplot(grid[1, :]), [seen, of.truth, *of.completed], shape, names)
    return figure


# ---- classes --------------------------------------------------------------------------------


class Classified(NamedTuple):
    """What a classifier of images learned, how far it is right, and where it does not know."""

    title: str
    classes: Sequence[str]
    inducing: Int[np.ndarray, "K H W *colours"]
    confusion: Int[np.ndarray, "C C"]
    bins: Mapping[str, Float[np.ndarray, "3 B"]]  # how sure, how often right, how many rows
    doubted: Int[np.ndarray, "J H W *colours"]
    captions: Sequence[str]  # of the doubted


@_styled
def classified(of: Classified, *, stacked: bool = False) -> Figure:
    """Inducing images, mistakes by class, reliability, and the images most in doubt."""
    height = 10.4 if stacked else 5.6
    figure = Figure(figsize=(NARROW if stacked else WIDE, height), layout="constrained")
    names = "i;m;s;d" if stacked else "ims;ddd"
    ratios = [3.0, 4.0, 3.2, 3.4] if stacked else [2.1, 1.0]
    panels = figure.subplot_mosaic(names, height_ratios=ratios)
    _tiles(panels["i"], of.inducing, 4)
    panels["i"].set_title(f"{of.title}\ninducing images")
    _mistakes(panels["m"], of.classes, of.confusion)
    _reliability(panels["s"], of.bins)
    columns = len(of.doubted) // 2 if stacked else len(of.doubted)
    _tiles(panels["d"], of.doubted, columns, of.captions)
    panels["d"].set_title("most in doubt: label, two probabilities")
    return figure


def _tiles(axes: Axes, images: np.ndarray, columns: int, captions: Sequence[str] = ()) -> None:
    """Images in rows of `columns`, each over its caption."""
    rows, (high, wide) = -(-len(images) // columns), images.shape[1:3]
    below = 0.85 * high if captions else 1.0
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        left, top = column * (wide * (1.25 if captions else 1.05)), row * (high + below)
        box = (left, left + wide, top + high, top)
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, extent=box)
        if captions:
            at = left + wide / 2, top + 1.05 * high
            axes.text(*at, captions[number], ha="center", va="top", fontsize=6.5)
    step = 1.25 if captions else 1.05
    axes.set(xlim=(0, (columns - 1) * wide * step + wide), ylim=(rows * (high + below), 0))
    axes.set_aspect("equal")
    axes.axis("off")


def _mistakes(axes: Axes, classes: Sequence[str], confusion: Int[np.ndarray, "C C"]) -> None:
    """Counts of wrong labels; the diagonal is left blank, or nothing else could be seen."""
    wrong = np.where(np.eye(len(confusion), dtype=bool), 0, confusion)
    axes.imshow(wrong, cmap="Blues")
    for (row, column), count in np.ndenumerate(wrong):
        if count:
            colour = "white" if count > 0.6 * wrong.max() else INK
            axes.text(column, row, count, ha="center", va="center", fontsize=5.5, color=colour)
    ticks = np.arange(len(classes))
    axes.set_xticks(ticks, classes, rotation=90 if max(map(len, classes)) > 1 else 0, fontsize=7)
    axes.set_yticks(ticks, classes, fontsize=7)
    rate = 1.0 - np.trace(confusion) / np.sum(confusion)
    axes.set(title=f"mistakes, {rate:.1%} in all", xlabel="predicted", ylabel="label")


def _reliability(axes: Axes, bins: Mapping[str, Float[np.ndarray, "3 B"]]) -> None:
    """How often the winner is right against how sure it is; bins of few rows are left out."""
    axes.plot([0, 1], [0, 1], color=MUTED, lw=0.8)
    for (name, colour), mark in zip(colours(list(bins)).items(), MARKERS * 3, strict=False):
        sure, right, count = bins[name]
        some = count >= 20
        axes.plot(sure[some], right[some], color=colour, marker=mark, ms=3, lw=1.0, label=name)
    axes.set(title="reliability", xlabel="how sure", ylabel="how often right")
    axes.legend(fontsize=6.5)
