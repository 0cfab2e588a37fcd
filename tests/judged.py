"""A call wherever kernels run, judged by the bounds that its op states; and one that is refused."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from calls import incoming
from devices import FRAMEWORKS, Framework

import fastact as fa
from fastact.check.expected import expected
from fastact.measure.cases import Case
from fastact.ops.engine.op import arrays_of


def each(value: Any, of: Callable[[Any], Any]) -> Any:
    """The same of an array, and of each array in a tuple; anything else is itself."""
    if isinstance(value, tuple):
        return tuple(each(part, of) for part in value)
    return of(value) if hasattr(value, "shape") else value


def assert_right(
    op: Any,
    named: Mapping[str, Any],
    dys: Sequence[Any] = (),
    place: Framework = FRAMEWORKS[0],
    shape: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """What a call gives and saves, and the gradients for that, are within their bounds.

    named : the call's arguments, the data first, in arrays of NumPy. dys : the results' gradients
    in their order, where the call's gradients are to be judged. shape : of the data, where their
    array is packed. Returns all that was judged, by name.
    """

    def run(entry: str, given: Mapping[str, Any]) -> Any:
        return op.bound(entry, {n: each(v, place.of) for n, v in given.items()})()

    x = next(iter(named.values()))
    result, saves = run("forward", named)
    parts = [each(a, place.numpy) for a in arrays_of(result)]
    if isinstance(result, fa.Moments):  # whose m2 may be kept as a root
        parts[1] = np.asarray(fa.Moments.of_checked(1, *parts).m2)
    # Integers and masks are saved as they are: the emulated device gives none back.
    whole = {n for n, a in named.items() if hasattr(a, "dtype") and a.dtype.kind in "biu"}
    saved = {n: a for n, a in zip(op.saves, saves, strict=True) if n not in whole}
    saved = {n: each(a, place.numpy) for n, a in saved.items()}
    dtype = np.dtype(np.float64) if x.dtype.kind in "biu" else x.dtype
    case = Case(op, "forward", shape or x.shape, dtype, named, not place.exact)
    found = {**saved, **dict(zip(op.results, parts, strict=False))}
    judged = expected(case)
    if dys:
        given = incoming(op, dys)
        gradients = arrays_of(run("backward", {**named, **saved, **given}))
        for name, gradient in zip(op.gradients, gradients, strict=False):
            if gradient is not None:
                found[name], like = np.asarray(place.numpy(gradient)), named.get(name[1:], x)
                assert found[name].dtype == (dtype if like is x else like.dtype), name
                assert found[name].shape == like.shape, name
        judged |= expected(case.at("backward", **saved, **given, before=named))
    off = {n: one.error(found[n]) for n, one in judged.items() if found.get(n) is not None}
    assert off
    assert max(off.values()) <= 1, (op.name, off)
    return found


def refused(
    words: str,
    call: Callable[..., Any],
    *args: Any,
    error: Any = TypeError,
    longest: int = 400,
    **named: Any,
) -> None:
    """Assert that a call is refused, and again by what it may have left behind."""
    for _ in range(5):
        with pytest.raises(error, match=words) as caught:
            call(*args, **named)
        assert len(str(caught.value)) < longest
        del caught  # by its traceback it would hold itself and the arguments
