"""The OpenMP runtime as it is loaded: how long its threads stay awake for more work.

After a parallel region libgomp's threads spin 300 000 times before they sleep: 8 ms at 26 ns, in
which they keep a core from whoever wants it next. NumPy's OpenBLAS in turns with fastact, two
threads each on two cores (EPYC, Zen 4), took 9 times as long as with fastact on one thread for a
gradient of LeNet, and 45 times for one of an LSTM.

With 1000 turns of its loop the threads of successive calls never sleep, and what comes between is
soon alone; docs/design/runtime.md has the figures.

libgomp reads the environment when it is loaded, which is when `_cpu` is imported: that import
stands here, before all others, and leaves the environment as it was. This is done for a libgomp of
our own alone, which a wheel brings: the one that a build from source or conda shares with whoever
loads it later waits as its user says (OMP_WAIT_POLICY, GOMP_SPINCOUNT), which is left alone in
wheels, too. This is for x86-64 on Linux, where it was measured: a turn takes another time
elsewhere, and other runtimes wait in other ways.
"""

import os
import platform
import sys
from collections.abc import MutableMapping
from importlib import import_module
from pathlib import Path

_TURNS = {"x86_64": 1000}  # of libgomp's loop, each with one `pause` of the processor
_DECIDES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # either of them
_WITHOUT = "as the OpenMP runtime has it"


def own_runtime(package: Path = Path(__file__).parent) -> Path | None:
    """Return the file of the libgomp that the wheel brought, which nobody else loads."""
    return next((package.parent / f"{package.name}.libs").glob("libgomp*"), None)


def _import(environ: MutableMapping[str, str]) -> str:
    """Import `_cpu`, and tell how long idle threads wait, and who decided it."""
    by_user = next((f"{name}={environ[name]}" for name in _DECIDES if name in environ), None)
    turns = _TURNS.get(platform.machine()) if sys.platform == "linux" else None
    if by_user or turns is None or own_runtime() is None:
        import_module("fastact._cpu")
        return by_user or _WITHOUT
    name = _DECIDES[1]
    environ[name] = str(turns)
    try:
        import_module("fastact._cpu")
    finally:
        del environ[name]
    return f"{name}={turns}, by fastact"


idle = _import(os.environ)
