"""Ops under torch's autocast: in float32 where torch's own lists have it so, else as they are."""

import pytest
import torch
from tensors import each_op

import fastact as fa

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

# torch's name of an op, where it is another one than ours.
ATEN = {"softmax": "softmax.int", "log_softmax": "log_softmax.int", "cross_entropy": "nll_loss"}
KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
# What torch lists to be computed in 16 bits; here x keeps its dtype, beside a wider parameter.
NARROWED = {"prelu"}


@each_op
def test_as_torch_lists_it(op):
    name = ATEN.get(op.name, op.name.removeprefix("dropout_").removeprefix("add_"))
    if op.name in NARROWED or not hasattr(torch.ops.aten, name.partition(".")[0]):
        assert not op.traits.autocast
        return
    registered = torch._C._dispatch_dump(f"aten::{name}")
    assert op.traits.autocast == {
        device for device, key in KEYS.items() if f"{key}: " in registered
    }


def logits() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    return x.to(torch.bfloat16), torch.tensor([0, 5, 1, 2])


@pytest.mark.parametrize("grad", [False, True], ids=["", "recorded"])
def test_a_loss_in_float32(grad):
    x, target = logits()
    x.requires_grad_(grad)
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = fa.cross_entropy(x, target)
            theirs = torch.nn.functional.cross_entropy(x, target)
        assert loss.dtype == theirs.dtype == torch.float32
        torch.testing.assert_close(loss, theirs)
        if grad:
            pair = [torch.autograd.grad(each, x)[0] for each in (loss, theirs)]
            assert pair[0].dtype == torch.bfloat16
            torch.testing.assert_close(*pair)
        assert fa.cross_entropy(x, target).dtype == torch.bfloat16
    assert fa.cross_entropy.forward(x.detach(), target)[0].dtype == torch.bfloat16


def test_a_compiled_loss():
    x, target = logits()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return fa.cross_entropy(x, target)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = fa.cross_entropy(x, target)
    assert torch.equal(loss(x), expected)


def test_others_are_computed_as_they_are():
    x, _ = logits()
    weight = torch.ones(6, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = fa.layer_norm(x, weight)
        assert y.dtype == torch.nn.functional.layer_norm(x, (6,), weight).dtype == torch.bfloat16
        assert fa.softplus(x).dtype == torch.bfloat16
        assert fa.softplus(x.float()).dtype == torch.float32
