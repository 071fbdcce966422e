"""Scale-adapted stochastic gradient Hamiltonian Monte Carlo over all layers' inducing values.

With `g` a stochastic gradient of `log p(y, v) / N` and `s²` the running mean of its squares,

    p ← (1 - α) p + ε²/s g + √(2 α ε²/(N s) - V ε⁴) ξ,    ξ ~ N(0, I)
    v ← v + p

leaves `p(v | y)` nearly as it is while `ε²` is small: friction takes out what noise puts in. The
last term under the root is noise that a gradient from a mini-batch has brought already.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from nashgp.batch import Batch, Data
from nashgp.engines.base import Pace, adam, ascend, number
from nashgp.engines.objectives import data_term
from nashgp.errors import InputError
from nashgp.layers import Inducing
from nashgp.model import DeepGP
from nashgp.posteriors import DrawnPosterior, Fitted
from nashgp.priors import Values
from nashgp.shapes import Key, Number, Scalar
from nashgp.transforms import trainable

TINY = 1e-16  # of a mean square: no coordinate's step is infinite

ChainValues = Float[Array, " K"]


class ChainInfo(NamedTuple):
    """What a step saw: `log p(y, v)` of each chain, and the mean over them."""

    objective: Scalar
    log_density: ChainValues


class Scales(NamedTuple):
    """Running mean of the gradient and of its square, and over how many steps they run."""

    mean: Values
    square: Values
    memory: Values


class Kept(NamedTuple):
    """A ring of draws and their log densities."""

    values: Values
    log_density: Float[Array, "R K"]


class Seen(NamedTuple):
    """Where the chains stand: densities, slopes, and the hyperparameters of the next step."""

    log_density: ChainValues
    slopes: Values
    params: PyTree
    opt_state: optax.OptState


class Numbers(NamedTuple):
    """Settings that are no part of the program."""

    friction: Scalar
    gradient_noise: Scalar
    power: Scalar
    pull: Scalar
    burn_in: Int[Array, ""]
    freeze: Int[Array, ""]
    spacing: Int[Array, ""]


class State(NamedTuple):
    """Model and optimiser, the chains with momenta and scales, recent and kept draws.

    `pace` counts the steps and holds the step size. Every array of chains has their axis first,
    those of `window` and `kept` second.
    """

    params: PyTree
    frozen: PyTree
    origin: PyTree
    opt_state: optax.OptState
    values: Values
    momentum: Values
    scales: Scales
    window: Values
    kept: Kept
    pace: Pace
    numbers: Numbers


@dataclasses.dataclass(frozen=True)
class SGHMC:
    """Sample `p(v | y)`, and climb `log p(y, v)` with the hyperparameters at recent draws.

    Havasi, Hernández-Lobato and Murillo-Fuentes, "Inference in deep Gaussian processes using
    stochastic gradient Hamiltonian Monte Carlo" (2018), with the settings of its code:

    - `step_size` ε and `friction` α of the sampler; ε² is the η of Chen et al. (2014).
    - `gradient_noise` V, in units of s²: 0 takes gradients as exact, 1 is the published
      scale-adapted sampler (Springenberg et al. 2016).
    - `start`: where every whitened value begins; None for a draw of the posterior that is there.
    - `burn_in` steps in which scales adapt; then they are held, and every `spacing` steps a draw of
      each of `num_chains` is kept, the last `num_draws` of them.
    - `learning_rate` of Adam for kernels, inducing inputs and likelihood, which climb at a random
      one of the last `window` positions (moving-window Monte Carlo EM), all chains together.
    - `freeze`: steps after which hyperparameters are held, None for those of the burn-in.
    - `hyper_prior`: standard deviation of a normal prior around their start for unconstrained
      hyperparameters, inducing inputs left out; None for none.
    - `power` of the data term; 1 is the density of a row given the inducing values.
    """

    learning_rate: float = number(0.01)
    step_size: float = number(0.01)
    friction: float = number(0.05)
    gradient_noise: float = number(0.0)
    start: float | None = number(0.0)
    burn_in: int = number(10_000)
    spacing: int = number(50)
    freeze: int | None = number(None)
    hyper_prior: float | None = number(None)
    power: float = number(1.0)
    num_samples: int = 1
    num_chains: int = 1
    num_draws: int = 100
    window: int = 1

    def __post_init__(self) -> None:
        for name in ("spacing", "num_samples", "num_chains", "num_draws", "window"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        _check("step_size", self.step_size, self.step_size > 0.0, "above 0")
        _check("friction", self.friction, 0.0 < self.friction <= 1.0, "above 0 and at most 1")
        noise = self.gradient_noise
        _check("gradient_noise", noise, noise >= 0.0, "at least 0")
        _check("burn_in", self.burn_in, self.burn_in >= 0, "at least 0")
        freeze, prior = self.freeze, self.hyper_prior
        _check("freeze", freeze, freeze is None or freeze >= 0, "None or at least 0")
        _check("hyper_prior", prior, prior is None or prior > 0.0, "None or above 0")

    def init(self, key: Key, fitted: Fitted) -> State:
        model = fitted.model
        params, frozen = eqx.partition(model, trainable(model))
        values, dtype = self._first(key, fitted), model.layers[0].z.dtype
        zeros, ones = (jax.tree.map(fill, values) for fill in (jnp.zeros_like, jnp.ones_like))
        freeze = self.burn_in if self.freeze is None else self.freeze
        pull = 0.0 if self.hyper_prior is None else self.hyper_prior**-2
        floats = (self.friction, self.gradient_noise, self.power, pull)
        counts = (self.burn_in, freeze, self.spacing)
        return State(
            params,
            frozen,
            origin=params,
            opt_state=self._adam.init(params),
            values=values,
            momentum=zeros,
            scales=Scales(zeros, ones, ones),  # as if one gradient of 1 had been seen
            window=_rings(values, self.window),
            kept=Kept(
                _rings(values, self.num_draws), jnp.zeros((self.num_draws, self.num_chains), dtype)
            ),
            pace=Pace(jnp.zeros((), int), jnp.asarray(self.step_size, dtype), jnp.zeros((), dtype)),
            numbers=Numbers(
                *(jnp.asarray(one, dtype) for one in floats),
                *(jnp.asarray(one, int) for one in counts),
            ),
        )

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, ChainInfo]:
        look, shake = jr.split(key)
        slot = state.pace.step % self.window
        state = state._replace(window=_write(state.window, state.values, slot))
        learns = state.pace.step < state.numbers.freeze
        seen = jax.lax.cond(
            learns,
            lambda state: self._learn(look, state, batch),
            lambda state: self._look(look, state, batch),
            state,
        )
        state = self._move(shake, state, seen, batch)
        return state, ChainInfo(jnp.mean(seen.log_density), seen.log_density)

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        """`num` of the kept draws, spread evenly over them; repeated where fewer have been kept.

        Before the first of them those of the burn-in's last tenth, and before its first where the
        chains stand.
        """
        del key, data
        model = eqx.combine(state.params, state.frozen)
        count, usable = _counts(state, self.num_draws)
        times = max(1, -(-num // self.num_chains))
        slot = (count - usable + jnp.arange(times) * usable // times) % self.num_draws

        def drawn(ring: Array, now: Array) -> Array:
            draws = jnp.where(count > 0, ring[slot], now[None])
            return draws.reshape(-1, *draws.shape[2:])

        values = tuple(map(drawn, state.kept.values, state.values))
        density = state.kept.log_density
        density = drawn(density, jnp.zeros_like(density[0]))
        return Fitted(model, DrawnPosterior(values, density, self.num_chains))

    def _first(self, key: Key, fitted: Fitted) -> Values:
        """Where the chains begin; those of a sampler go on from their last draws."""
        posterior, model = fitted.posterior, fitted.model
        if isinstance(posterior, DrawnPosterior):
            last = posterior.last()
            turn = jnp.arange(self.num_chains) % posterior.num_chains
            return tuple(value[turn] for value in last)
        if self.start is None:
            return posterior.sample(key, model, self.num_chains)
        return tuple(
            jnp.full(
                (self.num_chains, layer.num_inducing, layer.num_outputs), self.start, layer.z.dtype
            )
            for layer in model.layers
        )

    def _look(self, key: Key, state: State, batch: Batch) -> Seen:
        """Log densities of the chains and their slopes, with the hyperparameters held."""

        def density(values: Values) -> tuple[Scalar, ChainValues]:
            return self._log_joints(key, state, state.params, values, batch)

        (_, here), slopes = jax.value_and_grad(density, has_aux=True)(state.values)
        return Seen(here, slopes, state.params, state.opt_state)

    def _learn(self, key: Key, state: State, batch: Batch) -> Seen:
        """The same, and one step of the hyperparameters up `log p(y, v)`.

        Where the chains stand both have one pass in common; at an earlier position of the window
        the hyperparameters need a pass of their own.
        """
        look, pick = jr.split(key)

        def density(params: PyTree, values: Values) -> tuple[Scalar, ChainValues]:
            return self._log_joints(look, state, params, values, batch)

        if self.window == 1:
            both = jax.value_and_grad(density, argnums=(0, 1), has_aux=True)
            (_, here), (climb, slopes) = both(state.params, state.values)
        else:
            here, slopes, *_ = self._look(look, state, batch)
            filled = jnp.minimum(state.pace.step + 1, self.window)
            slot = jr.randint(pick, (), 0, filled, filled.dtype)
            earlier = jax.tree.map(lambda ring: ring[slot], state.window)
            climb, _ = jax.grad(density, has_aux=True)(state.params, earlier)

        pull = jax.grad(_square_distance)(state.params, state.origin)
        gradient = jax.tree.map(
            lambda g, back: g / self.num_chains - 0.5 * state.numbers.pull * back, climb, pull
        )
        params, memory = ascend(self._adam, state.opt_state, state.params, gradient)
        return Seen(here, slopes, params, memory)

    def _move(self, key: Key, state: State, seen: Seen, batch: Batch) -> State:
        """One step of every chain along the slopes that were seen."""
        num_rows = batch.scale * jnp.sum(batch.weight) / batch.y.shape[1]
        slopes = jax.tree.map(lambda slope: slope / num_rows, seen.slopes)
        step, numbers, eta = state.pace.step, state.numbers, state.pace.rate**2
        friction, brought = numbers.friction, numbers.gradient_noise * eta**2

        def push(p: Array, g: Array, square: Array, xi: Array) -> Array:
            h = eta / jnp.sqrt(square + TINY)  # of earlier steps, or g would scale its own noise
            variance = 2.0 * friction * h / num_rows - brought
            return (1.0 - friction) * p + h * g + jnp.sqrt(jnp.maximum(variance, 0.0)) * xi

        noise = _normal_like(key, state.values)
        momentum = jax.tree.map(push, state.momentum, slopes, state.scales.square, noise)
        return state._replace(
            params=seen.params,
            opt_state=seen.opt_state,
            values=jax.tree.map(jnp.add, state.values, momentum),
            momentum=momentum,
            scales=_adapt(state.scales, slopes, step < numbers.burn_in),
            kept=_keep(state, seen.log_density),
            pace=state.pace._replace(step=step + 1),
        )

    def _log_joints(
        self, key: Key, state: State, params: PyTree, values: Values, batch: Batch
    ) -> tuple[Scalar, ChainValues]:
        """Log densities of all chains under some hyperparameters: their sum, and each."""
        model, power = eqx.combine(params, state.frozen), state.numbers.power

        def one(key: Key, values: Values) -> Scalar:
            return self._log_joint(key, model, values, batch, power)

        each = jax.vmap(one)(jr.split(key, self.num_chains), values)
        return jnp.sum(each), each

    def _log_joint(
        self, key: Key, model: DeepGP, values: Values, batch: Batch, power: Number
    ) -> Scalar:
        """`log p(y | v) + log p(v)` of one chain, in nats over the whole data.

        Hidden layers have noise of their own for each row, unless the model is deterministic.
        """
        noise, rest = jr.split(key)
        eps = model.noise(noise, self.num_samples, len(batch.x))
        moments = model.propagate(batch.x, tuple(map(Inducing, values)), eps)
        fit = data_term(rest, model, moments, batch, power=power)
        return fit + model.prior.log_density(model.layers, values)

    @property
    def _adam(self) -> optax.GradientTransformation:
        return adam(self.learning_rate)


def hold(state: State) -> State:
    """The same chains with the burn-in over: scales and hyperparameters stay as they are."""
    now = state.pace.step
    return state._replace(numbers=state.numbers._replace(burn_in=now, freeze=now))


def _check(name: str, value: object, good: object, where: str) -> None:
    if not good:
        raise InputError(f"{name} must be {where}, got {value}.")


def _adapt(old: Scales, slopes: Values, adapts: Bool[Array, ""]) -> Scales:
    """Running means over `memory` steps, which grows while noise outweighs the mean gradient.

    τ ← 1 + τ (1 - m²/s²)        with weight 1 / (1 + τ) for what is new
    """

    def one(mean: Array, square: Array, memory: Array, g: Array) -> tuple[Array, Array, Array]:
        weight = 1.0 / (memory + 1.0)
        longer = 1.0 + memory * (1.0 - mean**2 / (square + TINY))
        return (
            jnp.where(adapts, mean + weight * (g - mean), mean),
            jnp.where(adapts, square + weight * (g**2 - square), square),
            jnp.where(adapts, longer, memory),
        )

    each = [one(*parts) for parts in zip(*old, slopes, strict=True)]
    mean, square, memory = zip(*each, strict=True)
    return Scales(mean, square, memory)


def _keep(state: State, density: ChainValues) -> Kept:
    """Write the positions into the ring whenever `spacing` steps of a phase are over."""
    step, spacing = state.pace.step, state.numbers.spacing
    since = jnp.where(step < state.numbers.burn_in, step, step - state.numbers.burn_in)
    slot = (since // spacing) % len(state.kept.log_density)
    due = (since + 1) % spacing == 0

    def put(ring: Array, new: Array) -> Array:  # one slot is touched, not the whole ring
        return ring.at[slot].set(jnp.where(due, new, ring[slot]))

    return jax.tree.map(put, state.kept, Kept(state.values, density))


def _counts(state: State, size: int) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """How many draws the phase that counts has made, and how many of them to use, at least one.

    That of the burn-in counts until the next has made one, and its last tenth alone: older draws
    belong to other hyperparameters.
    """
    step, numbers = state.pace.step, state.numbers
    before = jnp.minimum(step, numbers.burn_in) // numbers.spacing
    after = jnp.maximum(step - numbers.burn_in, 0) // numbers.spacing
    sampled = after > 0
    count = jnp.where(sampled, after, before)
    usable = jnp.where(sampled, after, before // 10)
    return count, jnp.clip(usable, 1, size)


def _square_distance(params: PyTree, origin: PyTree) -> Scalar:
    """`‖θ - θ₀‖²` of unconstrained hyperparameters, inducing inputs left out."""

    def rest(model: PyTree) -> list[Array]:
        without = eqx.tree_at(lambda m: [layer.z for layer in m.layers], model, replace_fn=_nothing)
        return jax.tree.leaves(without)

    pairs = zip(rest(params), rest(origin), strict=True)
    return jnp.sum(jnp.stack([jnp.sum((a - b) ** 2) for a, b in pairs]))


def _nothing(leaf: object) -> None:
    del leaf


def _rings(values: Values, size: int) -> Values:
    """Room for `size` positions of the chains."""
    return jax.tree.map(lambda value: jnp.zeros((size, *value.shape), value.dtype), values)


def _write(rings: Values, values: Values, slot: Int[Array, ""]) -> Values:
    return jax.tree.map(lambda ring, value: ring.at[slot].set(value), rings, values)


def _normal_like(key: Key, values: Values) -> Values:
    keys = jr.split(key, len(values))
    return tuple(jr.normal(k, v.shape, v.dtype) for k, v in zip(keys, values, strict=True))
