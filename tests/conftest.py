"""Fixtures of every test: keys, double precision, strict promotion."""

import contextlib
import itertools

import jax
import jax.random as jr
import pytest


@contextlib.contextmanager
def promotion(dtype, rank="raise"):
    """What becomes of unequal dtypes and ranks, in every thread: JAX's own contexts hold in one."""
    chosen = {"jax_numpy_dtype_promotion": dtype, "jax_numpy_rank_promotion": rank}
    before = {name: getattr(jax.config, name) for name in chosen}
    for name, value in chosen.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(autouse=True)
def strict(request):
    """No silent change of dtype and no silent broadcast over a missing axis.

    Tests marked `lenient` are those of users and scikit-learn, who mix dtypes.
    """
    lenient = request.node.get_closest_marker("lenient") is not None
    with promotion("standard" if lenient else "strict"):
        yield


@pytest.fixture(autouse=True, scope="module")
def fresh_programs():
    """Give compiled programs back after each file: a process can hold only so many."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    """Double precision inside the test, and only there."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def getkey():
    """A source of fresh keys, the same in every run."""
    counter = itertools.count()
    return lambda: jr.fold_in(jr.key(20190), next(counter))
