"""Arguments of a command line, as argparse takes them by `type`."""

from __future__ import annotations

import argparse
import math


def names(text: str) -> tuple[str, ...]:
    """A list of names separated by commas; empty for none."""
    return tuple(name for name in text.split(",") if name)


def _number(text: str) -> float:
    """0 where it is no number."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def count(text: str) -> int:
    """A positive whole number; 1e6 is one, too."""
    number = _number(text)
    if number < 1 or not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(number)


def seconds(text: str) -> float:
    """A positive number."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return number


def counts(text: str) -> tuple[int, ...]:
    """Positive whole numbers separated by commas."""
    return tuple(map(count, text.split(",")))
