"""The latent variable model as a user meets it."""

import copy
import pickle

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils.estimator_checks import estimator_checks_generator

import nashgp
from nashgp import DeepGPLVM, cli
from nashgp.errors import InputError
from nashgp.posteriors import AnchoredLatents, AnchoredPosterior

pytestmark = pytest.mark.lenient

TINY = DeepGPLVM(
    latent_dim=1,
    num_inducing=10,
    engine="dsvi",
    num_steps=30,
    num_mixture=4,
    num_draws=50,
    random_state=0,
)


def curve(num=80, seed=0):
    """Rows along a curve that bends back in its second column, and one column that is constant."""
    random = np.random.default_rng(seed)
    t = np.sort(random.uniform(-1.0, 1.0, size=num))
    y = np.stack([np.sin(1.6 * t), np.cos(2.4 * t), t, t**2, np.sin(2.0 * t)], axis=1)
    return np.c_[10.0 + 5.0 * (y + 0.03 * random.normal(size=y.shape)), np.full(num, 3.0)]


@pytest.fixture(scope="module")
def fitted():
    """Every other row of the curve, one of them and some entries of others missing."""
    y = curve()
    known = y[::2].copy()
    known[np.random.default_rng(1).uniform(size=known.shape) < 0.05] = np.nan
    known[7] = np.nan
    model = DeepGPLVM(1, engine="dsvi", num_steps=300, random_state=0, num_mixture=5)
    return model.fit(known), y[1::2]


def test_new_rows_go_there_and_back(fitted):
    model, new = fitted
    back = model.inverse_transform(model.transform(new))
    error = np.sqrt(np.mean((back - new)[:, :5] ** 2))
    line = PCA(1).fit(new)
    straight = line.inverse_transform(line.transform(new)) - new
    assert error < 0.3  # the noise is 0.15 in these units
    assert error < 0.3 * np.sqrt(np.mean(straight[:, :5] ** 2))
    np.testing.assert_allclose(back[:, 5], 3.0, atol=0.1)  # a constant column stays one
    assert 0.1 < model.noise_std_[0] < 0.2


def test_draws_are_far_from_the_rows_of_the_fit_as_often_as_they_should_be(fitted):
    """One column known: far away, where nothing is, a place may explain it too. By a grid."""
    model, new = fitted
    asked = np.full_like(new[[5]], np.nan)
    asked[:, 1] = new[5, 1]
    low, high = model.embedding_.min() - 0.3, model.embedding_.max() + 0.3
    grid = np.linspace(-8.0, 8.0, 4_001)
    log_p = model.latent_log_density(asked, grid[:, None])[0]
    exact = np.sum(np.exp(log_p - logsumexp(log_p))[(grid < low) | (grid > high)])
    drawn = model.sample_latent(asked, 2_000)[0, 0]
    share = np.mean((drawn < low) | (drawn > high))
    assert 0.005 < exact < 0.02
    assert 0.5 * exact < share < 2.0 * exact


def test_missing_entries_are_drawn_and_observed_ones_stay(fitted):
    """The curve bends back: a cosine alone leaves two places, and draws come from both."""
    model, new = fitted
    part = np.full_like(new, np.nan)
    part[:, 1] = new[:, 1]
    asked = part[[5, 10, 30]]
    whole = model.reconstruct(asked, 100)
    assert whole.shape == (3, 6, 100)
    np.testing.assert_array_equal(whole[:, 1], np.tile(asked[:, 1][:, None], (1, 100)))
    for row in whole:
        ahead = np.mean(row[2] > 10.0)  # the column that tells t from -t
        assert 0.15 < ahead < 0.85
        # Both are places of the curve: the square goes with what was seen.
        low, high = np.quantile(row[3], [0.05, 0.95])  # a draw in a hundred is from far away
        assert (high - low) / 3.3 < 0.3 < np.std(row[2])
    full = model.reconstruct(new[:3], 3)
    np.testing.assert_array_equal(full, np.tile(new[:3, :, None], (1, 1, 3)))


@pytest.mark.parametrize("tail", [np.inf, 3.0])
def test_a_hidden_entry_has_the_law_that_the_rest_of_its_row_leaves_it(fitted, tail):
    """A row off the curve: by a grid of latents for a grid of values, and by draws."""
    model, new = copy.copy(fitted[0]).set_params(tail=tail), fitted[1]
    part = new[[12]].copy()
    part[0, [0, 3]] += [1.0, -1.0]  # seven deviations of the noise
    part[0, 4] = np.nan
    value = np.linspace(0.0, 20.0, 401)
    every = np.tile(part, (len(value), 1))
    every[:, 4] = value
    grid = np.linspace(-5.0, 5.0, 501)[:, None]

    def evidence(rows):
        return logsumexp(model.latent_log_density(rows, grid), axis=1)

    density = np.exp(evidence(every) - evidence(part))
    cdf = (np.cumsum(density) - 0.5 * density) * (value[1] - value[0])
    assert cdf[-1] == pytest.approx(1.0, abs=0.01)
    drawn = model.reconstruct(part, 2_000)[0, 4]
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        share = np.mean(drawn < np.interp(level, cdf, value))
        assert share == pytest.approx(level, abs=0.05)
    low, high = np.interp([0.1, 0.9], cdf, value)
    assert high - low > (0.9 if np.isfinite(tail) else 0.0)  # 2.6 deviations are 0.4


@pytest.mark.slow
def test_a_grid_integrates_to_the_score(fitted):
    """`∫ p(x, y_O) dx` is what the weighted draws estimate, for full, partial and empty rows."""
    model, new = fitted
    asked = new[[5, 5, 5]].copy()
    asked[1, [0, 2, 4]] = np.nan
    asked[2] = np.nan
    grid = np.linspace(-5.0, 5.0, 2_001)[:, None]
    log_p = model.latent_log_density(asked, grid)
    want = logsumexp(log_p, axis=1) + np.log(grid[1, 0] - grid[0, 0])
    np.testing.assert_allclose(model.score_samples(asked), want, atol=0.1)
    assert abs(want[2]) < 1e-3
    mean = np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True)) @ grid
    np.testing.assert_allclose(model.transform(asked), mean, atol=0.1)


@pytest.mark.slow
def test_a_row_without_entries_is_the_prior(fitted):
    model, new = fitted
    drawn = model.sample_latent(np.full((3, 6), np.nan), 200)[0, 0]
    assert abs(np.mean(drawn)) < 0.2 and 0.8 < np.std(drawn) < 1.2
    trained = model.sample_embedding(300)
    assert trained.shape == (40, 1, 300)
    assert abs(np.mean(trained[7])) < 0.4 and 0.7 < np.std(trained[7]) < 1.3
    assert np.median(np.std(trained, axis=2)) < 0.2  # the others are known
    mixed = new[:3, [1, 0, 2, 3, 4, 5]]  # columns
    assert model.score(new[:3]) > model.score(mixed) + 10.0


def test_a_file_gives_the_same_answers(fitted, tmp_path, capsys):
    """To the last bit, from a file and from a pickle; the command line has no use for it."""
    model, new = fitted
    part = np.where(np.arange(6) < 3, np.nan, new[:3])
    model.save(tmp_path / "map")
    want, placed = model.reconstruct(part, 2), model.inverse_transform(model.embedding_)
    for again in (nashgp.load(tmp_path / "map"), pickle.loads(pickle.dumps(model))):
        assert isinstance(again, DeepGPLVM)
        np.testing.assert_array_equal(again.reconstruct(part, 2), want)
        np.testing.assert_array_equal(again.inverse_transform(again.embedding_), placed)
        np.testing.assert_array_equal(again.sample_embedding(), model.sample_embedding())
    assert cli.main(["predict", str(tmp_path / "map"), "rows.csv"]) == 1
    assert "no targets" in capsys.readouterr().err


@pytest.mark.slow
def test_a_game_follows_the_gaussians():
    """Fewest steps: two with Gaussian latents, and one with anchored ones."""
    model = DeepGPLVM(1, num_steps=2, num_mixture=1, random_state=0).fit(curve(12))
    latents = model.fitted_.posterior.below.latents
    assert isinstance(latents, AnchoredLatents)
    assert len(model.history_.objective) == 3
    assert model.sample_embedding(4).shape == (12, 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"num_inducing": None}, {"batch_size": 20}])
def test_two_layers_without_inducing_variables_or_in_batches(settings, tmp_path):
    """The game mixes latents and hidden layers, whose outputs share one covariance."""
    y = curve(40)
    settings = {"hidden_dim": 3, "num_steps": 30, "num_mixture": 3, "num_draws": 50, **settings}
    model = DeepGPLVM(1, 2, random_state=0, **settings).fit(y)
    below = model.fitted_.posterior.below
    hidden = below.hidden
    assert isinstance(hidden, AnchoredPosterior) and isinstance(below.latents, AnchoredLatents)
    assert hidden.frame.roots[0].shape[0] == 1 and hidden.frame.means[0].shape[1] == 3
    assert (model.fitted_.posterior.z is None) == (settings.get("num_inducing", 1) is not None)
    error = model.inverse_transform(model.transform(y)) - y
    assert np.sqrt(np.mean(error**2)) < np.std(y[:, :5] - y[:, :5].mean(axis=0))
    model.save(tmp_path / "map")
    again = nashgp.load(tmp_path / "map")
    np.testing.assert_array_equal(again.transform(y), model.transform(y))
    np.testing.assert_array_equal(again.sample_embedding(3), model.sample_embedding(3))


def test_a_file_of_before_names_the_posterior():
    given = TINY.get_params()
    for new in ("engine", "game", "likelihood", "power"):
        del given[new]
    assert DeepGPLVM._from_file(given | {"posterior": "gaussian"}).engine == "dsvi"
    assert DeepGPLVM._from_file(given | {"posterior": "anchored"}).engine == "ipvi"


def test_the_power_is_that_of_the_data_term():
    """What few inducing inputs cannot tell is noise to the bound, and much less so at power 1."""
    few = clone(TINY).set_params(num_inducing=3, num_steps=200)
    bound, fitc = (few.set_params(power=a).fit(curve()).noise_std_[0] for a in (0.0, 1.0))
    assert fitc < 0.8 * bound


@pytest.mark.parametrize(
    ("settings", "rows", "message"),
    [
        ({"latent_dim": 0}, np.eye(4), "latent_dim must be"),
        ({"latent_dim": 5}, np.eye(4), "latent_dim 5 is more than the 4 components"),
        ({"num_layers": 2, "hidden_dim": 5}, np.eye(4), "hidden_dim 5 is more than the 4"),
        ({"engine": "sghmc"}, np.eye(4), "engine must be one of ipvi, dsvi; got 'sghmc'"),
        ({"game": "paper"}, np.eye(4), "game must be one of anchored"),
        ({"likelihood": "poisson"}, np.eye(4), "likelihood must be one of gaussian"),
        ({"power": 2.0}, np.eye(4), "power must be from 0 to 1"),
        ({"num_inducing": "many"}, np.eye(4), 'num_inducing must be .* "auto" or None'),
        ({"num_inducing": None, "batch_size": 2}, np.eye(4), "batch_size 2 is less than the 4"),
        ({"learning_rate": -1.0}, np.eye(4), "learning_rate must be above 0"),
        ({}, np.full((4, 2), np.inf), "infinity"),
        ({}, np.c_[np.eye(4), np.full(4, np.nan)], "no value in column 4"),
        ({}, [["a", "b"], ["c", "d"]], "encode text"),
    ],
)
def test_mistakes_are_named_in_one_sentence(settings, rows, message):
    with pytest.raises(InputError, match=message) as caught:
        DeepGPLVM(**settings).fit(rows)
    assert str(caught.value).count(". ") == 0


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        ("inverse_transform", np.zeros((2, 3)), "3 column.s. and a latent has 1"),
        ("inverse_transform", np.full((2, 1), np.nan), "no missing entries"),
        ("transform", np.zeros((2, 5)), "pass the columns it was fitted with"),
    ],
)
def test_mistakes_of_a_question(fitted, name, argument, message):
    with pytest.raises(InputError, match=message):
        getattr(fitted[0], name)(argument)


# Most of the time of a check that fits is compiling for rows of one more shape: those are slow.
SHORT = {
    "check_complex_data",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimator_sparse_tag",
    "check_estimator_tags_renamed",
    "check_estimators_empty_data_messages",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_fit2d_1sample",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
}


def checks():
    for number, (estimator, check) in enumerate(estimator_checks_generator(TINY)):
        name = check.func.__name__
        marks = [] if name in SHORT else [pytest.mark.slow]
        yield pytest.param(estimator, check, marks=marks, id=f"{number}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_check(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_digits_are_told_apart_better_than_by_pca():
    x, label = load_digits(return_X_y=True)
    x, label = x[:600], label[:600]
    model = DeepGPLVM(2, random_state=0)
    near = KNeighborsClassifier(1)
    ours = cross_val_score(near, model.fit_transform(x), label, cv=10).mean()
    theirs = cross_val_score(near, PCA(2).fit_transform(x), label, cv=10).mean()
    assert ours > theirs + 0.15
