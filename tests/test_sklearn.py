"""scikit-learn's own checks of an estimator."""

import jax
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from nashgp import DeepGPClassifier, DeepGPRegressor

# Small, for speed; the learning rate makes up for the few steps, and one member for both.
SETTINGS = dict(
    kernel="rbf",
    num_steps=60,
    learning_rate=0.05,
    num_inducing=10,
    num_mixture=10,
    num_restarts=1,
    random_state=0,
)
TINY = DeepGPRegressor(**SETTINGS)
CLASSES = DeepGPClassifier(
    **SETTINGS | {"num_layers": 1, "last_layer": "gradient", "learning_rate": 0.1}
)

FAILS = {
    "check_sample_weight_equivalence_on_dense_data": (
        "repeating a row is not the same as counting it twice: each row draws hidden noise of its "
        "own in training, and k-means sees other rows"
    ),
}


@pytest.fixture(autouse=True)
def strict():
    """scikit-learn's own arrays are not strict about types; override the fixture of conftest."""
    with jax.numpy_rank_promotion("raise"):
        yield


@parametrize_with_checks([TINY], expected_failed_checks=lambda estimator: FAILS)
def test_check(estimator, check):
    check(estimator)


# Each fits rows of another shape, so most of their time is compiling. What they ask is asked of the
# regressor above, whose code it is, or of the classifier in `test_classifier`.
LONG = {
    "check_class_weight_classifiers",
    "check_classifiers_train",
    "check_dont_overwrite_parameters",
    "check_dtype_object",
    "check_estimators_dtypes",
    "check_estimators_nan_inf",
    "check_estimators_overwrite_params",
    "check_fit2d_1feature",
    "check_fit_check_is_fitted",
    "check_fit_idempotent",
    "check_n_features_in_after_fitting",
    "check_pipeline_consistency",
    "check_positive_only_tag_during_fit",
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weights_pandas_series",
    "check_sample_weights_shape",
}


def checks_of_classes():
    """All checks of the classifier; long ones are slow tests."""
    for number, (estimator, check) in enumerate(estimator_checks_generator(CLASSES)):
        name = check.func.__name__
        marks = [pytest.mark.slow] if name in LONG else []
        if name in FAILS:
            marks.append(pytest.mark.xfail(reason=FAILS[name]))
        yield pytest.param(estimator, check, marks=marks, id=f"{number}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(checks_of_classes()))
def test_check_of_classes(estimator, check):
    check(estimator)
