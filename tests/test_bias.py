"""bias_act, bias_grad and unbroadcast: what the sums of the parts are, in one pass, bit for bit."""

import inspect
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference
import torch
from conftest import ACTIVATIONS, DTYPES, assert_agrees, assert_same_bits, sample
from devices import KERNELS, Framework
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_layouts import _views as views
from test_layouts import is_aligned
from test_memory import peak
from test_reductions import finite, ulp

import fastact as fa
from fastact import _cpu

NAMES = ["identity", *(op.name for op in ACTIVATIONS)]
name_of_all = pytest.mark.parametrize("name", NAMES)
name_of_some = pytest.mark.parametrize("name", ["identity", "mish"])

# Each way of walking: shape and the bias's axis. Channels last, wide, narrow and with odd tails;
# channels first with long, short and odd lines; one block of 2048 terms and many; one line.
CASES: list[tuple[tuple[int, ...], int]] = [
    ((5,), 0),
    ((1,), -1),
    ((3, 20), 0),
    ((40, 768), 1),
    ((3000, 100), -1),
    ((2500, 65), -1),
    ((7000, 3), 1),
    ((5000, 1), 1),
    ((2, 1100), 1),
    ((1, 5000), 1),
    ((3, 7000), 0),
    ((9, 6, 24, 24), 1),
    ((9, 6, 23, 25), 1),
    ((50, 40, 7, 7), 1),
    ((5, 1100, 3), 1),
    ((9, 24, 24, 6), -1),
    ((6, 5, 4, 3), 2),
    ((2, 1, 300), 1),
]
case = pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)


def parts(dtype: Any, shape: tuple[int, ...], axis: int, residual: bool = True) -> list[Any]:
    """dy, x, bias and residual."""
    made = [finite(dtype, shape, seed) for seed in range(3)]
    bias = finite(dtype, (shape[axis],), 3)
    return [made[0], made[1], bias, made[2] if residual else None]


def wide(array: Any) -> Any:
    """In the type in which it is computed."""
    if array is None:
        return None
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32)


def expected_forward(name: str, x: Any, bias: Any, axis: int, residual: Any) -> np.ndarray:
    """By the activation itself, of sums by NumPy."""
    z = reference.biased(wide(x), bias.astype(wide(x).dtype), axis, wide(residual))
    return (z if name == "identity" else fa.ops[name](z)).astype(x.dtype)


def expected_dx(name: str, dy: Any, x: Any, bias: Any, axis: int, residual: Any) -> np.ndarray:
    """As above, not rounded to x's dtype."""
    z = reference.biased(wide(x), bias.astype(wide(x).dtype), axis, wide(residual))
    return wide(dy) if name == "identity" else fa.ops[name].backward(wide(dy), z)


def call(framework: Framework, door: Any, *arrays: Any, **named: Any) -> Any:
    """A call on a framework's arrays; what comes back is NumPy's."""
    of = lambda a: framework.of(a) if isinstance(a, np.ndarray) else a  # noqa: E731
    results = door(*map(of, arrays), **{key: of(value) for key, value in named.items()})
    if isinstance(results, tuple):
        return tuple(framework.numpy(result) for result in results)
    return framework.numpy(results)


def assert_sums(dbias: np.ndarray, dx: np.ndarray, axis: int, dtype: Any) -> None:
    """dbias is the sum of dx, within the bound of a sum."""
    others = tuple(i for i in range(dx.ndim) if i != axis % dx.ndim)
    rows = reference.terms(dx.astype(np.float64), others)
    error = [reference.sum_error(row, float(v)) for row, v in zip(rows, dbias, strict=True)]
    bounds = fa.bias_grad.bounds
    allowed = bounds.ulp * ulp(dbias) + bounds.absolute * np.abs(rows).sum(1)
    if dtype.itemsize == 2:  # the terms were not rounded, dx is
        allowed += float(ml_dtypes.finfo(dtype).eps) * np.abs(rows).sum(1)
    assert (np.array(error) <= allowed).all()


# --- bias_act: values -----------------------------------------------------------------------------


@case
@name_of_some
@pytest.mark.parametrize("residual", [False, True], ids=["bias", "residual"])
def test_forward(dtype, backend, shape, axis, name, residual):
    _, x, bias, r = parts(dtype, shape, axis, residual)
    y = call(backend, fa.bias_act, x, bias, name, axis=axis, residual=r)
    assert_agrees(backend, y, expected_forward(name, x, bias, axis, r))


@case
@name_of_some
@pytest.mark.parametrize("residual", [False, True], ids=["bias", "residual"])
def test_backward(dtype, backend, shape, axis, name, residual):
    dy, x, bias, r = parts(dtype, shape, axis, residual)
    dx, dbias = call(backend, fa.bias_act.backward, dy, x, bias, r, name, axis=axis)
    largest = float(np.abs(wide(dy)).max(initial=1))
    exact = expected_dx(name, dy, x, bias, axis, r).astype(dtype)
    assert_agrees(backend, dx, exact, scale=largest)
    assert_sums(dbias, dx, axis, dtype)
    if backend.exact:
        terms = expected_dx(name, dy, x, bias, axis, r)  # what is summed, before it is rounded
        if dtype.itemsize == 2:
            rounded = call(backend, fa.bias_act.backward, dy, x, wide(bias), r, name, axis=axis)
            assert_same_bits(rounded[1], fa.bias_grad(terms, axis=axis))
        else:
            assert_same_bits(dbias, fa.bias_grad(dx, axis=axis))


@name_of_all
def test_every_activation(name, dtype, framework):
    dy, x, bias, _ = parts(dtype, (12, 37), 1)
    y = call(framework, fa.bias_act, x, bias, name)
    assert_agrees(framework, y, expected_forward(name, x, bias, 1, None))
    dx, _ = call(framework, fa.bias_act.backward, dy, x, bias, None, name)
    largest = float(np.abs(wide(dy)).max(initial=1))
    exact = expected_dx(name, dy, x, bias, 1, None).astype(dtype)
    assert_agrees(framework, dx, exact, scale=largest)
    if name != "identity":
        assert_same_bits(y, call(framework, fa.bias_act, x, bias, fa.ops[name]))


@name_of_some
def test_against_the_oracle(name):
    dy, x, bias, r = (a.astype(np.float32) for a in parts(np.float64, (64, 33), 1))
    exact = [a.astype(np.float64) for a in (dy, x, bias, r)]
    y = fa.bias_act(x, bias, name, residual=r)
    expected = reference.bias_act(name, *exact[1:3], 1, exact[3])
    np.testing.assert_allclose(y, expected, 1e-5, 2e-6)
    dx, dbias = fa.bias_act.backward(dy, x, bias, r, name)
    gradients = reference.bias_act_gradients(name, *exact[:3], 1, exact[3])
    np.testing.assert_allclose(dx, gradients[0], 1e-4, 1e-4)
    np.testing.assert_allclose(dbias, gradients[1], 1e-4, 1e-4)


@name_of_some
def test_specials(name, dtype):
    x = sample(dtype, 2100).reshape(300, 7)
    bias = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-40]).astype(dtype)
    with np.errstate(all="ignore"):
        expected = expected_forward(name, x, bias, 1, None)
        y = fa.bias_act(x, bias, name)
    nan = np.isnan(expected.astype(float))
    assert (np.isnan(y.astype(float)) == nan).all()
    assert_same_bits(y[~nan], expected[~nan])


def test_gradcheck():
    """Central differences in float64 of both gradients."""
    rng = np.random.default_rng(0)
    x, r, bias = rng.normal(size=(6, 5)), rng.normal(size=(6, 5)), rng.normal(size=5)
    h = 6e-6
    for op in ACTIVATIONS:
        dx, dbias = fa.bias_act.backward(1.0, x, bias, r, op)

        def value(moved: np.ndarray, op: Any = op) -> np.ndarray:
            return fa.bias_act(moved, bias, op, residual=r)

        numeric = (value(x + h) - value(x - h)) / (2 * h)
        np.testing.assert_allclose(dx, numeric, atol=1e-8)
        np.testing.assert_allclose(dbias, numeric.sum(0), atol=1e-7)


@pytest.mark.parametrize("axis", [1, -1])
def test_torch_gradients(axis):
    x, r = (torch.randn(4, 5, 6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(4, 5, 6, 5, dtype=torch.float64)
    z = x + (bias if axis == -1 else bias[:, None, None]) + r
    y = torch.nn.functional.mish(z)
    y.backward(dy)
    ours, saved = fa.bias_act.forward(x.detach(), bias.detach(), "mish", axis=axis, residual=r.data)
    torch.testing.assert_close(ours, y.detach(), rtol=1e-14, atol=1e-14)
    dx, dbias = fa.bias_act.backward(dy, *saved, "mish", axis=axis)
    torch.testing.assert_close(dx, x.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dx, r.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dbias, bias.grad, rtol=1e-12, atol=1e-12)


# --- bias_act: layouts, threads, in place ---------------------------------------------------------


@st.composite
def calls(draw, longest: int = 7, most_axes: int = 4):
    shape = tuple(draw(st.lists(st.integers(0, longest), min_size=1, max_size=most_axes)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    layouts = [draw(views(shape)) for _ in range(3)]
    vector = (shape[axis],)
    outs = draw(views(shape, writable=True)), draw(views(vector, writable=True))
    return shape, axis, layouts, draw(views(vector)), outs


@settings(max_examples=200, deadline=None)
@given(calls(), st.sampled_from(sorted(DTYPES)), st.sampled_from(["identity", "mish"]))
def test_any_layout(drawn, dtype_name, name):
    shape, axis, layouts, view_bias, (view_out, view_vector) = drawn
    dtype = DTYPES[dtype_name]
    dy, x, bias, r = parts(dtype, shape, axis)
    dy, x, r = (view(a) for view, a in zip(layouts, (dy, x, r), strict=True))
    bias = view_bias(bias)
    y = fa.bias_act(x, bias, name, axis=axis, residual=r)
    assert_same_bits(y, expected_forward(name, x, bias, axis, r))
    out = view_out(np.zeros(shape, dtype))
    assert fa.bias_act(x, bias, name, axis=axis, residual=r, out=out) is out
    assert_same_bits(out, y)

    dx, dbias = fa.bias_act.backward(dy, x, bias, r, name, axis=axis)
    terms = expected_dx(name, dy, x, bias, axis, r)
    assert_same_bits(dx, terms.astype(dtype))
    if dtype.itemsize > 2:
        assert_same_bits(dbias, fa.bias_grad(dx, axis=axis))
    base, total = finite(dtype, shape, 5), finite(dtype, (shape[axis],), 6)
    outs = view_out(base), view_vector(total)
    fa.bias_act.backward(dy, x, bias, r, name, axis=axis, out=outs, accumulate=True)
    assert_same_bits(outs[0], (wide(base) + terms).astype(dtype))
    others = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    rows = reference.terms(terms.astype(np.float64), others).sum(1) + total.astype(np.float64)
    tolerance = 0.51 * ulp(outs[1]) + 1e-12
    assert (np.abs(outs[1].astype(np.float64) - rows) <= tolerance).all()


@pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
@settings(max_examples=80, deadline=None)
@given(calls(12), st.sampled_from(sorted(DTYPES)), st.sampled_from(["identity", "mish"]))
def test_any_layout_on_devices(device, drawn, dtype_name, name):
    shape, axis, layouts, view_bias, (view_out, view_vector) = drawn
    dtype = DTYPES[dtype_name]
    dy, x, bias, r = parts(dtype, shape, axis)
    dy, x, r = (view(a) for view, a in zip(layouts, (dy, x, r), strict=True))
    bias = view_bias(bias)
    outs = view_out(np.zeros(shape, dtype)), view_vector(np.zeros(shape[axis], dtype))
    assume(all(map(is_aligned, (dy, x, r, bias, *outs))))
    out = device.of(outs[0])
    arrays = [device.of(a) for a in (x, bias)]
    fa.bias_act(*arrays, name, axis=axis, residual=device.of(r), out=out)
    assert_agrees(device, device.numpy(out), expected_forward(name, x, bias, axis, r))
    got = device.of(outs[0]), device.of(outs[1])
    fa.bias_act.backward(device.of(dy), *arrays, device.of(r), name, axis=axis, out=got)
    dx = device.numpy(got[0])
    assert_agrees(device, dx, expected_dx(name, dy, x, bias, axis, r).astype(dtype))
    assert_sums(device.numpy(got[1]), dx, axis, dtype)


@case
def test_threads_and_instruction_sets(dtype, shape, axis):
    dy, x, bias, r = parts(dtype, shape, axis)
    chosen = _cpu.isa()

    def results() -> tuple[Any, ...]:
        y = fa.bias_act(x, bias, "mish", axis=axis, residual=r)
        return (y, *fa.bias_act.backward(dy, x, bias, r, "mish", axis=axis))

    fused = None  # what every instruction set with a fused multiply-add gives
    try:
        for isa in _cpu.supported_isas():
            _cpu.select_isa(isa)
            with fa.num_threads(1):
                expected = results()
            if isa not in ("v2", "baseline"):
                expected = fused = fused or expected
            for n in (1, 2, 3, 7):
                with fa.num_threads(n):
                    for actual, same in zip(results(), expected, strict=True):
                        assert_same_bits(actual, same)
    finally:
        _cpu.select_isa(chosen)


def test_without_workspace(many_threads):
    """The workspace serves the threads alone; one that is too small is left alone."""
    dy, x, bias, _ = parts(np.float64, (30_000, 5), 1)
    expected = fa.bias_act.backward(dy, x, bias, None, "mish")
    dx, dbias = np.empty_like(x), np.empty_like(bias)
    seen = [_cpu.View.from_numpy(a) for a in (dy, x, bias, dx, dbias)]
    which = fa.mish._which
    assert _cpu.bias_act_workspace(seen[1], seen[4], 1) > 0
    for scratch in (None, _cpu.View.from_numpy(np.zeros(16, np.uint8))):
        _cpu.bias_act_backward(which, *seen[:3], None, *seen[3:], 1, (), False, scratch, 0)
        assert_same_bits(dx, expected[0])
        assert_same_bits(dbias, expected[1])


@case
@name_of_some
def test_in_place(dtype, shape, axis, name):
    dy, x, bias, r = parts(dtype, shape, axis)
    y = fa.bias_act(x, bias, name, axis=axis, residual=r)
    dx, dbias = fa.bias_act.backward(dy, x, bias, r, name, axis=axis)
    for out in ("x", "residual"):
        copies = {"x": x.copy(), "residual": r.copy()}
        fa.bias_act(
            copies["x"], bias, name, axis=axis, residual=copies["residual"], out=copies[out]
        )
        assert_same_bits(copies[out], y)
    for k in (0, 1, 3):
        arrays = [a.copy() for a in (dy, x, bias, r)]
        result = fa.bias_act.backward(*arrays, name, axis=axis, out=(arrays[k], None))
        assert_same_bits(arrays[k], dx)
        assert_same_bits(result[1], dbias)


def test_channels_that_run_backwards(dtype, framework):
    """The layout of out decides how the arrays are walked; the bias goes along."""
    if "torch" in framework.name:
        pytest.skip("torch has no negative strides")
    dy, x, bias, r = parts(dtype, (6, 7, 5), 1)
    args = [framework.of(a) for a in (dy, x, bias, r)]
    y = framework.numpy(fa.bias_act(*args[1:3], "mish", axis=1, residual=args[3]))
    dx, dbias = fa.bias_act.backward(*args, "mish", axis=1)
    out = framework.of(np.zeros((6, 7, 5), dtype)[:, ::-1])
    fa.bias_act(*args[1:3], "mish", axis=1, residual=args[3], out=out)
    assert_same_bits(framework.numpy(out), y)
    got = fa.bias_act.backward(*args, "mish", axis=1, out=(out, None))
    assert_same_bits(framework.numpy(got[0]), framework.numpy(dx))
    assert_agrees(framework, framework.numpy(got[1]), framework.numpy(dbias))


def test_bias_of_any_stride(dtype):
    _, x, bias, _ = parts(dtype, (50, 2100), 1)
    y = fa.bias_act(x, bias, "mish")
    for view in (np.repeat(bias, 2)[::2], bias[::-1].copy()[::-1]):
        assert_same_bits(fa.bias_act(x, view, "mish"), y)
    same = np.broadcast_to(bias[:1], bias.shape)
    assert_same_bits(fa.bias_act(x, same), fa.bias_act(x, same.copy()))


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 70), (3000, 5), (40, 1100)], ids=str)
def test_wider_bias(dtype, framework, shape):
    """It is rounded to the compute type; its gradient comes back in its own dtype."""
    dy, x, bias, _ = parts(dtype, shape, 1)
    for bias_dtype in (np.float32, np.float64):
        if np.dtype(bias_dtype).itemsize < dtype.itemsize:
            continue
        b = bias.astype(bias_dtype) * bias_dtype(1.00001)
        y = call(framework, fa.bias_act, x, b, "mish", axis=1)
        assert_agrees(framework, y, expected_forward("mish", x, b, 1, None))
        dx, dbias = call(framework, fa.bias_act.backward, dy, x, b, None, "mish", axis=1)
        assert dx.dtype == dtype
        assert dbias.dtype == bias_dtype
        others = tuple(i for i in range(x.ndim) if i != 1)
        terms = expected_dx("mish", dy, x, b, 1, None).astype(np.float64)
        scale = np.abs(terms).sum(others)
        rough = 1e-12 if framework.exact else 1e-5
        error = np.abs(dbias - terms.sum(others))
        assert (error <= rough * scale + float(np.finfo(bias_dtype).eps) * scale).all()


# --- bias_act: the op -----------------------------------------------------------------------------


def test_doors_and_what_is_saved(framework):
    _, x, bias, r = parts(np.float32, (8, 5), 1)
    a, b, c = framework.of(x), framework.of(bias), framework.of(r)
    y, saved = fa.bias_act.forward(a, b, "mish", residual=c)
    assert_same_bits(framework.numpy(y), framework.numpy(fa.bias_act(a, b, "mish", residual=c)))
    assert all(kept is given for kept, given in zip(saved, (a, b, c), strict=True))
    assert fa.bias_act.forward(a, b, fa.mish)[1] == (a, b, None)
    assert fa.bias_act.forward(a, b, residual=c)[1] == (None, b, None)
    dx, dbias = fa.bias_act.backward(a, None, b)
    assert_same_bits(framework.numpy(dx), x)
    assert_sums(framework.numpy(dbias), x, 1, x.dtype)


def test_out_and_accumulate(dtype, framework):
    dy, x, bias, r = parts(dtype, (30, 7), 1)
    args = [framework.of(a) for a in (dy, x, bias, r)]
    expected = [framework.numpy(g) for g in fa.bias_act.backward(*args, "mish")]
    out = framework.of(np.zeros(x.shape, dtype))
    assert fa.bias_act(*args[1:3], "mish", residual=args[3], out=(out,)) is out
    for outs in ((out, None), (None, framework.of(np.zeros(7, dtype))), None, (None, None)):
        results = fa.bias_act.backward(*args, "mish", out=outs)
        for result, held_by, same in zip(results, outs or (None, None), expected, strict=True):
            assert held_by is None or result is held_by
            assert_same_bits(framework.numpy(result), same)
    base = [finite(dtype, (30, 7), 5), finite(dtype, (7,), 6)]
    outs = tuple(framework.of(a.copy()) for a in base)
    assert fa.bias_act.backward(*args, "mish", out=outs, accumulate=True)[0] is outs[0]
    terms = expected_dx("mish", dy, x, bias, 1, r)
    total = framework.numpy(outs[0])
    assert_agrees(framework, total, (wide(base[0]) + terms).astype(dtype))
    sums = terms.astype(np.float64).sum(0) + base[1].astype(np.float64)
    error = np.abs(framework.numpy(outs[1]).astype(np.float64) - sums)
    rough = 1e-12 if framework.exact else 1e-4
    assert (error <= 0.51 * ulp(framework.numpy(outs[1])) + rough).all()


def test_numbers_and_lists():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = fa.bias_act(x, [1, 2, 3], residual=0.5)
    assert y.dtype == np.float32
    assert_same_bits(y, x + np.float32([1.5, 2.5, 3.5]))
    assert fa.bias_act([[1, 2]], [0.5, 1.5]).tolist() == [[1.5, 3.5]]
    dx, dbias = fa.bias_act.backward(2.0, x, np.zeros(3), None, "mish")
    assert dx.dtype == np.float32
    assert dbias.dtype == np.float64
    assert_same_bits(dx, fa.mish.backward(2.0, x))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("axis", [0, -1])
def test_empty(dtype, framework, shape, axis):
    x, bias = np.ones(shape, dtype), np.ones(shape[axis], dtype)
    assert call(framework, fa.bias_act, x, bias, axis=axis).shape == shape
    dx, dbias = call(framework, fa.bias_act.backward, x, x, bias, None, "mish", axis=axis)
    assert dx.shape == shape
    assert_same_bits(dbias, np.zeros(shape[axis], dtype))
    out = framework.of(x.copy()), framework.of(bias.copy())
    fa.bias_act.backward(
        *map(framework.of, (x, x, bias)), None, "mish", axis=axis, out=out, accumulate=True
    )
    assert_same_bits(framework.numpy(out[1]), bias)


def test_introspection():
    for op in (fa.bias_act, fa.bias_grad, fa.unbroadcast):
        assert pickle.loads(pickle.dumps(op)) is op
        assert repr(op) == f"<fastact op '{op.name}'>"
        assert fa.ops[op.name] is op
        assert op.family == "bias"
        for section in ("Parameters", "Returns", "Raises", "Notes", "References", "Examples"):
            assert f"{section}\n" in op.__doc__
    names = list(inspect.signature(fa.bias_act).parameters)
    own = ["x", "bias", "activation", "axis", "residual", "out", "stream"]
    assert names == [*own, "parameters"]
    assert list(inspect.signature(fa.bias_grad).parameters) == [
        "dy", "axis", "out", "accumulate", "stream",
    ]  # fmt: skip


# --- bias_grad and unbroadcast --------------------------------------------------------------------


@case
def test_bias_grad(dtype, backend, shape, axis):
    dy = finite(dtype, shape)
    others = tuple(i for i in range(dy.ndim) if i != axis % dy.ndim)
    dbias = call(backend, fa.bias_grad, dy, axis=axis)
    assert_same_bits(dbias, call(backend, fa.sum, dy, axis=others))


def test_16_bit_counts(framework):
    for dtype in (np.float16, ml_dtypes.bfloat16):
        ones = np.ones((1600, 3), dtype)
        assert (call(framework, fa.bias_grad, ones) == 1600).all()
        _, dbias = call(framework, fa.bias_act.backward, ones, None, np.zeros(3, dtype))
        assert (dbias == 1600).all()


def test_accumulating_rounds_once(framework):
    """What is there is added in double: 1 + 2^-12 + 2^-12 in float16 is not 1."""
    tiny = np.full((2, 1), 2.0**-12, np.float16)
    out = framework.of(np.ones(1, np.float16))
    fa.bias_grad(framework.of(tiny + tiny), out=out, accumulate=True)
    assert framework.numpy(out)[0] == np.float16(1 + 2.0**-10)
    y = framework.of(np.full((2, 1), 1e8, np.float32))
    total = framework.of(np.full(1, -2e8, np.float32))
    assert framework.numpy(fa.bias_grad(y, out=total, accumulate=True))[0] == 0


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(DTYPES)))
def test_unbroadcast_any_pair(data, dtype_name):
    dtype = DTYPES[dtype_name]
    to = tuple(data.draw(st.lists(st.integers(0, 5), max_size=4)))
    first = data.draw(st.integers(0, len(to)))
    shape = tuple(1 if data.draw(st.booleans()) else n for n in to[first:])
    dy = data.draw(views(to))(finite(dtype, to))
    dx, saved = fa.unbroadcast.forward(dy, shape)
    assert np.shape(dx) == shape
    assert saved == (to,)
    axes = tuple(i for i, n in enumerate(to) if i < first or shape[i - first] != n)
    expected = fa.sum(dy, axes, keepdims=True)
    assert_same_bits(dx, np.asarray(expected).reshape(shape))
    out = data.draw(views(shape, writable=True))(np.zeros(shape, dtype))
    assert fa.unbroadcast(dy, shape, out=out) is out
    assert_same_bits(out, dx)
    fa.unbroadcast(dy, shape, out=out, accumulate=True)
    double = dx.astype(np.float64) * 2
    assert (np.abs(np.asarray(out, np.float64) - double) <= 2 * ulp(np.asarray(out))).all()
    back = fa.unbroadcast.backward(np.asarray(dx, dtype), *saved)
    assert_same_bits(back, np.broadcast_to(np.asarray(dx, dtype), to))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 1), (1, 3), (2, 4, 3), (2, 1, 1)], ids=str)
def test_unbroadcast_is_torchs(framework, shape):
    dy = finite(np.float64, (2, 4, 3))
    x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    x.expand(2, 4, 3).backward(torch.from_numpy(dy))
    dx = call(framework, fa.unbroadcast, dy, shape)
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-13)


def test_the_way_back(framework):
    dy = np.arange(3, dtype=np.float32)
    dx = call(framework, fa.bias_grad.backward, dy, (2, 3, 4), axis=1)
    assert_same_bits(dx, np.broadcast_to(dy[:, None], (2, 3, 4)))
    out = framework.of(np.ones((2, 3), np.float32))
    assert fa.unbroadcast.backward(framework.of(dy), (2, 3), out=out, accumulate=True) is out
    assert_same_bits(framework.numpy(out), 1 + np.broadcast_to(dy, (2, 3)))
    _, saved = fa.bias_grad.forward(framework.of(np.ones((2, 3), np.float32)), axis=0)
    assert saved == ((2, 3),)


# --- errors ---------------------------------------------------------------------------------------


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def read_only(*shape: int) -> np.ndarray:
    a = f32(*shape)
    a.flags.writeable = False
    return a


held = f32(9, 4)
x4, b4 = held[:8], f32(4)
Case = tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]

ACT_ERRORS: dict[str, Case] = {
    "bias too long": (
        (x4, f32(8)), {}, ValueError,
        r"bias must have shape \(4,\), the length of axis -1 of x, got \(8,\)",
    ),
    "bias of two axes": ((x4, f32(1, 4)), {}, ValueError, r"shape \(4,\), .* got \(1, 4\)"),
    "bias of length 1": ((x4, f32(1)), {}, ValueError, r"shape \(4,\), .* got \(1,\)"),
    "other axis": ((x4, b4), {"axis": 0}, ValueError, r"shape \(8,\), .*axis 0 of x, got \(4,\)"),
    "number": ((x4, 1.0), {}, TypeError, "bias must be an array with one axis, got 1.0"),
    "no bias": ((x4, None), {}, TypeError, "bias must be an array with one axis, got None"),
    "narrow bias": (
        (x4, np.ones(4, np.float16)), {}, TypeError,
        "bias must have dtype float32, as x has, or a wider one, got float16",
    ),
    "the other 16 bits": (
        (np.ones((2, 4), np.float16), np.ones(4, ml_dtypes.bfloat16)), {}, TypeError,
        "bias must have dtype float16, .*got bfloat16",
    ),
    "integer bias": ((x4, np.ones(4, int)), {}, TypeError, "bias must have dtype .*got int64"),
    "axis": ((x4, b4), {"axis": 2}, ValueError, "axis must be from -2 to 1 for an .* got 2"),
    "axes": ((x4, b4), {"axis": (0,)}, TypeError, r"axis must be an integer, got \(0,\)"),
    "no axes": ((f32(), b4), {}, ValueError, "axis must name an axis, got -1 for an array without"),
    "misspelt activation": ((x4, b4, "mihs"), {}, ValueError, "got 'mihs'; did you mean 'mish'"),
    "unknown activation": ((x4, b4, "xyz"), {}, ValueError, "got 'xyz'; one of .*mish"),
    "an op of another family": ((x4, b4, "sum"), {}, ValueError, "activation must be 'identity'"),
    "no activation": ((x4, b4, None), {}, TypeError, "activation must be a name or .*got None"),
    "not an activation": ((x4, b4, fa.sum), {}, TypeError, "activation of fastact, got <fastact"),
    "parameter": ((x4, b4, "mish"), {"alpha": 1}, TypeError, "unknown keyword 'alpha'; allowed"),
    "misspelt": ((x4, b4), {"residul": x4}, TypeError, "did you mean 'residual'"),
    "axis by position": ((x4, b4, "mish", 1), {}, TypeError, "takes at most 1 arg"),
    "residual's shape": (
        (x4, b4), {"residual": f32(4)}, ValueError, r"residual must have shape \(8, 4\), got \(4,",
    ),
    "residual's dtype": (
        (x4, b4), {"residual": np.ones((8, 4))}, TypeError, "residual must have dtype float32",
    ),
    "residual's framework": (
        (x4, b4), {"residual": torch.ones(8, 4)}, TypeError, "one framework, .*residual from torch",
    ),
    "out's shape": ((x4, b4), {"out": f32(4)}, ValueError, r"out must have shape \(8, 4\)"),
    "out's dtype": ((x4, b4), {"out": np.ones((8, 4))}, TypeError, "out must have dtype float32"),
    "overlap": ((x4, b4), {"out": held[1:]}, ValueError, "(partial overlap|not share memory)"),
    "overlaps the residual": (
        (f32(8, 4), b4), {"residual": x4, "out": held[1:]}, ValueError, "residual|not share",
    ),
    "overlaps the bias": (
        (f32(1, 4), b4), {"out": b4.reshape(1, 4)}, ValueError, "(bias|not share memory)",
    ),
    "read-only": ((x4, b4), {"out": read_only(8, 4)}, ValueError, "out must be writable"),
    "two outs": ((x4, b4), {"out": (x4, b4)}, ValueError, "a tuple of 1, got a tuple of 2"),
}  # fmt: skip


@pytest.mark.parametrize("words", ACT_ERRORS)
def test_errors(words):
    arguments, keywords, error, message = ACT_ERRORS[words]
    for door, name in ((fa.bias_act, "bias_act"), (fa.bias_act.forward, r"bias_act\.forward")):
        with pytest.raises(error, match=rf"^fastact\.{name}: .*{message}"):
            door(*arguments, **keywords)
    assert (held == 1).all()
    assert (b4 == 1).all()


BACKWARD_ERRORS: dict[str, Case] = {
    "dy's shape": (
        (f32(4), x4, b4, None, "mish"), {}, ValueError, r"dy must have shape \(8, 4\), got \(4,\)",
    ),
    "dy's dtype": ((np.ones((8, 4)), x4, b4, None, "mish"), {}, TypeError, "dy must have dtype"),
    "x is gone": ((x4, None, b4, None, "mish"), {}, TypeError, "x must be an array, as forward"),
    "bias": ((x4, x4, f32(3), None, "mish"), {}, ValueError, r"bias must have shape \(4,\)"),
    "one out": ((x4, x4, b4), {"out": f32(8, 4)}, ValueError, "a tuple of 2, got one ndarray"),
    "short out": ((x4, x4, b4), {"out": (f32(8, 4),)}, ValueError, "of 2, got a tuple of 1"),
    "dbias's shape": (
        (x4, x4, b4), {"out": (None, f32(8))}, ValueError, r"out\[1\] must have shape \(4,\)",
    ),
    "dbias's dtype": (
        (x4, x4, b4), {"out": (None, np.ones(4))}, TypeError,
        r"out\[1\] must have dtype float32, as bias has, got float64",
    ),
    "dbias in bias": (
        (f32(8, 4), f32(8, 4), b4), {"out": (None, b4)}, ValueError, r"out\[1\] must not share",
    ),
    "dbias in dx": (
        (f32(8, 4), f32(8, 4), b4), {"out": (x4, held[0])}, ValueError, r"out\[0\] must not share",
    ),
    "dx in bias": (
        (f32(1, 4), f32(1, 4), b4), {"out": (b4.reshape(1, 4), None)}, ValueError,
        r"out\[0\] must",
    ),
    "overlap": (
        (x4, f32(8, 4), b4), {"out": (held[1:], None)}, ValueError, "dy itself or share no memory",
    ),
    "accumulate": ((x4, x4, b4), {"accumulate": True}, ValueError, "with out=, the arrays to add"),
    "accumulate into one": (
        (x4, x4, b4), {"accumulate": True, "out": (f32(8, 4), None)}, ValueError, "with out=",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", BACKWARD_ERRORS)
def test_backward_errors(words):
    arguments, keywords, error, message = BACKWARD_ERRORS[words]
    with pytest.raises(error, match=rf"^fastact\.bias_act\.backward: .*{message}"):
        fa.bias_act.backward(*arguments, **keywords)
    assert (held == 1).all()
    assert (b4 == 1).all()


SUM_ERRORS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "axis": (fa.bias_grad, (x4,), {"axis": 5}, ValueError, "axis must be from -2 to 1"),
    "no axis": (fa.bias_grad, (x4,), {"axis": None}, TypeError, "axis must be an integer, got No"),
    "scalar": (fa.bias_grad, (f32(),), {}, ValueError, "axis must name an axis, got -1"),
    "by position": (fa.bias_grad.backward, (b4, (3, 5)), {}, ValueError, r"shape \(5,\), got"),
    "out": (fa.bias_grad, (x4,), {"out": f32(8)}, ValueError, r"out must have shape \(4,\), got"),
    "in dy": (fa.bias_grad, (x4,), {"out": x4[0]}, ValueError, "out must not share memory"),
    "accumulate": (fa.bias_grad, (x4,), {"accumulate": True}, ValueError, "come with out="),
    "shape": (
        fa.unbroadcast, (x4, (3,)), {}, ValueError,
        r"shape must broadcast to \(8, 4\), the shape of dy, got \(3,\)",
    ),
    "longer": (fa.unbroadcast, (x4, (1, 8, 4)), {}, ValueError, r"\(8, 4\), .*got \(1, 8, 4\)"),
    "no shape": (fa.unbroadcast, (x4, 4), {}, TypeError, "shape must be a tuple of integers"),
    "back": (
        fa.unbroadcast.backward, (b4, (2, 3)), {}, ValueError,
        r"dy must have a shape that broadcasts to \(2, 3\), got \(4,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", SUM_ERRORS)
def test_errors_of_sums(words):
    door, arguments, keywords, error, message = SUM_ERRORS[words]
    with pytest.raises(error, match=rf"^fastact\.\w+(\.\w+)?: .*{message}"):
        door(*arguments, **keywords)
    with pytest.raises(TypeError, match=r"positional argument"):
        fa.bias_grad(x4, 1)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "axis"), [((2000, 1000), 1), ((200, 10, 1000), 1)], ids=str)
def test_no_memory_that_grows(dtype, many_threads, shape, axis):
    dy, x, bias, r = parts(dtype, shape, axis)
    out, dbias = np.zeros(shape, dtype), np.zeros(shape[axis], dtype)
    strided = np.zeros((*shape, 2), dtype)[..., 0]
    for call_of in (
        lambda: fa.bias_act(x, bias, "mish", axis=axis, residual=r, out=out),
        lambda: fa.bias_act(strided, bias, "mish", axis=axis, out=strided),
        lambda: fa.bias_act.backward(dy, x, bias, r, "mish", axis=axis, out=(out, dbias)),
        lambda: fa.bias_act.backward(
            strided, x, bias, None, "mish", axis=axis, out=(strided, dbias), accumulate=True
        ),
        lambda: fa.bias_grad(strided, axis=axis, out=dbias, accumulate=True),
    ):
        assert peak(call_of) < 20_000 + x.size // 32
