"""Makes a golden file: a small fitted model and what it predicts, for all later versions to load.

    python tests/golden/make.py tests/golden/regressor-1

Run it once for each new file format, and for each kind of estimator by its name, and keep the older
files: they must go on loading.
"""

import json
import pathlib
import sys

import numpy as np
import pandas as pd

import nashgp
from nashgp import DeepGPClassifier, DeepGPRegressor, kernels

random = np.random.default_rng(0)
table = pd.DataFrame(random.normal(size=(12, 2)), columns=["height", "weight"])
few = table.iloc[:3]
settings = dict(
    num_steps=20,
    num_inducing=4,
    num_mixture=8,
    hidden_dim=1,
    kernel=kernels.RBF(0.8) + kernels.Linear(0.3),
    random_state=0,
)
record = {"version": nashgp.__version__, "rows": few.to_dict("list")}
if pathlib.Path(sys.argv[1]).name.startswith("classifier"):
    labels = np.array(["small", "tall", "giant"])[np.arange(12) % 3]
    model = DeepGPClassifier(**settings, class_weight={"giant": 2.0}).fit(table, labels)
    record |= {"labels": labels[:3].tolist(), "probability": model.predict_proba(few).tolist()}
    density = model.log_density(few, labels[:3])
else:
    targets = np.stack([np.sin(table["height"]), 10.0 * table["weight"]], axis=1)
    model = DeepGPRegressor(**settings).fit(table, targets)
    mean, std = model.predict(few, return_std=True)
    record |= {"mean": mean.tolist(), "std": std.tolist()}
    density = model.log_density(few, targets[:3])
record["log_density"] = density.tolist()
model.save(f"{sys.argv[1]}.nashgp")
with open(f"{sys.argv[1]}.json", "w") as file:
    json.dump(record, file, indent=1)
