"""The processes of a campaign: its workers, which may die, and the parent.

A worker notes the number of each case before it runs it, so that a crash has a name; the parent
starts another worker behind it.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from fastact import _cpu
from fastact.runtime import config

from .campaign import Failure, Settings, Tally

#: Each process is a new interpreter, which knows nothing of this one's calls.
SPAWN = multiprocessing.get_context("spawn")

HANGS = 90  # seconds of one case, after which a worker ends itself and tells where it is
CHUNK = 250  # cases that a worker is given at a time


def serve(worker: Any, settings: Settings, pipe: Any, at: Any) -> None:
    """A worker process: ranges of cases come in, tallies go out; at: the number of its case."""
    faulthandler.enable()  # whatever kills it shows where

    def note(number: int) -> None:
        at.value = number
        faulthandler.dump_traceback_later(HANGS, exit=True)  # with exit code 1

    note(at.value)  # it may hang before its first case
    try:
        runs = worker(settings)
        while True:
            pipe.send(runs.run(pipe.recv(), note))
            faulthandler.cancel_dump_traceback_later()
    except EOFError:
        return
    except BaseException:  # of which an interpreter has the exit code of one that hangs
        traceback.print_exc()
        os._exit(3)


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

    def _work(self) -> None:
        """Feed one worker process, and start another one where it dies."""
        at, process = SPAWN.Value("q", 0, lock=False), None
        for left in self.chunks():
            while left:
                if process is None:
                    pipe, theirs = SPAWN.Pipe()
                    given = self.worker, self.settings, theirs, at
                    process = SPAWN.Process(target=serve, args=given, daemon=True)
                    process.start()
                    theirs.close()
                try:
                    pipe.send(left)
                    self.add(pipe.recv())
                    break
                except (EOFError, ConnectionError):
                    process.join()
                    left = self._crashed(left, at.value, process.exitcode or 0)
                    process = None

    def _crashed(self, numbers: range, at: int, code: int) -> range:
        """Note the case that a worker died in; return what is left behind it."""
        at = at if at in numbers else numbers.start
        how = f"it hung for {HANGS} s" if code == 1 else f"the process died: exit code {code}"
        how = f"the process died: {signal.Signals(-code).name}" if code < 0 else how
        label, text = self.name_of(at)
        # The cases before it in the chunk are not counted: what they found is lost with it.
        self.add(Tally(cases=1, failures=[Failure(at, label, "crash", how, text)]))
        return range(at + 1, numbers.stop)

    def run(self) -> None:
        begun = time.monotonic()
        jobs = [threading.Thread(target=self._work, daemon=True) for _ in range(self.jobs)]
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
            f"{config.config()['processor']}, {os.cpu_count()} cores, {_cpu.isa()}",
            f"{len(total.failures)} failures of {len(kinds)} kinds",
        ]
        return "\n".join(
            [*found, *(f"  {count:6d}  {kind}" for kind, count in kinds.most_common())]
        )
