"""`backward.backward` and `jvp` of raw arrays, for every op: as differences of its calls have it.

The second derivatives of activations, which have kernels: tests/activations/test_second.py.
"""

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from conftest import ACTIVATIONS
from devices import DEVICES, DTYPES, from_torch, to_torch
from differences import Call, inner, slopes

import fastact as fa
from fastact.interop import validate
from fastact.measure import cases
from fastact.ops.engine.op import arrays_of

each_op = pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)
OTHERS = [op for op in fa.ops.values() if op not in ACTIVATIONS]
each_other = pytest.mark.parametrize("op", OTHERS, ids=lambda op: op.name)

STEP = 1e-6  # of values near 1 in float64: differences are good to 1e-9
FRAMEWORKS = {"numpy": (np.asarray, np.asarray), "torch": (to_torch, from_torch)}
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS)

#: How arrays are made of frameworks whose arithmetic is another one, or that have none.
REFUSED = {"array-api": array_api_strict.asarray} | {
    device.name: device.of for device in DEVICES if device.name.startswith("emulated")
}

#: Other ways to call an op, where it has such options.
WAYS: list[dict[str, Any]] = [
    {}, {"training": False, "running_mean": np.zeros(8), "running_var": np.ones(8)},
    {"recompute": True}, {"axis": 0}, {"axis": None}, {"activation": "silu"},
    {"reduction": "none", "label_smoothing": 0.25}, {"scale": 0.5}, {"keepdims": True},
    {"limit": 0.75, "offset": 0.5}, {"order": "iofg"}, {"casting": "gemma"},
    {"activation": "identity"}, {"ignore_index": 2**40},
    {"by": np.array([0, 1, -1, 1, 2, 0, 1, 2]), "groups": 3, "axis": 0},
]  # fmt: skip


def takes(op: Any, way: dict[str, Any]) -> bool:
    """Whether an op has such options."""
    points = (op.entry_points[name].defaults for name in ("call", "forward"))
    return {*way} <= {name for defaults in points for name in defaults}


def each_way(*ways: dict[str, Any]) -> Any:
    """Each op in each of these ways to call it that it has."""
    pairs = [(op, way) for op in fa.ops.values() for way in ways if takes(op, way)]
    return pytest.mark.parametrize(
        ("op", "way"), pairs, ids=["-".join((op.name, *way)) for op, way in pairs]
    )


def sampled(op: Any, way: dict[str, Any], dtype: Any = np.float64, parameters: Any = None) -> Call:
    """A call with these options; parameters have the data's dtype, or one of their own."""
    random = np.random.default_rng(0)
    named = {**cases.sample(op, *random.normal(size=(2, 8, 8)).astype(dtype)), **way}
    for name, role in op.roles.items():
        if role == validate.INDICES and name in named:
            named[name] = named[name].astype(np.int32)
        elif role == validate.PARAMETER and named.get(name) is not None:
            named[name] = named[name].astype(parameters or dtype)
    try:
        return Call(op, named, random)
    except (TypeError, ValueError):  # of some an axis is an integer
        pytest.skip("the option does not fit the sample")


#: Data by dtype, scale and offset, and by what parameters are multiplied: squares leave the range,
#: a mean hides the rest, parameters are next to nothing.
EXTREMES = [
    ("float32", 1e22, 0.0, 1.0), ("float32", 1e-25, 0.0, 1.0), ("float32", 1.0, 1e4, 1.0),
    ("float32", 1.0, 0.0, 1e-30), ("float32", 1.0, 0.0, 1e-4), ("float32", 1.0, 0.0, 1e3),
    ("float64", 1e160, 0.0, 1.0), ("float64", 1e-160, 0.0, 1.0), ("float64", 1.0, 0.0, 1e-300),
]  # fmt: skip


def each_extreme(*dtypes: str) -> Any:
    """Each of those in a dtype."""
    found = [extreme for extreme in EXTREMES if extreme[0] in dtypes]
    return pytest.mark.parametrize("extreme", found, ids=lambda e: "-".join(map(str, e)))


def extreme_call(op: Any, extreme: tuple[str, float, float, float]) -> Call:
    """A call of such data. Nothing is added to a variance, behind which small ones would hide."""
    dtype, scale, offset, factor = extreme
    named = sampled(op, {}, np.dtype(dtype)).named
    for name, value in named.items():
        if not isinstance(value, np.ndarray) or value.dtype != dtype:
            continue
        if op.roles.get(name) == validate.PARAMETER:
            named[name] = (value * factor).astype(dtype)
        elif value.ndim == 2 and "positive" not in name:
            named[name] = (value * scale + offset).astype(dtype)
    if "eps" in op.entry_points["call"].defaults:
        named["eps"] = 0.0
    return Call(op, named, np.random.default_rng(1))


def directional(call: Call, tangents: dict[str, np.ndarray], i: int) -> tuple[Any, Any]:
    """How the i-th element of each result moves, as `backward` has it in float64, and the
    magnitudes that add up to it."""
    wide = {n: widened(v) if isinstance(v, np.ndarray) else v for n, v in call.moved(0.0).items()}
    y, saved = call.op.bound("forward", wide)()
    found: list[tuple[float, float]] = []
    for k, _ in enumerate(arrays_of(y)):
        dys = [np.zeros(np.shape(other)) for other in arrays_of(y)]
        dys[k].reshape(-1)[i % dys[k].size] = 1.0
        args, named = call.spec.arguments(dys, saved)
        made = call.op.backward(*args, **named, **call.options)
        every = (*(made if isinstance(made, tuple) else (made,)), *dys)
        parts = [every[call.spec.of[n]] * widened(tangents[n]) for n in call.names]
        found.append((sum(map(np.sum, parts)), sum(np.sum(abs(part)) for part in parts)))
    return tuple(zip(*found, strict=True))


def widened(value: np.ndarray) -> np.ndarray:
    """Whatever is a number in float64."""
    return value if value.dtype.kind in "bi" else value.astype(np.float64)


@each_framework
@each_way(*WAYS)
def test_second_derivatives(op, framework, way):
    """The gradient of backward by all at once, along a direction."""
    call, (of, numpy) = sampled(op, way), FRAMEWORKS[framework]
    made = [None if d is None else numpy(d) for d in call.second(of)]
    got, right = call.both_sides(made, STEP)
    assert np.isclose(got, right, rtol=1e-6, atol=1e-6)


@each_framework
@each_way(*(way for way in WAYS if "recompute" not in way))  # which `forward` alone has
def test_forward_mode(op, framework, way):
    of, numpy = FRAMEWORKS[framework]
    call = sampled(op, way)
    named = {n: of(v) if isinstance(v, np.ndarray) else v for n, v in call.moved(0.0).items()}
    bound = op.bound("call", named)
    tangents = tuple(map(of, call.tangents.values()))
    y, dy = op.jvp(*bound.args, tangents=tangents, **bound.keywords)
    moved = slopes(lambda by: arrays_of(call.forward(by)[0]), STEP)
    for result, got, right in zip(arrays_of(y), arrays_of(dy), moved, strict=True):
        assert type(result) is type(got)
        np.testing.assert_allclose(numpy(got), right, rtol=1e-6, atol=1e-7)
    called = arrays_of(op.bound("call", call.moved(0.0))())
    for result, right in zip(arrays_of(y), called, strict=True):
        np.testing.assert_array_equal(numpy(result), right)


@each_extreme("float32", "float64")
@each_framework
@each_other
def test_tangents_in_extremes(op, framework, extreme):
    """Along the data themselves they are as exact as their parts are, where `backward` is finite.

    What a parameter's rounding changes is an error of theirs, too: where a slope is next to 0, or
    an angle, which it is multiplied by, large.
    """
    dtype = extreme[0]
    of, numpy = FRAMEWORKS[framework]
    with np.errstate(all="ignore"):
        call = extreme_call(op, extreme)
        first, *others = call.names
        tangents = {first: call.named[first]} | {n: call.tangents[n] for n in others}
        given = {n: of(v) if isinstance(v, np.ndarray) else v for n, v in call.moved(0.0).items()}
        bound = op.bound("call", given)
        y, moved = op.jvp(*bound.args, tangents=(*map(of, tangents.values()),), **bound.keywords)
        for one, other in zip(arrays_of(y), arrays_of(op.bound("call", given)()), strict=True):
            np.testing.assert_array_equal(numpy(one), numpy(other))
        u, limits = float(np.finfo(dtype).eps) / 2, np.finfo(dtype)
        rounded = Call(op, dict(call.named), np.random.default_rng(1))
        for n in others:
            rounded.named[n] = widened(call.named[n]) * (1 + u)
        for i in (0, 13, 29):
            right, size = directional(call, tangents, i)
            near, _ = directional(rounded, tangents, i)
            for got, *each in zip(arrays_of(moved), right, size, near, strict=True):
                expected, magnitude, other = map(float, each)
                if magnitude < limits.max:
                    array = numpy(got).reshape(-1)
                    got = float(array[i % array.size])
                    error = abs(got - expected)
                    assert error <= 64 * (u * magnitude + abs(other - expected) + limits.tiny)


@each_extreme("float32")
@each_other
def test_second_derivatives_in_extremes(op, extreme):
    """Those of float32 are as float64 has them, relative to the largest of each array."""
    with np.errstate(all="ignore"):
        call = extreme_call(op, extreme)
        for got, right in zip(call.second(np.asarray), call.second(widened), strict=True):
            assert (got is None) == (right is None)
            if right is not None and np.abs(right).max() < np.finfo(np.float32).max:
                scale = np.abs(right).max() + np.finfo(np.float32).tiny
                assert np.abs(got - right).max() <= 64 * 2.0**-24 * scale


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@each_framework
@each_other
def test_narrow_data(op, framework, dtype):
    """In float32, as accurate as their dtype; of the same numbers in float64 it is exact."""
    call, (of, numpy) = sampled(op, {}, DTYPES[dtype]), FRAMEWORKS[framework]
    for got, right in zip(call.second(of), call.second(widened), strict=True):
        assert (got is None) == (right is None)
        if right is None:
            continue
        assert str(got.dtype).endswith(dtype)
        scale = max(1.0, np.abs(right).max())
        error = np.abs(numpy(got).astype(np.float64) - right).max()
        # one rounding, and in float32 sums of 64 products, whose factors are rounded some times
        assert error <= (0.51 * torch.finfo(getattr(torch, dtype)).eps + 64 * 2.0**-24) * scale


@pytest.mark.parametrize("activation", ["identity", "silu"])
@pytest.mark.parametrize("dtypes", [(np.float32, np.float64), (np.float64, np.float32)])
@each_framework
@each_other
def test_parameters_of_another_dtype_than_the_data(op, framework, dtypes, activation):
    way = {"activation": activation}
    call = sampled(op, way if takes(op, way) else {}, *dtypes)
    of, numpy = FRAMEWORKS[framework]
    models = [*call.dys, *(dict(zip(op.saves, call.saved, strict=True))[n] for n in op.moving)]
    for got, right, like in zip(call.second(of), call.second(widened), models, strict=True):
        assert (got is None) == (right is None)
        if right is not None:
            assert numpy(got).dtype == like.dtype
            scale = max(1.0, np.abs(right).max())
            # sums of 64 products in float32, whose factors are rounded some times
            assert np.abs(numpy(got) - right).max() <= 64 * 2.0**-24 * scale


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of a mean of nothing, as NumPy's
@each_way({}, {"where": False})
def test_constant_data(op, way):
    """Forward mode is the transpose of `backward`, also of a deviation of 0 and of nothing."""
    call = sampled(op, way)
    call.named[call.names[0]] = np.full_like(call.named[call.names[0]], 0.75)
    bound = op.bound("call", call.moved(0.0))
    y, moved = op.jvp(*bound.args, tangents=tuple(call.tangents.values()), **bound.keywords)
    is_there = [*map(np.isfinite, arrays_of(y))]
    call.dys = [np.where(there, dy, 0.0) for there, dy in zip(is_there, call.dys, strict=True)]
    pairs = zip(is_there, arrays_of(moved), strict=True)
    got = inner([np.where(there, t, 0.0) for there, t in pairs], call.dys)
    every = (*call.gradients(0.0), *call.dys)
    right = inner([every[call.spec.of[n]] for n in call.names], [*call.tangents.values()])
    assert np.isclose(got, right, rtol=1e-9, atol=1e-9)


@each_framework
@each_other
def test_outputs(op, framework):
    """Given, skipped, added to; nothing that is made shares memory with what is read."""
    call, (of, numpy) = sampled(op, {}), FRAMEWORKS[framework]
    found = call.second(of)
    args, named = call.arguments(of)
    outs = tuple(None if d is None else of(np.array(numpy(d) + 1)) for d in found)
    back = op.backward.backward
    given = back(*args, **named, **call.options, out=outs if len(outs) > 1 else outs[0])
    given = given if isinstance(given, tuple) else (given,)
    assert all(a is b for a, b in zip(given, outs, strict=True))
    for got, right in zip(given, found, strict=True):
        if right is not None:
            np.testing.assert_array_equal(numpy(got), numpy(right))
    back(*args, **named, **call.options, out=outs if len(outs) > 1 else outs[0], accumulate=True)
    for got, right in zip(outs, found, strict=True):
        if right is not None:
            np.testing.assert_array_equal(numpy(got), numpy(right) + numpy(right))
    if len(outs) > 1:
        skipped = back(*args, **named, **call.options, out=(outs[0], *[None] * (len(outs) - 1)))
        assert skipped[1:] == (None,) * (len(outs) - 1)
    read = [v for v in (*args, *named.values()) if isinstance(v, np.ndarray)]
    for made in found:
        assert not any(np.shares_memory(made, v) for v in read if isinstance(made, np.ndarray))


@each_op
def test_errors(op):
    """They name the entry point and the argument, and nothing is written."""
    call = sampled(op, {})
    args, named = call.arguments(np.asarray)
    where = rf"^fastact\.{op.name}\.backward\.backward: "
    count, ddx = len(op.gradients), args[0]
    found = call.second(np.asarray)
    outs = tuple(None if d is None else np.full_like(d, 7.0) for d in found)
    out = outs if len(outs) > 1 else outs[0]
    label = f"d{op.gradients[0]}"
    bad: list[tuple[Any, str, list[Any], dict[str, Any]]] = [
        (TypeError, f"{label} must be given", [], {}),
        (ValueError, f"{label} must have shape", [np.ones((*ddx.shape, 2)), *args[1:]], {}),
        (TypeError, f"{label} must have dtype", [ddx.astype("float32"), *args[1:]], {}),
        (TypeError, r"[\w ]+ must come from (numpy|torch|one)", [to_torch(ddx), *args[1:]], {}),
        (TypeError, "unexpected keyword argument|activation", args, {"nothing": 1}),
        (TypeError, ".*must", [*args[:count], object(), *args[count + 1 :]], {}),
    ]
    for error, words, given, more in bad:
        rest = named if given else {}
        with pytest.raises(error, match=where + words):
            op.backward.backward(*given, **rest, **call.options, **more, out=out)
    wrong = np.full((9, 9), 7.0), *outs[1:]
    with pytest.raises(ValueError, match=where + r"out(\[0\])? must have shape"):
        op.backward.backward(
            *args, **named, **call.options, out=wrong if len(wrong) > 1 else wrong[0]
        )
    assert all((o == 7).all() for o in outs if o is not None)


@each_op
def test_a_third_derivative_is_an_error(op):
    with pytest.raises(NotImplementedError, match=rf"^fastact\.{op.name}\..* no third derivative"):
        op.backward.backward.backward(1.0, 1.0, 1.0)


@each_op
def test_tangents_are_checked_before_anything_is_written(op):
    call = sampled(op, {})
    named = call.moved(0.0)
    kept = {n: np.ones(8) for n in op.written}  # running statistics
    named |= kept
    bound, tangents = op.bound("call", named), [*call.tangents.values()]
    where, name = rf"^fastact\.{op.name}\.jvp: ", call.names[0]
    for error, words, given in (
        (ValueError, f"the tangent of {name} must be like", [np.ones((9, 9)), *tangents[1:]]),
        (TypeError, f"the tangent of {name} must be", [tangents[0].astype("f4"), *tangents[1:]]),
        (TypeError, "tangents must be a tuple of", [*tangents, tangents[0]]),
    ):
        with pytest.raises(error, match=where + words):
            op.jvp(*bound.args, tangents=tuple(given), **bound.keywords)
    with pytest.raises(TypeError, match=where + "out must not be given"):
        op.jvp(*bound.args, tangents=tuple(tangents), **{**bound.keywords, "out": np.ones(3)})
    assert all((statistic == 1).all() for statistic in kept.values())
    op.jvp(*bound.args, tangents=tuple(tangents), **bound.keywords)
    assert not any((statistic == 1).all() for statistic in kept.values())


@each_op
def test_no_tangent_is_0(op):
    call = sampled(op, {})
    bound = op.bound("call", call.moved(0.0))
    y, dy = op.jvp(*bound.args, tangents=(None,) * len(call.names), **bound.keywords)
    for result, tangent in zip(arrays_of(y), arrays_of(dy), strict=True):
        assert np.shape(tangent) == np.shape(result)
        assert not np.any(tangent)


@pytest.mark.parametrize("kind", REFUSED)
@each_other
def test_arrays_without_such_arithmetic_are_refused(op, kind):
    call, of = sampled(op, {}), REFUSED[kind]
    words = r"arrays must be of NumPy, torch, CuPy or JAX, .*, got "
    named = {n: of(v) if isinstance(v, np.ndarray) else v for n, v in call.moved(0.0).items()}
    bound, tangents = op.bound("call", named), tuple(map(of, call.tangents.values()))
    with pytest.raises(TypeError, match=rf"^fastact\.{op.name}\.jvp: {words}"):
        op.jvp(*bound.args, tangents=tangents, **bound.keywords)
    args, rest = call.arguments(of)
    if op.traits.second is not None and not any(d is not None for d in call.ddx[1:]):
        assert call.second(of)  # by a kernel
    else:
        with pytest.raises(TypeError, match=rf"^fastact\.{op.name}\.backward\.backward: {words}"):
            op.backward.backward(*args, **rest, **call.options)
