"""Rows that break covariances: predictions stay finite, or one typed error says what is wrong."""

import numpy as np
import pytest

from nashgp import DeepGPRegressor, kernels
from nashgp.errors import NumericalError
from tests.cases import rows

NUM = 40


def _wave(x):
    return np.sin(2.0 * x[:, 0]) + 0.1 * rows(len(x), 1, seed=5)[:, 0]


def duplicate_rows():
    """Eight places, five rows each, that disagree."""
    x = np.repeat(rows(NUM // 5, 3), 5, axis=0)
    return x, _wave(x)


def almost_duplicate_rows():
    """As far apart as rounding: a covariance whose rows are equal in most digits."""
    x, y = duplicate_rows()
    return x * (1.0 + 1e-15 * rows(NUM, 3, seed=6)), y


def noise_free_targets():
    x = rows(NUM, 3)
    return x, x @ np.array([1.0, -2.0, 0.5])


def constant_targets():
    return rows(NUM, 3), np.full(NUM, 7.0)


def far_targets():
    """Two rows 50 standard deviations out."""
    x = rows(NUM, 3)
    y = _wave(x)
    y[[3, 17]] += np.array([50.0, -50.0]) * np.std(y)
    return x, y


def far_inputs():
    x = rows(NUM, 3)
    x[5] = 50.0
    return x, _wave(x)


def collinear_columns():
    x = rows(NUM, 1)
    return np.hstack([x, -3.0 * x, x + 1e-9 * rows(NUM, 1, seed=7)]), _wave(x)


def rough_targets():
    """White noise at inputs so dense that only a tiny lengthscale explains it."""
    x = np.linspace(0.0, 1e-3, NUM)[:, None] + np.zeros((1, 3))
    return x, rows(NUM, 1, seed=8)[:, 0]


CASES = [
    duplicate_rows,
    almost_duplicate_rows,
    noise_free_targets,
    constant_targets,
    far_targets,
    far_inputs,
    collinear_columns,
    rough_targets,
]
HARD = {"num_inducing": 16, "num_mixture": 5, "num_steps": 150, "random_state": 0}
FITS = {
    "collapsed": {"num_restarts": 1},
    "natural": {"last_layer": "natural", "num_restarts": 1},
    "drawn": {"last_layer": "gradient"},
    "anchored": {"engine": "ipvi"},
    "paper": {"engine": "ipvi", "game": "paper"},
    "sghmc": {"engine": "sghmc"},
}
LENGTHSCALES = {"tiny": 1e-5, "huge": 1e5}  # in standard deviations of a column


def outcome(x, y, **settings) -> str:
    """ "fitted" if all that is predicted is finite, or the text of the typed error."""
    model = DeepGPRegressor(**HARD | settings)
    try:
        model.fit(x, y)
    except NumericalError as error:
        return str(error)
    new = np.vstack([x[:5], np.mean(x, axis=0) + 100.0 * np.std(x, axis=0)])
    mean, std = model.predict(new, return_std=True)
    assert np.all(np.isfinite(mean)) and np.all(np.isfinite(std)) and np.all(std >= 0.0)
    assert np.all(np.diff(model.predict_quantiles(new, [0.1, 0.5, 0.9]), axis=1) >= 0.0)
    assert np.all(np.isfinite(model.log_density(new, np.append(y[:5], np.mean(y)))))
    assert np.all(np.isfinite(model.history_.objective))
    return "fitted"


def explained(text: str) -> bool:
    """Whether an error says what failed and what to do."""
    return "layer" in text or "learning rate" in text


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["collapsed", "natural"])
def test_hard_rows_are_fitted(case, dtype, name):
    assert outcome(*case(), dtype=dtype, **FITS[name]) == "fitted"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::nashgp.errors.UnsettledChainsWarning")
@pytest.mark.filterwarnings("ignore::nashgp.errors.UntrustedRatioWarning")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["drawn", "anchored", "paper", "sghmc"])
def test_hard_rows_are_fitted_or_explained(case, dtype, name):
    got = outcome(*case(), dtype=dtype, **FITS[name])
    assert got == "fitted" or explained(got)


@pytest.mark.parametrize("length", LENGTHSCALES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hard_kernels_are_fitted_or_explained(length, dtype):
    """One is the identity at the inducing inputs, the other a matrix of ones."""
    x = rows(NUM, 3)
    kernel = kernels.RBF([LENGTHSCALES[length]] * 3)
    got = outcome(x, _wave(x), kernel=kernel, dtype=dtype, num_layers=1)
    assert got == "fitted" or explained(got)
