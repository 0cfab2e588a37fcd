"""A GPU as the benchmark sees it, through torch: tensors, time, CUDA graphs, and facts.

Only this file asks torch for CUDA, so that a test can put another device in its place.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastact.interop import devices
from fastact.interop.validate import CudaUnavailableError
from fastact.runtime import config
from fastact.terminal import require

Call = Callable[[], Any]

# Launches that may wait in the queue before the host has to: about 1000 in today's drivers, and a
# call may launch several kernels.
MOST_CALLS = 200


def _leave(reason: str) -> SystemExit:
    return SystemExit(f"fastact: bench --device cuda needs a GPU: {reason}")


def open_gpu() -> Gpu:
    """The current GPU, or leave with one line that says what is missing."""
    torch = require("torch", "bench --device cuda", "torch")
    if torch.version.cuda is None:
        raise SystemExit(
            f"fastact: bench --device cuda needs a torch with CUDA, got {torch.__version__}, which "
            f"was built without; https://pytorch.org/get-started tells how to get one"
        )
    if reason := devices.cuda_why():
        raise _leave(reason)
    if not torch.cuda.is_available():
        raise _leave(f"torch {torch.__version__} with CUDA {torch.version.cuda} finds none")
    index = torch.cuda.current_device()
    try:
        devices.native("bench", (devices.CUDA, index))
    except CudaUnavailableError as error:
        raise _leave(str(error)) from None
    return Gpu(torch, index)


class Gpu:
    """One GPU. l2 : bytes of its second-level cache."""

    def __init__(self, torch: Any, index: int) -> None:
        self.torch = torch
        self.device = torch.device("cuda", index)
        self._properties = torch.cuda.get_device_properties(index)
        self.l2: int = self._properties.L2_cache_size

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor of normal random numbers."""
        kind = getattr(self.torch, dtype)
        return self.torch.randn(tuple(shape), dtype=kind, device=self.device)

    def integers(self, shape: Sequence[int], end: int) -> Any:
        """A tensor of random int64 from 0 to below `end`."""
        return self.torch.randint(end, tuple(shape), device=self.device)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor to be written."""
        kind = getattr(self.torch, dtype)
        return self.torch.empty(tuple(shape), dtype=kind, device=self.device)

    def free(self) -> int:
        """Bytes that can be allocated, after giving back what nobody holds."""
        self.torch.cuda.empty_cache()
        return int(self.torch.cuda.mem_get_info(self.device)[0])

    def synchronize(self) -> None:
        """Wait until all that was queued is done."""
        self.torch.cuda.synchronize(self.device)

    def seconds(self, calls: Sequence[Call], times: int) -> float:
        """Seconds of one call on the GPU, over `times` calls that take turns.

        The queue is full when the clock starts: the GPU sleeps until the host is well ahead.
        """
        cuda = self.torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda._sleep(self._cycles_to_sleep(calls, times))
        begin.record()
        for i in range(times):
            calls[i % len(calls)]()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / times

    def _cycles_to_sleep(self, calls: Sequence[Call], times: int) -> int:
        """Clock cycles in which the host queues half of the calls, whatever they take the GPU."""
        started = time.perf_counter()
        calls[0]()
        host = time.perf_counter() - started
        self.synchronize()
        seconds = min(max(host * times, 2e-4), 0.1)
        return int(seconds * 2e9)  # 2 GHz, about: the exact length does not matter

    def capture(self, call: Call) -> Call:
        """The call as a CUDA graph; the result replays it."""
        cuda = self.torch.cuda
        aside = cuda.Stream(self.device)
        aside.wait_stream(cuda.current_stream(self.device))
        with cuda.stream(aside):  # what has to be done once must not be captured
            call()
        cuda.current_stream(self.device).wait_stream(aside)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            call()
        replay: Call = graph.replay
        return replay

    def facts(self) -> dict[str, Any]:
        """What a number needs beside it."""
        fastact = config.config()
        return {
            "gpu": self._properties.name,
            "capability": f"{self._properties.major}.{self._properties.minor}",
            "multiprocessors": self._properties.multi_processor_count,
            "memory": self._properties.total_memory,
            "l2": self.l2,
            "driver": _driver(),
            "torch": self.torch.__version__,
            "torch_cuda": self.torch.version.cuda,
            "fastact": fastact["version"],
            "cuda": fastact["cuda"],
            "python": fastact["python"],
            "platform": fastact["platform"],
        }


def _driver() -> str:
    """The version of NVIDIA's driver; empty where nvidia-smi is missing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""
