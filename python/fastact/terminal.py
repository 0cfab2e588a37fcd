"""What the command line shows: tables, progress, and a clear word when an extra is missing.

Results go to the standard output as plain text; progress goes to the standard error, so that a pipe
carries results only.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

_SECONDS_BETWEEN_LINES = 10.0


def require(module: str, purpose: str, package: str = "fastact[bench]") -> Any:
    """Import an optional module, or leave with one line that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise SystemExit(f"fastact: {purpose} needs {name}: pip install '{package}'") from None


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns of plain text: the first `left` ones aligned to the left, the others to the right.

    Examples
    --------
    >>> print(table(["op", "ULP"], [["mish", "2.1"], ["relu", "0"]]))
    op    ULP
    mish  2.1
    relu    0
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The same table in Markdown.

    Examples
    --------
    >>> print(markdown_table(["op", "ULP"], [["mish", "2.1"]]))
    | op | ULP |
    |---|---:|
    | mish | 2.1 |
    """
    rule = "|" + "|".join("---" if column < left else "---:" for column in range(len(header))) + "|"
    body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(header) + " |", rule, *body])


class Progress:
    """Progress of one long loop: a bar on a terminal with rich, else a line every few seconds.

    Parameters
    ----------
    label : str
        What is going on.
    total : int
        Steps until the end.
    """

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = max(total, 1)
        self._done = 0
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        self._bar: Any = None
        if sys.stderr.isatty() and find_spec("rich") is not None:
            console = importlib.import_module("rich.console").Console(stderr=True)
            self._bar = importlib.import_module("rich.progress").Progress(
                console=console,
                transient=True,
                auto_refresh=False,  # a thread that draws would disturb what is being timed
            )
            self._task = self._bar.add_task(label, total=self._total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, steps: int) -> None:
        """Count `steps` more steps as done."""
        self._done += steps
        if self._bar is not None:
            self._bar.update(self._task, advance=steps, refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            percent = 100 * self._done // self._total
            print(f"{self._label}: {percent} %", file=sys.stderr, flush=True)
