"""The implicit posterior of the paper: a generator makes draws, a discriminator judges them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.layers import SparseGPLayer
from nashgp.model import DeepGP
from nashgp.networks import Network, network
from nashgp.posteriors.base import AbstractPosterior, sample_prior
from nashgp.priors import Layers, Values
from nashgp.shapes import Key
from nashgp.transforms import Frozen

Logits = Float[Array, " S"]


class Generator(eqx.Module):
    """`U_l = g_l(ε ⊕ Z_l)`, one `ε` for all layers and inducing inputs.

    Tied, a network of a layer is shared by its inducing inputs and told which one by `z`. Naive,
    each inducing input has parameters of its own and sees `ε` alone. Outputs are in units of
    `scales`, the spread of the prior: one for a GP.
    """

    networks: tuple[Network, ...]
    scales: tuple[Frozen, ...]
    noise_dim: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True)
    whitened: bool = eqx.field(static=True)

    def __call__(self, eps: Float[Array, "S E"], layers: Layers) -> Values:
        """Whitened inducing values of every layer, one joint draw for each row of `eps`.

        The networks look at `z` without moving it: the paper's θ climbs `L(θ, U)` at given draws.
        """
        parts = zip(self.networks, self.scales, layers, strict=True)
        return tuple(self._draw(net, scale, eps, layer) for net, scale, layer in parts)

    def _draw(
        self, net: Network, scale: Frozen, eps: Float[Array, "S E"], layer: SparseGPLayer
    ) -> Float[Array, "S M P"]:
        s, m = len(eps), layer.num_inducing
        seen = jnp.broadcast_to(eps[:, None], (s, m, self.noise_dim))
        drawn = scale.value * net(beside(seen, layer) if self.tied else seen)
        return drawn if self.whitened else jax.vmap(layer.whiten)(drawn)


class Discriminator(eqx.Module):
    """`T(U) = Σ_l Σ_m t_l(u_lm ⊕ z_lm)`: the logit of `U` being a draw of q and not of the prior.

    A sum over inducing inputs sees no correlation between them, and none between layers. With
    `quadratic`, products of the outputs of an inducing input are further inputs; with `waves`,
    cosines and sines of them, whose fine detail a network would be slow to learn. All of them are
    in units of `scales`, the spread of the prior.
    """

    networks: tuple[Network, ...]
    scales: tuple[Frozen, ...]
    tied: bool = eqx.field(static=True)
    whitened: bool = eqx.field(static=True)
    quadratic: bool = eqx.field(static=True)
    waves: tuple[Frozen, ...] | None = None

    def __call__(self, values: Values, layers: Layers) -> Logits:
        """One logit for each joint draw, from whitened values stacked along a first axis."""
        waves = self.waves or (None,) * len(self.networks)
        logits = map(self._judge, self.networks, self.scales, waves, values, layers)
        return sum(logits, start=jnp.zeros(len(values[0]), values[0].dtype))

    def _judge(
        self,
        net: Network,
        scale: Frozen,
        waves: Frozen | None,
        value: Float[Array, "S M P"],
        layer: SparseGPLayer,
    ) -> Logits:
        plain = (value if self.whitened else jax.vmap(layer.unwhiten)(value)) / scale.value
        seen = plain
        if self.quadratic:
            seen = jnp.concatenate([seen, products(plain)], axis=2)
        if waves is not None:
            angle = plain @ waves.value
            seen = jnp.concatenate([seen, jnp.cos(angle), jnp.sin(angle)], axis=2)
        return jnp.sum(net(beside(seen, layer) if self.tied else seen), axis=(1, 2))


class GeneratedPosterior(AbstractPosterior):
    """Draws `U = g(ε)` with `ε ~ N(0, I)`; no density, so the KL is what the discriminator says.

    The discriminator is kept so that training, or the estimate of the ELBO, can go on.
    """

    generator: Generator
    discriminator: Discriminator

    def sample(self, key: Key, model: DeepGP, num: int) -> Values:
        noise = (num, self.generator.noise_dim)
        return self.generator(jr.normal(key, noise, model.layers[0].z.dtype), model.layers)


def beside(seen: Float[Array, "S M I"], layer: SparseGPLayer) -> Float[Array, "S M J"]:
    """`seen ⊕ z`, with `z` held fixed."""
    z = jax.lax.stop_gradient(layer.z)
    return jnp.concatenate([seen, jnp.broadcast_to(z, (len(seen), *z.shape))], axis=2)


def products(u: Float[Array, "S M P"]) -> Float[Array, "S M J"]:
    """`u_p u_r` for all `p ≤ r`."""
    rows, columns = jnp.triu_indices(u.shape[2])
    return u[:, :, rows] * u[:, :, columns]


def generated_posterior(
    key: Key,
    model: DeepGP,
    *,
    tied: bool = True,
    whitened: bool = True,
    noise_dim: int | None = None,
    depth: int = 1,
    width: int | None = None,
    discriminator_depth: int = 1,
    discriminator_width: int | None = None,
    quadratic: bool = False,
    num_waves: int = 0,
    wave_scale: float = 5.0,
) -> GeneratedPosterior:
    """Both players at a random start.

    As in the paper unless told otherwise: noise as wide as `x`, one hidden layer as wide as `z`.
    The frequencies of `num_waves` waves are N(0, wave_scale²) in units of the prior's spread.
    """
    noise_dim = noise_dim or model.layers[0].z.shape[1]
    scales = tuple(map(Frozen, prior_scales(jr.fold_in(key, len(model.layers)), model, whitened)))
    makers, judges, waves = [], [], []
    for number, layer in enumerate(model.layers):
        make, judge = jr.split(jr.fold_in(key, number))
        z, p = layer.z, layer.num_outputs
        m, d = z.shape
        told = d if tied else 0
        settings = {"copies": None if tied else m, "dtype": z.dtype}
        hidden = [width or d] * depth
        makers.append(network(make, [noise_dim + told, *hidden, p], **settings))
        seen = p + quadratic * p * (p + 1) // 2 + 2 * num_waves
        waves.append(Frozen(wave_scale * jr.normal(jr.fold_in(judge, p), (p, num_waves), z.dtype)))
        hidden = [discriminator_width or d] * discriminator_depth
        judges.append(network(judge, [seen + told, *hidden, 1], **settings))
    return GeneratedPosterior(
        Generator(tuple(makers), scales, noise_dim, tied, whitened),
        Discriminator(
            tuple(judges), scales, tied, whitened, quadratic, tuple(waves) if num_waves else None
        ),
    )


def prior_scales(key: Key, model: DeepGP, whitened: bool) -> tuple[Float[Array, ""], ...]:
    """Standard deviation of the prior's inducing values in each layer, from draws of it."""
    values = sample_prior(key, model, 200)
    if not whitened:
        pairs = zip(model.layers, values, strict=True)
        values = tuple(jax.vmap(layer.unwhiten)(value) for layer, value in pairs)
    return tuple(jnp.std(value) for value in values)
