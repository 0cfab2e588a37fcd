"""The processes of a campaign: its workers, which may die, and the parent.

A worker notes the number of each case before it runs it, so that a crash has a name; the parent
starts another worker behind it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastact import _cpu

from .campaign import Failure, Settings, Tally

#: Each process is a new interpreter, which knows nothing of this one's calls.
SPAWN = multiprocessing.get_context("spawn")

HANGS = 90  # seconds without a new case, after which a worker is killed
CHUNK = 250  # cases that a worker is given at a time


def serve(worker: Any, settings: Settings, pipe: Any, at: Any) -> None:
    """A worker process: ranges of cases come in, tallies go out; at: the number of its case."""
    faulthandler.enable()  # whatever kills it shows where
    runs = worker(settings)

    def note(number: int) -> None:
        at.value = number

    with contextlib.suppress(EOFError):
        while True:
            pipe.send(runs.run(pipe.recv(), note))


class _Job(threading.Thread):
    """Feeds one worker process, and starts another one where it dies."""

    def __init__(self, campaign: Campaign) -> None:
        super().__init__(daemon=True)
        self.campaign = campaign
        self._at = SPAWN.Value("q", 0, lock=False)

    def _start(self) -> None:
        self._pipe, theirs = SPAWN.Pipe()
        given = self.campaign.worker, self.campaign.settings, theirs, self._at
        self._process = SPAWN.Process(target=serve, args=given)
        self._process.start()
        theirs.close()

    def _tally(self) -> Tally | None:
        """The worker's; None where it dies, or hangs in one case and is killed."""
        case, since = self._at.value, time.monotonic()
        while not self._pipe.poll(1.0):
            now = self._at.value
            if now != case:
                case, since = now, time.monotonic()
            elif time.monotonic() - since > HANGS:
                self._process.kill()
                break
        try:
            found: Tally = self._pipe.recv()
        except (EOFError, ConnectionError):
            return None
        return found

    def run(self) -> None:
        self._start()
        try:
            for chunk in self.campaign.chunks():
                left = chunk
                while len(left):
                    self._pipe.send(left)
                    tally = self._tally()
                    if tally is not None:
                        self.campaign.add(tally)
                        break
                    self._process.join()
                    left = self._crashed(left)
                    self._start()
        finally:
            self._pipe.close()
            self._process.join()

    def _crashed(self, numbers: range) -> range:
        """Note the case that the worker died in; what is left behind it."""
        at, code = self._at.value, self._process.exitcode or 0
        at = at if at in numbers else numbers.start
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        name = f"it hung for {HANGS} s" if name == "SIGKILL" else name
        label, text = self.campaign.name_of(at)
        failure = Failure(at, label, "crash", f"the process died: {name}", text)
        # The cases before it in the chunk are not counted: what they found is lost with it.
        self.campaign.add(Tally(cases=1, failures=[failure]))
        return range(at + 1, numbers.stop)


class Campaign:
    """Cases `first` to `first + count`, or as many as `seconds` allow.

    worker : the class that runs cases of some settings; its `case` makes one, by settings and
        number, with a `kind` and as text.
    """

    def __init__(
        self,
        settings: Settings,
        worker: Any,
        first: int,
        count: int,
        seconds: float,
        jobs: int,
        say: Callable[[str], Any],
    ) -> None:
        self.settings, self.worker, self.jobs, self.say = settings, worker, jobs, say
        self.total, self.seconds = Tally(), 0.0
        self._lock = threading.Lock()
        self._left = range(first, first + count)
        self._until = time.monotonic() + seconds
        self._said: Counter[str] = Counter()

    def name_of(self, number: int) -> tuple[str, str]:
        """Return what a case calls, and all of it."""
        try:
            case = self.worker.case(self.settings, number)
        except Exception as error:
            return "fuzzer", str(error)
        return case.kind, str(case)

    def chunks(self) -> Iterator[range]:
        while True:
            with self._lock:
                if not self._left or time.monotonic() > self._until:
                    return
                size = max(1, min(CHUNK, -(-len(self._left) // self.jobs)))
                chunk, self._left = self._left[:size], self._left[size:]
            yield chunk

    def add(self, tally: Tally) -> None:
        with self._lock:
            self.total.add(tally)
            for failure in tally.failures:
                self._said[failure.kind] += 1
                if self._said[failure.kind] <= 3:
                    self.say(self._described(failure))

    def _described(self, failure: Failure) -> str:
        """A failure, and how to repeat it."""
        return (
            f"FAILED seed {self.settings.seed} case {failure.number}: {failure.kind}\n"
            f"  {failure.request}\n  {failure.text}\n"
            f"  repeat: {self.settings.command} --case {failure.number}"
        )

    def run(self) -> None:
        begun = time.monotonic()
        jobs = [_Job(self) for _ in range(self.jobs)]
        for job in jobs:
            job.start()
        for job in jobs:
            while job.is_alive():
                job.join(1)
        self.seconds = time.monotonic() - begun

    def report(self) -> str:
        """Return what the campaign came to."""
        total, kinds = self.total, Counter(failure.kind for failure in self.total.failures)
        families = ", ".join(f"{name} {count}" for name, count in sorted(total.families.items()))
        found = [
            f"seed {self.settings.seed}: {total.cases} cases ({families})",
            f"{total.calls} calls, {total.replays} of them without the Python layer; "
            f"{total.refusals} cases had to be refused",
            f"{self.seconds:.0f} s, {total.cases / max(self.seconds, 1e-9):.0f} cases a second on "
            f"{processor()}, {os.cpu_count()} cores, {_cpu.isa()}",
            f"{len(total.failures)} failures of {len(kinds)} kinds",
        ]
        return "\n".join(
            [*found, *(f"  {count:6d}  {kind}" for kind, count in kinds.most_common())]
        )


def processor() -> str:
    """Its name, where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "an unknown processor"
