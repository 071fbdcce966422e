"""One layer against the dense conditional of a Gaussian, mean function included."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import kernels, means
from nashgp.layers import NARROW_JITTER, Inducing, SparseGPLayer
from nashgp.linalg import factorise
from nashgp.precision import cast, scope
from tests.cases import rows


@pytest.fixture
def layer(x64):
    kernel = kernels.RBF([0.8, 1.2], 1.5)
    mean = means.Linear(2, 3, key=jr.key(0))
    return SparseGPLayer(kernel, mean, jnp.asarray(rows(6, 2, seed=2)), 3, jitter=1e-12)


def dense(layer, x):
    """`K_xz K_zz⁻¹` and the residual covariance's diagonal, by solving and not by whitening."""
    kzz, kzx = layer.kernel.gram(layer.z), layer.kernel.cross(layer.z, x)
    projection = np.linalg.solve(kzz, kzx).T
    residual = np.asarray(layer.kernel.diag(x)) - np.sum(projection * np.asarray(kzx).T, axis=1)
    return projection, residual


def test_a_draw_conditions_the_layer_on_its_unwhitened_values(layer):
    """`E f = m(x) + K_xz K_zz⁻¹ (u - m(z))` and `Var f = k - K_xz K_zz⁻¹ K_zx`."""
    x, v = jnp.asarray(rows(5, 2, seed=3)), jnp.asarray(rows(6, 3, seed=4))
    u = np.asarray(layer.unwhiten(v))
    projection, residual = dense(layer, x)
    expected = np.asarray(layer.mean(x)) + projection @ (u - np.asarray(layer.mean(layer.z)))
    moments = layer.moments(layer.features(x), Inducing(v))
    np.testing.assert_allclose(moments.mean, expected, atol=1e-8)
    np.testing.assert_allclose(moments.variance, np.tile(residual[:, None], (1, 3)), atol=1e-8)
    np.testing.assert_allclose(layer.whiten(jnp.asarray(u)), v, atol=1e-8)


def test_a_gaussian_over_values_adds_its_own_variance(layer):
    """With u ~ N(·, S) the variance grows by `K_xz K_zz⁻¹ S K_zz⁻¹ K_zx`, output by output."""
    x, v = jnp.asarray(rows(5, 2, seed=3)), jnp.asarray(rows(6, 3, seed=4))
    root = jnp.tril(jnp.asarray(rows(18, 6, seed=5).reshape(3, 6, 6)))
    projection, residual = dense(layer, x)
    chol = np.asarray(layer.factor().chol)
    moments = layer.moments(layer.features(x), Inducing(v, root))
    for p in range(3):
        s = chol @ root[p] @ root[p].T @ chol.T
        spread = np.sum((projection @ s) * projection, axis=1)
        np.testing.assert_allclose(moments.spread[:, p], spread, atol=1e-8)
        np.testing.assert_allclose(moments.variance[:, p], residual + spread, atol=1e-8)


def test_values_at_the_inducing_inputs_are_returned(layer):
    v = jnp.asarray(rows(6, 3, seed=4))
    moments = layer.moments(layer.features(layer.z), Inducing(v))
    np.testing.assert_allclose(moments.mean, layer.unwhiten(v), atol=1e-9)
    assert np.max(np.abs(moments.variance)) < 1e-9


def test_single_precision_survives_crowded_inducing_inputs():
    """The factor is found in double precision: what is left is the rounding of the features."""
    z, v = np.linspace(-1.0, 1.0, 40)[:, None], rows(40, 1, seed=4)

    def at(dtype, **settings):
        kernel = cast(kernels.RBF(1.0), dtype)
        layer = SparseGPLayer(kernel, means.Zero(1), jnp.asarray(z, dtype), 1, **settings)
        x = 0.5 * (layer.z[1:] + layer.z[:-1])
        return layer, x, layer.features(x).a @ jnp.asarray(v, dtype)

    with scope("float64"):
        _, _, exact = at("float64", jitter=NARROW_JITTER)
    layer, x, found = at("float32")
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, exact, atol=2e-3)
    narrow = factorise(layer.kernel.gram(layer.z), NARROW_JITTER)  # in single precision
    a = np.asarray(layer.kernel.cross(x, layer.z) @ narrow.inverse.T)
    assert narrow.tries > 1 or np.max(np.abs(a @ v - exact)) > 2e-2
