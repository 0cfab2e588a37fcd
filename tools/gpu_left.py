"""What a run of gpu_check.sh had no time for, as a list in Markdown.

    python tools/gpu_left.py --checks NAME_checks.json --bench NAME.json > NAME_left.md

A file that is not there stands for a part that was not begun.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def names(file: Path, key: str) -> list[str] | None:
    """What a file says was not reached; None if there is no file."""
    if not file.exists():
        return None
    found: list[str] = json.loads(file.read_text(encoding="utf-8")).get(key, [])
    return found


def page(checks: list[str] | None, rows: list[str] | None) -> str:
    """Steps, and rows of the benchmark by op, direction and type."""
    text = "# What was not reached\n"
    for title, left in (("Steps", checks), ("Rows of the benchmark", rows)):
        text += f"\n## {title}\n\n"
        if left is None:
            text += "Not begun: all of them.\n"
        else:
            text += "".join(f"- {name}\n" for name in left) or "None: all were reached.\n"
    return text


def main() -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(description="What gpu_check.sh had no time for.")
    parser.add_argument("--checks", type=Path, required=True, metavar="F", help="of gpu_steps.py")
    parser.add_argument("--bench", type=Path, required=True, metavar="F", help="of the benchmark")
    args = parser.parse_args()
    sys.stdout.write(page(names(args.checks, "left"), names(args.bench, "unreached")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
