"""Regression: one or several real targets, counts, heavy-tailed noise."""

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import Tags

from nashgp import predict
from nashgp.errors import InputError
from nashgp.estimators import rows
from nashgp.estimators.base import DeepGPEstimator, Targets
from nashgp.estimators.rows import Rows
from nashgp.likelihoods import AbstractClasses, AbstractLikelihood, Bernoulli
from nashgp.posteriors import members_of
from nashgp.recipes import LIKELIHOODS, choose


class DeepGPRegressor(RegressorMixin, DeepGPEstimator):
    """A deep Gaussian process for regression, with full predictive distributions.

    Inputs and targets are standardised by the training rows; everything you read from a fitted
    estimator is in your own units unless its description says otherwise.

    Parameters
    ----------
    engine : {"ipvi", "dsvi", "sghmc"}
        How the posterior is found: draws of a generator that plays a game, a Gaussian, or chains of
        a sampler (stochastic gradient Hamiltonian Monte Carlo).
    game : {"anchored", "paper"}
        The game that engine "ipvi" plays: over a Gaussian, with a bound, or that of the paper.
    num_layers : int, "auto" or None
        Depth; 1 is an ordinary sparse Gaussian process. None for 2, unless rows repeat and a single
        layer can remember them (see `num_inducing`). "auto" fits 1, 2 and 3 layers to four fifths
        of the rows and takes 2 unless another predicts the rest clearly better (of fewer than 200
        rows: 2). That takes three fits more.
    hidden : {"gp", "learned"}
        Hidden layers as in the paper, GPs around a frozen skip connection; or layers of a GP whose
        kernel has the rank of its inducing inputs, around a skip connection that is learned. The
        latter add no noise to a row: better for images and other wide inputs with many rows, and
        less unsure far from the rows of the fit.
    hidden_dim : int or None
        Width of the hidden layers; None for that of the inputs, 30 at most.
    num_inducing : int, "auto" or "distinct"
        Inducing inputs of each layer, fewer when there are fewer distinct rows; "distinct" for one
        at each of them; "auto" for 256 up to 2,000 rows and 128 beyond. There, for normal noise,
        the last of several layers has 256 and a single one 1,024 up to 32,768 rows, and the last
        has 512 beyond. Where a twentieth of the rows or more are copies of others, "auto" also
        tries a single layer that remembers: an inducing input for each distinct row and a
        Matérn-1/2 kernel. It is taken in place of all else if it predicts a fifth of the rows
        clearly better from the rest; for normal noise, up to 2,097,152 rows x distinct rows, with
        `kernel`, `power` and `num_restarts` as they come and no depth asked for but 1.
    kernel : str or kernel object or function
        "rbf", "matern12", "matern32", "matern52", "rational-quadratic", or a sum such as
        "rbf+matern32"; a kernel from `nashgp.kernels`; or a function that makes one from the
        number of input columns. Lengthscales refer to standardised inputs. Hidden layers
        that grow below a shallow model have RBF kernels; a kernel object is that of every layer.
    likelihood : str or likelihood object
        "auto" (the same as "gaussian"), "gaussian", "heteroscedastic" for normal noise that varies
        with the inputs, "student-t", "poisson", or an object from `nashgp.likelihoods`, whose noise
        refers to standardised targets. Counts are not scaled.
    covariance : {"auto", "full", "shared"}
        Whether each output of a hidden layer has a covariance of its own or all share one; "auto"
        shares where outputs x inducing inputs² is above 2,097,152.
    num_steps : int or None
        Training steps; None for 500, 2,000 or 3,000 with a collapsed, natural or gradient last
        layer and a fifth more for an anchored game, 5,000 in the paper's game, 15,000 for a
        sampler. Unless the last layer is left to gradients or a sampler, or rows are many, a deep
        model spends 60 % of them as a model of one layer, and then grows; an anchored game is
        played in the last sixth. A sampler burns in over the first two thirds.
    batch_size : int or None
        Rows in each step; None for all rows while the last layer is collapsed, else all of up to
        1,000 rows and 512 of more (1,024 with normal noise and more than 2,000 rows).
    num_samples : int or None
        Posterior draws in each training step; None for 1, and 10 in a game.
    last_layer : {"auto", "collapsed", "natural", "gradient", "sampled"}
        How the last layer's posterior is found. "collapsed" integrates it out, for normal noise
        and all rows in each step; "natural" takes natural gradient steps, for mini-batches and
        any likelihood; "gradient" leaves it to Adam, as published. "auto" collapses up to 2,000
        rows, and in a single layer while rows x inducing inputs x draws is at most 2,097,152
        (16,384 rows at 128), else "natural". With engine "sghmc" all layers are "sampled".
    power : float or "auto"
        Power of the data term, from 0 (the evidence lower bound) to 1. "auto" is 0.5 for normal
        noise, 1 with more than 2,000 rows or for a sampler, and 0 otherwise; with a collapsed last
        layer and 200 rows or more, held-out training rows may choose 0 or 1 instead, for each
        member of an ensemble. With noise that varies it stays at 0.5.
    learning_rate : float or None
        Step size of Adam at the start; it falls to zero along a cosine, except in a game. None
        for 0.03, 0.1 with normal noise and more than 2,000 rows, and 0.025 in a game. That of a
        sampler's hyperparameters is 0.01 throughout.
    validation_fraction : float
        Share of the training rows set aside to decide when to stop; 0 for none. A sampler holds its
        hyperparameters from there on, and draws with all rows.
    num_restarts : int or "auto"
        Models that are fitted and averaged in prediction. The first grows from a shallow one, the
        second is deep from the start, and so on in turn. With normal noise and more than 2,000 rows
        (32,768 at most) the first is deep from the start, and the second a single layer with 1,024
        inducing inputs, unless `num_inducing`, `power`, `last_layer`, `batch_size` or
        `validation_fraction` were set; a tenth of the rows, set apart at first, says in which parts
        to average these two. "auto" is 2 in these two cases, else 1.
    num_mixture : int
        Posterior draws that make up a prediction, shared out among the members.
    allow_missing : bool
        Whether NaN in `y` means a missing target rather than a mistake.
    warm_start : bool
        Whether `fit` goes on from the last fit: same scaling, model and posterior.
    dtype : {"float64", "float32", "auto"}
        Precision of the computation; float32 is about twice as fast. "auto" takes float32 where
        rounding moves functions of the first model, with lengthscales twice as long, by less than a
        hundredth of a prior standard deviation.
    random_state : int, RandomState or None
        Seed of everything random; None for a new one in each fit.
    progress : bool
        Whether to show a progress bar.
    engine_options : dict or None
        Further settings of the engine, such as `{"draw_inducing": True}`.

    Attributes
    ----------
    lengthscales_, variances_, noise_std_ : learned hyperparameters, in your units where they have
        any, of the first member: see each property.
    relevance_ : share of each input column in the slopes of the prediction.
    history_ : objective of every step, held-out scores, seconds, of the first member.
    chains_ : split R-hat and effective draws of a sampler's chains.
    fitted_ : the model and its posterior, or the ensemble of them, for `nashgp.predict`.
    num_layers_, num_inducing_, num_steps_, num_restarts_, batch_size_, last_layer_, power_,
        powers_, dtype_, seed_ : what was chosen; `powers_` are those of all members.
    remembers_ : whether that was a single layer that remembers every distinct row.

    Examples
    --------
    >>> import numpy as np
    >>> from nashgp import DeepGPRegressor
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = DeepGPRegressor(num_steps=300, random_state=0).fit(X, np.sign(X[:, 0]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> bool(mean[0] < -0.5 and mean[-1] > 0.5)
    True
    """

    def _likelihood(self, t: np.ndarray) -> AbstractLikelihood:
        if isinstance(self.likelihood, AbstractLikelihood):
            if isinstance(self.likelihood, Bernoulli | AbstractClasses):
                name = type(self.likelihood).__name__
                raise InputError(f"likelihood {name} is for class labels; use it in a classifier.")
            return self.likelihood
        name = "gaussian" if self.likelihood == "auto" else self.likelihood
        known = choose("likelihood", name, LIKELIHOODS, "auto, or a likelihood object")
        return known(t.shape[1])

    def _learn(self, y: Rows, weight: np.ndarray, *, warm: bool) -> Targets:
        del warm  # a table of numbers means the same in every fit
        t, is_vector = rows.targets(y, len(weight), allow_missing=self.allow_missing)
        return Targets(t[weight > 0.0], weight[weight > 0.0], {"one_target_": is_vector})

    def _outputs(self, values: np.ndarray, *, centre: bool = True) -> np.ndarray:
        """Targets [N, Q, ...] in the user's units, without the axis of a single 1-D target."""
        trailing = (1,) * (values.ndim - 2)
        values = values * self.scaling_.y_scale.reshape(-1, *trailing)
        if centre:
            values = values + self.scaling_.y_mean.reshape(-1, *trailing)
        return values[:, 0] if self.one_target_ else values

    def predict(
        self, X: Rows, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The mean of the predictive distribution of each row, and its standard deviation."""
        mean, variance = self._summarise(predict.moments, self._inputs(X))
        mean = self._outputs(mean)
        if not return_std:
            return mean
        return mean, self._outputs(np.sqrt(variance), centre=False)

    def predict_noise_std(self, X: Rows) -> np.ndarray:
        """The part of each row's standard deviation that is noise: more rows would not lessen it.

        Varies from row to row with likelihood "heteroscedastic", and for counts.
        """
        variance = self._summarise(predict.noise_variance, self._inputs(X))
        return self._outputs(np.sqrt(variance), centre=False)

    def predict_quantiles(self, X: Rows, q: Rows) -> np.ndarray:
        """Quantiles of the predictive mixture: one column for each of `q`.

        The shape is [N, T], or [N, Q, T] when the targets had two axes.
        """
        levels = rows.levels("q", q)
        summary = predict.quantiles(levels.tolist(), self._dtype)
        return self._outputs(self._summarise(summary, self._inputs(X)))

    def predict_interval(self, X: Rows, coverage: Rows = 0.9) -> np.ndarray:
        """The central interval that holds a target with probability `coverage`: lower, upper."""
        tail = 0.5 * (1.0 - rows.levels("coverage", coverage)[0])
        return self.predict_quantiles(X, [tail, 1.0 - tail])

    def log_density(self, X: Rows, y: Rows) -> np.ndarray:
        """Log density of each row's targets under the predictive mixture, in the units of `y`.

        Several targets of a row are scored together; missing ones are left out.
        """
        x = self._inputs(X)
        t = self._targets(y, len(x))
        observed = np.isfinite(t)
        scaled = np.where(observed, self.scaling_.targets(t), 0.0)
        weight = observed.astype(np.float64)
        density = self._summarise(predict.log_density, x, scaled, weight)
        return density - weight @ np.log(self.scaling_.y_scale)

    def cdf(self, X: Rows, y: Rows) -> np.ndarray:
        """Probability of a target no larger than `y`: uniform over rows if calibrated."""
        x = self._inputs(X)
        t = self.scaling_.targets(self._targets(y, len(x)))
        values = self._summarise(predict.cdf, x, t)
        return values[:, 0] if self.one_target_ else values

    def sample_y(self, X: Rows, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draw targets with noise: [N, n_samples], or [N, Q, n_samples] for targets of two axes.

        The rows of one draw belong to one function, so they vary together.
        """
        return self._outputs(self._draw_targets(X, n_samples, random_state))

    def _targets(self, y: Rows, num_rows: int) -> np.ndarray:
        """Targets to score, as many columns as were learned."""
        t, _ = rows.targets(y, num_rows, allow_missing=self.allow_missing)
        if t.shape[1] != len(self.scaling_.y_scale):
            raise InputError(
                f"y has {t.shape[1]} columns, but {len(self.scaling_.y_scale)} were learned; "
                "pass the same targets as in fit."
            )
        members_of(self.fitted_)[0].model.likelihood.check_targets(t)
        return t

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
