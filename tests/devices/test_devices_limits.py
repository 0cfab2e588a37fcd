"""What a device limits: shared memory of a kernel, contexts, the architectures that were built.

The emulated devices give a block 64, 48 and 227 KiB of shared memory. How much of a row
stays there and how much is read again depends on that, and must not show.
"""

import threading
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from arrays import finite
from conftest import assert_all_same_bits, sample
from devices import DTYPES, emulated, needs_emulation, to_emulated
from processes import run_python

import fastact as fa
from fastact.interop import devices

pytestmark = needs_emulation

# --- rows around every capacity -------------------------------------------------------------------

# In packs of 16 bytes, the lengths at which norms.cu plans anew, forward or backward. Forward
# registers hold up to 2, 4 or 8 packs of each thread: of a part of a warp up to 64, of a warp up to
# 128 and, but for 16 bits, 256, of a block up to 1024, and 2048 of 16 bits or 4096; what is longer
# goes in chunks. Backward up to 64 threads have one pack each; then a block of 256, which keeps one
# more pack of each with every 256; behind 2048 are parts of a row, in chunks of 1024.
LANES = [1, 2, 4, 8, 16, 32, 64, 128]
BLOCKS = [256 * k for k in range(1, 9)]
KEPT = [512 * k for k in (5, 6, 7)]
LONG = [4096, 8192]


@lru_cache(maxsize=4)
def data(dtype: Any, rows: int, n: int) -> tuple[np.ndarray, ...]:
    x, dy = (finite(dtype, (rows, n), seed) for seed in (1, 2))
    weight, bias = (finite(dtype, (n,), seed) for seed in (3, 4))
    return x, dy, weight, bias


def forward(
    of: Any, numpy: Any, dtype: Any, n: int, options: Any, rows: int = 2
) -> list[np.ndarray]:
    x, _, weight, bias = map(of, data(dtype, rows, n))
    y, (_, mean, rstd, *_) = fa.layer_norm.forward(x, weight, bias, **options)
    return [numpy(a) for a in (y, mean, rstd)]


def backward(
    of: Any, numpy: Any, dtype: Any, n: int, options: Any, rows: int = 3
) -> list[np.ndarray]:
    x, dy, weight, bias = data(dtype, rows, n)
    _, saved = fa.layer_norm.forward(x, weight, bias)  # on the CPU: the same for all
    made = fa.layer_norm.backward(of(dy), *map(of, saved), **options)
    return [numpy(a) for a in made]


def check(run: Any, dtype: Any, n: int, options: Any) -> None:
    """Every device has the same bits, and the CPU's values."""

    def numpy(array: Any) -> np.ndarray:
        return np.frombuffer(array.tobytes(), DTYPES[array.dtype]).reshape(array.shape)

    found = [
        run(to_emulated(emulated.ExchangeArray, device), numpy, dtype, n, options)
        for device in range(3)
    ]
    for other in found[1:]:
        assert_all_same_bits(found[0], other)
    expected = run(lambda array: array, lambda array: array, dtype, n, options)
    # A last place of the dtype, and of the sums of many terms what float32 rounds of them.
    epsilon = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
    for one, two in zip(found[0], expected, strict=True):
        scale = float(np.abs(two.astype(float)).max())
        bound = epsilon[np.dtype(dtype).name]
        np.testing.assert_allclose(
            one.astype(float), two.astype(float), rtol=bound, atol=bound * max(scale, 1e-3)
        )


def lengths(dtype: Any, packs: list[int], beside: tuple[int, ...] = (-1, 0, 1)) -> list[int]:
    size = 16 // np.dtype(dtype).itemsize
    return [size * p + d for p in packs for d in beside if size * p + d > 0]


@pytest.mark.parametrize("packs", [LANES, BLOCKS, KEPT], ids=["lanes", "blocks", "kept"])
def test_rows_forward(dtype: Any, packs: list[int]) -> None:
    for n in lengths(dtype, packs):
        check(forward, dtype, n, {})


# The kept part of a row is wider where an activation makes p of dy.
@pytest.mark.parametrize("activation", ["identity", "silu"])
def test_short_rows_backward(dtype: Any, activation: str) -> None:
    for n in lengths(dtype, LANES):
        check(backward, dtype, n, {"activation": activation})


# bfloat16 is planned as float16 is. Both, and float32, have the packs of float64 with more elements
# in each, and take 4 to 8 s.
@pytest.mark.parametrize("activation", ["identity", "silu"])
@pytest.mark.parametrize(
    "name",
    [*(pytest.param(n, marks=pytest.mark.thorough) for n in ("float16", "float32")), "float64"],
)
def test_rows_backward(name: str, activation: str) -> None:
    for n in lengths(DTYPES[name], BLOCKS, (-1, 1)):
        check(backward, DTYPES[name], n, {"activation": activation})


@pytest.mark.parametrize("packs", LONG)
def test_long_rows_forward(dtype: Any, packs: int) -> None:
    for n in lengths(dtype, [packs]):
        check(lambda *given: forward(*given, rows=1), dtype, n, {})


def test_groups_backward(dtype: Any) -> None:
    """Parameters that runs of elements share: of group_norm, by what a block keeps."""
    for n in (1023, 2048, 4100):
        x, dy = (finite(dtype, (2, 4, n), seed) for seed in (1, 2))
        weight = finite(dtype, (4,), 3)
        _, saved = fa.group_norm.forward(x, 2, weight, weight)
        found = []
        for device in range(3):
            of = to_emulated(emulated.ExchangeArray, device)
            made = fa.group_norm.backward(of(dy), *map(of, saved), activation="silu")
            found.append([np.frombuffer(a.tobytes(), dtype) for a in made])
        for other in found[1:]:
            assert_all_same_bits(found[0], other)


# --- one limit of a kernel for all threads --------------------------------------------------------

TWO_THREADS = """
import threading
import numpy as np
import fastact as fa
from fastact.interop import devices

emulated = devices.emulate()

def array(shape, seed):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return emulated.ExchangeArray.from_bytes(values.tobytes(), "float32", shape, 2)

def arguments(n):
    x, dy, weight, bias = array((9, n), 1), array((9, n), 2), array((n,), 3), array((n,), 4)
    _, saved = fa.layer_norm.forward(x, weight, bias)
    return dy, *saved

large, small = arguments(4000), arguments(3000)
asked = []

def backward_of_the_small():
    asked.append(1)
    other = threading.Thread(target=lambda: fa.layer_norm.backward(*small))
    other.start()
    other.join()

# Once the large call has asked for its memory, and before it launches, another thread's small call
# asks for its own and runs.
emulated.after("cudaFuncSetAttribute", backward_of_the_small)
fa.layer_norm.backward(*large)
assert asked

# And nobody asks again.
emulated.after("cudaFuncSetAttribute", backward_of_the_small)
fa.layer_norm.backward(*small)
fa.layer_norm.backward(*large)
print(len(asked))
"""


def test_threads_with_rows_of_several_lengths() -> None:
    """Two launches of one kernel, with 72 and 96 KiB: the limit that both are launched under is the
    device's, asked for once. A process of its own, in which nobody has asked before."""
    done = run_python(TWO_THREADS)
    assert (done.stdout.split(), done.returncode) == (["1"], 0), done.stderr


# --- contexts and first launches ------------------------------------------------------------------


def in_a_new_thread(work: Any) -> Any:
    """What a thread that has chosen no device returns."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_without_a_context_makes_none_elsewhere() -> None:
    x = to_emulated(emulated.ExchangeArray, 1)(sample(np.float32))
    fa.mish(x)

    def work() -> Any:
        fa.mish(x)
        fa.sum(x)
        return emulated.contexts()

    emulated.forget_contexts()
    try:
        assert in_a_new_thread(work) == [1]
    finally:  # as it was
        fa.mish(to_emulated(emulated.ExchangeArray, 0)(sample(np.float32)))
    assert emulated.contexts() == [0, 1]


def test_the_device_before_is_current_again() -> None:
    """One that is in use, by this thread or another."""
    here, there = (to_emulated(emulated.ExchangeArray, d)(sample(np.float32)) for d in (0, 1))

    def work() -> Any:
        fa.mish(here)
        fa.mish(there)
        return emulated.current_device()

    assert in_a_new_thread(work) == 0
    assert in_a_new_thread(lambda: (fa.mish(there), emulated.current_device())[1]) == 0


@pytest.mark.parametrize("call", ["cudaSetDevice", "cudaFuncGetAttributes"])
def test_a_first_launch_that_fails(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what says so means an architecture that was not built. Errors that pass are not kept."""
    monkeypatch.setattr(devices, "_usable", set())

    def ask() -> Any:
        try:
            return devices.native("fastact.sum", (devices.EMULATED, 1))
        except fa.CudaUnavailableError as error:
            return str(error)

    for code, name in ((2, "cudaErrorMemoryAllocation"), (719, "cudaErrorLaunchFailure")):
        emulated.fail(call, code)
        why = in_a_new_thread(ask)
        assert f"CUDA does not start there: {name}" in why
        assert "or move the array" in why
        assert "compute capability" not in why
    assert in_a_new_thread(ask) is emulated


@pytest.mark.parametrize("code", [98, 209])
def test_an_architecture_that_was_not_built(code: int) -> None:
    emulated.fail("cudaFuncGetAttributes", code)
    assert "compute capability 9.0" in emulated.problem_of_device(0)
