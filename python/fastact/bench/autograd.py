"""fastact in torch's autograd against torch's own ops, and in whole models.

    python -m fastact.bench.autograd ops --json ops.json
    python -m fastact.bench.autograd models --json models.json
    python -m fastact.bench.autograd generate --json generate.json    # needs transformers
    python -m fastact.bench.autograd page ops.json models.json generate.json \\
        --markdown docs/results/torch.md

A row of `ops` is a call and its gradient, by every tensor that has one; the cases are those of the
families (`workloads`). Where `--compiled` is given, both are compiled as well, by torch's inductor.
All take turns, and a ratio is the median over the ratios of the rounds, as in `cpu.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..cli import _counts as counts
from ..cli import _names as names
from ..ops.op import arrays_of, ops
from ..runtime import config
from ..runtime.threads import num_threads
from ..terminal import markdown_table, table
from . import models
from .cpu import take_turns
from .files import write_whole
from .peers import COMPILED, OURS, TORCH, LeftOut, as_tensor, compiled_by_torch, open_torch
from .workloads import FAMILIES
from .workloads.work import Case, InMemory, Work

OURS_COMPILED = "fastact, compiled"
SIZES = (1, 64, 4096, 50_000, 1_000_000, 16_000_000)


@dataclass(frozen=True)
class Row:
    """Median seconds of a call and its gradient, or of what a model does, and ratios to ours.

    about : what else is known of each: memory in bytes.
    """

    what: str
    case: str
    dtype: str
    threads: int
    seconds: dict[str, float]
    ratios: dict[str, float]
    about: dict[str, float]


def _cases(chosen: Sequence[Any], sizes: Sequence[int], dtype: str) -> Iterator[Case]:
    """Of each op one case a size: the first one of its family that has about as many elements."""
    for op in chosen:
        seen = set()
        for size in sizes:
            cases = FAMILIES[op.family].on_gpu(op, "forward", dtype, (size,))
            for case in cases[:1]:
                if case.size and case.shape not in seen:
                    seen.add(case.shape)
                    yield case


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
        first = [tensors.pop(name) for name in entry.arrays]
        return case.op(*first, **tensors, **options)

    def step(function: Callable[..., Any]) -> Callable[[], Any]:
        own = {n: t.clone().requires_grad_(n in leaves) for n, t in given.items()}
        inputs = [own[name] for name in leaves]
        incoming = [torch.randn_like(y) for y in arrays_of(function(**own)) if y.requires_grad]

        def run() -> Any:
            results = [y for y in arrays_of(function(**own)) if y.requires_grad]
            return torch.autograd.grad(results, inputs, incoming)

        return run

    theirs = family.torch(torch, case)
    found = {OURS: step(ours), TORCH: step(theirs)}
    if compiled:
        found[OURS_COMPILED] = step(compiled_by_torch(torch, ours))
        found[COMPILED] = step(torch.compile(theirs, fullgraph=True, dynamic=False))
    return found


def _row(
    what: str,
    case: str,
    dtype: str,
    calls: dict[str, Callable[[], Any]],
    seconds: float,
    threads: int,
    about: dict[str, float] | None = None,
) -> Row:
    with num_threads(threads):
        samples = take_turns(calls, seconds)
    ours = samples[OURS]
    return Row(
        what,
        case,
        dtype,
        threads,
        {name: median(values) for name, values in samples.items()},
        {
            # One that is much slower has had fewer turns.
            name: median(b / a for a, b in zip(ours, values, strict=False))
            for name, values in samples.items()
        },
        about or {},
    )


def measure_ops(args: argparse.Namespace) -> Iterator[Row]:
    """A row for each op and size."""
    chosen = [op for op in ops.values() if not args.ops or {op.name, op.family} & {*args.ops}]
    for dtype in args.dtypes:
        for case in _cases(chosen, args.sizes, dtype):
            try:
                calls = steps(case, args.threads, args.compiled)
                for call in calls.values():
                    call()
            except (LeftOut, AttributeError, RuntimeError, TypeError) as error:
                print(f"{case.op.name}: left out, {str(error).partition(chr(10))[0]}")
                continue
            yield _row(case.op.name, case.label, dtype, calls, args.seconds, args.threads)


def measure_models(args: argparse.Namespace) -> Iterator[Row]:
    """Rows of each model: a training step and inference, as it is and converted; peak memory."""
    torch = open_torch(args.threads)
    for name in args.ops or models.MODELS:
        for dtype in args.dtypes:
            pair = models.pair(name, getattr(torch, dtype))
            for case, calls in pair.items():
                given = {OURS: calls["converted"], TORCH: calls["as it is"]}
                about = {
                    who: models.peak_memory(name, dtype, case, which, args.threads)
                    for who, which in ((OURS, "converted"), (TORCH, "as it is"))
                }
                yield _row(name, case, dtype, given, args.seconds, args.threads, about)


def measure_generation(args: argparse.Namespace) -> Iterator[Row]:
    """Rows of language models: so many tokens one after another."""
    torch = open_torch(args.threads)
    for name in args.ops or models.LANGUAGE_MODELS:
        for dtype in args.dtypes:
            calls = models.generations(name, getattr(torch, dtype))
            given = {OURS: calls["converted"], TORCH: calls["as it is"]}
            case = f"{models.NEW_TOKENS} tokens"
            row = _row(name, case, dtype, given, args.seconds, args.threads)
            rates = {who: models.NEW_TOKENS / seconds for who, seconds in row.seconds.items()}
            print(
                f"{name}: tokens a second: " + ", ".join(f"{w} {r:.1f}" for w, r in rates.items())
            )
            yield row


def lines_of(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The table of these rows: times in microseconds, and how many times faster we are."""
    others = dict.fromkeys(name for row in rows for name in row.seconds if name != OURS)
    header = ["", "case", "type", f"{OURS}, µs"]
    for name in others:
        header += [f"{name}, µs", f"× {name}"]
    remembers = any(row.about for row in rows)
    if remembers:
        header += [f"peak, MB: {OURS}", TORCH]
    lines = []
    for row in rows:
        line = [row.what, row.case, row.dtype, f"{1e6 * row.seconds[OURS]:,.1f}"]
        for name in others:
            took_part = name in row.seconds
            line.append(f"{1e6 * row.seconds[name]:,.1f}" if took_part else "–")
            line.append(f"{row.ratios[name]:.2f}" if took_part else "–")
        if remembers:
            line += [f"{row.about[name] / 1e6:.0f}" for name in (OURS, TORCH)]
        lines.append(line)
    return header, lines


LEGEND = """\
A row is a call and its gradient by every tensor that has one, through `torch.autograd.grad`, or
what a model does: inference, or a training step with its optimiser. Times are medians; both sides
take turns on as many threads. × torch: torch's time over that of fastact; above 1, fastact is
faster."""


def page(args: argparse.Namespace) -> None:
    """The page of files that were measured before."""
    parts = ["# Speed in torch", LEGEND]
    for file in args.files:
        numbers = json.loads(file.read_text(encoding="utf-8"))
        facts, rows = numbers["machine"], [Row(**row) for row in numbers["rows"]]
        threads = rows[0].threads
        parts.append(
            f"## {numbers['title']}\n\n{facts['processor']}, torch {facts['torch']}, {threads} "
            f"thread{'s' if threads > 1 else ''}. Measured by `{numbers['command']}`."
        )
        if slower := [r for r in rows if r.ratios[TORCH] < 1]:
            told = ", ".join(f"{r.what} {r.case} ({r.ratios[TORCH]:.2f})" for r in slower)
            parts.append(f"Slower than torch in {len(slower)} of {len(rows)} rows: {told}.")
        header, lines = lines_of(rows)
        parts.append(markdown_table(header, lines, 3))
    write_whole(args.markdown, "\n\n".join(parts) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fastact.bench.autograd", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, run, title in (
        ("ops", measure_ops, "Ops, forward and backward"),
        ("models", measure_models, "Models"),
        ("generate", measure_generation, "Language models of transformers"),
    ):
        command = commands.add_parser(name)
        command.add_argument("ops", nargs="*", metavar="name", help="only these; of ops, families")
        command.add_argument("--sizes", type=counts, default=SIZES)
        command.add_argument("--dtypes", type=names, default=("float32",))
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--seconds", type=float, default=0.5, help="for each row, about")
        command.add_argument("--compiled", action="store_true", help="by inductor as well")
        command.add_argument("--json", type=Path)
        command.set_defaults(run=run, title=title)
    command = commands.add_parser("page")
    command.add_argument("files", nargs="+", type=Path)
    command.add_argument("--markdown", type=Path, required=True)
    command.set_defaults(run=None)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and keep what was measured after each row."""
    args = _parser().parse_args(arguments)
    if args.run is None:
        page(args)
        return 0
    torch = open_torch(args.threads)
    facts = {**config.config(), "torch": torch.__version__}
    command = " ".join(["python -m fastact.bench.autograd", *arguments])
    rows: list[Row] = []
    for row in args.run(args):
        rows.append(row)
        header, lines = lines_of([row])
        print("  ".join(f"{h} {v}".strip() for h, v in zip(header, lines[0], strict=True)))
        if args.json is not None:
            numbers = {
                "title": args.title,
                "command": command,
                "machine": facts,
                "rows": [asdict(row) for row in rows],
            }
            write_whole(args.json, json.dumps(numbers, indent=2) + "\n")
    if rows:
        print(table(*lines_of(rows), left=3))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
