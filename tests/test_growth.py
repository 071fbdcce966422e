"""Training by stages: lanes, judges that stay unseen, deep models that start as shallow ones."""

import copy
import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import logsumexp

from nashgp import DeepGPRegressor, growth, load, recipes, train
from nashgp.batch import make_data
from nashgp.engines import Collapsed, Lanes, collapsed_objective, lane
from nashgp.engines.collapsed import below_last
from nashgp.errors import InputError
from nashgp.estimators import settings as chosen
from nashgp.estimators import teams, training
from nashgp.estimators.training import Task
from nashgp.likelihoods import Poisson
from nashgp.posteriors import Ensemble, members_of
from tests.cases import rows, tiny_data, tiny_fitted


def test_lanes_are_fits_of_their_own(x64):
    """Another power and other weights in each lane: the same as one engine at a time."""
    fitted, data = tiny_fitted(num_layers=1), tiny_data()
    weight = jnp.asarray([[1.0] * 12, [1.0] * 6 + [0.0] * 6])
    powers = jnp.asarray([0.0, 0.7])
    lanes = Lanes(Collapsed(), 2)
    state = lanes.start(jr.key(0), fitted, weight, power=powers)
    outcome = train.run(jr.key(1), lanes, fitted, data, num_steps=3, num_kept=1, state=state)
    for number, power in enumerate((0.0, 0.7)):
        alone = eqx.tree_at(lambda d: d.weight, data, data.weight * weight[number][:, None])
        engine = Collapsed(power=power)
        single = train.run(jr.key(1), engine, fitted, alone, num_steps=3, num_kept=1)
        mine = lane(outcome.fitted, number)
        np.testing.assert_allclose(
            outcome.history.objective[:, number], single.history.objective, rtol=1e-9
        )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8),
            eqx.filter(mine, eqx.is_array),
            eqx.filter(single.fitted, eqx.is_array),
        )


def test_programs_compiled_ahead_are_those_that_run():
    """A shallow model and a deep one are two programs, each compiled once."""
    x, compiled = rows(20, 2), []

    def seen(event, _, fun_name="", **others):
        if event.endswith("backend_compile_duration"):
            compiled.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(seen)
    try:
        options = {"engine": "dsvi", "num_restarts": 1, "num_inducing": 5, "num_mixture": 3}
        DeepGPRegressor(num_steps=12, random_state=0, **options).fit(x, x[:, 0])
    finally:
        jax.monitoring.unregister_event_duration_listener(seen)
    assert compiled.count("jit(_advance)") == 2
    assert compiled.count("jit(_result)") == 2


def test_rows_that_judge_are_never_learned_from(x64):
    """Their targets change the verdict but not a single bit of any fit."""
    x, y = rows(40, 2), rows(40, 1, seed=5)
    fitted = tiny_fitted("student-t", num_layers=1)  # any one-target model
    model = eqx.tree_at(lambda m: m.likelihood, fitted.model, recipes.LIKELIHOODS["gaussian"](1))
    start = dataclasses.replace(fitted, model=model)
    data = make_data(x, y)
    held = growth._held_out(jr.split(jr.key(3), 3)[0], data)
    assert held.sum() == 8

    def choose(y):
        return growth.choose_power(
            jr.key(3), start, make_data(x, y), Collapsed(), num_steps=2, powers=(0.5, 0.5)
        )

    (_, one), (_, two) = choose(y), choose(np.where(held[:, None], y + 3.0, y))
    assert eqx.tree_equal(one.fitted, two.fitted)
    (_, three) = choose(np.where(held[:, None], y, y + 3.0))
    assert not eqx.tree_equal(one.fitted, three.fitted)


def test_a_winner_must_be_clearly_better():
    random = np.random.default_rng(0)
    base = random.normal(size=50)
    noise = 0.1 * random.normal(size=50)
    assert growth.clearly_best(np.stack([base, base + 0.001 + noise, base - 1.0])) == 0
    assert growth.clearly_best(np.stack([base, base + 0.1 + noise, base - 1.0])) == 1


@pytest.mark.parametrize("num_layers", [2, 3])
def test_a_deep_model_starts_as_the_shallow_one(num_layers, x64):
    """Layers without variance are identities, and their prior costs no KL."""
    shallow, data = tiny_fitted(num_layers=1), tiny_data()
    deep = recipes.deepen(shallow, num_layers, variance=1.1e-6)  # near the smallest there is
    assert len(deep.model.layers) == num_layers

    def value(fitted):
        hidden = below_last(fitted)
        return collapsed_objective(
            jr.key(0), fitted.model, hidden, data.all(), num_samples=4, power=0.5
        )

    np.testing.assert_allclose(value(deep), value(shallow), atol=0.1)
    _, kl = below_last(deep).sample_and_kl(jr.key(0), deep.model, 1)
    np.testing.assert_allclose(kl, 0.0, atol=1e-10)


def test_histories_of_stages_follow_one_another(x64):
    fitted, data = tiny_fitted(num_layers=1), tiny_data()
    first = train.run(jr.key(0), Collapsed(), fitted, data, num_steps=3, num_kept=1)
    stage = growth.Stage(Collapsed(), 2, {"num_kept": 1})
    both = growth.go_on(jr.key(1), first, first.fitted, stage, data).history
    np.testing.assert_array_equal(both.step, [3, 5])
    np.testing.assert_array_equal(both.objective[:3], first.history.objective)
    assert len(both.objective) == 5 and np.all(np.diff(both.seconds) > 0.0)
    broken = dataclasses.replace(first.history, interrupted=True)
    ended = growth.go_on(jr.key(1), first._replace(history=broken), first.fitted, stage, data)
    assert len(ended.history.objective) == 3 and ended.history.interrupted


def test_the_regressor_judges_powers_when_rows_are_enough():
    random = np.random.default_rng(0)
    x = random.uniform(-2.0, 2.0, size=(210, 1))
    y = np.sin(3.0 * x[:, 0]) + 0.1 * random.normal(size=210)
    settings = dict(
        num_inducing=10, num_mixture=8, learning_rate=0.05, num_restarts=1, random_state=0
    )
    model = DeepGPRegressor(num_layers=2, num_steps=200, **settings).fit(x, y)
    assert model.power_ in growth.POWERS and model.num_steps_ == 200
    assert len(model.fitted_.model.layers) == 2 and model.score(x, y) > 0.95
    few = x[:50]
    task = Task(few, few, np.ones(50), model._start_likelihood(few, "float64"))
    start = training.start(model._settings, 0, task)
    plan = training.make_plan(model._settings, start, 50)
    assert plan.power == 0.5 and not plan.judge
    assert training.make_plan(model._settings, start, 210).judge


@pytest.mark.parametrize(("gains", "depth"), [({3: 0.5}, 3), ({1: 0.5}, 1), ({3: 0.01}, 2)])
def test_rows_held_out_choose_the_depth(gains, depth, monkeypatch):
    """The depth that is clearly best wins; a gain within its error leaves 2 as it is."""
    random, seen = np.random.default_rng(0), []

    def scores(key, fitted, data, *, num_samples):
        del key
        num_layers = len(fitted.model.layers)
        seen.append((num_layers, len(data), num_samples))
        return random.normal(gains.get(num_layers, 0.0), 0.5, size=len(data))

    monkeypatch.setattr(growth, "scores", scores)
    x = random.normal(size=(210, 1))
    settings = dict(num_steps=4, num_inducing=5, num_mixture=4, power=0.5, random_state=0)
    settings |= dict(num_restarts=1, engine="dsvi", last_layer="gradient", kernel="rbf")
    model = DeepGPRegressor(num_layers="auto", **settings).fit(x, x[:, 0])
    assert seen == [(2, 42, 4), (1, 42, 4), (3, 42, 4)]
    assert model.num_layers_ == depth and model.num_layers == "auto"
    assert all(len(member.model.layers) == depth for member in members_of(model.fitted_))
    again = DeepGPRegressor(num_layers=depth, **settings).fit(x, x[:, 0])
    np.testing.assert_array_equal(model.predict(x[:5]), again.predict(x[:5]))
    if depth == 3:  # a warm start stays as deep, few rows try nothing
        model.set_params(warm_start=True).fit(x, x[:, 0])
        assert model.num_layers_ == 3
        assert DeepGPRegressor(num_layers="auto", **settings).fit(x[:9], x[:9, 0]).num_layers_ == 2
        assert len(seen) == 3


def rows_that_repeat(num: int = 240):
    """Inputs of which a third are copies of others, and a surprise of its own for each."""
    random = np.random.default_rng(0)
    distinct = random.uniform(-2.0, 2.0, size=(2 * num // 3, 3))
    which = np.arange(num) % len(distinct)
    return distinct[which], random.normal(size=len(distinct))[which]


def test_rows_that_repeat_are_remembered_if_they_agree(tmp_path, monkeypatch):
    """Copies of surprises can only be known by heart; copies with noise of their own cannot."""
    monkeypatch.setattr(chosen, "MANY_INDUCING", 20)
    x, y = rows_that_repeat()
    settings = dict(engine="dsvi", num_layers=1, num_steps=60, num_mixture=4, random_state=0)
    model = DeepGPRegressor(**settings).fit(x, y)
    assert model.remembers_ and model.num_inducing_ == len(np.unique(x, axis=0)) == 160
    known = np.arange(80)  # those that have copies
    assert np.std(model.predict(x[known]) - y[known]) < 0.5 * np.std(y)
    model.save(tmp_path / "model.nashgp")
    again = load(tmp_path / "model.nashgp").set_params(warm_start=True, num_layers=None).fit(x, y)
    assert again.remembers_ and again.num_layers_ == 1 and again.num_inducing_ == 160
    with pytest.raises(InputError, match=r"num_layers is 2 and .* had 1; set num_layers=1, or"):
        again.set_params(num_layers=2).fit(x, y)
    noise = np.random.default_rng(1).normal(size=len(y))
    other = DeepGPRegressor(**settings).fit(x, noise)
    assert not other.remembers_ and other.num_inducing_ == 20


def test_what_is_set_is_not_replaced_by_memory(monkeypatch):
    monkeypatch.setattr(chosen, "MANY_INDUCING", 20)
    x, y = rows_that_repeat()
    likelihood = recipes.LIKELIHOODS["gaussian"](1)
    task = Task(x, y[:, None], np.ones(len(x)), likelihood)

    def may(task, **given):
        return teams.may_remember(DeepGPRegressor(**given)._settings, task)

    for depth in (None, "auto", 1):
        assert may(task, num_layers=depth)
    for settings in (
        dict(num_layers=2),
        dict(num_inducing=50),
        dict(kernel="rbf"),
        dict(power=0.5),
        dict(num_restarts=2),
        dict(batch_size=20),
        dict(last_layer="natural"),
        dict(engine="sghmc"),
        dict(game="paper"),
        dict(num_samples=100),  # more than can be afforded
    ):
        assert not may(task, **settings), settings
    assert not may(task.of(np.arange(165)))  # five copies
    assert not may(task._replace(likelihood=Poisson()))
    monkeypatch.setattr(chosen, "MANY_INDUCING", 160)  # each row has its input already
    assert not may(task)
    known = DeepGPRegressor(num_layers=2, num_inducing="distinct")
    start = training.start(known._settings, 0, task)
    assert start.model.layers[0].num_inducing == 160


@pytest.fixture(scope="module")
def pair():
    """Two members: one has grown, the other was deep from the start."""
    random = np.random.default_rng(0)
    x = random.uniform(-2.0, 2.0, size=(60, 1))
    y = np.sin(3.0 * x[:, 0]) + 0.1 * random.normal(size=60)
    model = DeepGPRegressor(
        num_restarts=2, num_steps=30, num_inducing=10, num_mixture=12, random_state=0
    )
    return model.fit(x, y), x, y


def test_restarts_are_averaged(pair, tmp_path):
    """An ensemble predicts the equal mixture of its members and survives a file."""
    model, x, y = pair
    assert isinstance(model.fitted_, Ensemble) and model.num_restarts_ == 2
    first, second = model.fitted_.members
    # The second is deep from the start; the hidden layer of the other began with little variance.
    with jax.enable_x64(True):
        sizes = [float(member.model.layers[0].kernel.variance) for member in (first, second)]
    assert sizes[0] < 0.1 < sizes[1]
    assert jax.tree.structure(first.model) == jax.tree.structure(second.model)  # one program

    alone = []
    for member in model.fitted_.members:
        one = copy.copy(model)
        one.fitted_ = member
        alone.append(one.log_density(x, y))
    # Members draw with keys of their own and fewer draws, so about equal is all that can be asked.
    want = np.mean(logsumexp(alone, axis=0) - np.log(2.0))
    np.testing.assert_allclose(np.mean(model.log_density(x, y)), want, atol=0.05)
    model.save(tmp_path / "model.nashgp")
    np.testing.assert_array_equal(load(tmp_path / "model.nashgp").predict(x), model.predict(x))
    functions = model.sample_functions(3)
    assert functions(x).shape == (60, 3)
    np.testing.assert_array_equal(functions(x[:5]), functions(x)[:5])


def test_members_go_on_from_where_they_were(pair):
    before, x, y = pair
    model = copy.copy(before).set_params(warm_start=True)
    model.fit(x, y)
    assert model.num_restarts_ == 2
    for old, new in zip(before.fitted_.members, model.fitted_.members, strict=True):
        assert type(old.model.layers[0].kernel) is type(new.model.layers[0].kernel)


def test_the_number_of_restarts_follows_the_model():
    """Two for a deep model in closed form; a second shallow one would tell nothing new."""
    plans = {}
    for num, layers in ((300, 2), (40, 2), (300, 1)):
        model = DeepGPRegressor(num_layers=layers, num_inducing=5)
        x = np.random.default_rng(0).normal(size=(num, 2))
        likelihood = model._start_likelihood(x[:, :1], "float64")
        start = training.start(model._settings, 0, Task(x, x[:, :1], np.ones(len(x)), likelihood))
        plans[num, layers] = training.make_plan(model._settings, start, num).num_restarts
    assert plans == {(300, 2): 2, (40, 2): 2, (300, 1): 1}


# ---- shares -------------------------------------------------------------------------------------


def test_shares_are_those_that_held_out_rows_ask_for():
    """Rows of which three in four are told by one model, and the rest by the other."""
    sure, wrong = np.log(2.0), np.log(0.2)
    first = np.array([sure, sure, sure, wrong] * 20)
    second = np.array([wrong, wrong, wrong, sure] * 20)
    assert growth.best_shares(np.stack([first, second])) == (3, 1)
    assert growth.best_shares(np.stack([second, first])) == (1, 3)
    assert growth.best_shares(np.stack([first, first - 0.1])) == (4, 0)
    assert growth.best_shares(np.stack([first - 0.1, first])) == (1, 3)  # the first one stays
    assert growth.best_shares(np.stack([first, first])) == (2, 2)


def test_functions_are_drawn_by_shares(pair):
    model, x, _ = pair
    uneven = copy.copy(model)
    uneven.fitted_ = Ensemble(model.fitted_.members, (3, 1))
    sizes = [part.draws.draws[0].correction.shape[0] for part in uneven.sample_functions(8)._parts]
    assert sizes == [6, 2]
    assert uneven.sample_functions(8)(x).shape == (60, 8)
