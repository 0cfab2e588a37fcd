"""What the compiler made of the CUDA kernels: registers, spills, access widths, instructions.

    python tools/cuda_static.py [--arch 90] [--markdown docs/results/cuda_static.md]
    python tools/cuda_static.py --kernel norm_forward --shape 8192x4096 [--dtype float32]
    python tools/cuda_static.py --measured

The second form tells of one kernel what a warp executes at a shape and how fast the model thinks it
is; a kernel that cuda_static_launches.py does not know is named by words of its mangled name, with
--source, --via, --grid, --threads, --elements and --bytes. The third holds the model against what
was measured. Neither is a measurement.

The first compiles src/cuda for one architecture and reads the machine code; no GPU is needed, and
nothing runs. The exit status is 1 where a kernel spills, uses local memory, has no path of 16-byte
accesses alone, or breaks one of CLAIMS.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import sass
from cuda_static_launches import LAUNCHES, Launch
from cuda_static_names import DTYPES, ITEM, identify
from cuda_static_norms import FAST_STRIPS, with_norm_paths
from cuda_static_one import Counted, count, straight
from cuda_static_report import measured_table, report

ROOT = Path(__file__).resolve().parents[1]
STORAGES = ("fastact::f16", "fastact::bf16", "float", "double")
#: As src/cuda/CMakeLists.txt has them.
FLAGS = ("-std=c++17", "-O3", "-fmad=false")
VECTOR = 16  # bytes
IN_FLIGHT = {
    "map_contiguous": {1: 4, 2: 2},
    "reduce_rows": {1: 4},
    "sum_columns": {1: 4},
    "moment_columns": {1: 4},
}

# Of a round over rows of gates: loads and stores, all of what the op can be given included; loads
# where backward makes the gates again.
GATES = {
    "lstm": {"forward": (9, 6), "backward": (8, 5), "again": (11, 5)},
    "gru": {"forward": (7, 5), "backward": (6, 7), "again": (8, 7)},
    "reset": {"forward": (3, 2), "backward": (3, 2), "again": (4, 2)},
    "blend": {"forward": (5, 3), "backward": (4, 3), "again": (6, 3)},
}
# Whose blocks have up to 512 threads along rows and 256 across them.
HELD_ROWS = (
    "forward_rows",
    "norm_backward_rows",
    "softmax_backward_rows",
    "lse_gradients",
)

# Instructions an element that a fast path may have, exactly: dtype, what, opcode, how many.
CLAIMS = [
    ("bfloat16", "mish forward", "MUFU.EX2", 1),
    ("bfloat16", "mish forward", "MUFU.RCP", 1),
    ("bfloat16", "mish backward", "MUFU.EX2", 1),
    ("bfloat16", "mish backward", "MUFU.RCP", 1),
    ("float64", "mish forward", "MUFU.EX2", 0),
    ("float64", "mish forward", "MUFU.RCP64H", 1),
    ("float64", "mish backward", "MUFU.EX2", 0),
    ("float64", "mish backward", "MUFU.RCP64H", 1),
]


@dataclass(frozen=True)
class Resources:
    """What ptxas tells: registers a thread, bytes of stack, of spills and of shared memory."""

    registers: int = 0
    stack: int = 0
    spills: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel.

    what : the op and its direction, or how a sum reads its array.
    path : its fast path, and the elements that a thread computes along it; empty where none is
        defined.
    moved : arrays of the path's elements that it reads or writes, where the kind does not tell.
    """

    kernel: str
    what: str
    dtype: str
    inputs: int
    accumulate: bool
    resources: Resources
    code: sass.Function
    path: tuple[sass.Instruction, ...] = ()
    elements: int = 0
    moved: int = 0
    family: str = ""

    @property
    def accesses(self) -> tuple[int, int]:
        """Of gates read by vectors: loads and stores of a round; else none."""
        op, _, way = self.what.partition(" ")
        return GATES[op][way] if way in ("forward", "backward", "again") and op in GATES else (0, 0)

    @property
    def vector(self) -> int:
        """Bytes of an access on the fast path: half a vector where that is as good."""
        of_gates = self.kernel == "gates_backward_kernel" and ITEM[self.dtype] == 2
        of_windows = self.what.startswith(("dense", "any")) and self.dtype == "float64"
        return VECTOR // 2 if of_gates or (of_windows and self.kernel in IN_FLIGHT) else VECTOR

    @property
    def threads(self) -> int:
        """Of a block."""
        if self.kernel in HELD_ROWS or self.kernel.startswith("whole_"):
            return 256 if self.what.endswith("columns") else 512
        narrow = self.kernel.startswith("finish_gate")
        return 128 if sum(self.accesses) or narrow else 256

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.kernel}, {self.what}, {self.dtype}"

    @property
    def has_path(self) -> bool:
        """Whether there ought to be a fast path."""
        if self.what.startswith(CALLS):
            return False
        return self.kernel in IN_FLIGHT or self.is_norm or sum(self.accesses) > 0

    @property
    def is_norm(self) -> bool:
        """A kernel of norms that has a fast path: dense rows, and no activation to call."""
        if self.kernel.startswith("strip_"):
            way, _, activation = self.what.partition(", ")
            return way in FAST_STRIPS[0] and activation in FAST_STRIPS[1]
        return False

    @property
    def bytes_per_element(self) -> int:
        """That have to be moved: inputs and output once; of a sum the output is nothing."""
        if sum(self.accesses) or self.moved:
            return (sum(self.accesses) or self.moved) * ITEM[self.dtype]
        accesses = self.inputs + 1 + self.accumulate if self.kernel.startswith("map") else 1
        return accesses * ITEM[self.dtype]


def read_resources(log: str) -> dict[str, Resources]:
    """Kernels' resources, from what `nvcc -Xptxas -v` prints.

    Examples
    --------
    >>> read_resources('''ptxas info    : Compiling entry function 'f' for 'sm_90'
    ... ptxas info    : Function properties for f
    ...     40 bytes stack frame, 52 bytes spill stores, 76 bytes spill loads
    ... ptxas info    : Used 80 registers, used 1 barriers, 8192 bytes smem''')
    {'f': Resources(registers=80, stack=40, spills=128, shared=8192)}
    """
    found: dict[str, Resources] = {}
    entry = properties = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            entry = match[1]
            found[entry] = Resources()
        elif match := re.search(r"Function properties for (\S+)", line):
            properties = match[1]
        elif properties in found and (match := re.search(r"(\d+) bytes stack frame", line)):
            spills = sum(map(int, re.findall(r"(\d+) bytes spill", line)))
            found[properties] = replace(found[properties], stack=int(match[1]), spills=spills)
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            found[entry] = replace(
                found[entry], registers=int(match[1]), shared=int(shared[1]) if shared else 0
            )
    return found


def _with_paths(kernel: Kernel) -> list[Kernel]:
    """The kernel with its fast path, and a line each for those it has besides."""
    if kernel.has_path and kernel.is_norm:
        return with_norm_paths(kernel)
    return [_with_path(kernel)]


def _with_path(kernel: Kernel) -> Kernel:
    """The kernel with its fast path: every access of 16 bytes, all loads of a round in flight.

    For the map, the whole path of a thread through a full tile whose arrays are aligned alike. For
    sums, one round of the loop; a vector that may lie anywhere is cut out of two, of float64 two of
    8 bytes. For gates, one round over a row, of 16-bit gradients by 8 bytes.
    """
    if not kernel.has_path:
        return kernel
    if sum(kernel.accesses):
        round_ = kernel.code.loop(*kernel.accesses, bits=8 * kernel.vector)
        return replace(kernel, path=tuple(round_), elements=kernel.vector // ITEM[kernel.dtype])
    vectors = IN_FLIGHT[kernel.kernel][kernel.inputs]
    if kernel.what.startswith("unchanged backward"):  # whose slope is 1: x is not read
        reads = 1 + kernel.accumulate
        path = kernel.code.path(vectors * reads, vectors)
        kernel = replace(kernel, moved=reads + 1)
    elif kernel.kernel.startswith("map"):
        path = kernel.code.path(vectors * (kernel.inputs + kernel.accumulate), vectors)
    else:
        loads = vectors * (1 if kernel.what.startswith("aligned") else 2)
        path = kernel.code.loop(loads, bits=8 * kernel.vector)
    return replace(kernel, path=tuple(path), elements=vectors * VECTOR // ITEM[kernel.dtype])


# These call their activation: activate.cuh says why. Fused operands are loaded beside the vectors;
# the strided map, once it has found the offset of an element, keeps what it needs after the call on
# the stack.
CALLS = ("bias", "gated")
CALLS_STRIDED = "chosen"


def problems(kernels: Sequence[Kernel]) -> Iterator[str]:
    """Faults of the kernels, a line for each."""
    for kernel in kernels:
        framed = kernel.what.startswith(CALLS_STRIDED)
        if kernel.resources.spills or (kernel.resources.stack and not framed):
            yield (
                f"{kernel.title}: {kernel.resources.spills} bytes of spills, "
                f"{kernel.resources.stack} bytes of stack"
            )
        local = kernel.code.count("LDL") + kernel.code.count("STL")
        if local and not kernel.resources.stack:
            yield f"{kernel.title}: {local} accesses to local memory"
        if kernel.what.startswith(CALLS):
            continue
        if kernel.has_path and not kernel.path:
            yield f"{kernel.title}: no path whose accesses are all of {kernel.vector} bytes"
        if any(one.base == "CALL" for one in kernel.path):
            yield f"{kernel.title}: a call on the fast path"
        wide = f".{8 * kernel.vector}"
        narrow = sum(one.base in ("LDG", "STG") and wide not in one.opcode for one in kernel.path)
        if narrow:
            yield (
                f"{kernel.title}: {narrow} accesses of less than {kernel.vector} bytes on the fast "
                f"path"
            )
    for dtype, what, opcode, each in CLAIMS:
        for kernel in kernels:
            if (kernel.dtype, kernel.what) == (dtype, what) and kernel.path:
                count = sum(one.opcode == opcode for one in kernel.path)
                if count != each * kernel.elements:
                    yield (
                        f"{kernel.title}: {count} {opcode} for {kernel.elements} elements, "
                        f"claimed are {each} an element"
                    )


def families() -> dict[str, Path]:
    """The sources that are compiled once a storage type, by name."""
    found = {path.stem: path for path in sorted((ROOT / "src/cuda").rglob("*.cu"))}
    del found["device"]
    return found


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _tool(name: str, given: str | None, *others: str) -> str:
    """A program: the one given, or from the PATH, or from where CUDA usually is."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    for candidate in (given,) if given else (name, f"{home}/bin/{name}", *others):
        if found := shutil.which(candidate):
            return found
    raise SystemExit(f"cuda_static: {given or name} was not found; see --help")


def build(
    source: Path, storage: str, arch: str, nvcc: str, cuobjdump: str, scratch: Path
) -> list[Kernel]:
    """Compile one source for one storage type, and read what came out."""
    filt = _tool("c++filt", None, "cu++filt")
    target = scratch / f"{source.stem}_{storage.rpartition(':')[2]}.o"
    log = _run(
        *(nvcc, *FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xptxas", "-v"),
        *(f"-DFASTACT_STORAGE={storage}", f"-I{ROOT / 'src'}", "-c", source, "-o", target),
    )
    resources = read_resources(log)
    functions = sass.parse(_run(cuobjdump, "-sass", target))
    names = _run(filt, *(one.name for one in functions)).splitlines()
    kernels = []
    for function, name in zip(functions, names, strict=True):
        if function.name in resources:
            kernel = Kernel(*identify(name), resources[function.name], function, family=source.stem)
            kernels += _with_paths(kernel)
    return kernels


def _launch(args: argparse.Namespace) -> Launch:
    """The launch that the command line asks for."""
    if args.kernel in LAUNCHES:
        if not args.shape:
            raise SystemExit("cuda_static: --kernel takes a --shape, such as 8192x4096")
        return LAUNCHES[args.kernel]([int(n) for n in args.shape.split("x")], args.dtype)
    own = (args.source, args.via, args.grid, args.threads, args.elements, args.bytes)
    if not all(own):
        raise SystemExit(
            f"cuda_static: --kernel is one of {', '.join(LAUNCHES)}, or words of a mangled name "
            f"with --source, --via, --grid, --threads, --elements and --bytes; got {args.kernel}"
        )
    return Launch(
        *(args.source, args.kernel, args.grid, args.threads, args.shared, args.bytes),
        *(args.elements, args.rows, [straight(args.via)]),
    )


def count_one(launch: Launch, dtype: str, nvcc: str, cuobjdump: str) -> Counted:
    """Compile what a launch needs, and count."""
    storage = next(one for one in STORAGES if DTYPES[one.rpartition(":")[2]] == dtype)
    with tempfile.TemporaryDirectory() as scratch:
        source = families()[launch.source]
        return count(build(source, storage, "90", nvcc, cuobjdump, Path(scratch)), launch)


def main() -> int:
    """Compile, print and write the report; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description="Facts about the compiled CUDA kernels.")
    parser.add_argument("--arch", default="90", help="compute capability, without the dot")
    parser.add_argument("--nvcc", help="default: from the PATH or $CUDA_HOME/bin")
    parser.add_argument("--cuobjdump", help="likewise")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report to FILE")
    one = parser.add_argument_group("one kernel")
    one.add_argument("--kernel", help="a name that cuda_static_launches.py knows, or words")
    one.add_argument("--shape", help="such as 8192x4096")
    one.add_argument("--dtype", default="float32", choices=sorted(ITEM))
    one.add_argument("--source", help="the stem of the .cu file, such as norms")
    one.add_argument("--via", help="what a warp's way has: LDG.128=8,STG.128=8,BAR=2")
    one.add_argument("--grid", type=int, help="blocks")
    one.add_argument("--threads", type=int, help="of a block")
    one.add_argument("--shared", type=int, default=0, help="dynamic shared memory, bytes a block")
    one.add_argument("--elements", type=float, help="that a thread computes")
    one.add_argument("--rows", type=float, default=1, help="that a thread has a part of")
    one.add_argument("--bytes", type=float, help="that must move")
    parser.add_argument("--measured", action="store_true", help="predicted beside measured")
    args = parser.parse_args()
    if args.measured:
        print(measured_table())
        return 0
    launch = _launch(args) if args.kernel else None
    nvcc, cuobjdump = _tool("nvcc", args.nvcc), _tool("cuobjdump", args.cuobjdump)
    if launch is not None:
        print(count_one(launch, args.dtype, nvcc, cuobjdump).report())
        return 0
    units = [(source, storage) for source in families().values() for storage in STORAGES]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        built = pool.map(
            lambda unit: build(unit[0], unit[1], args.arch, nvcc, cuobjdump, Path(scratch)), units
        )
        kernels = [kernel for part in built for kernel in part]
    release = re.search(r"V(\d[\d.]*)", _run(nvcc, "--version"))
    wrong = list(problems(kernels))
    text = report(kernels, args.arch, release[1] if release else "", wrong)
    if args.markdown is not None:
        args.markdown.write_text(text, encoding="utf-8")
    else:
        print(text)
    for problem in wrong:
        print(f"cuda_static: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
