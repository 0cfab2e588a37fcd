"""The OpenMP runtime as it is loaded: how long its threads stay awake for more work.

After a parallel region libgomp's threads spin 300 000 times before they sleep: 8 ms at 26 ns, in
which they keep a core from whoever wants it next. NumPy's OpenBLAS in turns with fastact, two
threads each on two cores (EPYC, Zen 4), took 9 times as long as with fastact on one thread for a
gradient of LeNet, and 45 times for one of an LSTM.

Milliseconds of a gradient (`examples`), and microseconds of relu of 100 000 elements, in a loop and
after a pause of 100 us, by the number of turns:

    turns     300 000    8000   4000   2000   1000    300   0 (passive)   one thread
    LeNet        47.7     7.8    6.6    7.2    6.3    5.3       5.1          4.9
    LSTM         2632     210    128    110     80     65        61           55
    relu          5.3     5.5    5.2    5.4    5.3     45        90          8.7
    paused        5.5     5.6     17     34     28     65        78          8.7

The columns are of several runs on a noisy machine, some of them minima and some medians: 300 and
passive are the noisiest of relu. With 1000 the threads of successive calls never sleep, and what
comes between is soon alone. Far fewer than it takes to wake a thread (50 us on this virtual
machine) are not enough: each then finds the other asleep, call after call.

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
    """The file of the libgomp that the wheel brought, which nobody else loads."""
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
