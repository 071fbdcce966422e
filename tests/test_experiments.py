"""Every experiment in miniature, on made-up rows: the scripts cannot rot."""

import argparse
import hashlib
import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from nashgp import datasets
from nashgp.errors import InputError
from nashgp.experiments import EXPERIMENTS, auto_uci, dsvi_uci, power_uci
from nashgp.experiments.cells import work
from nashgp.experiments.dsvi_uci import STUDY, Cell

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
    scores = record["scores"]
    assert all(np.isfinite(value) for value in scores.values())
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


@pytest.mark.parametrize("study", [dsvi_uci, power_uci, auto_uci])
def test_finished_cells_are_still_recognised(study):
    """Names of files come from the settings; results in the repository must keep theirs."""
    folder = RESULTS / study.STUDY.name
    for file in sorted(folder.glob("*.json")):
        assert study.Cell(**json.loads(file.read_text())["cell"]).path(folder) == file


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


@pytest.mark.slow
@pytest.mark.skipif(datasets.FOLDER not in os.environ, reason="NASHGP_DATA names no data folder")
@pytest.mark.parametrize(("name", "floor"), [("boston", -2.45), ("energy", -0.78)])
def test_published_dsvi_reaches_the_published_level(tmp_path, name, floor):
    """The first standard split at full length; the floors are those of the mean over splits."""
    cell = work(Cell(name, 0), tmp_path)
    assert json.loads(cell.path(tmp_path).read_text())["scores"]["mll"] > floor
