"""The demo in miniature: one quick run that all tests of this file look at."""

import argparse
import base64
import dataclasses
import io
import json
import re
import shutil

import matplotlib.image
import numpy as np
import pytest
import scoringrules
from scipy.special import ndtri

from nashgp import recipes
from nashgp.errors import InputError
from nashgp.estimators import training
from nashgp.experiments import demo, report
from tests.browser import Links, look

METHODS = list(demo.methods())


def options(out, *extra):
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args(["--quick", "--out", str(out), *extra])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of one quick run."""
    out = tmp_path_factory.mktemp("demo") / "out"
    assert demo.main(options(out)) == 0
    return out


@pytest.fixture
def copy(made, tmp_path):
    """A copy of that folder, to damage."""
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def plain(monkeypatch):
    """No figures, which take most of the time of a run that fits nothing."""
    monkeypatch.setattr(report, "pictures", lambda results: {})


def refuse(*_):
    raise AssertionError("nothing is left to fit")


def file_of(out, method, split=0):
    plan = json.loads((out / "results" / "demo.json").read_text())
    names = [c["file"] for c in plan["cells"] if (c["method"], c["split"]) == (method, split)]
    return out / "results" / f"{names[0]}.json"


def test_every_engine_and_reference_is_compared():
    assert METHODS[-2:] == ["exact GP", "boosting"] and METHODS[:2] == [
        "deep GP, ipvi",
        "one layer, ipvi",
    ]
    for name in recipes.ENGINES:
        assert f"deep GP, {name}" in METHODS


def test_every_fit_is_saved_with_its_settings(made):
    size = demo.QUICK
    files = [path for path in (made / "results").glob("*.json") if path.name != "demo.json"]
    assert len(files) == len(size.sets) * len(METHODS) * size.num_splits
    for path in files:
        record = json.loads(path.read_text())
        assert "failure" not in record and "jax" in record["versions"]
        assert {"set", "method", "split", "settings", "num_train", "num_test"} <= set(record)
        assert set(record["scores"]) == set(report.SCORES)
        assert len(record["below"]) == len(demo.LEVELS)


def test_the_table_holds_every_method_and_finite_numbers(made):
    text = report.table(report.read(made / "results"))
    lines = [line for line in text.splitlines() if line.startswith(tuple(METHODS))]
    assert len(lines) == len(demo.QUICK.sets) * len(METHODS)
    for line in lines:
        method = next(name for name in METHODS if line.startswith(name))
        done, failed, *cells = line.removeprefix(method).replace("±", " ").split()
        assert done == "2/2" and failed == "0"
        assert all(cell == report.DASH or np.isfinite(float(cell)) for cell in cells)
        assert cells.count(report.DASH) == (method == "boosting")  # it alone has no density


def test_a_second_run_fits_nothing(copy, plain, monkeypatch, capsys):
    monkeypatch.setattr(demo, "work", refuse)
    assert demo.main(options(copy)) == 0
    assert "exact GP" in capsys.readouterr().out


def test_other_settings_are_another_fit(monkeypatch):
    cell = demo.Cell("step", METHODS[0], 0, demo.QUICK)
    before = cell.name
    assert before != dataclasses.replace(cell, split=1).name
    assert before != dataclasses.replace(cell, size=demo.FULL).name
    monkeypatch.setattr(training, "HIDDEN_SCALE", 0.5)  # as a new version might choose
    assert cell.name != before


@pytest.mark.parametrize("text", ['{"scores": {"mll"', '{"scores": {}}', "[]", '"text"'])
def test_a_damaged_result_counts_as_failed(copy, text):
    file_of(copy, "exact GP").write_text(text)
    found = report.read(copy / "results")
    row = next(r for r in report.rows(found) if (r.set, r.method) == ("step", "exact GP"))
    assert (row.done, row.failed, row.planned) == (1, 1, 2)
    assert row.text("rmse").endswith(f"± {report.DASH}")  # one split has no standard error
    assert re.search(r"^exact GP +1/2 +1 ", report.table(found), re.M)


def test_a_failed_fit_is_kept_and_counted(copy, plain, monkeypatch, capsys):
    def fail(self, x, y):
        raise ArithmeticError("<b>no</b> luck")

    file_of(copy, "exact GP").unlink()
    monkeypatch.setattr(demo.ExactGP, "fit", fail)
    assert demo.main(options(copy)) == 1
    assert "failure" in json.loads(file_of(copy, "exact GP").read_text())
    assert re.search(r"^exact GP +1/2 +1 ", capsys.readouterr().out, re.M)
    text = (copy / "report.html").read_text()
    assert "ArithmeticError: &lt;b&gt;no&lt;/b&gt; luck" in text  # and nothing is left unescaped


def test_an_interrupt_keeps_what_is_done(copy, plain, monkeypatch, capsys):
    def interrupt(self, x, y):
        raise KeyboardInterrupt

    file_of(copy, "boosting").unlink()
    monkeypatch.setattr(demo.Boosting, "fit", interrupt)
    assert demo.main(options(copy)) == 130
    assert not file_of(copy, "boosting").exists()
    captured = capsys.readouterr()
    assert re.search(r"^boosting +1/2 +0 ", captured.out, re.M) and "interrupted" in captured.err
    assert "are not there" in (copy / "report.html").read_text()


def test_the_page_needs_nothing_beside_it(made):
    text = (made / "report.html").read_text()
    links = Links(text)
    assert "script" not in links.tags and "link" not in links.tags
    assert all(link.startswith("data:image/png;base64,") for link in links.found)
    assert "url(" not in text and "@import" not in text and "viewport" in text
    for link in links.found:
        image = matplotlib.image.imread(io.BytesIO(base64.b64decode(link.partition(",")[2])))
        assert min(image.shape[:2]) > 200 and image.std() > 0.01
    names = ["step", "layers", "comparison", "calibration", "training"]
    assert len(links.found) == 2 * len(names)  # wide and narrow
    assert sorted(path.stem for path in (made / "figures").glob("*.png")) == sorted(names)


def test_the_page_fits_a_phone(made, tmp_path):
    seen = look(made / "report.html", tmp_path, width=360)
    assert seen["page"] <= seen["window"] and not seen["beyond"]
    assert seen["decoded"] == seen["images"] == 5 and not seen["loaded"]


def test_the_page_can_be_written_again_without_fits(made, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "work", refuse)
    out = report.write(made / "results", tmp_path / "again.html")
    first, again = (Links(path.read_text()).tags for path in (made / "report.html", out))
    assert first == again


def test_steps_that_failed_are_on_the_page(copy, plain):
    file = file_of(copy, METHODS[0])
    record = json.loads(file.read_text())
    assert record["events"] == [] and "finite numbers" not in (copy / "report.html").read_text()
    event = "the objective became NaN at step 13; back to step 10, learning rate times <0.3>"
    file.write_text(json.dumps(record | {"events": [event]}))
    text = report.write(copy / "results", copy / "again.html").read_text()
    assert "left the finite numbers" in text
    assert "NaN at step 13; back to step 10, learning rate times &lt;0.3&gt;" in text


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match="nashgp run demo"):
        report.write(tmp_path, tmp_path / "report.html")


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        demo.main(options(tmp_path / "file"))


def test_test_rows_are_never_training_rows_nor_shared():
    for name in demo.FULL.sets:
        splits = [demo.load(name, split, demo.FULL) for split in range(demo.FULL.num_splits)]
        seen = np.concatenate([np.column_stack([s.x_test, s.y_test]) for s in splits])
        assert len(np.unique(seen, axis=0)) == len(seen)
        for split in splits:
            both = np.concatenate([split.x, split.x_test])
            assert len(np.unique(both, axis=0)) == len(both)


def test_crps_from_quantiles_is_that_of_a_gaussian():
    random = np.random.default_rng(0)
    mean, std, y = random.normal(size=(3, 200))
    std = np.exp(std)
    quantiles = mean[:, None] + std[:, None] * ndtri(demo.LEVELS)
    exact = scoringrules.crps_normal(y, mean, std)
    found = demo.crps_quantiles(quantiles, y)
    # Targets far out are the worst: 0.0082 standard deviations, from the tails of the quantiles.
    np.testing.assert_array_less(np.abs(found - exact), 0.0085 * std)
    fine = mean[:, None] + std[:, None] * ndtri((np.arange(4_000) + 0.5) / 4_000)
    np.testing.assert_allclose(demo.crps_quantiles(fine, y), exact, rtol=1e-4)
