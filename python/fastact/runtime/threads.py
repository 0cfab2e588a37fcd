"""How many threads fastact may use: the default, and the functions that change it.

The decision for a call is made in one place, `thread_limit` in `src/cpu/core/threads.h`.
"""

import os
from collections.abc import Mapping
from math import ceil
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import _cpu
from ..interop.foreign import describe

#: The most threads that may be set: as many CPUs as Linux knows on x86-64.
MOST = 8192


def _count(where: str, name: str, value: Any, *, text: bool = False) -> int:
    """Check a thread count, which is an integer or, with `text`, its text."""
    allowed = f"{where}: {name} must be an integer from 1 to {MOST}, got {describe(value)}"
    try:
        count = int(value) if text else index(value)
    except (ValueError, TypeError):
        raise (ValueError if text else TypeError)(allowed) from None
    if not 1 <= count <= MOST:
        raise ValueError(allowed)
    return count


def cgroup_cpus(root: Path = Path("/")) -> float:
    """Return the number of CPUs that the cgroup's quota (version 1 or 2) allows, or infinity.

    A quota may stand at any level above the process's own group, and inside a container the path
    that the kernel reports may not exist: every level that can be read counts.
    """
    allowed = float("inf")
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, read = root / "sys/fs/cgroup", _quota_v2
        elif "cpu" in controllers.split(","):
            top, read = root / "sys/fs/cgroup/cpu", _quota_v1
        else:
            continue
        group = top / path.lstrip("/")
        for level in (group, *group.parents):
            allowed = min(allowed, read(level))
            if level == top:
                break
    return allowed


def _quota_v2(group: Path) -> float:
    quota, period = (*_words(group / "cpu.max"), "max", "max")[:2]
    return float("inf") if "max" in (quota, period) else float(quota) / float(period)


def _quota_v1(group: Path) -> float:
    quota = (*_words(group / "cpu.cfs_quota_us"), "-1")[0]
    period = (*_words(group / "cpu.cfs_period_us"), "-1")[0]
    return float("inf") if float(quota) < 0 or float(period) <= 0 else float(quota) / float(period)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def default_num_threads(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[int, str]:
    """Return the default count, and what decided it."""
    if value := environ.get("FASTACT_NUM_THREADS"):
        return _count("fastact", "FASTACT_NUM_THREADS", value, text=True), "FASTACT_NUM_THREADS"
    # OMP_NUM_THREADS may be a list, one count a nesting level; what is malformed is OpenMP's affair
    first = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        return min(int(first), MOST), "OMP_NUM_THREADS"
    available = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = cgroup_cpus(root)
    if quota < available:
        return max(1, ceil(quota)), "cgroup quota"
    return available, "CPU affinity"


def set_num_threads(n: int) -> None:
    """Set the number of threads that every later call of this process may use.

    n is from 1 to 8192. Small arrays use fewer threads. In a child made by `fork`, all calls are
    serial, whatever is set.

    Examples
    --------
    >>> import fastact as fa
    >>> before = fa.get_num_threads()
    >>> fa.set_num_threads(1)
    >>> fa.get_num_threads()
    1
    >>> fa.set_num_threads(before)
    """
    _cpu.set_process_threads(_count("fastact.set_num_threads", "n", n))


def get_num_threads() -> int:
    """Return the most threads that a call made now, from this Python thread, would use.

    This respects every limit: `num_threads`, `set_num_threads`, threadpoolctl, an enclosing
    parallel region and a fork.
    """
    return _cpu.get_thread_limit()


class num_threads:
    """A `with` block in which calls of this Python thread use at most n threads.

    Examples
    --------
    >>> import fastact as fa
    >>> with fa.num_threads(1):
    ...     fa.get_num_threads()
    1
    """

    def __init__(self, n: int) -> None:
        self._n = _count("fastact.num_threads", "n", n)
        self._before: list[int] = []

    def __enter__(self) -> "num_threads":
        self._before.append(_cpu.set_local_threads(self._n))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _cpu.set_local_threads(self._before.pop())


_default, decided_by = default_num_threads(os.environ)
_cpu.set_process_threads(_default)
# Without it, calls wait for threads whose cores are busy elsewhere; the bits are the same.
_cpu.set_back_off(os.environ.get("FASTACT_BACK_OFF", "1") != "0")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_cpu.after_fork_in_child)
