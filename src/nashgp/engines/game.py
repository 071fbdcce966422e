"""The paper's game: a generator and the model against a discriminator.

    Player 1 (Ψ):      E_p log(1 - σ(T(V))) + E_q log σ(T(U))
    Player 2 (θ, Φ):   E_q [L(θ, U) - T(U)],        L(θ, U) = E log p(y | f_L) given U

At Player 1's optimum `T = log q - log p`, so Player 2 climbs the ELBO. What T says is an estimate
and no bound: when draws of q and p are told apart with ease it falls short of the KL, and the
`Info` of a step is there to show it.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PyTree

from nashgp.batch import Batch, Data
from nashgp.engines.base import adam, ascend, number
from nashgp.engines.objectives import log_likelihood
from nashgp.errors import InputError
from nashgp.model import DeepGP
from nashgp.posteriors import (
    Discriminator,
    Fitted,
    GeneratedPosterior,
    Generator,
    generated_posterior,
    sample_prior,
)
from nashgp.posteriors.generated import Logits
from nashgp.priors import Values
from nashgp.shapes import Key, Scalar
from nashgp.transforms import trainable

Rate = optax.GradientTransformation

REFERENCE_DRAWS = 200  # that the moments of an adaptive contrast are taken from


class GameInfo(NamedTuple):
    """What a step saw. `objective` is the ELBO as far as Player 1 can be believed.

    `accuracy` is the share of draws that Player 1 tells right, `log_ratio` its estimate of the KL
    and `log_ratio_spread` the standard deviation of that over draws.
    """

    objective: Scalar
    accuracy: Scalar
    log_ratio: Scalar
    log_ratio_spread: Scalar
    player1: Scalar
    player2: Scalar


class State(NamedTuple):
    """Strategies and the optimisers' memories: θ, Φ and Ψ each have their own."""

    model: PyTree
    frozen: PyTree
    generator: Generator
    discriminator: Discriminator
    memory: tuple[optax.OptState, optax.OptState, optax.OptState]
    step: Int[Array, ""]


class Contrast(NamedTuple):
    """What Player 1 tells draws from: N(mean, scale²), or the prior itself where both are None."""

    mean: Values | None = None
    scale: Values | None = None


@dataclasses.dataclass(frozen=True)
class PaperGame:
    """Best-response dynamics (Algorithm 1): `num_player1_steps` moves of Player 1, one of Player 2.

    The defaults are the paper's, where it has any. Stabilisers are off unless asked for:

    - `warm_up` steps over which the weight of the KL runs from `first_kl_weight` to 1: from below
      it is a warm-up, from above a tempering.
    - `instance_noise`: standard deviation of noise added to all that Player 1 sees, falling to
      zero over `warm_up` steps. While it is large, modes overlap and mass can move between them.
    - `last_noise`: instance noise falls to this by equal factors before it goes, so that each scale
      gets as many steps as any other.
    - `gradient_penalty` on Player 1's slopes.
    - `quadratic` features of each inducing value for Player 1.
    - `num_waves` cosines and sines of each inducing value for Player 1, with frequencies of spread
      `wave_scale`. With `discriminator_depth=0` its payoff is concave.
    - `adaptive_contrast`: Player 1 tells q from the Gaussian with q's moments, and the ratio of
      that Gaussian to the prior is exact. (Mescheder et al. 2017; needs a prior with a density.)
    - `decay_steps` over which all rates fall to zero along a cosine.
    - `steady_discriminator`: Player 1's rate does not fall, so that it catches up with a Player 2
      that slows down.
    """

    learning_rate: float = number(0.025)
    generator_rate: float = number(0.001)
    discriminator_rate: float = number(0.05)
    num_player1_steps: int = 1
    num_samples: int = 10
    power: float = 0.0
    momentum: float = 0.5
    tied: bool = True
    whitened: bool = True
    noise_dim: int | None = None
    depth: int = 1
    width: int | None = None
    discriminator_depth: int = 1
    discriminator_width: int | None = None
    warm_up: int = 0
    first_kl_weight: float = 1.0
    instance_noise: float = 0.0
    last_noise: float = 0.0
    gradient_penalty: float = 0.0
    quadratic: bool = False
    num_waves: int = 0
    wave_scale: float = 5.0
    adaptive_contrast: bool = False
    decay_steps: int | None = number(None)
    steady_discriminator: bool = number(False)

    def init(self, key: Key, fitted: Fitted) -> State:
        if self.adaptive_contrast and not self.whitened:
            raise InputError("adaptive_contrast needs whitened inducing values; set whitened=True.")
        if self.instance_noise and not self.warm_up:
            raise InputError("instance_noise falls to zero over warm_up steps; set warm_up too.")
        if not 0.0 <= self.last_noise <= self.instance_noise:
            raise InputError(
                f"last_noise is what instance_noise falls to; set it between 0 and "
                f"{self.instance_noise:g}, got {self.last_noise:g}."
            )
        model, posterior = fitted.model, fitted.posterior
        if not isinstance(posterior, GeneratedPosterior):
            posterior = generated_posterior(
                key,
                model,
                tied=self.tied,
                whitened=self.whitened,
                noise_dim=self.noise_dim,
                depth=self.depth,
                width=self.width,
                discriminator_depth=self.discriminator_depth,
                discriminator_width=self.discriminator_width,
                quadratic=self.quadratic,
                num_waves=self.num_waves,
                wave_scale=self.wave_scale,
            )
        params, frozen = eqx.partition(model, trainable(model))
        generator, discriminator = posterior.generator, posterior.discriminator
        climb, make, judge = self._rates()
        memory = (
            climb.init(params),
            make.init(cast(PyTree, generator)),
            judge.init(cast(PyTree, discriminator)),
        )
        return State(params, frozen, generator, discriminator, memory, jnp.zeros((), int))

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, GameInfo]:
        first, second = jr.split(key)

        def once(number: Int[Array, ""], state: State) -> State:
            return self.player1(jr.fold_in(first, number), state)[0]

        state = jax.lax.fori_loop(1, self.num_player1_steps, once, state)
        state, seen = self.player1(first, state)
        return self._player2(second, state, batch, seen)

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        del key, data, num
        model = eqx.combine(state.model, state.frozen)
        return Fitted(model, GeneratedPosterior(state.generator, state.discriminator))

    def player1(self, key: Key, state: State) -> tuple[State, tuple[Scalar, Scalar]]:
        """Algorithm 2: tell K draws of q from K of the prior; also the payoff and the accuracy."""
        draw, compare, moments, blur, blur_too = jr.split(key, 5)
        model = eqx.combine(state.model, state.frozen)
        contrast = self._contrast(moments, model, state.generator)
        ours = self._standard(contrast, self._draws(draw, model, state.generator))
        if self.adaptive_contrast:
            theirs = _normal_like(compare, ours)
        else:
            theirs = sample_prior(compare, model, self.num_samples)
        ours, theirs = self._blur(blur, state.step, ours), self._blur(blur_too, state.step, theirs)

        def payoff(discriminator: Discriminator) -> tuple[Scalar, tuple[Scalar, Scalar]]:
            yes, no = (discriminator(values, model.layers) for values in (ours, theirs))
            value = jnp.mean(jax.nn.log_sigmoid(yes)) + jnp.mean(jax.nn.log_sigmoid(-no))
            right = 0.5 * (jnp.mean(yes > 0.0) + jnp.mean(no < 0.0)).astype(value.dtype)
            total = value
            if self.gradient_penalty:
                slopes = [_steepness(discriminator, values, model) for values in (ours, theirs)]
                total = value - 0.5 * self.gradient_penalty * (slopes[0] + slopes[1])
            return total, (value, right)

        gradient, seen = eqx.filter_grad(payoff, has_aux=True)(state.discriminator)
        model_memory, generator_memory, memory = state.memory
        discriminator, memory = ascend(self._rates()[2], memory, state.discriminator, gradient)
        memories = model_memory, generator_memory, memory
        return state._replace(discriminator=discriminator, memory=memories), seen

    def log_ratio(
        self,
        contrast: Contrast,
        discriminator: Discriminator,
        model: DeepGP,
        values: Values,
        blurred: Callable[[Values], Values] = lambda seen: seen,
    ) -> Logits:
        """Estimate of `log q(U) - log p(U)` for each draw: the logit, and what a contrast adds."""
        logits = discriminator(blurred(self._standard(contrast, values)), model.layers)
        if contrast.mean is None or contrast.scale is None:
            return logits
        log_p = jax.vmap(lambda v: model.prior.log_density(model.layers, v))(values)
        return logits + _log_normal(contrast, values) - log_p

    def _player2(
        self, key: Key, state: State, batch: Batch, seen: tuple[Scalar, Scalar]
    ) -> tuple[State, GameInfo]:
        """Algorithm 3: θ climbs L at given draws, Φ climbs L - T."""
        draw, noise, moments, rest, blur = jr.split(key, 5)
        held = jax.lax.stop_gradient(eqx.combine(state.model, state.frozen))
        contrast = self._contrast(moments, held, state.generator)
        weight = self._kl_weight(state.step)

        def payoff(players: tuple[PyTree, Generator]) -> tuple[Scalar, tuple[Scalar, Logits]]:
            params, generator = players
            model = eqx.combine(params, state.frozen)
            values = self._draws(draw, model, generator)
            fit = log_likelihood(noise, rest, model, values, batch, self.power)
            apart = self._draws(draw, held, generator)  # T moves Φ alone
            ratio = self.log_ratio(
                contrast,
                state.discriminator,
                held,
                apart,
                lambda seen: self._blur(blur, state.step, seen),
            )
            return fit - weight.astype(fit.dtype) * jnp.mean(ratio), (fit, ratio)

        players = (state.model, state.generator)
        (value, (fit, ratio)), gradient = eqx.filter_value_and_grad(payoff, has_aux=True)(players)
        rates = self._rates()
        model, model_memory = ascend(rates[0], state.memory[0], state.model, gradient[0])
        generator, memory = ascend(rates[1], state.memory[1], state.generator, gradient[1])
        mean = jnp.mean(ratio)
        info = GameInfo(fit - mean, seen[1], mean, jnp.std(ratio), seen[0], value)
        state = state._replace(
            model=model,
            generator=generator,
            memory=(model_memory, memory, state.memory[2]),
            step=state.step + 1,
        )
        return state, info

    def _rates(self) -> tuple[Rate, Rate, Rate]:
        """How θ, Φ and Ψ climb."""
        end = self.decay_steps
        last = None if self.steady_discriminator or end is None else end * self.num_player1_steps
        return (
            adam(self.learning_rate, end, self.momentum),
            adam(self.generator_rate, end, self.momentum),
            adam(self.discriminator_rate, last, self.momentum),
        )

    def _draws(self, key: Key, model: DeepGP, generator: Generator, num: int = 0) -> Values:
        shape = (num or self.num_samples, generator.noise_dim)
        return generator(jr.normal(key, shape, model.layers[0].z.dtype), model.layers)

    def _contrast(self, key: Key, model: DeepGP, generator: Generator) -> Contrast:
        if not self.adaptive_contrast:
            return Contrast()
        values = jax.lax.stop_gradient(self._draws(key, model, generator, REFERENCE_DRAWS))
        mean = tuple(jnp.mean(v, axis=0) for v in values)
        return Contrast(mean, tuple(jnp.std(v, axis=0) + 1e-6 for v in values))

    def _standard(self, contrast: Contrast, values: Values) -> Values:
        if contrast.mean is None or contrast.scale is None:
            return values
        return tuple(
            (v - m[None]) / s[None]
            for v, m, s in zip(values, contrast.mean, contrast.scale, strict=True)
        )

    def _kl_weight(self, step: Int[Array, ""]) -> Scalar:
        done = self._warmed_up(step)
        return self.first_kl_weight + (1.0 - self.first_kl_weight) * done

    def _blur(self, key: Key, step: Int[Array, ""], values: Values) -> Values:
        if not self.instance_noise:
            return values
        done = self._warmed_up(step)
        if self.last_noise:
            fallen = (self.last_noise / self.instance_noise) ** done
            scale = self.instance_noise * jnp.where(done < 1.0, fallen, 0.0)
        else:
            scale = self.instance_noise * (1.0 - done)
        noise = _normal_like(key, values)
        return tuple(v + scale.astype(v.dtype) * n for v, n in zip(values, noise, strict=True))

    def _warmed_up(self, step: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.minimum(step / self.warm_up, 1.0) if self.warm_up else jnp.ones(())


class Estimate(NamedTuple):
    """A mean over draws and its Monte Carlo error."""

    value: float
    error: float


def estimate_elbo(
    key: Key,
    engine: PaperGame,
    fitted: Fitted,
    data: Data,
    *,
    num_steps: int = 1_000,
    num_draws: int = 1_000,
) -> Estimate:
    """The ELBO of a finished game, after Player 1 alone has gone on for `num_steps`.

    The error is that of the draws. What Player 1 has not learned is not in it, and makes the
    estimate too high.
    """
    return Estimate(*map(float, _estimate(key, engine, fitted, data, num_steps, num_draws)))


@eqx.filter_jit
def _estimate(
    key: Key, engine: PaperGame, fitted: Fitted, data: Data, num_steps: int, num_draws: int
) -> tuple[Scalar, Scalar]:
    start, play, draw, moments, rest = jr.split(key, 5)
    alone = dataclasses.replace(  # the game is over: no noise, whatever the warm-up was
        engine,
        decay_steps=max(1, num_steps),
        steady_discriminator=False,
        num_player1_steps=1,
        instance_noise=0.0,
        last_noise=0.0,
    )
    state = alone.init(start, fitted)

    def once(number: Int[Array, ""], state: State) -> State:
        return alone.player1(jr.fold_in(play, number), state)[0]

    state = jax.lax.fori_loop(0, num_steps, once, state)
    model = fitted.model
    values = engine._draws(draw, model, state.generator, num_draws)
    contrast = engine._contrast(moments, model, state.generator)
    ratio = engine.log_ratio(contrast, state.discriminator, model, values)
    batch = data.all()

    def fit(number: Int[Array, ""]) -> Scalar:
        one = jax.tree.map(lambda v: v[number][None], values)
        keys = jr.split(jr.fold_in(rest, number))
        return log_likelihood(keys[0], keys[1], model, one, batch, 0.0)

    terms = jax.lax.map(fit, jnp.arange(num_draws)) - ratio
    return jnp.mean(terms), jnp.std(terms) / num_draws**0.5


def _normal_like(key: Key, values: Values) -> Values:
    keys = jr.split(key, len(values))
    return tuple(jr.normal(k, v.shape, v.dtype) for k, v in zip(keys, values, strict=True))


def _log_normal(contrast: Contrast, values: Values) -> Logits:
    """`log N(v | mean, scale²)` of each draw."""
    assert contrast.mean is not None and contrast.scale is not None
    total = jnp.zeros(len(values[0]), values[0].dtype)
    for value, mean, scale in zip(values, contrast.mean, contrast.scale, strict=True):
        density = jax.scipy.stats.norm.logpdf(value, mean[None], scale[None])
        total = total + jnp.sum(density, axis=(1, 2))
    return total


def _steepness(judge: Callable[..., Logits], values: Values, model: DeepGP) -> Scalar:
    """`E ‖∂T/∂v‖²` over draws."""
    slopes = jax.grad(lambda v: jnp.sum(judge(v, model.layers)))(values)
    return sum(
        (jnp.mean(jnp.sum(slope**2, axis=(1, 2))) for slope in slopes),
        start=jnp.zeros((), values[0].dtype),
    )
