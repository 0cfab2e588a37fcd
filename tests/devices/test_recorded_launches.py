"""Recorded calls on a device: launches that are queued again for other addresses.

A plan's third run and later ones call no native function; they queue what the native functions
would. That values are right is tested in tests/ops/test_call_cache.py for all ops;
here, that nothing else is asked of CUDA, and that a plan is only for calls like its own.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrangements import plain, shifted, stepped, transposed
from calls import arguments_of, uncached
from devices import EMULATED, emulated, needs_emulation, to_emulated

import fastact as fa
from fastact import _cpu
from fastact.ops.engine.op import arrays_of

pytestmark = needs_emulation

ENTRIES = [
    (op, entry) for op in fa.ops.values() for entry in ("call", "forward", "backward")
    if op.family != "activations"
]  # fmt: skip
each_entry = pytest.mark.parametrize(("op", "entry"), ENTRIES, ids=lambda v: str(v))
SEEN = 2  # calls until a plan is there
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def fresh_log():
    emulated.clear_launches()
    yield
    emulated.count_host_calls(False)
    emulated.set_empty_launches(False)


def moved(value: Any, device: int = 0) -> Any:
    """The same with its arrays on the device."""
    if isinstance(value, tuple):
        return tuple(moved(part, device) for part in value)
    if isinstance(value, np.generic):  # what forward saves without axes
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return value
    return to_emulated(emulated.ExchangeArray, device)(value)


def flat(result: Any) -> list[Any]:
    """The arrays of a result, saved ones too."""
    if isinstance(result, tuple):
        return [array for part in result for array in flat(part)]
    if isinstance(result, fa.Moments):
        return flat((result.count, result.mean, result.m2))
    return [result] if hasattr(result, "tobytes") else []


def bits(result: Any) -> list[bytes]:
    return [array.tobytes() for array in flat(result)]


def on_device(op: Any, entry: str, dtype: Any, device: int = 0) -> partial[Any]:
    args, named = arguments_of(op, entry, dtype)
    function = op.entry_point(entry)
    return partial(
        function,
        *moved(args, device),
        **{name: moved(value, device) for name, value in named.items()},
    )


def by_the_slow_path(call: partial[Any]) -> list[Any]:
    return uncached(lambda: bits(call()))


def writing(call: partial[Any]) -> partial[Any]:
    """The call with arrays to write to: a result's own, for nobody compares those."""
    result = call()
    made = arrays_of(result[0] if call.func in FORWARDS else result)
    return partial(call, out=made if len(made) > 1 else made[0])


FORWARDS = [op.forward for op in fa.ops.values() if op.family != "activations"]


@each_entry
def test_nothing_is_asked_but_launches(op, entry):
    """One look at the current device, and an allocation for each array that is new, and for all
    workspaces together."""
    call = writing(on_device(op, entry, np.float32))
    given = {id(array) for array in flat((call.args, *call.keywords.values()))}
    for _ in range(SEEN):
        result = call()
    new = {id(array) for array in flat(result)} - given
    emulated.set_empty_launches(True)  # the emulated device asks itself where it is
    emulated.count_host_calls(True)
    call()
    asked = emulated.host_calls()
    assert asked.pop("launch") >= 1
    assert asked.pop("allocate", 0) <= len(new) + 1
    assert asked.pop("cudaGetDevice") == 1
    assert not asked


@each_entry
def test_each_plan_queues_its_launches(op, entry):
    """No parameter of a kernel depends on more than addresses, or holds bits by chance."""
    function = partial(op._serve, entry)
    for dtype in (np.float16, np.float32, np.float64):
        call = writing(on_device(op, entry, dtype))
        of_its_own = _cpu.CachedCall(function, op, entry)
        for _ in range(SEEN):
            of_its_own(*call.args, **call.keywords)
        assert of_its_own._cached_calls() == (1, 1)


@each_entry
def test_a_stream_is_asked_for_at_each_call(op, entry):
    call = on_device(op, entry, np.float32)
    expected = by_the_slow_path(call)
    for stream in [0] * SEEN + [emulated.make_stream(0) for _ in range(2)]:
        emulated.set_current_stream(0, stream)
        emulated.clear_launches()
        try:
            assert bits(call()) == expected
        finally:
            emulated.set_current_stream(0, 0)
        assert {launch["stream"] for launch in emulated.launches()} == {stream or 1}


@each_entry
def test_each_device_has_its_plans(op, entry):
    """Devices have other numbers of multiprocessors, and other shared memory."""
    calls = [on_device(op, entry, np.float32, device) for device in range(3)]
    expected = [by_the_slow_path(call) for call in calls]
    for _ in range(SEEN + 2):
        for device, call in enumerate(calls):
            emulated.clear_launches()
            assert bits(call()) == expected[device]
            assert {launch["device"] for launch in emulated.launches()} == {device}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("op", "options"),
    [
        (fa.bias_act, ({"activation": "tanh"}, {"activation": "elu"})),
        (fa.layer_norm, ({}, {"eps": 1.0})),
        (fa.softmax, ({"axis": 0}, {"axis": -1})),
        (fa.sum, ({"axis": 0}, {"axis": -1})),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_strides_alignments_and_options_have_their_plans(op, options, dtype):
    x = np.random.default_rng(0).normal(size=(5, 24)).astype(dtype)
    bias = [moved(x[0])] if op is fa.bias_act else []
    views = [plain, shifted, partial(shifted, by=3), partial(shifted, by=64 // x.itemsize)]
    views += [stepped, transposed, plain]
    calls = [partial(op, moved(view(x)), *bias, **named) for view in views for named in options]
    expected = [by_the_slow_path(call) for call in calls]
    for _ in range(SEEN + 2):
        assert [bits(call()) for call in calls] == expected


def test_shapes_have_their_scratch():
    """Sums of few and of many chunks: what is allocated follows the shape."""
    calls = []
    for rows in (1, 3, 700, 20_000, 3, 1):
        x = np.random.default_rng(rows).normal(size=(rows, 8)).astype(np.float32)
        calls.append(partial(fa.sum, moved(x), 0))
        calls.append(partial(fa.bias_act.backward, *map(moved, (x, x, x[0]))))
    expected = [by_the_slow_path(call) for call in calls]
    for _ in range(SEEN + 2):
        assert [bits(call()) for call in calls] == expected


def test_off_it_calls_native_functions(slow):
    call = writing(on_device(fa.layer_norm, "call", np.float32))
    expected = by_the_slow_path(call)
    for _ in range(SEEN + 2):
        slow.clear()
        assert bits(call()) == expected
    assert not slow
    assert by_the_slow_path(call) == expected
    assert slow


def test_threads_share_launches():
    """Each with arrays of its own, on three devices."""
    rng = np.random.default_rng(0)

    def work(number: int) -> bool:
        device = number % 3
        x, w = (moved(rng.normal(size=shape).astype(np.float32), device) for shape in ((6, 40), 40))
        dy = moved(rng.normal(size=(6, 40)).astype(np.float32), device)
        _, saved = fa.layer_norm.forward(x, w)
        call = partial(fa.layer_norm.backward, dy, *saved)
        expected = bits(fa.layer_norm.backward.__wrapped__(dy, *saved))
        return all(bits(call()) == expected for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_a_failed_launch_is_an_error_and_the_next_one_is_not():
    call = writing(on_device(fa.layer_norm, "call", np.float32))
    expected = by_the_slow_path(call)
    for _ in range(SEEN):
        call()
    emulated.fail("launch", 719)
    with pytest.raises(RuntimeError, match="cudaErrorLaunchFailure"):
        call()
    assert bits(call()) == expected


# Where the runs of a recording have the buffers: alike in their last four bits.
RUNS = [(1 << 40, 3 << 41), (5 << 43 | 0x120, 1 << 42 | 0x3350), (1 << 50, (1 << 50) - 0x400)]
ALLOWED = {"nothing", "two buffers", "an address as a number", "a residue", "a distance"}


@pytest.mark.parametrize(
    "name", emulated.selftest.queueings() if EMULATED else [], ids=lambda v: v.replace(" ", "_")
)
def test_what_depends_on_more_than_addresses_is_not_recorded(name):
    assert emulated.selftest.is_recorded(name, RUNS) == (name in ALLOWED)


def test_all_that_is_queued_is_queued_by_launch():
    """What went another way would run while a call is recorded, on memory that is not there."""
    queues = re.compile(r"<<<|cuda(Launch|Memset|Memcpy|Graph|MallocAsync|FreeAsync)\w*\(|cuLaunch")
    sources = [
        p for p in (ROOT / "src" / "cuda").rglob("*") if p.suffix in (".cu", ".cuh", ".cpp", ".h")
    ]
    found = {str(p.relative_to(ROOT)) for p in sources if queues.search(p.read_text())}
    assert found == {"src/cuda/core/device.cu"}
