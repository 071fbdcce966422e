"""Fixtures of every test: keys, double precision, strict promotion."""

import itertools

import jax
import jax.random as jr
import pytest


@pytest.fixture(autouse=True)
def strict():
    """No silent change of dtype and no silent broadcast over a missing axis."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
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
