"""fastact in torch's autograd against torch's own ops, and in whole models.

    python -m benchmarks.autograd ops --markdown docs/results/torch.md
    python -m benchmarks.autograd compiled mish softmax --sizes 4096,1e6 --markdown …
    python -m benchmarks.autograd fusion --markdown …
    python -m benchmarks.autograd models --markdown …
    python -m benchmarks.autograd generate --markdown docs/results/transformers.md
    python -m benchmarks.autograd logits --markdown docs/results/transformers.md

A row of `ops` is a call and its gradient, by every tensor that has one; the families give the cases
(`workloads`). `compiled` has both compiled as well, by torch's inductor; `fusion` what inductor
makes one kernel of; `generate` and `logits` need transformers. All take turns, and a ratio is the
median over the ratios of the rounds, as in `cpu.py`.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fastact as fa
from fastact.measure.peers import (
    COMPILED,
    OURS,
    TORCH,
    LeftOut,
    as_tensor,
    compiled_by_torch,
    open_torch,
)
from fastact.ops.engine.op import arrays_of
from fastact.terminal import markdown_table

from . import models
from .pages import Call, Section, Timed, compare, in_process, main, marked, named_ops, table_of
from .workloads import FAMILIES
from .workloads.libraries import Torch
from .workloads.work import Case, InMemory, Work

OURS_COMPILED = "fastact, compiled"
SIZES = (1, 64, 4096, 50_000, 1_000_000, 16_000_000)


def _cases(chosen: Sequence[Any], sizes: Sequence[int], dtype: str) -> Iterator[tuple[int, Case]]:
    """Of each op one case a size: the first one of its family that has about as many elements."""
    for op in chosen:
        seen = set()
        for size in sizes:
            cases = FAMILIES[op.family].on_gpu(op, "forward", dtype, (size,))
            for case in cases[:1]:
                if case.size and case.shape not in seen:
                    seen.add(case.shape)
                    yield size, case


def steps(case: Case, threads: int, compiled: bool) -> dict[str, Callable[[], Any]]:
    """A call and its gradient: ours, torch's, and both compiled."""
    torch = open_torch(threads)
    family = FAMILIES[case.op.family]
    work = Work(case, family, InMemory())
    given = {name: as_tensor(torch, array) for name, array in work.inputs.items()}
    floats = [name for name, tensor in given.items() if tensor.is_floating_point()]
    leaves = [n for n in floats if n in (*case.op.differentiated, *case.op.shares)]

    entry = case.op.entry_points["call"]
    options = {name: value for name, value in case.options.items() if name in entry.defaults}

    def ours(**tensors: Any) -> Any:
        first = [tensors[name] for name in entry.arrays]
        by_name = {name: tensors[name] for name in entry.defaults if name in tensors}
        return case.op(*first, **by_name, **options)

    def step(function: Callable[..., Any]) -> Call:
        own = {n: t.clone().requires_grad_(n in leaves) for n, t in given.items()}
        return gradients(function, own, [own[name] for name in leaves])

    theirs = family.by(Torch(torch), case)
    found = {OURS: step(ours), TORCH: step(theirs)}
    if compiled:
        found[OURS_COMPILED] = step(compiled_by_torch(torch, ours))
        found[COMPILED] = step(torch.compile(theirs, fullgraph=True, dynamic=False))
    return found


WIDTH = 768


def _of_torch(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    total = x + b
    return functional.silu(functional.rms_norm(total, (WIDTH,), a, 1e-6)) * total


#: By name: fastact's and torch's function of x, a and b, and which of a and b has the shape of x.
BLOCKS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "mish": (lambda x, a, b: fa.mish(x), lambda x, a, b: functional.mish(x), ""),
    "scale, shift, mish, scale, add": (
        lambda x, a, b: fa.mish(x * a + b) * a + x,
        lambda x, a, b: functional.mish(x * a + b) * a + x,
        "",
    ),
    "layer norm, gelu": (
        lambda x, a, b: fa.layer_norm(x, a, b, activation="gelu"),
        lambda x, a, b: functional.gelu(functional.layer_norm(x, (WIDTH,), a, b)),
        "",
    ),
    "add, RMS norm, SwiGLU": (lambda x, a, b: fa.swiglu(*fa.add_rms_norm(x, b, a)), _of_torch, "b"),
}


def _step(function: Callable[..., Tensor], rows: int, whole: str) -> Call:
    torch.manual_seed(0)
    shapes = [(rows, WIDTH), *((rows, WIDTH) if n in whole else (WIDTH,) for n in "ab")]
    inputs = dict(zip("xab", (torch.randn(n, requires_grad=True) for n in shapes), strict=True))
    y = function(**inputs).sum()
    found: Sequence[Any] = torch.autograd.grad(y, [*inputs.values()], allow_unused=True)
    used = [x for x, dx in zip(inputs.values(), found, strict=True) if dx is not None]
    return gradients(function, inputs, used)


def gradients(
    function: Callable[..., Any], inputs: dict[str, Tensor], leaves: Sequence[Tensor]
) -> Call:
    """The call of a function and its gradients by the leaves among its inputs."""
    incoming = [torch.randn_like(y) for y in arrays_of(function(**inputs)) if y.requires_grad]

    def run() -> Any:
        results = [y for y in arrays_of(function(**inputs)) if y.requires_grad]
        return torch.autograd.grad(results, leaves, incoming)

    return run


def keep_memory() -> None:
    """Memory that is freed stays with the process, where its libc is glibc.

    Otherwise free memory at the end of the heap goes back to the system, once it is much. The next
    call that allocates gets new pages, one fault each, and that may always be the same side's call.
    """
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: of Windows
        return
    mallopt(trim_threshold, 1 << 30)
    mallopt(mmap_threshold, 1 << 25)  # the most that it takes


def _row(
    args: argparse.Namespace, what: str, case: str, dtype: str, calls: dict[str, Call], **more: Any
) -> Timed:
    """Call everything once, which may compile, and measure a row."""
    for call in calls.values():
        call()
    found = compare(calls, args.seconds, args.threads, what, case, dtype)
    return found._replace(**more)


def measure_ops(args: argparse.Namespace, compiled: bool = False) -> Iterator[Timed]:
    """A row for each op and size."""
    for dtype in args.dtypes:
        for size, case in _cases(named_ops(args), args.sizes, dtype):
            try:
                calls = steps(case, args.threads, compiled)
                yield _row(args, case.op.name, case.label, dtype, calls, size=size)
            except (LeftOut, AttributeError, RuntimeError, TypeError) as error:
                print(f"{case.op.name}: left out, {str(error).partition(chr(10))[0]}")


def measure_fusion(args: argparse.Namespace) -> Iterator[Timed]:
    """Rows of blocks of several operations, eager and compiled, and their gradients."""
    open_torch(args.threads)
    for name in args.names or BLOCKS:
        ours, theirs, whole = BLOCKS[name]
        for rows in dict.fromkeys(max(1, size // WIDTH) for size in args.sizes):
            theirs_compiled = torch.compile(theirs, fullgraph=True, dynamic=False)
            compiled = {OURS_COMPILED: compiled_by_torch(torch, ours), COMPILED: theirs_compiled}
            functions = {OURS: ours, TORCH: theirs, **compiled}
            calls = {who: _step(function, rows, whole) for who, function in functions.items()}
            yield _row(args, name, f"{rows:,} × {WIDTH}", "float32", calls)


def _of_models(args: argparse.Namespace, known: Iterable[str]) -> Iterator[tuple[str, str, Any]]:
    """Names of models and dtypes that are asked for."""
    torch = open_torch(args.threads)
    for name, dtype in product(args.names or known, args.dtypes):
        yield name, dtype, getattr(torch, dtype)


def measure_models(args: argparse.Namespace) -> Iterator[Timed]:
    """Rows of each model: a training step and inference, as it is and converted; peak memory."""
    for name, dtype, kind in _of_models(args, models.MODELS):
        for case, calls in models.pair(name, kind).items():
            row = _row(args, name, case, dtype, calls)
            place = "models", name, dtype, case
            peaks = {who: 1e-6 * in_process(*place, who, args.threads) for who in calls}
            yield row._replace(about=peaks, unit="peak, MB")


def measure_generation(args: argparse.Namespace) -> Iterator[Timed]:
    """Rows of language models: so many tokens one after another."""
    for name, dtype, kind in _of_models(args, models.LANGUAGE_MODELS):
        case, calls = f"{models.NEW_TOKENS} tokens", models.generations(name, kind)
        row = _row(args, name, case, dtype, calls)
        rates = {who: models.NEW_TOKENS / seconds for who, seconds in row.seconds.items()}
        yield row._replace(about=rates, unit="tokens a second")


def measure_logits(args: argparse.Namespace) -> Iterator[Timed]:
    """Rows of language models: the logits of prompts, and how far from float64 they are."""
    for name, dtype, kind in _of_models(args, models.LANGUAGE_MODELS):
        calls, far = models.logits(name, kind)
        about = {"about": {who: 1e6 * error for who, error in far.items()}}
        case = f"4 prompts of {models.PROMPT} tokens"
        yield _row(args, name, case, dtype, calls, unit="error, millionths", **about)


def _by_size(rows: Sequence[Timed]) -> str:
    """A row for each op, a column for each size: µs of ours, and torch's time over it."""
    sizes = sorted({row.size for row in rows})
    of = {(row.labels[0], row.labels[2], row.size): row for row in rows}
    header = ["", "type", *(f"{size:,}" for size in sizes)]
    lines = []
    for what, dtype in dict.fromkeys((what, dtype) for what, dtype, _ in of):
        line = [what, dtype]
        for size in sizes:
            row = of.get((what, dtype, size))
            times = "" if row is None else f"{1e6 * row.seconds[OURS]:,.1f}"
            line.append("" if row is None else f"{times} ({marked(row.ratios[TORCH])})")
        lines.append(line)
    ratios = [[row.ratios[TORCH] for row in rows if row.size == size] for size in sizes]
    lines += [
        ["slower than torch", "", *(f"{sum(r < 1 for r in of)} of {len(of)}" for of in ratios)],
        ["median × torch", "", *(f"{median(of):.2f}" for of in ratios)],
        ["least × torch", "", *(f"{min(of):.2f}" for of in ratios)],
    ]
    return (
        "In brackets × torch, bold where torch is faster, before them the microseconds of fastact, "
        "by the number of elements, about.\n\n" + markdown_table(header, lines, 2)
    )


def _table(
    measure: Callable[[argparse.Namespace], Iterator[Timed]], args: argparse.Namespace
) -> Iterator[str]:
    """Yield what the rows of a command say, in words and as a table."""
    keep_memory()
    open_torch(args.threads)
    rows: list[Timed] = []

    def kept() -> Iterator[Timed]:
        for row in measure(args):
            rows.append(row)
            yield row

    table = table_of(kept(), ("", "case", "type"), unit="µs")
    if rows and all({*row.seconds} == {OURS, TORCH} and row.size for row in rows):
        yield _by_size(rows)
    elif rows:
        yield table


def _section(page: str, heading: str, measure: Any, *packages: str) -> Section:
    return Section(page, heading, partial(_table, measure), (TORCH, *packages))


_OPS, _TORCH = "Ops, forward and backward", partial(_section, "Speed in torch")
_TRANSFORMERS = partial(_section, "Models of transformers")
SECTIONS = {
    "ops": _TORCH(_OPS, measure_ops),
    "compiled": _TORCH(f"{_OPS}, compiled", partial(measure_ops, compiled=True)),
    "fusion": _TORCH("Blocks that inductor fuses, forward and backward", measure_fusion),
    "models": _TORCH("Models", measure_models),
    "generate": _TRANSFORMERS(
        "Language models of transformers", measure_generation, "transformers"
    ),
    "logits": _TRANSFORMERS("Logits of language models", measure_logits, "transformers"),
}

_OPTIONS = {"sizes": SIZES, "dtypes": ("float32",), "threads": 2, "seconds": 0.5}
run = partial(main, "autograd", __doc__, SECTIONS, _OPTIONS)

if __name__ == "__main__":
    run()
