"""Objects that lie, break, or change things while they are looked at.

A valid call of any op gets one of them in the place of an argument, a parameter or an output. It
has to be refused in the ways that are documented, or to be computed; never may the process die, nor
memory be written that was not given for it, and calls that follow give what they gave before.

Lies that no library can see are not tried: memory that is shorter than its owner says.
"""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import fractions
import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from random import Random
from typing import Any

import capsules  # of the tests, as native_tables
import ml_dtypes
import native_tables
import numpy as np
import torch

import fastact as fa
from fastact import _cpu
from fastact.measure.cases import arrays_of_entry, sample
from fastact.ops.engine.op import arrays_of
from fastact.ops.engine.quantized import Quantizes

from . import calls, campaign, frameworks
from .campaign import Settings, Tally
from .judge import Live, Wrong, digest, flat


class Own(Exception):
    """An error that an object of ours raises; it may be passed on."""


#: Errors by which a call may be refused; the last two are for lies about devices and sizes.
REFUSALS = (TypeError, ValueError, BufferError, Own, MemoryError, fa.CudaUnavailableError)


# --- capsules -------------------------------------------------------------------------------------


_NAMES = b"dltensor", b"dltensor_versioned"
_CODES = {"float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16)}

#: Values of what a capsule says that lie, whatever it describes.
_LIES: dict[str, tuple[Any, ...]] = {
    "data": (None,),
    "device_type": (0, 2, 3, 7, 12, 13, 999, -1),
    "device_id": (1, -1, 2**31 - 1),
    "code": (0, 1, 3, 5, 6, 17, 255),
    "bits": (0, 1, 7, 8, 24, 128, 255),
    "lanes": (0, 2, 4, 65535),
    "byte_offset": (2**64 - 1, 2**63),
    "name": (b"used_dltensor", b"used_dltensor_versioned", b"junk"),
    "version": ((0, 0), (2, 0), (99, 99), (1, 99)),
    "flags": (1, 2, 4, 2**63),
    "shape": (None,),
}
_OTHER_LIES = ("ndim", "strides", "length", "length", "no strides")


def capsule(r: Random, x: np.ndarray[Any, Any]) -> tuple[str, Callable[[], Any]]:
    """Return the lies, and who gives a capsule that describes x but for one or two of them."""
    code, bits = _CODES[x.dtype.name]
    says: dict[str, Any] = {
        "data": x.__array_interface__["data"][0], "device_type": 1, "device_id": 0,
        "ndim": x.ndim, "code": code, "bits": bits, "lanes": 1, "byte_offset": 0,
        "shape": [*x.shape], "strides": [s // x.itemsize for s in x.strides],
        "name": r.choice(_NAMES), "version": (1, 0), "flags": 0,
    }  # fmt: skip
    lies = [r.choice((*_LIES, *_OTHER_LIES)) for _ in range(r.choice((0, 1, 1, 1, 2)))]
    for lie in lies:
        if lie in _LIES:
            says[lie] = r.choice(_LIES[lie])
        elif lie == "ndim" and says["shape"] is not None and x.ndim:
            says[lie] = r.choice((-1, -(2**31), 65, 1000, 2**31 - 1))
        elif lie == "strides" and x.size:
            # Only such that leave the address space: others cannot be seen.
            says[lie] = [r.choice((2**62, -(2**62), 2**63 - 1)) for _ in x.shape]
        elif lie == "no strides" and x.flags.c_contiguous:
            says["strides"] = None
        elif lie == "length" and says["shape"]:
            at = r.randrange(x.ndim)
            says["shape"][at] = r.choice((-1, -7, 2**62, 2**63 - 1, -(2**63), 2**61))
            if r.random() < 0.3 and x.ndim > 1:
                says["shape"][:2] = [2**32, 2**32]
    if says["ndim"] != x.ndim and says["shape"] is not None and says["ndim"] > 0:
        # It has as many lengths as it says, as long as that is no lie about memory.
        is_long = says["ndim"] > 2000
        says["shape"] = None if is_long else (says["shape"] + [1] * 2000)[: says["ndim"]]
        says["strides"] = None
    if says["data"] is not None:  # an address that wraps cannot be told from one that does not
        says["byte_offset"] = 0
    dtype = tuple(says.pop(part) for part in ("code", "bits", "lanes"))
    device = tuple(says.pop(part) for part in ("device_type", "device_id"))
    producer = capsules.Producer(
        **says,
        dtype=dtype,
        device=device,
        versioned=says["name"].endswith(b"versioned"),
        has_deleter=r.random() < 0.5,
        twice=r.random() < 0.8,
    )
    return "+".join([says["name"].decode(), *lies]), producer.__dlpack__


class Exporter:
    """An array whose __dlpack__ does what `export` does."""

    def __init__(self, x: Any, export: Callable[..., Any], device: Any = (1, 0)) -> None:
        self.x, self.export, self.of_device = x, export, device
        self.shape, self.dtype = x.shape, x.dtype

    def __dlpack__(self, **named: Any) -> Any:
        return self.export(self, **named)

    def __dlpack_device__(self) -> Any:
        if isinstance(self.of_device, Exception):
            raise self.of_device
        return self.of_device

    def __array_namespace__(self) -> Any:
        return frameworks.PLAIN


_ARRAYS = {
    name
    for op in fa.ops.values()
    for entry in op.entry_points
    for name in arrays_of_entry(op, entry)
}


def _raise(error: Exception) -> Any:
    raise error


def exporter(r: Random, x: np.ndarray[Any, Any]) -> tuple[str, Any]:
    """An array that comes by a capsule."""
    lie, made = capsule(r, x)
    keep: list[Any] = [x]

    def reenters(self: Any, **_: Any) -> Any:
        fa.set_num_threads(r.randint(1, 4))
        fa.layer_norm(np.ones((3, 5), np.float32))
        fa.mish(np.ones(5, np.float32))
        return x.__dlpack__()

    def deletes(self: Any, **_: Any) -> Any:
        keep.clear()
        self.x = None
        return np.ones_like(x).__dlpack__()

    def resizes(self: Any, **_: Any) -> Any:
        held = np.ones(x.shape, x.dtype)
        found = held.__dlpack__()
        held.fill(7)
        return found

    exports: dict[str, Callable[..., Any]] = {
        lie: lambda self, **_: made(),
        "raises": lambda self, **_: _raise(r.choice((Own("no"), BufferError("no"), KeyError("k")))),
        "returns junk": lambda self, **_: r.choice((None, 1, "capsule", x, b"", object())),
        "re-enters": reenters,
        "deletes itself": deletes,
        "changes": resizes,
        "of other shape": lambda self, **_: np.ones((*x.shape, 2), x.dtype).__dlpack__(),
        "returns a type": lambda self, **_: Exporter,
    }
    if x.dtype.name == "bfloat16":
        for name in ("re-enters", "deletes itself", "changes", "of other shape"):
            exports.pop(name)
    name = r.choice((lie, lie, lie, *exports))
    device: Any = (1, 0)
    if r.random() < 0.15:
        device = r.choice((
            None, (1,), ("cpu", 0), (1, 0, 0), (-5, 2**70), (2, 0), (2, -1), (12, 7), (1, 3),
            (99, 0), Own("device"), 1, (1.0, 0.0), (None, None),
        ))  # fmt: skip
        name += f", device {device!r}"
    return f"capsule {name}", Exporter(x, exports[name.partition(",")[0]], device)


# --- other objects --------------------------------------------------------------------------------


def _class(**methods: Any) -> Any:
    return type("Hostile", (), methods)()


def _meddle(x: Any) -> None:
    """Side effects that an object's method may have."""
    fa.set_num_threads(3)
    fa.sum(np.ones(3))
    fa.mish(np.ones(3, np.float32))


def numbers(r: Random, x: Any) -> Iterator[tuple[str, Any]]:
    """Objects that stand for a number."""
    yield "10**400", 10**400
    yield "a string", r.choice(("0.5", "", "nan", "x" * 2000))
    yield "complex", 1j
    yield "NaN", float("nan")
    yield "inf", np.float32("inf")
    yield "None", None
    yield "an array of two", np.ones(2)
    yield "an array of none", np.ones(0)
    yield "a tensor of two", torch.ones(2)
    yield "a tensor that requires grad", torch.ones((), requires_grad=True)
    yield "a meta tensor", torch.ones((), device="meta")
    yield "Decimal", decimal.Decimal("0.5")
    yield "Decimal sNaN", decimal.Decimal("sNaN")
    yield "Fraction", fractions.Fraction(1, 2)
    yield "datetime64", np.datetime64("2020-01-01")
    yield "masked", np.ma.masked
    yield "__float__ raises", _class(__float__=lambda self: _raise(Own("float")))
    yield "__float__ returns a string", _class(__float__=lambda self: "no")
    yield "__float__ meddles", _class(__float__=lambda self: (_meddle(x), 0.5)[1])
    yield "__index__ raises", _class(__index__=lambda self: _raise(Own("index")))
    yield "__index__ meddles", _class(__index__=lambda self: (_meddle(x), 0)[1])
    yield "__index__ is huge", _class(__index__=lambda self: 2**80)
    yield "__index__ is a string", _class(__index__=lambda self: "0")
    yield "__bool__ raises", _class(__bool__=lambda self: _raise(Own("bool")))
    yield "__eq__ raises", _class(__eq__=lambda self, o: _raise(Own("eq")), __hash__=None)
    yield "__hash__ raises", _class(__hash__=lambda self: _raise(Own("hash")))
    equal = {"__eq__": lambda s, o: True, "__hash__": str.__hash__}
    yield "a str subclass", type("S", (str,), equal)("mish")
    yield "a float subclass", type("F", (float,), {"__float__": lambda s: 99.0})(0.5)
    yield "an int subclass", type("I", (int,), {"__index__": lambda s: 77})(0)
    yield "a type", int
    yield "an op", fa.mish
    yield "a tuple of arrays", (np.ones(2), np.ones(2))
    yield "a huge tuple", tuple(range(10_000))
    yield "a tuple of tuples", ((0,), (1,))
    yield "Ellipsis", ...
    yield "2**63", 2**63
    yield "-2**63", -(2**63)
    yield "True", True
    yield "np.True_", np.True_


class _Subclass(np.ndarray[Any, Any]):
    pass


class _Finalizes(np.ndarray[Any, Any]):
    def __array_finalize__(self, other: Any) -> None:
        if other is not None and type(other) is np.ndarray and other.ndim == 99:
            raise Own("finalize")


class _Refuses(np.ndarray[Any, Any]):
    __array_ufunc__ = None  # type: ignore[assignment]


class _Tensor(torch.Tensor):
    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise Own("torch function")


def arrays(r: Random, x: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Objects that stand for an array."""
    plain = x.astype(np.float32) if x.dtype.name == "bfloat16" else x.copy()
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1.0
    for _ in range(70):
        deep = [deep]
    yield "masked array", np.ma.masked_array(plain, np.zeros(x.shape, bool))
    yield "matrix", np.asmatrix(np.ones((2, 2)))
    yield "subclass", plain.view(_Subclass)
    yield "subclass with finalize", plain.view(_Finalizes)
    yield "subclass without ufuncs", plain.view(_Refuses)
    yield "recarray", np.ones(3, [("a", "f4")]).view(np.recarray)
    yield "structured", np.ones(x.shape, [("a", "f4"), ("b", "f4")])
    yield "objects", np.full(x.shape, None)
    yield "object numbers", plain.astype(object)
    yield "strings", np.full(x.shape, "1.5")
    yield "bytes", np.full(x.shape, b"1")
    yield "datetime", np.full(x.shape, np.datetime64("2020-01-01"))
    yield "timedelta", np.full(x.shape, np.timedelta64(1, "s"))
    yield "complex", plain.astype(np.complex64)
    yield "longdouble", plain.astype(np.longdouble)
    yield "float8", plain.astype(ml_dtypes.float8_e4m3fn)
    yield "int4", np.ones(x.shape, ml_dtypes.int4)
    yield "byteswapped", plain.astype(plain.dtype.newbyteorder())
    yield "void", np.zeros(x.shape, "V4")
    read_only = plain.copy()
    read_only.flags.writeable = False
    yield "read-only", read_only
    yield "broadcast", np.broadcast_to(np.ones((), plain.dtype), x.shape)
    yield "64 axes", np.ones((1,) * 64, plain.dtype)
    yield "65 axes", torch.ones((1,) * 65)
    yield "100 axes", torch.ones((1,) * 100)
    yield "huge broadcast", np.broadcast_to(np.float32(1), (2**40, 2**20))
    yield "huge empty", np.empty((0, 2**40), np.float32)
    yield "None", None
    yield "a number", 1.5
    yield "10**400", 10**400
    yield "a string", "1.5"
    yield "bytes", b"12345678"
    yield "bytearray", bytearray(8)
    yield "memoryview", memoryview(bytearray(8)).cast("f")
    yield "array.array", array.array("f", [1, 2, 3])
    yield "ctypes", (ctypes.c_float * 3)()
    yield "generator", (i for i in range(3))
    yield "iterator", iter([1.0, 2.0])
    yield "set", {1.0, 2.0}
    yield "dict", {"a": 1}
    yield "range", range(3)
    yield "file", io.BytesIO(b"1234")
    yield "type", np.ndarray
    yield "module", np
    yield "function", len
    yield "ragged", [[1.0], [2.0, 3.0]]
    yield "list of None", [None, 1.0]
    yield "list of strings", ["1", "2"]
    yield "list of complex", [1j, 2.0]
    yield "list of huge", [10**400, 1]
    yield "endless list", loop
    yield "deep list", deep
    yield "date", datetime.date.today()
    yield "__array__ raises", _class(__array__=lambda self, *a, **k: _raise(Own("array")))
    yield "__array__ of junk", _class(__array__=lambda self, *a, **k: "junk")
    yield "__array__ of itself", _class(__array__=lambda self, *a, **k: self)
    yield "__array__ of objects", _class(__array__=lambda self, *a, **k: np.full(3, None))
    meddles = _class(__array__=lambda self, *a, **k: (_meddle(x), np.ones(x.shape))[1])
    yield "__array__ meddles", meddles
    junk = r.choice((None, 1, {}, {"shape": 1}))
    yield "__array_interface__ junk", _class(__array_interface__=junk)
    negative = {"shape": (-1,), "typestr": "<f4", "version": 3, "data": (0, False)}
    yield "__array_interface__ negative", _class(__array_interface__=negative)
    of_text = {"shape": (1,), "typestr": "junk", "version": 3, "data": b"1234"}
    yield "__array_interface__ of text", _class(__array_interface__=of_text)
    ufunc = {"__array_ufunc__": lambda self, *a, **k: _raise(Own("ufunc")), "shape": x.shape}
    yield "__array_ufunc__ raises", _class(**ufunc)
    yield "__array_ufunc__ returns", _class(__array_ufunc__=lambda self, *a, **k: "mine")
    yield "__array_ufunc__ is None", _class(__array_ufunc__=None)
    yield "__getattr__ raises", _class(__getattr__=lambda self, name: _raise(Own(name)))
    yield "__class__ lies", _class(__class__=property(lambda self: np.ndarray))
    yield "list that empties itself", _shrinking()
    t = torch.from_numpy(plain.copy())
    yield "tensor subclass", t.as_subclass(_Tensor)
    yield "parameter", torch.nn.Parameter(t.clone())
    yield "requires grad", t.clone().requires_grad_()
    yield "sparse", t.to_sparse() if t.ndim else t
    yield "conjugated", torch.ones(x.shape, dtype=torch.complex64).conj()
    yield "negated", torch._neg_view(t.clone())
    yield "meta", t.to("meta")
    yield "integers", t.to(torch.int8)
    yield "bools", t > 0
    yield "expanded", torch.ones(()).expand(x.shape)
    yield "float8 tensor", t.to(torch.float8_e5m2)
    yield "quantized", torch.quantize_per_tensor(t.float().reshape(-1), 0.1, 0, torch.qint8)
    with torch.inference_mode():
        yield "inference", t.clone()
    yield "freed storage", _freed(t.clone())
    yield "nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    yield "memmap", _memmap(plain)


def _freed(tensor: Any) -> Any:
    tensor.untyped_storage().resize_(0)
    return tensor


def _memmap(x: Any) -> Any:
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, x.dtype, "w+", shape=x.shape or (1,)) if x.size else x


def _shrinking() -> Any:
    made: list[Any] = []

    def shrink(self: Any) -> float:
        made.clear()
        return 1.0

    made += [_class(__float__=shrink) for _ in range(5)]
    return made


def shapes(r: Random) -> tuple[str, Any]:
    """Draw what a sum's backward and `unbroadcast` may be given."""
    shape = r.choice((
        (1,) * 65, (1,) * 1000, (2**62, 2**62), (2**40, 2**40), (-1,), (2**63,), (-(2**63),),
        ("3",), (1.5,), None, "33", 3, [3, 3], (None,), ((1,),), np.ones(3), (True,), (0,) * 65,
        (0, 2**62), (0, 2**62, 2**62), range(3), {3}, _class(__index__=lambda self: 3),
        (_class(__index__=lambda self: _raise(Own("index"))),),
    ))  # fmt: skip
    return f"shape {str(shape)[:60]}", shape


@cache
def _count(kinds: Any) -> int:
    return sum(1 for _ in kinds(Random(0), np.ones((2, 3), np.float32)))


def _one_of(kinds: Any, r: Random, x: Any) -> tuple[str, Any]:
    """One that a generator of objects yields; those behind it are not made."""
    found: tuple[str, Any] = next(islice(kinds(r, x), r.randrange(_count(kinds)), None))
    return found


@cache
def _reduces(op: Any) -> bool:
    """Whether an op gives less than it takes, as it does in an example.

    So nothing refuses 2**60 elements of one number: NumPy's own sum of them would take years as
    well. Such an op gets an array that is added up in a moment.
    """
    x = np.ones((4, 6), np.float32)
    return all(part.size < x.size for part in arrays_of(op.bound("call", sample(op, x, x))()))


def _without_data(value: Any) -> Any:
    """A tensor, or the tensors of a tuple, on the meta device, for which torch's dispatcher is
    asked."""
    if isinstance(value, tuple):
        return tuple(map(_without_data, value))
    return value.to("meta") if type(value) is torch.Tensor else value


# --- cases ----------------------------------------------------------------------------------------


class HostileCase:
    """A valid call with one hostile object in it."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings = settings
        self.case = campaign.Case(settings, number)
        # A merge slices its argument before the library; and one hostile object a call is enough.
        while self.case.request.entry == "merge" or self.case.request.refused:
            number += 10**9
            self.case = campaign.Case(settings, number)
        self.r = r = Random(f"hostile {settings.seed}/{number}")
        self.case.request = replace(self.case.request, by_position=False)
        self.live = Live(self.case.request, self.case.values[0])
        self.args, self.named = list(self.live.args), dict(self.live.named)
        self.function = calls.function(self.case.request)
        places: list[Any] = list(range(len(self.args)))
        places += sorted(self.named)
        is_call = self.case.request.entry == "call" and not self.case.request.outs
        if is_call and isinstance(self.case.op, Quantizes) and r.random() < 0.3:
            self.function = self.case.op.quantized
            places += ["dtype", "per", "scale", "out"]
        places += ["out", "stream", "accumulate", "axis", "eps", "activation"][: r.randrange(7)]
        parameters = sorted(getattr(self.case.op, "parameters", ()))
        self.at = r.choice([*places, *parameters, *places[:1]])
        self.label, self.object = self._hostile()
        if self.case.request.framework == "torch" and r.random() < 0.2:
            self.label += ", beside tensors without data"
            self.args = [_without_data(value) for value in self.args]
            self.named = {name: _without_data(value) for name, value in self.named.items()}
        if isinstance(self.at, int):
            self.args[self.at] = self.object
        else:
            self.named[self.at] = self.object

    def _hostile(self) -> tuple[str, Any]:
        r = self.r
        old = self.args[self.at] if isinstance(self.at, int) else self.named.get(self.at)
        blocks = [block.view for block in self.live.blocks.values()]
        x = next((b for b in blocks if b is old), blocks[0] if blocks else np.ones((2, 3)))
        if x.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
            x = x.astype(np.float32)
        kind = r.random()
        if isinstance(old, tuple) and self.at != "out" and kind < 0.5:
            return shapes(r)
        is_array = isinstance(old, np.ndarray) or self.at == "out"
        if is_array and kind < 0.45:
            return exporter(r, np.ascontiguousarray(x))
        if kind < (0.8 if is_array else 0.3):
            label, made = _one_of(arrays, r, x)
            if label == "huge broadcast" and _reduces(self.case.op):
                made = made[: 2**6]
            return label, made
        label, made = _one_of(numbers, r, x)
        if self.at == "out" and r.random() < 0.5:
            return f"tuple of {label}", (made,) * r.randrange(4)
        return label, made

    def __str__(self) -> str:
        return f"{self.case.request}; {self.at!r} is {self.label}"

    @property
    def kind(self) -> str:
        """The object, without what changes from case to case."""
        label = self.label.partition(",")[0]
        if label.startswith("capsule dltensor") or label.startswith("capsule used"):
            label = "capsule" + (f" {label.partition('+')[2]}" if "+" in label else "")
        label = "a shape" if label.startswith("shape") else label
        is_array = isinstance(self.at, int) or self.at in _ARRAYS
        return f"{label} as {'out' if self.at == 'out' else 'array' if is_array else 'option'}"

    def run(self) -> str:
        """Some calls of it; what became of the first one."""
        function, outcomes = self.function, []
        written = set(self.live.written)
        if self.at == "training":  # any true object asks for running statistics
            written |= {"running_mean", "running_var"}
        for _ in range(3):
            try:
                function(*self.args, **self.named)
                outcomes.append("computed")
            except Exception as error:
                outcomes.append(type(error).__name__)
                self._refused(error)
            for name, block in self.live.blocks.items():
                right = block.only_view_written() if name in written else block.untouched()
                if not right and outcomes[-1] == "computed" and name not in written:
                    if self.object is not block.view and not self._shares(block.view):
                        raise Wrong("wrote", f"{name}, which is no output")
                elif not right and name in written:
                    raise Wrong("guard bytes", f"memory around {name} was written")
        return outcomes[0]

    def _shares(self, view: Any) -> bool:
        """Whether the object stands for the memory of an operand."""
        return isinstance(self.object, Exporter) or self.at == "out"

    def _refused(self, error: Exception) -> None:
        if self.label == "freed storage" and isinstance(error, RuntimeError):
            return  # what its own __float__ says
        if not isinstance(error, REFUSALS):
            raise Wrong("error class", f"{type(error).__name__}: {str(error)[:300]}") from error
        if "out" not in self.named or self.at != "out":
            for name, block in self.live.blocks.items():
                if not block.untouched():
                    raise Wrong("refusal wrote", f"{name}, although: {str(error)[:200]}")
        text = str(error)
        if len(text) > 600:
            raise Wrong("long words", f"{len(text)} characters: {text[:200]}")
        if isinstance(error, TypeError | ValueError) and "fastact" not in text:
            raise Wrong("error words", f"{type(error).__name__}: {text}")


class NativeCase:
    """A call of a native function that its table allows, with one argument that it does not."""

    def __init__(self, settings: Settings, number: int) -> None:
        r = Random(f"native {settings.seed}/{number}")
        name = r.choice(sorted(_cpu.native_calls()))
        self.right = native_tables.Maker(name, r).make()
        self.at = r.choice(list(self.right.arguments))
        # a flag may be any object, and an array that is not there no model
        wrongs = list(native_tables.broken(self.right, self.at)) or [("as it is", None, None)]
        self.label, self.object, self.block = r.choice(wrongs)
        if self.label == "as it is":
            self.object = self.right.arguments[self.at]

    def __str__(self) -> str:
        return f"native {self.right.name}; {self.at} is {self.label}"

    @property
    def kind(self) -> str:
        return f"{self.right.name}, {self.at}"

    def run(self) -> str:
        """Run the call; return what became of it."""
        blocks = {**self.right.blocks, **({} if self.block is None else {self.at: self.block})}
        before = {name: block.whole for name, block in blocks.items()}
        try:
            self.right.run({**self.right.arguments, self.at: self.object})
        except (TypeError, ValueError) as error:
            if any(block.whole != before[name] for name, block in blocks.items()):
                raise Wrong("refusal wrote", f"although: {str(error)[:200]}") from error
            if "fastact" not in str(error):
                raise Wrong("error words", f"{type(error).__name__}: {error}") from error
            return type(error).__name__
        if self.label != "as it is":
            raise Wrong("obeyed", "what the table does not allow")
        if not all(block.is_whole() for block in blocks.values()):
            raise Wrong("guard bytes", "memory around an array was written")
        return "computed"


#: One of so many cases calls a native function itself.
_NATIVE_EVERY = 8


def case_of(settings: Settings, number: int) -> HostileCase | NativeCase:
    kind = NativeCase if number % _NATIVE_EVERY == _NATIVE_EVERY - 1 else HostileCase
    return kind(settings, number)


class HostileWorker(campaign.Runner):
    """Runs them, and holds that ordinary calls go on to work."""

    case = staticmethod(case_of)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        rng = np.random.default_rng(0)
        self.x, self.w = rng.standard_normal((6, 40)).astype("f"), np.ones(40, "f")
        self.before = self._health()

    def _health(self) -> list[bytes]:
        x, w = self.x, self.w
        found = []
        for _ in range(3):
            made = (
                fa.mish(x), fa.layer_norm(x, w, activation="mish"), fa.sum(x, 0),
                fa.bias_act(x, w, "tanh"), fa.lstm_gates(np.tile(x, 4), x, bias=np.tile(w, 4)),
            )  # fmt: skip
            found.append(digest(flat("numpy", made)))
        return found

    def check(self, case: Any, tally: Tally) -> None:
        """Run a case, and from time to time the ordinary calls."""
        outcome = case.run()
        tally.calls += 3
        tally.refusals += outcome != "computed"
        tally.count(outcome)
        if tally.cases % 20 == 1 and self._health() != self.before:
            raise Wrong("bits", "ordinary calls give other bits than before")
