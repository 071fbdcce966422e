"""All draws in one long batch against the plain formulas, draw by draw."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp.layers import Inducing
from tests.cases import rows, tiny_fitted


def plainly(model, x, inducing, noise, draw):
    """One draw through the layers, each term written as it stands in the equations."""
    stacked = [values.value.ndim == 3 for values in inducing]
    h = x
    for number, (layer, values) in enumerate(zip(model.layers, inducing, strict=True)):
        if stacked[number]:
            values = Inducing(values.value[draw])
        inverse = jnp.linalg.inv(layer.factor().chol)
        a = layer.kernel.cross(h, layer.z) @ inverse.T
        mean = layer.mean(h) + a @ values.value
        variance = (layer.kernel.diag(h) - jnp.sum(a**2, axis=1))[:, None] + jnp.zeros_like(mean)
        if values.root is not None:
            variance += jnp.stack([jnp.sum((a @ r) ** 2, axis=1) for r in values.root], axis=1)
        if layer is not model.layers[-1]:
            h = mean + jnp.sqrt(variance) * noise[number][draw]
    return mean, variance


@pytest.mark.parametrize("kind", ["gaussian", "drawn", "mixed"])
def test_values_and_slopes_are_those_of_the_plain_formulas(kind, x64):
    """In the inputs, the kernel, the inducing inputs and the posterior; also under vmap."""
    fitted = tiny_fitted(num_layers=3)
    x, num = jnp.asarray(rows(7, 2, seed=9)), 4
    drawn = tuple(map(Inducing, fitted.posterior.sample(jr.key(0), fitted.model, num)))
    gaussians = fitted.posterior.gaussians()
    inducing = {
        "gaussian": gaussians,
        "drawn": drawn,
        "mixed": (gaussians[0], drawn[1], gaussians[2]),
    }[kind]
    noise = fitted.model.noise(jr.key(1), num, len(x))

    def ours(x, model, inducing):
        moments = model.propagate(x, inducing, noise)
        return moments.mean, moments.variance

    def plain(x, model, inducing):
        parts = [plainly(model, x, inducing, noise, draw) for draw in range(num)]
        return tuple(jnp.stack(part) for part in zip(*parts, strict=True))

    def score(function):
        def value(*args):
            mean, variance = function(*args)
            return jnp.sum(jnp.sin(mean)) + jnp.sum(jnp.log(variance))

        return jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2)))

    mine, theirs = score(ours)(x, fitted.model, inducing), score(plain)(x, fitted.model, inducing)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), mine, theirs)
    mean, variance = ours(x, fitted.model, inducing)
    both = jax.vmap(lambda x: ours(x, fitted.model, inducing))(jnp.stack([x, x + 1.0]))
    np.testing.assert_allclose(both[0][0], mean, atol=1e-12)
    np.testing.assert_allclose(both[1][0], variance, atol=1e-12)
