"""Modes of a density on a grid, and whether draws have found them.

A mode is a summit that rises above the pass to any higher one by a factor of two at least, and its
basin is what drains into it. Lower summits belong to the basin that their pass leads to.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

RISE = np.log(2.0)  # of a summit above its pass
DEPTH = 12.0  # nats below the highest summit that are looked at
LEAST_MASS = 0.1  # of a basin that counts as a mode
FOUND = 0.25  # the share of a basin's mass that draws must have

Grid = Float[np.ndarray, "G G"]


class Basins(NamedTuple):
    """The basin of each cell, numbered from the heaviest on; -1 is too low to belong to any."""

    label: Int[np.ndarray, "G G"]
    mass: Float[np.ndarray, " B"]

    @property
    def num_modes(self) -> int:
        return int(np.sum(self.mass >= LEAST_MASS))

    @property
    def doubt(self) -> float:
        """The mass of the second basin: a half where two modes are level, 0 where there is one."""
        return float(self.mass[1]) if len(self.mass) > 1 else 0.0

    def found(self, cells: Int[np.ndarray, "S 2"]) -> bool:
        """Whether draws, by their cells, are in every mode as often as a quarter of its mass."""
        labels = self.label[tuple(cells.T)]
        shares = [np.mean(labels == number) for number in range(self.num_modes)]
        return bool(np.all(shares >= FOUND * self.mass[: self.num_modes]))


def find_basins(log_p: Grid) -> Basins:
    """Flood a density from its summit down; cells join the basin of their highest neighbour."""
    joined: dict[int, int] = {}  # a basin and the one it drains into, itself if none
    lake: dict[int, int] = {}  # a basin and the highest one that it is connected with by now
    peak: dict[int, float] = {}
    label = np.full(log_p.shape, -1)

    for cell in _downwards(log_p):
        near = {_root(joined, number): height for height, number in _neighbours(log_p, label, cell)}
        if not near:
            number = len(peak)
            joined[number], lake[number], peak[number] = number, number, log_p[cell]
            label[cell] = number
            continue
        own = max(near, key=lambda number: near[number])
        label[cell] = own
        for other in near:
            high, low = sorted((_root(lake, own), _root(lake, other)), key=lambda n: -peak[n])
            if high == low:
                continue
            lake[low] = high
            if peak[low] - log_p[cell] < RISE:  # a ripple, part of the side that it leaks to
                beyond = own if _root(lake, own) == high and own != low else other
                joined[low] = beyond if beyond != low else high

    roots = [_root(joined, number) for number in range(len(peak))]
    p = np.exp(log_p - np.max(log_p))
    weight = np.bincount(
        np.array(roots)[label[label >= 0]], weights=p[label >= 0], minlength=len(peak)
    )
    order = [int(n) for n in np.argsort(-weight) if weight[n] > 0.0]
    place = {number: position for position, number in enumerate(order)}
    named = np.array([place[root] for root in roots])
    return Basins(np.where(label >= 0, named[label], -1), weight[order] / np.sum(p))


def _downwards(log_p: Grid) -> Iterator[tuple[int, int]]:
    """The cells that matter, the highest first."""
    low = np.max(log_p) - DEPTH
    order = np.argsort(-log_p, axis=None)[: int(np.sum(log_p > low))]
    return zip(*(part.tolist() for part in np.unravel_index(order, log_p.shape)), strict=True)


def _neighbours(
    log_p: Grid, label: Int[np.ndarray, "G G"], cell: tuple[int, int]
) -> list[tuple[float, int]]:
    """Height and basin of the cells around that are flooded already, the lowest first."""
    i, j = cell
    rows, columns = slice(max(i - 1, 0), i + 2), slice(max(j - 1, 0), j + 2)
    around = zip(log_p[rows, columns].ravel(), label[rows, columns].ravel(), strict=True)
    return sorted((float(height), int(number)) for height, number in around if number >= 0)


def _root(links: dict[int, int], number: int) -> int:
    while links[number] != number:
        number = links[number]
    return number
