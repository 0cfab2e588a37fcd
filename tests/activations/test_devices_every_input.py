"""Whether a GPU gives the CPU's bits: every activation and its derivative, every float32 input.

The CPU's results for all 2^32 inputs are held to their bounds by `python -m fastact check`; where
the GPU's are the same bits, so are its own. float64 runs over random bits. float16 and bfloat16 run
over all inputs, too; there a GPU has bounds of its own. tools/gpu_check.py runs it.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import ACTIVATIONS, bits, on_kernels
from devices import DTYPES, Framework

from fastact import _cpu
from fastact.check.expected import expected
from fastact.measure.cases import Case

pytestmark = pytest.mark.skipif(
    _cpu.isa() == "v2", reason="without fused multiply-adds the bits differ"
)

CHUNK = 1 << 24
SAMPLES = 1 << 24  # of float64
PARTS = 8  # of all inputs: one takes some seconds


def inputs(name: str, stride: int, part: int, parts: int) -> Iterator[np.ndarray]:
    """Bit patterns, in pieces: all of them, each stride-th of float32, random ones of float64.

    The pieces of float32 are dealt out to the parts; the first one has the other dtypes.
    """
    if name != "float32" and part:
        return
    if name == "float64":
        yield np.random.default_rng(0).integers(0, 1 << 64, SAMPLES // stride, np.uint64)
        return
    unsigned = np.dtype(f"u{DTYPES[name].itemsize}")
    every = stride if name == "float32" else 1
    end = 1 << 8 * unsigned.itemsize
    step = CHUNK * every
    for first in range(part * step, end, parts * step):
        yield np.arange(first, min(first + step, end), every, dtype=unsigned)


def fault(op: Any, entry: str, x: np.ndarray, device: Framework) -> str:
    """The fault of f(x), or of f' by what forward saves; "" if there is none."""
    call = op if entry == "call" else partial(op.backward, 1.0)
    found = device.run(call, x)
    if x.dtype.itemsize == 2:
        given = {"x": x} if entry == "call" else {"dy": 1.0, op.saves[0]: x}
        (exact,) = expected(Case(op, entry, x.shape, x.dtype, given, on_gpu=True)).values()
        shares = exact.shares(found)
        worst = int(shares.argmax())
        return f"{shares[worst]:.3g} times the bound at {x[worst]!r}" * bool(shares[worst] > 1)
    with np.errstate(all="ignore"):
        cpus = call(x)
    differ = (bits(found) != bits(cpus)) & ~(np.isnan(found) & np.isnan(cpus))
    return f"{differ.sum()} differ, first at {x[differ][0]!r}" if differ.any() else ""


@pytest.mark.parametrize(
    ("stride", "part", "parts"),
    [
        *(
            pytest.param(1, part, PARTS, id=f"1-{part}", marks=pytest.mark.large)
            for part in range(PARTS)
        ),
        pytest.param(61, 0, 1, id="61", marks=pytest.mark.large),
        # test_devices_bits.py has every class
        pytest.param(1_000_003, 0, 1, id="1000003", marks=pytest.mark.thorough),
    ],
)
@on_kernels
@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name)
def test_bits_are_the_cpus(op: Any, device: Framework, stride: int, part: int, parts: int) -> None:
    if stride < 1000 and "emulated" in device.name:
        pytest.skip("the emulated device would take hours")
    wrong = [
        f"{entry}, {name}: {found}"
        for name, dtype in DTYPES.items()
        for entry in ("call", "backward")
        for x in inputs(name, stride, part, parts)
        if (found := fault(op, entry, x.view(dtype), device))
    ]
    assert not wrong, "\n".join(wrong)
