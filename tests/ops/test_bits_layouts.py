"""Sums have the same bits whichever way, how far and from where on their axes step.

`fastact.sum` promises it: terms are added up in the order of the axes or, where memory
holds those axes in another order, in memory's. So an array that is turned round, stepped,
misaligned or repeated along an axis has the bits of its copy in C order; where one axis alone is
added up, so
has one whose axes lie in memory in any other order.
"""

from collections.abc import Callable, Iterator
from typing import Any

import normed
import numpy as np
import pytest
from arrays import finite
from conftest import assert_same_bits

import fastact as fa
from fastact.measure.norm_rows import rows_of, traits

Layout = Callable[[np.ndarray], np.ndarray]


def copy_of(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(values.shape)


def turned(values: np.ndarray, *axes: int) -> np.ndarray:
    """The same values, lying in memory the other way round along some axes."""
    return np.flip(copy_of(np.flip(values, axes)), axes)


def stepped(values: np.ndarray, axis: int, step: int) -> np.ndarray:
    """The same values, with others between them."""
    shape = list(values.shape)
    shape[axis] *= abs(step)
    held = np.full(shape, 77, values.dtype)
    view = held[(*(slice(None),) * (axis % values.ndim), slice(None, None, step))]
    view[...] = values
    return view


def moved(values: np.ndarray, bytes_: int) -> np.ndarray:
    """The same values, so many bytes past where memory was allocated."""
    memory = np.empty(values.nbytes + bytes_, np.uint8)
    view = np.ndarray(values.shape, values.dtype, memory[bytes_:])
    view[...] = values
    return view


def padded(values: np.ndarray) -> np.ndarray:
    """The same values in records whose length is no multiple of an element's."""
    record = np.dtype({"names": ["x"], "formats": [values.dtype], "itemsize": values.itemsize + 1})
    held = np.zeros(values.shape, record)
    held["x"] = values
    return held["x"]


def layouts(ndim: int) -> Iterator[tuple[str, Layout]]:
    """Layouts that hold the axes in memory in the order of C."""
    every = tuple(range(ndim))
    for axis in every:
        yield f"turned {axis}", lambda v, a=axis: turned(v, a)
        yield f"stepped {axis}", lambda v, a=axis: stepped(v, a, 2)
    yield "turned", lambda v: turned(v, *every)
    yield "stepped back", lambda v: stepped(v, -1, -3)
    yield "next element", lambda v: moved(v, v.itemsize)
    yield "misaligned", lambda v: moved(v, 1)
    yield "records", padded


def permuted(ndim: int) -> Iterator[tuple[str, Layout]]:
    """Layouts that hold them in another."""
    for order in {tuple(range(ndim))[::-1], (*range(1, ndim), 0), (ndim - 1, *range(ndim - 1))}:
        if order != tuple(range(ndim)):
            yield (
                f"order {order}",
                lambda v, o=order: copy_of(v.transpose(o)).transpose(np.argsort(o)),
            )


def flat(result: Any) -> list[np.ndarray]:
    if isinstance(result, fa.Moments):
        return [np.asarray(result.mean), np.asarray(result.m2)]
    if isinstance(result, (tuple, list)):
        return [a for part in result for a in flat(part)]
    return [] if result is None else [np.asarray(result)]


def assert_layouts_agree(compute: Callable[[Layout], Any], which: list[tuple[str, Layout]]) -> None:
    """`compute` lays out its arrays by what it is given; the reference is C order, one thread."""
    with fa.num_threads(1):
        expected = flat(compute(copy_of))
    assert expected
    for name, layout in which:
        for threads in (1, 2):
            with fa.num_threads(threads):
                found = flat(compute(layout))
            for a, b in zip(found, expected, strict=True):
                try:
                    assert_same_bits(copy_of(a), copy_of(b))
                except AssertionError as error:
                    raise AssertionError(f"{name}, {threads} threads: {error}") from error


# Few terms and lanes that are not all filled; several blocks of 2048 terms and a rest; narrow and
# wide columns, short and long lines; 9000 terms are several blocks.
SUMS = [
    ((5,), 0), ((31,), 0), ((2049,), 0), ((70_001,), 0), ((3, 4100), 1), ((4100, 3), 0),
    ((9000, 70), 0), ((700, 7), 1), ((37, 130), (0, 1)), ((6, 5, 700), (0, 2)),
    ((6, 5, 9, 7), (0, 2, 3)),
    ((3, 4, 5, 60), (1, 2)), ((40, 6, 9), (0, 1)), ((9, 65), (0, 1)),
]  # fmt: skip
REDUCTIONS = [fa.sum, fa.sum_squares, fa.moments, fa.mean_var]


@pytest.mark.parametrize("op", REDUCTIONS, ids=lambda op: op.name)
@pytest.mark.parametrize(("shape", "axes"), SUMS, ids=str)
def test_reductions(op, dtype, shape, axes):
    x = finite(dtype, shape)
    which = list(layouts(len(shape)))
    if isinstance(axes, int):
        which += permuted(len(shape))
    assert_layouts_agree(lambda layout: op(layout(x), axes), which)


@pytest.mark.parametrize("op", REDUCTIONS, ids=lambda op: op.name)
def test_random_lengths(op, dtype):
    """Lengths around a block (2048) and a vector, along and across."""
    rng = np.random.default_rng(1)
    for n in {*rng.integers(1, 6000, 6).tolist(), 2047, 2048, 4096}:
        for shape, axis in (((n,), 0), ((3, n), 1), ((n, 5), 0)):
            x = finite(dtype, shape, seed=n)
            which = [*layouts(len(shape)), *permuted(len(shape))]
            assert_layouts_agree(lambda layout, x=x, axis=axis: op(layout(x), axis), which)


@pytest.mark.parametrize("op", REDUCTIONS, ids=lambda op: op.name)
@pytest.mark.parametrize("spread", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)], ids=str)
@pytest.mark.parametrize("axes", [0, 2, (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_repeated_values(op, dtype, spread, axes):
    """An axis along which the array repeats itself is one of a copy."""
    shape = (5, 70, 40)
    core = tuple(1 if i in spread else n for i, n in enumerate(shape))
    x = np.broadcast_to(finite(dtype, core), shape)
    assert_layouts_agree(lambda layout: op(layout(x), axes), [("repeated", lambda v: v)])


def test_value_and_grad(dtype):
    for shape in ((70_001,), (37, 130), (6, 5, 9)):
        x = finite(dtype, shape)
        assert_layouts_agree(
            lambda layout, x=x: fa.sum_squares.value_and_grad(layout(x)), [*layouts(len(shape))]
        )


def random_gradient(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    return finite(dtype, shape, seed=7)


# Lines and columns, short and long, few channels and more than a tile.
CHANNELS = [
    ((4100, 5), 1), ((3000, 70), 1), ((6, 5, 7, 9), 1), ((5, 6, 700), 1), ((3, 7, 9, 20), -1),
    ((3, 4100, 4), 2), ((9, 3000), 0),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), CHANNELS, ids=str)
def test_bias(dtype, shape, axis):
    x, dy = finite(dtype, shape), random_gradient(dtype, shape)
    bias = finite(dtype, (shape[axis],), seed=3)
    which = list(layouts(len(shape)))
    assert_layouts_agree(lambda layout: fa.bias_grad(layout(dy), axis=axis), which)
    for activation in ("identity", "mish"):

        def backward(layout, into=copy_of, activation=activation):
            dx, dbias = into(np.zeros_like(x)), np.zeros_like(bias)
            return fa.bias_act.backward(
                layout(dy), layout(x), bias, None, activation=activation, axis=axis, out=(dx, dbias)
            )

        assert_layouts_agree(backward, which)
        assert_layouts_agree(lambda layout, f=backward: f(copy_of, layout), which)


NORMS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("layer_norm", (5, 2100), {}),
    ("layer_norm", (70, 31), {}),
    ("layer_norm", (40, 4100), {"axis": 0}),
    ("layer_norm", (4, 6, 9, 7), {"axis": (2, 3)}),
    ("layer_norm", (4, 6, 9, 70), {"axis": (1, 3)}),
    ("rms_norm", (5, 2100), {}),
    ("rms_norm", (6, 5, 130), {}),
    ("add_layer_norm", (9, 130), {}),
    ("add_rms_norm", (9, 130), {}),
    ("group_norm", (3, 6, 9, 20), {"groups": 3}),
    ("group_norm", (3, 4100, 4), {"groups": 2, "channel_axis": 2}),
    ("group_norm", (3, 9, 7, 80), {"groups": 4, "channel_axis": 3}),
    ("group_norm", (2, 6, 3, 5), {"groups": 2}),
    ("instance_norm", (3, 6, 9, 20), {}),
    ("instance_norm", (3, 4100, 4), {"channel_axis": 2}),
    ("instance_norm", (2, 5, 5000), {}),
]


# Norms that are not listed have a shape all the same.
NORMS += [
    (op.name, (3, 6, 9, 20), {"groups": 3} if traits(op).groups else {})
    if traits(op).channels
    else (op.name, (9, 130), {})
    for op in normed.NORMS
    if op.name not in {name for name, *_ in NORMS}
]


@pytest.mark.parametrize(("name", "shape", "given"), NORMS, ids=str)
@pytest.mark.parametrize("activation", ["identity", "mish"])
def test_norms(dtype, name, shape, given, activation):
    op = fa.ops[name]
    options = dict(given)
    groups = (options.pop("groups"),) if "groups" in options else ()
    kind = traits(op)
    rows = rows_of(op, shape, {**options, "num_groups": groups[0] if groups else 0})
    keywords = {**options, **normed.told(op), "activation": activation}
    x, dy = finite(dtype, shape), random_gradient(dtype, shape)
    adds = (finite(dtype, shape, seed=9),) if kind.second else ()
    theirs = [finite(dtype, rows.parameter, 4 + i) for i, _ in enumerate(kind.weights)]
    which = list(layouts(len(shape)))

    def forward(layout, into=None):
        arrays = [layout(a) for a in (x, *adds)]
        made = {} if into is None or adds else {"out": into(np.zeros_like(x))}
        return op.forward(*arrays, *groups, *theirs, **keywords, **made)

    _, saved = forward(copy_of)

    def backward(layout):
        first, *rest = saved
        return op.backward(layout(dy), layout(first), *rest, **keywords)

    if len(shape) == 2:  # one axis of rows and one inside them: any order does
        which += permuted(2)
    assert_layouts_agree(forward, which)
    assert_layouts_agree(backward, which)
    if not adds:
        assert_layouts_agree(lambda layout: forward(copy_of, layout), which)


@pytest.mark.parametrize(("shape", "axis"), CHANNELS, ids=str)
@pytest.mark.parametrize("activation", ["identity", "mish"])
def test_batch_norm(dtype, shape, axis, activation):
    x, dy = finite(dtype, shape), random_gradient(dtype, shape)
    weight, bias = (finite(dtype, (shape[axis],), seed=i) for i in (4, 5))
    which = list(layouts(len(shape)))
    keywords = {"channel_axis": axis, "activation": activation}

    def forward(layout):
        running = np.zeros(shape[axis], np.float64), np.ones(shape[axis], np.float64)
        y, saved = fa.batch_norm.forward(layout(x), *running, weight, bias, True, **keywords)
        return y, *running, saved[1:]

    _, saved = fa.batch_norm.forward(
        x, np.zeros(shape[axis]), np.ones(shape[axis]), weight, bias, True, **keywords
    )

    def backward(layout):
        return fa.batch_norm.backward(layout(dy), layout(x), *saved[1:], **keywords)

    assert_layouts_agree(forward, which)
    assert_layouts_agree(backward, which)


@pytest.mark.parametrize("shape", [(4100, 5), (70, 40), (9, 8, 33)], ids=str)
def test_gates(dtype, shape):
    hidden = shape[-1]
    gates = finite(dtype, (*shape[:-1], 4 * hidden))
    c, dh, dc = (finite(dtype, shape, seed=i) for i in (1, 2, 3))
    bias = finite(dtype, (4 * hidden,), seed=4)
    which = list(layouts(len(shape)))

    def lstm(layout):
        _, saved = fa.lstm_gates.forward(layout(gates), layout(c), bias=bias)
        return fa.lstm_gates.backward(layout(dh), layout(dc), *saved)

    assert_layouts_agree(lstm, which)
    three, other = gates[..., : 3 * hidden], finite(dtype, (*shape[:-1], 3 * hidden), seed=8)

    def gru(layout):
        _, saved = fa.gru_gates.forward(
            layout(three), layout(other), layout(c), bias=bias[: 3 * hidden],
            recurrent_bias=bias[hidden:],
        )  # fmt: skip
        return fa.gru_gates.backward(layout(dh), *saved)

    assert_layouts_agree(gru, which)


def test_mean_var_backward(dtype):
    shape = (6, 70, 9)
    x = finite(dtype, shape)
    for axes in (1, (0, 2), None):
        like = fa.sum(x, axes, keepdims=True)
        gradients = tuple(np.full_like(like, k) for k in (2, 3))
        assert_layouts_agree(
            lambda layout, a=axes, g=gradients: fa.mean_var.backward(
                g, layout(x), axis=a, keepdims=True
            ),
            [*layouts(3), *(permuted(3) if axes == 1 else ())],
        )


# Odd heads and last columns are computed one by one where their neighbours go by vectors.
@pytest.mark.parametrize("name", ["mish", "gelu", "tanh", "softplus", "elu"])
def test_a_shifted_array_has_its_neighbours_bits(name, dtype, isa):
    """Element-wise: by one element, at lengths that leave any rest of a vector."""
    op = fa.ops[name]
    x, dy = finite(dtype, (300,)), random_gradient(dtype, (300,))
    with fa.num_threads(1):
        y, dx = op(x), op.backward(dy, x)
        for n in (1, 2, 3, 7, 15, 16, 17, 63, 127, 299):
            assert_same_bits(op(x[1 : 1 + n]), y[1 : 1 + n])
            assert_same_bits(op.backward(dy[1 : 1 + n], x[1 : 1 + n]), dx[1 : 1 + n])


def test_a_last_column_has_its_neighbours_bits(dtype, isa):
    """Sums, moments and norms by columns: those that fill no vector are computed one by one."""
    x = finite(dtype, (300, 67))
    everything = [flat(op(x, 0)) for op in REDUCTIONS]
    normed = fa.layer_norm(x, axis=0)
    for columns in (slice(1, 2), slice(1, 67), slice(3, 20), slice(60, 67)):
        part = copy_of(x[:, columns])
        for op, all_ in zip(REDUCTIONS, everything, strict=True):
            for a, b in zip(flat(op(part, 0)), all_, strict=True):
                assert_same_bits(a, b[columns])
        assert_same_bits(fa.layer_norm(part, axis=0), normed[:, columns])
