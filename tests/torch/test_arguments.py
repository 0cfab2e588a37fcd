"""Every argument of every op in torch's transforms: optional arrays, numbers for arrays, axes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import first_of_families
from processes import python_output
from tensors import sample

import fastact as fa
from fastact.ops.engine.op import arrays_of
from fastact.torch.dispatch import OPERATORS

# torch's own, of what it loads at the first use
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

OPS = list(fa.ops.values())

#: Arrays that samples of calls leave out, and the options that they need, by what samples have.
OPTIONAL: dict[str, Callable[[torch.Tensor, dict[str, Any]], dict[str, Any]]] = {
    "recurrent": lambda x, _: {"recurrent": 0.5 * x},
    "recurrent_bias": lambda _, named: {"recurrent_bias": 0.5 * named["bias"]},
    "where": lambda x, _: {"where": x > -0.5},
    "mask": lambda x, _: {"mask": x > -0.5},
    "by": lambda *_: {"by": torch.tensor([1, 0, 1]), "groups": 2},
    "weights": lambda x, _: {"weights": 1 + x * x},
    "positions": lambda *_: {"positions": torch.tensor([2, 0, 1])},
    "weight": lambda x, _: {"weight": torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)},
}


def arrays_named(op: Any) -> list[str]:
    return [name for name, kind in OPERATORS[op.name].takes.items() if kind.startswith("Tensor")]


def given(op: Any, named: dict[str, Any]) -> torch.Tensor:
    return named[op.entry_points["call"].arrays[0]]  # type: ignore[no-any-return]


class Call:
    """A call as a function of its first array, without names that tracers do not read."""

    def __init__(self, op: Any, named: dict[str, Any]) -> None:
        first, *others = op.entry_points["call"].arrays
        self.op, self.x, self.named, self.first = op, named[first], named, first
        self.others = [named[name] for name in others]
        self.rest = {n: v for n, v in named.items() if n not in (first, *others)}

    def __call__(self, x: Any) -> list[Any]:
        return [*arrays_of(self.op(x, *self.others, **self.rest))]

    def loss(self, x: Any) -> Any:
        return sum((y * y).sum() for y in self(x))

    def on_meta(self) -> list[Any]:
        move = lambda v: v.to("meta") if isinstance(v, torch.Tensor) else v  # noqa: E731
        return Call(self.op, {n: move(v) for n, v in self.named.items()})(move(self.x))


def holds_in_transforms(op: Any, named: dict[str, Any], *, forward_mode: bool = True) -> None:
    """Value and derivatives are the call's in torch.func, on the meta device and in a program."""
    call = Call(op, named)
    x, expected = call.x, call(call.x)
    leaf = x.clone().requires_grad_()
    (dx,) = torch.autograd.grad(call.loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(call.loss)(x), dx)
    if forward_mode:
        _, moved = torch.func.jvp(call.loss, (x,), (torch.ones_like(x),))
        torch.testing.assert_close(moved, dx.sum())
    if not op.written:
        for batched, y in zip(torch.func.vmap(call)(torch.stack([x, x])), expected, strict=True):
            assert torch.equal(batched[1], y)
    for made, y in zip(call.on_meta(), expected, strict=True):
        assert (made.shape, made.dtype) == (y.shape, y.dtype)


def left_out(op: Any) -> list[str]:
    named = sample(op)
    return [name for name in arrays_named(op) if name not in named]


#: A count that is an array is no constant of a program, and `moments` refuses it.
COUNTED = (fa.moments,)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        pytest.param(op, name, id=f"{op.name}-{name}")
        for op in OPS
        for name in left_out(op)
        if op not in COUNTED
    ],
)
def test_optional_arrays(op, name):
    named = sample(op)
    named |= OPTIONAL[name](given(op, named), named)
    holds_in_transforms(op, named, forward_mode=name != "by")


def spared(op: Any) -> list[str]:
    """The arrays that may be None, of those that samples have."""
    named, defaults = sample(op), op.entry_points["call"].defaults
    names = [name for name in arrays_named(op) if defaults.get(name, name) is None]
    return [n for n in names if named.get(n) is not None and "recurrent" not in n]


@pytest.mark.parametrize("op", [op for op in OPS if spared(op)], ids=lambda op: op.name)
def test_without_optional_arrays(op):
    """Each array that may be None is left out."""
    for name in spared(op):
        holds_in_transforms(op, {**sample(op), name: None}, forward_mode=False)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        pytest.param(*case.values, marks=case.marks, id=case.id)
        for case in first_of_families((op, name) for op in OPS for name in arrays_named(op)[1:])
    ],
)
def test_a_number_in_the_place_of_an_array(op, name):
    """As eager calls take it; what they refuse is refused."""
    for number in (0.5, True):
        named = {**sample(op), name: number}
        try:
            Call(op, named)(given(op, named))
        except (TypeError, ValueError) as error:
            with pytest.raises(type(error)):
                Call(op, named).on_meta()
            continue
        if op not in COUNTED:
            holds_in_transforms(op, named)


def axes_of(op: Any) -> Iterator[tuple[str, Any]]:
    for name, kind in OPERATORS[op.name].takes.items():
        if kind.startswith("int[]"):
            yield from ((name, axis) for axis in (-1, (-1,), (1, 0), [1, 0]))


@pytest.mark.parametrize("op", [op for op in OPS if [*axes_of(op)]], ids=lambda op: op.name)
def test_one_axis_or_several(op):
    groups = [{}, {"group_size": 2}] if "group_size" in OPERATORS[op.name].takes else [{}]
    for name, axis in axes_of(op):
        for more in groups:
            named = {**sample(op), name: axis, **more}
            for optional in ("weight", "bias"):
                named.pop(optional, None)
            try:
                Call(op, named)(given(op, named))
            except (TypeError, ValueError) as error:
                with pytest.raises(type(error)):
                    Call(op, named).on_meta()
                continue
            holds_in_transforms(op, named)


PLAIN = (fa.gated_rms_norm, fa.swiglu, fa.log_softmax)
COMPILED = [
    *((op, name) for op in OPS for name in left_out(op) if op not in COUNTED),
    *((fa.gated_rms_norm, "group_size"), (fa.swiglu, "b")),
]


@pytest.mark.parametrize(
    ("op", "name"),
    [
        # A program takes seconds: a plain run has what is no optional array, and one that is.
        pytest.param(op, name, marks=() if op in PLAIN else pytest.mark.thorough)
        for op, name in COMPILED
    ],
)
def test_compiled_with_an_optional_argument(op, name):
    named = sample(op)
    changes = {"group_size": {"group_size": 2, "weight": None}, "b": {"b": 2.0}}
    named |= changes[name] if name in changes else OPTIONAL[name](given(op, named), named)
    call = Call(op, named)
    torch._dynamo.reset()
    compiled = torch.compile(call.__call__, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(call.x), call(call.x), strict=True):
        assert torch.equal(one, other)


# --- results in 8 bits, moments, forward mode -----------------------------------------------------

QUANTIZED = [op for op in OPS if hasattr(op, "quantized") and not op.traits.counts_elements]


@pytest.mark.parametrize("op", first_of_families(QUANTIZED))
def test_codes_without_memory(op):
    """On the meta device, in torch.func.vmap and in a trace: as they are of memory."""
    named = {n: v for n, v in sample(op).items() if n != "training"}
    call = op.bound("call", named)
    args, options = call.args, call.keywords
    if op is fa.batch_norm:
        return  # its statistics are written
    for per in ("row", "tensor", 2):
        expected = op.quantized(*args, **options, per=per)
        moved = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
        rest = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in options.items()}
        for made, like in zip(op.quantized(*moved, **rest, per=per), expected, strict=True):
            assert (made.shape, made.dtype) == (like.shape, like.dtype)
        batch = torch.func.vmap(lambda x, per=per: op.quantized(x, *args[1:], **options, per=per))
        for made, like in zip(batch(torch.stack([args[0], args[0]])), expected, strict=True):
            assert torch.equal(made[1], like)
    with pytest.raises(ValueError, match="per must divide the 4 elements"):
        op.quantized(*moved, **rest, per=3)


@pytest.mark.parametrize(
    "what", ["m2", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("var", "std"))]
)
def test_moments_in_one_graph(what):
    def function(x: Any) -> Any:
        found = getattr(fa.moments(x, 0), what)
        return found() if callable(found) else found

    x = torch.randn(5, 3)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)


@pytest.mark.thorough  # a process that imports torch takes seconds
def test_a_dtype_that_numpy_lacks():
    """Without ml_dtypes NumPy has no bfloat16, and torch has."""
    program = """
import sys
sys.modules["ml_dtypes"] = None
import torch, fastact as fa
x = torch.ones(3, 4, device="meta")
for op in (fa.sum, fa.mean, fa.nansum, fa.sum_squares):
    assert op(x, dtype=torch.bfloat16).dtype is torch.bfloat16
assert fa.sum(x.bfloat16()).dtype is torch.bfloat16
"""
    python_output(program)
