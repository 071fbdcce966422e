"""Nothing is lost when a process is killed; `tests.kill` does it to fits and studies."""

import subprocess
import sys
import time

import numpy as np
import pytest

from nashgp import checkpoints, persist
from tests import kill

WRITER = """
import sys
import numpy as np
from nashgp.checkpoints import FileCheckpoint

checkpoint = FileCheckpoint(sys.argv[1], {"random_state": 0})
checkpoint.runs = {0: {"state": [np.arange(200_000.0)]}}
while True:
    checkpoint.write()
"""


def test_a_writer_that_is_killed_leaves_whole_files(tmp_path):
    path = tmp_path / "checkpoint"
    files = path, tmp_path / checkpoints.before(path)
    with subprocess.Popen([sys.executable, "-c", WRITER, path]) as process:
        while not files[1].exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.3)
        process.kill()
    for file in files:
        _, content = persist.read(file, checkpoints.KIND)
        np.testing.assert_array_equal(content["runs"]["0"]["state"][0], np.arange(200_000.0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", kill.KINDS)
def test_what_is_killed_goes_on(kind, tmp_path):
    """`python -m tests.kill` does it thirty times."""
    assert kill.KINDS[kind](tmp_path, 3, np.random.default_rng(2019)) >= 1
