"""Workspaces travel with their capacity: no thread count makes a kernel write past one.

A workspace is sized by one call and used by another, and the thread count may change in between, by
this thread or any other one. All arrays lie between guard bytes.
"""

import threading
from itertools import cycle

import native
import numpy as np
import pytest

import fastact as fa
from fastact import _cpu
from fastact._cpu import View
from fastact.runtime.threads import MOST

# As many as any partition can tell apart, and far more: the most that can be set.
COUNTS = (1, 2, 3, 8, 64, MOST)
NAMES = [call.name for call in native.calls()]


@pytest.fixture
def threads():
    before = fa.get_num_threads()
    yield fa.set_num_threads
    fa.set_num_threads(before)


@pytest.fixture(params=range(len(NAMES)), ids=NAMES)
def call(request):
    return native.calls()[request.param]


def test_sized_at_one_count_and_used_at_another(call, threads):
    threads(1)
    expected = call.bits(call.size())
    for sized in COUNTS:
        threads(sized)
        size = call.size()
        for used in COUNTS:
            threads(used)
            assert call.bits(size) == expected, (sized, used)


def test_a_byte_short(call, threads):
    """One thread needs all of the workspace that it asks for; more threads only want more."""
    threads(1)
    needed = call.size() if call.needs_it else 0
    expected = call.bits(needed)
    for count in COUNTS[1:]:
        threads(count)
        size = call.size()
        for short in {max(size - 1, 0), max(needed - 1, 0), size // 2, 8, 1, 0}:
            if short < needed:
                for output in call.outputs:
                    output.fill(3)
                with pytest.raises(ValueError, match=rf"must have {needed} bytes, got {short}"):
                    call.run(View.from_numpy(np.empty(short, np.uint8)))
                assert all((output == 3).all() for output in call.outputs)
            else:
                assert call.bits(short) == expected, (count, short)


def test_without_one(call, threads):
    threads(1)
    expected = call.bits(call.size())
    threads(8)
    if not call.needs_it:
        assert call.bits(None) == expected
        return
    with pytest.raises(ValueError, match="bytes, got 0"):
        call.bits(None)


def test_a_workspace_that_is_none(call):
    wrong = [
        np.empty((4, 1 << 16), np.float32),
        np.empty(1 << 21, np.uint8)[::2],
        np.empty((1 << 20) + 1, np.uint8)[1:],
        np.frombuffer(bytes(1 << 20), np.uint8),
    ]
    for memory in wrong:
        with pytest.raises(ValueError, match="workspace must be bytes in one piece"):
            call.run(View.from_numpy(memory))


@pytest.mark.parametrize("runners", [2])
def test_threads_that_change_meanwhile(threads, runners):
    """One thread flips the process's thread count while others size and use workspaces."""
    expected = {}
    threads(1)
    for one in native.calls():
        expected[one.name] = one.bits(one.size())
    wrong: list[str] = []
    done = threading.Event()

    def flip() -> None:
        for count in cycle((1, 64, 2, 7, 33, 3, 16)):
            if done.is_set():
                return
            _cpu.set_process_threads(count)

    def run() -> None:
        try:
            for _ in range(3):
                for one in native.calls():
                    size = one.size()
                    for _ in range(2):
                        if one.bits(size) != expected[one.name]:
                            wrong.append(one.name)
        except BaseException as error:
            wrong.append(repr(error))

    flipper = threading.Thread(target=flip)
    workers = [threading.Thread(target=run) for _ in range(runners)]
    flipper.start()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    done.set()
    flipper.join()
    assert wrong == []
