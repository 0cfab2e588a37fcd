"""Output of the command line: tables, progress, and a clear word when an extra is missing.

Results go to the standard output, progress to the standard error, so that a pipe carries results
only. On a terminal there are colours, and tables are folded to its width; a pipe gets plain text
and whole tables. Nothing but Python is needed for it.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TextIO

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_BARS = 0.1
_BAR = 24  # columns
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}
_ERASE = "\r\x1b[K"

_bar_is_shown = False
_open: list[Progress] = []  # the loops that run, the outermost first


def require(module: str, purpose: str, package: str = "fastact[bench]") -> Any:
    """Import an optional module, or leave with one line that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise SystemExit(f"fastact: {purpose} needs {name}: pip install '{package}'") from None


def is_terminal(stream: TextIO) -> bool:
    """Tell whether a person looks at the stream, on something that knows escape sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str) -> str:
    """Return the text in bold, dim or a colour, where the standard output shows colours."""
    shows = is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if shows and style else text


def say(*lines: object, end: str = "\n") -> None:
    """Print lines of results, at once and in the place of a bar of progress."""
    global _bar_is_shown
    if _bar_is_shown:
        sys.stderr.write(_ERASE)
        sys.stderr.flush()
        _bar_is_shown = False
    print(*lines, sep="\n", end=end, flush=True)


def width() -> int:
    """Columns of the terminal that results go to; 0 where it is none."""
    return shutil.get_terminal_size((0, 0)).columns if is_terminal(sys.stdout) else 0


def paragraph(text: str, head: str = "") -> str:
    """Wrap a text to the width of the terminal, indented behind a head."""
    if not (columns := width()):
        return head + text
    words, beside = " ".join(text.split()), " " * len(head)
    return textwrap.fill(words, columns, initial_indent=head, subsequent_indent=beside)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int = 1,
    style: Callable[[str, str], str] = lambda column, cell: "",
) -> str:
    """Columns of text: the first `left` ones aligned to the left, the others to the right.

    A table that is wider than the terminal is folded: what does not fit stands below, beside the
    same names. A column "× torch" stays with the one before it, where a plain × is enough.

    style : of a cell, from the name of its column and its text.

    Examples
    --------
    >>> print(table(["op", "ULP"], [["mish", "2.1"], ["relu", "0"]]))
    op    ULP
    mish  2.1
    relu    0
    """
    shown = list(header)
    if width():
        for i in range(1, len(shown)):
            shown[i] = "×" if header[i] == f"× {header[i - 1]}" else shown[i]
    lines = [shown, *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def cell(line: int, column: int) -> str:
        text = lines[line][column]
        aligned = (text.ljust if column < left else text.rjust)(widths[column])
        return styled(aligned, style(header[column], text) if line else "bold")

    return "\n\n".join(
        "\n".join(
            "  ".join(cell(line, column) for column in part).rstrip() for line in range(len(lines))
        )
        for part in _folded(header, widths, max(left, 1))
    )


def _folded(header: Sequence[str], widths: Sequence[int], names: int) -> list[list[int]]:
    """Return the columns of each part of a table: its names, and what fits beside them."""
    fits = width() or sum(widths) + 2 * len(widths)
    parts = [[*range(names)]]
    column = names
    while column < len(widths):
        end = column + 1
        while end < len(widths) and header[end].startswith("× "):
            end += 1
        taken = sum(widths[c] + 2 for c in (*parts[-1], *range(column, end))) - 2
        if taken > fits and len(parts[-1]) > names:
            parts.append([*range(names)])
        parts[-1] += range(column, end)
        column = end
    return parts


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Write a table in Markdown.

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
    """Progress of one long loop: a bar on a terminal, else a line every few seconds.

    The bar is drawn by the loop itself: a thread that draws would disturb what is being timed. It
    is gone at the end, and whenever something is said. A loop within a loop shows none.

    label : the name of the work. total : steps until the end.
    """

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = max(total, 1)
        self._done = 0
        self._started = time.monotonic()
        self._bar = is_terminal(sys.stderr)
        self._next = self._started + (0 if self._bar else _SECONDS_BETWEEN_LINES)

    def __enter__(self) -> Self:
        _open.append(self)
        self.advance(0)
        return self

    def __exit__(self, *error: object) -> None:
        _open.remove(self)
        say(end="")

    def advance(self, steps: int) -> None:
        """Count `steps` more steps as done."""
        global _bar_is_shown
        self._done += steps
        now = time.monotonic()
        if now < self._next or self is not _open[0]:
            return
        done = self._done / self._total
        if self._bar:
            self._next = now + _SECONDS_BETWEEN_BARS
            full = "━" * int(_BAR * done)
            line = f"{full}\x1b[2m{'━' * (_BAR - len(full))}\x1b[0m {100 * done:3.0f} %  "
            beside = self._label
            if done:
                left = int((now - self._started) * (1 / done - 1))
                beside = f"{left // 60}:{left % 60:02} left  {beside}"
            fits = max(shutil.get_terminal_size().columns - _BAR - 10, 0)
            sys.stderr.write(f"{_ERASE}{line}{beside[:fits]}")
            _bar_is_shown = True
        else:
            self._next = now + _SECONDS_BETWEEN_LINES
            sys.stderr.write(f"{self._label}: {100 * done:.0f} %\n")
        sys.stderr.flush()
