"""Each entry point of each op, called again and again: what it gives is what it gives uncached.

The first call of a kind takes the slow path, the second one is recorded, and the others are
replayed, where a plan can repeat them: with results of their own, with `out` of new memory or one
of the arrays that are read, and added to what is there. The values are others at each call.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from devices import FRAMEWORKS, KERNELS, Framework
from differences import Call

import fastact as fa
from fastact import _cpu
from fastact.measure import cases
from fastact.ops.engine.op import arrays_of

SHAPE = (4, 6)  # few of both: what is told apart here does not depend on sizes
TIMES = 5


class Example(NamedTuple):
    """A call of an entry point; `out` and `accumulate` may be added."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    named: dict[str, Any]
    takes_out: bool = True
    adds: bool = False


def examples(op: Any) -> dict[str, Example]:
    """A call of each entry point of an op, by its name, of NumPy's arrays."""
    random = np.random.default_rng(0)
    x, dy = random.normal(size=(2, *SHAPE)).astype(np.float32)
    named = cases.sample(op, x, dy)
    for name in op.written:
        named[name] = np.ones(cases.shapes_of(op, "call", SHAPE, named)[name], np.float32)
    found = {}
    for entry in ("call", "forward", "backward"):
        bound = cases.backward_example(op, x, dy) if entry == "backward" else op.bound(entry, named)
        found[entry] = Example(bound.func, bound.args, bound.keywords, adds=entry == "backward")
    derivatives = Call(op, named, random)
    args, more = derivatives.arguments(np.asarray)
    twice = {**more, **derivatives.options}
    found["backward.backward"] = Example(op.backward.backward, tuple(args), twice, adds=True)
    bound, tangents = op.bound("call", named), tuple(derivatives.tangents.values())
    keywords = {**bound.keywords, "tangents": tangents}
    found["jvp"] = Example(op.jvp, bound.args, keywords, takes_out=False)
    if hasattr(op, "quantized") and not op.traits.counts_elements:
        bound = op.bound("call", {**named, **({"training": False} if op.written else {})})
        found["quantized"] = Example(op.quantized, bound.args, bound.keywords)
    point = op.entry_points.get("value_and_grad")
    if point is not None:
        found["value_and_grad"] = Example(op.value_and_grad, (x,), {})
    if "backward_reduce" in op.entry_points:
        rows = [abs(random.normal(size=SHAPE[1:])).astype(np.float32) for _ in range(3)]
        sums = [random.normal(size=SHAPE[1:]) for _ in range(2)]
        mean, rstd, weight = rows
        found["backward_reduce"] = Example(op.backward_reduce, (dy, x, mean, rstd), {})
        found["backward_apply"] = Example(
            op.backward_apply, (dy, x, mean, rstd, weight, *sums, len(x)), {}, adds=True
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


def ways(example: Example, models: list[Any]) -> Iterator[Way]:
    yield Way()
    if not example.takes_out:
        return
    yield from (Way(True, adds) for adds in (False, True)[: 1 + example.adds])
    for i, model in enumerate(models):
        for k, given in enumerate(inputs_of(example)):
            if model is not None and (given.shape, given.dtype) == (model.shape, model.dtype):
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


def uncached(run: Callable[[], Any]) -> Any:
    _cpu.enable_call_cache(False)
    try:
        return run()
    finally:
        _cpu.enable_call_cache(True)


def models_of(entry: str, example: Example, here: Framework) -> list[Any]:
    """The outputs of a call, each as an array; devices here have codes as bytes without a sign."""
    result = uncached(lambda: example.function(*example.args, **example.named))
    result = result[0] if entry == "forward" else result
    models = [None if part is None else np.asarray(part) for part in parts(result)]
    if entry == "quantized" and not here.exact:
        models[0] = models[0].view(np.bool_)
    return models


@pytest.mark.parametrize("here", [*FRAMEWORKS[:2], *KERNELS], ids=lambda f: f.name)
@pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)
def test_repeated_calls(op: Any, here: Framework) -> None:
    for entry, example in examples(op).items():
        models = models_of(entry, example, here)
        for way in ways(example, models):
            for time in range(TIMES):
                run = partial(outcome, here, example, models, time=time)
                found, expected = run(way), uncached(partial(run, way))
                assert found == expected, (entry, way, time)
            if way.alias is not None and found.error is None:
                apart = uncached(partial(run, way._replace(copied=True)))
                assert found.outs == apart.outs, (entry, way)
