"""Model files: what comes back is what was saved, and a bad file is one clear sentence."""

import collections
import errno
import importlib
import json
import math
import os
import pickle
import pkgutil
import subprocess
import zipfile
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import nashgp
from nashgp import kernels, means, persist
from nashgp.batch import Data
from nashgp.errors import InputError
from nashgp.layers import Inducing
from nashgp.precision import scope
from nashgp.recipes import Config
from nashgp.scaling import Scaling
from nashgp.transforms import Frozen
from tests.cases import KERNELS, LIKELIHOODS, rows, tiny_data, tiny_fitted

DTYPES = ["float32", "float64"]


class Gain(eqx.Module):
    """A user's own module."""

    value: jax.Array
    power: int = eqx.field(static=True, default=2)

    def __init__(self, value):
        raise AssertionError("reading must not call this")

    @classmethod
    def make(cls, value, power):
        gain = object.__new__(cls)
        object.__setattr__(gain, "value", value)
        object.__setattr__(gain, "power", power)
        return gain


class Pair(NamedTuple):
    """A user's own named tuple."""

    left: object
    right: object


def through(value, classes=()):
    """Packed, as strict JSON text, and back."""
    spec, arrays = persist.pack(value)
    return persist.unpack(json.loads(json.dumps(spec, allow_nan=False)), arrays, classes)


def assert_same(one, two):
    """Equal structure and static parts with equal hashes; leaves equal to the bit."""
    left, right = jax.tree.structure(one), jax.tree.structure(two)
    assert left == right and hash(left) == hash(right)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        if isinstance(a, jax.Array):
            assert a.sharding == b.sharding and a.aval.weak_type == b.aval.weak_type


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.nashgp"


@pytest.fixture
def saved(path):
    """A small file to be spoilt."""
    content = {"scale": jnp.ones(3), "names": ("a", 2.5), "table": np.arange(6.0).reshape(2, 3)}
    persist.write(path, "thing", content)
    return path


# What is saved comes back.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_come_back(name, dtype):
    with scope(dtype):
        kernel = KERNELS[name](3)
    assert_same(kernel, through(kernel))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_come_back(name, dtype):
    make, num_targets, _ = LIKELIHOODS[name]
    with scope(dtype):
        likelihood = make(num_targets)
    assert_same(likelihood, through(likelihood))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fitted_model_comes_back_from_its_file(path, dtype):
    fitted = tiny_fitted(dtype=dtype, hidden_dim=1)  # with a frozen projection
    persist.write(path, "fitted", {"fitted": fitted})
    kind, content = persist.read(path, "fitted")
    assert kind == "fitted"
    assert isinstance(content["fitted"].model.layers[0].mean.weight, Frozen)
    assert content["fitted"].posterior.means[0].dtype == dtype
    assert jnp.ones(1).dtype == "float32"  # reading changed no setting
    assert_same(fitted, content["fitted"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_code_is_reused(path, dtype):
    fitted = tiny_fitted(dtype=dtype)
    persist.write(path, "fitted", fitted)
    traces = []

    @eqx.filter_jit
    def diagonal(fitted, x):
        traces.append(None)
        return fitted.model.layers[0].kernel.diag(x)

    with scope(dtype):
        x = jnp.asarray(rows(3), dtype)
        before = diagonal(fitted, x)
        after = diagonal(persist.read(path)[1], x)
    np.testing.assert_array_equal(before, after)
    assert len(traces) == 1


def test_what_came_back_can_be_transformed():
    kernel = through(KERNELS["nested"](2))
    moved = eqx.tree_at(lambda k: k.right.raw_variance, kernel, jnp.zeros(()))
    assert moved.right.raw_variance == 0.0
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), kernel)
    assert jax.vmap(lambda k: k.right.variance)(stacked).shape == (2,)
    with pytest.raises(AttributeError):
        kernel.left = None  # frozen as ever


PLAIN = {
    "nothing": None,
    "numbers": [True, False, 0, -1, 2**70, 1.0, -0.0, 0.1, 1e-320, math.pi],
    "limits": (math.inf, -math.inf),
    "text": ["", "é\n\x00\ud800", '{"tuple": []}'],
    "nested": {"a.b": (1, [2, ()], {}), "": [], "tuple": [], "class": "kernels.RBF"},
    "deep": {"a": {"b": {"c": ((),)}}},
    "config": Config(num_layers=3, kernel="matern52"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_come_back(name):
    again = through(PLAIN[name])
    assert repr(again) == repr(PLAIN[name])  # types and the sign of zero too
    assert again == PLAIN[name]


def test_nan_comes_back():
    assert math.isnan(through({"a": math.nan})["a"])


def test_static_parts_are_hashable_as_before():
    columns = through(kernels.RBF([0.8, 0.9], columns=(0, 2))).columns
    assert columns == (0, 2) and hash(columns) == hash((0, 2))


ARRAYS = {
    **{dtype: np.arange(6).astype(dtype).reshape(2, 3) for dtype in sorted(persist.DTYPES)},
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "strided": np.arange(12.0)[::-3],
    "big-endian": np.arange(3.0).astype(">f8"),
    "nan": np.array([np.nan, -np.nan, np.inf, -0.0]),
    "empty": np.zeros((0, 3)),
    "empty-row": np.zeros(0),
    "no-axis": np.array(2.5),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_from_a_file(path, name):
    array = ARRAYS[name]
    persist.write(path, "array", array)
    again = persist.read(path)[1]
    assert type(again) is np.ndarray and again.dtype == array.dtype.newbyteorder("=")
    assert again.shape == array.shape
    np.testing.assert_array_equal(array, again)


@pytest.mark.parametrize("dtype", sorted(persist.DTYPES))
def test_device_arrays_come_back_in_their_own_precision(path, dtype):
    with scope(dtype):
        array = jnp.arange(3).astype(dtype)
    assert array.dtype == dtype
    persist.write(path, "arrays", (array, np.asarray(array)))
    on_device, on_host = persist.read(path)[1]
    assert isinstance(on_device, jax.Array) and type(on_host) is np.ndarray
    assert_same(array, on_device)


def test_scalars_and_strings_of_numpy_come_back():
    values = [np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True), np.str_("a")]
    again = through(values)
    assert again == values
    assert [type(v) for v in again] == [np.float64, np.float32, np.int64, np.bool_, str]
    for names in (np.array(["a", "bé"]), np.array(["age", "sex"], object), np.array([], str)):
        same = through({"names": names})["names"]
        assert same.dtype.kind == names.dtype.kind and same.tolist() == names.tolist()


def test_what_was_read_shares_no_memory_with_the_arrays():
    spec, arrays = persist.pack({"a": jnp.zeros(64)})
    arrays["a"] = np.zeros(64, np.float32)
    again = persist.unpack(spec, arrays)["a"]
    arrays["a"][:] = 1.0
    assert not np.any(again)


def test_records_of_the_package_come_back():
    scaling = Scaling.from_rows(rows(5), rows(5, 1))
    again = through(scaling)
    assert type(again) is Scaling
    np.testing.assert_array_equal(again.inputs(rows(3)), scaling.inputs(rows(3)))
    data = tiny_data()
    assert type(through(data)) is Data
    assert_same(data, through(data))
    inducing = Inducing(jnp.ones((2, 1)))
    assert type(through(inducing)) is Inducing
    assert_same(inducing, through(inducing))


def test_arrays_are_named_by_their_path(path):
    persist.write(path, "fitted", {"fitted": tiny_fitted(num_layers=1)})
    with safetensors.safe_open(path, framework="numpy") as file:
        names, metadata = set(file.keys()), file.metadata()
    assert "fitted.model.layers.0.z" in names and "fitted.posterior.roots.0" in names
    header = json.loads(metadata["nashgp"])
    assert {name: header[name] for name in ("format", "version", "kind")} == {
        "format": 1,
        "version": nashgp.__version__,
        "kind": "fitted",
    }


def test_keys_that_look_alike_do_not_meet():
    a = np.arange(2.0)
    tree = {"a": {"b": a}, "a.b": a + 1, "": {"a": a + 2}, ".a": a + 3, "a\\u002eb": a + 4}
    spec, arrays = persist.pack(tree)
    assert len(arrays) == 5
    again = persist.unpack(spec, arrays)
    assert repr(again) == repr(tree)


# Classes.


def test_every_concrete_class_of_a_model_is_known():
    """Under its module's name, also when it lives deeper in a package."""
    found = {}
    for module in persist._MODEL + persist._AROUND:
        inner = [
            importlib.import_module(f"{module.__name__}.{info.name}")
            for info in pkgutil.iter_modules(getattr(module, "__path__", []))
        ]
        for place in [module, *inner]:
            for cls in vars(place).values():
                if persist._fields(cls) is not None and cls.__module__ == place.__name__:
                    name = f"{module.__name__.split('.')[1]}.{cls.__name__}"
                    assert found.setdefault(name, cls) is cls, f"two classes are called {name}"
    assert found == persist.CLASSES


def test_classes_of_the_same_name_are_told_apart():
    assert persist.CLASSES["kernels.Linear"] is kernels.Linear
    assert persist.CLASSES["means.Linear"] is means.Linear
    assert "kernels.AbstractKernel" not in persist.CLASSES


def test_user_classes_are_passed_by_the_reader(path):
    content = Pair(Gain.make(jnp.ones(2), 3), [kernels.RBF()])
    persist.write(path, "pair", content)
    again = persist.read(path, classes=[Pair, Gain])[1]
    assert type(again) is Pair and type(again.left) is Gain and again.left.power == 3
    assert_same(content, again)
    with pytest.raises(InputError) as caught:
        persist.read(path, classes=[Pair])
    assert str(caught.value) == (
        f"{path} uses the class '{__name__}.Gain', which nashgp does not know; "
        "pass it as load(path, classes=[Gain])."
    )


def test_a_user_class_never_stands_in_for_a_known_one():
    mine = collections.namedtuple("RBF", "left right", module="kernels")
    again = through([mine(1, 2), kernels.RBF()], [mine])
    assert type(again[0]) is mine and type(again[1]) is kernels.RBF


@pytest.mark.parametrize("wrong", [subprocess.Popen, int, tuple, kernels.AbstractKernel])
def test_only_classes_made_of_fields_are_taken(wrong):
    with pytest.raises(InputError, match=r"classes holds .*; pass modules"):
        persist.unpack(None, {}, [wrong])


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "builtins.eval", "nashgp.x.Y"])
def test_a_file_cannot_choose_what_is_run(name):
    for user, remedy in ((True, "pass it as load"), (False, "upgrade nashgp")):
        spec = {"class": name, "user": user, "fields": {"args": "exit 1"}}
        with pytest.raises(InputError, match=f"the file uses the class '{name}', .*; {remedy}"):
            persist.unpack(spec, {})


class Bomb:
    def __reduce__(self):
        return os.abort, ()


def test_a_pickle_in_the_metadata_is_not_unpickled(path):
    text = pickle.dumps(Bomb(), protocol=0).decode()
    path.write_bytes(safetensors.numpy.save({}, {"nashgp": text, "sha256": ""}))
    with pytest.raises(InputError, match="is damaged"):
        persist.read(path)
    spec, arrays = persist.pack({"a": text})
    assert persist.unpack(spec, arrays) == {"a": text}


# What cannot be saved.


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [len]}, "a.0 is a builtin_function_or_method, which"),
        (Config(kernel=lambda d: kernels.RBF()), "kernel is a function, which"),
        ({"a": kernels.RBF}, "a is a _.*, which"),
        ({1: 2}, "the content is a dict, which"),
        ({"__metadata__": np.ones(2)}, "the content is a dict, which"),
        ({"a": {1, 2}}, "a is a set, which"),
        ({"a": np.ones(2, complex)}, "a is a ndarray of complex128, which"),
        ({"a": np.array([None, "b"])}, "a is a ndarray of object, which"),
        ({"a": np.array([["b"]])}, "a is a ndarray of str"),
        ({"a": jax.random.key(0)}, "a is a PRNGKeyArray of key<fry>, which"),
        ({"a": jnp.ones(2, jnp.bfloat16)}, "a is a ArrayImpl of bfloat16, which"),
        ({"a": np.ma.ones(2)}, "a is a MaskedArray, which"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_by_name(path, value, message):
    with pytest.raises(InputError, match=f"^{message}.*cannot hold; use modules"):
        persist.write(path, "thing", value)
    assert not path.exists()


def test_depth_is_limited_on_both_sides():
    tree = ()
    for _ in range(persist.MAX_DEPTH):
        tree = (tree,)
    assert through(tree) == tree
    with pytest.raises(InputError, match="deeper than 100 levels cannot be saved"):
        persist.pack((tree,))
    endless = []
    endless.append(endless)
    with pytest.raises(InputError, match="deeper than 100 levels cannot be saved"):
        persist.pack(endless)
    with pytest.raises(InputError, match=r"the file is damaged .* deeper than 100 levels"):
        persist.unpack([{"tuple": [persist.pack(tree)[0]]}], {})


# Writing is all or nothing.


def only(path):
    """Whether nothing lies beside a file."""
    return [item.name for item in path.parent.iterdir()] == [path.name]


def test_a_file_is_replaced(saved):
    persist.write(saved, "other", [1])
    assert persist.read(saved) == ("other", [1]) and only(saved)
    persist.write(str(saved), "other", [2])
    assert persist.read(str(saved)) == ("other", [2]) and only(saved)


def test_a_link_stays_a_link(saved, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = folder / "link"
    link.symlink_to(saved)
    persist.write(link, "other", [1])
    assert link.is_symlink() and persist.read(saved) == ("other", [1]) and only(link)


def test_the_mode_of_a_file_follows_the_umask(path):
    before = os.umask(0o027)
    try:
        persist.write(path, "thing", 1)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("place", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failure_on_the_way_leaves_the_old_file(saved, monkeypatch, place, failure):
    old = saved.read_bytes()

    def fail(*_):
        assert len(list(saved.parent.iterdir())) == 2  # the temporary file is in the same folder
        raise failure

    monkeypatch.setattr(os, place, fail)
    expected = InputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        persist.write(saved, "thing", {"a": jnp.zeros(3)})
    assert saved.read_bytes() == old and only(saved)
    if expected is InputError:
        assert str(caught.value) == (
            f"{saved} cannot be written (No space left); "
            "choose a folder that exists, has room and lets you write."
        )


def test_a_value_that_cannot_be_saved_leaves_the_old_file(saved):
    old = saved.read_bytes()
    with pytest.raises(InputError):
        persist.write(saved, "thing", {"a": jnp.zeros(3), "b": len})
    assert saved.read_bytes() == old and only(saved)


def test_a_place_that_cannot_be_written_is_named(saved, tmp_path):
    for place in (tmp_path / "missing" / "model", saved / "model"):
        with pytest.raises(InputError, match=rf"^{place} cannot be written \(.*choose a folder"):
            persist.write(place, "thing", 1)
    with pytest.raises(InputError, match=f"^{tmp_path} is a folder; name a file in it.$"):
        persist.write(tmp_path, "thing", 1)
    assert only(saved)


def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("root may write everywhere; run the tests as another user")
    with pytest.raises(InputError, match=r"cannot be written \(Permission denied\)"):
        persist.write(tmp_path / "model", "thing", 1)


# Bad files.


def foreign_files(path):
    with zipfile.ZipFile(path.with_name("zip"), "w") as file:
        file.writestr("a.txt", "text")
    yield "is damaged or no model file; get", path.with_name("zip").read_bytes()
    yield "is damaged or no model file; get", b""
    yield "is damaged or no model file; get", b"a,b\n1,2\n" * 20
    yield "is damaged or no model file; get", np.random.default_rng(0).bytes(500)
    yield "is damaged or no model file; get", (2).to_bytes(8, "little") + b"[]"
    yield "was not written by nashgp; name", safetensors.numpy.save({"a": np.ones(2)})
    yield "was not written by nashgp; name", safetensors.numpy.save({}, {"format": "pt"})
    for text in ("", "1", "[]", "{}", '{"format": "1"}', '{"format": 1}', "[" * 100_000):
        yield "is damaged; get an intact copy", safetensors.numpy.save({}, {"nashgp": text})


def test_foreign_files_are_refused(path):
    for message, data in foreign_files(path):
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"^{path} {message}"):
            persist.read(path)


def test_missing_files_and_folders_are_named(path, tmp_path):
    with pytest.raises(InputError, match=f"^{path} does not exist; check the name.$"):
        persist.read(path)
    with pytest.raises(InputError, match=f"^{tmp_path} is a folder; name a model file in it.$"):
        persist.read(tmp_path)


def test_a_file_without_permission_is_named(saved):
    saved.chmod(0)
    if os.access(saved, os.R_OK):
        pytest.skip("root may read everything; run the tests as another user")
    with pytest.raises(InputError, match=rf"^{saved} cannot be read \(Permission denied\); check"):
        persist.read(saved)


def test_a_file_that_cannot_be_opened_is_named(saved, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(safetensors, "safe_open", fail)
    with pytest.raises(InputError, match=rf"^{saved} cannot be read \(Input/output error\); check"):
        persist.read(saved)


def test_another_kind_is_refused(saved):
    assert persist.read(saved, "thing")[0] == "thing"
    with pytest.raises(InputError, match=f"^{saved} holds a thing, not a model; name a file"):
        persist.read(saved, "model")


def forge(path, change, honest=True):
    """Change header and arrays of a file; with an honest checksum, as a forger would write it."""
    with safetensors.safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = file.metadata()
    header = json.loads(metadata["nashgp"])
    change(header, arrays)
    text = json.dumps(header)
    checksum = persist._checksum(text, arrays) if honest else metadata["sha256"]
    path.write_bytes(safetensors.numpy.save(arrays, {"nashgp": text, "sha256": checksum}))


def test_a_newer_format_asks_for_an_upgrade(saved):
    forge(saved, lambda header, _: header.update(format=2, content={"new": "things"}))
    with pytest.raises(InputError) as caught:
        persist.read(saved)
    assert str(caught.value) == (
        f"{saved} was written by a newer nashgp (format 2, this one reads 1); upgrade nashgp."
    )


def test_the_checksum_covers_header_and_arrays(saved):
    forge(saved, lambda header, _: header.update(version="0.0.0"), honest=False)
    with pytest.raises(InputError, match=f"^{saved} is damaged; get an intact copy"):
        persist.read(saved)


def test_swapped_arrays_are_noticed(path):
    persist.write(path, "thing", {"a": np.zeros(2), "b": np.ones(2)})
    data = path.read_bytes()
    spot = data.index(b'"a":{"dtype"'), data.index(b'"b":{"dtype"')
    data = bytearray(data)
    data[spot[0] + 1], data[spot[1] + 1] = b"ba"
    path.write_bytes(data)
    with pytest.raises(InputError, match="is damaged"):
        persist.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, a: a.pop("scale"), "the array 'scale' is missing"),
        (lambda h, a: a.update(scale=np.ones(2, np.float32)), "'scale' has the wrong type or"),
        (lambda h, a: a.update(scale=np.ones(3)), "'scale' has the wrong type or shape"),
        (lambda h, a: a.update(more=np.ones(3)), "nothing needs the array 'more'"),
    ],
)
def test_arrays_must_be_those_of_the_header(saved, change, message):
    forge(saved, change)
    with pytest.raises(InputError, match=f"^{saved} is damaged .*: .*{message}"):
        persist.read(saved)


RBF = {"raw_variance": 0.0, "raw_lengthscale": 0.0, "columns": None}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"tuple": 1},
        {"tuple": {"a": 1}},
        {"dict": []},
        {"float": "1e5"},
        {"float": 1.0},
        {"unknown": 1},
        {"strings": "ab", "dtype": "str"},
        {"strings": ["ab"], "dtype": "float64"},
        {"strings": ["ab", 1], "dtype": "str"},
        {"array": "numpy"},
        {"array": "numpy", "dtype": 1, "shape": {}},
        {"array": "torch", "dtype": "float64", "shape": [2]},
        {"array": "numpy", "dtype": "float64", "shape": [2]},
        {"dict": {"b": {"array": "numpy", "dtype": "float64", "shape": [2]}}},
        {"class": "kernels.RBF"},
        {"class": "kernels.RBF", "user": False, "fields": []},
        {"class": "kernels.RBF", "user": False, "fields": {}},
        {"class": "kernels.RBF", "user": False, "fields": RBF | {"more": 1}},
        {"class": "kernels.RBF", "user": False, "fields": RBF | {"__class__": "str"}},
        {"class": "layers.Inducing", "user": False, "fields": {"value": 1}},
        {"class": ["kernels.RBF"], "user": False, "fields": RBF},
        {"class": "kernels.AbstractKernel", "user": False, "fields": {}},
        b"bytes",
        object(),
    ],
)
def test_senseless_specs_are_refused(spec):
    for place in (spec, [spec], {"tuple": [spec]}, {"dict": {"a": spec}}):
        with pytest.raises(InputError, match=r"^the file (is damaged|uses the class)"):
            persist.unpack(place, {})


def test_one_array_does_not_serve_twice():
    spec = {"array": "numpy", "dtype": "float64", "shape": [2]}
    again = persist.unpack({"dict": {"a": spec}}, {"a": np.ones(2)})
    assert again["a"].shape == (2,)
    with pytest.raises(InputError, match="the array 'b' is missing"):
        persist.unpack({"dict": {"a": spec, "b": spec}}, {"a": np.ones(2)})


def test_truncated_and_flipped_files_are_noticed(saved):
    """Wherever it happens; only a change in padding may pass, and then nothing is different."""
    data, random = saved.read_bytes(), np.random.default_rng(0)
    content = repr(persist.read(saved))
    spoilt = [data[: random.integers(len(data))] for _ in range(50)] + [data + b"\0"]
    for place in [*random.integers(len(data), size=150), len(data) - 1, len(data) - 20]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << random.integers(8)
        spoilt.append(bytes(flipped))
    noticed = 0
    for attempt in spoilt:
        saved.write_bytes(attempt)
        try:
            assert repr(persist.read(saved)) == content
        except InputError as error:
            assert str(error).startswith(f"{saved} ") and str(error).endswith(".")
            noticed += 1
    assert noticed > 0.9 * len(spoilt)


def test_a_flipped_bit_in_an_array_is_damage(saved):
    data = bytearray(saved.read_bytes())
    data[-5] ^= 1
    saved.write_bytes(data)
    with pytest.raises(InputError, match=f"^{saved} is damaged; get an intact copy"):
        persist.read(saved)
