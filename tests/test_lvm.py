"""The latent variable model as a user meets it."""

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils.estimator_checks import estimator_checks_generator

from nashgp import DeepGPLVM
from nashgp.errors import InputError

TINY = DeepGPLVM(
    latent_dim=1,
    num_inducing=10,
    posterior="gaussian",
    num_steps=60,
    num_mixture=4,
    num_draws=50,
    random_state=0,
)


@pytest.fixture(autouse=True)
def strict():
    """scikit-learn's own arrays are not strict about types; override the fixture of conftest."""
    with jax.numpy_rank_promotion("raise"):
        yield


def curve(num=80, seed=0):
    random = np.random.default_rng(seed)
    t = np.sort(random.uniform(-1.0, 1.0, size=num))
    y = np.stack([np.sin(1.6 * t), np.cos(2.4 * t), t, t**2, np.sin(2.0 * t)], axis=1)
    return t, 10.0 + 5.0 * (y + 0.03 * random.normal(size=y.shape))


@pytest.fixture(scope="module")
def fitted():
    """Every other row of the curve, with some entries, one row and nothing of a column missing."""
    _, y = curve()
    known = np.c_[y[::2], np.full(40, 3.0)]
    known[np.random.default_rng(1).uniform(size=known.shape) < 0.05] = np.nan
    known[7] = np.nan
    model = DeepGPLVM(1, num_inducing=15, num_steps=300, random_state=0, num_mixture=10)
    return model.fit(known), np.c_[y[1::2], np.full(40, 3.0)]


def test_new_rows_go_there_and_back(fitted):
    model, new = fitted
    back = model.inverse_transform(model.transform(new))
    error = np.sqrt(np.mean((back - new)[:, :5] ** 2))
    line = PCA(1).fit(new)
    straight = line.inverse_transform(line.transform(new)) - new
    assert error < 0.3  # the noise is 0.15 in these units
    assert error < 0.3 * np.sqrt(np.mean(straight[:, :5] ** 2))
    np.testing.assert_allclose(back[:, 5], 3.0, atol=0.1)  # a constant column stays one


def test_missing_entries_are_drawn_and_observed_ones_stay(fitted):
    """The curve bends back: a cosine alone leaves two places, and draws come from both."""
    model, new = fitted
    part = np.full_like(new, np.nan)
    part[:, 1] = new[:, 1]
    whole = model.reconstruct(part[[5, 10]], 100)
    assert whole.shape == (2, 6, 100)
    np.testing.assert_array_equal(whole[:, 1], np.tile(part[[5, 10], 1][:, None], (1, 100)))
    for row in whole:
        ahead = np.mean(row[2] > 10.0)  # the column that tells t from -t
        assert 0.15 < ahead < 0.85
    full = model.reconstruct(new[[5]], 3)
    np.testing.assert_array_equal(full, np.tile(new[[5]][:, :, None], (1, 1, 3)))


def test_a_row_without_entries_is_the_prior(fitted):
    model, new = fitted
    nothing = np.full((1, 6), np.nan)
    drawn = model.sample_latent(nothing, 200)[0, 0]
    assert abs(np.mean(drawn)) < 0.2 and 0.8 < np.std(drawn) < 1.2
    assert abs(model.score_samples(nothing)[0]) < 0.1
    assert abs(model.embedding_[7, 0]) < 0.3
    assert model.score(new) > model.score(new[:, [1, 0, 2, 3, 4, 5]]) + 10.0  # columns mixed up


@pytest.mark.parametrize(
    ("settings", "rows", "message"),
    [
        ({"latent_dim": 0}, np.eye(4), "latent_dim must be"),
        ({"latent_dim": 5}, np.eye(4), "latent_dim 5 is more than the 4 components"),
        ({"posterior": "point"}, np.eye(4), "posterior must be one of anchored, gaussian"),
        ({}, np.full((4, 2), np.inf), "infinity"),
        ({}, np.c_[np.eye(4), np.full(4, np.nan)], "no value in column 4"),
    ],
)
def test_mistakes_are_named_in_one_sentence(settings, rows, message):
    with pytest.raises(InputError, match=message) as caught:
        DeepGPLVM(**settings).fit(rows)
    assert str(caught.value).count(". ") == 0


def checks():
    for number, (estimator, check) in enumerate(estimator_checks_generator(TINY)):
        name = getattr(check, "func", check).__name__
        yield pytest.param(estimator, check, id=f"{name}-{number}")


@pytest.mark.parametrize(("estimator", "check"), checks())
def test_check(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_digits_are_told_apart_better_than_by_pca():
    x, label = load_digits(return_X_y=True)
    x, label = x[:600], label[:600]
    model = DeepGPLVM(2, num_steps=1_000, dtype="float32", random_state=0).fit(x)
    near = KNeighborsClassifier(1)
    ours = cross_val_score(near, model.embedding_, label, cv=10).mean()
    theirs = cross_val_score(near, PCA(2).fit_transform(x), label, cv=10).mean()
    assert ours > theirs + 0.15
