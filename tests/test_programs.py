"""Compiler options: those that XLA knows, and never in the user's way."""

import jax.numpy as jnp
import numpy as np
import pytest

from nashgp import programs
from nashgp.programs import PASSING, Program


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setattr(programs, "_known", programs._known.__wrapped__)


def test_the_users_flags_are_the_users(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert programs._known(tuple(PASSING.items())) == {"xla_cpu_use_fusion_emitters": False}
    monkeypatch.delenv("XLA_FLAGS")
    assert programs._known(tuple(PASSING.items())) == PASSING


def test_a_compiler_that_knows_no_such_option_compiles_without(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    program = Program(lambda x, n: x * n, {"xla_of_another_year": 1})
    assert programs._known(program.options) == {}
    np.testing.assert_array_equal(program(jnp.arange(3), 2), [0, 2, 4])


def test_what_is_compiled_ahead_is_what_runs():
    program = Program(lambda x: x + 1.0, PASSING)
    program.compile(jnp.zeros(3))
    np.testing.assert_array_equal(program(jnp.zeros(3)), 1.0)
    assert program._jitted._cached._cache_size() == 1
