"""Codes and scales of an array as it is: the identity's result in 8 bits."""

from __future__ import annotations

from typing import Any, Literal

from .activations import leaky_relu
from .engine.execute import said_by
from .engine.quantized import named_format
from .types import A, Array, DType, Outs, Stream

_IDENTITY: Any = leaky_relu  # with the slope 1


def quantize(
    x: A,
    /,
    *,
    dtype: DType = "int8",
    per: Literal["row", "tensor"] | int = "row",
    scale: Array | float | None = None,
    out: Outs[Array] = None,
    stream: Stream = None,
) -> tuple[A, A]:
    """An array in 8 bits: codes, and scales that give it back.

    ``codes * scale`` is about x: ``codes = round(x / scale)``, and without a scale that is known
    ``scale = max(abs(x)) / 127`` (float8: 448) over the elements that share it. An op's
    ``quantized`` makes the same of its result, which then is not written in between.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape but (), and any strides.
    dtype : {"int8", "float8_e4m3fn"} or dtype, default "int8"
        The dtype of the codes, by its name or as NumPy, ml_dtypes or torch has it.
    per : {"row", "tensor"} or int, default "row"
        Which elements share a scale: those along the last axis, all of them, or so many neighbours
        along the last axis, whose length they divide.
    scale : array or float, optional
        Scales that are known: a number for the whole, or an array of the shape that `per` says or
        of shape ().
    out : tuple, optional
        Where to write codes and scale; one that is None is allocated.
    stream : stream, optional
        Where a GPU computes.

    Returns
    -------
    codes : array
        Of x's shape.
    scale : array
        Of float32 (float64 for float64): one for each row or block, or without axes.

    Raises
    ------
    TypeError
        For an array of another dtype, or arrays that can't be written, as of JAX.
    ValueError
        For a scale that is not positive and finite, blocks that do not divide the last axis, an
        array of another shape, or x without axes.

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
            x, 1.0, dtype=dtype, per=per, scale=scale, out=out, stream=stream
        )
        return found
