"""How kernels are launched for a shape, and the route of a warp through each.

As the plans in src/cuda have it, for contiguous arrays, parameters of x's dtype and sm_90. A kernel
that is not listed here can be described on the command line: tools/cuda_static.py, --via.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from cuda_static_model import MULTIPROCESSORS
from cuda_static_routes import Loop, Step, Via

#: Bytes of an element in storage, and in the type that is computed in.
ITEM = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
COMPUTE = {"float16": 4, "bfloat16": 4, "float32": 4, "float64": 8}
VECTOR = 16
WARP = 32
NARROW, WIDE = 256, 512  # threads of a block of a shorter and of a longer row
IN_FLIGHT = 4
HELD_ROW = {name: (4 if item == 2 else 8) * WIDE for name, item in ITEM.items()}  # vectors
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
    step: Step


def _power(number: int, most: int) -> int:
    return min(most, 1 << max(0, number - 1).bit_length())


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


def norm_forward(shape: Sequence[int], dtype: str, gate: str = "") -> Launch:
    """layer_norm's forward kernel over the last axis, weight and bias given: rows in registers.

    gate : of gated_rms_norm with a weight, the words of its functor.
    """
    count, length = prod(shape[:-1]), shape[-1]
    vecs, lanes, threads = held(-(-length * ITEM[dtype] // VECTOR), dtype)
    teams = threads // lanes
    # Folds of fold_team: one float, then two doubles at once, half of the lanes each, where a
    # double takes two shuffles. Within a warp a narrow row's steps are all there, skipped or not.
    in_block = lanes > WARP
    shuffles = 5 + 2 * 5 + 2 + (4 + 2 * 4 if in_block else 0) - (bool(gate) * (5 + 4 * in_block))
    counts = {"LDG.128": 3 * vecs, "STG.128": vecs, "SHFL": shuffles, "BAR": 2 * in_block}
    # A thread that lacks a vector jumps over what is made of it: counted as if it had all.
    step = Via(counts, near=True, diverges=True)
    return Launch(
        *(
            "norms",
            f"forward_rows Li{vecs} RowPhaseE0 NormOf {gate or 'NoGate'} NormQuick",
            -(-count // teams),
            threads,
        ),
        *(0, (3.0 if gate else 2.0) * count * length * ITEM[dtype]),
        *(vecs * VECTOR / ITEM[dtype], 1.0, step),
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
    shuffles = 5 + 8 + 1 if lanes > WARP else lanes.bit_length() - 1 + 2
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
        Loop(max(1, round(rows / 2)), two, ahead=2),
    )


def held_softmax(vectors: int, dtype: str) -> tuple[int, int, int]:
    """The same of softmax: softmax_shape of src/cuda/softmax/plan.cuh."""
    most = 4 if ITEM[dtype] == 2 else 8
    if vectors > most * WARP:
        lanes = vectors // most
        return (most, lanes, lanes) if vectors % (most * WARP) == 0 else held(vectors, dtype)
    of_thread = 4 if vectors <= 32 else most
    lanes = _power(-(-vectors // of_thread), WARP)
    return of_thread, lanes, NARROW // 2 if of_thread > 4 else NARROW


def _held_rows(
    kernel: str, kind: str, arrays: tuple[int, int], folds: tuple[int, int]
) -> Callable[[Sequence[int], str], Launch]:
    """A kernel of softmax over the last axis whose rows are in registers.

    arrays : that are read and written; folds: of numbers in the compute type, and in double.
    """

    def launch(shape: Sequence[int], dtype: str) -> Launch:
        count, length = prod(shape[:-1]), shape[-1]
        vectors = -(-length * ITEM[dtype] // VECTOR)
        if vectors > HELD_ROW[dtype]:
            raise SystemExit(f"cuda_static: {kernel} is known for rows that a block holds")
        vecs, lanes, threads = held_softmax(vectors, dtype)
        steps = min(lanes, WARP).bit_length() - 1 + (4 if lanes > WARP else 0)
        # Two numbers are folded at once, and given to all lanes by one step more.
        shuffles = folds[0] * COMPUTE[dtype] // 4 * steps + 2 * (steps + (folds[1] == 2))
        counts = {"LDG.128": arrays[0] * vecs, "STG.128": arrays[1] * vecs, "SHFL": shuffles}
        if lanes > WARP:
            counts["BAR"] = 1 + (folds[0] > 0)
        return Launch(
            *("softmax", f"{kernel} Li{vecs} RowPhaseE0 {kind} SoftmaxQuick"),
            *(-(-count * lanes // threads), threads, 0),
            float(sum(arrays)) * count * length * ITEM[dtype],
            *(vecs * VECTOR / ITEM[dtype], 1, Via(counts)),
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
            Via({"LDG.128": IN_FLIGHT, "STG.128": IN_FLIGHT}, diverges=True),
        )

    return launch


#: By the name on the command line. Activations are `activation:NAME`.
LAUNCHES: dict[str, Callable[[Sequence[int], str], Launch]] = {
    "norm_forward": norm_forward,
    "norm_backward": norm_backward,
    "gated_norm_forward": partial(norm_forward, gate="FixedGate Lb0E"),
    "gated_first_norm_forward": partial(norm_forward, gate="FixedGate Lb1E"),
    "softmax": _held_rows("forward_rows", "KindOf Li0E", (1, 1), (1, 1)),
    "log_softmax": _held_rows("forward_rows", "KindOf Li1E", (1, 1), (1, 2)),
    "logsumexp": _held_rows("forward_rows", "KindOf Lin2E", (1, 0), (1, 2)),
    "cross_entropy": _held_rows("forward_rows", "KindOf Lin2E", (1, 0), (1, 2)),
    "softmax_backward": _held_rows("softmax_backward_rows", "Li0E", (2, 1), (0, 1)),
    "log_softmax_backward": _held_rows("softmax_backward_rows", "Li1E", (2, 1), (0, 1)),
    **{name: activation(name) for name in ("gelu", "mish", "silu", "relu", "tanh", "sigmoid")},
}
