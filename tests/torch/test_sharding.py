"""Ops on tensors that lie in parts on two processes: values, gradients and strategies."""

from typing import Any

import pytest
import torch
from processes import found_by_pair, join_pair
from tensors import differentiated, each_op, sample
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import fastact as fa
import fastact.torch.nn as fnn
from fastact.ops.engine.op import arrays_of
from fastact.torch import dispatch, sharding

OPS = [*fa.ops.values()]
SENT = [fa.mish, fa.bias_act, fa.layer_norm, fa.batch_norm, fa.sum, fa.softmax]


# --- what a strategy says, in one process ---------------------------------------------------------


def arrays(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [*found]


def weights_like(y: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)


def calls(op: Any, named: dict[str, Any]) -> list[tuple[Any, str, list[Any]]]:
    """The operators of a call, `forward` and `backward` with their arguments."""
    of = dispatch.operators_of(op, named)
    values = of.values(of.promoted(named))
    made = arrays(of.forward(*values))
    full = of.named(values)
    full.update(zip((*op.results, *op.models(full)[1]), made, strict=True))
    incoming = [weights_like(y) for y in made[: len(op.results)]]
    saved = [list(v) if isinstance(v, tuple) else v for v in op.saved(full)]
    wanted = [named.get(name) is not None for name in op.differentiated]
    told = of.values({n: v for n, v in full.items() if not isinstance(v, torch.Tensor)}, of.told)
    return [(of, "", values), (of, "_forward", values),
            (of, "_backward", [wanted, *incoming, *saved, *told])]  # fmt: skip


def rules_of(of: Any, entry: str, values: list[Any]) -> list[Any]:
    """The rules, where each computes of two parts what the operator computes of the whole."""
    whole = arrays(of.entries[entry](*values))
    at = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
    metas = [v.to("meta") if i in at else v for i, v in enumerate(values)]
    rules = list(sharding._ENTRIES[entry](of, metas).rules(len(whole)))
    for rule in rules:
        outs, places = rule[: len(whole)], dict(zip(at, rule[len(whole) :], strict=True))
        parts = []
        for rank in range(2):
            each = [
                v.tensor_split(2, places[i].dim)[rank] if isinstance(places.get(i), Shard) else v
                for i, v in enumerate(values)
            ]
            parts.append(arrays(of.entries[entry](*each)))
        for place, right, *two in zip(outs, whole, *parts, strict=True):
            if isinstance(place, Replicate):
                assert torch.equal(*two)
            got = torch.cat(two, place.dim) if isinstance(place, Shard) else two[0]
            got = got + two[1] if isinstance(place, Partial) else got
            torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-13)  # sums of parts
    return rules


@each_op
def test_parts_are_computed_alike(op):
    counts = [
        0 if op.traits.counts_elements else len(rules_of(*each)) for each in calls(op, sample(op))
    ]
    # Of a mean over all rows no part is known, and no part has the shape that a sum has saved.
    assert bool(counts[0]) is not (op.traits.counts_elements or op.results == ("loss",))
    assert bool(counts[2]) is (bool(counts[0]) and "shape" not in op.saves)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


LABELS = torch.tensor([0, 1, 0, 2])

#: Calls whose axes are of one length, and how many of these can be cut: lengths tell nothing.
CALLS: list[tuple[str, dict[str, Any], int]] = [
    ("cross_entropy", {"logits": normal(4, 4), "target": LABELS, "reduction": "none"}, 1),
    ("cross_entropy", {"logits": normal(4, 4), "target": LABELS, "reduction": "sum"}, 0),
    ("sum", {"x": normal(4, 4), "by": LABELS, "groups": 3, "axis": 0}, 0),
    ("average", {"x": normal(4, 4), "weights": normal(4).abs(), "axis": 0}, 0),
    ("nansum", {"x": normal(4, 4), "where": normal(4) > 0, "axis": 0}, 2),
    ("sum_squares", {"x": normal(4, 4), "where": normal(4, 1) > 0, "keepdims": True}, 2),
    ("softmax", {"x": normal(4, 4, 4), "mask": normal(4, 4) > 0}, 2),
    ("softmax", {"x": normal(4, 4, 4), "mask": normal(4, 1) > 0, "axis": (1, 2)}, 1),
    ("rotary", {"x": normal(2, 4, 4, 4), "cos": normal(4, 2), "sin": normal(4, 2)}, 3),
    ("rotary", {"x": normal(2, 4, 4, 4), "cos": normal(9, 2), "sin": normal(9, 2),
                "positions": LABELS}, 3),
    ("swiglu", {"a": normal(4, 8), "b": normal(4, 8)}, 2),
    ("swiglu", {"a": normal(4, 8), "b": normal(4, 8), "bias": normal(16)}, 1),
    ("bias_act", {"x": normal(4, 4, 4), "bias": normal(4), "activation": "gelu", "axis": 1}, 3),
    ("lstm_gates", {"gates": normal(8, 8), "c_prev": normal(8, 2), "bias": normal(8)}, 1),
    ("layer_norm", {"x": normal(4, 4, 4), "weight": normal(4, 4), "axis": (1, 2)}, 1),
    ("layer_norm", {"x": normal(4, 4, 4), "weight": normal(4), "axis": 0}, 2),
    ("group_norm", {"x": normal(4, 4, 4), "num_groups": 2, "weight": normal(4)}, 1),
    ("batch_norm", {"x": normal(4, 4, 4), "running_mean": normal(4), "weight": normal(4),
                    "running_var": normal(4).abs()}, 3),
    ("norm_apply", {"x": normal(4, 4, 4), "mean": normal(4), "rstd": normal(4), "axis": 1}, 3),
    ("prelu", {"x": normal(4, 4), "weight": normal(1)}, 2),
    ("snake", {"x": normal(4, 4, 4), "alpha": normal(4), "channel_axis": 2}, 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "named", "count"), CALLS)
def test_parts_of_calls_with_axes_of_one_length(name, named, count):
    assert [len(rules_of(*each)) for each in calls(fa.ops[name], named)] == [count] * 3


# --- two processes --------------------------------------------------------------------------------


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread(named: dict[str, Any], axis: int, mesh: Any) -> dict[str, Any]:
    """Arguments whose arrays of the first one's shape lie in parts along an axis."""
    tensors = {n: v for n, v in named.items() if isinstance(v, torch.Tensor)}
    first = next(iter(tensors.values())).shape
    places = {n: Shard(axis) if v.shape == first else Replicate() for n, v in tensors.items()}
    return {**named, **{n: distribute_tensor(v, mesh, [places[n]]) for n, v in tensors.items()}}


def step(op: Any, named: dict[str, Any]) -> list[Any]:
    """Results, and the gradients of a sum of all, with weights."""
    leaves = [named[n].requires_grad_() for n in differentiated(op, named) if named[n] is not None]
    results = arrays_of(op.bound("call", named)())
    ys = [whole(y) for y in results]
    gradients = torch.autograd.grad(sum((y * weights_like(y)).sum() for y in ys), leaves)
    return [y.detach() for y in ys] + [whole(d) for d in gradients]


def block() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.RMSNorm(6, eps=1e-5), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6), nn.LayerNorm(6)]
    model = nn.Sequential(*layers).double()
    for norm in (model[0], model[4]):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return model


def trained(model: nn.Module, x: torch.Tensor) -> list[Any]:
    y = model(x)
    whole(y).square().sum().backward()
    return [whole(y).detach(), *(whole(p.grad) for p in model.parameters())]


def process(rank: int, folder: str, names: list[str]) -> None:
    """One of the two; leaves what it found in the folder."""
    join_pair(rank, folder)
    mesh = init_device_mesh("cpu", (2,))
    found: dict[str, Any] = {
        name: [step(fa.ops[name], spread(sample(fa.ops[name]), axis, mesh)) for axis in (0, 1)]
        for name in names
    }
    gated = [distribute_tensor(torch.ones(3, 4), mesh, [Shard(1)]) for _ in range(2)]
    rows = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)])
    with CommDebugMode() as messages:
        y, z = fa.swiglu(*gated), fa.layer_norm(rows)
    placed = [str(each.placements) for each in (y, z)]
    found["without a message"] = [placed, messages.get_total_counts()]
    running = [torch.zeros(4), torch.ones(4)]
    shared = [distribute_tensor(t, mesh, [Replicate()]) for t in running]
    x = distribute_tensor(torch.arange(12.0).reshape(3, 4), mesh, [Shard(0)])
    fa.batch_norm(x, *shared, training=True)
    found["running"] = [whole(t) for t in shared]
    y = fa.batch_norm(x, *shared)
    found["evaluated"] = [whole(y), str(y.placements)]
    parted = [distribute_tensor(running[0], mesh, [Shard(0)]), shared[1]]
    found["parted"] = failure(lambda: fa.batch_norm(x, *parted, training=True))
    model = block()
    fnn.convert(model)
    plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1))}
    plan |= {"3": RowwiseParallel(output_layouts=Shard(1)), "4": SequenceParallel()}
    found["block"] = trained(parallelize_module(model, mesh, plan), batch().chunk(2, 1)[rank])
    torch.save(found, f"{folder}/{rank}")
    distributed.destroy_process_group()


def failure(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes found."""
    return found_by_pair(process, tmp_path_factory.mktemp("gloo"), [op.name for op in SENT])


def assert_as_the_whole(found: list[dict[str, Any]], ops: list[Any]) -> None:
    for op in ops:
        right = step(op, sample(op))
        for each in found:
            for got in each[op.name]:
                torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-13, msg=op.name)


def test_values_and_gradients_in_two_processes(found):
    assert_as_the_whole(found, SENT)


@pytest.mark.thorough  # every op is called in two processes
def test_those_of_all_ops(tmp_path):
    others = [op for op in OPS if op not in SENT]
    found = found_by_pair(process, tmp_path, [op.name for op in others])
    assert_as_the_whole(found, others)


def test_parts_need_no_message(found):
    for each in found:
        places, messages = each["without a message"]
        assert places == ["(Shard(dim=1),)", "(Shard(dim=0),)"]
        assert messages == 0


def test_running_statistics_are_written_in_place(found):
    x, running = torch.arange(12.0).reshape(3, 4), [torch.zeros(4), torch.ones(4)]
    fa.batch_norm(x, *running, training=True)
    for each in found:
        torch.testing.assert_close(each["running"], running)
        y, placed = each["evaluated"]
        assert placed == "(Shard(dim=0),)"
        torch.testing.assert_close(y, fa.batch_norm(x, *running))
        assert (
            "fastact.batch_norm: running_mean and running_var are written, and must be"
            in each["parted"]
        )


def test_a_converted_block(found):
    """By SequenceParallel, ColwiseParallel and RowwiseParallel."""
    y, *gradients = trained(block(), batch())
    for each in found:
        torch.testing.assert_close(each["block"][0], y)
        for got, right in zip(each["block"][1:], gradients, strict=True):
            torch.testing.assert_close(got, right)
