"""A run of a board: table by table until the time is up, and files of what is known by then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastact.terminal import Progress, say

from .results import Results, start, tables_of, write_whole
from .workloads.work import Case, Options


def run(
    board: Any,
    chosen: Sequence[Any],
    options: Options,
    json_file: Path | None = None,
    markdown_file: Path | None = None,
) -> Results:
    """Measure ops, print a table for each, and return the results.

    board : has `facts`, what numbers need beside them; `absent`, peers that were asked for and are
    not installed, and why; `tables`, the cases with their numbers of threads, one list a table;
    `peers`, who takes part in a case; `measure`, a row or None, and the peers that could not take
    part, with the reasons; `show`, which prints a table, `end`, which prints what stands behind all
    of them, and `page`, all of it as Markdown. chosen : an op that has no case, or none that was
    asked for, is named and passed over. json_file, markdown_file : for rows and facts, and for the
    page of them, written after each table, so that what has been measured survives whatever comes.
    """
    results = start(json_file, board.facts(), options.goes_on)
    results.absent = board.absent
    say(*left_out_lines([board.absent]), end="\n" if board.absent else "")
    known = {row.key: row for row in results.rows}

    def lacking(case: Case, threads: int) -> list[str] | None:
        """Return the peers that are left to measure; None if there is nothing to be done."""
        row, peers = known.get((*case.words.values(), threads)), board.peers(case)
        return peers if row is None else row.missing(peers) or None

    def write() -> None:
        results.sort()
        if json_file is not None:
            results.write(json_file)
        if markdown_file is not None and (results.rows or results.failures):
            write_whole(markdown_file, board.page(results))

    tables = [
        [(*todo, left) for todo in part if (left := lacking(*todo)) is not None]
        for part in board.tables(chosen)
    ]
    results.left = sum(map(len, tables))
    if options.goes_on:
        say(f"{len(results.rows)} rows are there, {results.left} to be measured")
    ends = time.monotonic() + options.stop_after
    with Progress("bench", results.left) as progress:
        for part in filter(None, tables):
            rows, reasons = [], []
            for todo in part:
                if late := time.monotonic() >= ends:
                    break
                results.left -= 1
                row, left_out = board.measure(results, *todo)
                reasons.append(left_out)
                rows += [] if row is None else [results.add(row)]
                progress.advance(1)
            if rows:
                board.show(rows)
                said = left_out_lines(reasons)
                say(*said, end="\n" if said else "")
                write()
            if late:
                break
    write()
    board.end(results)
    return results


def show_again(board: Any, results: Results) -> None:
    """Print all that was printed when it was measured."""
    for part in tables_of(results.rows):
        board.show(part)
        say(*left_out_lines(getattr(row, "left_out", {}) for row in part), end="")
    board.end(results)


def tables(
    asking: Iterable[tuple[Any, int, str, str]], cases: Callable[[Any, str, str], list[Case]]
) -> Iterator[list[tuple[Case, int]]]:
    """Yield the cases of ops, threads, types and directions; an op without any is named."""
    has_some: dict[str, bool] = {}
    for op, threads, dtype, direction in asking:
        found = cases(op, direction, dtype)
        has_some[op.name] = has_some.get(op.name, False) or bool(found)
        if found:
            yield [(case, threads) for case in found]
    for name, some in has_some.items():
        if not some:
            say(f"{name}: nothing to measure of it")


def left_out_lines(reasons: Iterable[Mapping[str, str]]) -> list[str]:
    """Tell who could not take part and why, once each."""
    pairs = (pair for of in reasons for pair in of.items())
    return list(dict.fromkeys(f"{peer}: left out, {why}" for peer, why in pairs))


def say_left(results: Results) -> None:
    """Say how many rows are left, if any."""
    if results.left:
        say(f"{results.left} rows are left; the same with --resume goes on")
