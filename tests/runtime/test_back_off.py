"""Beside processes that keep the cores busy: when calls do without their threads.

The decision is tested on made-up times, and what it does by leaving out all regions: no test
depends on what else the machine does.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from calls import OPS, backward, forward, parts
from conftest import assert_same_bits
from processes import reads_proc, run_python

import fastact as fa
from fastact import _cpu

# Nanoseconds: a call of 50 000 elements, in parallel and on one thread; two slices of a scheduler,
# for which a thread waits; and what a thread takes to wake that slept for lack of work.
US, MS = 1_000, 1_000_000
PARALLEL, ALONE, SLICES, WAKING = 11 * US, 15 * US, 8 * MS, 50 * US


NEVER, WHERE_BUSY, ALWAYS = range(3)  # BackOffMode


@pytest.fixture
def headers() -> Any:
    """The parts of back_off.h, of a build for tests."""
    return pytest.importorskip(
        "fastact._cuda_emulated", reason="built without the emulated device"
    ).headers


@pytest.fixture
def account(headers) -> Any:
    return headers.BackOff()


@pytest.fixture
def without_regions(many_threads) -> Iterator[None]:
    _cpu.set_back_off(ALWAYS)
    yield
    _cpu.set_back_off(WHERE_BUSY)


def run(
    account: Any,
    begin: int,
    end: int,
    region: Callable[[int], int],
    taken: Callable[[int], bool] = lambda _: False,
    pause: int = 0,
) -> list[tuple[int, bool, int]]:
    """(time, whether it had a region, length) of calls in a loop.

    region(time) is a region's length; taken(time) tells whether the cores seem to be taken, which a
    process can't always see.
    """
    time, calls = begin, []
    while time < end:
        is_serial = account.is_serial(time, taken(time))
        length = ALONE if is_serial else region(time)
        if is_serial:
            account.note_alone(time, time + length)
        else:
            account.note(time, time + length, ALONE)
        calls.append((time, not is_serial, length))
        time += length + pause
    return calls


def mean(calls: list[tuple[int, bool, int]]) -> float:
    return float(np.mean([length for _, _, length in calls]))


@pytest.mark.parametrize("pause", [0, 100 * US])
def test_on_free_cores_all_calls_have_their_threads(account, pause):
    """After a pause a region waits for its threads to wake: that is no sign of other processes."""
    length = PARALLEL + (WAKING if pause else 0)
    calls = run(account, 0, 1_000 * MS, lambda time: length, pause=pause)
    assert all(has_region for _, has_region, _ in calls)


@pytest.mark.parametrize("sees", [False, True], ids=["unseen", "seen"])
@pytest.mark.parametrize("stall", [WAKING, SLICES], ids=["each waits a little", "some wait long"])
def test_on_busy_cores_the_mean_is_that_of_one_thread(account, sees, stall):
    every, regions = 1 if stall == WAKING else 100, [0]

    def region(time: int) -> int:
        regions[0] += 1
        return PARALLEL + (stall if regions[0] % every == 0 else 0)

    run(account, 0, 200 * MS, region, lambda time: sees)  # what was saved on free cores is used up
    calls = run(account, 200 * MS, 3_000 * MS, region, lambda time: sees)
    assert mean(calls) < (1.1 if sees else 1.3) * ALONE
    assert any(has_region for _, has_region, _ in calls)


def test_calls_that_come_seldom_do_not_try_each_time(account):
    """Each would wait for a slice: what one thread loses in a call is little."""
    calls = run(
        account, 0, 10_000 * MS, lambda time: PARALLEL + SLICES, lambda time: True, 100 * MS
    )
    assert sum(has_region for _, has_region, _ in calls) == 2  # the first loss was made up for


@pytest.mark.parametrize("sees", [False, True], ids=["unseen", "seen"])
@pytest.mark.parametrize("free", [500 * MS, 517 * MS, 533 * MS])
def test_free_cores_are_used_again_within_50_ms(account, sees, free):
    calls = run(
        account,
        0,
        free + 1_000 * MS,
        lambda time: PARALLEL + (SLICES if time < free else 0),
        lambda time: sees and time < free,
    )
    without = [time for time, has_region, _ in calls if not has_region]
    assert free - 100 * MS < without[-1] < free + 50 * MS


def test_busy_cores_of_others_are_not_believed_for_ever(account):
    """The machine may be busy, and the cores of this process free, as in a container."""
    calls = run(account, 0, 100 * MS, lambda time: PARALLEL + SLICES, lambda time: True)
    begin = calls[-1][0]
    calls = run(account, begin, begin + 1_000 * MS, lambda time: PARALLEL, lambda time: True)
    without = [time for time, has_region, _ in calls if not has_region]
    assert begin + 50 * MS < without[-1] < begin + 250 * MS


def test_regions_that_gain_more_than_they_lose_go_on(account):
    """As on many cores, where another process has one."""
    begin = 0
    for call in range(100_000):
        length = PARALLEL + (SLICES if call % 200 == 199 else 0)
        assert not account.is_serial(begin, True)
        account.note(begin, begin + length, 60 * PARALLEL)
        begin += length


@pytest.mark.parametrize(
    ("times", "threads", "expected"),
    [
        ([7_000, 8_000], 2, 15_000),
        ([30_000, 10_000], 2, 40_000),  # uneven shares are all of them work
        ([7_000, 4 * MS], 2, 35_000),  # it was interrupted
        ([4 * MS, 7_000, 8_000], 3, 7_000 + 8_000 + 32_000),
        ([20, 20, 9_000, 20], 4, 9_000),  # the only one that had work
        ([20, 20], 2, 0),
        ([1_000] * 8, 64, 64_000),  # more threads than are timed
    ],
)
def test_the_time_of_one_thread_is_that_of_all_parts(headers, times, threads, expected):
    assert headers.time_alone(times, threads) == expected


@pytest.mark.skipif(not _cpu.build_info()["openmp"], reason="built without OpenMP")
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_without_regions_the_bits_are_the_same(op, without_regions):
    # Work for more threads than there are: 80 000 elements are 9 grains of tuning.h.
    x, dy = np.random.default_rng(0).normal(size=(2, 80, 1000)).astype(np.float32)
    calls = [forward(op, x, dy), backward(op, x, dy)]
    found = [call() for call in calls]
    _cpu.set_back_off(NEVER)
    for result, call in zip(found, calls, strict=True):
        for part, one in zip(parts(result), parts(call()), strict=True):
            if one is not None:
                assert_same_bits(part, one)


def test_a_thread_keeps_an_account_of_its_own(headers):
    """By which its regions are left out: after one that took a year, and not in a new thread."""
    assert headers.begins_after(0)
    assert not headers.begins_after(1 << 55)


@pytest.mark.skipif(not _cpu.build_info()["openmp"], reason="built without OpenMP")
def test_who_does_the_work(without_regions):
    """By the time that all threads take, and the one that this thread takes."""
    x = np.linspace(-5, 5, 3_000_000, dtype=np.float32)

    def share() -> float:
        begin = time.thread_time(), time.process_time()
        for _ in range(5):
            fa.mish(x)
        return (time.thread_time() - begin[0]) / (time.process_time() - begin[1])

    assert share() > 0.8
    _cpu.set_back_off(NEVER)
    assert share() < 0.7


@pytest.mark.parametrize(("value", "told"), [("0", False), ("1", True)])
def test_setting(value, told):
    code = "from fastact import _cpu; print(_cpu.get_back_off() > 0)"
    done = run_python(f"import fastact; {code}", FASTACT_BACK_OFF=value)
    assert done.stdout.strip() == str(told), done.stderr


def test_the_machine_is_asked_for_its_cores(headers):
    """No machine has room for a million threads more, and any for a million less."""
    files = len(os.listdir("/proc/self/fd")) if reads_proc else 0
    assert headers.are_cores_taken(1_000_000) == os.path.exists("/proc/loadavg")
    assert not headers.are_cores_taken(-1_000_000)
    if reads_proc:
        assert len(os.listdir("/proc/self/fd")) == files
