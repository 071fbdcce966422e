"""Every experiment in miniature, on made-up rows: the scripts cannot rot."""

import hashlib
import importlib.util
import json
import os
import pathlib
import sys

import numpy as np
import pytest

from nashgp import datasets

SCRIPTS = pathlib.Path(__file__).parent.parent / "experiments"


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script as a module that writes its results to a temporary folder."""
    spec = importlib.util.spec_from_file_location("dsvi_uci", SCRIPTS / "dsvi_uci.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "dsvi_uci", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """A set called boston with 40 rows, four of them test rows."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 3))
    y = 10.0 + 5.0 * np.sin(x[:, 0])
    mask = np.arange(40)[None] < 4
    np.savez(tmp_path / "set.npz", X=x, y=y, test_mask=mask)
    digest = hashlib.sha256((tmp_path / "set.npz").read_bytes()).hexdigest()
    monkeypatch.setitem(datasets.SOURCES, "boston", datasets.Source("set.npz", digest))
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path))


def test_a_cell_is_scored_saved_and_tabulated(script, made_up):
    cell = script.Cell("boston", 0, num_steps=300, num_inducing=10, learning_rate=0.05)
    script.work(cell)
    record = json.loads(cell.path.read_text())
    assert record["cell"]["num_steps"] == 300 and "jax" in record["versions"]
    scores = record["scores"]
    assert all(np.isfinite(value) for value in scores.values())
    assert scores["rmse"] < 3.0  # in units of y, whose standard deviation is 3.6
    assert scores["mll"] > -3.0 and 0.0 < scores["crps"] < 3.0
    assert "boston        1      0" in script.table([cell])
    assert script.Cell("boston", 0, num_steps=301).path != cell.path


def test_a_failed_cell_is_kept_and_counted(script, monkeypatch):
    monkeypatch.delenv(datasets.FOLDER, raising=False)
    cell = script.work(script.Cell("boston", 0))
    assert "NASHGP_DATA" in json.loads(cell.path.read_text())["failure"]
    assert "boston        0      1" in script.table([cell])


@pytest.mark.slow
@pytest.mark.skipif(datasets.FOLDER not in os.environ, reason="NASHGP_DATA names no data folder")
@pytest.mark.parametrize(("name", "floor"), [("boston", -2.45), ("energy", -0.78)])
def test_published_dsvi_reaches_the_published_level(script, name, floor):
    """The first standard split at full length; the floors are those of the mean over splits."""
    scores = json.loads(script.work(script.Cell(name, 0)).path.read_text())["scores"]
    assert scores["mll"] > floor
