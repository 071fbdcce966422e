"""The rows a user passes, checked: one sentence for each mistake."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from nashgp.errors import InputError

Rows = Any
"""What a user passes: an array, a list, a data frame. Only this module looks inside."""

Table = np.ndarray

NO_TARGETS = "y is missing: the estimator requires y to be passed, but the target y is None."


def inputs(estimator: BaseEstimator, X: Rows, *, reset: bool) -> Table:
    """`X` as a finite float64 table; `reset` in `fit`, where it sets the columns to expect."""
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        _refuse_text(X)
    table = _checked(_validate, "X", estimator, X, reset=reset, **_NUMBERS)
    bad = ~np.isfinite(table)
    if np.any(bad):
        column, rows = int(np.argmax(np.any(bad, axis=0))), int(np.sum(np.any(bad, axis=1)))
        name = getattr(estimator, "feature_names_in_", range(table.shape[1]))[column]
        raise InputError(
            f"X holds NaN or infinity in {rows} row(s), first in column {name!r}; drop those rows "
            "or impute them."
        )
    return table


def observations(estimator: BaseEstimator, X: Rows, *, reset: bool) -> Table:
    """`X` as a float64 table in which NaN is a missing entry; `reset` as in `inputs`."""
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        _refuse_text(X)
    table = _checked(_validate, "X", estimator, X, reset=reset, **_NUMBERS)
    if np.any(np.isinf(table)):
        raise InputError("X holds infinity; use NaN for a missing entry.")
    return table


def latents(X: Rows, width: int) -> Table:
    """Points of a latent space of `width` dimensions as a finite float64 table."""
    table = _checked(check_array, "X", X, **_NUMBERS)
    if table.shape[1] != width:
        raise InputError(
            f"X has {table.shape[1]} column(s) and a latent has {width}; pass latents."
        )
    if not np.all(np.isfinite(table)):
        raise InputError("X holds NaN or infinity, and a latent has no missing entries.")
    return table


def targets(y: Rows, num_rows: int, *, allow_missing: bool) -> tuple[Table, bool]:
    """`y` as a float64 table [N, Q], and whether it was a vector; one row for each row of `X`."""
    if y is None:
        raise InputError(NO_TARGETS)
    table = _checked(check_array, "y", y, ensure_2d=False, allow_nd=True, **_NUMBERS)
    if table.ndim > 2:
        raise InputError(f"y must have one or two axes, got shape {table.shape}; reshape it.")
    is_vector = table.ndim == 1
    table = table.reshape(len(table), -1)
    _check_length(table, num_rows)
    if np.any(np.isinf(table)):
        raise InputError("y holds infinity; drop those rows.")
    if np.any(np.isnan(table)) and not allow_missing:
        raise InputError(
            "y holds NaN; drop those rows, or set allow_missing=True to learn from the other "
            "targets of such a row."
        )
    return table, is_vector


def labels(y: Rows, num_rows: int, *, allow_missing: bool) -> tuple[np.ndarray, np.ndarray]:
    """`y` as a vector of labels of any one type, and which of them are missing (NaN, None)."""
    if y is None:
        raise InputError(NO_TARGETS)
    try:
        vector = column_or_1d(y, warn=True)
    except ValueError as error:
        raise InputError(
            f"y must be one column of labels, got shape {np.shape(y)}; pass one label for each row."
        ) from error
    _check_length(vector, num_rows)
    missing = np.array([_is_missing(label) for label in vector.tolist()], dtype=bool)
    if np.any(missing) and not allow_missing:
        raise InputError(
            f"y holds no label (NaN or None) in {np.sum(missing)} row(s); drop those rows, or set "
            "allow_missing=True to learn from the others."
        )
    known = vector[~missing]
    if vector.dtype.kind == "f" and np.any(np.isinf(known) | (known != np.floor(known))):
        raise InputError(
            "y holds fractions or infinity (Unknown label type: continuous); use DeepGPRegressor "
            "to predict numbers, or sort them into classes."
        )
    return vector, missing


def classes(labels: np.ndarray) -> np.ndarray:
    """The distinct labels in order."""
    try:
        found = np.unique(labels)
    except TypeError as error:
        kinds = ", ".join(sorted({type(label).__name__ for label in labels}))
        raise InputError(
            f"y mixes labels that have no common order ({kinds}); turn all of them into text."
        ) from error
    if found.dtype.kind != "O" or all(isinstance(label, str) for label in found):
        return found
    return np.array(found.tolist())  # numbers as numbers, whatever they came in


def codes(labels: np.ndarray, missing: np.ndarray, classes: np.ndarray, remedy: str) -> Table:
    """The number of each label among sorted `classes` as a table [N, 1], NaN for a missing one."""
    number = {label: code for code, label in enumerate(classes.tolist())}
    unknown = [label for label in labels[~missing].tolist() if label not in number]
    if unknown:
        raise InputError(f"y holds the label {unknown[0]!r}, which was not in fit; {remedy}")
    table = np.full((len(labels), 1), np.nan)
    table[~missing, 0] = [number[label] for label in labels[~missing].tolist()]
    return table


def _is_missing(label: object) -> bool:
    """Whether a label is None, NaN, or one of pandas' words for it."""
    return type(label).__name__ in ("NoneType", "NAType", "NaTType") or label != label


def weights(sample_weight: Rows | None, num_rows: int) -> np.ndarray:
    """`sample_weight` as finite numbers, one per row, that are not negative."""
    if sample_weight is None:
        return np.ones(num_rows)
    weight = _checked(check_array, "sample_weight", sample_weight, ensure_2d=False, **_NUMBERS)
    if weight.shape != (num_rows,):
        raise InputError(
            f"sample_weight has shape {weight.shape}; Sample weights must be 1D array or scalar, "
            f"one number for each of the {num_rows} rows of X."
        )
    if not np.all(np.isfinite(weight)) or np.any(weight < 0.0):
        raise InputError("sample_weight must hold finite numbers that are not negative.")
    if np.sum(weight > 0.0) < 2:
        raise InputError(
            "sample_weight leaves fewer than two rows above zero; give weight to more rows."
        )
    return weight


def levels(name: str, q: Rows) -> np.ndarray:
    """Probabilities strictly between 0 and 1, as a vector."""
    values = np.atleast_1d(np.asarray(q, dtype=np.float64))
    if values.ndim > 1 or not np.all((values > 0.0) & (values < 1.0)):
        raise InputError(f"{name} must hold numbers strictly between 0 and 1, got {q}.")
    return values


def _check_length(y: np.ndarray, num_rows: int) -> None:
    if len(y) != num_rows:
        raise InputError(f"y has {len(y)} rows and X has {num_rows}; pass one y per row of X.")


_NUMBERS = {"dtype": np.float64, "ensure_all_finite": False}


def _validate(estimator: BaseEstimator, X: Rows, *, input_name: str, **settings: Any) -> Table:
    del input_name  # scikit-learn says "X" by itself
    return np.asarray(validate_data(estimator, X, **settings))


# What scikit-learn's messages begin with, and the remedy to add.
_REMEDIES = {
    "Expected 2D array": "; Reshape your data with X.reshape(-1, 1) or X.reshape(1, -1).",
    "X has": "; pass the columns it was fitted with.",
    "Found array with 0 sample": "; pass at least two rows.",
    "Found array with 0 feature": "; pass at least one column.",
    "could not convert string": "; encode text as numbers, for example with OneHotEncoder.",
    "The feature names should match": "; rename or reorder the columns.",
}


def _checked(check: Callable[..., Table], name: str, *args: Any, **settings: Any) -> Table:
    """scikit-learn's checks, their answers as one sentence with the argument and a remedy."""
    try:
        return check(*args, input_name=name, **settings)
    except ValueError as error:
        sentence = " ".join(str(error).split())
        for start, remedy in _REMEDIES.items():
            if sentence.startswith(start):
                # The rest of scikit-learn's answer is advice of its own.
                first = sentence.split(": array=")[0].rstrip(".")
                about = "" if first.startswith("X ") else f"{name}: "
                sentence = f"{about}{first}{remedy}"
        raise InputError(sentence) from error


def _refuse_text(frame: Any) -> None:
    """Name the columns of a data frame that are not numbers."""
    text = [str(name) for name in frame.columns if not _is_number(frame[name])]
    if text:
        raise InputError(
            f"X holds text in {_listing(text)}; encode it as numbers, for example with "
            "scikit-learn's OneHotEncoder, or leave it out."
        )


def _is_number(column: Any) -> bool:
    """Whether a column of a data frame holds numbers; objects are looked at one by one."""
    kind = getattr(column.dtype, "kind", "O")
    if kind == "O":
        return not any(isinstance(value, str) for value in column)
    return kind in "biufc"


def _listing(names: Iterable[str]) -> str:
    return "column " + ", ".join(repr(name) for name in names)
