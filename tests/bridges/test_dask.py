"""Chunked arrays: lazy, of the bits that the chunks alone decide, in tasks of one thread."""

import pickle
from typing import Any

import numpy as np
import pytest
from conftest import assert_all_same_bits, assert_same_bits
from judged import refused

import fastact as fa

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

AXES: Any = [None, 0, -1, (0, 2), (), (0, 1, 2)]
OF_AXES = [op for op in fa.ops.values() if op.family in ("reductions", "statistics")]
STATISTICS = [op for op in OF_AXES if len(op.results) == 1]
CHUNKS: Any = [(4, 5, 6), (3, 2, 4), ((1, 0, 3), (2, 2, 1), (1, 5))]


def values(dtype: Any = np.float32) -> Any:
    return np.random.default_rng(2).normal(1e3, 1, (4, 5, 6)).astype(dtype)


def never() -> Any:
    """An array whose chunks must not be computed."""

    def chunk(block: Any) -> Any:
        if block.size:
            raise AssertionError("computed")
        return block

    return da.ones((4, 6), chunks=3).map_blocks(chunk, dtype=np.float64, meta=np.empty((0, 0)))


def test_nothing_is_computed():
    x = never()
    lazy = [fa.mish(x), fa.leaky_relu(x, 0.25), *fa.mean_var(x, 0), fa.moments(x).var()]
    lazy += [fa.layer_norm(x), fa.layer_norm(x.rechunk((3, 6))), fa.rms_norm(x.rechunk((3, 6)))]
    for y in lazy:
        assert isinstance(y, da.Array)
        assert type(y._meta) is np.ndarray
        refused("computed", y.compute, scheduler="sync", error=AssertionError)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_element_wise(scheduler):
    x = da.from_array(values(), chunks=CHUNKS[1])
    y = fa.leaky_relu(x, 0.25)
    assert (y.dtype, y.shape, y.chunks) == (x.dtype, x.shape, x.chunks)
    assert_same_bits(y.compute(scheduler=scheduler), fa.leaky_relu(values(), 0.25))
    assert y.name == fa.leaky_relu(x, 0.25).name != fa.leaky_relu(x, 0.5).name
    assert_same_bits(pickle.loads(pickle.dumps(y)).compute(scheduler="sync"), y.compute())
    assert fa.relu(da.arange(3, chunks=2)).dtype == fa.relu(np.arange(3)).dtype


def test_two_operands():
    x, other = da.from_array(values(), chunks=CHUNKS[1]), da.from_array(values(), chunks=CHUNKS[2])
    named: dict[str, Any] = {"activation": "leaky_relu", "negative_slope": 0.25, "limit": 7}
    expected = fa.gated(values(), values(), **named)
    for y in (fa.gated(x, other, **named), fa.gated(x, values(), **named)):
        assert (y.dtype, y.shape, type(y._meta)) == (x.dtype, x.shape, np.ndarray)
        assert_same_bits(y.compute(scheduler="sync"), expected)
    assert fa.swiglu(x, x).name != fa.swiglu(x, x, limit=7).name
    with pytest.raises(TypeError, match=r"^fastact\.swiglu: a must be a plain array.*a\.compute"):
        fa.swiglu(x, x, bias=np.ones(12, np.float32))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_statistics(axis, chunks, keepdims):
    for dtype in (np.float16, np.float32, np.float64, np.int32):
        x = values(dtype)
        lazy = da.from_array(x, chunks=chunks)
        m, whole = fa.moments(lazy, axis, keepdims=keepdims), fa.moments(x, axis, keepdims=keepdims)
        (found,) = dask.compute(m, scheduler="sync")
        assert found.count == whole.count == m.count
        assert m.mean.shape == found.mean.shape == whole.mean.shape
        np.testing.assert_allclose(found.mean, whole.mean, 1e-14)
        np.testing.assert_allclose(found.m2, whole.m2, 1e-10, 1e-20)
        both = fa.mean_var(lazy, axis, correction=0.5, keepdims=keepdims)
        eager = fa.mean_var(x, axis, correction=0.5, keepdims=keepdims)
        for a, b in zip(both, eager, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a.compute(scheduler="sync"), b, 2 * np.finfo(b.dtype).eps,
                                       1e-10)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("op", STATISTICS, ids=lambda op: op.name)
def test_one_statistic(op, chunks):
    """Also of chunks, and of rows, that have nothing but NaN."""
    named = {"correction": 1} if "correction" in op.entry_points["call"].defaults else {}
    for dtype in (np.float16, np.float32, np.float64):
        x = values(dtype)
        if getattr(op, "skips", False):
            x[np.random.default_rng(5).random(x.shape) < 0.3] = np.nan
            x[:, 2:4, 0] = np.nan
            x[1, 3] = np.nan
        for axis in AXES:
            y = op(da.from_array(x, chunks=chunks), axis, **named)
            eager = op(x, axis, **named)
            assert (y.dtype, y.shape) == (eager.dtype, eager.shape)
            eps = np.finfo(dtype).eps
            found = y.compute(scheduler="sync")
            assert type(found) is type(eager)
            np.testing.assert_allclose(found, eager, 2 * eps, 1e-10)


SUMS = [op for op in STATISTICS if getattr(op, "term", None) is not None]


@pytest.mark.parametrize("op", SUMS, ids=lambda op: op.name)
def test_sums_are_exact_where_the_op_is(op):
    """Of chunks that cancel, overflow, or are of integers: no total is rounded to x's dtype."""
    one_of_49 = np.zeros(49, np.int64)
    one_of_49[0] = 1  # 49 times its mean is 1 - 2**-53
    assert op(da.from_array(one_of_49, chunks=49)).compute() == 1
    for dtype, large in ((np.float16, 6e4), (np.float32, 3e38), (np.float32, 2.0**30)):
        x = np.array([large, large, large / 4, -large, -large], dtype)
        with np.errstate(over="ignore"):  # of the squares
            y, whole = op(da.from_array(x, chunks=2)).compute(), op(x)
        assert (y, type(y)) == (whole, type(whole))
    assert op(da.ones((0, 3), chunks=2)).compute() == 0


@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "nansum", "nanmean"])
def test_numbers_as_dask_s_own_reductions(name):
    x = da.from_array(values(np.float64), chunks=CHUNKS[1])
    for axis, keepdims in ((None, False), (None, True), ((0, 1), False)):
        ours = fa.ops[name](x, axis, keepdims=keepdims)
        theirs = getattr(da, name)(x, axis, keepdims=keepdims)
        assert (ours.shape, ours.dtype, ours.chunks) == (theirs.shape, theirs.dtype, theirs.chunks)
        found, expected = dask.compute(ours, theirs)
        assert (type(found), found.shape) == (type(expected), expected.shape)
        np.testing.assert_allclose(found, expected, 1e-12)


def test_bits_are_the_chunks_alone():
    lazy = da.from_array(values(), chunks=CHUNKS[1])
    every = [fa.moments(lazy, 0), *fa.mean_var(lazy), fa.layer_norm(lazy), fa.mish(lazy)]
    expected = dask.compute(*every, scheduler="sync")
    with fa.num_threads(2):
        for _ in range(3):
            found = dask.compute(*every, scheduler="threads", num_workers=4)
            assert found[0] == expected[0]
            assert_all_same_bits(found[1:], expected[1:])


@pytest.mark.thorough  # starts processes: 8 s
def test_processes():
    lazy = da.from_array(values(), chunks=CHUNKS[1])
    every = [fa.moments(lazy, 0), fa.layer_norm(lazy), fa.leaky_relu(lazy, 0.25)]
    expected = dask.compute(*every, scheduler="sync")
    found = dask.compute(*every, scheduler="processes", num_workers=2)
    assert found[0] == expected[0]
    assert_all_same_bits(found[1:], expected[1:])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("axis", [-1, (1, 2), 0, (0, 2)], ids=str)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_layer_norm(chunks, axis, dtype):
    x = np.random.default_rng(3).normal(3, 2, (4, 5, 6)).astype(dtype)
    shape = tuple(x.shape[a] for a in (axis if isinstance(axis, tuple) else (axis,)))
    weight = np.linspace(0.5, 2, int(np.prod(shape))).reshape(shape).astype(dtype)
    named: dict[str, Any] = {"axis": axis, "activation": "leaky_relu", "negative_slope": 0.25}
    lazy = da.from_array(x, chunks=chunks)
    eager = fa.layer_norm(x, weight, weight, **named)
    for of_dask in (weight, da.from_array(weight, chunks=2)):
        y = fa.layer_norm(lazy, of_dask, weight, **named)
        assert (y.dtype, y.chunks) == (x.dtype, lazy.chunks)
        epsilon = np.finfo(dtype).eps
        np.testing.assert_allclose(y.compute(scheduler="sync"), eager, 8 * epsilon, 8 * epsilon)
    plain = fa.layer_norm(lazy, axis=axis).compute(scheduler="sync")
    np.testing.assert_allclose(plain, fa.layer_norm(x, axis=axis), 8 * epsilon, 8 * epsilon)


@pytest.mark.parametrize("dtype", [np.int32, ">f4", ">f2"])
@pytest.mark.parametrize("chunks", [(4, 5, 6), (4, 5, 4)], ids=str)
def test_norms_of_integers_and_of_another_byte_order(chunks, dtype):
    x = (10 * np.random.default_rng(3).normal(3, 2, (4, 5, 6))).astype(dtype)
    y, eager = fa.layer_norm(da.from_array(x, chunks=chunks)), fa.layer_norm(x)
    assert y.dtype == eager.dtype == y.compute().dtype
    epsilon = np.finfo(eager.dtype).eps
    np.testing.assert_allclose(y.compute(), eager, 8 * epsilon, 8 * epsilon)


def test_refused():
    x = da.from_array(values()[0], chunks=2)
    unknown = x[x[:, 0] > 0]
    masked = da.ma.masked_array(x, mask=x > 0)
    for words, call in (
        (r"moments: x must have chunks of known sizes.*compute_chunk_sizes", (fa.moments, unknown)),
        (r"layer_norm: x must have chunks of known sizes", (fa.layer_norm, unknown)),
        (r"moments: x must have chunks that are plain .*MaskedArray", (fa.moments, masked)),
        (r"layer_norm: x must have chunks that are plain", (fa.layer_norm, masked)),
        (r"layer_norm: weight must be a plain .*weight.compute", (fa.layer_norm, values(), x)),
        (r"layer_norm: weight must have shape \(6,\), got \(3,\)", (fa.layer_norm, x, np.ones(3))),
        (r"rms_norm: x must have one chunk along axis -1", (fa.rms_norm, x)),
        (r"softmax: x must be a plain array.*x.compute", (fa.softmax, x)),
        (r"moments: x must have dtype .* got object", (fa.moments, x.astype(object))),
        (r"mean_var: axis must be from -2 to 1", (fa.mean_var, x, 2)),
        (r"dask\.moments: x must be a dask array, .*use fastact.moments", (fa.dask.moments, 1)),
    ):  # fmt: skip
        function, *args = call
        refused(rf"^fastact\.{words}", function, *args, error=(TypeError, ValueError))
    refused("out must be None for a dask array", fa.mean_var, x, out=(np.empty(()), None))
    with pytest.raises(NotImplementedError, match="expected Dask Array"):
        fa.mish(x, out=np.empty(x.shape, np.float32))


def test_threads_of_a_task():
    def count(block: Any) -> Any:
        return np.full(block.shape, fa.get_num_threads())

    from fastact.dask import Task, as_ufunc
    from fastact.runtime.config import config

    with fa.num_threads(3):
        assert as_ufunc(count)(np.ones(1)) == 1
        assert fa.get_num_threads() == 3
        assert config()["dask"] == {"threads of a task": "1, by default"}
        with dask.config.set({"fastact.threads-per-task": 2}):
            task = as_ufunc(count)
            assert config()["dask"] == {"threads of a task": "2, by dask.config"}
        assert pickle.loads(pickle.dumps(Task(fa.mish, 2))).threads == task.threads == 2
        assert task(np.ones(1)) == 2


WEIGHED = [
    op
    for op in fa.ops.values()
    if "weights" in op.entry_points["call"].defaults and op.family in ("statistics", "reductions")
]


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("op", WEIGHED, ids=lambda op: op.name)
def test_weights_and_masks(op, chunks):
    x, rng = values(), np.random.default_rng(9)
    lazy = da.from_array(x, chunks=chunks)
    weights = rng.integers(0, 3, x.shape)
    mask = rng.random((5, 1)) < 0.7
    given: list[dict[str, Any]] = [
        {"weights": weights}, {"weights": da.from_array(weights, chunks=2)},
        {"weights": weights[0, :, 0], "axis": 1}, {"weights": weights[:1, :, :1], "axis": (0, 1)},
        {"weights": weights[0].T, "axis": (2, 1)},
    ]  # fmt: skip
    if "where" in op.entry_points["call"].defaults:
        given += [{"where": mask}, {"where": da.from_array(mask, chunks=1), "weights": weights}]
    for named in given:
        named = {"axis": 0, **named}
        eager = {n: v.compute() if isinstance(v, da.Array) else v for n, v in named.items()}
        found, expected = dask.compute(op(lazy, **named), scheduler="sync")[0], op(x, **eager)
        assert_near(found, expected)


def assert_near(found: Any, expected: Any) -> None:
    if isinstance(found, fa.Moments):
        np.testing.assert_array_equal(found.count, expected.count)
    for a, b in zip(*map(_arrays, (found, expected)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, 4 * np.finfo(b.dtype).eps, 1e-9)


def _arrays(result: Any) -> tuple[Any, ...]:
    if isinstance(result, fa.Moments):
        return result.mean, result.var()
    return result if isinstance(result, tuple) else (result,)


CORRECTED = [op for op in fa.ops.values() if op.results[-1] in ("var", "std")]
COUNTED: list[dict[str, Any]] = [
    {}, {"weights": np.array([0.25, 0.5, 0.25])}, {"where": np.array([True, True, False])},
    {"by": np.zeros(3, int), "groups": 1},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize(
    ("op", "named"),
    [
        pytest.param(op, named, id="-".join((op.name, *named)))
        for op in CORRECTED
        for named in COUNTED
        if {*named} <= {*op.entry_points["call"].defaults}
    ],
)
def test_variances_of_too_few_are_the_ops_own(op, named):
    x = np.array([[1.0, 2.0, 4.0], [2.0, 2.0, 2.0], [np.nan, 3.0, 1.0]])
    for correction in (0, 1, 2, 3, 4, -1):
        expected = op(x, 1, correction=correction, **named)
        lazy = op(da.from_array(x, chunks=2), 1, correction=correction, **named)
        np.testing.assert_allclose(dask.compute(lazy)[0], expected, rtol=1e-13)


def test_labels_that_int64_does_not_hold_are_refused_when_they_are_computed():
    x, labels = np.ones(4), np.array([0, 1, 2**64 - 1, 0], np.uint64)
    for by in (labels, da.from_array(labels, chunks=2)):
        lazy = fa.sum(da.from_array(x, chunks=2), by=by, groups=2)
        with pytest.raises(ValueError, match=r"^fastact\.sum: by must have values that int64 hol"):
            lazy.compute()


GROUPED = [op for op in fa.ops.values() if "by" in op.roles]


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("op", GROUPED, ids=lambda op: op.name)
def test_groups(op, chunks):
    """Labels along axes that are reduced, and that stay; some of no group, a group of none."""
    x, rng, defaults = values(), np.random.default_rng(9), op.entry_points["call"].defaults
    lazy = da.from_array(x, chunks=chunks)
    each = rng.integers(-1, 4, x.shape)
    given: list[dict[str, Any]] = [
        {"by": np.array([2, 0, -1, 0, 3], np.int8), "axis": 1},
        {"by": da.from_array(each, chunks=2), "axis": (0, 2)},
        {"by": each[0], "axis": (1, 2), "where": each > 0},
        {"by": each[:, :, 0].T, "axis": (1, 0)},
    ]
    if "weights" in defaults:
        given.append({"by": each, "weights": rng.integers(0, 3, x.shape), "axis": None})
    for named in given:
        eager = {n: v.compute() if isinstance(v, da.Array) else v for n, v in named.items()}
        found = dask.compute(op(lazy, groups=5, **named), scheduler="sync")[0]
        expected = op(x, groups=5, **eager)
        assert_near(found, expected)


@pytest.mark.parametrize("op", [op for op in SUMS if op in GROUPED], ids=lambda op: op.name)
def test_sums_by_groups_are_exact_where_the_op_is(op):
    for dtype, large in ((np.float16, 6e4), (np.float32, 3e38), (np.float32, 2.0**30)):
        x = np.array([large, 1, large, large / 4, -large, -large], dtype)
        by: Any = {"by": np.array([1, 0, 1, 1, 1, 1]), "groups": 2}
        with np.errstate(over="ignore"):  # of the squares
            np.testing.assert_array_equal(op(da.from_array(x, chunks=2), **by), op(x, **by))


def test_groups_refused():
    x = da.from_array(values()[0], chunks=2)
    labels = np.array([0, 1, 0, 1, 1])
    for words, named in (
        ("by must have dtype", {"by": labels * 1.0, "groups": 2}),
        (r"by must broadcast to x's .* or be along axis 0", {"by": labels[1:], "groups": 2}),
        ("groups must be given with by under JAX and where torch", {"by": labels}),
        ("groups must not be negative", {"by": labels, "groups": -1}),
        ("keepdims must be False with by", {"by": labels, "groups": 2, "keepdims": True}),
        ("by must be a plain array, got a masked", {"by": np.ma.array(labels), "groups": 2}),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"^fastact\.mean: {words}"):
            fa.mean(x, axis=0, **named)
    with pytest.raises(ValueError, match=r"^fastact\.moments: by "):
        fa.mean(x, axis=0, by=labels, groups=1).compute(scheduler="sync")


TOLD = [op for op in OF_AXES if "dtype" in op.entry_points["call"].defaults]


@pytest.mark.parametrize("op", TOLD, ids=lambda op: op.name)
def test_dtype_and_initial(op):
    for kind in (np.float16, np.float32, np.float64):
        x = values(kind)
        lazy = da.from_array(x, chunks=CHUNKS[1])
        for told in (np.float16, np.float32, np.float64):
            named: dict[str, Any] = {"dtype": told, "where": x > 0}
            if "initial" in op.entry_points["call"].defaults:
                named["initial"] = 2.5
            for y, of in zip(
                _arrays(op(lazy, 1, **named)), _arrays(op(x, 1, **named)), strict=True
            ):
                assert (y.dtype, y.shape) == (of.dtype, of.shape) == (told, of.shape)
                eps = max(2 * float(np.finfo(told).eps), 2.0**-20)
                np.testing.assert_allclose(y.compute(scheduler="sync"), of, eps, 1e-9)
