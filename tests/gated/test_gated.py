"""Gated activations: by their bounds everywhere, by torch, and what each option means."""

from itertools import product

import judged
import numpy as np
import pytest
import torch
from conftest import (
    ACTIVATIONS,
    assert_same_bits,
    needs_a_fused_isa,
    on_fused_isas,
    on_kernels,
    sample,
)
from gated_activations import HELD, OPS, Call, case, each_op, made

import fastact as fa

PAIRS = [op for op in OPS if not op.packed]


def numpy_of(framework, results):
    return tuple(framework.numpy(result) for result in results)


def assert_held(case_, backend):
    """A case is within its bounds."""
    found = judged.assert_right(case_.op, case_.given, [case_.dy], backend)
    assert {"y", *case_.op.gradients} - {"dbias"} <= found.keys()


@case
@pytest.mark.parametrize("options", [{}, HELD], ids=["plain", "held"])
def test_by_the_bounds(backend, dtype, shape, axis, options):
    for op, bias in product((fa.glu, fa.reglu), (False, True)):
        assert_held(made(op, dtype, shape, axis, bias=bias, **options), backend)


@pytest.mark.parametrize("name", ["identity", *(op.name for op in ACTIVATIONS)])
def test_every_activation(name, backend):
    for dtype in (np.float32, np.float16):
        case_ = made(fa.gated, np.dtype(dtype), (12, 37), activation=name)
        assert_held(case_, backend)


@each_op
def test_every_op(op, backend, dtype):
    assert_held(made(op, dtype, (21, 34), **HELD), backend)
    assert_held(made(op, dtype, (21, 34), bias=False), backend)


@pytest.mark.parametrize("gate", ["first", "second"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_packed_arrays(backend, dtype, gate, interleaved, axis):
    named = {"gate": gate, "interleaved": interleaved, "activation": "silu"}
    case_ = made(fa.glu, dtype, (26, 40, 3), axis, **named)
    assert_held(case_, backend)
    y = backend.numpy(case_.call(backend.of))
    bias = case_.packed(*case_.bias, 0)  # the halves as two arrays
    apart = Call(fa.gated, case_.a, case_.b, case_.dy, {"axis": axis}, case_.bias)
    assert_same_bits(y, backend.numpy(apart.call(backend.of)))
    dx, dbias = numpy_of(backend, case_.backward(backend.of))
    da, db, halves = numpy_of(backend, apart.backward(backend.of))
    assert_same_bits(dx, case_.packed(da, db, axis))
    if backend.exact:
        assert_same_bits(dbias, case_.packed(*np.split(halves, 2), 0))
    assert bias.shape == dbias.shape


def test_glu_is_torchs(dtype):
    x = made(fa.glu, dtype, (33, 64), bias=False).arrays[0].astype(np.float32)
    for axis in (0, 1):
        even = x[:32]
        ours = fa.glu(even, axis=axis)
        theirs = torch.nn.functional.glu(torch.from_numpy(even.copy()), axis).numpy()
        np.testing.assert_allclose(ours, theirs, 5e-7, 1e-7)


def gpt_oss(x, alpha=1.702, limit=7.0):
    """As its published code has it: interleaved, the gate first."""
    gate, up = x[..., ::2], x[..., 1::2]
    gate = gate.clamp(min=None, max=limit)
    up = up.clamp(min=-limit, max=limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def test_gpt_oss():
    x = torch.tensor(10 * np.random.default_rng(0).normal(size=(40, 66)), requires_grad=True)
    y = gpt_oss(x)
    dy = torch.randn(y.shape, dtype=torch.float64)
    y.backward(dy)
    named = {"limit": 7.0, "offset": 1.0, "alpha": 1.702}
    packed = {"activation": "quick_gelu", "gate": "first", "interleaved": True, **named}
    ours, saved = fa.glu.forward(x.detach(), **packed)
    torch.testing.assert_close(ours, y.detach(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(
        fa.glu.backward(dy, *saved, **packed), x.grad, rtol=1e-12, atol=1e-12
    )
    a, b = x.detach()[:, ::2], x.detach()[:, 1::2]
    torch.testing.assert_close(fa.swiglu(a, b, **named), ours, rtol=0, atol=0)


@pytest.mark.parametrize("named", [{}, {"limit": 7.0}], ids=str)
def test_zeros_keep_their_sign(named, dtype, backend):
    """Where nothing is added to a factor."""
    b = np.array([-0.0, 0.0, -0.0, 0.0] * 5, dtype)
    a = np.array([1.0, 2.0, -3.0, -4.0] * 5, dtype)
    y = backend.run(lambda a, b: fa.swiglu(a, b, **named), a, b)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(b) ^ np.signbit(a))


def test_clamps_are_torchs():
    """At a limit the gradient is 1, beyond it 0. A NaN passes, where torch makes 0 of it."""
    values = [-3.0, -2.0, 0.0, 2.0, 3.0, np.inf, -np.inf]
    a = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    y = torch.tanh(a.clamp(max=2.0)) * (b.clamp(-2.0, 2.0) + 0.5)
    y.backward(torch.ones_like(y))
    named = {"limit": 2.0, "offset": 0.5}
    ours, saved = fa.gated.forward(a.detach(), b.detach(), "tanh", **named)
    torch.testing.assert_close(ours, y.detach())
    da, db = fa.gated.backward(1.0, *saved, "tanh", **named)
    torch.testing.assert_close(da, a.grad)
    torch.testing.assert_close(db, b.grad)
    nan, one = np.array([np.nan, 1.0]), np.array([1.0, np.nan])
    da, _ = fa.gated.backward(1.0, nan, one, **named)
    assert np.isnan([fa.gated(nan, one, **named), da]).all()


def test_specials(dtype):
    """Without limits and offset: the bits of the activation times b."""
    a = sample(dtype, 2100)
    b = np.resize(np.array([1, -1, 0, -0.0, 2.5, np.inf, np.nan], dtype), a.shape)
    compute = np.float64 if dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        expected = (fa.mish(a.astype(compute)) * b.astype(compute)).astype(dtype)
        y = fa.gated(a, b, "mish")
    nan = np.isnan(expected.astype(float))
    assert (np.isnan(y.astype(float)) == nan).all()
    assert_same_bits(y[~nan], expected[~nan])


@needs_a_fused_isa
@each_op
@on_kernels
@pytest.mark.parametrize("limits", [{}, HELD], ids=["", "limit"])
def test_specials_on_devices(op, device, limits):
    """NaN, infinities and subnormals, at every place of a vector: the CPU's bits, or a NaN each."""
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.5, -1.5], np.float32)
    a, b, dy = (g.ravel() for g in np.meshgrid(values, values, values))
    orders = [{"gate": g, "interleaved": i} for g in ("first", "second") for i in (False, True)]
    for order in orders if op.packed else [{}]:
        case_ = Call(op, a, b, dy, {**order, **limits})
        with np.errstate(all="ignore"):
            expected = on_fused_isas(lambda of=case_: (of.call(), *of.backward()))[0]
        found = numpy_of(device, (case_.call(device.of), *case_.backward(device.of)))
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, two)


@case
def test_sums_have_the_bits_of_bias_grad(isa, shape, axis):
    for op in (fa.glu, fa.swiglu):
        case_ = made(op, np.dtype(np.float32), shape, axis)
        if op.packed:  # a sum's order is memory's
            continue
        *gradients, dbias = case_.backward()
        for gradient, half in zip(gradients, case_.parts(dbias, 0), strict=True):
            assert_same_bits(half, fa.bias_grad(gradient, axis=axis))


@each_op
def test_what_is_saved(op):
    case_ = made(op, np.dtype(np.float32), (50, 70), bias=False)
    _, saved = op.forward(*case_.arrays, **case_.named)
    assert all(kept is given for kept, given in zip(saved, case_.arrays, strict=False))
    assert saved[-1] is None
    for k in range(len(case_.arrays) if not op.packed else 0):
        arrays = [a.copy() for a in case_.arrays]
        with pytest.raises(ValueError, match=r"must not share memory with"):
            op.forward(*arrays, **case_.named, out=arrays[k])


def test_without_axes():
    y = fa.swiglu(np.float32(1.0), np.float32(2.0))
    assert y == fa.silu(np.float32(1.0)) * 2
    a, b = np.array(1.0), np.array(2.0)
    da, db = fa.swiglu.backward(1.0, a, b)
    assert_same_bits(np.asarray(db), np.asarray(fa.silu(a)))
    assert_same_bits(np.asarray(da), np.asarray(2 * fa.silu.backward(1.0, a)))


def test_numbers():
    a = np.arange(6, dtype=np.float32)
    assert_same_bits(fa.reglu(a, 2), 2 * a)
    assert_same_bits(fa.reglu.backward(1.0, a, 2.0, out=(None, np.empty_like(a)))[1], a)
    assert_same_bits(fa.swiglu(a, a, alpha=1.0), fa.gated(a, a))
    assert_same_bits(fa.swiglu(a, a, alpha=2), fa.gated(a, a, "quick_gelu", alpha=2.0))
    assert_same_bits(
        fa.geglu(a, a, approximate="tanh"), fa.gated(a, a, fa.gelu, approximate="tanh")
    )


def test_a_wider_bias(backend):
    case_ = made(fa.swiglu, np.dtype(np.float16), (40, 30))
    narrow, expected = (numpy_of(backend, (case_.call(backend.of),)), case_.backward(backend.of))
    wide = backend.of(case_.packed_bias.astype(np.float32))
    arrays = [*map(backend.of, case_.arrays)]
    assert_same_bits(backend.numpy(fa.swiglu(*arrays, bias=wide)), narrow[0])
    found = numpy_of(backend, fa.swiglu.backward(backend.of(case_.dy), *arrays, wide))
    assert found[-1].dtype == np.float32
    for ours, same in zip(found, numpy_of(backend, expected), strict=True):
        assert_same_bits(ours.astype(np.float16), same)
