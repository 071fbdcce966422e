"""Rows on the device: missing targets, weights, batches."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp.batch import bucket, make_data
from nashgp.errors import InputError
from nashgp.precision import scope


def numbered(num=7):
    """Row n holds n in x, 10 n and 10 n + 1 in y; target 1 of row 2 is missing."""
    n = 1.0 * np.arange(num)
    y = np.stack([10.0 * n, 10.0 * n + 1.0], axis=1)
    y[2, 1] = np.nan
    return n[:, None], y


def test_missing_targets_become_zeros_that_do_not_count(x64):
    x, y = numbered()
    data = make_data(x, y)
    assert len(data) == 7
    expected = np.ones((7, 2))
    expected[2, 1] = 0.0
    np.testing.assert_array_equal(data.weight, expected)
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, np.nan_to_num(y))
    assert data.y[2, 1] == 0.0


def test_row_weights_count_for_every_observed_target(x64):
    x, y = numbered()
    weight = np.array([1.0, 2.0, 3.0, 0.5, 0.0, 1.0, 1.0])
    expected = np.stack([weight, weight], axis=1)
    expected[2, 1] = 0.0
    np.testing.assert_array_equal(make_data(x, y, weight).weight, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_precision_is_asked_for_and_needs_no_setting(dtype):
    """Also float64 while JAX itself is set to single precision."""
    x, y = numbered()
    data = make_data(x / 3.0, y, dtype=dtype)
    assert {leaf.dtype for leaf in (data.x, data.y, data.weight)} == {np.dtype(dtype)}
    np.testing.assert_array_equal(data.x, (x / 3.0).astype(dtype))
    assert make_data(x, y).x.dtype == "float64"


def bad(name, value):
    x, y = numbered()
    (x if name == "x" else y)[3, 0] = value
    return x, y


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (*bad("x", np.nan), "x holds NaN or infinity; drop or impute those rows first."),
        (*bad("x", np.inf), "x holds NaN or infinity; drop or impute those rows first."),
        (*bad("y", np.inf), "y holds infinity; use NaN for a missing target."),
        (*bad("y", -np.inf), "y holds infinity; use NaN for a missing target."),
        (np.zeros((0, 2)), np.zeros((0, 1)), "x has no rows; pass at least one."),
    ],
)
def test_rows_that_cannot_be_used_are_refused(x, y, sentence):
    with pytest.raises(InputError) as caught:
        make_data(x, y)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("size", [None, 7, 8, 100])
def test_a_batch_as_large_as_the_data_is_every_row_once(size, x64):
    data = make_data(*numbered())
    batch = data.sample(jr.key(0), size)
    for name in ("x", "y", "weight"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(data, name))
    assert batch.scale == 1.0 and batch.scale.shape == ()


@pytest.mark.parametrize("size", [1, 3, 6])
def test_rows_come_with_their_own_targets_and_weights(size, x64):
    x, y = numbered()
    data = make_data(x, y, 1.0 + np.arange(7))
    sample = jax.jit(lambda key: data.sample(key, size))  # the key is traced
    seen = set()
    for seed in range(20):
        batch = sample(jr.key(seed))
        assert batch.x.shape == (size, 1) and batch.y.shape == batch.weight.shape == (size, 2)
        rows = np.asarray(batch.x[:, 0]).astype(int)
        seen.update(rows.tolist())
        np.testing.assert_array_equal(batch.y, np.asarray(data.y)[rows])
        np.testing.assert_array_equal(batch.weight, np.asarray(data.weight)[rows])
        np.testing.assert_allclose(batch.scale, 7.0 / size, rtol=1e-15)
        eager = data.sample(jr.key(seed), size)
        np.testing.assert_array_equal(eager.x, batch.x)
    assert len(seen) == 7 or size == 1  # 60 draws miss one of 7 rows once in 1,500 times


def test_a_scaled_batch_estimates_the_sum_over_the_data(x64):
    """`scale · Σ weight · y` has the full sum as mean: 5 standard errors of 20,000 batches."""
    data = make_data(*numbered())

    def total(key):
        batch = data.sample(key, 3)
        return batch.scale * jnp.sum(batch.weight * batch.y, axis=0)

    totals = np.asarray(jax.jit(jax.vmap(total))(jr.split(jr.key(0), 20_000)))
    error = totals.std(axis=0) / 20_000**0.5
    want = np.sum(np.asarray(data.weight * data.y), axis=0)
    assert np.all(np.abs(totals.mean(axis=0) - want) < 5.0 * error)


def test_single_precision_batches_stay_single():
    batch = make_data(*numbered(), dtype="float32").sample(jr.key(0), 3)
    assert {leaf.dtype for leaf in jax.tree.leaves(batch)} == {np.dtype("float32")}


@pytest.mark.parametrize("num", [1, 8, 9, 100, 455, 513, 50_000])
def test_buckets_are_few_and_waste_little(num):
    assert num <= bucket(num) <= num + max(7, num // 8)
    sizes = {bucket(n) for n in range(max(1, num // 2), num + 1)}
    assert len(sizes) <= 10


def test_padding_counts_for_nothing(x64):
    """Every draw and every weighted sum is that of the rows alone."""
    x, y = numbered()
    data = make_data(x, y, padded=True)
    assert data.x.shape == (8, 1) and len(data) == 7
    assert np.all(np.asarray(data.weight)[7:] == 0.0) and np.all(np.isfinite(data.x))
    plain = make_data(x, y)
    for size in (None, 3):
        for seed in range(20):
            ours, theirs = (d.sample(jr.key(seed), size) for d in (data, plain))
            total = [np.sum(b.scale * b.weight * b.y) for b in (ours, theirs)]
            np.testing.assert_allclose(*total)


def test_data_of_one_bucket_share_compiled_code(x64):
    traces = []

    @jax.jit
    def total(data):
        traces.append(1)
        return data.sample(jr.key(0), 4).scale

    scales = [float(total(make_data(*numbered(n), padded=True))) for n in (9, 12, 16)]
    assert scales == [9 / 4, 12 / 4, 16 / 4] and len(traces) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_stay_bytes_and_batches_are_scaled(dtype):
    """A batch is what it would be had all rows been scaled at once."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, size=(20, 3), dtype=np.uint8)
    y, shift, unit = random.normal(size=(20, 1)), np.array([100.0, 0.5, 3.0]), 40.0
    kept = make_data(x, y, dtype=dtype, shift=shift, unit=unit, padded=True)
    scaled = make_data((x - shift) / unit, y, dtype=dtype, padded=True)
    assert kept.x.dtype == np.uint8 and kept.x.nbytes == 24 * 3
    with scope(dtype):
        for size in (None, 7):
            one, two = (data.sample(jr.key(1), size) for data in (kept, scaled))
            assert one.x.dtype == dtype
            np.testing.assert_allclose(one.x, two.x, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(one.y, two.y)
            np.testing.assert_array_equal(one.scale, two.scale)
