"""The classifier as a user meets it: labels, probabilities, weights, warm starts, bad input."""

import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split

from nashgp import DeepGPClassifier, DeepGPRegressor, load
from nashgp.errors import InputError
from nashgp.estimators import classifier
from nashgp.likelihoods import Bernoulli, Gaussian, RobustMax, Softmax

pytestmark = pytest.mark.lenient

# Compiling is most of the time: 57 to 64 rows of two columns are one program for each number of
# classes.
SETTINGS = dict(
    num_layers=1, num_steps=60, num_inducing=12, num_mixture=8, kernel="rbf", random_state=0
)


def tiny(**changes) -> DeepGPClassifier:
    return DeepGPClassifier(**(SETTINGS | changes))


def ring(num=60, seed=0):
    """Three classes by the angle, on a ring."""
    random = np.random.default_rng(seed)
    angle = random.uniform(0.0, 2.0 * np.pi, num)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.05 * random.normal(size=(num, 2))
    return x, (angle // (2.0 * np.pi / 3.0)).astype(int)


X, Y = ring()
NAMES = np.array(["red", "green", "blue"])


@pytest.fixture(scope="module")
def fitted():
    return tiny().fit(X, NAMES[Y])


@pytest.fixture(scope="module")
def coin():
    """A coin whose chance of heads is known at every input; each row was thrown nine times."""
    random = np.random.default_rng(0)
    x = np.stack([np.linspace(-2.0, 2.0, 30).repeat(2), random.normal(size=60)], axis=1)
    heads = random.binomial(9, ndtr(2.0 * np.sin(2.0 * x[::2, 0])))
    count = np.stack([heads, 9 - heads], axis=1).reshape(-1)
    return tiny().fit(x, np.tile([True, False], 30), np.maximum(count, 1e-6))


# ---- labels ----------------------------------------------------------------------------------


def test_the_names_of_the_classes_do_not_matter(fitted):
    """Numbers, text in another order: the same probabilities under other names."""
    new, truth = ring(200, seed=1)
    p = fitted.predict_proba(new)
    assert fitted.classes_.tolist() == ["blue", "green", "red"] and p.shape == (200, 3)
    numbers = tiny().fit(X, Y)
    assert numbers.classes_.dtype == Y.dtype
    np.testing.assert_allclose(numbers.predict_proba(new), p[:, ::-1], atol=1e-6)
    assert fitted.score(new, NAMES[truth]) > 0.93 and numbers.score(new, truth) > 0.93
    assert set(fitted.predict(new)) == set(NAMES)
    floats = tiny().fit(X, pd.Series(Y.astype(float)))
    np.testing.assert_array_equal(floats.predict(new), numbers.predict(new))
    assert floats.predict(new).dtype == np.float64


def test_two_classes_share_a_function_and_are_calibrated(coin):
    grid = np.stack([np.linspace(-2.0, 2.0, 100), np.zeros(100)], axis=1)
    p = coin.predict_proba(grid)
    assert coin.classes_.tolist() == [False, True] and coin.predict(grid).dtype == bool
    assert np.mean(np.abs(p[:, 1] - ndtr(2.0 * np.sin(2.0 * grid[:, 0])))) < 0.07
    np.testing.assert_allclose(np.sum(p, axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(coin.predict(grid), p[:, 1] > 0.5)


def test_the_log_density_is_that_of_the_probabilities(fitted, coin):
    new, truth = ring(40, seed=2)
    row = np.arange(40)
    column = np.searchsorted(fitted.classes_, NAMES[truth])
    want = np.log(fitted.predict_proba(new)[row, column])
    np.testing.assert_allclose(fitted.log_density(new, NAMES[truth]), want, rtol=1e-6, atol=1e-7)
    heads = truth > 0
    want = np.log(coin.predict_proba(new)[row, heads.astype(int)])
    np.testing.assert_allclose(coin.log_density(new, heads), want, rtol=1e-6)


def test_likelihoods_are_names_or_objects(fitted, coin):
    assert isinstance(fitted._first.model.likelihood, RobustMax)
    assert isinstance(coin._first.model.likelihood, Bernoulli)
    assert isinstance(tiny(likelihood="softmax")._likelihood(Y[:, None]), Softmax)
    assert tiny(likelihood="robust-max")._likelihood(1.0 * (Y[:, None] > 0)).num_classes == 2


@pytest.mark.slow
def test_softmax_learns_too():
    model = tiny(likelihood=Softmax(3), num_mixture=2).fit(X, Y)
    assert isinstance(model._first.model.likelihood, Softmax) and model.score(X, Y) > 0.9
    np.testing.assert_allclose(np.sum(model.predict_proba(X), axis=1), 1.0, rtol=1e-12)


def test_rows_without_a_label_say_nothing_of_classes():
    missing = np.where(np.arange(60) < 30, NAMES[Y].astype(object), None)
    model = tiny(allow_missing=True).fit(X, missing)
    assert model.classes_.tolist() == ["blue", "green", "red"]
    assert model.score(X, NAMES[Y]) > 0.85
    scores = model.log_density(X, missing)
    np.testing.assert_array_equal(scores[30:], 0.0)
    np.testing.assert_array_equal(scores[:30], model.log_density(X, NAMES[Y])[:30])


# ---- draws -----------------------------------------------------------------------------------


def test_draws_are_labels_and_probabilities_of_all_classes(fitted, coin, monkeypatch):
    """What comes out of the likelihoods, in the words of the user."""
    one = np.array([[[0.25, 1.0]], [[0.5, 0.0]]])  # of the second class, for two rows and two draws
    np.testing.assert_array_equal(coin._outputs(one), np.concatenate([1.0 - one, one], axis=1))
    numbers = np.array([[[0.0, 2.0]], [[1.0, 1.0]]])
    monkeypatch.setattr(DeepGPClassifier, "_draw_targets", lambda *_: numbers)
    assert fitted.sample_y(X[:2], 2).tolist() == [["blue", "red"], ["green", "green"]]


@pytest.mark.slow
def test_functions_and_labels_average_to_the_probabilities(fitted, coin):
    x = ring(5, seed=4)[0]
    for model in (fitted, coin):
        p, num = model.predict_proba(x), 500
        functions = model.sample_functions(num)
        values = functions(x)
        assert values.shape == (*p.shape, num)
        np.testing.assert_allclose(np.sum(values, axis=1), 1.0, rtol=1e-9)
        np.testing.assert_array_equal(functions(x[[3, 1]]), values[[3, 1]])
        error = 5.0 * np.sqrt(p * (1.0 - p) / num) + 1e-3
        assert np.all(np.abs(np.mean(values, axis=2) - p) < error)
    p = fitted.predict_proba(x)
    drawn = fitted.sample_y(x, num)
    assert drawn.shape == (5, num) and drawn.dtype == fitted.classes_.dtype
    share = np.stack([np.mean(drawn == label, axis=1) for label in fitted.classes_], axis=1)
    assert np.all(np.abs(share - p) < 5.0 * np.sqrt(p * (1.0 - p) / num) + 1e-3)


# ---- weights ---------------------------------------------------------------------------------


def test_weights_of_classes_are_weights_of_rows():
    few = tiny(num_steps=5)
    plain = few.fit(X, Y).predict_proba(X)
    for weight in ({0: 3.0, 2: 0.5}, "balanced"):
        each = np.array([3.0, 1.0, 0.5]) if isinstance(weight, dict) else 20.0 / np.bincount(Y)
        named = clone(few).set_params(class_weight=weight).fit(X, Y).predict_proba(X)
        np.testing.assert_array_equal(named, few.fit(X, Y, each[Y]).predict_proba(X))
        assert np.max(np.abs(named - plain)) > 1e-4
    # A row that is not counted is not there, and neither is its class.
    rare = np.where(np.arange(60) < 2, 0, 1 + (Y > 0))
    kept = rare > 0
    trimmed = clone(few).fit(X, rare, kept.astype(float))
    assert trimmed.classes_.tolist() == [1, 2]
    plain = few.fit(X[kept], rare[kept])
    np.testing.assert_array_equal(trimmed.predict_proba(X), plain.predict_proba(X))


def test_a_heavy_class_is_predicted_more_often():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 2)), random.integers(0, 2, 60)  # nothing to learn
    heavy = tiny(class_weight={1: 20.0}).fit(x, y)
    assert np.mean(heavy.predict(x) == 1) > 0.95


# ---- life ------------------------------------------------------------------------------------


def test_warm_start_goes_on_with_the_same_classes():
    model = tiny(warm_start=True).fit(X, NAMES[Y])
    before = model.predict_proba(X)
    two = np.where(Y == 0, "green", NAMES[Y])  # two of the classes will do
    model.set_params(num_steps=1, learning_rate=1e-4).fit(X, two)
    assert model.classes_.tolist() == ["blue", "green", "red"]
    after, red = model.predict_proba(X), NAMES[Y] == "red"
    assert np.mean(np.abs(after[~red] - before[~red])) < 0.05  # one step moves little
    assert np.mean(after[red, 2]) < np.mean(before[red, 2])
    with pytest.raises(
        InputError, match="y holds the label 'pink', which was not in fit; set warm"
    ):
        model.fit(X, np.where(Y == 0, "pink", NAMES[Y]))


@pytest.mark.parametrize("weight", [None, "balanced", {"red": 2.0}])
def test_files_and_pickles_keep_every_bit(weight, tmp_path):
    model = tiny(num_steps=3, class_weight=weight).fit(X, NAMES[Y].astype(object))
    model.save(tmp_path / "model.nashgp")
    for again in (load(tmp_path / "model.nashgp"), pickle.loads(pickle.dumps(model))):
        assert isinstance(again, DeepGPClassifier) and again.class_weight == weight
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
    number = tiny(num_steps=3, class_weight={1: 2.0}).fit(X, Y > 0)
    number.save(tmp_path / "model.nashgp")
    again = load(tmp_path / "model.nashgp")
    assert again.class_weight == {1: 2.0} and again.classes_.dtype == bool


@pytest.mark.slow  # the contracts of engines know the game over classes too
@pytest.mark.parametrize("game", ["anchored", "paper"])
@pytest.mark.filterwarnings("ignore:the discriminator tells")
def test_games_are_played_over_classes(game):
    options = {} if game == "anchored" else {"discriminator_rate": 0.01}
    model = tiny(engine="ipvi", game=game, num_layers=2, num_steps=8, engine_options=options)
    model.fit(X, Y)
    assert model.last_layer_ == ("natural" if game == "anchored" else "gradient")
    p = model.predict_proba(X)
    assert np.all(np.isfinite(p)) and np.all(np.isfinite(model.history_.objective))


def test_settings_are_those_of_the_regressor_and_one_more():
    names = list(inspect.signature(DeepGPClassifier).parameters)
    assert names == [*inspect.signature(DeepGPRegressor).parameters, "class_weight"]
    model = DeepGPClassifier(num_layers=3, class_weight="balanced")
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(TypeError, match="num_layer"):
        DeepGPClassifier(num_layer=3)


def test_what_was_learned_can_be_read(fitted):
    assert fitted.noise_std_ is None and len(fitted.variances_) == 1
    np.testing.assert_allclose(np.sum(fitted.relevance_), 1.0)
    assert np.min(fitted.relevance_) > 0.2  # both columns tell the angle
    assert "layer 1: RBF, 12 inducing inputs, 3 outputs" in fitted.summary()


# ---- bad input -------------------------------------------------------------------------------

OBJECTS = Y.astype(object)
MIXED = np.where(Y > 0, OBJECTS, "zero")
GAP = np.where(np.arange(60) == 7, None, OBJECTS)


@pytest.mark.parametrize(
    ("changes", "y", "sentence"),
    [
        ({}, None, "requires y to be passed"),
        ({}, Y[:-1], "y has 59 rows and X has 60; pass one y per row of X"),
        ({}, np.zeros(60), r"y has 1 class\(es\) among the rows that count; pass rows of two"),
        ({}, X[:, 0], r"y holds fractions or infinity \(Unknown label type: continuous\); use Dee"),
        ({}, np.where(Y > 0, np.inf, 0.0), "y holds fractions or infinity"),
        ({}, np.where(Y > 0, np.nan, 0.0), r"y holds no label \(NaN or None\) in .* row\(s\); dro"),
        ({}, GAP, r"y holds no label \(NaN or None\) in 1 row\(s\); drop those rows, or set allow"),
        ({}, MIXED, r"y mixes labels that have no common order \(int, str\); turn all of them"),
        ({}, np.stack([Y, Y], 1), r"y must be one column of labels, got shape \(60, 2\); pass one"),
        ({"likelihood": "gaussian"}, Y, "likelihood must be one of bernoulli, robust-max, softmax"),
        ({"likelihood": Gaussian(0.1)}, Y, "likelihood Gaussian is not for class labels"),
        ({"likelihood": "bernoulli"}, Y, "Bernoulli is for 2 classes and y has 3; use likelihood="),
        ({"likelihood": RobustMax(4)}, Y, "RobustMax is for 4 classes and y has 3; use likelihood"),
        ({"class_weight": "even"}, Y, "class_weight must be None, .* or a dict .* 'even'"),
        ({"class_weight": {7: 1.0}}, Y, "class_weight names 7, which is no class of y; drop it"),
        ({"class_weight": {1: -1.0}}, Y, "class_weight of 1 must be a finite number that is not"),
        ({"class_weight": {1: "heavy"}}, Y, "class_weight of 1 must be a finite .* got 'heavy'"),
        ({"last_layer": "collapsed"}, Y, 'last_layer "collapsed" needs normal noise; use "natural'),
        ({"hidden": "deep"}, Y, "hidden must be one of gp, learned; got 'deep'"),
        ({"covariance": "wide"}, Y, "covariance must be one of auto, full, shared; got 'wide'"),
    ],
)  # fmt: skip
def test_one_sentence_for_each_mistake(changes, y, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        tiny(**changes).fit(X, y)
    assert "\n" not in str(caught.value)


def test_one_sentence_for_each_mistake_later(fitted, monkeypatch):
    with pytest.raises(
        InputError, match="y holds the label 'pink', which was not in fit; drop its"
    ):
        fitted.log_density(X, ["pink"] * 60)
    with pytest.raises(InputError, match="y has 3 rows and X has 60"):
        fitted.log_density(X, ["red"] * 3)
    monkeypatch.setattr(classifier, "MOST_CLASSES", 2)
    with pytest.raises(
        InputError, match="y has 3 classes, more than 2; merge some of them, or use"
    ):
        fitted.fit(X, Y)


# ---- real rows -------------------------------------------------------------------------------


def test_some_digits_are_read():
    """Zeros, ones and twos in the plane of their largest spread, from 60 of them."""
    x, y = load_digits(n_class=3, return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, train_size=60, stratify=y, random_state=0)
    plane = PCA(2).fit(x)
    model = tiny().fit(plane.transform(x), y)
    assert model.score(plane.transform(x_test), y_test) > 0.85


def test_hidden_layers_may_be_learned(tmp_path):
    """Wide rows through a narrow layer: its projection moves, and a file remembers where to."""
    random = np.random.default_rng(0)
    wide = np.concatenate([X, random.normal(size=(60, 3)) @ random.normal(size=(3, 6))], axis=1)
    model = tiny(num_layers=2, hidden="learned", hidden_dim=2, num_steps=150).fit(wide, Y)
    hidden, last = model.fitted_.model.layers
    assert hidden.low_rank and not last.low_rank
    assert np.max(np.abs(hidden.mean.moved)) > 0.1
    assert model.score(wide, Y) > 0.9
    model.save(tmp_path / "model.nashgp")
    again = load(tmp_path / "model.nashgp")
    np.testing.assert_array_equal(again.predict_proba(wide), model.predict_proba(wide))
    functions = again.sample_functions(3)(wide[:5])
    assert np.all(np.isfinite(functions))


@pytest.mark.slow
def test_digits_are_read():
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, stratify=y, random_state=0)
    model = DeepGPClassifier(num_inducing=100, num_steps=300, dtype="float32", random_state=0)
    assert model.fit(x, y).score(x_test, y_test) >= 0.975
