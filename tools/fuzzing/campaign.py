"""Many cases, each of which depends on the seed and its number alone.

A worker process runs cases and has another process, without recorded calls, run them once more: the
bits must be the same. It notes the number of each case before it runs it, so that a crash has a
name; the parent starts another worker behind it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import fastact as fa
from fastact.interop import call as _call

from . import calls
from .cases import Array, Draw, Request
from .judge import Live, Wrong, compare, digest, run

HANGS = 90  # seconds without a new case, after which a worker is killed
CHUNK = 250  # cases that a worker is given at a time
BATCH = 50  # cases that are compared with the other process at a time
_FLIPS_FROM = 5000  # elements; smaller calls are over before another thread is awake
_WEIGHTS = {"norms": 5, "softmax": 4}  # others have 3


@dataclass(frozen=True)
class Settings:
    """Of a campaign."""

    seed: int
    family: str = "all"
    device: str = "cpu"
    fresh: bool = True  # compare with a process without recorded calls
    program: str = "fuzz.py"
    op: str = "all"

    @property
    def command(self) -> str:
        """What repeats a case, but for its number."""
        return (
            f"python tools/{self.program} --seed {self.seed}"
            + (f" --family {self.family}" if self.family != "all" else "")
            + (f" --op {self.op}" if self.op != "all" else "")
            + (f" --device {self.device}" if self.device != "cpu" else "")
        )


@dataclass
class Failure:
    """What did not hold in a case."""

    number: int
    op: str
    check: str
    text: str
    request: str

    @property
    def kind(self) -> str:
        return f"{self.op}: {self.check}"


@dataclass
class Tally:
    """What some cases came to."""

    cases: int = 0
    calls: int = 0
    replays: int = 0
    refusals: int = 0
    families: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)


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

    def run(self, request: Request, which: int, shift: int = 0) -> list[Any]:
        """One call, of one of the sets of values."""
        live = Live(request, self.values[which], shift)
        return run(calls.function(request), live)

    def digests(self) -> list[bytes]:
        """The bits of the calls that are compared with another process."""
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


def _relaid(case: Case) -> Request | None:
    """The same operands in other layouts."""
    request, r = case.request, case.r
    on_device = request.framework == "emulated"  # where strides may show, and addresses may not
    if on_device or request.entry == "merge" or not calls.layout_free(request):
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
            if (
                isinstance(a, np.ndarray)
                and isinstance(b, np.ndarray)
                and digest([a]) != digest([b])
            ):
                at = np.flatnonzero(((a != b) & ~(np.isnan(a) & np.isnan(b))).reshape(-1))
                where = int(at[0]) if at.size else -1
                return (
                    f"result {i}, flat {where}: {a.reshape(-1)[where]!r} {b.reshape(-1)[where]!r}"
                )
        return "the next call has the first one's" if digest(again) == first else f"{parts[:1]!r}"

    same("other memory", call(1, request, 0), first)
    if r.random() < 0.5:
        _bad_call(case, r)
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
        relaid = _relaid(case)
        if relaid is not None:
            parts = call(6, relaid, 0)
            if digest(parts) != first:
                raise Wrong("bits of layouts", f"{relaid}: {_difference(parts)}")
    return found


# --- a worker -------------------------------------------------------------------------------------


class Fresh:
    """A process that runs cases without recorded calls."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._start()

    def _start(self) -> None:
        environment = {**os.environ, "FASTACT_CALL_CACHE": "0"}
        command = [sys.executable, _PROGRAM, "--fresh-process", json.dumps(asdict(self.settings))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def ask(self, numbers: list[int]) -> None:
        assert self.process.stdin is not None
        pickle.dump(numbers, self.process.stdin)
        self.process.stdin.flush()

    def answer(self) -> dict[int, Any]:
        """By number: digests, or the words of what did not hold. Empty where the process died."""
        try:
            found: dict[int, Any] = pickle.load(self.process.stdout)  # type: ignore[arg-type]
        except EOFError:
            self.process.wait()
            self._start()
            return {}
        return found

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve_fresh(settings: Settings) -> None:
    """What that process does."""
    fa.set_num_threads(1)
    _quiet()
    while True:
        try:
            numbers = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        found: dict[int, Any] = {}
        for number in numbers:
            try:
                found[number] = Case(settings, number).digests()
            except Wrong as wrong:
                found[number] = str(wrong)
            except Exception as error:
                found[number] = f"{type(error).__name__}: {error}"
        pickle.dump(found, sys.stdout.buffer)
        sys.stdout.buffer.flush()


class Worker:
    """Runs cases."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.fresh = Fresh(settings) if settings.fresh else None
        self._asked: dict[int, tuple[list[bytes], Request]] = {}
        self._slow = 0
        _quiet()

    @contextlib.contextmanager
    def _counting_slow(self) -> Iterator[None]:
        """How many calls the Python layer ran; the others were replayed, or took the short cut."""
        enter = _call.Call.__enter__
        self._slow = 0

        def counted(call: Any) -> Any:
            self._slow += 1
            return enter(call)

        _call.Call.__enter__ = counted  # type: ignore[method-assign]
        try:
            yield
        finally:
            _call.Call.__enter__ = enter  # type: ignore[method-assign]

    def run(self, numbers: range, note: Any = None) -> Tally:
        """note: given the number of each case before it runs."""
        with self._counting_slow():
            tally = self._run(numbers, note)
        tally.replays = tally.calls - self._slow
        return tally

    def _run(self, numbers: range, note: Any) -> Tally:
        tally, waiting = Tally(), {}  # type: ignore[var-annotated]
        families: Counter[str] = Counter()
        for number in numbers:
            if note is not None:
                note(number)
            tally.cases += 1
            try:
                case = Case(self.settings, number)
                families[case.op.family] += 1
                tally.refusals += bool(case.request.refused)
                made = _counting(case, tally)
                waiting[number] = (made, case.request)
            except Exception as error:
                self._failed(tally, number, error)
            if self.fresh is not None and len(waiting) >= BATCH:
                self._compare(tally)
                self._ask(waiting)
                waiting = {}
        if self.fresh is not None:
            self._compare(tally)
            self._ask(waiting)
            self._compare(tally)
        tally.families = dict(families)
        return tally

    def _failed(self, tally: Tally, number: int, error: Exception) -> None:
        try:
            case = Case(self.settings, number)
            label, text = case.request.label, str(case.request)
        except Exception as why:  # the fuzzer's own fault
            label, text = "fuzzer", f"{type(why).__name__}: {why}"
        check = error.check if isinstance(error, Wrong) else f"fuzzer: {type(error).__name__}"
        where = "" if isinstance(error, Wrong) else _at(error)
        tally.failures.append(asdict(Failure(number, label, check, f"{error}{where}", text)))

    def _ask(self, cases: dict[int, Any]) -> None:
        if cases and self.fresh is not None:
            self.fresh.ask(list(cases))
            self._asked = cases

    def _compare(self, tally: Tally) -> None:
        if not self._asked or self.fresh is None:
            return
        asked, self._asked = self._asked, {}
        answers = self.fresh.answer()
        if not answers:
            first = min(asked)
            text = f"a process without recorded calls died in one of {len(asked)} cases"
            tally.failures.append(asdict(Failure(first, "all", "crash", text, "")))
            return
        for number, (made, request) in asked.items():
            answer = answers[number]
            if answer != made:
                self._failed_fresh(tally, number, answer, made, request)

    def _failed_fresh(
        self, tally: Tally, number: int, answer: Any, made: list[bytes], request: Request
    ) -> None:
        text = answer
        if not isinstance(answer, str):
            which = [a == b for a, b in zip(answer, made, strict=True)].index(False)
            text = "other bits than in a fresh process for " + (
                "the first values", "the values of the third call", "another parameter",
            )[which]  # fmt: skip
        failure = Failure(number, request.label, "fresh process", text, str(request))
        tally.failures.append(asdict(failure))

    def stop(self) -> None:
        if self.fresh is not None:
            self.fresh.stop()


def _counting(case: Case, tally: Tally) -> list[bytes]:
    """`run_case`, with its calls counted."""
    plain = case.run

    def counted(*args: Any) -> Any:
        tally.calls += 1
        return plain(*args)

    case.run = counted  # type: ignore[method-assign]
    return run_case(case)


def _at(error: BaseException) -> str:
    """Where in the fuzzer an error that is no finding came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        ""
        if trace is None
        else f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
    )


def _quiet() -> None:
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")


_PROGRAM = str(Path(__file__).resolve().parents[1] / "fuzz.py")


def serve(worker: Any, marker: str) -> None:
    """A worker process: ranges of cases come in, a line each; tallies go out."""
    faulthandler.enable()  # whatever kills it shows where
    with open(marker, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 8)
    for line in sys.stdin:
        first, count = map(int, line.split())
        tally = worker.run(
            range(first, first + count), lambda number: struct.pack_into("q", memory, 0, number)
        )
        print(json.dumps(asdict(tally)), flush=True)
    worker.stop()


# --- the parent -----------------------------------------------------------------------------------


@dataclass
class Report:
    """What a campaign came to."""

    settings: Settings
    seconds: float = 0.0
    total: Tally = field(default_factory=Tally)

    def add(self, tally: dict[str, Any]) -> None:
        total = self.total
        for name in ("cases", "calls", "replays", "refusals"):
            setattr(total, name, getattr(total, name) + tally[name])
        for family, count in tally["families"].items():
            total.families[family] = total.families.get(family, 0) + count
        total.failures += tally["failures"]

    def lines(self) -> list[str]:
        total, kinds = self.total, Counter(Failure(**f).kind for f in self.total.failures)
        families = ", ".join(f"{name} {count}" for name, count in sorted(total.families.items()))
        found = [
            f"seed {self.settings.seed}: {total.cases} cases ({families})",
            f"{total.calls} calls, of which {total.replays} without the Python layer; "
            f"{total.refusals} cases had to be refused",
            f"{self.seconds:.0f} s, {total.cases / max(self.seconds, 1e-9):.0f} cases a second on "
            f"{processor()}, {os.cpu_count()} cores, {_isa()}",
            f"{len(total.failures)} failures of {len(kinds)} kinds",
        ]
        found += [f"  {count:6d}  {kind}" for kind, count in kinds.most_common()]
        return found


def processor() -> str:
    """Its name, where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "an unknown processor"


def _isa() -> str:
    from fastact import _cpu

    return str(_cpu.isa())


class _Job(threading.Thread):
    """Feeds one worker process, and starts another one where it dies."""

    def __init__(self, campaign: Campaign) -> None:
        super().__init__(daemon=True)
        self.campaign = campaign
        descriptor, self.marker = tempfile.mkstemp(prefix="fastact-fuzz-")
        os.write(descriptor, bytes(8))
        os.close(descriptor)

    def _start(self) -> subprocess.Popen[str]:
        settings = json.dumps(asdict(self.campaign.settings))
        command = [sys.executable, self.campaign.program, "--worker", settings, self.marker]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _case(self) -> int:
        (at,) = struct.unpack("q", Path(self.marker).read_bytes())
        return int(at)

    def _line(self, process: subprocess.Popen[str]) -> str:
        """What the worker says; nothing where it dies, or hangs in one case and is killed."""
        assert process.stdout is not None
        case, since = self._case(), time.monotonic()
        while not select.select([process.stdout], [], [], 1.0)[0]:
            now = self._case()
            if now != case:
                case, since = now, time.monotonic()
            elif time.monotonic() - since > HANGS:
                process.kill()
                break
        return process.stdout.readline()

    def run(self) -> None:
        process = self._start()
        try:
            for chunk in self.campaign.chunks():
                left = chunk
                while len(left):
                    process.stdin.write(f"{left.start} {len(left)}\n")  # type: ignore[union-attr]
                    process.stdin.flush()  # type: ignore[union-attr]
                    line = self._line(process)
                    if line:
                        self.campaign.add(json.loads(line))
                        break
                    left = self._crashed(process.wait(), left)
                    process = self._start()
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait()
            os.unlink(self.marker)

    def _crashed(self, code: int, numbers: range) -> range:
        """Note the case that the worker died in; what is left behind it."""
        at = self._case()
        at = at if at in numbers else numbers.start
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        name = f"it hung for {HANGS} s" if name == "SIGKILL" else name
        label, text = self.campaign.name_of(at)
        failure = Failure(at, label, "crash", f"the process died: {name}", text)
        # The cases before it in the chunk are not counted: what they found is lost with it.
        empty = asdict(Tally(cases=1, failures=[asdict(failure)]))
        self.campaign.add(empty)
        return range(at + 1, numbers.stop)


class Campaign:
    """Cases `first` to `first + count`, or as many as `seconds` allow."""

    program = _PROGRAM

    def __init__(
        self, settings: Settings, first: int, count: int, seconds: float, jobs: int, say: Any
    ) -> None:
        self.settings, self.jobs, self.say = settings, jobs, say
        self.report = Report(settings)
        self._lock = threading.Lock()
        self._left = range(first, first + count)
        self._until = time.monotonic() + seconds
        self._said: Counter[str] = Counter()

    def name_of(self, number: int) -> tuple[str, str]:
        """What a case calls, and all of it."""
        try:
            request = Case(self.settings, number).request
        except Exception as error:
            return "fuzzer", str(error)
        return request.label, str(request)

    def chunks(self) -> Iterator[range]:
        while True:
            with self._lock:
                if not self._left or time.monotonic() > self._until:
                    return
                size = max(1, min(CHUNK, -(-len(self._left) // self.jobs)))
                chunk, self._left = self._left[:size], self._left[size:]
            yield chunk

    def add(self, tally: dict[str, Any]) -> None:
        with self._lock:
            self.report.add(tally)
            for found in tally["failures"]:
                failure = Failure(**found)
                self._said[failure.kind] += 1
                if self._said[failure.kind] <= 3:
                    self.say(describe(self.settings, failure))

    def run(self) -> Report:
        begun = time.monotonic()
        jobs = [_Job(self) for _ in range(self.jobs)]
        for job in jobs:
            job.start()
        for job in jobs:
            while job.is_alive():
                job.join(1)
        self.report.seconds = time.monotonic() - begun
        return self.report


def describe(settings: Settings, failure: Failure) -> str:
    """A failure, and how to repeat it."""
    return (
        f"FAILED seed {settings.seed} case {failure.number}: {failure.kind}\n"
        f"  {failure.request}\n  {failure.text}\n"
        f"  repeat: {settings.command} --case {failure.number}"
    )
