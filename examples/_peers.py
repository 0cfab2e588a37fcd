"""The networks of the examples in torch and in JAX: gradients, time, memory, and who takes it."""

from __future__ import annotations

import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _shared import (
    DIGITS,
    QUICK_ROUNDS,
    ROUNDS,
    THREADS,
    Array,
    Call,
    Labels,
    Network,
    print_shares,
    turns,
)

import fastact as fa

SAMPLE_SECONDS = 5e-3  # a time is taken over at least this long: far above the clock's resolution


class Peer(NamedTuple):
    """The same network, made by someone: calls that end when their results are there."""

    forward: Call
    gradient: Callable[[], Sequence[Any]]  # the gradients, in the order of the weights
    profile: Callable[[int], dict[str, float]] | None = None  # seconds of a gradient by kind


class Runner:
    """A peer in a process of its own, so that no pool of threads is in another's way."""

    def __init__(self, name: str, make: Callable[..., Peer], *details: Any) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, make, details), daemon=True)
        process.start()

    def ask(self, what: str, *details: Any) -> Any:
        """What the method of `_Served` returns there."""
        self._pipe.send((what, details))
        return self._pipe.recv()


def _serve(pipe: Connection, make: Callable[..., Peer], details: tuple[Any, ...]) -> None:
    """The other process: answers until the pipe is closed."""
    served = _Served(make, *details)
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(served, what)(*arguments))


class _Served:
    """What a runner can be asked for."""

    def __init__(
        self, make: Callable[..., Peer], weights: Any, images: Array, labels: Labels, *more: Any
    ) -> None:
        # Libraries are loaded, and threads started, by a batch of two.
        make(weights, images[:2], labels[:2], *more).gradient()
        before = _resident("VmRSS")
        if before is not None:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        self.peer = make(weights, images, labels, *more)
        for _ in range(3):
            self.peer.gradient()
        peak = _resident("VmHWM")
        self.bytes = None if before is None or peak is None else peak - before

    def memory(self) -> int | None:
        """By how many bytes the peak of memory grew, data and weights included."""
        return self.bytes

    def gradients(self) -> list[Any]:
        return [np.array(g) for g in self.peer.gradient()]

    def profile(self, rounds: int) -> dict[str, float] | None:
        return self.peer.profile(rounds) if self.peer.profile else None

    def seconds(self, what: str) -> float:
        """Seconds of one call, over a number of them, when all threads are awake."""
        call = getattr(self.peer, what)
        times = max(1, round(SAMPLE_SECONDS / min(_seconds(call, 1) for _ in range(3))))
        return _seconds(call, times)


def _resident(key: str) -> int | None:
    """Bytes of this process in memory: now (VmRSS), at most (VmHWM). None where Linux is not."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def _seconds(call: Call, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def fastact_peer(
    model: Network,
    images: Array,
    labels: Labels,
    order: Callable[[dict[str, Array]], list[Array]] = lambda gradients: list(gradients.values()),
) -> Peer:
    """A network of these examples with its batch.

    order : its gradients with the axes that frameworks know.
    """
    model.load(images, labels)

    def gradient() -> list[Array]:
        model.gradient()
        return order(model.gradients)

    return Peer(model.forward, gradient, model.all.profile)


def torch_tensors(
    arrays: Iterable[Array], images: Array, labels: Labels, dtype: str
) -> tuple[list[Any], Any, Any]:
    """Parameters from arrays, the images, and the targets."""
    import torch

    kind = getattr(torch, dtype)
    parameters = [torch.tensor(array, dtype=kind, requires_grad=True) for array in arrays]
    target = torch.nn.functional.one_hot(torch.tensor(labels), DIGITS).to(kind)
    return parameters, torch.tensor(images, dtype=kind), target


def torch_peer(residual: Call, parameters: Any, kinds: Mapping[str, str]) -> Peer:
    """A network in torch, by autograd, on THREADS threads.

    kinds : words in the names of operations, and which kind of work each stands for.
    """
    import torch

    torch.set_num_threads(THREADS)

    def forward() -> Any:
        with torch.no_grad():
            return residual()

    def gradient() -> Any:
        return torch.autograd.grad(residual().square().sum(), parameters)

    def profile(rounds: int) -> dict[str, float]:
        from torch.profiler import ProfilerActivity
        from torch.profiler import profile as profiler

        with profiler(activities=[ProfilerActivity.CPU]) as run:
            for _ in range(rounds):
                gradient()
        taken: dict[str, float] = defaultdict(float)
        for event in run.key_averages():
            kind = next((kind for word, kind in kinds.items() if word in event.key), "the rest")
            taken[kind] += event.self_cpu_time_total * 1e-6 / rounds
        return dict(sorted(taken.items(), key=lambda item: -item[1]))

    return Peer(forward, gradient, profile)


def jax_peer(residual: Callable[..., Any], parameters: Any, *data: Any) -> Peer:
    """A network in JAX, compiled; it has one thread a core that the process may use."""
    jax: Any = import_module("jax")  # typed in part only
    jax.config.update("jax_platforms", "cpu")
    parameters, data = jax.device_put(parameters), jax.device_put(data)
    forward = jax.jit(residual)
    gradient = jax.jit(jax.value_and_grad(lambda *a: (residual(*a) ** 2).sum()))
    return Peer(
        lambda: jax.block_until_ready(forward(parameters, *data)),
        lambda: jax.block_until_ready(gradient(parameters, *data))[1],
    )


class Makers(NamedTuple):
    """Functions of (weights, images, labels) that make the same network; torch's takes a dtype."""

    fastact: Callable[..., Peer]
    torch: Callable[..., Peer]
    jax: Callable[..., Peer]


def against_frameworks(makers: Makers, quick: bool, tolerance: float, *details: Any) -> bool:
    """Compare gradients with torch's, print times, memory and shares; whether gradients agree."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    print(
        f"fastact {fa.__version__}, {fa.get_num_threads()} thread;"
        f" NumPy {np.__version__} with {_blas()}"
    )
    runners = [Runner("fastact", makers.fastact, *details)]
    agrees = True
    if find_spec("torch"):
        print(f"torch {version('torch')} with its own MKL and oneDNN, {THREADS} threads")
        runners.append(Runner("torch", makers.torch, *details))
        exact = Runner("torch64", makers.torch, *details, "float64").ask("gradients")
        ours, theirs = (runner.ask("gradients") for runner in runners)
        agrees = _compare(list(details[0]), ours, exact, theirs, tolerance)
    else:
        print("torch is not installed: no comparison with its gradients")
    if find_spec("jax") and not quick:
        print(f"JAX {version('jax')}, compiled, with as many threads as there are cores")
        runners.append(Runner("jax", makers.jax, *details))

    times = [
        turns({r.name: partial(r.ask, "seconds", what) for r in runners}, rounds)
        for what in ("forward", "gradient")
    ]
    print(f"{'':8}{'forward':>13}{'':9}{'gradient':>13}{'':9}{'memory':>12}")
    for runner in runners:
        columns = (
            f"{1e6 * t[runner.name]:10.0f} us {t[runner.name] / t['fastact']:5.2f} x" for t in times
        )
        memory = runner.ask("memory")
        told = "" if memory is None else f"{memory / 1e6:9.1f} MB"
        print(f"{runner.name:8}{'  '.join(columns)}  {told}")
    for runner in runners:
        profile = runner.ask("profile", rounds)
        if profile is not None:
            print_shares(f"{runner.name}'s gradient", profile)
    return agrees


def _compare(
    names: list[str], ours: list[Any], exact: list[Any], theirs: list[Any], tolerance: float
) -> bool:
    """Whether each gradient is torch's in float64, within `tolerance` of its largest value.

    What torch itself makes of it in float32 is printed beside it.
    """

    def error(gradient: Any, true: Any) -> float:
        # Not of each element alone: one that cancels to nearly 0 has no digits to compare.
        return float(np.abs(gradient - true).max() / np.abs(true).max())

    errors = [error(*pair) for pair in zip(ours, exact, strict=True)]
    worst = int(np.argmax(errors))
    agrees = errors[worst] <= tolerance
    others = max(error(*pair) for pair in zip(theirs, exact, strict=True))
    print(
        f"{len(names)} gradients against torch's in float64: off by {errors[worst]:.1e} of the "
        f"largest value at most ({names[worst]}), {tolerance:.0e} allowed: "
        f"{'passed' if agrees else 'FAILED'}; torch in float32 is off by {others:.1e}"
    )
    return agrees


def _blas() -> str:
    """Name, version and threads of NumPy's BLAS."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "a BLAS of unknown threads (threadpoolctl is not installed)"
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    pools = [pool for pool in pools if "numpy" in pool["filepath"]] or pools
    return ", ".join(
        f"{p['internal_api']} {p['version']}, {p['num_threads']} threads" for p in pools
    )
