"""The role of an array beside the data: one rule for all ops (docs/conventions.md).

Which arguments there are, `op.roles` tells: an op that is registered is tested.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from calls import back
from conftest import first_of_families
from devices import DTYPES, FRAMEWORKS, Framework
from judged import refused

import fastact as fa
from fastact.interop import validate
from fastact.measure import cases
from fastact.ops.engine.op import arrays_of

TIMES = 4  # until a call that could be recorded is
X = np.array([[0.5, -1.0, 2.0, 0.25], [1.0, 0.0, -0.5, 3.0], [2.0, 1.5, -2.0, 0.75]])
DY = np.array([[1.0, 0.5, 2.0, 0.25], [3.0, 1.0, 0.5, 1.0], [0.5, 2.0, 1.0, 4.0]])
ALL = [(op, name, role) for op in fa.ops.values() for name, role in op.roles.items()]
KERNELS = [f for f in FRAMEWORKS if f.name != "emulated-dlpack"]
# A GPU's kernels are compiled with other contractions than the CPU's, one rounding apart.
CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def each(kept: Any) -> Any:
    those = [(op, name) for op, name, role in ALL if kept(role, op, name)]
    ids = [f"{op.name}-{name}" for op, name in those]
    return pytest.mark.parametrize(("op", "name"), those, ids=ids)


#: Those that broadcast.
each_beside = each(lambda role, *_: role.repeats)
each_of_numbers = each(lambda role, *_: role.repeats and not isinstance(role.also, validate.Only))
each_of_integers = each(lambda role, *_: "int64" in role.also)
each_mask = each(lambda role, *_: role is validate.COUNTS)
each_number = each(lambda role, *_: role is validate.MASK)
each_flag = each(lambda role, *_: role.number)
each_weights = each(lambda role, *_: role.repeats and not role.number)
each_kernel = pytest.mark.parametrize("framework", KERNELS, ids=lambda f: f.name)

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")


def shape_of(op: Any, name: str) -> tuple[int, ...]:
    """What an argument broadcasts to."""
    return X.shape[1:] if "target" in op.roles and name == "weight" else X.shape


def numbers(op: Any, name: str, dtype: Any = np.float64) -> Any:
    """Whole numbers for an argument: any dtype holds them."""
    shape = shape_of(op, name)
    found = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 3
    if op.roles[name] is validate.COUNTS:
        return found > 0
    return found if op.roles[name] is validate.LABELS else found.astype(dtype)


def run(op: Any, framework: Framework, dtype: Any = np.float64, **more: Any) -> list[Any]:
    """The results and gradients of a call, as NumPy's arrays."""
    sample = {**cases.sample(op, X.astype(dtype), DY.astype(dtype)), **more}
    sample |= {"groups": 3} if "by" in more else {}
    named = {n: framework.of(v) if isinstance(v, np.ndarray) else v for n, v in sample.items()}
    found = [op.bound("call", named)() for _ in range(TIMES)][-1]
    result, saved = op.bound("forward", named)()
    dys: Any = tuple(0.5 + i for i, _ in enumerate(op.results))
    if "shape" in op.saves:  # of no array: a number would say of no framework
        dys = (framework.of(np.full(result.shape, 0.5, dtype)),)
    gradients = back(op, named, saved, dys)()
    arrays = [a for part in (found, result, gradients) for a in arrays_of(part)]
    return [framework.numpy(a) if hasattr(a, "dtype") else a for a in arrays if a is not None]


def same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), **CLOSE)


@lru_cache
def has_sample(op: Any, name: str) -> bool:
    """Whether the op's example has such an array; else the tests of its family have it."""
    return isinstance(cases.sample(op, X, DY).get(name), np.ndarray)


each_parameter = each(lambda role, op, name: role is validate.PARAMETER and has_sample(op, name))
#: Numbers, by framework: beside arrays of others NumPy's numbers are NumPy's arrays.
each_value = pytest.mark.parametrize(
    ("framework", "number"),
    [
        (f, n)
        for f in KERNELS
        for n in (0.5, 2, np.float32(0.5))
        if not isinstance(n, np.generic) or f.name == "numpy"
    ],
)


# --- masks and weights ----------------------------------------------------------------------------


def test_there_are_roles():
    """The tests below are of something."""
    found = {(op.family, name) for op, name, _ in ALL}
    assert {("softmax", "mask"), ("softmax", "weight"), ("softmax", "target")} <= found
    assert {("reductions", "where"), ("statistics", "where"), ("statistics", "weights")} <= found
    assert {("norms", "weight"), ("norms", "bias"), ("gates", "bias"), ("bias", "bias")} <= found


@each_of_numbers
@each_kernel
@pytest.mark.parametrize("data", [np.float16, np.float64])
def test_of_any_dtype(op, name, framework, data):
    """Narrower or wider than the data, or of integers: the values count, and they alone."""
    expected = run(op, framework, data, **{name: numbers(op, name, data)})
    if "dweights" in op.gradients:
        expected = expected[:-1]  # the gradient of weights is rounded to their dtype
    for kind in (*DTYPES.values(), np.int32, np.int64):
        found = run(op, framework, data, **{name: numbers(op, name, kind)})
        same(found[: len(expected)], expected)
    if framework is FRAMEWORKS[0]:  # NumPy's integers of other sizes, and lists
        for kind in (np.int8, np.uint8, np.uint32):
            found = run(op, framework, data, **{name: numbers(op, name, kind)})
            same(found[: len(expected)], expected)
        for listed in (numbers(op, name, int).tolist(), numbers(op, name).tolist()):
            found = run(op, framework, data, **{name: listed})
            same(found[: len(expected)], expected)


def parts_of(full: Any) -> Iterator[Any]:
    """Arrays that broadcast to the shape of one, of its elements."""
    yield full
    yield full.ravel()[1].reshape(())
    yield full.ravel()[1].reshape((1,) * full.ndim)
    if full.ndim > 1:
        yield full[1:2]
        yield full[:, 1:2]
        yield full[1]


@each_of_integers
def test_no_integer_becomes_another_one(op, name):
    """Of 64 bits without a sign: -1 is no group, and -100 a class that is ignored."""
    words = rf"^fastact\.{op.name}: {name} must have values that int64 holds, got"
    for far in (2**63, 2**64 - 1, 2**64 - 100):
        wrong = numbers(op, name).astype(np.uint64)
        wrong.flat[-1] = far
        given = [wrong, wrong.astype(">u8"), np.full(wrong.shape, far, np.uint64).tolist()]
        if op.roles[name] is validate.WEIGHTS:
            given.pop()  # a list of numbers, which float64 holds
        for value in given:
            refused(words, run, op, FRAMEWORKS[0], error=ValueError, **{name: value})


@each_beside
@each_kernel
def test_broadcasts_as_numpy_does(op, name, framework):
    full = numbers(op, name)
    has_no_groups = op.roles[name] is validate.LABELS and "emulated" in framework.name
    if has_no_groups:
        words = rf"^fastact\.{op.name}: by must be None except on the CPU"
        refused(words, run, op, framework, **{name: full})
    for part in () if has_no_groups else parts_of(full):
        part = np.array(part)
        repeated = np.broadcast_to(part, full.shape).copy()
        found = run(op, framework, **{name: part})
        if op.roles[name] is validate.WEIGHTS and "dweights" in op.gradients:
            assert found[-1].shape == part.shape
            found, repeated = found[:-1], run(op, framework, **{name: repeated})[:-1]
            same(found, repeated)
            continue
        same(found, run(op, framework, **{name: repeated}))
    for shape in () if has_no_groups else ((2, *full.shape), (*full.shape[:-1], 3)):
        with pytest.raises(ValueError, match=rf"^fastact\.{op.name}: {name} must (have|broad)"):
            run(op, framework, **{name: np.ones(shape, full.dtype)})


@each_number
@each_value
def test_a_number_stands_for_as_many(op, name, framework, number):
    expected = run(op, framework, **{name: np.full(X.shape, float(number))})
    same(run(op, framework, **{name: number}), expected)


@each_weights
@each_kernel
def test_no_number_is_a_weight(op, name, framework):
    """An axis in the place of weights is not taken for them."""
    for number in (0, 1, 2.0, True):
        with pytest.raises(TypeError, match=rf"^fastact\.{op.name}: {name} must be an array, got"):
            run(op, framework, **{name: number})


@each_flag
@each_kernel
@pytest.mark.parametrize("flag", [True, False])
def test_a_bool_stands_for_as_many(op, name, framework, flag):
    expected = run(op, framework, **{name: np.full(X.shape, flag)})
    same(run(op, framework, **{name: flag}), expected)
    if framework is FRAMEWORKS[0]:
        same(run(op, framework, **{name: np.bool_(flag)}), expected)
        same(run(op, framework, **{name: [flag]}), expected)


@each_mask
@each_kernel
def test_what_picks_is_of_bool(op, name, framework):
    words = rf"^fastact\.{op.name}: {name} must have dtype bool, got"
    bad = [0, 1, 0.5, np.ones(X.shape), np.ones(X.shape, np.int32)]
    for value in [*bad, [1, 0, 1, 1]] if framework is FRAMEWORKS[0] else bad:
        refused(words, run, op, framework, **{name: value})


@pytest.mark.parametrize(
    ("op", "name"), first_of_families((op, name) for op, name, role in ALL if role.number)
)
def test_torch_records_and_traces_numbers(op, name):
    """A number is no tensor, and no less a mask."""
    for value in (True, False, *([0.5] if op.roles[name] is validate.MASK else [])):
        sample = cases.sample(op, X, DY)
        named = {n: torch.tensor(v) if isinstance(v, np.ndarray) else v for n, v in sample.items()}
        first = next(iter(named))
        repeated = torch.full(shape_of(op, name), value).to(
            torch.bool if isinstance(value, bool) else torch.float64
        )
        grads = []
        for given in (value, repeated):
            for _ in range(TIMES):
                x = named[first].clone().requires_grad_()
                y = op.bound("call", {**named, first: x, name: given})()
                total = sum(part.sum() for part in arrays_of(y))
                total.backward()
            grads.append((total.detach(), x.grad))
        torch.testing.assert_close(grads[0], grads[1], equal_nan=True)
        if "m2" in op.results:
            continue  # its count would be an array
        arrays = [named[n] for n in op.entry_points["call"].arrays[1:]]
        rest = {n: v for n, v in named.items() if n not in op.entry_points["call"].arrays}
        rest[name] = value
        torch._dynamo.reset()  # it counts what it has compiled of one function
        compiled = torch.compile(
            lambda x: op(x, *arrays, **rest),  # noqa: B023
            fullgraph=True,
            backend="eager",
        )
        found = arrays_of(compiled(named[first]))
        expected = arrays_of(op.bound("call", {**named, name: value})())
        torch.testing.assert_close(found, expected, equal_nan=True)


# --- parameters -----------------------------------------------------------------------------------


@each_parameter
@each_kernel
def test_parameters_may_be_wider(op, name, framework):
    for data, kind, is_taken in (
        (np.float32, np.float64, True),
        (np.float16, np.float32, True),
        (np.float32, np.float16, False),
        (np.float16, DTYPES["bfloat16"], False),
    ):
        sample = cases.sample(op, X.astype(data), DY.astype(data))
        given = {**sample, name: sample[name].astype(kind)}
        named = {n: framework.of(v) if isinstance(v, np.ndarray) else v for n, v in given.items()}
        call = op.bound("call", named)
        if is_taken:
            call()
            continue
        words = rf"^fastact\.{op.name}: {name} must have dtype {np.dtype(data).name}, as "
        refused(words, call)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@each_parameter
@each_kernel
def test_parameters_beside_float64_may_be_narrower(op, name, framework, dtype):
    """Their numbers count, and they alone; gradients are rounded to their dtype."""
    narrow = cases.sample(op, X, DY)[name].astype(DTYPES[dtype])
    way = {"weight_offset": 1.0} if "weight_offset" in op.entry_points["call"].defaults else {}
    found = run(op, framework, **way, **{name: narrow})
    assert narrow.dtype in [np.asarray(a).dtype for a in found] or f"d{name}" not in op.gradients
    right = run(op, framework, **way, **{name: narrow.astype(np.float64)})
    for a, b in zip(found, right, strict=True):
        np.testing.assert_array_equal(a, np.asarray(b).astype(np.asarray(a).dtype))


@each_parameter
def test_integers_and_lists_are_parameters_of_numpy(op, name):
    sample = cases.sample(op, X.astype(np.float32), DY.astype(np.float32))
    whole = np.arange(1, 1 + sample[name].size).reshape(sample[name].shape)
    expected = arrays_of(op.bound("call", {**sample, name: whole.astype(np.float32)})())
    for given in (whole, whole.astype(np.int8), whole.tolist()):
        for _ in range(TIMES):
            found = arrays_of(op.bound("call", {**sample, name: given})())
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b)
    with pytest.raises(TypeError, match=rf"^fastact\.{op.name}: {name} must be an array"):
        op.bound("call", {**sample, name: 2.0})()


# --- one option by two names ----------------------------------------------------------------------

BY_TWO_NAMES = [op for op in fa.ops.values() if "ddof" in op.entry_points["call"].defaults]


@pytest.mark.parametrize("op", BY_TWO_NAMES, ids=lambda op: op.name)
def test_ddof_is_correction(op):
    """In every entry point, and where torch records, compiles and checks; NumPy's values."""
    if op.results == ("mean", "var"):
        return np.testing.assert_array_equal(op(X, 1, ddof=1)[1], fa.var(X, 1, correction=1))
    expected = op(X, 1, correction=1)
    np.testing.assert_allclose(expected, getattr(np, op.name)(X, 1, ddof=1), rtol=1e-14)
    y, saved = op.forward(X, 1, ddof=1)
    for _ in range(TIMES):
        for found in (op(X, 1, ddof=1), y, op(torch.tensor(X), 1, ddof=1).numpy()):
            np.testing.assert_array_equal(found, expected)
    dx = op.backward(1.0, *saved, 1, correction=1)
    np.testing.assert_array_equal(op.backward(1.0, *saved, 1, ddof=1), dx)
    for _ in range(TIMES):
        x = torch.tensor(X, requires_grad=True)
        op(x, 1, ddof=1).sum().backward()
        np.testing.assert_array_equal(x.grad, dx)
    compiled = torch.compile(lambda x: op(x, 1, ddof=1), fullgraph=True, backend="eager")
    np.testing.assert_array_equal(compiled(torch.tensor(X)).numpy(), expected)
    words = rf"^fastact\.{op.name}\S*: correction and ddof are one option"
    for call in (op, op.forward):
        for named in ({"correction": 0, "ddof": 0}, {"ddof": 1, "correction": 1}):
            refused(words, call, X, **named)
    refused(words, op.backward, 1.0, *saved, 1, correction=1, ddof=1)
    refused(words, op, torch.tensor(X, requires_grad=True), correction=1, ddof=1)
    assert len(BY_TWO_NAMES) == 5
