"""Arrays in the other byte order, as FITS files have them: read by way of a copy, never written."""

from functools import partial
from itertools import product
from typing import Any

import every
import numpy as np
import pytest
from calls import OPS, parts
from conftest import assert_all_same_bits, assert_same_bits
from devices import FRAMEWORKS
from differences import Call
from judged import refused

import fastact as fa
from fastact.measure.cases import sample

CPU = FRAMEWORKS[0]


def swapped(value: Any) -> Any:
    """An array in the byte order that is not this machine's; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    return value.astype(value.dtype.newbyteorder())


def native(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("="))


def data(dtype: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x, dy = (rng.normal(size=(4, 6)).astype(dtype) for _ in range(2))
    return x, dy


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_op_reads_it(op, dtype):
    """Each entry point: native results, of the same bits, in every call of one key."""
    call = every.Call(op, {}, (4, 6), dtype)
    forward = op.bound("forward", call.named)
    for run in (*call.both, forward):
        expected = every.results(CPU, run)
        for _ in range(4):  # the call cache records the second call and replays the third
            found = every.results(CPU, run, swapped)
            if run is forward:  # what is saved may be what was given
                assert all(a.dtype.isnative for a in found[: len(op.results)])
                found = [a if a is None else native(a) for a in found]
            assert_all_same_bits(found, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=lambda d: d.__name__)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_derivative_reads_it(op, dtype):
    """Those of second order, and tangents, each in either byte order."""
    derivatives = Call(op, sample(op, *data(dtype)), np.random.default_rng(1))
    args, named = derivatives.arguments(np.asarray)
    others = [*map(swapped, args)], {name: swapped(value) for name, value in named.items()}
    function = partial(op.backward.backward, **derivatives.options)
    given = function(*others[0], **others[1]), function(*args, **named)
    assert_all_same_bits(*map(parts, given))
    call = op.bound("call", derivatives.named)
    tangents = tuple(derivatives.tangents.values())
    expected = op.jvp(*call.args, **call.keywords, tangents=tangents)
    swaps = (swapped, lambda value: value)
    for of_call, of_tangents in product(swaps, swaps):
        given = [*map(of_call, call.args)]
        more = {name: of_call(value) for name, value in call.keywords.items()}
        found = op.jvp(*given, **more, tangents=tuple(map(of_tangents, tangents)))
        for one, same in zip(found, expected, strict=True):
            assert_all_same_bits(parts(one), parts(same))


@pytest.mark.parametrize("per", ["row", "tensor"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize(
    "op", [op for op in OPS if hasattr(op, "quantized") and not op.traits.counts_elements], ids=str
)
def test_scales_in_it(op, dtype, per):
    named = {**sample(op, *data(dtype)), **({"training": False} if op.written else {})}
    if op.written:
        named |= {"running_mean": np.zeros(6, dtype), "running_var": np.ones(6, dtype)}
    call = op.bound("call", named)
    scale = op.quantized(*call.args, **call.keywords, per=per)[1]
    for time in range(4):
        known = np.asarray(scale * dtype(1 + time))
        run = partial(op.quantized, *call.args, **call.keywords, per=per)
        codes, came, *_ = run(**{op.known_scale: swapped(known)})
        assert came.dtype == known.dtype.newbyteorder()
        np.testing.assert_array_equal(codes, run(**{op.known_scale: known})[0])
        wrong = {op.known_scale: swapped(-known)}
        refused("scale must be positive and finite", run, error=ValueError, **wrong)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_none_writes_it(op):
    named = sample(op, *data(np.float32))
    results = parts(op.bound("call", named)())
    outs = tuple(swapped(np.asarray(part)) for part in results)
    before = [out.copy() for out in outs]
    out = outs if len(outs) > 1 else outs[0]
    with pytest.raises(TypeError, match=r"out(\[0\])?, which is written, must be in native byte"):
        op.bound("call", {**named, "out": out})()
    for a, b in zip(outs, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_running_statistics_are_written():
    x, _ = data(np.float32)
    running = [np.zeros(6, ">f4"), np.ones(6, ">f4")]
    fa.batch_norm(x, *running)
    with pytest.raises(TypeError, match="running_mean, which is written, must be in native byte"):
        fa.batch_norm(x, *running, training=True)
    assert not running[0].any()


def test_integers_masks_and_weights():
    x = np.array([[1, 2, 3], [4, 5, 6]], ">i4")
    assert fa.sum(x) == 21
    assert fa.mean(x, weights=np.array([1, 0, 1], ">i2"), axis=1).tolist() == [2, 5]
    logits = np.ones((2, 3), ">f4")
    assert fa.cross_entropy(logits, np.array([0, 2], ">i8")).dtype == np.float32
    assert fa.mish(np.array(2, ">i2")) == fa.mish(np.int16(2))
    assert fa.mish([np.ones(2, ">f4")]).dtype.isnative
    refused(r"x must have dtype .* got void", fa.mish, np.ones(2, [("a", ">f4")]))


def test_objects_that_hold_it():
    x = swapped(data(np.float32)[0])
    native = x.astype(np.float32)
    masked = np.ma.array(x, mask=x > 1)
    assert_same_bits(fa.relu(masked).data, fa.relu(native))
    assert fa.var(masked) == fa.var(np.ma.array(native, mask=x > 1))
    assert fa.sum(masked, 0).dtype.isnative
    m = fa.moments(x[:2], 0).merge(fa.moments(x[2:], 0))
    np.testing.assert_allclose(m.mean, native.astype(float).mean(0), 1e-14)
