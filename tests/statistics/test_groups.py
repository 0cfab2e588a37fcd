"""Statistics by groups: `by=` and `groups=` of sums, means, variances and moments.

The oracle computes each group alone; beside it stand NumPy's `add.at` and exact fractions.
"""

import tracemalloc
from fractions import Fraction
from typing import Any

import judged
import numpy as np
import pytest
import torch
from conftest import first_of_families
from devices import FRAMEWORKS

import fastact as fa
from fastact.interop import validate
from fastact.ops.engine.op import arrays_of

GROUPS = 5
OPS = [op for op in fa.ops.values() if op.roles.get("by") is validate.LABELS]
#: Shapes with the axes that are reduced and the shape of the labels: lengths that stage elements in
#: one piece and in several, one output and many, columns that are listed and columns that are few.
LAYOUTS = {
    "one axis": ((3000,), None, (3000,)),
    "rows": ((3, 700), 1, (700,)),
    "labels of each row": ((3, 700), -1, (3, 700)),
    "columns": ((700, 5), 0, (700,)),
    "three columns": ((700, 3), 0, (700,)),
    "many columns": ((90, 40), 0, (90, 1)),
    "labels of each element": ((90, 40), 0, (90, 40)),
    "a middle axis": ((4, 60, 33), 1, (60,)),
    "two axes": ((6, 50, 20), (0, 2), (6, 1, 20)),
    "all axes": ((6, 50, 4), None, (6, 50, 4)),
    "axes in another order": ((6, 50, 20), (2, 0), (20, 6)),
    "equal axes in another order": ((8, 8, 8), (-1, 0), (8, 8)),
}

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def made(layout: Any, dtype: Any = np.float64, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """An array, some of it NaN, and the arguments of its groups; the last one is empty."""
    shape, axis, of_labels = layout
    r = np.random.default_rng(seed)
    x = (r.standard_normal(shape) + 2).astype(dtype)
    x[r.random(shape) < 0.02] = np.nan
    return x, {"axis": axis, "by": r.integers(-1, GROUPS - 1, of_labels), "groups": GROUPS}


@each_op
@each_layout
@pytest.mark.parametrize("counts", [False, True], ids=["all", "weights and a mask"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32], ids=str)
def test_each_group_is_a_call_of_its_own(op, layout, dtype, counts):
    """Which is how the oracle judges results and gradients."""
    x, named = made(layout, np.float64 if dtype is np.int32 else dtype)
    r = np.random.default_rng(1)
    if counts:
        named["where"] = x < 4
        if "weights" in op.roles:
            named["weights"] = r.random(x.shape) * (r.random(x.shape) < 0.8)
    x = np.where(np.isnan(x), 1, x).astype(dtype) if dtype is np.int32 else x
    parts = arrays_of(op(x, **named))
    of_dy = x.dtype if x.dtype.kind == "f" else np.float64  # also for moments, which are double
    dys = [r.standard_normal(part.shape).astype(of_dy) for part in parts[: len(op.results)]]
    found = judged.assert_right(op, {"x": x, **named}, dys)
    assert {*op.results, "dx"} <= found.keys()


def _joined(dys: list[Any]) -> Any:
    return tuple(dys) if len(dys) > 1 else dys[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("groups", [3, 400])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("columns", [(), (5,), (21,)])
def test_sums_as_numpys_add_at(dtype, groups, is_sorted, columns):
    """Long enough for chunks, runs of one label, and lanes of some hundred elements."""
    r = np.random.default_rng(2)
    x, labels = r.standard_normal((80_000, *columns)).astype(dtype), r.integers(0, groups, 80_000)
    labels = np.sort(labels) if is_sorted else labels
    expected = np.zeros((groups, *columns), np.longdouble)
    np.add.at(expected, labels, x)
    found = fa.sum(x, axis=0, by=labels, groups=groups)
    with fa.num_threads(1):
        np.testing.assert_array_equal(found, fa.sum(x, axis=0, by=labels, groups=groups))
    np.testing.assert_allclose(
        found.T,
        expected.astype(float),
        rtol=2e-7 if dtype is np.float32 else 1e-13,
        atol=1e-6 if dtype is np.float32 else 1e-12,
    )


def moments_by(x: Any, labels: Any, groups: int, is_row: bool) -> Any:
    """Of x, or of one of five columns; NaN of the others lie elsewhere."""
    named = {"by": labels, "groups": groups, "skipna": bool(np.isnan(x).any())}
    if not is_row:
        return fa.moments(x, **named)
    found = fa.moments(np.stack([x[::-1], x, -x, x, x], 1), 0, **named)
    return fa.Moments(*(part[1] for part in (found.count, found.mean, found.m2)))


@pytest.mark.parametrize("far", [0.0, 1e4, 1e8, 1e12])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("groups", [1, 7, 2000])
@pytest.mark.parametrize("is_row", [False, True], ids=["elements", "rows"])
def test_values_far_from_0_lose_no_digits(far, is_sorted, groups, is_row):
    """m2 as if the mean were 0, however far it is, for x - far is exact; the first lies far off."""
    r = np.random.default_rng(3)
    x, labels = r.standard_normal(50_000) + far, r.integers(0, groups, 50_000)
    x[0] += 1e6
    labels = np.sort(labels) if is_sorted else labels
    found = moments_by(x, labels, groups, is_row)
    bounds = fa.moments.bounds
    for g in range(min(groups, 20)):
        of = (x[labels == g] - far).astype(np.longdouble)
        m2 = ((of - of.mean()) ** 2).sum()
        assert abs(found.m2[g] - m2) <= bounds.m2_double * m2
        assert abs(found.mean[g] - far - of.mean()) <= bounds.mean * abs(of + far).mean()
        assert found.count[g] == len(of)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_row", [False, True], ids=["elements", "rows"])
def test_moments_beside_exact_fractions(seed, is_row):
    """However far from 0 the mean is: in any order, sorted, and with NaN."""
    r = np.random.default_rng(seed)
    n, groups = r.integers(2, 1500), r.integers(1, 40)
    x = r.standard_normal(n) * 10.0 ** r.integers(-3, 4) + 10.0 ** r.integers(0, 15)
    labels = r.integers(0, groups, n)
    if seed % 2:
        labels.sort()
    if seed % 3 == 0:
        x[r.random(n) < 0.1] = np.nan
    found = moments_by(x, labels, groups, is_row)
    for g in range(groups):
        of = [Fraction(value) for value in x[labels == g].tolist() if value == value]
        mean = sum(of) / max(len(of), 1)
        m2 = sum((value - mean) ** 2 for value in of)
        assert abs(Fraction(float(found.m2[g])) - m2) <= Fraction(fa.moments.bounds.m2_double) * m2


def test_equal_values_have_no_variance():
    labels = np.arange(3000) % 3
    assert (fa.var(np.full(3000, 0.1), by=labels, groups=3) == 0).all()


def test_columns_have_the_bits_of_each_group_alone():
    """Where whole rows have a label, they are listed, and added as an array of them would be."""
    x, named = made(((400, 64), 0, (400,)), np.float32)
    for op in OPS:
        if len(op.results) > 1:
            continue
        found = op(x, **named)
        for g in range(GROUPS - 1):
            assert found[..., g].tobytes() == op(x[named["by"] == g], axis=0).tobytes(), op.name


@each_op
def test_groups_without_elements_are_of_none(op):
    nothing = arrays_of(op(np.zeros(0)))
    for x, labels in ((np.ones(4), [1, 1, -1, 1]), (np.ones(0), np.zeros(0, int))):
        for found, expected in zip(arrays_of(op(x, by=labels, groups=3)), nothing, strict=True):
            np.testing.assert_array_equal(found[[0, 2]], [expected, expected])


@each_op
@pytest.mark.parametrize("shape", [(6,), (6, 3), (6, 40), (0, 3)], ids=str)
def test_no_groups(op, shape):
    """As an empty frame has them: every result and every tangent is there, with no numbers, and
    gradients are 0."""
    x, labels = np.ones(shape), np.full(shape[0], -1)
    named = {"axis": 0, "by": labels, "groups": 0}
    result, saved = op.forward(x, **named)
    moved = op.jvp(x, tangents=x, **named)
    for found in (result, *moved):
        assert {part.shape for part in arrays_of(found)} == {(*shape[1:], 0)}
    given = {**dict(zip(op.saves, saved, strict=True)), "axis": 0, "groups": 0}
    for accumulate in (False, True):
        dx = np.full(shape, 7.0)
        outs = {"out": (dx, None) if len(op.gradients) > 1 else dx}
        dy = _joined(arrays_of(result)[: len(op.results)])
        op.bound("backward", {**given, **outs, "dy": dy, "accumulate": accumulate})()
        assert (dx == (7 if accumulate else 0)).all()
    if shape[0]:
        with pytest.raises(ValueError, match="by must hold -1 alone for no groups"):
            op.bound("backward", {**given, "by": labels + 1, "dy": dy})()


@each_op
@pytest.mark.parametrize("shape", [(40,), (40, 3), (40, 33), (40, 5, 3)], ids=str)
@pytest.mark.parametrize("of_labels", [1, 9], ids=["of rows", "of elements"])
def test_many_more_groups_than_labels(op, shape, of_labels):
    """Lanes and lists are of the groups that are met: results are those of few groups, in place."""
    r = np.random.default_rng(8)
    x, few = r.standard_normal(shape), r.integers(-1, 7, shape[:of_labels])
    given = [{}] if "weights" not in op.roles else [{}, {"weights": r.random(shape)}]
    met = np.array([0, 3, 4, 5000, 70_000, 79_998, 79_999])
    by = np.where(few < 0, -1, met[few])
    for more in given:
        found = arrays_of(op(x, axis=0, by=by, groups=80_000, **more))
        expected = arrays_of(op(x, axis=0, by=few, groups=8, **more))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a[..., met], b[..., :7])
            none = np.delete(a, met, axis=-1)
            np.testing.assert_array_equal(none, np.broadcast_to(b[..., 7:], none.shape))
    with pytest.raises(ValueError, match="by must hold groups from 0 to 79999"):
        op(x, axis=0, by=np.where(few == 6, 80_000, few), groups=80_000)


def test_many_groups_take_memory_of_the_labels():
    """Native code asks for it: ten labels take less than a result of their groups."""
    x, by = np.ones(10), np.arange(10)
    out = np.zeros(10**6)
    tracemalloc.start()
    try:
        fa.sum(x, by=by, groups=len(out), out=out)
        assert tracemalloc.get_traced_memory()[1] < out.nbytes / 8
    finally:
        tracemalloc.stop()
    assert out.sum() == 10


def of_numbers(op: Any, result: Any) -> tuple[list[Any], list[int]]:
    """What grows as the numbers do, or as their squares: arrays, and that power."""
    if isinstance(result, fa.Moments):
        return [result.mean, result.std()], [1, 1]
    return list(arrays_of(result)), [2 if name == "var" else 1 for name in op.results]


#: One output and many, and their labels; None: sorted.
RANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "one axis": ((4000,), (4000,)),
    "few columns": ((400, 5), (400,)),
    "labels of each element": ((400, 20), (400, 20)),
    "listed": ((400, 20), (400,)),
    "many groups": ((60,), (60,)),
    "chunks": ((70_000,), (70_000,)),
    "runs": ((4000,), None),
}
MEANS_AND_MORE = [op for op in OPS if not {"y", "sum"} & {*op.results}]


@pytest.mark.parametrize("op", MEANS_AND_MORE, ids=lambda op: op.name)
@pytest.mark.parametrize("layout", RANGES)
# With 2**1018 sums of a thousand leave the range, and the root of m2, which moments hold, does not.
@pytest.mark.parametrize("exponent", [-532, -538, -1000, 505, 1018])
def test_the_range_is_that_of_a_call_without_groups(op, layout, exponent):
    """Squares of one group of four, or the sum of its elements, leave the range of double."""
    (shape, of_labels), r = RANGES[layout], np.random.default_rng(9)
    x = r.uniform(1, 2, shape)
    by = r.integers(0, 4, of_labels or shape)
    by = by if of_labels else np.sort(by)
    at = by.reshape(by.shape + (1,) * (x.ndim - by.ndim)) == 2
    far = np.where(at, x * 2.0**exponent, x)
    named = {"axis": 0, "by": by, "groups": 10**4 if layout == "many groups" else 4}
    for more in ({}, {"weights": r.uniform(0.5, 2, shape)}):
        near, powers = of_numbers(op, op(x, **named, **more))
        found, _ = of_numbers(op, op(far, **named, **more))
        for a, b, power in zip(found, near, powers, strict=True):
            np.testing.assert_array_equal(a[..., [0, 1, 3]], b[..., [0, 1, 3]])
            if abs(exponent * power) < 1022:
                got = a[..., 2] * 2.0 ** (-exponent * power)
                np.testing.assert_allclose(got, b[..., 2], rtol=1e-13)


@each_op
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_what_is_no_number_stays_with_its_group(op, special):
    """Beside one that leaves the range of double."""
    x, by = np.array([1.0, special, 1e-170, 3e-170, 2.0, 3.0]), np.array([0, 0, 1, 1, 2, 2])
    found, _ = of_numbers(op, op(x, by=by, groups=3))
    for g in range(3):
        expected, _ = of_numbers(op, op(x[by == g]))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a[g], b, rtol=1e-14)


CANCELLING = [1e16, 97.0, -5e15, -5e15]
SUMS = [op for op in OPS if {"sum", "mean"} >= {*op.results} or op is fa.sum]


@pytest.mark.parametrize("op", SUMS, ids=lambda op: op.name)
@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 40)], ids=str)
def test_sums_are_compensated(op, shape):
    x = np.broadcast_to(np.reshape(CANCELLING, (4,) + (1,) * (len(shape) - 1)), shape)
    expected = 97.0 / 4 if "mean" in op.results else 97.0
    x = np.repeat(x, 2, 0)  # of two groups in turn
    given = [{}, {"where": np.ones(x.shape, bool)}]
    given += [{"weights": np.ones(x.shape)}] if "weights" in op.roles else []
    for more in given:
        found = op(x, axis=0, by=np.arange(8) % 2, groups=2, **more)
        assert (np.asarray(found) == expected).all(), more


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize("light", [2.0**-50, 2.0**-30, 1.0])
@pytest.mark.parametrize("count", [3, 5000])
def test_light_elements_far_away_take_no_digits(swaps, light, count):
    """By groups, and on every device: a heavier set is not moved by nearly all of the distance."""
    r = np.random.default_rng(0)
    x = np.concatenate([np.zeros(count), 1e8 + r.standard_normal(40)])
    w = np.concatenate([np.full(count, light), np.ones(40)])
    if swaps:
        x, w = x[::-1].copy(), w[::-1].copy()
    of, times = [Fraction(v) for v in x.tolist()], [Fraction(v) for v in w.tolist()]
    mean = sum(a * b for a, b in zip(of, times, strict=True)) / sum(times)
    m2 = sum(b * (a - mean) ** 2 for a, b in zip(of, times, strict=True))
    bound = Fraction(fa.moments.bounds.m2_double)
    found = [fa.moments(x, weights=w, by=np.zeros(len(x), int), groups=1).m2]
    for device in FRAMEWORKS:
        result = fa.moments(device.of(x), weights=device.of(w))
        found.append(device.numpy(result.m2))
    for got in found:
        assert abs(Fraction(float(np.ravel(got)[0])) - m2) <= bound * m2


@pytest.mark.filterwarnings("ignore:weights that are negative:RuntimeWarning")
def test_a_wrong_weight_in_a_late_chunk_is_not_lost():
    """Long enough for chunks, which merge: a count that is no number stays none."""
    w, by = np.ones(2**20), np.arange(2**20) % 3
    w[-2] = -1
    for op in (fa.average, fa.mean, fa.var):
        found = op(np.ones(2**20), by=by, groups=3, weights=w)
        assert np.isnan(found[by[-2]])
        assert np.isfinite(np.delete(found, by[-2])).all()


@each_op
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_empty_groups_are_written(op, threads):
    """Also where a part of the work begins with one: out held other numbers."""
    x, by = np.ones((2048, 64), np.float32), np.arange(2048) % 2 * 15
    plain = arrays_of(op(x, axis=0, by=by, groups=16))
    outs = tuple(np.full_like(part, 7) for part in plain)
    with fa.num_threads(threads):
        op(x, axis=0, by=by, groups=16, out=outs if len(outs) > 1 else outs[0])
    for found, expected in zip(outs, plain, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert not (found[:, 1:15] == 7).any()


@pytest.mark.parametrize("special", [np.nan, np.inf, 0.0])
def test_an_average_counts_every_element(special):
    """NaN too, in rows of one label and in rows of many."""
    x = np.ones((4, 40))
    x[1] = special
    for by in (np.array([0, 0, 1, -1]), np.broadcast_to([[0], [0], [1], [-1]], x.shape).copy()):
        mean, counts = fa.average(x, axis=0, by=by, groups=3, returned=True)
        np.testing.assert_array_equal(mean[0], [(1 + special) / 2, 1, np.nan])
        np.testing.assert_array_equal(counts, np.broadcast_to([2.0, 1, 0], mean.shape))


@pytest.mark.filterwarnings("default")
def test_groups_without_elements_warn_as_such_slices():
    for name, words in (("mean", "Mean of empty"), ("var", "Degrees of freedom")):
        for x in (np.ones(4), np.ones((4, 20))):
            with pytest.warns(RuntimeWarning, match=words):
                fa.ops[name](x, axis=0, by=[0, 0, 2, 2], groups=3)


@each_op
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64, list])
def test_labels_of_any_integers(op, dtype):
    x, named = made(LAYOUTS["one axis"])
    labels = np.abs(named["by"])
    expected = arrays_of(op(x, by=labels, groups=GROUPS))
    given = labels.tolist() if dtype is list else labels.astype(dtype)
    for found, part in zip(arrays_of(op(x, by=given, groups=GROUPS)), expected, strict=True):
        np.testing.assert_array_equal(found, part)


@pytest.mark.parametrize("shape", [(3,), (9, 3), (3, 90), (3, 3)], ids=str)
def test_nothing_is_written_before_every_label_is_right(shape):
    axis = shape.index(3) if shape != (3, 3) else 0
    out = np.full((*np.delete(shape, axis), 3), 7.0)
    with pytest.raises(ValueError, match="by must hold groups"):
        fa.mean(np.ones(shape), axis=axis, by=[0, 1, 5], groups=3, out=out)
    assert (out == 7).all()
    dx = np.full(3, 7.0)
    for label in (2, -2, 2**63 - 1):
        saved = (3,), None, np.array([0, 1, label])
        with pytest.raises(ValueError, match=r"^fastact\.sum\.backward: by must hold groups from"):
            fa.sum.backward(np.ones(2), *saved, groups=2, out=dx)
    assert (dx == 7).all()


def test_results_lie_as_the_axes_did():
    """So that rows of an embedding's gradient are contiguous."""
    found = fa.sum(np.ones((50, 7), np.float32), axis=0, by=np.arange(50) % 4, groups=4)
    assert found.shape == (7, 4)
    assert found.T.flags.c_contiguous
    assert fa.sum(np.ones((7, 50)), axis=1, by=np.arange(50) % 4, groups=4).flags.c_contiguous


def first_by_groups(op: Any, labels: Any) -> Any:
    """The first result, as a function of x and the labels of its rows."""
    return lambda x, by=labels: arrays_of(op(x, axis=0, by=by, groups=3))[0]


@each_op
def test_torch_differentiates_groups(op):
    r = np.random.default_rng(5)
    x, labels = torch.tensor(r.standard_normal((2, 6, 5))), torch.tensor([0, 1, 2, 0, 1, -1])
    of = first_by_groups(op, labels)
    assert torch.autograd.gradcheck(of, (x[0].clone().requires_grad_(),))
    if op is fa.moments:
        with pytest.raises(TypeError, match="by None, when torch traces"):
            torch.func.vmap(of)(x)
        return
    both = torch.stack([labels, labels.roll(1)])
    expected = torch.stack([of(*each) for each in zip(x, both, strict=True)])
    assert torch.equal(torch.func.vmap(of)(x, both), expected)


@pytest.mark.parametrize("op", first_of_families(op for op in OPS if op is not fa.moments))
def test_torch_traces_groups(op):
    x = torch.tensor(np.random.default_rng(5).standard_normal((6, 5)))
    of = first_by_groups(op, torch.tensor([0, 1, 2, 0, 1, -1]))
    torch.compiler.reset()
    compiled = torch.compile(of, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), of(x))


@each_op
def test_further_derivatives_of_groups(op):
    """In both modes; a group without elements has none, and labels may be of each element."""
    x = torch.tensor(np.random.default_rng(5).standard_normal((6, 2)), requires_grad=True)
    for labels in ([0, 2, 2, 0, 2, -1], [[0, 2], [2, 2], [0, 0], [2, -1], [2, 0], [0, 2]]):
        of = first_by_groups(op, torch.tensor(labels))

        def there(x: torch.Tensor, of: Any = of) -> torch.Tensor:
            return of(x).reshape(2, 3)[:, [0, 2]]

        has_forward_mode = op is not fa.moments  # which torch does not trace by groups
        assert torch.autograd.gradcheck(there, x, check_forward_ad=has_forward_mode)
        assert torch.autograd.gradgradcheck(there, x, check_fwd_over_rev=has_forward_mode)


@pytest.mark.parametrize("op", [fa.sum, fa.mean, fa.var, fa.nanmean], ids=lambda op: op.name)
def test_masked_arrays(op: Any) -> None:
    """A group without an element that counts is masked."""
    x = np.ma.masked_array(np.arange(8.0).reshape(2, 4), [[0, 1, 0, 0], [0, 0, 1, 1]])
    found = op(x, axis=1, by=np.array([0, 0, 1, 1]), groups=3)
    assert (np.ma.getmaskarray(found) == [[0, 0, 1], [0, 1, 1]]).all()
    right = [[op(x[0, :2]), op(x[0, 2:])], [op(x[1, :2]), 0]]
    assert np.allclose(found.filled(0)[:, :2], right)


def test_what_rounding_lost_in_a_late_chunk_is_not_lost():
    """Sums of chunks merge with what their own rounding left."""
    x, by = np.zeros(2**20), np.arange(2**20) % 3
    x[0], x[-4], x[-1] = -1e16, 1.0, 1e16
    assert fa.sum(x, by=by, groups=3).tolist() == [1, 0, 0]


def test_the_label_after_the_last_group_is_refused_amid_many():
    """Many elements of few groups have a kernel of their own, which checks labels as it adds."""
    labels = np.zeros(5000, np.int64)
    labels[4000] = GROUPS
    with pytest.raises(ValueError, match="by must hold groups from"):
        fa.sum(np.ones(5000), axis=0, by=labels, groups=GROUPS)
