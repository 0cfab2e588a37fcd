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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import product
from math import ceil
from typing import Any

from fastact.bench.bench import by_torch
from fastact.bench.turns import Row, asked, first_line, medians, time_of
from fastact.measure.peers import COMPILED, COPY, FRESH, LIGER, OURS, READ, TORCH
from fastact.ops.engine.op import arrays_of
from fastact.terminal import say

from .board import tables
from .cuda_device import MOST_CALLS, Call, Gpu, open_gpu
from .cuda_report import markdown, print_end, print_rows
from .liger import PACKAGE, by_liger
from .results import GpuRow, Results, facts_of
from .workloads import FAMILIES
from .workloads.work import ITEM, Case, Options, Work, torch_binder

_PAST_L2 = 3  # times its size
_SAMPLE_SECONDS = 3e-3
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 100
TINY = 64  # elements: nothing but the call counts
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
    """The peers' calls; who fails when its graph is built or in a first call is left out."""

    torch, family = device.torch, FAMILIES[case.op.family]

    def calls(peer: str) -> list[Call] | None:
        if peer in (TORCH, COMPILED):
            bind = torch_binder(torch, case, family, compiles=peer == COMPILED)
        else:
            function = by_liger(case)
            if function is None:
                return None
            bind = partial(by_torch, torch, function, constant=family.constant)
        made = [bind(*work.given) for work in sets]
        for call in made:
            call()
        return made

    return asked(peers, calls)


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
    timed = {name: partial(device.seconds, calls[name], times[name]) for name in calls}
    return in_turns(timed, _FEWEST_ROUNDS, _MOST_ROUNDS, seconds)


def in_turns(
    timed: Mapping[str, Callable[[], float]], fewest: int, most: int, seconds: float = 0.0
) -> dict[str, list[float]]:
    """Take a sample of everybody in each round, of as many rounds as the seconds allow."""
    samples: dict[str, list[float]] = {name: [] for name in timed}
    ends, collecting = time.perf_counter() + seconds, gc.isenabled()
    gc.disable()
    try:
        for number in range(most):
            if number >= fewest and time.perf_counter() >= ends:
                break
            for name in timed if number % 2 else reversed([*timed]):
                samples[name].append(timed[name]())
    finally:
        if collecting:
            gc.enable()
    return samples


def measure(case: Case, device: Gpu, options: Options, wanted: Sequence[str]) -> GpuRow | str:
    """One row, or why there is none."""
    # Ours, the copy, and what peers (and the pure read) hold beside them.
    buffers = buffers_for(case.moved, device.l2)
    needed = case.moved * (buffers * (3 if case.sums else 2) + 3)
    free = device.free()
    if needed > _SPARE * free:
        return f"needs {needed / 2**30:.1f} GiB, of which {free / 2**30:.1f} are free"
    family = FAMILIES[case.op.family]
    sets = [Work(case, family, device) for _ in range(buffers)]
    calls, left_out = _contenders(case, sets, device, wanted)
    if COMPILED in options.peers and COMPILED not in wanted:
        left_out[COMPILED] = f"for {' and '.join(options.compiled)} alone: a row takes it seconds"
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
        without=tuple(peer for peer in wanted if peer not in samples),
    )


def measure_latency(case: Case, device: Gpu, peers: Sequence[str]) -> Row:
    """What a call costs the host, while the queue does not fill up."""
    work = Work(case, FAMILIES[case.op.family], device)
    calls: dict[str, list[Call]] = {OURS: [work.ours], FRESH: [work.fresh]}
    calls |= bound(case, [work], device, peers)[0]
    samples = host_seconds(
        {name: of[0] for name, of in calls.items()}, _LATENCY_ROUNDS, device.synchronize
    )
    return Row(**case.words, **medians(samples), size=case.size)


def host_seconds(
    calls: Mapping[str, Call], rounds: int, synchronize: Call = lambda: None
) -> dict[str, list[float]]:
    """Seconds of a call on the host in each round, of a few between two synchronisations."""

    def timed(call: Call) -> float:
        synchronize()
        seconds = time_of(call, _TINY_CALLS)
        synchronize()
        return seconds

    return in_turns({name: partial(timed, call) for name, call in calls.items()}, rounds, rounds)


#: Families by how much a row tells of the kernels: those with most to lose first.
_TELLING = ("norms", "softmax", "activations", "gated", "bias", "reductions", "statistics", "gates")
_TELLING_DTYPES = ("float32", "bfloat16")


def telling_first(planned: Iterable[list[tuple[Case, int]]]) -> list[list[tuple[Case, int]]]:
    """The same cases: of each table the one that moves most, then the others, by family.

    First in the two types in which networks compute.
    """
    parts = []
    for todo in planned:
        largest = max(todo, key=lambda one: one[0].moved)
        parts += [(0, [largest]), (1, [one for one in todo if one is not largest])]

    def place(part: tuple[int, list[tuple[Case, int]]]) -> tuple[bool, int, int]:
        number, ((case, _), *_) = part
        family = case.op.family
        at = _TELLING.index(family) if family in _TELLING else len(_TELLING)
        return case.dtype not in _TELLING_DTYPES, number, at

    return [todo for _, todo in sorted((part for part in parts if part[1]), key=place)]


def _absent(peers: Sequence[str]) -> dict[str, str]:
    """Peers that are not installed, and what would be."""
    if LIGER not in peers or find_spec(PACKAGE) is not None:
        return {}
    return {LIGER: f"{PACKAGE.replace('_', '-')} is not installed"}


class Gpus:
    """The board of a GPU."""

    show, end, page = staticmethod(print_rows), staticmethod(print_end), staticmethod(markdown)

    def __init__(self, options: Options, device: Gpu | None = None) -> None:
        self._options, self._device = options, device or open_gpu()
        self.absent = _absent(options.peers)

    def facts(self) -> dict[str, Any]:
        """Return the machine and this build."""
        return facts_of(self._device.facts())

    def tables(self, chosen: Sequence[Any]) -> Iterable[list[tuple[Case, int]]]:
        """Return the cases, one list a table.

        A type after the other: where the time ends early, whole types have been measured.
        """
        options = self._options
        every = product(options.dtypes, chosen, options.directions)
        asking = ((op, 0, dtype, direction) for dtype, op, direction in every)
        planned = tables(
            asking, lambda op, way, dtype: FAMILIES[op.family].on_gpu(op, way, dtype, options.sizes)
        )
        return telling_first(planned) if options.telling_first else planned

    def peers(self, case: Case) -> list[str]:
        """Return who takes part in a case."""
        compiles = case.dtype in self._options.compiled
        here = [peer for peer in self._options.peers if peer not in self.absent]
        return [peer for peer in here if compiles or peer != COMPILED]

    def measure(
        self, results: Results, case: Case, _: int, left: Sequence[str]
    ) -> tuple[GpuRow | None, dict[str, str]]:
        """Return a row, or say why there is none; the first one of a table costs a call, too."""
        of = case.op.name, case.direction, case.dtype
        if of not in [(one.op, one.direction, one.dtype) for one in results.latency]:
            eager = [peer for peer in self._options.peers if peer == TORCH]
            small = tiny(case.op, case.direction, case.dtype)
            results.latency.append(measure_latency(small, self._device, eager))
        try:
            row = measure(case, self._device, self._options, left)
        except Exception as error:  # the other rows are still wanted
            results.failures[case.name] = first_line(error)
            row = f"failed, {results.failures[case.name]}"
        if isinstance(row, str):
            say(f"{case.name}: {row}")
            return None, {}
        return row, row.left_out


def tiny(op: Any, direction: str, dtype: str) -> Case:
    """A case of an op with next to no elements."""
    return FAMILIES[op.family].on_gpu(op, direction, dtype, (TINY,))[0]
