"""The files of numbers that a benchmark writes as it goes, and goes on with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Write a file; whoever is interrupted leaves the old one as it was."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def is_of(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any], same: Sequence[str]
) -> bool:
    """Whether a file's facts are today's; if not, the file is put aside, not overwritten.

    Rows of two machines or builds would be one table.
    """
    now = json.loads(json.dumps(now))  # as the file has them
    changed = [fact for fact in same if before.get(fact, "") != now.get(fact, "")]
    if changed:
        aside = path.with_name(path.name + ".before")
        os.replace(path, aside)
        print(f"{path.name}: of another {', '.join(changed)}; it is now {aside.name}")
    return not changed
