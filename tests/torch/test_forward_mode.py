"""Forward mode, second derivatives and their mixtures, of every op, in float64.

Ops of a family go one way: a plain run has most tests of its first one. What each formula gives,
tests/ops/test_derivatives.py has.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from conftest import each_family, first_of_families
from tensors import called, differentiated, each_op, sample
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import fastact as fa
from fastact.ops.engine.entry import REQUIRED

# torch's own, of what it loads at the first use
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

#: Other values of options, where ops take them and they fit the sample.
OPTIONS: dict[str, Any] = {
    "activation": "silu", "axis": 1, "channel_axis": 2, "keepdims": True, "scale": 0.5,
    "limit": 0.75, "offset": 0.5, "correction": 1.0, "weight_offset": 0.5, "interleaved": True,
    "label_smoothing": 0.25, "reduction": "none", "eps": 0.5, "training": False, "alpha": 0.5,
    "beta": 2.0, "lambd": 0.25, "negative_slope": 0.2, "initial": 0.5, "dtype": "float64",
    "softcap": 1.5, "z_loss": 0.3, "group_size": 2,
}  # fmt: skip


def function_of(
    op: Any, dtype: Any = torch.float64, offset: float = 0.0, /, **options: Any
) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """A call as a function of the arguments that have gradients, and these."""
    named = {**sample(op), **options}
    if op.writes(named):  # one array for all examples of a batch
        named |= dict.fromkeys(op.written)
    names = differentiated(op, named)
    for name, value in named.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            named[name] = (value + offset * (name == names[0])).to(dtype)
    return called(op, named, names), tuple(named[name].requires_grad_() for name in names)


def of_first(op: Any, *how: Any) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """The first result as a function of the first argument, and that."""
    f, (x, *others) = function_of(op, *how)
    return lambda x: f(x, *(t.detach() for t in others))[0], x.detach()


@each_family
def test_first_derivatives(op):
    f, tensors = function_of(op)
    assert gradcheck(f, tensors, check_forward_ad=True, check_batched_grad=True)


@each_op
def test_second_derivatives(op):
    """By one product of random vectors with each; `test_hessians` has every element by x."""
    f, tensors = function_of(op)
    assert gradgradcheck(
        f, tensors, check_fwd_over_rev=True, check_rev_over_rev=True, fast_mode=True
    )


@each_family
def test_second_derivatives_by_constant_gradients(op):
    """Gradients that come in may require none themselves."""
    f, tensors = function_of(op)

    def gradients(*given: torch.Tensor) -> Any:
        results = f(*given)
        weights = [torch.arange(1.0, y.numel() + 1).reshape(y.shape).to(y) for y in results]
        return torch.autograd.grad(results, given, weights, create_graph=True)

    assert gradcheck(gradients, tensors, fast_mode=True)


def fits(op: Any, option: str) -> bool:
    """Whether an op has an option, of which samples have no value, and it fits the sample."""
    if op.entry_points["call"].defaults.get(option, REQUIRED) is REQUIRED:
        return False
    f, tensors = function_of(op, **{option: OPTIONS[option]})
    try:
        f(*tensors)
    except (TypeError, ValueError):
        return False
    return True


@pytest.mark.parametrize(
    ("op", "option"),
    first_of_families(
        (op, option) for op in fa.ops.values() for option in OPTIONS if fits(op, option)
    ),
)
def test_options(op, option):
    """The formulas by which more is found read them as the op does."""
    f, tensors = function_of(op, **{option: OPTIONS[option]})
    assert gradcheck(f, tensors, check_forward_ad=True)
    assert gradgradcheck(f, tensors, fast_mode=True)


@each_family
def test_hessians(op):
    """Each mixture of both modes agrees; ops of a family are composed alike."""
    f, x = of_first(op)

    def g(x: torch.Tensor) -> torch.Tensor:
        return (f(x) ** 2).sum()

    expected = torch.autograd.functional.hessian(g, x)
    rev, fwd = torch.func.jacrev, torch.func.jacfwd
    for way in (fwd(rev(g)), rev(fwd(g)), rev(rev(g)), fwd(fwd(g))):
        assert torch.allclose(way(x), expected)


@each_family
def test_gradients_of_dual_tensors(op):
    """`backward` inside a level of dual numbers has the gradient and its tangent."""
    f, x = of_first(op)
    tangent = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
    gradient = torch.func.grad(lambda x: (f(x) ** 2).sum())
    expected = torch.func.jvp(gradient, (x,), (tangent,))
    with forward_ad.dual_level():
        leaf = x.clone().requires_grad_()
        y = f(forward_ad.make_dual(leaf, tangent))
        found = forward_ad.unpack_dual(*torch.autograd.grad((y**2).sum(), leaf))
        assert torch.equal(found[0], expected[0])
        assert torch.allclose(found[1], expected[1])


@each_family
def test_values_are_those_of_calls(op):
    """Bit for bit, whatever comes with them: a tangent, two of them, a gradient, a batch.

    In float32 torch's arithmetic has other bits, and a common offset takes its digits.
    """
    f, x = of_first(op, torch.float32, 1e3)

    def g(x: torch.Tensor) -> torch.Tensor:
        return f(x).sum()

    def with_tangent(f: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(f, (x,), (torch.ones_like(x),))[0]

    values = partial(with_tangent, f)
    for dtype in (torch.float16, torch.bfloat16):
        narrow, y = of_first(op, dtype)
        value, tangent = torch.func.jvp(narrow, (y,), (y,))
        assert torch.equal(value, narrow(y))
        assert tangent.dtype == value.dtype
    expected, gradient = f(x), torch.func.grad(g)(x)
    assert torch.equal(values(x), expected)
    assert torch.equal(with_tangent(values, x), expected)
    assert torch.equal(with_tangent(torch.func.grad(g), x), gradient)
    assert torch.equal(torch.func.vjp(values, x)[0], expected)
    assert torch.equal(torch.func.grad(lambda x: values(x).sum())(x), gradient)
    if "target" not in op.entry_points["call"].arrays:
        batch = torch.stack([x, x / 2])
        assert torch.equal(torch.func.vmap(values)(batch), torch.func.vmap(f)(batch))


@pytest.mark.parametrize("dual", [False, True], ids=["jvp", "dual"])
@pytest.mark.parametrize("op", [op for op in fa.ops.values() if op.written], ids=str)
def test_what_a_call_writes(op, dual):
    """It is written in forward mode, too, once, and the tangent is as if it were not there."""
    f, x = of_first(op)
    tangent = torch.ones_like(x).cumsum(0)
    _, expected = torch.func.jvp(f, (x,), (tangent,))
    written = []
    for in_forward_mode in (False, True):
        kept = {n: torch.full(x.shape[1:], 2.0, dtype=x.dtype) for n in op.written}
        g = called(op, {**sample(op), **kept}, differentiated(op, sample(op))[:1])
        if not in_forward_mode:
            g(x)
        elif dual:
            with forward_ad.dual_level():
                y = g(forward_ad.make_dual(x, tangent))[0]
                assert torch.equal(forward_ad.unpack_dual(y).tangent, expected)
        else:
            _, found = torch.func.jvp(lambda x, g=g: g(x)[0], (x,), (tangent,))
            assert torch.equal(found, expected)
        written.append(kept)
    assert all(torch.equal(written[0][n], written[1][n]) for n in op.written)


@pytest.mark.parametrize("size", [1e22, 1e-30])
@pytest.mark.parametrize(
    "op",
    [op for op in fa.ops.values() if "dtype" in op.entry_points["call"].defaults],
    ids=lambda op: op.name,
)
def test_results_wider_than_data(op, size):
    """Tangents have the range of results in float64, where squares of float32 have none."""
    found = []
    for dtype in (torch.float32, torch.float64):
        f, (x, *others) = function_of(op, torch.float32, dtype="float64")
        x, *others = (t.detach().to(dtype) for t in (x * size, *others))
        found.append(torch.func.jvp(lambda x, f=f, others=others: f(x, *others), (x,), (x,))[1])
    # sums of a few dozen terms in float64, of data that is the same
    for got, right in zip(*found, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@each_family
def test_narrow_data(op, dtype):
    """In float32, as accurate as their dtype; what they have in float64 is the reference."""
    _, tensors = function_of(op)
    found = []
    for kind in (torch.float64, dtype):
        leaves = [t.detach().to(dtype).to(kind).requires_grad_() for t in tensors]
        named = {
            n: v.to(kind) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
            for n, v in sample(op).items()
        }
        named |= dict.fromkeys(op.written) if op.writes(named) else {}
        y = called(op, named, differentiated(op, named))(*leaves)[0]
        (dx,) = torch.autograd.grad(y.sum(), leaves[0], create_graph=True)
        if not dx.requires_grad:  # it is constant
            found.append(torch.zeros_like(dx))
            continue
        found.append(torch.autograd.grad((dx * dx).sum(), leaves[0])[0])
    assert found[1].dtype == dtype
    scale = max(1.0, float(found[0].abs().max()))
    error = (found[1].double() - found[0]).abs().max()
    # dx, its square's gradient and the result are rounded to the dtype, and what they are made of
    assert error <= 32 * torch.finfo(dtype).eps * scale


@pytest.mark.parametrize(
    "op", [op for op in fa.ops.values() if not op.piecewise_linear], ids=lambda op: op.name
)
def test_a_third_derivative(op):
    """An error that names the op; of those that are linear in pieces it is 0."""
    f, x = of_first(op)
    x.requires_grad_()
    (dx,) = torch.autograd.grad((f(x) ** 2).sum(), x, create_graph=True)
    (ddx,) = torch.autograd.grad((dx * dx).sum(), x, create_graph=True)
    words = rf"^fastact\.{re.escape(op.name)}: has no third derivative"
    with pytest.raises(RuntimeError, match=words):
        torch.autograd.grad(ddx.sum(), x)
