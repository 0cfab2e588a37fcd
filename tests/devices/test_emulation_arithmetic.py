"""The emulated device's instructions, against what the PTX ISA says of a GPU's."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

emulated: Any = pytest.importorskip(
    "fastact._cuda_emulated", reason="built with FASTACT_CUDA_EMULATION=ON only"
)
of: Any = emulated.selftest
TINY = float(np.finfo(np.float32).tiny)


def apart(found: float, exact: float) -> float:
    """In units of float32's last place."""
    return abs(found - exact) / float(np.spacing(np.float32(abs(exact))))


def test_powers_of_two() -> None:
    """Within 2 ULP, and not always the nearest; exact where they can be; flushed below 2^-126."""
    x = np.random.default_rng(0).uniform(-126, 127, 5000).astype(np.float32).tolist()
    errors = [apart(of.power_of_two(a), 2.0**a) for a in x]
    assert 0.5 < max(errors) <= 2
    assert all(of.power_of_two(float(k)) == 2.0**k for k in range(-126, 128))
    assert of.power_of_two(-126.5) == of.power_of_two(-math.inf) == 0
    assert of.power_of_two(1e-40) == of.power_of_two(-1e-40) == 1  # flushed itself
    assert of.power_of_two(128.0) == math.inf
    assert math.isnan(of.power_of_two(math.nan))


@pytest.mark.parametrize(
    ("name", "bits", "end"), [("reciprocal", 23, 2.0**126), ("reciprocal64", 20, 2.0**1022)]
)
def test_reciprocals(name: str, bits: int, end: float) -> None:
    """As many bits, and zero or infinity in place of subnormal numbers: 1 / x beyond 2^126."""
    reciprocal: Callable[[float], float] = getattr(of, name)
    x = (10.0 ** np.random.default_rng(1).uniform(-30, 30, 5000)).astype(np.float32).tolist()
    errors = [abs(reciprocal(a) * a - 1) for a in x]
    assert 0 < max(errors) <= 2.0**-bits
    for sign in (1.0, -1.0):
        assert reciprocal(sign * end) == sign / end
        for zero in (reciprocal(sign * end * 1.5), reciprocal(sign * math.inf)):
            assert (zero, math.copysign(1, zero)) == (0, sign)
        subnormal = 1e-40 if bits == 23 else 1e-310
        assert reciprocal(sign * subnormal) == reciprocal(sign * 0.0) == sign * math.inf
    assert math.isnan(reciprocal(math.nan))


def test_minimum_and_maximum() -> None:
    """-0 is below +0; of a number and a NaN it is the number."""
    for a, b in ((0.0, -0.0), (-0.0, 0.0)):
        assert math.copysign(1, of.minimum(a, b)) == -1
        assert math.copysign(1, of.maximum(a, b)) == 1
    for a, b in ((1.5, math.nan), (math.nan, 1.5)):
        assert of.minimum(a, b) == of.maximum(a, b) == 1.5
    assert (of.minimum(2.0, -3.0), of.maximum(2.0, -3.0)) == (-3, 2)
    assert math.isnan(of.minimum(math.nan, math.nan))
