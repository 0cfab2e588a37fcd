"""Codes and scales of an array as it is, the identity's result in 8 bits; and back."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

import numpy as np

from .. import _cpu
from ..interop import foreign, handlers, validate
from ..interop.call import Call
from ..interop.frameworks import IMMUTABLE, framework_of
from .activations import leaky_relu
from .engine import quantized
from .engine.execute import said_by
from .engine.quantized import BYTES, FEW_ROWS, FORMATS, named_format
from .types import A, Array, DType, Out, Outs, Stream

_IDENTITY: Any = leaky_relu  # with the slope 1


def quantize(
    x: A,
    /,
    *,
    dtype: DType = "int8",
    per: Literal["row", "tensor"] | int = "row",
    scale: Array | float | None = None,
    scale_dtype: DType | None = None,
    out: Outs[Array] = None,
    stream: Stream = None,
) -> tuple[A, A]:
    """Encode an array in 8 bits: codes, and scales that restore it.

    ``codes * scale`` is about x: ``codes = round(x / scale)``, and without a scale that is known
    ``scale = max(abs(x)) / 127`` (e4m3: 448, e5m2: 57344) over the elements that share it. An op's
    ``quantized`` does the same with its result, without writing that result first.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape but (), and any strides.
    dtype : {"int8", "float8_e4m3fn", "float8_e5m2"} or dtype, default "int8"
        The dtype of the codes, by its name or as NumPy, ml_dtypes or torch has it.
    per : {"row", "tensor"} or int, default "row"
        Which elements share a scale: those along the last axis, all of them, or so many neighbours
        along the last axis, whose length they divide.
    scale : array or float, optional
        Scales that are known: a number for the whole, or an array of the shape that `per` says or
        of shape ().
    scale_dtype : {"float8_e8m0fnu"} or dtype, optional
        Scales that are found are powers of two, as of the MX formats of OCP (`per` is 32 there):
        the greatest one in max(abs(x)), divided by that in 448 or 57344. For float8.
    out : tuple, optional
        Where to write codes and scale; one that is None is allocated.
    stream : stream, optional
        Where a GPU computes.

    Returns
    -------
    codes : array
        Of x's shape.
    scale : array
        The scales, of float32 (float64 for float64) or of `scale_dtype`: one for each row or block,
        or one without axes.

    Raises
    ------
    TypeError
        For an array of another dtype, or arrays that can't be written, as of JAX.
    ValueError
        For a scale that is not positive and finite, blocks that do not divide the last axis, an
        array of another shape, x without axes, or a scale_dtype with int8 or with a known scale.

    Notes
    -----
    Rounding is half to even, and saturates; docs/quantized.md says what becomes of NaN and inf.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> codes, scale = fa.quantize(np.array([[1.0, -2.0, 4.0], [0.0, 0.5, 0.25]], np.float32))
    >>> codes
    array([[ 32, -64, 127],
           [  0, 127,  64]], dtype=int8)
    >>> (codes * scale)[0]
    array([ 1.0078..., -2.0157...,  4.        ], dtype=float32)
    """
    dtype = named_format("fastact.quantize", dtype)  # torch.compile traces no error within `with`
    with said_by("fastact.quantize", "fastact.leaky_relu.quantized"):
        found: tuple[A, A] = _IDENTITY.quantized(
            *(x, 1.0),
            dtype=dtype,
            per=per,
            scale=scale,
            scale_dtype=scale_dtype,
            out=out,
            stream=stream,
        )
        return found


def dequantize(
    codes: A,
    scale: Array,
    /,
    *,
    dtype: DType | None = None,
    codes_dtype: DType | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Decode codes and their scales, in one pass: the inverse of `quantize`.

    Each is ``codes * scale``, in the dtype of scale, and rounded to `dtype`. Scales of blocks
    multiply the codes block by block.

    Parameters
    ----------
    codes : array
        Of int8, float8_e4m3fn or float8_e5m2; any shape but (), and any strides.
    scale : array
        Of float32 (float64 for a result of float64), as `quantize` or an op's ``quantized`` makes
        them: with the last axis of length 1, with as many elements along it as there are blocks, or
        without axes; or of float8_e8m0fnu, which become float32.
    dtype : dtype, optional
        The dtype of the result: float16, bfloat16, float32 or float64. None: scale's.
    codes_dtype : dtype, optional
        The dtype of codes that are bytes, of uint8, int8 or bool, in a framework that lacks float8.
    out : array, optional
        Where to write the result.
    stream : stream, optional
        Where a GPU computes.

    Returns
    -------
    array
        Of the shape of codes.

    Raises
    ------
    TypeError
        For arrays of another dtype, or arrays that can't be written, as of JAX.
    ValueError
        For a scale or `out` of another shape, or codes without axes.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[1.0, -2.0, 4.0], [0.0, 0.5, 0.25]], np.float32)
    >>> fa.dequantize(*fa.quantize(x))
    array([[ 1.0078..., -2.0157...,  4.        ],
           [ 0.        ,  0.5       ,  0.2519...]], dtype=float32)
    """
    if "torch" in sys.modules and (
        sys.modules["torch"].compiler.is_compiling()
        or any(map(foreign.is_for_dispatcher, foreign.tensors((codes, scale, out), {})))
    ):
        return handlers.bridge("dispatch").dequantized(codes, scale, dtype, codes_dtype, out)  # type: ignore[no-any-return]
    return _cached(codes, scale, dtype, codes_dtype, out, stream)  # type: ignore[no-any-return]


def format_of(where: str, codes: Any, given: DType | None) -> str:
    """The name of the format of codes, by their dtype or by what is said of bytes."""
    named = foreign.dtype_name(codes) if hasattr(codes, "dtype") else validate.describe(codes)
    if given is not None:
        told = named_format(where, given, "codes_dtype")
        if named in quantized.SAME_BYTES:
            return told
        if told != named:
            raise TypeError(f"{where}: codes_dtype must be the dtype of codes, {named}, got {told}")
    if named not in FORMATS:
        raise TypeError(f"{where}: codes must have dtype {' or '.join(FORMATS)}, got {named}")
    return named


def wide_scale(scale: Any, told: str) -> Any:
    """Convert powers of two to the type in which a result of this dtype is computed."""
    if foreign.dtype_name(scale) != quantized.E8M0:
        return scale
    if told == "float64":
        return scale.double() if foreign.is_tensor(scale) else scale.astype(np.float64)
    return scale.float() if foreign.is_tensor(scale) else scale.astype(np.float32)


def decoded(
    where: str, codes: Any, scale: Any, dtype: Any, codes_dtype: Any
) -> tuple[str, Any, str]:
    """Check the arrays of a call by their dtypes and shapes.

    Return the format of the codes, scales of float32 or float64, and the dtype of the result.
    """
    foreign.plain(where, "codes", codes)
    named = format_of(where, codes, codes_dtype)
    if not hasattr(scale, "dtype"):
        raise TypeError(f"{where}: scale must be an array, got {validate.describe(scale)}")
    told = "" if dtype is None else validate.dtype_named(where, "dtype", dtype)
    scale = wide_scale(scale, told)
    by = foreign.dtype_name(scale)
    told = told or by
    needed = "float64" if told == "float64" else "float32"
    if dtype is None and by not in ("float32", "float64"):
        raise TypeError(f"{where}: scale must have dtype float32 or float64, got {by}")
    if by != needed:
        raise TypeError(f"{where}: scale must have dtype {needed} for {told} results, got {by}")
    shape, own = tuple(codes.shape), tuple(scale.shape)
    if not shape:
        raise ValueError(f"{where}: codes must have an axis, got shape ()")
    *outer, last = shape
    count = own[-1] if own else 1
    if own and (own[:-1] != (*outer,) or last % max(count, 1) or (last and not count)):
        raise ValueError(
            f"{where}: scale must have shape (), {(*outer, 1)} or {(*outer, 'n')}, where n "
            f"divides {last}, got {own}"
        )
    return named, scale, told


def _dequantize(codes: Any, scale: Any, dtype: Any, codes_dtype: Any, out: Any, stream: Any) -> Any:
    where = "fastact.dequantize"
    named, scale, told = decoded(where, codes, scale, dtype, codes_dtype)
    framework = framework_of(codes)
    if framework is None or framework.name in IMMUTABLE:
        came = framework.name if framework else validate.describe(codes)
        raise TypeError(f"{where}: codes must be an array that can be written, got {came}")
    with Call(where, stream, scale=scale) as call:
        validate.one_framework(where, {"codes": framework, "scale": call.framework})
        scales = call.views["scale"]
        view = call.take_as("codes", codes, quantized.as_bytes(codes), (BYTES,))
        *outer, last = view.shape
        count, kind = (scales.shape or (1,))[-1], _cpu.DTYPE_NAMES.index(told)
        (out,) = validate.outputs(where, out)
        y, made = call.output("out", out, "codes", dtype=kind, in_place=False)
        if 0 not in y.shape:
            is_few = count == 1 and math.prod(outer) < FEW_ROWS and last % FEW_ROWS == 0
            rows, of_codes = (
                quantized.rows_of(v, FEW_ROWS if is_few else count) for v in (y, view)
            )
            call.run(
                "decode",
                y=rows,
                reduced=(rows.ndim - 1,),
                scale=quantized.scales_of(scales, rows),
                codes=of_codes,
                format=FORMATS[named],
            )
        return call.result(out, made)


_cached = _cpu.CachedCall(_dequantize, sys.modules[__name__], "_cached")
