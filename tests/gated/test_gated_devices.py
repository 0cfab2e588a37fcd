"""A device has the CPU's bits of gated activations, whichever way it reads their arrays."""

from typing import Any

import numpy as np
import pytest
from conftest import assert_same_bits, needs_a_fused_isa, on_fused_isas, on_kernels
from devices import DTYPES, FRAMEWORKS, Framework
from gated_activations import HELD, Call, each_op, made

pytestmark = [
    needs_a_fused_isa,
    on_kernels,
    pytest.mark.parametrize("limits", [{}, HELD], ids=["", "limit"]),
]

# One element; rows of whole vectors, of less and of more than one; several tiles of channels;
# several chunks of rows; more axes.
SHAPES = [(1, 1), (5, 16), (9, 33), (3, 1100), (1500, 8), (3, 5, 24), (37,)]


def orders(op: Any) -> list[dict[str, Any]]:
    """How a packed array may hold its halves."""
    if not op.packed:
        return [{}]
    return [{"gate": g, "interleaved": i} for g in ("first", "second") for i in (False, True)]


def everything(case: Call, place: Framework = FRAMEWORKS[0]) -> list[np.ndarray]:
    """y and all gradients."""
    return [place.numpy(a) for a in (case.call(place.of), *case.backward(place.of))]


@each_op
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_bits_of_the_cpu(op, device, shape, name, limits):
    """The same formulas, the same bits, whichever way each array is read; sums differ by order."""
    for order in orders(op):
        for bias in (False, True):
            case = made(op, DTYPES[name], shape, bias=bias, **order, **limits)
            expected = on_fused_isas(lambda case=case: everything(case))[0]
            found = everything(case, device)
            for a, b in zip(found[: len(found) - bias], expected, strict=False):
                assert_same_bits(a, b)
            if bias:
                few = 1e-6 * np.sqrt(case.dy.size)
                np.testing.assert_allclose(found[-1], expected[-1], few, few)


@each_op
def test_specials(op, device, limits):
    """NaN, infinities and subnormals, at every place of a vector: the CPU's bits, or a NaN each."""
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.5, -1.5], np.float32)
    a, b, dy = (g.ravel() for g in np.meshgrid(values, values, values))
    for order in orders(op):
        case = Call(op, a, b, dy, {**order, **limits})
        with np.errstate(all="ignore"):
            expected = on_fused_isas(lambda case=case: everything(case))[0]
        for one, two in zip(everything(case, device), expected, strict=True):
            np.testing.assert_array_equal(one, two)
