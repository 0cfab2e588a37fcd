"""How our partitions would scale to many cores and two sockets, on paper (docs/design/scaling.md).

    python tools/scaling_model.py

A call is regions of parallel work, each cut into units that no two threads share, as the sources
cut them. The largest share decides its time, by arithmetic or by the bandwidth that busy cores
reach together; entering a region costs more with every thread. The machine is made up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod

from fastact.measure.shapes import shape_label
from fastact.terminal import markdown_table

THREADS = (1, 2, 4, 8, 16, 32, 64)

# --- the machine: two sockets of 32 cores with eight channels of memory; bytes, seconds ----------
SOCKET = 32
CORE_BANDWIDTH = 12e9  # of memory, that one core reaches alone
SOCKET_BANDWIDTH = 200e9
LINK_BANDWIDTH = 80e9  # from one socket to the other's memory
CACHE_BANDWIDTH = 40e9  # of a core, from its own caches and the shared one
CACHES = 32 << 20  # what stays in the caches of a socket from call to call


def entering(threads: int) -> float:
    """Of a region, until its threads have met again: 0.8 us of two (measured), and then linear.

    libgomp's barrier counts arrivals in one word, which goes from core to core, 50 ns a turn.
    """
    return 0.0 if threads == 1 else 0.8e-6 + 0.1e-6 * (threads - 2)


# --- how the sources cut their work ---------------------------------------------------------------
GRAIN = 8192  # elements a thread: core/tuning.h
K_BLOCK, K_CHUNKS, K_TASKS, K_TILE = 2048, 64, 32, 512  # reductions/kernels.h, core/tuning.h
K_LEAST_TILE = 64  # where threads are many: reduce.cpp
K_LOSS_ROWS, K_MANY_ROWS = 64, 4096  # softmax/softmax.h


def elements(shape: tuple[int, ...]) -> int:
    """Of an element-wise op: whole cache lines (tensor_iterator.cpp, fused_pass.h)."""
    return ceil(prod(shape) / 64)


def rows(shape: tuple[int, ...]) -> int:
    """Of norms and softmax forward, and of whatever sums over nothing but a row."""
    return shape[0]


def row_sums(shape: tuple[int, ...]) -> int:
    """Of backward of a norm with dweight: blocks of rows, each with sums (norms/rows/plan.cpp)."""
    batch, row_bytes = shape[0], 2 * shape[1] * 8
    most = min(max(min(max((4 << 20) // row_bytes, 8), (16 << 20) // row_bytes), 1), 32)
    least = min(max(ceil(batch / 4), 4), 16)
    return ceil(batch / max(ceil(batch / most), least))


def columns(shape: tuple[int, ...]) -> int:
    """Of sums over rows: tiles of columns, as narrow as threads need, and chunks (reduce.cpp)."""
    tiles = ceil(shape[1] / K_TILE)
    return with_chunks(tiles, shape[0]) // tiles * ceil(shape[1] / K_LEAST_TILE)


def shares(shape: tuple[int, ...], threads: int) -> int:
    """Of sums over rows, the tasks of so many threads: equal ones, if columns are wide enough."""
    tiles = ceil(shape[1] / K_TILE)
    tasks, most = with_chunks(tiles, shape[0]), columns(shape)
    return tasks if tasks >= 4 * threads else min(ceil(tasks / threads) * threads, most)


def everything(shape: tuple[int, ...]) -> int:
    """Of the sum of all elements."""
    return with_chunks(1, prod(shape))


def with_chunks(tasks: int, terms: int) -> int:
    """As many tasks, times the chunks of their terms where tasks are few."""
    blocks = ceil(terms / K_BLOCK)
    return tasks * ceil(blocks / ceil(blocks / K_CHUNKS)) if tasks < K_TASKS else tasks


def losses(shape: tuple[int, ...]) -> int:
    """Of cross_entropy: rows; of many, those whose losses are added up together (softmax.h)."""
    return shape[0] if shape[0] < K_MANY_ROWS else ceil(shape[0] / K_LOSS_ROWS)


# --- the model ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Work:
    """An op on float32.

    nanoseconds : of one core for an element, from its caches.
    passes : arrays of the shape that are read or written.
    regions : parallel regions that a call enters.
    """

    name: str
    shape: tuple[int, ...]
    units: Callable[[tuple[int, ...]], int]
    nanoseconds: float
    passes: int
    regions: int = 1

    def used(self, threads: int) -> int:
        """Threads that the call takes."""
        worth = prod(self.shape) // GRAIN
        return 1 if worth < 2 else min(threads, worth)

    def seconds(self, threads: int, *, on_one_node: bool = False) -> float:
        """Of a call; on_one_node: all of its memory is at the first socket."""
        count, size = self.used(threads), prod(self.shape)
        units = shares(self.shape, count) if self.units is columns else self.units(self.shape)
        share = ceil(units / count) / units
        busy = ceil(1 / share)
        moved = size * 4 * self.passes
        if moved <= CACHES:
            rate = busy * CACHE_BANDWIDTH
        else:
            here, there = min(busy, SOCKET), max(busy - SOCKET, 0)
            rate = min(here * CORE_BANDWIDTH, SOCKET_BANDWIDTH)
            others = min(there * CORE_BANDWIDTH, SOCKET_BANDWIDTH)
            if on_one_node:
                others = min(others, LINK_BANDWIDTH, SOCKET_BANDWIDTH - rate)
            rate += others
        arithmetic = size * self.nanoseconds * 1e-9 * share
        return self.regions * entering(count) + max(arithmetic, moved / rate)


WORK = (
    Work("mish", (50_000,), elements, 0.9, 2),
    Work("mish", (1_000_000,), elements, 0.9, 2),
    Work("mish", (16_000_000,), elements, 0.9, 2),
    Work("layer_norm", (8192, 4096), rows, 0.35, 2),
    Work("layer_norm, backward", (8192, 4096), row_sums, 0.7, 3, 2),
    Work("layer_norm, backward", (4096, 768), row_sums, 0.7, 3, 2),
    Work("layer_norm, backward", (64, 65536), row_sums, 0.7, 3, 2),
    Work("softmax", (8192, 4096), rows, 1.0, 2),
    Work("softmax", (64, 65536), rows, 1.0, 2),
    Work("cross_entropy", (512, 32000), losses, 0.7, 1),
    Work("bias_act, backward", (2048, 768), columns, 0.5, 3, 1),
    Work("bias_grad", (8192, 4096), columns, 0.15, 1, 2),
    Work("bias_grad", (65536, 512), columns, 0.15, 1, 2),
    Work("sum of all", (8192, 4096), everything, 0.15, 1, 2),
)


def main() -> None:
    """Print how many times faster each number of threads is than one."""
    lines = []
    for work in WORK:
        alone = work.seconds(1)
        gains = [f"{alone / work.seconds(threads):.1f}" for threads in THREADS[1:]]
        on_one = f"{alone / work.seconds(THREADS[-1], on_one_node=True):.1f}"
        units = work.units(work.shape)
        lines.append([work.name, shape_label(work.shape), f"{units:,}", *gains, on_one])
    header = ["op", "shape", "units", *map(str, THREADS[1:]), f"{THREADS[-1]}, memory of one"]
    print(markdown_table(header, lines, 2))


if __name__ == "__main__":
    main()
