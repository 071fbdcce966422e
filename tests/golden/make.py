"""Makes a golden file: a small fitted model and what it predicts, for all later versions to load.

    python tests/golden/make.py tests/golden/regressor-1

Run it once for each new file format and keep the older files: they must go on loading.
"""

import json
import sys

import numpy as np
import pandas as pd

import nashgp
from nashgp import DeepGPRegressor, kernels

random = np.random.default_rng(0)
table = pd.DataFrame(random.normal(size=(12, 2)), columns=["height", "weight"])
targets = np.stack([np.sin(table["height"]), 10.0 * table["weight"]], axis=1)
model = DeepGPRegressor(
    num_steps=20,
    num_inducing=4,
    num_mixture=8,
    hidden_dim=1,
    kernel=kernels.RBF(0.8) + kernels.Linear(0.3),
    random_state=0,
).fit(table, targets)
model.save(f"{sys.argv[1]}.nashgp")
mean, std = model.predict(table.iloc[:3], return_std=True)
record = {
    "version": nashgp.__version__,
    "rows": table.iloc[:3].to_dict("list"),
    "mean": mean.tolist(),
    "std": std.tolist(),
    "log_density": model.log_density(table.iloc[:3], targets[:3]).tolist(),
}
with open(f"{sys.argv[1]}.json", "w") as file:
    json.dump(record, file, indent=1)
