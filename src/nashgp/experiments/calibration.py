"""Whether posteriors are calibrated: functions drawn from the prior among draws given their rows.

    nashgp run calibration

Simulation-based calibration (Talts et al. 2018) of one layer and of two, with known hyperparameters
and conditionals that are their means. Each replicate draws inducing values from the prior and rows
from the model, then infers the function from the rows; the rank of the true function at three new
inputs among posterior draws is uniform if the posterior is right. `gaussian` is a Gaussian for each
layer, `anchored` the game over all layers, and `collapsed` the game over hidden layers with the
last integrated out, as the library plays it where noise is normal. All replicates are trained as
one batched program. `spread` is the variance of the ranks over that of uniform ones: above 1 the
posterior is too narrow.
"""

import dataclasses
import time

import numpy as np

from nashgp.experiments import cells

NEW_INPUTS = (-1.2, -0.1, 0.7)
NUM_INDUCING = {"one-layer": (6,), "two-layer": (5, 6)}
KINDS = ("gaussian", "anchored", "collapsed")


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """One set of replicates of a model; `split` is its seed, `scale` where the posterior starts."""

    kind: str = "anchored"
    scale: float = 0.5
    rate: float = 0.02
    num_replicates: int = 300
    num_draws: int = 99
    num_rows: int = 12
    noise: float = 0.05
    num_samples: int = 8
    num_steps: int = 3_000

    def check(self) -> None:
        """Names alone: the rows are drawn from the model, any seed will do."""
        cells.check_name("sets", self.set, NUM_INDUCING)
        cells.check_name("kinds", self.kind, KINDS)

    def run(self) -> cells.Scores:
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import jax.random as jr

        from nashgp import recipes
        from nashgp.batch import make_data
        from nashgp.diagnostics import Calibration
        from nashgp.engines import DSVI, Collapsed
        from nashgp.layers import Inducing, SparseGPLayer
        from nashgp.likelihoods import Gaussian
        from nashgp.means import Zero
        from nashgp.model import DeepGP
        from nashgp.posteriors import Fitted, gaussian_posterior
        from nashgp.precision import cast

        layers = tuple(
            SparseGPLayer(
                recipes.KERNELS["rbf"](0.7), Zero(1), jnp.linspace(-reach, reach, num)[:, None], 1
            )
            for reach, num in zip((1.0, 2.0), NUM_INDUCING[self.set], strict=False)
        )
        likelihood = Gaussian(np.full(1, self.noise))
        model = cast(DeepGP(layers, likelihood, deterministic=True), "float32")
        start = Fitted(
            model, gaussian_posterior(model, hidden_scale=self.scale, last_scale=self.scale)
        )
        whole = self.kind != "collapsed"
        if self.kind != "gaussian":
            start = recipes.anchor(start, whole=whole, seed=self.split, noise_dim=4, first_mix=0.3)
        engine = (DSVI if whole else Collapsed)(
            self.rate,
            self.num_samples,
            decay_steps=self.num_steps,
            network_rate=0.1 * self.rate,
            model_rate=0.0,
            power=0.0,
            **({"draw_inducing": True} if whole else {}),
        )
        inputs = np.linspace(-1.0, 1.0, self.num_rows)[:, None]
        x, x_new = (
            jnp.asarray(rows, "float32") for rows in (inputs, np.array(NEW_INPUTS)[:, None])
        )
        data = make_data(inputs, np.zeros_like(inputs), dtype="float32")

        def function(values, rows):
            """Every draw's function, [S, N]; where conditionals are means, noise has no effect."""
            still = model.noise(jr.key(0), len(values[0]), 1)
            return model.propagate(rows, tuple(map(Inducing, values)), still).mean[:, :, 0]

        @eqx.filter_jit
        def simulate(key):
            draw, noise = jr.split(key)
            values = tuple(
                jr.normal(k, (self.num_replicates, layer.num_inducing, 1))
                for k, layer in zip(jr.split(draw, len(layers)), layers, strict=True)
            )
            clean = function(values, x)
            y = clean + self.noise**0.5 * jr.normal(noise, clean.shape)
            return y[:, :, None], function(values, x_new)

        @eqx.filter_jit
        def infer(key, y):
            def one(key, y):
                rows = eqx.tree_at(lambda d: d.y, data, y)
                batch = rows.all()
                climb, draw = jr.split(key)

                def step(number, state):
                    return engine.step(jr.fold_in(climb, number), state, batch)[0]

                state = jax.lax.fori_loop(0, self.num_steps, step, engine.init(climb, start))
                fitted = engine.result(draw, state, rows, self.num_draws)
                return function(fitted.posterior.sample(draw, model, self.num_draws), x_new)

            return jax.vmap(one)(jr.split(key, self.num_replicates), y)

        make, fit = jr.split(jr.key(self.split))
        began = time.perf_counter()
        y, truth = simulate(make)
        draws = np.asarray(infer(fit, y))
        ranks = np.sum(draws < np.asarray(truth)[:, None], axis=1)
        found = Calibration(ranks, self.num_draws)
        return {
            "p_value": float(min(1.0, len(NEW_INPUTS) * np.min(found.p_values))),
            "rank_spread": float(np.mean(found.spread)),
            "ranks": ranks.tolist(),
            "seconds": time.perf_counter() - began,
        }


STUDY = cells.Study(
    "calibration",
    Cell,
    full={
        "sets": list(NUM_INDUCING),
        "splits": [0, 1],
        "kinds": list(KINDS),
        "jobs": 1,
    },
    quick={
        "sets": list(NUM_INDUCING),
        "splits": [0],
        "kinds": ["anchored"],
        "jobs": 1,
        "num_replicates": 10,
        "num_steps": 20,
    },
    axes=("set", "kind", "split"),
    label=lambda cell: f"{cell.set} {cell.kind}",
    keep=lambda cell: cell.kind != "collapsed" or len(NUM_INDUCING[cell.set]) > 1,
)
add_arguments, main = STUDY.add_arguments, STUDY.main
