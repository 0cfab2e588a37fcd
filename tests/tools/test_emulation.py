"""The emulated device, which the other CUDA tests trust: that it computes, and that it catches.

Every kernel of tests/cuda_emulation/selftest.cpp runs here; most do one thing wrong each.
"""

import threading
from typing import Any

import numpy as np
import pytest
from asserting import passes

emulated = pytest.importorskip(
    "fastact._cuda_emulated", reason="built with FASTACT_CUDA_EMULATION=ON only"
)
pytestmark = pytest.mark.usefixtures("held")  # no test leaves an array there

BLOCKS, THREADS = 64, 256
RAMP = np.arange(4 * BLOCKS * THREADS) % 37

# The message of each wrong kernel. The fault also names the kernel.
FAULTS = {
    "shared_out_of_bounds": r"shared memory out of bounds: few\[\d+\], where there are 8 elements",
    "shared_before_start": r"shared memory out of bounds: few\[-1\]",
    "dynamic_shared_out_of_bounds": r"out of bounds: dynamic_shared\[255\], .* 255 elements",
    "uninitialised_shared": r"uninitialised shared memory: read of values\[0\]",
    "shared_of_another_block": r"uninitialised shared memory: read of value\[0\]",
    "shared_read_race": r"race in shared memory: .* of values\[",
    "shared_write_race": r"race in shared memory: write of value\[0\]",
    "shared_write_after_read": r"race in shared memory: .* of values\[",
    "copy_read_early": r"asynchronous copy: read of dynamic_shared\[\d+\], to which one is on its",
    "copy_not_closed": r"asynchronous copy: read of dynamic_shared\[\d+\], to which one is on its",
    "copy_over_read": r"(asynchronous copy|race in shared memory|uninitialised).* of dynamic_s",
    "syncwarp_across_warps": r"race in shared memory: .* of values\[",
    "barrier_after_return": r"divergent __syncthreads: thread \(3, 0, 0\) has returned",
    "two_barriers": r"divergent __syncthreads: thread .* waits at __syncthreads in two_barriers",
    "barrier_against_shuffle": r"divergent __shfl_xor_sync .*: thread \(0, 0, 0\) waits at __sync",
    "shuffle_after_return": r"__shfl_xor_sync with mask 0xffffffff.*\b3\b.* has returned",
    "shuffle_inactive_lane": r"lane \d+ reads inactive lane 20, which mask 0x0000ffff",
    "shuffle_outside_mask": r"the calling lane \d+ is not in the mask",
    "load_after_end": r"out of bounds: load of 4 bytes, byte offset 1024 of an allocation of 1024",
    "load_before_start": r"out of bounds: load of 4 bytes, 4 bytes before an allocation of 1024",
    "store_after_end": r"out of bounds: store of 4 bytes, byte offset 1024",
    "pack_over_end": r"out of bounds: load of 16 bytes, byte offset 1016",
    "misaligned_pack": r"misaligned load of 16 bytes: address is 4 past a multiple of 16",
    "misaligned_scalar": r"misaligned load of 4 bytes: address is 2 past a multiple of 4",
    "uninitialised_global": r"uninitialised global memory: load of byte offset",
    "write_conflict": r"conflict in global memory: store to what was stored by thread \d+",
    "write_conflict_of_blocks": r"conflict in global memory: .* stored by another block",
    "read_after_write": r"conflict in global memory: ",
    "write_after_read": r"conflict in global memory: ",
    "sent_before_all_begun": r"number 0 of round 0 for block \d of the cluster, which may not",
    "sent_to_no_block": r"number 0 of round 0 for block 2 of the cluster, which is not there",
    "sent_twice": r"number 0 of round 0 for block 1 of the cluster, which has it",
    "sent_a_round_early": r"number 0 of round 2 .*, whose mailbox has another round",
    "sent_to_ended_block": r"number 0 of round 0 for block 0 of the cluster, which has ended",
    "never_sent": r"a wait for the cluster that never ends: .* waits for numbers in never_sent",
    "read_without_waiting": r"number 0 of round 0 is read by a thread that did not wait",
    "block_without_mailbox": r"a wait for the cluster that never ends: ",
    "global_memory_of_a_cluster": r"conflict in global memory: load .* by another block",
    "prefetch_over_end": r"out of bounds: prefetch of 1040 bytes",
}
# The same, where the kernel has another name than the case.
FAULTS_ELSEWHERE = {
    "shuffle_past_block": r"names lane 2, which the block has not",
    "host_memory": r"out of bounds: load of 4 bytes, no allocation is near",
    "freed_memory": r"out of bounds: load of 4 bytes, no allocation is near",
    "wrong_device": r"wrong device: load of memory of device 0 by a kernel on device 1",
}
# What CUDA itself reports.
ERRORS = {
    "wrong_stream": "cudaErrorInvalidResourceHandle",
    "too_much_static_shared": "cudaErrorInvalidValue",
    "too_much_dynamic_shared": "cudaErrorInvalidValue",
    "too_much_shared": "cudaErrorInvalidValue",
    "asked_for_too_much": "cudaErrorInvalidValue",
    "asked_for_less": "cudaErrorInvalidValue",
    "two_instances_too_much": "cudaErrorInvalidValue",
    "two_instances_asked_too_much": "cudaErrorInvalidValue",
    "one_helper_too_much": "cudaErrorInvalidValue",
    "untouched_array_too_much": "cudaErrorInvalidValue",
    "too_many_threads": "cudaErrorInvalidConfiguration",
    "more_threads_than_compiled_for": "cudaErrorInvalidValue",
    "more_rows_of_threads_than_compiled_for": "cudaErrorInvalidValue",
    "no_blocks": "cudaErrorInvalidConfiguration",
    "cluster_of_9": "cudaErrorInvalidClusterSize",
    "grid_of_half_a_cluster": "cudaErrorInvalidClusterSize",
    "device_without_clusters": "cudaErrorInvalidClusterSize",
}


def deviations() -> np.ndarray:
    return np.array(emulated.selftest.run("deviations"), np.float32)


def check_deviations() -> None:
    x = RAMP[: BLOCKS * THREADS].reshape(BLOCKS, THREADS)
    exact = ((x - x.mean(1, keepdims=True)) ** 2).sum(1)
    np.testing.assert_allclose(deviations(), exact, rtol=1e-6)


def check_copy() -> None:
    np.testing.assert_array_equal(emulated.selftest.run("copy_packs"), RAMP)


def check_warp_exchange() -> None:
    x = RAMP[:THREADS].reshape(-1, 32)
    np.testing.assert_array_equal(emulated.selftest.run("warp_exchange")[: len(x)], x.sum(1))


def check_copies_ahead() -> None:
    np.testing.assert_array_equal(emulated.selftest.run("copies_ahead"), RAMP[:THREADS])


def check_collectives() -> None:
    assert emulated.selftest.run("collectives")[:32] == [1.0] * 32


def check_cluster_exchange() -> None:
    sums = emulated.selftest.run("cluster_exchange")[:4]
    np.testing.assert_array_equal(sums, RAMP[:16].reshape(4, 4).sum(1))


def check_nothing() -> None:
    np.testing.assert_array_equal(emulated.selftest.run("nothing"), RAMP[:THREADS])


def check_shared(name: str, kernel: int) -> None:
    expected = np.full(THREADS, 1 + kernel, np.float32)
    np.testing.assert_array_equal(emulated.selftest.run(name), expected)


def check_static_shared(name: str, kib: int) -> None:
    """What a kernel's code refers to is counted, whether or not a launch comes there."""
    emulated.clear_launches()
    emulated.selftest.run(name)
    (launch,) = emulated.launches()
    assert launch["static_shared"] == kib << 10


RIGHT = {
    "deviations": check_deviations,
    "copy_packs": check_copy,
    "warp_exchange": check_warp_exchange,
    "copies_ahead": check_copies_ahead,
    "collectives": check_collectives,
    "cluster_exchange": check_cluster_exchange,
    "cluster_of_8": lambda: emulated.selftest.run("cluster_of_8"),
    "nothing": check_nothing,
    "all_dynamic_shared": lambda: emulated.selftest.run("all_dynamic_shared"),
    "all_shared": lambda: check_shared("all_shared", 0),
    "asked_for_48_kib": lambda: check_shared("asked_for_48_kib", 2),
    "asked_for_the_most": lambda: check_shared("asked_for_the_most", 3),
    "two_instances": lambda: check_static_shared("two_instances", 40),
    "two_instances_asked": lambda: check_static_shared("two_instances_asked", 40),
    "one_helper": lambda: check_static_shared("one_helper", 20),
    "untouched_array": lambda: check_static_shared("untouched_array", 20),
}


@pytest.fixture(params=["alternate", "forward", "backward", "shuffle"])
def order(request: pytest.FixtureRequest) -> Any:
    emulated.set_thread_order(request.param, seed=7)
    yield request.param
    emulated.set_thread_order("alternate")


@pytest.mark.parametrize("name", RIGHT)
def test_right(order: str, name: str) -> None:
    RIGHT[name]()
    passes("no fault was told")


@pytest.mark.parametrize("name", FAULTS | FAULTS_ELSEWHERE)
def test_fault(order: str, name: str) -> None:
    words = FAULTS[name] + rf".*selftest::{name}\(" if name in FAULTS else FAULTS_ELSEWHERE[name]
    with pytest.raises(emulated.Fault, match=words):
        emulated.selftest.run(name)
    check_deviations()


@pytest.mark.parametrize("name", ERRORS)
def test_error_code(name: str) -> None:
    with pytest.raises(RuntimeError, match=ERRORS[name]) as caught:
        emulated.selftest.run(name)
    assert caught.type is not emulated.Fault
    check_deviations()


def test_every_kernel_is_tested() -> None:
    tested = {*RIGHT, *FAULTS, *FAULTS_ELSEWHERE, *ERRORS}
    assert tested == set(emulated.selftest.names())


def test_injected_error() -> None:
    emulated.fail("cudaMalloc", 2)
    with pytest.raises(RuntimeError, match=r"cudaErrorMemoryAllocation \(out of memory\)"):
        emulated.selftest.run("deviations")
    emulated.fail("launch", 209, times=2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cudaErrorNoKernelImageForDevice"):
            emulated.selftest.run("deviations")
    check_deviations()


def test_launches_from_several_threads() -> None:
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                check_deviations()
                with pytest.raises(emulated.Fault):
                    emulated.selftest.run("barrier_after_return")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_launches_are_logged() -> None:
    emulated.clear_launches()
    emulated.selftest.run("deviations")
    emulated.selftest.run("warp_exchange")
    first, second = emulated.launches()
    assert first.pop("kernel").startswith("selftest::deviations(")
    assert "8selftest10deviations" in first.pop("symbol")
    assert first == {
        "device": 0,
        "stream": 0,
        "grid": (BLOCKS, 1, 1),
        "block": (THREADS, 1, 1),
        "shared": 0,
        "static_shared": 4 * THREADS // 32,
    }
    assert second["shared"] == 4 * THREADS
    emulated.clear_launches()
    assert emulated.launches() == []
