"""Experiments that `nashgp run` knows, each a module with `add_arguments` and `main`."""

EXPERIMENTS = {
    "demo": "nashgp.experiments.demo",
    "uci": "nashgp.experiments.uci",
    "elbo": "nashgp.experiments.elbo",
    "dsvi-uci": "nashgp.experiments.dsvi_uci",
    "power-uci": "nashgp.experiments.power_uci",
    "auto-uci": "nashgp.experiments.auto_uci",
    "game-uci": "nashgp.experiments.game_uci",
    "anchored-uci": "nashgp.experiments.anchored_uci",
    "sghmc-uci": "nashgp.experiments.sghmc_uci",
    "synthetic": "nashgp.experiments.synthetic",
    "modes": "nashgp.experiments.modes",
    "calibration": "nashgp.experiments.calibration",
    "fidelity": "nashgp.experiments.fidelity",
    "player1": "nashgp.experiments.player1",
    "tying": "nashgp.experiments.tying",
    "timing": "nashgp.experiments.timing",
    "one-layer": "nashgp.experiments.one_layer",
    "convergence": "nashgp.experiments.convergence",
    "images": "nashgp.experiments.images",
    "freyface": "nashgp.experiments.freyface",
}
