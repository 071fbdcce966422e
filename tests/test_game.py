"""The paper's game: each player's payoff and gradient, and what Proposition 1 promises."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import kernels, means, train
from nashgp.engines import PaperGame, Starts, estimate_elbo, lane
from nashgp.engines.game import Contrast, log_likelihood
from nashgp.errors import InputError
from nashgp.experiments import diamond
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted, GeneratedPosterior, generated_posterior, sample_prior
from nashgp.precision import cast
from nashgp.transforms import Frozen
from tests.cases import tiny_data, tiny_fitted

pytestmark = pytest.mark.usefixtures("x64")


def start(engine, seed=0, **settings):
    fitted = tiny_fitted(**settings)
    return engine.init(jr.key(seed), fitted), fitted


# ---- the players --------------------------------------------------------------------------------


def test_one_noise_is_shared_by_layers_and_inducing_inputs():
    """All values of a draw are one function of one small noise: equal noise, equal draws."""
    model = tiny_fitted().model
    posterior = generated_posterior(jr.key(0), model, noise_dim=1)
    eps = jnp.asarray([[0.3], [0.3], [-1.0]])
    values = posterior.generator(eps, model.layers)
    for value, layer in zip(values, model.layers, strict=True):
        assert value.shape == (3, layer.num_inducing, layer.num_outputs)
        np.testing.assert_array_equal(value[0], value[1])
        assert not np.allclose(value[0], value[2])


def test_tying_saves_a_factor_of_the_inducing_inputs():
    model = tiny_fitted().model
    tied, naive = (
        [
            net.num_parameters
            for net in generated_posterior(jr.key(0), model, tied=t).generator.networks
        ]
        for t in (True, False)
    )
    # Two inputs, two noises, width two, two outputs; the naive one is not told z.
    assert tied[0] == (4 * 2 + 2) + (2 * 2 + 2)
    assert naive[0] == model.layers[0].num_inducing * ((2 * 2 + 2) + (2 * 2 + 2))


def test_a_naive_generator_has_parameters_for_each_inducing_input():
    """Moving the parameters of one inducing input moves that one alone."""
    model = tiny_fitted().model
    generator = generated_posterior(jr.key(0), model, tied=False).generator
    moved = eqx.tree_at(
        lambda g: g.networks[0].weights[0],
        generator,
        generator.networks[0].weights[0].at[2].add(1.0),
    )
    eps = jr.normal(jr.key(1), (3, generator.noise_dim))
    before, after = generator(eps, model.layers)[0], moved(eps, model.layers)[0]
    changed = np.any(np.asarray(before != after), axis=(0, 2))
    np.testing.assert_array_equal(changed, np.arange(5) == 2)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_summed_over_inducing_inputs_and_layers(tied):
    """Not averaged: an average would weigh the KL by one over their number."""
    model = tiny_fitted().model
    judge = generated_posterior(jr.key(0), model, tied=tied).discriminator
    values = sample_prior(jr.key(1), model, 3)
    total = np.zeros(3)
    parts = zip(judge.networks, judge.scales, values, model.layers, strict=True)
    for net, scale, value, layer in parts:
        for m in range(layer.num_inducing):
            one = net if tied else jax.tree.map(lambda leaf, m=m: leaf[m], net)
            seen = value[:, m : m + 1] / scale.value
            if tied:
                z = jnp.broadcast_to(layer.z[m], (3, 1, layer.z.shape[1]))
                seen = jnp.concatenate([seen, z], axis=2)
            total += np.asarray(one(seen))[:, 0, 0]
    np.testing.assert_allclose(judge(values, model.layers), total, rtol=1e-10)


def test_unwhitened_players_speak_of_u():
    model = tiny_fitted().model
    posterior = generated_posterior(jr.key(0), model, whitened=False)
    eps = jr.normal(jr.key(1), (2, posterior.generator.noise_dim))
    told = dataclasses.replace(posterior.generator, whitened=True)
    for v, u, layer in zip(
        posterior.generator(eps, model.layers), told(eps, model.layers), model.layers, strict=True
    ):
        np.testing.assert_allclose(jax.vmap(layer.unwhiten)(v), u, rtol=1e-8, atol=1e-8)


def test_both_players_are_scaled_to_the_prior():
    """A prior far wider than a GP's: draws start as wide, and logits are not yet extreme."""
    model = diamond.problem("float64")[0].model
    posterior = generated_posterior(jr.key(0), model, depth=2, width=20)
    wide = np.std(sample_prior(jr.key(1), model, 1_000)[0])
    assert wide > 5.0
    np.testing.assert_allclose(posterior.generator.scales[0].value, wide, rtol=0.2)
    assert np.std(posterior.sample(jr.key(2), model, 500)[0]) > 0.2 * wide
    gp = generated_posterior(jr.key(0), tiny_fitted().model)
    np.testing.assert_allclose([scale.value for scale in gp.generator.scales], 1.0, rtol=0.1)


def test_quadratic_features_are_all_products():
    model = tiny_fitted().model
    judge = generated_posterior(jr.key(0), model, quadratic=True).discriminator
    assert judge.networks[0].weights[0].shape[0] == 2 + 3 + 2  # u, its products, z


def test_waves_are_cosines_and_sines_of_the_values():
    """With no hidden layer the logit is linear in them, so Player 1's payoff is concave."""
    model = tiny_fitted().model
    judge = generated_posterior(
        jr.key(0), model, num_waves=3, wave_scale=4.0, discriminator_depth=0
    ).discriminator
    values = sample_prior(jr.key(1), model, 4)
    total = np.zeros(4)
    for n, (value, layer) in enumerate(zip(values, model.layers, strict=True)):
        plain = np.asarray(value) / float(judge.scales[n].value)
        angle = plain @ np.asarray(judge.waves[n].value)
        z = np.broadcast_to(layer.z, (4, *layer.z.shape))
        seen = np.concatenate([plain, np.cos(angle), np.sin(angle), z], axis=2)
        net = judge.networks[n]
        total += np.sum(seen @ np.asarray(net.weights[0]) + np.asarray(net.biases[0]), axis=(1, 2))
    np.testing.assert_allclose(judge(values, model.layers), total, rtol=1e-10)
    assert 1.0 < np.std(np.concatenate([w.value.ravel() for w in judge.waves])) < 8.0


def mute(judge):
    """The same discriminator with logits of zero."""
    networks = jax.tree.map(jnp.zeros_like, judge.networks)
    return eqx.tree_at(lambda d: d.networks, judge, networks)


# ---- payoffs ------------------------------------------------------------------------------------


def by_hand(engine, state, key, data):
    """Player 2's two functions of (θ, Φ) at the draws of a step: L and the mean of T."""
    draw, noise, _, rest, _ = jr.split(jr.split(key)[1], 5)
    held = eqx.combine(state.model, state.frozen)

    def fit(params, generator, model=None):
        model = eqx.combine(params, state.frozen) if model is None else model
        eps = jr.normal(draw, (engine.num_samples, generator.noise_dim))
        values = generator(eps, model.layers)
        return log_likelihood(noise, rest, model, values, data.all(), engine.power)

    def ratio(generator):
        eps = jr.normal(draw, (engine.num_samples, generator.noise_dim))
        return jnp.mean(state.discriminator(generator(eps, held.layers), held.layers))

    return fit, ratio


@pytest.mark.parametrize("whitened", [True, False])
def test_the_model_climbs_the_likelihood_and_the_generator_pays_the_ratio(whitened):
    """θ climbs L alone; Φ climbs L - T. A wrong sign of T moves Φ the other way."""
    engine = PaperGame(num_samples=3, whitened=whitened, discriminator_rate=1e-12)
    state, _ = start(engine)
    data, key = tiny_data(), jr.key(5)
    after, info = eqx.filter_jit(engine.step)(key, state, data.all())
    fit, ratio = by_hand(engine, state, key, data)
    np.testing.assert_allclose(info.log_ratio, ratio(state.generator), rtol=1e-8)
    value = fit(state.model, state.generator) - ratio(state.generator)
    np.testing.assert_allclose(info.player2, value, rtol=1e-8)
    theta = eqx.filter_grad(lambda p: fit(p, state.generator))(state.model)
    phi = eqx.filter_grad(lambda g: fit(state.model, g) - ratio(g))(state.generator)
    # Adam's first step has the sign of the gradient and the size of the rate.
    for moved, before, slope, rate in (
        (after.model, state.model, theta, engine.learning_rate),
        (after.generator, state.generator, phi, engine.generator_rate),
    ):
        leaves = zip(*map(jax.tree.leaves, (moved, before, slope)), strict=True)
        for new, old, g in leaves:
            clear = np.abs(np.asarray(g)) > 1e-6
            step = np.asarray(new - old)
            np.testing.assert_allclose(step[clear], rate * np.sign(g)[clear], rtol=1e-2)


def test_player_1_without_an_opinion_is_paid_minus_two_log_two():
    engine = PaperGame(num_samples=50)
    state, _ = start(engine)
    silent = mute(state.discriminator)
    _, (payoff, accuracy) = engine.player1(jr.key(0), state._replace(discriminator=silent))
    np.testing.assert_allclose(payoff, -2.0 * np.log(2.0))
    assert accuracy == 0.0  # a logit of zero tells nothing apart


def test_player_1_improves_against_a_player_2_that_stands_still():
    engine = PaperGame(num_samples=100, discriminator_rate=0.01)
    state, _ = start(engine)
    step = eqx.filter_jit(engine.player1)
    first, last = [], []
    for number in range(150):
        state, (payoff, accuracy) = step(jr.key(number), state)
        (first if number < 20 else last).append((float(payoff), float(accuracy)))
    assert np.mean(last[-20:], axis=0)[0] > np.mean(first, axis=0)[0] + 0.1
    assert np.mean(last[-20:], axis=0)[1] > 0.7


def test_player_1_moves_as_often_as_asked():
    engine = PaperGame(num_player1_steps=4)
    state, _ = start(engine)
    after, _ = eqx.filter_jit(engine.step)(jr.key(0), state, tiny_data().all())
    counts = [memory[0].count for memory in after.memory]
    assert [int(count) for count in counts] == [1, 1, 4]


def test_adaptive_contrast_adds_what_it_knows():
    """Whatever the logit, log r - log p is exact; at a silent discriminator it is all there is."""
    engine = PaperGame(num_samples=4, adaptive_contrast=True)
    state, fitted = start(engine)
    model = fitted.model
    values = sample_prior(jr.key(0), model, 4)
    contrast = Contrast(
        tuple(jnp.full(v.shape[1:], 0.3) for v in values),
        tuple(jnp.full(v.shape[1:], 0.5) for v in values),
    )
    silent = mute(state.discriminator)
    got = engine.log_ratio(contrast, silent, model, values)
    flat = np.concatenate([np.asarray(v).reshape(4, -1) for v in values], axis=1)
    want = np.sum(-0.5 * ((flat - 0.3) / 0.5) ** 2 - np.log(0.5) + 0.5 * flat**2, axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-8)


def test_the_weight_of_the_kl_warms_up():
    data, key = tiny_data(), jr.key(3)
    cold = PaperGame(num_samples=3, warm_up=10, first_kl_weight=0.0, discriminator_rate=1e-12)
    state, _ = start(cold)
    _, info = cold.step(key, state, data.all())
    np.testing.assert_allclose(info.player2, info.objective + info.log_ratio)  # weight zero
    _, info = cold.step(key, state._replace(step=jnp.asarray(20)), data.all())
    np.testing.assert_allclose(info.player2, info.objective)  # weight one


def test_adaptive_contrast_needs_whitened_values():
    with pytest.raises(InputError, match="whitened=True"):
        start(PaperGame(adaptive_contrast=True, whitened=False))


def test_instance_noise_needs_an_end():
    with pytest.raises(InputError, match="set warm_up too"):
        start(PaperGame(instance_noise=1.0))


@pytest.mark.parametrize("last", [-0.1, 1.1])
def test_instance_noise_falls_to_less(last):
    with pytest.raises(InputError, match=r"last_noise .* between 0 and 1"):
        start(PaperGame(instance_noise=1.0, warm_up=10, last_noise=last))


@pytest.mark.parametrize(
    ("last", "want"), [(0.0, [8.0, 4.0, 0.8, 0.0]), (0.5, [8.0, 2.0, 0.66, 0.0])]
)
def test_instance_noise_falls_and_ends(last, want):
    """Along a line, or by equal factors to what is left at the end; then there is none."""
    engine = PaperGame(instance_noise=8.0, warm_up=10, last_noise=last)
    still = (jnp.zeros((4_000, 1, 1)),)
    got = [jnp.std(engine._blur(jr.key(0), jnp.asarray(at), still)[0]) for at in (0, 5, 9, 10)]
    np.testing.assert_allclose(got, want, rtol=0.05)


@pytest.mark.parametrize("steady", [False, True])
def test_a_steady_discriminator_moves_on_when_the_generator_has_stopped(steady):
    engine = PaperGame(
        num_samples=3, num_player1_steps=2, decay_steps=3, steady_discriminator=steady
    )
    state, _ = start(engine)
    for number in range(4):
        before = state
        state, _ = engine.step(jr.key(number), state, tiny_data().all())

    def moved(player):
        pairs = zip(
            *(jax.tree.leaves(getattr(one, player)) for one in (before, state)), strict=True
        )
        return any(not np.array_equal(*pair) for pair in pairs)

    assert moved("discriminator") == steady and not moved("generator")


# ---- Proposition 1 ------------------------------------------------------------------------------


def gaussian_generator(num, seed=0):
    """A linear generator of one inducing input with `num` outputs: q is N(m, A Aᵀ), known."""
    random = np.random.default_rng(seed)
    with jax.enable_x64(False):
        layer = SparseGPLayer(
            kernels.RBF(np.ones(num)), means.Zero(num), jnp.zeros((1, num), "float32"), num
        )
        model = cast(DeepGP((layer,), Gaussian(np.full(num, 0.1))), "float32")
        posterior = generated_posterior(
            jr.key(seed), model, depth=0, discriminator_depth=2, discriminator_width=48,
            quadratic=True,
        )  # fmt: skip
    root = np.eye(num) * random.uniform(0.5, 0.9, num) + 0.2 * np.tril(
        random.normal(size=(num, num)), -1
    )
    mean = random.uniform(-0.8, 0.8, num)
    net = posterior.generator.networks[0]
    weight = jnp.zeros_like(net.weights[0]).at[:num].set(jnp.asarray(root.T, "float32"))
    net = eqx.tree_at(
        lambda n: (n.weights[0], n.biases[0]), net, (weight, jnp.asarray(mean, "float32"))
    )
    posterior = eqx.tree_at(lambda p: p.generator.networks, posterior, (net,))
    one = Frozen(jnp.ones((), "float32"))
    posterior = eqx.tree_at(lambda p: p.generator.scales, posterior, (one,))
    return Fitted(model, posterior), mean, root


@pytest.mark.parametrize("num", [1, 2, 5])
def test_a_trained_discriminator_is_the_log_ratio(num):
    """Proposition 1: the logit regressed on log q - log p has slope one and intercept zero."""
    fitted, mean, root = gaussian_generator(num)
    engine = PaperGame(num_samples=512, discriminator_rate=3e-3, decay_steps=4_000, momentum=0.9)
    with jax.enable_x64(False):
        state = engine.init(jr.key(0), fitted)

        def once(number, state):
            return engine.player1(jr.fold_in(jr.key(1), number), state)[0]

        state = eqx.filter_jit(lambda s: jax.lax.fori_loop(0, 4_000, once, s))(state)
        values = GeneratedPosterior(state.generator, state.discriminator).sample(
            jr.key(2), fitted.model, 20_000
        )
        logit = np.asarray(state.discriminator(values, fitted.model.layers), np.float64)
    u = np.asarray(values[0], np.float64)[:, 0]
    white = np.linalg.solve(root, (u - mean).T).T
    ratio = -0.5 * np.sum(white**2, 1) - np.linalg.slogdet(root)[1] + 0.5 * np.sum(u**2, 1)
    slope, intercept = np.polyfit(ratio, logit, 1)
    covariance = root @ root.T
    kl = 0.5 * (np.trace(covariance) + mean @ mean - num - np.linalg.slogdet(covariance)[1])
    print(f"{num}: slope {slope:.3f} intercept {intercept:.3f} KL {np.mean(logit):.3f} of {kl:.3f}")
    assert 0.95 < slope < 1.05
    assert abs(intercept) < 0.1
    assert abs(np.mean(logit) - kl) < 0.05 * kl


def test_the_elbo_after_training_is_close_to_the_exact_one():
    """A Gaussian q whose KL is known: the estimate agrees within its error and a little."""
    fitted, mean, root = gaussian_generator(2)
    engine = PaperGame(num_samples=256, discriminator_rate=3e-3, momentum=0.9)
    with jax.enable_x64(False):
        data = tiny_data(num=8, dtype="float32")
        got = estimate_elbo(jr.key(0), engine, fitted, data, num_steps=3_000, num_draws=4_000)
        values = fitted.posterior.sample(jr.key(7), fitted.model, 4_000)
        one = jax.vmap(
            lambda v: log_likelihood(
                jr.key(0), jr.key(1), fitted.model, (v[None],), data.all(), 0.0
            )
        )
        fit = np.asarray(eqx.filter_jit(one)(values[0]), np.float64)
    covariance = root @ root.T
    kl = 0.5 * (np.trace(covariance) + mean @ mean - 2 - np.linalg.slogdet(covariance)[1])
    assert abs(got.value - (np.mean(fit) - kl)) < 4.0 * got.error + 0.1 * kl
    assert 0.0 < got.error < 0.2 * abs(np.std(fit))


# ---- through the loop ---------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_the_game_is_played_through_the_loop_with_batches(tied):
    engine = PaperGame(num_samples=4, tied=tied, num_player1_steps=2)
    outcome = train.run(
        jr.key(0), engine, tiny_fitted("poisson"), tiny_data("poisson"), num_steps=20, batch_size=6
    )
    info = outcome.history.info
    assert set(info) == {
        "objective", "accuracy", "log_ratio", "log_ratio_spread", "player1", "player2"
    }  # fmt: skip
    assert all(values.shape == (20,) and np.all(np.isfinite(values)) for values in info.values())
    np.testing.assert_allclose(info["player2"], info["objective"], rtol=1e-6)
    assert np.all((info["accuracy"] >= 0.0) & (info["accuracy"] <= 1.0))
    assert isinstance(outcome.fitted.posterior, GeneratedPosterior)


def test_a_second_run_goes_on_with_both_players():
    engine = PaperGame(num_samples=2)
    state, _ = start(engine)
    done = engine.result(jr.key(0), state, tiny_data(), 0)
    again = dataclasses.replace(engine, width=7).init(jr.key(1), done)
    for old, new in zip(
        jax.tree.leaves(state.discriminator), jax.tree.leaves(again.discriminator), strict=True
    ):
        np.testing.assert_array_equal(old, new)


# ---- several starts -----------------------------------------------------------------------------


def test_starts_are_games_of_their_own_and_the_best_is_kept():
    """Each start moves as it would alone, and the result is the one that leads."""
    engine = PaperGame(num_samples=3)
    starts = Starts(engine, 3)
    fitted, data = tiny_fitted(), tiny_data()
    state = eqx.filter_jit(starts.init)(jr.key(0), fitted)
    alone_step, step = eqx.filter_jit(engine.step), eqx.filter_jit(starts.step)
    alone, seen = [], []
    for number in range(2):
        key = jr.key(number)
        alone, seen = [], []
        for place, one in enumerate(jr.split(key, 3)):
            after, info = alone_step(one, lane(state.states, place), data.all())
            alone.append(after)
            seen.append(float(info.objective))
        state, info = step(key, state, data.all())
        leader = int(jnp.argmax(state.score))
        assert float(info.objective) == pytest.approx(seen[leader], rel=1e-9)
    for place in range(3):
        for got, want in zip(
            jax.tree.leaves(lane(state.states, place)), jax.tree.leaves(alone[place]), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-12)
    kept = starts.result(jr.key(9), state, data, 0).posterior
    leader = int(np.argmax(state.score))
    want = alone[leader].generator.networks[0].weights[0]
    np.testing.assert_allclose(kept.generator.networks[0].weights[0], want)
    others = [one.generator.networks[0].weights[0] for n, one in enumerate(alone) if n != leader]
    assert not any(np.allclose(one, want) for one in others)
