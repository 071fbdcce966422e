"""Prior means, and the frozen skip connection of hidden layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp.means import Identity, Learned, Linear, Projection, Zero, skip
from nashgp.transforms import trainable

DTYPES = ["float32", "float64"]


def rows(num=9, width=4, seed=0):
    """Rows with distinct singular values and a mean that is not zero."""
    random = np.random.default_rng(seed)
    return random.normal(size=(num, width)) * np.linspace(1.0, 3.0, width) + 0.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_precision(dtype):
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(rows(), dtype)
        linear = Linear(4, 3, key=jr.key(0))
        linear = eqx.tree_at(lambda m: m.bias, linear, jnp.arange(3, dtype=dtype))
        zero, affine = Zero(2)(x), linear(x)
        wide, narrow, same = (skip(np.asarray(x), num)(x) for num in (6, 2, 4))
        assert {m.dtype for m in (zero, affine, wide, narrow, same)} == {np.dtype(dtype)}
        np.testing.assert_array_equal(zero, np.zeros((9, 2)))
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(wide, np.pad(np.asarray(x), ((0, 0), (0, 2))))
        want = np.asarray(x) @ np.asarray(linear.weight) + np.arange(3)
        np.testing.assert_allclose(affine, want, rtol=1e-5)


def test_a_linear_mean_starts_with_unit_gain():
    """`E |x W|²/P = |x|²/D`: 5 standard errors of 4 · 2,500 squared normals."""
    weight = np.asarray(Linear(4, 2_500, key=jr.key(1)).weight)
    assert abs(4.0 * np.mean(weight**2) - 1.0) < 5.0 * (2.0 / weight.size) ** 0.5
    assert not np.allclose(weight, Linear(4, 2_500, key=jr.key(2)).weight)


def test_a_skip_between_equal_widths_has_no_parameters():
    assert isinstance(skip(rows(), 4), Identity)
    assert jax.tree.leaves(skip(rows(), 4)) == []


@pytest.mark.parametrize("num_outputs", [2, 4, 6])
def test_a_learned_skip_starts_at_the_frozen_one_and_moves_in_strides_of_its_prior(
    num_outputs, x64
):
    x = jnp.asarray(rows())
    frozen, learned = skip(rows(), num_outputs), skip(rows(), num_outputs, learned=True)
    assert isinstance(learned, Learned)
    made, plain = np.asarray(learned(x)), np.asarray(frozen(x))
    if num_outputs < 4:  # half whitened: spreads enter by their roots, and are 1 on average
        size = np.sqrt(np.mean(made**2, axis=0))
        np.testing.assert_allclose(np.mean(size**2), 1.0, rtol=1e-12)
        np.testing.assert_allclose(
            (size / size[0]) ** 2, np.sqrt(np.mean(plain**2, axis=0) / np.mean(plain[:, 0] ** 2))
        )
        np.testing.assert_allclose(made / size, plain / np.sqrt(np.mean(plain**2, axis=0)))
    else:
        np.testing.assert_allclose(made, plain, atol=1e-13)
    moves, stays = eqx.partition(learned, trainable(learned))
    slope = jax.grad(lambda moves: jnp.sum(eqx.combine(moves, stays)(x)))(moves)
    (only,) = jax.tree.leaves(slope)
    want = learned.deviation / 2.0 * np.sum(rows(), axis=0)[:, None] * np.ones(num_outputs)
    np.testing.assert_allclose(only, want, rtol=1e-12)


@pytest.mark.parametrize("num_outputs", [1, 2, 3])
def test_a_narrower_skip_keeps_the_leading_singular_vectors(num_outputs, x64):
    x = rows()
    weight = np.asarray(skip(x, num_outputs)(jnp.eye(4)))
    np.testing.assert_allclose(weight.T @ weight, np.eye(num_outputs), atol=1e-14)
    vectors = np.linalg.svd(x)[2][:num_outputs].T
    np.testing.assert_allclose(np.abs(np.sum(weight * vectors, axis=0)), 1.0, atol=1e-12)
    # No orthonormal map keeps more of the rows than the first singular values hold.
    kept = np.sum((x @ weight) ** 2)
    largest = np.sort(np.linalg.eigvalsh(x.T @ x))[::-1][:num_outputs]
    np.testing.assert_allclose(kept, np.sum(largest), rtol=1e-12)


def test_a_narrower_skip_has_its_width_with_fewer_rows_than_outputs(x64):
    """Two rows have two singular vectors with weight; any orthonormal ones may fill up."""
    x = rows(num=2)
    weight = np.asarray(skip(x, 3)(jnp.eye(4)))
    np.testing.assert_allclose(weight.T @ weight, np.eye(3), atol=1e-14)
    np.testing.assert_allclose(x @ weight @ weight.T, x, atol=1e-13)


@pytest.mark.parametrize("num_outputs", [2, 6])
def test_a_skip_is_frozen(num_outputs, x64):
    mean, x = skip(rows(), num_outputs), jnp.asarray(rows())
    assert isinstance(mean, Projection)
    assert jax.tree.leaves(trainable(mean)) == [False]
    gradient, slope = jax.grad(lambda pair: jnp.sum(pair[0](pair[1]) ** 3))((mean, x))
    np.testing.assert_array_equal(gradient.weight.array, np.zeros((4, num_outputs)))
    assert np.all(np.abs(slope) > 0.0)  # the inputs still feel it


def test_a_linear_mean_is_trained(x64):
    mean, x = Linear(4, 3, key=jr.key(0)), jnp.asarray(rows())
    marks = trainable(mean)
    assert marks.weight is True and marks.bias is True
    gradient = jax.grad(lambda mean: jnp.sum(mean(x)))(mean)
    np.testing.assert_allclose(gradient.weight, np.tile(rows().sum(axis=0)[:, None], (1, 3)))
    np.testing.assert_allclose(gradient.bias, 9.0)


def test_rows_without_any_spread_have_a_learned_skip_too():
    learned = skip(np.zeros((5, 4)), 2, learned=True)
    assert isinstance(learned, Learned)
    np.testing.assert_allclose(learned.first.array.T @ learned.first.array, np.eye(2), atol=1e-6)
