"""tools/cuda_static.py: what it reads in the compiler's output, and what it concludes."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
if not TOOLS.exists():
    pytest.skip("the tools are in the source tree only", allow_module_level=True)
sys.path.insert(0, str(TOOLS))

cuda_static = import_module("cuda_static")
cuda_static_norms = import_module("cuda_static_norms")
cuda_static_report = import_module("cuda_static_report")
sass = import_module("sass")

# An aligned way with one load and one store, one with two narrow loads, a loop with one load, and a
# branch around everything.
LISTING = """
		Function : kernel
	.headerflags	@"EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
                                                                     /* 0x000fe20000000800 */
        /*0010*/                   BSSY B0, 0x00a0 ;                 /* 0x0000000000117919 */
        /*0020*/               @P0 BRA 0x90 ;                        /* 0x0000000000117919 */
        /*0030*/               @P1 BRA 0x70 ;                        /* 0x0000000000117919 */
        /*0040*/                   LDG.E R4, desc[UR4][R2.64] ;      /* 0x0000000000117919 */
        /*0050*/                   LDG.E R5, desc[UR4][R2.64+0x4] ;  /* 0x0000000000117919 */
        /*0060*/                   BRA 0x80 ;                        /* 0x0000000000117919 */
        /*0070*/                   LDG.E.128 R4, desc[UR4][R2.64] ;  /* 0x0000000000117919 */
        /*0080*/                   STG.E.128 desc[UR4][R8.64], R4 ;  /* 0x0000000000117919 */
        /*0090*/                   BSYNC B0 ;                        /* 0x0000000000117919 */
        /*00a0*/              @!P2 EXIT ;                            /* 0x0000000000117919 */
        /*00b0*/                   LDG.E.128 R4, desc[UR4][R2.64] ;  /* 0x0000000000117919 */
        /*00c0*/                   DADD R6, R6, R4 ;                 /* 0x0000000000117919 */
        /*00d0*/                   MUFU.EX2 R6, R6 ;                 /* 0x0000000000117919 */
        /*00e0*/               @P3 BRA 0xb0 ;                        /* 0x0000000000117919 */
        /*00f0*/                   EXIT ;                            /* 0x0000000000117919 */
        /*0100*/                   BRA 0x100;                        /* 0x0000000000117919 */
        /*0110*/                   NOP;                              /* 0x0000000000117919 */
"""


def opcodes(path):
    return [one.opcode for one in path]


@pytest.fixture
def function():
    (function,) = sass.parse(LISTING)
    return function


def test_instructions(function):
    assert function.name == "kernel"
    assert len(function.code) == 18
    branch = function.code[2]
    assert (branch.predicate, branch.opcode, branch.target) == ("P0", "BRA", 0x90)
    assert function.count("LDG") == 4
    assert function.count("LDG", wide=True) == 2
    assert function.count("STG", wide=False) == 0


def test_the_way_with_all_16_byte_accesses(function):
    path = function.path(1, 1)
    assert opcodes(path) == ["LDC", "BSSY", "BRA", "BRA", "LDG.E.128", "STG.E.128", "BSYNC", "EXIT"]
    assert opcodes(function.path(0, 0)) == ["LDC", "BSSY", "BRA", "BSYNC", "EXIT"]
    assert function.path(0, 2) == []


def test_a_round_of_the_loop(function):
    way = function.loop(1)
    assert opcodes(way) == ["LDG.E.128", "DADD", "MUFU.EX2", "BRA"]
    assert sass.by_pipe(way) == {"memory": 1, "fp64": 1, "xu": 1, "control": 1}
    assert function.loop(3) == []


def code_of(*lines):
    """Instructions one after another, from opcodes with operands; "BRA n" goes to the n-th."""
    code = []
    for i, line in enumerate(lines):
        opcode, _, operands = line.partition(" ")
        predicate = ""
        if opcode == "BRA":
            predicate, operands = "P0", hex(16 * int(operands))
        code.append(sass.Instruction(16 * i, predicate, opcode, operands))
    return sass.Function("made", code)


def test_an_indirect_branch_goes_to_each_case_of_its_switch():
    code = code_of(
        *("LDC", "BRX R2"),
        *("LDG.E.128", "JMP 0x80"),
        *("STG.E.128", "JMP 0x80"),
        *("DADD", "BRA 2"),
        *("EXIT", "JMP 0x90", "NOP"),
    )
    assert code.successors(1) == [4, 6]  # a branch leads to the first: it is no case for certain
    assert opcodes(code.path(0, 1)) == ["LDC", "BRX", "STG.E.128", "JMP", "EXIT"]
    assert opcodes(code.path(1, 0)) == ["LDC", "BRX", "DADD", "BRA", "LDG.E.128", "JMP", "EXIT"]
    lost = code_of("BRX R2", "EXIT")
    with pytest.raises(ValueError, match="cannot be followed"):
        sass.Function("lost", lost.code[:1]).successors(0)


PASSES = (
    *("LDG.E.128", "STS.128", "BRA 0"),  # keeps what it reads
    *("LDS.128", "DADD", "BRA 3"),
    *("LDS.128", "CALL.REL", "STG.E.128", "BRA 6"),  # calls for each vector
    *("LDS.128", "BRA 13", "FFMA", "STG.E.128", "BRA 10"),  # a multiply-add that may be left out
    "EXIT",
)


@pytest.mark.parametrize(
    ("counts", "least", "found"),
    [
        ({"loads": 1, "shared": (0, 1)}, ("", 0), PASSES[:3]),
        ({"loads": 0, "shared": (1, 0)}, ("", 0), PASSES[3:6]),
        ({"loads": 0, "shared": (0, 0)}, ("", 0), ()),
        ({"loads": 0, "stores": 1}, ("", 0), PASSES[6:10]),
        ({"loads": 0, "stores": 1, "shared": (1, 0)}, ("", 0), ("LDS.128", "BRA", *PASSES[13:15])),
        ({"loads": 0, "stores": 1, "shared": (1, 0)}, ("FFMA", 1), PASSES[10:15]),
        ({"loads": 0, "stores": 1, "shared": (1, 0)}, ("FFMA", 2), ()),
    ],
)
def test_a_pass_is_told_by_shared_memory_and_multiplies(counts, least, found):
    way = code_of(*PASSES).loop(**counts, least=least)
    assert opcodes(way) == [line.partition(" ")[0] for line in found]


def test_strips_of_channels_have_a_round(function):
    """The aligned one, which computes with what it reads."""
    one_round = (*("LDG.E.128",) * 4, *("FFMA",) * 16, *("STG.E.128",) * 4, "BRA 0")
    given = {"kernel": "strip_forward", "dtype": "float32", "path": (), "elements": 0}
    one = kernel(function, code=code_of(*one_round, "EXIT"), what="columns, identity", **given)
    assert (one.is_norm, one.has_path, one.threads) == (True, True, 256)
    (made,) = cuda_static_norms.with_norm_paths(one)
    assert (len(made.path), made.elements, made.bytes_per_element) == (25, 16, 8)
    for what in ("columns, any activation", "singles, identity"):
        assert not replace(one, what=what).has_path


@pytest.mark.parametrize(
    ("length", "dtype", "forward", "backward"),
    [
        (256, "float16", 2, 3),
        (8192, "float16", 2, 3),
        (16384, "float16", 2, 5),  # 4 vectors a thread forward; backward has two, and is long
        (6144, "float32", 2, 3),
        (8192, "float32", 2, 5),
        (65536, "float32", 3, 5),  # forward in chunks, too
        (262144, "float16", 3, 5),
    ],
)
def test_what_rows_move(length, dtype, forward, backward):
    """By hand, from registers of 512 threads; long rows are read twice."""
    assert cuda_static_norms.traffic(length, dtype) == cuda_static_norms.Traffic(forward, backward)


def kernel(function, **changed):
    made = cuda_static.Kernel(
        "map_contiguous",
        "mish forward",
        "bfloat16",
        *(1, False, cuda_static.Resources(48), function),
        path=tuple(function.path(1, 1)),
        elements=8,
    )
    return replace(made, **changed)


def test_rounds_over_rows_of_gates(function):
    """Loads and stores by kind and direction; 16-bit gradients go by half a vector."""
    one = kernel(function, kernel="gates_backward_kernel", what="lstm again")
    assert (one.accesses, one.vector, one.bytes_per_element) == ((11, 5), 8, 32)
    wide = replace(one, dtype="float32", what="lstm backward")
    assert (wide.accesses, wide.vector, wide.bytes_per_element) == ((8, 5), 16, 52)
    assert one.has_path
    assert not replace(one, what="lstm again, single columns").has_path
    assert (one.threads, kernel(function).threads) == (128, 256)
    store = replace(function.code[8], opcode="STG.E.64")
    load = replace(function.code[11], opcode="LDG.E.64")
    code = [load, store, *function.code[14:16]]
    code = [replace(c, address=0xB0 + 16 * i) for i, c in enumerate(code)]
    assert opcodes(sass.Function("rows", code).loop(1, 1, bits=64)) == [
        "LDG.E.64", "STG.E.64", "BRA",
    ]  # fmt: skip
    assert sass.Function("rows", code).loop(1, 1) == []


def test_problems_are_found(function):
    good = kernel(function, dtype="float32")
    assert list(cuda_static.problems([good])) == []
    cases = {
        "16 bytes of spills": replace(good, resources=cuda_static.Resources(255, 8, 16)),
        "no path whose accesses are all of 16 bytes": replace(good, path=()),
        "less than 16 bytes": replace(good, path=tuple(function.code[4:6])),
        "0 MUFU.EX2 for 8 elements, claimed are 1": kernel(function),
    }
    for words, bad in cases.items():
        assert any(words in problem for problem in cuda_static.problems([bad])), words


@pytest.mark.parametrize(
    ("registers", "shared", "threads"),
    [(32, 0, 2048), (33, 0, 1536), (48, 0, 1280), (64, 0, 1024), (255, 0, 256), (32, 65536, 768)],
)
def test_occupancy(function, registers, shared, threads):
    """By CUDA's occupancy calculator for compute capability 9.0 and blocks of 256."""
    one = kernel(function, resources=cuda_static.Resources(registers, shared=shared))
    assert cuda_static_report.occupancy(one, "90") == threads


def test_the_bound_is_that_of_the_slowest_unit(function):
    double = next(one for one in function.code if one.opcode == "DADD")
    path = (double,) * 64
    one = kernel(function, dtype="float64", path=path, elements=1)
    share, unit, of_memory = cuda_static_report.bound(one)
    memory = 16 / cuda_static_report.COPY_RATE
    time = 64 / (cuda_static_report.MULTIPROCESSORS * cuda_static_report.CLOCK * 64)
    assert unit == "fp64"
    assert share == pytest.approx(min(1, memory / time))
    assert of_memory == pytest.approx(time / memory)


def test_the_report_says_what_was_measured(function):
    text = cuda_static_report.report([kernel(function)], "90", "0.0", ["something is wrong"])
    assert "no GPU was used for the rest" in text
    assert "## Predicted beside measured" in text
    assert "Predicted upper bounds" in text
    assert "- something is wrong" in text
    assert "Predicted" not in cuda_static_report.report([kernel(function)], "80", "0.0", [])
