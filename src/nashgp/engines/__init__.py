"""Inference engines: `init`, `step`, `result`."""

from nashgp.engines.alternating import Alternating
from nashgp.engines.base import Engine, Info
from nashgp.engines.collapsed import Collapsed
from nashgp.engines.dsvi import DSVI
from nashgp.engines.game import GameInfo, PaperGame, estimate_elbo
from nashgp.engines.lanes import Lanes, lane
from nashgp.engines.latent import CollapsedLatents, NaturalLatents, latent_objective
from nashgp.engines.natural import NaturalGradient
from nashgp.engines.objectives import collapsed_objective, data_term, objective
from nashgp.engines.sghmc import SGHMC, ChainInfo, hold
from nashgp.engines.starts import Starts
from nashgp.engines.tempered import Tempered

__all__ = [
    "DSVI",
    "SGHMC",
    "Alternating",
    "ChainInfo",
    "Collapsed",
    "CollapsedLatents",
    "Engine",
    "GameInfo",
    "Info",
    "Lanes",
    "NaturalGradient",
    "NaturalLatents",
    "PaperGame",
    "Starts",
    "Tempered",
    "collapsed_objective",
    "data_term",
    "estimate_elbo",
    "hold",
    "lane",
    "latent_objective",
    "objective",
]
