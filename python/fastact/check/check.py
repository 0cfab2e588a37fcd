"""The accuracy check behind ``python -m fastact check``.

Every op is compared with an oracle of higher precision on every instruction set that this CPU has,
and held to the bounds that the op itself states. How is the matter of a family's own module, its
`CHECK`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import _cpu
from ..terminal import Progress, markdown_table, paragraph, say, styled, table
from . import activations, calls, plot, sums
from .common import Check, Options, Report

CHECKS = (
    *(activations.CHECK, sums.CHECK),
    *(calls.BIAS, calls.GATED, calls.NORMS, calls.GATES, calls.SOFTMAX, calls.OTHER),
)


def check_for(op: Any) -> Check:
    """How an op is checked: the last one knows any op."""
    return next(check for check in CHECKS if check.knows(op))


@contextmanager
def restored_isa() -> Iterator[None]:
    """Go back to the instruction set of before, whatever was selected inside."""
    before = _cpu.isa()
    try:
        yield
    finally:
        _cpu.select_isa(before)


def _pages(check: Check, rows: list[list[str]]) -> Iterator[str]:
    if check is activations.CHECK:
        yield activations.summary(rows)
    yield markdown_table(check.header, rows, check.left)
    yield check.legend


def check(
    ops: Sequence[Any], options: Options, markdown: Path | None = None, picture: Path | None = None
) -> bool:
    """Check ops, print what was found, and say whether every bound holds.

    markdown : the file to write the tables to. picture : the pictures are named after it.
    """
    report = Report()
    found: dict[str, tuple[Check, list[list[str]]]] = {}  # by legend: one table for each
    for op in ops:
        check = check_for(op)
        report.say(styled(op.name, "bold"))
        begin = len(report.rows)
        with restored_isa():
            check.run(op, options, report)
        rows = report.rows[begin:]
        report.say(table(check.header, rows, left=check.left))
        found.setdefault(check.legend, (check, []))[1].extend(rows)
        if markdown is not None:  # all so far: an exhaustive check takes hours
            pages = [page for check, rows in found.values() for page in _pages(check, rows)]
            markdown.write_text("\n\n".join(pages) + "\n", encoding="utf-8")
    for legend in found:
        report.say("", paragraph(legend))
    if picture is not None:
        with restored_isa():
            drawn = plot.plot(ops, [*found.values()], options, picture)
        report.say(*(f"drawn: {file}" for file in drawn))
    violated = len(report.failures)
    report.say(
        styled(f"bounds violated: {violated}", "red")
        if violated
        else styled("every bound holds", "green")
    )
    return not report.failures


def overview(ops: Sequence[Any], options: Options) -> bool:
    """Check ops as `check` does, and print a line each."""
    lines: list[list[str]] = []
    plain: list[str] = []
    report = Report(quiet=True)
    header = ["op"]
    with Progress("check", len(ops)) as progress, restored_isa():
        for op in ops:
            check = check_for(op)
            begin = len(report.rows)
            check.run(op, options, report)
            if check is activations.CHECK:
                found = activations.gist(op, report.rows[begin:])
                header = ["op", *found]
                lines.append([op.name, *found.values()])
            else:
                plain.append(op.name)
            progress.advance(1)
    say(table(header, lines, left=1))
    held = "are not all within their bounds" if report.failures else "are within their bounds"
    told = paragraph(f"These and {', '.join(plain)} {held} on {', '.join(options.isas)}.")
    say(styled(told, "red" if report.failures else "green"))
    return not report.failures
