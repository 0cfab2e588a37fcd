"""The files of numbers that a long run writes as it goes, and that a later run goes on with."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

Made = TypeVar("Made")


class _Measured(Protocol):
    @property
    def facts(self) -> Mapping[str, Any]:
        """The machine and the build."""


Kept = TypeVar("Kept", bound=_Measured)


def write_whole(path: Path, text: str) -> None:
    """Write a file; whoever is interrupted leaves the old one as it was."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def write_parts(path: Path, parts: Mapping[str, str]) -> None:
    """Write a JSON object whose values are JSON already, each from a line of its own on."""
    text = ",\n".join(f'"{name}": {part}' for name, part in parts.items())
    write_whole(path, f"{{\n{text}\n}}\n")


def read_parts(path: Path, make: Callable[[Any], Made], writer: str) -> Made:
    """Make of a file's JSON whatever `writer` has written.

    Raises
    ------
    ValueError
        If the file is none of the writer's.
    """
    try:
        return make(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError(f"{path} was not written by {writer}") from None


def resume(
    path: Path, read: Callable[[Path], Kept], facts: Mapping[str, Any], same: Sequence[str]
) -> Kept | None:
    """Read the results of an earlier run, to go on with them.

    None: there is no file, or it is of another machine or build, and was put aside.

    Parameters
    ----------
    path : Path
        The file that an earlier run has written.
    read : callable
        Reads the file.
    facts : mapping
        The machine and the build as they are now.
    same : sequence of str
        The facts that must be the same in both runs.
    """
    if not path.exists():
        return None
    found = read(path)
    return found if _is_of(path, found.facts, facts, same) else None


def _is_of(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any], same: Sequence[str]
) -> bool:
    """Whether a file's facts are today's; if not, the file is put aside, not overwritten.

    Rows of two machines or builds would be one table. Of "peers", versions by name, only those that
    both have must agree: a later run may ask others.
    """
    now = json.loads(json.dumps(now))  # as the file has them
    changed = [fact for fact in same if _differs(fact, before.get(fact, ""), now.get(fact, ""))]
    if changed:
        aside = path.with_name(path.name + ".before")
        os.replace(path, aside)
        print(f"{path.name}: of another {', '.join(changed)}; it is now {aside.name}")
    return not changed


def _differs(fact: str, before: Any, now: Any) -> bool:
    if fact == "peers":
        return any(now.get(name, version) != version for name, version in (before or {}).items())
    return bool(before != now)


def commit() -> str:
    """The commit of the source tree that this was started in; empty elsewhere."""
    try:
        if 'name = "fastact"' not in Path("pyproject.toml").read_text(encoding="utf-8"):
            return ""
        run = partial(subprocess.run, capture_output=True, text=True, check=False)
        done = run(["git", "describe", "--always"])
        # Results may be tracked, and a run that goes on is of the same commit.
        same = run(["git", "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs/results"])
    except OSError:
        return ""
    if done.returncode:
        return ""
    return done.stdout.strip() + ("-dirty" if same.returncode else "")


def lines(items: Iterable[Mapping[str, Any]]) -> str:
    """A JSON list, a line each: it is written often, and compact JSON is ten times as fast."""
    return "[\n" + ",\n".join(map(json.dumps, items)) + "\n]"


def slug(processor: str, isa: str, cores: int) -> str:
    """The name of a kind of machine, as a folder has it.

    The instruction set is part of it: processors of two generations call themselves "AMD EPYC".

    >>> slug("Intel(R) Xeon(R) Processor @ 2.50GHz", "v4", 2)
    'intel-xeon-processor-2.50ghz-v4-2-cores'
    """
    words = re.sub(r"\((r|tm|c)\)", " ", processor.lower())
    return re.sub(r"[^a-z0-9.]+", "-", f"{words} {isa} {cores} cores").strip("-")
