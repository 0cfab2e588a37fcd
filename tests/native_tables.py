"""Calls of native functions, made from their tables alone: right ones, and what breaks them.

A table (`_cpu.native_calls`) says what each argument may be (src/common/core/call.h). Nothing here
knows a function by name: one that is added is attacked as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np

from fastact import _cpu
from fastact._cpu import View
from fastact.interop import devices

Field = Mapping[str, Any]
Arguments = dict[str, Any]

_ITEM = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "bool": 1, "int32": 4, "int64": 8}
_FLOATS = ("float16", "float32", "float64")
GUARD, PATTERN = 64, 0xA5  # bytes before and after an array, and their value


class Block:
    """An array between bytes that nobody may write: NumPy's memory.

    view : the array, as native functions get it. tells_readonly : that says what may be written.
    """

    stream, tells_readonly = 0, True

    def __init__(self, shape: tuple[int, ...], dtype: str, *, readonly: bool = False) -> None:
        size = int(np.prod(shape)) * _ITEM[dtype]
        self._whole = np.full(size + 2 * GUARD, PATTERN, np.uint8)
        array = self._whole[GUARD : GUARD + size].view(dtype).reshape(shape)
        array.fill(1)
        array.flags.writeable = not readonly
        self.view = self._seen(array)

    def _seen(self, array: Any) -> View:
        return View.from_numpy(array)

    @property
    def whole(self) -> bytes:
        """The array and the bytes around it."""
        return self._whole.tobytes()

    def is_whole(self) -> bool:
        """Whether the bytes around the array are as they were."""
        around = bytes([PATTERN]) * GUARD
        return self.whole[:GUARD] == around and self.whole[-GUARD:] == around

    @staticmethod
    def scratch(size: int) -> View | None:
        """Memory for a call."""
        return View.from_numpy(np.zeros(size, np.uint8))


class DeviceBlock(Block):
    """A block in the memory of the emulated device, whose exchange of arrays knows no flags."""

    stream, tells_readonly = 1, False

    def _seen(self, array: Any) -> View:
        kind, api = _emulated()
        dtype, count = array.dtype.name, len(self._whole) // array.itemsize
        self._held = kind.from_bytes(self._whole.tobytes(), dtype, (count,), 0)
        return View.from_exchange(self._held.view(array.shape, array.strides, GUARD), api)

    @property
    def whole(self) -> bytes:
        found: bytes = self._held.tobytes()
        return found

    @staticmethod
    def scratch(size: int) -> View | None:
        if size == 0:
            return None
        model = View.on_device(np.empty(size, np.uint8), (devices.EMULATED, 0))
        return _cpu.Memory(model, _emulated()[1]).view()


@cache
def _emulated() -> tuple[Any, Any]:
    """Its arrays' type and how these are exchanged; from then on it computes."""
    kind = devices.emulate().ExchangeArray
    devices.native("fastact", (devices.EMULATED, 0))
    return kind, kind.__dlpack_c_exchange_api__


@dataclass
class Made:
    """Arguments of a call, and the memory of its arrays by name.

    block : how memory is made.
    """

    name: str
    block: type[Block]
    arguments: Arguments
    blocks: dict[str, Block]

    def run(self, arguments: Arguments | None = None) -> None:
        """Run it, or a call of other arguments, with the scratch memory that it asks for."""
        call = _cpu.native_call(self.name, self.arguments if arguments is None else arguments)
        size = call.workspace_size()
        with catch_warnings():
            simplefilter("ignore")
            call.run(self.block.scratch(size), self.block.stream)

    def are_whole(self) -> bool:
        return all(block.is_whole() for block in self.blocks.values())


class Maker:
    """Arguments of one function, as its table allows them."""

    def __init__(self, name: str, r: Random, block: type[Block] = Block) -> None:
        self.name, self.r = name, r
        self.fields: Mapping[str, Field] = _cpu.native_calls()[name]
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.made = Made(name, block, {}, {})
        self.rank = r.randint(1, 4)
        self.groups = r.randint(1, 3)

    def make(self) -> Made:
        """A call that the table allows; the function may refuse what the table can't say."""
        for name, field in self.fields.items():
            if field["kind"] == "array":
                self._array(name, field)
            else:
                self.made.arguments[name] = self._value(field)
        return self.made

    def _value(self, field: Field) -> Any:
        kind, r = field["kind"], self.r
        if kind == "axes":
            rank = len(self.shapes[field["shape_of"]])
            return tuple(sorted(r.sample(range(rank), r.randint(0, rank))))
        if kind == "parameters":
            return ()
        if kind == "places":
            parts = field["times"][self.made.arguments[field["axes"]]]
            return tuple(r.sample(range(parts), parts))
        if kind == "int64":
            return r.randrange(-3, 3)
        if kind in ("bits", "text"):
            return r.randrange(2**64) if kind == "bits" else r.choice((None, "fastact.few"))
        if kind == "integer":
            return r.randrange(min(field["end"], self.rank) if field["shape_of"] else field["end"])
        return r.random() < 0.5 if kind == "flag" else r.random()

    def _array(self, name: str, field: Field) -> None:
        self.shapes[name], self.dtypes[name] = self._shape(field), self._dtype(field)
        if field["optional"] and self.r.random() < 0.4:
            self.made.arguments[name] = None
            return
        block = self.made.block(self.shapes[name], self.dtypes[name])
        self.made.blocks[name], self.made.arguments[name] = block, block.view

    def _shape(self, field: Field) -> tuple[int, ...]:
        rule, r = field["shape"], self.r
        if rule == "any":
            outer = (r.choice((0, 1, 2, 3, 5)) for _ in range(self.rank - 1))
            return (*outer, r.choice((0, 1, 2, 7, 70)))
        if rule == "one":
            return (1,) * r.randint(1, 2)
        other = self.shapes[field["shape_of"]]
        if rule == "like":
            return other
        if rule == "beside":
            return tuple(r.choice((1, n)) for n in other)
        axes = self.made.arguments[field["axes"]]
        if rule == "channels" and r.random() < 0.5:
            return tuple(n if i == axes else 1 for i, n in enumerate(other))
        if rule in ("along", "channels"):
            return (other[axes % len(other)],)
        if rule in ("packed", "along_packed"):
            last = other[-1] * field["times"][axes]
            return (*other[:-1], last) if rule == "packed" else (last,)
        is_kept = rule == "kept"
        found = tuple(1 if (i in axes) != is_kept else n for i, n in enumerate(other))
        return (*found, self.groups) if rule == "grouped" else found

    def _dtype(self, field: Field) -> str:
        rule, r = field["dtype"], self.r
        if rule == "computed":
            return r.choice(_FLOATS)
        if rule in ("double", "any"):
            return "float64" if rule == "double" else r.choice((*_FLOATS, "bool", "int32", "int64"))
        if rule in ("mask", "index"):
            return "bool" if rule == "mask" else r.choice(("int32", "int64"))
        other = self.dtypes[field["dtype_of"]]
        if rule == "compute_type":
            return "float64" if other == "float64" else "float32"
        if rule == "unrounded":
            return "float64" if _ITEM[other] == 2 else other
        wider = [d for d in _FLOATS if _ITEM[d] > _ITEM[other]]
        return other if rule == "same" else r.choice((other, *wider))


def broken(made: Made, name: str) -> Iterator[tuple[str, Any, Block | None]]:
    """Values that no call may take for an argument: what each is, and its memory."""
    field = _cpu.native_calls()[made.name][name]
    if field["kind"] != "array":
        yield from ((f"{wrong!r}", wrong, None) for wrong in _wrong_values(field, made))
        return
    yield "an object", object(), None
    yield "a view of nothing", View(), None
    if not field["optional"]:
        yield "None", None, None
    value = made.arguments[name]
    if value is None:
        return
    shape, dtype = value.shape, value.dtype_name
    if value.size:
        yield "a model", value.shaped(shape), None
    is_written = field["role"] != "in" or made.arguments.get(field["written_if"])
    if is_written and made.block.tells_readonly:
        block = made.block(shape, dtype, readonly=True)
        yield "read-only", block.view, block
    if field["shape"] != "any":
        longer = (*shape[:-1], shape[-1] + 100)
        if field["shape"] == "grouped":  # of as many groups as it has
            longer = (shape[0] + 100, *shape[1:])
        for wrong in ((*shape, 2), longer):
            block = made.block(wrong, dtype)
            yield f"of shape {wrong}", block.view, block
    for other in _wrong_dtypes(field, dtype):
        block = made.block(shape, other)
        yield f"of {other}", block.view, block


def _wrong_dtypes(field: Field, dtype: str) -> Iterator[str]:
    rule = field["dtype"]
    for other in _ITEM:
        if other in (dtype, "bfloat16"):
            continue
        is_float = other in _FLOATS
        if rule == "any":
            return
        if rule in ("same", "compute_type", "unrounded", "double", "mask"):
            yield other
        elif rule == "index":
            if other not in ("int32", "int64"):
                yield other
        elif not is_float and rule != "any":
            yield other


def _wrong_values(field: Field, made: Made) -> Iterator[Any]:
    kind = field["kind"]
    if kind == "axes":
        rank = made.arguments[field["shape_of"]].ndim
        yield from ((rank,), (-1,), (64,), (2**40,), ("a",), (None,), None, 1)
    elif kind == "parameters":
        yield from ((1.0,) * 5, ("a",), (None,), None, 1.0)
    elif kind == "integer":
        yield from (-1, field["end"], 2**31 - 1, -(2**31), 2**40, "a", None, 0.5)
    elif kind == "bits":
        yield from (-1, 2**64, "a", None, 0.5)
    elif kind == "text":
        yield from (1, b"few", "\ud800")
    elif kind == "places":
        parts = field["times"][made.arguments[field["axes"]]]
        yield from ((), (-1,) * parts, (parts,) * parts, (0,) * 5, ("a",), (2**40,), None, 1)
    elif kind == "int64":
        yield from (2**63, -(2**63) - 1, "a", None, 0.5)
    elif kind == "number":
        yield from ("a", None, ())
