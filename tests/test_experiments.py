"""Every experiment in miniature, on made-up rows: the scripts cannot rot."""

import argparse
import dataclasses
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import joblib
import numpy as np
import pytest
from scipy.stats import multivariate_t
from sklearn.decomposition import PCA

from nashgp import datasets
from nashgp.errors import InputError, NumericalError
from nashgp.experiments import (
    EXPERIMENTS,
    anchored_uci,
    auto_uci,
    calibration,
    cells,
    chains,
    comparing,
    convergence,
    diagrams,
    diamond,
    dsvi_uci,
    elbo,
    fidelity,
    freyface,
    images,
    large,
    mirror,
    modes,
    one_layer,
    player1,
    power_uci,
    sghmc_uci,
    synthetic,
    targets,
    timing,
    tying,
    tying_speed,
    uci,
)
from nashgp.experiments.cells import work
from nashgp.experiments.dsvi_uci import STUDY, Cell
from nashgp.posteriors import CollapsedPosterior

RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """A set called boston with 40 rows, four of them test rows."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 3))
    y = 10.0 + 5.0 * np.sin(x[:, 0])
    mask = np.arange(40)[None] < 4
    np.savez(tmp_path / "set.npz", X=x, y=y, test_mask=mask)
    digest = hashlib.sha256((tmp_path / "set.npz").read_bytes()).hexdigest()
    source = datasets.Source("set.npz", digest, "", "", (40, 3, 1))
    monkeypatch.setitem(datasets.SOURCES, "boston", source)
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path))


def start(*args: str) -> int:
    """Run the experiment as `nashgp run dsvi-uci` does."""
    parser = argparse.ArgumentParser()
    dsvi_uci.add_arguments(parser)
    return dsvi_uci.main(parser.parse_args(args))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_offers_the_same(name):
    module = importlib.import_module(EXPERIMENTS[name])
    assert module.__doc__.partition("\n")[0].endswith(".")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    assert parser.parse_args(["--quick"]).quick
    assert callable(module.main)


def test_a_cell_is_scored_saved_and_tabulated(made_up, tmp_path):
    cell = Cell("boston", 0, num_steps=300, num_inducing=10, learning_rate=0.05)
    work(cell, tmp_path)
    record = json.loads(cell.path(tmp_path).read_text())
    assert record["cell"]["num_steps"] == 300 and "jax" in record["versions"]
    assert record["seed"] == 0 and record["seconds"] > record["scores"]["seconds"]
    assert record["commit"] == cells.commit()
    scores = record["scores"]
    assert all(np.all(np.isfinite(value)) for value in scores.values())
    assert len(scores["below"]) == 19 and scores["num_test"] == 4
    assert len(scores["trace"]) == 50 and scores["trace_steps"] == 300
    assert scores["trace"][-1] == pytest.approx(scores["objective_per_row"], abs=0.5)
    assert cell.path(tmp_path).stat().st_size < 4_000
    assert scores["rmse"] < 3.0  # in units of y, whose standard deviation is 3.6
    assert scores["mll"] > -3.0 and 0.0 < scores["crps"] < 3.0
    assert "boston    1      0" in STUDY.table([cell], tmp_path)
    assert Cell("boston", 0, num_steps=301).path(tmp_path) != cell.path(tmp_path)


def test_a_failed_cell_is_kept_and_counted(monkeypatch, tmp_path):
    monkeypatch.delenv(datasets.FOLDER, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cell = work(Cell("boston", 0), tmp_path)
    assert "NASHGP_DATA" in json.loads(cell.path(tmp_path).read_text())["failure"]
    assert "boston    0      1" in STUDY.table([cell], tmp_path)


@dataclasses.dataclass(frozen=True)
class Brief(cells.Cell):
    """A cell that only says where it ran."""

    def check(self):
        pass

    def run(self):
        return {"thread": threading.get_ident()}


def brief(results, *splits):
    study = cells.Study("brief", Brief, {"sets": ["any"], "splits": [0]}, {})
    parser = argparse.ArgumentParser()
    study.add_arguments(parser)
    words = ["--results", str(results), "--jobs", "2", "--splits", *map(str, splits)]
    return study.main(parser.parse_args(words))


def test_cells_run_where_joblib_is_told_to(tmp_path, capsys):
    """On a cluster, say; here on threads. What is done or damaged is told apart."""
    with joblib.parallel_config(backend="threading"):
        assert brief(tmp_path, 0, 1, 2) == 0
    files = sorted(tmp_path.glob("any-*.json"))
    records = [json.loads(file.read_text()) for file in files]
    assert [record["seed"] for record in records] == [0, 1, 2]
    assert all(r["scores"]["thread"] != threading.get_ident() for r in records)
    shown = capsys.readouterr().out
    assert "[3/3] any split" in shown and ", 0:00:00 left" in shown
    text = files[1].read_text()
    files[1].write_text(text[:20])  # as no kill can leave it, but a bad disk might
    stamps = [file.stat().st_mtime_ns for file in files]
    with joblib.parallel_config(backend="threading"):
        assert brief(tmp_path, 0, 1, 2) == 0
    assert "[1/1] any split 1" in capsys.readouterr().out
    again = [file.stat().st_mtime_ns for file in files]
    assert [a == b for a, b in zip(stamps, again, strict=True)] == [True, False, True]
    assert json.loads(files[1].read_text())["cell"] == records[1]["cell"]


def test_a_plan_is_run_unless_an_option_names_cells(tmp_path):
    """Parts of a plan may overlap; an option of an axis asks for its grid, planned or not."""
    full = {"sets": ["a", "b"], "splits": [0, 1, 2]}
    plan = [{"sets": ["a"]}, {"splits": [0]}]
    study = cells.Study("brief", Brief, full, {}, plan=plan)
    assert [(c.set, c.split) for c in study.planned()] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    parser = argparse.ArgumentParser()
    study.add_arguments(parser)

    def names(folder, *words):
        with joblib.parallel_config(backend="threading"):
            study.main(parser.parse_args(["--results", str(tmp_path / folder), *words]))
        return sorted(file.name[:3] for file in (tmp_path / folder).glob("*.json"))

    assert names("planned", "--jobs", "2") == ["a-0", "a-1", "a-2", "b-0"]
    assert names("named", "--sets", "b") == ["b-0", "b-1", "b-2"]


def test_the_time_left_is_that_of_the_cells_so_far():
    assert cells.left(60.0, 2, 5) == "0:01:30 left"
    assert cells.left(7_200.0, 1, 2) == "2:00:00 left"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
def test_the_commit_is_that_of_the_source():
    git = ["git", "-C", str(Path(cells.__file__).parent), "rev-parse", "HEAD"]
    known = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    assert (cells.commit() or "").rstrip("+") == known


@pytest.mark.parametrize(
    "study",
    [
        dsvi_uci,
        power_uci,
        anchored_uci,
        auto_uci,
        calibration,
        convergence,
        elbo,
        fidelity,
        tying,
        images,
        large,
        modes,
        one_layer,
        synthetic,
        chains,
        sghmc_uci,
        player1,
        timing,
        tying_speed,
        uci,
    ],
)
def test_finished_cells_are_still_recognised(study):
    """Names of files come from the settings; results in the repository must keep theirs."""
    folder = RESULTS / study.STUDY.name
    for file in sorted(folder.glob("*.json")):
        assert study.STUDY.cell(**json.loads(file.read_text())["cell"]).path(folder) == file


def test_quick_writes_apart_and_skips_what_is_done(made_up, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert start("--quick", "--num-steps", "5") == 0
    (file,) = Path("results", "dsvi_uci_quick").iterdir()
    record = json.loads(file.read_text())
    assert record["cell"]["num_steps"] == 5 and record["cell"]["num_inducing"] == 10
    assert "[1/1] boston split 0" in capsys.readouterr().out
    assert start("--quick", "--num-steps", "5") == 0
    assert "[1/1]" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--splits", "7"], "Split 7 of 'boston' does not exist"),
        (["--sets", "huge"], "no data set 'huge'"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--results", "set.npz"], "--results set.npz cannot be made"),
    ],
)
def test_wrong_options_are_no_failed_cells(made_up, monkeypatch, tmp_path, args, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        start("--quick", *args)
    assert not Path("results").exists()


# ---- convergence --------------------------------------------------------------------------------


def test_a_curve_has_settled_once_it_never_falls_back():
    assert convergence.settled(np.array([-3.0, -2.01, -2.5, -2.01, -1.995, -2.0])) == 3
    assert convergence.settled(np.array([-1.0, -1.5, -2.0])) == 0  # above the end is no less good
    assert convergence.reached([-3.0, -2.2, -2.4], -2.3) == 1
    assert convergence.reached([-3.0, -2.5], -2.3) is None


def test_convergence_is_recorded_compared_and_drawn(made_up, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    convergence.add_arguments(parser)
    options = ["--quick", "--methods", "published", "grown", "--num-steps", "10"]
    assert convergence.main(parser.parse_args(options)) == 0
    folder = tmp_path / "results" / "convergence_quick"
    for file in folder.glob("*.json"):
        scores = json.loads(file.read_text())["scores"]
        assert scores["step"] == list(range(1, 11))
        assert np.all(np.diff(scores["second"]) > 0.0) and len(scores["objective"]) == 10
        assert scores["held_out_mll"] == scores["held_out"][-1]
    assert "published power 0    final" in capsys.readouterr().out
    assert (folder / "boston.png").stat().st_size > 10_000


# ---- the paper's game ---------------------------------------------------------------------------


def test_the_diamond_has_the_constants_of_the_paper(x64):
    truth = diamond.Truth()
    np.testing.assert_allclose(truth.variance, 0.25)
    np.testing.assert_allclose(
        truth.shift, [0.000479, 0.00024, 0.0, -0.00024, -0.000479], atol=5e-7
    )
    np.testing.assert_allclose(truth.weights, diamond.PRINTED_WEIGHTS, atol=1e-3)
    assert not np.allclose(truth.weights, diamond.PRINTED_WEIGHTS, atol=1e-4)  # fit no rows


def test_the_diamond_is_what_prior_and_likelihood_say(x64):
    """Bayes' rule on a grid with the objects that the game meets."""
    fitted, data = diamond.problem("float64")
    grid = np.linspace(-12.0, 12.0, 4_001)
    white = jnp.asarray(grid / diamond.PRIOR_VARIANCE**0.5)[:, None, None]
    layers = fitted.model.layers
    prior = jax.vmap(lambda v: fitted.model.prior.log_density(layers, (v,)))(white)
    likelihood = fitted.model.likelihood.log_prob(
        jnp.asarray(grid)[:, None], jnp.tile(data.y, (len(grid), 1))
    )
    joint = np.exp(np.asarray(prior + jnp.sum(likelihood, axis=1) - jnp.max(prior)))
    joint /= np.sum(joint) * (grid[1] - grid[0])
    np.testing.assert_allclose(joint, diamond.Truth().density(grid), rtol=1e-4, atol=1e-7)
    drawn = np.concatenate(
        [np.asarray(fitted.model.prior.sample(jr.key(k), layers)[0]).ravel() for k in range(300)]
    )
    np.testing.assert_allclose(np.std(drawn) * diamond.PRIOR_VARIANCE**0.5, 5.68, rtol=0.1)


def test_draws_of_the_exact_posterior_score_as_such():
    """The divergence of exact draws is its floor, and a lost mode costs what it must."""
    truth, random = diamond.Truth(), np.random.default_rng(0)
    which = random.choice(5, 100_000, p=truth.weights)
    draws = (diamond.CENTRES + truth.shift)[which] + 0.5 * random.normal(size=len(which))
    good = synthetic.score(draws)
    assert good["modes"] == 5 and good["jsd"] < 2.0 * good["jsd_floor"] < 0.002
    bad = synthetic.score(draws[which < 4])
    want = synthetic.jensen_shannon(truth.weights, np.append(truth.weights[:4], 0.0) / 0.8)
    assert bad["modes"] == 4 and bad["mll"] < good["mll"] - 1.0
    np.testing.assert_allclose(bad["jsd"], want, atol=0.005)
    assert 0.0 < bad["jsd_error"] < 0.002
    assert synthetic.score(np.full(1_000, 99.0))["jsd"] > 0.6  # log 2 where nothing is shared
    assert synthetic.score(random.uniform(-10.0, 10.0, 10_000))["modes"] == 0  # mass, but no peak


def test_the_synthetic_study_is_drawn(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    synthetic.add_arguments(parser)
    assert synthetic.main(parser.parse_args(["--quick", "--num-steps", "5"])) == 0
    folder = tmp_path / "results" / "synthetic_quick"
    (file,) = folder.glob("*.json")
    scores = json.loads(file.read_text())["scores"]
    assert scores["parameters"] == 298 and (folder / "synthetic.png").stat().st_size > 10_000
    (file,) = (tmp_path / "results" / "synthetic_sghmc_quick").glob("*.json")
    assert json.loads(file.read_text())["scores"]["jsd"] > 0.0
    assert (folder / "sghmc.png").stat().st_size > 10_000


@pytest.mark.slow
def test_faces_are_mapped_completed_and_drawn(monkeypatch, tmp_path):
    """A made-up film: bars that move, which no line follows."""
    monkeypatch.chdir(tmp_path)
    turn = np.linspace(0.0, 60.0, 1_008)[:, None, None]
    down, right = np.arange(28.0)[None, :, None], np.arange(20.0)[None, None]
    film = 120.0 + 60.0 * np.sin(0.3 * down + turn) + 40.0 * np.cos(0.4 * right + turn)
    monkeypatch.setattr(datasets, "load_faces", lambda: film.astype(np.uint8))
    parser = argparse.ArgumentParser()
    freyface.add_arguments(parser)
    assert freyface.main(parser.parse_args(["--quick"])) == 0
    folder = tmp_path / "results" / "freyface_quick"
    files = map(json.loads, (path.read_text() for path in folder.glob("*.json")))
    scores = {file["cell"]["method"]: file["scores"] for file in files}
    assert scores.keys() == set(freyface.METHODS)
    assert all(np.isfinite(each["mll"]) and each["rmse"] < 80.0 for each in scores.values())
    assert scores["anchored"]["faces_judged"] == 4
    assert 0.0 <= scores["anchored"]["jsd_implicit"] < np.log(2.0)
    assert all((folder / f"{name}-0.png").stat().st_size > 10_000 for name in ("map", "half"))


def test_hidden_halves_by_pca_have_a_student_t(monkeypatch):
    """Joint over marginal, as SciPy has them."""
    monkeypatch.setattr(freyface, "NUM_HIDDEN", 3)
    rows = np.random.default_rng(0).normal(size=(50, 7)) @ np.diag(np.arange(1.0, 8.0))
    found, _ = freyface.Cell("freyface", 0, "pca", standardize=False)._pca(rows[:40], rows[40:])
    fit = PCA(2).fit(rows[:40])
    mean, covariance = fit.mean_, fit.get_covariance()
    whole = multivariate_t(mean, covariance, df=4.0).logpdf(rows[40:])
    seen = multivariate_t(mean[:4], covariance[:4, :4], df=4.0).logpdf(rows[40:, :4])
    np.testing.assert_allclose(found.log_density, whole - seen, rtol=1e-4)
    normal, _ = freyface.Cell("freyface", 0, "pca", tail=1e9, standardize=False)._pca(
        rows[:40], rows[40:]
    )
    np.testing.assert_allclose(normal.log_density, found.log_normal, rtol=1e-4)


def test_draws_of_a_posterior_on_a_grid_are_at_its_floor():
    side = np.arange(freyface.FINE) - 20.0
    log_p = -0.5 * (side[:, None] ** 2 + side[None] ** 2) / 6.0**2
    corner, step = np.zeros((1, 2)), np.ones((1, 2))
    (exact,) = freyface._exact(corner, step, log_p[None])
    near = freyface.divergence(log_p, exact.astype(int))
    far = freyface.divergence(log_p, exact.astype(int) + 12)
    assert 0.0 < near < 0.05 < 0.2 < far
    out = freyface.divergence(log_p, exact.astype(int) - 100)
    assert out == pytest.approx(np.log(2.0))  # nothing in common
    steep = freyface.divergence(40.0 * log_p, exact.astype(int) - 100)  # blocks of next to nothing
    assert steep == pytest.approx(np.log(2.0))


def test_one_setting_of_a_sampler_varies_at_a_time():
    """Every kept point of the grid belongs to a sweep, and the paper's own to all of them."""
    grid = [
        chains.Cell("diamond", 0, eta, init, noise, friction)
        for eta in chains.SWEEPS["η"]
        for init in chains.SWEEPS["init"]
        for noise in chains.SWEEPS["V"]
        for friction in chains.SWEEPS["α"]
    ]
    scores = {"jsd": 0.1, "mll": -2.0, "density": [0.0]}
    kept = [
        {"cell": dataclasses.asdict(cell), "scores": scores}
        for cell in filter(chains.STUDY.keep, grid)
    ]
    assert len(kept) == 1 + sum(len(values) - 1 for values in chains.SWEEPS.values())
    for name, values in chains.SWEEPS.items():
        found = [chain.settings[name] for chain in chains.sweep(kept, name)]
        assert sorted(found) == sorted(values)


def test_the_game_finds_the_gaussian_of_one_inducing_value(tmp_path):
    """Proposition 3 in its smallest case, from a random start away from the answer."""
    cell = one_layer.Cell("line", 0, num_steps=1_500)
    work(cell, tmp_path)
    scores = json.loads(cell.path(tmp_path).read_text())["scores"]
    assert scores["mean_error_at_start"] > 0.3
    assert scores["mean_error"] < 0.1 and scores["variance_error"] < 0.4


def test_differences_are_paired_over_splits():
    def record(kind, split, mll):
        cell = {"set": "boston", "method": "drawn", "power": 0.5, "kind": kind, "split": split}
        return {"cell": cell, "scores": {"mll": mll, "objective_per_row": 2.0 * mll}}

    both = [record("gaussian", 0, -2.0), record("gaussian", 1, -3.0), record("gaussian", 2, 9.0)]
    both += [record("anchored", 1, -2.7), record("anchored", 0, -1.9)]
    got = anchored_uci.differences(both).splitlines()[1]
    assert "2 splits" in got and "mll +0.2000 ± 0.1000" in got
    assert "objective_per_row +0.4000 ± 0.2000" in got


@pytest.mark.slow
def test_both_kinds_of_sampler_are_scored(made_up, tmp_path):
    for kind in ("published", "held"):
        cell = sghmc_uci.Cell("boston", 0, kind, num_inducing=8, num_steps=90, num_draws=10)
        work(cell, tmp_path)
        scores = json.loads(cell.path(tmp_path).read_text())["scores"]
        assert len(scores.pop("looks")) == (5 if kind == "held" else 0)
        assert all(np.isfinite(value) for value in scores.values())


@pytest.mark.slow
def test_posteriors_are_compared_pair_by_pair(made_up, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    anchored_uci.add_arguments(parser)
    assert anchored_uci.main(parser.parse_args(["--quick", "--methods", "collapsed"])) == 0
    out = capsys.readouterr().out
    assert "boston  collapsed power 0.5    1 splits   objective_per_row" in out
    (first, second) = (tmp_path / "results" / "anchored_uci_quick").glob("*.json")
    kinds = {json.loads(file.read_text())["cell"]["kind"] for file in (first, second)}
    assert kinds == {"gaussian", "anchored"}


@pytest.mark.slow
def test_tied_players_are_timed_beside_naive_ones(made_up, tmp_path):
    sizes = {}
    for kind in ("tied", "naive"):
        cell = tying_speed.Cell("boston", 0, kind, depth=2, num_inducing=8, num_samples=2, steps=1)
        work(cell, tmp_path)
        scores = json.loads(cell.path(tmp_path).read_text())["scores"]
        assert all(scores[name] > 0.0 for name in ("step_ms", "draw_ms", "predict_ms"))
        sizes[kind] = scores["parameters"]
    assert sizes["naive"] > 4 * sizes["tied"]


def test_the_drawings_of_the_documentation(tmp_path):
    diagrams.main(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(diagrams.DRAWINGS)


@pytest.mark.slow
@pytest.mark.skipif(datasets.FOLDER not in os.environ, reason="NASHGP_DATA names no data folder")
@pytest.mark.parametrize(("name", "floor"), [("boston", -2.45), ("energy", -0.78)])
def test_published_dsvi_reaches_the_published_level(tmp_path, name, floor):
    """The first standard split at full length; the floors are those of the mean over splits."""
    cell = work(Cell(name, 0), tmp_path)
    assert json.loads(cell.path(tmp_path).read_text())["scores"]["mll"] > floor


def test_images_are_learned_and_scored(monkeypatch, tmp_path):
    """Two kinds of made-up pictures, bright above or below: both the deep GP and a baseline see."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 80).astype(np.uint8)
    x = random.integers(0, 100, (80, 4, 4), dtype=np.uint8)
    x[np.arange(80), :2] += 100 * y[:, None, None]
    made = datasets.Images("mnist", x[:60], y[:60], x[60:], y[60:])
    monkeypatch.setattr(datasets, "load_images", lambda name: made)
    settings = dict(depth=2, num_inducing=6, hidden_dim=3, epochs=4, batch_size=20, num_mixture=4)
    for engine in ("dsvi", "sghmc", "logistic"):
        settings["epochs"] = {"sghmc": 100, "dsvi": 20}.get(engine, 4)
        settings["model"] = "ours" if engine == "dsvi" else "paper"
        settings["num_restarts"] = 2 if engine == "dsvi" else 1
        cell = work(images.Cell("mnist", 0, engine=engine, **settings), tmp_path)
        scores = json.loads(cell.path(tmp_path).read_text())["scores"]
        assert scores["accuracy"] > 0.9 and scores["mll"] > -1.0  # chance is -2.3
        assert 0.0 <= scores["brier"] < 0.4 and 0.0 <= scores["ece"] < 0.5
        hits = np.dot(scores["bin_count"], scores["bin_right"])
        assert np.trace(scores["confusion"]) == pytest.approx(hits, abs=0.01)
        assert hits == pytest.approx(20 * scores["accuracy"], abs=0.01)
    for stacked in (False, True):
        (figure,) = images.figures(tmp_path, stacked=stacked).values()
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert titles[0] == "mnist: dsvi 2, 6 inducing, ours, 2 fits\ninducing images"
        assert titles[2] == "reliability"
    with pytest.raises(InputError, match="--models has no 'mine'; choose from paper, ours"):
        images.Cell("mnist", 0, model="mine").check()
    with pytest.raises(InputError, match=r"--engines must be of anchored, .*; got hmc"):
        images.Cell("mnist", 0, engine="hmc").check()
    with pytest.raises(InputError, match="There are no images"):
        monkeypatch.undo()
        images.Cell("boston", 0).check()


def test_calibration_tells_a_posterior_that_is_too_narrow():
    """Untrained, it is the prior or half as wide: uniform ranks, or ranks at the ends."""
    settings = dict(kind="gaussian", rate=0.0, num_steps=1)
    right = calibration.Cell("two-layer", 0, scale=1.0, **settings).run()
    wrong = calibration.Cell("two-layer", 0, scale=0.5, **settings).run()
    assert right["p_value"] > 0.01 and 0.9 < right["rank_spread"] < 1.1
    assert wrong["p_value"] < 1e-4 and wrong["rank_spread"] > 1.25
    assert np.shape(right["ranks"]) == (300, 3)


@pytest.mark.parametrize(
    "methods", [uci.REFERENCES, pytest.param(("boosting", "gaussian"), marks=pytest.mark.slow)]
)
def test_every_method_at_every_depth_beside_references(methods, made_up, tmp_path, capsys):
    parser = argparse.ArgumentParser()
    uci.add_arguments(parser)
    words = ["--quick", "--results", str(tmp_path), "--methods", *methods]
    assert uci.main(parser.parse_args(words)) == 0
    shown = capsys.readouterr().out
    assert all(f"standard boston {method}" in shown for method in methods)
    assert (tmp_path / "standard.png").exists()
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    of_fits = {"num_layers", "doubted", "trace", "trace_steps"}
    names = {frozenset(r["scores"]) - of_fits for r in records}
    assert len(records) == 2 and len(names) == 1  # every method has every score
    with pytest.raises(InputError, match="--methods has no 'magic'; choose from ipvi"):
        uci.Cell("boston", 0, method="magic").check()


def test_normal_scores_are_those_of_the_normal_law():
    random = np.random.default_rng(0)
    mean = random.normal(size=4_000)
    found = uci.normal_scores(mean, 2.0, mean + 2.0 * random.normal(size=4_000))
    assert abs(found["mll"] + 0.5 * np.log(2.0 * np.pi * np.e * 4.0)) < 0.04  # minus the entropy
    assert abs(found["crps"] - 2.0 / np.sqrt(np.pi)) < 0.05
    assert abs(found["coverage50"] - 0.5) < 0.03 and abs(found["coverage90"] - 0.9) < 0.02
    assert found["calibration_error"] < 0.02
    wrong = uci.normal_scores(mean, 1.0, mean + 2.0 * random.normal(size=4_000))
    assert wrong["mll"] < found["mll"] and wrong["coverage90"] < 0.7


def test_an_extrapolation_is_cut_along_a_line(made_up):
    """Each half lies on one side of a plane, and the halves differ between splits."""
    x, y, beyond, _ = uci.split_rows("boston", 0, "extrapolation")
    assert len(x) == len(y) == len(beyond) == 20
    whole = np.concatenate([x, beyond])
    units = (whole - whole.mean(0)) / whole.std(0)
    direction = np.random.default_rng([2019, 0]).normal(size=3)
    assert np.max(units[:20] @ direction) < np.min(units[20:] @ direction)
    other, *_ = uci.split_rows("boston", 1, "extrapolation")
    assert not np.array_equal(np.sort(other[:, 0]), np.sort(x[:, 0]))


def test_ranks_and_differences_compare_what_all_have():
    found = {
        "one": {"ipvi 2": {0: -1.0, 1: -1.2}, "dsvi 2": {0: -1.5, 1: -1.9}, "boosting": {0: -1.1}},
        "two": {"ipvi 2": {0: -3.0}, "dsvi 2": {0: -2.0}, "sghmc 2": {0: -1.0}},
    }
    places = {"ipvi 2": {"one": 1.0, "two": 2.0}, "dsvi 2": {"one": 2.0, "two": 1.0}}
    assert comparing.ranks(found) == places
    assert comparing.ranks({}) == {}
    # A set on which they share no split ranks nothing; the other one still does.
    apart = {"three": {"ipvi 2": {0: -1.0}, "dsvi 2": {1: -2.0}}}
    two = {"ipvi 2": {"two": 2.0}, "dsvi 2": {"two": 1.0}}
    assert comparing.ranks({"two": found["two"]} | apart) == two
    lines = uci.differences(found).splitlines()
    assert any("one" in line and "ipvi 2" in line and "+0.600 ± 0.100" in line for line in lines)
    assert any("two" in line and "ipvi 2" in line and "-1.000 ± nan" in line for line in lines)
    assert not any("boosting" in line for line in lines)  # dsvi has no depth called boosting


@pytest.mark.parametrize(
    "method",
    [
        "gaussian",  # which grows
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("dsvi", "anchored", "paper")),
    ],
)
def test_a_bound_in_both_units(method, made_up, tmp_path, capsys):
    parser = argparse.ArgumentParser()
    elbo.add_arguments(parser)
    words = ["--quick", "--results", str(tmp_path), "--methods", method]
    assert elbo.main(parser.parse_args(words)) == 0
    shown = capsys.readouterr().out
    assert f"boston {method} depth 2" in shown and "-956.57" in shown
    spread = np.std(datasets.load("boston").split(0)[1])
    for path in tmp_path.glob("*.json"):
        scores = json.loads(path.read_text())["scores"]
        apart = scores["elbo_standardised"] - scores["elbo"]
        assert apart == pytest.approx(36 * np.log(spread), rel=1e-6)
        assert scores["elbo_per_row"] == pytest.approx(scores["elbo"] / 36)
        assert np.isfinite(scores["elbo_error"])


def test_draws_are_compared_with_a_reference_that_is_kept(monkeypatch, tmp_path, capsys):
    """The Gaussian alone of one target: the study with its reference, tables and figure."""
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    fidelity.add_arguments(parser)
    options = ["--quick", "--sets", "all-ones", "--kinds", "gaussian"]
    assert fidelity.main(parser.parse_args(options)) == 0
    folder = tmp_path / "results" / "fidelity_quick"
    (file,) = folder.glob("*.json")
    scores = json.loads(file.read_text())["scores"]
    assert scores["sliced_excess"] > 0.0 and scores["sliced_floor"] > 0.0
    assert scores["reference_num_steps"] == 40 and not scores["reference_settled"]
    assert "all-ones       moment-matched" in capsys.readouterr().out
    assert (folder / "fidelity.png").stat().st_size > 10_000
    (kept,) = folder.glob("*.npz")
    made = {"num_steps": 40, "num_warm_up": 30}
    monkeypatch.setattr(targets, "_sampled", None)  # not drawn again
    again = targets.reference("all-ones", folder, loose=True, **made)
    assert again.draws.shape == (160, 5) and kept.stat().st_size < 10_000
    with pytest.raises(NumericalError, match="use more reference steps"):
        targets.reference("all-ones", folder, **made)


@pytest.mark.parametrize("kind", ["collapsed", "anchored"])
def test_a_deep_target_with_normal_noise_is_fitted_with_its_last_layer_exact(kind):
    """Draws of all layers come back, the last one from its Gaussian given those below."""
    fitted, data = targets.problem("few-rows")
    found = fidelity.Cell("few-rows", 0, kind, num_steps=3)._fit(fitted, data)
    assert isinstance(found.posterior, CollapsedPosterior)
    values = found.posterior.sample(jr.key(0), found.model, 7)
    assert [v.shape for v in values] == [(7, 5, 1), (7, 6, 1)]


def test_targets_of_the_study_are_those_there_are():
    assert list(fidelity.NAMES) == targets.NAMES
    with pytest.raises(InputError, match=r"--sets must be of sine, .*; got boston"):
        fidelity.Cell("boston", 0).check()
    with pytest.raises(InputError, match=r"--kinds must be of gaussian, .*; got hmc"):
        fidelity.Cell("sine", 0, "hmc").check()


def test_a_reference_needs_blackjax(monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(InputError, match="pip install blackjax"):
        targets.nuts(jr.key(0), jnp.sum, 1, num_warm_up=1, num_steps=1)


def test_mirror_images_are_as_likely(x64):
    """The flip changes no log density, undoes itself, and folding leaves rising functions."""
    fitted, data = mirror.problem("float64")
    draws = np.random.default_rng(0).normal(size=(6, 11))
    density = jax.jit(jax.vmap(targets.log_joint(fitted.model, data)))
    images = mirror.flipped(fitted.model, draws)
    np.testing.assert_allclose(density(jnp.asarray(images)), density(jnp.asarray(draws)), rtol=1e-5)
    np.testing.assert_allclose(mirror.flipped(fitted.model, images), draws, atol=1e-6)
    folded = targets.split(fitted.model, jnp.asarray(mirror.folded(fitted.model, draws)))
    assert np.all(mirror.rising(fitted.model, folded) > 0.0)


def test_engines_are_timed_beside_the_published(made_up, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    timing.add_arguments(parser)
    options = ["--quick", "--sets", "boston", "--kinds", "dsvi"]
    assert timing.main(parser.parse_args(options)) == 0
    folder = tmp_path / "results" / "timing_quick"
    (file,) = folder.glob("*.json")
    scores = json.loads(file.read_text())["scores"]
    assert scores["step_ms"] > 0.0 and scores["draws_seconds"] > 0.0
    assert len(scores["test_mll"]) == len(scores["second"]) == 6
    out = capsys.readouterr().out
    assert "SGHMC, published       3.18        143.7" in out
    assert (folder / "timing.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="at least six times --chunk"):
        timing.Cell("boston", 0, num_steps=100).check()


def test_tied_and_naive_stand_beside_the_published(made_up):
    def record(kind, depth, split, train, test):
        cell = tying.Cell("boston", split, "anchored", kind, depth)
        return {"cell": dataclasses.asdict(cell), "scores": {"train_mll": train, "mll": test}}

    records = [
        record("tied", 1, 0, -1.0, -2.0),
        record("tied", 1, 1, -1.5, -2.5),
        record("tied", 2, 0, -1.2, -2.2),
        record("naive", 1, 0, -0.5, -3.0),
    ]
    lines = [line.split(maxsplit=1)[-1] for line in tying.beside(records).splitlines()]
    assert "anchored tied    1: -1.25 / -2.25   2: -1.20 / -2.20" in lines
    assert "anchored naive   1: -0.50 / -3.00" in lines
    assert any(
        line.startswith("published naive  1: -1.86 / -2.21   2: -1.76 / -2.37") for line in lines
    )
    with pytest.raises(InputError, match="--games has no 'chess'"):
        tying.Cell("boston", 0, "chess").check()


@pytest.mark.parametrize("kind", tying.TYINGS)
def test_an_anchored_game_is_played_tied_or_not(made_up, kind):
    cell = tying.Cell("boston", 0, "anchored", kind, num_inducing=4, num_steps=6)
    assert np.isfinite(cell.run()["mll"])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell the peak since the start")
def test_memory_is_that_of_the_cell_and_not_of_one_before():
    before = np.ones(25_000_000)  # 191 MB
    high = large.peak_mb()
    del before
    large.forget_peak()
    assert large.peak_mb() < high - 150


def test_large_sets_are_fitted_in_batches(made_up, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(large, "SETS", ("boston",))
    monkeypatch.setattr(large, "SOME", 20)
    parser = argparse.ArgumentParser()
    large.add_arguments(parser)
    options = ["--quick", "--sets", "boston", "--methods", "dsvi", "boosting", "--depths", "1"]
    assert large.main(parser.parse_args([*options, "--batch-size", "10"])) == 0
    folder = tmp_path / "results" / "large_quick"
    found = {record["cell"]["method"]: record["scores"] for record in cells.scored(folder)}
    assert set(found) == {"dsvi", "boosting"} and (folder / "large.png").is_file()
    assert all(one["num_rows"] == 36 and one["peak_mb"] > 50.0 for one in found.values())
    assert "boston dsvi 1" in capsys.readouterr().out
    with pytest.raises(InputError, match="--methods has no 'magic'"):
        large.Cell("boston", 0, "magic").check()
    with pytest.raises(InputError, match="--sets has no 'energy'"):
        large.Cell("energy", 0).check()
    with pytest.raises(InputError, match="--splits must be 0"):
        large.Cell("boston", 1).check()
    monkeypatch.undo()
    for folder in (datasets.FOLDER, "XDG_CACHE_HOME"):
        monkeypatch.setenv(folder, str(tmp_path))
    large.Cell("year-msd", 0).check()  # a file of one's own is met when it is read
    with pytest.raises(InputError, match="'us-flights' is not in"):
        large.Cell("us-flights", 0).check()


def test_draws_of_a_sampler_cost_the_steps_between_them():
    """Chunks of ten steps: two that compile, then 0.3 s a step with hyperparameters, 0.2 s held."""
    cell = timing.Cell("boston", 0, "sghmc", num_steps=80, chunk=10, spacing=50)
    seconds = np.cumsum([30.0, 20.0, 3.0, 3.0, 2.5, 2.0, 2.0, 2.0])
    np.testing.assert_allclose(cell._step(seconds, trains=True), 0.3)
    np.testing.assert_allclose(cell._draws(None, seconds), 100 * 50 * 0.2)
    other = dataclasses.replace(cell, kind="dsvi")
    np.testing.assert_allclose(other._step(seconds, trains=True), 0.2)
