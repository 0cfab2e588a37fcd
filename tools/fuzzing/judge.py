"""The rules for a call and its repeats.

Values lie within the stated bound of the oracle; whatever changed beside them (memory, alignment,
threads, other calls and refused ones in between, a plan in place of Python), the same values give
the same bits; nothing is written but outputs, and nothing at all where a call is refused.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fastact.check.expected.common import Expected
from fastact.ops.engine.op import arrays_of

from . import frameworks
from .cases import Array, Number, Request
from .memory import Block


class Wrong(Exception):
    """A promise that does not hold: a short name of it, and what came."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


# --- values ---------------------------------------------------------------------------------------


def compare(name: str, result: Any, expected: Expected) -> None:
    """The result is as close as it has to be."""
    exact = np.asarray(expected.exact)
    if result.shape != exact.shape:
        raise Wrong("shape", f"{name} has shape {result.shape}, not {exact.shape}")
    shares = expected.shares(result)
    if (shares > 1).any():
        at = np.unravel_index(int(np.argmax(shares)), shares.shape)
        raise Wrong(
            "value",
            f"{name}{list(map(int, at))} is {result[at]!r}, not {exact[at]!r}: {shares[at]:.3g} "
            f"times what is allowed; {int((shares > 1).sum())} of {shares.size} elements",
        )


def flat(framework: str, value: Any) -> list[Any]:
    """The arrays of a result, as NumPy's; with None for what is not there, and other values."""
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return [value]  # a shape
    if isinstance(value, tuple):
        return [part for item in value for part in flat(framework, item)]
    if hasattr(value, "m2"):  # Moments
        return flat(framework, (value.count, value.mean, value.m2))
    return [frameworks.back(framework, value)]


def digest(parts: list[Any]) -> bytes:
    """The bits of results; all NaNs count as one."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode())
            part = np.ascontiguousarray(part)
            nan = np.isnan(part)
            if nan.any():
                part = np.where(nan, np.array(np.nan, part.dtype), part)
            found.update(part.tobytes())
        else:
            found.update(repr(part).encode())
    return found.digest()


# --- one call -------------------------------------------------------------------------------------


class Live:
    """The arguments of a request, in memory.

    values : by name, in C order; `out:...` are what accumulate adds to.
    """

    def __init__(self, request: Request, values: dict[str, Any], shift: int = 0) -> None:
        self.request = request
        self.blocks: dict[str, Block] = {}
        self.objects: dict[str, Any] = {}
        self.shift = shift
        self.values = values
        self.args = [self._of(value) for value in request.args]
        self.named = {name: self._of(value) for name, value in request.named.items()}
        self.outs = [self._out(out) for out in request.outs]
        if self.outs:
            whole = request.as_tuple or len(self.outs) > 1
            self.named["out"] = tuple(self.outs) if whole else self.outs[0]
        if request.accumulate:
            self.named["accumulate"] = True
        for block in self.blocks.values():
            block.note()

    def _of(self, value: Any) -> Any:
        if isinstance(value, Array):
            return self._array(value)
        if isinstance(value, Number):
            return frameworks.NUMBERS[value.kind](value.value)
        if type(value) is tuple:
            return tuple(map(self._of, value))
        return value

    def _array(self, array: Array, values: Any = None) -> Any:
        if array.name in self.objects:
            return self.objects[array.name]
        values = self.values[array.name] if values is None else values
        if array.form == "list":
            made = np.broadcast_to(values, array.shape).astype(array.stored or np.float64).tolist()
        elif array.form == "scalar":
            made = values[()]
        elif array.form == "number":
            made = float(values)
        else:
            dtype = array.stored or array.dtype
            shift = self.shift * dtype.itemsize
            block = Block(array.shape, dtype, array.layout, array.repeats, shift)
            block.view[...] = values
            self.blocks[array.name] = block
            made = frameworks.OF[self.request.framework](block.view)
        self.objects[array.name] = made
        return made

    def _out(self, out: Any) -> Any:
        if out.kind == "skip":
            return None
        if out.kind == "place":
            return self.objects[out.of]
        if out.kind == "overlap":
            return self._overlapping(out)
        made = self._array(out.array, self.values.get(out.array.name, 0))
        if out.kind == "readonly":
            made.flags.writeable = False
        return made

    def _overlapping(self, out: Any) -> Any:
        """Return as many elements of an operand's memory, from its second one on."""
        block = self.blocks[out.of]
        shape, dtype = out.array.shape, out.array.dtype
        first = block.view.__array_interface__["data"][0] - block.raw.__array_interface__["data"][0]
        view = np.ndarray(shape, dtype, block.raw, first + dtype.itemsize)
        made = frameworks.OF[self.request.framework](view)
        self.objects[out.array.name] = made
        return made

    def now(self, name: str) -> Any:
        """An operand, or what was given for an output, as it is now."""
        return frameworks.back(self.request.framework, self.objects[name])

    def untouched(self, name: str) -> bool:
        """Nothing of it has been written, nor around it; a device's arrays are copies."""
        block = self.blocks[name]
        if self.request.framework == "emulated":
            return bool(self.now(name).tobytes() == block.view.tobytes())
        return block.untouched()

    def call(self, function: Any) -> Any:
        return function(*self.args, **self.named)

    @property
    def written(self) -> dict[str, Any]:
        """Everything that the call may write, by name: operands that are outputs, arrays given."""
        found = {}
        for out, given in zip(self.request.outs, self.outs, strict=True):
            if given is not None:
                found[out.of or out.array.name] = given
        for name in self.request.notes.get("writes", ()):
            if name in self.objects:
                found[name] = self.objects[name]
        return found


def run(function: Any, live: Live) -> list[Any]:
    """Call it, hold what is held of every call, and give its results as NumPy's arrays.

    A refusal that is right gives []; one of an unusual kind of argument gives its words.
    """
    request = live.request
    try:
        result = live.call(function)
    except (TypeError, ValueError) as error:
        _refused(request, live, error)
        return [] if request.refused else [f"{type(error).__name__}: {error}"]
    except Exception as error:
        raise Wrong("error class", f"{type(error).__name__}: {error}") from error
    if request.refused:
        raise Wrong("not refused", request.refused)
    if request.entry == "forward" and result[1] == ():  # nothing is saved, and no shape
        result = result[:1]
    parts = flat(request.framework, result)
    given = [out for out in live.outs if out is not None]
    flattened = list(_objects(result))
    for out in given:
        if not any(part is out for part in flattened):
            raise Wrong("out", "an array that was given for an output is not the result")
    written = live.written
    parts += [live.now(name) for name in request.notes.get("writes", ()) if name in live.blocks]
    parts = [part.copy() if isinstance(part, np.ndarray) else part for part in parts]
    for name, block in live.blocks.items():
        if name in written:
            if not block.only_view_written():
                raise Wrong("guard bytes", f"memory around {name} was written")
        elif not live.untouched(name):
            raise Wrong("inputs", f"{name} was changed")
    return parts


def _objects(value: Any) -> Any:
    if isinstance(value, tuple):
        for part in value:
            yield from _objects(part)
    else:
        yield from arrays_of(value)


def _refused(request: Request, live: Live, error: Exception) -> None:
    """A refusal says who refuses, and has written nothing."""
    text = str(error)
    if not text.startswith(request.notes.get("says", request.where)):
        raise Wrong("error words", f"{type(error).__name__}: {text}") from error
    for name in live.blocks:
        if not live.untouched(name):
            raise Wrong("refusal wrote", f"{name}, although: {text}") from error
    if not request.refused and not _unusual(request):
        raise Wrong("refused", f"{type(error).__name__}: {text}") from error


def _unusual(request: Request) -> bool:
    """Whether it has a number of a kind that an op may refuse."""
    numbers = [v for v in request.given.values() if isinstance(v, Number)]
    return any(n.kind in ("bool", "0-d", "tensor") for n in numbers) or request.notes.get(
        "may be refused", False
    )
