"""What prediction and training ask of a posterior over inducing values."""

import abc

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.layers import Inducing, Moments
from nashgp.model import DeepGP
from nashgp.priors import Values
from nashgp.shapes import Key, Scalar


class AbstractPosterior(eqx.Module):
    """A distribution q(v) over the whitened inducing values of all layers."""

    @abc.abstractmethod
    def sample(self, key: Key, model: DeepGP, num: int) -> Values:
        """`num` joint draws, stacked along a leading axis."""

    def inducing(self, key: Key, model: DeepGP, num: int) -> tuple[Inducing, ...]:
        """What `DeepGP.propagate` needs: draws, or Gaussians where those are cheaper."""
        return tuple(Inducing(value) for value in self.sample(key, model, num))

    def marginals(self, key: Key, model: DeepGP, x: Float[Array, "N D"], num: int) -> Moments:
        """Marginal law of the last layer at some inputs, for each of `num` draws.

        The hidden noise of a draw is shared by all rows, so no row depends on its neighbours.
        """
        draw, noise = jr.split(key)
        return model.propagate(x, self.inducing(draw, model, num), model.noise(noise, num, 1))


class AbstractVariational(AbstractPosterior):
    """A posterior that training improves: draws with a gradient, and how far it is from the prior.

    It may cover the first layers alone, when the last one is integrated out.
    """

    @abc.abstractmethod
    def sample_and_kl(self, key: Key, model: DeepGP, num: int) -> tuple[Values, Scalar]:
        """`num` joint draws, stacked along a leading axis, and KL(q ‖ prior).

        The KL is exact, an unbiased estimate, or an upper bound; each posterior says which.
        """

    def sample(self, key: Key, model: DeepGP, num: int) -> Values:
        return self.sample_and_kl(key, model, num)[0]

    def gaussians(self) -> tuple[Inducing, ...] | None:
        """One explicit Gaussian per layer, where the posterior is a product of such."""
        return None


class Fitted(eqx.Module):
    """A model and the posterior over its inducing values: all that prediction needs."""

    model: DeepGP
    posterior: AbstractPosterior


class Ensemble(eqx.Module):
    """Several fitted models of the same rows, to be averaged in prediction.

    `shares` are the parts of each in the average, as whole numbers; without any they are equal.
    """

    members: tuple[Fitted, ...]
    shares: tuple[int, ...] = eqx.field(static=True, default=())

    @property
    def deal(self) -> tuple[int, ...]:
        """Whose turn it is, again and again: `(0, 0, 0, 1)` for shares of 3 and 1."""
        shares = self.shares or (1,) * len(self.members)
        return tuple(number for number, share in enumerate(shares) for _ in range(share))


def members_of(fitted: Fitted | Ensemble) -> tuple[Fitted, ...]:
    """The members of an ensemble, or the only model there is."""
    return fitted.members if isinstance(fitted, Ensemble) else (fitted,)


def sample_prior(key: Key, model: DeepGP, num: int) -> Values:
    """`num` joint draws from the model's prior, stacked along a leading axis."""
    return jax.vmap(lambda k: model.prior.sample(k, model.layers))(jr.split(key, num))
