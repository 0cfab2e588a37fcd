"""Calls of several libraries timed in turns, and pages with tables: what scripts of peers share."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fastact.bench.turns import medians, take_turns
from fastact.measure import arguments
from fastact.measure.peers import OURS, versions
from fastact.ops.engine.op import ops
from fastact.runtime import config
from fastact.runtime.threads import get_num_threads, num_threads
from fastact.terminal import markdown_table

from .results import commit, write_whole

Call = Callable[[], Any]


class Timed(NamedTuple):
    """Median seconds of a call by name, and the medians of the rounds' ratios to ours.

    labels : what tells it from others, a cell each. about : what else is known of each, and `unit`,
    what that is. size : of an op, about how many elements; 0 where that tells nothing.
    """

    seconds: dict[str, float]
    ratios: dict[str, float]
    labels: tuple[str, ...] = ()
    about: Mapping[str, float] = MappingProxyType({})
    unit: str = ""
    size: int = 0


def marked(ratio: float, goal: float = 1.0) -> str:
    """Return a ratio as a page has it: in bold below the goal."""
    return f"{ratio:.2f}" if ratio >= goal else f"**{ratio:.2f}**"


def compare(
    calls: Mapping[str, Call], seconds: float, threads: int | None = None, *labels: str
) -> Timed:
    """Time calls, of which one is `OURS`, in turns and for about so many seconds."""
    ours_first = {OURS: calls[OURS], **calls}
    with num_threads(threads or get_num_threads()):
        found = medians(take_turns(ours_first, seconds))
    return Timed(found["seconds"], found["ratios"], labels)


def _lines(
    rows: Sequence[Timed], labels: Sequence[str], unit: str, alone: bool, goals: Mapping[str, float]
) -> tuple[list[str], list[list[str]]]:
    scale, about = {"ms": 1e3, "µs": 1e6}[unit], [*rows[0].about]
    others = list(dict.fromkeys(name for row in rows for name in row.seconds if name != OURS))
    shown = [OURS] if alone else [OURS, *others]
    header = [*labels, *(f"{name}, {unit}" for name in shown), *(f"× {name}" for name in others)]
    header += [f"{rows[0].unit}: {name}" for name in about]
    lines = [
        [
            *row.labels,
            *(f"{scale * row.seconds[n]:,.4g}" if n in row.seconds else "–" for n in shown),
            *(marked(row.ratios[n], goals.get(n, 1.0)) if n in row.ratios else "–" for n in others),
            *(f"{row.about[name]:,.3g}" for name in about),
        ]
        for row in rows
    ]
    return header, lines


def table_of(
    rows: Iterable[Timed],
    labels: Sequence[str],
    *,
    unit: str = "ms",
    alone: bool = False,
    goals: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """Print rows as they are measured, and return their table: times, and ratios to ours.

    alone : of others there are ratios alone. goals : below which a ratio is bold; others have 1.
    """
    found = []
    for row in rows:
        found.append(row)
        header, (line,) = _lines([row], labels, unit, alone, goals)
        print("  ".join(f"{h} {v}".strip() for h, v in zip(header, line, strict=True)), flush=True)
    if not found:
        return ""
    return markdown_table(*_lines(found, labels, unit, alone, goals), len(labels))


def installed(names: Sequence[str]) -> dict[str, Any]:
    """Import the packages that are installed; the others are named."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.import_module(name)
        except ImportError:
            print(f"{name} is left out: it is not installed", file=sys.stderr)
    return found


def named_ops(args: argparse.Namespace) -> list[Any]:
    """Return the ops of the names or families that the command line has; all without any."""
    return [op for op in ops.values() if not args.names or {op.name, op.family} & {*args.names}]


def shown(lines: Iterable[list[str]]) -> list[list[str]]:
    """Print lines as they come, and return them."""
    found = []
    for line in lines:
        print(*line, sep="  ", flush=True)
        found.append(line)
    return found


def in_process(module: str, *words: object, **environ: str) -> Any:
    """Run a module in a process of its own, and return the JSON of the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *map(str, words)],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def growth(call: Call, times: int = 1) -> float:
    """Return by how many bytes the process grows at most in so many calls; Linux tells them."""
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    for _ in range(times):
        call()
    return max(_memory("VmHWM") - before, 0.0)


def _memory(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(what))


class Section(NamedTuple):
    """A command that measures a section of a page.

    page : the title of a new page. text : yields the paragraphs of the section, of the arguments
        of the command line. packages : whose versions stand beside the numbers, where they are
        installed.
    """

    page: str
    heading: str
    text: Callable[[argparse.Namespace], Iterator[str]]
    packages: tuple[str, ...] = ()


def put(path: Path, section: Section, text: str) -> None:
    """Write the section in the place of what a page has under its heading, or at the end."""
    before = path.read_text(encoding="utf-8") if path.exists() else f"# {section.page}\n"
    top, *others = re.split(r"\n(?=## )", before)
    by_heading = {other.partition("\n")[0]: other for other in others}
    by_heading[f"## {section.heading}"] = f"## {section.heading}\n\n{text}\n"
    write_whole(path, "\n".join([top, *by_heading.values()]))


#: How the options of scripts are read.
_KINDS: dict[str, Callable[[str], Any]] = {
    "seconds": arguments.seconds,
    "threads": arguments.counts,
    "sizes": arguments.counts,
    "shape": arguments.counts,
    "dtypes": arguments.names,
}


def main(
    script: str,
    told: str | None,
    sections: Mapping[str, Section],
    defaults: Mapping[str, Any],
    words: Sequence[str] | None = None,
) -> None:
    """Run the command line of a script that measures sections.

    told : what the script is for. defaults : of its options. words : else those of the process.
    """
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{script}",
        description=told,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    first, *others = sections
    parser.set_defaults(section=first)
    if others:
        parser.add_argument("section", choices=sections)
    parser.add_argument("names", nargs="*", help="measure only these, of ops also families")
    for option, value in defaults.items():
        kind = arguments.count if isinstance(value, int) else _KINDS[option]
        parser.add_argument(f"--{option}", type=kind, default=value)
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="write the section there")
    args = parser.parse_args(words)
    section, facts = sections[args.section], config.config()
    words = [word for word in words if word not in ("--markdown", str(args.markdown))]
    found = [f"{package} {number}" for package, number in versions(section.packages).items()]
    about = [facts["processor"], facts["isa"]["chosen"], f"{os.cpu_count()} cores", *found]
    text = [
        f"`{shlex.join(['python', '-m', f'benchmarks.{script}', *words])}`, {date.today()}, "
        f"fastact {commit()}. {', '.join(about)}.",
        *section.text(args),
    ]
    print("\n\n".join(text))
    if args.markdown is not None:
        put(args.markdown, section, "\n\n".join(text))
