"""Experiments that `nashgp run` knows, each a module with `add_arguments` and `main`.

A report has them in this order: the paper's tables and figures, whether posteriors can be believed,
and what single choices are worth.
"""

EXPERIMENTS = {
    "demo": "nashgp.experiments.demo",
    "uci": "nashgp.experiments.uci",
    "large": "nashgp.experiments.large",
    "tying": "nashgp.experiments.tying",
    "elbo": "nashgp.experiments.elbo",
    "images": "nashgp.experiments.images",
    "freyface": "nashgp.experiments.freyface",
    "timing": "nashgp.experiments.timing",
    "tying-speed": "nashgp.experiments.tying_speed",
    "modes": "nashgp.experiments.modes",
    "synthetic": "nashgp.experiments.synthetic",
    "fidelity": "nashgp.experiments.fidelity",
    "calibration": "nashgp.experiments.calibration",
    "player1": "nashgp.experiments.player1",
    "one-layer": "nashgp.experiments.one_layer",
    "auto-uci": "nashgp.experiments.auto_uci",
    "anchored-uci": "nashgp.experiments.anchored_uci",
    "power-uci": "nashgp.experiments.power_uci",
    "dsvi-uci": "nashgp.experiments.dsvi_uci",
    "sghmc-uci": "nashgp.experiments.sghmc_uci",
    "convergence": "nashgp.experiments.convergence",
}
