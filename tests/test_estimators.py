"""The regressor as a user meets it: units, distributions, weights, warm starts, bad input."""

import copy
import logging
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from nashgp import DeepGPRegressor, growth, kernels, load, predict, train
from nashgp.errors import InputError, NumericalError, UntrustedRatioWarning
from nashgp.estimators import settings as chosen
from nashgp.estimators import teams, training
from nashgp.estimators.training import Task
from nashgp.likelihoods import Bernoulli, Gaussian
from nashgp.posteriors import CollapsedPosterior, members_of

pytestmark = pytest.mark.lenient

# One stage and one compiled program; `test_growth` and scikit-learn's checks take the default.
SETTINGS = dict(
    engine="dsvi",
    last_layer="gradient",
    power=0.0,
    num_steps=150,
    learning_rate=0.05,
    num_inducing=8,
    num_mixture=16,
    kernel="rbf",
    random_state=0,
)


def tiny(**changes) -> DeepGPRegressor:
    return DeepGPRegressor(**(SETTINGS | changes))


def wave(num=40, seed=0):
    """Two columns, the second without influence; noise of standard deviation 0.1."""
    random = np.random.default_rng(seed)
    x = random.uniform(-2.0, 2.0, size=(num, 2))
    return x, np.sin(2.0 * x[:, 0]) + 0.1 * random.normal(size=num)


@pytest.fixture(scope="module")
def fitted():
    return tiny().fit(*wave())


# ---- units -----------------------------------------------------------------------------------


def test_everything_follows_the_units_of_the_data(fitted):
    """Metres or millimetres, euros or cents, from another origin: the same model."""
    x, y = wave()
    unit, origin = np.array([1000.0, 0.01]), np.array([5.0, -3.0])
    other = tiny().fit(x * unit + origin, 50.0 * y - 7.0)
    new = x[:9] + 0.1
    mean, std = fitted.predict(new, return_std=True)
    mean_other, std_other = other.predict(new * unit + origin, return_std=True)
    close = dict(rtol=1e-4, atol=1e-3)  # 150 steps carry rounding a long way
    np.testing.assert_allclose(mean_other, 50.0 * mean - 7.0, **close)
    np.testing.assert_allclose(std_other, 50.0 * std, **close)
    levels = [0.1, 0.5, 0.9]
    np.testing.assert_allclose(
        other.predict_quantiles(new * unit + origin, levels),
        50.0 * fitted.predict_quantiles(new, levels) - 7.0,
        **close,
    )
    density = fitted.log_density(new, y[:9])
    np.testing.assert_allclose(
        other.log_density(new * unit + origin, 50.0 * y[:9] - 7.0), density - np.log(50.0), **close
    )
    np.testing.assert_allclose(other.lengthscales_[0], fitted.lengthscales_[0] * unit, **close)
    np.testing.assert_allclose(other.lengthscales_[1], fitted.lengthscales_[1], **close)
    np.testing.assert_allclose(other.noise_std_, 50.0 * fitted.noise_std_, **close)
    np.testing.assert_allclose(other.relevance_, fitted.relevance_, **close)
    np.testing.assert_allclose(
        other.sample_y(new * unit + origin, 3),
        50.0 * fitted.sample_y(new, 3) - 7.0,
        rtol=1e-3,
        atol=1e-2,
    )


def test_the_log_density_is_that_of_the_users_units(fitted):
    """Its exponential integrates to one over y, and its cdf is the integral so far."""
    x, _ = wave()
    grid = np.linspace(-6.0, 6.0, 2_001)
    density = np.exp(fitted.log_density(np.repeat(x[:1], len(grid), axis=0), grid))
    step = grid[1] - grid[0]
    np.testing.assert_allclose(np.sum(density) * step, 1.0, rtol=1e-6)
    so_far = (np.cumsum(density) - 0.5 * density) * step
    cdf = fitted.cdf(np.repeat(x[:1], len(grid), axis=0), grid)
    np.testing.assert_allclose(cdf, so_far, atol=1e-4)
    mean, std = fitted.predict(x[:1], return_std=True)
    np.testing.assert_allclose(np.sum(grid * density) * step, mean[0], atol=1e-6)
    second = np.sum((grid - mean[0]) ** 2 * density) * step
    np.testing.assert_allclose(np.sqrt(second), std[0], rtol=1e-5)


def test_quantiles_and_intervals_hold_what_they_say(fitted):
    x, _ = wave(7, seed=3)
    levels = [0.05, 0.5, 0.95]
    quantiles = fitted.predict_quantiles(x, levels)
    assert quantiles.shape == (7, 3) and np.all(np.diff(quantiles, axis=1) > 0.0)
    for column, level in enumerate(levels):
        np.testing.assert_allclose(fitted.cdf(x, quantiles[:, column]), level, atol=1e-8)
    np.testing.assert_allclose(fitted.predict_interval(x, 0.9), quantiles[:, [0, 2]], rtol=1e-12)
    np.testing.assert_allclose(fitted.predict_quantiles(x, 0.5)[:, 0], quantiles[:, 1], rtol=1e-12)


def test_what_was_learned_is_what_made_the_data(fitted):
    x, y = wave(200, seed=1)
    assert fitted.score(x, y) > 0.9
    assert 0.07 < fitted.noise_std_[0] < 0.35  # eight inducing inputs and few steps leave more
    assert fitted.relevance_[0] > 0.8  # the second column has no influence
    np.testing.assert_allclose(np.sum(fitted.relevance_), 1.0)
    assert len(fitted.variances_) == 2 and min(fitted.variances_) > 0.0
    summary = fitted.summary()
    assert "layer 2: RBF, 8 inducing inputs, 1 outputs" in summary
    assert summary.index("\n0 ") < summary.index("\n1 ")  # most relevant first


# ---- draws -----------------------------------------------------------------------------------


def test_functions_are_functions_and_average_to_the_prediction(fitted):
    x, _ = wave(6, seed=5)
    functions = fitted.sample_functions(500, random_state=1)
    values = functions(x)
    assert values.shape == (6, 500)
    np.testing.assert_allclose(functions(x[[4, 1]]), values[[4, 1]], rtol=1e-9)
    assert np.max(np.abs(functions(x + 1e-6) - values)) < 1e-3  # smooth: no noise from call to call
    mean, std = fitted.predict(x, return_std=True)
    noise = fitted.noise_std_[0]
    spread = np.sqrt(std**2 - noise**2)
    # Five standard errors of the draws, and of the 16 parts the mixture is made of.
    assert np.all(np.abs(values.mean(axis=1) - mean) < 5.0 * spread * np.sqrt(1 / 500 + 1 / 16))
    first, last = functions.layers(x)
    assert first.shape == (6, 2, 500) and last.shape == (6, 1, 500)
    np.testing.assert_allclose(
        last[:, 0] * fitted.scaling_.y_scale + fitted.scaling_.y_mean, values, rtol=1e-9
    )


def test_drawn_targets_vary_together_and_carry_noise(fitted):
    """Two equal rows: the same function, different noise."""
    x, _ = wave(1, seed=5)
    drawn = fitted.sample_y(np.repeat(x, 2, axis=0), 1_000, random_state=2)
    assert drawn.shape == (2, 1_000)
    noise = fitted.noise_std_[0]
    np.testing.assert_allclose(np.std(drawn[0] - drawn[1]), np.sqrt(2.0) * noise, rtol=0.1)
    _, std = fitted.predict(x, return_std=True)
    np.testing.assert_allclose(np.std(drawn[0]), std[0], rtol=0.3)
    np.testing.assert_array_equal(drawn, fitted.sample_y(np.repeat(x, 2, axis=0), 1_000, 2))


# ---- rows ------------------------------------------------------------------------------------


def test_several_targets_and_missing_ones():
    x, y = wave(40)
    both = np.stack([y, 100.0 * np.cos(2.0 * x[:, 0])], axis=1)
    both[::3, 1] = np.nan
    model = tiny(allow_missing=True, num_steps=300).fit(x, both)
    new, _ = wave(50, seed=9)
    mean, std = model.predict(new, return_std=True)
    assert mean.shape == std.shape == (50, 2)
    assert np.corrcoef(mean[:, 1], np.cos(2.0 * new[:, 0]))[0, 1] > 0.95
    assert 30.0 < np.std(mean[:, 1]) < 120.0 and model.noise_std_.shape == (2,)
    assert model.predict_quantiles(new, [0.1, 0.9]).shape == (50, 2, 2)
    assert model.sample_y(new[:3], 4).shape == (3, 2, 4)
    assert model.sample_functions(4)(new[:3]).shape == (3, 2, 4)
    # A row without its second target is scored by the first alone, in its own unit.
    density = model.log_density(x[:4], both[:4])
    alone = model.log_density(x[:4], np.where([[True, False]], both[:4], np.nan))
    np.testing.assert_allclose(density[[0, 3]], alone[[0, 3]], rtol=1e-12)
    assert np.all(density[1:3] < alone[1:3])  # a second target of deviation 100 costs log 100
    column = tiny(num_steps=2).fit(x, y[:, None])
    assert column.predict(new).shape == (50, 1)


def test_rows_of_weight_zero_are_not_there_and_weight_counts():
    x, y = wave(40)
    spoiled = y.copy()
    spoiled[::2] += 5.0
    weight = np.ones(40)
    weight[::2] = 0.0
    weighted = tiny(num_steps=20).fit(x, spoiled, sample_weight=weight)
    plain = tiny(num_steps=20).fit(x[1::2], y[1::2])
    np.testing.assert_array_equal(weighted.predict(x), plain.predict(x))
    light = tiny().fit(x, spoiled, sample_weight=np.where(weight > 0.0, 1.0, 1e-3))
    assert np.sqrt(np.mean((light.predict(x) - y) ** 2)) < 1.0  # the rows above are 2.5 off alone


def test_constant_columns_are_ignored_and_named(caplog):
    x, y = wave(30)
    frame = pd.DataFrame({"a": x[:, 0], "year": np.full(30, 2020.0), "b": x[:, 1]})
    with caplog.at_level(logging.INFO, logger="nashgp"):
        model = tiny(num_steps=2).fit(frame, y)
    assert "Constant columns of X are ignored: year." in caplog.text
    changed = frame.assign(year=1900.0)
    np.testing.assert_array_equal(model.predict(frame), model.predict(changed))
    assert model.lengthscales_[0][1] == np.inf and model.relevance_[1] == 0.0
    assert model.lengthscales_[0].shape == (3,) and list(model.feature_names_in_) == list(frame)


def test_counts_stay_counts():
    random = np.random.default_rng(0)
    x = random.uniform(-1.0, 1.0, size=(80, 1))
    rate = 40.0 * np.exp(x[:, 0])
    model = tiny(likelihood="poisson", num_layers=1).fit(x, random.poisson(rate))
    assert np.mean(np.abs(model.predict(x) / rate - 1.0)) < 0.15
    quantiles = model.predict_quantiles(x[:8], [0.05, 0.95])
    np.testing.assert_array_equal(quantiles, np.floor(quantiles))
    assert np.all(model.cdf(x[:8], quantiles[:, 1]) >= 0.95)
    assert np.all(model.cdf(x[:8], quantiles[:, 1] - 1.0) < 0.95)
    assert model.noise_std_ is None
    drawn = model.sample_y(x[:8], 200)
    np.testing.assert_array_equal(drawn, np.floor(drawn))
    np.testing.assert_allclose(drawn.mean(axis=1), model.predict(x[:8]), rtol=0.1)
    functions = model.sample_functions(200)(x[:8])
    np.testing.assert_allclose(functions.mean(axis=1), model.predict(x[:8]), rtol=0.1)


def test_heavy_tails_shrug_at_outliers():
    x, y = wave(60)
    spoiled = y.copy()
    spoiled[::10] += 8.0
    errors = [
        np.sqrt(np.mean((tiny(likelihood=name, num_layers=1).fit(x, spoiled).predict(x) - y) ** 2))
        for name in ("student-t", "gaussian")
    ]
    assert errors[0] < 0.5 * errors[1]


# ---- settings --------------------------------------------------------------------------------


def test_inducing_inputs_are_no_more_than_the_rows():
    model = DeepGPRegressor(num_steps=2, num_mixture=4, random_state=0).fit(*wave(9))
    assert model.num_inducing_ == 9 and model.num_inducing == "auto"
    assert model.batch_size_ == 9 and model.num_steps_ == 2


@pytest.mark.parametrize(
    ("num_rows", "settings", "last_layer", "batch_size"),
    [
        (900, {}, "collapsed", None),
        (20_000, {"num_inducing": 64}, "natural", 1_024),
        (20_000, {"num_inducing": 64, "num_layers": 1}, "collapsed", None),
        (20_000, {"num_inducing": 64, "num_layers": 1, "num_samples": 2}, "natural", 1_024),
        (20_000, {"num_inducing": 128, "num_layers": 1}, "natural", 1_024),
        (20_000, {"likelihood": "student-t"}, "natural", 512),
        (100, {"batch_size": 32}, "natural", 32),
        (100, {"batch_size": 200}, "collapsed", None),
        (900, {"likelihood": "student-t"}, "natural", None),
        (5_000, {"last_layer": "gradient"}, "gradient", 512),
    ],
)
def test_the_last_layer_is_collapsed_while_that_fits(num_rows, settings, last_layer, batch_size):
    model = tiny(**({"last_layer": "auto", "num_layers": 2} | settings))
    x = np.random.default_rng(0).normal(size=(200, 2))
    likelihood = model._start_likelihood(x[:, :1], "float64")
    start = training.start(model._settings, 0, Task(x, x[:, :1], np.ones(len(x)), likelihood))
    plan = training.make_plan(model._settings, start, num_rows)
    assert (plan.last_layer, plan.batch_size) == (last_layer, batch_size)


def test_settings_may_be_numbers_of_numpy():
    """As a grid search hands them out; the fit is that of plain ones."""
    x, y = wave(20)
    plain = dict(num_inducing=6, num_layers=2, num_steps=4, power=0.5, learning_rate=0.5)
    grid = {name: np.asarray(value)[()] for name, value in plain.items()}
    assert not isinstance(grid["num_inducing"], int)
    first, second = (tiny(**settings).fit(x, y).predict(x) for settings in (plain, grid))
    np.testing.assert_array_equal(first, second)


def test_kernels_are_names_objects_or_functions():
    x, y = wave(20)
    kernel = kernels.RBF(0.7) + kernels.Linear(0.2)
    model = tiny(num_steps=2, kernel=kernel)
    again = clone(model)
    assert isinstance(again.kernel, kernels.Sum) and again.kernel is not kernel
    layers = again.fit(x, y).fitted_.model.layers
    assert {type(layer.kernel) for layer in layers} == {kernels.Sum}
    assert again.lengthscales_[0].shape == (2,)
    made = tiny(num_steps=2, kernel=lambda d: kernels.Matern52(np.ones(d))).fit(x, y)
    assert isinstance(made.fitted_.model.layers[0].kernel, kernels.Matern52)
    picked = tiny(num_steps=2, num_layers=1, kernel=kernels.RBF(0.5, columns=(1,))).fit(x, y)
    assert picked.lengthscales_[0][0] == np.inf and picked.relevance_[1] == 1.0


def test_single_precision_is_asked_for():
    model = tiny(dtype="float32", num_steps=2).fit(*wave(20))
    assert {leaf.dtype for leaf in jax.tree.leaves(model.fitted_)} == {np.dtype("float32")}
    assert np.all(np.isfinite(model.predict(wave(3)[0])))
    assert jnp.ones(1).dtype == "float32"  # no global setting moved


def test_precision_is_chosen_by_what_rounding_does(tmp_path, monkeypatch):
    x, y = wave(60)
    rough = tiny(dtype="auto", kernel="matern12", num_steps=2, num_layers=1).fit(x, y)
    assert rough.dtype_ == "float32" and rough.dtype == "auto"
    assert {leaf.dtype for leaf in jax.tree.leaves(rough.fitted_)} == {np.dtype("float32")}
    monkeypatch.setattr(teams, "ENOUGH", 1e-3)  # crowded inputs of a smooth kernel cost more
    smooth = tiny(dtype="auto", kernel=kernels.RBF(5.0), num_steps=2, num_layers=1)
    smooth.set_params(num_inducing=40).fit(x, y)
    assert smooth.dtype_ == "float64"
    for model in (rough, smooth):
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        assert again.dtype_ == model.dtype_
        np.testing.assert_array_equal(again.predict(x), model.predict(x))
        assert np.all(pickle.loads(pickle.dumps(model)).predict(x) == model.predict(x))
        assert np.isfinite(again.noise_std_) and np.all(np.isfinite(again.relevance_))
    rough.set_params(warm_start=True).fit(x, y)
    assert rough.dtype_ == "float32"


def test_many_rows_are_learned_in_batches_by_a_model_deep_from_the_start():
    x, y = wave(2_100)
    few = {"num_inducing": 8, "num_mixture": 4, "dtype": "float32", "random_state": 0}
    deep = DeepGPRegressor(num_layers=2, num_steps=6, **few).fit(x, y)
    chosen = deep.last_layer_, deep.power_, deep.batch_size_, deep.num_restarts_
    assert chosen == ("natural", 1.0, 1_024, 1)
    assert len({type(layer.kernel) for layer in deep.fitted_.model.layers}) == 1  # none has grown
    assert deep.information_ is not None  # and the game was played
    shallow = DeepGPRegressor(num_layers=1, num_steps=2, **few).fit(x, y)
    assert (shallow.last_layer_, shallow.batch_size_) == ("collapsed", 2_100)
    less = DeepGPRegressor(num_layers=2, num_steps=2, **few).fit(x[:150], y[:150])
    assert less.last_layer_ == "collapsed"


def test_a_deep_model_of_many_rows_is_averaged_with_a_wide_single_layer(monkeypatch, tmp_path):
    monkeypatch.setattr(chosen, "FEW_ROWS", 100)
    monkeypatch.setattr(chosen, "NUM_INDUCING", 5)
    monkeypatch.setattr(chosen, "TOP_INDUCING", 9)
    monkeypatch.setitem(chosen.WIDE, "num_inducing", 12)
    x, y = wave(130)

    def sizes(model):
        members = members_of(model.fitted_)
        return [[layer.num_inducing for layer in one.model.layers] for one in members]

    few = {"num_mixture": 4, "random_state": 0, "num_steps": 6}
    monkeypatch.setattr(growth, "best_shares", lambda scores: (3, 1))
    model = DeepGPRegressor(num_layers=3, **few).fit(x, y)
    assert sizes(model) == [[5, 5, 9], [12]] and model.num_inducing_ == 9
    assert model.fitted_.deal == (0, 0, 0, 1)
    assert (model.last_layer_, model.powers_) == ("natural", [1.0, 1.0])
    assert isinstance(members_of(model.fitted_)[1].posterior, CollapsedPosterior)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    again.set_params(warm_start=True).fit(x, y)  # each goes on as what it is
    assert sizes(again) == sizes(model) and again.fitted_.deal == model.fitted_.deal
    assert sizes(DeepGPRegressor(num_layers=1, **few).fit(x, y)) == [[12]]
    for settings in ({"num_inducing": 7}, {"power": 0.5}, {"batch_size": 40}):
        assert len(sizes(DeepGPRegressor(**few, **settings).fit(x, y))) == 1
    monkeypatch.setattr(chosen, "WIDE_SIZE", 130 * 12 - 1)  # rows that would take too long
    monkeypatch.setattr(chosen, "WIDE_INDUCING", 12)
    monkeypatch.setattr(chosen, "TOP_ALONE", 10)
    assert sizes(DeepGPRegressor(**few).fit(x, y)) == [[5, 10]]


def test_rows_that_weigh_members_are_learned_in_the_end(monkeypatch):
    """The wide layer's posterior is that of all rows, and a member without a share is left out."""
    monkeypatch.setattr(chosen, "FEW_ROWS", 100)
    monkeypatch.setattr(chosen, "NUM_INDUCING", 5)
    monkeypatch.setitem(chosen.WIDE, "num_inducing", 12)
    seen, shares = [], (1, 3)

    def spy(scores):
        seen.append(scores.shape)
        return shares

    monkeypatch.setattr(growth, "best_shares", spy)
    x, y = wave(130)
    few = {"num_mixture": 4, "random_state": 0, "num_steps": 10}
    model = DeepGPRegressor(**few).fit(x, y)
    wide = members_of(model.fitted_)[1]
    layer = wide.model.layers[0]
    rows, t = model.scaling_.forward(x, y[:, None])
    with jax.enable_x64(True):
        rows, zero = jnp.asarray(rows), jnp.zeros((1, 1))
        kzz, kzx = (np.asarray(layer.kernel.cross(layer.z, of)) for of in (layer.z, rows))
        noise = float(wide.model.likelihood.moments(zero, zero)[1][0, 0])
        solved = np.linalg.solve(kzz + 1e-6 * np.eye(12), kzx)
        rest = np.asarray(layer.kernel.diag(rows)) - np.sum(kzx * solved, axis=0) + noise
        want = kzx.T @ np.linalg.solve(kzz + kzx / rest @ kzx.T, kzx / rest @ t)
    alone = copy.copy(model)
    alone.fitted_ = wide
    mean = model.scaling_.y_mean[0] + model.scaling_.y_scale[0] * want[:, 0]
    np.testing.assert_allclose(alone.predict(x), mean, atol=1e-3)
    shares = (4, 0)
    assert len(members_of(DeepGPRegressor(**few).fit(x, y).fitted_)) == 1
    assert seen == [(2, 13), (2, 13)]
    DeepGPRegressor(**few).fit(x[:105], y[:105])  # 95 would be too few for a deep start
    DeepGPRegressor(**few, num_restarts=1).fit(x, y)
    assert len(seen) == 2


def test_the_seed_decides_and_none_is_a_new_one():
    x, y = wave(20)
    first, again = (tiny(num_steps=5).fit(x, y).predict(x) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, tiny(num_steps=5, random_state=1).fit(x, y).predict(x))
    free = tiny(num_steps=5, random_state=None)
    assert free.fit(x, y).seed_ != free.fit(x, y).seed_
    np.testing.assert_array_equal(free.predict(x), free.predict(x))


def test_held_out_rows_stop_the_training():
    x, y = wave(60)
    model = tiny(validation_fraction=0.25, num_steps=5_000, learning_rate=0.2).fit(x, y)
    assert model.num_steps_ < 5_000 and np.isfinite(model.history_.validation[-1])
    assert model.history_.best_step <= model.num_steps_
    assert model.batch_size_ == 45


def test_warm_start_goes_on_with_more_rows():
    x, y = wave(80)
    model = tiny(warm_start=True).fit(x[:40], y[:40])
    before, scaling = model.predict(x[:40]), model.scaling_
    model.set_params(num_steps=1, learning_rate=1e-3).fit(x, y)
    assert model.scaling_ is scaling and model.num_inducing_ == 8
    np.testing.assert_allclose(model.predict(x[:40]), before, atol=0.2)  # one step moves little
    cold = tiny(num_steps=1).fit(x, y)
    assert model.score(x, y) > 0.8 > cold.score(x, y)
    with pytest.raises(InputError, match="num_layers is 3 and the fit to go on from had 2; set"):
        model.set_params(num_layers=3).fit(x, y)
    model.set_params(num_layers=2)
    with pytest.raises(InputError, match="y has 2 columns and the fit to go on from had 1"):
        model.fit(x, np.stack([y, y], axis=1))
    with pytest.raises(InputError, match="X has 1 features, but"):
        model.fit(x[:, :1], y)
    assert model.score(x, y) > 0.8


def test_a_failed_fit_leaves_the_estimator_as_it_was():
    x, y = wave(20)
    model = tiny(num_steps=5).fit(x, y)
    before = model.predict(x)
    model.set_params(learning_rate=1e200)
    with pytest.raises(NumericalError, match=r"learning rate|positive definite"):
        model.fit(x, 2.0 * y)
    np.testing.assert_array_equal(model.predict(x), before)


# ---- company ---------------------------------------------------------------------------------


def test_pickles_keep_every_bit(fitted):
    x, _ = wave(9, seed=2)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    for a, b in zip(jax.tree.leaves(again.fitted_), jax.tree.leaves(fitted.fitted_), strict=True):
        assert a.dtype == b.dtype == "float64"
    assert again.summary() == fitted.summary()


def test_pipelines_searches_and_processes():
    """Two worker processes, each with its own JAX."""
    x, y = wave(24)
    pipeline = make_pipeline(PolynomialFeatures(1, include_bias=True), tiny(num_steps=60))
    grid = {"deepgpregressor__num_layers": [1, 2]}
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2, error_score="raise").fit(x, y)
    assert search.best_params_["deepgpregressor__num_layers"] in (1, 2)
    assert np.all(np.isfinite(search.cv_results_["mean_test_score"]))
    assert search.predict(x).shape == (24,)


# ---- compilation -----------------------------------------------------------------------------


def test_fits_and_predictions_of_changing_size_share_compiled_code():
    """33 to 40 rows are one bucket; row counts of a prediction meet two shapes."""
    x, y = wave(1_500)
    models, steps = [], train._few._jitted._cached._cache_size()
    for num in (33, 36, 40):
        models.append(tiny(num_steps=3, num_mixture=7, num_samples=3).fit(x[:num], y[:num]))
    assert train._few._jitted._cached._cache_size() - steps == 1
    programs = (predict._of_one, predict._apply)
    calls = [program._cached._cache_size() for program in programs]
    for num in (1, 10, 100, 1_030, 1_500):
        assert models[0].predict(x[:num]).shape == (num,)
    models[1].predict(x[:50])
    for program, before in zip(programs, calls, strict=True):
        assert program._cached._cache_size() - before <= 2
    whole = models[0].predict(x)
    parts = np.concatenate([models[0].predict(part) for part in np.array_split(x, 7)])
    np.testing.assert_allclose(parts, whole, rtol=1e-11)


# ---- bad input -------------------------------------------------------------------------------


def spoil(value):
    x, _ = wave(20)
    x[3, 1] = value
    return x


X, Y = wave(20)
TEXT = pd.DataFrame({"a": X[:, 0], "city": ["Oslo"] * 20})


@pytest.mark.parametrize(
    ("changes", "x", "y", "sentence"),
    [
        ({}, spoil(np.nan), Y, r"X holds NaN or infinity in 1 row\(s\), first in column 1; drop"),
        ({}, spoil(np.inf), Y, r"X holds NaN or infinity in 1 row\(s\), first in column 1; drop"),
        ({}, X[:1], Y[:1], "X has one row .*; pass at least two"),
        ({}, X[:0], Y[:0], r"X: Found array with 0 sample\(s\).*; pass at least two rows"),
        ({}, X[:, :0], Y, r"X: Found array with 0 feature\(s\).*; pass at least one column"),
        ({}, X[:, 0], Y, r"X: Expected 2D array, got 1D array instead; Reshape your data"),
        ({}, TEXT, Y, "X holds text in column 'city'; encode it as numbers"),
        ({}, TEXT.to_numpy(), Y, "X: could not convert string to float: 'Oslo'; encode text"),
        ({}, X, Y[:-1], "y has 19 rows and X has 20; pass one y per row of X"),
        ({}, X, None, "requires y to be passed"),
        ({}, X, ["a"] * 20, "y: could not convert string to float: 'a'; encode text"),
        ({}, X, np.zeros((20, 1, 1)), "y must have one or two axes"),
        ({}, X, np.where(Y > 0, np.inf, Y), "y holds infinity; drop those rows"),
        ({}, X, np.where(Y > 0, np.nan, Y), "y holds NaN; drop those rows, or set allow_missing"),
        ({"likelihood": "poisson"}, X, Y, "y must hold counts 0, 1, 2"),
        ({"likelihood": "normal"}, X, Y, "likelihood must be one of gaussian, .*; got 'normal'"),
        ({"likelihood": Bernoulli()}, X, Y, "likelihood Bernoulli is for class labels"),
        ({"likelihood": Gaussian([0.1, 0.2])}, X, Y, "y has 1 columns but noise has shape"),
        ({"engine": "hmc"}, X, Y, "engine must be one of ipvi, dsvi, sghmc; got 'hmc'"),
        ({"engine_options": {"speed": 9}}, X, Y, "'gradient' has no option 'speed'; it has"),
        ({"engine_options": 3}, X, Y, "engine_options must be a dict; got 3"),
        ({"engine": "ipvi", "game": "chess"}, X, Y, "game must be one of anchored, paper"),
        ({"num_restarts": 0}, X, Y, "num_restarts must be a whole number of at least 1"),
        ({"game": "chess"}, X, Y, "game must be one of anchored, paper; got 'chess'"),
        ({"kernel": "rfb"}, X, Y, "kernel must be one of rbf, .*; got 'rfb'"),
        ({"kernel": 3}, X, Y, "kernel must be one of rbf, .*; got 3"),
        ({"kernel": kernels.RBF([1.0] * 3)}, X, Y, "kernel does not fit layer 1, which has 2"),
        ({"kernel": kernels.RBF(columns=(5,))}, X, Y, "kernel does not fit layer 1, which has 2"),
        ({"dtype": "float16"}, X, Y, "dtype must be one of float64, float32, auto; got 'float16'"),
        ({"num_layers": 0}, X, Y, 'num_layers must be .* at least 1 or "auto" or None; got 0'),
        ({"num_steps": 2.5}, X, Y, "num_steps must be a whole number of at least 1 or None"),
        ({"batch_size": True}, X, Y, "batch_size must be a whole number of at least 1 or None"),
        ({"last_layer": "exact"}, X, Y, "last_layer must be one of auto, collapsed, natural, gra"),
        ({"last_layer": "collapsed", "batch_size": 4}, X, Y, "batch_size 4 is less than the"),
        ({"power": 1.5}, X, Y, 'power must be from 0 to 1 or "auto"; got 1.5'),
        ({"power": "half"}, X, Y, "power must be from 0 to 1 or \"auto\"; got 'half'"),
        ({"learning_rate": np.nan}, X, Y, "learning_rate must be above 0; got nan"),
        ({"validation_fraction": 1.0}, X, Y, "validation_fraction must be from 0 to below 1"),
        ({"validation_fraction": 0.99}, X, Y, "leaves fewer than two of 20 rows"),
        ({"random_state": "x"}, X, Y, "random_state must be a whole number, .*; got 'x'"),
    ],
)  # fmt: skip
def test_one_sentence_for_each_mistake(changes, x, y, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        tiny(**changes).fit(x, y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m: m.predict(X[:, :1]), "X has 1 features, but .*; pass the columns it was fitted"),
        (lambda m: m.predict(spoil(np.nan)), "X holds NaN or infinity"),
        (lambda m: m.predict(X[0]), "Expected 2D array"),
        (lambda m: m.predict_quantiles(X, [0.0, 0.5]), "q must hold numbers strictly between"),
        (lambda m: m.predict_interval(X, 90), "coverage must hold numbers strictly between"),
        (lambda m: m.log_density(X, Y[:3]), "y has 3 rows and X has 20"),
        (lambda m: m.log_density(X, np.stack([Y, Y], 1)), "y has 2 columns, but 1 were learned"),
        (lambda m: m.sample_y(X, 0), "n_samples must be a whole number of at least 1; got 0"),
        (lambda m: m.fit(X, Y, [-1.0] * 20), "sample_weight must hold finite numbers that are not"),
        (lambda m: m.fit(X, Y, [1.0] * 3), r"sample_weight has shape \(3,\)"),
        (lambda m: m.fit(X, Y, [1.0] + [0.0] * 19), "fewer than two rows above zero"),
    ],
)
def test_one_sentence_for_each_mistake_later(call, sentence, fitted):
    with pytest.raises(InputError, match=sentence) as caught:
        call(fitted)
    assert "\n" not in str(caught.value)


def test_the_game_of_the_paper_is_an_engine(tmp_path):
    """Fit, warn of a ratio that says little, predict, save, load."""
    model = DeepGPRegressor(
        engine="ipvi",
        game="paper",
        num_inducing=12,
        num_steps=60,
        num_mixture=10,
        random_state=0,
        engine_options={"discriminator_rate": 0.2, "num_player1_steps": 5},
    )
    with pytest.warns(UntrustedRatioWarning, match="engine='dsvi'") as caught:
        model.fit(X, Y)
    assert len(caught) == 1 and model.last_layer_ == "gradient" and model.power_ == 0.0
    assert {"accuracy", "log_ratio", "player1", "player2"} < set(model.history_.info)
    assert np.all(np.isfinite(model.predict(X)))
    model.save(tmp_path / "game.nashgp")
    np.testing.assert_array_equal(load(tmp_path / "game.nashgp").predict(X), model.predict(X))
    quiet = clone(model).set_params(num_layers=1, num_inducing=1, num_steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntrustedRatioWarning)
        quiet.set_params(engine_options={"discriminator_rate": 1e-6}).fit(X, Y)


def test_renamed_columns_are_noticed():
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = tiny(num_steps=2).fit(frame, Y)
    with pytest.raises(InputError, match=r"feature names should match .*; rename or reorder"):
        model.predict(frame.rename(columns={"b": "c"}))


def test_nothing_before_fit(tmp_path):
    for call in (
        lambda m: m.predict(X),
        lambda m: m.summary(),
        lambda m: m.sample_functions(),
        lambda m: m.save(tmp_path / "model"),
    ):
        with pytest.raises(NotFittedError, match=r"not fitted yet. Call 'fit'"):
            call(tiny())
    assert not list(tmp_path.iterdir())
