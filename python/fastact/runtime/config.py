"""What was built, what this machine has, and what was chosen."""

import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _cpu
from .._version import __version__
from ..interop.devices import cuda_config
from . import openmp as _openmp
from . import threads


def choose_isa(environ: Mapping[str, str]) -> str:
    """Select the instruction set that FASTACT_ISA names, or the best; say why."""
    wanted = environ.get("FASTACT_ISA")
    supported = _cpu.supported_isas()
    if not wanted:
        if not supported:
            raise ImportError(
                f"fastact: this processor has none of the instruction sets that were built "
                f"({', '.join(_cpu.build_info()['isas'])})"
            )
        return "the best that this processor has"
    built = _cpu.build_info()["isas"]
    if wanted not in built:
        raise ImportError(f"fastact: FASTACT_ISA must be one of {', '.join(built)}, got {wanted!r}")
    if wanted not in supported:
        raise ImportError(
            f"fastact: FASTACT_ISA={wanted} is not supported by this processor; it has "
            f"{', '.join(supported)}"
        )
    _cpu.select_isa(wanted)
    return "forced by FASTACT_ISA"


def config() -> dict[str, Any]:
    """The facts that `show_config` prints."""
    build = _cpu.build_info()
    openmp = build["openmp"]
    return {
        "version": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "compiler": build["compiler"],
        "isa": {
            "built": build["isas"],
            "supported": list(_cpu.supported_isas()),
            "chosen": _cpu.isa(),
            "why": isa_why,
        },
        "openmp": str(openmp) if openmp else "not built: every call is serial",
        "threads": {
            "limit": _cpu.get_thread_limit(),
            "default_from": threads.decided_by,
            "idle": _openmp.idle,
        },
        "call cache": "on" if _cpu.is_call_cache_enabled() else "off, by FASTACT_CALL_CACHE=0",
        "dask": {"threads of a task": _threads_of_a_task()},
        "cuda": cuda_config(),
    }


def _threads_of_a_task() -> str:
    """What dask.config says, where the caller has imported it."""
    name = "fastact.threads-per-task"
    config = getattr(sys.modules.get("dask"), "config", None)
    told = None if config is None else config.get(name, None)
    return "1, by default" if told is None else f"{told}, by dask.config"


def _processor() -> str:
    if sys.platform == "linux":
        try:
            with open("/proc/cpuinfo") as file:
                for line in file:
                    if line.startswith("model name"):
                        return line.partition(":")[2].strip()
        except OSError:
            pass
    return platform.processor() or platform.machine()


def show_config() -> None:
    """Print version, compiler, instruction sets, OpenMP, threads and CUDA: built, chosen and why.

    Examples
    --------
    >>> import fastact as fa
    >>> fa.show_config()
    version     ...
    """
    for key, value in config().items():
        if isinstance(value, dict):
            value = "; ".join(
                f"{k} {', '.join(map(str, v)) or 'none' if isinstance(v, list) else v}"
                for k, v in value.items()
            )
        print(f"{key:<11} {value}")


isa_why = choose_isa(os.environ)
# For tests, and for whoever suspects it: calls then cost some 10 us more, and give the same bits.
_cpu.enable_call_cache(os.environ.get("FASTACT_CALL_CACHE", "1") != "0")
