"""The objective of variational engines: data term minus KL."""

import jax
import jax.numpy as jnp
import jax.random as jr

from nashgp.batch import Batch
from nashgp.layers import Inducing
from nashgp.likelihoods import masked_sum
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted
from nashgp.shapes import Key, Number, Scalar


def data_term(
    key: Key,
    model: DeepGP,
    inducing: tuple[Inducing, ...],
    batch: Batch,
    *,
    num_samples: int,
    power: Number = 0.0,
) -> Scalar:
    """`Σ_n (1/a) log E[p(y_n | f_n)^a | u]`, averaged over draws, scaled to the whole data.

    The inner expectation is over the last layer's conditional; power `a -> 0` is the ELBO's
    expected log likelihood. Hidden layers are drawn with noise of their own for each row.
    """
    draw, spread = jr.split(key)
    noise = model.noise(draw, num_samples, batch.x.shape[0])
    moments = model.propagate(batch.x, inducing, noise)

    def one(k: Key, mean: jax.Array, conditional: jax.Array, spread: jax.Array | None) -> Scalar:
        terms = model.likelihood.data_term(k, mean, conditional, spread, batch.y, power)
        return masked_sum(terms, batch.weight)

    keys = jr.split(spread, moments.mean.shape[0])
    return batch.scale * jnp.mean(jax.vmap(one)(keys, *moments))


def objective(
    key: Key,
    fitted: Fitted,
    batch: Batch,
    *,
    num_samples: int,
    power: Number = 0.0,
    draw_inducing: bool = False,
) -> Scalar:
    """Data term minus KL, in nats over the whole data; the ELBO when `power` is 0.

    The inducing values are integrated out in closed form when the posterior allows it (DSVI as
    published), or drawn: K draws shared by all rows, cheaper per step and noisier.
    """
    draw, rest = jr.split(key)
    values, kl = fitted.posterior.sample_and_kl(draw, fitted.model, num_samples)
    gaussians = None if draw_inducing else fitted.posterior.gaussians()
    inducing = gaussians or tuple(Inducing(value) for value in values)
    term = data_term(rest, fitted.model, inducing, batch, num_samples=num_samples, power=power)
    return term - kl
