"""The bits of float32 and float64 on a device are the CPU's: zeros have its signs, too.

A formula knows few classes of inputs: zeros; subnormal and tiny numbers, where it is linear; the
middle, where every operation rounds; the tails, where an exponential leaves the normal numbers and
then is 0; numbers that are clamped; infinities. test_devices_every_input.py has every float32.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import ACTIVATIONS, bits
from devices import DTYPES, FORCED_ISA, Framework
from test_accuracy import PARAMETERS

import fastact as fa
from fastact import _cpu

pytestmark = pytest.mark.skipif(
    not FORCED_ISA and _cpu.isa() == "v2", reason="without fused multiply-adds the bits differ"
)

# Every activation, and parameters of which some are out of the way.
CASES = [*((op.name, {}) for op in ACTIVATIONS), *PARAMETERS]


def classes(name: str) -> np.ndarray:
    """Inputs of all classes, of both signs."""
    dtype = DTYPES[name]
    info = np.finfo(dtype)
    rng = np.random.default_rng(0)
    least = float(info.smallest_subnormal)
    tiny = [0, least, 3 * least, float(info.tiny) / 2, float(info.tiny), float(info.max), np.inf]
    exponents = np.arange(info.minexp - info.nmant, info.maxexp).repeat(8)
    everywhere = np.ldexp(rng.uniform(1, 2, exponents.size), exponents)
    bend = rng.uniform(0, 20, 20_000)
    # From where exp(-x) is subnormal, and then 0, with some parameter or without: 87 to 110 or 708
    # to 760 in multiples, and where tails that are scaled end.
    end = 120.0 if name == "float32" else 860.0
    tail = np.concatenate([rng.uniform(0, end, 30_000), rng.uniform(0, 20 * end, 10_000)])
    positive = np.concatenate([tiny, everywhere, bend, tail])
    with np.errstate(over="ignore"):
        return np.concatenate([positive, -positive, [np.nan]]).astype(dtype)


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize(("op", "parameters"), CASES, ids=str)
def test_bits_are_the_cpus(op: str, parameters: Any, name: str, device: Framework) -> None:
    x = classes(name)
    for call in (fa.ops[op], partial(fa.ops[op].backward, 1.0), partial(fa.ops[op].backward, -1.0)):
        call = partial(call, **parameters)
        with np.errstate(all="ignore"):
            expected = call(x)
        found = device.run(call, x)
        differ = bits(found) != bits(expected)
        differ &= ~(np.isnan(found) & np.isnan(expected))
        assert not differ.any(), (
            f"{differ.sum()} differ, first {found[differ][0]!r} for {expected[differ][0]!r} "
            f"at {x[differ][0]!r}"
        )
