"""Programs in processes of their own, and how much memory a call takes."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

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


Run = subprocess.CompletedProcess[str]


def run_program(*command: object, **options: Any) -> Run:
    """A program's end and what it wrote; options are those of `subprocess.run`."""
    options = {"capture_output": True, "text": True, "timeout": TIMEOUT, "check": False, **options}
    return subprocess.run([*map(str, command)], **options)


def run_python(code: str, **environ: str) -> Run:
    return run_program(sys.executable, "-c", code, env={**os.environ, **environ})


def output_of(done: Run) -> str:
    """What a program wrote, which must have succeeded."""
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def python_output(code: str, **environ: str) -> str:
    return output_of(run_python(code, **environ))


def python_path(*folders: object) -> str:
    """PYTHONPATH for a process that finds the modules in these folders, and those of this one."""
    return os.pathsep.join([*map(str, folders), *filter(None, sys.path)])


#: The folder of the tests' own modules.
TESTS = Path(__file__).parent


def join_pair(rank: int, folder: str) -> None:
    """Make this process, which computes with one thread, one of two that exchange by gloo."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT),
    )


def found_by_pair(process: Callable[..., None], folder: Path, *arguments: Any) -> list[Any]:
    """What each of two processes has saved in a file of the folder, which its rank names."""
    torch.multiprocessing.spawn(process, (str(folder), *arguments), nprocs=2)
    return [torch.load(folder / str(rank)) for rank in range(2)]
