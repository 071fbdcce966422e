"""Times `nashgp` on one case in this process, and prints one line of JSON."""

import argparse
import json
import time
from importlib.metadata import version

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.cases import (
    CASES,
    FEW_PICTURES,
    NUM_DRAWS,
    NUM_PREDICTIVE_DRAWS,
    PICTURES,
    QUICK,
    REPEATS,
    STEPS,
    Case,
    Pictures,
    fastest,
    make_pictures,
    make_rows,
    peak_megabytes,
    resident_megabytes,
)
from nashgp import predict, recipes, train
from nashgp.batch import make_data
from nashgp.engines import DSVI, NaturalGradient
from nashgp.likelihoods import RobustMax
from nashgp.precision import scope


def measure(case: Case, dtype: str, step: str) -> dict[str, object]:
    """Time training through `train.run` and prediction through `predict.summarise`."""
    x, y, x_new = make_rows(case, dtype)
    data = make_data(x, y, dtype=dtype)
    before = resident_megabytes()

    config = recipes.Config(case.num_layers, case.num_inputs, case.num_inducing)
    start = recipes.build(x, 1, config, dtype=dtype)
    if step == "anchored":
        start = recipes.anchor(start, whole=True)
    engine = DSVI(num_samples=case.num_samples, draw_inducing=STEPS[step])

    def fit(num_steps: int) -> train.Outcome:
        key = jr.key(0)
        return train.run(key, engine, start, data, num_steps=num_steps, chunk=case.steps)

    began = time.perf_counter()
    fit(1)
    compiled = time.perf_counter() - began
    outcome = fit((REPEATS + 1) * case.steps)
    steps = np.diff(outcome.history.seconds) / case.steps
    memory = peak_megabytes() - before

    def answer() -> object:
        return predict.summarise(
            predict.moments, jr.key(1), outcome.fitted, x_new, num_samples=NUM_PREDICTIVE_DRAWS
        )

    @eqx.filter_jit
    def values(key, fitted):
        return fitted.posterior.sample(key, fitted.model, NUM_DRAWS)

    def draw() -> object:
        with scope(dtype):
            return jax.block_until_ready(values(jr.key(2), outcome.fitted))

    return {
        "step_ms": 1e3 * float(np.min(steps)),
        "predict_ms": 1e3 * fastest(answer),
        "draws_ms": 1e3 * fastest(draw),
        "memory_mb": memory,
        "compile_s": compiled,
        "versions": {name: version(name) for name in ("nashgp", "jax", "jaxlib", "numpy")},
    }


def measure_pictures(case: Pictures, dtype: str) -> dict[str, object]:
    """Time a step of the image study: natural gradients for the classes, Adam for the rest."""
    x, label = make_pictures(case, dtype)
    data = make_data(x, label[:, None].astype(dtype), dtype=dtype)
    before = resident_megabytes()
    config = recipes.Config(
        case.num_layers,
        case.num_hidden,
        case.num_inducing,
        likelihood=RobustMax(case.num_classes),
        shared=True,
    )
    start = recipes.build(x, 1, config, dtype=dtype)
    engine, num_steps = NaturalGradient(), (REPEATS + 1) * case.steps
    began = time.perf_counter()
    options = {"batch_size": case.batch_size, "chunk": case.steps}
    train.run(jr.key(0), engine, start, data, num_steps=1, **options)
    compiled = time.perf_counter() - began
    history = train.run(jr.key(0), engine, start, data, num_steps=num_steps, **options).history
    return {
        "step_ms": 1e3 * float(np.min(np.diff(history.seconds) / case.steps)),
        "memory_mb": peak_megabytes() - before,
        "compile_s": compiled,
    }


def gemm_gflops(dtype: str, size: int = 2048) -> float:
    """Speed of a large matrix product in JAX: the peak a step is held against."""
    with scope(dtype):
        a = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), dtype)
        product = jax.jit(jnp.matmul)
        return 2e-9 * size**3 / fastest(lambda: product(a, a).block_until_ready())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=int, default=-1, help="number of the case; -1 is the quick")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--step", default="integrated", choices=STEPS, help="kind of step")
    parser.add_argument("--gemm", action="store_true", help="time a matrix product instead")
    parser.add_argument("--pictures", action="store_true", help="time a classifier instead")
    args = parser.parse_args()
    if args.gemm:
        record = {"gemm_gflops": gemm_gflops(args.dtype)}
    elif args.pictures:
        record = measure_pictures(FEW_PICTURES if args.case < 0 else PICTURES, args.dtype)
    else:
        case = QUICK if args.case < 0 else CASES[args.case]
        record = measure(case, args.dtype, args.step)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
