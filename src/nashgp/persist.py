"""Model files: a tree of modules, numbers and arrays in one safetensors file.

The arrays are the file's tensors, each named by its path in the tree: `fitted.model.layers.0.z`.
All else is one JSON text in the file's metadata, beside a checksum of that text and the arrays.
Numbers, strings, `None` and lists are themselves in the text; other things are objects:

    {"class": "kernels.RBF", "user": false, "fields": {...}}    a module, dataclass or named tuple
    {"array": "jax", "dtype": "float64", "shape": [5, 2]}       the tensor with the object's path
    {"strings": [...], "dtype": "object"}                       a NumPy array of strings
    {"tuple": [...]}    {"dict": {...}}    {"float": "inf"}

Reading runs nothing from a file and imports nothing it names: classes are looked up in `CLASSES`
or among those passed, and instances are put together from their fields without `__init__`.
"""

import contextlib
import dataclasses
import glob
import hashlib
import inspect
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from nashgp import (
    batch,
    kernels,
    layers,
    likelihoods,
    means,
    model,
    networks,
    posteriors,
    priors,
    recipes,
    scaling,
    transforms,
)
from nashgp.errors import InputError
from nashgp.precision import scope

FORMAT = 1  # one more whenever an older nashgp could not read the file
MAX_DEPTH = 100  # well below where Python's own limit would end the recursion
DTYPES = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}

FilePath = str | os.PathLike[str]
Arrays = Mapping[str, np.ndarray]
Trail = tuple[str, ...]


def _fields(cls: Any) -> tuple[str, ...] | None:
    """The fields of a module, dataclass or named tuple; None for what is no such class."""
    if not isinstance(cls, type) or inspect.isabstract(cls):
        return None
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return getattr(cls, "_fields", None) if issubclass(cls, tuple) else None


def _defaults(cls: type) -> dict[str, Any]:
    """Fields that a file may lack, since it may be older than they are."""
    if not dataclasses.is_dataclass(cls):
        return {}
    return {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    }


_MODEL = (kernels, layers, likelihoods, means, model, networks, posteriors, priors, transforms)
_AROUND = (batch, recipes, scaling)
# `<module or package>.<class>` is a name for good: a class that moves keeps the one it had.
CLASSES: dict[str, type] = {
    f"{module.__name__.removeprefix('nashgp.')}.{cls.__name__}": cls
    for module in _MODEL + _AROUND
    for cls in vars(module).values()
    if _fields(cls) is not None and f"{cls.__module__}.".startswith(f"{module.__name__}.")
}
_NAMES = {cls: name for name, cls in CLASSES.items()}


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _part(key: str) -> str:
    """A key as part of a path: ASCII, with no dot of its own."""
    return json.dumps(key)[1:-1].replace(".", "\\u002e")


def pack(value: object) -> tuple[Any, dict[str, np.ndarray]]:
    """Split a tree into what JSON can hold and its arrays by path, which may share its memory."""
    arrays: dict[str, np.ndarray] = {}
    return _pack(value, (), arrays), arrays


def _pack(value: Any, at: Trail, arrays: dict[str, np.ndarray]) -> Any:
    cls = type(value)  # not isinstance: a subclass of int would come back as an int
    if len(at) > MAX_DEPTH:
        raise InputError(f"a tree deeper than {MAX_DEPTH} levels cannot be saved; make it flatter.")
    if value is None or cls in (bool, int, str):
        return value
    if cls is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if cls in (list, tuple):
        items = [_pack(item, (*at, str(i)), arrays) for i, item in enumerate(value)]
        return items if cls is list else {"tuple": items}
    if cls is dict and all(type(key) is str and key != "__metadata__" for key in value):
        return {"dict": {k: _pack(item, (*at, _part(k)), arrays) for k, item in value.items()}}
    if isinstance(value, jax.Array | np.generic) or cls is np.ndarray:
        return _pack_array(value, at, arrays)
    if (names := _fields(cls)) is not None:
        fields = {name: _pack(getattr(value, name), (*at, name), arrays) for name in names}
        known = cls in _NAMES
        name = _NAMES[cls] if known else _qualified(cls)
        return {"class": name, "user": not known, "fields": fields}
    _refuse(cls.__name__, at)


def _pack_array(value: Any, at: Trail, arrays: dict[str, np.ndarray]) -> Any:
    dtype = value.dtype.name
    if isinstance(value, np.str_):
        return str(value)
    if value.ndim == 1 and value.dtype.kind in "UO" and all(isinstance(v, str) for v in value):
        return {"strings": value.tolist(), "dtype": "object" if dtype == "object" else "str"}
    if dtype not in DTYPES:
        _refuse(f"{type(value).__name__} of {dtype}", at)
    # safetensors writes memory as it lies, so the numbers have to lie in order.
    arrays[".".join(at)] = np.asarray(value, dtype, order="C")
    home = "scalar" if isinstance(value, np.generic) else "numpy"
    home = "jax" if isinstance(value, jax.Array) else home
    return {"array": home, "dtype": dtype, "shape": list(value.shape)}


def _refuse(what: str, at: Trail) -> NoReturn:
    raise InputError(
        f"{'.'.join(at) or 'the content'} is a {what}, which a model file cannot hold; use "
        "modules, named tuples, tuples, lists, dicts by name, strings, numbers and arrays of them."
    )


def unpack(
    spec: object, arrays: Arrays, classes: Sequence[type] = (), *, source: str = "the file"
) -> Any:
    """Put together what `pack` took apart; errors speak of `source`.

    `classes` are those of the tree that are not part of nashgp. Device arrays come back on the
    default device in their own precision, whatever JAX is set to.
    """
    for cls in classes:
        if _fields(cls) is None:
            raise InputError(
                f"classes holds {cls!r}; pass modules, dataclasses or named tuples that a saved "
                "model is made of."
            )
    reader = _Reader(source, dict(arrays), {_qualified(cls): cls for cls in classes})
    value = reader.value(spec, ())
    if reader.arrays:
        reader.damaged(f"nothing needs the array {min(reader.arrays)!r}")
    return value


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Walks a spec and takes away the arrays it meets, so that none of them serves twice."""

    source: str
    arrays: dict[str, np.ndarray]
    classes: dict[str, type]

    def value(self, spec: object, at: Trail) -> Any:
        if len(at) > MAX_DEPTH:
            self.damaged(f"it is deeper than {MAX_DEPTH} levels")
        match spec:
            case None | bool() | int() | float() | str():
                return spec
            case list(items):
                return [self.value(item, (*at, str(i))) for i, item in enumerate(items)]
            case {"tuple": list(items)}:
                return tuple(self.value(items, at))
            case {"dict": dict(items)}:
                return {key: self.value(item, (*at, _part(key))) for key, item in items.items()}
            case {"float": "inf" | "-inf" | "nan" as text}:
                return float(text)
            case {"strings": list(items), "dtype": "str" | "object" as dtype} if all(
                isinstance(item, str) for item in items
            ):
                return np.array(items, dtype)
            case {"array": "jax" | "numpy" | "scalar" as home, "dtype": dtype, "shape": shape}:
                return self.array(home, (dtype, shape), ".".join(at))
            case {"class": str(name), "user": bool(user), "fields": dict(fields)}:
                return self.instance(self.find(name, user), fields, at)
        self.damaged(f"it makes no sense at {'.'.join(at)!r}")

    def array(self, home: str, law: tuple[object, object], name: str) -> Any:
        array = self.arrays.pop(name, None)
        if array is None:
            self.damaged(f"the array {name!r} is missing")
        if law != (array.dtype.name, list(array.shape)):
            self.damaged(f"the array {name!r} has the wrong type or shape")
        if home == "jax":
            with scope(array.dtype):
                return jnp.array(array)
        return array[()] if home == "scalar" else array

    def find(self, name: str, user: bool) -> type:
        known = self.classes if user else CLASSES
        if name not in known:
            passed = f"pass it as load(path, classes=[{name.rpartition('.')[2]}])"
            raise InputError(
                f"{self.source} uses the class {name!r}, which nashgp does not know; "
                f"{passed if user else 'upgrade nashgp'}."
            )
        return known[name]

    def instance(self, cls: type, fields: dict[str, object], at: Trail) -> Any:
        names, newer = _fields(cls) or (), _defaults(cls)
        if not set(names) - newer.keys() <= fields.keys() <= set(names):
            self.damaged(f"{'.'.join(at)!r} lacks a field of {cls.__name__} or has one too many")
        values = {
            name: self.value(fields[name], (*at, name)) if name in fields else newer[name]
            for name in names
        }
        if issubclass(cls, tuple):
            return tuple.__new__(cls, values.values())
        instance = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(instance, name, value)  # the class is frozen for everybody else
        return instance

    def damaged(self, reason: str) -> NoReturn:
        raise InputError(
            f"{self.source} is damaged or from an incompatible nashgp: {reason}; "
            "get an intact copy, or save the model again."
        )


def write(path: FilePath, kind: str, content: object) -> None:
    """Save a tree under a kind such as "regressor"; an old file is replaced whole or kept."""
    spec, arrays = pack(content)
    header = {"format": FORMAT, "version": version("nashgp"), "kind": kind, "content": spec}
    text = json.dumps(header, allow_nan=False)
    replace(
        path, safetensors.numpy.save(arrays, {"nashgp": text, "sha256": _checksum(text, arrays)})
    )


def replace(path: FilePath, data: bytes) -> None:
    """Write bytes to a file that is at every moment the old one or the new one, and whole."""
    target = os.path.realpath(path)
    if os.path.isdir(target):
        raise InputError(f"{path} is a folder; name a file in it.")
    # In the same folder: only within a file system does a rename happen all at once.
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); "
            "choose a folder that exists, has room and lets you write."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def sweep(path: FilePath) -> None:
    """Remove what a process that was killed while it wrote this file has left beside it."""
    folder, name = os.path.split(os.path.realpath(path))
    for left in glob.glob(os.path.join(glob.escape(folder), f".{glob.escape(name)}.*.tmp")):
        with contextlib.suppress(OSError):
            os.unlink(left)


def fingerprint(value: object) -> str:
    """A checksum of a tree that `write` could save: equal for equal content."""
    spec, arrays = pack(value)
    return _checksum(json.dumps(spec, sort_keys=True), arrays)


def read(path: FilePath, kind: str | None = None, classes: Sequence[type] = ()) -> tuple[str, Any]:
    """Kind and content of a file of `write`; with `kind`, refuse a file of another kind."""
    text, checksum, arrays = _open(path)
    damaged = InputError(f"{path} is damaged; get an intact copy, or save the model again.")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise damaged from None
    match header:
        case {"format": int(number)} if number > FORMAT:
            raise InputError(
                f"{path} was written by a newer nashgp (format {number}, this one reads {FORMAT}); "
                "upgrade nashgp."
            )
        case {"format": 1, "kind": str(found), "content": spec}:
            if checksum != _checksum(text, arrays):
                raise damaged
        case _:
            raise damaged
    if kind is not None and found != kind:
        raise InputError(f"{path} holds a {found}, not a {kind}; name a file that holds a {kind}.")
    return found, unpack(spec, arrays, classes, source=os.fspath(path))


def _open(path: FilePath) -> tuple[str, str | None, dict[str, np.ndarray]]:
    """The text, the checksum and the arrays of a file that `write` seems to have written."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; name a model file in it.")
    if not os.path.isfile(path):
        raise InputError(f"{path} does not exist; check the name.")
    try:
        # Opened by Python too, because safetensors calls a file without permission a missing one.
        with open(path, "rb"), safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in list(file.keys())}
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path} cannot be read ({reason}); check its permissions.") from error
    except Exception as error:  # whatever the parser makes of a file that is none of its own
        raise InputError(
            f"{path} is damaged or no model file; get an intact copy, or name another file."
        ) from error
    if "nashgp" not in metadata:
        raise InputError(f"{path} was not written by nashgp; name a file that was.")
    return metadata["nashgp"], metadata.get("sha256"), arrays


def _checksum(text: str, arrays: Arrays) -> str:
    """Of the text, which tells names, types and shapes, and of the arrays in order of name."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
