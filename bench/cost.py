"""How the time of a training step grows with rows, inducing inputs, layers, draws and inputs.

    python -m bench.cost --out results/cost.json --figure docs/figures/cost.png

One number of a middle-sized problem changes at a time. The slope is that of a straight line
through log time against log size, over the larger half of the sizes: 1 is linear. Steps draw their
inducing values, in float32; each measurement is a process of its own. What is in the file already
is not timed again.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys

import numpy as np

from bench.cases import Case

ROOT = pathlib.Path(__file__).parent.parent
MIDDLE = Case(4_000, 8, 128, 3, 4, steps=2)
SIZES = {
    "num_rows": (500, 1_000, 2_000, 4_000, 8_000, 16_000),
    "num_inducing": (32, 64, 128, 256, 512),
    "num_layers": (1, 2, 3, 4, 6, 8),
    "num_samples": (1, 2, 4, 8, 16),
    "num_inputs": (2, 4, 8, 16, 32),
}
LETTERS = dict(zip(SIZES, "NMLKD", strict=True))


def slope(sizes: list[int], times: list[float]) -> float:
    """The power with which time grows, over the larger half of the sizes."""
    late = slice(len(sizes) // 2, None)
    return float(np.polyfit(np.log(sizes[late]), np.log(times[late]), 1)[0])


def step_ms(name: str, size: int) -> float:
    """Milliseconds of a step with one number changed."""
    numbers = map(str, dataclasses.astuple(dataclasses.replace(MIDDLE, **{name: size})))
    command = [sys.executable, "-m", "bench.cost", "--case", *numbers]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="write the times to this file")
    parser.add_argument("--figure", type=pathlib.Path, help="draw them there")
    parser.add_argument("--case", type=int, nargs="+", help="time this one, print milliseconds")
    args = parser.parse_args()
    if args.case:
        from bench.ours import measure

        print(json.dumps(measure(Case(*args.case), "float32", "drawn")["step_ms"]))
        return
    times: dict[str, list[float]] = {}
    if args.out and args.out.exists():
        times = json.loads(args.out.read_text())["step_ms"]
    for name, sizes in SIZES.items():
        times[name] = times.get(name) or [step_ms(name, size) for size in sizes]
        shown = "  ".join(f"{s}: {t:.1f}" for s, t in zip(sizes, times[name], strict=True))
        power = slope(list(sizes), times[name])
        print(f"{LETTERS[name]} ms per step {shown}   slope {power:.2f}", flush=True)
        if args.out:
            record = {"middle": MIDDLE.name, "sizes": SIZES, "step_ms": times}
            args.out.write_text(json.dumps(record, indent=1) + "\n")
    if args.figure:
        from nashgp.experiments import plots

        growth = [
            plots.Growth(LETTERS[name], np.array(sizes), np.array(times[name]))
            for name, sizes in SIZES.items()
        ]
        plots.costs(growth, MIDDLE.name).savefig(args.figure, dpi=110)


if __name__ == "__main__":
    main()
