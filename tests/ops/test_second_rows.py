"""Second derivatives of rows by one kernel: as the op's formula has them, in every layout.

That the formula is right, differences say: tests/ops/test_derivatives.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrangements import reversed_, stepped
from conftest import assert_all_same_bits, assert_same_bits, on_fused_isas
from devices import FRAMEWORKS
from differences import Call
from native import recording

import fastact as fa
from fastact import _cpu
from fastact.measure import cases

OPS = [op for op in fa.ops.values() if op.traits.second is not None]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)

#: What has few rows and many, shorter and longer than a chunk of the kernels and than a block.
SHAPES = [(2, 4, 3), (5, 8, 130), (4, 2, 2100)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)

#: Other ways to call an op, where it has such options.
WAYS: list[dict[str, Any]] = [
    {}, {"axis": 0}, {"axis": (1, 2)}, {"scale": 0.5}, {"weight_offset": 0.5}, {"weight": None},
    {"weight": None, "casting": "gemma"},
    {"channel_axis": -1},
]  # fmt: skip


@lru_cache
def fits(op: Any, at: int, shape: tuple[int, ...]) -> bool:
    """Whether an op takes a way of those above, and data of such a shape."""
    if not {*WAYS[at]} <= {*op.entry_points["call"].defaults}:
        return False
    try:
        sampled(op, shape, WAYS[at])
    except ValueError:
        return False
    return True


def sampled(op: Any, shape: tuple[int, ...], way: dict[str, Any], dtype: Any = np.float64) -> Call:
    """A call in which something comes back to dx alone."""
    random = np.random.default_rng(0)
    named = {**cases.sample(op, *random.normal(size=(2, *shape)).astype(dtype)), **way}
    named.pop("sink", None)  # with one there is no kernel
    over = named.get("axis", -1)
    for name in ("weight", "bias"):
        if named.get(name) is not None and "axis" in way:
            axes = sorted(a % len(shape) for a in (over if isinstance(over, tuple) else (over,)))
            named[name] = random.normal(size=[shape[a] for a in axes]).astype(dtype)
    call = Call(op, named, random)
    call.ddx[1:] = [None] * (len(call.ddx) - 1)
    return call


@contextmanager
def by_formula(op: Any) -> Iterator[None]:
    """Without the kernel."""
    was, cached = op.traits.second, _cpu.is_call_cache_enabled()
    _cpu.enable_call_cache(False)
    op._is(second=None)
    try:
        yield
    finally:
        op._is(second=was)
        _cpu.enable_call_cache(cached)


def widened(value: np.ndarray) -> np.ndarray:
    return value if value.dtype.kind in "bi" else value.astype(np.float64)


@pytest.mark.parametrize(
    ("op", "way", "shape"),
    [
        pytest.param(op, way, shape, id="-".join(map(str, (op.name, *way.items(), shape))))
        for op in OPS
        for at, way in enumerate(WAYS)
        for shape in SHAPES
        if fits(op, at, shape)
    ],
)
def test_the_formula(op, shape, way, dtype, backend):
    call = sampled(op, shape, way, dtype)
    with by_formula(op):
        expected = call.second(widened)
    if dtype.itemsize == 2 and "weight" in call.named:
        backend = FRAMEWORKS[0]  # there is no kernel
    found = call.second(backend.of)
    for got, right in zip(found, expected, strict=True):
        assert (got is None) == (right is None)
        if right is not None:
            scale = np.abs(right).max() + 1.0
            u = 2.0**-53 if dtype == np.float64 else 2.0**-24
            rounding = float(ml_dtypes.finfo(dtype).eps)
            made = backend.numpy(got).astype(np.float64)
            assert np.abs(made - right).max() <= (64 * u + 0.51 * rounding) * scale


@each_op
def test_one_call_of_the_kernel(op):
    """And, of a weight and a bias, a sum and zeros; none of them where nobody wants those."""
    call = sampled(op, SHAPES[0], {})
    args, named = call.arguments(np.asarray)
    _cpu.enable_call_cache(False)
    try:
        with recording() as (calls, _):
            found = op.backward.backward(*args, **named, **call.options)
        parameters = [name for name in op.gradients[1:] if name in ("dweight", "dbias")]
        more = ["sum", "broadcast"][: len(parameters)]
        assert [function.__name__ for function, _ in calls] == ["second_rows", *more]
        outs = (np.empty_like(found[0]), *[None] * (len(found) - 1))
        with recording() as (calls, _):
            op.backward.backward(*args, **named, **call.options, out=outs)
        assert [function.__name__ for function, _ in calls] == ["second_rows"]
    finally:
        _cpu.enable_call_cache(True)
    assert_same_bits(outs[0], found[0])


@each_shape
@each_op
def test_bits(op, shape, dtype):
    """Bits depend on no layout, threads or instruction set, nor on results in place of inputs."""
    call = sampled(op, shape, {}, dtype)
    expected = call.second(np.asarray)
    is_weighted = dtype.itemsize == 2 and "weight" in call.named  # whose sums follow the memory
    for of in () if is_weighted else (np.asfortranarray, reversed_, stepped):
        assert_all_same_bits(call.second(of)[:2], expected[:2])
    for threads in (1, 2, 3):
        with fa.num_threads(threads):
            for found in on_fused_isas(lambda: call.second(np.asarray)):
                assert_all_same_bits(found, expected)
    args, named = call.arguments(np.asarray)
    out = args[0], args[len(op.gradients)], *[None] * (len(expected) - 2)
    found = op.backward.backward(*args, **named, **call.options, out=out)
    assert_all_same_bits(found[:2], expected[:2])


@each_op
def test_outputs_of_every_backend_are_added_to(op, backend):
    call = sampled(op, SHAPES[1], {}, np.float32)
    args, named = call.arguments(backend.of)
    plain = [None if d is None else backend.numpy(d) for d in call.second(backend.of)]
    outs = tuple(None if d is None else backend.of(np.ones_like(d)) for d in plain)
    op.backward.backward(*args, **named, **call.options, out=outs, accumulate=True)
    for out, right in zip(outs, plain, strict=True):
        if right is not None:
            size = np.abs(right).max() + 1
            np.testing.assert_allclose(backend.numpy(out), 1 + right, 1e-6, 1e-6 * size)


@pytest.mark.parametrize("way", [{}, {"sink": 0.25}, {"softcap": 4.0}], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_what_softmax_leaves_out_spoils_nothing(way, dtype, backend):
    """Where y is 0, what comes back may be NaN: the others are as without it."""
    if way:  # there is no kernel
        backend = FRAMEWORKS[0]
    r = np.random.default_rng(0)
    ddx, dy, x, mask = r.normal(size=(4, 2, 37)).astype(dtype)
    mask[:, 3] = -np.inf
    kept = np.arange(37) != 3
    given = {"sink": np.full(2, way["sink"], dtype)} if "sink" in way else way

    def second(of):
        _, saved = fa.softmax.forward(x[:, of], mask=mask[:, of], **given)
        arrays = [ddx[:, of], None, dy[:, of], *saved]
        arrays = [a if a is None else backend.of(np.ascontiguousarray(a)) for a in arrays]
        options = {} if "sink" in way else way
        found = fa.softmax.backward.backward(*arrays, **options)
        return [backend.numpy(a) for a in found if a is not None]

    right = second(kept)
    ddx[:, 3], dy[:, 3] = np.inf, np.nan
    for got, expected in zip(second(slice(None)), right, strict=True):
        if got.shape == (2, 37):
            assert not got[:, 3].any()
            got = got[:, kept]
        rtol = (
            2e-3 if dtype == np.float16 else 1e-12
        )  # sums have other lanes, and results a rounding
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("op", [op for op in OPS if "y" in op.saves], ids=lambda op: op.name)
def test_what_comes_back_to_what_takes_no_part(op, dtype, backend):
    """Counts for nothing, be it infinite or NaN: by the kernel, and by the formula."""
    without_part(op, dtype, backend, lambda op: nullcontext())
    without_part(op, dtype, FRAMEWORKS[0], by_formula)  # not all devices' arrays have arithmetic


def without_part(op, dtype, backend, way):
    r = np.random.default_rng(0)
    ddx, dy, x = r.normal(size=(3, 37, 37)).astype(dtype)
    mask = np.ones((37, 37), np.bool_)
    mask[3] = mask[:, 3] = False
    _, saved = op.forward(x, mask=mask)
    before = [None] * (len(op.gradients) - 1)

    def second(value):
        arrays = [np.where(mask, ddx, dtype.type(value)), *before, dy, *saved]
        arrays = [a if a is None else backend.of(a) for a in arrays]
        with way(op):
            found = op.backward.backward(*arrays)
        return [np.ascontiguousarray(backend.numpy(a)) for a in found if a is not None]

    expected = second(0.0)
    for value in (1.0, np.inf, np.nan):
        assert_all_same_bits(second(value), expected)


@each_op
def test_native_calls_tell_norms_from_softmax(op):
    view = _cpu.View.from_numpy(np.ones((2, 3)))
    wrong = {"kind": op.traits.second, "rstd": view if "rstd" not in op.saves else None}
    named = dict.fromkeys(_cpu.native_calls()["second_rows"])
    named |= {"saved": view, "ddx": view, "dy": view, "reduced": (1,), "scale": 1.0}
    named |= {"weight_offset": 0.0, "accumulate": False, **wrong}
    with pytest.raises(ValueError, match="rstd"):
        _cpu.native_call("second_rows", named).run(None, 0)
