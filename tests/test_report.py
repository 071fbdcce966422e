"""The page of saved studies, from hand-made cells whose numbers are known."""

import dataclasses
import json
import re

import numpy as np
import pytest

from nashgp.errors import InputError
from nashgp.experiments import (
    cells,
    comparing,
    overview,
    pages,
    plots,
    power_uci,
    published,
    report,
    studies,
)
from nashgp.experiments import uci as uci_study
from tests.browser import Links, Rows, look

MLL = {  # method, set -> test MLL of splits 0, 1, 2
    ("closed", "boston"): (-2.0, -2.2, -2.4),
    ("collapsed", "boston"): (-1.9, -2.0, -2.1),
    ("closed", "energy"): (-0.5,),
    ("collapsed", "energy"): (-0.7, -0.8),
}


def save(cell, folder, **outcome):
    """A record as a run would leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "cell": dataclasses.asdict(cell),
        "commit": "0123456789abcdef" * 2 + "01234567",
        "versions": {"nashgp": "0.1.0", "jax": "0.10.2"},
        "seconds": 1_800.0,
    }
    cell.path(folder).write_text(json.dumps(record | outcome))


def scores(mll, *, curves=True):
    """All that a fit is scored by, from its log density."""
    random = np.random.default_rng(0)
    found = {"mll": mll, "mll_moment_matched": mll - 0.1, "rmse": 1.0 - mll, "seconds": 12.0}
    if curves:
        found |= cells.calibration(random.uniform(size=40))
        found |= cells.trace(-1.0 / np.arange(1.0, 301.0), 1)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of two studies, one of them with a failure, a damaged file and more."""
    folder = tmp_path_factory.mktemp("results")
    for (method, name), values in MLL.items():
        for split, mll in enumerate(values):
            cell = power_uci.Cell(name, split, method, 0.0)
            save(cell, folder / "power_uci", scores=scores(mll))
    failure = "Traceback (most recent call last):\n  File\nArithmeticError: <b>no</b> luck\n"
    save(power_uci.Cell("energy", 1, "closed", 0.0), folder / "power_uci", failure=failure)
    save(power_uci.Cell("energy", 2, "drawn", 0.0), folder / "power_uci", scores={"mll": np.nan})
    power_uci.Cell("energy", 3, "drawn", 0.0).path(folder / "power_uci").write_text('{"cell": {')
    for protocol, depth in (("standard", 2), ("extrapolation", 2), ("standard", 0)):
        cell = uci_study.Cell("boston", 0, "ipvi", depth, protocol)
        save(cell, folder / "uci", scores=scores(-2.0 - 0.1 * depth, curves=False))
    unplanned = uci_study.Cell("boston", 19, "ipvi", 2, "extrapolation")
    save(unplanned, folder / "uci", scores=scores(-2.2, curves=False))
    (folder / "bench.json").write_text("[1, 2]")  # what no study has saved is no study
    return folder


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    return report.write(made, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def rows(page):
    return Rows(page.read_text()).found


@pytest.fixture
def plain(monkeypatch):
    """No figures, which take most of the time."""
    monkeypatch.setattr(pages, "png", lambda figure: b"")


def test_what_was_run_failed_and_is_missing_is_counted(page, rows):
    # Of 180 planned: 9 done, and a failure, a score that is no number, a damaged file.
    assert ["power_uci", "9", "3", "168", "180", "4.50"] in rows
    text = page.read_text()
    assert "power_uci: 168 of 180 cells have no file." in text
    assert re.search(r"uci: 1057 of 1060 cells have no file; 1 cells are not of the plan", text)
    assert "4 cells were saved without calibration and training curves" in text
    assert re.search(r"There is no folder of large, .*freyface", text)
    assert "0123456789ab</code>: uci, power_uci" in text and "jax 0.10.2: uci, power_uci" in text


def test_failures_have_one_line_each(page):
    text = page.read_text()
    assert (
        "energy split 1, closed power 0</dt><dd>ArithmeticError: &lt;b&gt;no&lt;/b&gt; luck" in text
    )
    assert "energy split 2, drawn power 0</dt><dd>mll: not a finite number" in text
    assert re.search(r"a file</dt><dd>energy-3-\w+\.json is damaged: ", text)
    assert "Traceback" not in text


def test_means_and_standard_errors(rows):
    closed, collapsed = (
        next(row for row in rows if row[0] == f"{name} power 0" and row[-2:] == ["3", "0"])
        for name in ("closed", "collapsed")
    )
    assert closed[1:4] == ["-2.200 ± 0.115", "-2.300 ± 0.115", "3.200 ± 0.115"]
    assert collapsed[1:4] == ["-2.000 ± 0.058", "-2.100 ± 0.058", "3.000 ± 0.058"]
    # One split of two has failed: its mean is that of the other, and has no error.
    assert ["closed power 0", "-0.500", "-0.600", "1.500"] in [
        row[:4] for row in rows if row[-2:] == ["1", "1"]
    ]
    assert any(row[0] == "drawn power 0" and row[-2:] == ["0", "1"] for row in rows)


def test_differences_are_those_of_the_same_splits(rows):
    apart = [row for row in rows if row[-1] == "closed power 0"]
    boston = ["collapsed power 0", "boston", "+0.200 ± 0.058", "-0.200 ± 0.058", "3"]
    assert boston in [row[:5] for row in apart]
    # The second split of energy has no base to be compared with.
    assert ["collapsed power 0", "energy", "-0.200", "+0.200", "1"] in [row[:5] for row in apart]
    assert len(apart) == 2


def test_ranks_are_means_over_sets(rows):
    assert ["collapsed power 0", "1.500 ± 0.500", "1", "2"] in rows
    assert ["closed power 0", "1.500 ± 0.500", "2", "1"] in rows


def test_standings_leave_nobody_out():
    found = {
        "one": {"a": {0: 1.0}, "b": {0: 2.0}, "c": {1: 3.0}},
        "two": {"a": {0: 1.0}, "b": {0: 0.0}},
    }
    assert comparing.standings(found) == ["c", "a", "b"]  # 1/3; 1 and 1/2; 2/3 and 1


def test_the_best_of_each_set_is_bold_at_a_glance(made, tmp_path):
    lines = report.write(made, tmp_path / "page.md").read_text().splitlines()
    start = lines.index("### test log density")
    assert lines[start + 2] == "| method | boston | energy |"
    assert lines[start + 4 : start + 7] == [
        "| closed power 0 | -2.200 ± 0.115 | **-0.500 (1 of 2)** |",
        f"| drawn power 0 | {pages.DASH} | {pages.DASH} |",
        "| collapsed power 0 | **-2.000 ± 0.058** | -0.750 ± 0.050 |",
    ]


def test_published_figures_are_marked(page, rows):
    shown = next(row for row in rows if row[0] == "SGHMC 2 (published)")
    assert shown[1] == "-2.51 ± 0.07" and shown[-1] == published.LINDINGER
    whole = next(row for row in rows if row[0] == "STAR 3")
    assert whole[1:3] == ["-2.43 ± 0.05", "-3.05 ± 0.02"] and whole[-1] == published.LINDINGER
    text = page.read_text()
    beyond = text[text.index("<h2>uci, extrapolation") : text.index('id="power_uci"')]
    assert "ipvi 2" in beyond and "(published)" not in beyond  # of other rows than these


def test_methods_have_the_names_of_their_study(rows):
    names = [row[0] for row in rows]
    assert "ipvi auto" in names and "ipvi 2" in names


def test_a_page_of_studies_needs_nothing_beside_it(page):
    text = page.read_text()
    links = Links(text)
    assert "script" not in links.tags and "link" not in links.tags
    inside = {link[1:] for link in links.found if link.startswith("#")}
    assert inside == {*("run", "missing", "read", "published", "failures"), "power_uci", "uci"}
    assert all(f'id="{name}"' in text for name in inside)
    images = [link for link in links.found if not link.startswith("#")]
    assert all(link.startswith("data:image/png;base64,") for link in images)
    assert len(images) == 2 * 6  # wide and narrow: four of power_uci, one of each protocol
    assert "url(" not in text and "@import" not in text and "http" not in text
    alts = re.findall(r'alt="([^"]*)"', text)
    assert len(alts) == 6 and all(len(alt) > 20 for alt in alts)


@pytest.mark.parametrize("width", [360, 1_200])
def test_a_browser_shows_all_of_it(width, page, tmp_path):
    seen = look(page, tmp_path, width)
    assert seen["window"] == width
    assert seen["page"] <= width and not seen["beyond"]  # wide tables move in their own frames
    assert seen["decoded"] == seen["images"] == 6 and not seen["loaded"]


def test_the_folder_of_one_study_is_enough(made, tmp_path, plain):
    text = report.write(made / "power_uci", tmp_path / "one.html").read_text()
    assert "the files of 1 study" in text and "168 of 180 cells" in text
    assert "There is no folder" not in text  # it has no place for others


def test_tables_in_markdown_are_those_of_the_page(made, rows, tmp_path):
    text = report.write(made, tmp_path / "page.md").read_text()
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    closed = next(row for row in rows if row[0] == "closed power 0" and row[-2:] == ["3", "0"])
    assert [closed[0], *closed[-2:], *closed[1:-2]] in lines
    assert ["collapsed power 0", "1.500 ± 0.500", "1", "2"] in lines
    assert "`ArithmeticError: <b>no</b> luck`" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_splits_that_confirm_are_a_part_of_their_own(tmp_path):
    for split, mll in ((0, -2.0), (10, -3.0), (11, -5.0)):
        save(uci_study.Cell("boston", split), tmp_path / "uci", scores=scores(mll))
    save(uci_study.Cell("boston", 12, protocol="extrapolation"), tmp_path / "uci", scores={})
    (found,) = studies.find(tmp_path)
    assert [part.name for part in found.parts] == ["standard", "confirmation", "extrapolation"]
    usual, confirmed, _ = (next(part.rows("boston")) for part in found.parts)
    assert usual.scores["mll"][0] == -2.0
    assert confirmed.scores["mll"] == pytest.approx((-4.0, 1.0)) and confirmed.done == 2


def test_seconds_are_medians(tmp_path):
    for split, seconds in enumerate((10.0, 12.0, 3_600.0)):
        cell = uci_study.Cell("boston", split)
        save(cell, tmp_path / "uci", scores=scores(-2.0) | {"seconds": seconds})
    (found,) = studies.find(tmp_path)
    (row, *_) = found.parts[0].rows("boston")
    assert row.scores["seconds"][0] == 12.0 and np.isnan(row.scores["seconds"][1])


def test_a_folder_with_a_name_of_its_own_is_known_by_its_settings(made, tmp_path, plain):
    (made / "uci").rename(tmp_path / "night")
    try:
        (found,) = studies.find(tmp_path / "night")
    finally:
        (tmp_path / "night").rename(made / "uci")
    assert found.name == "night" and found.module is uci_study


def test_settings_that_differ_off_the_grid_are_other_methods(tmp_path):
    for dtype in ("float32", "float64"):
        save(power_uci.Cell("boston", 0, dtype=dtype), tmp_path / "power_uci", scores=scores(-2.0))
    (found,) = studies.find(tmp_path)
    (part,) = found.parts
    assert list(part.methods) == ["collapsed power 0.5 float32", "collapsed power 0.5 float64"]
    assert found.outside == 1


def test_what_the_paper_has_comes_first(made):
    assert [found.name for found in studies.find(made)] == ["uci", "power_uci"]


def test_a_study_that_nobody_knows_is_shown_as_it_is(tmp_path):
    (tmp_path / "other").mkdir()
    record = {"cell": {"set": "moon", "split": 0, "size": 3}, "scores": {"rmse": 1.5}}
    (tmp_path / "other" / "moon.json").write_text(json.dumps(record))
    text = report.write(tmp_path, tmp_path / "page.html").read_text()
    assert "what is missing is not known" in text
    assert ["all", "1.500", "1", "0"] in Rows(text).found


def test_a_figure_that_cannot_be_drawn_costs_no_page(tmp_path):
    cell = {"set": "boston", "split": 0, "method": "grown", "power": 0.0}
    record = {"cell": cell, "scores": {"held_out_mll": -2.5}}  # without the curve
    (tmp_path / "convergence").mkdir()
    (tmp_path / "convergence" / "boston.json").write_text(json.dumps(record))
    text = report.write(tmp_path, tmp_path / "page.html").read_text()
    assert "convergence: its figures cannot be drawn (KeyError" in text and "-2.500" in text


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"--results .* holds no results; run `nashgp run demo`"):
        report.write(tmp_path, tmp_path / "page.html")


@pytest.mark.parametrize(
    ("pair", "sign", "want"),
    [
        ((-2.2, 0.1155), "", "-2.200 ± 0.116"),
        ((206.4, 3.3), "", "206 ± 3"),
        ((24.13, np.nan), "", "24.1"),
        ((0.00079, 0.00363), "+", "+0.0008 ± 0.0036"),
        ((5.0, np.nan), "", "5"),
        ((0.0, 0.0), "+", "+0 ± 0"),
        (None, "", pages.DASH),
    ],
)
def test_numbers_have_the_digits_that_can_be_read(pair, sign, want):
    assert overview.text(pair, sign) == want


def test_a_trace_is_medians_over_lanes_and_stretches():
    steps = np.arange(1.0, 201.0)
    found = cells.trace(np.stack([steps, 3.0 * steps], axis=1), num_rows=2)
    assert found["trace_steps"] == 200 and len(found["trace"]) == 50
    np.testing.assert_allclose(found["trace"][:2], [2.5, 6.5])
    assert len(cells.trace(steps[:3], 1)["trace"]) == 3


def test_a_method_far_from_the_others_is_told_in_words():
    """Among -1.0 to -0.1 the one at -9 does not squeeze them; among few it has its dot."""
    values = {f"m{i}": (-0.1 * i, 0.01) for i in range(1, 11)} | {"far": (-9.0, 1.5)}
    for of, told in ((values, ["◂ -9.00 ± 1.50"]), (dict(list(values.items())[-4:]), [])):
        figure = plots.comparison([[plots.Comparison("", of)]], dict.fromkeys(of, "#000000"))
        (axes,) = figure.axes
        assert [text.get_text() for text in axes.texts] == told
        assert (axes.get_xlim()[0] > -2.0) == bool(told)


def test_more_than_three_panels_make_rows():
    levels = cells.LEVELS
    sets = [plots.Calibration(str(n), levels, 10, {"a": np.arange(19) // 2}) for n in range(4)]
    figure = plots.calibration(sets, {"a": "#000000"})
    assert sum(axes.get_visible() for axes in figure.axes) == 4 and len(figure.axes) == 6
