"""The objective of variational engines: data term minus KL."""

import jax
import jax.numpy as jnp
import jax.random as jr

from nashgp.batch import Batch
from nashgp.engines.responses import best_response
from nashgp.layers import Features, Inducing, Moments
from nashgp.likelihoods import masked_sum
from nashgp.model import DeepGP
from nashgp.posteriors import AbstractVariational, Fitted
from nashgp.priors import Values
from nashgp.shapes import Key, Number, Scalar


def data_term(
    key: Key, model: DeepGP, moments: Moments, batch: Batch, *, power: Number = 0.0
) -> Scalar:
    """`Σ_n (1/a) log E[p(y_n | f_n)^a | u]`, averaged over draws, scaled to the whole data.

    The inner expectation is over the last layer's conditional; power `a -> 0` is the ELBO's
    expected log likelihood. The log prior of what the model finds without integrating it out is
    added, if there is any.
    """
    likelihood = model.likelihood.at(batch.x)

    def one(k: Key, mean: jax.Array, conditional: jax.Array, spread: jax.Array | None) -> Scalar:
        terms = likelihood.data_term(k, mean, conditional, spread, batch.y, power)
        return masked_sum(terms, batch.weight)

    keys = jr.split(key, len(moments.mean))
    return batch.scale * jnp.mean(jax.vmap(one)(keys, *moments)) + model.log_prior()


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
    published), or drawn: K draws shared by all rows, cheaper per step and noisier. Hidden layers
    have noise of their own for each row.
    """
    draw, rest = jr.split(key)
    noise, rest = jr.split(rest)
    model, posterior = fitted.model, variational(fitted)
    values, kl = posterior.sample_and_kl(draw, model, num_samples)
    gaussians = None if draw_inducing else posterior.gaussians()
    inducing = gaussians or tuple(Inducing(value) for value in values)
    eps = model.noise(noise, num_samples, len(batch.x))
    moments = model.propagate(batch.x, inducing, eps)
    return data_term(rest, model, moments, batch, power=power) - kl


def log_likelihood(
    noise: Key, rest: Key, model: DeepGP, values: Values, batch: Batch, power: Number
) -> Scalar:
    """`L(θ, U)` averaged over given draws of U, scaled to the whole data."""
    eps = model.noise(noise, len(values[0]), len(batch.x))
    moments = model.propagate(batch.x, tuple(map(Inducing, values)), eps)
    return data_term(rest, model, moments, batch, power=power)


def collapsed_objective(
    key: Key,
    model: DeepGP,
    hidden: AbstractVariational,
    batch: Batch,
    *,
    num_samples: int,
    power: Number = 0.0,
) -> Scalar:
    """The objective with the last layer integrated out, for a Gaussian likelihood and all rows.

        1/K Σ_k log ∫ N(v | 0, I) exp(data term of draw k at v) dv  -  KL(hidden layers)

    which is `log N(y | 0, A Aᵀ + D) - (1-a)/2a Σ log(1 + a q/σ²)` for each draw. It is the
    largest value of `data term - KL` over Gaussians of the last layer, so its gradient is that of
    the latter with the best Gaussian held fixed: nothing needs to be differentiated through the
    solve. First derivatives only.

    It bounds the evidence of the model whose hidden rows are independent given the inducing
    values, which is the model that draws hidden noise for each row in prediction.
    """
    draw, rest = jr.split(key)
    values, features, kl = draw_hidden(draw, model, hidden, batch, num_samples)
    del values
    last = jax.lax.stop_gradient(respond(rest, model, features, batch, power))
    moments = model.moments(len(model.layers) - 1, features, last)
    return data_term(rest, model, moments, batch, power=power) - jnp.mean(last.kl()) - kl


def draw_hidden(
    key: Key, model: DeepGP, hidden: AbstractVariational, batch: Batch, num_samples: int
) -> tuple[Values, Features, Scalar]:
    """Draws of the layers below the last, the features of the last, and the KL of those below."""
    draw, noise = jr.split(key)
    values, kl = hidden.sample_and_kl(draw, model, num_samples)
    eps = model.noise(noise, num_samples, len(batch.x))
    return values, model.last_features(batch.x, tuple(map(Inducing, values)), eps), kl


def respond(key: Key, model: DeepGP, features: Features, batch: Batch, power: Number) -> Inducing:
    """The last layer's best Gaussian for each draw of the layers below."""
    likelihood, features = jax.lax.stop_gradient((model.likelihood.at(batch.x), features))
    weight = batch.scale * batch.weight

    def one(features: Features) -> Inducing:
        return best_response(key, likelihood, features, batch.y, weight, power)

    return jax.vmap(one)(features)


def variational(fitted: Fitted) -> AbstractVariational:
    """The posterior, if training can improve it."""
    assert isinstance(fitted.posterior, AbstractVariational)
    return fitted.posterior
