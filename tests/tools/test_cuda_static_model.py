"""The model of tools/cuda_static_model.py: its terms, and what it reads off machine code."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
from devices import EMULATED

TOOLS = Path(__file__).resolve().parents[2] / "tools"
if not TOOLS.exists():
    pytest.skip("the tools are in the source tree only", allow_module_level=True)
sys.path.insert(0, str(TOOLS))

launches = import_module("cuda_static_launches")
model = import_module("cuda_static_model")
routes = import_module("cuda_static_routes")
sass = import_module("sass")

# A warp that keeps what it reads, twice folds over lanes with a barrier between, and writes.
LISTING = """
		Function : rows
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   STS.128 [R3], R4 ;
        /*0030*/               @P0 BRA 0x10 ;
        /*0040*/               @P1 BRA 0xb0 ;
        /*0050*/                   SHFL.BFLY PT, R3, R27, R5, R4 ;
        /*0060*/                   DADD R6, R6, R4 ;
        /*0070*/               @P2 BRA 0x50 ;
        /*0080*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0090*/                   SHFL.BFLY PT, R3, R27, R5, R4 ;
        /*00a0*/               @P2 BRA 0x90 ;
        /*00b0*/                   LDS.128 R4, [R3] ;
        /*00c0*/               @P3 BRA 0xf0 ;
        /*00d0*/                   FFMA R4, R4, R4, R4 ;
        /*00e0*/                   FADD R4, R4, R4 ;
        /*00f0*/                   STG.E.128 desc[UR4][R8.64], R4 ;
        /*0100*/               @P4 BRA 0xb0 ;
        /*0110*/               @P5 BRA 0x10 ;
        /*0120*/                   EXIT ;
"""


@pytest.fixture
def router():
    (function,) = sass.parse(LISTING)
    return routes.Router(function)


def test_a_loop_is_counted_with_what_surrounds_it(router):
    """By hand: LDC; 4 x 3; BRA, LDS, BRA, STG, BRA, BRA, EXIT, past the folds and the sums."""
    trace = router.trace(routes.Loop(4, {"LDG.128": 1, "STS.128": 1}))
    assert trace.count() == 1 + 12 + 7
    assert (trace.count("SHFL"), trace.count("LDG.128"), trace.count("STG.128")) == (0, 4, 1)
    assert trace.loads() == (4, 0, 16)


def test_a_branch_that_some_lanes_take_costs_both_ways(router):
    counts = {"LDG.128": 1, "STG.128": 1}
    plain, both = (
        router.trace(routes.Via(counts, diverges=diverges)).count() for diverges in (False, True)
    )
    assert both - plain == 2  # FFMA and FADD; the folds have a barrier, and are no such piece


def test_what_is_not_there_is_said(router):
    with pytest.raises(ValueError, match="no loop"):
        router.trace(routes.Loop(1, {"DMUL": 1}))
    with pytest.raises(ValueError, match="no way on"):
        router.trace(routes.Via({"HMMA": 1}))


def work(**changed):
    given = {"bytes": 268e6, "grid": 8192, "warps": 8, "resident": 4, "instructions": 400}
    return model.Work(**{**given, **changed})


def test_each_term_bounds_a_kernel_that_has_nothing_else():
    """Memory: a copy's time. Issue: four instructions a clock of 132 multiprocessors."""
    copy = model.predict(work(instructions=10, rounds=0, resident=8))
    assert copy.seconds == pytest.approx(model.copy_seconds(268e6), rel=0.01)
    assert copy.bound_by == "memory"
    issued = model.predict(work(bytes=0, instructions=1e4, rounds=0))
    assert issued.issue == pytest.approx(8192 * 8 * 1e4 / (132 * 4 * model.CLOCK))
    assert issued.bound_by in ("issue", "chain")  # with eight warps each waits for seven others
    waits = model.predict(work(bytes=0, grid=132, resident=1, instructions=0, rounds=100))
    assert waits.seconds == pytest.approx(model.LAUNCH + 100 * model.FROM_MEMORY / model.CLOCK)
    assert model.predict(work(bytes=0, grid=1, instructions=1, rounds=0)).bound_by == "launch"


@pytest.mark.parametrize(
    ("change", "faster"),
    [
        ({"resident": 8}, True),
        ({"instructions": 200}, True),
        ({"shuffles": 64}, False),
        ({"near": 8}, False),
        ({"rounds": 16}, False),
    ],
)
def test_what_makes_a_kernel_faster(change, faster):
    before, after = model.predict(work(rounds=4)), model.predict(work(**{"rounds": 4, **change}))
    assert (after.seconds < before.seconds) == faster
    assert after.seconds != before.seconds


@pytest.mark.parametrize(
    ("registers", "shared", "threads"),
    [(32, 0, 2048), (33, 0, 1536), (48, 0, 1280), (64, 0, 1024), (255, 0, 256), (32, 65536, 768)],
)
def test_occupancy(registers, shared, threads):
    """By CUDA's occupancy calculator for compute capability 9.0 and blocks of 256."""
    assert 256 * model.resident_blocks(256, registers, shared) == threads


LOADS = """
		Function : vectors
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/                   {between} ;
        /*0020*/                   LDG.E.128 R8, desc[UR4][R2.64+0x10] ;
        /*0030*/                   FADD R12, R5, R9 ;
        /*0040*/                   EXIT ;
"""


@pytest.mark.parametrize(
    ("between", "rounds", "bytes_in_flight"),
    [("FADD R13, R14, R14", 1, 32), ("PRMT R13, R6, 0x7632, R6", 2, 16)],
)
def test_a_vector_that_is_taken_apart_at_once_is_a_round_of_its_own(
    between, rounds, bytes_in_flight
):
    (function,) = sass.parse(LOADS.format(between=between))
    trace = routes.Router(function).trace(routes.Via({"LDG.128": 2}))
    assert trace.loads() == (rounds, 0, bytes_in_flight)


@pytest.mark.skipif(not EMULATED, reason="built without FASTACT_CUDA_EMULATION=ON")
def test_a_launch_is_as_the_profiler_saw_it(monkeypatch):
    """Grid, block and dynamic shared memory as ncu wrote them down, of the large device."""
    profiled = launches.MEASURED.with_name("h200_252d3ea.json")
    monkeypatch.setattr(launches, "MEASURED", profiled)
    seen = {
        case.name: (launch.grid, launch.threads, launch.shared)
        for case, _, (launch, *_) in launches.calls("layer_norm backward, bfloat16")
        if not case.op.name.startswith("add_")
    }
    assert seen["layer_norm backward, bfloat16, 32,768 × 256"] == (264, 256, 65536)
