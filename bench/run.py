"""Times `nashgp` beside GPyTorch on this machine, and prints a table.

    python -m bench.run --dtype float32 float64 --out results/bench.json

Every measurement runs alone in a fresh process, one after the other. `make bench` builds both
environments first; without GPyTorch's the table shows our numbers alone.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from bench.cases import (
    CASES,
    FEW_PICTURES,
    PICTURES,
    QUICK,
    STEPS,
    Case,
    fastest,
    matmul_flops,
)

ROOT = pathlib.Path(__file__).parent.parent
PEER = ROOT / ".venv-bench" / "bin" / "python"

NOTES = """\
step: integrated is DSVI as published, drawn propagates draws of the inducing values, anchored draws
them from an anchored posterior; all full batch, forward, backward and Adam. GPyTorch has the
integrated step alone; all are held against it. ratio: GPyTorch's number over ours. predict: ms for
mean and variance of 1,000 new rows with 10 draws. draws: ms for 100 joint draws of all inducing
values in one compiled call. MB: peak memory of training above what the process held after imports
and data; ours includes the compiler's. peak: share of the speed of a large matrix product, the
faster of JAX and NumPy, counting only the matrix products of the forward and backward pass that
grow with rows or draws (see matmul_flops)."""


def call(python: pathlib.Path, module: str, *options: str) -> dict:
    """Run one measurement in a process of its own."""
    command = [str(python), "-m", module, *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def gemm_peak(dtype: str, size: int = 2048) -> float:
    """Billions of operations per second in a large matrix product, in JAX or NumPy."""
    a = np.random.default_rng(0).normal(size=(size, size)).astype(dtype)
    ours = 2e-9 * size**3 / fastest(lambda: a @ a)
    jax = call(pathlib.Path(sys.executable), "bench.ours", "--gemm", "--dtype", dtype)
    return max(ours, jax["gemm_gflops"])


def compare(number: int, dtype: str) -> dict:
    """All measurements of one case in one precision; -1 is the quick case."""
    options = ("--case", str(number), "--dtype", dtype)
    python = pathlib.Path(sys.executable)
    record: dict = {"case": (QUICK if number < 0 else CASES[number]).name, "dtype": dtype}
    for name in STEPS:
        record[name] = call(python, "bench.ours", *options, "--step", name)
    record["peer"] = call(PEER, "bench.peer", *options) if PEER.exists() else None
    return record


def compare_pictures(*, quick: bool) -> dict:
    """A step of the image classifier in both libraries, in single precision."""
    options = ("--pictures", "--case", "-1" if quick else "0")
    peer = call(PEER, "bench.peer", *options) if PEER.exists() else None
    ours = call(pathlib.Path(sys.executable), "bench.ours", *options)
    return {"case": (FEW_PICTURES if quick else PICTURES).name, "ours": ours, "peer": peer}


def pictures_line(record: dict) -> str:
    """A step of both, an epoch of 60,000 rows, and the ratio."""
    ours, peer = record["ours"]["step_ms"], (record["peer"] or {}).get("step_ms", math.nan)
    epoch = PICTURES.epoch / 1e3
    line = f"classifier {record['case']} float32: step {ours:.1f} ms, GPyTorch {peer:.1f} ms, "
    line += f"ratio {peer / ours:.1f}; epoch of 60,000 rows {epoch * ours:.1f} s, "
    return (line + f"GPyTorch {epoch * peer:.1f} s").replace("nan", "-")


def row(case: Case, record: dict, step: str, peak: float) -> str:
    """One line of the table."""
    ours = record[step]
    peer = record["peer"] or dict.fromkeys(("step_ms", "predict_ms", "memory_mb"), math.nan)
    share = 1e-6 * matmul_flops(case, drawn=STEPS[step]) / ours["step_ms"] / peak
    pairs = "".join(
        f" {ours[name]:8.{digits}f} {peer[name]:8.{digits}f} {peer[name] / ours[name]:6.1f}"
        for name, digits in (("step_ms", 1), ("predict_ms", 1), ("memory_mb", 0))
    )
    line = f"{case.name:28} {record['dtype']:8} {step:10}{pairs}"
    line += f" {share:5.0%} {ours['draws_ms']:6.2f} {ours['compile_s']:9.1f}"
    return line.replace("nan", "  -")


HEAD = f"{'case':28} {'dtype':8} {'step':10}"
HEAD += "".join(f" {name:>8} GPyTorch  ratio" for name in ("step ms", "predict", "MB"))
HEAD += "  peak  draws compile s"


def table(records: Sequence[dict], peaks: dict[str, float]) -> str:
    """Every case and step beside GPyTorch."""
    cases = {case.name: case for case in (*CASES, QUICK)}
    lines = [HEAD]
    for record in records:
        peak = peaks[record["dtype"]]
        lines += [row(cases[record["case"]], record, step, peak) for step in STEPS]
    speeds = ", ".join(f"{dtype} {peak:.0f} GFLOP/s" for dtype, peak in peaks.items())
    return "\n".join([*lines, "", f"Large matrix product: {speeds}.", NOTES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", nargs="+", default=["float32", "float64"])
    parser.add_argument("--cases", nargs="+", type=int, default=list(range(len(CASES))))
    parser.add_argument("--quick", action="store_true", help="one small case, in seconds")
    parser.add_argument("--out", type=pathlib.Path, help="write the numbers to this file")
    args = parser.parse_args()
    if not PEER.exists():
        print("No environment with GPyTorch here: `make bench` builds it. Ours alone:\n")
    numbers = [-1] if args.quick else args.cases
    peaks = {dtype: gemm_peak(dtype) for dtype in args.dtype}
    records = [compare(number, dtype) for number in numbers for dtype in args.dtype]
    pictures = compare_pictures(quick=args.quick)
    print(table(records, peaks), pictures_line(pictures), sep="\n\n")
    if args.out is not None:
        result = {"cores": os.cpu_count(), "gemm_gflops": peaks, "records": records}
        result["pictures"] = pictures
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
