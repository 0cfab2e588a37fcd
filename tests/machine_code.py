"""What nvcc made of the CUDA kernels, read from the built extension by cuobjdump.

No GPU is needed, and nothing runs. Which numbers a kernel computes with, and whether its registers
suffice, a test on the emulated device can't tell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import assembly
import kernel_names
from processes import output_of, run_program
from source_tree import import_tool

sass = import_tool("sass")

# The extension to read: where it is set, nothing may be missing.
MODULE = "FASTACT_CUDA_MODULE"
# Of a load or store, bytes; 8 of them are a number in double, unless elements come by half vectors.
WIDTHS = (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 0), ("S8", 0))
HALF_VECTORS = "gates_"


class Kernel(NamedTuple):
    """A kernel of float32 or 16-bit data.

    fp64 : FP64 instructions for an element of each loop over elements that has any.
    frame : bytes of a thread's stack.
    """

    name: str
    fp64: list[float]
    frame: int


def module() -> Path | None:
    """The built extension; None where there is none."""
    if named := os.environ.get(MODULE):
        return Path(named)
    spec = find_spec("fastact._cuda")
    return Path(spec.origin) if spec is not None and spec.origin else None


def cuobjdump() -> str | None:
    """The program, of the PyPI package or of a CUDA toolkit; None where there is none."""
    try:
        files = metadata.files("nvidia-cuda-cuobjdump") or []
    except metadata.PackageNotFoundError:
        files = []
    packaged = [str(file.locate()) for file in files if file.name == "cuobjdump"]
    return next(
        filter(shutil.which, [*packaged, "cuobjdump", "/usr/local/cuda/bin/cuobjdump"]), None
    )


def kernels(path: Path, program: str) -> Iterator[Kernel]:
    """The kernels of the extension whose data are float32 or have 16 bits."""
    beside = f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}"  # nvdisasm, which it runs
    run = {"env": {**os.environ, "PATH": beside}, "stdout": subprocess.PIPE, "text": True}
    usage = subprocess.run([program, "-res-usage", str(path)], check=True, **run).stdout
    frames = dict(re.findall(r"Function (\w+):\s+REG:\d+ STACK:(\d+)", usage))
    titles = dict(zip(frames, demangled(list(frames)), strict=True))
    with subprocess.Popen([program, "-sass", str(path)], **run) as listing:
        for name, body in sass.bodies(listing.stdout):
            kernel, what, dtype = kernel_names.identify(titles.get(name, ""))
            if dtype in ("float32", "float16", "bfloat16"):
                function = sass.function_of(name, body)
                title = f"{kernel}, {what}, {dtype}"
                item = 4 if dtype == "float32" else 2
                found = fp64_of_loops(function, item, halves=kernel.startswith(HALF_VECTORS))
                yield Kernel(title, found, int(frames[name]))
    if listing.returncode:
        raise OSError(f"cuobjdump -sass {path} failed")


def demangled(symbols: list[str]) -> list[str]:
    """The names as a compiler's messages have them."""
    return output_of(run_program("c++filt", input="\n".join(symbols))).splitlines()


def fp64_of_loops(function: sass.Function, item: int, *, halves: bool = False) -> list[float]:
    """FP64 instructions for an element, of each loop over elements that has any.

    A loop over elements is an innermost one that loads or stores elements in global memory, and in
    which threads neither meet nor exchange numbers: that is one over rows, which are in registers.
    halves : 8 bytes are elements, too.
    """
    found = []
    for loop in innermost(function):
        fp64 = sum(one.is_fp64 for one in loop)
        if fp64 == 0 or any(one.base in ("SHFL", "BAR") for one in loop):
            continue
        moved = max(
            sum(_bytes(one.opcode, halves) for one in loop if one.base == base)
            for base in ("LDG", "STG")
        )
        if moved:
            found.append(fp64 * item / moved)
    return found


def _bytes(opcode: str, halves: bool) -> int:
    parts = opcode.split(".")
    width = next((width for name, width in WIDTHS if name in parts), 4)
    return 0 if width == 8 and not halves else width


def innermost(function: sass.Function) -> Iterator[list[sass.Instruction]]:
    """The instructions of each loop that contains no other, called functions included."""
    blocks = function.blocks()
    starts = {function.code[i].address: i for i in blocks}
    ahead = [0, *(starts.get(one.target, 0) for one in function.code if one.base == "CALL")]
    after: assembly.Successors = {}
    while ahead:
        start = ahead.pop()
        if start not in after:
            after[start] = blocks[start][1]
            ahead += after[start]
    for loop in assembly.loops(after, set(after)):
        for inner in assembly.innermost(after, loop):
            yield [function.code[i] for start in sorted(inner) for i in blocks[start][0]]
