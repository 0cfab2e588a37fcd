"""Results in 8 bits: codes and scales of what an op computes, part by part, in scratch memory.

A call computes the op by its own kernels, of so much at a time as stays in the caches, into a
scratch array of the type in which it computes. Native functions then find the scales and write the
codes (src/common/quantize/quantize.h), and know no op. 16-bit data is converted to float32 before,
likewise in parts, so that the result is what the op makes of float32.

Where the elements that share a scale lie in several parts, the op is computed twice: for the
greatest of all, and for the codes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np

from ... import _cpu
from ..._cpu import View
from ...interop import foreign, handlers, validate
from ...interop.frameworks import (
    IMMUTABLE,
    NUMPY,
    framework_of,
    in_native_order,
    namespace,
    see,
)
from ..types import DType
from .execute import Execution, said_by
from .parts import Part, Parts, begin_of, cut, for_each, part_of, threads_of
from .reductions import fill

#: The numbers of formats (`CodeFormat` in src/common/quantize/quantize.h).
FORMATS: Mapping[str, int] = {"int8": 0, "float8_e4m3fn": 1, "float8_e5m2": 2}

#: A View has codes as this dtype, of bytes.
BYTES = "bool"

#: The dtypes in the place of float8 in a framework that lacks it.
SAME_BYTES = ("uint8", "int8", BYTES)

#: The dtype of scales that are powers of two in bytes.
E8M0 = "float8_e8m0fnu"

#: Elements of a part of a thread of the CPU, at most.
_PART = 1 << 16

#: A part with fewer rows has each cut into so many pieces, that all threads have some.
FEW_ROWS = 64

#: Elements that share a scale, by a name; a number is as many neighbours of a row.
_PER = {name: name for name in ("row", "tensor")}


def named_format(
    where: str, dtype: Any, name: str = "dtype", formats: Mapping[str, int] = FORMATS
) -> str:
    """The name of a format, by a dtype as any library has it."""
    named = dtype if isinstance(dtype, str) else validate.dtype_among(dtype, formats) or dtype
    validate.choice(where, name, named, formats)
    return str(named)


class Quantizes:
    """An op whose result is also available in 8 bits."""

    #: Whether a single thread may run its native function for parts of the data.
    computes_alone = True

    def _enter(self, **entry_points: Any) -> None:
        super()._enter(**entry_points)  # type: ignore[misc]
        # Repeated calls skip this layer (src/cpu/binding/call_cache.pyx).
        self._cached_quantized = _cpu.CachedCall(self._quantize, self, "_cached_quantized")

    @property
    def known_scale(self) -> str:
        """The keyword of scales that are known, for an op may have a `scale` of its own."""
        own = self.entry_points["call"].defaults  # type: ignore[attr-defined]
        return "codes_scale" if "scale" in own else "scale"

    def _parts_along(self, now: Execution) -> Sequence[int]:
        """The axes along which parts of the data may be computed by themselves."""
        raise NotImplementedError

    def quantized(
        self: Any,
        *args: Any,
        dtype: DType = "int8",
        per: Literal["row", "tensor"] | int = "row",
        scale: Any = None,
        scale_dtype: DType | None = None,
        out: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Return the op's result in 8 bits: codes, and scales that restore it.

        ``codes * scale`` is about what calling the op gives: ``codes = round(y / scale)``, with y
        the op's float32 value, also of 16-bit data, and ``scale = max(abs(y)) / 127`` (e4m3: 448,
        e5m2: 57344) over the elements that share it.

        Parameters
        ----------
        *args : array
            As for the call.
        dtype : {"int8", "float8_e4m3fn", "float8_e5m2"} or dtype, default "int8"
            The dtype of the codes, by its name or as NumPy, ml_dtypes or torch has it. Where float8
            is not there, in NumPy without ml_dtypes, the same bytes are uint8; in frameworks that
            can't see bytes as another dtype, bool.
        per : {"row", "tensor"} or int, default "row"
            The elements that share a scale: those along the last axis of the result, all of them,
            or this number of neighbours along the last axis, whose length it divides.
        scale : array or float, optional
            Scales that are known: a number for the whole, or an array of the shape that `per` says
            or of shape (). Positive; on a GPU nobody looks. Softmax's `scale` is the factor of its
            logits, as in the call: its known scales are `codes_scale`.
        scale_dtype : {"float8_e8m0fnu"} or dtype, optional
            Scales that are found are powers of two, as of the MX formats of OCP (`per` is 32
            there): the greatest one in max(abs(y)), divided by that in 448 or 57344. For float8.
        out : tuple, optional
            Where to write codes, scale and, of an op that returns a sum, the sum; one that is None
            is allocated.
        **kwargs
            As for the call.

        Returns
        -------
        codes : array
            The codes, of the result's shape.
        scale : array
            The scales, of float32 (float64 for float64) or of `scale_dtype`. Their last axis has
            length 1 or one element per block, or they have no axes. A given array is returned
            itself.
        total : array
            The sum, for an op that returns one.

        Raises
        ------
        TypeError
            For an array of another dtype, or arrays that can't be written, such as those of JAX.
        ValueError
            For a scale that is not positive and finite, blocks that do not divide the last axis, an
            array of another shape, a result without axes, or a scale_dtype with int8 or with a
            known scale.

        Notes
        -----
        Rounding is half to even, and saturates: int8 from -128 to 127, float8 at its greatest
        number, infinities too. NaN is float8's NaN; in int8, which has none, it is 0. Elements that
        are not finite count for no scale. A scale that is found is at least the smallest normal
        number, or 2**-127 for a power of two, which it is for zeros alone. A norm with another
        `casting` than "exact" rounds 16-bit data as it does, and its value of that dtype becomes
        codes.

        The op is computed in parts, and with one scale for several of them twice. Memory for them
        does not grow with the arrays, except that a norm over groups of channels takes whole
        examples, and that a norm over the whole array, softmax with a sink and, on a GPU, softmax
        over another axis than the last take the whole array.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([[1.0, -2.0, 4.0], [0.0, 0.5, 0.25]], np.float32)
        >>> codes, scale = fa.relu.quantized(x)
        >>> codes
        array([[ 32,   0, 127],
               [  0, 127,  64]], dtype=int8)
        >>> codes * scale
        array([[1.0078..., 0.       , 4.       ],
               [0.       , 0.5      , 0.2519...]], dtype=float32)
        """
        if self.known_scale != "scale":
            if scale is not None:
                kwargs["scale"] = scale
            scale = kwargs.pop(self.known_scale, None)
        if "torch" in sys.modules and sys.modules["torch"].compiler.is_compiling():
            return handlers.bridge("dispatch").traced_quantized(  # type: ignore[no-any-return]
                self, args, {**kwargs, "out": out}, per, scale, dtype, scale_dtype
            )
        call = self._cached_quantized
        given = {"dtype": dtype, "per": per, "_scale": scale, "scale_dtype": scale_dtype}
        return call(*args, **given, out=out, **kwargs)  # type: ignore[no-any-return]

    def _quantize(
        self: Any,
        *args: Any,
        dtype: Any,
        per: Any,
        _scale: Any,
        scale_dtype: Any,
        out: Any,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        if self.traits.counts_elements:
            raise TypeError(
                f"fastact.{self.name}.quantized: it draws a number for each element, and has no "
                f"codes; drop elements first, and give the norm what is left"
            )
        more = f"dtype, per, {self.known_scale}, scale_dtype"
        with said_by(f"fastact.{self.name}.quantized", f"fastact.{self.name}", more):
            if any(map(foreign.is_for_dispatcher, foreign.tensors((*args, _scale, out), kwargs))):
                return handlers.bridge("dispatch").call_quantized(  # type: ignore[no-any-return]
                    self, args, {**kwargs, "out": out}, per, _scale, dtype, scale_dtype
                )
            return _Quantized(self, args, kwargs, dtype, per, _scale, scale_dtype).results(out)


class _Quantized:
    """A call in progress.

    now : the op's own call, which gets parts of its arrays.
    shape : the result's. block : neighbours along the last axis that share a scale, or None.
    given, number : the scale, if it is known.
    made : the results by name: view, what the caller gave, and what `Call.result` needs.
    """

    def __init__(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        dtype: Any,
        per: Any,
        scale: Any,
        scale_dtype: Any,
    ) -> None:
        self.op, self.where = op, f"fastact.{op.name}.quantized"
        self.dtype, self.per, self.scale = named_format(self.where, dtype), per, scale
        self.format, self.is_power = FORMATS[self.dtype], scale_dtype is not None
        if self.is_power:
            named_format(self.where, scale_dtype, "scale_dtype", {E8M0: 0})
            if self.dtype == "int8" or scale is not None:
                raise ValueError(
                    f"{self.where}: scale_dtype must be None for int8, and beside a known scale"
                )
        self.now = now = Execution(op.entry_points["call"], args, kwargs)
        now.where = now.call.where = self.where
        self.call, self.leader = now.call, now.views[now.leader]
        self.block: int | None = None
        self.given: View | None = None
        self.number: float | None = None

    def results(self, out: Any) -> tuple[Any, ...]:
        """Check all of it, compute, and return the arrays."""
        with self.call:
            self._check()
            self._make(out)
            if self.call.framework.computes:
                self._compute()
            codes, scale, *others = (self.call.result(*made) for _, *made in self.made.values())
        if self.made["codes"][1] is None:
            codes = self._as_dtype(codes, self.dtype, *self._same_bytes)
        if self.is_power and self.made["scale"][1] is None:
            scale = self._as_dtype(scale, E8M0, *SAME_BYTES)
        return (codes, scale, *others)

    # --- checks -----------------------------------------------------------------------------------

    def _check(self) -> None:
        now, where = self.now, self.where
        if any(out is not None for out in now.options.out):
            raise TypeError(f"{where}: out must be given by keyword")
        if getattr(now.options, "training", False):
            raise ValueError(f"{where}: training must be False, got True")
        framework = self.call.framework
        if framework.name in IMMUTABLE:
            raise TypeError(
                f"{where}: x must be an array that can be written, got {framework.name}"
            )
        now.prepare(models=True)
        model = now.view(self.op.results[0])
        self.shape, self.order, self.last = model.shape, model.order, model.ndim - 1
        if not self.shape:
            raise ValueError(f"{where}: x must have an axis, got shape ()")
        self.computed = validate.computed_in(self.leader)
        # A norm that rounds 16-bit data as a model's code does is left to it.
        self.widens = self.leader.itemsize == 2 and not getattr(now.options, "casts", False)
        self.scale_shape = self._shape_of_scales()
        if self.scale is not None:
            self._take_scale()

    def _shape_of_scales(self) -> tuple[int, ...]:
        where, per, (*outer, last) = self.where, self.per, self.shape
        if isinstance(per, str) and per in _PER:
            self.per = _PER[per]  # a str, whatever class of strings it came as
            return () if self.per == "tensor" else (*outer, 1)
        if isinstance(per, bool) or not isinstance(per, int | np.integer) or per < 1:
            raise ValueError(
                f"{where}: per must be 'row', 'tensor' or a positive integer, got "
                f"{validate.describe(per)}"
            )
        if last % per:
            raise ValueError(
                f"{where}: per must divide the {last} elements along the last axis, got {per}"
            )
        self.block = int(per)
        return (*outer, last // self.block)

    def _take_scale(self) -> None:
        """The caller's scales: an array, or a number for the whole."""
        where, scale, place, name = self.where, self.scale, self.call.place, self.op.known_scale
        framework = framework_of(scale)
        if framework is None:
            number = validate.number(where, name, scale)
            with np.errstate(all="ignore"):
                self.number = float(np.array(number, _cpu.DTYPE_NAMES[self.computed]))
            shape: tuple[int, ...] = ()
            is_right = 0 < self.number < math.inf
        else:
            foreign.plain(where, name, scale)
            validate.one_framework(where, {"x": self.call.framework, name: framework})
            array = in_native_order(scale) if framework is NUMPY else scale
            view = self.given = see(where, name, array, framework, place)
            validate.has_dtype(where, name, view, "compute_type", self.now.leader, self.leader)
            shape = view.shape
            if shape not in (self.scale_shape, ()):
                raise ValueError(
                    f"{where}: {name} must have shape {self.scale_shape} or (), got {shape}"
                )
            is_right = self.call.scale(view, array)
        if not is_right:
            came = "another number" if framework else validate.describe(scale)
            raise ValueError(f"{where}: {name} must be positive and finite, got {came}")
        if not shape:
            self.per, self.block, self.scale_shape = "tensor", None, ()

    # --- results ----------------------------------------------------------------------------------

    def _make(self, given: Any) -> None:
        """Find or make the results, which lie apart from each other and from what is read."""
        call, where, leader = self.call, self.where, self.now.leader
        others = self.op.results[1:]
        outs = validate.outputs(where, given, 2 + len(others))
        if self.given is not None and outs[1] is not None:
            name = self.op.known_scale
            raise ValueError(f"{where}: out[1] must be None where {name} is an array")
        bytes_ = _cpu.VIEW_DTYPE_NAMES.index(BYTES)
        models: list[tuple[str, tuple[int, ...] | None, int | None]] = [
            ("codes", self.shape, bytes_),
            ("scale", self.scale_shape, bytes_ if self.is_power else self.computed),
            *((name, None, None) for name in others),
        ]
        self.made: dict[str, tuple[View, Any, Any]] = {}
        written = {} if self.given is None else {"scale": self.given}
        for i, ((name, shape, dtype), out) in enumerate(zip(models, outs, strict=True)):
            if name == "scale" and self.given is not None:
                self.made[name] = self.given, self.scale, None
                continue
            label = f"out[{i}]"
            array = out
            if out is not None and dtype == bytes_:
                array = self._as_bytes(label, out, self.dtype if name == "codes" else E8M0)
            view, new = call.output(
                label, array, leader, shape=shape, dtype=dtype, in_place=False, given=out
            )
            validate.apart(where, label, view, written)
            self.made[name], written[label] = (view, out, new), view

    def _as_bytes(self, label: str, codes: Any, named: str) -> Any:
        """An array for codes, or scales in bytes, as a View has them."""
        found = str(getattr(codes, "dtype", type(codes).__name__)).rpartition(".")[2]
        has_views = hasattr(codes, "view")  # and so codes that are no bools
        if found not in (named, *self._same_bytes) or (has_views and found == BYTES):
            raise TypeError(f"{self.where}: {label} must have dtype {named}, got {found}")
        return as_bytes(codes)

    @property
    def _same_bytes(self) -> tuple[str, ...]:
        """Dtypes in the place of one that a framework lacks."""
        return SAME_BYTES if self.format else (BYTES,)

    def _as_dtype(self, bytes_: Any, *names: str) -> Any:
        """View bytes as the first of these dtypes that the framework has."""
        kinds = (dtype_of(bytes_, name) for name in names)
        try:
            return self.call.seen_as(bytes_, next(kind for kind in kinds if kind is not None))
        except (AttributeError, StopIteration, TypeError):  # a framework that has no such view
            return bytes_

    # --- the parts --------------------------------------------------------------------------------

    def _parts(self) -> list[Parts]:
        """Cut the data into parts of at most so many elements: rows, or a part of the rows."""
        last = self.last
        self.threads, most = threads_of(self.call, math.prod(self.shape), _PART)
        if not (self.op.computes_alone or self.call.is_on_gpu):
            self.threads, most = 1, _PART * self.threads
        free = {*self.op._parts_along(self.now)}
        order = sorted((axis for axis in self.order if axis in free), key=lambda a: a == last)
        self.part, found = cut(self.shape, order, most, {last: self.block or FEW_ROWS})
        if self.part == self.shape:
            self.threads = 1
        return found

    def _own(self, view: View, axis: int, thread: int) -> View:
        """A thread's share of a scratch array."""
        each = view.shape[axis] // self.threads
        return view.sliced(axis, thread * each, 1, each)

    def _compute(self) -> None:
        scale, is_found = self.made["scale"][0], self.given is None and self.number is None
        if self.number is not None:
            fill(self.call, scale, self.number)
        if 0 in self.shape:
            if is_found:  # as of zeros
                zeros = self.call.repeated(0.0, scale.of_dtype(self.computed))
                self.call.run(
                    "quantize", x=zeros, reduced=(), scale=scale, codes=None, format=self.format
                )
            return
        parts = self._parts()
        self._take_arrays()
        whole_rows = self.per == "row" and self.part[-1] == self.shape[-1]
        function, stays = "encode", False
        if is_found and (self.block or whole_rows):  # with the scales of each part
            function = "quantize"
        elif is_found:
            self._find_scales(parts)
            stays = self.part == self.shape

        def encode(part: Part, thread: int) -> None:
            self._encode(function, part, self.y if stays else self._value(part, thread))

        for_each(self.call, parts, self.threads, encode)

    def _scratch(self, shape: tuple[int, ...], dtype: int) -> View:
        return self.call.temporary(self.now.leader, shape, dtype)

    def _scratch_of_part(self, shape: tuple[int, ...], dtype: int) -> View:
        """Allocate one scratch array for each thread, next to each other."""
        outer = self.order[0]
        lengths = (n * self.threads if axis == outer else n for axis, n in enumerate(shape))
        return self._scratch(tuple(lengths), dtype)

    def _take_arrays(self) -> None:
        """Find the arrays that are computed in parts, and allocate scratch arrays for parts."""
        now, computed, whole = self.now, self.computed, dict(self.now.views)
        self.data = {name: view for name, view in whole.items() if name in now.entry.data}
        repeats = [n for n, rule in now.entry.rules.items() if rule[1:] == (("data",), True)]
        self.repeated = {name: view for name, view in whole.items() if name in repeats}
        self.y = self._scratch_of_part(self.part, computed if self.widens else self.leader.dtype)
        self.wide: dict[str, View] = {}
        if not self.widens:
            return
        in_place = now.entry.output(self.op.results[0]).in_place
        for name, view in whole.items():
            if name == now.leader and in_place:
                self.wide[name] = self.y
            elif name in self.data:
                lengths = zip(self.part, self.shape, view.shape, strict=True)
                shape = tuple(own if part == n else part for part, n, own in lengths)
                self.wide[name] = self._scratch_of_part(shape, computed)
            elif view.itemsize == 2 and name not in self.repeated:
                now.views[name] = self._scratch(view.shape, computed)
                self.call.run("widen", x=view, y=now.views[name])

    def _value(self, part: Part, thread: int) -> View:
        """Compute the op's result for a part."""
        now, (first, *others) = self.now, self.op.results
        outer = self.order[0]
        data = {name: part_of(view, part) for name, view in self.data.items()}
        made = {name: part_of(self.made[name][0], part) for name in others}
        if self.widens:
            wide = {n: begin_of(self._own(v, outer, thread), part) for n, v in self.wide.items()}
            if others:  # the sum is rounded: x, to which nothing more is added
                x, residual = data
                self.call.run("widen", **data, **made, y=wide[x])
                made = dict.fromkeys(others, wide[residual])
                wide[residual] = self.call.repeated(-0.0, wide[x])
            else:
                for name, view in data.items():
                    self.call.run("widen", x=view, y=wide[name])
            data = wide
        now.views.update(data | {n: part_of(view, part) for n, view in self.repeated.items()})
        now.shapes = self.op._shapes(self.call, now.options)
        y = begin_of(self._own(self.y, outer, thread), part)
        now.made = {n: (view, None, None) for n, view in {first: y, **made}.items()}
        now.entry.run(now)
        return y

    # --- scales and codes -------------------------------------------------------------------------

    @property
    def _pieces(self) -> int:
        """How many pieces a row has whose scale is known, or found in a pass of its own."""
        is_few = math.prod(self.part[:-1]) < FEW_ROWS and self.shape[-1] % FEW_ROWS == 0
        return FEW_ROWS if is_few else 1

    def _rows(self, view: View, pieces: int) -> View:
        """Split the last axis into what shares a scale, or pieces of it."""
        return rows_of(view, view.shape[-1] // self.block if self.block else pieces)

    def _scales(self, part: Part, rows: View) -> View:
        """Cut the scales to those of a part, one for each row."""
        view, last = self.made["scale"][0], self.last
        if self.per != "tensor":
            first, length = part.get(last, (0, self.shape[-1]))
            along = (first // self.block, length // self.block) if self.block else (0, 1)
            view = part_of(view, {**part, last: along})
        return scales_of(view, rows)

    def _encode(self, function: str, part: Part, y: View) -> None:
        pieces = 1 if function == "quantize" else self._pieces
        rows = self._rows(y, pieces)
        self.call.run(
            function,
            x=rows,
            reduced=(rows.ndim - 1,),
            scale=self._scales(part, rows),
            codes=self._rows(part_of(self.made["codes"][0], part), pieces),
            format=self.format,
        )

    def _find_scales(self, parts: Sequence[Parts]) -> None:
        """Find scales in a separate pass: the peaks of rows, over all parts that hold them."""
        is_whole = self.per == "tensor"
        outer = (self.part if is_whole else self.shape)[:-1]
        shape = (*outer, self._pieces, 1)
        threads = self.threads if is_whole else 1  # parts of a row add to the same peaks
        shape = (shape[0] * threads, *shape[1:])
        peaks = self._scratch(shape, self.computed)
        fill(self.call, peaks, 0.0)

        def find(part: Part, thread: int) -> None:
            rows = self._value(part, thread).split_axis(self.last, self._pieces)
            at = {axis: span for axis, span in part.items() if axis != self.last}
            own = begin_of(self._own(peaks, 0, thread), at) if is_whole else part_of(peaks, at)
            self.call.run("peak", x=rows, reduced=(rows.ndim - 1,), peak=own)

        for_each(self.call, parts, threads, find)
        reduced = tuple(range(0 if is_whole else self.last, len(shape)))
        scale = self.made["scale"][0]
        scale = scale.with_axes(tuple(range(scale.ndim, len(shape))))
        self.call.run(
            "quantize", x=peaks, reduced=reduced, scale=scale, codes=None, format=self.format
        )


def as_bytes(codes: Any) -> Any:
    """View codes as bytes, as a View has them."""
    is_seen = foreign.dtype_name(codes) == BYTES
    return codes if is_seen else codes.view(dtype_of(codes, BYTES))


def rows_of(view: View, count: int) -> View:
    """Split the last axis into so many rows."""
    return view if count == 1 else view.split_axis(view.ndim - 1, count)


def scales_of(view: View, rows: View) -> View:
    """Give each row its scale."""
    view = view.with_axes(tuple(range(view.ndim, rows.ndim)))
    return view.broadcast_to((*rows.shape[:-1], 1))


def dtype_of(array: Any, name: str) -> Any:
    """A dtype of an array's framework; None: it has no such."""
    if not (isinstance(array, np.ndarray) or hasattr(type(array), "__fastact_framework__")):
        return getattr(namespace(array), name, None)
    try:
        return getattr(import_module("ml_dtypes"), name) if "float8" in name else np.dtype(name)
    except ImportError:
        return None
