"""Folders of saved studies as they are found: who was compared on what, what failed, what lacks."""

import dataclasses
import functools
import importlib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from nashgp.experiments import EXPERIMENTS, cells, comparing, published

BESIDE = ("nashgp.experiments.chains",)  # studies that another one runs
PAIRED = {"MLL": "mll", "RMSE": "rmse", "CRPS": "crps", "ELBO": "elbo", "SW": "sliced_excess"}
PLACES = ("set", "split", "protocol")  # where a method is tried, and no part of its name

Record = Mapping[str, Any]
Pair = tuple[float, float]


class Row(NamedTuple):
    """One method on one set; a published one has a source, and no cells of ours."""

    method: str
    scores: Mapping[str, Pair]
    done: int = 0
    failed: int = 0
    source: str = ""


class Difference(NamedTuple):
    """A method minus its base on one set: the splits of both, and the score of each kind."""

    set: str
    method: str
    base: str
    num: int
    scores: Mapping[str, Pair]


class Failure(NamedTuple):
    """A cell without scores, and why in one line."""

    study: str
    where: str
    why: str


@dataclasses.dataclass(frozen=True)
class Saved:
    """One folder: the module of its study if that is known, and its records by their files."""

    name: str
    folder: Path
    module: ModuleType | None
    records: Mapping[str, Record]

    @property
    def study(self) -> cells.Study | None:
        return self.module.STUDY if self.module else None

    @functools.cached_property
    def done(self) -> list[Record]:
        """Records with scores, in the order of the study's settings."""
        return sorted((r for r in self.records.values() if not why_failed(r)), key=self.order)

    @functools.cached_property
    def failed(self) -> list[Record]:
        return sorted((r for r in self.records.values() if why_failed(r)), key=self.order)

    @property
    def failures(self) -> list[Failure]:
        """Why each failed cell failed."""
        return [Failure(self.name, self._where(r["cell"]), why_failed(r)) for r in self.failed]

    def _where(self, cell: Mapping[str, Any]) -> str:
        if not cell:
            return "a file"
        of = " ".join(str(cell[name]) for name in ("protocol", "set") if name in cell)
        return f"{of} split {cell.get('split')}, {self.method(cell)}"

    @functools.cached_property
    def planned(self) -> set[str] | None:
        """The files of the study's plan, or of its quick grid in a folder that is called so."""
        if self.study is None:
            return None
        quick = self.name.endswith("_quick")
        cells = self.study.grid(self.study.quick) if quick else self.study.planned()
        return {cell.path(self.folder).name for cell in cells}

    @property
    def missing(self) -> int | None:
        """How many cells of the plan have no file."""
        return None if self.planned is None else len(self.planned - self.records.keys())

    @property
    def outside(self) -> int:
        """How many cells are not of the plan."""
        return len(self.records.keys() - self.planned) if self.planned is not None else 0

    @property
    def hours(self) -> float:
        seconds = (r.get("seconds", r.get("scores", {}).get("seconds", 0.0)) for r in self.done)
        return sum(seconds) / 3_600

    def values(self, key: str) -> list[Any]:
        """What the records say of a thing, each answer once; None is no answer."""
        found = [record.get(key) for record in self.records.values() if record["cell"]]
        return [value for i, value in enumerate(found) if value not in found[:i]]

    @functools.cached_property
    def _naming(self) -> list[str]:
        """The settings that tell methods apart: the study's own, and whatever else differs."""
        of = [record["cell"] for record in self.records.values() if record["cell"]]
        names = dict.fromkeys(name for cell in of for name in cell if name not in PLACES)
        axes = self.study.axes if self.study else ()
        return [n for n in names if n in axes or any(c.get(n) != of[0].get(n) for c in of)]

    def method(self, cell: Mapping[str, Any]) -> str:
        """A name that no other settings in the folder share."""
        label = getattr(self.module, "label", None)
        axes = self.study.axes if label and self.study else ()
        parts = [label(cell)] if label else []
        parts += [_named(n, cell[n]) for n in self._naming if n in cell and n not in axes]
        return " ".join(parts) or (self.study.name if self.study else "all")

    def order(self, record: Record) -> tuple:
        """The place of a cell in the study's lists, then the settings themselves."""
        cell, full = record["cell"], self.study.full if self.study else {}

        def place(name: str) -> tuple:
            listed = full.get(cells.plural(name), [])
            value = cell.get(name)
            number = value if isinstance(value, int | float) else 0
            return listed.index(value) if value in listed else len(listed), number, str(value)

        return tuple(place(name) for name in ("set", *self._naming, "split"))

    @functools.cached_property
    def parts(self) -> list["Part"]:
        """What can be compared: the records of each part of the study, the usual one first."""
        part = self.study.part if self.study else cells.protocol
        kinds: dict[str, list[Record]] = {}
        for record in (*self.done, *self.failed):
            if record["cell"]:
                kinds.setdefault(part(record["cell"]), []).append(record)
        order = sorted(kinds, key=lambda kind: (kind != "standard", kind))
        return [Part(kind, self, kinds[kind]) for kind in order]


@dataclasses.dataclass(frozen=True)
class Part:
    """The records of a study that can be compared with each other."""

    name: str
    saved: Saved
    every: Sequence[Record]

    @functools.cached_property
    def records(self) -> list[Record]:
        """Those with scores."""
        return [record for record in self.every if not why_failed(record)]

    @functools.cached_property
    def found(self) -> dict[str, dict[str, dict[int, Mapping[str, Any]]]]:
        """Scores by set, method and split."""
        found: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}
        for record in self.records:
            cell = record["cell"]
            of_set = found.setdefault(cell["set"], {})
            of_set.setdefault(self.saved.method(cell), {})[cell["split"]] = record["scores"]
        return found

    @functools.cached_property
    def methods(self) -> dict[str, Mapping[str, Any]]:
        """Each method with the settings of one of its cells, in the order of the settings."""
        ordered = sorted(self.every, key=lambda record: self.saved.order(record)[1:])
        return {self.saved.method(record["cell"]): record["cell"] for record in ordered}

    @property
    def sets(self) -> list[str]:
        return list(dict.fromkeys(record["cell"]["set"] for record in self.every))

    @property
    def is_benchmark(self) -> bool:
        """Whether test log densities of known sets can be ranked."""
        return all(name in published.SETS for name in self.found) and bool(self.of("mll"))

    def of(self, key: str) -> dict[str, dict[str, dict[int, float]]]:
        """One score by set, method and split, where it is."""
        found = {
            name: {
                method: {split: scores[key] for split, scores in splits.items()}
                for method, splits in methods.items()
                if all(_is_number(scores.get(key)) for scores in splits.values())
            }
            for name, methods in self.found.items()
        }
        return {name: methods for name, methods in found.items() if methods}

    @functools.cached_property
    def columns(self) -> dict[str, str]:
        """Headings of the scores that some record has, and their keys."""
        there = {
            key for record in self.records for key, v in record["scores"].items() if _is_number(v)
        }
        return {head: key for head, key in cells.COLUMNS.items() if key in there}

    def rows(self, name: str) -> Iterator[Row]:
        """The table of a set: our methods, then published ones that have a column."""
        tried = {(r["cell"]["set"], self.saved.method(r["cell"])) for r in self.every}
        for method in self.methods:
            splits, scores = self.found.get(name, {}).get(method, {}), {}
            for key in self.columns.values():
                values = [s[key] for s in splits.values() if _is_number(s.get(key))]
                if values and key == "seconds":  # a machine that paused says nothing of a method
                    scores[key] = statistics.median(values), math.nan
                elif values:
                    scores[key] = cells.mean_and_error(values)
            if (name, method) in tried:
                yield Row(method, scores, len(splits), self._failed(name, method))
        for row in published.rows(name) if self.name != "extrapolation" else ():
            scores = {key: row.scores[key] for key in self.columns.values() if key in row.scores}
            if scores:
                yield Row(row.name, scores, source=row.source)

    def _failed(self, name: str, method: str) -> int:
        of = [record["cell"] for record in self.every if why_failed(record)]
        return sum((cell["set"], self.saved.method(cell)) == (name, method) for cell in of)

    @functools.cached_property
    def differences(self) -> list[Difference]:
        """Every method minus the base that its study names, on the splits that both have."""
        settings = self.saved.study.base if self.saved.study else None
        if settings is None:
            return []
        keys = {h: key for h, key in PAIRED.items() if key in self.columns.values()}
        rows = []
        for name in self.found:
            for method, cell in self.methods.items():
                base = self.saved.method({**cell, **settings})
                apart = {
                    key: comparing.paired(of.get(method, {}), of.get(base, {}))
                    for key in keys.values()
                    if (of := self.of(key).get(name, {})) and method != base
                }
                apart = {key: values for key, values in apart.items() if values}
                if apart:
                    num = max(map(len, apart.values()))
                    means = {key: cells.mean_and_error(values) for key, values in apart.items()}
                    rows.append(Difference(name, method, base, num, means))
        return rows


def find(results: Path) -> list[Saved]:
    """Every study in a folder or below it, in the order of `EXPERIMENTS`.

    A folder of one study is a study too.
    """
    modules = [*EXPERIMENTS.values(), *BESIDE]
    loaded = [importlib.import_module(name) for name in modules]
    known = {module.STUDY.name: module for module in loaded if hasattr(module, "STUDY")}
    found = []
    for folder in sorted({path.parent for path in results.rglob("*.json")}):
        inside = folder.relative_to(results)
        if any(part.startswith(".") for part in inside.parts):
            continue
        records = cells.records(folder)
        if any(record["cell"] for record in records.values()):
            plain = folder.resolve().name.removesuffix("_quick")
            name = folder.resolve().name if folder == results else inside.as_posix()
            module = known.get(plain) or _of_fields(records, known.values())
            found.append(Saved(name, folder, module, records))
    place = {module.__name__: number for number, module in enumerate(loaded)}
    return sorted(found, key=lambda s: place[s.module.__name__] if s.module else len(place))


def absent(found: Sequence[Saved]) -> list[str]:
    """Experiments, as `nashgp run` knows them, of which there is no folder."""
    there = {saved.module.__name__ for saved in found if saved.module}
    return [name for name, module in EXPERIMENTS.items() if module not in there and name != "demo"]


def _of_fields(records: Mapping[str, Record], modules: Any) -> ModuleType | None:
    """The study whose cells have these settings, for a folder with a name of its own."""
    names = next(set(record["cell"]) for record in records.values() if record["cell"])
    for module in modules:
        if names == {field.name for field in dataclasses.fields(module.STUDY.cell)}:
            return module
    return None


def why_failed(record: Record) -> str:
    """One line for a record that cannot be used, nothing for a good one."""
    if "failure" in record:
        return (str(record["failure"]).strip().splitlines() or ["no reason given"])[-1]
    scores = record.get("scores")
    if not isinstance(scores, dict):
        return "neither scores nor a failure are in the file"
    bad = [key for key in PAIRED.values() if key in scores and not _is_number(scores[key])]
    return f"{', '.join(bad)}: not a finite number" if bad else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _named(name: str, value: Any) -> str:
    """A setting in a name: words speak for themselves, numbers do not."""
    words = name.replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"not {words}"
    return value if isinstance(value, str) else f"{words} {value:g}"
