"""Statistics of an array that no worker could hold: of each column, and of its results.

    pip install '.[bridges]'                 # dask and distributed
    python examples/larger_than_memory.py    # --quick: an eighth of the data

The array is made chunk by chunk, where it is needed, on a local cluster of two processes with a
memory limit; without distributed by the threads of this process. Its columns lie at 1e4, far from 0
for their deviation, and each chunk has moments of its own, which merge. Then each column is
standardised, Mish taken of it, and the mean and the variance of that found in a second pass, for
which the chunks are made anew.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np

import fastact as fa

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = 256
CHUNK = 16384  # rows: 16 MiB
ROWS = 128 * CHUNK  # 2 GiB
WORKERS = 2
LIMIT = 512  # MiB, of a worker
MEAN, STD = 1e4, 3.0
# Of the largest of 256 sampling errors, in standard errors.
ALLOWED = 6


def chunk_of(block_id: tuple[int, int]) -> Any:
    """The rows of a chunk: another seed for each."""
    rng = np.random.default_rng(block_id)
    values = rng.standard_normal((CHUNK, COLUMNS), np.float32)
    return np.add(np.multiply(values, STD, out=values), MEAN, out=values)


def chunks(rows: int) -> Any:
    """The array; no part of it is made yet."""
    shape = ((CHUNK,) * (rows // CHUNK), (COLUMNS,))
    return da.map_blocks(
        lambda block_id=None: chunk_of(block_id), chunks=shape, dtype=np.float32,
        meta=np.empty((0, 0), np.float32),
    )  # fmt: skip


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, where getrusage begins with the most of who started the process
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@contextmanager
def workers() -> Iterator[Any]:
    """What tells the peak of memory of each worker."""
    if find_spec("distributed") is None:
        with dask.config.set(scheduler="threads", num_workers=WORKERS):
            yield lambda: [peak()]
        return
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=WORKERS,
        threads_per_worker=1,
        memory_limit=f"{LIMIT}MiB",
        dashboard_address=None,
    )
    with cluster, Client(cluster) as client:
        yield lambda: list(client.run(peak).values())


def main() -> int:
    """Both passes; the exit status says whether what was found is right, within the limit."""
    parser = argparse.ArgumentParser(description="Statistics of an array larger than memory.")
    parser.add_argument("--quick", action="store_true", help="an eighth of the data")
    rows = ROWS // 8 if parser.parse_args().quick else ROWS
    x = chunks(rows)
    begin = time.perf_counter()
    with workers() as peaks:
        (m,) = dask.compute(fa.moments(x, 0))
        scaled = (x - m.mean.astype(np.float32)) / m.std().astype(np.float32)
        mean, var = dask.compute(*fa.mean_var(fa.mish(scaled)))
        used = peaks()
    seconds = time.perf_counter() - begin
    size = rows * COLUMNS * 4 / 2**20
    print(f"{size:.0f} MiB, twice, in {seconds:.1f} s; columns of {m.count} values")
    print(f"peak of each worker {', '.join(f'{mib:.0f}' for mib in used)} MiB, limit {LIMIT}")
    error = np.abs(m.mean - MEAN).max() / (STD / rows**0.5)
    spread = np.abs(m.std() / STD - 1).max() * (2 * rows) ** 0.5
    print(f"mean of Mish {mean:.6f}, variance {var:.6f}")
    passed = max(error, spread) < ALLOWED and max(used) < LIMIT
    print(
        f"the farthest column's mean is {error:.1f} standard errors off, its deviation "
        f"{spread:.1f}, at most {ALLOWED} allowed: {'passed' if passed else 'FAILED'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
