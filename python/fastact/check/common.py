"""Options and reports that the accuracy checks of all families share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..terminal import Progress, say, styled

Float64s = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """The choice of what is checked.

    Attributes
    ----------
    isas : tuple of str
        Instruction sets of ours to run.
    exhaustive : bool
        All 2**32 float32 inputs rather than a dense sample; for sums, longer ones.
    stride : int
        Of the inputs, or of the cases, chosen above, only each `stride`-th one.
    float64_points : int
        Inputs compared with arbitrary precision.
    peers : tuple of str
        Measure these on the same inputs too.
    """

    isas: tuple[str, ...]
    exhaustive: bool = False
    stride: int = 1
    float64_points: int = 2000
    peers: tuple[str, ...] = ()


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
    """How a kind of op is checked.

    run : checks an op: adds rows to the report, and says what is no row. It may select any
        instruction set.
    header, left : of the table of its rows: the columns' names; so many columns on the left hold
    names.
    legend : what the columns mean.
    of, but : the classes of the bounds that ops of this kind state, and that they do not.
    summary : Markdown that says the gist of many rows.
    gist : the largest errors among an op's rows beside what is allowed, by what they are of.
    allowed : the largest error that a column may have, where that is not 1.
    """

    run: Callable[[Any, Options, Report], None]
    header: list[str]
    left: int
    legend: str
    of: type | tuple[type, ...]
    summary: Callable[[list[list[str]]], str] | None = None
    gist: Callable[[Any, list[list[str]]], dict[str, str]] | None = None
    allowed: Mapping[str, float] = field(default_factory=dict)
    but: tuple[type, ...] = ()

    def knows(self, op: Any) -> bool:
        """Whether an op is of this kind."""
        bounds = getattr(op, "bounds", None)
        return isinstance(bounds, self.of) and not isinstance(bounds, self.but)


@dataclass(frozen=True)
class ErrorRow:
    """A row of a table: the worst errors over cases, on each instruction set.

    names : what tells it from the other rows of an op.
    cases : makes them.
    errors : of a case, one for each column.
    """

    names: tuple[str, ...]
    cases: Callable[[], Iterable[Any]]
    errors: Callable[[Any], Sequence[float]]


def check_by_cases(
    rows: Callable[[Any, Options, Report], Iterable[ErrorRow]],
    names: Sequence[str],
    columns: Mapping[str, float],
    legend: str,
    of: type | tuple[type, ...],
    but: tuple[type, ...] = (),
) -> Check:
    """A check whose table has the worst errors over cases.

    Parameters
    ----------
    rows : callable
        Of an op.
    names : sequence of str
        What tells a row from the others.
    columns : dict of str to float
        The errors that are judged, and the largest that each may have.
    """

    def run(op: Any, options: Options, report: Report) -> None:
        every = list(rows(op, options, report))
        with Progress(op.name, len(every)) as progress:
            for number, row in enumerate(every):
                try:
                    for worst, isas in worst_of(row, number, options).items():
                        judge([op.name, *row.names, " ".join(isas)], worst, report)
                except ModuleNotFoundError as missing:
                    what = " ".join(row.names)
                    report.say(f"  {what}: left out, {missing.name} is not installed")
                progress.advance(1)

    def worst_of(
        row: ErrorRow, number: int, options: Options
    ) -> dict[tuple[float, ...], list[str]]:
        cases = list(row.cases())
        step = min(options.stride, len(cases))
        cases = cases[number % step :: step]  # so that all rows together have every case
        alike: dict[tuple[float, ...], list[str]] = {}
        for isa in options.isas:
            _cpu.select_isa(isa)
            found = np.max([row.errors(case) for case in cases], axis=0)
            alike.setdefault(tuple(found.tolist()), []).append(isa)
        return alike

    def judge(case: list[str], worst: Sequence[float], report: Report) -> None:
        cells = [f"{error:.3g}" for error in worst]
        report.rows.append([*case, *cells, *[""] * (len(columns) - len(cells))])
        for error, (column, allowed) in zip(worst, columns.items(), strict=False):
            if not error <= allowed:
                report.fail(f"{' '.join(case)}: {column} {error:.4g}, allowed {allowed:g}")

    header = ["op", *names, "by", *columns]
    return Check(run, header, len(names) + 2, legend, of=of, allowed=columns, but=but)


def add_rows(
    report: Report,
    case: Sequence[str],
    found: Mapping[str, Mapping[str, float]],
    data: Sequence[str],
    isas: Sequence[str],
    *more: str,
) -> None:
    """Rows of the table: the case, by whom, an error for each kind of data.

    Parameters
    ----------
    found : dict of str to dict of str to float
        By whom, on which data, how much of the bound. Instruction sets that agree share a row.
    more : str
        Who is held to the bound as the instruction sets are.
    """
    alike: dict[tuple[float, ...], list[str]] = {}
    for by, errors in found.items():
        for kind, error in errors.items():
            if by in (*isas, *more) and not error <= 1.0:
                report.fail(f"{' '.join(case)} {by}, {kind}: {error:.4g} times the bound")
        if by in isas:
            alike.setdefault(tuple(errors.values()), []).append(by)
    rows = [(" ".join(names), found[names[0]]) for names in alike.values()]
    rows += [(by, errors) for by, errors in found.items() if by not in isas]
    for label, errors in rows:
        cells = [f"{errors[kind]:.3g}" if kind in errors else "" for kind in data]
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


class Drawn:
    """Makes arrays of a dtype, by a function of random numbers and a shape."""

    def __init__(self, draw: Callable[..., Float64s], dtype: np.dtype[Any]) -> None:
        self._draw, self._dtype = partial(draw, np.random.default_rng(0)), dtype

    def random(self, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        return self._draw(*shape).astype(self._dtype)

    def integers(self, shape: Sequence[int], end: int) -> NDArray[Any]:
        raise NotImplementedError("no op that is drawn so has indices")


def dtypes(report: Report) -> list[np.dtype[Any]]:
    """The dtypes in which ops are checked."""
    found: list[Any] = [np.float64, np.float32, np.float16]
    try:
        found.append(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        report.say("  bfloat16: left out, ml_dtypes is not installed")
    return list(map(np.dtype, found))
