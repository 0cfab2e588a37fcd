"""The boundary to devices: streams, allocation, errors. On the emulated device, and on a GPU.

Results of kernels are tested where the CPU's are, over the same fixtures.
"""

from typing import Any

import numpy as np
import pytest
import torch
from arrays import Elsewhere
from conftest import ACTIVATIONS, assert_same_bits, by_representatives, sample
from devices import DEVICES, Plain, emulated, needs_emulation, to_emulated
from judged import refused
from processes import TESTS, python_output, python_path

import fastact as fa
from fastact.interop import devices

needs_gpu = pytest.mark.skipif(bool(devices.cuda_why()), reason=devices.cuda_why() or "-")


@pytest.fixture(params=["ExchangeArray", "Array"])
def kind(request: pytest.FixtureRequest) -> Any:
    return getattr(emulated, request.param)


@pytest.fixture(autouse=True)
def fresh_logs():
    if emulated is not None:
        emulated.clear_launches()
        emulated.clear_events()
        emulated.clear_seen_streams()


def make(kind: Any, array: np.ndarray, device: int = 0) -> Any:
    held = to_emulated(kind, device)(array)
    return Plain(held) if kind is emulated.Array else held


@needs_emulation
def test_the_frameworks_current_stream_is_used(op):
    """Told by the exchange API; given to __dlpack__ where there is none."""
    x = make(emulated.ExchangeArray, sample(np.float32))
    stream = emulated.make_stream(0)
    emulated.set_current_stream(0, stream)
    try:
        for _ in range(2):  # the slow path, and the short cut
            op(x)
            op.backward(x, x, out=x)
    finally:
        emulated.set_current_stream(0, 0)
    assert [launch["stream"] for launch in emulated.launches()] == [stream] * 4


@needs_emulation
def test_the_given_stream_is_used(op, kind):
    x, stream = make(kind, sample(np.float32)), emulated.make_stream(0)
    out = make(kind, np.zeros(1000, np.float32))
    assert op(x, out=out, stream=stream) is out
    op.forward(x, stream=stream)
    op.backward(x, x, stream=stream)
    assert [launch["stream"] for launch in emulated.launches()] == [stream] * 3
    if kind is emulated.Array:  # the producer makes that stream wait for the array
        assert set(emulated.seen_streams()) >= {stream}


@needs_emulation
def test_results_are_ordered_into_the_frameworks_stream(op):
    """A framework that does not tell its stream gets results behind an event, without a wait."""
    x = make(emulated.Array, sample(np.float32))
    op(x)
    record, wait = emulated.events()
    assert (record[0], wait[0]) == ("record", "wait")
    assert record[2] != wait[2]  # ours, and theirs


@needs_emulation
def test_only_the_framework_allocates(op, kind, held):
    """And nothing waits for the device: the emulated one has no function that does."""
    x, out = make(kind, sample(np.float32)), make(kind, np.zeros(1000, np.float32))
    op(x, out=out)
    before = held()
    op(x, out=out)
    op.backward(x, x, out=out, accumulate=True)
    assert held() == before
    y = op(x)
    assert held() == before + 4000
    del y
    assert held() == before


@needs_emulation
def test_the_devices_own_is_made_current(op, kind):
    """Kernels run where the arrays are, and the caller's current device stays."""
    x = sample(np.float32)
    expected = DEVICES[0].run(op, x)
    emulated.clear_launches()
    y = op(make(kind, x, device=1))
    assert y.device == 1
    assert_same_bits(np.frombuffer(y.tobytes(), np.float32), expected)
    assert {launch["device"] for launch in emulated.launches()} == {1}


@needs_emulation
def test_inputs_live_as_long_as_they_are_read(op, kind):
    y = op(make(kind, sample(np.float32)))
    assert np.isnan(np.frombuffer(y.tobytes(), np.float32)).sum() == 1


# --- errors ---------------------------------------------------------------------------------------


@by_representatives
@needs_emulation
def test_arrays_on_two_places(op, kind):
    here, there = (make(kind, sample(np.float32), device) for device in (0, 1))
    words = r"all arrays must be on one device, emulated:0, got (out|dy) on emulated:1"
    refused(words, op, here, out=there, error=ValueError)
    refused(words, op.backward, there, here, error=ValueError)
    for _ in range(2):  # once the short cut knows the type
        refused(words, op, here, out=there, error=ValueError)
        op(here)


@needs_gpu
def test_cpu_with_gpu(op):
    x = torch.ones(3)
    refused("one device, cuda:0, got out on cpu", op, x.cuda(), out=x, error=ValueError)
    refused("one device, cpu, got dy on cuda:0", op.backward, x.cuda(), x, error=ValueError)


@by_representatives
@needs_emulation
def test_streams_that_do_not_fit(op, kind):
    x, stream = make(kind, sample(np.float32)), emulated.make_stream(1)
    with pytest.raises(ValueError, match=r"stream must be of device 0.* got one of device 1"):
        op(x, stream=stream)
    for wrong in ("x", 1.5, -1, True):
        refused(r"mish: stream must be a CUDA stream, .* got", fa.mish, x, stream=wrong)
    with pytest.raises(ValueError, match="stream must be None for arrays on the CPU"):
        op(np.ones(3), stream=stream)
    assert emulated.launches() == []


@needs_emulation
def test_stream_objects(op):
    """Whatever a framework's stream object looks like."""
    x, stream = make(emulated.ExchangeArray, sample(np.float32)), emulated.make_stream(0)

    class OfTorch:
        cuda_stream = stream

    class OfCupy:
        ptr = stream

    class OfAnybody:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, stream)

    for given in (OfTorch(), OfCupy(), OfAnybody()):
        op(x, stream=given)
    assert [launch["stream"] for launch in emulated.launches()] == [stream] * 3


@needs_emulation
def test_misaligned_items_are_refused(op, kind):
    held = np.zeros(41, np.uint8)
    x = make(kind, held[1:].view(np.float32))
    refused("x must be aligned to its items of 4 bytes on a GPU", op, x, error=ValueError)


@needs_emulation
def test_read_only_arrays_are_refused_as_outputs(op):
    x = make(emulated.Array, sample(np.float32))
    out = Plain(make(emulated.Array, np.zeros(1000, np.float32)).held.view((1000,), (4,), 0, True))
    refused("out must be writable", op, x, out=out, error=ValueError)


@needs_emulation
def test_a_cuda_error_names_its_place(op, kind):
    x = make(kind, sample(np.float32))
    op(x)
    emulated.fail("launch", 400)
    with pytest.raises(
        RuntimeError, match=r"cudaErrorInvalidResourceHandle.* at src/cuda/[\w/]+\.cuh?:\d+"
    ):
        op(x)
    op(x)


@needs_emulation
def test_reasons_of_the_machine():
    """What a driver or a device lacks is told with its cure."""
    for code, words in ((35, "install NVIDIA's driver"), (100, "no CUDA device is visible")):
        emulated.fail("cudaGetDeviceCount", code)
        assert words in emulated.problem_of_machine()
    emulated.fail("cudaFuncGetAttributes", 209)
    assert "compute capability" in (why := emulated.problem_of_device(1))
    assert "CMAKE_CUDA_ARCHITECTURES" in why
    assert "sees 3 CUDA device" in emulated.problem_of_device(5)
    assert emulated.problem_of_machine() == emulated.problem_of_device(0) == ""


def test_a_gpu_array_without_extension_driver_or_device():
    why = devices.cuda_why()
    if not why:
        pytest.skip("there is a GPU")
    with pytest.raises(fa.CudaUnavailableError, match=r"mish: got an array on cuda:1, but"):
        fa.mish(Elsewhere(2))
    assert any(word in why for word in ("install NVIDIA's driver", "visible", "nvcc"))


def test_disabled_by_the_environment():
    code = """
from arrays import Elsewhere
import fastact as fa
try:
    fa.mish(Elsewhere(2))
except fa.CudaUnavailableError as error:
    print(error)
"""
    told = python_output(code, FASTACT_DISABLE_CUDA="1", PYTHONPATH=python_path(TESTS))
    assert "FASTACT_DISABLE_CUDA is set; unset it" in told


def test_the_driver_is_left_alone_until_a_gpu_array_comes():
    code = "import sys, fastact as fa; fa.mish([1.0]); print('fastact._cuda' in sys.modules)"
    assert python_output(code).strip() == "False"


# --- on a GPU alone -------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name)
def test_cuda_graph(op):
    """No allocation outside the framework's, no synchronisation: a graph can hold the call."""
    x, dy = (torch.randn(5000, device="cuda") for _ in range(2))
    op.backward(dy, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, dx = op(x), op.backward(dy, x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(y, op(x))
    assert torch.equal(dx, op.backward(dy, x))


@needs_gpu
def test_streams_of_torch(op):
    x = torch.randn(1 << 22, device="cuda")
    side = torch.cuda.Stream()
    expected = op(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        y = op(x)
    z = op(x, stream=side)
    side.synchronize()
    assert torch.equal(y, expected)
    assert torch.equal(z, expected)


@needs_gpu
def test_more_than_2_to_the_31_elements_on_a_gpu(op):
    n = 2**31 + 9
    if torch.cuda.mem_get_info()[0] < 10 * n:
        pytest.skip("needs 22 GB of free memory on the GPU")
    x = torch.randn(1 << 20, device="cuda").half().repeat(n // (1 << 20) + 1)[:n]
    y = op(x)
    assert torch.equal(y[-9:], op(x[-9:].clone()))
    assert torch.equal(y[2**31 - 4 : 2**31 + 4], op(x[2**31 - 4 : 2**31 + 4].clone()))
