"""Test log density against seconds of training, beside GPyTorch's deep GP on the same rows.

    python -m bench.race --out results/race.json --figure docs/figures/race.png

Two layers of 128 inducing inputs in float32, rows scaled by training rows, the standard split. Each
library runs alone in a process of its own. Seconds are those of training, for us with compilation;
scoring test rows stops the clock. Scores decide nothing: every run takes all its steps.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).parent.parent
PEER = ROOT / ".venv-bench" / "bin" / "python"
NUM_MARKS = 50
# Name of ours -> steps: a shallow model first and all rows in each step, or mini-batches with the
# last layer by natural gradients. Steps, batches and power were chosen on a tenth of training rows.
OURS = {"collapsed": 500, "natural": 1_000}
POWER = 1.0


def train_ours(method: str, rows: dict[str, np.ndarray], num_steps: int) -> dict[str, list[float]]:
    """Seconds and test log density, in the units of the targets, as training goes on."""
    import jax.random as jr

    from nashgp import recipes, train
    from nashgp.batch import make_data
    from nashgp.engines import Collapsed, NaturalGradient

    data, apart = (
        make_data(rows[f"x{end}"], rows[f"y{end}"], dtype="float32") for end in ("", "_test")
    )

    def go(start, engine, steps: int, batch_size: int | None):
        return train.run(
            jr.key(0),
            engine,
            start,
            data,
            num_steps=steps,
            batch_size=batch_size,
            chunk=max(1, num_steps // NUM_MARKS),
            validation=train.Validation(apart, patience=num_steps),
            num_kept=0,
        )

    config = recipes.Config(1, None, rows["num_inducing"].item(), kernel="rbf+matern32")
    if method == "collapsed":
        start = recipes.build(rows["x"], 1, config, dtype="float32")
        shallow, deep = 3 * num_steps // 5, num_steps - 3 * num_steps // 5
        first = go(start, Collapsed(0.03, 1, POWER, decay_steps=shallow), shallow, None)
        start = recipes.deepen(first.fitted, 2)
        second = go(start, Collapsed(0.03, 1, POWER, decay_steps=deep), deep, None)
        history = first.history.followed_by(second.history)
    else:
        config = dataclasses.replace(config, num_layers=2, hidden_scale=1e-3)
        start = recipes.build(rows["x"], 1, config, dtype="float32")
        engine = NaturalGradient(0.1, 1, POWER, decay_steps=num_steps)
        history = go(start, engine, num_steps, 1_024).history
    mll = history.validation - np.log(rows["unit"].item())
    return {"second": history.seconds.tolist(), "mll": mll.tolist()}


def first_at(curve: dict[str, list[float]], target: float) -> float:
    """Seconds until a curve has reached a score, infinity if it never does."""
    reached = [s for s, mll in zip(curve["second"], curve["mll"], strict=True) if mll >= target]
    return min(reached, default=np.inf)


def table(curves: dict[str, dict[str, list[float]]], peer: str = "GPyTorch") -> str:
    """Where each run ends, and how long it took to GPyTorch's end and to its best."""
    lines = [f"{'':12} seconds  last MLL  seconds to GPyTorch's last  ratio"]
    theirs = curves.get(peer)
    for name, curve in curves.items():
        line = f"{name:12} {curve['second'][-1]:7.1f} {curve['mll'][-1]:9.3f}"
        if theirs:
            took = first_at(curve, theirs["mll"][-1])
            line += f" {took:27.1f} {theirs['second'][-1] / took:6.1f}"
        lines.append(line)
    return "\n".join(lines)


def draw(curves: dict[str, dict[str, list[float]]], path: pathlib.Path) -> None:
    from nashgp.experiments import plots

    paces = [plots.Pace(name, *map(np.array, curve.values())) for name, curve in curves.items()]
    plots.paces(paces, plots.colours(list(curves))).savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", default="kin8nm")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--num-inducing", type=int, default=128)
    parser.add_argument("--peer-steps", type=int, default=5_000)
    parser.add_argument("--quick", action="store_true", help="a few steps of ours alone")
    parser.add_argument("--out", type=pathlib.Path, help="write the curves to this file")
    parser.add_argument("--figure", type=pathlib.Path, help="draw them there")
    parser.add_argument("--ours", choices=OURS, help="train this one on --rows, print its curve")
    parser.add_argument("--rows", help="a file that the other process has written")
    args = parser.parse_args()
    if args.ours:
        with np.load(args.rows) as rows:
            steps = 10 if args.quick else OURS[args.ours]
            print(json.dumps(train_ours(args.ours, dict(rows), steps)))
        return

    from nashgp import datasets
    from nashgp.scaling import Scaling

    x, y, x_test, y_test = datasets.load(args.set).split(args.split)
    scaling = Scaling.from_rows(x, y)
    train, test = scaling.forward(x, y), scaling.forward(x_test, y_test)
    names = dict(zip(("x", "y", "x_test", "y_test"), (*train, *test), strict=True))
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.npz")
        single = {name: rows.astype(np.float32) for name, rows in names.items()}
        np.savez(path, **single, unit=scaling.y_scale[0], num_inducing=args.num_inducing)
        commands = {
            name: [sys.executable, "-m", "bench.race", "--ours", name, "--rows", path]
            + ["--quick"] * args.quick
            for name in OURS
        }
        if PEER.exists() and not args.quick:
            peer = [str(PEER), "-m", "bench.race_peer", path, str(args.peer_steps), str(NUM_MARKS)]
            commands["GPyTorch"] = peer
        for name, command in commands.items():
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            curves[name] = json.loads(done.stdout.splitlines()[-1])
    print(table(curves))
    if args.out:
        args.out.write_text(json.dumps({"set": args.set, "curves": curves}, indent=1) + "\n")
    if args.figure:
        draw(curves, args.figure)


if __name__ == "__main__":
    main()
