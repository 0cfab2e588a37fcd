"""The speed benchmark on a GPU behind ``python -m fastact bench --device cuda``.

Bytes that an op has to move over its time, and that time against the device's own copy of as many
bytes, torch, and torch.compile. Times are the GPU's, by events around many calls with the queue
kept full; the arrays take turns, so that together they are well past the second-level cache. All
contenders take turns within each round; a ratio is the median over the ratios of the rounds.
"""

from __future__ import annotations

import datetime
import gc
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import ceil, prod
from pathlib import Path
from statistics import median
from typing import Any

from ._device_cuda import MOST_CALLS, Call, Gpu, open_gpu
from ._gpu_work import ITEM, READ, GpuCase, GpuWork, Tensors
from ._report_cuda import markdown, print_end, print_latency, print_rows
from ._rows_cuda import Latency, Results, Row
from ._terminal import Progress
from ._workloads import COPY, FRESH, OURS, TORCH
from ._workloads_cuda import GPU_WORKLOADS

_PAST_L2 = 3  # times its size
_SAMPLE_SECONDS = 3e-3
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 100
_TINY = 64  # elements: nothing but the call counts
_TINY_CALLS = 200  # fewer than fill the queue
_LATENCY_ROUNDS = 40
_SPARE = 0.8  # of the free memory, which may be used


@dataclass(frozen=True)
class Options:
    """What to measure. sizes: elements of an array; None for the sizes of each family."""

    sizes: tuple[int, ...] | None
    dtypes: tuple[str, ...]
    directions: tuple[str, ...]
    peers: tuple[str, ...]
    seconds: float = 0.5


def buffers_for(bytes_of_set: int, l2: int) -> int:
    """How many sets of tensors take turns: two at least, and well past the cache together."""
    return max(2, ceil(_PAST_L2 * l2 / bytes_of_set))


def _copy_elements(nbytes: int) -> int:
    """float32 elements of which a copy moves `nbytes`, to a multiple of 32."""
    return max(nbytes // 32, 1) * 4


def _contenders(
    case: GpuCase, work: GpuWork, sets: Sequence[Tensors], device: Gpu
) -> dict[str, list[Call]]:
    """For each name, a call for each set of tensors."""
    calls: dict[str, list[Call]] = {
        OURS: [partial(work.ours, *tensors) for tensors in sets],
        FRESH: [partial(work.fresh, *tensors) for tensors in sets],
    }
    copied = (_copy_elements(case.moved),)
    calls[COPY] = [
        partial(device.empty(copied, "float32").copy_, device.random(copied, "float32"))
        for _ in sets
    ]
    if case.reduces:
        words = max(case.moved // 4, 1)
        whole = [device.random((words,), "float32") for _ in sets]
        calls[READ] = [partial(device.torch.sum, tensor) for tensor in whole]
    for peer, bind in work.peers.items():
        calls[peer] = [bind(tensors) for tensors in sets]
    return calls


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"


def _warm_up(calls: dict[str, list[Call]], left_out: dict[str, str]) -> None:
    """Call everything once; a peer that fails is left out with its reason. Ours may not fail."""
    for name in list(calls):
        try:
            for call in calls[name]:
                call()
        except Exception as error:  # torch.compile fails in ways of its own
            if name in (OURS, FRESH, COPY, READ):
                raise
            left_out[name] = _first_line(error)
            del calls[name]


def _disagreeing(case: GpuCase, calls: dict[str, list[Call]], device: Gpu) -> tuple[str, ...]:
    """Peers whose result is not ours, roughly: whoever computes something else is no peer."""
    terms = prod(case.shape) // max(prod(case.kept), 1) if case.reduces else 1
    close = 3e-2 if ITEM[case.dtype] == 2 else 1e-3
    limits = {"rtol": close, "atol": close * terms**0.5}
    ours = calls[OURS][0]()
    names = [name for name in calls if name not in (OURS, COPY, READ)]
    return tuple(
        name
        for name in names
        if not device.torch.allclose(calls[name][0]().to(ours.dtype), ours, **limits)
    )


def check_graph(work: GpuWork, tensors: Tensors, device: Gpu) -> str:
    """Capture our call, replay it on other values, compare; empty if all is well."""
    *inputs, out = tensors
    call = partial(work.ours, *tensors)
    try:
        replay = device.capture(call)
        for tensor in inputs:
            tensor.neg_()
        call()
        expected = out.clone()
        out.zero_()
        replay()
        device.synchronize()
    except Exception as error:
        return _first_line(error)
    return "" if device.torch.equal(out, expected) else "replaying it gives other bits"


def take_turns(calls: dict[str, list[Call]], device: Gpu, seconds: float) -> dict[str, list[float]]:
    """Time everybody in rounds of one sample each: for each name, seconds of a call by round."""
    times = {}
    for name, rotation in calls.items():
        few = 2 * len(rotation)
        once = min(device.seconds(rotation, few) for _ in range(2))
        wanted = min(max(_SAMPLE_SECONDS / max(once, 1e-9), few), MOST_CALLS)
        times[name] = ceil(wanted / len(rotation)) * len(rotation)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    ends = time.perf_counter() + seconds
    for number in range(_MOST_ROUNDS):
        if number >= _FEWEST_ROUNDS and time.perf_counter() >= ends:
            break
        for name in calls if number % 2 else reversed(calls):
            samples[name].append(device.seconds(calls[name], times[name]))
    return samples


def measure(case: GpuCase, device: Gpu, options: Options) -> Row | str:
    """One row, or why there is none."""
    # Ours, the copy, and what peers (and the pure read) hold beside them.
    buffers = buffers_for(case.moved, device.l2)
    needed = case.moved * (buffers * (3 if case.reduces else 2) + 3)
    free = device.free()
    if needed > _SPARE * free:
        return f"needs {needed / 2**30:.1f} GiB, of which {free / 2**30:.1f} are free"
    work = GPU_WORKLOADS[case.op.family].work(case, device, options.peers)
    sets = [work.make() for _ in range(buffers)]
    calls = _contenders(case, work, sets, device)
    left_out = dict(work.left_out)
    _warm_up(calls, left_out)
    wrong = _disagreeing(case, calls, device)
    samples = take_turns(calls, device, options.seconds)
    scale = case.moved / (8 * _copy_elements(case.moved))
    samples[COPY] = [sample * scale for sample in samples[COPY]]
    ours = samples[OURS]
    return Row(
        op=case.op.name,
        direction=case.direction,
        dtype=case.dtype,
        what=case.label,
        bytes=case.moved,
        buffers=buffers,
        rounds=len(ours),
        seconds={name: median(values) for name, values in samples.items()},
        ratios={
            name: median(their / our for their, our in zip(values, ours, strict=True))
            for name, values in samples.items()
        },
        graph=check_graph(work, sets[0], device),
        series=case.series,
        span=case.span,
        wrong=wrong,
        left_out=left_out,
    )


def measure_latency(case: GpuCase, device: Gpu, peers: Sequence[str]) -> Latency:
    """What a call costs the host, while the queue does not fill up."""
    work = GPU_WORKLOADS[case.op.family].work(case, device, peers)
    tensors = work.make()
    calls: dict[str, list[Call]] = {
        OURS: [partial(work.ours, *tensors)],
        FRESH: [partial(work.fresh, *tensors)],
    }
    calls |= {peer: [bind(tensors)] for peer, bind in work.peers.items()}
    _warm_up(calls, {})
    samples: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number in range(_LATENCY_ROUNDS):
            for name in calls if number % 2 else reversed(calls):
                samples[name].append(_host_seconds(calls[name][0], device))
    finally:
        if collecting:
            gc.enable()
    return Latency(
        case.op.name,
        case.direction,
        case.dtype,
        prod(case.shape),
        {name: median(values) for name, values in samples.items()},
    )


def _host_seconds(call: Call, device: Gpu) -> float:
    device.synchronize()
    turns = range(_TINY_CALLS)
    started = time.perf_counter()
    for _ in turns:
        call()
    seconds = (time.perf_counter() - started) / _TINY_CALLS
    device.synchronize()
    return seconds


def _commit() -> str:
    """The commit of the source tree that this was started in; empty elsewhere."""
    try:
        if 'name = "fastact"' not in Path("pyproject.toml").read_text(encoding="utf-8"):
            return ""
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cases(ops: Sequence[Any], options: Options) -> Iterator[list[GpuCase]]:
    """The cases, one list a table; an op without any is named."""
    for op in ops:
        family = GPU_WORKLOADS.get(op.family)
        found = False
        for direction, dtype in product(options.directions, options.dtypes):
            if family and (cases := family.cases(op, direction, dtype, options.sizes)):
                found = True
                yield cases
        if not found:
            print(f"{op.name}: no benchmark on a GPU")


def bench(
    ops: Sequence[Any],
    options: Options,
    json_file: Path | None = None,
    markdown_file: Path | None = None,
    device: Gpu | None = None,
) -> Results:
    """Measure ops on a GPU, print and write tables, and return them with what went wrong.

    Parameters
    ----------
    ops : sequence of ops
        What to measure; an op of a family that has no workload yet is named and passed over.
    options : Options
        How to measure.
    json_file, markdown_file : Path, optional
        Where to write rows and facts, and the same as tables.
    device : Gpu, optional
        Default: the current one.
    """
    device = device or open_gpu()
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        **device.facts(),
    }
    tables = list(_cases(ops, options))
    eager = [peer for peer in options.peers if peer == TORCH]
    rows: list[Row] = []
    problems: list[str] = []
    latencies = [measure_latency(_tiny(cases[0]), device, eager) for cases in tables]
    results = Results(facts, rows, latencies, problems)
    print_latency(latencies)
    with Progress("bench", sum(map(len, tables))) as progress:
        for cases in tables:
            part: list[Row] = []
            for case in cases:
                name = f"{case.op.name} {case.direction}, {case.dtype}, {case.label}"
                try:
                    row = measure(case, device, options)
                except Exception as error:  # the other rows are still wanted
                    row = f"failed, {_first_line(error)}"
                    problems.append(f"{name}: {row}")
                if isinstance(row, str):
                    print(f"{name}: {row}")
                else:
                    part.append(row)
                    problems += _problems(name, row)
                progress.advance(1)
            print_rows(part)
            rows += part
            # After each table: what has been measured survives whatever comes.
            if json_file is not None:
                results.write(json_file)
            if markdown_file is not None:
                markdown_file.write_text(markdown(results), encoding="utf-8")
    print_end(results)
    return results


def _tiny(case: GpuCase) -> GpuCase:
    """A case of the same op with next to no elements."""
    cases = GPU_WORKLOADS[case.op.family].cases
    return cases(case.op, case.direction, case.dtype, (_TINY,))[0]


def _problems(name: str, row: Row) -> Iterator[str]:
    """What a row says of correctness."""
    if row.graph:
        yield f"{name}: CUDA graph: {row.graph}"
    for peer in row.wrong:
        yield f"{name}: {peer} has another result"
