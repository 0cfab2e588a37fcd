"""Whether a GPU gives the CPU's bits: every activation and its derivative, every float32 input.

The CPU's results for all 2^32 inputs are held to their bounds by `python -m fastact check`; where
the GPU's are the same bits, so are its own. float16 and bfloat16 run over all inputs, too, and may
differ by their last bit; float64 runs over random bits. tools/gpu_steps.py runs it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import ACTIVATIONS
from devices import DTYPES, KERNELS, Framework

CHUNK = 1 << 24
SAMPLES = 1 << 24  # of float64
# Units in the last place by which the two may differ. 16-bit results are rounded from a float32 of
# fewer instructions on a GPU.
ALLOWED = {"float16": 1, "bfloat16": 1, "float32": 0, "float64": 0}


def inputs(name: str, stride: int) -> Iterator[np.ndarray]:
    """Bit patterns, in pieces: all of them, each stride-th of float32, random ones of float64."""
    if name == "float64":
        yield np.random.default_rng(0).integers(0, 1 << 64, SAMPLES // stride, np.uint64)
        return
    unsigned = np.dtype(f"u{DTYPES[name].itemsize}")
    every = stride if name == "float32" else 1
    end = 1 << 8 * unsigned.itemsize
    for first in range(0, end, CHUNK * every):
        yield np.arange(first, min(first + CHUNK * every, end), every, dtype=unsigned)


def distances(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Units in the last place between floats of one type; a NaN is as good as another."""
    bits = np.dtype(f"i{got.dtype.itemsize}")

    def ordered(x: np.ndarray) -> np.ndarray:
        i = x.view(bits)
        return np.where(i < 0, np.iinfo(bits).min - i - bits.type(1), i).astype(np.longdouble)

    apart = np.abs(ordered(got) - ordered(expected))
    return np.where(np.isnan(got) & np.isnan(expected), 0, apart).astype(np.float64)


def test_distances() -> None:
    got, expected = np.float32([1, -0.0, np.nan, 0]), np.float32([1 + 2**-23, 0, -np.nan, 1e-45])
    assert distances(got, expected).tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize(
    "stride",
    [
        pytest.param(1, marks=pytest.mark.large),
        pytest.param(61, marks=pytest.mark.large),
        pytest.param(1_000_003, marks=pytest.mark.thorough),  # test_devices_bits.py has every class
    ],
)
@pytest.mark.parametrize("device", KERNELS, ids=lambda device: device.name)
@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name)
def test_bits_are_the_cpus(op: Any, device: Framework, stride: int) -> None:
    if stride < 1000 and "emulated" in device.name:
        pytest.skip("the emulated device would take hours")
    wrong = []
    for name, dtype in DTYPES.items():
        for direction, call in (("forward", op), ("derivative", lambda x: op.backward(1.0, x))):
            for x in (bits.view(dtype) for bits in inputs(name, stride)):
                with np.errstate(all="ignore"):
                    expected = call(x)
                apart = distances(device.run(call, x), expected)
                if (most := apart.max()) > ALLOWED[name]:
                    wrong.append(f"{direction}, {name}: {most:g} ULP at {x[apart.argmax()]!r}")
    assert not wrong, "\n".join(wrong)
