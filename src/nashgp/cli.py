"""The command `nashgp`: fit and predict tables, data sets, experiments.

Whatever takes long to import is imported by the command that needs it, so help comes at once.
"""

import argparse
import contextlib
import difflib
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nashgp
from nashgp.errors import InputError, NashGPError
from nashgp.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]  # of the source repository, if this is a checkout of it
SUFFIXES = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t", ".parquet": None}
NO_PARQUET = "Parquet needs the package pyarrow; run `pip install 'nashgp[parquet]'`."

Frame = Any
"""A pandas data frame; only the commands that read one import pandas."""


class Option(NamedTuple):
    """A setting of the estimator, as an option of `fit`."""

    kind: Callable[[str], Any]
    default: Any
    help: str


def number_or_auto(kind: Callable[[str], Any], *words: str) -> Callable[[str], Any]:
    """A reader of numbers that lets "auto" pass, and other words."""

    def number(text: str) -> Any:
        return text if text in ("auto", *words) else kind(text)

    return number


# The arguments of `DeepGPRegressor` that a command line can hold; a test compares the two.
OPTIONS = {
    "engine": Option(str, "ipvi", "how the posterior is found: ipvi, dsvi, sghmc"),
    "game": Option(str, "anchored", "game of an implicit posterior: anchored, paper"),
    "num_layers": Option(number_or_auto(int), None, "depth; else 2; auto tries 1 to 3"),
    "hidden": Option(str, "gp", "hidden layers: gp, or learned for images and other wide inputs"),
    "hidden_dim": Option(int, None, "width of the hidden layers; else that of the inputs"),
    "num_inducing": Option(
        number_or_auto(int, "distinct"), "auto", "inducing inputs of each layer, auto, or distinct"
    ),
    "kernel": Option(str, "rbf+matern32", "rbf, matern12, matern32, matern52, or a sum"),
    "likelihood": Option(
        str, "auto", "auto, gaussian, heteroscedastic, student-t, poisson, robust-max, softmax"
    ),
    "covariance": Option(str, "auto", "of the outputs of a hidden layer: auto, full, shared"),
    "num_steps": Option(int, None, "training steps; else 500 to 15000, by engine"),
    "batch_size": Option(int, None, "rows of a step; else all while that is cheap"),
    "num_samples": Option(int, None, "posterior draws in each step; else 1, in a game 10"),
    "last_layer": Option(str, "auto", "auto, collapsed, natural, gradient, sampled"),
    "power": Option(number_or_auto(float), "auto", "power of the data term, 0 to 1, or auto"),
    "learning_rate": Option(float, None, "step size of Adam; else 0.03, in a game 0.025"),
    "validation_fraction": Option(float, 0.0, "share of rows held out to decide when to stop"),
    "num_restarts": Option(number_or_auto(int), "auto", "models that are averaged, or auto"),
    "num_mixture": Option(int, 100, "posterior draws that make up a prediction"),
    "allow_missing": Option(bool, False, "an empty target is missing, not a mistake"),
    "dtype": Option(str, "float64", "float64, float32 for speed, or auto"),
    "random_state": Option(int, 0, "seed: the same seed gives the same model"),
}
# Those of `DeepGPClassifier`.
CLASS_OPTIONS = OPTIONS | {
    "class_weight": Option(str, None, "balanced: every class counts the same in total")
}


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 after a mistake, 2 after a wrong option, or 130."""
    parser = _parser()
    options, rest = parser.parse_known_args(args)
    if rest and options.command is not bench:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = [*getattr(options, "rest", ()), *rest]
    try:
        code = options.command(options)
        sys.stdout.flush()
        return code
    except NashGPError as error:
        print(f"nashgp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("nashgp: interrupted; nothing unfinished was kept.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


# ---- fit and predict ------------------------------------------------------------------------


def fit(options: argparse.Namespace) -> int:
    """Learn from the rows of a table and save the model."""
    _keep_programs()
    _check_writable(options.out, *filter(None, (options.table, options.checkpoint, options.resume)))
    frame = _read(options.table)
    inputs, targets, weights = _roles(frame, options)
    weight = _numbers(frame, weights)[:, 0] if weights else None
    began = time.perf_counter()
    if _are_classes(frame, options):
        y, settings, kind = frame[targets[0]].to_numpy(), CLASS_OPTIONS, nashgp.DeepGPClassifier
    else:
        y, settings, kind = _numbers(frame, targets), OPTIONS, nashgp.DeepGPRegressor
        y = y[:, 0] if len(targets) == 1 else y
    estimator = kind(
        **{name: getattr(options, name) for name in settings},
        progress=sys.stderr.isatty() and not options.no_progress,
    )
    with _as_options():
        estimator.fit(
            frame[inputs],
            y,
            weight,
            checkpoint=options.checkpoint,
            resume=options.resume,
            checkpoint_seconds=options.checkpoint_seconds,
        )
    interrupted, num_steps = estimator.history_.interrupted, estimator.num_steps_
    if interrupted and num_steps == 0:
        raise KeyboardInterrupt
    vars(estimator).update(target_names_=targets)
    estimator.save(options.out)

    print(estimator.summary())
    if constant := [name for name, kept in zip(inputs, estimator.kept_, strict=True) if not kept]:
        print(f"constant columns, not used: {', '.join(constant)}")
    used = len(frame) if weight is None else int((weight > 0.0).sum())
    print(f"{used} rows, {num_steps} steps, {time.perf_counter() - began:.1f} seconds")
    if interrupted:
        print(f"interrupted after {num_steps} steps; saved what is done")
        if checkpoint := options.checkpoint or options.resume:
            print(f"add --resume {checkpoint} to go on")
    print(f"saved to {options.out}")
    return 0


def _roles(frame: Frame, options: argparse.Namespace) -> tuple[list[str], list[str], list[str]]:
    """The columns to learn from, those to predict, and the weight if there is one."""
    targets = list(dict.fromkeys(options.target))
    weights = [options.weight] if options.weight else []
    roles = {"--target": targets, "--ignore": set(options.ignore), "--weight": weights}
    for argument, names in roles.items():
        _check_columns(frame, names, options.table, argument)
    apart = [name for names in roles.values() for name in names]
    for name in apart:
        if apart.count(name) > 1:
            raise InputError(
                f"Column {name!r} is named twice; it can be only one of {', '.join(roles)}."
            )
    inputs = [name for name in frame.columns if name not in apart]
    if not inputs:
        raise InputError(f"TABLE {options.table} has no input columns beside those; ignore fewer.")
    numbers = [] if _are_classes(frame, options) else targets
    _check_numbers(frame, [*inputs, *numbers, *weights], options.table)
    return inputs, targets, weights


def _are_classes(frame: Frame, options: argparse.Namespace) -> bool:
    """Whether the target is a class: because it is said, or because it is no number."""
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    def is_class(name: str) -> bool:
        dtype = frame[name].dtype
        return is_bool_dtype(dtype) or not (
            is_numeric_dtype(dtype) or is_datetime64_any_dtype(dtype)
        )

    if not options.classify and not any(map(is_class, options.target)):
        if options.class_weight is not None:
            raise InputError(
                "--class-weight is for classes and the target is a number; add --classify."
            )
        return False
    if len(set(options.target)) > 1:
        raise InputError("--target names several columns, and classes are one; name one column.")
    return True


def _keep_programs() -> None:
    """Let JAX keep compiled programs for the next command: they are most of a short fit's time.

    JAX reads the folder from the environment when it is imported, so a caller who has it already,
    or has named a folder, keeps what was chosen. Studies do without: their seconds would depend on
    what ran before.
    """
    if "jax" not in sys.modules:
        from nashgp.datasets import cache

        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache() / "programs"))


def predict(options: argparse.Namespace) -> int:
    """Predict the rows of a table with a saved model."""
    _keep_programs()
    if options.out is not None:
        _separator(options.out, "--out")
        _check_writable(options.out, options.table, options.model)
    model = nashgp.load(options.model)
    if isinstance(model, nashgp.DeepGPLVM):
        raise InputError(f"{options.model} holds a map of rows and no targets; use it in Python.")
    inputs, targets = list(getattr(model, "feature_names_in_", [])), _target_names(model)
    if not inputs:
        raise InputError(
            f"{options.model} learned from an array without column names; fit it with "
            "`nashgp fit`, or on a data frame."
        )
    frame = _read(options.table)
    scored = targets if options.density else []
    _check_columns(frame, inputs + scored, options.table, "the model's")
    if isinstance(model, nashgp.DeepGPClassifier):
        _check_numbers(frame, inputs, options.table)
        made = _class_predictions(model, frame, targets[0], options)
    else:
        _check_numbers(frame, inputs + scored, options.table)
        with _as_options():
            made = _predictions(model, frame, targets, options)
    _write(made, options.out)
    return 0


def _target_names(model: Any) -> list[str]:
    """The names that `fit` stored, or numbered ones for a model fitted in Python."""
    count = len(model.scaling_.y_scale)
    names = ["y"] if count == 1 else [f"y{number}" for number in range(1, count + 1)]
    return getattr(model, "target_names_", names)


def _predictions(
    model: Any, frame: Frame, targets: list[str], options: argparse.Namespace
) -> Frame:
    """One row for each row of the table, the columns of each target side by side."""
    import pandas as pd

    rows = frame[list(model.feature_names_in_)]
    size = (len(rows), len(targets))
    mean, std = (part.reshape(size) for part in model.predict(rows, return_std=True))
    parts = {"mean": mean, "std": std}
    if options.quantiles:
        levels = model.predict_quantiles(rows, options.quantiles).reshape(*size, -1)
        parts |= {f"q{q:g}": levels[..., i] for i, q in enumerate(options.quantiles)}
    if options.interval is not None:
        ends = model.predict_interval(rows, options.interval).reshape(*size, 2)
        parts |= {"lower": ends[..., 0], "upper": ends[..., 1]}
    columns = {
        f"{target}_{part}": values[:, number]
        for number, target in enumerate(targets)
        for part, values in parts.items()
    }
    if options.density:
        columns["log_density"] = model.log_density(rows, _numbers(frame, targets))
    return pd.DataFrame(columns, index=frame.index)


def _class_predictions(model: Any, frame: Frame, target: str, options: argparse.Namespace) -> Frame:
    """The most probable class of each row of the table, and the probability of each class."""
    import pandas as pd

    if options.quantiles or options.interval is not None:
        raise InputError("--quantiles and --interval are for numbers, not for classes; drop them.")
    rows = frame[list(model.feature_names_in_)]
    probability = model.predict_proba(rows)
    columns = {f"{target}_class": model.classes_[probability.argmax(axis=1)]}
    pairs = zip(model.classes_, probability.T, strict=True)
    columns |= {f"{target}_p_{label}": values for label, values in pairs}
    if options.density:
        columns["log_density"] = model.log_density(rows, frame[target].to_numpy())
    return pd.DataFrame(columns, index=frame.index)


# ---- tables ---------------------------------------------------------------------------------


def _separator(path: Path, argument: str) -> str | None:
    """What stands between two values of a table with this name; None for Parquet."""
    for suffix, separator in SUFFIXES.items():
        if path.name.lower().endswith(suffix):
            return separator
    raise InputError(f"{argument} {path} is no kind of table; use {', '.join(SUFFIXES)}.")


def _read(path: Path) -> Frame:
    """A table with at least one row and names of columns that are strings."""
    import pandas as pd

    separator = _separator(path, "TABLE")
    if not path.is_file():
        raise InputError(f"TABLE {path} is no file; check the path.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a header that is too short
            frame = (
                pd.read_csv(path, sep=separator, index_col=False)
                if separator
                else pd.read_parquet(path)
            )
    except ImportError as error:
        raise InputError(NO_PARQUET) from error
    except Exception as error:  # pandas, pyarrow and gzip have many for what they cannot read
        sentence = " ".join(str(error).split())
        raise InputError(f"TABLE {path} cannot be read ({sentence}); mend the file.") from error
    if frame.empty:
        raise InputError(f"TABLE {path} has no rows; pass a table with some.")
    return frame.set_axis(frame.columns.map(str), axis=1)


def _write(frame: Frame, path: Path | None) -> None:
    """A table as a file, whole or not at all; without a path, as CSV on standard output."""
    import pandas as pd

    from nashgp.datasets import whole_file

    numbered = frame.index.name is None and frame.index.equals(pd.RangeIndex(len(frame)))
    index = not numbered  # row numbers are not worth a column
    if path is None:
        frame.to_csv(sys.stdout, index=index)
        return
    separator = _separator(path, "--out")
    try:
        with whole_file(path) as partial:
            if separator:
                frame.to_csv(partial, sep=separator, index=index)
            else:
                frame.to_parquet(partial)
    except ImportError as error:
        raise InputError(NO_PARQUET) from error
    except OSError as error:
        raise InputError(
            f"--out {path} cannot be written ({error.strerror}); choose another place."
        ) from error
    print(f"{len(frame)} rows written to {path}")


def _check_writable(path: Path, *sources: Path) -> None:
    """Whether a file can be made there, found out before the work and not after it."""
    if path.is_dir():
        raise InputError(f"--out {path} is a folder; name a file in it.")
    if path.resolve() in [source.resolve() for source in sources]:
        raise InputError(f"--out {path} would replace what is read; name another file.")
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise InputError(
            f"--out {path} cannot be written ({error.strerror}); choose a folder that exists and "
            "lets you write."
        ) from error


def _check_columns(frame: Frame, names: Iterable[str], path: Path, argument: str) -> None:
    known = list(frame.columns)
    absent = [name for name in names if name not in known]
    if absent:
        near = [each for name in absent for each in difflib.get_close_matches(name, known)]
        hint = f"did you mean {', '.join(map(repr, dict.fromkeys(near)))}?" if near else ""
        shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        raise InputError(
            f"{argument} column {', '.join(map(repr, absent))} is not in TABLE {path}; "
            f"{hint or f'it has {shown}.'}"
        )


def _numbers(frame: Frame, names: list[str]) -> Any:
    """Columns as an array of floats, NaN where a value is missing."""
    return frame[names].to_numpy("float64", na_value=float("nan"))


def _check_numbers(frame: Frame, names: list[str], path: Path) -> None:
    from pandas.api.types import is_numeric_dtype

    text = [name for name in names if not is_numeric_dtype(frame[name].dtype)]
    if text:
        raise InputError(
            f"TABLE {path} holds text or dates in column {', '.join(map(repr, text))}; encode it "
            "as numbers, or leave it out: in `nashgp fit` use --ignore COLUMN."
        )


@contextlib.contextmanager
def _as_options():
    """Errors of the estimator in the words of the command line: `--num-steps` for `num_steps`."""

    def rename(match: re.Match[str]) -> str:
        name = match[1]
        return "--weight" if name == "sample_weight" else f"--{name.replace('_', '-')}"

    names = [*CLASS_OPTIONS, "sample_weight", "checkpoint_seconds"]
    long = "|".join(name for name in names if "_" in name)  # no such word in plain English
    try:
        yield
    except InputError as error:
        sentence = re.sub(rf"\b({long})\b(=True)?", rename, str(error))
        sentence = re.sub(rf"^({'|'.join(names)})\b", rename, sentence)
        raise InputError(sentence) from error


# ---- data, experiments, benchmark -----------------------------------------------------------


def data(options: argparse.Namespace) -> int:
    """List the data sets, fetch some, or say where they are looked for."""
    from nashgp import datasets

    if options.action == "fetch":
        for name in options.names:
            print(datasets.fetch(name, options.to, sys.stderr.isatty()), flush=True)
        if options.to:
            print(f"set {datasets.FOLDER}={options.to.resolve()} to use them")
    elif options.action == "path":
        print(*datasets.folders(), sep="\n")
    else:
        print(f"{'name':12} {'rows':>6} {'columns':>7} {'splits':>6}  where")
        for name, source in (datasets.SOURCES | datasets.IMAGES).items():
            rows, columns, splits = source.size
            where = datasets.find(name) or "missing"
            print(f"{name:12} {rows:6d} {columns:7d} {splits:6d}  {where}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run an experiment with its own options, or list the experiments."""
    if options.list or options.experiment is None:
        for name, path in EXPERIMENTS.items():
            print(f"{name:10} {_headline(importlib.import_module(path))}")
        return 0
    module = importlib.import_module(EXPERIMENTS[options.experiment])
    parser = argparse.ArgumentParser(
        prog=f"nashgp run {options.experiment}", description=_headline(module)
    )
    module.add_arguments(parser)
    return module.main(parser.parse_args(options.rest))


def _headline(module: Any) -> str:
    return module.__doc__.partition("\n")[0]


def report(options: argparse.Namespace) -> int:
    """Write the saved results of the demo or of studies as one page, fitting nothing."""
    if not options.results.is_dir():
        raise InputError(
            f"--results {options.results} is no folder; run `nashgp run demo` first, or name one."
        )
    _check_writable(options.out)
    try:
        from nashgp.experiments.report import write

        print(write(options.results, options.out))
    except ModuleNotFoundError as error:
        raise InputError(
            f"A report needs the package {error.name}; run `pip install 'nashgp[report]'`."
        ) from error
    return 0


def bench(options: argparse.Namespace) -> int:
    """Run the benchmark of the source repository, with its own options."""
    if not (ROOT / "bench" / "run.py").is_file():
        raise InputError(
            "The benchmark lives in the source repository; get a copy of it and run `make bench`."
        )
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", "bench.run", *options.rest]  # -P: not one in this folder
    return subprocess.call(command, env=os.environ | {"PYTHONPATH": paths})


# ---- options --------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "nashgp", description="Deep Gaussian processes for the rows of a table."
    )
    parser.add_argument("--version", action="version", version=f"nashgp {nashgp.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(command: Callable[..., int], example: str, **settings: Any) -> argparse.ArgumentParser:
        text = (command.__doc__ or "").strip()
        made = commands.add_parser(
            command.__name__,
            help=text[0].lower() + text[1:].rstrip("."),
            description=text,
            epilog=f"example: {example}",
            allow_abbrev=False,
            **settings,
        )
        made.set_defaults(command=command)
        return made

    _fit_options(add(fit, "nashgp fit houses.csv --target price --ignore id --out houses.gp"))
    _predict_options(
        add(predict, "nashgp predict houses.gp new.csv --interval 0.9 --out prices.csv")
    )
    _data_options(add(data, "nashgp data fetch boston energy"))
    made = add(run, "nashgp run dsvi-uci --quick")
    made.add_argument("experiment", nargs="?", choices=EXPERIMENTS, help="one of %(choices)s")
    made.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="its own options")
    made.add_argument("--list", action="store_true", help="list the experiments")
    made = add(report, "nashgp report --results results --out report.html")
    made.add_argument(
        "--results",
        type=Path,
        default=Path("demo/results"),
        metavar="FOLDER",
        help="what `nashgp run` saved: of the demo, of one study or of several (%(default)s)",
    )
    made.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="(%(default)s)"
    )
    add(bench, "nashgp bench --quick", add_help=False)
    return parser


def _fit_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "nashgp fit TABLE --target Y [Y ...] --out MODEL [options]"
    _table_argument(parser)
    parser.add_argument(
        "--target", nargs="+", required=True, metavar="Y", help="columns to predict"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="file to write")
    parser.add_argument(
        "--ignore", nargs="+", default=[], metavar="COL", help="columns not to learn from"
    )
    parser.add_argument(
        "--classify", action="store_true", help="the target is a class, as text always is"
    )
    parser.add_argument("--weight", metavar="COL", help="column: how many times each row counts")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="where to note now and then what is done"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="go on from such a file, and keep writing it"
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        metavar="X",
        help="time between two checkpoints (%(default)s)",
    )
    group = parser.add_argument_group("settings of the model")
    for name, option in CLASS_OPTIONS.items():
        flag = f"--{name.replace('_', '-')}"
        if option.kind is bool:
            group.add_argument(flag, action="store_true", help=option.help)
        else:
            shown = "" if option.default is None else " (%(default)s)"
            kind, default = option.kind, option.default
            metavar = {float: "X", str: "NAME"}.get(kind, "N")
            group.add_argument(
                flag, type=kind, default=default, metavar=metavar, help=option.help + shown
            )


def _predict_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "nashgp predict MODEL TABLE [options]"
    parser.add_argument("model", type=Path, metavar="MODEL", help="a file that `fit` wrote")
    _table_argument(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="table to write; else CSV is printed"
    )
    parser.add_argument(
        "--quantiles",
        nargs="+",
        type=_probability,
        default=[],
        metavar="Q",
        help="quantiles, for example 0.05 0.5 0.95",
    )
    parser.add_argument(
        "--interval", type=_probability, metavar="P", help="central interval, for example 0.9"
    )
    parser.add_argument(
        "--density", action="store_true", help="log density of the targets in the table"
    )


def _data_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(metavar="[ACTION]", dest="action")
    actions.add_parser("list", help="the known sets and where they are (also without ACTION)")
    fetch = actions.add_parser("fetch", help="download sets from their public home")
    fetch.add_argument("names", nargs="+", metavar="NAME")
    fetch.add_argument("--to", type=Path, metavar="FOLDER", help="instead of the cache")
    actions.add_parser("path", help="the folders where sets are looked for, in order")


def _table_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", type=Path, metavar="TABLE", help=f"rows: {', '.join(SUFFIXES)}")


def _probability(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not strictly between 0 and 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
