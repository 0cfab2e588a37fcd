"""Facts about the build, this machine, and the choices that were made."""

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

_NVIDIA = "/proc/driver/nvidia/version"
_BUSY_CORES = ("waited for, by FASTACT_BACK_OFF=0", "left alone for a while")
_ISA_FLAGS = {
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "v3": {"avx2", "fma", "bmi1", "bmi2"},
}


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
    """Collect the facts that `show_config` prints."""
    build = _cpu.build_info()
    openmp = build["openmp"]
    return {
        "version": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": _cpuinfo("model name") or platform.processor() or platform.machine(),
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
            "busy cores": _BUSY_CORES[_cpu.get_back_off() > 0],
        },
        "call cache": "on" if _cpu.is_call_cache_enabled() else "off, by FASTACT_CALL_CACHE=0",
        "dask": {"threads of a task": _threads_of_a_task()},
        "cuda": cuda_config(),
    }


def _threads_of_a_task() -> str:
    """Say what dask.config sets, if the caller has imported dask."""
    name = "fastact.threads-per-task"
    config = getattr(sys.modules.get("dask"), "config", None)
    told = None if config is None else config.get(name, None)
    return "1, by default" if told is None else f"{told}, by dask.config"


def _cpuinfo(key: str) -> str:
    """Read what Linux says about a processor, or "" elsewhere."""
    try:
        with open("/proc/cpuinfo") as file:
            found = (line.partition(":")[2].strip() for line in file if line.startswith(key))
            return next(found, "")
    except OSError:
        return ""


def problems(facts: Mapping[str, Any], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """List what keeps fastact from doing its best here, each item with its cure."""
    found = []
    isa, threads, cuda = facts["isa"], facts["threads"], facts["cuda"]
    if isa["chosen"] != isa["supported"][-1]:
        what = f"it computes with {isa['chosen']}, and {isa['supported'][-1]} is there"
        found.append((what, "unset FASTACT_ISA"))
    elif (best := _best_isa()) and best not in isa["built"]:
        what = f"this processor has {best}, this build has {', '.join(isa['built'])} alone"
        cure = "install a wheel, or build here, or with -C cmake.define.FASTACT_BUILD_ISAS=ALL"
        found.append((what, cure))
    if not facts["openmp"][0].isdigit():
        what = "it was built without OpenMP: every call is serial"
        found.append((what, "build it with a compiler that has OpenMP: GCC, or Clang and libomp"))
    if threads["limit"] == 1 < _cores() and (name := threads["default_from"]) in environ:
        found.append((f"{name} allows one thread of {_cores()} cores", f"unset {name}"))
    if facts["call cache"] != "on":
        found.append(("small calls take longer than they need to", "unset FASTACT_CALL_CACHE"))
    if not cuda["available"] and os.path.exists(_NVIDIA):
        what, _, cure = cuda["why"].partition("; ")
        found.append((f"there is a GPU here, and it is not used: {what}", cure))
    return found


def _cores() -> int:
    return os.cpu_count() or 1


def _best_isa() -> str:
    """Find fastact's best instruction set for an x86-64 processor on Linux; "" if unknown."""
    flags = set(_cpuinfo("flags").split())
    return next((name for name, needs in _ISA_FLAGS.items() if needs <= flags), "")


def show_config() -> None:
    """Print version, compiler, instruction sets, OpenMP, threads and CUDA: built, chosen and why.

    Problems come first, each with its cure.

    Examples
    --------
    >>> import fastact as fa
    >>> fa.show_config()  # doctest: +SKIP
    version   0.1.0
    """
    from ..terminal import paragraph, say, styled  # for those alone who ask

    facts = config()
    for what, cure in problems(facts, os.environ):
        say(styled(paragraph(what, "wrong: "), "red"))
        say(styled(paragraph(cure, "cure:  "), "green"), "")
    lines = []
    for key, value in facts.items():
        several = value.items() if isinstance(value, dict) else [("", value)]
        for position, (name, one) in enumerate(several):
            told = ", ".join(map(str, one)) or "none" if isinstance(one, list) else one
            lines.append(("" if position else key, name, str(told)))
    wide = [max(len(line[column]) for line in lines) + 2 for column in (0, 1)]
    for key, name, told in lines:
        head = f"{key:{wide[0]}}" + (f"{name:{wide[1]}}" if name else "")
        text = paragraph(told, head)
        say(text.replace(key, styled(key, "bold"), 1) if key else text)


isa_why = choose_isa(os.environ)
# Tests and users may switch it off: calls then cost about 10 us more and give the same bits.
_cpu.enable_call_cache(os.environ.get("FASTACT_CALL_CACHE", "1") != "0")
