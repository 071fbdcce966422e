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


# Most of the time of a check that fits is compiling for rows of one more shape. What those ask is
# asked of the regressor above, whose code it is, or in `test_classifier`: they are slow tests.
SHORT = {
    "check_all_zero_sample_weights_error",
    "check_classifiers_classes",
    "check_classifiers_one_label",
    "check_classifiers_one_label_sample_weights",
    "check_classifiers_regression_target",
    "check_complex_data",
    "check_decision_proba_consistency",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimator_sparse_tag",
    "check_estimator_tags_renamed",
    "check_estimators_empty_data_messages",
    "check_estimators_partial_fit_n_features",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_fit2d_1sample",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_non_transformer_estimators_n_iter",
    "check_parameters_default_constructible",
    "check_requires_y_none",
    "check_set_params",
    "check_supervised_y_no_nan",
    "check_valid_tag_types",
}


def checks_of_classes():
    """All checks of the classifier."""
    for number, (estimator, check) in enumerate(estimator_checks_generator(CLASSES)):
        name = check.func.__name__
        marks = [] if name in SHORT else [pytest.mark.slow]
        if name in FAILS:
            marks.append(pytest.mark.xfail(reason=FAILS[name]))
        yield pytest.param(estimator, check, marks=marks, id=f"{number}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(checks_of_classes()))
def test_check_of_classes(estimator, check):
    check(estimator)
