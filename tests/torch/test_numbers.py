"""Numbers beyond what native code and torch's schemas hold, in the place of any argument."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensors import each_op, sample

import fastact as fa

HUGE = [10**400, -(10**400), 2**64, 2**63, -(2**63) - 1]
Named = dict[str, Any]

# torch's own, of what it loads at the first use
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def plain(op: Any, first: str, named: Named) -> Any:
    return op.bound("call", named)()


def on_meta(op: Any, first: str, named: Named) -> Any:
    return plain(
        op, first, {n: v.to("meta") if torch.is_tensor(v) else v for n, v in named.items()}
    )


def recorded(op: Any, first: str, named: Named) -> Any:
    return plain(op, first, {**named, first: named[first].clone().requires_grad_()})


def transformed(op: Any, first: str, named: Named) -> Any:
    batch = torch.stack([named[first]] * 2)
    return torch.func.vmap(lambda x: plain(op, first, {**named, first: x}))(batch)


@pytest.mark.parametrize("way", [plain, on_meta, recorded, transformed], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of a correction that leaves nothing
@each_op
def test_a_number_is_computed_or_a_named_error(op: Any, way: Callable[..., Any]) -> None:
    """By every way into torch; torch's own words would say that an int is no int."""
    named = {**sample(op), **dict.fromkeys(op.written)}
    point = op.entry_points["call"]
    for name in (*point.arrays[1:], *point.defaults):
        for value in HUGE:
            try:
                way(op, point.arrays[0], {**named, name: value})
            except (TypeError, ValueError) as error:
                told = str(error)
                if not (
                    op is fa.moments and told.startswith("vmap")
                ):  # whose results torch refuses
                    assert told.startswith(f"fastact.{op.name}: "), (name, value)
                assert "Expected a value of type 'int'" not in told


def test_a_number_that_is_a_symbol() -> None:
    """What torch.compile traces for any number has no range that could be compared."""
    dy, x = torch.arange(12.0).reshape(3, 4), torch.ones(1, 4)
    calls: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
        (lambda dy, x: fa.unbroadcast(dy, tuple(x.shape)), [(dy, x), (dy[:, :3], x[:, :3])]),
        (lambda dy, seed: fa.dropout(dy, 0.5, seed=seed), [(dy, 3), (dy, 5), (dy, -1)]),
        (lambda dy, axis: fa.softmax(dy, axis), [(dy, 0), (dy, 1), (dy, -2)]),
        (lambda dy, mask: fa.softmax(dy, mask=mask), [(dy, 0.5), (dy, 0.25), (dy, 3.0)]),
    ]
    for call, given in calls:
        torch._dynamo.reset()
        compiled = torch.compile(call, backend="eager", dynamic=True, fullgraph=True)
        for values in given:
            assert torch.equal(compiled(*values), call(*values))


@pytest.mark.parametrize("op", [fa.softmax, fa.layer_norm, fa.mish], ids=lambda op: op.name)
def test_a_number_that_comes_back(op: Any) -> None:
    y, saved = op.forward(torch.ones(2, 3))
    rest = [None] * (len(op.gradients) - 1)
    with pytest.raises(ValueError, match=r"backward: ddx must be a number that float32 holds"):
        op.backward.backward(10**400, *rest, y, *saved)
