"""What the model makes of the machine code, beside rows of the benchmark on an H200."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_static_launches import HELD_ROW, LAUNCHES, NARROW, Launch
from cuda_static_measured import GPU, WARP, launches
from cuda_static_model import Prediction, Work, copy_seconds, predict
from cuda_static_names import ITEM
from cuda_static_one import count
from cuda_static_routes import Router, pattern

if TYPE_CHECKING:
    from cuda_static import Kernel

BENCH = GPU / "h200.json"
#: Rows that need more than one kernel forward, or backward go in chunks, are not followed.
_LONGEST = {"norm_forward": 2048, "norm_backward": 1024}
#: Kernels that are others now than when they were measured: what is predicted is a forecast.
_HELD = ("softmax", "log_softmax", "logsumexp", "softmax_backward", "log_softmax_backward")
CHANGED = frozenset({"norm_forward", "norm_backward", *_HELD})
#: Fewer bytes are a matter of launches.
_LEAST = 100 << 20
_OPS = {
    ("layer_norm", "forward"): "norm_forward",
    ("layer_norm", "backward"): "norm_backward",
    **{(name, "forward"): name for name in ("softmax", "log_softmax", "logsumexp")},
    **{(name, "backward"): f"{name}_backward" for name in ("softmax", "log_softmax")},
    **{(name, "forward"): name for name in ("gelu", "mish", "silu", "relu", "tanh")},
}
# Backward of norms: the launch that adds up the parts' sums, as one of two was profiled.
_FINISH = Work(bytes=2e6, grid=32, warps=8, resident=6, instructions=308, rounds=8, shuffles=8)


@dataclass(frozen=True)
class Row:
    """A row of the benchmark: its shape, bytes and seconds, and what is predicted."""

    op: str
    direction: str
    dtype: str
    shape: tuple[int, ...]
    measured: float
    predicted: float
    main: Prediction
    an_element: float
    bytes: float
    is_forecast: bool

    @property
    def off(self) -> float:
        """The prediction's error as a share of what was measured."""
        return self.predicted / self.measured - 1

    @property
    def of_copy(self) -> tuple[float, float]:
        """Shares of a copy's speed: measured, predicted."""
        copy = copy_seconds(self.bytes)
        return copy / self.measured, copy / self.predicted


@dataclass(frozen=True)
class Executed:
    """A profiled launch: instructions of a thread an element, by its route and on the device."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    counted: float
    executed: float

    @property
    def off(self) -> float:
        """The count's error as a share of what was executed."""
        return self.counted / self.executed - 1


def _has(kernels: Sequence[Kernel], launch: Launch) -> bool:
    """Whether the kernel of a launch was compiled: helpers of 16-bit data have float32 kernels."""
    return any(pattern(launch.words).search(one.code.name) for one in kernels)


def executed(kernels: Sequence[Kernel], source: str = "") -> Iterator[Executed]:
    """The profiled launches whose routes are known, of one source or of all."""
    routers: dict[str, Router] = {}
    for row in launches():
        name = _OPS.get((row["op"], row["direction"]))
        of = [one for one in kernels if one.dtype == row["dtype"]]
        if name is None or name in CHANGED or row["kernel"] == "norm_parameters" or not of:
            continue
        launch = LAUNCHES[name](row["shape"], row["dtype"])
        if source not in ("", launch.source) or not _has(of, launch):
            continue
        counted = count(of, launch, routers)
        elements = prod(row["shape"])
        yield Executed(
            *(name, row["dtype"], tuple(row["shape"]), counted.an_element),
            row["instructions"] * WARP / elements,
        )


def _shape(what: str) -> tuple[int, ...] | None:
    """Of a row's words; none where it names an axis."""
    words = what.replace(",", "").replace(" ", "")
    parts = words.split("×")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else None


def rows(kernels: Sequence[Kernel], path: Path = BENCH) -> Iterator[Row]:
    """The rows of the benchmark whose kernels are known, predicted from the machine code."""
    if not path.exists():
        return
    routers: dict[str, Router] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        name = _OPS.get((row["op"], row["direction"]))
        shape = _shape(row["what"])
        dtype = row["dtype"]
        if name is None or shape is None or row["bytes"] < _LEAST or dtype == "float64":
            continue
        vectors = shape[-1] * ITEM[dtype] // 16
        longest = HELD_ROW[dtype] if name in _HELD else _LONGEST.get(name, vectors)
        if len(shape) > 1 and vectors > longest:
            continue
        if vectors > NARROW and vectors % NARROW and len(shape) > 1:
            continue  # some lanes have a vector more than others
        of = [one for one in kernels if one.dtype == dtype and not one.is_variant]
        launch = LAUNCHES[name](shape, dtype)
        if not _has(of, launch):
            continue
        counted = count(of, launch, routers)
        work = replace(counted.work, bytes=row["bytes"])
        made = predict(work)
        seconds = made.seconds + predict(_FINISH).seconds * (name == "norm_backward")
        yield Row(
            *(row["op"], row["direction"], dtype, shape, row["seconds"]["fastact"], seconds),
            *(made, counted.an_element, row["bytes"], name in CHANGED),
        )
