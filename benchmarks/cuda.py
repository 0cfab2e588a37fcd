"""The speed benchmark on a GPU behind ``python -m benchmarks --device cuda``.

Bytes that an op has to move over its time, and that time against the device's own copy of as many
bytes, torch, and torch.compile. Times are the GPU's, by events around many calls with the queue
kept full; the arrays take turns, so that together they are well past the second-level cache. All
contenders take turns within each round; a ratio is the median over the ratios of the rounds.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from fastact.bench.turns import asked, first_line, medians
from fastact.measure.peers import COMPILED, COPY, FRESH, LIGER, OURS, READ, TORCH
from fastact.ops.engine.op import arrays_of
from fastact.terminal import say

from .cpu import run_tables
from .cuda_device import MOST_CALLS, Call, Gpu, open_gpu
from .cuda_report import markdown, print_absent, print_end, print_latency, print_rows
from .liger import PACKAGE
from .results import GpuResults, GpuRow, Latency, facts_of, start
from .workloads import FAMILIES
from .workloads.work import ITEM, Arrays, Case, Options, Work, by_torch, differentiated

_PAST_L2 = 3  # times its size
_SAMPLE_SECONDS = 3e-3
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 100
_TINY = 64  # elements: nothing but the call counts
_TINY_CALLS = 200  # fewer than fill the queue
_LATENCY_ROUNDS = 40
_SPARE = 0.8  # of the free memory, which may be used
_ODD = 1e-3  # of a result's elements, which a peer may round to anything: deviations of equal ones


def buffers_for(bytes_of_set: int, l2: int) -> int:
    """How many sets of tensors take turns: two at least, and well past the cache together."""
    return max(2, ceil(_PAST_L2 * l2 / bytes_of_set))


def _copy_elements(nbytes: int) -> int:
    """How many float32 elements make a copy move `nbytes`, a multiple of 32."""
    return max(nbytes // 32, 1) * 4


def _contenders(
    case: Case, sets: Sequence[Work], device: Gpu, peers: Sequence[str]
) -> tuple[dict[str, list[Call]], dict[str, str]]:
    """For each name, a call for each set of tensors; and who is left out, with the reason."""
    calls: dict[str, list[Call]] = {
        OURS: [work.ours for work in sets],
        FRESH: [work.fresh for work in sets],
    }
    copied = (_copy_elements(case.moved),)
    calls[COPY] = [
        partial(device.empty(copied, "float32").copy_, device.random(copied, "float32"))
        for _ in sets
    ]
    if case.sums:
        words = max(case.moved // 4, 1)
        whole = [device.random((words,), "float32") for _ in sets]
        calls[READ] = [partial(device.torch.sum, tensor) for tensor in whole]
    theirs, left_out = bound(case, sets, device, peers)
    return calls | theirs, left_out


def bound(
    case: Case, sets: Sequence[Work], device: Gpu, peers: Sequence[str]
) -> tuple[dict[str, list[Call]], dict[str, str]]:
    """The peers' calls; who fails when the graph of its way back is built is left out."""

    def calls(peer: str) -> list[Call] | None:
        bind = _binder(case, device.torch, peer)
        return None if bind is None else [bind(*work.given) for work in sets]

    return asked(peers, calls)


def _binder(case: Case, torch: Any, peer: str) -> Callable[[Arrays, Arrays], Call] | None:
    """How a peer makes its call of inputs and incoming gradients; None if it has no such op."""
    family = FAMILIES[case.op.family]
    if peer in (TORCH, COMPILED):
        return by_torch(torch, case, family, compiles=peer == COMPILED)
    function = family.others_on_gpu[peer](case) if peer in family.others_on_gpu else None
    if function is None:
        return None
    return differentiated(torch, function, case.entry == "backward", family.constant)


def _warm_up(calls: dict[str, list[Call]], left_out: dict[str, str]) -> None:
    """Call everything once; a peer that fails is left out with its reason. Ours may not fail."""
    for name in list(calls):
        try:
            for call in calls[name]:
                call()
        except Exception as error:
            if name in (OURS, FRESH, COPY, READ):
                raise
            left_out[name] = first_line(error)
            del calls[name]


def _largest(result: Any) -> Any:
    """Of several results the largest, which is the one that is compared."""
    return max((one for one in arrays_of(result) if one is not None), key=lambda one: one.numel())


def closeness(case: Case, elements: int) -> dict[str, float]:
    """How close the elements of two results are that were rounded in other places.

    Where something cancels, an error is as large as what was multiplied. Random numbers of a normal
    distribution are multiplied at most: the largest product of two of them among n is about log(n).
    A thousand are within `close` in any case.
    """
    terms = case.span if case.sums else 1
    close = 3e-2 if ITEM[case.dtype] == 2 else 1e-3
    farthest = max(1.0, math.log(max(elements, 1)) / math.log(1000))
    return {"rtol": close, "atol": close * farthest * terms**0.5}


def _disagreeing(case: Case, calls: dict[str, list[Call]], device: Gpu) -> tuple[str, ...]:
    """Peers whose result is not ours, roughly: whoever computes something else is no peer.

    None of random results, which nobody else draws.
    """
    if case.op.traits.counts_elements:
        return ()
    ours = _largest(calls[OURS][0]())
    limits = closeness(case, ours.numel())

    def differs(name: str) -> bool:
        theirs = _largest(calls[name][0]()).to(ours.dtype)
        close = device.torch.isclose(theirs, ours, **limits)
        return bool((~close).sum() > _ODD * close.numel())

    names = [name for name in calls if name not in (OURS, COPY, READ)]
    return tuple(filter(differs, names))


def check_graph(work: Work, device: Gpu) -> str:
    """Capture our call, replay it on other values, compare; empty if all is well."""
    outs = [out for out in work.out if out is not None]
    try:
        replay = device.capture(work.ours)
        for tensor in work.read:
            if tensor.is_floating_point():  # classes stay classes, and weights weights
                tensor.neg_() if (tensor < 0).any() else tensor.mul_(2)
        work.ours()
        expected = [out.clone() for out in outs]
        for out in outs:
            out.zero_()
        replay()
        device.synchronize()
    except Exception as error:
        return first_line(error)
    same = all(map(device.torch.equal, outs, expected))
    return "" if same else "replaying it gives other bits"


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


def _peers_of(options: Options, dtype: str) -> tuple[str, ...]:
    """Who takes part for a type."""
    compiles = dtype in options.compiled
    return tuple(peer for peer in options.peers if compiles or peer != COMPILED)


def measure(case: Case, device: Gpu, options: Options) -> GpuRow | str:
    """One row, or why there is none."""
    # Ours, the copy, and what peers (and the pure read) hold beside them.
    buffers = buffers_for(case.moved, device.l2)
    needed = case.moved * (buffers * (3 if case.sums else 2) + 3)
    free = device.free()
    if needed > _SPARE * free:
        return f"needs {needed / 2**30:.1f} GiB, of which {free / 2**30:.1f} are free"
    wanted = _peers_of(options, case.dtype)
    family = FAMILIES[case.op.family]
    sets = [Work(case, family, device) for _ in range(buffers)]
    calls, left_out = _contenders(case, sets, device, wanted)
    if wanted != options.peers:
        left_out[COMPILED] = f"for {' and '.join(options.compiled)} alone: a row takes it seconds"
    _warm_up(calls, left_out)
    wrong = _disagreeing(case, calls, device)
    samples = take_turns(calls, device, options.seconds)
    scale = case.moved / (8 * _copy_elements(case.moved))
    samples[COPY] = [sample * scale for sample in samples[COPY]]
    return GpuRow(
        **case.words,
        **medians(samples),
        bytes=case.moved,
        buffers=buffers,
        graph=check_graph(sets[0], device),
        series=case.series,
        span=case.span,
        wrong=wrong,
        left_out=left_out,
        asked=wanted,
    )


def measure_latency(case: Case, device: Gpu, peers: Sequence[str]) -> Latency:
    """What a call costs the host, while the queue does not fill up."""
    work = Work(case, FAMILIES[case.op.family], device)
    calls: dict[str, list[Call]] = {OURS: [work.ours], FRESH: [work.fresh]}
    calls |= bound(case, [work], device, peers)[0]
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
        case.size,
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


def _cases(ops: Sequence[Any], options: Options) -> Iterator[list[Case]]:
    """The cases, one list a table; an op without any is named.

    A type after the other: where the time ends early, whole types have been measured.
    """
    lacking = list(ops)
    for dtype, op, direction in product(options.dtypes, ops, options.directions):
        family = FAMILIES.get(op.family)
        if family and (cases := family.on_gpu(op, direction, dtype, options.sizes)):
            if op in lacking:
                lacking.remove(op)
            yield cases
    for op in lacking:
        say(f"{op.name}: no benchmark on a GPU")


#: Families by how much a row tells of the kernels: those with most to lose first.
_TELLING = ("norms", "softmax", "activations", "gated", "bias", "reductions", "statistics", "gates")
_TELLING_DTYPES = ("float32", "bfloat16")


def telling_first(tables: Sequence[list[Case]]) -> list[list[Case]]:
    """The same cases: of each table the one that moves most, then the others, by family.

    First in the two types in which networks compute.
    """
    parts = []
    for cases in filter(None, tables):
        largest = max(cases, key=lambda case: case.moved)
        parts += [(0, [largest]), (1, [case for case in cases if case is not largest])]

    def place(part: tuple[int, list[Case]]) -> tuple[bool, int, int]:
        number, (case, *_) = part
        family = case.op.family
        at = _TELLING.index(family) if family in _TELLING else len(_TELLING)
        return case.dtype not in _TELLING_DTYPES, number, at

    return [cases for _, cases in sorted((part for part in parts if part[1]), key=place)]


def _absent(peers: Sequence[str]) -> dict[str, str]:
    """Peers that are not installed, and what would be."""
    if LIGER not in peers or find_spec(PACKAGE) is not None:
        return {}
    return {LIGER: f"{PACKAGE.replace('_', '-')} is not installed"}


def bench(
    ops: Sequence[Any],
    options: Options,
    json_file: Path | None = None,
    markdown_file: Path | None = None,
    device: Gpu | None = None,
) -> GpuResults:
    """Measure ops on a GPU, print and write tables, and return them with what went wrong.

    Parameters
    ----------
    ops : sequence of ops
        What to measure; an op without cases is named and passed over.
    options : Options
        How to measure.
    json_file, markdown_file : Path, optional
        Where to write rows and facts, and the same as tables.
    device : Gpu, optional
        Default: the current one.
    """
    device = device or open_gpu()
    results: GpuResults = start(json_file, facts_of(device.facts()), options.goes_on)
    results.absent = _absent(options.peers)
    print_absent(results)
    options = replace(
        options, peers=tuple(peer for peer in options.peers if peer not in results.absent)
    )
    tables = [
        [c for c in cases if results.lack(c.name, _peers_of(options, c.dtype))]
        for cases in _cases(ops, options)
    ]
    if options.telling_first:
        tables = telling_first(tables)
    results.unreached = [case.name for cases in tables for case in cases]

    def shown(rows: Sequence[GpuRow]) -> None:
        print_rows(rows)
        _write(results, json_file, markdown_file)

    run_tables(tables, results, options, partial(_row, results, device, options), shown)
    _write(results, json_file, markdown_file)
    print_latency(results.latencies)
    print_end(results)
    return results


def _write(results: GpuResults, json_file: Path | None, markdown_file: Path | None) -> None:
    """Numbers, and the same as tables, as far as there are any."""
    if json_file is not None:
        results.write(json_file)
    if markdown_file is not None:
        markdown_file.write_text(markdown(results), encoding="utf-8")


def _add_latency(results: GpuResults, case: Case, device: Gpu, options: Options) -> None:
    """What a call of a table's op costs, if that is not known yet."""
    known = [(one.op, one.direction, one.dtype) for one in results.latencies]
    if (case.op.name, case.direction, case.dtype) not in known:
        eager = [peer for peer in options.peers if peer == TORCH]
        results.latencies.append(measure_latency(_tiny(case), device, eager))


def _row(results: GpuResults, device: Gpu, options: Options, case: Case) -> GpuRow | None:
    """Measure a case, and note what comes of it."""
    _add_latency(results, case, device, options)
    results.unreached.remove(case.name)
    try:
        row = measure(case, device, options)
    except Exception as error:  # the other rows are still wanted
        results.failures[case.name] = row = first_line(error)
        say(f"{case.name}: failed, {row}")
        return None
    if isinstance(row, str):
        say(f"{case.name}: {row}")
        return None
    results.add(row)
    return row


def _tiny(case: Case) -> Case:
    """A case of the same op with next to no elements."""
    cases = FAMILIES[case.op.family].on_gpu
    return cases(case.op, case.direction, case.dtype, (_TINY,))[0]
