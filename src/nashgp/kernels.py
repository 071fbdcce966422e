"""Covariance functions: stationary, periodic, linear, constant, and their sums and products.

A kernel answers three questions: `cross(x, z)`, `gram(x)` and `diag(x)`. A fourth, `features`,
is for function draws: random features whose inner product is the kernel on average.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from nashgp.errors import InputError
from nashgp.linalg import safe_sqrt
from nashgp.shapes import Key, Numbers, Scalar
from nashgp.transforms import positive, unconstrained


def squared_distance(
    x: Float[Array, "N D"], z: Float[Array, "M D"], *, same: bool = False
) -> Float[Array, "N M"]:
    """`|x_n - z_m|²` for all pairs by one matmul; exactly zero on the diagonal when `same`.

    Both sides are moved by the mean of `z` first: distances do not change, rounding does.
    """
    centre = jax.lax.stop_gradient(jnp.mean(z, axis=0, keepdims=True))
    x, z = x - centre, z - centre
    norms = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(z**2, axis=1)[None, :]
    square = norms + x @ (-2.0 * z).T  # the factor on the small side
    square = jnp.maximum(square, 0.0)
    return jnp.where(jnp.eye(len(x), dtype=bool), 0.0, square) if same else square


class AbstractKernel(eqx.Module):
    """A positive definite function of two inputs."""

    @abc.abstractmethod
    def cross(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """`k(x_n, z_m)` for all pairs."""

    @abc.abstractmethod
    def gram(self, x: Float[Array, "N D"]) -> Float[Array, "N N"]:
        """`k(x_n, x_m)` for all pairs of one set."""

    @abc.abstractmethod
    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        """`k(x_n, x_n)` for each row."""

    @abc.abstractmethod
    def features(self, key: Key, x: Float[Array, "N D"], num: int) -> Float[Array, "N {num}"]:
        """Random features `φ` with `E φ(x) · φ(z) = k(x, z)` over `key`, for any `num`.

        The key holds all the randomness: the same key is the same map `φ`.
        """

    def __add__(self, other: "AbstractKernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "AbstractKernel") -> "Product":
        return Product(self, other)


def select(x: Float[Array, "N D"], columns: tuple[int, ...] | None) -> Float[Array, "N E"]:
    """The columns a kernel looks at."""
    if columns is None:
        return x
    if not all(0 <= column < x.shape[1] for column in columns):  # JAX itself would not complain
        raise InputError(f"columns {columns} do not exist among {x.shape[1]} input columns.")
    return x[:, jnp.asarray(columns)]


class AbstractStationary(AbstractKernel):
    """`σ² ρ(r²)` with `r² = Σ_d (x_d - z_d)² / ℓ_d²`.

    `lengthscale` is one number or one per column (automatic relevance determination).
    """

    raw_variance: Scalar
    raw_lengthscale: Float[Array, "*D"]
    columns: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        lengthscale: Numbers = 1.0,
        variance: Numbers = 1.0,
        *,
        columns: tuple[int, ...] | None = None,
    ):
        self.raw_lengthscale = unconstrained(lengthscale)
        self.raw_variance = unconstrained(variance)
        self.columns = columns

    @property
    def lengthscale(self) -> Float[Array, "*D"]:
        return positive(self.raw_lengthscale)

    @property
    def variance(self) -> Scalar:
        return positive(self.raw_variance)

    @abc.abstractmethod
    def profile(self, square: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """The correlation `ρ` at squared scaled distance `square`."""

    @abc.abstractmethod
    def spectrum(self, key: Key, shape: tuple[int, int]) -> Float[Array, "F D"]:
        """Frequencies from the spectral density of `ρ` at unit lengthscale."""

    def scale(self, x: Float[Array, "N D"]) -> Float[Array, "N E"]:
        """The coordinates in which the kernel depends on the Euclidean distance alone."""
        x = select(x, self.columns)
        return x / jnp.broadcast_to(self.lengthscale, (x.shape[1],))[None, :]

    def cross(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return self.variance * self.profile(squared_distance(self.scale(x), self.scale(z)))

    def gram(self, x: Float[Array, "N D"]) -> Float[Array, "N N"]:
        scaled = self.scale(x)
        return self.variance * self.profile(squared_distance(scaled, scaled, same=True))

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return jnp.broadcast_to(self.variance, (x.shape[0],))

    def features(self, key: Key, x: Float[Array, "N D"], num: int) -> Float[Array, "N {num}"]:
        """`√(2 σ² / F) cos(ω · scale(x) + b)`: Bochner's theorem with a random phase."""
        omega, phase = jr.split(key)
        scaled = self.scale(x)
        frequency = self.spectrum(omega, (num, scaled.shape[1]))
        turn = jr.uniform(phase, (1, num), frequency.dtype, 0.0, 2.0 * jnp.pi)
        return jnp.sqrt(2.0 * self.variance / num) * jnp.cos(scaled @ frequency.T + turn)


def _student_frequencies(
    key: Key, shape: tuple[int, int], order: float, dtype: DTypeLike
) -> Float[Array, "F D"]:
    """Frequencies of the Matérn kernel of an order: multivariate t with twice as many degrees."""
    normal, gamma = jr.split(key)
    mixing = jr.gamma(gamma, order, (shape[0], 1), dtype) / order
    return jr.normal(normal, shape, dtype) / jnp.sqrt(mixing)


class RBF(AbstractStationary):
    """`ρ = exp(-r² / 2)`: infinitely smooth."""

    def profile(self, square: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return jnp.exp(-0.5 * square)

    def spectrum(self, key: Key, shape: tuple[int, int]) -> Float[Array, "F D"]:
        return jr.normal(key, shape, self.raw_variance.dtype)


class Matern12(AbstractStationary):
    """`ρ = exp(-r)`: continuous, nowhere differentiable."""

    def profile(self, square: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return jnp.exp(-safe_sqrt(square))

    def spectrum(self, key: Key, shape: tuple[int, int]) -> Float[Array, "F D"]:
        return _student_frequencies(key, shape, 0.5, self.raw_variance.dtype)


class Matern32(AbstractStationary):
    """`ρ = (1 + √3 r) exp(-√3 r)`: once differentiable."""

    def profile(self, square: Float[Array, "N M"]) -> Float[Array, "N M"]:
        r = safe_sqrt(3.0 * square)
        return (1.0 + r) * jnp.exp(-r)

    def spectrum(self, key: Key, shape: tuple[int, int]) -> Float[Array, "F D"]:
        return _student_frequencies(key, shape, 1.5, self.raw_variance.dtype)


class Matern52(AbstractStationary):
    """`ρ = (1 + √5 r + 5 r² / 3) exp(-√5 r)`: twice differentiable."""

    def profile(self, square: Float[Array, "N M"]) -> Float[Array, "N M"]:
        r = safe_sqrt(5.0 * square)
        return (1.0 + r + 5.0 / 3.0 * square) * jnp.exp(-r)

    def spectrum(self, key: Key, shape: tuple[int, int]) -> Float[Array, "F D"]:
        return _student_frequencies(key, shape, 2.5, self.raw_variance.dtype)


class RationalQuadratic(AbstractStationary):
    """`ρ = (1 + r² / 2α)^-α`: a mixture of `RBF` kernels over lengthscales."""

    raw_alpha: Scalar

    def __init__(
        self,
        lengthscale: Numbers = 1.0,
        variance: Numbers = 1.0,
        alpha: Numbers = 1.0,
        *,
        columns: tuple[int, ...] | None = None,
    ):
        super().__init__(lengthscale, variance, columns=columns)
        self.raw_alpha = unconstrained(alpha)

    @property
    def alpha(self) -> Scalar:
        return positive(self.raw_alpha)

    def profile(self, square: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return jnp.exp(-self.alpha * jnp.log1p(square / (2.0 * self.alpha)))

    def spectrum(self, key: Key, shape: tuple[int, int]) -> Float[Array, "F D"]:
        normal, gamma = jr.split(key)
        dtype = self.raw_variance.dtype
        precision = jr.gamma(gamma, self.alpha, (shape[0], 1), dtype) / self.alpha
        return jr.normal(normal, shape, dtype) * jnp.sqrt(precision)


class Periodic(AbstractStationary):
    """`σ² exp(-2 Σ_d sin²(π (x_d - z_d) / p_d) / ℓ_d²)`.

    The `RBF` kernel on circles: `4 sin²(π t / p)` is the squared distance of two points on the
    unit circle whose angles differ by `2 π t / p`, so this too is one matmul.
    """

    raw_period: Float[Array, "*D"]

    def __init__(
        self,
        lengthscale: Numbers = 1.0,
        variance: Numbers = 1.0,
        period: Numbers = 1.0,
        *,
        columns: tuple[int, ...] | None = None,
    ):
        super().__init__(lengthscale, variance, columns=columns)
        self.raw_period = unconstrained(period)

    @property
    def period(self) -> Float[Array, "*D"]:
        return positive(self.raw_period)

    def scale(self, x: Float[Array, "N D"]) -> Float[Array, "N E"]:
        x = select(x, self.columns)
        width = (x.shape[1],)
        angle = 2.0 * jnp.pi * x / jnp.broadcast_to(self.period, width)[None, :]
        radius = 1.0 / jnp.broadcast_to(self.lengthscale, width)[None, :]
        return jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=1)

    def profile(self, square: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return jnp.exp(-0.5 * square)

    def spectrum(self, key: Key, shape: tuple[int, int]) -> Float[Array, "F D"]:
        return jr.normal(key, shape, self.raw_variance.dtype)


class Linear(AbstractKernel):
    """`Σ_d σ_d² x_d z_d`, with one variance or one per column."""

    raw_variance: Float[Array, "*D"]
    columns: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(self, variance: Numbers = 1.0, *, columns: tuple[int, ...] | None = None):
        self.raw_variance = unconstrained(variance)
        self.columns = columns

    @property
    def variance(self) -> Float[Array, "*D"]:
        return positive(self.raw_variance)

    def scale(self, x: Float[Array, "N D"]) -> Float[Array, "N E"]:
        """Coordinates whose inner product is the kernel."""
        x = select(x, self.columns)
        return x * jnp.broadcast_to(jnp.sqrt(self.variance), (x.shape[1],))[None, :]

    def cross(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return self.scale(x) @ self.scale(z).T

    def gram(self, x: Float[Array, "N D"]) -> Float[Array, "N N"]:
        return self.cross(x, x)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return jnp.sum(self.scale(x) ** 2, axis=1)

    def features(self, key: Key, x: Float[Array, "N D"], num: int) -> Float[Array, "N {num}"]:
        """`ω · scale(x) / √F` along random directions."""
        scaled = self.scale(x)
        direction = jr.normal(key, (num, scaled.shape[1]), scaled.dtype)
        return scaled @ direction.T / num**0.5


class Constant(AbstractKernel):
    """`σ²`: a shared random offset."""

    raw_variance: Scalar

    def __init__(self, variance: Numbers = 1.0):
        self.raw_variance = unconstrained(variance)

    @property
    def variance(self) -> Scalar:
        return positive(self.raw_variance)

    def cross(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return jnp.broadcast_to(self.variance, (x.shape[0], z.shape[0]))

    def gram(self, x: Float[Array, "N D"]) -> Float[Array, "N N"]:
        return self.cross(x, x)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return jnp.broadcast_to(self.variance, (x.shape[0],))

    def features(self, key: Key, x: Float[Array, "N D"], num: int) -> Float[Array, "N {num}"]:
        del key  # the same in every draw
        return jnp.broadcast_to(jnp.sqrt(self.variance / num), (x.shape[0], num))


class Sum(AbstractKernel):
    """`k₁ + k₂`: independent functions added."""

    left: AbstractKernel
    right: AbstractKernel

    def cross(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return self.left.cross(x, z) + self.right.cross(x, z)

    def gram(self, x: Float[Array, "N D"]) -> Float[Array, "N N"]:
        return self.left.gram(x) + self.right.gram(x)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return self.left.diag(x) + self.right.diag(x)

    def features(self, key: Key, x: Float[Array, "N D"], num: int) -> Float[Array, "N {num}"]:
        """`φ₁ ± φ₂`: random signs make the cross terms vanish on average."""
        left, right, flip = jr.split(key, 3)
        sign = jr.rademacher(flip, (1, num), x.dtype)
        return self.left.features(left, x, num) + sign * self.right.features(right, x, num)


class Product(AbstractKernel):
    """`k₁ k₂`: one function modulates the other."""

    left: AbstractKernel
    right: AbstractKernel

    def cross(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return self.left.cross(x, z) * self.right.cross(x, z)

    def gram(self, x: Float[Array, "N D"]) -> Float[Array, "N N"]:
        return self.left.gram(x) * self.right.gram(x)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return self.left.diag(x) * self.right.diag(x)

    def features(self, key: Key, x: Float[Array, "N D"], num: int) -> Float[Array, "N {num}"]:
        """`√F φ₁ φ₂`: independent features multiply as the kernels do."""
        left, right = jr.split(key)
        return self.left.features(left, x, num) * self.right.features(right, x, num) * num**0.5
