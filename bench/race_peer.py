"""Trains GPyTorch's deep GP on rows in a file, and prints one line of JSON: seconds and test MLL.

Adam at 0.01 on batches of 512 with five draws, in the manner of GPyTorch's own examples. The
first layer's inducing inputs start at rows of the data instead of white noise.
"""

import json
import math
import os
import sys
import time

import gpytorch
import numpy as np
import torch

from bench.cases import Case
from bench.peer import Deep

BATCH, NUM_DRAWS, NUM_TEST_DRAWS = 512, 5, 50


def main() -> None:
    path, num_steps, num_marks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_flush_denormal(True)
    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    with np.load(path) as rows:
        x, y, x_test, y_test = (torch.as_tensor(rows[n]) for n in ("x", "y", "x_test", "y_test"))
        unit, num_inducing = float(rows["unit"]), int(rows["num_inducing"])
    case = Case(len(x), x.shape[1], num_inducing, 2, NUM_DRAWS, steps=1)
    model = Deep(case)
    places = model.layers[0].variational_strategy.inducing_points
    places.data = x[torch.randperm(len(x))[:num_inducing]].expand_as(places).clone()
    bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, len(x))
    objective = gpytorch.mlls.DeepApproximateMLL(bound)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

    def score() -> float:
        model.eval()
        with torch.no_grad(), gpytorch.settings.num_likelihood_samples(NUM_TEST_DRAWS):
            law = model.likelihood(model(x_test))
            spread = torch.distributions.Normal(law.mean, law.variance.sqrt())
            each = torch.logsumexp(spread.log_prob(y_test[:, 0]), 0) - math.log(NUM_TEST_DRAWS)
        model.train()
        return float(each.mean()) - math.log(unit)

    seconds, mll, spent = [], [], 0.0
    for number in range(num_marks):
        began = time.perf_counter()
        with gpytorch.settings.num_likelihood_samples(NUM_DRAWS):
            for _ in range(num_steps // num_marks):
                some = torch.randint(len(x), (BATCH,))
                optimiser.zero_grad()
                loss = -objective(model(x[some]), y[some, 0])
                loss.backward()
                optimiser.step()
        spent += time.perf_counter() - began
        seconds.append(spent)
        mll.append(score())
        print(f"{number + 1} of {num_marks}: {spent:.0f} s, {mll[-1]:.3f}", file=sys.stderr)
    print(json.dumps({"second": seconds, "mll": mll}))


if __name__ == "__main__":
    main()
