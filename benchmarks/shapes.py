"""The shapes at which ops with axes are measured, on the CPU and on GPUs: one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, prod

from fastact.ops.engine import axes

Shape = tuple[int, ...]
Axis = tuple[int, ...] | None


@dataclass(frozen=True)
class Layout:
    """A shape under a name.

    axes : what sums are taken over, one after the other; None for all axes.
    channel : the axis of a bias, where the shape is a layer's.
    """

    name: str
    shape: Shape
    axes: tuple[Axis, ...] = ()
    channel: int | None = None


def reduced(size: int, narrow: int) -> tuple[Layout, ...]:
    """The layouts of sums: arrays of about `size` elements, and three rows of `narrow`."""
    images, columns = max(size >> 20, 1), max(min(size // 8, 4096), 1)
    return (
        Layout("matrix", (max(size // columns, 1), columns), ((0,), (1,), None), -1),
        Layout("narrow", (narrow, 3), ((0,), (1,)), -1),
        Layout("flat", (3, narrow), ((0,), (1,))),
        Layout("nchw", (images, 64, 56, 56), ((0, 2, 3),), 1),
        Layout("nhwc", (images, 56, 56, 64), ((0, 1, 2),), -1),
    )


#: Sums on the CPU.
REDUCED = (
    *reduced(2**25, 10**6),
    Layout("small", (128, 6, 24, 24), ((0, 2, 3),), 1),  # a first layer: few channels, in the cache
    Layout("tall", (65536, 512), ((0,), (1,))),
)

#: Bias and activation on the CPU.
BIASED = (
    Layout("linear", (4096, 768), channel=-1),
    Layout("nchw", (32, 64, 56, 56), channel=1),
)

#: A penalty on weights, with its gradient.
WEIGHTS = (Layout("weights", (28, 28, 128)),)


#: Norms of rows on the CPU: out of the caches, in one, of a small net, and long.
NORMED_ROWS = (
    Layout("matrix", (8192, 4096)),
    Layout("linear", (4096, 768)),
    Layout("short", (128, 32)),
    Layout("long", (64, 65536)),
)

#: Norms of channels on the CPU.
NORMED_IMAGES = (
    Layout("nchw", (32, 64, 56, 56), channel=1),
    Layout("nhwc", (32, 56, 56, 64), channel=-1),
)

#: Batch norms on the CPU: out of the caches; deep in a net; a first layer, with few channels.
BATCHED = (
    *NORMED_IMAGES,
    Layout("deep", (8, 256, 14, 14), channel=1),
    Layout("deep-nhwc", (8, 14, 14, 256), channel=-1),
    Layout("small", (128, 6, 24, 24), channel=1),
    Layout("small-nhwc", (128, 24, 24, 6), channel=-1),
)

#: Softmax on the CPU: the rows of norms, and along the other axis.
SOFTMAX_ROWS = (
    Layout("matrix", (8192, 4096), ((1,),)),
    Layout("linear", (4096, 768), ((1,), (0,))),
    Layout("short", (1024, 64), ((1,),)),
    Layout("long", (64, 65536), ((1,),)),
)

#: Losses of classes on the CPU: words of a vocabulary, and digits.
CLASSES = (
    Layout("vocabulary", (512, 32000), ((1,),)),
    Layout("digits", (1024, 10), ((1,),)),
)

#: Recurrent cells on the CPU, rows and units of a state.
STATES = (
    Layout("cell", (256, 64)),
    Layout("wide", (64, 512)),
    Layout("large", (256, 1024)),
    Layout("memory", (16384, 1024)),
)

#: Recurrent cells on a GPU: a small one, a wide and large ones, and out of the caches.
GPU_STATES = tuple(
    Layout("", shape)
    for shape in ((256, 64), (64, 512), (256, 1024), (1024, 2048), (4096, 1024), (4096, 4096))
)

#: Rows of norms on a GPU from what a warp takes to what several blocks do; and short rows as others
#: publish them, which fit into the cache, and a length that is no power of two.
NORM_LENGTHS = (256, 1024, 4096, 16384, 65536, 262144)
PUBLISHED = (Layout("", (32768, 256)), Layout("", (8192, 5120)))

#: Rows of a biased activation, of softmax, of words of a vocabulary, and of a hidden layer.
BIAS_LENGTHS = (256, 4096, 65536)
ROW, WORDS, HIDDEN = 4096, 32000, (4096, 256)

#: Moments over an axis between others.
MIDDLE = (Layout("middle", (64, 512, 512), ((1,),)),)

#: Images, channels and side of pictures where no sizes are given: past the caches, and the first, a
#: later and the last stage of ResNet-50 at a batch of 32; planes of the last are no whole packs.
_PICTURES = ((256, 64, 56), (32, 64, 56), (32, 256, 14), (32, 2048, 7))


def pictures(sizes: Sequence[int] | None) -> list[Layout]:
    """Pictures on a GPU, each with channels first and last."""
    found: list[tuple[int, int, int]] = []
    for channels, largest in dict.fromkeys((c, s) for _, c, s in _PICTURES):
        for size in sizes or ():
            if size < 16 * channels and found:
                continue  # planes of next to nothing
            side = min(max(isqrt(size // channels), 2), largest)
            found.append((max(size // (channels * side * side), 2), channels, side))
    return [
        Layout("", (images, channels, side, side), channel=1)
        if leads
        else Layout("", (images, side, side, channels), channel=-1)
        for images, channels, side in (found if sizes else _PICTURES)
        for leads in (True, False)
    ]


def of_lengths(sizes: Sequence[int], lengths: Sequence[int]) -> list[Layout]:
    """Rows of each length on a GPU, as many as make up each size.

    >>> [layout.shape for layout in of_lengths((1024,), (256, 4096))]
    [(4, 256), (1, 1024)]
    """
    return [
        Layout("", (size // length, length))
        for size in sizes
        for length in sorted({min(length, size) for length in lengths})
    ]


def hidden(size: int) -> Shape:
    """Rows of a hidden layer; of a small one where there are few elements.

    >>> hidden(2**20), hidden(2048), hidden(64)
    ((256, 4096), (8, 256), (1, 64))
    """
    columns = next((n for n in HIDDEN if size >= 4 * n), size)
    return max(size // columns, 1), columns


def names() -> list[str]:
    """The names of all of them, once each."""
    tables = (REDUCED, BIASED, WEIGHTS, NORMED_ROWS, NORMED_IMAGES, BATCHED, MIDDLE, SOFTMAX_ROWS)
    every = (layout for table in (*tables, CLASSES, STATES) for layout in table)
    return list(dict.fromkeys(layout.name for layout in every))


def sums(sizes: Sequence[int]) -> list[Layout]:
    """The layouts of sums on a GPU: arrays of these sizes."""
    return [layout for size in sizes for layout in reduced(size, narrow=max(size // 2, 1))]


def others(shape: Shape, channel: int) -> tuple[int, ...]:
    """Every axis but one.

    >>> others((32, 64, 56, 56), 1), others((8192, 4096), -1)
    ((0, 2, 3), (0,))
    """
    return axes.others((channel % len(shape),), len(shape))


def broadcast_from(shape: Shape, axis: Axis) -> Shape:
    """The least shape that broadcasting repeats along `axis`.

    >>> broadcast_from((8192, 4096), (0,)), broadcast_from((8192, 4096), (1,))
    ((4096,), (8192, 1))
    """
    lengths = [1 if i in (axis or ()) else n for i, n in enumerate(shape)]
    while lengths and lengths[0] == 1:
        del lengths[0]
    return tuple(lengths)


def shared(shape: Shape, axis: Axis) -> int:
    """How many elements there are along `axis`.

    >>> shared((2, 3, 5), (0, 2)), shared((2, 3), None)
    (10, 6)
    """
    return prod(shape if axis is None else [shape[i] for i in axis])


def shape_label(shape: Shape) -> str:
    """Write a shape as people do.

    >>> shape_label((8192, 4096))
    '8,192 × 4,096'
    """
    return " × ".join(f"{n:,}" for n in shape)


def sum_label(shape: Shape, axis: Axis) -> str:
    """A shape, and the axes that are summed over.

    >>> sum_label((2, 3), (0,)), sum_label((2, 3), None)
    ('2 × 3, axis 0', '2 × 3, axis all')
    """
    named = "all" if axis is None else ", ".join(map(str, axis))
    return f"{shape_label(shape)}, axis {named}"
