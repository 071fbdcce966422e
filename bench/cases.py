"""The problems both libraries are timed on, and what a step of each costs in matrix products."""

import dataclasses
import itertools
import pathlib
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

NUM_NEW_ROWS = 1_000  # rows of one prediction
NUM_PREDICTIVE_DRAWS = 10
NUM_DRAWS = 100  # of all inducing values, in one compiled call
REPEATS = 5
# Name of a step -> whether inducing values are drawn.
STEPS = {"integrated": False, "drawn": True, "anchored": True}


@dataclasses.dataclass(frozen=True)
class Case:
    """A deep GP on all rows at once; every hidden layer is as wide as the inputs."""

    num_rows: int
    num_inputs: int
    num_inducing: int
    num_layers: int
    num_samples: int
    steps: int  # training steps between two looks at the clock

    @property
    def name(self) -> str:
        letters = zip("NDMLK", dataclasses.astuple(self), strict=False)
        return " ".join(f"{letter}={number}" for letter, number in letters)

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each layer."""
        hidden = [(self.num_inputs, self.num_inputs)] * (self.num_layers - 1)
        return [*hidden, (self.num_inputs, 1)]


@dataclasses.dataclass(frozen=True)
class Pictures:
    """A deep classifier of rows of pixels, a batch in each step: the shape of the paper's MNIST."""

    num_inputs: int = 784
    num_hidden: int = 98
    num_inducing: int = 100
    num_layers: int = 4
    num_classes: int = 10
    batch_size: int = 256
    num_rows: int = 60_000
    steps: int = 20

    @property
    def name(self) -> str:
        shape = f"D={self.num_inputs} H={self.num_hidden} M={self.num_inducing}"
        return f"{shape} L={self.num_layers} C={self.num_classes} B={self.batch_size}"

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each layer."""
        edges = [self.num_inputs, *[self.num_hidden] * (self.num_layers - 1), self.num_classes]
        return list(itertools.pairwise(edges))

    @property
    def epoch(self) -> int:
        """Steps that see as many rows as there are."""
        return -(-self.num_rows // self.batch_size)


PICTURES, FEW_PICTURES = Pictures(), Pictures(16, 4, 8, 2, 3, 20, 200, steps=2)


def make_pictures(case: Pictures, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels, four batches of them: the same numbers for both libraries."""
    random = np.random.default_rng(0)
    x = random.normal(size=(4 * case.batch_size, case.num_inputs)).astype(dtype)
    label = np.argmax(x @ random.normal(size=(case.num_inputs, case.num_classes)), axis=1)
    return x, label


CASES = (
    Case(455, 13, 128, 2, 5, steps=100),
    Case(455, 13, 128, 4, 10, steps=10),
    Case(10_000, 8, 128, 3, 5, steps=1),
)
QUICK = Case(100, 4, 16, 2, 2, steps=5)


def make_rows(case: Case, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and new inputs: the same numbers for both libraries."""
    random = np.random.default_rng(0)
    x = random.normal(size=(case.num_rows + NUM_NEW_ROWS, case.num_inputs))
    y = np.sin(x[:, :1]) + 0.5 * x[:, 1:2] ** 2 + 0.1 * random.normal(size=(len(x), 1))
    x, y = x.astype(dtype), y.astype(dtype)
    return x[: case.num_rows], y[: case.num_rows], x[case.num_rows :]


def matmul_flops(case: Case, *, drawn: bool) -> int:
    """Operations in the matrix products of one training step, forward and backward.

    A layer with D inputs and P outputs sees R rows: N in the first layer, K N above it. Forward:

        distances    2 R M D                 A = K(x, z) C⁻ᵀ     2 R M²
        A v          2 R M P                 A R                 2 R M² P     (integrated out)
        A v_k        2 K N M P               R ε                 2 K M² P     (drawn)

    The triangular R counts as a full matrix. Going backward, a product costs as much again for
    each factor that wants a gradient: both, except in the distances of the first layer and in
    R ε. What does not grow with rows or draws (products of two M x M matrices, the Cholesky
    factor), the networks of an anchored posterior and element-wise work are left out.
    """
    n, m, k = case.num_rows, case.num_inducing, case.num_samples
    total = 0
    for number, (d, p) in enumerate(case.widths):
        first = number == 0
        rows = n if first else k * n
        total += (2 if first else 3) * 2 * rows * m * d + 3 * 2 * rows * m**2
        if drawn:
            total += 3 * 2 * k * n * m * p + 2 * 2 * k * m**2 * p
        else:
            total += 3 * 2 * rows * m * p + 3 * 2 * rows * m**2 * p
    return total


def fastest(block: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of the fastest of several calls, after one that is not counted."""
    block()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        block()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def resident_megabytes() -> float:
    """Memory this process holds now; where the system does not tell, the most it has held."""
    status = pathlib.Path("/proc/self/status")
    if not status.exists():
        return peak_megabytes()
    lines = status.read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def peak_megabytes() -> float:
    """The most memory this process has held."""
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
