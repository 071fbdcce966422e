"""Deep Gaussian processes with honest posteriors."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nashgp.estimators import DeepGPClassifier, DeepGPLVM, DeepGPRegressor, load

__all__ = ["DeepGPClassifier", "DeepGPLVM", "DeepGPRegressor", "load"]

__version__ = version("nashgp")


def __getattr__(name: str) -> Any:
    """The estimators, imported when first asked for: `nashgp.kernels` alone needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'nashgp' has no attribute {name!r}")
    return getattr(import_module("nashgp.estimators"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
