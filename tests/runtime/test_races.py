"""Calls from many Python threads at once, while settings change: the values of one thread.

`tools/sanitize.sh thread` runs this file under ThreadSanitizer as well.
"""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from calls import OPS, backward, forward, parts
from conftest import assert_same_bits
from processes import forks

import fastact as fa
from fastact import _cpu

THREADS = 6
# Of a call's own work nothing but its size matters: 80 000 elements are 9 grains of tuning.h,
# work for more threads than the five at most that are asked for.
SMALL, LARGE = (6, 8), (80, 1000)
NAMES = sorted(
    {op.name: op for op in OPS if op.family != "activations"} | {"mish": None, "gelu": None}
)


def arrays(shape: tuple[int, int], dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=shape).astype(dtype), rng.normal(size=shape).astype(dtype)


def at_once(call: Callable[[int], Any], times: int) -> list[Any]:
    """call(thread), from all threads, which begin together."""
    start = threading.Barrier(THREADS)

    def repeat(thread: int) -> list[Any]:
        start.wait()
        return [call(thread) for _ in range(times)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [result for results in pool.map(repeat, range(THREADS)) for result in results]


def same(result: Any, expected: Any) -> None:
    for part, right in zip(parts(result), parts(expected), strict=True):
        if right is not None:
            assert_same_bits(part, right)


@pytest.fixture(autouse=True)
def threads_in_quick_turns():
    """Each time that a thread comes back from a kernel it waits this long for the interpreter."""
    interval = sys.getswitchinterval()  # 5 ms, if nobody has changed it
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def all_regions_run():
    """However busy the cores: races are looked for among a region's threads."""
    _cpu.set_back_off(0)
    yield
    _cpu.set_back_off(1)


@pytest.fixture
def changing_settings():
    """All the while another thread changes the process's count of threads and its own."""
    before, stop = fa.get_num_threads(), threading.Event()

    def change() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            fa.set_num_threads(1 + turn % 5)
            with fa.num_threads(1 + turn % 3):
                fa.get_num_threads()

    thread = threading.Thread(target=change)
    thread.start()
    yield
    stop.set()
    thread.join()
    fa.set_num_threads(before)


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("name", NAMES)
def test_one_op_from_many_threads(name, shape, changing_settings):
    """The same inputs for all, new outputs: first calls, and calls that are repeated."""
    x, dy = arrays(shape)
    op = fa.ops[name]
    there, back = forward(op, x, dy), backward(op, x, dy)
    value, gradient = there(), back()
    for result in at_once(lambda _: (there(), back()), 4):
        same(result[0], value)
        same(result[1], gradient)


def test_busy_cores_from_many_threads():
    """Each thread has its own account of its regions, which are left out or not as it says."""
    _cpu.set_back_off(1)
    x, dy = arrays(LARGE)
    calls = [forward(fa.ops[name], x, dy) for name in ("mish", "layer_norm", "sum")]
    expected = [call() for call in calls]

    def one(thread: int) -> list[Any]:
        with fa.num_threads(2 + thread % 2):
            return [call() for call in calls]

    for results in at_once(one, 50):
        for result, right in zip(results, expected, strict=True):
            same(result, right)


def test_all_ops_from_many_threads(changing_settings):
    """Each thread has outputs of its own, and every thread is at another op."""
    x, dy = arrays(SMALL, np.float64)
    calls = [forward(fa.ops[name], x, dy) for name in NAMES]
    calls += [backward(fa.ops[name], x, dy) for name in NAMES]
    expected = [call() for call in calls]

    def one(thread: int) -> list[Any]:
        order = np.random.default_rng(thread).permutation(len(calls))
        return [(k, calls[k]()) for k in order]

    for results in at_once(one, 4):
        for k, result in results:
            same(result, expected[k])


def test_outputs_of_each_thread(changing_settings):
    x, dy = arrays(LARGE)
    bias = x[0].copy()
    outs = [np.empty_like(x) for _ in range(THREADS)]
    biases = [np.empty_like(bias) for _ in range(THREADS)]
    expected = fa.bias_act.backward(dy, x, bias, activation="mish")

    def call(thread: int) -> None:
        out = outs[thread], biases[thread]
        result = fa.bias_act.backward(dy, x, bias, activation="mish", out=out)
        assert result[0] is outs[thread]
        same(result, expected)

    at_once(call, 5)


def test_tensors_from_many_threads(changing_settings):
    """Their type is made known to the native code at its first call."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(arrays(LARGE)[0])
    expected = [fa.mish(x).numpy(), fa.layer_norm(x).numpy(), fa.sum(x, axis=0).numpy()]
    for results in at_once(lambda _: (fa.mish(x), fa.layer_norm(x), fa.sum(x, axis=0)), 5):
        for result, right in zip(results, expected, strict=True):
            assert_same_bits(result.numpy(), right)


def test_the_instruction_set_changes_meanwhile():
    """As checks and tests do; those with fused multiply-add have the same bits."""
    isas = [isa for isa in _cpu.supported_isas() if isa not in ("v2",)]
    x, _ = arrays(LARGE)
    before, stop = _cpu.isa(), threading.Event()

    def change() -> None:
        while not stop.is_set():
            for isa in isas:
                _cpu.select_isa(isa)

    thread = threading.Thread(target=change)
    try:
        _cpu.select_isa(isas[0])
        expected = fa.layer_norm(x)
        thread.start()
        for result in at_once(lambda _: fa.layer_norm(x), 5):
            same(result, expected)
    finally:
        stop.set()
        thread.join()
        _cpu.select_isa(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@forks
def test_forks_among_calls(changing_settings):
    x, dy = arrays(LARGE)
    calls = [forward(fa.ops[name], x, dy) for name in ("mish", "layer_norm", "sum")]
    expected = [call() for call in calls]
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for call, right in zip(calls, expected, strict=True):
                same(call(), right)

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work) for _ in range(2)]
        try:
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    try:
                        good = all(
                            np.array_equal(parts(call())[0], parts(right)[0])
                            for call, right in zip(calls, expected, strict=True)
                        )
                        os._exit(0 if good else 1)
                    finally:
                        os._exit(2)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
        for future in futures:
            future.result()
