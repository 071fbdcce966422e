"""Times GPyTorch's deep GP on one case in this process, and prints one line of JSON.

Runs in an environment of its own, `.venv-bench`, and imports nothing of `nashgp`. The model is
the one GPyTorch documents for DSVI: in every layer each output has its own RBF kernel with a
lengthscale per input, its own inducing inputs and its own full-covariance Gaussian; hidden layers
have a linear mean, the last one a constant. A classifier has a function for each class under a
softmax of drawn values; there is no robust-max.

Lengthscales start at `√D` as ours do, and numbers below the normal range are flushed to zero as
JAX does: otherwise such numbers appear within a few steps and make a step eight times slower.
"""

import argparse
import json
import os
from collections.abc import Callable
from importlib.metadata import version

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

from bench.cases import (
    CASES,
    FEW_PICTURES,
    NUM_PREDICTIVE_DRAWS,
    PICTURES,
    QUICK,
    Case,
    Pictures,
    fastest,
    make_pictures,
    make_rows,
    peak_megabytes,
    resident_megabytes,
)


class Layer(DeepGPLayer):
    """One layer; without `num_outputs` its single output has no axis, as the last layer wants."""

    def __init__(self, num_inputs: int, num_outputs: int | None, num_inducing: int):
        batch = torch.Size([]) if num_outputs is None else torch.Size([num_outputs])
        law = CholeskyVariationalDistribution(num_inducing, batch_shape=batch)
        z = torch.randn(*batch, num_inducing, num_inputs)
        super().__init__(VariationalStrategy(self, z, law), num_inputs, num_outputs)
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=num_inputs, batch_shape=batch)
        rbf.lengthscale = num_inputs**0.5
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch)
        if num_outputs is None:
            self.mean_module = gpytorch.means.ConstantMean()
        else:
            self.mean_module = gpytorch.means.LinearMean(num_inputs, batch_shape=batch)

    def forward(self, x: torch.Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Deep(DeepGP):
    """Layers composed, with normal noise or classes at the end."""

    def __init__(self, case: Case | Pictures):
        super().__init__()
        *hidden, last = case.widths
        layers = [Layer(d, p, case.num_inducing) for d, p in hidden]
        if isinstance(case, Pictures):
            layers.append(Layer(*last, case.num_inducing))
            self.likelihood = gpytorch.likelihoods.SoftmaxLikelihood(
                num_classes=case.num_classes, mixing_weights=False
            )
        else:
            layers.append(Layer(last[0], None, case.num_inducing))
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> MultivariateNormal:
        for layer in self.layers:
            x = layer(x)
        return x


def prepare(dtype: str) -> None:
    """All cores, one seed, and no numbers below the normal range."""
    torch.set_default_dtype(getattr(torch, dtype))
    torch.set_flush_denormal(True)
    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)


def climber(model: Deep, num_rows: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """One step of Adam up the bound, for rows and their targets."""
    bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_rows)
    objective = gpytorch.mlls.DeepApproximateMLL(bound)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

    def climb(x: torch.Tensor, target: torch.Tensor) -> None:
        optimiser.zero_grad()
        loss = -objective(model(x), target)
        loss.backward()
        optimiser.step()

    return climb


def measure_pictures(case: Pictures, dtype: str) -> dict[str, object]:
    """Time training steps of Adam on batches, with one draw."""
    prepare(dtype)
    x, label = (torch.as_tensor(rows) for rows in make_pictures(case, dtype))
    before = resident_megabytes()
    model = Deep(case)
    climb = climber(model, case.num_rows)

    def train() -> None:
        with gpytorch.settings.num_likelihood_samples(1):
            rows = torch.randint(len(x), (case.batch_size,))
            climb(x[rows], label[rows])

    step = fastest(train)
    return {"step_ms": 1e3 * step, "memory_mb": peak_megabytes() - before}


def measure(case: Case, dtype: str) -> dict[str, object]:
    """Time training steps of Adam and a prediction's mean and variance."""
    prepare(dtype)
    x, y, x_new = (torch.as_tensor(rows) for rows in make_rows(case, dtype))
    target = y[:, 0]
    before = resident_megabytes()

    model = Deep(case)
    climb = climber(model, case.num_rows)

    def train() -> None:
        with gpytorch.settings.num_likelihood_samples(case.num_samples):
            for _ in range(case.steps):
                climb(x, target)

    def answer() -> tuple[torch.Tensor, torch.Tensor]:
        draws = gpytorch.settings.num_likelihood_samples(NUM_PREDICTIVE_DRAWS)
        with torch.no_grad(), draws:
            law = model.likelihood(model(x_new))
            mean, variance = law.mean, law.variance
            return mean.mean(0), variance.mean(0) + mean.var(0, correction=0)

    step = fastest(train) / case.steps
    memory = peak_megabytes() - before
    model.eval()
    return {
        "step_ms": 1e3 * step,
        "predict_ms": 1e3 * fastest(answer),
        "memory_mb": memory,
        "versions": {name: version(name) for name in ("gpytorch", "torch", "numpy")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=int, default=-1, help="number of the case; -1 is the quick")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pictures", action="store_true", help="time a classifier instead")
    args = parser.parse_args()
    quick = args.case < 0
    if args.pictures:
        record = measure_pictures(FEW_PICTURES if quick else PICTURES, args.dtype)
    else:
        record = measure(QUICK if quick else CASES[args.case], args.dtype)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
