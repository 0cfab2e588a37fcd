"""The machine code of the CUDA kernels: no FP64 for elements of narrower data, and no spills.

A GPU has an FP64 unit for every two of float32 at best, and for every 64 in a desktop's. So kernels
of float32 and 16-bit data compute in float32, and what has to be added up in double is first added
in small groups. docs/design/cuda.md says what it costs where that is not done; here is the list.
"""

from __future__ import annotations

import doctest
import os

import kernel_names
import machine_code
import pytest

SUMS = "sums and moments within 2^-46 of the magnitudes: in float32 7 to 25 instructions an element"
BIAS = "the gradient of a bias, added up in double: in float32 7 to 13 instructions an element"
OUT_OF_RANGE = "squares that leave the range of float32 are added up again in double, which is rare"
OF_PARTS = "adds up the sums of parts, a number a block and column, not elements"
OF_TILES = "what a tile of four or eight elements comes to, added in double"
EVERY_14_ROWS = "sums of columns move from float32 to double every 14 rows, or at the end of one"
OF_CHUNKS = "what a thread's vectors of a chunk come to, in double"
OF_ROUNDS = "what a thread's vectors of a round come to in a column, added in double"
A_RESULT = "numbers of a result, which are in double, converted once for it"
SUMS_AND_RESULTS = f"{SUMS}; a moment is rounded by a loop over its results of 16 bits"
SHARES = (
    "the sum of the shares of classes in a loss, in double: a number a vector, of columns a row"
)
A_WEIGHT = "a weight in float64 and its offset are added before they are rounded"

# By the beginning of a kernel's title: FP64 instructions an element, at most, and why.
FP64_BY_DESIGN = {
    "reduce_": (21.0, SUMS_AND_RESULTS),
    "sum_columns": (4.0, SUMS),
    "moment_columns": (19.0, SUMS_AND_RESULTS),
    "weighted_blocks": (20.0, SUMS_AND_RESULTS),
    "finish_chunks": (37.0, OF_PARTS),
    "strip_moments": (11.0, OUT_OF_RANGE),
    "whole_forward": (11.0, OUT_OF_RANGE),
    "strip_sums": (0.4, OF_TILES),
    "map_rows, bias backward": (1.0, BIAS),
    "gates_backward_kernel": (1.8, f"{BIAS}; what a block's rows come to"),
    "lse_gradients": (1.0, SHARES),
    "lse_of_rows": (0.4, OF_ROUNDS),
    "norm_long_sums": (0.3, f"{OF_CHUNKS}; {A_WEIGHT}"),
    "few_rows": (7.0, SUMS),
    "norm_parameters": (2.0, OF_PARTS),
    "norm_backward_rows": (2.0, EVERY_14_ROWS),
    "map_columns": (1.4, A_RESULT),
    "map_vectors": (1.4, A_RESULT),
}

HELD = "a row in registers, as much of it as leaves two blocks to a multiprocessor"
ANY_STRIDES = "what it reads is found element by element, which costs more than the stack"
STORED = "a result's dtype is chosen where it is stored"
REST = "a row in registers, and what the rounding of lse left of each of eight columns"
ANY = "a switch over all activations needs as many registers as the longest"

# By the beginning of a kernel's title: bytes of stack, at most, and why. Most are of spills.
FRAMES = {
    "forward_rows, norm, chunks found, quick rows": (16, HELD),
    "norm_backward_rows, rows": (8, ANY),
    "norm_backward_rows, any strides": (48, ANY_STRIDES),
    "map_rows, bias backward, any activation": (32, ANY),
    "norm_backward_ahead, any activation": (8, ANY),
    "forward_rows, softmax, whole, columns, float16": (16, REST),
    "forward_rows, softmax, whole, columns, bfloat16": (8, REST),
    "lse_gradients, cross_entropy, any activation, columns, float16": (8, REST),
    "reduce_few_rows": (24, STORED),
    "few_rows, , bfloat16": (16, STORED),
    "sum_columns, aligned, valid, bfloat16": (8, STORED),
}


def excuse(title: str, excused: dict[str, tuple[float, str]], much: float) -> str | None:
    """The entry that allows a kernel so much; None where none does."""
    entries = (one for one, (most, _) in excused.items() if title.startswith(one) and much <= most)
    return next(entries, None)


@pytest.fixture(scope="module")
def kernels() -> list[machine_code.Kernel]:
    path, program = machine_code.module(), machine_code.cuobjdump()
    if os.environ.get(machine_code.MODULE):
        assert path.is_file(), f"{machine_code.MODULE} names no file: {path}"
        assert program, "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    if path is None:
        pytest.skip("no CUDA extension is built here")
    if program is None:
        pytest.skip("no cuobjdump, which reads the CUDA extension")
    found = list(machine_code.kernels(path, program))
    assert found, f"{path} has no kernel of float32 or 16-bit data"
    return found


def test_no_fp64_in_loops_over_elements(kernels):
    used = set()
    wrong = []
    for kernel in kernels:
        much = max(kernel.fp64, default=0)
        if not much:
            continue
        entry = excuse(kernel.name, FP64_BY_DESIGN, much)
        used.add(entry)
        if entry is None:
            wrong.append(f"{kernel.name}: {much:.2f} FP64 instructions an element")
    assert not wrong, "\n".join(sorted(wrong))
    assert not set(FP64_BY_DESIGN) - used, "exceptions that no kernel needs any more"


def test_no_registers_are_spilled(kernels):
    used = set()
    wrong = []
    for kernel in kernels:
        if not kernel.frame:
            continue
        entry = excuse(kernel.name, FRAMES, kernel.frame)
        used.add(entry)
        if entry is None:
            wrong.append(f"{kernel.name}: {kernel.frame} bytes of stack")
    assert not wrong, "\n".join(sorted(wrong))
    assert not set(FRAMES) - used, "exceptions that no kernel needs any more"


# A loop over two vectors a round, whose accumulation is the line that a test puts in; the same with
# a shuffle is one over rows. The code behind the exit, which nothing reaches, is a loop as well.
LISTING = """
		Function : kernel
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
                                                                     /* 0x000fe20000000800 */
        /*0010*/                   LDG.E{width} R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E{width} R8, desc[UR4][R2.64+0x10] ;
        /*0030*/                   {line} ;
        /*0040*/                   ISETP.GE.AND P0, PT, R0, R3, PT ;
        /*0050*/              @!P0 BRA 0x10 ;
        /*0060*/                   DADD R6, R6, R4 ;
        /*0070*/                   EXIT ;
        /*0080*/                   BRA 0x80;
"""


@pytest.mark.parametrize(
    ("width", "line", "item", "halves", "expected"),
    [
        (".128", "DADD R6, R6, R4", 4, False, [1 / 8]),
        (".128", "F2F.F64.F32 R6, R4", 2, False, [1 / 16]),
        ("", "DFMA R6, R6, R4, R4", 4, False, [1 / 2]),
        (".U16", "DADD R6, R6, R4", 2, False, [1 / 2]),
        # Numbers in double, which are no elements; of gates they may be half vectors.
        (".64", "DADD R6, R6, R4", 4, False, []),
        (".64", "DADD R6, R6, R4", 2, True, [1 / 8]),
        (".128", "F2F.F32.F64 R6, R4", 4, False, []),
        (".128", "FADD R6, R6, R4", 4, False, []),
        (".128", "SHFL.BFLY PT, R6, R6, 0x1, 0x1f", 4, False, []),
    ],
)
def test_what_counts_as_fp64_of_a_loop(width, line, item, halves, expected):
    (function,) = machine_code.sass.parse(LISTING.format(width=width, line=line))
    assert machine_code.fp64_of_loops(function, item, halves=halves) == expected


def test_kernels_are_known_by_their_names():
    found = doctest.testmod(kernel_names)
    assert (found.failed, found.attempted > 10) == (0, True)


def test_more_than_an_entry_allows_is_no_exception():
    entries = {"sum_": (2.0, "by design")}
    assert excuse("sum_rows, float32", entries, 2.0) == "sum_"
    assert excuse("sum_rows, float32", entries, 2.5) is None
    assert excuse("map_rows, float32", entries, 0.1) is None
