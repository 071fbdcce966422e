"""From data to a start: inducing inputs, widths, skip connections, the first posterior."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nashgp import kernels, means, recipes
from nashgp.errors import InputError
from nashgp.likelihoods import RobustMax, StudentT
from nashgp.recipes import Config, build, inducing_inputs
from tests.cases import rows

# ---- inducing inputs -------------------------------------------------------------------------


def nearest(x, z):
    """For each row the number of its nearest centre."""
    return np.argmin(np.sum((x[:, None] - z[None]) ** 2, axis=2), axis=1)


@pytest.mark.parametrize("num", [1, 7, 49])
def test_centres_are_distinct_and_every_one_has_a_row(num):
    x = rows(50, 3)
    z = inducing_inputs(x, num, seed=0)
    assert z.shape == (num, 3) and np.all(np.isfinite(z))
    assert len(np.unique(z, axis=0)) == num
    assert set(nearest(x, z)) == set(range(num))
    # A centre is the mean of its rows, so none is far from the data.
    if num == 1:
        np.testing.assert_allclose(z[0], x.mean(axis=0), atol=1e-12)
    slack = 1e-12
    assert np.all(z >= x.min(axis=0) - slack) and np.all(z <= x.max(axis=0) + slack)


def test_centres_do_better_than_rows_taken_at_random():
    """K-means lowers the mean squared distance to the nearest centre."""
    x, random = rows(300, 2), np.random.default_rng(0)

    def loss(z):
        return np.mean(np.min(np.sum((x[:, None] - z[None]) ** 2, axis=2), axis=1))

    taken = [loss(x[random.choice(300, 10, replace=False)]) for _ in range(20)]
    assert loss(inducing_inputs(x, 10, seed=0)) < min(taken)


def test_few_distinct_rows_are_taken_as_they_are():
    x = np.repeat(rows(4, 2), [1, 5, 2, 3], axis=0)
    for num in (4, 5, 100):
        z = inducing_inputs(x, num, seed=0)
        np.testing.assert_array_equal(z, np.unique(rows(4, 2), axis=0))
    assert inducing_inputs(np.ones((6, 2)), 3, seed=0).shape == (1, 2)


def test_repeated_rows_give_no_repeated_centres():
    """Values on a grid: 3³ = 27 distinct rows, each met many times."""
    x = 0.1 * np.random.default_rng(0).integers(0, 3, size=(2_000, 3))
    for num in (5, 20, 26):
        z = inducing_inputs(x, num, seed=1)
        assert len(np.unique(z, axis=0)) == len(z) == num
        assert set(nearest(x, z)) == set(range(num))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num", [5, 20, 26, 27, 100])
def test_rows_that_differ_by_rounding_are_one(num, dtype):
    """The same grid seen through noise at which k-means finds fewer clusters than it was asked."""
    random = np.random.default_rng(0)
    x = 0.1 * random.integers(0, 3, size=(2_000, 3))
    x = (x + np.finfo(dtype).eps * random.normal(size=x.shape)).astype(dtype)
    z = inducing_inputs(x, num, seed=1)
    assert len(z) == min(num, 27)
    apart = np.sum((z[:, None] - z[None]) ** 2, axis=2) + np.eye(len(z))
    assert np.min(apart) > 0.01**2


def test_rows_left_out_of_the_clustering_make_no_repeated_centres(monkeypatch):
    """60 distinct rows, of which the 30 that k-means looks at hold far fewer."""
    monkeypatch.setattr(recipes, "KMEANS_ROWS", 30)
    x = np.zeros((600, 1))
    x[:59, 0] = 1.0 + np.arange(59)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        z = inducing_inputs(x, 20, seed=0)
    assert len(np.unique(z, axis=0)) == len(z) <= 20


def test_the_seed_decides():
    x = rows(200, 3)
    first, again, other = (inducing_inputs(x, 12, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(np.sort(first, axis=0), np.sort(other, axis=0))


def test_many_rows_are_clustered_through_a_part_of_them(monkeypatch):
    monkeypatch.setattr(recipes, "KMEANS_ROWS", 100)
    x = rows(1_000, 2)
    z = inducing_inputs(x, 10, seed=0)
    np.testing.assert_array_equal(z, inducing_inputs(x, 10, seed=0))
    assert len(np.unique(z, axis=0)) == 10 and np.all(np.abs(z) < np.abs(x).max())


# ---- build -----------------------------------------------------------------------------------


def leading(x, num):
    """The map on the `num` leading right singular vectors, up to sign."""
    return np.linalg.svd(x)[2][:num].T


@pytest.mark.parametrize("hidden", [4, 6, 2])
def test_shapes_and_inducing_inputs_follow_the_skip_connections(hidden, x64):
    x = rows(40, 4) * np.linspace(1.0, 2.0, 4)
    config = Config(num_layers=3, hidden_dim=hidden, num_inducing=7)
    first, second, last = build(x, 3, config).model.layers
    z = inducing_inputs(x, 7, seed=0)
    np.testing.assert_array_equal(first.z, z)
    if hidden == 4:
        assert isinstance(first.mean, means.Identity)
        np.testing.assert_array_equal(second.z, z)
    elif hidden == 6:
        np.testing.assert_array_equal(second.z, np.pad(z, ((0, 0), (0, 2))))
    else:
        want = z @ leading(x, 2)
        signs = np.sign(np.sum(np.asarray(second.z) * want, axis=0))
        np.testing.assert_allclose(second.z, want * signs, atol=1e-12)
    np.testing.assert_allclose(second.z, first.mean(first.z), atol=1e-12)
    assert isinstance(second.mean, means.Identity)  # equal widths from here on
    np.testing.assert_array_equal(last.z, second.z)
    assert isinstance(last.mean, means.Zero)
    assert [layer.num_outputs for layer in (first, second, last)] == [hidden, hidden, 3]
    for layer, width in zip((first, second, last), (4, hidden, hidden), strict=True):
        # The root mean square distance from the mean row, of what the skip connections let through.
        distance = np.mean(np.sum((x - np.mean(x, axis=0)) ** 2, axis=1)) ** 0.5
        np.testing.assert_allclose(layer.kernel.lengthscale, np.full(width, distance))
        np.testing.assert_allclose(layer.kernel.variance, 1.0)
        x = np.asarray(layer.mean(jnp.asarray(x)))


def test_hidden_layers_may_have_fewer_inducing_inputs(x64):
    x = rows(40, 4)
    config = Config(num_layers=3, hidden_dim=4, num_inducing=7, hidden_inducing=3)
    first, second, last = build(x, 1, config).model.layers
    for layer in (first, second):  # skip connections are identities here
        np.testing.assert_array_equal(layer.z, inducing_inputs(x, 3, seed=0))
    np.testing.assert_array_equal(last.z, inducing_inputs(x, 7, seed=0))
    alone = build(x, 1, dataclasses.replace(config, num_layers=1)).model.layers[0]
    assert alone.num_inducing == 7
    with pytest.raises(InputError, match="hidden_inducing must be at least 1, got 0"):
        Config(hidden_inducing=0)


def test_lengthscales_of_standardised_rows_start_at_the_root_of_their_number(x64):
    x = rows(40, 4)
    x = (x - np.mean(x, axis=0)) / np.std(x, axis=0)
    fitted = build(x, 1, Config(num_layers=1, num_inducing=5))
    np.testing.assert_allclose(fitted.model.layers[0].kernel.lengthscale, np.full(4, 2.0))
    half = build(x, 1, Config(num_layers=2, num_inducing=5, lengthscale=0.5))
    for layer in half.model.layers:
        np.testing.assert_allclose(layer.kernel.lengthscale, np.full(4, 1.0))
    same = build(np.ones((5, 4)), 1, Config(num_layers=1))  # nothing to measure
    np.testing.assert_allclose(same.model.layers[0].kernel.lengthscale, np.full(4, 2.0))


@pytest.mark.parametrize(("width", "expected"), [(3, 3), (31, 30)])
def test_the_hidden_width_is_that_of_the_data_up_to_thirty(width, expected, x64):
    layers = build(rows(40, width), 1, Config(num_inducing=5)).model.layers
    assert [layer.num_outputs for layer in layers] == [expected, 1]


def test_one_layer_is_an_ordinary_sparse_gp(x64):
    fitted = build(rows(40, 4), 2, Config(num_layers=1, num_inducing=5))
    (layer,) = fitted.model.layers
    assert isinstance(layer.mean, means.Zero) and layer.num_outputs == 2
    np.testing.assert_array_equal(fitted.posterior.roots[0], np.tile(np.eye(5), (2, 1, 1)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hidden", [2, 3, 5])
def test_precision_is_asked_for_and_needs_no_setting(dtype, hidden):
    """Whatever the rows come in, and while JAX itself is set to single precision."""
    for x in (rows(20, 3), rows(20, 3).astype("float32")):
        fitted = build(x, 1, Config(hidden_dim=hidden, num_inducing=5), dtype=dtype)
        assert {leaf.dtype for leaf in jax.tree.leaves(fitted)} == {np.dtype(dtype)}
    assert build(rows(20, 3), 1, Config(num_inducing=5)).model.layers[0].z.dtype == "float64"
    assert jnp.ones(1).dtype == "float32"


def test_the_start_is_the_skip_connection_and_the_prior(x64):
    """Hidden layers start at the identity with hardly any spread, the last at its prior."""
    x = jnp.asarray(rows(9, 4))
    fitted = build(rows(40, 4), 2, Config(num_layers=3, num_inducing=7))
    *hidden, last = fitted.model.layers
    *sharp, wide = fitted.posterior.gaussians()
    for layer, inducing in zip(hidden, sharp, strict=True):
        moments = layer.moments(layer.features(x), inducing)
        np.testing.assert_array_equal(moments.mean, x)
        assert np.all(np.asarray(moments.spread) < 1.001e-10)
        expected = np.tile(1e-5 * np.eye(7), (4, 1, 1))
        np.testing.assert_allclose(inducing.root, expected, rtol=1e-12)
    moments = last.moments(last.features(x), wide)
    np.testing.assert_array_equal(moments.mean, np.zeros((9, 2)))
    # k(x, x) - Σ A² + Σ A² is the prior variance again; nothing but rounding is left of A.
    np.testing.assert_allclose(moments.variance, 1.0, rtol=1e-12)


def test_the_scales_of_the_start_can_be_chosen(x64):
    config = Config(num_inducing=5, hidden_scale=0.3, noise=0.02)
    fitted = build(rows(20, 2), 3, config)
    np.testing.assert_allclose(np.diagonal(fitted.posterior.roots[0][1]), 0.3)
    np.testing.assert_allclose(np.diagonal(fitted.posterior.roots[1][2]), 1.0)
    zero = jnp.zeros((1, 3))
    _, variance = fitted.model.likelihood.moments(zero, zero)
    np.testing.assert_allclose(variance, np.full((1, 3), 0.02), rtol=1e-12)


def test_the_seed_decides_the_start(x64):
    x, config = rows(60, 3), Config(num_inducing=7)
    first, again, other = (build(x, 1, config, seed=seed) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.allclose(first.model.layers[0].z, other.model.layers[0].z)


@pytest.mark.parametrize("name", recipes.KERNELS)
def test_kernels_are_known_by_name(name, x64):
    layers = build(rows(20, 2), 1, Config(num_inducing=5, kernel=name)).model.layers
    assert {type(layer.kernel) for layer in layers} == {recipes.KERNELS[name]}


def test_a_kernel_may_be_a_function_of_the_width(x64):
    widths = []

    def kernel(width):
        widths.append(width)
        return kernels.RBF(0.5) + kernels.Linear(0.1 * width)

    config = Config(num_layers=3, hidden_dim=5, num_inducing=4, kernel=kernel)
    layers = build(rows(20, 2), 1, config).model.layers
    assert widths == [2, 5, 5]
    x = jnp.ones((1, 5))
    np.testing.assert_allclose(layers[1].kernel.diag(x), 1.0 + 0.5 * 5.0)


def test_the_likelihood_decides_the_last_width(x64):
    config = Config(num_inducing=5, likelihood=RobustMax(3))
    fitted = build(rows(20, 2), 1, config)
    assert fitted.model.layers[-1].num_outputs == 3
    assert fitted.posterior.means[-1].shape == (5, 3)
    config = Config(num_inducing=5, likelihood=StudentT(0.3, 4.0))
    fitted = build(rows(20, 2), 2, config)
    assert isinstance(fitted.model.likelihood, StudentT)
    assert fitted.model.layers[-1].num_outputs == 2


def test_fewer_rows_than_the_hidden_width(x64):
    """Three rows of five columns have three singular vectors; the layer still has four outputs."""
    fitted = build(rows(3, 5), 1, Config(hidden_dim=4, num_inducing=8))
    first, last = fitted.model.layers
    assert first.z.shape == (3, 5) and last.z.shape == (3, 4)
    assert first.mean(first.z).shape == (3, first.num_outputs)


def test_an_unknown_kernel_is_answered_with_the_known_ones():
    with pytest.raises(
        InputError, match=r"one of rbf, matern12, .*, or a kernel object; got 'sbf'"
    ):
        Config(kernel="sbf")


@pytest.mark.parametrize("name", ["num_layers", "num_inducing", "hidden_dim"])
@pytest.mark.parametrize("value", [0, -3])
def test_sizes_must_be_positive(name, value):
    with pytest.raises(InputError, match=f"{name} must be at least 1, got {value}"):
        Config(**{name: value})
