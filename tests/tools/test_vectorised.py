"""Every element-wise kernel is a loop over the instruction set's whole vectors.

A functor with a branch, or a parameter that the compiler reads under a condition, leaves a loop
over single elements: right, and 25 times slower. These tests read the compiled module itself.
"""

import re

import pytest
from assembly import BUILT, code_of, kernels, parse, problems, readable, scalar_loops

#: The kernels of some loops, by their signatures.
ELEMENTWISE = r"\(char\* const\*, long, double const\*, long\)$"
WEIGHTING = r"^(mask|choose|(pair_terms|gradient)<.*>)\(double(\*| const\*, double const\*, d)"
HALF = r"\bb?f16\b"


@readable
@pytest.mark.parametrize(
    ("pattern", "least"), [(ELEMENTWISE, 600), (WEIGHTING, 12)], ids=["element-wise", "weighting"]
)
@pytest.mark.parametrize("isa", BUILT)
def test_kernels_are_vectorised(isa, pattern, least):
    entries = kernels(isa, pattern)
    assert len(entries) >= least  # else the pattern has lost some
    code = code_of(entries)
    # Gradients of 16 bits ask once a chunk whether they accumulate, maybe in its only loop.
    found = {
        name: problems(code, entry, isa, re.search(f"backward.*{HALF}", name) is not None)
        for name, entry in entries.items()
    }
    # Second derivatives of 16 bits call the kernel of float, which is among these, by its address.
    found = {
        name: [why for why in each if not ("second" in name and why.startswith("call *"))]
        for name, each in found.items()
    }
    assert {name: why for name, why in found.items() if why} == {}


@readable
@pytest.mark.parametrize("isa", BUILT)
def test_gates_that_convert_are_vectorised(isa):
    """Addresses of two operands may be computed in a vector, from which they are taken."""
    entries = kernels(isa, rf"{HALF}.*\(fastact::GateRows const&, long, long\)$")
    if isa == "v2":  # which converts no vector at once
        assert not entries
        return
    code = code_of(entries)
    found = {
        name: [why for why in problems(code, entry, isa) if not why.startswith("vpextrq")]
        for name, entry in entries.items()
    }
    assert {name: why for name, why in found.items() if why} == {}


@readable
@pytest.mark.parametrize("isa", BUILT)
def test_sums_work_on_vectors(isa):
    """Of a NaN that is sought one by one nobody sees but who compares nansum with sum.

    One instruction a loop is no such search: it compares what is left of a cache line, or takes
    half of a mask. SSE2 has no conversion of 16-bit data.
    """
    entries = kernels(isa, r"^blocks<S(um|quares)")
    code = code_of(entries)
    found = {
        name: [loop for loop in scalar_loops(code, entry) if len(loop) > 1]
        for name, entry in entries.items()
        if isa != "v2" or not re.search(HALF, name)
    }
    assert {name: why for name, why in found.items() if why} == {}


# --- the reader -----------------------------------------------------------------------------------

# A loop over whole vectors, and the rest one by one.
VECTORS_AND_REST = """
  1000:	xor    %eax,%eax
  1004:	vmovups (%rdi,%rax,1),%zmm0
  1008:	vpminsd %zmm1,%zmm0,%zmm0
  100c:	vbroadcastss 0x20(%rip),%zmm2        # 2000
  1010:	vmulps %zmm2,%zmm0,%zmm0
  1014:	vmovups %zmm0,(%rsi,%rax,1)
  1018:	add    $0x40,%rax
  101c:	cmp    %rax,%rdx
  1020:	jne    1004 <kernel+0x4>
  1024:	vmovss (%rdi,%rax,1),%xmm0
  1028:	vmulss %xmm2,%xmm0,%xmm0
  102c:	vmovss %xmm0,(%rsi,%rax,1)
  1030:	inc    %rax
  1034:	jne    1024 <kernel+0x24>
  1038:	ret
"""

# 16-bit data, converted by vectors and computed one by one, with a branch to code apart.
SCALAR_IN_CHUNKS = """
  0ff0:	push   %rbp
  1000:	vcvtph2ps (%rdx),%zmm0
  1004:	vmovaps %zmm0,0x80(%rsp)
  1008:	vmovss (%rax),%xmm0
  100c:	vucomiss %xmm1,%xmm0
  1010:	ja     1030 <kernel+0x30>
  1014:	vmulss (%rbx),%xmm0,%xmm0
  1018:	add    $0x4,%rax
  101c:	cmp    %rax,%rsi
  1020:	jne    1008 <kernel+0x8>
  1024:	cmp    %rdx,%r10
  1028:	jne    1000 <kernel>
  102c:	ret
  1030:	vmovaps %xmm0,%xmm2
  1034:	jmp    1018 <kernel+0x18>
"""


def changed(listing, address, instruction):
    """The listing with another instruction at an address."""
    head, _, tail = listing.partition(f"  {address:x}:")
    return f"{head}  {address:x}:	{instruction}{tail[tail.index(chr(10)) :]}"


def test_a_loop_over_vectors_and_its_rest():
    assert problems(parse(VECTORS_AND_REST), 0x1000, "v4") == []


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        (VECTORS_AND_REST.replace("%zmm", "%ymm"), "no loop over %zmm"),
        (changed(VECTORS_AND_REST, 0x1010, "vdivss %xmm2,%xmm0,%xmm0"), "vdivss"),
        (changed(VECTORS_AND_REST, 0x1010, "call   3000 <expf@plt>"), "call"),
        (changed(VECTORS_AND_REST, 0x100C, "jp     1014 <kernel+0x14>"), "a branch"),
        (SCALAR_IN_CHUNKS, "vmulss"),
        (SCALAR_IN_CHUNKS, "instructions without %zmm"),
    ],
)
def test_what_is_no_loop_over_vectors(listing, said):
    assert said in " ".join(problems(parse(listing), min(parse(listing)), "v4"))
