"""What peers of the CPU benchmark compute is what we compute, where they are installed."""

from itertools import product

import numpy as np
import pytest
from benchmarks import cpu, mkl
from benchmarks.workloads import FAMILIES
from benchmarks.workloads.other import OTHER
from benchmarks.workloads.work import Options

import fastact as fa
from fastact.measure.peers import COPY, FRESH, JAX, MKL, ONNX, versions
from fastact.ops.engine.op import arrays_of

THREADS = fa.get_num_threads()
NAMES = list(dict.fromkeys(op.family for op in fa.ops.values()))


def cases(family, directions=("forward", "backward")):
    options = Options((96,), (), (), (), (THREADS,), small=True)
    for op, direction in product(fa.ops.values(), directions):
        if op.family == family:
            yield from FAMILIES[family].on_cpu(op, direction, "float32", options)


def as_numbers(result):
    return [np.asarray(array) for array in arrays_of(result) if array is not None]


def agrees(case, peer):
    """Whether a peer's first result is among ours; None where it has no such op."""
    calls, left_out = cpu.workload(case, [peer], THREADS)
    if peer in left_out:
        assert "Error" not in left_out[peer], (case.name, left_out)
        return None
    ours = as_numbers(calls[FRESH]())[0]
    return any(
        theirs.size == ours.size and np.allclose(theirs.ravel(), ours.ravel(), 1e-4, 1e-5)
        for theirs in as_numbers(calls[peer]())  # axes of length 1 may be gone
    )


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize(
    "peer",
    [pytest.param(JAX, marks=pytest.mark.thorough), ONNX],  # jax takes seconds to compile all
)
def test_peers_compute_the_same(family, peer):
    if not versions([peer]):
        pytest.skip(f"{peer} is not installed")
    found = {case.name: agrees(case, peer) for case in cases(family)}
    assert [name for name, same in found.items() if same is False] == []
    # Torch alone has functions of these, and no library has those of other families.
    by_torch_alone = {"divergences", "dropout", "parametric"}
    if FAMILIES[family].onnx if peer == ONNX else FAMILIES[family] is not OTHER:
        assert True in found.values() or family in by_torch_alone


def test_mkl_computes_the_function_alone():
    if not versions([MKL]):
        pytest.skip("mkl is not installed")
    of = {name: getattr(np, name.lower(), None) for name in set(mkl._FUNCTIONS.values())}
    asked = 0
    for case in cases("activations", ["forward"]):
        calls, _ = cpu.workload(case, [MKL], THREADS)
        if MKL in calls:
            asked += 1
            (y, x), function = calls[MKL](), of[mkl._FUNCTIONS[case.op.name]]
            if function is not None:  # NumPy has no erf
                np.testing.assert_allclose(y, function(x), 1e-6)
    assert asked == len(mkl._FUNCTIONS)


def test_every_op_has_something_to_copy():
    for family in NAMES:
        for case in cases(family):
            calls, _ = cpu.workload(case, [], 1)
            calls[COPY]()
            assert {COPY, FRESH} < calls.keys()
