"""Forward mode, second derivatives and their mixtures, of every op that has them, in float64."""

import re

import pytest
import torch
from tensors import called, differentiated, sample
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import fastact as fa

# torch's own, of what it loads at the first use
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

OPS = [op for op in fa.ops.values() if op.is_diagonal]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


def function_of(op):
    """A call as a function of the arguments that have gradients, and these."""
    named = sample(op)
    names = differentiated(op, named)
    return called(op, named, names), tuple(named[name].requires_grad_() for name in names)


@each_op
def test_first_derivatives(op):
    f, tensors = function_of(op)
    assert gradcheck(f, tensors, check_forward_ad=True, check_batched_grad=True)


@each_op
def test_second_derivatives(op):
    f, tensors = function_of(op)
    assert gradgradcheck(f, tensors, check_fwd_over_rev=True, check_rev_over_rev=True)


@each_op
def test_hessians(op):
    """By each mixture of both modes."""
    f, tensors = function_of(op)
    (x,) = (t.detach() for t in tensors)

    def g(x: torch.Tensor) -> torch.Tensor:
        return sum((y * y).sum() for y in f(x))

    expected = torch.autograd.functional.hessian(g, x)
    rev, fwd = torch.func.jacrev, torch.func.jacfwd
    for way in (fwd(rev(g)), rev(fwd(g)), rev(rev(g)), fwd(fwd(g))):
        assert torch.allclose(way(x), expected)


@each_op
def test_tangents_of_dual_tensors(op):
    """Whether they require grad, too, or not: as torch.func has them."""
    f, tensors = function_of(op)
    (x,) = (t.detach() for t in tensors)
    tangent = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
    expected, direction = torch.func.jvp(lambda x: f(x)[0], (x,), (tangent,))
    assert torch.equal(expected, op(x))
    assert torch.equal(direction, op.jvp(x, tangents=tangent)[1])
    for requires in (False, True):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.clone().requires_grad_(requires), tangent)
            y, found = forward_ad.unpack_dual(f(dual)[0])
            assert torch.equal(y, expected)
            assert torch.equal(found, direction)


@each_op
def test_a_third_derivative_is_an_error(op):
    """But where the op is linear in pieces."""
    f, (x,) = function_of(op)
    (dx,) = torch.autograd.grad(f(x)[0].sum(), x, create_graph=True)
    (ddx,) = torch.autograd.grad((dx * dx).sum(), x, create_graph=True)
    if op.piecewise_linear:
        return
    words = rf"^fastact\.{re.escape(op.name)}: has no third derivative"
    with pytest.raises(RuntimeError, match=words):
        torch.autograd.grad(ddx.sum(), x)
