"""Objects of other libraries, subclasses, lists: taken as the arrays they are, or refused by name.

Nothing is computed, unmasked, stripped of labels or units, parsed or rounded to infinity without a
word. Stand-ins have the protocols by which the real libraries are known; these are tried as well
where they are installed.
"""

import array
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from arrays import f32
from judged import refused

import fastact as fa


class Lazy:
    """As a dask array: ufuncs of its own, and an `__array__` that computes."""

    shape, dtype, ndim = (3,), np.dtype(np.float32), 1

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        return NotImplemented

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("computed")

    def __float__(self) -> float:
        raise AssertionError("computed")

    def __len__(self) -> int:
        return 3


class Labelled(Lazy):
    """As a pandas Series."""

    index = "abc"

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return f32(3)


class Table:
    """As a data frame of any library."""

    def __dataframe__(self, *args: Any) -> Any:
        raise AssertionError("exchanged")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return f32(3)


class Unit(np.ndarray):
    """As a quantity."""


class Masking:
    """An `__array__` that gives more than an array."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.ma.ones(3)


class Image:
    """An `__array__` and no more, as an image's."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(3, dtype=np.uint8)


class Broken:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("no values today")


def unit(shape: tuple[int, ...] = (3,)) -> Any:
    return np.ones(shape, np.float32).view(Unit)


cyclic: list[Any] = []
cyclic.append(cyclic)

DTYPE = "must have dtype float16, bfloat16, float32 or float64, got "
ARRAY = "must be an array, got "

# what comes, error, words of the message after the argument
PLAIN = "must be a plain array, got "
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "lazy": (Lazy(), TypeError, PLAIN + r".*\.Lazy, which is more than an array"),
    "labelled": (Labelled(), TypeError, r"must be a plain array, got .*\.Labelled"),
    "table": (Table(), TypeError, r"must be a plain array, got .*\.Table"),
    "subclass": (unit(), TypeError, PLAIN + r".*Unit, whose class would be lost"),
    "matrix": (f32(1, 1).view(np.matrix), TypeError, r"must be a plain array, got numpy\.matrix"),
    "records": (f32(3).view(np.recarray), TypeError, "must be a plain array"),
    "masked": (np.ma.ones(3), TypeError, "must be a plain array, got a masked one"),
    "a mask": (np.ma.masked, TypeError, "must be a plain array, got a masked one"),
    "made masked": (Masking(), TypeError, "must be a plain array, got a masked one"),
    "broken": (Broken(), TypeError, "must be an array or convertible by NumPy.* no values today"),
    "text": ("1.5", TypeError, ARRAY + "'1.5'"),
    "bytes": (b"12", TypeError, ARRAY + "b'12'"),
    "array of text": (np.array(["1.5"]), TypeError, DTYPE + "str"),
    "list of text": (["1.5"], TypeError, ARRAY + "'1.5'"),
    "complex": (1j, TypeError, DTYPE + "complex128"),
    "dates": (np.zeros(3, "M8[s]"), TypeError, DTYPE + "datetime64"),
    "structured": (np.zeros(3, "f4,f4"), TypeError, DTYPE + "void64"),
    "objects": ([None, 1.0], TypeError, DTYPE + r"\[None, 1.0\]"),
    "set": ({1, 2}, TypeError, DTYPE + "{1, 2}"),
    "huge integers": ([10**400], TypeError, DTYPE + r"\[an integer of 1329 bits\]"),
    "list of lazy": ([Lazy()], TypeError, "must be a plain array"),
    "list with a mask": ([np.ma.masked, 1.0], TypeError, "must be a plain array"),
    "list of tensors": (
        [torch.ones(())], TypeError, r"must be .* list of numbers, got a list with torch\.Tensor",
    ),
    "ragged": ([[1, 2], [3]], ValueError, "must be an array or convertible by NumPy"),
    "cyclic": (cyclic, ValueError, "must be no deeper than 64 lists"),
}  # fmt: skip


# What element-wise ops compute as NumPy's ufuncs do: tests/bridges/test_ufuncs.py.
AS_UFUNCS_DO = ("subclass", "matrix", "records", "masked", "a mask")
#: What sums and statistics take: tests/bridges/test_masked.py.
MASKED = ("masked", "a mask")


@pytest.mark.parametrize("case", REFUSED)
def test_refused_as_the_first_array(case):
    value, error, words = REFUSED[case]
    for name in ("mish", "layer_norm", "sum", "mean_var", "sum_squares"):
        if fa.ops[name].family == "activations" and case in AS_UFUNCS_DO:
            assert type(fa.mish(value)) is type(np.tanh(value))
            continue
        if case in MASKED and "where" in fa.ops[name].entry_points["call"].defaults:
            fa.ops[name](value)  # by its mask: tests/bridges/test_masked.py
            continue
        refused(rf"^fastact\.{name}: x {words}", fa.ops[name], value, error=error)
    refused(rf"^fastact\.mish\.forward: x {words}", fa.mish.forward, value, error=error)
    refused(rf"^fastact\.bias_grad: dy {words}", fa.bias_grad, value, error=error)


def second_derivatives(ddx: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Arguments of calls by a kernel and by a formula."""
    x = f32(2, 3)
    return [
        (fa.rms_norm, (ddx, None, x, *fa.rms_norm.forward(x)[1])),
        (fa.snake, (ddx, None, x, x, f32(1))),
    ]


@pytest.mark.parametrize("case", REFUSED)
def test_refused_beside_an_array(case):
    value, error, words = REFUSED[case]
    x, packed = f32(2, 3), f32(2, 12)
    calls: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [
        ("layer_norm: weight", fa.layer_norm, (x, value), {}),
        ("layer_norm: bias", fa.layer_norm, (x,), {"bias": value}),
        ("bias_act: bias", fa.bias_act, (x, value), {}),
        ("bias_act: residual", fa.bias_act, (x, f32(3)), {"residual": value}),
        ("batch_norm: running_var", fa.batch_norm, (x, f32(3), value), {}),
        ("layer_norm.backward: rstd", fa.layer_norm.backward, (x, x, f32(2, 1), value), {}),
        ("prelu: weight", fa.prelu, (x, value), {}),
        ("softmax: sink", fa.softmax, (x,), {"sink": value}),
    ]
    if not isinstance(value, complex):  # which is no number that stands for an array, but a number
        calls += [
            ("mish.backward: dy", fa.mish.backward, (value, x), {}),
            ("sum_squares.backward: dy", fa.sum_squares.backward, (value, x), {}),
            ("mean_var.backward: dy[0]", fa.mean_var.backward, ((value, None), x), {}),
            ("lstm_gates: c_prev", fa.lstm_gates, (packed, value), {}),
            ("lstm_gates: recurrent", fa.lstm_gates, (packed, f32(2, 3)), {"recurrent": value}),
            *(
                (f"{op.name}.backward.backward: ddx", op.backward.backward, args, {})
                for op, args in second_derivatives(value)
            ),
        ]
    for where, call, args, named in calls:
        refused(rf"^fastact\.{re.escape(where)} {words}", call, *args, error=error, **named)


@pytest.mark.parametrize("case", ["subclass", "matrix", "masked"])
def test_refused_where_no_other_array_lies(case):
    """Where a number, or no array that NumPy converts, may be given too."""
    value, error, words = REFUSED[case]
    like = np.asarray(value)
    refused(rf"^fastact\.relu\.quantized: scale {words}", fa.relu.quantized, f32(2, 3), scale=value,
            error=error)  # fmt: skip
    for op in (fa.tanh, fa.softmax):
        refused(rf"^fastact\.{op.name}\.\S*: \S*.* {words}", op.jvp, like, tangents=value,
                error=error)  # fmt: skip


@pytest.mark.parametrize("case", ["lazy", "labelled", "table", "subclass", "matrix", "masked"])
def test_refused_as_an_output(case):
    value, error, words = REFUSED[case]
    refused(rf"^fastact\.mish: out {words}", fa.mish, f32(3), out=value, error=error)
    out = np.zeros(3, np.float32)
    refused(r"^fastact\.mean_var: out\[1\] must be a plain", fa.mean_var, f32(2, 3), 0,
            out=(out, value), error=error)  # fmt: skip
    assert not out.any()


def test_a_mask_stays_where_it_is():
    x = np.ma.array(f32(3), mask=[1, 0, 0])
    refused("got a masked one", fa.relu, f32(3), out=x)
    assert fa.relu(x).mask.tolist() == [True, False, False]
    refused("got a masked one", fa.softmax, x)
    assert x.mask.tolist() == [True, False, False]


@pytest.mark.parametrize(
    "value",
    [
        [1, 2.5], (1, 2), [[1.0], [2.0]], [np.float32(1), np.int8(2)], [f32(2), f32(2)], range(3),
        array.array("d", [1, 2]), memoryview(np.ones(3)), memoryview(f32(3)), Image(), [], 3, 2.5,
        True, np.float16(2), np.array(2.0), [True, False],
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],  # an address is another one each time
)  # fmt: skip
def test_what_numpy_converts_is_taken(value):
    """As NumPy's own functions take it."""
    expected = np.tanh(value)
    y = fa.tanh(value)
    assert type(y) is type(expected)
    assert y.dtype == expected.dtype
    assert y.shape == expected.shape


def test_memory_maps_are_arrays(tmp_path):
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3))
    x[:] = -1
    y = np.memmap(tmp_path / "y", np.float32, "w+", shape=(2, 3))
    for _ in range(4):
        assert fa.relu(x, out=y) is y
        assert type(fa.layer_norm(x, x[0])) is np.ndarray
    assert not y.any()


def test_lists_beside_an_array_are_rounded_to_its_dtype():
    x = f32(2, 3)
    expected = fa.layer_norm(x, np.array([0.1, 2, 1], np.float32))
    assert (fa.layer_norm(x, [0.1, 2, True]) == expected).all()
    assert np.isposinf(fa.mish.backward([[np.inf] * 3] * 2, x)).all()


@pytest.mark.parametrize(
    ("dtype", "largest", "too_large"),
    [
        # what rounds to the largest number, and the first that does not: half a unit above
        (np.float16, 65519.99, 65520.0),
        (np.float32, 3.4028235677973362e38, 3.4028235677973366e38),
        (np.float32, -3.4e38, 1e300),
        (np.float32, 1.0, -(10**400)),
        (np.float64, 1.7976931348623157e308, 10**309),
    ],
)
def test_no_finite_number_becomes_infinite(dtype, largest, too_large):
    x = np.zeros((1, 1), dtype)
    name = np.dtype(dtype).name
    assert np.isfinite(fa.relu.backward(largest, np.ones_like(x))).all()
    words = f"must be a number that {name} holds, got"
    refused(rf"^fastact\.relu\.backward: dy {words}", fa.relu.backward, too_large, x,
            error=ValueError)  # fmt: skip
    if isinstance(too_large, float):
        assert np.isfinite(fa.relu.backward([[largest]], np.ones_like(x))).all()
        refused(
            rf"^fastact\.relu\.backward: dy must have values that {name} holds",
            fa.relu.backward, [[too_large]], x, error=ValueError,
        )  # fmt: skip


def test_bfloat16_bounds():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.ones((1, 1), ml_dtypes.bfloat16)
    too_large = 2.0**128 - 2.0**119 - 2.0**103  # float32 rounds it to a tie, which goes to infinity
    assert np.isfinite(fa.relu.backward(float(np.nextafter(too_large, 0)), x)).all()
    refused("dy must be a number that bfloat16 holds", fa.relu.backward, too_large, x,
            error=ValueError)  # fmt: skip


class Producer:
    """As pyarrow's arrays: memory to read, and no way back."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self, **named: Any) -> Any:
        return self.values.__dlpack__(**named)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


def test_a_framework_that_makes_no_arrays():
    """Known before anything is computed; with `out` it is an array like others."""
    x, out = Producer(np.arange(-1.0, 2.0)), Producer(np.zeros(3))
    for call in (fa.relu, fa.sum, fa.layer_norm):
        refused(r": out(\[0\])? must be given, for .* has no from_dlpack", call, x)
    one = Producer(np.ones(()))
    refused(r"mean_var: out\[1\] must be given, for", fa.mean_var, x, 0, out=(one, None))
    assert fa.relu(x, out=out) is out
    assert out.values.tolist() == [0.0, 0.0, 1.0]


# --- the libraries themselves ---------------------------------------------------------------------


def foreign(name: str, gives: str) -> Any:
    """An object of a library, as an expression of its module; skipped where it is not installed."""
    module = pytest.importorskip(name, reason=f"{name} is no part of the test extra")
    return eval(gives, {"m": module, "np": np})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of imports
@pytest.mark.parametrize(
    ("name", "gives", "way"),
    [
        ("dask.array", "m.ones(3)", "values are not computed yet; use x.compute()"),
        ("xarray", "m.DataArray(np.ones(3))", "labels would be lost; use x.to_numpy()"),
        ("pandas", "m.Series([1.0, 2.0])", "labels would be lost; use x.to_numpy()"),
        ("pandas", "m.DataFrame({'a': [1.0]})", "labels would be lost; use x.to_numpy()"),
        ("pandas", "m.array([1.0, None])", "labels would be lost; use x.to_numpy()"),
        ("astropy.units", "m.Quantity([1.0, 2.0], 'm')", "unit would be lost; use x.value"),
        ("sparse", "m.COO(np.eye(3))", "not dense; use x.todense()"),
        ("scipy.sparse", "m.csr_array(np.eye(3))", "not dense; use x.toarray()"),
    ],
)
def test_libraries(name, gives, way):
    value = foreign(name, gives)
    refused(rf"^fastact\.mish: x must be a plain array, .*{re.escape(way)}", fa.mish, [value])
    refused(rf"^fastact\.softmax: x must be a plain .*{re.escape(way)}", fa.softmax, value)
    refused(r"^fastact\.layer_norm: weight must be a plain", fa.layer_norm, f32(2, 3), value)
    refused(r"^fastact\.layer_norm: eps must be a plain", fa.layer_norm, f32(2, 3), eps=value)
    refused(r"^fastact\.relu: out must be a plain", fa.relu, f32(3), out=value)


def test_images():
    image = foreign("PIL.Image", "m.new('L', (3, 2), 7)")
    assert fa.relu(image).tolist() == [[7.0] * 3] * 2


# --- Moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((3, np.ma.ones(2), np.ones(2)), TypeError, "mean must be a plain array, got a masked"),
        ((3, Lazy(), np.ones(3)), TypeError, "mean must be a plain array"),
        ((3, [1.0], [1.0]), TypeError, r"mean must be an array of float64, got \[1.0\]"),
        ((3, np.ones(2, complex), np.ones(2)), TypeError, "mean must be an array of float64, got"),
        ((3, np.ones(2), np.ones(3)), ValueError, r"m2 must have shape \(2,\), as mean .*\(3,\)"),
        ((3, np.ones(2), torch.ones(2).double()), TypeError, "one framework, got mean from num"),
        ((3, 1.0, 10**400), ValueError, "m2 must be a number that float64 holds, got an integer"),
        ((-1, 1.0, 0.0), ValueError, "count must not be negative, got -1"),
        ((1.5, 1.0, 0.0), TypeError, "count must be an integer, got 1.5"),
        ((np.array([3]), 1.0, 0.0), TypeError, "count must be an integer, got ndarray of int64"),
        ((3, 1.0, -2.0), ValueError, "m2 must not be negative, got -2.0"),
        ((3, *[torch.ones(2)] * 2), TypeError, "mean must be an array of float64, got Tensor of"),
    ],
)  # fmt: skip
def test_moments_of_bad_values(arguments, error, words):
    refused(rf"^fastact\.Moments: .*{words}", fa.Moments, *arguments, error=error)


def test_moments_of_good_values():
    m = fa.Moments(np.int64(3), 1, 2.0)
    assert (type(m.count), type(m.mean), type(m.m2)) == (int, np.float64, np.float64)
    assert m.merge(fa.Moments(3, 1.0, 2.0)) == fa.Moments(6, 1.0, 4.0)
    assert fa.Moments(0, np.full(2, np.nan), np.zeros(2)).merge(m := fa.moments(f32(3, 2), 0)) == m
    assert fa.Moments(2, *torch.ones(2, 2).double()).var().tolist() == [0.5, 0.5]
    assert math.isnan(fa.Moments(2, 1.0, math.nan).m2)


def test_counts_beyond_2_to_53_are_exact_or_refused():
    many = fa.Moments(2**53, 0.0, 0.0)
    assert many.merge(fa.Moments(1, 0.0, 0.0)).count == 2**53 + 1
    assert fa.Moments.from_buffer(many.to_buffer(), ()) == many
    more = many.merge(fa.Moments(1, 0.0, 0.0))
    for call in (more.to_buffer, lambda: more.merge(fa.Moments(np.float64(1), 0.0, 0.0))):
        refused(r"^fastact\.Moments: count must be .* float64 holds", call, error=ValueError)


def test_moments_merge_with_their_like():
    m = fa.moments(f32(3))
    refused(r"Moments\.merge: other must be Moments, got ndarray of", m.merge, np.ones(1000))
    words = r"Moments\.merge: .* got self from numpy, other from torch"
    refused(words, m.merge, fa.moments(torch.ones(3)))
    for parts in ([1.0], [m, None], 3):
        refused(r"Moments\.merge_many: parts must be Moments, got", fa.Moments.merge_many, parts)


@pytest.mark.parametrize(
    ("buffer", "error", "words"),
    [
        (np.array([3.0, 1, 1]), ValueError, "begins with -2 and 0 or 1, got .3.0, 1.0"),
        (np.array([-2.0, 0, 2.5, 1, 1]), ValueError, "a count, a whole number .*, got 2.5"),
        (np.array([-2.0, 0, np.nan, 1, 1]), ValueError, "got nan"),
        (np.array([-2.0, 0, 1, 1]), ValueError, "must have shape .5,. .*, got .4,."),
        (np.ma.ones(3), TypeError, "buffer must be a plain array"),
        ([1.0, 1.0, 1.0], TypeError, "buffer must be an array of float64"),
    ],
)
def test_moments_of_bad_buffers(buffer, error, words):
    refused(rf"^fastact\.Moments\.from_buffer: .*{words}", fa.Moments.from_buffer, buffer, (),
            error=error)  # fmt: skip


class _Disguised:
    """`isinstance` takes it for an array, and it is none."""

    __class__ = property(lambda self: np.ndarray)  # type: ignore[assignment]


@pytest.mark.parametrize(
    "call",
    [
        lambda o: fa.mish(o),
        lambda o: fa.mish.backward(o, np.ones(3)),
        lambda o: fa.layer_norm(np.ones(3), o),
        lambda o: fa.layer_norm(np.ones(3), axis=o),
        lambda o: fa.layer_norm(np.ones(3), activation=o),
        lambda o: fa.sum(np.ones(3), out=o),
    ],
)
def test_objects_that_say_another_class(call):
    refused(r"^fastact\.\w+", call, _Disguised())
