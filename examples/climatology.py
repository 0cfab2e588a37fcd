"""The climatology of a grid that no worker could hold: each place's mean and deviation by month.

    pip install '.[bridges]'           # dask, distributed and xarray
    python examples/climatology.py     # --quick: an eighth of the grid

Twenty years of days are made chunk by chunk, where they are needed, by the workers of
`larger_than_memory.py`. A twentieth of the values is missing. Each chunk is read once: its days
fall into twelve groups, whose moments merge with the moments of other years.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import xarray as xr
from larger_than_memory import LIMIT, workers

import fastact.xarray as fx

PERIODS = 5  # each of four years, a chunk
DAYS = 1461  # of a chunk
TILE = (45, 60)  # of a chunk: 15 MiB
TILES, QUICK_TILES = (4, 6), (1, 3)
WARM, SEASON, SPREAD = 280.0, 10.0, 2.0  # of temperatures: mean, amplitude, deviation
MISSING = 0.05
# Of the largest of some 777 600 sampling errors, in standard errors.
ALLOWED = 6.5


def months_of(begin: int, days: int) -> Any:
    """The month of each day, from 0; day 0 is the first of 2001."""
    dates = np.datetime64("2001-01-01") + np.arange(begin, begin + days)
    return dates.astype("datetime64[M]").astype(int) % 12


def normal(month: Any) -> Any:
    """The temperature that a month has in the mean."""
    return WARM - SEASON * np.cos(2 * np.pi * month / 12)


def chunk_of(block_id: tuple[int, int, int]) -> Any:
    """The temperatures of a chunk: another seed for each."""
    rng = np.random.default_rng(block_id)
    values = rng.standard_normal((DAYS, *TILE), np.float32)
    values *= SPREAD
    values += normal(months_of(block_id[0] * DAYS, DAYS)).astype(np.float32)[:, None, None]
    values[rng.random(values.shape, np.float32) < MISSING] = np.nan
    return values


def temperatures(tiles: tuple[int, int]) -> Any:
    """The grid, day by day; no part of it is made yet."""
    chunks = ((DAYS,) * PERIODS, *((size,) * n for size, n in zip(TILE, tiles, strict=True)))
    data = da.map_blocks(
        lambda block_id=None: chunk_of(block_id), chunks=chunks, dtype=np.float32,
        meta=np.empty((0, 0, 0), np.float32),
    )  # fmt: skip
    days = np.datetime64("2001-01-01", "ns") + np.arange(PERIODS * DAYS) * np.timedelta64(1, "D")
    return xr.DataArray(data, {"time": days}, ["time", "lat", "lon"])


def main() -> int:
    """The exit status says whether the climatology is right, within the limit of memory."""
    parser = argparse.ArgumentParser(description="Climatology of a grid larger than memory.")
    parser.add_argument("--quick", action="store_true", help="an eighth of the grid")
    x = temperatures(QUICK_TILES if parser.parse_args().quick else TILES)
    begin = time.perf_counter()
    with workers() as peaks:
        of_months = fx.groupby(x, "time.month")
        mean, std = dask.compute(of_months.mean(), of_months.std(correction=1))
        used = peaks()
    seconds = time.perf_counter() - begin
    print(f"{x.nbytes / 2**20:.0f} MiB in {seconds:.1f} s; {dict(mean.sizes)}")
    print(f"peak of each worker {', '.join(f'{mib:.0f}' for mib in used)} MiB, limit {LIMIT}")
    each = np.bincount(months_of(0, PERIODS * DAYS)).min() * (1 - MISSING)
    truth = xr.DataArray(normal(mean["month"] - 1), dims="month")
    error = float(abs(mean - truth).max()) / (SPREAD / each**0.5)
    spread = float(abs(std / SPREAD - 1).max()) * (2 * each) ** 0.5
    passed = max(error, spread) < ALLOWED and max(used) < LIMIT
    print(
        f"the farthest month's mean is {error:.1f} standard errors off, its deviation "
        f"{spread:.1f}, at most {ALLOWED} allowed: {'passed' if passed else 'FAILED'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
