"""Data far from 1: a result that its dtype can hold is right, whatever its squares are.

The oracle computes float64 in long double and float32 in float64, where no square of them leaves
the range.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from devices import Framework

import fastact as fa
from fastact import _cpu
from fastact.check.expected import expected
from fastact.measure.cases import Case, arrays_of_entry, sample
from fastact.measure.norm_rows import traits
from fastact.ops.engine.op import arrays_of

#: Powers of two that data have: their squares are, and are not, numbers of their dtype, and then
#: they are near its largest and its least. Gradients have the first two: beside the last ones a
#: factor of an exponential that is kept from vanishing (Tail in math/elementary.h) vanishes itself.
OF_DATA = {"float64": (512, -512, 1000, -1000), "float32": (64, -64, 120, -120)}
OF_GRADIENTS = {name: exponents[:2] for name, exponents in OF_DATA.items()}

each_dtype = pytest.mark.parametrize("dtype", OF_DATA)
OPS = [op for op in fa.ops.values() if "shape" not in op.entry_points["call"].defaults]


def cases_of(op: Any, dtype: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """Arguments of forward and incoming gradients, with what is far from 1 in them."""
    rng = np.random.default_rng(0)
    x, other = (rng.normal(size=(6, 8)).astype(dtype) for _ in range(2))
    named = sample(op, x, other)
    data = [n for n, a in named.items() if np.shape(a) and op.roles.get(n, "data") == "data"]
    result, _ = op.bound("forward", named)()
    shapes = dict(zip(op.results, (np.shape(a) for a in arrays_of(result)), strict=True))
    dys = {f"d{n}": np.asarray(rng.normal(size=s), dtype) for n, s in shapes.items()}
    for eps in ({}, {"eps": 0.0}) if "eps" in op.entry_points["call"].defaults else ({},):
        for exponent in OF_DATA[dtype]:
            scaled = {n: np.ldexp(named[n], exponent) for n in data}
            yield {**named, **scaled, **eps}, dys, f"data at 2^{exponent}, {eps}"
        for exponent in OF_GRADIENTS[dtype]:
            scaled = {n: np.asarray(np.ldexp(a, exponent)) for n, a in dys.items()}
            yield {**named, **eps}, scaled, f"gradients at 2^{exponent}, {eps}"


def judge(case: Case, results: Any, what: str) -> None:
    exact = expected(case)
    for name, found in zip(case.results, results, strict=False):
        if found is not None and name in exact:
            error = exact[name].error(found)
            assert error <= 1, f"{case.op.name} {case.entry}: {name} is off by {error}, {what}"


@each_dtype
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy: what is too large is infinite
def test_every_op(backend: Framework, op: Any, dtype: str) -> None:
    def run(entry: str, given: dict[str, Any]) -> Any:
        return op.bound(entry, {name: each(value, backend.of) for name, value in given.items()})()

    for named, dys, what in cases_of(op, dtype):
        result, saved = run("forward", named)
        case = Case(op, "forward", (6, 8), np.dtype(dtype), named, on_gpu=not backend.exact)
        judge(case, [backend.numpy(a) for a in arrays_of(result)], what)
        # Integers, of which the emulated device has none to give back, are saved as they are.
        kept = {n: a for n, a in zip(op.saves, saved, strict=True) if n != "target"}
        kept = {n: each(a, backend.numpy) for n, a in kept.items()}
        if op.family == "reductions" and len(dys) > 1:
            dys = {"dy": tuple(dys.values())}
        elif "dy" not in dys:
            dys = {"dy": next(iter(dys.values())), **dys}
        taken = arrays_of_entry(op, "backward")
        given = {**named, **kept, **{name: a for name, a in dys.items() if name in taken}}
        gradients = run("backward", given)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        case = case.at("backward", **given, before=named)
        judge(case, [each(a, backend.numpy) for a in gradients], what)


def each(value: Any, of: Callable[[Any], Any]) -> Any:
    """The same of an array, of those in a tuple, and of what is none: itself."""
    if isinstance(value, tuple):
        return tuple(each(part, of) for part in value)
    return of(value) if hasattr(value, "shape") else value
