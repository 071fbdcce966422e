"""The paper's game where the answer is known: one layer with given hyperparameters.

    nashgp run one-layer

The best posterior is then a Gaussian in closed form (Proposition 3 of the paper). The game starts
at random networks; its draws are compared with that Gaussian in mean (in prior standard deviations)
and covariance (relative Frobenius norm). `noise_dim` is the number of inducing inputs, so that a
generator can fill the space; `quadratic` features let Player 1 see variances. A discriminator that
sums over inducing inputs sees no correlation between them: `correlation_error` is what that costs.
"""

import dataclasses
import time

import numpy as np

from nashgp.experiments import cells

NUM_ROWS, NOISE, LENGTHSCALE = 20, 0.1, 0.5


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one game; `split` is the seed of rows and networks."""

    num_inducing: int = 1
    tying: str = "tied"
    num_steps: int = 6_000
    num_samples: int = 100
    num_player1_steps: int = 5
    generator_rate: float = 0.003
    discriminator_rate: float = 0.01
    depth: int = 1
    width: int = 20
    quadratic: bool = True

    def check(self) -> None:
        """The rows are made up, any seed will do."""

    def run(self) -> cells.Scores:
        import jax.numpy as jnp
        import jax.random as jr

        from nashgp import means, train
        from nashgp.batch import make_data
        from nashgp.engines import PaperGame
        from nashgp.layers import SparseGPLayer
        from nashgp.likelihoods import Gaussian
        from nashgp.model import DeepGP
        from nashgp.posteriors import Fitted, gaussian_posterior
        from nashgp.precision import cast
        from nashgp.recipes import KERNELS

        random = np.random.default_rng(self.split)
        x = random.uniform(-1.0, 1.0, size=(NUM_ROWS, 1))
        y = np.sin(4.0 * x) + NOISE**0.5 * random.normal(size=x.shape)
        z = np.linspace(-1.0, 1.0, 2 * self.num_inducing + 1)[1::2, None]
        layer = SparseGPLayer(
            KERNELS["rbf"]([LENGTHSCALE]), means.Zero(1), jnp.asarray(z, "float32"), 1
        )
        model = cast(DeepGP((layer,), Gaussian([NOISE])), "float32")
        began = time.perf_counter()
        engine = PaperGame(
            learning_rate=0.0,
            generator_rate=self.generator_rate,
            discriminator_rate=self.discriminator_rate,
            num_player1_steps=self.num_player1_steps,
            num_samples=self.num_samples,
            tied=self.tying == "tied",
            noise_dim=self.num_inducing,
            depth=self.depth,
            width=self.width,
            discriminator_depth=2,
            discriminator_width=32,
            quadratic=self.quadratic,
            decay_steps=self.num_steps,
        )
        outcome = train.run(
            jr.key(self.split),
            engine,
            Fitted(model, gaussian_posterior(model)),
            make_data(x, y, dtype="float32"),
            num_steps=self.num_steps,
        )
        seconds = time.perf_counter() - began
        drawn = outcome.fitted.posterior.sample(jr.key(1), outcome.fitted.model, 20_000)[0]
        start = engine.init(jr.key(self.split), Fitted(model, gaussian_posterior(model)))
        first = start.generator(jr.normal(jr.key(2), (2_000, self.num_inducing)), model.layers)[0]
        a = np.asarray(model.layers[0].features(jnp.asarray(x, "float32")).a, np.float64)
        covariance = np.linalg.inv(np.eye(self.num_inducing) + a.T @ a / NOISE)
        mean = covariance @ a.T @ y[:, 0] / NOISE
        scores = _errors(np.asarray(drawn, np.float64)[:, :, 0], mean, covariance)
        before = _errors(np.asarray(first, np.float64)[:, :, 0], mean, covariance)
        info = outcome.history.info
        return scores | {
            "mean_error_at_start": before["mean_error"],
            "covariance_error_at_start": before["covariance_error"],
            "accuracy": float(np.mean(info["accuracy"][-500:])),
            "log_ratio": float(np.mean(info["log_ratio"][-500:])),
            "kl": 0.5 * float(np.trace(covariance) + mean @ mean - len(mean))
            - 0.5 * float(np.linalg.slogdet(covariance)[1]),
            "seconds": seconds,
        }


def _errors(drawn: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> cells.Scores:
    """Largest error of a mean in prior standard deviations, relative errors of the covariance."""
    got = np.atleast_2d(np.cov(drawn.T))
    scale = np.sqrt(np.diag(covariance))
    gap = (got - covariance) / np.outer(scale, scale)
    np.fill_diagonal(gap, 0.0)
    return {
        "mean_error": float(np.max(np.abs(np.mean(drawn, axis=0) - mean))),
        "covariance_error": float(np.linalg.norm(got - covariance) / np.linalg.norm(covariance)),
        "variance_error": float(np.max(np.abs(np.diag(got) / np.diag(covariance) - 1.0))),
        "correlation_error": float(np.max(np.abs(gap))),
    }


STUDY = cells.Study(
    "one_layer",
    Cell,
    full={
        "sets": ["line"],
        "splits": [0, 1, 2],
        "num_inducings": [1, 2, 3, 4, 5],
        "tyings": ["tied", "naive"],
    },
    quick={
        "sets": ["line"],
        "splits": [0],
        "num_inducings": [1],
        "tyings": ["tied"],
        "jobs": 1,
        "num_steps": 50,
    },
    axes=("set", "num_inducing", "tying", "split"),
    label=lambda cell: f"{cell.tying} M {cell.num_inducing}",
)
add_arguments, main = STUDY.add_arguments, STUDY.main
