"""Positive parameters, frozen arrays, casting."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy.special import expit

from nashgp.errors import InputError
from nashgp.precision import cast
from nashgp.transforms import FLOOR, Frozen, is_frozen, positive, trainable, unconstrained

DTYPES = ["float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_positive_and_unconstrained_undo_each_other(dtype):
    """Relative error of a few roundings; the raw number near -12 amplifies its own twelvefold."""
    values = np.geomspace(1e-5, 1e4, 181)
    tolerance = 16.0 * np.finfo(dtype).eps
    with jax.enable_x64(dtype == "float64"):
        raw = unconstrained(values)
        back = positive(raw)
        assert raw.dtype == back.dtype == dtype
        np.testing.assert_allclose(back, values, rtol=tolerance)
        assert np.all(np.diff(np.asarray(raw)) > 0.0)
        raw = np.linspace(-8.0, 50.0, 101)
        again = unconstrained(positive(jnp.asarray(raw, dtype)))
        # Adding FLOOR to e⁻⁸ costs e⁸ · FLOOR of a rounding, so what is left of it is relative.
        np.testing.assert_allclose(again, raw, rtol=tolerance, atol=tolerance)


def test_positive_is_softplus_above_the_floor(x64):
    raw = jnp.asarray([-800.0, -20.0, 0.0, 3.0, 800.0])
    want = np.logaddexp(0.0, np.asarray(raw)) + 1e-6
    np.testing.assert_allclose(positive(raw), want, rtol=1e-14)
    np.testing.assert_allclose(unconstrained(np.log(2.0) + FLOOR), 0.0, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_falls_below_the_floor_and_gradients_are_those_of_softplus(dtype):
    with jax.enable_x64(dtype == "float64"):
        raw = jnp.asarray([-1e4, -100.0, -15.0, 0.0, 15.0, 1e4], dtype)
        value, slope = jax.vmap(jax.value_and_grad(positive))(raw)
        assert np.all(np.asarray(value) >= np.asarray(FLOOR, dtype))
        np.testing.assert_allclose(slope, expit(np.asarray(raw)), rtol=1e-5, atol=1e-40)


@pytest.mark.parametrize(
    "value", [0.0, -1.0, FLOOR, 0.5 * FLOOR, np.nan, np.inf, np.array([1.0, -2.0])]
)
def test_impossible_values_are_named(value):
    with pytest.raises(InputError, match=r"finite and above 1e-06, got "):
        unconstrained(value)


def test_shapes_are_kept():
    assert unconstrained(2.0).shape == ()
    assert unconstrained(np.array([2.0, 3.0])).shape == (2,)
    assert unconstrained(np.ones((2, 3))).shape == (2, 3)


class Parts(eqx.Module):
    """One of everything a pytree may hold."""

    weight: Array
    fixed: Frozen
    count: Array
    name: str = "parts"


def parts():
    return Parts(jnp.ones(2), Frozen(2.0 * jnp.ones(3)), jnp.arange(4))


def test_trainable_marks_floats_outside_frozen():
    marks = trainable({"a": parts(), "b": (jnp.zeros(()), None, 3, 2.5, jnp.ones(1, bool))})
    assert marks["a"].weight is True
    assert marks["a"].fixed is False and marks["a"].count is False and marks["a"].name is False
    assert marks["b"] == (True, None, False, False, False)
    assert is_frozen(parts().fixed) and not is_frozen(parts().weight)


def test_the_marks_split_a_module_in_two():
    params, rest = eqx.partition(parts(), trainable(parts()))
    assert [leaf.shape for leaf in jax.tree.leaves(params)] == [(2,)]
    np.testing.assert_array_equal(rest.fixed.array, 2.0 * np.ones(3))
    assert eqx.tree_equal(eqx.combine(params, rest), parts())


def test_frozen_arrays_have_a_value_and_no_gradient():
    frozen = Frozen(jnp.asarray([2.0, 3.0]))
    np.testing.assert_array_equal(frozen.value, [2.0, 3.0])
    gradient = jax.grad(lambda f: jnp.sum(f.value**2))(frozen)
    np.testing.assert_array_equal(gradient.array, np.zeros(2))


def test_cast_changes_floats_and_nothing_else(x64):
    wide = cast(parts(), "float64")
    narrow = cast(wide, "float32")
    assert wide.weight.dtype == wide.fixed.array.dtype == "float64"
    assert narrow.weight.dtype == narrow.fixed.array.dtype == "float32"
    assert narrow.count.dtype == parts().count.dtype and narrow.name == "parts"
    np.testing.assert_array_equal(narrow.fixed.array, wide.fixed.array)
