"""The loop: same steps however they are cut, honest stopping, nothing lost on Ctrl-C."""

import dataclasses
import signal
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import predict, train
from nashgp.batch import make_data
from nashgp.engines import DSVI, Lanes, objective
from nashgp.errors import NotPositiveDefiniteError, NumericalError
from nashgp.recipes import Config, build
from tests.cases import rows, tiny_data, tiny_fitted


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def wave(num, seed):
    x = rows(num, 1, seed)
    return x, np.sin(2.5 * x) + 0.1 * rows(num, 1, seed + 1)


@pytest.mark.parametrize("batch_size", [None, 5])
def test_the_cut_into_chunks_changes_nothing(batch_size):
    options = {"num_steps": 23, "batch_size": batch_size}
    runs = [
        train.run(jr.key(0), DSVI(), tiny_fitted(), tiny_data(), chunk=chunk, **options)
        for chunk in (7, 10, 100)
    ]
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0].history.objective, other.history.objective)
        for a, b in zip(leaves(runs[0].fitted), leaves(other.fitted), strict=True):
            np.testing.assert_array_equal(a, b)
    assert list(runs[0].history.step) == [7, 14, 21, 23]
    assert len(runs[0].history.objective) == 23
    assert np.all(np.diff(runs[0].history.seconds) > 0)


def test_another_key_is_another_run():
    one, two = (
        train.run(jr.key(seed), DSVI(), tiny_fitted(), tiny_data(), num_steps=5) for seed in (0, 1)
    )
    assert not np.allclose(one.history.objective, two.history.objective)


def test_training_raises_the_elbo_to_the_evidence_of_a_conjugate_model():
    """One layer, inducing inputs on the data: the gap to log p(y) closes and never turns."""
    x, y = wave(20, seed=1)
    fitted = build(x, 1, Config(num_layers=1, num_inducing=20))
    data = make_data(x, y)
    outcome = train.run(jr.key(0), DSVI(learning_rate=0.02), fitted, data, num_steps=3_000)
    model = outcome.fitted.model
    with jax.enable_x64(True):
        bound = float(objective(jr.key(0), outcome.fitted, data.all(), num_samples=1))
        gram = np.asarray(model.layers[0].kernel.gram(data.x))
        covariance = gram + float(model.likelihood.noise[0]) * np.eye(20)
    sign, log_det = np.linalg.slogdet(covariance)
    evidence = -0.5 * (
        float(y[:, 0] @ np.linalg.solve(covariance, y[:, 0])) + log_det + 20 * np.log(2 * np.pi)
    )
    assert sign > 0
    assert -1e-6 < evidence - bound < 0.1  # never above; 0.1 nat is what Adam leaves
    assert outcome.history.objective[-1] > outcome.history.objective[0] + 10.0


def test_early_stopping_hands_back_the_best_state_on_held_out_rows():
    """Twelve noisy rows and a large step: the held-out score falls, and the run notices."""
    random = np.random.default_rng(0)
    x, held_x = random.normal(size=(12, 2)), random.normal(size=(60, 2))
    y, held_y = random.normal(size=(12, 1)), random.normal(size=(60, 1))
    start = build(x, 1, Config(num_layers=1, num_inducing=12))
    validation = train.Validation(make_data(held_x, held_y), patience=3, num_samples=5)
    outcome = train.run(
        jr.key(0),
        DSVI(learning_rate=0.05, power=1.0),
        start,
        make_data(x, y),
        num_steps=2_000,
        chunk=20,
        validation=validation,
    )
    history = outcome.history
    assert len(history.objective) < 2_000
    best = int(np.argmax(history.validation))
    assert history.best_step == history.step[best] and best == len(history.validation) - 4
    score = jr.split(jr.key(0), 4)[3]
    rows_ = predict.summarise(
        predict.log_density, score, outcome.fitted, held_x, held_y, num_samples=5
    )
    np.testing.assert_allclose(np.mean(rows_), history.validation[best], rtol=1e-9)


def test_ctrl_c_returns_what_is_done(monkeypatch):
    """Pressed in the middle of a chunk: every step that ended is kept, none is repeated."""
    advance, calls = train._few, []

    def pressed(*args):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(1)
        return advance(*args)

    monkeypatch.setattr(train, "_loop", lambda *_: pressed)
    monkeypatch.setattr(
        train._Pace, "cut", lambda self, begin, end: ((s, s + 1) for s in range(begin, end))
    )
    outcome = train.run(jr.key(0), DSVI(), tiny_fitted(), tiny_data(), num_steps=50, progress=True)
    monkeypatch.undo()
    assert outcome.history.interrupted and outcome.history.best_step == 3
    whole = train.run(jr.key(0), DSVI(), tiny_fitted(), tiny_data(), num_steps=3)
    np.testing.assert_array_equal(outcome.history.objective, whole.history.objective)
    for a, b in zip(leaves(outcome.fitted), leaves(whole.fitted), strict=True):
        np.testing.assert_array_equal(a, b)


SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts without it
import jax.random as jr, numpy as np
from nashgp import recipes, train
from nashgp.batch import make_data
from nashgp.engines import DSVI

x = np.random.default_rng(0).normal(size=(300, 4))
start = recipes.build(x, 1, recipes.Config(num_inducing=64))
data = make_data(x, x[:, :1])
outcome = train.run(jr.key(0), DSVI(), start, data, num_steps=10**7, progress=True)
print("kept", len(outcome.history.objective), outcome.history.interrupted)
"""


def test_a_real_ctrl_c_in_a_real_process():
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    shown = ""
    while "objective/row" not in shown:  # the bar moves: steps are being done
        shown += process.stderr.read(1)
        assert process.poll() is None, shown
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    kept, interrupted = out.split()[1:]
    assert int(kept) > 0 and interrupted == "True"


def test_ctrl_c_before_the_first_chunk_returns_the_start(monkeypatch):
    def pressed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "_loop", lambda *_: pressed)
    outcome = train.run(jr.key(0), DSVI(), tiny_fitted(), tiny_data(), num_steps=50)
    assert outcome.history.interrupted and len(outcome.history.objective) == 0
    for a, b in zip(leaves(outcome.fitted), leaves(tiny_fitted()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_that_leaves_the_numbers_raises_and_names_the_step():
    data = make_data(rows(12, 2), np.full((12, 2), 1e200))
    with pytest.raises(
        NumericalError, match=r"objective became -inf at step 1,.*of layer [12] .*learning rate"
    ):
        train.run(jr.key(0), DSVI(), tiny_fitted(), data, num_steps=5)


def test_a_failure_in_one_of_several_lanes_is_explained():
    data = make_data(rows(12, 2), np.full((12, 2), 1e200))
    with pytest.raises(NumericalError, match=r"objective became -inf at step 1,.*of layer [12] "):
        train.run(jr.key(0), Lanes(DSVI(), 2), tiny_fitted(), data, num_steps=5)


@dataclasses.dataclass(frozen=True)
class Poisoned(DSVI):
    """Reports a fine objective and leaves NaN behind at the seventh step."""

    def step(self, key, state, batch):
        after, info = super().step(key, state, batch)
        seventh = state.opt_state[0].count == 6
        params = jax.tree.map(lambda leaf: jnp.where(seventh, jnp.nan, leaf), after.params)
        return after._replace(params=params), info


def test_a_last_step_that_spoils_the_parameters_is_not_passed_on():
    with pytest.raises(NumericalError, match="gradient became NaN at step 7"):
        train.run(jr.key(0), Poisoned(), tiny_fitted(), tiny_data(), num_steps=7)


@dataclasses.dataclass(frozen=True)
class Hasty(DSVI):
    """Leaves NaN behind at the thirteenth step, unless its rate is small."""

    def step(self, key, state, batch):
        after, info = super().step(key, state, batch)
        adam, pace = state.opt_state
        spoiled = (adam.count == 12) & (pace.rate > 0.02)
        params = jax.tree.map(lambda leaf: jnp.where(spoiled, jnp.nan, leaf), after.params)
        return after._replace(params=params), info


def test_a_failed_step_is_taken_again_with_a_smaller_rate(monkeypatch, caplog):
    """From the start of its chunk, so that how calls are cut by the clock changes nothing."""

    paced = train._Pace

    def fit(seconds):
        monkeypatch.setattr(train, "_Pace", lambda: paced(seconds))
        data = tiny_data()
        return train.run(jr.key(0), Hasty(0.1), tiny_fitted(), data, num_steps=30, chunk=10)

    outcome = fit(1e-9)  # a call for each step
    assert len(outcome.history.events) == 2  # 0.1, 0.03, 0.009
    assert "a gradient became NaN at step 13; back to step 10" in outcome.history.events[0]
    assert "A gradient became NaN at step 13" in caplog.text
    assert len(outcome.history.objective) == 30
    assert float(outcome.state.opt_state[1].rate) == pytest.approx(0.009)
    other = fit(100.0)
    np.testing.assert_array_equal(outcome.history.objective, other.history.objective)
    for a, b in zip(leaves(outcome.fitted), leaves(other.fitted), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_broken_covariance_is_named_with_its_layer(x64):
    fitted = tiny_fitted()
    broken = eqx.tree_at(
        lambda f: f.model.layers[1].z, fitted, fitted.model.layers[1].z.at[0, 0].set(np.nan)
    )
    with pytest.raises(NotPositiveDefiniteError, match="inducing inputs of layer 2"):
        train.run(jr.key(0), DSVI(), broken, tiny_data(), num_steps=5)


def test_progress_bar_shows_the_objective_per_row(capsys):
    train.run(jr.key(0), DSVI(), tiny_fitted(), tiny_data(), num_steps=20, chunk=10, progress=True)
    shown = capsys.readouterr().err
    assert "20/20" in shown and "objective/row=" in shown and "step/s" in shown


def test_a_second_fit_of_the_same_shape_compiles_nothing():
    options = {"num_steps": 4, "chunk": 4}
    train.run(jr.key(0), DSVI(num_samples=4), tiny_fitted(), tiny_data(), **options)
    before = train._few._jitted._cached._cache_size()
    train.run(jr.key(5), DSVI(num_samples=4), tiny_fitted(), tiny_data(), **options)
    assert train._few._jitted._cached._cache_size() == before
