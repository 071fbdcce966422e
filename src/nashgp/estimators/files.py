"""Estimators in files: what `save` writes and `load` reads."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from nashgp import persist, train
from nashgp.errors import InputError
from nashgp.precision import scope


class SavedEstimator(BaseEstimator):
    """An estimator that a file can hold: its settings, and all it has learned."""

    _needed: ClassVar[frozenset[str]]  # what no file may lack
    kernel: Any
    dtype: str
    random_state: Any
    history_: train.History

    @property
    def _dtype(self) -> str:
        """The precision of what was learned."""
        return getattr(self, "dtype_", "float64") if self.dtype == "auto" else self.dtype

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the estimator to one file, for `nashgp.load`; an older file is replaced at once."""
        check_is_fitted(self)
        learned = {name: value for name, value in vars(self).items() if name.endswith("_")}
        learned["history_"] = dataclasses.asdict(self.history_)
        content = {"parameters": self._to_file(), "learned": learned}
        persist.write(path, type(self).__name__, content)

    def _to_file(self) -> dict[str, Any]:
        """The settings as a file can hold them."""
        parameters = self.get_params(deep=False)
        if callable(self.kernel):
            raise InputError("kernel is a function, which no file can hold; pass a kernel object.")
        if not isinstance(self.random_state, int | np.integer):
            parameters["random_state"] = None
        return parameters

    @classmethod
    def _from_file(cls, parameters: dict[str, Any]) -> "SavedEstimator":
        """An estimator with such settings."""
        return cls(**parameters)

    def __getstate__(self) -> dict[str, Any]:
        """With arrays on the host: JAX would take them back in single precision."""
        state = dict(cast(Mapping[str, Any], super().__getstate__()))
        if "fitted_" in state:
            state["fitted_"] = jax.tree.map(np.asarray, state["fitted_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "fitted_" in state:
            with scope(self._dtype):
                self.fitted_ = jax.tree.map(jnp.asarray, state["fitted_"])


def load(path: str | os.PathLike[str], *, classes: Sequence[type] = ()) -> SavedEstimator:
    """The estimator that `save` wrote; nothing in the file is executed.

    `classes` names kernels, likelihoods and other parts of your own that the model is made of.
    """
    kinds = {kind.__name__: kind for kind in _subclasses(SavedEstimator)}
    kind, content = persist.read(path, classes=classes)
    try:
        estimator = kinds[kind]._from_file(content["parameters"])
        learned = content["learned"]
        learned["history_"] = train.History(**learned["history_"])
        missing = estimator._needed - set(learned)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} holds no estimator of this version; save it again.") from error
    if missing:
        raise InputError(f"{path} is damaged; it lacks {', '.join(sorted(missing))}.")
    vars(estimator).update(learned)
    return estimator


def _subclasses(kind: type[SavedEstimator]) -> list[type[SavedEstimator]]:
    return [each for child in kind.__subclasses__() for each in (child, *_subclasses(child))]
