"""Element-wise ops as NumPy's ufuncs: what they tell, whom they ask, what libraries make of it."""

import pickle
from typing import Any

import numpy as np
import pytest
from conftest import ACTIVATIONS, assert_same_bits
from judged import refused
from processes import python_output

import fastact as fa
from fastact.measure.cases import sample
from fastact.ops.engine.elementwise import Bound, Elementwise

GATED = [op for op in fa.ops.values() if isinstance(op, Elementwise) and op.nin == 2]
OPTIONS = {"leaky_relu": {"negative_slope": 0.25}, "gelu": {"approximate": "tanh"}, "mish": {}}
by_options = pytest.mark.parametrize("name", OPTIONS)


def values(shape: Any = (4, 3), dtype: Any = np.float32) -> Any:
    return np.random.default_rng(1).normal(size=shape).astype(dtype)


# --- the protocol ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name)
def test_what_a_ufunc_tells(op):
    like = np.tanh
    told = ("nin", "nout", "nargs", "signature", "identity")
    assert [getattr(op, n) for n in told] == [getattr(like, n) for n in told]
    assert op.types == ["e->e", "f->f", "d->d"]
    assert op.ntypes == 3
    assert op.__name__ == op.name
    for dtype in (np.float32, np.int8, bool):
        assert op.resolve_dtypes((np.dtype(dtype), None)) == like.resolve_dtypes(
            (np.dtype(dtype), None)
        )


@pytest.mark.parametrize("op", GATED, ids=lambda op: op.name)
def test_what_a_ufunc_of_two_tells(op):
    like = np.logaddexp
    told = ("nin", "nout", "nargs", "signature")
    assert [getattr(op, n) for n in told] == [getattr(like, n) for n in told]
    assert op.types == ["ee->e", "ff->f", "dd->d"]
    for dtypes in ((np.float32, np.float32), (np.int8, bool), (np.float16, np.float64)):
        given = (*map(np.dtype, dtypes), None)
        assert op.resolve_dtypes(given) == like.resolve_dtypes(given)


class Recorder:
    """Keeps what it is asked."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return type(self), ufunc, method, inputs, kwargs


class Declines:
    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        return NotImplemented

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("computed")


class Never:
    __array_ufunc__ = None


def test_the_object_is_asked_first():
    x = Recorder()
    assert fa.mish(x) == (Recorder, fa.mish, "__call__", (x,), {})
    out = np.empty(3)
    assert fa.mish(x, out=out)[4] == {"out": (out,)}
    assert fa.mish(x, out=(out,))[4] == {"out": (out,)}


def test_options_are_bound():
    x = Recorder()
    for call in (fa.leaky_relu(x, 0.25), fa.leaky_relu(x, negative_slope=0.25)):
        _, ufunc, _, inputs, kwargs = call
        assert isinstance(ufunc, Bound)
        assert (inputs, kwargs) == ((x,), {})
        assert ufunc == call[1] == pickle.loads(pickle.dumps(ufunc))
        assert hash(ufunc) == hash(pickle.loads(pickle.dumps(ufunc)))
        assert (ufunc.__name__, ufunc.nin, ufunc.nargs) == ("leaky_relu", 1, 2)
        assert_same_bits(ufunc(values()), fa.leaky_relu(values(), 0.25))
    assert fa.leaky_relu(x, 0.01)[1] is fa.leaky_relu  # which is the default
    assert fa.leaky_relu(x, 0.25)[1] != fa.leaky_relu(x, 0.5)[1]


def test_an_array_as_an_option_is_the_number_it_was():
    slope, x = np.array(0.25), np.ma.masked_array(values())
    (_, ufunc, *_), expected = fa.leaky_relu(Recorder(), slope), fa.leaky_relu(values(), 0.25)
    assert hash(ufunc) == hash(fa.leaky_relu(Recorder(), 0.25)[1])
    assert_same_bits(fa.leaky_relu(x, slope).data, expected)  # which has the ufunc's hash taken
    slope[...] = 0.5
    assert ufunc == fa.leaky_relu(Recorder(), 0.25)[1]
    assert_same_bits(ufunc(values()), expected)
    for axis in ([0], np.zeros(2)):
        refused(r"^fastact\.swiglu: axis must be ", fa.swiglu, x, x, axis=axis)


def test_options_of_two_operands_are_bound():
    a, b, x = values(), values()[::-1], Recorder()
    assert fa.swiglu(x, a) == (Recorder, fa.swiglu, "__call__", (x, a), {})
    for call in (
        fa.gated(a, x, "leaky_relu", negative_slope=0.25, limit=2),
        fa.gated(a, x, fa.leaky_relu, negative_slope=0.25, limit=2.0),
    ):
        _, ufunc, _, inputs, kwargs = call
        assert inputs[0] is a
        assert (inputs[1], kwargs) == (x, {})
        again = pickle.loads(pickle.dumps(ufunc))
        assert ufunc == again
        assert hash(ufunc) == hash(again)
        expected = fa.gated(a, b, "leaky_relu", negative_slope=0.25, limit=2)
        assert_same_bits(again(a, b), expected)
    for call, words in (
        (lambda: fa.gated(x, a, "mush"), "activation must be .*did you mean 'mish'"),
        (lambda: fa.swiglu(x, a, limit=-1), "limit must be above zero"),
        (lambda: fa.swiglu(x, a, activation="mish"), "unexpected keyword argument 'activation'"),
        (lambda: fa.swiglu(x, a, bias=np.ones(6)), "a must be a plain array, got .*Recorder"),
        (lambda: fa.swiglu(a, x, bias=np.ones(6)), "b must be a plain array, got .*Recorder"),
        (lambda: fa.swiglu(x), "b must be given, by position"),
    ):
        refused(rf"^fastact\.(gated|swiglu): {words}", call, error=(TypeError, ValueError))


def test_wrong_options_are_refused_before():
    for call, words in (
        (lambda x: fa.leaky_relu(x, "a"), "negative_slope must be a real number"),
        (lambda x: fa.mish(x, slope=1), "unexpected keyword argument 'slope'"),
        (lambda x: fa.mish(x, stream=3), "stream must be None"),
        (lambda x: fa.mish(x, out="x"), "out must be an array, got 'x'"),
    ):
        refused(words, call, Recorder(), error=(TypeError, ValueError))


def test_who_is_not_asked():
    refused(r"^fastact\.mish: .*Never does not support ufuncs", fa.mish, Never())
    refused(r"^fastact\.mish: x must be a plain array, got .*Declines", fa.mish, Declines())


class Logged(np.ndarray):
    """A subclass with an `__array_ufunc__` as NumPy's documentation has it."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [x.view(np.ndarray) if isinstance(x, Logged) else x for x in inputs]
        return super().__array_ufunc__(ufunc, method, *plain, **kwargs).view(Logged)


def test_numpy_s_own_way_of_subclasses():
    y = fa.leaky_relu(values().view(Logged), 0.25)
    assert type(y) is Logged
    assert_same_bits(y.view(np.ndarray), fa.leaky_relu(values(), 0.25))


def test_the_call_by_its_name():
    """As pandas and NumPy call a ufunc, and without torch, which traces the class's."""
    code = (
        "import sys, numpy as np, fastact as fa\n"
        "assert fa.mish.__call__(np.zeros(3)).shape == (3,)\n"
        "assert 'torch' not in sys.modules"
    )
    python_output(code)


# --- subclasses of ndarray ------------------------------------------------------------------------


@by_options
def test_masks_are_kept(name):
    op, options = fa.ops[name], OPTIONS[name]
    x = np.ma.array(values(), mask=values() > 0.5, fill_value=7.0)
    y = op(x, **options)
    like = np.tanh(x)
    assert type(y) is type(like)
    assert (y.mask == like.mask).all()
    assert y.fill_value == like.fill_value
    assert_same_bits(y.data, op(values(), **options))
    assert not np.shares_memory(y.mask, x.mask)
    assert fa.mish(np.ma.masked) is np.ma.masked
    assert not fa.mish(np.ma.array(values())).mask.any()
    refused("out must be None for a masked array", fa.mish, x, out=np.empty_like(values()))
    refused("out must be None for a masked array", fa.mish, x, out=x)


def test_masks_of_both_operands():
    a = np.ma.array(values(), mask=values() > 0.5)
    b = np.ma.array(values()[::-1], mask=values() < -0.5)
    for one, other in ((a, b), (a, b.data), (a.data, b), (a, 2.0)):
        y, like = fa.swiglu(one, other), np.logaddexp(one, other)
        assert (y.mask == like.mask).all()
        assert_same_bits(y.data, fa.swiglu(np.asarray(one), np.asarray(other)[()]))


def test_nothing_else_drops_a_mask():
    """Sums and statistics take it: test_masked.py."""
    data = values((4, 4))  # channels in two groups
    x = np.ma.array(data, mask=data > 0.5)
    for op in fa.ops.values():
        takes_it = isinstance(op, Elementwise) or op.family in ("reductions", "statistics")
        if not takes_it and op.family != "bias":
            name = op.entry_points["call"].arrays[0]
            named = {**sample(op, data, data), name: x}
            with pytest.raises(TypeError, match=rf"{name} must be a plain array, got a masked one"):
                op.bound("call", named)()
    for entry, args in ((fa.mish.forward, (x,)), (fa.mish.backward, (x, x))):
        refused("got a masked one", entry, *args)


# --- libraries ------------------------------------------------------------------------------------


@by_options
def test_pandas(name):
    pd = pytest.importorskip("pandas")
    op, options = fa.ops[name], OPTIONS[name]
    series = pd.Series(values(4), index=list("abcd"), name="n")
    y = op(series, **options)
    pd.testing.assert_series_equal(
        y, pd.Series(op(values(4), **options), index=series.index, name="n")
    )
    frame = pd.DataFrame({"a": values(4), "b": values(4).astype(float)}, index=list("abcd"))
    y = op(frame, **options)
    assert y.dtypes.to_dict() == frame.dtypes.to_dict()
    for column in frame:
        assert_same_bits(y[column].to_numpy(), op(frame[column].to_numpy(), **options))
    assert (y.index == frame.index).all()
    assert fa.mish(pd.Index([1.0], name="i")).name == "i"
    assert fa.mish(pd.Series([1.0, None], dtype="Float64")).isna().tolist() == [False, True]
    with pytest.raises(TypeError, match=r"^fastact\.mish: x must have dtype .*, got object"):
        fa.mish(pd.DataFrame({"a": [1.0], "b": np.array([None], object)}))
    other = pd.Series(values(4), index=list("dcba"))  # aligned by labels, as ufuncs align
    y = fa.swiglu(series, other)
    assert_same_bits(y["a":"d"].to_numpy(), fa.swiglu(values(4), values(4)[::-1]))


@pytest.mark.filterwarnings("ignore")  # of its imports
def test_sparse():
    sparse = pytest.importorskip("sparse")
    x = np.where(values((5, 6)) > 1, values((5, 6)), 0)
    y = fa.leaky_relu(sparse.COO(x), 0.25)
    assert y.nnz < x.size
    assert_same_bits(y.todense(), fa.leaky_relu(x, 0.25))
    assert fa.sigmoid(sparse.COO(x)).fill_value == 0.5
    other = sparse.COO(x[::-1])
    assert_same_bits(fa.swiglu(sparse.COO(x), other).todense(), fa.swiglu(x, x[::-1]))


@pytest.mark.filterwarnings("ignore")
def test_awkward():
    ak = pytest.importorskip("awkward")
    x = ak.Array([[1.0, 2.0], [], [-3.0]])
    assert fa.leaky_relu(x, 0.5).to_list() == [[1.0, 2.0], [], [-1.5]]
    assert fa.reglu(x, x).to_list() == [[1.0, 4.0], [], [0.0]]


@pytest.mark.filterwarnings("ignore")
def test_astropy():
    u = pytest.importorskip("astropy.units")
    y = fa.leaky_relu([-1.0, 2.0] * u.dimensionless_unscaled, 0.5)
    assert y.unit == u.dimensionless_unscaled
    assert y.value.tolist() == [-0.5, 2.0]
    assert fa.relu([-1.0, 50.0] * u.percent).value.tolist() == [0.0, 0.5]
    refused(r"Can only apply 'mish' function to dimensionless", fa.mish, [1.0] * u.m)
    assert fa.reglu(y, y).value.tolist() == [0.0, 4.0]
    refused(r"Can only apply 'reglu' function to dimensionless", fa.reglu, y, [1.0, 2.0] * u.m)


@pytest.mark.filterwarnings("ignore")
def test_xarray():
    xr = pytest.importorskip("xarray")
    x = xr.DataArray(values(), {"a": list("pqrs")}, ["a", "b"], attrs={"unit": "K"}, name="n")
    y = fa.leaky_relu(x, negative_slope=0.25)
    xr.testing.assert_identical(y, x.copy(data=fa.leaky_relu(values(), 0.25)))
    y = fa.swiglu(x, x + 1)
    assert y.coords.equals(x.coords)
    assert_same_bits(y.to_numpy(), fa.swiglu(values(), values() + 1))
    both = fa.mish(xr.Dataset({"n": x}))
    xr.testing.assert_identical(both["n"].drop_attrs(), fa.mish(x).drop_attrs())
