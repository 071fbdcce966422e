"""Regression sets with fixed splits, found through `NASHGP_DATA`.

Nothing is downloaded and nothing is scaled on the way in: a loaded set is the file as published.
"""

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nashgp.errors import InputError

FOLDER = "NASHGP_DATA"  # the environment variable that names the data folder


class Source(NamedTuple):
    """Where a set lies below the data folder, and the checksum of the file it must be."""

    path: str
    sha256: str


SOURCES = {
    "boston": Source(
        "uci/boston.npz", "58c4b4a0be02b1a0f9bc13182be0ed56355be1e08eafbb9f54d11bb9f882cba4"
    ),
    "concrete": Source(
        "uci/concrete.npz", "fec3b6a8785ca4ddbfe4b80e89a83a96d4593f4bd6d4e45a40041cf2a0280e8c"
    ),
    "energy": Source(
        "uci/energy.npz", "0f217447e59d54cc587d3c4afacba210962d630ed63970074e732c7c02a49ecf"
    ),
    "kin8nm": Source(
        "uci/kin8nm.npz", "8eed2ed55f610cbfe866d4b852dfd4dacdd6ccd0ec3f4e125532938255579207"
    ),
    "power": Source(
        "uci/power.npz", "d17e0d6f00b48a6b891733190f541849ab1ff4a88f3b51a6734c0cefba64d6f6"
    ),
    "protein": Source(
        "uci/protein.npz", "433967f33c89617cea5c902a5f3c4f4f2b28e8cb7db41243ebbac4fe1a2817cb"
    ),
    "wine-red": Source(
        "uci/wine-red.npz", "34e815d4a01df5f7aa79b605ac9318eba7104dcde2d9bd6404d96dea065a9903"
    ),
}

Rows = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Regression:
    """Inputs `x` [N, D], targets `y` [N, 1] and `test_mask` [splits, N], True on test rows."""

    name: str
    x: Rows
    y: Rows
    test_mask: NDArray[np.bool_]

    @property
    def num_splits(self) -> int:
        return len(self.test_mask)

    def split(self, index: int) -> tuple[Rows, Rows, Rows, Rows]:
        """The rows of one split: `x_train, y_train, x_test, y_test`."""
        if not 0 <= index < self.num_splits:
            raise InputError(
                f"Split {index} of {self.name!r} does not exist; "
                f"choose one from 0 to {self.num_splits - 1}."
            )
        test = self.test_mask[index]
        return self.x[~test], self.y[~test], self.x[test], self.y[test]


def load(name: str) -> Regression:
    """Read one set of `SOURCES` from the data folder, refusing any file but the known one."""
    content = _read(name)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        x = arrays["X"].astype(np.float64)
        y = arrays["y"].astype(np.float64).reshape(len(x), 1)
        return Regression(name, x, y, arrays["test_mask"].astype(np.bool_))


def _read(name: str) -> bytes:
    """The checked content of the file of a set; read once, so what is checked is what is used."""
    if name not in SOURCES:
        raise InputError(f"There is no data set {name!r}; choose one of {', '.join(SOURCES)}.")
    folder = os.environ.get(FOLDER)
    if not folder:
        raise InputError(f"Set the environment variable {FOLDER} to the folder of the data sets.")
    path = Path(folder) / SOURCES[name].path
    if not path.is_file():
        raise InputError(f"{path} is missing; put it there or point {FOLDER} to another folder.")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SOURCES[name].sha256:
        raise InputError(f"{path} is not the known file of {name!r}; replace it by a fresh copy.")
    return content
