"""Weighted statistics on devices, and their gradients, by every way in which terms are read."""

from typing import Any

import numpy as np
import pytest
from arrangements import padded, shifted
from conftest import assert_same_bits
from devices import EMULATED, FRAMEWORKS, KERNELS, Framework, to_emulated

import fastact as fa
from fastact.interop.devices import emulate

WEIGHTED = [op for op in fa.ops.values() if op.family == "statistics" and "weights" in op.roles]
ROWS = 300  # more than a block has threads
MOST = 8  # terms that a thread takes
CPU = next(framework for framework in FRAMEWORKS if framework.name == "numpy")

each_op = pytest.mark.parametrize("op", WEIGHTED, ids=str)
each_count = pytest.mark.parametrize("terms", [1, 3, 4, 5, MOST, MOST + 1])


def made(op: Any, dtype: Any, terms: int, kind: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows of so many terms, and their weights: one for each, for each column, or for each row."""
    rng = np.random.default_rng(terms)
    x = rng.normal(10, 3, (ROWS, terms)).astype(dtype)
    if op.skips:
        x[rng.random(x.shape) < 0.2] = np.nan
    of = {"element": x.shape, "axis": (1, terms), "row": (ROWS, 1)}[kind]
    weights = rng.uniform(0.5, 2, of) * (rng.random(of) < 0.9)
    return x, {"weights": weights.astype(dtype), "where": rng.random(x.shape) < 0.8}


def found(
    op: Any, device: Framework, x: np.ndarray, dy: np.ndarray, axis: int, named: dict[str, Any]
) -> list[np.ndarray]:
    """The statistic, and its gradients."""
    given = {name: device.of(array) for name, array in named.items()}
    y, saved = op.forward(device.of(x), axis=axis, **given)
    gradients = op.backward(device.of(dy), *saved, axis=axis)
    parts = gradients if isinstance(gradients, tuple) else (gradients,)
    return [device.numpy(part) for part in (y, *parts)]


@pytest.mark.filterwarnings("ignore:Mean of|Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
@pytest.mark.parametrize("kind", ["element", "axis", "row"])
@each_count
@each_op
def test_results_are_the_cpus(op, device, dtype, terms, kind):
    """And have the same bits in every layout."""
    x, named = made(op, dtype, terms, kind)
    dy = np.random.default_rng(0).normal(size=ROWS).astype(dtype)
    expected = found(op, CPU, x, dy, 1, named)
    first = found(op, device, x, dy, 1, named)
    eps = {2: 2.0**-6, 4: 2.0**-20, 8: 2.0**-40}[np.dtype(dtype).itemsize]
    for one, other in zip(first, expected, strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=eps, atol=10 * eps)
    same = 3 if kind == "element" else 2  # where weights repeat, a sum follows the layout
    for lay in (shifted, padded, np.asfortranarray):
        for one, other in zip(found(op, device, lay(x), dy, 1, named)[:same], first, strict=False):
            assert_same_bits(one, other)
    turned = {name: array.T.copy() for name, array in named.items()}
    columns = found(op, device, x.T.copy(), dy, 0, turned)
    for one, other in zip(columns[:same], first, strict=False):
        assert_same_bits(one.T, other)


@pytest.mark.skipif(not EMULATED, reason="built without FASTACT_CUDA_EMULATION=ON")
@each_count
def test_few_terms_belong_to_a_thread(dtype, terms):
    """A block has as many results as threads, and else as a warp has."""
    device = emulate()
    of = to_emulated(device.ExchangeArray)
    x, named = made(fa.average, dtype, terms, "element")
    device.clear_launches()
    fa.average.forward(of(x), axis=1, **{name: of(array) for name, array in named.items()})
    (launch,) = device.launches()
    assert "weighted_blocks" in launch["symbol"]
    assert launch["grid"][0] == -(-ROWS // (256 if terms <= MOST else 32))


@pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
@pytest.mark.parametrize("terms", [3, MOST + 1])
@pytest.mark.parametrize("kind", ["element", "axis"])
def test_gradients_are_added(device, dtype, terms, kind):
    """To what is there, in place of x and beside other dtypes of weights."""
    x, named = made(fa.average, dtype, terms, kind)
    named["weights"] = named["weights"].astype(np.float64)
    dy = np.ones(ROWS, dtype)
    of = [device.of(array) for array in (dy, x, *named.values())]
    dx, dweights = (device.numpy(g).copy() for g in fa.average.backward(*of, axis=1))
    outs = device.of(np.ones_like(dx)), device.of(np.ones_like(dweights))
    fa.average.backward(*of, axis=1, out=outs, accumulate=True)
    for out, gradient in zip(outs, (dx, dweights), strict=True):
        eps = {2: 2.0**-6, 4: 2.0**-22, 8: 2.0**-50}[gradient.itemsize]
        np.testing.assert_allclose(
            device.numpy(out).astype(float), 1 + gradient.astype(float), rtol=eps, atol=eps
        )
    alone = device.of(np.zeros_like(dweights))
    fa.average.backward(*of, axis=1, out=(None, alone))
    assert_same_bits(device.numpy(alone), dweights)
