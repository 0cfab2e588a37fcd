"""How kernels are launched for a shape, and the route of a warp through each.

As the plans in src/cuda have it, for contiguous arrays, parameters of x's dtype and sm_90. A kernel
that is not listed here can be described on the command line: tools/cuda_static.py, --via.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from cuda_static_model import MULTIPROCESSORS
from cuda_static_names import ITEM
from cuda_static_routes import Loop, Step, Via

VECTOR = 16
WARP = 32
NARROW, WIDE = 256, 512  # threads of a block of a shorter and of a longer row
WARP_ROW, WIDE_ROW = 256, 2048  # vectors of a row: at most of a warp's, at least of a wide block's
IN_FLIGHT = 4
HELD_BACKWARD = {2: 1024, 4: 1536, 8: 1024}  # vectors of a row that a block holds, by item size


@dataclass(frozen=True)
class Launch:
    """One launch: which kernel, its blocks, what moves, and the way of a warp through it.

    rows : what a thread has of them, for counting folds; elements: that it computes.
    """

    source: str
    words: str  # of the mangled name, in their order
    grid: int
    threads: int
    shared: int  # dynamic, of a block
    bytes: float
    elements: float
    rows: float
    steps: Sequence[Step]


def _power(number: int, most: int) -> int:
    return min(most, 1 << max(0, number - 1).bit_length())


def _fold(lanes: int, numbers: int = 1) -> list[Step]:
    """Numbers in double, over the lanes of a row: within warps, by a barrier, over the warps."""
    step = {"SHFL": 2, "LDG": 0, "BAR": 0}
    steps: list[Step] = [Loop(min(lanes, WARP).bit_length() - 1, step)] * numbers
    if lanes > WARP:
        over = Loop((lanes // WARP).bit_length() - 1, step)
        steps += [Via({"BAR": 1}), *([over] * numbers)]
    return steps


def _forward_lanes(vectors: int) -> tuple[int, int, int]:
    """Lanes of a row, threads of a block, vectors of a lane."""
    if vectors <= WARP_ROW:
        lanes = _power(-(-vectors // IN_FLIGHT), WARP)
    else:
        lanes = NARROW if vectors < WIDE_ROW else WIDE
    return lanes, NARROW if lanes <= WARP else lanes, -(-vectors // lanes)


def _takes(per_lane: int, counts: dict[str, int]) -> list[Step]:
    """Loads into the cache, four vectors at a time and then one by one."""

    def each(n: int) -> dict[str, int]:
        return {"LDG.128": n, "STS.128": n, **counts}

    return [Loop(per_lane // IN_FLIGHT, each(IN_FLIGHT)), Loop(per_lane % IN_FLIGHT, each(1))]


def held(vectors: int, dtype: str) -> tuple[int, int, int]:
    """Vectors of a thread, lanes of a row, threads of a block: row_shape of core/held_rows.cuh."""
    most = 4 if ITEM[dtype] == 2 else 8
    if vectors <= 2 * WARP:
        return 2, _power(-(-vectors // 2), WARP), NARROW
    if vectors <= 4 * WARP:
        return 4, WARP, NARROW
    if vectors <= most * WARP:
        return most, WARP, NARROW // 2
    of_thread = 4 if vectors <= 1024 else most
    lanes = -(-vectors // of_thread // WARP) * WARP
    return of_thread, lanes, lanes


def norm_forward(shape: Sequence[int], dtype: str) -> Launch:
    """layer_norm's forward kernel over the last axis, weight and bias given: rows in registers."""
    count, length = prod(shape[:-1]), shape[-1]
    vecs, lanes, threads = held(-(-length * ITEM[dtype] // VECTOR), dtype)
    teams = threads // lanes
    shuffles = min(lanes, WARP).bit_length() - 1
    barrier = [Via({"BAR": 1})] if lanes > WARP else []
    steps: list[Step] = [
        Loop(shuffles, {"SHFL": 1, "LDG": 0, "BAR": 0}),
        *barrier,
        *[Loop(shuffles, {"SHFL": 2, "LDG": 0, "BAR": 0})] * 2,
        *barrier,
        Via({"LDG.128": 2 * vecs, "STG.128": vecs}, near=True),
    ]
    return Launch(
        *("norms", f"norm_forward_rows Li{vecs} NormQuick", -(-count // teams), threads),
        *(0, 2.0 * count * length * ITEM[dtype]),
        *(vecs * VECTOR / ITEM[dtype], 1.0),
        steps,
    )


def held_backward(vectors: int, dtype: str) -> tuple[int, int, int, int]:
    """As `held`: backward_shape of src/cuda/norms/rows/norms.cu; and blocks, at most."""
    item = ITEM[dtype]
    if vectors <= 2 * WARP:
        of_thread, lanes, threads = 2, max(2, _power(-(-vectors // 2), WARP)), NARROW
    else:
        of_thread = 1 if vectors <= (256 if item == 2 else 512) else 2 if vectors <= 1024 else 3
        lanes = threads = -(-vectors // (of_thread * WARP)) * WARP
    resident = 512 if of_thread > 1 or item == 8 else 768 if item == 2 else 1024
    return of_thread, lanes, threads, MULTIPROCESSORS * max(1, resident // threads)


def norm_backward(shape: Sequence[int], dtype: str) -> Launch:
    """layer_norm's backward kernel over the last axis, dweight and dbias wanted.

    Left out: its sums go to shared memory every 14 rows, and in the end to the partial sums.
    """
    count, length = prod(shape[:-1]), shape[-1]
    item = ITEM[dtype]
    vectors = -(-length * item // VECTOR)
    if vectors > HELD_BACKWARD[item]:
        most = HELD_BACKWARD[item]
        raise SystemExit(f"cuda_static: norm_backward is known for rows of up to {most} vectors")
    vecs, lanes, threads, most = held_backward(vectors, dtype)
    teams = threads // lanes
    grid = min(most, -(-count // teams))
    rows = -(-count // (grid * teams))
    elements = vecs * VECTOR // item
    # Two rows a round, each of which loads the next one. A multiply-add of an element for g xhat
    # and for its column, two for dx. Half a warp folds each of two sums: in double over the warps.
    shuffles = 5 + 8 + 2 if lanes > WARP else lanes.bit_length() - 1 + 2
    two = {
        "LDG.128": 4 * vecs,
        "STG.128": 2 * vecs,
        "BAR": 2 * (lanes > WARP),
        "FFMA": 2 * 4 * elements,
        "SHFL": 2 * shuffles,
    }
    return Launch(
        *("norms", f"norm_backward_rows Li{vecs} MeansByE{int(lanes > WARP)}E NormQuick", grid),
        *(threads, 8 * 2 * elements * threads, 3.0 * count * length * item),
        *(rows * elements, rows),
        [Loop(max(1, round(rows / 2)), two, ahead=2)],
    )


def _softmax(kind: str) -> Callable[[Sequence[int], str], Launch]:
    def launch(shape: Sequence[int], dtype: str) -> Launch:
        if ITEM[dtype] < 4:
            raise SystemExit(f"cuda_static: {kind} is known for float32 and float64")
        count, length = prod(shape[:-1]), shape[-1]
        vectors = -(-length * ITEM[dtype] // VECTOR)
        lanes, threads, per_lane = _forward_lanes(vectors)
        teams = threads // lanes
        terms = {"LDS.128": 1, "STS.128": 1, "LDG.128": 0, "STG.128": 0}
        steps: list[Step] = [
            *_takes(per_lane, {}),
            *_fold(lanes),
            Loop(per_lane, terms),
            *_fold(lanes),
            *_fold(lanes),
        ]
        if kind == "softmax":
            steps.append(Loop(per_lane, {"LDS.128": 1, "LDG.128": 0, "STG.128": 1}))
        return Launch(
            *("softmax", "softmax_forward_rows Lb0 SoftmaxRows", -(-count // teams), threads),
            per_lane * VECTOR * threads,
            (2.0 if kind == "softmax" else 1.0) * count * length * ITEM[dtype],
            *(per_lane * VECTOR / ITEM[dtype], 1, steps),
        )

    return launch


def activation(name: str) -> Callable[[Sequence[int], str], Launch]:
    """The map of an activation, forward: four vectors a thread."""

    def launch(shape: Sequence[int], dtype: str) -> Launch:
        elements = IN_FLIGHT * VECTOR // ITEM[dtype]
        words = f"map_contiguous Li1ELb0 7Forward {len(name)}{name.capitalize()}"
        return Launch(
            *("activations", words, -(-prod(shape) // (NARROW * elements)), NARROW, 0),
            *(2.0 * prod(shape) * ITEM[dtype], elements, 0),
            [Via({"LDG.128": IN_FLIGHT, "STG.128": IN_FLIGHT}, diverges=True)],
        )

    return launch


#: By the name on the command line. Activations are `activation:NAME`.
LAUNCHES: dict[str, Callable[[Sequence[int], str], Launch]] = {
    "norm_forward": norm_forward,
    "norm_backward": norm_backward,
    "softmax": _softmax("softmax"),
    "logsumexp": _softmax("logsumexp"),
    **{name: activation(name) for name in ("gelu", "mish", "silu", "relu", "tanh", "sigmoid")},
}
