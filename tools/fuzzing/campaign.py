"""Many cases, each of which depends on the seed and its number alone.

A worker (`processes` has the processes) runs cases, and once more where no call is recorded: the
bits must be the same.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from traceback import extract_tb
from typing import Any
from unittest import mock

import numpy as np

import fastact as fa
from fastact import _cpu
from fastact.interop import call as _call

from . import calls, quantized
from .cases import Array, Draw, Request
from .judge import Live, Wrong, compare, digest, run

_FLIPS_FROM = 5000  # elements; smaller calls are over before another thread is awake
_WEIGHTS = {"norms": 5, "softmax": 4}  # others have 3


@dataclass(frozen=True)
class Settings:
    """The seed and the choices by which the cases of a campaign are drawn."""

    seed: int
    family: str = "all"
    device: str = "cpu"
    fresh: bool = True  # compare with calls of which none is recorded
    kind: str = "calls"
    op: str = "all"

    @property
    def command(self) -> str:
        """The command that repeats a case, but for its number."""
        chosen = [
            f for f in fields(self) if f.name != "fresh" and getattr(self, f.name) != f.default
        ]
        return " ".join(
            ["python tools/fuzz.py", *(f"--{f.name} {getattr(self, f.name)}" for f in chosen)]
        )


@dataclass
class Failure:
    """A promise that did not hold in a case."""

    number: int
    op: str
    check: str
    text: str
    request: str

    @property
    def kind(self) -> str:
        return f"{self.op}: {self.check}"

    @staticmethod
    def of(number: int, case: Any, error: Exception) -> Failure:
        """Tell what an error says of a case; without one, the fault is the fuzzer's own."""
        kind, text = ("fuzzer", "") if case is None else (case.kind, str(case))
        if isinstance(error, Wrong):
            return Failure(number, kind, error.check, str(error), text)
        check, frames = f"fuzzer: {type(error).__name__}", extract_tb(error.__traceback__)
        at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        return Failure(number, kind, check, f"{error}{at}", text)


@dataclass
class Tally:
    """Counts and failures of some cases."""

    cases: int = 0
    calls: int = 0
    replays: int = 0
    refusals: int = 0
    families: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def count(self, family: str, cases: int = 1) -> None:
        """Cases of a family."""
        self.families[family] = self.families.get(family, 0) + cases

    def add(self, other: Tally) -> None:
        """Take in what other cases came to."""
        for name in ("cases", "calls", "replays", "refusals"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for family, cases in other.families.items():
            self.count(family, cases)
        self.failures += other.failures


# --- one case -------------------------------------------------------------------------------------


class Case:
    """A request, and two sets of values for it."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.number = number
        self.r = Random(f"{settings.seed}/{number}")
        ops = calls.ops(settings.family, settings.op)
        families = sorted({op.family for op in ops})
        (family,) = self.r.choices(families, [_WEIGHTS.get(f, 3) for f in families])
        self.op = self.r.choice([op for op in ops if op.family == family])
        draw = Draw(self.r, settings.device)
        self.request = calls.sample(self.op, draw)
        self.rng = np.random.Generator(np.random.PCG64([settings.seed, number]))
        self.values = [calls.fill(self.request, self.rng) for _ in range(2)]
        self.other = calls.other_parameter(self.request, self.r)

    @property
    def kind(self) -> str:
        """The entry point."""
        return self.request.label

    def __str__(self) -> str:
        return str(self.request)

    def run(self, request: Request, which: int, shift: int = 0) -> list[Any]:
        """One call, of one of the sets of values."""
        live = Live(request, self.values[which], shift)
        return run(calls.function(request), live)

    def digests(self) -> list[bytes]:
        """Return the bits of the calls that are compared with those of unrecorded ones."""
        found = [digest(self.run(self.request, 0)), digest(self.run(self.request, 1))]
        if self.other is not None:
            found.append(digest(self.run(self.other, 0)))
        return found

    def judge(self, request: Request, which: int, parts: list[Any]) -> None:
        if not parts or isinstance(parts[0], str):  # refused
            return
        expected = calls.exact(request, self.values[which])
        if len(expected) != len(parts):
            raise Wrong("results", f"{len(parts)} of them, not {len(expected)}")
        for i, (part, of) in enumerate(zip(parts, expected, strict=True)):
            if of is not None:
                if not isinstance(part, np.ndarray):
                    raise Wrong("results", f"result {i} is {part!r}")
                compare(f"result {i}", part, of)


def _bad_call(case: Case, r: Random) -> None:
    """A call of the same entry point that is refused, and names it."""
    request = case.request
    if request.entry == "merge":
        return
    kind, bad, values = r.randrange(4), request, case.values[0]
    if kind == 3:
        bad, of_wrong_shape = calls.refused(request, r)
        values = {**values, **of_wrong_shape}
    live = Live(bad, values)
    named, args = dict(live.named), list(live.args)
    if kind == 0:
        named["no_such_option"] = 1
    elif kind == 1:
        args[0] = np.zeros(getattr(args[0], "shape", (2,)), np.complex64)
    elif kind == 2:
        args = []
    elif bad is request:
        return
    try:
        calls.function(request)(*args, **named)
    except (TypeError, ValueError) as error:
        if not str(error).startswith(request.where):
            raise Wrong("error words", f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise Wrong("error class", f"{type(error).__name__}: {error}") from error
    else:
        raise Wrong("not refused", f"a bad call of kind {kind}: {bad}")
    for name in live.blocks:
        if not live.untouched(name):
            raise Wrong("refusal wrote", name)


@contextlib.contextmanager
def _flipping(wanted: bool) -> Iterator[None]:
    """Another Python thread changes the number of threads meanwhile."""
    if not wanted:
        yield
        return
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            for count in (1, 4, 2, 3):
                fa.set_num_threads(count)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    other = threading.Thread(target=flip)
    other.start()
    try:
        yield
    finally:
        stop.set()
        other.join()
        sys.setswitchinterval(interval)


def _relaid(case: Case, results: list[Any]) -> Request | None:
    """Return a request of these operands in other layouts, if those promise the bits of results."""
    request, r = case.request, case.r
    on_device = request.framework == "emulated"  # where strides may show, and addresses may not
    if on_device or request.entry == "merge" or not calls.layout_free(request, results):
        return None
    draw = Draw(r)
    draw.framework = request.framework
    made: dict[str, Array] = {}

    def of(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(of, value))
        if not isinstance(value, Array) or value.form != "array" or value.stored is not None:
            return value
        layout = draw.layout(len(value.shape), value.dtype)
        if value.layout is not None and not calls.order_free(request):
            layout = replace(layout, order=value.layout.order)
        return made.setdefault(value.name, replace(value, layout=layout))

    if any(out.kind == "place" for out in request.outs):
        return None
    return replace(request, given={name: of(value) for name, value in request.given.items()})


def run_case(case: Case) -> list[bytes]:
    """Check all of a case. The digests of its first calls have to equal the others'."""
    r, request = case.r, case.request
    large = sum(v.size for v in case.values[0].values() if isinstance(v, np.ndarray))
    threads = [r.randint(1, 4) for _ in range(7)]

    def call(at: int, request: Request, which: int, flips: bool = False) -> list[Any]:
        fa.set_num_threads(threads[at])
        with _flipping(flips and large > _FLIPS_FROM):
            return case.run(request, which, r.randrange(8))

    parts = call(0, request, 0)
    case.judge(request, 0, parts)
    first = digest(parts)
    if request.refused:
        for at in (1, 2):
            call(at, request, 1)
        return [first, first] + [first] * (case.other is not None)

    def same(name: str, parts: list[Any], as_first: bytes) -> None:
        if digest(parts) != as_first:
            raise Wrong("bits", f"{name}: other bits than the first call; {_difference(parts)}")

    def _difference(parts: list[Any]) -> str:
        again = case.run(request, 0)
        for i, (a, b) in enumerate(zip(parts, again, strict=False)):
            if isinstance(a, np.ndarray) and isinstance(b, type(a)) and digest([a]) != digest([b]):
                differs = (a != b) & ~(np.isnan(a) & np.isnan(b))
                at = int(np.argmax(differs.reshape(-1)))
                return f"result {i}, flat {at}: {a.reshape(-1)[at]!r} {b.reshape(-1)[at]!r}"
        return "the next call has the first one's" if digest(again) == first else f"{parts[:1]!r}"

    same("other memory", call(1, request, 0), first)
    if r.random() < 0.5:
        _bad_call(case, r)
    if r.random() < 0.5:
        quantized.check(case, Random(r.random()))
    parts = call(2, request, 1)
    case.judge(request, 1, parts)
    second = digest(parts)
    found = [first, second]
    if case.other is not None:
        parts = call(3, case.other, 0)
        try:
            case.judge(case.other, 0, parts)
        except Wrong as wrong:
            raise Wrong(f"{wrong.check} of another parameter", f"{case.other}: {wrong}") from wrong
        found.append(digest(parts))
    same("other calls in between", call(4, request, 0, flips=True), first)
    if r.random() < 0.5:
        same("again", call(5, request, 1), second)
    if r.random() < 0.3:
        relaid = _relaid(case, parts)
        if relaid is not None:
            parts = call(6, relaid, 0)
            if digest(parts) != first:
                raise Wrong("bits of layouts", f"{relaid}: {_difference(parts)}")
    return found


# --- workers --------------------------------------------------------------------------------------


class Runner:
    """Runs cases. A kind of them has a class, and what is held of one.

    case : makes one, by the settings and its number; it tells its `kind`, and all of it as text.
    """

    case: Any

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        quiet()

    def check(self, case: Any, tally: Tally) -> None:
        """Hold what is held of a case, and count it."""
        raise NotImplementedError

    def run(self, numbers: range, note: Callable[[int], Any] = int) -> Tally:
        """Run cases; note is given the number of each before it runs."""
        tally = Tally()
        for number in numbers:
            note(number)
            tally.cases += 1
            case = None
            try:
                case = self.case(self.settings, number)
                self.check(case, tally)
            except Exception as error:
                tally.failures.append(Failure.of(number, case, error))
        return tally


class Worker(Runner):
    """Runs calls, and tells those that the Python layer runs from those that are replayed."""

    case = Case

    def run(self, numbers: range, note: Callable[[int], Any] = int) -> Tally:
        """Run cases, and count how often the Python layer is entered."""
        enter, self._slow = _call.Call.__enter__, 0

        def counted(call: Any) -> Any:
            self._slow += 1
            return enter(call)

        with mock.patch.object(_call.Call, "__enter__", counted):
            return super().run(numbers, note)

    def check(self, case: Case, tally: Tally) -> None:
        """Hold all of a case, also where none of its calls is recorded."""
        tally.count(case.op.family)
        tally.refusals += bool(case.request.refused)
        plain = case.run

        def counted(*args: Any) -> Any:
            tally.calls += 1
            slow = self._slow
            made = plain(*args)
            tally.replays += self._slow == slow
            return made

        case.run = counted  # type: ignore[method-assign]
        found = run_case(case)
        if self.settings.fresh:
            _compare_unrecorded(case, found)


def _compare_unrecorded(case: Case, found: list[bytes]) -> None:
    """Hold that calls have the same bits on one thread, and where no call is recorded."""
    fa.set_num_threads(1)
    _cpu.enable_call_cache(False)
    try:
        again = case.digests()
    finally:
        _cpu.enable_call_cache(True)
    if again != found:
        calls_of = ("the first values", "the values of the third call", "another parameter")
        which = [a == b for a, b in zip(again, found, strict=True)].index(False)
        raise Wrong("unrecorded calls", f"other bits than recorded ones for {calls_of[which]}")


def quiet() -> None:
    """Neither NumPy's warnings nor Python's."""
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
