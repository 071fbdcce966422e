"""Latent inputs: against the collapsed objective, integrals on a grid, a known curve."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm, spearmanr

from nashgp import kernels, latent, means, placing, predict, train
from nashgp.batch import make_data
from nashgp.engines import (
    Collapsed,
    CollapsedLatents,
    NaturalLatents,
    collapsed_objective,
    latent_objective,
)
from nashgp.errors import InputError
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.linalg import conjugate_gradients
from nashgp.model import DeepGP
from nashgp.posteriors import (
    AnchoredLatents,
    Below,
    Fitted,
    GaussianLatents,
    GaussianPosterior,
    LatentPosterior,
    anchored_latents,
)
from nashgp.recipes import Config
from nashgp.transforms import trainable
from tests.cases import rows, tiny_fitted
from tests.numeric import directional_error, log_normal

pytestmark = pytest.mark.usefixtures("x64")

SLOW = pytest.mark.slow
NO_LAYERS = GaussianPosterior((), ())
KNOWN = 1e-9  # standard deviation of a latent that is as good as known


def gaussian(num=12, width=2, scale=None, seed=0):
    """Latents with roots away from the identity, or known ones."""
    random = np.random.default_rng(seed)
    root = 0.3 * random.normal(size=(num, width, width)) + 0.8 * np.eye(width)
    root = root if scale is None else np.tile(scale * np.eye(width), (num, 1, 1))
    return GaussianLatents(jnp.asarray(random.normal(size=(num, width))), jnp.asarray(root))


def anchored(num=12, width=2, seed=0, recogniser=0.0, first_mix=1.0, **settings):
    """A generator that mixes much, with a recogniser so far from saying nothing."""
    made = anchored_latents(
        jr.key(seed), gaussian(num, width), width=8, first_mix=first_mix, **settings
    )
    random = np.random.default_rng(seed)
    last = made.recogniser.weights[-1]
    moved = jnp.asarray(recogniser * random.normal(size=last.shape))
    return eqx.tree_at(lambda m: m.recogniser.weights[-1], made, moved)


def tiny_model(num_layers, num_targets):
    """Layers from the registry of cases under one noise for all columns."""
    fitted = tiny_fitted(num_layers=num_layers)
    last = fitted.model.layers[-1]
    mean = means.Constant(np.linspace(-0.3, 0.4, num_targets))
    layer = SparseGPLayer(last.kernel, mean, last.z, num_targets)
    model = DeepGP((*fitted.model.layers[:-1], layer), Gaussian(0.15))
    hidden = GaussianPosterior(fitted.posterior.means[:-1], fitted.posterior.roots[:-1])
    return model, hidden


def targets(missing, num=12, num_targets=10):
    """Rows that miss nothing, a few patterns, or anything."""
    y = rows(num, num_targets, seed=5)
    if missing == "patterns":
        y[2:5, :3] = np.nan
        y[7:, 3:5] = np.nan
        y[1] = np.nan  # a row of which nothing is known
    if missing == "anywhere":
        y[np.random.default_rng(0).uniform(size=y.shape) < 0.3] = np.nan
    return y


@eqx.filter_jit
def value(key, model, below, columns, data, power, num_samples=1):
    return latent_objective(
        key, model, below, columns, data.all(), num_samples=num_samples, power=power
    )


# ---- the KL of latents ----


def test_the_kl_of_gaussian_latents():
    """`½ (tr Σ + |μ|² - D - log |Σ|)` of the rows asked for, and draws with those moments."""
    latents, chosen = gaussian(), np.array([3, 7, 7])
    drawn, kl = latents.sample_and_kl(jr.key(0), jnp.asarray(chosen), 40_000)
    for place, row in enumerate(chosen):
        mean, root = np.asarray(latents.mean[row]), np.tril(latents.root[row])
        cov = root @ root.T
        want = 0.5 * (np.trace(cov) + mean @ mean - 2.0 - np.linalg.slogdet(cov)[1])
        assert abs(kl[place] - want) < 1e-12
        np.testing.assert_allclose(drawn[:, place].mean(axis=0), mean, atol=0.03)
        np.testing.assert_allclose(np.cov(drawn[:, place].T), cov, atol=0.06)


def density(latents, row, x):
    """`q(x)` of a latent of one dimension, integrated over its noise."""
    frame = latents if isinstance(latents, GaussianLatents) else latents.frame
    root, mean = float(frame.root[row, 0, 0]), float(frame.mean[row, 0])
    if isinstance(latents, GaussianLatents):
        return norm.pdf(x, mean, abs(root))
    eps = np.linspace(-7.0, 7.0, 801)
    shift, log_scale = latents.mix(jnp.asarray([row]), jnp.asarray(eps)[:, None, None])
    centre = mean + root * np.asarray(shift)[:, 0]
    spread = abs(root) * np.exp(np.asarray(log_scale))[:, 0]
    return norm.pdf(x[None], centre, spread).T @ (norm.pdf(eps) * (eps[1] - eps[0]))


def grid_kl(latents, row):
    """`∫ q log q / p`, and the mass of q."""
    x = np.linspace(-14.0, 14.0, 4_001)
    q = density(latents, row, x)
    inside = q > 1e-300
    terms = q[inside] * (np.log(q[inside]) - norm.logpdf(x[inside]))
    return np.sum(terms) * (x[1] - x[0]), np.sum(q) * (x[1] - x[0])


@SLOW
@pytest.mark.parametrize("recogniser", [0.0, 0.5])
def test_the_kl_of_anchored_latents_is_bounded_from_above(recogniser):
    """Whatever the recogniser says; with many importance draws it is the integral itself."""
    few = anchored(3, 1, seed=4, recogniser=recogniser, noise_dim=1, num_importance=2)
    many = dataclasses.replace(few, num_importance=300)
    index = jnp.arange(3)
    for latents, tight in ((few, False), (many, True)):
        keys = jr.split(jr.key(1), 100)
        one = lambda key, q=latents: q.sample_and_kl(key, index, 40)[1]  # noqa: E731
        each = np.asarray(jax.jit(lambda keys, one=one: jax.lax.map(one, keys))(keys))
        error = np.std(each, axis=0) / 10.0
        for row in range(3):
            want, total = grid_kl(latents, row)
            assert abs(total - 1.0) < 1e-6
            got = float(np.mean(each[:, row]))
            assert got > want - 4.0 * error[row]
            assert not tight or got < want + 4.0 * error[row] + 0.02


def test_an_anchor_that_mixes_nothing_is_its_frame():
    latents = anchored_latents(jr.key(0), gaussian(), first_mix=0.0)
    index = jnp.arange(12)
    want, got = (
        eqx.filter_jit(q.sample_and_kl)(jr.key(1), index, 5)[1] for q in (latents.frame, latents)
    )
    np.testing.assert_allclose(got, want, rtol=1e-10)


# ---- the objective ----


@pytest.mark.parametrize(
    ("missing", "power"),
    [
        pytest.param("nothing", 0.0, marks=SLOW),
        pytest.param("nothing", 0.5, marks=SLOW),
        pytest.param("patterns", 0.0, marks=SLOW),
        ("patterns", 0.5),
        pytest.param("anywhere", 0.0, marks=SLOW),
        pytest.param("anywhere", 0.5, marks=SLOW),
    ],
)
def test_known_latents_give_the_collapsed_objective(missing, power):
    """That one has a factorisation for every column; groups must agree where they are exact."""
    model, hidden = tiny_model(1, 10)
    y = targets(missing)
    latents, columns = gaussian(scale=KNOWN), latent.group_columns(y)
    kl = float(jnp.sum(latents.sample_and_kl(jr.key(0), jnp.arange(12), 1)[1]))
    data = latent.number_rows(y)
    got = float(value(jr.key(0), model, Below(latents, hidden), columns, data, power)) + kl
    known = make_data(np.asarray(latents.mean), y)
    whole = eqx.filter_jit(collapsed_objective)
    want = float(whole(jr.key(0), model, hidden, known.all(), num_samples=1, power=power))
    assert columns.exact == (missing != "anywhere")
    if columns.exact:
        assert columns.num_groups == (1 if missing == "nothing" else 3)
        assert abs(got - want) < 1e-6 * abs(want)
    else:  # below it by what the shared covariance loses, the means being those of each column
        assert want - 0.02 * abs(want) < got < want


@SLOW
def test_hidden_layers_are_those_of_the_collapsed_objective():
    """Two layers and known latents: the same mean over draws, within its error."""
    model, hidden = tiny_model(2, 3)
    y = targets("nothing", num_targets=3)
    latents, data = gaussian(scale=KNOWN), latent.number_rows(y)
    below, columns = Below(latents, hidden), latent.group_columns(y)
    kl = float(jnp.sum(latents.sample_and_kl(jr.key(0), jnp.arange(12), 1)[1]))
    known = make_data(np.asarray(latents.mean), y).all()
    keys = jr.split(jr.key(0), 1_500)
    got = jax.jit(jax.vmap(lambda k: value(k, model, below, columns, data, 0.5)))(keys) + kl
    want = jax.jit(
        jax.vmap(lambda k: collapsed_objective(k, model, hidden, known, num_samples=1, power=0.5))
    )(jr.split(jr.key(1), 1_500))
    error = np.hypot(np.std(got), np.std(want)) / len(keys) ** 0.5
    assert abs(np.mean(got) - np.mean(want)) < 4.0 * error
    assert error < 0.02 * abs(np.mean(want))  # a test that can fail


@SLOW
@pytest.mark.parametrize("missing", ["nothing", "patterns"])
def test_the_gradient_is_that_of_the_value(missing):
    """Through latents, networks, both layers and the noise, with the best Gaussians held fixed."""
    model, hidden = tiny_model(2, 10)
    y = targets(missing)
    data, columns = latent.number_rows(y), latent.group_columns(y)

    parts = (model, Below(anchored(recogniser=0.3), hidden))
    params, frozen = eqx.partition(parts, trainable(parts))

    def payoff(params):
        parts = eqx.combine(params, frozen)
        return value(jr.key(0), *parts, columns, data, 0.3, num_samples=2)

    assert directional_error(payoff, params, step=1e-6) < 1e-6


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("tight", 0),
        *(pytest.param(kind, 0, marks=SLOW) for kind in ("gaussian", "loose")),
        *(pytest.param(kind, 1, marks=SLOW) for kind in ("gaussian", "tight", "loose")),
    ],
)
def test_the_objective_is_the_evidence_less_the_divergence(kind, seed):
    """Two rows with a latent of one dimension, on a grid: `log p(Y) - KL(q(X) ‖ p(X | Y))`.

    That is the value without inducing variables; with them every draw has less, and a recogniser
    that is wrong takes away from the mean.
    """
    random = np.random.default_rng(seed)
    length, variance, noise = random.uniform(0.4, 1.5, size=3)
    z = jnp.asarray(random.normal(size=(4, 1)))
    layer = SparseGPLayer(kernels.RBF(length, variance), means.Zero(2), z, 2)
    model, y = DeepGP((layer,), Gaussian(0.3 * noise)), random.normal(size=(2, 2))
    latents = gaussian(2, 1, seed=seed)
    if kind != "gaussian":
        wrong = {"recogniser": 0.3, "num_importance": 2} if kind == "loose" else {}
        latents = anchored(2, 1, seed=seed, noise_dim=1, **{"num_importance": 100, **wrong})

    side = np.linspace(-14.0, 14.0, 561)
    step = side[1] - side[0]
    one, two = (density(latents, row, side) for row in range(2))
    every = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    log_p = _log_evidence(model, every, y) + np.sum(norm.logpdf(every), axis=1)
    q = np.maximum(np.outer(one, two).ravel(), 1e-300)
    want = np.sum(q * (log_p - np.log(q))) * step**2
    assert want < logsumexp(log_p) + 2.0 * np.log(step)

    data, columns = latent.number_rows(y), latent.group_columns(y)
    keys = jr.split(jr.key(1), 1_000)

    def values(dense):
        below = Below(latents, NO_LAYERS, dense)
        return jax.jit(jax.vmap(lambda k: value(k, model, below, columns, data, 0.0)))(keys)

    got, sparse = np.asarray(values(True)), np.asarray(values(False))
    error = np.std(got) / len(keys) ** 0.5
    assert np.mean(got) < want + 4.0 * error
    if kind == "loose":
        assert np.mean(got) < want - 4.0 * error
    else:
        assert np.mean(got) > want - 4.0 * error - 0.02
    assert np.all(sparse < got + 1e-6) and np.mean(sparse) < np.mean(got) - 1e-3


def _log_evidence(model, x, y):
    """`Σ_p log N(y_p | 0, K(x, x) + σ² I)` of an RBF at many latents [G, N]."""
    kernel = model.layers[0].kernel
    square = (x[:, :, None] - x[:, None]) ** 2 / float(kernel.lengthscale) ** 2
    gram = float(kernel.variance) * np.exp(-0.5 * square)
    covariance = gram + float(model.likelihood.noise) * np.eye(x.shape[1])
    quadratic = np.einsum("ip,gij,jp->g", y, np.linalg.inv(covariance), y)
    return -0.5 * (quadratic + y.shape[1] * np.linalg.slogdet(2.0 * np.pi * covariance)[1])


def test_batches_estimate_the_whole_kl():
    """Rows drawn with replacement and scaled: the mean over batches is the sum over rows."""
    latents = gaussian()
    data = latent.number_rows(targets("nothing"))
    whole = float(jnp.sum(latents.sample_and_kl(jr.key(0), jnp.arange(12), 1)[1]))

    def one(key):
        batch = data.sample(key, 4)
        chosen = batch.x[:, 0].astype(jnp.int32)
        return batch.scale * jnp.sum(latents.sample_and_kl(key, chosen, 1)[1])

    each = jax.jit(jax.vmap(one))(jr.split(jr.key(2), 4_000))
    assert abs(np.mean(each) - whole) < 4.0 * np.std(each) / 4_000**0.5


@SLOW
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_dense_draw_has_the_exact_evidence(num_layers):
    """`Σ_p log N(y_p | m_p, K + σ² I)` over what is observed, at any power."""
    model, hidden = dense_model(num_layers)
    y = targets("patterns", num_targets=6)
    latents = gaussian(scale=KNOWN)
    data, columns = latent.number_rows(y), latent.group_columns(y)
    got = value(jr.key(3), model, Below(latents, hidden, True), columns, data, 0.7)

    kl = jnp.sum(latents.sample_and_kl(jr.key(0), jnp.arange(12), 1)[1])
    f = np.asarray(latents.mean)
    if num_layers == 2:
        _, draw, _ = jr.split(jr.split(jr.key(3))[0], 3)
        (drawn,), more = hidden.sample_and_kl(draw, model, 1)
        kl = kl + more
        gram = _rbf(f, model.layers[0].kernel)
        f = f + np.linalg.cholesky(gram + 1e-8 * np.diag(np.diag(gram))) @ np.asarray(drawn[0])
    gram = _rbf(f, model.layers[-1].kernel) + float(model.likelihood.noise) * np.eye(12)
    want = 0.0
    for column, offset in zip(y.T, np.asarray(model.layers[-1].mean.value), strict=True):
        seen = np.isfinite(column)
        want += log_normal(column[seen] - offset, gram[np.ix_(seen, seen)])
    assert abs(float(got + kl) - want) < 1e-5 * abs(want)


def dense_model(num_layers, num_targets=6):
    """Kernels and noise known, and a posterior of the hidden rows away from the prior."""
    place = jnp.zeros((12, 2))
    mean = means.Constant(np.linspace(-0.3, 0.4, num_targets))
    below = SparseGPLayer(kernels.RBF(1.3, 0.4), means.Identity(), place, 2)
    last = SparseGPLayer(kernels.RBF(0.8, 1.2), mean, place, num_targets)
    layers = (below, last) if num_layers == 2 else (last,)
    root = 0.3 * rows(12, 12, seed=6)[None] + np.eye(12)[None]
    if num_layers == 1:
        return DeepGP(layers, Gaussian(0.15)), NO_LAYERS
    hidden = GaussianPosterior((jnp.asarray(rows(12, 2, seed=7)),), (jnp.asarray(root),))
    return DeepGP(layers, Gaussian(0.15)), hidden


def _rbf(x, kernel):
    square = np.sum((x[:, None] - x[None]) ** 2, axis=2) / float(kernel.lengthscale) ** 2
    return float(kernel.variance) * np.exp(-0.5 * square)


@SLOW
def test_the_gradient_of_a_dense_model():
    model, hidden = dense_model(2)
    y = targets("patterns", num_targets=6)
    data, columns = latent.number_rows(y), latent.group_columns(y)

    def payoff(parts):
        return value(jr.key(0), parts[0], Below(*parts[1:], True), columns, data, 0.0)

    assert directional_error(payoff, (model, gaussian(), hidden), step=1e-6) < 1e-5


@SLOW
def test_a_dense_fit_predicts_by_the_rows_of_each_draw():
    """One layer and known latents: mean and variance of the exact GP, from dense algebra."""
    model, _ = dense_model(1)
    y, latents = targets("nothing", num_targets=6), gaussian(scale=KNOWN)
    data, columns = latent.number_rows(y), latent.group_columns(y)
    start = latent.start(y, 2, Config(num_layers=1), dense=True)
    below = Below(latents, NO_LAYERS, True)
    made = dataclasses.replace(start.posterior, below=below, columns=columns)
    engine = CollapsedLatents()
    state = engine.init(jr.key(0), dataclasses.replace(start, model=model, posterior=made))
    fitted = engine.result(jr.key(0), state, data, 3)
    assert fitted.posterior.z[0].shape == (3, 12, 2)

    new, kernel, x = rows(5, 2, seed=9), model.layers[0].kernel, np.asarray(latents.mean)
    every = _rbf(np.concatenate([new, x]), kernel)
    cross, noise = every[:5, 5:], float(model.likelihood.noise)
    offset = np.asarray(model.layers[0].mean.value)
    solved = np.linalg.solve(every[5:, 5:] + noise * np.eye(12), np.c_[y - offset, cross.T])
    got_mean, got_variance = predict.summarise(predict.moments, jr.key(0), fitted, new)
    np.testing.assert_allclose(got_mean, offset + cross @ solved[:, :6], atol=1e-5)
    want = float(kernel.variance) - np.sum(cross * solved[:, 6:].T, axis=1) + noise
    np.testing.assert_allclose(got_variance, np.tile(want[:, None], (1, 6)), atol=1e-5)


# ---- the start ----


def low_rank(num=40, width=15, rank=3, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(num, rank)) @ random.normal(size=(rank, width))


def test_components_are_those_of_the_svd_and_fill_in_what_is_missing():
    y = low_rank()
    parts = latent.principal_components(y, 3)
    np.testing.assert_allclose(parts.scores @ parts.loadings, y, atol=1e-10)
    np.testing.assert_allclose(parts.scores.T @ parts.scores / 40, np.eye(3), atol=1e-10)
    holes = y.copy()
    holes[np.random.default_rng(1).uniform(size=y.shape) < 0.05] = np.nan
    filled = latent.principal_components(holes, 3)
    gap = filled.scores @ filled.loadings - y
    plain = np.where(np.isnan(holes), 0.0, y) - y
    assert np.sum(gap**2) < 0.01 * np.sum(plain**2)
    with pytest.raises(InputError, match="no 16 components"):
        latent.principal_components(y, 16)


@pytest.mark.parametrize("config", [Config(num_layers=1), Config(num_layers=2, hidden_dim=5)])
def test_training_starts_at_principal_components(config):
    """The prior mean of the start at the latents is the reconstruction by as many components."""
    y = low_rank() + 0.1 * rows(40, 15, seed=3)
    fitted = latent.start(y, 2, dataclasses.replace(config, num_inducing=10))
    x = fitted.posterior.below.latents.mean
    for layer in fitted.model.layers:
        x = layer.mean(x)
    parts = latent.principal_components(y, 2)
    np.testing.assert_allclose(x, parts.scores @ parts.loadings, atol=1e-8)
    assert fitted.posterior.root.shape == (1, 1, 10, 10)


# ---- training ----


def curve(num=60, seed=0):
    """Rows along a curve: no line follows it, and the first component has its order."""
    random = np.random.default_rng(seed)
    t = np.sort(random.uniform(-1.0, 1.0, size=num))
    y = np.stack([np.sin(1.6 * t), np.cos(2.4 * t), t, t**2, np.sin(2.0 * t)], axis=1)
    y = y - y.mean(axis=0)
    return t, y + 0.03 * random.normal(size=y.shape)


def fit(y, num_steps=300, anchor=False, **settings):
    start = latent.start(y, 1, Config(num_layers=1, num_inducing=15, kernel="rbf", **settings))
    if anchor:
        made = anchored_latents(jr.key(5), start.posterior.below.latents)
        start = eqx.tree_at(lambda f: f.posterior.below.latents, start, made)
    engine = CollapsedLatents(learning_rate=0.03, num_samples=2, decay_steps=num_steps)
    data = latent.number_rows(y)
    return train.run(jr.key(0), engine, start, data, num_steps=num_steps, num_kept=10)


@SLOW
def test_a_curve_is_unrolled_and_missing_entries_are_found():
    """Latents in the order of the rows, noise near the truth, holes filled better than by PCA."""
    t, y = curve()
    holes = y.copy()
    holes[np.random.default_rng(3).uniform(size=y.shape) < 0.15] = np.nan
    holes[17] = np.nan
    outcome = fit(holes)
    posterior = outcome.fitted.posterior
    assert isinstance(posterior, LatentPosterior) and posterior.mean.shape[0] == 10
    objective = outcome.history.objective
    assert np.mean(objective[-30:]) > np.mean(objective[:5]) + 50.0

    latents = posterior.below.latents
    known = np.arange(60) != 17
    assert abs(spearmanr(np.asarray(latents.mean)[known, 0], t[known])[0]) > 0.99
    # A row of which nothing is known ends at the prior.
    assert abs(float(latents.mean[17, 0])) < 0.2
    assert abs(abs(float(latents.root[17, 0, 0])) - 1.0) < 0.2

    mean, _ = predict.summarise(predict.moments, jr.key(1), outcome.fitted, latents.mean)
    parts = latent.principal_components(holes, 1)
    hidden = np.isnan(holes) & known[:, None]
    ours = np.sqrt(np.mean((mean - y)[hidden] ** 2))
    theirs = np.sqrt(np.mean((parts.scores @ parts.loadings - y)[hidden] ** 2))
    assert ours < 0.3 * theirs


@SLOW
def test_an_anchored_fit_goes_on_where_it_stopped():
    """The networks are trained, and what `result` hands back is a start for the same engine."""
    _, y = curve()
    outcome = fit(y, 50, anchor=True)
    latents = outcome.fitted.posterior.below.latents
    assert isinstance(latents, AnchoredLatents)
    engine = CollapsedLatents()
    again = engine.init(jr.key(0), outcome.fitted)
    assert eqx.tree_equal(again.params, outcome.state.params)
    assert float(jnp.max(jnp.abs(latents.recogniser.weights[-1]))) > 1e-3


@SLOW
def test_the_latent_of_a_new_row_has_the_density_of_bayes():
    """The more is observed the sharper, and weighted draws agree with a grid."""
    _, y = curve()
    fitted = fit(y).fitted
    grid = np.linspace(-4.0, 4.0, 1_601)[:, None]
    step = float(grid[1, 0] - grid[0, 0])
    part = y[30].copy()
    part[[0, 2, 3, 4]] = np.nan  # a cosine alone: its mirror image is as good
    asked = np.stack([y[30], part, np.full(5, np.nan)])
    full, half, nothing = placing.log_posterior(jr.key(0), fitted, grid, asked, num_samples=10)
    place = float(grid[np.argmax(full), 0])
    assert abs(place - float(fitted.posterior.below.latents.mean[30, 0])) < 0.1
    assert abs(logsumexp(nothing) + np.log(step)) < 1e-3
    known = np.isfinite(part)[None]
    for place in (300, 900):  # the package's own density of one pair
        want = predict.summarise(
            predict.log_density,
            *(jr.split(jr.key(0))[0], fitted, grid[place][None]),
            *(np.where(known, part, 0.0), 1.0 * known),
            num_samples=10,
        )
        got = half[place] - norm.logpdf(grid[place, 0])
        assert abs(got - float(want[0])) < 1e-8

    def entropy(log_p):
        p = np.exp(log_p - logsumexp(log_p))
        return -np.sum(p * np.log(np.maximum(p, 1e-300)))

    assert entropy(full) < entropy(half) < entropy(nothing)

    placed = placing.place(jr.key(0), fitted, asked, num=400, num_samples=10)
    for row, log_p in enumerate([full, half, nothing]):
        p = np.exp(log_p - logsumexp(log_p))
        assert abs(placed.log_evidence[row] - logsumexp(log_p) - np.log(step)) < 0.15
        spread = np.sqrt(p @ grid[:, 0] ** 2 - (p @ grid[:, 0]) ** 2)
        assert abs(placed.mean[row, 0] - p @ grid[:, 0]) < 0.25 * spread
        assert placed.num_effective[row] > 100
        drawn = placed.sample(np.random.default_rng(0), 300)[:, row, 0]
        left = np.sum(p[grid[:, 0] < 0.0])
        assert abs(np.mean(drawn < 0.0) - left) < 0.12


@SLOW
@pytest.mark.parametrize("missing", ["nothing", "patterns", "anywhere"])
def test_natural_steps_with_all_rows_reach_the_collapsed_value(missing):
    """Known latents, one step of size one: the collapsed objective where groups are exact."""
    model, hidden = tiny_model(1, 10)
    y = targets(missing)
    columns, data = latent.group_columns(y), latent.number_rows(y)
    below = Below(gaussian(scale=KNOWN), hidden)
    root = jnp.tile(jnp.eye(5)[None, None], (1, columns.num_groups, 1, 1))
    posterior = LatentPosterior(below, columns, (), jnp.zeros((1, 5, 10)), root)
    engine = NaturalLatents(learning_rate=0.0, rate=0.5, power=0.5)
    state = engine.init(jr.key(0), Fitted(model, posterior))
    step = eqx.filter_jit(engine.step)
    for number in range(1 if columns.exact else 40):
        state, info = step(jr.fold_in(jr.key(0), number), state, data.all())
    want = float(value(jr.key(0), model, below, columns, data, 0.5))
    assert abs(float(info.objective) - want) < 1e-6 * abs(want)


@SLOW
def test_mini_batches_unroll_the_curve_too():
    t, y = curve(200)
    start = latent.start(y, 1, Config(num_layers=1, num_inducing=15, kernel="rbf"))
    engine = NaturalLatents(learning_rate=0.03, decay_steps=600)
    data = latent.number_rows(y)
    outcome = train.run(jr.key(0), engine, start, data, num_steps=600, batch_size=50)
    posterior = outcome.fitted.posterior
    assert posterior.mean.shape == (1, 15, 5)  # nothing else is random below: one is all
    assert abs(spearmanr(np.asarray(posterior.below.latents.mean)[:, 0], t)[0]) > 0.98
    dense = dataclasses.replace(posterior, below=dataclasses.replace(posterior.below, dense=True))
    with pytest.raises(InputError, match="all rows"):
        engine.init(jr.key(0), Fitted(outcome.fitted.model, dense))


# ---- its parts ----


def test_conjugate_gradients_solve_each_column():
    """To rounding after as many steps as rows, in one with the exact preconditioner."""
    random = np.random.default_rng(0)
    root = random.normal(size=(3, 6, 6))
    a = jnp.asarray(root @ np.swapaxes(root, 1, 2) + 0.5 * np.eye(6))
    right = jnp.asarray(random.normal(size=(6, 3))).at[:, 1].set(0.0)
    want = np.stack([np.linalg.solve(a[p], right[:, p]) for p in range(3)], axis=1)

    def apply(v):
        return jnp.einsum("pmk,kp->mp", a, v)

    def exact(v):
        return jnp.einsum("pmk,kp->mp", jnp.linalg.inv(a), v)

    got = jax.jit(lambda b: conjugate_gradients(apply, lambda v: v, b, 30))(right)
    np.testing.assert_allclose(got, want, atol=1e-8)
    np.testing.assert_allclose(conjugate_gradients(apply, exact, right, 1), want, atol=1e-10)
    np.testing.assert_allclose(conjugate_gradients(apply, exact, right, 9), want, atol=1e-10)


def test_draws_of_grouped_columns_have_their_covariances():
    model, hidden = tiny_model(1, 10)
    y = targets("patterns")
    below, columns = Below(gaussian(), hidden), latent.group_columns(y)
    root = jnp.asarray(np.tril(rows(15, 5, seed=2).reshape(1, 3, 5, 5)))
    mean = jnp.asarray(rows(5, 10, seed=4))[None]
    posterior = LatentPosterior(below, columns, (), mean, root)
    (drawn,) = eqx.filter_jit(posterior.sample)(jr.key(0), model, 40_000)
    for column in (0, 4, 9):
        group = int(columns.group[column])
        want = np.asarray(root[0, group] @ root[0, group].T)
        np.testing.assert_allclose(np.cov(drawn[:, :, column].T), want, atol=0.1)
    assert posterior.inducing(jr.key(0), model, 4)[0].root is None


def test_what_has_no_latents_is_refused():
    fitted = tiny_fitted(num_layers=1)
    with pytest.raises(InputError, match="knows no latents"):
        CollapsedLatents().init(jr.key(0), fitted)
    model, _ = tiny_model(1, 2)
    own = eqx.tree_at(lambda m: m.likelihood, model, Gaussian([0.1, 0.2]))
    start = latent.start(rows(12, 2), 1, Config(num_layers=1, num_inducing=5))
    with pytest.raises(InputError, match="share the noise"):
        CollapsedLatents().init(jr.key(0), dataclasses.replace(start, model=own))
    with pytest.raises(InputError, match="LatentPosterior"):
        Collapsed().init(jr.key(0), start)
