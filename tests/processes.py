"""Python in a process of its own, and how much memory a call takes."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

TIMEOUT = 600  # seconds; a deadlock takes for ever, a loaded machine tens of what an idle one takes

#: Of a test that forks with threads, which Python warns of, and JAX where another test loaded it.
forks = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*fork:DeprecationWarning",
    "ignore:os.fork.* was called.*JAX:RuntimeWarning",
)

# Python objects of a call: views with their axes, tuples, messages never.
OBJECTS = 20_000  # bytes
# The finder of an editable install builds on import, by a subprocess, and jedi does not ask it.
is_editable = any("ScikitBuild" in type(finder).__name__ for finder in sys.meta_path)
reads_proc = os.path.exists("/proc/self/status")


def peak(call: Callable[[], Any]) -> int:
    """The most that Python and NumPy held during a call, in bytes: the least of three calls'.

    Objects that a first call makes for later ones are not counted, nor those that another thread
    makes meanwhile, as pytest-xdist's does.
    """
    found = []
    for _ in range(3):
        tracemalloc.start()
        call()
        found.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(found)


#: For a process of its own: the most that it held. getrusage would begin with its parent's most.
HELD = """def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
"""


def run_python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
