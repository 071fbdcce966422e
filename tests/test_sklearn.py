"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from nashgp import DeepGPClassifier, DeepGPRegressor

pytestmark = pytest.mark.lenient

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
# Most of the time of a check that fits is compiling for rows of one more shape, and a game takes
# the compiler twice as long: every test run asks it what no engine answers for another.
TINY = DeepGPRegressor(engine="dsvi", **SETTINGS)
GAME = DeepGPRegressor(**SETTINGS)
CLASSES = DeepGPClassifier(
    **SETTINGS | {"num_layers": 1, "last_layer": "gradient", "learning_rate": 0.1}
)

FAILS = {
    "check_sample_weight_equivalence_on_dense_data": (
        "repeating a row is not the same as counting it twice: each row draws hidden noise of its "
        "own in training, and k-means sees other rows"
    ),
}


@parametrize_with_checks([TINY], expected_failed_checks=lambda estimator: FAILS)
def test_check(estimator, check):
    check(estimator)


OF_GAMES = {
    "check_dict_unchanged",
    "check_fit_idempotent",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_regressors_train",
}

# What the others ask is asked of the regressor above, whose code it is, or in `test_classifier`:
# they are slow tests.
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


def checks_of(asked, quick):
    """All checks of an estimator, those that are not quick as slow tests."""
    for number, (estimator, check) in enumerate(estimator_checks_generator(asked)):
        name = check.func.__name__
        marks = [] if name in quick else [pytest.mark.slow]
        if name in FAILS:
            marks.append(pytest.mark.xfail(reason=FAILS[name]))
        yield pytest.param(estimator, check, marks=marks, id=f"{number}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(checks_of(CLASSES, SHORT)))
def test_check_of_classes(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("estimator", "check"), list(checks_of(GAME, OF_GAMES)))
def test_check_of_the_game(estimator, check):
    check(estimator)
