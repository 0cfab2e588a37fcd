"""Python in a process of its own, and how much memory a call takes."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

TIMEOUT = 60  # seconds; a deadlock takes for ever, a loaded machine a few

# Python objects of a call: views with their axes, tuples, messages never.
OBJECTS = 20_000  # bytes
# The finder of an editable install builds on import, by a subprocess, and jedi does not ask it.
is_editable = any("ScikitBuild" in type(finder).__name__ for finder in sys.meta_path)
reads_proc = os.path.exists("/proc/self/status")


def peak(call: Callable[[], Any]) -> int:
    """The most that Python and NumPy held during a call, in bytes."""
    call()  # what is made once is not counted
    tracemalloc.start()
    call()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def run_python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
