"""Nothing is lost when a process is killed; `tests.kill` does it."""

import numpy as np
import pytest

from tests import kill


def test_a_killed_fit_goes_on(tmp_path):
    assert kill.kill_fit(tmp_path, 1, np.random.default_rng(0), num_steps=1_000) == 1


def test_a_killed_study_goes_on(tmp_path):
    assert kill.kill_run(tmp_path, 1, np.random.default_rng(0), cells=6, num_steps=50) == 1


@pytest.mark.slow
@pytest.mark.parametrize("which", [kill.kill_fit, kill.kill_run])
def test_thirty_kills_lose_nothing(which, tmp_path):
    which(tmp_path, 30, np.random.default_rng(2019))
