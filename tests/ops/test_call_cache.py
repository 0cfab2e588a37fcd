"""The call cache: a call whose key was seen before replays its plan, and nothing else changes."""

import ctypes
from functools import partial
from typing import Any

import numpy as np
import pytest
from asserting import passes
from conftest import assert_same_bits
from devices import FRAMEWORKS, Framework
from every import PAIRS, Call, fits

import fastact as fa
from fastact import _cpu
from fastact.interop import call
from fastact.measure.cases import backward_example
from fastact.ops.engine import op as op_module

SHAPE = (6, 40)


def made(*shape: int) -> Any:
    """An argument: an array of this shape, new for every call."""
    return ("array", shape)


# Cached entry points: their arguments, their options, the shapes of their outputs. These are beside
# the calls of every op in every way to call it.
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], tuple[tuple[int, ...], ...]]] = {
    "sum.backward, number": (fa.sum.backward, (0.5, (3,)), {}, ((3,),)),
    "sum_squares.backward, number": (fa.sum_squares.backward, (3, made(*SHAPE)), {}, (SHAPE,)),
    "value_and_grad": (fa.sum_squares.value_and_grad, (made(*SHAPE),), {}, ((), SHAPE)),
    "bias_act.backward, identity": (
        fa.bias_act.backward, (made(*SHAPE), None, made(40)), {}, (SHAPE, (40,)),
    ),
    "mean_var.backward, number": (
        fa.mean_var.backward, ((None, 2.0), made(*SHAPE)), {"axis": 0}, (SHAPE,),
    ),
    "norm_apply, op as an activation": (
        fa.norm_apply, (made(*SHAPE), made(6), made(6)), {"axis": 0, "activation": fa.elu},
        (SHAPE,),
    ),
    "bias_act, elu": (
        fa.bias_act, (made(*SHAPE), made(6), "elu"), {"axis": 0, "alpha": 0.5}, (SHAPE,),
    ),
    "backward_apply": (
        fa.batch_norm.backward_apply,
        (made(*SHAPE), made(*SHAPE), made(6), made(6), None, made(6), made(6), 40),
        {"channel_axis": 0, "activation": "tanh"}, (SHAPE,),
    ),
    "lstm_gates.backward, recomputed": (
        fa.lstm_gates.backward,
        (made(*SHAPE), 0.5, made(6, 160), made(*SHAPE), None, made(6, 160), made(160)),
        {"recompute": True}, ((6, 160), SHAPE, (160,)),
    ),
    "gru_blend": (fa.gru_blend, (made(6, 80), 0.5), {"recurrent": made(6, 80)}, (SHAPE,)),
}  # fmt: skip


def template(value: Any, kinds: dict[int, str]) -> Any:
    """An argument with its arrays as `made` has them, and what kind they are of."""
    if isinstance(value, np.ndarray | np.generic):
        is_data = value.dtype == np.float32  # indices and counts stay
        return (*made(*value.shape), kinds.get(id(value), "")) if is_data else np.asarray(value)
    return tuple(template(v, kinds) for v in value) if isinstance(value, tuple) else value


def of_call(run: Any, kinds: dict[int, str], is_forward: bool = False) -> Any:
    """A call as `CALLS` has them; None where results have another dtype than x."""
    result = run()
    parts = op_module.arrays_of(result[0] if is_forward else result)
    if any(part is None or part.dtype != np.float32 for part in parts):
        return None
    options = {name: template(value, kinds) for name, value in run.keywords.items()}
    shapes = tuple(part.shape for part in parts)
    return run.func, tuple(template(a, kinds) for a in run.args), options, shapes


for op, way in PAIRS:
    if isinstance(op, _cpu.CachedOp) and fits(op, repr(way), SHAPE):
        one = Call(op, way, SHAPE, np.float32)
        runs = {"": one.forward, ".backward": one.backward()}
        if not way:
            runs[".forward"] = op.bound("forward", one.named)
        words = ", ".join((op.name, *map(str, way)))
        saved = dict(zip(op.saves, one.saved, strict=True))
        wide = {n: v for n, v in saved.items() if n in ("mean", "rstd", "lse", "rest", "share")}
        kinds = {id(v): "wide" for v in wide.values()}
        kinds |= {id(v): "positive" for n, v in {**one.named, **saved}.items() if n == "weights"}
        found = {
            words + entry: of_call(run, kinds, entry == ".forward") for entry, run in runs.items()
        }
        CALLS |= {words: example for words, example in found.items() if example is not None}

entry_case = pytest.mark.parametrize("words", CALLS)


def slow_path(entry: Any) -> Any:
    """The Python layer's function behind an entry point."""
    return entry._call if isinstance(entry, _cpu.CachedOp) else entry.__wrapped__


def arrays_of(words: str, dtype: Any, rng: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any], Any]:
    """The entry point, its arguments with new values, and arrays to write to."""
    entry, arguments, options, shapes = CALLS[words]

    def of(argument: Any) -> Any:
        if isinstance(argument, tuple) and argument[:1] == ("array",):
            kind = argument[2:]
            values = np.asarray(rng.normal(size=argument[1])).astype(dtype)
            if kind == ("wide",):
                return values.astype(np.promote_types(dtype, np.float32))
            return abs(values) if kind == ("positive",) else values  # half would be no weights
        if isinstance(argument, tuple):
            return tuple(map(of, argument))
        return argument

    outs = tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)
    named = {name: of(value) for name, value in options.items()}
    return entry, tuple(map(of, arguments)), named, outs


def flat(framework: Framework, result: Any) -> list[Any]:
    """Its parts, arrays as NumPy's."""
    if isinstance(result, tuple):
        return [part for inner in result for part in flat(framework, inner)]
    if isinstance(result, np.ndarray | np.generic | int | None):
        return [result]
    return [framework.numpy(result)]


def assert_same(framework: Framework, actual: Any, expected: Any) -> None:
    pairs = zip(flat(framework, actual), flat(framework, expected), strict=True)
    for value, same in pairs:
        if hasattr(same, "dtype"):
            assert type(value) is type(same)
            assert np.shape(value) == np.shape(same)
            assert_same_bits(value, same)
        else:
            assert value == same


def adds(words: str) -> bool:
    """The entry point takes `accumulate`."""
    return "backward" in words or words in ("bias_grad", "unbroadcast")


def in_framework(framework: Framework, argument: Any) -> Any:
    """An argument with its arrays as the framework's."""
    if isinstance(argument, tuple):
        return tuple(in_framework(framework, part) for part in argument)
    return framework.of(argument) if isinstance(argument, np.ndarray) else argument


@pytest.mark.parametrize(
    ("words", "gives"),
    [(w, g) for w in CALLS for g in ("new", "out", "sum") if g != "sum" or adds(w)],
)
def test_a_plan_gives_what_the_slow_path_gives(words, dtype, framework, gives):
    rng = np.random.default_rng(0)
    for _ in range(5):  # seen, written down, run
        entry, arguments, options, outs = arrays_of(words, dtype, rng)
        of = partial(in_framework, framework)
        taken = [of(a) for a in arguments], {k: of(v) for k, v in options.items()}
        results = []
        for function in (slow_path(entry), entry):
            more: dict[str, Any] = {}
            copies = tuple(framework.of(out.copy()) for out in outs)
            if gives != "new":
                more["out"] = copies if len(copies) > 1 else copies[0]
            if gives == "sum":
                more["accumulate"] = True
            result = function(*taken[0], **taken[1], **more)
            results.append(result)
            if gives != "new":
                first = result
                while isinstance(first, tuple):  # forward's: ((h, c), saved)
                    first = first[0]
                assert first is copies[0]
        assert_same(framework, results[1], results[0])


# Arrays that tell of themselves by the C exchange API, or NumPy's; of others no call has a key.
KEYED = [f for f in FRAMEWORKS if f.name not in ("emulated-dlpack", "cuda-cupy")]


@entry_case
@pytest.mark.parametrize("framework", KEYED, ids=lambda f: f.name)
def test_a_plan_asks_nobody(words, framework, monkeypatch):
    """Where a plan runs, the Python layer is not met: no check can have been forgotten there."""
    rng = np.random.default_rng(0)
    for time in range(4):
        if time == 3:
            monkeypatch.setattr(call.Call, "__init__", lambda *_, **__: pytest.fail("slow path"))
        entry, arguments, options, outs = arrays_of(words, np.float32, rng)
        of = partial(in_framework, framework)
        out = tuple(map(framework.of, outs))
        entry(*map(of, arguments), **{k: of(v) for k, v in options.items()},
             out=out if len(out) > 1 else out[0])  # fmt: skip
    passes("the slow path was not met")


def without_plans(run: Any) -> Any:
    """What the call gives without the cache."""
    _cpu.enable_call_cache(False)
    try:
        return run()
    finally:
        _cpu.enable_call_cache(True)


@pytest.mark.parametrize("op", fa.ops.values(), ids=fa.ops)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_forward_gives_has_a_key(op, dtype, monkeypatch):
    """Numbers of NumPy's too, which are arrays without axes: their values are not in the key."""
    rng = np.random.default_rng(0)
    for time in range(5):
        x, like_x = rng.normal(size=(2, *SHAPE)).astype(dtype)
        backward = backward_example(op, x, like_x)
        expected = without_plans(backward)
        with monkeypatch.context() as context:
            if time >= 3:
                context.setattr(call.Call, "__init__", lambda *_, **__: pytest.fail("slow path"))
            assert_same(FRAMEWORKS[0], backward(), expected)


def numbered(value: Any, kind: Any, factor: float) -> Any:
    """An argument with its numbers as that kind, times a factor."""
    if isinstance(value, tuple):
        return tuple(numbered(part, kind, factor) for part in value)
    return kind(value * factor) if type(value) is float else value


def has_numbers(words: str) -> bool:
    _, arguments, options, _ = CALLS[words]
    return numbered((arguments, (*options.values(),)), str, 1) != (arguments, (*options.values(),))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("framework", FRAMEWORKS[:2], ids=lambda f: f.name)
@pytest.mark.parametrize("words", list(filter(has_numbers, CALLS)))
def test_a_plan_is_for_the_values_of_its_numbers(words, framework, kind, monkeypatch):
    """Of parameters and of numbers that stand for arrays: another value is another call.

    Beside tensors a number of NumPy's that comes before the first one has no key.
    """
    rng = np.random.default_rng(0)
    of = partial(in_framework, framework)
    for time, factor in enumerate([1, 0.5] * 4):  # each seen, written down, run
        entry, given, named, outs = arrays_of(words, np.float32, rng)
        has_key = framework.name == "numpy" or isinstance(given[0], np.ndarray)
        given = given if kind is np.float32 else numbered(given, kind, factor)
        named = {name: of(numbered(value, kind, factor)) for name, value in named.items()}
        run = partial(entry, *map(of, given), **named)
        out, other = (tuple(of(out.copy()) for out in outs) for _ in range(2))
        expected = without_plans(partial(run, out=out if len(out) > 1 else out[0]))
        with monkeypatch.context() as context:
            if time >= 6 and has_key:
                context.setattr(call.Call, "__init__", lambda *_, **__: pytest.fail("slow path"))
            assert_same(framework, run(out=other if len(other) > 1 else other[0]), expected)


def test_a_number_is_an_operand_and_a_parameter():
    """One object in two places: the plan is for the second one's value."""
    for value in (-0.5, -0.5, -0.5, -0.25, -0.25, -0.25, -0.5):
        x = np.float64(value)
        assert fa.leaky_relu(x, x) == value * value


def test_an_array_is_written_and_a_parameter():
    """An argument that is read and written is no claim where it was read as a number."""
    for momentum in (0.5, 0.5, 0.5, 0.25, 0.125):
        x, running_mean = np.arange(4.0).reshape(4, 1), np.array([momentum])
        fa.batch_norm(x, running_mean, np.ones(1), training=True, momentum=running_mean)
        assert running_mean[0] == momentum + momentum * (x.mean() - momentum)


def test_a_number_that_is_rounded_to_nothing_says_nothing():
    """In no call, whether it is replayed or not."""
    for _ in range(4):
        with np.errstate(all="raise"):
            dx = fa.sum.backward(np.float64(1e-60), (3,), out=np.ones(3, np.float32))
        assert not dx.any()


def copy(call: Any, x: Any, y: Any) -> None:
    call.run("broadcast", x=x, y=y, accumulate=False)


def by_hand(call: Any, x: Any, y: Any) -> None:
    ctypes.memmove(y.address, x.address, x.size * x.itemsize)


def by_hand_at_last(call: Any, x: Any, y: Any) -> None:
    between = call.temporary("x")
    copy(call, x, between)
    by_hand(call, between, y)


def by_hand_at_first(call: Any, x: Any, y: Any) -> None:
    between = call.temporary("x")
    by_hand(call, x, between)
    copy(call, between, y)


def to_the_input(call: Any, x: Any, y: Any) -> None:
    copy(call, x, y)
    copy(call, call.repeated(0.0, x), x)


@pytest.mark.parametrize("gives", ["new", "out", "one of them"])
@pytest.mark.parametrize("first", [copy, by_hand, by_hand_at_last, by_hand_at_first])
@pytest.mark.parametrize("second", [copy, by_hand, by_hand_at_last, to_the_input])
def test_a_plan_is_made_of_native_functions_alone(second, first, gives, monkeypatch):
    """Where Python code writes a part of what a call gives, there is none that would leave it."""

    def copies(x: Any, out: Any) -> Any:
        with call.Call("copies", x=x) as now:
            made = [now.output(f"out[{i}]", given, "x") for i, given in enumerate(out)]
            for copy_to, (view, _) in zip((first, second), made, strict=True):
                copy_to(now, now.views["x"], view)
            pairs = zip(out, made, strict=True)
            return tuple(now.result(given, new) for given, (_, new) in pairs)

    entry = _cpu.CachedCall(copies, None, "copies")
    for time in range(5):
        x = np.full(SHAPE, 1.0 + time)
        wanted = {"new": (), "out": (0, 1), "one of them": (0,)}[gives]
        out = tuple(np.zeros(SHAPE) if k in wanted else None for k in range(2))
        if time == 4 and first is second is copy:
            monkeypatch.setattr(call.Call, "__init__", lambda *_, **__: pytest.fail("slow path"))
        for given, result in zip(out, entry(x, out), strict=True):
            assert given is None or result is given
            assert (result == 1.0 + time).all()
        assert (x == (0.0 if second is to_the_input else 1.0 + time)).all()
