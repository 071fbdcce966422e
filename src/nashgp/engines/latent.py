"""Latent inputs: the last layer integrated out for all rows, or moved by natural gradients.

`batch.x` holds the numbers of the rows. The columns of the targets share one noise, so those that
miss the same rows have one covariance, and one factorisation serves all of a group.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, PyTree

from nashgp.batch import Batch, Data
from nashgp.engines.base import Climbs, Info, ascend, number
from nashgp.engines.collapsed import check_collapsible
from nashgp.engines.objectives import data_term
from nashgp.engines.responses import Evidence, add_prior
from nashgp.errors import InputError
from nashgp.layers import Features, Inducing, Moments, SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.linalg import conjugate_gradients, inverse_root
from nashgp.model import DeepGP
from nashgp.posteriors import Below, Columns, Fitted, LatentPosterior
from nashgp.priors import Values
from nashgp.shapes import Key, Number, Scalar
from nashgp.transforms import trainable

NUM_SOLVES = 10  # steps of conjugate gradients where columns of a group miss different rows


class Response(NamedTuple):
    """`q(v_p) = N(value_p, R_g R_gᵀ)` for every column p, of group g."""

    value: Float[Array, "*S M P"]
    root: Float[Array, "*S G M M"]

    def kl(self, columns: Columns) -> Scalar:
        """`Σ_p KL(q(v_p) ‖ N(0, I))` of one draw."""
        diagonal = jnp.diagonal(self.root, axis1=1, axis2=2)
        terms = 0.5 * (jnp.sum(self.root**2, axis=(1, 2)) - self.root.shape[1])
        of_root = terms - jnp.sum(jnp.log(jnp.abs(diagonal)), axis=1)
        return jnp.sum(columns.spread_out(of_root)) + 0.5 * jnp.sum(self.value**2)

    def moments(self, columns: Columns, features: Features) -> Moments:
        """Marginals of one draw at the inputs of `features`: `E f = m(x) + A v`, `Σ (A R)²`."""
        mean = features.mean + features.a @ self.value
        spread = jnp.sum(jnp.einsum("nm,gmk->ngk", features.a, self.root) ** 2, axis=2)
        conditional = jnp.broadcast_to(features.residual[:, None], mean.shape)
        return Moments(mean, conditional, columns.spread_out(spread))


def tell(
    noise: Scalar,
    columns: Columns,
    features: Features,
    value: Float[Array, "M P"],
    batch: Batch,
    power: Number,
) -> Evidence:
    """What the rows of one draw say at some `v`, with the mean weight w̄ of each group's columns.

    Slope `Aᵀ (w / D) (y - m(x) - A v)`, precision `Aᵀ diag(w̄ / D) A`,    D = a q + σ²
    """
    a, weight = features.a, batch.scale * batch.weight
    precision = 1.0 / (power * features.residual + noise)[:, None]
    gram = jax.vmap(lambda w: (a * w[:, None]).T @ a, in_axes=1)
    slope = a.T @ (weight * precision * (batch.y - features.mean - a @ value))
    return Evidence(slope, gram(precision * columns.average(weight)))


def respond(
    noise: Scalar, columns: Columns, features: Features, batch: Batch, power: Number
) -> Response:
    """The best Gaussians that columns of a group can share, of one draw.

        B_g = I + Aᵀ diag(w̄_g / D) A        B_p v_p = Aᵀ (w_p / D) (y_p - m_p(x))

    with `w̄_g` the mean weight of the group's columns: their own where groups are exact, and then
    `B_p = B_g` and nothing is left to solve.
    """

    def told(value: Float[Array, "M P"]) -> Evidence:
        return tell(noise, columns, features, value, batch, power)

    right, precision = told(jnp.zeros((features.a.shape[1], batch.y.shape[1]), features.a.dtype))
    root = jax.vmap(inverse_root)(add_prior(precision))

    def precondition(v: Float[Array, "M P"]) -> Float[Array, "M P"]:
        return solve(columns, root, v)

    if columns.exact:
        return Response(precondition(right), root)

    def apply(v: Float[Array, "M P"]) -> Float[Array, "M P"]:
        return v + right - told(v).slope  # the slope is linear in v

    return Response(conjugate_gradients(apply, precondition, right, NUM_SOLVES), root)


def solve(
    columns: Columns, root: Float[Array, "G M M"], right: Float[Array, "M P"]
) -> Float[Array, "M P"]:
    """`R_g R_gᵀ b_p` of each column."""
    return columns.times(root, columns.times(jnp.swapaxes(root, 1, 2), right))


class Drawn(NamedTuple):
    """Draws of all below the last layer, and what the last layer knows of the rows then."""

    values: Values
    features: Features
    z: Values | None  # inducing inputs of every layer, where they are the rows themselves


def draw_below(
    key: Key, model: DeepGP, below: Below, batch: Batch, num_samples: int
) -> tuple[Drawn, Scalar]:
    """Draws, stacked along a leading axis, and the KL of what was drawn."""
    latent, draw, noise = jr.split(key, 3)
    rows = batch.x[:, 0].astype(jnp.int32)
    x, each = below.latents.sample_and_kl(latent, rows, num_samples)
    values, kl = below.hidden.sample_and_kl(draw, model, num_samples)
    kl = kl + batch.scale * jnp.sum(each)
    if below.dense:
        z, features = jax.vmap(lambda x, values: dense_features(model, x, values))(x, values)
        return Drawn(values, features, z), kl
    eps = model.noise(noise, num_samples, len(rows))

    def one(x: Array, values: Values, eps: Values) -> Features:
        """One draw has inputs of its own, so it goes through the layers by itself."""
        values, eps = jax.tree.map(lambda leaf: leaf[None], (values, eps))
        features = model.last_features(x, tuple(map(Inducing, values)), eps)
        return jax.tree.map(lambda leaf: leaf[0], features)

    return Drawn(values, jax.vmap(one)(x, values, eps), None), kl


def dense_features(
    model: DeepGP, x: Float[Array, "N D"], values: Values
) -> tuple[Values, Features]:
    """Inputs of every layer for one draw, and the features of the last layer at its own inputs.

        f_l = m(f_{l-1}) + C v_l,    C Cᵀ = K(f_{l-1}, f_{l-1}),    and    A = C,  q = 0

    since a row that is an inducing input has nothing left of its prior variance.
    """
    *hidden, last = model.layers
    inputs = [x]
    for layer, value in zip(hidden, values, strict=True):
        inputs.append(_placed(layer, inputs[-1]).unwhiten(value))
    chol = _placed(last, inputs[-1]).factor().chol
    return tuple(inputs), Features(last.mean(inputs[-1]), chol, jnp.zeros_like(chol[0]))


def _placed(layer: SparseGPLayer, z: Float[Array, "N D"]) -> SparseGPLayer:
    """The layer with inducing inputs elsewhere."""
    return eqx.tree_at(lambda each: each.z, layer, z)


def latent_objective(
    key: Key,
    model: DeepGP,
    below: Below,
    columns: Columns,
    batch: Batch,
    *,
    num_samples: int,
    power: Number = 0.0,
) -> Scalar:
    """The objective with the last layer integrated out, over latents and hidden layers.

        1/S Σ_s Σ_p log ∫ N(v_p | 0, I) exp(data term of draw s at v_p) dv_p - KL(below)

    The best Gaussians are held fixed in its gradient, which is that of the value itself where
    groups are exact. First derivatives only.
    """
    draw, rest = jr.split(key)
    drawn, kl = draw_below(draw, model, below, batch, num_samples)
    last = jax.lax.stop_gradient(_respond(model, columns, drawn.features, batch, power))
    moments = jax.vmap(lambda r, f: r.moments(columns, f))(last, drawn.features)
    gain = jnp.mean(jax.vmap(lambda r: r.kl(columns))(last))
    return data_term(rest, model, moments, batch, power=power) - gain - kl


def _respond(
    model: DeepGP, columns: Columns, features: Features, batch: Batch, power: Number
) -> Response:
    """The response to each draw."""
    assert isinstance(model.likelihood, Gaussian)
    noise = model.likelihood.noise
    return jax.vmap(lambda f: respond(noise, columns, f, batch, power))(features)


def check_latents(fitted: Fitted) -> LatentPosterior:
    """The posterior with its latents, or `InputError` for what these engines cannot train."""
    check_collapsible(fitted.model)
    if not isinstance(fitted.posterior, LatentPosterior):
        kind = type(fitted.posterior).__name__
        raise InputError(f"a {kind} knows no latents; start from nashgp.latent.start.")
    assert isinstance(fitted.model.likelihood, Gaussian)
    if fitted.model.likelihood.raw_noise.ndim:
        raise InputError("columns share covariances if they share the noise; give one number.")
    return fitted.posterior


class State(NamedTuple):
    """The trainable part of model and all below, the rest, Adam's memory, the power."""

    params: PyTree
    frozen: PyTree
    opt_state: optax.OptState
    columns: Columns
    power: Scalar


@dataclasses.dataclass(frozen=True)
class CollapsedLatents(Climbs):
    """Maximise the objective over latents, hidden layers, inducing inputs and hyperparameters.

    One layer at power 0 is the Bayesian GPLVM of Titsias and Lawrence (2010), its expectations
    over the latents by draws. Every step needs all rows.
    """

    learning_rate: float = number(0.01)
    num_samples: int = 1
    power: float = number(0.0)
    decay_steps: int | None = number(None)
    network_rate: float | None = None
    model_rate: float | None = None

    def init(self, key: Key, fitted: Fitted) -> State:
        del key  # nothing random about the start
        posterior = check_latents(fitted)
        parts = (fitted.model, posterior.below)
        params, frozen = eqx.partition(parts, trainable(parts))
        power = jnp.asarray(self.power, posterior.mean.dtype)
        return State(params, frozen, self._adam.init(params), posterior.columns, power)

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, Info]:
        def payoff(params: PyTree) -> Scalar:
            model, below = eqx.combine(params, state.frozen)
            return latent_objective(
                key,
                model,
                below,
                state.columns,
                batch,
                num_samples=self.num_samples,
                power=state.power,
            )

        value, gradient = eqx.filter_value_and_grad(payoff)(state.params)
        params, opt_state = ascend(self._adam, state.opt_state, state.params, gradient)
        return state._replace(params=params, opt_state=opt_state), Info(value)

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        """`num` joint draws below the last layer, each with the Gaussians that belong to it."""
        model, below = eqx.combine(state.params, state.frozen)
        batch = data.all()

        def one(key: Key) -> tuple[Values, Response, Values | None]:
            drawn, _ = draw_below(key, model, below, batch, 1)
            last = _respond(model, state.columns, drawn.features, batch, state.power)
            return drawn.values, last, drawn.z

        drawn = jax.lax.map(one, jr.split(key, max(1, num)))  # one at a time, for memory
        values, last, z = jax.tree.map(lambda leaf: leaf[:, 0], drawn)
        return Fitted(
            model, LatentPosterior(below, state.columns, values, last.value, last.root, z)
        )


class Last(NamedTuple):
    """`q(v_p) = N(value_p, precision_g⁻¹)` for every column p, of group g."""

    value: Float[Array, "M P"]
    precision: Float[Array, "G M M"]

    def response(self) -> Response:
        return Response(self.value, jax.vmap(inverse_root)(self.precision))


class MovingState(NamedTuple):
    """The trainable part, the rest, Adam's memory, q(v_L), and the steps taken."""

    params: PyTree
    frozen: PyTree
    opt_state: optax.OptState
    columns: Columns
    last: Last
    taken: Scalar


@dataclasses.dataclass(frozen=True)
class NaturalLatents(Climbs):
    """Move q(v_L) along its natural gradient, then climb with everything else: mini-batches.

        P_g ← P_g + ρ (I + Aᵀ diag(w̄_g / D) A - P_g)        v_p ← v_p + ρ P_g⁻¹ ∂/∂v_p

    with the new P. ρ starts at 1, where one step with all rows and exact groups is the optimum of
    a single draw, and falls as `1 / t` down to `rate`.
    """

    learning_rate: float = number(0.01)
    num_samples: int = 1
    power: float = 0.0
    rate: float = 0.1
    decay_steps: int | None = number(None)
    network_rate: float | None = None
    model_rate: float | None = None

    def init(self, key: Key, fitted: Fitted) -> MovingState:
        del key  # nothing random about the start
        posterior = check_latents(fitted)
        if posterior.below.dense:
            raise InputError("a dense model needs all rows in each step; use CollapsedLatents.")
        parts = (fitted.model, posterior.below)
        params, frozen = eqx.partition(parts, trainable(parts))
        mean = posterior.mean[0]
        eye = jnp.eye(len(mean), dtype=mean.dtype)
        last = Last(jnp.zeros_like(mean), jnp.tile(eye[None], (posterior.columns.num_groups, 1, 1)))
        taken = jnp.zeros((), mean.dtype)
        opt_state = self._adam.init(params)
        return MovingState(params, frozen, opt_state, posterior.columns, last, taken)

    def step(self, key: Key, state: MovingState, batch: Batch) -> tuple[MovingState, Info]:
        draw, rest = jr.split(key)

        def payoff(params: PyTree) -> tuple[Scalar, Last]:
            model, below = eqx.combine(params, state.frozen)
            drawn, kl = draw_below(draw, model, below, batch, self.num_samples)
            held, features = jax.lax.stop_gradient((model, drawn.features))
            last = self._move(state, held, features, batch)
            q = last.response()
            moments = jax.vmap(lambda f: q.moments(state.columns, f))(drawn.features)
            value = data_term(rest, model, moments, batch, power=self.power)
            return value - q.kl(state.columns) - kl, last

        (value, last), gradient = eqx.filter_value_and_grad(payoff, has_aux=True)(state.params)
        params, opt_state = ascend(self._adam, state.opt_state, state.params, gradient)
        moved = state._replace(params=params, opt_state=opt_state, last=last)
        return moved._replace(taken=state.taken + 1.0), Info(value)

    def _move(self, state: MovingState, model: DeepGP, features: Features, batch: Batch) -> Last:
        """One natural gradient step of q(v_L)."""
        assert isinstance(model.likelihood, Gaussian)
        noise, columns, old = model.likelihood.noise, state.columns, state.last
        each = jax.vmap(lambda f: tell(noise, columns, f, old.value, batch, self.power))(features)
        rows = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), each)
        rate = jnp.maximum(self.rate, 1.0 / (state.taken + 1.0))
        precision = old.precision + rate * (add_prior(rows.precision) - old.precision)
        root = jax.vmap(inverse_root)(precision)
        return Last(old.value + rate * solve(columns, root, rows.slope - old.value), precision)

    def result(self, key: Key, state: MovingState, data: Data, num: int) -> Fitted:
        """`num` draws of the hidden layers, all with the same Gaussians of the last one."""
        del data
        model, below = eqx.combine(state.params, state.frozen)
        num = max(1, num) if len(model.layers) > 1 else 1
        values = below.hidden.sample(key, model, num)
        last = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf[None], (num, *leaf.shape)), state.last.response()
        )
        return Fitted(model, LatentPosterior(below, state.columns, values, *last))
