"""The benchmark's arithmetic; nothing is timed here."""

import pytest

from bench import cases, cost, race, run


def test_matrix_products_of_a_tiny_case_by_hand():
    """N=2, D=3, M=4, K=5, two layers: every product written out."""
    tiny = cases.Case(2, 3, 4, 2, 5, steps=1)
    assert tiny.widths == [(3, 3), (3, 1)]
    below = 2 * (2 * 2 * 4 * 3) + 3 * (2 * 2 * 4 * 4)  # distances, A; 2 rows
    above = 3 * (2 * 10 * 4 * 3) + 3 * (2 * 10 * 4 * 4)  # 10 rows
    integrated = 3 * (2 * 2 * 4 * 3 + 2 * 2 * 16 * 3) + 3 * (2 * 10 * 4 + 2 * 10 * 16)
    drawn = 3 * (2 * 10 * 4 * 3 + 2 * 10 * 4) + 2 * (2 * 5 * 16 * 3 + 2 * 5 * 16)
    assert cases.matmul_flops(tiny, drawn=False) == below + above + integrated
    assert cases.matmul_flops(tiny, drawn=True) == below + above + drawn


@pytest.fixture
def record():
    ours = {"step_ms": 10.0, "predict_ms": 5.0, "memory_mb": 200.0, "compile_s": 3.0}
    ours["draws_ms"] = 0.25
    peer = {"step_ms": 40.0, "predict_ms": 30.0, "memory_mb": 100.0}
    case = cases.CASES[0].name
    faster = ours | {"step_ms": 4.0}
    steps = {"integrated": ours, "drawn": faster, "anchored": faster}
    return {"case": case, "dtype": "float32", **steps, "peer": peer}


def test_a_ratio_above_one_is_in_our_favour(record):
    peak = 1e-6 * cases.matmul_flops(cases.CASES[0], drawn=False) / 10.0  # all of it
    integrated, drawn = run.table([record], {"float32": peak}).splitlines()[1:3]
    assert "10.0     40.0    4.0" in integrated and "4.0     40.0   10.0" in drawn
    assert "5.0     30.0    6.0" in integrated and "200      100    0.5" in integrated
    assert "100%   0.25" in integrated


def test_the_table_shows_our_numbers_alone_without_a_peer(record):
    line = run.table([record | {"peer": None}], {"float32": 100.0}).splitlines()[1]
    assert "10.0        -      -" in line and "nan" not in line


def test_an_epoch_of_pictures_is_as_many_steps_as_cover_the_rows():
    assert cases.PICTURES.epoch == 235
    assert cases.PICTURES.widths == [(784, 98), (98, 98), (98, 98), (98, 10)]
    record = {"case": "x", "ours": {"step_ms": 100.0}, "peer": {"step_ms": 2_000.0}}
    assert "ratio 20.0; epoch of 60,000 rows 23.5 s, GPyTorch 470.0 s" in run.pictures_line(record)
    assert "ratio -; " in run.pictures_line(record | {"peer": None})


def test_both_libraries_see_the_same_rows():
    first, second = (cases.make_rows(cases.QUICK, "float32") for _ in range(2))
    assert all((a == b).all() and a.dtype == "float32" for a, b in zip(first, second, strict=True))
    assert [len(rows) for rows in first] == [100, 100, cases.NUM_NEW_ROWS]


def test_the_slope_is_the_power_of_growth():
    sizes = [1, 2, 4, 8, 16]
    assert cost.slope(sizes, [5.0, 5.0, *(s**1.5 for s in sizes[2:])]) == pytest.approx(1.5)


def test_a_race_is_won_by_who_first_meets_the_last_score_of_the_peer():
    theirs = {"second": [10.0, 20.0, 40.0], "mll": [0.0, 1.2, 1.0]}
    ours = {"second": [1.0, 4.0, 9.0], "mll": [0.5, 1.0, 0.9]}
    never = {"second": [1.0], "mll": [0.9]}
    lines = race.table({"ours": ours, "never": never, "GPyTorch": theirs}).splitlines()
    assert lines[1].split()[-2:] == ["4.0", "10.0"]
    assert lines[2].split()[-2:] == ["inf", "0.0"]
    assert lines[3].split()[-2:] == ["20.0", "2.0"]
