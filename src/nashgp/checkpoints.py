"""Checkpoints: how far a fit has got, in a file from which another process goes on.

A fit is a chain of runs of `train.run`, and rows, settings and seed determine all of it. So a
checkpoint holds for each run, by its place in the chain, the arrays of its state after some step
and what it had reported. To resume is to walk the chain again: a run that had ended has no step
left, the one that was under way goes on from its state, and since the key of a step comes from the
step's own number, every later number is what it would have been.
"""

import logging
import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from nashgp import persist
from nashgp.engines.base import State
from nashgp.errors import InputError
from nashgp.persist import FilePath
from nashgp.train import Best, Record, Snapshot

log = logging.getLogger("nashgp")

KIND = "checkpoint"
SECONDS = 60.0  # between two files: a minute is little to lose, and a file takes milliseconds
PACKAGES = ("nashgp", "jax", "jaxlib")  # other versions of these may round otherwise

Origin = Mapping[str, str | int | None]
"""What determines a fit, by name: checksums of rows and settings, and the seed."""


def before(path: FilePath) -> str:
    """The file with the checkpoint before the last."""
    return f"{os.fspath(path)}.before"


class FileCheckpoint:
    """The checkpoint of one fit, written at most once in so many `seconds`.

    An earlier file is kept as `before(path)`. Each is written beside its place and moved there, so
    that a process may be killed at any moment and the file is whole.
    """

    def __init__(self, path: FilePath, origin: Origin, seconds: float = SECONDS):
        self.path, self.origin, self.seconds = path, origin, seconds
        self.runs: dict[int, Any] = {}  # as in the file, or a snapshot
        self.number, self.written = -1, time.monotonic()

    def begin(self) -> "FileCheckpoint":
        """Write a first file: a place that cannot be written to is better found out now."""
        if os.path.exists(self.path) and _read(self.path)["runs"]:
            raise InputError(
                f"{self.path} holds the checkpoint of another fit; resume from it, or remove it."
            )
        self.write()
        return self

    def resume(self, path: FilePath) -> "FileCheckpoint":
        """Take over the runs of a file, if it is of this fit."""
        content = _read(path)
        theirs = content["origin"]
        names = [name for name in {**self.origin, **theirs} if not self._agrees(theirs, name)]
        if names:
            raise InputError(
                f"{path} is the checkpoint of a fit that differs in {', '.join(names)}; resume "
                "with the rows and settings that it was started with."
            )
        self.origin, self.runs = theirs, content["runs"]
        if content["versions"] != _versions():
            was = ", ".join(f"{name} {number}" for name, number in content["versions"].items())
            log.warning("%s was written by %s: the rest may be rounded otherwise.", path, was)
        return self

    def _agrees(self, theirs: Origin, name: str) -> bool:
        """Whether two fits agree; a seed of None takes any."""
        mine = self.origin.get(name, "")
        return mine is None or mine == theirs.get(name, "")

    @property
    def seed(self) -> int:
        """Where the random numbers of the fit come from."""
        return cast(int, self.origin["random_state"])

    def enter(self, state: State) -> Snapshot | None:
        """The next run begins, in this state: where it had got to, if it was begun before."""
        self.number += 1
        known = self.runs.get(self.number)
        return None if known is None else self._restore(known, state)

    def keep(self, snapshot: Snapshot) -> None:
        """The run has got this far; from time to time this is written down."""
        self.runs[self.number] = snapshot
        if time.monotonic() - self.written >= self.seconds:
            self.write()

    def write(self) -> None:
        """Write the file now; the last one stays beside it."""
        self.runs = {number: _flat(run) for number, run in self.runs.items()}
        runs = {str(number): run for number, run in self.runs.items()}
        content = {"origin": dict(self.origin), "versions": _versions(), "runs": runs}
        persist.sweep(self.path)
        persist.sweep(before(self.path))
        if os.path.isfile(self.path):  # copied and not moved: there is no moment without the file
            with open(self.path, "rb") as file:
                persist.replace(before(self.path), file.read())
        persist.write(self.path, KIND, content)
        self.written = time.monotonic()

    def _restore(self, known: Mapping[str, Any], like: State) -> Snapshot:
        """A run of the file as a snapshot, with states built like the one it begins in."""
        state = self._unflatten(known["state"], like)
        seen = known["best"]  # no state of its own until held-out rows have been scored
        best = Best(self._unflatten(seen, like) if seen else like, *known["score"])
        record = known["record"]
        return Snapshot(state, best, Record((record["info"],), record["marks"], record["events"]))

    def _unflatten(self, arrays: list[np.ndarray], like: State) -> State:
        leaves, tree = jax.tree.flatten(like)
        shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
        if shapes != [(array.shape, array.dtype) for array in arrays]:
            raise InputError(
                f"{self.path} does not fit the model that these settings make, as one of another "
                "version of nashgp may; start afresh."
            )
        return jax.tree.unflatten(tree, [jnp.asarray(array) for array in arrays])


def _flat(run: Any) -> dict[str, Any]:
    """A snapshot as a file holds it: states as lists of arrays, steps in one piece."""
    if not isinstance(run, Snapshot):
        return run
    state, best, (infos, marks, events) = run
    info = {name: np.concatenate([part[name] for part in infos]) for name in infos[0]}
    return {
        "state": _arrays(state),
        "best": _arrays(best.state) if best.step else None,
        "score": tuple(best[1:]),
        "record": {"info": info, "marks": marks, "events": events},
    }


def _arrays(state: State) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def _read(path: FilePath) -> dict[str, Any]:
    """The content of a file, or one sentence on why there is none."""
    try:
        _, content = persist.read(path, KIND)
    except InputError as error:
        other = before(path)
        if not os.path.isfile(other):
            raise
        raise InputError(f"{error} The checkpoint before it is {other}.") from error
    match content:
        case {"origin": dict(), "versions": dict(), "runs": dict(runs)}:
            return content | {"runs": {int(number): run for number, run in runs.items()}}
    raise InputError(f"{path} holds no checkpoint of this version; start afresh.")


def _versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}
