"""Every likelihood, posterior and engine honours its interface in both precisions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import predict
from nashgp.engines import Engine
from nashgp.layers import Inducing
from nashgp.posteriors import AbstractVariational
from nashgp.precision import cast, dtype_of
from tests.cases import ENGINES, LIKELIHOODS, PAIRS, rows, tiny_data, tiny_fitted

DTYPES = ["float32", "float64"]


@pytest.fixture(params=DTYPES)
def dtype(request):
    """Run the test once in each precision."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def counted(function):
    """Compile a function and count how often it is traced."""
    traces = []

    def traced(*args):
        traces.append(1)
        return function(*args)

    return eqx.filter_jit(traced), traces


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), eqx.filter(tree, eqx.is_array))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihood_contract(name, dtype):
    make, num_targets, targets = LIKELIHOODS[name]
    likelihood = cast(make(num_targets), dtype)
    num, latent = 6, likelihood.num_latent(num_targets)
    random = np.random.default_rng(0)
    mean = jnp.asarray(random.normal(size=(num, latent)), dtype)
    var = jnp.asarray(random.uniform(0.1, 1.0, size=(num, latent)), dtype)
    y = jnp.asarray(targets(random, num), dtype)
    likelihood.check_targets(np.asarray(y))

    @jax.jit
    def everything():
        return {
            "log_prob": likelihood.log_prob(mean, y),
            "expected": likelihood.expected_log_prob(mean, var, y),
            "power": likelihood.power_term(mean, var, y, 0.3),
            "predictive": likelihood.log_predictive(mean, var, y),
            "drawn": likelihood.data_term(jr.key(0), mean, var, None, y, 0.5),
            "integrated": likelihood.data_term(jr.key(0), mean, var, 0.5 * var, y, 0.5),
            "sample": likelihood.sample(jr.key(0), mean),
        }, likelihood.moments(mean, var)

    results, moments = everything()
    for key, result in results.items():
        assert result.shape == y.shape and result.dtype == dtype, key
        assert np.all(np.isfinite(result)), key
    likelihood.check_targets(np.asarray(results["sample"]))
    assert np.all(results["expected"] <= results["predictive"] + 1e-5)  # Jensen
    for moment in moments:
        assert moment.shape[0] == num and moment.dtype == dtype
    compiled, traces = counted(lambda m, v, y, a: likelihood.power_term(m, v, y, a))
    # A traced power, so that one compilation serves them all.
    for power, want in ((0.0, "expected"), (0.3, "power"), (1.0, "predictive")):
        got = compiled(mean, var, y, jnp.asarray(power, dtype))
        tolerance = 3e-4 if dtype == "float32" else 1e-6  # two quadratures of one integral
        np.testing.assert_allclose(got, results[want], rtol=tolerance, atol=tolerance)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("name", "num_layers"), [("gaussian", 1), ("robust-max", 2), ("gaussian", 3)]
)
def test_posterior_contract(name, num_layers, dtype):
    fitted = tiny_fitted(name, num_layers, dtype=dtype)
    model, posterior = fitted.model, fitted.posterior
    assert isinstance(posterior, AbstractVariational)
    draw, traces = counted(lambda key: posterior.sample_and_kl(key, model, 3))
    values, kl = draw(jr.key(0))
    again, _ = draw(jr.key(0))
    other, _ = draw(jr.key(1))
    assert kl.shape == () and kl.dtype == dtype and float(kl) > 0.0
    assert len(values) == num_layers and len(traces) == 1
    for layer, value, same, different in zip(model.layers, values, again, other, strict=True):
        assert value.shape == (3, layer.num_inducing, layer.num_outputs) and value.dtype == dtype
        np.testing.assert_array_equal(value, same)
        assert not np.allclose(value, different)
        assert not np.allclose(value[0], value[1])
    x = jnp.asarray(rows(4, 2), dtype)
    for inducing in (posterior.inducing(jr.key(2), model, 3), tuple(map(Inducing, values))):
        moments = eqx.filter_jit(model.propagate)(x, inducing, model.noise(jr.key(3), 3, 4))
        assert moments.mean.shape[1:] == (4, model.layers[-1].num_outputs)
        assert dtype_of(moments) == dtype and np.all(np.asarray(moments.variance) >= 0.0)


@pytest.mark.parametrize(("name", "likelihood"), PAIRS)
def test_engine_contract(name, likelihood, dtype):
    """Shapes and dtypes stay, a step traces once, the same key is the same step."""
    engine = ENGINES[name]
    data = tiny_data(likelihood, dtype=dtype)
    fitted = tiny_fitted(likelihood, dtype=dtype)
    state = start = engine.init(jr.key(0), fitted)
    step, traces = counted(engine.step)
    for number in range(3):
        state, info = step(jr.key(number), state, data.sample(jr.key(number), 6))
        assert info.objective.shape == () and info.objective.dtype == dtype
        assert np.isfinite(info.objective)
    assert len(traces) == 1
    assert shapes(start) == shapes(state)
    one, _ = step(jr.key(7), state, data.sample(jr.key(0), 6))
    two, _ = step(jr.key(7), state, data.sample(jr.key(0), 6))
    jax.tree.map(np.testing.assert_array_equal, *(eqx.filter(s, eqx.is_array) for s in (one, two)))

    result = engine.result(jr.key(1), state, data, 3)
    assert dtype_of(result) == dtype
    score = predict.summarise(predict.log_density, jr.key(2), result, data.x, data.y, num_samples=3)
    assert score.shape == (len(data),) and score.dtype == dtype and np.all(np.isfinite(score))


@pytest.mark.parametrize("name", ENGINES)
def test_engines_are_values(name):
    """Equal settings are one key of the compilation cache."""
    import copy
    import pickle

    engine: Engine = ENGINES[name]
    assert engine == copy.deepcopy(engine) == pickle.loads(pickle.dumps(engine))
    assert hash(engine) == hash(copy.deepcopy(engine))


@pytest.mark.parametrize("name", ["dsvi", "dsvi-drawn", "collapsed", "natural"])
def test_steps_agree_under_vmap(name, x64):
    """A stack of problems in one program is the problems one by one."""
    engine, data = ENGINES[name], tiny_data()
    fitted = tiny_fitted()
    keys = jr.split(jr.key(0), 3)

    def one(key):
        state = engine.init(key, fitted)
        state, _ = engine.step(key, state, data.all())
        state, info = engine.step(key, state, data.all())
        return info.objective

    stacked, single = jax.jit(jax.vmap(one))(keys), jax.jit(one)
    np.testing.assert_allclose(stacked, [single(key) for key in keys], rtol=1e-9)
