"""What only a device could get wrong of gated activations: ways to read and write, sums."""

import zlib
from typing import Any

import numpy as np
import pytest
from conftest import assert_agrees, assert_same_bits, needs_a_fused_isa, on_fused_isas
from devices import DTYPES, KERNELS
from recurrent import On, assert_all_same
from sums import assert_sums

import fastact as fa

OPS = [op for op in fa.ops.values() if op.family == "gated"]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
on_devices = pytest.mark.parametrize("device", KERNELS, ids=lambda device: device.name)

# One element; rows of whole vectors, of less and of more than one; several tiles of channels;
# several chunks of rows; more axes.
SHAPES = [(1, 1), (5, 16), (9, 33), (3, 1100), (1500, 8), (3, 5, 24), (37,)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)

LIMITS = [{}, {"limit": 1.5, "offset": 1.0}]


def orders(op: Any) -> list[dict[str, Any]]:
    """How a packed array may hold its halves."""
    if not op.packed:
        return [{}]
    return [{"gate": g, "interleaved": i} for g in ("first", "second") for i in (False, True)]


class Case:
    """Arguments of a call and of its backward; all of them NumPy's."""

    def __init__(
        self, op: Any, shape: tuple[int, ...], dtype: Any, axis: int = -1, bias: Any = None
    ) -> None:
        rng = np.random.default_rng(zlib.crc32(repr((op.name, shape)).encode()))
        double = list(shape)
        double[axis] *= 2
        each = [tuple(double)] if op.packed else [shape, shape]
        self.op, self.axis = op, axis
        self.arrays = [(2 * rng.normal(size=n)).astype(dtype) for n in each]
        self.dy = rng.normal(size=shape).astype(dtype)
        self.bias = None if bias is None else rng.normal(size=double[axis]).astype(bias)

    def laid_out(self, *change: Any) -> "Case":
        """The same values, each array in a layout of its own: x or a, b, and dy."""
        made = Case.__new__(Case)
        vars(made).update(vars(self))
        arrays = [f(a) for f, a in zip(change, [*self.arrays, self.dy], strict=False)]
        made.arrays, made.dy = arrays[:-1], arrays[-1]
        return made

    def backward(self, op: Any, **options: Any) -> tuple[Any, ...]:
        """The gradients, as a tuple also where it is one."""
        saved = (*self.arrays, self.bias)
        gradients = op.backward(self.dy, *saved, axis=self.axis, **options)
        return gradients if isinstance(gradients, tuple) else (gradients,)

    def everything(self, op: Any, **options: Any) -> tuple[Any, ...]:
        """y and all gradients."""
        y = op(*self.arrays, axis=self.axis, bias=self.bias, **options)
        return (y, *self.backward(op, **options))

    def zeros(self, value: float = 0.0) -> list[np.ndarray]:
        """Arrays for the gradients."""
        like = [*self.arrays, *([] if self.bias is None else [self.bias])]
        return [np.full_like(a, value) for a in like]


def same_on_the_cpu(case: Case, **options: Any) -> tuple[Any, ...]:
    """What the CPU gives by an instruction set with the fused multiply-add, as devices have it."""
    return on_fused_isas(lambda: case.everything(case.op, **options))[0]


@needs_a_fused_isa
@each_op
@on_devices
@each_shape
@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("limits", LIMITS, ids=["", "limit"])
def test_bits_of_the_cpu(op, device, shape, name, limits):
    """The same formulas, the same bits, whichever way each array is read; sums differ by order."""
    there = On(op, device)
    for order in orders(op):
        for bias in (None, DTYPES[name], np.dtype(np.float64)):
            case = Case(op, shape, DTYPES[name], bias=bias)
            expected = same_on_the_cpu(case, **order, **limits)
            sums = bias is not None
            for a, b in zip(case.everything(there, **order, **limits), expected, strict=True):
                if sums and b is expected[-1]:
                    np.testing.assert_allclose(a, b, 1e-6, 1e-6 * np.sqrt(case.dy.size))
                else:
                    assert_same_bits(a, b)


@each_op
@on_devices
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("limits", LIMITS, ids=["", "limit"])
def test_16_bits_agree_with_the_cpu(op, device, name, limits):
    for shape in ((7, 33), (40, 64)):
        for order in orders(op):
            for bias in (None, DTYPES[name], np.dtype(np.float32)):
                case = Case(op, shape, DTYPES[name], bias=bias)
                actual = case.everything(On(op, device), **order, **limits)
                expected = case.everything(op, **order, **limits)
                for a, b in zip(actual, expected, strict=True):
                    assert a.dtype == b.dtype
                    large = 1 + np.abs(b.astype(float)).max()
                    if bias is not None and b is expected[-1]:
                        large *= 100  # of the terms, as fast functions make them
                    assert_agrees(device, a, b, 8 * large)


@each_op
@on_devices
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_any_axis(op, device, dtype, axis):
    """Channels that are not innermost, one channel, and channels of an array in Fortran's order."""
    for shape in ((6, 4, 33), (1, 1, 24), (2, 300, 5)):
        case = Case(op, shape, dtype, axis, bias=dtype)
        expected = case.everything(op)
        turned = case.laid_out(*[np.asfortranarray] * 3)
        for one in (case, turned):
            made = one.everything(On(op, device))
            for a, b in zip(made, expected, strict=True):
                large = 1 + np.abs(b.astype(float)).max() * (8 if b.ndim == 1 else 1)
                assert_agrees(device, a, b, 8 * large)


@each_op
@on_devices
@each_shape
def test_sums(op, device, dtype, shape):
    """dbias is the sum of what was stored; of 16-bit gradients before they were rounded."""
    for order in orders(op):
        case = Case(op, shape, dtype, bias=np.dtype(np.float64))
        *made, dbias = case.backward(On(op, device), **order)
        terms = np.concatenate([d.astype(float) for d in made], -1)
        rows = terms.reshape(-1, terms.shape[-1]).T
        rounding = {2: 2.0**-8 + 2.0**-12, 4: 2.0**-24, 8: 0.0}[dtype.itemsize]
        more = rounding * np.abs(rows).sum(1) + 1e-6 * (dtype.itemsize == 2) * rows.shape[1]
        assert_sums(fa.bias_grad.bounds, dbias, np.ascontiguousarray(rows), more)


@each_op
@on_devices
def test_biases_of_a_wider_dtype_and_any_stride(op, device, dtype):
    there = On(op, device)
    wider = [d for d in DTYPES.values() if d.itemsize > dtype.itemsize]
    for shape in ((40, 16), (40, 9)):
        case = Case(op, shape, dtype, bias=dtype)
        expected = case.everything(there)
        for other in (dtype, *wider):
            case.bias = case.bias.astype(other)
            made = case.everything(there)
            assert_all_same(made[:-1], expected[:-1])
            assert made[-1].dtype == other
            case.bias = np.repeat(case.bias, 3)[::3]
            assert_all_same(case.everything(there), made)
            if "torch" not in device.name:
                case.bias = np.ascontiguousarray(case.bias[::-1])[::-1]
                assert_all_same(case.everything(there), made)


@needs_a_fused_isa
@each_op
@on_devices
def test_specials(op, device):
    """NaN, infinities and subnormals, at every place of a vector: the CPU's bits, or a NaN each."""
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.5, -1.5], np.float32)
    a, b, dy = (g.ravel() for g in np.meshgrid(values, values, values))
    for limits in LIMITS:
        for order in orders(op):
            case = Case(op, a.shape, np.float32)
            case.dy, case.arrays = dy.copy(), [a.copy(), b.copy()]
            if op.packed:
                case.arrays = [np.concatenate([a, b])]
            with np.errstate(all="ignore"):
                expected = same_on_the_cpu(case, **order, **limits)
            for one, two in zip(
                case.everything(On(op, device), **order, **limits), expected, strict=True
            ):
                np.testing.assert_array_equal(one, two)
