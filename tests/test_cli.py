"""The command line: what it prints and writes, and one sentence for each mistake."""

import contextlib
import inspect
import io
import os
import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pytest

import nashgp
from nashgp import cli, datasets, train
from nashgp.cli import main

SMALL = ["--num-layers", "1", "--num-steps", "20", "--num-inducing", "6", "--num-mixture", "5"]
COLUMNS = ["--target", "y", "--ignore", "id", "--weight", "w", *SMALL]


@pytest.fixture(scope="module")
def rows():
    """Two columns that matter, a constant, a weight, a text and a target."""
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 24))
    return pd.DataFrame(
        {
            "id": [f"row {i}" for i in range(24)],
            "a": a,
            "b": b,
            "always": 3,
            "w": [0.0, *[1.0] * 23],
            "y": 20.0 + 4.0 * np.sin(a) + 0.1 * random.normal(size=24),
        }
    )


@pytest.fixture(scope="module")
def table(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "rows.csv"
    rows.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def fitted(table):
    """A model file and what was printed while it was made."""
    path = table.with_name("model.gp")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["fit", str(table), *COLUMNS, "--out", str(path)]) == 0
    return path, printed.getvalue()


@pytest.fixture
def model(fitted):
    return str(fitted[0])


def refused(capsys, *args: object) -> str:
    """The one line that a refused command prints."""
    assert main([str(arg) for arg in args]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("nashgp: ") and said.err.count("\n") == 1
    return said.err


# ---- fit ------------------------------------------------------------------------------------


def test_options_are_the_arguments_of_the_estimator():
    arguments = inspect.signature(nashgp.DeepGPRegressor.__init__).parameters
    no_option = {"self", "warm_start", "progress", "engine_options"}
    assert list(cli.OPTIONS) == [name for name in arguments if name not in no_option]
    for name, option in cli.OPTIONS.items():
        assert name == "random_state" or option.default == arguments[name].default

    arguments = inspect.signature(nashgp.DeepGPClassifier).parameters
    assert list(cli.CLASS_OPTIONS) == [name for name in arguments if name not in no_option]


def test_fit_says_what_it_did(fitted):
    path, printed = fitted
    assert "lengthscale" in printed and "layer 1: RBF + Matern32, 6 inducing inputs" in printed
    assert "constant columns, not used: always\n23 rows, 20 steps, " in printed
    assert printed.endswith(f"saved to {path}\n")


def test_fit_keeps_the_names_of_columns(model, rows):
    estimator = nashgp.load(model)
    assert estimator.target_names_ == ["y"]
    assert list(estimator.feature_names_in_) == ["a", "b", "always"]
    assert estimator.random_state == 0
    again = nashgp.DeepGPRegressor(
        num_layers=1, num_steps=20, num_inducing=6, num_mixture=5, random_state=0
    ).fit(rows[["a", "b", "always"]], rows["y"], rows["w"])
    np.testing.assert_allclose(
        estimator.predict(rows[["a", "b", "always"]]), again.predict(rows[["a", "b", "always"]])
    )


def test_two_targets_from_parquet_with_missing_values(rows, tmp_path, capsys):
    both = rows.assign(z=-rows["y"]).drop(columns=["id", "w"]).set_index(rows.index + 100)
    both.loc[103, "z"] = np.nan
    both.index.name = "key"
    both.to_parquet(tmp_path / "rows.parquet")
    args = ["fit", tmp_path / "rows.parquet", "--target", "y", "z", *SMALL]
    args += ["--out", tmp_path / "two.gp"]
    assert "set --allow-missing to learn" in refused(capsys, *args)
    assert main([*map(str, args), "--allow-missing"]) == 0
    assert "noise: standard deviation" in capsys.readouterr().out

    out = tmp_path / "out.parquet"
    args = ["predict", tmp_path / "two.gp", tmp_path / "rows.parquet", "--out", out, "--density"]
    assert main([*map(str, args), "--interval", "0.5"]) == 0
    found = pd.read_parquet(out)
    pd.testing.assert_index_equal(found.index, both.index)
    parts = ["mean", "std", "lower", "upper"]
    names = [f"{target}_{part}" for target in "yz" for part in parts]
    assert list(found.columns) == [*names, "log_density"]
    assert np.all(np.isfinite(found))
    assert main([*map(str, args[:3])]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "key,y_mean,y_std,z_mean,z_std"


def interrupt_after(monkeypatch, calls: int) -> None:
    """Press Ctrl-C while the training loop looks at the result of a compiled call."""
    real, seen = train._is_finite, []

    def look(*trees):
        seen.append(None)
        if len(seen) > calls:
            raise KeyboardInterrupt
        return real(*trees)

    monkeypatch.setattr(train, "_is_finite", look)


def test_interrupted_fit_keeps_what_is_done(table, tmp_path, monkeypatch, capsys):
    interrupt_after(monkeypatch, 1)
    out = tmp_path / "model.gp"
    assert main(["fit", str(table), *COLUMNS, "--out", str(out)]) == 0
    assert "interrupted after 1 steps; saved what is done\nsaved to" in capsys.readouterr().out
    assert nashgp.load(out).history_.interrupted


def test_fit_interrupted_before_the_first_step(table, tmp_path, monkeypatch, capsys):
    interrupt_after(monkeypatch, 0)
    assert main(["fit", str(table), *COLUMNS, "--out", str(tmp_path / "model.gp")]) == 130
    assert capsys.readouterr().err == "nashgp: interrupted; nothing unfinished was kept.\n"
    assert list(tmp_path.iterdir()) == []


def test_fit_that_diverges_leaves_no_file(table, tmp_path, capsys):
    wild = ["--learning-rate", "1e200", "--last-layer", "gradient"]
    args = ["fit", table, *COLUMNS, *wild, "--out", tmp_path / "model.gp"]
    assert "layer 1 is not positive definite" in refused(capsys, *args)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--target", "Y"], "--target column 'Y' is not in TABLE"),
        (["--target", "alway"], "did you mean 'always'?"),
        (["--target", "price"], "it has id, a, b, always, w, y."),
        (["--target", "y", "--ignore", "idd"], "--ignore column 'idd'"),
        (["--target", "y", "--weight", "W"], "--weight column 'W'"),
        (["--target", "y", "--ignore", "id", "y"], "'y' is named twice"),
        (["--target", "y"], "text or dates in column 'id'; encode it as numbers, or leave it out"),
        (["--target", "y"], "use --ignore COLUMN"),
        (["--target", "y", "--ignore", "id", "a", "b", "always", "w"], "no input columns"),
        (["--target", "y", "--ignore", "id", "--num-steps", "0"], "--num-steps must be"),
        (["--target", "y", "--ignore", "id", "--kernel", "abc"], "--kernel must be one of rbf,"),
        (
            ["--target", "y", "--ignore", "id", "--engine", "abc"],
            "--engine must be one of ipvi, dsvi",
        ),
        (["--target", "y", "--ignore", "id", "--weight", "b"], "--weight must hold finite numbers"),
        (["--target", "y", "--ignore", "id", "--likelihood", "poisson"], "y"),
    ],
)
def test_fit_refuses(table, tmp_path, capsys, args, sentence):
    said = refused(capsys, "fit", table, *args, "--out", tmp_path / "model.gp")
    assert sentence in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("rows.csv", None, "TABLE rows.csv is no file; check the path."),
        ("rows.xls", "", "TABLE rows.xls is no kind of table; use .csv, .csv.gz, .tsv, .tsv.gz,"),
        ("rows.csv", "", "TABLE rows.csv cannot be read (No columns to parse from file)"),
        ("rows.csv", "a,y\n", "TABLE rows.csv has no rows"),
        ("rows.csv", "a,y\n1,2\n1,2,3\n", "TABLE rows.csv cannot be read (Error tokenizing data"),
        ("rows.csv", "a,y\n1,2,3\n4,5,6\n", "Length of header or names does not match"),
        ("rows.csv", "a,y\n1,2\n", "X has one row"),
        (
            "rows.csv",
            "a,y\n1,2\n,3\n5,6\n",
            "X holds NaN or infinity in 1 row(s), first in column 'a'",
        ),
        ("rows.csv.gz", "a,y\n1,2\n", "TABLE rows.csv.gz cannot be read"),
        ("rows.parquet", "a,y\n1,2\n", "TABLE rows.parquet cannot be read"),
    ],
)
def test_fit_refuses_a_table(tmp_path, monkeypatch, capsys, name, content, sentence):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_text(content)
    assert sentence in refused(capsys, "fit", name, "--target", "y", "--out", "model.gp")
    assert not (tmp_path / "model.gp").exists()


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("no/model.gp", "--out no/model.gp cannot be written (No such file or directory)"),
        (".", "--out . is a folder; name a file in it."),
        ("rows.csv", "--out rows.csv would replace what is read; name another file."),
    ],
)
def test_the_output_is_checked_before_anything_is_read(
    tmp_path, monkeypatch, capsys, out, sentence
):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(capsys, "fit", "rows.csv", "--target", "y", "--out", out)


# ---- predict --------------------------------------------------------------------------------


def test_predict_prints_what_the_model_says(model, table, rows, capsys):
    args = ["--quantiles", "0.05", "0.5", "--interval", "0.9", "--density"]
    assert main(["predict", model, str(table), *args]) == 0
    found = pd.read_csv(io.StringIO(capsys.readouterr().out))
    estimator, x = nashgp.load(model), rows[["a", "b", "always"]]
    mean, std = estimator.predict(x, return_std=True)
    lower, upper = estimator.predict_interval(x, 0.9).T
    expected = {
        "y_mean": mean,
        "y_std": std,
        "y_q0.05": lower,
        "y_q0.5": estimator.predict_quantiles(x, 0.5)[:, 0],
        "y_lower": lower,
        "y_upper": upper,
        "log_density": estimator.log_density(x, rows["y"]),
    }
    assert list(found.columns) == list(expected)
    np.testing.assert_allclose(found, np.column_stack([*expected.values()]), rtol=1e-9)


@pytest.mark.parametrize("suffix", [".csv.gz", ".tsv", ".parquet"])
def test_tables_of_every_kind(model, rows, tmp_path, capsys, suffix):
    """Other columns and another order of columns change nothing."""
    source, out = tmp_path / f"new{suffix}", tmp_path / f"out{suffix}"
    few = rows[["always", "id", "b", "a"]][5:10]
    if suffix == ".parquet":
        few.to_parquet(source)
    else:
        few.to_csv(source, index=False, sep="\t" if suffix == ".tsv" else ",")
    assert main(["predict", model, str(source), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"5 rows written to {out}\n"
    assert sorted(tmp_path.iterdir()) == sorted([source, out])
    expected = nashgp.load(model).predict(rows[["a", "b", "always"]])[5:10]
    found = cli._read(out)
    np.testing.assert_allclose(found["y_mean"], expected)
    if suffix == ".parquet":
        pd.testing.assert_index_equal(found.index, few.index)


def test_predict_refuses(model, table, rows, tmp_path, capsys):
    rows.drop(columns=["a", "b"]).rename(columns={"y": "Y"}).to_csv(tmp_path / "few.csv")
    rows.rename(columns={"y": "target"}).to_csv(tmp_path / "renamed.csv")
    rows.assign(b="text").to_csv(tmp_path / "text.csv")
    few, out = tmp_path / "few.csv", ["--out", tmp_path / "out.csv"]
    assert "the model's column 'a', 'b' is not in" in refused(capsys, "predict", model, few, *out)
    said = refused(capsys, "predict", model, tmp_path / "renamed.csv", "--density", *out)
    assert "the model's column 'y' is not in" in said
    assert "column 'b'" in refused(capsys, "predict", model, tmp_path / "text.csv", *out)
    assert "does not exist" in refused(capsys, "predict", tmp_path / "no.gp", table, *out)
    assert "no model file" in refused(capsys, "predict", table, table, *out)
    assert "use .csv," in refused(capsys, "predict", model, table, "--out", tmp_path / "out.txt")
    assert "would replace" in refused(capsys, "predict", model, table, "--out", table)
    assert not (tmp_path / "out.csv").exists()


def test_a_model_without_names_of_columns(model, table, tmp_path, capsys):
    estimator = nashgp.load(model)
    del estimator.feature_names_in_
    estimator.save(tmp_path / "model.gp")
    said = refused(capsys, "predict", tmp_path / "model.gp", table)
    assert "without column names; fit it with `nashgp fit`" in said


def test_a_model_without_names_of_targets(model, table, tmp_path, capsys):
    estimator = nashgp.load(model)
    del estimator.target_names_
    estimator.save(tmp_path / "model.gp")
    assert main(["predict", str(tmp_path / "model.gp"), str(table)]) == 0
    assert capsys.readouterr().out.startswith("y_mean,y_std\n")


def test_a_full_disk_leaves_the_old_file(model, table, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.csv"
    out.write_text("old")

    def write_half(self, path, **_):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", write_half)
    said = refused(capsys, "predict", model, table, "--out", out)
    assert f"--out {out} cannot be written (No space left on device)" in said
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]


# ---- classes --------------------------------------------------------------------------------


def test_classes_from_fit_to_predict(rows, tmp_path, capsys):
    """A text is a class by itself, and a number when it is said."""
    side = np.where(rows["y"] > 20.0, "high", "low")
    rows.assign(side=side, up=np.where(side == "high", 7, 3)).to_csv(tmp_path / "rows.csv")
    table, model = str(tmp_path / "rows.csv"), str(tmp_path / "model.gp")
    apart = [*SMALL, "--last-layer", "gradient", "--learning-rate", "0.1"]
    apart += ["--out", model, "--ignore", "id", "y", "w"]
    assert main(["fit", table, "--target", "side", *apart, "up"]) == 0
    assert "1 outputs" in capsys.readouterr().out
    assert main(["predict", model, table, "--density"]) == 0
    found = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(found) == ["side_class", "side_p_high", "side_p_low", "log_density"]
    best = np.where(found["side_p_high"] > 0.5, "high", "low")
    assert np.all(found["side_class"] == best) and np.mean(best == side) > 0.8
    own = np.where(side == "high", found["side_p_high"], found["side_p_low"])
    np.testing.assert_allclose(found["log_density"], np.log(own), rtol=1e-6)

    numbers = ["--target", "up", *apart, "side", "--classify", "--class-weight", "balanced"]
    assert main(["fit", table, *numbers]) == 0
    assert nashgp.load(model).class_weight == "balanced"
    capsys.readouterr()
    assert main(["predict", model, table]) == 0
    found = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(found) == ["up_class", "up_p_3", "up_p_7"] and set(found["up_class"]) <= {3, 7}

    said = refused(capsys, "predict", model, table, "--interval", "0.9")
    assert "--quantiles and --interval are for numbers, not for classes" in said
    said = refused(capsys, "fit", table, "--target", "side", "up", *apart)
    assert "--target names several columns, and classes are one" in said
    said = refused(capsys, "fit", table, "--target", "up", *apart, "--class-weight", "balanced")
    assert "--class-weight is for classes and the target is a number; add --classify" in said
    said = refused(capsys, "fit", table, *numbers[:-1], "even")
    assert "--class-weight must be None" in said


# ---- data, experiments, benchmark -----------------------------------------------------------


def test_data_lists_what_is_found(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "boston.npz").touch()
    assert main(["data"]) == 0
    listed = capsys.readouterr().out
    assert f"boston          506      13     20  {tmp_path}" in listed
    assert "protein       45730       9      5  missing\n" in listed
    assert main(["data", "list"]) == 0
    assert capsys.readouterr().out == listed
    assert main(["data", "path"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n{tmp_path / 'cache' / 'nashgp'}\n"


def test_data_fetch(monkeypatch, tmp_path, capsys):
    def fetch(name, folder, progress):
        assert not progress  # nobody watches
        return (folder or tmp_path) / name

    assert "no data set 'huge'" in refused(capsys, "data", "fetch", "huge")
    monkeypatch.setattr(datasets, "fetch", fetch)
    assert main(["data", "fetch", "boston", "energy"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'boston'}\n{tmp_path / 'energy'}\n"
    assert main(["data", "fetch", "boston", "--to", str(tmp_path / "here")]) == 0
    assert f"set NASHGP_DATA={tmp_path / 'here'} to use them" in capsys.readouterr().out


@pytest.fixture
def experiment(monkeypatch):
    """An experiment called `small`; a test may replace its `main`."""
    module = types.ModuleType("small_experiment", "One line.\n\nMore lines.")
    module.add_arguments = lambda parser: parser.add_argument("--quick", action="store_true")
    module.main = lambda options: 7 if options.quick else 0
    monkeypatch.setitem(sys.modules, "small_experiment", module)
    monkeypatch.setattr(cli, "EXPERIMENTS", {"small": "small_experiment"})
    return module


def test_run_hands_options_on(experiment, capsys):
    assert main(["run", "small"]) == 0
    assert main(["run", "small", "--quick"]) == 7
    with pytest.raises(SystemExit, match="0"):
        main(["run", "small", "--help"])
    assert "usage: nashgp run small [-h] [--quick]" in capsys.readouterr().out
    for wrong in (["run", "small", "--slow"], ["run", "large"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)


def test_run_lists_the_experiments(experiment, capsys):
    for args in (["run", "--list"], ["run"]):
        assert main(args) == 0
        assert capsys.readouterr().out == "small      One line.\n"


def test_interrupted_run(experiment, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    experiment.main = interrupted
    assert main(["run", "small"]) == 130
    assert "nothing unfinished was kept" in capsys.readouterr().err


def test_report(monkeypatch, tmp_path, capsys):
    said = refused(capsys, "report", "--results", tmp_path / "no", "--out", tmp_path / "r.html")
    assert "is no folder; run `nashgp run demo` first" in said
    module = types.ModuleType("nashgp.experiments.report")
    module.write = lambda results, out: results / out.name
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "r.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'r.html'}\n"


def test_report_without_its_packages(monkeypatch, tmp_path, capsys):
    for name in ("report", "overview", "pages"):
        monkeypatch.delitem(sys.modules, f"nashgp.experiments.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    said = refused(capsys, "report", "--results", tmp_path, "--out", tmp_path / "r.html")
    assert "needs the package jinja2; run `pip install 'nashgp[report]'`" in said


def test_bench(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    assert main(["bench"]) == 1
    assert "source repository; get a copy of it and run `make bench`" in capfd.readouterr().err
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "run.py").write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    assert main(["bench", "--quick", "--help"]) == 3
    assert capfd.readouterr().out == "['--quick', '--help']\n"


# ---- the command as a whole -----------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["frobnicate"],
        ["fit", "rows.csv", "--out", "model.gp"],
        ["fit", "rows.csv", "--target", "y", "--out", "model.gp", "--num-step", "5"],
        ["predict", "model.gp", "rows.csv", "--interval", "90"],
        ["predict", "model.gp", "rows.csv", "--quantiles", "0.5", "one"],
        ["data", "drop"],
    ],
)
def test_wrong_usage(args, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(args)
    assert "usage: nashgp" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["fit", "predict", "data", "run", "report"])
def test_help_shows_an_example(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"example: nashgp {command}" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    code = """
import sys
from nashgp.cli import main
for args in (["--help"], ["fit", "--help"], ["data", "path"]):
    try:
        main(args)
    except SystemExit:
        pass
heavy = {"jax", "sklearn", "pandas", "scipy", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_programs_are_kept_for_the_next_command(tmp_path):
    """In the user's cache, unless a folder is named or JAX is in use already."""
    keep = "from nashgp import cli; cli._keep_programs(); import jax; "
    keep += "print(jax.config.jax_compilation_cache_dir)"

    def folder(code, **more):
        env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
        env |= {"XDG_CACHE_HOME": str(tmp_path)} | more
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    assert folder(keep).strip() == str(tmp_path / "nashgp" / "programs")
    assert folder(keep, JAX_COMPILATION_CACHE_DIR="mine").strip() == "mine"
    assert folder(f"import jax; {keep}").strip() == "None"


def test_version_and_an_error_from_a_shell():
    command = [sys.executable, "-m", "nashgp.cli"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"nashgp {nashgp.__version__}\n"
    done = subprocess.run([*command, "data", "fetch", "huge"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("nashgp: There is no data set 'huge'")


def test_a_reader_that_stops_reading():
    """As in `nashgp data | head -1`: no traceback."""
    command = [sys.executable, "-m", "nashgp.cli", "data"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
