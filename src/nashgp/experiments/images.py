"""Images of digits, clothes and things from raw pixels: deep GPs, games, and two baselines.

    nashgp run images --sets mnist fashion --engines dsvi tied naive --depths 1 4

As in the paper: four layers, 98 hidden units, 100 inducing inputs, batches of 256, the robust-max
likelihood, no augmentation. Pixels are centred by their means over the training rows and divided by
one number for all. Noise and networks of the paper's game are as wide as the hidden layers; as wide
as the pixels, naive players would have a billion parameters. A split is a seed; every set has its
own test rows, which choose nothing. The figure of a set has what the best anchored game (or that of
the next in the list of engines) learned and got wrong, and how far the best of each engine can be
believed.
"""

import argparse
import base64
import dataclasses
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nashgp import datasets
from nashgp.errors import InputError
from nashgp.experiments import cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = ("logistic", "network")
ENGINES = ("anchored", "dsvi", "sghmc", "tied", "naive", *BASELINES)
MODELS = ("paper", "ours")
NUM_CLASSES = 10
START_ROWS = 20_000  # that the start looks at: k-means and the skip connections
ANCHORED_SHARE = 1 / 6  # of the steps, for the game over the Gaussians
MIXED_RATE, NETWORK_RATE = 0.003, 3e-4  # in that game
NATURAL_RATE = 0.05  # of the last layer, which falls to a tenth of it; the game goes on from there
GENERATOR_RATE, DISCRIMINATOR_RATE = 0.005, 0.02  # of the paper's game; all its rates fall
SAMPLER_RATE = 0.01  # of what a sampler's burn-in learns beside
HIDDEN_VARIANCE = (
    0.01  # hidden layers start near the identity, or their noise would hide the pixels
)
MANY_INDUCING = 400  # from here on the classes share one covariance, or steps take seconds
MEMBER = 1_000  # from the seed of one fit to that of the next which is averaged with it
BURN_IN = 2 / 3  # share of a sampler's steps before its first draw
NUM_BINS = 15  # of a reliability diagram, as of the calibration error
NUM_SHOWN, NUM_DOUBTED = 16, 8  # pictures: inducing inputs, and test rows with the most entropy
BEST = {"engines": ["anchored"], "models": ["ours"], "depths": [4]}
CLASSES = {
    "mnist": [str(digit) for digit in range(10)],
    "fashion": [
        *("T-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "boot"),
    ],
    "cifar10": ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
}


@dataclasses.dataclass(frozen=True)
class Cell(cells.Cell):
    """The settings of one fit; the paper's game is "tied" or "naive".

    The model of the `paper` has the robust-max likelihood and frozen skip connections, `ours` a
    softmax, skip connections that are learned and hidden layers of low rank.
    """

    engine: str = "dsvi"
    model: str = "paper"
    depth: int = 4
    num_inducing: int = 100
    hidden_dim: int = 98
    epochs: int = 30
    batch_size: int = 256
    num_samples: int = 1
    learning_rate: float = 0.06
    lengthscale: float = 0.5  # of kernels at the start, in distances of a row from the mean row
    num_rows: int = 60_000  # at most, of the training rows
    num_test: int = 10_000
    num_mixture: int = 20
    num_restarts: int = 1  # fits from other seeds whose probabilities are averaged
    dtype: str = "float32"

    def check(self) -> None:
        if self.engine not in ENGINES:
            raise InputError(f"--engines must be of {', '.join(ENGINES)}; got {self.engine}.")
        cells.check_name("models", self.model, MODELS)
        if self.set not in datasets.IMAGES or datasets.find(self.set) is None:
            datasets.load_images(self.set)  # says what is wrong; reading takes seconds

    def run(self) -> cells.Scores:
        rows = Pixels.load(self.set, self.num_rows, self.num_test)
        fit = self._baseline if self.engine in BASELINES else self._deep
        began = time.perf_counter()
        probability, scores = fit(rows)
        seconds = time.perf_counter() - began
        times = {"epoch_seconds": seconds / self.epochs, "seconds": seconds}
        seen = score(probability, rows.y_test) | reliability(probability, rows.y_test)
        return seen | times | scores

    def _baseline(self, rows: "Pixels") -> tuple[np.ndarray, cells.Scores]:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier

        widths = [self.hidden_dim] * 2
        model = {
            "logistic": LogisticRegression(max_iter=5 * self.epochs),
            "network": MLPClassifier(widths, max_iter=self.epochs, random_state=self.split),
        }[self.engine]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the budget is the budget
            model.fit(rows.scaled(rows.x, self.dtype), rows.y)
        found = np.full((len(rows.x_test), NUM_CLASSES), 1e-12)
        found[:, model.classes_] = model.predict_proba(rows.scaled(rows.x_test, self.dtype))
        return found, {}

    def _deep(self, rows: "Pixels") -> tuple[np.ndarray, cells.Scores]:
        seeds = [self.split + MEMBER * member for member in range(self.num_restarts)]
        members = [self._member(seed, rows) for seed in seeds]
        probability = np.mean([each for each, _ in members], axis=0)
        scores: cells.Scores = {
            name: float(np.mean([each[name] for _, each in members]))
            for name in ("elbo_per_row", "epoch_seconds")
        }
        if self.split == 0:  # one of each kind is enough to look at
            scores |= doubted(probability, rows) | {"inducing": members[0][1]["inducing"]}
        return probability, scores

    def _member(self, seed: int, rows: "Pixels") -> tuple[np.ndarray, cells.Scores]:
        """Class probabilities of one fit, and what it says of itself."""
        import jax.random as jr

        from nashgp import predict, recipes
        from nashgp.batch import make_data
        from nashgp.likelihoods import RobustMax, Softmax

        labels = rows.y[:, None].astype(np.float64)
        data = make_data(rows.x, labels, dtype=self.dtype, shift=rows.shift, unit=rows.unit)
        some = np.random.default_rng(seed).permutation(len(rows.x))[:START_ROWS]
        config = recipes.Config(
            self.depth,
            self.hidden_dim,
            self.num_inducing,
            likelihood=(Softmax if self.model == "ours" else RobustMax)(NUM_CLASSES),
            lengthscale=self.lengthscale,
            hidden_variance=HIDDEN_VARIANCE,
            shared=True,
            last_shared=self.num_inducing >= MANY_INDUCING,
            learned_skip=self.model == "ours",
            low_rank=self.model == "ours",
        )
        inputs = rows.scaled(rows.x[some], "float64")
        start = recipes.build(inputs, 1, config, seed=seed, dtype=self.dtype)
        key, answer = jr.split(jr.key(seed))
        outcome = self._train(key, start, data, seed)
        probability, _ = predict.summarise(
            predict.moments,
            answer,
            outcome.fitted,
            rows.scaled(rows.x_test, self.dtype),
            num_samples=self.num_mixture,
        )
        history = outcome.history
        last = history.objective[-max(1, len(history.objective) // 10) :]
        steps, seconds = (np.diff(of, prepend=0) for of in (history.step, history.seconds))
        each = np.median(seconds / steps)  # since some chunks compile
        z = np.asarray(outcome.fitted.model.layers[0].z[:NUM_SHOWN], np.float64)
        return probability.astype(np.float64), {
            "elbo_per_row": float(np.mean(last)) / len(data),
            "epoch_seconds": float(each) * self._epoch(len(data)),
            "inducing": _packed(rows.pixels(z)),
        }

    def _epoch(self, num_rows: int) -> int:
        """Steps that see as many rows as there are."""
        return -(-num_rows // self.batch_size)

    def _train(self, key, start, data, seed: int):
        import jax.random as jr

        from nashgp import growth, recipes
        from nashgp.engines import SGHMC, NaturalGradient, PaperGame

        num_steps = self.epochs * self._epoch(len(data))
        options: dict[str, Any] = {"batch_size": self.batch_size}

        def natural(num_steps: int, learning_rate: float, rate: float) -> growth.Stage:
            engine = NaturalGradient(
                learning_rate,
                self.num_samples,
                rate=rate,
                decay_steps=num_steps,
                network_rate=NETWORK_RATE,
            )
            return growth.Stage(engine, num_steps, options)

        if self.engine in ("tied", "naive"):
            game = PaperGame(
                self.learning_rate,
                GENERATOR_RATE,
                DISCRIMINATOR_RATE,
                num_samples=self.num_samples,
                tied=self.engine == "tied",
                decay_steps=num_steps,
                **dict.fromkeys(("noise_dim", "width", "discriminator_width"), self.hidden_dim),
            )
            return growth.Stage(game, num_steps, options).run(key, start, data)
        if self.engine == "sghmc":
            burn_in = round(BURN_IN * num_steps)
            sampler = SGHMC(
                SAMPLER_RATE,
                burn_in=burn_in,
                spacing=max(1, (num_steps - burn_in) // self.num_mixture),
                num_draws=self.num_mixture,
                num_samples=self.num_samples,
            )
            options["num_kept"] = self.num_mixture
            return growth.Stage(sampler, num_steps, options).run(key, start, data)
        mixed = round(ANCHORED_SHARE * num_steps) if self.engine == "anchored" else 0
        climb = natural(num_steps - mixed, self.learning_rate, NATURAL_RATE)
        outcome = climb.run(key, start, data)
        if not mixed or self.depth == 1:
            return outcome
        begin = recipes.anchor(outcome.fitted, whole=False, seed=seed)
        game = natural(mixed, MIXED_RATE, 0.1 * NATURAL_RATE)
        return growth.go_on(jr.fold_in(key, 1), outcome, begin, game, data)


@dataclasses.dataclass(frozen=True, eq=False)
class Pixels:
    """Rows of pixels as bytes and their labels, and the map to inputs of mean 0, variance 1.

    One unit serves all pixels: those at the rim hardly vary and should not count like others.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    shift: np.ndarray
    unit: float
    shape: tuple[int, ...]  # of a picture

    @classmethod
    def load(cls, name: str, num_rows: int, num_test: int) -> "Pixels":
        """The first rows of a set, measured by the training rows alone."""
        images = datasets.load_images(name)
        x, x_test = (
            part[:num].reshape(min(num, len(part)), -1)
            for part, num in ((images.x_train, num_rows), (images.x_test, num_test))
        )
        shift = np.asarray(np.mean(x, axis=0, dtype=np.float64))
        squares = np.einsum("nd,nd->d", x, x, dtype=np.float64) / len(x)
        unit = float(np.sqrt(np.mean(squares - shift**2)))
        y, y_test = images.y_train[:num_rows].astype(int), images.y_test[:num_test].astype(int)
        return cls(x, y, x_test, y_test, shift, unit, images.x_train.shape[1:])

    def scaled(self, x: np.ndarray, dtype: str) -> np.ndarray:
        return ((x - self.shift) / self.unit).astype(dtype)

    def pixels(self, inputs: np.ndarray) -> np.ndarray:
        """Inputs of the model as bytes again."""
        return np.clip(np.rint(inputs * self.unit + self.shift), 0, 255).astype(np.uint8)


def score(probability: np.ndarray, label: np.ndarray) -> cells.Scores:
    """Accuracy, mean log-likelihood, Brier score and expected calibration error of test rows."""
    from nashgp import metrics

    own = probability[np.arange(len(label)), label]
    return {
        "accuracy": metrics.accuracy(probability, label),
        "mll": float(np.mean(np.log(own))),
        "brier": metrics.brier(probability, label),
        "ece": metrics.expected_calibration_error(probability, label),
    }


def reliability(probability: np.ndarray, label: np.ndarray) -> cells.Scores:
    """Counts for figures: labels by winners, and rows and hits by how sure the winner is."""
    winner, sure = np.argmax(probability, axis=1), np.max(probability, axis=1)
    confusion = np.zeros((NUM_CLASSES, NUM_CLASSES), int)
    np.add.at(confusion, (label, winner), 1)
    bins = np.minimum((sure * NUM_BINS).astype(int), NUM_BINS - 1)
    count = np.bincount(bins, minlength=NUM_BINS)
    mean = np.bincount(bins, sure, minlength=NUM_BINS) / np.maximum(count, 1)
    right = np.bincount(bins, winner == label, minlength=NUM_BINS) / np.maximum(count, 1)
    return {
        "confusion": confusion.tolist(),
        "bin_count": count.tolist(),
        "bin_sure": mean.round(4).tolist(),
        "bin_right": right.round(4).tolist(),
    }


def doubted(probability: np.ndarray, rows: "Pixels") -> cells.Scores:
    """The test rows with the largest entropy: pixels, label, and the two classes they may be."""
    entropy = -np.sum(probability * np.log(np.maximum(probability, 1e-300)), axis=1)
    some = np.argsort(-entropy)[:NUM_DOUBTED]
    best = np.argsort(-probability[some], axis=1)[:, :2]
    return {
        "picture": rows.shape,
        "doubted": _packed(rows.x_test[some]),
        "doubted_label": rows.y_test[some].tolist(),
        "doubted_class": best.tolist(),
        "doubted_probability": np.take_along_axis(probability[some], best, 1).round(3).tolist(),
    }


def _packed(pixels: np.ndarray) -> str:
    """Bytes as text, a fifth of what a list of numbers takes."""
    return base64.b64encode(pixels.tobytes()).decode()


def _unpacked(text: str, shape: Sequence[int]) -> np.ndarray:
    """Pictures [K, side, side] of grey or [K, side, side, 3] of colours."""
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, *shape)


STUDY = cells.Study(
    "images",
    Cell,
    full={
        "sets": ["mnist", "fashion", "cifar10"],
        "models": list(MODELS),
        "engines": list(ENGINES),
        "depths": [1, 4],
        "splits": [0, 1],
        "jobs": 1,
    },
    quick={
        "sets": ["mnist"],
        "models": ["paper"],
        "engines": ["dsvi", "logistic"],
        "depths": [1, 2],
        "splits": [0],
        "jobs": 1,
        "epochs": 4,
        "num_inducing": 50,
        "num_rows": 5_000,
        "num_test": 1_000,
    },
    plan=[
        {"engines": ["anchored", "dsvi", "sghmc"], "depths": [4]},
        {"engines": ["tied", "naive"], "models": ["paper"]},
        {"engines": ["dsvi"], "depths": [1]},
        {"engines": list(BASELINES)},
        BEST | {"num_restarts": 3},
        BEST | {"sets": ["mnist"], "num_inducing": 800, "batch_size": 1_000},
    ],
    axes=("set", "model", "engine", "depth", "split"),
    label=lambda cell: f"{cell.set} {label(dataclasses.asdict(cell))}",
    keep=lambda cell: (
        (cell.engine not in BASELINES or (cell.depth, cell.model) == (1, "paper"))
        and (cell.engine != "anchored" or cell.depth > 1)  # a game over hidden layers
    ),
)
add_arguments = STUDY.add_arguments


def main(options: argparse.Namespace) -> int:
    """Fit what is missing, print the table and draw the figures."""
    status = STUDY.main(options)
    results = STUDY.folder(options)
    cells.save_figures(figures(results), results)
    return status


def label(cell: Any) -> str:
    """A method as tables and figures name it."""
    if cell["engine"] in BASELINES:
        return cell["engine"]
    return (
        f"{cell['engine']} {cell['depth']}"
        + (f", {cell['num_inducing']} inducing" if cell["num_inducing"] != 100 else "")
        + (", ours" if cell["model"] == "ours" else "")
        + (f", {cell['num_restarts']} fits" if cell["num_restarts"] > 1 else "")
    )


def _best(records: Sequence[Any]) -> list[Any]:
    """Of each engine the record with the largest log-likelihood, in the order of the engines."""
    groups = ([r for r in records if r["cell"]["engine"] == engine] for engine in ENGINES)
    return [max(group, key=lambda r: r["scores"]["mll"]) for group in groups if group]


def figures(results: Path, *, stacked: bool = False) -> dict[str, "Figure"]:
    """Inducing inputs, mistakes, reliability and the most doubtful rows of each set of images."""
    from nashgp.experiments import plots

    made = {}
    records = [r for r in cells.scored(results) if "bin_count" in r["scores"]]
    for name in dict.fromkeys(r["cell"]["set"] for r in records):
        of = _best([r for r in records if (r["cell"]["set"], r["cell"]["split"]) == (name, 0)])
        shown = next((r for r in of if "inducing" in r["scores"]), None)
        if shown is None:
            continue
        scores, classes = shown["scores"], CLASSES[name]
        captions = [
            f"{classes[own]}\n{classes[a]} {p:.2f}\n{classes[b]} {q:.2f}"
            for own, (a, b), (p, q) in zip(
                scores["doubted_label"],
                scores["doubted_class"],
                scores["doubted_probability"],
                strict=True,
            )
        ]
        bins = {
            label(r["cell"]): np.array(
                [r["scores"][f"bin_{part}"] for part in ("sure", "right", "count")]
            )
            for r in of
        }
        seen = plots.Classified(
            f"{name}: {label(shown['cell'])}",
            classes,
            _unpacked(scores["inducing"], scores["picture"]),
            np.array(scores["confusion"]),
            bins,
            _unpacked(scores["doubted"], scores["picture"]),
            captions,
        )
        made[name] = plots.classified(seen, stacked=stacked)
    return made
