"""Whether several moves of Player 1 for each of Player 2, and a larger rate of its own, help.

    nashgp run player1

The game on the diamond data of `nashgp run synthetic`, where the answer is known: moves of Player 1
for each of Player 2 against its learning rate, three seeds each. Games are equally long in moves of
Player 2, and plain: all rates fall, and no other stabiliser is on.
"""

from nashgp.experiments import cells, synthetic

MOVES, RATES = (1, 3, 10), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)

PLAIN = {
    "size": "2x15",
    "discriminator": "2x32",
    "generator_rate": 0.003,
    "noise_dim": 1,
    "instance_noise": 0.0,
    "last_noise": 0.0,
    "warm_up": 0.0,
    "steady_discriminator": False,
    "num_starts": 1,
}

STUDY = cells.Study(
    "player1",
    synthetic.Cell,
    full=PLAIN
    | {
        "sets": ["diamond"],
        "splits": [0, 1, 2],
        "num_player1_steps": list(MOVES),
        "rates": list(RATES),
        "num_steps": 10_000,
    },
    quick=PLAIN
    | {
        "sets": ["diamond"],
        "splits": [0],
        "num_player1_steps": [1, 2],
        "rates": [1e-3],
        "jobs": 1,
        "num_steps": 50,
    },
    axes=("set", "num_player1_steps", "rate", "split"),
    label=lambda cell: f"moves {cell.num_player1_steps} rate {cell.rate:g}",
)
add_arguments, main = STUDY.add_arguments, STUDY.main
