"""`dtype` and `initial` of sums and statistics: NumPy's parameters."""

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import assert_same_bits, first_of_families
from devices import DTYPES
from judged import refused

import fastact as fa
from fastact.ops.engine.op import arrays_of

TOLD = [op for op in fa.ops.values() if "dtype" in op.entry_points["call"].defaults]
BEGUN = [op for op in TOLD if "initial" in op.entry_points["call"].defaults]
each_told = pytest.mark.parametrize("op", TOLD, ids=lambda op: op.name)
each_begun = pytest.mark.parametrize("op", BEGUN, ids=lambda op: op.name)
each_dtype = pytest.mark.parametrize("told", ["float16", "bfloat16", "float32", "float64"])

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")

#: Shapes and axes that take different kernels: rows, columns, few terms, chunks, all.
CASES: list[tuple[tuple[int, ...], Any]] = [
    ((7, 33), 1), ((7, 33), 0), ((3, 40), 0), ((40, 3), 1), ((2, 9000), 1), ((9000, 5), 0),
    ((4, 6, 5), (0, 2)), ((4, 6, 5), None),
]  # fmt: skip


def draw(op: Any, dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(3, 2, shape).astype(dtype)
    if getattr(op, "skips", False):
        x[np.random.default_rng(seed + 1).random(shape) < 0.2] = np.nan
    return x


def ways(op: Any, shape: tuple[int, ...], axis: Any, backend: Any) -> list[dict[str, Any]]:
    """What else a call may be given that takes kernels of its own."""
    rng, taken = np.random.default_rng(5), op.entry_points["call"].defaults
    found: list[dict[str, Any]] = [{}, {"where": rng.random(shape) < 0.8}]
    if "weights" in taken:
        found.append({"weights": rng.random(shape)})
    if "initial" in taken:
        found.append({"initial": 2.5})
    if "by" in taken and backend.exact and axis is not None:
        found.append({"by": rng.integers(-1, 3, shape), "groups": 4})
    return found


def close(found: Any, exact: Any, dtype: Any, share: float = 2.0**-20) -> None:
    """Within a ULP of a dtype, and within what 16-bit terms that are added in float32 lose."""
    found, exact = np.asarray(found), np.asarray(exact)
    assert found.dtype == np.dtype(dtype), found.dtype
    assert found.shape == exact.shape
    eps = 2 * float(ml_dtypes.finfo(dtype).eps)
    with np.errstate(over="ignore"):
        exact = exact.astype(dtype).astype(float)
    np.testing.assert_allclose(found.astype(float), exact, eps + share, share)


@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@each_dtype
@each_told
def test_values(op, dtype, backend, told, shape, axis):
    """The same numbers in float64 have the same statistic, which is rounded once."""
    x = draw(op, dtype, shape)
    for named in ways(op, shape, axis, backend):
        exact = arrays_of(op(x.astype(np.float64), axis, **named))
        given = {n: backend.of(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
        made = arrays_of(op(backend.of(x), axis, dtype=told, **given))
        for y, of in zip(made, exact, strict=True):
            close(backend.numpy(y), of, told)


#: Those of NumPy that take a dtype, which np.average does not.
OF_NUMPY = [op for op in TOLD if hasattr(np, op.name) and op.gradients == ("dx",)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("op", OF_NUMPY, ids=str)
def test_shapes_and_types_are_numpy_s(op, keepdims):
    function = getattr(np, op.name)
    for dtype in (np.float16, np.float32, np.float64, np.int32, bool):
        x = (np.arange(12) % 5 - 2).reshape(3, 4).astype(dtype)
        for axis in (None, 0, (0, 1), ()):
            for told in (np.float32, np.float64):
                y = op(x, axis, dtype=told, keepdims=keepdims)
                exact = function(x.astype(np.float64), axis, keepdims=keepdims)
                as_numpy = function(x, axis, dtype=told, keepdims=keepdims)
                assert (type(y), y.shape) == (type(as_numpy), as_numpy.shape)
                close(y, exact, told)
    x = draw(op, np.float32, ())
    assert type(op(x, dtype="float64")) is type(function(x, dtype="float64")) is np.float64


def test_nothing_is_rounded_in_between():
    x = np.full(5, 3e4, np.float16)
    y, _ = fa.sum.forward(x, dtype=np.float32)
    with np.errstate(over="ignore"):
        assert (fa.sum(x), y) == (np.inf, np.float32(1.5e5))
    assert fa.sum(np.array([1e300, -1e300]), dtype=np.float32) == 0
    assert fa.var(np.array([1e200, -1e200]), dtype=np.float32) == np.inf


@each_dtype
@each_told
def test_gradients(op, backend, dtype, told):
    """They have x's dtype; the results' gradients have the results'."""
    for shape, axis in (((7, 33), 1), ((4, 6, 5), (0, 2)), ((6, 5), 0)):
        x = draw(op, dtype, shape)
        for named in ways(op, shape, axis, backend):
            given = {n: backend.of(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
            result, saved = op.forward(backend.of(x), axis=axis, dtype=told, **given)
            options = {n: v for n, v in named.items() if n in ("groups",)} | {"axis": axis}
            parts = [backend.numpy(y) for y in arrays_of(result)]
            rng = np.random.default_rng(3)
            dys = [rng.normal(size=y.shape).astype(y.dtype) for y in parts]
            _, wide = op.forward(x.astype(np.float64), axis=axis, **named)
            one = [dy.astype(np.float64) for dy in dys]
            exact = op.backward(tuple(one) if len(one) > 1 else one[0], *wide, **options)
            dy = tuple(map(backend.of, dys)) if len(dys) > 1 else backend.of(dys[0])
            dx = op.backward(dy, *saved, dtype=told, **options)
            first, of = (v[0] if isinstance(v, tuple) else v for v in (dx, exact))
            close(backend.numpy(first), of, dtype)
            out = backend.of(np.ones(shape, dtype))
            outs = (out, None) if isinstance(dx, tuple) else out
            op.backward(dy, *saved, dtype=told, out=outs, accumulate=True, **options)
            close(backend.numpy(out), of + 1, dtype)


@each_told
def test_gradients_of_another_dtype_are_refused(op):
    x = draw(op, np.float32, (3, 4))
    result, saved = op.forward(x, axis=1, dtype=np.float64)
    dy = tuple(np.ones_like(y).astype(np.float32) for y in arrays_of(result))
    dx = np.full((3, 4), 7, np.float32)
    given = dy if len(dy) > 1 else dy[0]
    with pytest.raises(TypeError, match=r"dy\S* must have dtype float64, as the (result|sum) has"):
        op.backward(given, *saved, axis=1, dtype=np.float64, out=(dx, None)[: len(op.gradients)])
    assert (dx == 7).all()


@each_begun
def test_initial_of_nothing(op, backend):
    for shape in ((0, 3), (3, 0)):
        x = np.ones(shape, np.float32)
        y = backend.numpy(op(backend.of(x), 0, initial=-1.5))
        np.testing.assert_array_equal(y, getattr(np, op.name)(x, 0, initial=-1.5))
        y, saved = op.forward(backend.of(x), 0, initial=1)
        assert backend.numpy(op.backward(1.0, *saved)).shape == shape


@each_begun
def test_initial_is_added_before_the_sum_is_rounded(op):
    x = np.array([2.0**24, 1, 1], np.float32)
    assert op(x, initial=-(2.0**24)) == 2
    assert op(np.full(3, 3e38, np.float32), initial=-6e38) == np.float32(3e38)
    minus = np.array([-0.0], np.float32)
    assert np.signbit(op(minus))
    assert not np.signbit(op(minus, initial=0.0))
    left = op(x, where=False, initial=3.0)
    assert (left, op(np.array([[1.0]]), 0, by=[-1], groups=2, initial=3.0).tolist()) == (
        3, [[3.0, 3.0]])  # fmt: skip
    kept = np.full(2, 7.0)
    with pytest.raises(ValueError, match="by must hold groups"):
        op(np.ones(3), by=[0, 5, 1], groups=2, initial=1.0, out=kept)
    assert (kept == 7).all()


@each_told
def test_out(op, backend):
    x = draw(op, np.float32, (3, 4))
    count = len(op.results)

    def outs(kind: Any) -> Any:
        made = tuple(backend.of(np.full(3, 7, kind)) for _ in range(count))
        return made if count > 1 else made[0]

    expected = arrays_of(op(x, 1, dtype=np.float64))
    for _ in range(4):  # the last ones are replayed
        out = outs(np.float64)
        assert op(backend.of(x), 1, dtype=np.float64, out=out) is out or count > 1
        for y, of in zip(arrays_of(out), expected, strict=True):
            np.testing.assert_allclose(backend.numpy(y), of, 1e-6)
    wrong = outs(np.float32)
    refused(r"out\S* must have dtype float64", op, backend.of(x), 1, dtype=np.float64, out=wrong)
    refused(r"out\S* must have dtype float32, as x has", op, backend.of(x), 1, out=outs(np.float64))
    assert all((backend.numpy(y) == 7).all() for y in arrays_of(wrong))


def test_names_of_dtypes():
    x = np.ones((2, 3), np.float32)
    names = {
        "float16": ("float16", "f2", np.float16, np.dtype("e"), torch.float16),
        "bfloat16": ("bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), torch.bfloat16),
        "float32": ("float32", "f", np.float32, np.dtype("=f4"), torch.float32),
        "float64": ("float64", "d", float, np.float64, np.dtype("f8"), torch.float64),
    }
    for _ in range(4):  # the last ones are replayed
        for name, spelled in names.items():
            for told in spelled:
                assert fa.mean(x, 1, dtype=told).dtype == DTYPES[name]
                y = fa.mean(torch.ones(2, 3), 1, dtype=told)
                assert y.dtype == getattr(torch, name)


@pytest.mark.parametrize(
    "told", [int, "int32", complex, object, ">f8", "no", b"no", 3, [1], np.ones(3)], ids=str
)
@each_told
def test_other_dtypes_are_refused(op, told):
    words = rf"^fastact\.{op.name}: dtype must be float16, bfloat16, float32 or float64, got "
    for x in (np.ones(3), torch.ones(3), torch.ones(3, requires_grad=True)):
        refused(words, op, x, dtype=told)


def test_a_tensor_that_is_no_dtype_is_not_printed(monkeypatch):
    """Torch's printing reads its memory, which may be gone."""
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: pytest.fail("it is printed"))
    with pytest.raises(TypeError, match=r"dtype must be float16, .* got Tensor of float32"):
        fa.mean(np.ones(3), dtype=torch.ones(3))


# --- torch ----------------------------------------------------------------------------------------


@each_told
def test_autograd(op):
    x = torch.tensor(draw(op, np.float32, (3, 4))).half().requires_grad_()
    for told in (torch.float32, "float64"):
        made = op(x, 1, dtype=told)
        found = arrays_of(made)
        dtype = told if isinstance(told, torch.dtype) else torch.float64
        assert all(y.dtype == dtype for y in found)
        # A gradient that float16 can't hold
        (dx,) = torch.autograd.grad([y.sum() * 1e5 * 2.0**-16 for y in found], [x])
        with torch.no_grad():
            _, saved = op.forward(x, axis=1, dtype=told)
            dys = tuple(torch.full_like(y, 1e5 * 2.0**-16) for y in found)
            expected = op.backward(dys if len(dys) > 1 else dys[0], *saved, axis=1, dtype=told)
        assert dx.dtype == torch.float16
        assert_same_bits(dx.numpy(), arrays_of(expected)[0].numpy())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("op", first_of_families(TOLD))
def test_compiled(op):
    torch.compiler.reset()
    x = torch.tensor(draw(op, np.float32, (3, 4)))
    compiled = torch.compile(
        lambda x: op(x, 1, dtype=torch.float64), fullgraph=True, backend="aot_eager"
    )
    for y, of in zip(arrays_of(compiled(x)), arrays_of(op(x, 1, dtype="float64")), strict=True):
        assert y.dtype == torch.float64
        assert_same_bits(y.numpy(), of.numpy())
    t = x.half().requires_grad_()
    arrays_of(compiled(t))[0].sum().backward()
    other = x.half().requires_grad_()
    arrays_of(op(other, 1, dtype="float64"))[0].sum().backward()
    assert t.grad.dtype == torch.float16
    torch.testing.assert_close(t.grad, other.grad, equal_nan=True)


@each_begun
def test_initial_in_torch(op):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    compiled = torch.compile(lambda x: op(x, 1, initial=0.5), fullgraph=True, backend="aot_eager")
    assert compiled(x).tolist() == op(x, 1, initial=0.5).tolist() == [3.5, 7.5]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y, dy = torch.func.jvp(lambda x: op(x, 1, initial=0.5), (x,), (torch.ones(2, 2),))
    assert (y.tolist(), dy.tolist()) == ([3.5, 7.5], [2.0, 2.0])
    assert op.jvp(x, 1, tangents=x, initial=0.5, dtype="float64")[1].tolist() == [3.0, 7.0]
