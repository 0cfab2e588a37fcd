"""Each entry point of each op, called again and again: what it gives is what it gives uncached.

The first call of a kind takes the slow path, the second one is recorded, and the others are
replayed, where a plan can repeat them: with results of their own, with `out` of new memory or one
of the arrays that are read, and added to what is there. The values are others at each call.
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from calls import uncached
from devices import FRAMEWORKS, Framework
from differences import Call as Derivatives
from every import PAIRS, SHAPES, Call, fits

import fastact as fa
from fastact import _cpu
from fastact.interop import call
from fastact.measure import cases
from fastact.ops.engine.entry import Entry
from fastact.ops.engine.op import arrays_of
from fastact.ops.engine.served import CachedOp

TIMES = 4
#: Few of both: what is told apart here does not depend on sizes.
SMALL = [(4, 6), *SHAPES]


def rows() -> Iterator[Any]:
    """Each op on two kinds of arrays, and its other ways to be called on one: in a plain run each
    way of one op a family."""
    shown = set()
    for k, (op, way) in enumerate(PAIRS):
        marks = pytest.mark.thorough if way and (op.family, repr(way)) in shown else ()
        shown.add((op.family, repr(way)))
        for more in (0, 2)[: 2 - bool(way)]:
            here = FRAMEWORKS[(k + more) % len(FRAMEWORKS)]
            yield pytest.param(op, way, here, marks=marks, id="-".join((op.name, *way, here.name)))


class Example(NamedTuple):
    """A call of an entry point; `out` and `accumulate` may be added."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    named: dict[str, Any]
    takes_out: bool = True
    adds: bool = False
    is_direct: bool = False  # kernels alone, and not a formula of other calls


def examples(op: Any, way: dict[str, Any], dtype: Any) -> dict[str, Example]:
    """A call of each entry point of an op, by its name, of NumPy's arrays."""
    shape = next(shape for shape in SMALL if fits(op, repr(way), shape))
    one, random = Call(op, way, shape, dtype), np.random.default_rng(0)
    runs = {"call": one.forward, "forward": op.bound("forward", one.named)}
    runs["backward"] = one.backward()
    is_cached = op.family != "activations"
    found = {
        entry: Example(run.func, run.args, run.keywords, True, entry == "backward", is_cached)
        for entry, run in runs.items()
    }
    if way:
        return found
    named = dict(one.named)
    for name in op.written:
        named[name] = np.ones(cases.shapes_of(op, "call", shape, named)[name], dtype)
    derivatives = Derivatives(op, named, random)
    args, more = derivatives.arguments(np.asarray)
    twice = {**more, **derivatives.options}
    found["backward.backward"] = Example(op.backward.backward, tuple(args), twice, adds=True)
    bound, tangents = op.bound("call", named), tuple(derivatives.tangents.values())
    keywords = {**bound.keywords, "tangents": tangents}
    found["jvp"] = Example(op.jvp, bound.args, keywords, takes_out=False)
    if hasattr(op, "quantized") and not op.traits.counts_elements:
        bound = op.bound("call", {**named, **({"training": False} if op.written else {})})
        found["quantized"] = Example(op.quantized, bound.args, bound.keywords, is_direct=True)
    x = next(iter(named.values()))
    if "value_and_grad" in op.entry_points:
        found["value_and_grad"] = Example(op.value_and_grad, (x,), {}, is_direct=True)
    if "backward_reduce" in op.entry_points:
        rows = [abs(random.normal(size=shape[1:])).astype(dtype) for _ in range(3)]
        sums = [random.normal(size=shape[1:]) for _ in range(2)]
        mean, rstd, weight = rows
        found["backward_reduce"] = Example(op.backward_reduce, (x, x, mean, rstd), {})
        found["backward_apply"] = Example(
            op.backward_apply, (x, x, mean, rstd, weight, *sums, len(x)), {}, adds=True
        )
    assert found.keys() >= op.entry_points.keys()
    return found


def arrays_in(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for part in value:
            yield from arrays_in(part)
    elif isinstance(value, np.ndarray | np.generic):
        yield value


def mapped(of: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(mapped(of, part) for part in value)
    if isinstance(value, dict):
        return {name: mapped(of, part) for name, part in value.items()}
    return of(value) if isinstance(value, np.ndarray | np.generic) else value


def parts(result: Any) -> list[Any]:
    """The arrays of a result in order, None where there is none."""
    if result is None or isinstance(result, int | float):
        return [result]
    if type(result) is tuple:
        return [part for item in result for part in parts(item)]
    return list(arrays_of(result))


class Way(NamedTuple):
    """How results are wanted: added or not, and which output is which input (None: none is).

    copied : the output is a copy of that input instead.
    """

    gives: bool = False
    adds: bool = False
    alias: tuple[int, int] | None = None
    copied: bool = False


def inputs_of(example: Example) -> list[Any]:
    return list(arrays_in((example.args, tuple(example.named.values()))))


def ways(example: Example, models: list[Any], is_first: bool) -> Iterator[Way]:
    """is_first : of an op's ways to be called, which has outputs over inputs too."""
    yield Way()
    if not example.takes_out:
        return
    yield from (Way(True, adds) for adds in (False, True)[: 1 + example.adds])
    if not is_first:
        return
    for i, model in enumerate(models):
        same = [
            k
            for k, given in enumerate(inputs_of(example))
            if model is not None and (given.shape, given.dtype) == (model.shape, model.dtype)
        ]
        for k in same if example.is_direct else same[:1]:
            yield Way(True, example.adds and (i + k) % 2 == 0, (i, k))


class Outcome(NamedTuple):
    error: tuple[Any, str] | None
    results: list[Any]
    same: list[list[bool]]  # whether a result is an output
    outs: list[Any]
    inputs: list[Any]


def outcome(
    here: Framework, example: Example, models: list[Any], way: Way, *, time: int
) -> Outcome:
    """All that there is to see of a call."""
    held: dict[int, Any] = {}

    def new(given: Any) -> Any:
        return here.of(np.roll(np.array(given), time))  # other values at each time

    def of(given: Any) -> Any:
        """The same one for the same."""
        if id(given) not in held:
            held[id(given)] = new(given)
        return held[id(given)]

    args, named = mapped(of, example.args), mapped(of, example.named)
    outs: list[Any] = []
    if way.gives:
        outs = [None if m is None else here.of(np.full_like(m, 2 + time)) for m in models]
        if way.alias is not None:
            at, source = way.alias[0], inputs_of(example)[way.alias[1]]
            outs[at] = new(source) if way.copied else of(source)
        named["out"] = tuple(outs) if len(outs) > 1 else outs[0]
    if way.adds:
        named["accumulate"] = True
    error, result = None, []
    try:
        result = parts(example.function(*args, **named))
    except (TypeError, ValueError) as refused:
        error = type(refused), str(refused)
    same = [[out is part for out in outs] for part in result]
    seen = ([told(here, a) for a in arrays] for arrays in (result, outs, held.values()))
    results, written, inputs = seen
    return Outcome(error, results, same, written, inputs)


def told(here: Framework, value: Any) -> Any:
    """All that there is to an array: its bits say more than its values."""
    if not hasattr(value, "dtype"):
        return value
    memory = value if hasattr(value, "tobytes") else here.numpy(value)
    return type(value), str(value.dtype), tuple(value.shape), memory.tobytes()


def models_of(entry: str, example: Example, here: Framework) -> list[Any]:
    """The outputs of a call, each as an array; devices here have codes as bytes without a sign."""
    result = uncached(lambda: example.function(*example.args, **example.named))
    result = result[0] if entry == "forward" else result
    models = [None if part is None else np.asarray(part) for part in parts(result)]
    if entry == "quantized" and not here.exact:
        models[0] = models[0].view(np.bool_)
    return models


# Arrays that tell of themselves by the C exchange API, or NumPy's; of others no call has a key.
UNKEYED = ("emulated-dlpack", "cuda-cupy")


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize(("op", "way", "here"), [*rows()])
def test_repeated_calls(op, way, here, dtype, slow):
    """With `out` the last one meets no Python: no check can have been forgotten there."""
    for entry, example in examples(op, way, dtype).items():
        models = models_of(entry, example, here)
        for given in ways(example, models, not way):
            for time in range(TIMES):
                run = partial(outcome, here, example, models, time=time)
                slow.clear()
                found = run(given)
                is_slow = bool(slow)
                assert found == uncached(partial(run, given)), (entry, given, time)
            has_plan = example.is_direct and here.name not in UNKEYED and found.error is None
            assert not (given == Way(True) and has_plan and is_slow), entry
            if given.alias is not None and found.error is None:
                apart = uncached(partial(run, given._replace(copied=True)))
                assert found.outs == apart.outs, (entry, given)


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
def test_a_plan_is_made_of_native_functions_alone(second, first, gives, slow):
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
        x = np.full((6, 40), 1.0 + time)
        wanted = {"new": (), "out": (0, 1), "one of them": (0,)}[gives]
        out = tuple(np.zeros(x.shape) if k in wanted else None for k in range(2))
        slow.clear()
        for given, result in zip(out, entry(x, out), strict=True):
            assert given is None or result is given
            assert (result == 1.0 + time).all()
        assert (x == (0.0 if second is to_the_input else 1.0 + time)).all()
    assert first is not copy or second is not copy or not slow


def test_an_op_inside_an_op_leaves_its_caller_unrecorded():
    """A plan of the outer call would not know of the inner one."""

    def outer(x, /, *, out=None, stream=None):
        """An op."""

    class Outer(CachedOp):
        family = "tests"

        def __init__(self, inner):
            self.inner = inner
            self._enter(call=Entry("outer", self._declare(outer)))

        def _serve(self, entry, x):
            with call.Call("outer", x=x) as now:
                y, made = now.output("out", None, "x")
                relu = _cpu.ACTIVATIONS.index("relu")
                now.run("activation_forward", x=now.views["x"], y=y, which=relu, parameters=())
                result = now.result(None, made)
            return self.inner(result)

    for inner in (fa.mish, lambda a: fa.sum(a, 0, keepdims=True)):  # by the fast path, and cached
        op = Outer(inner)
        for value in range(6):
            x = np.full((3, 3), float(value))
            np.testing.assert_array_equal(op(x), inner(x))
