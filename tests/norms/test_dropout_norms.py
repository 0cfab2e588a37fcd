"""Norms of a sum whose first summand is dropped in part: the bits of dropout and of the norm."""

import re

import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from layouts import views
from normed import NORMS

import fastact as fa
from fastact.measure.norm_rows import traits

DROPPING = [op for op in NORMS if traits(op).drops]
each_op = pytest.mark.parametrize("op", DROPPING, ids=lambda op: op.name)
TOLD = {"p": 0.25, "seed": -7, "offset": 3}


def plain(op):
    """The norm without a sum, and its weights."""
    return (fa.layer_norm, 2) if traits(op).centred else (fa.rms_norm, 1)


def arrays(op, dtype, shape):
    rng = np.random.default_rng(0)
    made = [rng.normal(size=shape).astype(dtype) for _ in range(4)]
    return *made, [rng.normal(size=shape[-1:]).astype(dtype) for _ in range(plain(op)[1])]


# Rows that are no whole blocks of numbers, that share a buffer, and that take several chunks.
@each_op
@pytest.mark.parametrize("shape", [(9, 7), (5, 3, 256), (3, 5001)], ids=str)
@pytest.mark.parametrize("how", [{}, {"activation": "mish"}, {"casting": "llama"}], ids=str)
def test_the_bits_of_two_ops(backend, dtype, op, shape, how):
    if "casting" in how and traits(op).centred:
        pytest.skip("it has no casting")
    x, residual, dy, dtotal, weights = arrays(op, dtype, shape)
    of = backend.of
    given_weights = [*map(of, weights)]
    (y, total), saved = op.forward(of(x), of(residual), *given_weights, **TOLD, **how)
    assert_same_bits(
        backend.numpy(total), backend.numpy(fa.dropout(of(x), residual=of(residual), **TOLD))
    )
    norm, _ = plain(op)
    expected, kept = norm.forward(
        total, *given_weights, eps=op.entry_points["call"].defaults["eps"], **how
    )
    assert_same_bits(backend.numpy(y), backend.numpy(expected))
    dx, dresidual, *rest = op.backward(of(dy), *saved, **TOLD, **how)
    of_total, *others = norm.backward(of(dy), *kept, **how)
    for a, b in zip((dresidual, *rest), (of_total, *others), strict=True):
        assert_same_bits(backend.numpy(a), backend.numpy(b))
    assert_same_bits(backend.numpy(dx), backend.numpy(fa.dropout.backward(dresidual, **TOLD)))

    dx, dresidual, *_ = op.backward(of(dy), *saved, dtotal=of(dtotal), **TOLD, **how)
    assert_same_bits(backend.numpy(dx), backend.numpy(fa.dropout.backward(dresidual, **TOLD)))
    wide = np.float64
    near = backend.numpy(of_total).astype(wide) + dtotal.astype(wide)
    np.testing.assert_allclose(backend.numpy(dresidual).astype(wide), near, 2e-2, 2e-2)


@each_op
def test_some_gradients_and_accumulation(backend, dtype, op):
    x, residual, dy, start, weights = arrays(op, dtype, (9, 130))
    of, told = backend.of, {"p": 0.5, "seed": 2**64 - 1}
    _, saved = op.forward(of(x), of(residual), *map(of, weights), **told)
    every = op.backward(of(dy), *saved, **told)
    for i in range(len(every)):
        outs = [of(np.full_like(start if i < 2 else weights[0], 7)) if i == k else None
                for k in range(len(every))]  # fmt: skip
        (found,) = (
            a for a in op.backward(of(dy), *saved, **told, out=tuple(outs)) if a is not None
        )
        assert_same_bits(backend.numpy(found), backend.numpy(every[i]))
    sums = [of(a.copy()) for a in (start, start, *weights)]
    op.backward(of(dy), *saved, **told, out=tuple(sums), accumulate=True)
    for total, one, was in zip(sums, every, (start, start, *weights), strict=True):
        exact = backend.numpy(one).astype(np.float64) + was.astype(np.float64)
        rough = 2e-2 if dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(backend.numpy(total).astype(np.float64), exact, rough, rough)
    # In dy's memory, and in x's.
    outs = [of(dy), saved[0], *(None for _ in weights)]
    found = op.backward(outs[0], *saved, **told, out=tuple(outs))
    for a, b in zip(found[:2], every[:2], strict=True):
        assert_same_bits(backend.numpy(a), backend.numpy(b))


@each_op
@given(views((3, 5, 37)), views((3, 5, 37), writable=True), st.sampled_from([-1, (0, 2)]))
def test_the_mask_follows_the_index_in_any_layout(op, of_x, of_out, axis):
    x = of_x(np.linspace(1, 2, 3 * 5 * 37).reshape(3, 5, 37).astype(np.float32))
    residual, told = np.ascontiguousarray(x[::-1]), {"axis": axis, "p": 0.5, "seed": 1}
    outs = [of_out(np.zeros(x.shape, x.dtype)) for _ in range(2)]
    op(x, residual, **told, out=tuple(outs))
    total = fa.dropout(np.ascontiguousarray(x), 0.5, seed=1, residual=residual)
    assert_same_bits(outs[1], total)
    (y, _), saved = op.forward(x, residual, **told)
    assert_same_bits(outs[0], y)
    dx, dresidual, *_ = op.backward(x, of_x(total), *saved[1:], **told)
    assert_same_bits(dx, fa.dropout.backward(dresidual, 0.5, seed=1))


@each_op
def test_all_and_nothing(backend, dtype, op):
    x, residual, dy, _, _ = arrays(op, dtype, (4, 40))
    without = fa.add_layer_norm if traits(op).centred else fa.add_rms_norm
    found = op(backend.of(x), backend.of(residual), p=0, seed=1)
    for a, b in zip(found, without(backend.of(x), backend.of(residual)), strict=True):
        assert_same_bits(backend.numpy(a), backend.numpy(b))
    x[:] = np.nan
    _, total = op(backend.of(x), backend.of(residual), p=1, seed=1)
    assert_same_bits(backend.numpy(total), residual)
    _, saved = op.forward(*map(backend.of, (x, residual)), p=1, seed=1)
    dx, dresidual, *_ = map(backend.numpy, op.backward(backend.of(dy), *saved, p=1, seed=1)[:2])
    assert not dx.any()
    assert dresidual.any()


@each_op
@pytest.mark.parametrize(
    ("named", "error", "says"),
    [
        ({"p": 1.5}, ValueError, "p must be from 0 to 1, got p=1.5"),
        ({"p": np.nan}, ValueError, "p must be finite, got nan"),
        (
            {"seed": 2**64},
            ValueError,
            f"seed must be an integer from {-(2**63)} to {2**64 - 1}, got",
        ),
        ({"seed": True}, TypeError, "seed must be an integer, got True"),
        ({"offset": -1}, ValueError, f"offset must be an integer from 0 to {2**63 - 1}, got -1"),
    ],
)
def test_errors(op, named, error, says):
    x = np.ones((2, 3), np.float32)
    out = np.full_like(x, 7)
    with pytest.raises(error, match=f"^fastact.{op.name}: {says}"):
        op(x, x, **{"p": 0.5, "seed": 0, **named}, out=(out, None))
    assert (out == 7).all()


@each_op
def test_what_must_be_given(op):
    x = np.ones((2, 3))
    for named, lacking in (({"p": 0.5}, "seed"), ({"seed": 1}, "p")):
        with pytest.raises(
            TypeError, match=re.escape(f"fastact.{op.name}: {lacking} must be given")
        ):
            op(x, x, **named)


# --- torch ----------------------------------------------------------------------------------------


def tensors(op):
    torch.manual_seed(1)
    shapes = [(5, 7), (5, 7), *[(7,)] * plain(op)[1]]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@each_op
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own
def test_gradients_of_torch(op):
    def f(*given):
        return op(*given, p=0.5, seed=3)

    given = tensors(op)
    assert torch.autograd.gradcheck(f, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, given)
    for needed in given:
        y, total = f(*(t if t is needed else t.detach() for t in given))
        if total.requires_grad:
            (found,) = torch.autograd.grad(y.sin().sum() + total.sum(), needed)
        else:
            (found,) = torch.autograd.grad(y.sin().sum(), needed)
        assert found.shape == needed.shape


@each_op
def test_compiled(op):
    def f(*given):
        y, total = op(*given, p=0.5, seed=3)
        return y.sin() + total

    given = tensors(op)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    y, expected = compiled(*given), f(*given)
    assert torch.equal(y, expected)
    found = torch.autograd.grad(y.sum(), given)
    for a, b in zip(found, torch.autograd.grad(expected.sum(), given), strict=True):
        torch.testing.assert_close(a, b)
