"""The drawings of the documentation: the game and the players' networks.

python -m nashgp.experiments.diagrams docs/figures
"""

import itertools
import sys
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from nashgp.experiments.plots import BLUE, INK, MUTED, STYLE

ORANGE, GREEN, PALE = "#E69F00", "#009E73", "#F3F6F9"


def _canvas(width: float, height: float, xlim: float, ylim: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, xlim), ylim=(0, ylim), aspect="equal")
    axes.axis("off")
    return figure, axes


def _box(axes: Axes, x: float, y: float, w: float, h: float, text: str, colour: str) -> None:
    """A box around its centre."""
    axes.add_patch(
        FancyBboxPatch(
            (x - w / 2, y - h / 2), w, h, "round,pad=0.02,rounding_size=0.12",
            facecolor=PALE, edgecolor=colour, lw=1.4,
        )
    )  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", color=INK, fontsize=9)


def _dot(axes: Axes, x: float, y: float, text: str, colour: str, size: float = 0.32) -> None:
    axes.add_patch(Circle((x, y), size, facecolor="white", edgecolor=colour, lw=1.4))
    axes.text(x, y, text, ha="center", va="center", color=INK, fontsize=9)


def _arrow(axes: Axes, start: tuple, end: tuple, colour: str = MUTED, bend: float = 0.0) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=9, color=colour, lw=1.1,
            connectionstyle=f"arc3,rad={bend}", shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip


def game() -> Figure:
    """Best-response dynamics: the players move in turn."""
    figure, axes = _canvas(8.6, 2.5, 17.2, 5.0)
    states = [
        ("$\\Psi_0$\n$\\theta_0, \\Phi_0$", 1.5),
        ("$\\Psi_1$\n$\\theta_0, \\Phi_0$", 5.2),
        ("$\\Psi_1$\n$\\theta_1, \\Phi_1$", 8.9),
        ("$\\Psi_2$\n$\\theta_1, \\Phi_1$", 12.6),
    ]
    for text, x in states:
        _dot(axes, x, 3.2, text, INK, 0.95)
    axes.text(15.8, 3.2, ". . .", ha="center", va="center", fontsize=13, color=INK)
    ends = [x for _, x in states] + [16.2]
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        first = number % 2 == 0
        colour = ORANGE if first else BLUE
        _arrow(axes, (start + 1.05, 3.2), (end - 1.05, 3.2), colour)
        middle = 0.5 * (start + end)
        axes.text(middle, 4.45, f"Player {1 if first else 2}", ha="center", color=colour)
    lines = [
        ("Player 1, discriminator:", "tell draws of $q_\\Phi$ from draws of the prior", ORANGE),
        ("Player 2, generator and model:", "fit the rows, less what Player 1 charges", BLUE),
    ]
    for place, (who, what, colour) in enumerate(lines):
        axes.text(4.9, 1.25 - 0.85 * place, who, ha="right", color=colour)
        axes.text(5.2, 1.25 - 0.85 * place, what, ha="left", color=INK)
    return figure


def players() -> Figure:
    """The naive and the tied generator, the tied discriminator, and all layers together."""
    figure, axes = _canvas(8.6, 3.8, 17.2, 8.6)
    axes.set_ylim(1.0, 8.6)
    rows = [6.6, 5.1, 2.9]

    def title(x: float, text: str) -> None:
        axes.text(x, 8.1, text, ha="center", fontsize=9.5, color=INK)

    title(2.1, "(a) naive generator")
    _dot(axes, 0.6, 4.8, "$\\epsilon$", BLUE)
    for m, y in zip(("1", "2", "M"), rows, strict=True):
        _box(axes, 2.1, y, 1.0, 0.8, f"$g_{m}$", BLUE)
        _dot(axes, 3.7, y, f"$u_{m}$", INK)
        _arrow(axes, (0.95, 4.8), (1.55, y))
        _arrow(axes, (2.65, y), (3.35, y))
    axes.text(2.1, 4.0, "$\\vdots$", ha="center", va="center")
    axes.text(2.1, 1.6, "parameters for\neach of M", ha="center", fontsize=8, color=MUTED)

    title(6.9, "(b) tied generator")
    _box(axes, 7.0, 4.8, 1.1, 4.6, "$g$", BLUE)
    for m, y in zip(("1", "2", "M"), rows, strict=True):
        axes.text(5.3, y, f"$\\epsilon \\oplus z_{m}$", ha="center", va="center")
        _arrow(axes, (5.85, y), (6.4, y))
        _arrow(axes, (7.6, y), (8.15, y))
        _dot(axes, 8.5, y, f"$u_{m}$", INK)
    axes.text(7.0, 1.6, "one set of parameters,\none noise", ha="center", fontsize=8, color=MUTED)

    title(11.6, "(c) tied discriminator")
    _box(axes, 11.6, 4.8, 1.1, 4.6, "$t$", ORANGE)
    for m, y in zip(("1", "2", "M"), rows, strict=True):
        axes.text(9.95, y, f"$u_{m} \\oplus z_{m}$", ha="center", va="center")
        _arrow(axes, (10.55, y), (11.0, y))
        _arrow(axes, (12.2, y), (12.95, 4.8))
    _dot(axes, 13.3, 4.8, "$+$", ORANGE)
    axes.text(11.6, 1.6, "logits are summed", ha="center", fontsize=8, color=MUTED)

    title(15.6, "(d) all layers")
    _dot(axes, 14.4, 4.8, "$\\epsilon$", BLUE)
    for layer, y in zip(("1", "2", "L"), rows, strict=True):
        _box(axes, 15.75, y, 1.1, 0.8, f"$U_{layer}$", INK)
        _arrow(axes, (14.75, 4.8), (15.15, y), BLUE)
        _arrow(axes, (16.35, y), (16.6, 4.8 + 0.25 * (y - 4.8)), ORANGE)
    axes.text(16.9, 4.8, "$T$", ha="center", va="center", color=ORANGE, fontsize=11)
    axes.text(15.6, 1.6, "the same noise\nin every layer", ha="center", fontsize=8, color=MUTED)
    return figure


DRAWINGS = {"game": game, "players": players}


def main(folder: Path) -> None:
    """Write every drawing into a folder."""
    with matplotlib.rc_context(STYLE):
        for name, draw in DRAWINGS.items():
            draw().savefig(folder / f"{name}.png", dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
