"""What only another process can show: files, imports, memory."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import nashgp
from nashgp import DeepGPRegressor

GOLDEN = pathlib.Path(__file__).parent / "golden"


def python(code: str, *arguments: object) -> str:
    """What a fresh interpreter prints; its warnings are errors too."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("dtype", "engine"), [("float64", "ipvi"), ("float32", "dsvi")])
def test_a_saved_model_predicts_the_same_bits_elsewhere(dtype, engine, tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(30, 2))
    settings = dict(num_steps=5, num_inducing=6, num_mixture=8, random_state=0, dtype=dtype)
    settings["engine"] = engine
    model = DeepGPRegressor(**settings).fit(x, np.sin(x[:, 0]))
    model.save(tmp_path / "model.nashgp")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "here.npy", np.stack(model.predict(x, return_std=True)))
    code = """
import sys, numpy as np, nashgp
folder = sys.argv[1]
model = nashgp.load(f"{folder}/model.nashgp")
x, here = np.load(f"{folder}/x.npy"), np.load(f"{folder}/here.npy")
there = np.stack(model.predict(x, return_std=True))
print((there == here).all(), model.get_params()["num_steps"], model.history_.objective.shape)
"""
    assert python(code, tmp_path) == "True 5 (5,)"


def golden(kind: str) -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob(f"{kind}-*.nashgp"))


@pytest.mark.parametrize("name", golden("regressor"))
def test_models_of_all_versions_still_load(name):
    record = json.loads((GOLDEN / f"{name}.json").read_text())
    model = nashgp.load(GOLDEN / f"{name}.nashgp")
    rows = pd.DataFrame(record["rows"])
    mean, std = model.predict(rows, return_std=True)
    np.testing.assert_allclose(mean, record["mean"], rtol=1e-9)
    np.testing.assert_allclose(std, record["std"], rtol=1e-9)
    targets = np.stack([np.sin(rows["height"]), 10.0 * rows["weight"]], axis=1)
    np.testing.assert_allclose(model.log_density(rows, targets), record["log_density"], rtol=1e-8)


@pytest.mark.parametrize("name", golden("classifier"))
def test_classifiers_of_all_versions_still_load(name):
    record = json.loads((GOLDEN / f"{name}.json").read_text())
    model = nashgp.load(GOLDEN / f"{name}.nashgp")
    rows, labels = pd.DataFrame(record["rows"]), record["labels"]
    np.testing.assert_allclose(model.predict_proba(rows), record["probability"], rtol=1e-9)
    np.testing.assert_allclose(model.log_density(rows, labels), record["log_density"], rtol=1e-8)
    assert set(model.classes_) == set(labels) and model.class_weight == {"giant": 2.0}


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_there_is_a_golden_file(kind):
    assert (GOLDEN / f"{kind}-1.nashgp").stat().st_size < 50_000


def test_importing_costs_little_beyond_the_required_packages():
    """At most 0.3 of their own time, measured as processor time in one process, best of three."""
    code = """
import time
start = time.process_time()
import jax, jax.numpy, jaxlib, equinox, optax, jaxtyping, numpy, scipy, sklearn, safetensors, tqdm
import tqdm.auto, scipy.special, safetensors.numpy, pandas, jax.scipy.linalg
import sklearn.base, sklearn.cluster, sklearn.utils.validation
required = time.process_time() - start
import nashgp.estimators
print((time.process_time() - start) / required)
"""
    assert min(float(python(code)) for _ in range(3)) < 1.3


def test_importing_changes_no_setting_of_jax():
    code = """
import jax
before = dict(jax.config.values)
import nashgp, nashgp.estimators
assert nashgp.DeepGPRegressor and nashgp.load and "DeepGPRegressor" in dir(nashgp)
assert dict(jax.config.values) == before
model = nashgp.DeepGPRegressor(num_layers=1, num_steps=1, num_inducing=3, num_mixture=2)
model.fit([[0.0], [1.0]], [0.0, 1.0])
assert dict(jax.config.values) == before and jax.numpy.ones(1).dtype == "float32"
"""
    python(code)


MEMORY = """
import resource, sys
import numpy as np
from nashgp import DeepGPRegressor
few, many, inducing, mixture = map(int, sys.argv[1:])
x = np.random.default_rng(0).normal(size=(400, 4))
model = DeepGPRegressor(
    engine="dsvi", num_steps=2, num_inducing=inducing, num_mixture=mixture, random_state=0
)
model.fit(x, x[:, 0])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
new = np.random.default_rng(1).normal(size=(many, 4))
base = peak()
model.predict(new[:few], return_std=True)
middle = peak()
mean, std = model.predict(new, return_std=True)
assert mean.shape == std.shape == (many,)
print(middle - base, peak() - middle)
"""


def test_predicting_more_rows_takes_no_more_memory():
    """60,000 more of them: 8 MB in scaled and unscaled copies, 300 MB in one array of all draws.

    The allocator needs some chunks to reach its level, so the first call has many already.
    """
    _, more = map(float, python(MEMORY, 40_000, 100_000, 32, 20).split())
    assert more < 40.0  # megabytes


@pytest.mark.slow
def test_a_million_rows_fit_in_a_gigabyte():
    compiled, more = map(float, python(MEMORY, 3_000, 1_000_000, 128, 100).split())
    assert compiled + more < 1000.0
