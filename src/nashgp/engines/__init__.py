"""Inference engines: `init`, `step`, `result`."""

from nashgp.engines.base import Engine, Info
from nashgp.engines.dsvi import DSVI
from nashgp.engines.objectives import data_term, objective

__all__ = ["DSVI", "Engine", "Info", "data_term", "objective"]
