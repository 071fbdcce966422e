"""How much care the compiler takes: a program that runs once need not be a fast one.

On a CPU most of XLA's time goes into code that is a little faster than what it could have had in a
third of the time. That pays in a long run over many rows, and in no other.
"""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

LASTING = {"xla_backend_optimization_level": 1}  # as fast as at 3, where it was measured
PASSING = LASTING | {"xla_cpu_use_fusion_emitters": False}


class Program:
    """A function that is compiled with some options, as far as this XLA knows them.

    Options that the user has set in `XLA_FLAGS` are the user's.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, int]):
        self.function, self.options = function, tuple(options.items())

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self._jitted(*args, **settings)

    def compile(self, *args: Any) -> None:
        """Have it ready for arguments of these shapes."""
        self._jitted.lower(*args).compile()

    @functools.cached_property
    def _jitted(self) -> Any:
        jit: Any = eqx.filter_jit
        return jit(self.function, compiler_options=_known(self.options))


@functools.cache
def _known(options: tuple[tuple[str, int], ...]) -> dict[str, int]:
    """Those that the user leaves open, or none if the compiler at hand does not know them all."""
    flags = os.environ.get("XLA_FLAGS", "")
    found = {name: value for name, value in options if name not in flags}
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=found).lower().compile()
    except Exception:  # which one, depends on the version
        return {}
    return found
