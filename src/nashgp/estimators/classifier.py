"""Classification: two classes or many, labels of any type."""

from collections.abc import Mapping
from typing import Any, no_type_check

import numpy as np
from sklearn.base import ClassifierMixin

from nashgp import predict
from nashgp.errors import InputError
from nashgp.estimators import rows
from nashgp.estimators.base import DeepGPEstimator, Targets, with_settings_of
from nashgp.estimators.rows import Rows
from nashgp.likelihoods import AbstractClasses, AbstractLikelihood, Bernoulli
from nashgp.recipes import CLASS_LIKELIHOODS, choose

MOST_CLASSES = 1_000  # each has a function with a covariance of its own


class DeepGPClassifier(ClassifierMixin, DeepGPEstimator):
    """A deep Gaussian process for classes, with probabilities that average over the posterior.

    Two classes share one function `f` and `P(second class) = Φ(f)`. Of more classes each has a
    function, and the largest wins.

    Parameters
    ----------
    likelihood : str or likelihood object
        "auto" ("bernoulli" for two classes, else "robust-max"), "bernoulli", "robust-max",
        "softmax", or an object from `nashgp.likelihoods`.
    class_weight : None, "balanced" or dict
        How many times a row counts by its class, on top of `sample_weight`; "balanced" gives every
        class the same total. Classes that a dict leaves out count once.
    allow_missing : bool
        Whether NaN or None in `y` means a row without a label rather than a mistake. Such a row
        still helps to place the inducing inputs.
    engine, game, num_layers, hidden, hidden_dim, num_inducing, kernel, num_steps, batch_size,
    num_samples, last_layer, power, learning_rate, validation_fraction, num_restarts, num_mixture,
    warm_start, covariance, dtype, random_state, progress, engine_options
        As those of `DeepGPRegressor`. Nothing can be integrated out for classes, so the last layer
        takes natural gradient steps unless told otherwise, "auto" power is 0, and Adam starts at
        0.06.

    Attributes
    ----------
    classes_ : the labels in order; columns of probabilities are in this order.
    lengthscales_, variances_, relevance_ : learned hyperparameters, of the first member.
    history_ : objective of every step, held-out scores, seconds, of the first member.
    fitted_ : the model and its posterior, or the ensemble of them, for `nashgp.predict`.
    num_layers_, num_inducing_, num_steps_, num_restarts_, batch_size_, last_layer_, power_,
        powers_, seed_ : what was chosen; `powers_` are those of all members.

    Examples
    --------
    >>> import numpy as np
    >>> from nashgp import DeepGPClassifier
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> y = np.where(np.abs(X[:, 0]) < 0.5, "inside", "outside")
    >>> model = DeepGPClassifier(num_layers=1, num_steps=200, random_state=0).fit(X, y)
    >>> model.predict([[0.0], [0.9]]).tolist()
    ['inside', 'outside']
    """

    _usual_rate = 0.06  # on held-out digits of MNIST better than what suits numbers
    classes_: np.ndarray

    @no_type_check  # as in the base class
    @with_settings_of(DeepGPEstimator)
    def __init__(self, *, class_weight: str | Mapping[Any, float] | None = None, **settings: Any):
        super().__init__(**settings)
        self.class_weight = class_weight

    # ---- fit ----------------------------------------------------------------------------------

    def _check_settings(self) -> None:
        super()._check_settings()
        weight = self.class_weight
        if weight is not None and weight != "balanced" and not isinstance(weight, Mapping):
            raise InputError(
                f'class_weight must be None, "balanced" or a dict of labels; got {weight!r}.'
            )
        if self.last_layer == "collapsed":
            raise InputError(
                'last_layer "collapsed" needs normal noise; use "natural" for classes.'
            )

    def _learn(self, y: Rows, weight: np.ndarray, *, warm: bool) -> Targets:
        labels, missing = rows.labels(y, len(weight), allow_missing=self.allow_missing)
        counted = weight > 0.0
        labels, missing, weight = labels[counted], missing[counted], weight[counted]
        classes = self.classes_ if warm else self._classes(labels[~missing])
        table = rows.codes(labels, missing, classes, "set warm_start=False to learn it.")
        weight = weight * self._importance(table[:, 0], weight, classes)
        return Targets(table, weight, {"classes_": classes, "one_target_": True})

    def _classes(self, labels: np.ndarray) -> np.ndarray:
        """The distinct labels, at least two and not too many."""
        classes = rows.classes(labels)
        if len(classes) < 2:
            raise InputError(
                f"y has {len(classes)} class(es) among the rows that count; pass rows of two "
                "classes or more."
            )
        if len(classes) > MOST_CLASSES:
            raise InputError(
                f"y has {len(classes)} classes, more than {MOST_CLASSES}; merge some of them, or "
                "use DeepGPRegressor to predict numbers."
            )
        return classes

    def _importance(
        self, codes: np.ndarray, weight: np.ndarray, classes: np.ndarray
    ) -> np.ndarray | float:
        """What `class_weight` makes of each row; 1 for a row without a label."""
        if self.class_weight is None:
            return 1.0
        known = ~np.isnan(codes)
        number = np.where(known, codes, 0).astype(int)
        if self.class_weight == "balanced":
            counts = np.bincount(number, known * weight, minlength=len(classes))
            each = np.sum(counts) / (len(classes) * np.maximum(counts, np.finfo(float).tiny))
        else:
            each = self._given(classes.tolist())
        return np.where(known, each[number], 1.0)

    def _given(self, labels: list[Any]) -> np.ndarray:
        """The weights of a dict, by class."""
        assert isinstance(self.class_weight, Mapping)
        for label, weight in self.class_weight.items():
            if label not in labels:
                raise InputError(f"class_weight names {label!r}, which is no class of y; drop it.")
            if not isinstance(weight, int | float | np.number) or not 0.0 <= weight < np.inf:
                raise InputError(
                    f"class_weight of {label!r} must be a finite number that is not negative; got "
                    f"{weight!r}."
                )
        return np.array([float(self.class_weight.get(label, 1.0)) for label in labels])

    def _likelihood(self, t: np.ndarray) -> AbstractLikelihood:
        num_classes, given = int(np.nanmax(t)) + 1, self.likelihood
        if given == "auto":
            given = "bernoulli" if num_classes == 2 else "robust-max"
        if not isinstance(given, AbstractLikelihood):
            known = choose("likelihood", given, CLASS_LIKELIHOODS, "auto, or a likelihood object")
            given = known(num_classes)
        name = type(given).__name__
        if not isinstance(given, Bernoulli | AbstractClasses):
            raise InputError(f"likelihood {name} is not for class labels; use it in a regressor.")
        told = 2 if isinstance(given, Bernoulli) else given.num_classes
        if told != num_classes:
            raise InputError(
                f"likelihood {name} is for {told} classes and y has {num_classes}; "
                'use likelihood="auto".'
            )
        return given

    # ---- predict ------------------------------------------------------------------------------

    def predict(self, X: Rows) -> np.ndarray:
        """The most probable class of each row."""
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Rows) -> np.ndarray:
        """The probability of each class under the predictive mixture, [N, C]."""
        return self._outputs(self._summarise(predict.moments, self._inputs(X))[0])

    def log_density(self, X: Rows, y: Rows) -> np.ndarray:
        """Log probability of each row's label under the predictive mixture; 0 for a missing one."""
        x = self._inputs(X)
        labels, missing = rows.labels(y, len(x), allow_missing=self.allow_missing)
        table = rows.codes(labels, missing, self.classes_, "drop its rows, or fit again with it.")
        weight = (~missing[:, None]).astype(np.float64)
        return self._summarise(predict.log_density, x, np.where(weight > 0.0, table, 0.0), weight)

    def sample_y(self, X: Rows, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draw labels: [N, n_samples].

        The rows of one draw belong to one function, so they vary together.
        """
        drawn = self._draw_targets(X, n_samples, random_state)[:, 0]
        return self.classes_[drawn.astype(int)]

    def _outputs(self, values: np.ndarray) -> np.ndarray:
        """Probabilities [N, C, ...] of all classes, also where the likelihood tells one of two."""
        values = np.asarray(values, np.float64)
        if values.shape[1] == 1:
            values = np.concatenate([1.0 - values, values], axis=1)
        return values / np.sum(values, axis=1, keepdims=True)

    # ---- files --------------------------------------------------------------------------------

    def _to_file(self) -> dict[str, Any]:
        """With the labels of a `class_weight` as values: a file has names for keys."""
        parameters = super()._to_file()
        if isinstance(self.class_weight, Mapping):
            parameters["class_weight"] = [[*pair] for pair in self.class_weight.items()]
        return parameters

    @classmethod
    def _from_file(cls, parameters: dict[str, Any]) -> "DeepGPClassifier":
        weight = parameters["class_weight"]
        weight = dict(weight) if isinstance(weight, list) else weight
        return cls(**parameters | {"class_weight": weight})
