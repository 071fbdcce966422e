"""Deep Gaussian processes with honest posteriors."""

from importlib.metadata import version

__version__ = version("nashgp")
