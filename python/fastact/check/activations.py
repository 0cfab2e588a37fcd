"""The accuracy of activations: every op against an oracle of higher precision, input by input."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..measure import formulas
from ..measure.peers import LeftOut, function_named, open_torch
from ..ops.bounds import Bounds
from ..runtime.threads import get_num_threads
from ..terminal import Progress, markdown_table
from . import reference, ulp
from .common import Check, Options, Report, dtypes
from .ulp import DIRECTIONS, EDGES, Contender, Float32s, Float64s, Tally

_SPECIALS = (0.0, -0.0, np.inf, -np.inf, np.nan)


_HEADER = [
    *("op", "direction", "dtype", "by"),
    *("worst ULP", "counted ULP", "counted at x", "absolute", "NaN/inf"),
    *(f"≤{edge:g}" for edge in EDGES),
    f">{EDGES[-1]:g}",
]
_LEFT = 4  # columns of names
_INTERVALS, _POINTS = 300, 2000  # of x in a picture, and inputs in each

_LEGEND = """\
worst ULP: over all inputs. counted ULP: over those whose absolute error exceeds the absolute bound;
this one is held to the bound. absolute: the largest absolute error. NaN/inf: inputs for which these
are wrong. The rest: numbers of inputs by error in ULP."""


def _where(x: float, dtype: str) -> str:
    """Return an input in decimal, and in float32 as bits."""
    if dtype != "float32":
        return repr(x)
    return f"{x:.9g} 0x{int(np.float32(x).view(np.uint32)):08x}"


def _add(
    report: Report, case: tuple[str, str, str, str], tally: Tally, limit: float | None
) -> None:
    """Add a row to the table: op, direction, dtype, by whom; held to `limit` ULP, if any."""
    where = _where(tally.counted_at, case[2])
    report.rows.append(
        [
            *case,
            f"{tally.worst:.3f}",
            f"{tally.counted:.3f}",
            where if tally.counted else "",
            f"{tally.absolute:.2e}" if tally.absolute else "",
            str(tally.wrong),
            *map(str, tally.histogram()),
        ]
    )
    if limit is None:
        return
    if tally.wrong:
        first = _where(tally.wrong_at, case[2])
        report.fail(f"{' '.join(case)}: NaN or inf wrong at {tally.wrong} inputs, first {first}")
    if tally.counted > limit:
        report.fail(f"{' '.join(case)}: {tally.counted:.4g} ULP at {where}, allowed {limit:g}")


def derivative(op: Any, saved: NDArray[Any], **parameters: Any) -> NDArray[Any]:
    """Return the derivative of an activation: its backward pass for a gradient of one.

    saved : x, or y of an op that saves y: its derivative is judged as a function of that.
    """
    result: NDArray[Any] = op.backward(np.ones_like(saved), saved, **parameters)
    return result


@dataclass(frozen=True)
class Subject:
    """One formula of an op: the op and the parameter that chooses it."""

    name: str
    op: Any
    chosen: dict[str, Any]

    def both(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.op(x, **self.chosen), derivative(self.op, x, **self.chosen)

    def exact(self, function: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return a function of the oracle, as a function of x."""
        return lambda x: function(self.op.name, x, **self.chosen)


def ours(subject: Subject, isa: str) -> Contender:
    ones = np.ones(ulp.BATCH, dtype=np.float32)
    op, chosen = subject.op, subject.chosen

    def run(direction: str, x: Float32s, out: Float32s) -> None:
        _cpu.select_isa(isa)
        if direction == "forward":
            op(x, out=out, **chosen)
        else:
            op.backward(ones[: x.size], x, out=out, **chosen)

    return Contender(isa, run)


def _numpy(subject: Subject) -> Contender:
    """Return the textbook's formulas, as NumPy evaluates them for float32."""
    by_saved = formulas.DERIVATIVE | formulas.DERIVATIVE_BY_VALUE
    of = {"forward": formulas.FORWARD, "derivative": by_saved}

    def run(direction: str, x: Float32s, out: Float32s) -> None:
        with np.errstate(all="ignore"):
            out[...] = of[direction][subject.op.name].of(x, formulas.NUMPY, **subject.chosen)

    return Contender("numpy", run)


def _torch(subject: Subject) -> Contender:
    torch = open_torch(get_num_threads())
    function = partial(function_named(torch.nn.functional, subject.op.name), **subject.chosen)

    def run(direction: str, x: Float32s, out: Float32s) -> None:
        tensor = torch.from_numpy(x)
        if direction == "forward":
            out[...] = function(tensor).numpy()
        elif "x" in subject.op.saves:
            leaf = tensor.requires_grad_()
            (gradient,) = torch.autograd.grad(function(leaf), leaf, torch.ones_like(leaf))
            out[...] = gradient.numpy()
        else:
            by_value = getattr(torch.ops.aten, f"{subject.op.name}_backward")
            out[...] = by_value(torch.ones_like(tensor), tensor).numpy()

    return Contender("torch", run)


_PEERS = {"numpy": _numpy, "torch": _torch}


def _contenders(
    subject: Subject, isas: Sequence[str], peers: Sequence[str], report: Report
) -> list[Contender]:
    """Instruction sets of ours, and the peers that have such an op."""
    found = [ours(subject, isa) for isa in isas]
    for peer in peers:
        try:
            found.append(_PEERS[peer](subject))
        except LeftOut as reason:
            report.say(f"  {peer}: {reason}")
    return found


def _limits(op: Any) -> dict[str, float]:
    """Return the bounds in ULP."""
    return dict(zip(DIRECTIONS, (op.bounds.forward_ulp, op.bounds.derivative_ulp), strict=True))


def _allowed(op: Any) -> dict[str, float]:
    """Return the absolute errors that are allowed whatever they are in ULP."""
    return {direction: op.bounds.absolute(np.float32, direction) for direction in DIRECTIONS}


def sweep(
    subject: Subject,
    contenders: Sequence[Contender],
    batches: Iterable[Float32s],
    advance: Callable[[int], None] = lambda steps: None,
) -> dict[str, list[Tally]]:
    exact = {
        "forward": subject.exact(reference.forward),
        "derivative": subject.exact(reference.derivative_by_saved),
    }
    return ulp.sweep(contenders, exact, _allowed(subject.op), batches, advance)


@dataclass(frozen=True)
class Curve:
    """The worst errors of an op in one direction over x, by whom, in ULP."""

    name: str
    direction: str
    edges: Float64s  # the ends of the intervals of x
    #: By whom: the worst one in each interval, but for those that the absolute bound covers.
    errors: dict[str, list[float]]
    bound: float  # in ULP


def curves(op: Any, isas: Sequence[str], peers: Sequence[str]) -> list[Curve]:
    """The errors of an activation in float32, as a picture has them: over x from -100 to 100."""
    half = np.geomspace(1e-3, 100.0, _INTERVALS // 2)
    edges = np.concatenate([-half[::-1], half])
    generator = np.random.default_rng(0)
    batches = [
        generator.uniform(low, high, _POINTS).astype(np.float32) for low, high in pairwise(edges)
    ]
    limits, found = _limits(op), []
    for name, chosen in op.variants.items():
        subject = Subject(name, op, chosen)
        contenders = _contenders(subject, isas, peers, Report(quiet=True))
        tallies = [sweep(subject, contenders, [batch]) for batch in batches]
        for direction in DIRECTIONS:
            errors = {
                contender.label: [tally[direction][i].counted for tally in tallies]
                for i, contender in enumerate(contenders)
            }
            found.append(Curve(name, direction, edges, errors, limits[direction]))
    return found


def _check_float32(subject: Subject, options: Options, report: Report) -> None:
    """Forward and derivative on many or all float32 inputs."""
    contenders = _contenders(subject, options.isas, options.peers, report)
    if options.exhaustive:
        total = ulp.count_float32(options.stride)
        batches = ulp.every_float32(options.stride)
    else:
        sample = ulp.dense_float32()[:: options.stride]
        total, batches = sample.size, ulp.in_batches(sample)
    limits, allowed = _limits(subject.op), _allowed(subject.op)
    started = time.perf_counter()
    with Progress(f"{subject.name}, {total} float32 inputs", total) as progress:
        totals = sweep(subject, contenders, batches, progress.advance)
    seconds = time.perf_counter() - started
    report.say(
        f"  float32: {total} inputs in {seconds:.1f} s; bounds: forward {limits['forward']:g} ULP, "
        f"derivative {limits['derivative']:g} ULP or {allowed['derivative']:g} absolute"
    )
    for direction in DIRECTIONS:
        for contender, tally in zip(contenders, totals[direction], strict=True):
            promised = contender.label in options.isas
            _add(
                report,
                (subject.name, direction, "float32", contender.label),
                tally,
                limits[direction] if promised else None,
            )


def _by_isa(
    subject: Subject, options: Options, x: NDArray[Any]
) -> Iterator[tuple[str, tuple[NDArray[Any], NDArray[Any]]]]:
    """Yield the instruction sets, each selected, with both functions of x on it."""
    for isa in options.isas:
        _cpu.select_isa(isa)
        with np.errstate(all="ignore"):
            yield isa, subject.both(x)


def _check_16_bit(subject: Subject, options: Options, report: Report) -> None:
    """Every 16-bit input gives the float32 result, rounded once."""
    every = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (dtype for dtype in dtypes(report) if dtype.itemsize == 2):
        x = every.view(dtype)
        wrong = 0
        for isa, results in _by_isa(subject, options, x):
            with np.errstate(all="ignore"):
                roundeds = [wide.astype(dtype) for wide in subject.both(x.astype(np.float32))]
            for direction, result, rounded in zip(DIRECTIONS, results, roundeds, strict=True):
                same = result.view(np.uint16) == rounded.view(np.uint16)
                same |= np.isnan(result) & np.isnan(rounded)
                if not same.all():
                    wrong += 1
                    at = float(x[same.argmin()])
                    report.fail(
                        f"{subject.name} {direction} {dtype} {isa}: {np.count_nonzero(~same)} of "
                        f"{x.size} inputs are not the rounded float32 result, first at {at:g}"
                    )
        if not wrong:
            report.say(f"  {dtype}: all {x.size} inputs give the float32 result, rounded once")


def _float64_sample(points: int) -> Float64s:
    """Inputs over all exponents of both signs, and where exponentials matter."""
    generator = np.random.default_rng(0)
    quarter = points // 4
    mantissas = generator.uniform(1.0, 2.0, quarter)
    half = np.ldexp(mantissas, np.linspace(-1074, 1023, quarter).astype(np.int32))
    wide = generator.uniform(-760.0, 760.0, quarter)
    near = generator.uniform(-40.0, 40.0, quarter)
    return np.concatenate([half, -half, wide, near])


def _check_float64(subject: Subject, options: Options, report: Report) -> None:
    """Check a sample of float64 inputs against arbitrary precision."""
    try:
        importlib.import_module("mpmath")
    except ImportError:
        report.say("  float64: left out, mpmath is not installed")
        return
    x = _float64_sample(options.float64_points)
    results = dict(_by_isa(subject, options, x))
    bounds = subject.op.bounds
    allowed = bounds.absolute(np.float64)
    rules = (
        (reference.forward_mp, bounds.forward_ulp, bounds.absolute(np.float64, "forward")),
        (reference.derivative_by_saved_mp, bounds.derivative_ulp, allowed),
    )
    report.say(f"  float64: {x.size} inputs against mpmath; absolute bound {allowed:.3g}")
    for position, (direction, rule) in enumerate(zip(DIRECTIONS, rules, strict=True)):
        function, limit, absolute = rule
        exact = list(map(subject.exact(function), x.tolist()))
        for isa in options.isas:
            tally = ulp.tally_of_float64(x, results[isa][position], exact, absolute)
            _add(report, (subject.name, direction, "float64", isa), tally, limit)


def _check_specials(subject: Subject, options: Options, report: Report) -> None:
    """Zeros with their sign, infinities and NaN where the oracle has them at special inputs."""
    x = np.array(_SPECIALS)
    with np.errstate(all="ignore"):
        functions = (reference.forward, reference.derivative_by_saved)
        references = [subject.exact(function)(x) for function in functions]
    wrong = 0
    for dtype in (np.float32, np.float64):
        for isa, results in _by_isa(subject, options, x.astype(dtype)):
            for direction, result, expected in zip(DIRECTIONS, results, references, strict=True):
                special = (expected == 0) | ~np.isfinite(expected)
                same = (result == expected) | (np.isnan(result) & np.isnan(expected))
                if direction == "forward":  # a derivative of zero has no sign to speak of
                    same &= (np.signbit(result) == np.signbit(expected)) | np.isnan(expected)
                for index in np.flatnonzero(special & ~same):
                    wrong += 1
                    report.fail(
                        f"{subject.name} {direction} {np.dtype(dtype)} {isa}: {result[index]} at "
                        f"{x[index]}, expected {expected[index]}"
                    )
    if not wrong:
        report.say("  special inputs: signs of zero, infinities and NaN as they should be")


def _check(op: Any, options: Options, report: Report) -> None:
    for name, chosen in op.variants.items():
        subject = Subject(name, op, chosen)
        if chosen:
            report.say(name)
        _check_float32(subject, options, report)
        _check_16_bit(subject, options, report)
        _check_float64(subject, options, report)
        _check_specials(subject, options, report)


def summary(rows: list[list[str]]) -> str:
    """The errors of float32 that have a bound: an op and direction a line, a contender a column."""
    by = list(dict.fromkeys(row[3] for row in rows if row[2] == "float32"))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for name, direction, dtype, label, _, counted, *_ in rows:
        if dtype == "float32":
            lines.setdefault((name, direction), {})[label] = counted
    body = [[*line, *(found.get(label, "") for label in by)] for line, found in lines.items()]
    return markdown_table(["counted ULP of", "direction", *by], body, 2)


def gist(op: Any, rows: list[list[str]]) -> dict[str, str]:
    """Return the largest errors among an op's rows beside what is allowed, by what they are of."""
    found = {}
    for direction, limit in _limits(op).items():
        most = max(float(row[5]) for row in rows if row[1] == direction)
        found[f"{direction}, ULP"] = f"{most:.2f} of {limit:g}"
    return found


CHECK = Check(_check, _HEADER, _LEFT, _LEGEND, of=Bounds)
