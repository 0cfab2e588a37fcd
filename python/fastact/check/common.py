"""Options and reports that the accuracy checks of all families share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..terminal import say, styled

Float64s = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """The choice of what is checked."""

    isas: tuple[str, ...]  # instruction sets of ours to run
    exhaustive: bool = False  # all 2**32 float32 inputs, no dense sample; for sums, longer ones
    stride: int = 1  # only each `stride`-th one of these inputs, or cases
    float64_points: int = 2000  # inputs compared with arbitrary precision
    peers: tuple[str, ...] = ()  # measure these on the same inputs too


@dataclass
class Report:
    """The results of a check: told at once unless it is quiet, and kept for the tables."""

    quiet: bool = False
    rows: list[list[str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def say(self, *lines: str) -> None:
        if not self.quiet:
            say(*lines)

    def fail(self, text: str) -> None:
        self.failures.append(text)
        say(styled(f"  VIOLATED: {text}", "red"))


@dataclass(frozen=True)
class Check:
    """How a kind of op is checked."""

    #: Checks an op: adds rows to the report, and says what is no row. It may select any
    #: instruction set.
    run: Callable[[Any, Options, Report], None]
    header: list[str]  # the names of its table's columns
    left: int  # so many columns on the left hold names
    legend: str  # the meaning of the columns
    of: type | tuple[type, ...]  # the classes of the bounds that ops of this kind state
    #: The largest error that a column may have, where that is not 1.
    allowed: Mapping[str, float] = field(default_factory=dict)
    but: tuple[type, ...] = ()  # the classes of bounds that they do not state

    def knows(self, op: Any) -> bool:
        """Tell whether an op is of this kind."""
        bounds = getattr(op, "bounds", None)
        return isinstance(bounds, self.of) and not isinstance(bounds, self.but)


def add_rows(
    report: Report,
    case: Sequence[str],
    found: Mapping[str, Mapping[str, float]],
    columns: Iterable[str],
    isas: Sequence[str],
    *more: str,
    allowed: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Rows of the table: the case, by whom, an error for each column.

    found : by whom, in which column, how much of the bound. Instruction sets that agree share a
    row. more : who is held to the bound as the instruction sets are. allowed : the largest error
    that a column may have, where that is not 1.
    """
    alike: dict[tuple[float, ...], list[str]] = {}
    for by, errors in found.items():
        for column, error in errors.items():
            most = allowed.get(column, 1.0)
            if by in (*isas, *more) and not error <= most:
                report.fail(f"{' '.join(case)} {by}: {column} {error:.4g}, allowed {most:g}")
        if by in isas:
            alike.setdefault(tuple(errors.values()), []).append(by)
    rows = [(" ".join(names), found[names[0]]) for names in alike.values()]
    rows += [(by, errors) for by, errors in found.items() if by not in isas]
    for label, errors in rows:
        cells = [f"{errors[column]:.3g}" if column in errors else "" for column in columns]
        report.rows.append([*case, label, *cells])


# --- data -----------------------------------------------------------------------------------------


def mixed(rng: np.random.Generator, *shape: int) -> Float64s:
    """Both signs, four orders of magnitude."""
    values: Float64s = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 1, shape)
    return values


def uniform_at_1e4(rng: np.random.Generator, *shape: int) -> Float64s:
    """Normalised by one pass in float32, 100 of these have a mean of -87."""
    return rng.random(shape) + 1e4


def near_1e30(rng: np.random.Generator, *shape: int) -> Float64s:
    """Draw numbers whose squares overflow float32."""
    return 1e30 * rng.normal(size=shape)


def dtypes(report: Report) -> list[np.dtype[Any]]:
    found: list[Any] = [np.float64, np.float32, np.float16]
    try:
        found.append(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        report.say("  bfloat16: left out, ml_dtypes is not installed")
    return list(map(np.dtype, found))
