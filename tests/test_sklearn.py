"""scikit-learn's own checks of an estimator."""

import jax
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from nashgp import DeepGPRegressor

# Small, for speed; the learning rate makes up for the few steps, and one member for both.
TINY = DeepGPRegressor(
    kernel="rbf",
    num_steps=60,
    learning_rate=0.05,
    num_inducing=10,
    num_mixture=10,
    num_restarts=1,
    random_state=0,
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
