"""Sums, moments and statistics of all elements or of those that count: within their bounds.

Results and gradients, by every walk of the kernels, wherever they run. The oracle is
`fastact.check.expected`; that its formulas are right, tests/ops/test_derivatives.py and torch's
autograd in the files of ops say. Layouts, threads and instruction sets: tests/invariants.
"""

import math
from typing import Any
from zlib import crc32

import judged
import numpy as np
import pytest
from conftest import assert_same_bits, on_backends
from devices import DTYPES
from processes import peak
from sums import CASES, DEVICE_CASES, drawn

import fastact as fa
from fastact.ops.engine.op import arrays_of

OPS = [op for op in fa.ops.values() if op.family in ("reductions", "statistics")]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
each_case = on_backends("shape axes", CASES, DEVICE_CASES)

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")

NAMED = ("weights", "where")
#: What counts, by the arguments that say so; along: of the axes that are reduced alone.
KINDS = {
    "all": (), "weights": ("weights",), "where": ("where",), "both": ("weights", "where"),
    "along": ("weights",), "correction": ("correction",), "skipna": ("skipna",),
    "initial": ("initial",),
}  # fmt: skip


def each_pair(*kinds: str) -> Any:
    """Each op with each kind that it has arguments for."""
    pairs = [
        (op, kind)
        for op in OPS
        for kind in kinds or KINDS
        if {*KINDS[kind]} <= op.entry_points["call"].defaults.keys()
    ]
    ids = [f"{op.name}-{kind}" for op, kind in pairs]
    return pytest.mark.parametrize(("op", "kind"), pairs, ids=ids)


def counting(dtype: Any, shape: tuple[int, ...], axes: tuple[int, ...], kind: str) -> Any:
    """Weights of four orders of magnitude and a mask: some are 0, and all of some outputs'."""
    rng, names, made = np.random.default_rng(2), KINDS[kind], {}
    hidden = rng.random(tuple(1 if a in axes else n for a, n in enumerate(shape))) < 0.1
    if "weights" in names:
        along = tuple(n if a in axes else 1 for a, n in enumerate(shape))
        of = along if kind == "along" else shape
        w = 10.0 ** rng.uniform(-2, 2, of) * (rng.random(of) < 0.8)
        made["weights"] = (w if kind == "along" else np.where(hidden, 0, w)).astype(dtype)
    if "where" in names:
        made["where"] = (rng.random(shape) < 0.7) & ~hidden
    told = {"correction": 1, "skipna": True, "initial": 2.5}
    return made | {name: told[name] for name in {*names} - {*NAMED}}


def hide(x: np.ndarray, named: dict[str, Any]) -> None:
    """Whatever does not count is no number."""
    there = np.broadcast_to(named.get("where", True) & (named.get("weights", 1) != 0), x.shape)
    x[~there] = np.resize([np.nan, np.inf, -np.inf], int((~there).sum()))
    if "skipna" in named:
        x[np.random.default_rng(3).random(x.shape) < 0.2] = np.nan


def one_of(values: Any, *named: Any) -> Any:
    """A value that depends on the others: over all of them each is met."""
    return [*values][crc32(repr((*map(str, named),)).encode()) % len(values)]


@each_case
@each_pair()
def test_results_and_gradients(op, kind, backend, many_threads, shape, axes):
    """Gradients have x's dtype and are rounded once."""
    dtype = one_of(DTYPES.values(), op, kind, shape, backend.name)
    keepdims = one_of((False, True), kind, op, axes, shape, dtype)
    centre = 1000 if keepdims else 10  # where x - mean is a hundredth of what bfloat16 tells apart
    x, named = drawn(op, dtype, shape, centre), counting(dtype, shape, axes, kind)
    hide(x, named)
    of, rng = np.any(x, axes, keepdims=keepdims).shape, np.random.default_rng(1)
    dys: list[Any] = [np.asarray(rng.normal(size=of)).astype(dtype) for _ in op.results[:2]]
    if len(dys) > 1 and keepdims:
        dys[0] = None
    found = judged.assert_right(
        op, {"x": x, **named, "axis": axes, "keepdims": keepdims}, dys, backend
    )
    assert {*op.results, "dx"} <= found.keys()
    kept = np.float64 if "m2" in op.results else dtype
    assert all(np.asarray(found[name]).dtype == kept for name in op.results)


@pytest.mark.parametrize("terms", [1, 2, 7, 8, 9, 31, 33, 200, 255, 256, 2048, 2049, 70_000])
@each_pair("all", "weights", "where", "both")
def test_same_bits_in_every_walk(op, dtype, terms, kind):
    """Along rows, down columns, narrow or strided: a set of values has one result, whatever lies
    beside it."""
    row = drawn(op, dtype, (terms,))
    if getattr(op, "skips", False):
        gap = one_of((0, 1, 40, 3000), op, terms, kind)
        row[: min(gap, terms - 1)], row[3::7] = np.nan, np.nan
    given = counting(dtype, (terms,), (), kind)
    expected = arrays_of(op(row, **given))
    other = np.full(terms, np.nan, dtype)

    def of(lay: Any, first: Any, axis: int) -> None:
        beside = {name: lay(a, a) for name, a in given.items()}
        for found, one in zip(arrays_of(op(first, axis, **beside)), expected, strict=True):
            kept = np.asarray(found)[[0, -1]]
            assert_same_bits(kept, np.full_like(kept, one))

    for n in (1, 70 if terms < 10_000 else 2):
        rows = lambda a, b, n=n: np.stack([a, *[b] * n, a])  # noqa: E731
        of(rows, rows(row, other), 1)
        of(lambda a, b, rows=rows: rows(a, b).T.copy(), rows(row, other).T.copy(), 0)
        of(rows, np.repeat(rows(row, other), 2, 1)[:, ::2], 1)
        of(lambda a, b, rows=rows: rows(a, b).T, np.repeat(rows(row, other).T, 2, 1)[:, ::2], 0)


@each_pair("all", "both", "where")
@pytest.mark.parametrize("told", [None, np.float64])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4_000_000,), 0), ((2000, 2000), 0), ((2000, 2000), 1), ((1_000_000, 4), 0)],
)
def test_no_memory_that_grows(op, dtype, many_threads, shape, axis, kind, told):
    """Calls take little of it forward and backward, of data with gaps and in another dtype."""
    if told is not None and "dtype" not in op.entry_points["call"].defaults:
        told = None
    x = np.ones((*shape, 2), dtype)[..., 0]
    named = counting(dtype, shape, (axis,), kind) | ({} if told is None else {"dtype": told})
    outs = tuple(np.zeros_like(part) for part in arrays_of(op(x, axis, **named)))
    out = outs if len(outs) > 1 else outs[0]
    room = 20_000 + math.prod(shape) // 64
    assert peak(lambda: op(x, axis, out=out, **named)) < room
    result, saved = op.forward(x, axis=axis, **named)
    of, dx = np.shape(arrays_of(result)[0]), np.zeros_like(x)
    dys = tuple(np.ones(of, told or dtype) for _ in op.results[:2])
    more = {"axis": axis, "out": (dx, None) if len(op.gradients) > 1 else dx, "accumulate": True}
    more |= {} if told is None else {"dtype": told}
    dy = dys if len(dys) > 1 else dys[0]
    assert peak(lambda: op.backward(dy, *saved, **more)) < room


@each_op
@pytest.mark.parametrize("kind", [bool, np.int8, np.uint8, np.uint16, np.int32, np.int64])
def test_integers_are_read_as_float64(op, kind, many_threads):
    """Every entry point reads them as they are, without a copy of as many numbers."""
    x = np.random.default_rng(0).integers(0, 2 if kind is bool else 100, (2000, 100)).astype(kind)
    for axis in (0, 1, None):
        found = []
        for like in (x, x[:, ::-1].copy()[:, ::-1], x.astype(float)):
            y, saved = op.forward(like, axis)
            dys = tuple(np.full(np.shape(part), 0.5) for part in arrays_of(y))[: len(op.results)]
            given = {**dict(zip(op.saves, saved, strict=True)), "axis": axis}
            back = op.bound("backward", {**given, "dy": dys if len(dys) > 1 else dys[0]})()
            found.append([*arrays_of(y), *arrays_of(back)])
        *ours, of_floats = found
        for one in ours:
            for a, b in zip(one, of_floats, strict=True):
                if b is not None:
                    assert np.asarray(a).dtype == np.float64
                    np.testing.assert_allclose(a, b, rtol=1e-13)
    if op in (fa.nansum, fa.mean, fa.var, fa.nanmean) and np.dtype(kind).itemsize > 2:
        out = np.zeros(2000)
        assert peak(lambda: op(x, 1, out=out)) < 20_000 + x.size // 8


@each_op
def test_infinities_and_nan(op, backend, dtype):
    """Results are NumPy's wherever they are: in the first lane, another one, the second block."""
    function = getattr(np, op.name, None)
    if function is None or op is fa.average:
        function = {"mean_var": lambda a: (a.mean(), a.var()), "average": np.mean,
                    "sum_squares": lambda a: (a**2).sum()}.get(op.name)  # fmt: skip
    for at in (0, 40, 2500):
        for values in ((np.inf,), (-np.inf,), (np.inf, -np.inf), (np.nan,), (np.nan, np.inf)):
            x = np.ones(5000)
            x[at : at + len(values)] = values
            with np.errstate(all="ignore"):
                expected = function(x) if function else (x.mean(), np.nan)
            for laid, axis in ((x, 0), (np.tile(x, (3, 1)), 1), (np.tile(x[:, None], 70), 0)):
                for part, right in zip(
                    arrays_of(op(backend.of(laid.astype(dtype)), axis)),
                    expected if isinstance(expected, tuple) else (expected,),
                    strict=True,
                ):
                    found = np.asarray(backend.numpy(part)).astype(float)
                    if np.isfinite(right):
                        np.testing.assert_allclose(found, right, rtol=1e-2)
                    else:
                        np.testing.assert_array_equal(found, np.full_like(found, right))


@each_pair("all", "weights", "where")
@pytest.mark.parametrize("name", DTYPES)
def test_one_value(op, kind, name):
    """Results belong to the caller: of no axes they are NumPy's numbers."""
    x = np.array([1, 2, 4], DTYPES[name])
    given = {n: np.ones(3, a.dtype) for n, a in counting(x.dtype, (3,), (0,), kind).items()}
    for part in arrays_of(op(x, **given)):
        assert np.ndim(part) == 0
        assert np.asarray(part).dtype == (np.float64 if op is fa.moments else x.dtype)
    with pytest.raises(TypeError, match="x must have dtype"):
        op(np.zeros(3, complex))
