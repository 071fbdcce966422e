"""Checkpoints: a fit that dies and goes on ends with the bits of one that was left alone."""

import dataclasses
import inspect
import itertools
import os

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import DeepGPClassifier, DeepGPRegressor, cli, persist, programs, train
from nashgp.checkpoints import FileCheckpoint, before
from nashgp.engines import DSVI
from nashgp.errors import InputError
from nashgp.estimators import base
from nashgp.estimators import settings as chosen
from tests.cases import ENGINES, rows, tiny_data, tiny_fitted


class Died(BaseException):
    """What a process that is killed would not get to see."""


class Mortal(FileCheckpoint):
    """Writes every chunk and dies with the `last`."""

    last = 1

    def keep(self, snapshot):
        super().keep(snapshot)
        self.last -= 1
        if self.last == 0:
            raise Died


def assert_same(one, other):
    """The same tree with the same bits."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def assert_same_history(one, other):
    timeless = [dataclasses.asdict(history) for history in (one, other)]
    for each in timeless:
        seconds = each.pop("seconds")
        assert np.all(np.diff(seconds) > 0.0)
    assert_same(*timeless)


# ---- one run ------------------------------------------------------------------------------------


def dying_run(path, life, *args, **options):
    """The outcome of a run that dies after every `life` chunks, and how often it died."""
    for deaths in itertools.count():
        checkpoint = Mortal(path, {"random_state": 0}, seconds=0.0)
        checkpoint.last = life
        if deaths:
            checkpoint.resume(path)
        try:
            return train.run(*args, checkpoint=checkpoint, **options), deaths
        except Died:
            pass


SLOW = [name for name in ENGINES if name != "sghmc"]  # whose state holds the most


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in ENGINES]
)
@pytest.mark.parametrize("dtype", ["float32"])
def test_a_run_that_dies_ends_as_one_that_does_not(name, dtype, tmp_path):
    """Whatever an engine keeps in its state, with rows drawn anew in each step."""
    problem = tiny_fitted(dtype=dtype), tiny_data(dtype=dtype)
    args = (jr.key(0), ENGINES[name], *problem)
    options = {"num_steps": 9, "chunk": 2, "batch_size": None if name == "collapsed" else 5}
    whole = train.run(*args, **options)
    outcome, deaths = dying_run(tmp_path / "file", 2, *args, **options)
    assert deaths == 2
    assert_same(whole.state, outcome.state)
    assert_same(whole.fitted, outcome.fitted)
    assert_same_history(whole.history, outcome.history)


@dataclasses.dataclass(frozen=True)
class Hasty(DSVI):
    """Leaves NaN behind at the thirteenth step, unless its rate is small."""

    def step(self, key, state, batch):
        after, info = super().step(key, state, batch)
        adam, pace = state.opt_state
        spoiled = (adam.count == 12) & (pace.rate > 0.02)
        params = jax.tree.map(lambda leaf: jnp.where(spoiled, jnp.nan, leaf), after.params)
        return after._replace(params=params), info


def test_rates_scores_and_events_survive(tmp_path):
    """Two failures, then early stopping with the best state many chunks back."""
    validation = train.Validation(tiny_data(num=5), patience=4, num_samples=3)
    args = (jr.key(0), Hasty(0.1), tiny_fitted(), tiny_data())
    options = {"num_steps": 400, "chunk": 5, "validation": validation}
    whole = train.run(*args, **options)
    assert len(whole.history.events) == 2 and len(whole.history.objective) < 400
    outcome, deaths = dying_run(tmp_path / "file", 1, *args, **options)
    assert deaths == len(whole.history.step)  # the last one after the end
    assert_same(whole.state, outcome.state)
    assert_same(whole.fitted, outcome.fitted)
    assert_same_history(whole.history, outcome.history)


def test_patience_survives_scores_that_are_no_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "_held_out", lambda *_: np.nan)
    validation = train.Validation(tiny_data(num=5), patience=3, num_samples=3)
    args = (jr.key(0), Hasty(0.1), tiny_fitted(), tiny_data())
    options = {"num_steps": 400, "chunk": 5, "validation": validation}
    whole = train.run(*args, **options)
    outcome, _ = dying_run(tmp_path / "file", 1, *args, **options)
    assert len(whole.history.objective) == 15
    assert_same(whole.fitted, outcome.fitted)
    assert_same_history(whole.history, outcome.history)


# ---- a fit --------------------------------------------------------------------------------------

X = rows(40, 2)
Y = np.sin(2.0 * X[:, 0]) + 0.1 * rows(40, 1, seed=3)[:, 0]
TINY = {"num_inducing": 5, "num_mixture": 4, "random_state": 0}
FITS = {  # every way through a fit: members, powers judged, growth, games, samplers, shares
    "members": {"num_layers": 1, "num_steps": 250, "num_restarts": 2, "power": 0.5},
    "judged": {
        "num_layers": 1,
        "num_steps": 400,
        "validation_fraction": 0.25,
        "num_restarts": 2,
    },
    "grown": {"num_steps": 800, "validation_fraction": 0.25},
    "sghmc": {"engine": "sghmc", "num_steps": 600, "validation_fraction": 0.25},
    "anchored": {"engine": "ipvi", "num_steps": 300},
    "paper": {"engine": "ipvi", "game": "paper", "num_steps": 600},
    "natural": {"last_layer": "natural", "batch_size": 8, "num_steps": 700},
    "float32": {"dtype": "float32", "num_layers": 1, "num_steps": 600},
    "weighed": {"num_inducing": "auto", "num_steps": 400},
}
SLOW_FITS = [name for name in FITS if name != "members"]


@pytest.mark.filterwarnings("ignore::nashgp.errors.UnsettledChainsWarning")
@pytest.mark.filterwarnings("ignore::nashgp.errors.UntrustedRatioWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW_FITS)) for n in FITS]
)
def test_a_fit_that_dies_ends_as_one_that_does_not(name, monkeypatch, tmp_path):
    monkeypatch.setattr(chosen, "JUDGED_ROWS", 20)
    if name == "weighed":  # as if rows were many
        monkeypatch.setattr(chosen, "FEW_ROWS", 30)
        monkeypatch.setattr(chosen, "NUM_INDUCING", 5)
        monkeypatch.setattr(chosen, "TOP_INDUCING", 6)
        monkeypatch.setitem(chosen.WIDE, "num_inducing", 7)
    path, settings = tmp_path / "file", TINY | FITS[name]
    whole = DeepGPRegressor(**settings).fit(X, Y)
    monkeypatch.setattr(base, "FileCheckpoint", Mortal)
    monkeypatch.setattr(Mortal, "last", 3)
    where, deaths = {"checkpoint": path}, 0
    while True:
        model = DeepGPRegressor(**settings)
        try:
            model.fit(X, Y, **where, checkpoint_seconds=0.0)
            break
        except Died:
            where, deaths = {"resume": path}, deaths + 1
    assert deaths >= 2
    assert_same(whole.fitted_, model.fitted_)
    assert_same_history(whole.history_, model.history_)
    assert (whole.power_, whole.num_restarts_) == (model.power_, model.num_restarts_)
    np.testing.assert_array_equal(whole.predict(X), model.predict(X))


SMALL = TINY | {"num_layers": 1, "num_steps": 4}


@pytest.fixture
def path(tmp_path):
    """The checkpoint of a finished fit, with the one before it."""
    DeepGPRegressor(**SMALL).fit(X, Y, checkpoint=tmp_path / "file", checkpoint_seconds=0.0)
    return tmp_path / "file"


def test_the_last_two_are_kept(path):
    assert {file.name for file in path.parent.iterdir()} == {"file", "file.before"}
    steps = [
        len(persist.read(file, "checkpoint")[1]["runs"]["0"]["record"]["info"]["objective"])
        for file in (path, before(path))
    ]
    assert steps == [4, 4]


def test_a_finished_fit_has_no_step_left(path, monkeypatch):
    def refuse(*_):
        raise AssertionError("nothing is left to do")

    whole = DeepGPRegressor(**SMALL).fit(X, Y)
    monkeypatch.setattr(train, "_few", programs.Program(refuse, {}))
    again = DeepGPRegressor(**SMALL).fit(X, Y, resume=path)
    assert_same(whole.fitted_, again.fitted_)


def test_a_seed_that_was_drawn_is_kept(tmp_path):
    free = SMALL | {"random_state": None}
    one = DeepGPRegressor(**free).fit(X, Y, checkpoint=tmp_path / "file")
    two = DeepGPRegressor(**free).fit(X, Y, resume=tmp_path / "file")
    assert one.seed_ == two.seed_
    assert_same(one.fitted_, two.fitted_)


def test_a_warm_start_goes_on_from_the_same_model(path, tmp_path):
    def refit(model, **where):
        return model.set_params(warm_start=True).fit(X, Y, **where)

    one = refit(DeepGPRegressor(**SMALL).fit(X, Y), checkpoint=tmp_path / "warm")
    two = refit(DeepGPRegressor(**SMALL).fit(X, Y), resume=tmp_path / "warm")
    assert_same(one.fitted_, two.fitted_)
    other = DeepGPRegressor(**SMALL).fit(X, 2.0 * Y**2)
    with pytest.raises(InputError, match="differs in rows"):
        refit(other, resume=tmp_path / "warm")


@pytest.mark.parametrize(
    ("settings", "y", "names"),
    [
        ({}, Y + 1e-12, "rows"),
        ({"num_steps": 5}, Y, "num_steps"),
        ({"random_state": 1}, Y, "random_state"),
        ({"kernel": "rbf", "dtype": "float32"}, Y, "dtype, kernel"),
    ],
)
def test_another_fit_is_refused_by_name(path, settings, y, names):
    model = DeepGPRegressor(**SMALL | settings)
    with pytest.raises(
        InputError, match=rf"file is the checkpoint of a fit that differs in {names};"
    ):
        model.fit(X, y, resume=path)
    assert not hasattr(model, "fitted_")


def test_another_estimator_is_refused(path):
    with pytest.raises(InputError, match="differs in estimator, rows, class_weight"):
        DeepGPClassifier(**SMALL).fit(X, Y > 0.0, resume=path)


def test_progress_makes_no_difference(path, capsys):
    DeepGPRegressor(**SMALL, progress=True).fit(X, Y, resume=path)
    assert "4/4" in capsys.readouterr().err


def test_files_that_are_no_checkpoints_are_one_sentence(path, tmp_path):
    content, model = path.read_bytes(), DeepGPRegressor(**SMALL)
    os.unlink(before(path))
    for size in (0, 7, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match="file is damaged"):
            model.fit(X, Y, resume=path)
    flipped = bytearray(content)
    flipped[-3] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(InputError, match="file is damaged"):
        model.fit(X, Y, resume=path)
    model.fit(X, Y).save(tmp_path / "model")
    with pytest.raises(InputError, match="holds a DeepGPRegressor, not a checkpoint"):
        model.fit(X, Y, resume=tmp_path / "model")
    with pytest.raises(InputError, match="nowhere does not exist"):
        model.fit(X, Y, resume=tmp_path / "nowhere")
    persist.write(path, "checkpoint", {"runs": 1})
    with pytest.raises(InputError, match="holds no checkpoint of this version"):
        model.fit(X, Y, resume=path)


def test_a_damaged_file_points_to_the_one_before(path):
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        InputError, match=r"damaged.* The checkpoint before it is .*file\.before\.$"
    ):
        DeepGPRegressor(**SMALL).fit(X, Y, resume=path)
    DeepGPRegressor(**SMALL).fit(X, Y, resume=before(path))


def test_a_checkpoint_is_never_overwritten(path, tmp_path):
    content, model = path.read_bytes(), DeepGPRegressor(**SMALL)
    with pytest.raises(InputError, match="file holds the checkpoint of another fit; resume"):
        model.fit(X, Y, checkpoint=path)
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError, match="notes is damaged or no model file"):
        model.fit(X, Y, checkpoint=tmp_path / "notes")
    with pytest.raises(InputError, match="cannot be written"):
        model.fit(X, Y, checkpoint=tmp_path / "no" / "where")
    assert path.read_bytes() == content and (tmp_path / "notes").read_text() == "mine"
    model.fit(X, Y, resume=path, checkpoint=tmp_path / "other")
    assert path.read_bytes() == content and (tmp_path / "other").exists()


def test_what_a_killed_writer_left_is_removed(path):
    left = path.parent / f".{path.name}.0123456789abcdef.tmp"
    left.write_bytes(b"half")
    DeepGPRegressor(**SMALL).fit(X, Y, resume=path)
    assert not left.exists() and path.exists()


def test_the_command_line_has_the_same_pace():
    parser = cli._parser()
    options = parser.parse_args(["fit", "table.csv", "--target", "y", "--out", "model"])
    signature = inspect.signature(DeepGPRegressor.fit)
    assert options.checkpoint_seconds == signature.parameters["checkpoint_seconds"].default
    assert options.checkpoint is options.resume is None
