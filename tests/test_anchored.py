"""The anchored posterior: its KL is a bound whatever Player 1 does, and tight when it does well."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from nashgp import DeepGPRegressor, kernels, load, means, recipes, train
from nashgp.engines import (
    DSVI,
    Alternating,
    Collapsed,
    NaturalGradient,
    Starts,
    Tempered,
    lane,
)
from nashgp.errors import InputError
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import (
    AnchoredPosterior,
    Critic,
    Fitted,
    GaussianPosterior,
    Recogniser,
    ToppedPosterior,
    anchored_posterior,
    gaussian_posterior,
)
from nashgp.posteriors.anchored import find_anchored, log_mean_exp, measure_information
from nashgp.posteriors.mixture import blend, densities
from nashgp.priors import GPPrior
from nashgp.transforms import Frozen
from tests.cases import tiny_data, tiny_fitted

pytestmark = pytest.mark.usefixtures("x64")

NUM_DRAWS = 4_000


def flat_model(num_inducing: int, num_outputs: int = 1) -> DeepGP:
    """One layer; only its prior matters here."""
    z = jnp.linspace(-1.0, 1.0, num_inducing)[:, None]
    layer = SparseGPLayer(kernels.RBF(0.5), means.Zero(num_outputs), z, num_outputs)
    return DeepGP((layer,), Gaussian(np.full(num_outputs, 0.1)))


def random_posterior(
    seed: int,
    model: DeepGP,
    *,
    noise_dim: int = 1,
    depth: int = 1,
    player1: float = 0.0,
    who: str = "recogniser",
    **settings,
) -> AnchoredPosterior:
    """Everything away from its start; `player1` is how far that one is from saying nothing."""
    random = np.random.default_rng(seed)
    roots, centres = [], []
    for layer in model.layers:
        m, p = layer.num_inducing, layer.num_outputs
        centres.append(jnp.asarray(random.normal(size=(m, p))))
        root = np.tril(0.3 * random.normal(size=(p, m, m))) + 0.8 * np.eye(m)
        roots.append(jnp.asarray(root))
    made = anchored_posterior(
        jr.key(seed),
        GaussianPosterior(tuple(centres), tuple(roots)),
        model,
        noise_dim=noise_dim,
        depth=depth,
        width=8,
        first_mix=1.0,
        player1=who,
        **settings,
    )

    def moved(path, leaf):
        name = jax.tree_util.keystr(path)
        size = player1 if "read" in name else 0.2 if "mixers" in name else 0.0
        size = 0.3 if "receive" in name else size
        return leaf + size * random.normal(size=leaf.shape)

    return jax.tree_util.tree_map_with_path(moved, made)


def noise_and_values(posterior, key, num=NUM_DRAWS):
    """Draws of ε, of the frame coordinates h and of v, by hand."""
    first, second = jr.split(key)
    eps = jr.normal(first, (num, posterior.noise_dim))
    mixes = posterior.mix(eps)
    h = tuple(
        mix.shift + jnp.exp(mix.log_scale) * jr.normal(jr.fold_in(second, n), mix.shift.shape)
        for n, mix in enumerate(mixes)
    )
    return eps, mixes, h


def log_q_on_grid(posterior, h):
    """`log q(h)` by quadrature over a one-dimensional noise."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(180)
    mixes = posterior.mix(jnp.asarray(nodes)[:, None])

    def one(values):
        given = sum(
            mix.log_density(jnp.broadcast_to(value, mix.shift.shape))
            for mix, value in zip(mixes, values, strict=True)
        )
        return jax.nn.logsumexp(given + jnp.log(weights / np.sum(weights)))

    return jax.lax.map(one, h, batch_size=500)


def flat(values):
    """Rows of all values: layer after layer, output after output."""
    return np.concatenate([np.asarray(v).transpose(0, 2, 1).reshape(len(v), -1) for v in values], 1)


def unflat(posterior, rows):
    shapes = [mean.shape for mean in posterior.frame.means]
    parts = np.split(rows, np.cumsum([m * p for m, p in shapes])[:-1], axis=1)
    return tuple(
        jnp.asarray(part.reshape(-1, p, m).transpose(0, 2, 1))
        for part, (m, p) in zip(parts, shapes, strict=True)
    )


def whole_coupling(posterior):
    """`I + C` as one matrix."""
    unit = np.eye(sum(mean.size for mean in posterior.frame.means))
    return unit + flat(posterior.coupling(unflat(posterior, unit))).T


def gaps(posterior, model, nums, seed=0):
    """Mean and error of `estimated KL - true KL` for each J, draws compared with their density."""
    apart = _apart(posterior, model, nums, jr.key(seed))
    return [(float(np.mean(one)), float(np.std(one) / len(one) ** 0.5)) for one in apart]


@eqx.filter_jit
def _apart(posterior, model, nums, key):
    draw, others = jr.split(key)
    eps, mixes, h = noise_and_values(posterior, draw)
    values = posterior.values(h)
    kl = posterior._kl_given_noise(model, mixes, h, values)
    estimates = [kl - posterior.information(others, eps, h, num) for num in nums]
    log_det = sum(
        jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root, axis1=1, axis2=2))))
        for root in posterior.frame.roots
    )
    log_p = jax.vmap(lambda v: model.prior.log_density(model.layers, v))(values)
    true = log_q_on_grid(posterior, h) - log_det - log_p
    return [estimate - true for estimate in estimates]


# ---- the bound ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_estimated_kl_is_never_below_the_true_one(seed):
    """One to three inducing values, a noise in one dimension, Player 1 at its start or astray."""
    model = flat_model(1 + seed % 3)
    posterior = random_posterior(seed, model, player1=[0.0, 0.5][seed % 2])
    for mean, error in gaps(posterior, model, (0, 1, 10)):
        assert mean > -4.0 * error


@pytest.mark.parametrize("seed", range(2))
def test_many_importance_draws_close_the_gap(seed):
    """So no term is merely there to be on the safe side."""
    model = flat_model(2)
    posterior = random_posterior(seed, model, tied=seed == 0)
    none, some, many = gaps(posterior, model, (0, 10, 300))
    assert none[0] > some[0] > many[0] - 4.0 * many[1]
    assert abs(many[0]) < 4.0 * many[1] + 0.02


class Disguised(GPPrior):
    """The GP prior under another name, so that nobody takes its closed form."""


class FlippedInformation(AnchoredPosterior):
    def information(self, key, eps, h, num):
        return -AnchoredPosterior.information(self, key, eps, h, num)


class FlippedRecognition(Recogniser):
    """`log N(ε) + log r(ε | h)` in place of their difference."""

    def log_weights(self, *args):
        given, joint = Recogniser.log_weights(self, *args)
        return given, -joint


class FlippedDensity(Recogniser):
    def log_weights(self, *args):
        given, joint = Recogniser.log_weights(self, *args)
        return -given, joint


class FlippedDeterminant(AnchoredPosterior):
    def _kl_given_noise(self, model, mixes, h, values):
        wrong = eqx.tree_at(
            lambda s: s.frame.roots, self, tuple(jnp.linalg.inv(r) for r in self.frame.roots)
        )
        right = AnchoredPosterior._kl_given_noise(self, model, mixes, h, values)
        logs = sum(
            jnp.sum(jnp.log(jnp.abs(jnp.diagonal(r, axis1=1, axis2=2)))) for r in wrong.frame.roots
        )
        return right - 2.0 * logs


class FlippedScale(AnchoredPosterior):
    """`log b` with the other sign in the KL given ε."""

    def _kl_given_noise(self, model, mixes, h, values):
        right = AnchoredPosterior._kl_given_noise(self, model, mixes, h, values)
        return right + 2.0 * sum(jnp.sum(mix.log_scale, axis=(1, 2)) for mix in mixes)


class NoSource(Recogniser):
    """The importance average without the noise that made the draw: a bound from the wrong side."""

    def information(self, *args):
        given, joint = self.log_weights(*args)
        return given[:, 0] - log_mean_exp((given + joint)[:, 1:])


@pytest.mark.parametrize(
    "kind",
    [
        FlippedInformation,
        FlippedRecognition,
        FlippedDensity,
        FlippedDeterminant,
        FlippedScale,
        NoSource,
    ],
)
def test_a_flipped_sign_is_found_out(kind):
    """With any term the wrong way round, the estimate falls below the truth or stays above it."""
    model = flat_model(2)
    found = False
    for seed in range(2):
        right = random_posterior(seed, model, player1=0.3)
        if issubclass(kind, Recogniser):
            wrong = dataclasses.replace(right, player1=_as(kind, right.player1))
        else:
            wrong = _as(kind, right)
        few, many = gaps(wrong, model, (1, 300))
        found |= any(mean < -4.0 * error for mean, error in (few, many))
        found |= many[0] > 4.0 * many[1] + 0.05
    assert found


def _as(kind, module):
    """The same fields in another class."""
    return kind(**{f.name: getattr(module, f.name) for f in dataclasses.fields(module)})


@pytest.mark.parametrize("seed", range(4))
def test_a_critic_never_makes_the_kl_too_small(seed):
    """Anything it says is a bound: here it is random, and loud."""
    model = flat_model(1 + seed % 3)
    posterior = random_posterior(seed, model, player1=[0.0, 0.3][seed % 2], who="critic")
    for mean, error in gaps(posterior, model, (0, 1, 10)):
        assert mean > -4.0 * error


class FlippedCritic(Critic):
    """Rewarded for what it says of others."""

    def information(self, key, posterior, eps, h, num):
        others = jr.normal(key, (len(eps), num, posterior.noise_dim), eps.dtype)
        t = self(h, posterior.places, others)
        return jnp.mean(t, axis=1) - jnp.exp(self(h, posterior.places, eps[:, None])[:, 0] - 1.0)


@pytest.mark.parametrize("kind", [Critic, FlippedCritic])
def test_a_critic_that_learns_comes_close_to_the_truth(kind):
    """At its best `T = 1 + log q(h | ε) - log q(h)`; the wrong way round it ends elsewhere."""
    posterior = random_posterior(0, flat_model(2), who="critic")
    louder = jnp.asarray([[4.0, 1.0]])  # of the shift alone
    posterior = eqx.tree_at(
        lambda q: q.mixers[0].weights[-1], posterior, replace_fn=lambda w: w * louder
    )
    posterior = _trained(dataclasses.replace(posterior, player1=_as(kind, posterior.player1)))
    eps, mixes, h = posterior.draw(jr.key(6), NUM_DRAWS)
    given = sum(mix.log_density(value) for mix, value in zip(mixes, h, strict=True))
    true = given - log_q_on_grid(posterior, h)
    told = posterior.information(jr.key(7), eps, h, 100)
    truth, error = float(np.mean(true)), float(np.std(told - true) / NUM_DRAWS**0.5)
    assert truth > 0.5
    close = 0.9 * truth < np.mean(told) < truth + 4.0 * error
    assert close == (kind is Critic)


def _trained(posterior, num_steps=1_500):
    """Player 1 after many moves against a generator that stands still."""
    optimiser = optax.adam(optax.cosine_decay_schedule(0.02, num_steps))

    def loss(player1, key):
        draw, others = jr.split(key)
        eps, _, h = posterior.draw(draw, 64)
        return -jnp.mean(player1.information(others, posterior, eps, h, 16))

    def body(number, carry):
        player1, memory = carry
        gradient = jax.grad(loss)(player1, jr.fold_in(jr.key(5), number))
        with jax.numpy_dtype_promotion("standard"):
            moves, memory = optimiser.update(gradient, memory)
        return eqx.apply_updates(player1, moves), memory

    start = (posterior.player1, optimiser.init(posterior.player1))
    player1, _ = jax.jit(lambda start: jax.lax.fori_loop(0, num_steps, body, start))(start)
    return dataclasses.replace(posterior, player1=player1)


def test_a_linear_generator_is_gaussian_with_a_kl_in_closed_form():
    """`h = W ε + c + b η`, so `v` is Gaussian; two layers, three noises, Player 1 astray."""
    fitted = tiny_fitted()
    model = fitted.model
    posterior = random_posterior(1, model, noise_dim=3, depth=0, player1=0.0)

    def without_noise(net):  # b may depend on z, not on ε
        p = net.weights[0].shape[1] // 2
        return eqx.tree_at(lambda n: n.weights[0], net, net.weights[0].at[:3, p:].set(0.0))

    posterior = eqx.tree_at(
        lambda q: q.mixers, posterior, tuple(map(without_noise, posterior.mixers))
    )
    centre = posterior.mix(jnp.zeros((1, 3)))
    unit = posterior.mix(jnp.eye(3))
    frame = posterior.frame.gaussians()
    big = jax.scipy.linalg.block_diag(*[root for part in frame for root in part.root])
    big = np.asarray(big) @ whole_coupling(posterior)
    middle = flat(tuple(mix.shift for mix in centre))
    w = big @ (flat(tuple(mix.shift for mix in unit)) - middle).T
    scale = np.exp(flat(tuple(mix.log_scale for mix in centre)))[0]
    mean = flat(tuple(part.value[None] for part in frame))[0] + big @ middle[0]
    covariance = w @ w.T + big @ np.diag(scale**2) @ big.T
    true = 0.5 * (np.trace(covariance) + mean @ mean - len(mean))
    true -= 0.5 * np.linalg.slogdet(covariance)[1]
    for num in (0, 10):
        one = dataclasses.replace(posterior, num_importance=num)
        bound = eqx.filter_jit(lambda key, q=one: q.sample_and_kl(key, model, 500)[1])
        each = [float(bound(jr.key(k))) for k in range(20)]
        assert np.mean(each) > true - 4.0 * np.std(each) / len(each) ** 0.5
    draws = posterior.sample(jr.key(0), model, 100_000)
    got = flat(draws)
    np.testing.assert_allclose(np.mean(got, axis=0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(got.T), covariance, atol=0.15)


@pytest.mark.parametrize("player1", ["recogniser", "critic"])
def test_it_starts_as_the_gaussian(player1):
    """No mixing at all: the frame's own KL, whatever the draws."""
    fitted = tiny_fitted()
    start = anchored_posterior(
        jr.key(0), fitted.posterior, fitted.model, first_mix=0.0, player1=player1
    )
    _, kl = start.sample_and_kl(jr.key(1), fitted.model, 3)
    want = fitted.posterior.sample_and_kl(jr.key(1), fitted.model, 1)[1]
    np.testing.assert_allclose(kl, want, rtol=1e-9)


def test_naive_networks_are_of_one_inducing_input_each():
    """Each is a network of the noise alone; where its input lies does not matter."""
    posterior = random_posterior(0, flat_model(3), noise_dim=2, tied=False)
    eps = jr.normal(jr.key(1), (5, 2))
    (mix,) = posterior.mix(eps)
    (net,) = posterior.mixers
    for m in range(3):
        alone = jax.tree.map(lambda leaf, m=m: leaf[m], net)
        np.testing.assert_allclose(mix.shift[:, m], alone(eps)[:, :1], rtol=1e-6)
    far = (Frozen(jnp.full((3, 1), 7.0)),)
    elsewhere = eqx.tree_at(lambda p: p.places, posterior, far)
    np.testing.assert_array_equal(elsewhere.mix(eps)[0].shift, mix.shift)
    tied = random_posterior(0, flat_model(3), noise_dim=2)
    moved = eqx.tree_at(lambda p: p.places, tied, far)
    assert not np.allclose(moved.mix(eps)[0].shift, tied.mix(eps)[0].shift)


def test_player_1_starts_at_the_prior_of_the_noise():
    fitted = tiny_fitted()
    start = anchored_posterior(jr.key(0), fitted.posterior, fitted.model)
    _, _, h = noise_and_values(start, jr.key(2), 5)
    for part in start.player1(h, start.places):
        np.testing.assert_array_equal(part, 0.0)


def test_another_prior_is_met_by_draws():
    """Against a prior that is no GP the KL given ε is estimated, with the same mean."""
    model = flat_model(2)
    posterior = random_posterior(0, model)
    other = DeepGP(model.layers, model.likelihood, Disguised())
    eps, mixes, h = noise_and_values(posterior, jr.key(3), 50_000)
    del eps
    values = posterior.values(h)
    exact = posterior._kl_given_noise(model, mixes, h, values)
    drawn = posterior._kl_given_noise(other, mixes, h, values)
    np.testing.assert_allclose(np.mean(drawn), np.mean(exact), atol=0.03)


# ---- the game -----------------------------------------------------------------------------------

GAMES = {
    "gradient": (DSVI(0.02, 4, 0.5, draw_inducing=True, network_rate=0.005), True),
    "collapsed": (Collapsed(0.02, 4, 0.5, network_rate=0.005), False),
    "natural": (NaturalGradient(0.02, 4, 0.5, network_rate=0.005), False),
}


@pytest.mark.parametrize("name", GAMES)
def test_an_anchored_game_climbs_and_predicts(name):
    """Whatever happens to the last layer."""
    engine, whole = GAMES[name]
    start = recipes.anchor(tiny_fitted(), whole=whole, noise_dim=2, width=8)
    assert recipes.is_anchored(start)
    after = train.run(jr.key(1), engine, start, tiny_data(), num_steps=200, num_kept=20)
    assert recipes.is_anchored(after.fitted)
    first, last = after.history.objective[:50], after.history.objective[-50:]
    assert np.mean(last) > np.mean(first)
    values = after.fitted.posterior.sample(jr.key(2), after.fitted.model, 30)
    assert [v.shape[0] for v in values] == [30, 30] and all(np.all(np.isfinite(v)) for v in values)


@pytest.mark.parametrize(("most", "copies"), [(49, 1), (50, 2)])
def test_a_game_keeps_a_covariance_that_is_too_wide_for_each_output(most, copies, monkeypatch):
    """Two outputs of five inducing inputs have 2 · 5² numbers; the game still climbs."""
    monkeypatch.setattr(recipes, "FULL_SIZE", most)
    fitted = tiny_fitted()
    roots = (fitted.posterior.roots[0][:1], *fitted.posterior.roots[1:])
    posterior = GaussianPosterior(fitted.posterior.means, roots)
    start = recipes.anchor(Fitted(fitted.model, posterior), whole=False, noise_dim=2, width=8)
    assert len(find_anchored(start.posterior).frame.roots[0]) == copies
    engine = NaturalGradient(0.02, 4, 0.5, network_rate=0.005)
    after = train.run(jr.key(1), engine, start, tiny_data(), num_steps=100, num_kept=1)
    assert np.mean(after.history.objective[-20:]) > np.mean(after.history.objective[:20])


def test_networks_climb_at_a_rate_of_their_own():
    """The first step of Adam is as long as the rate, whatever the gradient."""
    engine = DSVI(0.1, 2, draw_inducing=True, network_rate=0.001)
    start = recipes.anchor(tiny_fitted(), whole=True, noise_dim=2, width=4, first_mix=0.5)
    state = eqx.filter_jit(engine.init)(jr.key(0), start)
    after, _ = eqx.filter_jit(engine.step)(jr.key(1), state, tiny_data().all())
    moved = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), after.params, state.params)
    posterior = moved.posterior
    assert max(map(float, jax.tree.leaves((posterior.mixers, posterior.player1)))) < 0.00101
    np.testing.assert_allclose(posterior.frame.means[0], 0.1, rtol=1e-3)


def test_a_gaussian_on_top_of_any_hidden_posterior():
    """Its KL is the sum of both, and a Gaussian below makes it the Gaussian of all layers."""
    fitted = tiny_fitted()
    whole = fitted.posterior
    hidden = GaussianPosterior(whole.means[:-1], whole.roots[:-1])
    topped = ToppedPosterior(hidden, whole.means[-1], whole.roots[-1])
    values, kl = topped.sample_and_kl(jr.key(0), fitted.model, 50_000)
    want = whole.sample_and_kl(jr.key(0), fitted.model, 1)[1]
    np.testing.assert_allclose(kl, want, rtol=1e-10)
    root = jnp.tril(whole.roots[-1])
    for p in range(values[-1].shape[2]):
        np.testing.assert_allclose(
            np.mean(values[-1][:, :, p], axis=0), whole.means[-1][:, p], atol=0.03
        )
        np.testing.assert_allclose(np.cov(values[-1][:, :, p].T), root[p] @ root[p].T, atol=0.05)
    first, last = topped.inducing(jr.key(1), fitted.model, 3)
    assert first.value.shape[0] == 3 and last.root is not None


def test_the_estimator_plays_it_keeps_it_and_goes_on(tmp_path):
    random = np.random.default_rng(0)
    x = random.uniform(-2.0, 2.0, size=(40, 1))
    y = np.sign(x[:, 0]) + 0.1 * random.normal(size=40)
    model = DeepGPRegressor(
        engine="ipvi",
        num_inducing=8,
        num_steps=60,
        num_restarts=1,
        num_mixture=20,
        random_state=0,
        engine_options={"noise_dim": 2, "width": 8, "rank": 0, "tied": False},
    ).fit(x, y)
    assert model.num_steps_ == 60 and recipes.is_anchored(model.fitted_)
    posterior = find_anchored(model.fitted_.posterior)
    assert posterior.coupling is None and posterior.mixers[0].weights[0].shape == (8, 2, 8)
    model.save(tmp_path / "model.nashgp")
    np.testing.assert_array_equal(load(tmp_path / "model.nashgp").predict(x), model.predict(x))
    told = model.information_
    assert told["total"] > -0.05 and len(told["layers"]) == 1 and "nats" in model.summary()
    by_turns = {"noise_dim": 2, "width": 8, "num_responses": 2}
    again = model.set_params(warm_start=True, num_steps=10, engine_options=by_turns).fit(x, y)
    assert again.num_steps_ == 10 and recipes.is_anchored(again.fitted_)
    with pytest.raises(InputError, match="num_responses"):
        again.set_params(engine_options=by_turns | {"num_responses": -1}).fit(x, y)


@pytest.mark.parametrize("shared", [False, True])
def test_at_rest_it_is_the_gaussian_draw_for_draw(shared, x64):
    """With one key the two see the same noise, so nothing but mixing tells them apart."""
    fitted = tiny_fitted(num_layers=3)
    frame = gaussian_posterior(fitted.model, hidden_scale=0.7, last_scale=0.4, shared=shared)
    start = Fitted(fitted.model, frame)
    still = recipes.anchor(start, whole=True, first_mix=0.0)
    ours, kl = still.posterior.sample_and_kl(jr.key(5), fitted.model, 4)
    theirs, exact = frame.sample_and_kl(jr.key(5), fitted.model, 4)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    np.testing.assert_allclose(kl, exact, rtol=1e-10)
    moved = recipes.anchor(still, whole=True, first_mix=0.5)  # begins anew around the same frame
    assert not np.allclose(moved.posterior.sample(jr.key(5), fitted.model, 4)[0], theirs[0])
    np.testing.assert_array_equal(moved.posterior.frame.means[0], frame.means[0])


def test_a_single_collapsed_layer_has_nothing_to_mix():
    x = np.linspace(-1.0, 1.0, 12)[:, None]
    settings = {"num_layers": 1, "num_inducing": 5, "num_steps": 6, "random_state": 0}
    game = DeepGPRegressor(engine="ipvi", **settings).fit(x, x[:, 0])
    plain = DeepGPRegressor(engine="dsvi", **settings).fit(x, x[:, 0])
    np.testing.assert_array_equal(game.predict(x), plain.predict(x))


# ---- turns and temperatures ---------------------------------------------------------------------


def test_rows_count_as_the_temperature_says():
    """`β · data term - KL`: the objective of a step is that of scaled rows."""
    inner = DSVI(0.0, 3)
    engine = Tempered(inner, warm_up=4, first_weight=0.01)
    fitted, batch = tiny_fitted(), tiny_data().all()
    state = engine.init(jr.key(0), fitted)
    tempered, plain = eqx.filter_jit(engine.step), eqx.filter_jit(inner.step)
    for number in range(6):
        beta = 0.01 ** max(0.0, 1.0 - number / 4)
        counted = eqx.tree_at(lambda b: b.scale, batch, beta * batch.scale)
        key = jr.key(number)
        want = plain(key, inner.init(key, fitted), counted)[1].objective
        state, info = tempered(key, state, batch)
        np.testing.assert_allclose(info.objective, want, rtol=1e-10)


def test_a_temperature_has_to_fall():
    with pytest.raises(InputError, match="first_weight"):
        Tempered(DSVI(), first_weight=2.0).init(jr.key(0), tiny_fitted())


def test_player_1_moves_in_its_own_turns_alone():
    """Its answer is what Player 2's step leaves standing, and it tells more than before."""
    inner = DSVI(0.01, 2, draw_inducing=True, network_rate=0.003)
    engine = Alternating(inner, num=200, player1_rate=0.01)
    start = recipes.anchor(tiny_fitted(), whole=True, noise_dim=2, width=8, first_mix=3.0)
    state = eqx.filter_jit(engine.init)(jr.key(0), start)
    still = dataclasses.replace(inner, learning_rate=0.0, network_rate=0.0)
    alone = dataclasses.replace(engine, engine=still)
    answered, _ = eqx.filter_jit(alone.step)(jr.key(1), alone.init(jr.key(0), start), _batch())
    both, _ = eqx.filter_jit(engine.step)(jr.key(1), state, _batch())
    a, b = (engine.result(jr.key(2), s, tiny_data(), 0).posterior for s in (answered, both))
    jax.tree.map(np.testing.assert_array_equal, a.player1, b.player1)
    assert not np.array_equal(a.mixers[0].weights[0], b.mixers[0].weights[0])
    eps, _, h = start.posterior.draw(jr.key(3), 2_000)
    before, after = (
        float(jnp.mean(dataclasses.replace(a, player1=who).information(jr.key(4), eps, h, 0)))
        for who in (start.posterior.player1, a.player1)
    )
    assert after > before + 0.5


def test_only_an_anchored_game_has_turns():
    with pytest.raises(InputError, match="anchored"):
        Alternating(DSVI(draw_inducing=True)).init(jr.key(0), tiny_fitted())


def _batch():
    return tiny_data().all()


# ---- what draws tell of their noise -------------------------------------------------------------


def test_a_coupling_is_one_triangular_matrix():
    """Column by column: what it does, undoes, leaves of the volume, and ties together."""
    posterior = random_posterior(3, tiny_fitted(num_layers=3).model, rank=2)
    whole = whole_coupling(posterior)
    c, ends = whole - np.eye(len(whole)), np.cumsum([mean.size for mean in posterior.frame.means])
    assert np.max(np.abs(np.triu(c))) == 0.0 and np.max(np.abs(c)) > 0.01
    back = flat(posterior.coupling.solve(unflat(posterior, whole.T)))
    np.testing.assert_allclose(back, np.eye(len(whole)), atol=1e-12)
    blocks = np.split(whole, ends[:-1])
    each = [0.5 * np.linalg.slogdet(rows @ rows.T)[1] for rows in blocks]
    np.testing.assert_allclose(posterior.coupling.total_correlation(), sum(each), rtol=1e-10)
    assert sum(each) > 0.1


class Tied(GPPrior):
    """The values of the second layer are 0.9 times those of the first, and a little noise."""

    def log_density(self, layers, values):
        first, second = values
        normal = jax.scipy.stats.norm.logpdf
        return jnp.sum(normal(first)) + jnp.sum(normal(second, 0.9 * first, 0.19**0.5))


@pytest.mark.parametrize(("rank", "least"), [(12, 0.0), (0, 1.0)])
def test_a_coupled_frame_ties_layers_and_a_product_cannot(rank, least):
    """The KL to correlated layers goes to zero; without coupling to their total correlation."""
    fitted = tiny_fitted()
    model = DeepGP(fitted.model.layers, fitted.model.likelihood, Tied())
    start = recipes.anchor(Fitted(model, fitted.posterior), whole=True, rank=rank, first_mix=0.0)
    optimiser = optax.adam(optax.cosine_decay_schedule(0.03, 600))

    def body(number, carry):
        posterior, memory = carry
        kl = jax.grad(lambda q: q.sample_and_kl(jr.fold_in(jr.key(5), number), model, 16)[1])
        gradient = kl(posterior)
        still = eqx.tree_at(lambda q: (q.mixers, q.player1), gradient, replace_fn=_zeros)
        with jax.numpy_dtype_promotion("standard"):
            moves, memory = optimiser.update(still, memory)
        return eqx.apply_updates(posterior, moves), memory

    begin = (start.posterior, optimiser.init(start.posterior))
    after, _ = jax.jit(lambda begin: jax.lax.fori_loop(0, 600, body, begin))(begin)
    _, kl = after.sample_and_kl(jr.key(6), model, 2_000)
    together = -0.5 * fitted.posterior.means[1].size * np.log(0.19)
    assert abs(float(kl) / together - least) < 0.05
    told = measure_information(jr.key(7), after, 2, 2).coupled
    np.testing.assert_allclose(told / together, 1.0 - least, atol=0.05)


def _zeros(tree):
    return jax.tree.map(jnp.zeros_like, tree)


def test_information_of_a_linear_generator():
    """`h = W ε + η` in two layers: `I = ½ log det(I + W Wᵀ)`, for each layer and for both."""
    fitted = tiny_fitted()
    posterior = recipes.anchor(fitted, whole=True, noise_dim=2, depth=0).posterior

    def plain(net):  # a = W ε, log b = 0
        p, scale = net.weights[0].shape[1] // 2, 0.5
        weight = jnp.zeros_like(net.weights[0]).at[:2, :p].set(scale * net.weights[0][:2, :p])
        return eqx.tree_at(
            lambda n: (n.weights[0], n.biases[0]), net, (60.0 * weight, 0.0 * net.biases[0])
        )

    posterior = eqx.tree_at(lambda q: q.mixers, posterior, tuple(map(plain, posterior.mixers)))
    unit = posterior.mix(jnp.eye(2))
    w = [np.asarray(mix.shift).reshape(2, -1).T for mix in unit]

    def exact(w):
        return 0.5 * np.linalg.slogdet(np.eye(2) + w.T @ w)[1]

    got = measure_information(jr.key(0), posterior, 2_000, 2_000)
    both = exact(np.concatenate(w))
    np.testing.assert_allclose(got.total, both, atol=0.1)
    np.testing.assert_allclose(got.layers, [exact(one) for one in w], atol=0.1)
    np.testing.assert_allclose(got.across, sum(map(exact, w)) - both, atol=0.1)
    assert got.across > 0.1 and got.gap > 0.0


# ---- a mixture of starts ------------------------------------------------------------------------


def test_coordinates_are_where_values_came_from():
    posterior = random_posterior(2, tiny_fitted().model, noise_dim=2)
    _, _, h = posterior.draw(jr.key(0), 7)
    for back, there in zip(posterior.coordinates(posterior.values(h)), h, strict=True):
        np.testing.assert_allclose(back, there, atol=1e-10)


def test_outputs_that_share_a_covariance_are_as_many_copies_of_it():
    """The same draws, coordinates and KL, which counts the covariance once for each output."""
    model = flat_model(4, 3)
    posterior = random_posterior(0, model, player1=0.3)
    shared = GaussianPosterior(posterior.frame.means, (posterior.frame.roots[0][:1],))
    one = dataclasses.replace(posterior, frame=shared)
    copies = dataclasses.replace(posterior, frame=shared.unshared())
    values, kl = eqx.filter_jit(one.sample_and_kl)(jr.key(1), model, 5)
    same, want = eqx.filter_jit(copies.sample_and_kl)(jr.key(1), model, 5)
    np.testing.assert_allclose(values[0], same[0], rtol=1e-12)
    np.testing.assert_allclose(kl, want, rtol=1e-12)
    np.testing.assert_allclose(one.coordinates(values)[0], copies.coordinates(same)[0], rtol=1e-10)


def test_parts_that_found_the_same_mode_share_its_weight():
    """Two of three Gaussians sit on one of two modes, which hold 0.3 and 0.7 of the mass."""
    model = flat_model(1)
    centres = jnp.asarray([-8.0, -8.0, 8.0])

    def part(centre):
        frame = GaussianPosterior((jnp.full((1, 1), centre),), (jnp.ones((1, 1, 1)),))
        return anchored_posterior(jr.key(0), frame, model, first_mix=0.0, width=2, noise_dim=1)

    parts = eqx.filter_vmap(part)(centres)
    values, log_q = densities(jr.key(1), parts, 50, 5)
    v = values[0][:, :, 0, 0]
    normal = jax.scipy.stats.norm.logpdf
    for number, centre in enumerate(centres):  # without mixing, densities are exact
        np.testing.assert_allclose(log_q[:, :, number], normal(v, centre), atol=1e-9)
    target = jnp.logaddexp(np.log(0.3) + normal(v, -8.0), np.log(0.7) + normal(v, 8.0))
    made = blend(parts, target + 5.0, log_q)
    np.testing.assert_allclose(made.weight[0] + made.weight[1], 0.3, atol=1e-6)
    draws = made.sample(jr.key(2), model, 1_000)[0]
    assert np.mean(np.asarray(draws) > 0.0) == pytest.approx(0.7, abs=2e-3)


def test_densities_of_parts_are_bounds_from_the_right_side():
    """A mixture's estimated KL is never below the true one, with the noises of its draws known."""
    model = flat_model(2)
    parts = eqx.filter_vmap(lambda seed: random_mixed(seed, model))(jnp.arange(2))
    values, log_q = densities(jr.key(1), parts, 4_000, 3)
    weight = jnp.asarray([0.4, 0.6])
    told = jax.nn.logsumexp(log_q + jnp.log(weight)[None, None], axis=2)
    for number in range(2):
        v = jax.tree.map(lambda leaf, n=number: leaf[n], values)
        each = []
        for other in range(2):
            one = lane(parts, other)
            each.append(log_q_on_grid(one, one.coordinates(v)) - one.log_det)
        true = jax.nn.logsumexp(jnp.stack(each) + jnp.log(weight)[:, None], axis=0)
        gap = np.asarray(told[number] - true)
        assert np.mean(gap) > -4.0 * np.std(gap) / len(gap) ** 0.5
        assert np.mean(gap) < 0.5


def random_mixed(seed, model):
    """A generator with much to tell, at a random place."""
    frame = GaussianPosterior(
        tuple(jr.normal(jr.key(seed), (layer.num_inducing, 1)) for layer in model.layers),
        tuple(jnp.eye(layer.num_inducing)[None] for layer in model.layers),
    )
    return anchored_posterior(
        jr.key(seed), frame, model, noise_dim=1, width=8, depth=2, first_mix=0.9
    )


def test_starts_are_blended_for_a_known_model_alone():
    start = recipes.anchor(tiny_fitted(), whole=True, noise_dim=1, width=4)
    with pytest.raises(InputError, match="model_rate"):
        Starts(DSVI(draw_inducing=True), 3, blended=True).init(jr.key(0), start)
