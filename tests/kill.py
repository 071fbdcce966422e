"""Kill fits and studies at random moments, let them go on, and compare with ones left alone.

    python -m tests.kill fit run --kills 30

After every kill each file that is there must be whole; every fit must end with the bits of one that
was never stopped, every study with the scores of one, and no finished cell may be run again.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.numpy

from nashgp import checkpoints, persist

NASHGP = [sys.executable, "-m", "nashgp.cli"]
FIT = "--num-layers 1 --num-restarts 2 --num-inducing 8 --num-mixture 4 --num-steps"
STUDY = "one-layer --num-inducings 1 --tyings tied --num-samples 10 --jobs 2 --num-steps"
SPREAD, EARLY = 0.5, 5.0  # seconds after a sign of life, or after the start, to the kill
EARLY_SHARE = 0.2  # of the kills that wait for no sign: while packages load and programs compile
PATIENCE = 300.0  # seconds that a process may take for anything


def start(*words: object) -> subprocess.Popen:
    """A command in a group of processes of its own, which can be killed as one."""
    command = [*NASHGP, *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()


def killed(
    process: subprocess.Popen, sign: Callable[[], object], random: np.random.Generator
) -> bool:
    """Kill at a random time after a sign of life; False if the process was faster."""
    early = random.uniform() < EARLY_SHARE
    before, began = sign(), time.monotonic()
    while not early and process.poll() is None and sign() == before:
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.002)
    time.sleep(random.uniform(0.0, EARLY if early else SPREAD))
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return True


def kill_fit(folder: Path, kills: int, random: np.random.Generator, num_steps: int = 2_000) -> int:
    """Kill fits that keep a checkpoint so many times; how many of them reached their end."""
    table, whole, model = folder / "rows.csv", folder / "whole", folder / "model"
    checkpoint = folder / "checkpoint"
    x = np.random.default_rng(0).normal(size=(60, 2))
    rows = np.column_stack([x, np.sin(x[:, 0])])
    np.savetxt(table, rows, delimiter=",", header="a,b,y", comments="")
    words = ["fit", table, "--target", "y", *FIT.split(), num_steps, "--out"]
    finish(start(*words, whole))

    def stamp() -> int:
        return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    ended, done = 0, 0
    while done < kills or stamp():
        place = "--resume" if stamp() else "--checkpoint"
        process = start(*words, model, place, checkpoint, "--checkpoint-seconds", 0)
        if done < kills and killed(process, stamp, random):
            done += 1
            for file in (checkpoint, Path(checkpoints.before(checkpoint))):
                if file.exists():
                    persist.read(file, checkpoints.KIND)
        else:
            finish(process)
            assert_same_bits(whole, model)
            left = [name for name in os.listdir(folder) if name.endswith(".tmp")]
            assert not left, left
            checkpoint.unlink()
            ended += 1
    return ended


def assert_same_bits(one: Path, other: Path) -> None:
    """Two model files hold the same numbers, apart from the time they took."""
    first, second = (safetensors.numpy.load_file(file) for file in (one, other))
    assert first.keys() == second.keys()
    for name in first.keys() - {"learned.history_.seconds"}:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def kill_run(
    folder: Path, kills: int, random: np.random.Generator, cells: int = 10, num_steps: int = 100
) -> int:
    """Kill studies so many times; how many of them reached their end."""
    whole, results = folder / "whole", folder / "results"
    words = ["run", *STUDY.split(), num_steps, "--splits", *range(cells), "--results"]
    finish(start(*words, whole))

    def records() -> dict[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in results.glob("*.json")}

    ended, done, before = 0, 0, {}
    while done < kills or before:
        process = start(*words, results)
        if done < kills and killed(process, lambda: len(records()), random):
            done += 1
            assert all(json.loads((results / name).read_text()) for name in records())
        else:
            finish(process)
        now = records()
        assert before.items() <= now.items(), "a finished cell was run again"
        before = now
        if len(now) == cells:
            assert _scores(whole) == _scores(results)
            shutil.rmtree(results)
            before, ended = {}, ended + 1
    return ended


def _scores(folder: Path) -> dict[str, dict[str, float]]:
    """What every cell of a study found, apart from the time it took."""
    found = {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}
    return {
        name: {key: value for key, value in record["scores"].items() if key != "seconds"}
        for name, record in found.items()
    }


KINDS = {"fit": kill_fit, "run": kill_run}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30, help="of each kind (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (%(default)s)")
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help="what to kill (%(default)s)")
    options = parser.parse_args()
    for kind in options.kinds:
        random = np.random.default_rng(options.seed)
        with tempfile.TemporaryDirectory() as folder:
            count = KINDS[kind](Path(folder), options.kills, random)
        print(f"{kind}: {options.kills} kills, {count} reached their end unharmed", flush=True)


if __name__ == "__main__":
    main()
