"""The sampler: known moments, known step-size errors, hyperparameters, draws, chains."""

import dataclasses
import sys
import types
import warnings
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import nashgp
from nashgp import DeepGPRegressor, chains, means, programs, train
from nashgp.batch import make_data
from nashgp.diagnostics import effective_draws, split_rhat
from nashgp.engines import SGHMC
from nashgp.errors import InputError, UnsettledChainsWarning
from nashgp.experiments import diamond
from nashgp.kernels import RBF
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import DrawnPosterior, Fitted, gaussian_posterior
from nashgp.precision import cast
from tests.cases import tiny_data, tiny_fitted

pytestmark = pytest.mark.usefixtures("x64")


def one_layer(z, noise=0.2, lengthscale=0.6):
    layer = SparseGPLayer(RBF([lengthscale]), means.Zero(1), jnp.asarray(z, float), 1)
    model = cast(DeepGP((layer,), Gaussian([noise])), "float64")
    return Fitted(model, gaussian_posterior(model))


def run(engine, fitted, data, num_steps, seed=0, **settings):
    return train.run(jr.key(seed), engine, fitted, data, num_steps=num_steps, **settings)


def draws_of(outcome):
    return np.asarray(outcome.fitted.posterior.values[0])[:, :, 0]


# ---- the law of the chain -----------------------------------------------------------------------

NUM_ROWS, NOISE = 8, 0.5


def point():
    """Rows that all sit on the one inducing input: `y ~ N(v, σ²)`, `v ~ N(0, 1)`."""
    y = np.random.default_rng(0).normal(1.0, 0.6, size=(NUM_ROWS, 1))
    data = make_data(np.zeros((NUM_ROWS, 1)), y)
    precision = 1.0 + NUM_ROWS / NOISE
    return one_layer(np.zeros((1, 1)), NOISE), data, np.sum(y) / NOISE / precision, precision


def stationary_variance(step, friction, precision, noise_variance):
    """Of `v' = v + p'`, `p' = (1 - α) p - h λ v + s ξ`, an AR(2) process in `v`."""
    pull = step * precision
    return noise_variance * (2.0 - friction) / (friction * pull * (2.0 * (2.0 - friction) - pull))


PLAIN = {"burn_in": 0, "num_chains": 400, "num_draws": 60, "spacing": 10}
LONG = PLAIN | {"num_draws": 100}


@pytest.mark.parametrize(
    ("pull", "friction", "gradient_noise"), [(0.05, 0.1, 0.0), (1.0, 0.4, 0.0), (0.2, 0.5, 1.0)]
)
def test_the_chain_has_the_variance_of_its_recursion(pull, friction, gradient_noise):
    """Step-size error included, in closed form: no sign or scale can be wrong and this hold."""
    fitted, data, mean, precision = point()
    step = pull / precision
    step_size = (step * NUM_ROWS) ** 0.5
    engine = SGHMC(step_size=step_size, friction=friction, gradient_noise=gradient_noise, **PLAIN)
    draws = draws_of(run(engine, fitted, data, 600, num_kept=24_000))[:, 0]
    assert len(draws) == 24_000
    added = 2.0 * friction * step - gradient_noise * step_size**4
    want = stationary_variance(step, friction, precision, added)
    if gradient_noise == 0.0:  # what is known: 1/λ, too large by a factor that falls to one
        np.testing.assert_allclose(want * precision, 1 / (1 - pull / (2 * (2 - friction))))
    late = draws[8_000:]  # the start is forgotten after 200 steps
    assert abs(np.mean(late) - mean) < 5.0 * (want / 3_000) ** 0.5  # ten draws worth one, at worst
    np.testing.assert_allclose(np.var(late), want, rtol=0.06)


@pytest.mark.slow
def test_noise_of_a_batch_is_made_up_for():
    """Rows one at a time: gradients differ by `Var(y) / σ⁴` whatever `v` is, and V says so."""
    fitted, data, mean, precision = point()
    friction, step = 0.4, 0.2 / precision
    step_size = (step * NUM_ROWS) ** 0.5
    spread = float(np.var(np.asarray(data.y))) / NOISE**2

    def variance(told):
        engine = SGHMC(step_size=step_size, friction=friction, gradient_noise=told, **LONG)
        draws = draws_of(run(engine, fitted, data, 1_000, num_kept=40_000, batch_size=1))[:, 0]
        assert abs(np.mean(draws[8_000:]) - mean) < 0.02
        return np.var(draws[8_000:])

    exact = stationary_variance(step, friction, precision, 2.0 * friction * step)
    excess = 1.0 + spread * step_size**4 / (2.0 * friction * step)
    assert excess > 1.2 and spread * step_size**4 < 2.0 * friction * step
    # All chains of a step share its row, so only time averages this: 80 times 10 steps.
    np.testing.assert_allclose(variance(0.0), excess * exact, rtol=0.1)
    np.testing.assert_allclose(variance(spread), exact, rtol=0.1)


def test_one_layer_has_the_mean_and_covariance_of_the_closed_form():
    """Scales adapt in the burn-in, are held, and leave the Gaussian posterior invariant."""
    random = np.random.default_rng(1)
    x = random.uniform(-1.0, 1.0, size=(25, 1))
    y = np.sin(3.0 * x) + 0.4 * random.normal(size=x.shape)
    fitted = one_layer([[-0.9], [-0.3], [0.3], [0.9]])
    a = np.asarray(fitted.model.layers[0].features(jnp.asarray(x)).a)
    residual = np.asarray(fitted.model.layers[0].features(jnp.asarray(x)).residual)
    weight = 1.0 / (residual + 0.2)  # power 1
    covariance = np.linalg.inv(np.eye(4) + a.T @ (weight[:, None] * a))
    mean = covariance @ a.T @ (weight * y[:, 0])
    engine = SGHMC(
        step_size=0.1, burn_in=1_000, freeze=0, num_chains=100, num_draws=100, spacing=20
    )
    outcome = run(engine, fitted, make_data(x, y), 3_000, num_kept=10_000)
    draws = draws_of(outcome)
    square = np.asarray(outcome.state.scales.square[0])
    assert square.max() > 1.5 * square.min()  # the scales have adapted
    report = outcome.fitted.posterior.by_chain(outcome.fitted.posterior.values[0])
    effective = effective_draws(np.asarray(report)[:, :, :, 0]).min()
    assert effective > 1_500
    scale = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 4.5 * scale / effective**0.5)
    gap = (np.cov(draws.T) - covariance) / np.outer(scale, scale)
    # 4 standard errors, and the step-size error: h λ / 4 at the stiffest, some 3 %.
    assert np.max(np.abs(gap)) < 4.0 * (2.0 / effective) ** 0.5 + 0.03


def test_plain_sampler_agrees_with_blackjax():
    import blackjax

    fitted, data, _, precision = point()
    step, friction, num = 0.005 / precision, 0.3, 400

    def slope(v, rows):
        return jnp.sum(rows - v) / NOISE - v

    # Theirs is in units of a mass of one: p = √h r, so that α = α' √h; and it moves v before r,
    # which is another step-size error, of 2 % here.
    sampler = blackjax.sghmc(slope, num_integration_steps=200, alpha=friction / step**0.5)
    one = jax.jit(jax.vmap(lambda key, v: sampler.step(key, v, data.y, step**0.5)))
    position, found = jnp.zeros(num), []
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for number in range(60):
            position = one(jr.split(jr.key(number), num), position)
            found.append(np.asarray(position))
    theirs = np.concatenate(found[10:])
    engine = SGHMC(step_size=(step * NUM_ROWS) ** 0.5, friction=friction, **LONG)
    ours = draws_of(run(engine, fitted, data, 1_000, num_kept=40_000))[20_000:, 0]
    np.testing.assert_allclose(np.mean(ours), np.mean(theirs), atol=0.02)
    np.testing.assert_allclose(np.var(ours), np.var(theirs), rtol=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "modes"), [(0.3, 5), (0.0003, 1)])
def test_modes_of_the_diamond(eta, modes):
    """A large step meets all five modes, a small one never leaves the one it began in."""
    fitted, data = diamond.problem("float64")
    engine = SGHMC(
        step_size=eta**0.5 / diamond.PRIOR_VARIANCE**0.5,
        friction=0.4,
        start=0.0,
        burn_in=0,
        num_draws=4_000,
        spacing=10,
    )
    outcome = run(engine, fitted, data, 40_000, num_kept=4_000, chunk=40_000)
    u = draws_of(outcome)[:, 0] * diamond.PRIOR_VARIANCE**0.5
    share = [np.mean(np.abs(u - centre) < 1.5) for centre in diamond.CENTRES]
    assert sum(one > 0.05 for one in share) == modes


# ---- hyperparameters ----------------------------------------------------------------------------


def wiggle(noise=0.3):
    random = np.random.default_rng(2)
    x = random.uniform(-1.0, 1.0, size=(60, 1))
    return make_data(x, np.sin(3.0 * x) + noise**0.5 * random.normal(size=x.shape))


def learned_noise(outcome):
    return float(outcome.fitted.model.likelihood.noise[0])


@pytest.mark.parametrize("start", [0.03, 3.0])
def test_hyperparameters_climb_toward_those_of_the_data(start):
    fitted = one_layer(np.linspace(-1.0, 1.0, 6)[:, None], start)
    engine = SGHMC(burn_in=600, num_draws=10, spacing=1, learning_rate=0.02)
    outcome = run(engine, fitted, wiggle(), 600)
    before, after = (abs(np.log(value / 0.3)) for value in (start, learned_noise(outcome)))
    assert after < 0.7 * before
    assert not np.allclose(outcome.fitted.model.layers[0].z, fitted.model.layers[0].z)


def test_one_pass_gives_the_step_of_two():
    """A window of one position shares its pass with the sampler; both follow `log p(y, v)`."""
    fitted, data = one_layer(np.linspace(-1.0, 1.0, 6)[:, None]), wiggle()
    engines = [SGHMC(window=window, num_chains=2, start=None) for window in (1, 3)]
    begin = [engine.init(jr.key(0), fitted) for engine in engines]
    one, two = (
        eqx.filter_jit(engine.step)(jr.key(1), state, data.all())[0]
        for engine, state in zip(engines, begin, strict=True)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9), one.params, two.params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9), one.values, two.values)

    def density(params):
        """Written out: power 1 is `N(y | E f, Var f + σ²)` for each row given the values."""
        model = eqx.combine(params, begin[0].frozen)
        layer, x, y = model.layers[0], data.x, data.y[:, 0]
        chol = jnp.linalg.cholesky(layer.kernel.gram(layer.z) + 1e-8 * jnp.eye(6))
        a = jax.scipy.linalg.solve_triangular(chol, layer.kernel.cross(layer.z, x), lower=True).T
        var = layer.kernel.diag(x) - jnp.sum(a**2, axis=1) + model.likelihood.noise[0]
        means = [a @ value[:, 0] for value in begin[0].values[0]]
        return sum(-0.5 * jnp.sum((y - mean) ** 2 / var + jnp.log(var)) for mean in means)

    slope = eqx.filter_grad(density)(begin[0].params)
    for up, old, new in zip(
        *map(jax.tree.leaves, (slope, begin[0].params, one.params)), strict=True
    ):
        assert np.all(np.sign(up) == np.sign(new - old))


def test_hyperparameters_are_held_when_told():
    fitted = one_layer(np.linspace(-1.0, 1.0, 6)[:, None], 3.0)
    engine = SGHMC(burn_in=40, num_draws=10, spacing=1)
    some, more, none = (
        run(dataclasses.replace(engine, freeze=freeze), fitted, wiggle(), steps)
        for freeze, steps in ((20, 20), (20, 60), (0, 60))
    )
    jax.tree.map(np.testing.assert_array_equal, some.fitted.model, more.fitted.model)
    jax.tree.map(np.testing.assert_array_equal, fitted.model, none.fitted.model)
    assert learned_noise(some) < 3.0
    late = run(engine, fitted, wiggle(), 60)  # by default those of the burn-in
    until = run(dataclasses.replace(engine, freeze=40), fitted, wiggle(), 60)
    assert learned_noise(late) == learned_noise(until) < learned_noise(some)


def test_a_prior_holds_hyperparameters_near_their_start():
    fitted = one_layer(np.linspace(-1.0, 1.0, 6)[:, None], 3.0)
    engine = SGHMC(burn_in=300, num_draws=10, spacing=1, learning_rate=0.02)
    free, weak, strong = (
        run(dataclasses.replace(engine, hyper_prior=prior), fitted, wiggle(), 300)
        for prior in (None, 0.5, 0.01)
    )
    assert learned_noise(free) < learned_noise(weak) - 0.05 < learned_noise(strong) - 0.1
    assert learned_noise(strong) > 2.9
    moved = np.asarray(strong.fitted.model.layers[0].z - fitted.model.layers[0].z)
    assert np.max(np.abs(moved)) > 0.05  # inducing inputs are no hyperparameters


# ---- draws --------------------------------------------------------------------------------------


def trace(engine, state, data, num_steps):
    """Positions before each step, their log densities, and the states after it."""
    positions, densities, states = [], [], []
    step = eqx.filter_jit(engine.step)
    for number in range(num_steps):
        positions.append(np.asarray(state.values[0]))
        state, info = step(jr.key(number), state, data.all())
        densities.append(np.asarray(info.log_density))
        states.append(state)
    return np.array(positions), np.array(densities), states


def test_the_draws_kept_are_those_of_the_chain():
    """After the burn-in one in `spacing`, the latest of them, oldest first; chains in turn.

    The program is that of other numbers: all of them come from the state.
    """
    other = SGHMC(num_draws=3, num_chains=2, window=4)
    engine = dataclasses.replace(other, burn_in=6, spacing=2, start=None, freeze=0, step_size=0.1)
    assert engine == other and hash(engine) == hash(other)
    fitted, data = one_layer([[-0.5], [0.5]]), wiggle()
    begin = eqx.filter_jit(engine.init)(jr.key(0), fitted)
    positions, densities, states = trace(other, begin, data, 16)
    result = eqx.filter_jit(lambda state: other.result(jr.key(9), state, data, 6))

    def check(steps, at):
        posterior = result(states[steps - 1] if steps else begin).posterior
        got = np.asarray(posterior.by_chain(posterior.values[0]))
        np.testing.assert_array_equal(got, np.swapaxes(positions[at], 0, 1))
        if steps:
            got = np.asarray(posterior.by_chain(posterior.log_density))
            np.testing.assert_array_equal(got, densities[at].T)
        np.testing.assert_array_equal(posterior.last()[0], positions[at[-1]])
        assert posterior.num_chains == 2 and posterior.num_draws == 3

    check(16, [11, 13, 15])  # five have been kept, there is room for three
    check(12, [7, 9, 11])
    check(10, [7, 7, 9])  # fewer than asked for
    check(7, [5, 5, 5])  # none yet: the latest of the burn-in
    check(0, [0, 0, 0])  # where the chains stand
    assert not np.allclose(positions[0][0], positions[0][1])  # draws of the posterior that was
    window = np.asarray(states[15].window[0])
    np.testing.assert_array_equal(window[[3, 2, 1]], positions[[15, 14, 13]])
    jax.tree.map(np.testing.assert_array_equal, result(states[15]).model, fitted.model)


def test_a_sampler_goes_on_from_its_draws():
    first = one_layer([[-0.5], [0.5]])
    drawn = DrawnPosterior((jr.normal(jr.key(0), (6, 2, 1)),), jnp.zeros(6), 2)
    state = SGHMC(num_chains=3, num_draws=1).init(jr.key(5), Fitted(first.model, drawn))
    np.testing.assert_array_equal(state.values[0], np.asarray(drawn.values[0])[[4, 5, 4]])


def test_stored_draws_are_spread_over_a_prediction():
    values = (jnp.arange(6.0)[:, None, None],)
    posterior = DrawnPosterior(values, jnp.arange(6.0), 2)
    model = one_layer(np.zeros((1, 1))).model
    for num, want in ((6, range(6)), (3, [0, 2, 4]), (8, [0, 1, 2, 3, 4, 5, 0, 1])):
        got = posterior.sample(jr.key(0), model, num)[0].ravel()
        np.testing.assert_array_equal(got, np.array(want, float))


@pytest.mark.slow
def test_deterministic_conditionals_are_one_density():
    """No hidden noise: the same position has the same density at any key."""
    fitted, data, engine = tiny_fitted(), tiny_data(), SGHMC()
    values = fitted.posterior.means

    @eqx.filter_jit
    def density(key, model):
        return engine._log_joint(key, model, values, data.all(), 1.0)

    model = DeepGP(fitted.model.layers, fitted.model.likelihood, deterministic=True)
    assert density(jr.key(1), model) == density(jr.key(2), model)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"step_size": 0.0}, "step_size must be above 0, got 0.0"),
        ({"friction": 1.5}, "friction must be above 0 and at most 1"),
        ({"gradient_noise": -1.0}, "gradient_noise must be at least 0"),
        ({"burn_in": -1}, "burn_in must be at least 0"),
        ({"spacing": 0}, "spacing must be at least 1"),
        ({"num_chains": 0}, "num_chains must be at least 1"),
        ({"freeze": -1}, "freeze must be None or at least 0"),
        ({"hyper_prior": 0.0}, "hyper_prior must be None or above 0"),
    ],
)
def test_settings_that_make_no_sense(setting, sentence):
    with pytest.raises(InputError, match=sentence):
        SGHMC(**setting)


# ---- chains -------------------------------------------------------------------------------------


def autoregressive(rho, num_chains=4, num_draws=2_000, seed=0):
    random = np.random.default_rng(seed)
    draws = [random.normal(size=num_chains)]
    for _ in range(num_draws - 1):
        new = rho * draws[-1] + (1.0 - rho**2) ** 0.5 * random.normal(size=num_chains)
        draws.append(new)
    return np.array(draws).T


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_effective_draws_of_an_autoregression(rho):
    draws = autoregressive(rho)
    want = draws.size * (1.0 - rho) / (1.0 + rho)
    np.testing.assert_allclose(effective_draws(draws), want, rtol=0.2)
    both = np.stack([draws, -draws], axis=2)
    np.testing.assert_allclose(effective_draws(both), effective_draws(draws))
    assert split_rhat(draws) < 1.03


def test_chains_apart_and_drifts_are_seen():
    draws = autoregressive(0.0, num_draws=200)
    apart = draws + np.array([0.0, 0.0, 0.0, 2.0])[:, None]
    # Four of eight halves are as they were: B/n has a known expectation beside the noise.
    np.testing.assert_allclose(split_rhat(apart), (1.0 + 8 / 7 * 0.75) ** 0.5, rtol=0.05)
    drift = draws[:1] + np.linspace(-1.5, 1.5, 200)
    assert split_rhat(drift) > 1.3 and split_rhat(draws[:1]) < 1.05
    assert effective_draws(apart) < 20 < effective_draws(draws)
    assert split_rhat(np.ones((2, 10))) == 1.0
    with pytest.raises(InputError, match="at least 4 draws"):
        split_rhat(np.ones((2, 3)))


def test_diagnostics_agree_with_arviz():
    import arviz

    draws = autoregressive(0.6, num_draws=300)
    theirs = [float(arviz.rhat(draws, method="split")), float(arviz.ess(draws, method="mean"))]
    np.testing.assert_allclose([split_rhat(draws), effective_draws(draws)], theirs, rtol=0.05)


def test_arviz_holds_the_draws_of_every_chain():
    import arviz

    drawn = DrawnPosterior((jr.normal(jr.key(0), (40, 2, 1)),), jnp.arange(40.0), 2)
    held = chains.to_arviz(jr.key(0), Fitted(one_layer([[-0.5], [0.5]]).model, drawn))
    found = np.asarray(held["posterior"]["layer_1"])
    np.testing.assert_array_equal(found, drawn.by_chain(drawn.values[0]))
    theirs = np.asarray(arviz.rhat(held, method="split")["layer_1"])[:, 0]
    ours = [split_rhat(found[:, :, place, 0]) for place in range(2)]
    np.testing.assert_allclose(ours, theirs, rtol=0.05)


@pytest.mark.parametrize("by_name", [False, True])
def test_any_posterior_goes_to_arviz(by_name, monkeypatch):
    """Both versions of its interface: groups by keyword, or as one dictionary."""

    def old(posterior=None, sample_stats=None):
        stats = {} if sample_stats is None else {"sample_stats": sample_stats}
        return {"posterior": posterior, **stats}

    seen = types.SimpleNamespace(from_dict=old if by_name else lambda groups: groups)
    monkeypatch.setitem(sys.modules, "arviz", seen)
    fitted = one_layer([[-0.5], [0.5]])
    groups = chains.to_arviz(jr.key(0), fitted, 7)
    assert groups["posterior"]["layer_1"].shape == (1, 7, 2, 1) and len(groups) == 1
    drawn = DrawnPosterior((jr.normal(jr.key(0), (6, 2, 1)),), jnp.arange(6.0), 2)
    groups = chains.to_arviz(jr.key(0), Fitted(fitted.model, drawn))
    assert groups["posterior"]["layer_1"].shape == (2, 3, 2, 1)
    np.testing.assert_array_equal(groups["posterior"]["layer_1"][1], drawn.values[0][1::2])
    np.testing.assert_array_equal(groups["sample_stats"]["lp"], [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]])
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(InputError, match=r"pip install 'nashgp\[arviz\]'"):
        chains.to_arviz(jr.key(0), fitted)


# ---- the estimator ------------------------------------------------------------------------------

random = np.random.default_rng(0)
X = random.uniform(-2.0, 2.0, size=(40, 2))
Y = 5.0 + 3.0 * np.sin(2.0 * X[:, 0]) + 0.3 * random.normal(size=40)


def small(options=None, **settings):
    """One layer and the same shapes throughout, so that the tests below share programs."""
    defaults = {"engine": "sghmc", "num_layers": 1, "num_inducing": 8, "num_mixture": 20}
    options = {"num_chains": 2, "step_size": 0.05} | (options or {})
    return DeepGPRegressor(
        **defaults | {"num_steps": 1_500, "random_state": 0, "engine_options": options} | settings
    )


def quietly(model, *rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsettledChainsWarning)
        return model.fit(*rows)


def test_the_sampler_is_an_engine(tmp_path):
    """Fit, predict, report, save, load, go on."""
    model = quietly(small(), X, Y)
    assert model.last_layer_ == "sampled" and model.power_ == 1.0 and model.num_steps_ == 1_500
    assert model.score(X, Y) > 0.8
    assert model.history_.info["log_density"].shape == (1_500, 2)
    report = model.chains_
    assert (report.num_chains, report.num_draws) == (2, 10) and report.worst >= report.rhat > 0.9
    assert "chains: 2 x 10 draws" in model.summary()
    model.save(tmp_path / "model")
    again = nashgp.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert str(again.chains_) == str(report)
    before = model.predict(X)
    quietly(model.set_params(warm_start=True, num_steps=60), X, Y)
    assert model.score(X, Y) > 0.8 and not np.array_equal(model.predict(X), before)


def test_chains_that_disagree_are_reported_once():
    """A step size at which nothing moves far: halves of a chain that drifts."""
    with pytest.warns(UnsettledChainsWarning, match="raise num_steps") as caught:
        small({"step_size": 0.003}, num_steps=300).fit(X, Y)
    assert len(caught) == 1


@pytest.mark.slow
def test_hyperparameters_stop_where_held_out_rows_are_predicted_best(monkeypatch):
    """Then all rows make the draws, and hyperparameters no longer move."""
    seen, plain = [], train.run

    def spy(key, engine, fitted, data, **settings):
        outcome = plain(key, engine, fitted, data, **settings)
        seen.append((len(data), fitted.model, outcome))
        return outcome

    monkeypatch.setattr(train, "run", spy)
    model = quietly(small(validation_fraction=0.2, num_steps=300), X, Y)
    *looks, (all_rows, start, drawn) = seen
    burnt, tried = looks[::2], looks[1::2]
    assert all(few == 32 for few, *_ in looks) and all_rows == 40
    for (_, _, before), (_, _, after) in zip(burnt, tried, strict=True):
        jax.tree.map(np.testing.assert_array_equal, before.fitted.model, after.fitted.model)
    scores = model.history_.validation[np.isfinite(model.history_.validation)]
    assert len(scores) == len(tried) == 5
    same = [eqx.tree_equal(start, outcome.fitted.model) for *_, outcome in tried]
    assert sum(map(bool, same)) == 1 and scores[same.index(True)] >= scores[-1]
    jax.tree.map(np.testing.assert_array_equal, start, drawn.fitted.model)
    lengths = np.cumsum([len(outcome.history.objective) for *_, outcome in burnt])
    assert list(lengths) == [20, 40, 80, 140, 200]
    assert int(burnt[-1][2].state.pace.step) == 200  # it went on, not anew
    assert model.fitted_.posterior.num_draws == 10
    with pytest.raises(InputError, match="leaves fewer than two"):
        small(validation_fraction=0.99).fit(X, Y)


def test_interrupted_chains_keep_their_draws(monkeypatch):
    advance, calls = programs.Program.__call__, []

    def stop(self, *args, **settings):
        if self is train._few:
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
        return advance(self, *args, **settings)

    monkeypatch.setattr(programs.Program, "__call__", stop)
    model = small().fit(X, Y)
    assert model.history_.interrupted and 0 < model.num_steps_ < 1_500
    assert np.all(np.isfinite(model.predict(X)))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"last_layer": "collapsed"}, "last_layer must be one of auto, sampled"),
        ({"engine": "dsvi", "last_layer": "sampled"}, "last_layer must be one of auto, collapsed"),
        ({"engine_options": {"temperature": 1.0}}, "has no option 'temperature'"),
        ({"engine_options": {"friction": 2.0}}, "friction must be above 0"),
    ],
)
def test_mistakes_with_the_sampler(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        small(**settings).fit(X, Y)


def test_only_a_sampler_has_chains():
    with pytest.raises(InputError, match="a GaussianPosterior has no chains"):
        chains.examine(one_layer([[-0.5], [0.5]]), jnp.zeros((1, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["gaussian", "student-t", "poisson"])
def test_deep_models_of_any_likelihood_are_sampled(likelihood):
    counts = np.random.default_rng(1).poisson(np.exp(0.5 * X[:, 0])).astype(float)
    model = quietly(small(likelihood=likelihood, num_layers=2), X, counts)
    assert np.all(np.isfinite(model.log_density(X, counts)))
    assert np.all(np.isfinite(model.sample_functions(2)(X)))
