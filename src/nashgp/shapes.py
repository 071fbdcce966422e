"""Axis letters and array aliases shared by every module.

| letter | axis                          | letter | axis                         |
|--------|-------------------------------|--------|------------------------------|
| `N`    | rows                          | `P`    | outputs of a layer           |
| `M`    | inducing inputs               | `Q`    | targets                      |
| `D`    | input features                | `S`    | draws from a posterior       |
| `L`    | layers                        | `C`    | classes                      |
"""

from collections.abc import Sequence

from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

Key = PRNGKeyArray
Scalar = Float[Array, ""]
Number = float | int | Scalar
Numbers = ArrayLike | Sequence[float]
"""What a constructor takes for one number or one per column."""
