"""Every kernel against a slow formula, its derivatives, its contract, its random features."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import kernels
from nashgp.errors import InputError
from nashgp.precision import cast
from tests.cases import KERNELS, rows
from tests.numeric import directional_error

LENGTHS = np.linspace(0.7, 1.6, 2)


def distance(x, z):
    return np.sqrt(np.sum(((x - z) / LENGTHS) ** 2))


def shared(x, z, length):
    return np.sqrt(np.sum(((x - z) / length) ** 2))


def sine(x, z, length, period):
    return np.sum((np.sin(np.pi * (x - z) / period) / length) ** 2)


# One pair of inputs at a time, straight from the definitions.
REFERENCE = {
    "rbf": lambda x, z: 1.3 * np.exp(-0.5 * distance(x, z) ** 2),
    "rbf-shared": lambda x, z: 0.5 * np.exp(-0.5 * shared(x, z, 0.9) ** 2),
    "rbf-columns": lambda x, z: 1.1 * np.exp(-0.5 * ((x[1] - z[1]) / 0.8) ** 2),
    "matern12": lambda x, z: 1.3 * np.exp(-distance(x, z)),
    "matern32": lambda x, z: (
        1.3 * (1 + 3**0.5 * distance(x, z)) * np.exp(-(3**0.5) * distance(x, z))
    ),
    "matern52": lambda x, z: (
        1.3
        * (1 + 5**0.5 * distance(x, z) + 5 / 3 * distance(x, z) ** 2)
        * np.exp(-(5**0.5) * distance(x, z))
    ),
    "rational-quadratic": lambda x, z: 1.3 * (1 + distance(x, z) ** 2 / 1.4) ** -0.7,
    "periodic": lambda x, z: 1.3 * np.exp(-2 * sine(x, z, LENGTHS, np.linspace(1.0, 2.0, 2))),
    "linear": lambda x, z: np.sum(np.linspace(0.5, 1.5, 2) * x * z),
    "constant": lambda x, z: 0.8,
    "sum": lambda x, z: np.exp(-0.5 * shared(x, z, 0.9) ** 2) + 0.3 * np.sum(x * z),
    "product": lambda x, z: (
        np.exp(-2 * sine(x, z, 1.2, 1.7))
        * (1 + 3**0.5 * shared(x, z, 2.0))
        * np.exp(-(3**0.5) * shared(x, z, 2.0))
    ),
    "nested": lambda x, z: (np.exp(-0.5 * shared(x, z, 0.9) ** 2) + 0.4) * 0.3 * np.sum(x * z),
}


def reference(name, x, z):
    return np.array([[REFERENCE[name](a, b) for b in z] for a in x])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KERNELS)
def test_matches_the_definition_in_both_precisions(name, dtype):
    x, z = rows(7, 2, seed=1), rows(5, 2, seed=2)
    tolerance = 3e-6 if dtype == "float32" else 1e-13
    with jax.enable_x64(dtype == "float64"):
        kernel = cast(KERNELS[name](2), dtype)
        xs, zs = jnp.asarray(x, dtype), jnp.asarray(z, dtype)
        cross, gram, diag = kernel.cross(xs, zs), kernel.gram(xs), kernel.diag(xs)
    assert cross.dtype == gram.dtype == diag.dtype == dtype
    np.testing.assert_allclose(cross, reference(name, x, z), atol=tolerance)
    np.testing.assert_allclose(gram, reference(name, x, x), atol=tolerance)
    np.testing.assert_allclose(diag, np.diag(reference(name, x, x)), atol=tolerance)
    np.testing.assert_allclose(np.diag(gram), diag, atol=tolerance)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_match_finite_differences(name, x64):
    kernel, z = KERNELS[name](2), jnp.asarray(rows(5, 2, seed=2))
    weight = jnp.asarray(rows(7, 5, seed=3))

    def value(inputs):
        kernel, x = inputs
        return jnp.sum(weight * kernel.cross(x, z)) + jnp.sum(kernel.gram(x) ** 2)

    assert directional_error(value, (kernel, jnp.asarray(rows(7, 2, seed=1)))) < 1e-7


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_finite_and_right_at_zero_distance(name, dtype):
    """Repeated rows put exact zeros inside every square root."""
    with jax.enable_x64(dtype == "float64"):
        kernel = cast(KERNELS[name](2), dtype)
        x = jnp.asarray(np.repeat(rows(3, 2), 2, axis=0), dtype)
        value, gradient = eqx.filter_value_and_grad(
            lambda pair: jnp.sum(pair[0].gram(pair[1])) + jnp.sum(pair[0].cross(pair[1], pair[1]))
        )((kernel, x))
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(gradient)]
        assert np.isfinite(value) and all(np.all(np.isfinite(leaf)) for leaf in leaves)
        # Moving all rows together changes no distance: the pull of coincident rows must cancel.
        if isinstance(kernel, kernels.AbstractStationary):
            drift = np.abs(np.sum(np.asarray(gradient[1]), axis=0))
            assert np.all(drift < (2e-3 if dtype == "float32" else 1e-6))


@pytest.mark.parametrize("name", KERNELS)
def test_gram_matrices_are_symmetric_and_positive(name, x64):
    gram = np.asarray(KERNELS[name](3).gram(jnp.asarray(rows(20, 3))))
    np.testing.assert_allclose(gram, gram.T, atol=1e-14)
    assert np.linalg.eigvalsh(gram).min() > -1e-12


@pytest.mark.parametrize("name", KERNELS)
def test_jit_vmap_and_eager_agree_with_one_trace(name, x64):
    kernel, stack = KERNELS[name](2), jnp.asarray(rows(24, 2).reshape(3, 8, 2))
    traces = []

    @eqx.filter_jit
    def compiled(kernel, x):
        traces.append(1)
        return kernel.gram(x)

    loop = jnp.stack([compiled(kernel, x) for x in stack])
    np.testing.assert_allclose(loop, jax.vmap(kernel.gram)(stack), atol=1e-13)
    np.testing.assert_allclose(loop[0], kernel.gram(stack[0]), atol=1e-13)
    assert len(traces) == 1


@pytest.mark.parametrize("name", KERNELS)
def test_random_features_have_the_kernel_as_mean(name, x64):
    """4,000 independent maps of 8 features; 5 standard errors, the largest of 25 entries."""
    kernel, x = KERNELS[name](2), jnp.asarray(rows(5, 2))

    def product(key):
        phi = kernel.features(key, x, 8)
        return phi @ phi.T

    products = np.asarray(jax.jit(jax.vmap(product))(jr.split(jr.key(0), 4_000)))
    error = products.std(axis=0) / 4_000**0.5
    gap = np.abs(products.mean(axis=0) - np.asarray(kernel.gram(x)))
    assert np.all(gap <= 5.0 * error + 1e-12)


def test_a_shift_of_the_inputs_costs_no_accuracy_in_single_precision():
    x = rows(6, 2).astype("float32")
    kernel = kernels.RBF(1.0)
    near, far = kernel.gram(jnp.asarray(x)), kernel.gram(jnp.asarray(x + np.float32(256.0)))
    np.testing.assert_allclose(near, far, atol=2e-4)  # 256 has 3e-5 between neighbours


def test_a_kernel_sees_its_columns_alone(x64):
    x = jnp.asarray(rows(6, 3))
    kernel = kernels.Matern52([0.5, 0.9], columns=(0, 2))
    np.testing.assert_array_equal(kernel.gram(x), kernel.gram(x.at[:, 1].set(7.0)))
    assert not np.allclose(kernel.gram(x), kernel.gram(x.at[:, 2].multiply(2.0)))


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_impossible_parameters_are_named(value):
    with pytest.raises(InputError, match="positive parameter must be finite"):
        kernels.RBF(variance=value)
