"""The speed benchmark behind ``python -m benchmarks``.

Speed is reported as a ratio within one run: us against the copy of the same bytes through the same
threads, and against every peer. All of them take turns within each round, so that noise of the
machine hits all alike, and a ratio is the median over the ratios of the rounds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fastact import _cpu
from fastact.bench.bench import by_jax
from fastact.bench.turns import Row, asked, medians, take_turns
from fastact.measure.peers import (
    COMPILED,
    COPY,
    FIRST,
    FIRST_OF_TORCH,
    FRESH,
    JAX,
    MKL,
    NUMPY,
    ONNX,
    OURS,
    OURS_OF_TORCH,
    TORCH,
    Call,
    as_tensor,
    flat,
    open_jax,
    open_torch,
    versions,
)
from fastact.runtime import config
from fastact.runtime.threads import num_threads
from fastact.terminal import say, table

from . import mkl
from .board import tables
from .onnx import by_onnx
from .report import markdown, print_end, print_rows
from .results import Results, facts_of
from .workloads import FAMILIES
from .workloads.libraries import Jax
from .workloads.work import Case, InMemory, Options, Work, by_numpy, torch_binder

_BYTES_A_SECOND = 2e9  # by a call and all that is done again and again with it


def workload(
    case: Case, peers: Sequence[str], threads: int, small: bool = False
) -> tuple[dict[str, Call], dict[str, str]]:
    """Calls that do the same work by name, and the peers that cannot do it, with the reasons.

    They are ours, a copy of an array of the case's shape, and those of peers; of small calls also
    our first one, and ours of tensors where torch is a peer.
    """
    family = FAMILIES[case.op.family]
    work = Work(case, family, InMemory())
    source = next(a for a in (*flat(work.arrays.values()), *work.out) if np.shape(a) == case.shape)
    calls: dict[str, Call] = {
        OURS: work.ours,
        FRESH: work.fresh,
        COPY: partial(_cpu.copy, np.empty_like(source), source),
    }

    def tried(peer: str) -> Call:
        call = _MAKERS[peer](work, threads)
        with np.errstate(all="ignore"):
            call()
        return call

    theirs, left_out = asked(peers, tried)
    calls |= theirs
    if small:
        calls[FIRST] = _uncached(work.ours)
    if small and TORCH in peers:
        of_tensors = Work(case, family, InMemory(partial(as_tensor, open_torch(threads)))).ours
        calls |= {OURS_OF_TORCH: of_tensors, FIRST_OF_TORCH: _uncached(of_tensors)}
    return calls, left_out


def _uncached(call: Call) -> Call:
    """The call as it is the first time: nothing of an earlier one is replayed."""

    def run() -> Any:
        _cpu.enable_call_cache(False)
        try:
            return call()
        finally:
            _cpu.enable_call_cache(True)

    return run


def _torch(work: Work, threads: int, compiles: bool = False) -> Call:
    torch = open_torch(threads)
    bind = torch_binder(torch, work.case, work.family, compiles)
    return bind(*({n: as_tensor(torch, a) for n, a in arrays.items()} for arrays in work.given))


def _jax(work: Work, threads: int) -> Call:
    jax = open_jax(threads)
    return by_jax(jax, work.family.by(Jax(jax), work.case), *work.given, work.family.constant)


_MAKERS: dict[str, Callable[[Work, int], Call]] = {
    TORCH: _torch,
    COMPILED: partial(_torch, compiles=True),
    NUMPY: by_numpy,
    JAX: _jax,
    ONNX: by_onnx,
    MKL: mkl.call,
}


def measure(
    case: Case, peers: Sequence[str], seconds: float, threads: int, small: bool = False
) -> tuple[Row, dict[str, str]]:
    """One row, and the peers that had to be left out of it with the reason."""
    calls, left_out = workload(case, peers, threads, small)
    with num_threads(threads), np.errstate(all="ignore"):
        samples = take_turns(calls, seconds)
    # The copy is of one array: it moves two.
    samples[COPY] = [sample * (case.accesses / 2) for sample in samples[COPY]]
    found = medians(samples)
    for of in (found["seconds"], found["ratios"]):  # as a file of thousands of rows has place for
        of |= {name: float(f"{value:.4g}") for name, value in of.items()}
    row = Row(**case.words, **found, size=case.size, threads=threads, without=tuple(left_out))
    return row, left_out


class Cpu:
    """The board of this machine's processor."""

    show, end, page = staticmethod(print_rows), staticmethod(print_end), staticmethod(markdown)

    def __init__(self, options: Options) -> None:
        self._options, self._versions = options, versions(options.peers)
        self.absent = {p: "not installed" for p in options.peers if p not in self._versions}

    def facts(self) -> dict[str, Any]:
        """Return the machine, this build and the peers."""
        busy = os.getloadavg()[0]
        if busy > 0.5 * (os.cpu_count() or 1):
            say(f"note: the load average was {busy:.1f} at the start; an idle machine tells more")
        return facts_of({**config.config(), "peers": self._versions})

    def tables(self, chosen: Sequence[Any]) -> Iterator[list[tuple[Case, int]]]:
        """Return the cases, each with a number of threads, one list a table."""
        options = self._options
        asking = product(chosen, options.threads, options.dtypes, options.directions)
        return tables(
            asking, lambda op, way, dtype: FAMILIES[op.family].on_cpu(op, way, dtype, options)
        )

    def peers(self, case: Case) -> list[str]:
        """Return who takes part in a case."""
        return [*self._versions]

    def measure(
        self, _: Results, case: Case, threads: int, left: Sequence[str]
    ) -> tuple[Row, dict[str, str]]:
        """Return a row, and the peers that could not take part, with the reasons."""
        return measure(case, left, self._options.seconds, threads, self._options.small)


def listing(
    planned: Iterable[Sequence[tuple[Case, int]]], peers: Sequence[str], seconds: float
) -> str:
    """A table of rows and minutes by family and type, and the sum, so that runs can be planned.

    The estimate need not be right by more than a half: a row takes its time once more, for peers
    half of it each, then what calls of large arrays take.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for case, _ in (one for part in planned for one in part):
        of_calls = case.moved * (2 + len(peers)) / _BYTES_A_SECOND
        taken = found.setdefault((case.op.family, case.dtype), [])
        taken.append(((2 + len(peers) / 2) * seconds + of_calls) / 60)
    lines = [[*name, str(len(part)), f"{sum(part):.1f}"] for name, part in found.items()]
    every = [minutes for part in found.values() for minutes in part]
    lines.append(["all", "", str(len(every)), f"{sum(every):.1f}"])
    return table(["family", "type", "rows", "minutes, about"], lines, 2)
