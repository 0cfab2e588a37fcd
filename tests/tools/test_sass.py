"""tools/sass.py: what it reads in a listing of machine code, and where that leads."""

import pytest
from source_tree import import_tool

sass = import_tool("sass")

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


@pytest.fixture
def function():
    (function,) = sass.parse(LISTING)
    return function


def test_instructions(function):
    assert function.name == "kernel"
    assert len(function.code) == 18
    branch = function.code[2]
    assert (branch.predicate, branch.opcode, branch.target) == ("P0", "BRA", 0x90)
    assert sum(one.base == "LDG" for one in function.code) == 4
    assert sum(one.is_fp64 for one in function.code) == 1


def test_where_execution_goes_on(function):
    """Threads that BSSY sent apart meet behind BSYNC; a predicate may let them pass an exit."""
    after = {i: function.successors(i) for i in range(len(function.code))}
    leaving = {i: there for i, there in after.items() if there != [i + 1]}
    assert leaving == {2: [3, 9], 3: [4, 7], 6: [8], 14: [15, 11], 15: [], 16: [16], 17: []}


def test_pieces_of_a_loop(function):
    blocks = function.blocks()
    assert blocks[11] == (range(11, 15), [15, 11])
    assert [function.code[i].opcode for i in blocks[11][0]] == [
        "LDG.E.128",
        "DADD",
        "MUFU.EX2",
        "BRA",
    ]


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
    assert code.successors(7) == [8, 2]
    lost = code_of("BRX R2", "EXIT")
    with pytest.raises(ValueError, match="cannot be followed"):
        sass.Function("lost", lost.code[:1]).successors(0)
