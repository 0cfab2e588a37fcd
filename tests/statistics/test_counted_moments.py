"""Moments that skip NaN: counts, merging, buffers, pickles."""

import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from devices import FRAMEWORKS
from judged import refused

import fastact as fa
from fastact import Moments


def gaps(shape: tuple[int, ...] = (500, 7), seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(100, 3, shape).astype(np.float32)
    x[rng.random(shape) < 0.3] = np.nan
    x[:, 0] = np.nan
    x[: shape[0] // 2, 1] = np.nan
    return x


def assert_moments(m: Moments, x: np.ndarray) -> None:
    wide = x.astype(np.longdouble)
    count = (wide == wide).sum(0)
    assert (m.count == count).all()
    there = count > 0
    np.testing.assert_allclose(
        m.mean[there], np.nanmean(wide[:, there], 0).astype(float), rtol=1e-13
    )
    m2 = np.nanvar(wide[:, there], 0) * count[there]
    np.testing.assert_allclose(m.m2[there], m2.astype(float), rtol=1e-10)
    assert np.isnan(m.mean[~there]).all()
    assert (m.m2[~there] == 0).all()


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy])
def test_counts(of):
    x = gaps()
    for keepdims in (False, True):
        m = fa.moments(of(x), 0, skipna=True, keepdims=keepdims)
        m = Moments(*(np.asarray(part).reshape(7) for part in (m.count, m.mean, m.m2)))
        assert_moments(m, x)
    assert fa.moments(of(x), skipna=True).count == np.isfinite(x).sum()
    y = np.nan_to_num(x)
    a, b = fa.moments(y, 0, skipna=True), fa.moments(y, 0)
    assert_same_bits(a.mean, b.mean)
    assert_same_bits(a.m2, b.m2)
    assert b.count == 500


@pytest.mark.parametrize("pieces", [1, 2, 5, 100])
def test_any_split_merges(pieces):
    x = gaps()
    parts = [fa.moments(part, 0, skipna=True) for part in np.array_split(x, pieces)]
    merged = Moments.merge_many(parts)
    assert_moments(merged, x)
    assert merged == Moments.merge_many(parts)
    whole = fa.moments(x, 0, skipna=True)
    np.testing.assert_allclose(merged.var(1), whole.var(1), rtol=1e-12)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(whole.std()[1:], np.nanstd(x[:, 1:].astype(float), 0), rtol=1e-7)


def test_merging_with_a_plain_count():
    x = np.nan_to_num(gaps())
    a, b = fa.moments(x[:100], 0), fa.moments(x[100:], 0, skipna=True)
    for m in (a.merge(b), b.merge(a)):
        assert (m.count == 500).all()
        np.testing.assert_allclose(m.mean, fa.moments(x, 0).mean, rtol=1e-14)


def test_update():
    x = gaps((60, 4, 7))
    running = fa.moments(x[:10], (0, 1), skipna=True)
    for batch in np.split(x[10:], 5):
        running = running.update(batch, skipna=True)
    assert_moments(running, x.reshape(-1, 7))
    y = np.arange(12.0).reshape(4, 3)
    assert fa.moments(y[:2], 0).update(y[2:]) == fa.moments(y, 0)
    assert fa.moments(y[:, 0], 0).update(y[:, 1]).count == 8


def test_buffers_that_are_none():
    m = fa.moments(gaps(), 0, skipna=True)
    buffer = m.to_buffer()
    for cut in (buffer[:-1], buffer[:10], np.append(buffer, 0.0)):
        refused(r"buffer must have shape \(23,\)", Moments.from_buffer, cut, (7,), error=ValueError)
    refused("this version", Moments.from_buffer, buffer[2:], (7,), error=ValueError)
    for head in (3.0, -1.0, np.nan):
        other = buffer.copy()
        other[0] = head
        refused("this version of to_buffer", Moments.from_buffer, other, (7,), error=ValueError)
    refused("this version", Moments.from_buffer, np.zeros(0), (), error=ValueError)


def test_counts_that_do_not_fit():
    with pytest.raises(ValueError, match=r"count must have shape \(2,\)"):
        Moments(np.ones(3), np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="count must not be negative"):
        Moments(-np.ones(2), np.zeros(2), np.zeros(2))


# --- too few values -------------------------------------------------------------------------------

#: What counts: all, once or by weights that add up to 1, some, or each row as a group.
FEW: list[dict[str, np.ndarray | int]] = [
    {}, {"weights": np.ones(3)}, {"weights": np.array([0.25, 0.5, 0.25])},
    {"where": np.array([True, True, False])}, {"by": np.zeros(3, int), "groups": 1},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Degrees of freedom|Mean of empty:RuntimeWarning")
@pytest.mark.parametrize("named", FEW, ids=lambda named: "-".join(named) or "all")
@pytest.mark.parametrize("framework", FRAMEWORKS[:2], ids=lambda f: f.name)
def test_variances_of_too_few_are_those_of_the_ops(framework, named):
    """Of a count not above the correction: m2 / 0, and with NaN skipped NaN, as NumPy has it."""
    x = framework.of(np.array([[1.0, 2.0, 4.0], [2.0, 2.0, 2.0], [np.nan, 3.0, 1.0]]))
    given = {n: framework.of(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
    m = fa.moments(x, 1, **given)
    for name in ("var", "std"):
        for correction in (0, 1, 2, 3, 4, -1):
            found = framework.numpy(getattr(m, name)(correction))
            of = fa.ops[name](x, 1, correction=correction, **given)
            np.testing.assert_allclose(found, framework.numpy(of), rtol=1e-14)
            skips = fa.ops[f"nan{name}"](x, 1, correction=correction, **given)
            is_known = np.isfinite(found[:2])
            np.testing.assert_array_equal(np.isnan(framework.numpy(skips)[:2]), ~is_known)
