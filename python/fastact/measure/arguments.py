"""Arguments of a command line, as argparse takes them by `type`."""

from __future__ import annotations

import argparse
import math
from contextlib import suppress


def names(text: str) -> tuple[str, ...]:
    """Return a list of names separated by commas; empty for none."""
    return tuple(name for name in text.split(",") if name)


def count(text: str) -> int:
    """Return a positive whole number; 1e6 is one, too."""
    with suppress(ValueError):
        if (number := float(text)) >= 1 and number.is_integer():
            return int(number)
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")


def seconds(text: str) -> float:
    """Return a positive number."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")


def counts(text: str) -> tuple[int, ...]:
    """Positive whole numbers separated by commas."""
    return tuple(map(count, text.split(",")))
