"""`SyncBatchNorm` in two processes of gloo, against one process with the whole batch."""

import copy
import os
import signal
import time
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import TIMEOUT, found_by_pair, join_pair
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import fastact.torch.nn as fnn

SECONDS = TIMEOUT  # for what works, on a machine that others keep busy
SOON = 1.0  # for a process that waits in vain

# Options of the norm, the dtype, and how many examples each process has.
CASES: dict[str, tuple[dict[str, Any], torch.dtype, tuple[int, int]]] = {
    "equal": ({}, torch.float64, (4, 4)),
    "unequal": ({"momentum": None}, torch.float64, (3, 5)),
    "activation": ({"activation": "mish", "eps": 1e-3}, torch.float64, (1, 5)),
    "an empty one": ({"momentum": 0.5}, torch.float64, (0, 4)),
    "nothing": ({}, torch.float64, (0, 0)),
    "no parameters": ({"affine": False, "track_running_stats": False}, torch.float64, (2, 3)),
    "float32": ({}, torch.float32, (3, 5)),
    "bfloat16": ({"activation": "relu"}, torch.bfloat16, (3, 5)),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def batch(sizes: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Far from zero, where sums of squares would cancel; and the gradient that comes back."""
    generator = torch.Generator().manual_seed(0)
    x = 100 + torch.randn(sum(sizes), 4, 3, generator=generator, dtype=torch.float64)
    dy = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return x.to(dtype), dy.to(dtype)


def norm(cls: Any, options: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = cls(4, **options)
    for parameter in made.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return made.to(dtype)


def step(module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> list[list[torch.Tensor]]:
    """What lies with the examples, the gradients of parameters, and the buffers."""
    x = x.clone().requires_grad_()
    y = module(x)
    y.backward(dy)
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [[y.detach(), x.grad], gradients, [b.clone() for b in module.buffers()]]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6)
    return nn.Sequential(nn.Linear(4, 6, bias=False), norm, nn.Mish(), nn.Linear(6, 2)).double()


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().sum()


def process(rank: int, folder: str) -> None:
    """One of the two; leaves what it found in the folder."""
    join_pair(rank, folder)
    impatient = distributed.new_group(timeout=timedelta(seconds=SECONDS))  # in which both meet
    distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=SOON), impatient)
    found: dict[str, Any] = {}
    for name, (options, dtype, sizes) in CASES.items():
        x, dy = (t.split(sizes)[rank] for t in batch(sizes, dtype))
        found[name] = step(norm(fnn.SyncBatchNorm, options, dtype), x, dy)
        time.sleep(0.05 * rank)  # now the other one is first
        again = step(norm(fnn.SyncBatchNorm, options, dtype), x, dy)
        time.sleep(0.05 * (1 - rank))
        pairs = zip(chain(*found[name]), chain(*again), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)

    module = norm(fnn.SyncBatchNorm, {"process_group": distributed.group.WORLD}, torch.float32)
    found["evaluated"] = module.eval()(torch.full((1 + rank, 4), 2.0))  # nobody waits for anybody

    found["penalty"] = penalty(norm(fnn.SyncBatchNorm, {}, torch.float64), *pair_of(rank))
    model = network()
    fnn.convert(model)
    parallel = DistributedDataParallel(fnn.SyncBatchNorm.convert_sync_batchnorm(model))
    loss_of(parallel, data()[rank::2]).backward()
    found["parallel"] = [p.grad for p in model.parameters()]

    found["one value"] = failure(norm(fnn.SyncBatchNorm, {}, torch.float32), rank, rows=1 - rank)
    if rank == 0:
        alone = norm(fnn.SyncBatchNorm, {"process_group": impatient}, torch.float32)
        found["alone"] = failure(alone, rank, rows=2)
    distributed.barrier()
    torch.save(found, f"{folder}/{rank}")
    distributed.destroy_process_group()


def pair_of(rank: int) -> list[torch.Tensor]:
    """The part of a batch that is a process's, of unequal sizes."""
    return [t.split((3, 5))[rank] for t in batch((3, 5), torch.float64)]


def penalty(module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
    """The gradients, by x and by parameters, of a penalty on the gradient by x."""
    x = x.clone().requires_grad_()
    (dx,) = torch.autograd.grad((module(x) ** 2 * dy).sum(), x, create_graph=True)
    return [*torch.autograd.grad(dx.square().sum(), [x, *module.parameters()])]


def failure(module: nn.Module, rank: int, rows: int) -> tuple[str, str, float]:
    begin = time.monotonic()
    try:
        module(torch.zeros(rows, 4))
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", 0.0


def data() -> torch.Tensor:
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes found."""
    return found_by_pair(process, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("name", CASES)
def test_as_one_process_with_the_whole_batch(found, name):
    options, dtype, sizes = CASES[name]
    whole = step(norm(fnn.BatchNorm1d, options, dtype), *batch(sizes, dtype))
    parts = [process[name] for process in found]
    # Examples lie in parts, gradients are sums of parts, and buffers are equal.
    for joined, ours, right in zip(
        (torch.cat, sum, equal), zip(*parts, strict=True), whole, strict=True
    ):
        for pair, one in zip(zip(*ours, strict=True), right, strict=True):
            assert_close(joined(pair), one, dtype)


def equal(pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    assert torch.equal(*pair)
    return pair[0]


def assert_close(ours: torch.Tensor, whole: torch.Tensor, dtype: torch.dtype) -> None:
    assert ours.dtype == whole.dtype
    assert ours.shape == whole.shape
    if whole.numel():
        error = (ours.double() - whole.double()).abs().max()
        assert float(error) <= TOLERANCE[dtype] * float(whole.abs().max())


def test_evaluation_needs_no_other_process(found):
    for rank in range(2):
        assert found[rank]["evaluated"].shape == (1 + rank, 4)


def test_a_second_derivative(found):
    theirs = norm(nn.BatchNorm1d, {}, torch.float64)
    whole = penalty(theirs, *batch((3, 5), torch.float64))
    first, second = (process["penalty"] for process in found)
    for i, (one, two, right) in enumerate(zip(first, second, whole, strict=True)):
        got = one + two if i else torch.cat([one, two])  # parameters, and x
        torch.testing.assert_close(got, right)


def test_in_a_parallel_model(found):
    """DistributedDataParallel averages the gradients of the processes."""
    model = network()
    loss_of(model, torch.cat([data()[0::2], data()[1::2]])).backward()
    for first, second, whole in zip(
        *(process["parallel"] for process in found),
        [p.grad for p in model.parameters()],
        strict=True,
    ):
        assert torch.equal(first, second)
        assert_close(2 * first, whole, torch.float64)


def test_one_value_a_channel_in_all_processes(found):
    for process in found:
        kind, message, _ = process["one value"]
        assert kind == "ValueError"
        assert "more than one value per channel in training, got 1 in all processes" in message


def test_a_process_that_is_missing(found):
    """An error that says so, after the group's time; no hang."""
    kind, message, seconds = found[0]["alone"]
    assert kind == "RuntimeError"
    assert message.startswith("fastact.torch.nn.SyncBatchNorm: every process of the group must")
    assert "rank 0 of 2 had no answer" in message
    assert seconds < SECONDS / 2


def survivor(rank: int, folder: str, victim_dies_in: str) -> None:
    """Two steps of training, in the second of which the other process is killed."""
    join_pair(rank, folder)
    module = norm(fnn.SyncBatchNorm, {}, torch.float32)
    for number in range(2):
        x = torch.randn(4, 4, requires_grad=True)
        try:
            if rank and number and victim_dies_in == "forward":
                os.kill(os.getpid(), signal.SIGKILL)
            y = module(x)
            if rank and number:
                os.kill(os.getpid(), signal.SIGKILL)
            y.square().sum().backward()
        except RuntimeError as error:
            Path(folder, "told").write_text(f"{number} {error}")
            os._exit(0)  # the group is broken: there is nobody to say goodbye to


@pytest.mark.parametrize(
    "direction", [pytest.param("forward", marks=pytest.mark.thorough), "backward"]
)  # each starts two processes, which import torch
def test_a_process_that_is_killed(tmp_path, direction):
    """The other one has an error that says so, and does not wait for the group's time."""
    context = torch.multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=survivor, args=(rank, str(tmp_path), direction)) for rank in range(2)
    ]
    for each in processes:
        each.start()
    for each in processes:
        each.join(SECONDS / 2)
    hung = [each for each in processes if each.is_alive()]
    for each in hung:
        each.kill()
    assert not hung
    told = (tmp_path / "told").read_text()
    assert told.startswith("1 fastact.torch.nn.SyncBatchNorm: every process of the group must")
    assert "rank 0 of 2 had no answer" in told


def test_convert_sync_batchnorm():
    model = network()
    model.append(fnn.BatchNorm1d(2, activation="relu").double())
    model.append(nn.Sequential(nn.BatchNorm3d(3)))
    before, state = copy.deepcopy(model), dict(model.named_parameters())
    assert fnn.SyncBatchNorm.convert_sync_batchnorm(model, "group") is model
    names = ["1", "4", "5.0"]
    assert [n for n, m in model.named_modules() if type(m) is fnn.SyncBatchNorm] == names
    assert all(model.get_submodule(name).process_group == "group" for name in names)
    assert "activation='relu'" in repr(model[4])
    assert all(a is state[n] for n, a in model.named_parameters())
    assert list(model.state_dict()) == list(before.state_dict())


def test_without_a_group_it_is_a_batch_norm():
    x, dy = batch((4, 4), torch.float32)
    one, other = (
        step(norm(cls, {}, torch.float32), x, dy) for cls in (fnn.SyncBatchNorm, fnn.BatchNorm1d)
    )
    assert all(torch.equal(a, b) for a, b in zip(chain(*one), chain(*other), strict=True))
