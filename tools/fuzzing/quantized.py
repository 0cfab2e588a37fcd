"""The result in 8 bits of a call that is drawn, of an op that has it: the codes of two steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from fastact.check import reference
from fastact.ops.engine import parts, quantized

from . import calls, frameworks
from .judge import Live, Wrong, digest, flat


def check(case: Any, r: Random) -> None:
    """In parts of two lengths, by an op's own value where it is computed in the data's dtype."""
    request = case.request
    if request.entry != "call" or not isinstance(case.op, quantized.Quantizes):
        return
    if case.op.traits.counts_elements or request.given.get("training"):
        return
    live = Live(replace(request, outs=()), case.values[0])
    try:
        y, *others = flat(request.framework, live.call(calls.function(request)))
    except (TypeError, ValueError):  # a number of a kind that an op may refuse
        return
    if not y.ndim:
        return
    divisors = [n for n in range(1, y.shape[-1] + 1) if y.shape[-1] % n == 0]
    per: Any = r.choice(("row", "tensor", *divisors[-2:]))
    dtype = r.choice(tuple(quantized.FORMATS))

    def call(part: int) -> list[Any]:
        with (
            mock.patch.object(quantized, "_PART", part),
            mock.patch.object(parts, "_PART_OF_GPU", part),
        ):
            found, *others = live.call(partial(case.op.quantized, dtype=dtype, per=per))
        if request.framework == "torch":
            found = found.view(import_module("torch").int8)
        if request.framework == "emulated":
            found = np.frombuffer(found.tobytes(), np.int8).reshape(found.shape)
        found = frameworks.back(request.framework, found).view(np.int8)
        return [found, *flat(request.framework, tuple(others))]

    codes, scale, *sums = found = call(r.choice((32, 200, 1000)))
    where = f"quantized, dtype={dtype}, per={per}"
    if digest(call(1 << 20)) != digest(found):
        raise Wrong("bits", f"{where}: others in other parts")
    if digest(sums) != digest(others):
        raise Wrong("bits", f"{where}: another sum")
    if y.dtype.itemsize > 2:
        if digest([scale]) != digest([reference.scales(y, dtype, per)]):
            raise Wrong("value", f"{where}: the scale is {scale!r}")
        right = reference.codes(y, scale, dtype).view(np.int8)
        is_number = ~np.isnan(y)  # its sign and payload aside
        if not np.array_equal(codes * is_number, right * is_number):
            raise Wrong("value", f"{where}: codes are {codes!r}, not {right!r}")
    for name in live.blocks:
        if not live.untouched(name):
            raise Wrong("inputs", f"{name} was changed")
