"""Data sets: one file as published or one clear refusal."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from nashgp import datasets
from nashgp.datasets import Regression, Source, load
from nashgp.errors import InputError

# name: rows, input columns, splits, as the files are documented
SIZES = {
    "boston": (506, 13, 20),
    "concrete": (1030, 8, 20),
    "energy": (768, 8, 20),
    "kin8nm": (8192, 8, 20),
    "power": (9568, 4, 20),
    "protein": (45730, 9, 5),
    "wine-red": (1599, 11, 20),
}


def have_data() -> bool:
    folder = os.environ.get(datasets.FOLDER)
    return bool(folder) and all(
        (Path(folder) / source.path).is_file() for source in datasets.SOURCES.values()
    )


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A data folder with one set called `tiny`; gives the path of its file."""
    rng = np.random.default_rng(0)
    path = tmp_path / "uci" / "tiny.npz"
    path.parent.mkdir()
    mask = np.zeros((2, 10), dtype=bool)
    mask[0, :1], mask[1, 4:6] = True, True
    np.savez(path, X=rng.normal(size=(10, 3)), y=np.arange(10), test_mask=mask)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(datasets, "SOURCES", {"tiny": Source("uci/tiny.npz", checksum)})
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path))
    return path


def test_load_reads_the_file_as_it_is(tiny):
    data = load("tiny")
    with np.load(tiny) as arrays:
        np.testing.assert_array_equal(data.x, arrays["X"])
        np.testing.assert_array_equal(data.y[:, 0], arrays["y"])
        np.testing.assert_array_equal(data.test_mask, arrays["test_mask"])
    assert data.name == "tiny"
    assert data.y.shape == (10, 1)
    assert data.x.dtype == data.y.dtype == np.float64
    assert data.num_splits == 2


def test_split_deals_every_row_once(tiny):
    data = load("tiny")
    x_train, y_train, x_test, y_test = data.split(1)
    np.testing.assert_array_equal(y_test[:, 0], [4.0, 5.0])
    np.testing.assert_array_equal(x_test, data.x[4:6])
    np.testing.assert_array_equal(y_train[:, 0], [0.0, 1.0, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0])
    np.testing.assert_array_equal(x_train, np.delete(data.x, [4, 5], axis=0))


@pytest.mark.parametrize("index", [-1, 2])
def test_split_that_does_not_exist(tiny, index):
    with pytest.raises(InputError, match="choose one from 0 to 1"):
        load("tiny").split(index)


def test_unknown_name(tiny):
    with pytest.raises(InputError, match="'huge'; choose one of tiny"):
        load("huge")


@pytest.mark.parametrize("value", [None, ""])
def test_unset_variable(tiny, monkeypatch, value):
    monkeypatch.delenv(datasets.FOLDER)
    if value is not None:
        monkeypatch.setenv(datasets.FOLDER, value)
    with pytest.raises(InputError, match="Set the environment variable NASHGP_DATA"):
        load("tiny")


def test_missing_file(tiny):
    tiny.unlink()
    with pytest.raises(InputError, match=r"tiny\.npz is missing; put it there"):
        load("tiny")


def test_changed_file(tiny):
    tiny.write_bytes(tiny.read_bytes() + b" ")
    with pytest.raises(InputError, match="replace it by a fresh copy"):
        load("tiny")


def test_pickled_arrays_are_refused(tiny, monkeypatch):
    """Even a file with the right checksum never runs code."""
    np.savez(tiny, X=np.array([None]), y=np.zeros(1), test_mask=np.zeros((1, 1), bool))
    checksum = hashlib.sha256(tiny.read_bytes()).hexdigest()
    monkeypatch.setitem(datasets.SOURCES, "tiny", Source("uci/tiny.npz", checksum))
    with pytest.raises(ValueError, match="allow_pickle"):
        load("tiny")


def test_registry_is_whole():
    assert set(datasets.SOURCES) == set(SIZES)
    for name, source in datasets.SOURCES.items():
        assert source.path == f"uci/{name}.npz"
        assert len(bytes.fromhex(source.sha256)) == 32


@pytest.mark.skipif(
    not have_data(), reason="NASHGP_DATA does not name a folder with the seven sets"
)
@pytest.mark.parametrize("name", SIZES)
def test_real_sets(name):
    rows, columns, splits = SIZES[name]
    data = load(name)
    assert data.x.shape == (rows, columns)
    assert data.y.shape == (rows, 1)
    assert data.test_mask.shape == (splits, rows)
    assert np.isfinite(data.x).all()
    assert np.isfinite(data.y).all()
    test_rows = data.test_mask.sum(axis=1)
    assert np.all(np.abs(test_rows - rows / 10) <= 1.0)  # a tenth, rounded either way


def test_sets_compare_by_identity():
    """Arrays have no single truth value, so `==` between sets must not look at them."""
    rows = np.zeros((2, 1))
    one, two = (Regression("a", rows, rows, np.zeros((1, 2), bool)) for _ in range(2))
    assert one == one
    assert one != two
