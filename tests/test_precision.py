"""Precision is a property of arrays, never a setting that leaks."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import predict
from nashgp.precision import dtype_of, in_double, scope, scoped
from nashgp.recipes import Config, build


def default():
    """What JAX makes of a plain Python number here."""
    return jnp.ones(1).dtype


@pytest.mark.parametrize("outer", ["float32", "float64"])
@pytest.mark.parametrize("inner", ["float32", "float64"])
def test_a_scope_holds_inside_and_ends_outside(outer, inner):
    with scope(outer):
        assert default() == outer
        with scope(inner):
            assert default() == inner
        assert default() == outer
        with pytest.raises(ZeroDivisionError), scope(inner):
            raise ZeroDivisionError
        assert default() == outer
    assert default() == "float32"


@pytest.mark.parametrize("dtype", [np.float64, "float64", np.dtype("float64"), jnp.float64, float])
def test_a_scope_takes_every_name_of_a_type(dtype):
    with scope(dtype):
        assert default() == "float64"


def test_dtype_of_is_the_widest_float():
    with scope("float64"):
        wide, count = jnp.ones(2), jnp.arange(3)
    narrow, half = jnp.ones(2), jnp.ones(2, jnp.float16)
    assert count.dtype == "int64"
    assert dtype_of({"a": (narrow, None), "b": [wide, count]}) == "float64"
    assert dtype_of((half, narrow, count, "name", 2.5)) == "float32"
    assert dtype_of((half,)) == "float16"


def test_scoped_follows_the_arguments():
    @scoped
    def twice(x, *, other=None):
        """Twice."""
        return 2.0 * x, default()

    with scope("float64"):
        wide = jnp.full(2, 1.0 / 3.0)
    narrow = wide.astype("float32")
    assert twice.__name__ == "twice" and twice.__doc__ == "Twice."
    result, inside = twice(wide)
    assert result.dtype == inside == "float64"
    np.testing.assert_array_equal(result, np.full(2, 2.0 / 3.0))
    assert twice(narrow)[1] == "float32"
    assert twice(narrow, other=wide)[1] == "float64"
    with scope("float64"):
        result, inside = twice(narrow)
        assert result.dtype == inside == "float32"
    assert default() == "float32"


def test_scoped_is_compiled_once_for_each_precision():
    traces = []

    @jax.jit
    def total(x):
        traces.append(x.dtype)
        return jnp.sum(x + jnp.ones(2))

    with scope("float64"):
        wide = jnp.ones(2)
    for x in (wide, jnp.ones(2), wide, jnp.ones(2)):
        assert scoped(total)(x).dtype == x.dtype
    assert traces == ["float64", "float32"]


def test_rows_in_host_memory_do_not_choose_the_precision_of_a_prediction():
    """NumPy is in double as a rule; a model in single precision must not be run in double."""
    x = np.linspace(-1.0, 1.0, 5)[:, None]
    fitted = build(x, 1, Config(num_layers=1), dtype="float32")
    seen = []

    def summary(mixture):
        seen.append(default())
        return mixture.moments()

    mean, _ = predict.summarise(summary, jr.key(0), fitted, x, num_samples=2)
    assert mean.dtype == "float32" and seen == ["float32"]


FIT = """
import jax

before = dict(jax.config.values)

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from nashgp import predict, train
from nashgp.batch import make_data
from nashgp.engines import DSVI
from nashgp.likelihoods import Gaussian
from nashgp.recipes import Config, build

x = np.linspace(-1.0, 1.0, 10)[:, None]
config = Config(num_inducing=4, likelihood=Gaussian(0.1))
start = build(x, 1, config)
outcome = train.run(jr.key(0), DSVI(), start, make_data(x, np.sin(3.0 * x)), num_steps=3, chunk=3)
mean, variance = predict.summarise(predict.moments, jr.key(1), outcome.fitted, x, num_samples=2)
assert mean.dtype == variance.dtype == np.float64, mean.dtype
assert outcome.history.objective.dtype == np.float64
assert np.all(np.isfinite(mean)) and np.all(variance > 0.0)

after = dict(jax.config.values)
changed = {k: (before.get(k), v) for k, v in after.items() if k not in before or before[k] != v}
changed |= {k: (v, None) for k, v in before.items() if k not in after}
assert not changed, changed
assert jnp.ones(1).dtype == jnp.float32 and not jax.config.jax_enable_x64
print("unchanged")
"""


def test_a_double_precision_fit_leaves_the_settings_of_jax_alone():
    """In a process of its own, without this suite's settings and without type checks."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIT],
        capture_output=True,
        text=True,
        env=plain | {"JAX_PLATFORMS": "cpu"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "unchanged\n"


def small(x, shift):
    """`cos x - 1 + x² / 2 + s`, of which single precision has no digit where x is small."""
    return jnp.cos(x) - 1.0 + x**2 / 2.0 + shift, x @ x


X = np.float32([0.001, 0.002])


def test_in_double_keeps_digits_that_single_precision_has_not():
    value, square = jax.jit(lambda x, s: in_double(small, x, s))(jnp.asarray(X), jnp.zeros(()))
    np.testing.assert_allclose(value, X.astype(float) ** 4 / 24.0, rtol=1e-3)
    np.testing.assert_allclose(square, 5e-6, rtol=1e-6)
    assert value.dtype == square.dtype == default() == "float32"
    rough, _ = small(jnp.asarray(X), jnp.zeros(()))
    assert np.max(np.abs(rough / (X**4 / 24.0) - 1.0)) > 0.1  # or nothing was shown


def test_in_double_survives_loops_and_batches_of_them():
    """A loop is traced within the scope and batched without it."""

    def one(x):
        return jax.lax.map(lambda s: in_double(small, x, s)[0], jnp.zeros(3))

    batch = jnp.stack([jnp.asarray(X), 2.0 * X])
    found = jax.jit(jax.vmap(jax.vmap(one)))(batch[None])[0]
    assert found.shape == (2, 3, 2) and found.dtype == "float32"
    np.testing.assert_allclose(found[1, 2], (2.0 * X.astype(float)) ** 4 / 24.0, rtol=1e-3)


def test_in_double_leaves_double_precision_alone(x64):
    value, _ = in_double(small, jnp.asarray(X, float), jnp.zeros(()))
    assert value.dtype == "float64"
