"""The recurrent gates against the oracle, in every dtype and layout, on every instruction set."""

from typing import Any

import judged
import ml_dtypes
import numpy as np
import pytest
from conftest import assert_all_same_bits, assert_same_bits
from recurrent import GATES, Step, backward, each_op, everywhere, forward, on, random_step

import fastact as fa
from fastact import _cpu

# Shorter and longer than a vector, rows that are joined, a buffer of 256, a tile of 1024 columns;
# more rows than a block of 2048; batches of no and of two axes.
SHAPES = [(7,), (1, 1), (3, 5), (70, 40), (4, 1100), (2100, 12), (2, 3, 300)]
# Of every op more than the second-level cache has, and columns of more than a unit.
WIDE = (256, 1100)


@each_op
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("recompute", [False, True])
def test_within_the_bounds(op, shape, dtype, backend, recompute):
    step = random_step(op, shape, dtype, 2.0, recompute=recompute)
    found = judged.assert_right(op, step.named, step.gradients, backend, shape)
    assert {*op.results, *op.gradients} <= found.keys()


# Where a reset gate works on a part of the sum, gates are others.
@pytest.mark.parametrize("op", [op for op in GATES if not op.takes_recurrent], ids=str)
def test_gates_are_the_activations(op, backend):
    """Kept gates have the bits of sigmoid and tanh of the sums."""
    step = random_step(on(op, backend), (9, 200), np.float32)
    kept = forward(step)[-1][0]
    assert step.bias is not None
    assert step.recurrent_bias is not None
    sums = (step.gates + step.recurrent) + (step.bias + step.recurrent_bias)
    parts = zip(step.letters, np.split(sums, len(step.letters), -1), strict=True)
    activation = lambda k: fa.tanh if k in "gn" else fa.sigmoid  # noqa: E731
    expected = [backend.run(activation(k), np.ascontiguousarray(a)) for k, a in parts]
    assert_same_bits(kept, np.concatenate(expected, -1))


@each_op
@everywhere
@pytest.mark.parametrize("shape", [(70, 40), (9, 65)], ids=str)
def test_call_forward_and_recompute_agree(op, dtype, shape, where):
    step = random_step(on(op, where), shape, dtype)
    *results, saved = forward(step)
    called = step.op(*step.arrays, **step.options)
    assert_all_same_bits(called if isinstance(called, tuple) else (called,), results)
    again = random_step(step.op, shape, dtype, recompute=True)
    inputs = forward(again)[-1]
    assert inputs[0] is again.gates
    if dtype in (np.float32, np.float64):  # which are kept as they were
        assert_all_same_bits(backward(again, inputs), backward(step, saved))


@each_op
@pytest.mark.parametrize("shape", [(33, 20), (256, 64), (64, 512), (2500, 40), WIDE], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dbias_is_bias_grad(op, shape, dtype, isa):
    """The sums of bias_grad, to the bit; both biases have theirs."""
    step = random_step(op, shape, dtype)
    made = backward(step, forward(step)[-1])
    named = dict(zip(op.gradients, made, strict=True))
    assert_same_bits(named["dbias"], fa.bias_grad(named["dgates"]))
    if op.takes_recurrent:
        assert_same_bits(named["drecurrent_bias"], fa.bias_grad(named["drecurrent"]))


# Columns that a kernel converts as they are, and with a rest; short ones, which are joined; more
# than a tile has; more rows than a block.
@each_op
@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(37, 32), (5, 3, 100), (40, 9), (6, 1100), (2100, 64)], ids=str)
@pytest.mark.parametrize("recompute", [False, True])
def test_16_bits_are_those_of_float32_rounded(op, shape, narrow, recompute, isa):
    """Both are computed in float32, and the former rounded once; its biases' sums before that."""
    step = random_step(op, shape, narrow, recompute=recompute)
    of = lambda a: None if a is None else a.astype(np.float32)  # noqa: E731
    step.bias, step.recurrent_bias = of(step.bias), of(step.recurrent_bias)
    wide = Step(
        op, of(step.gates), of(step.state), of(step.dh), of(step.recurrent), step.bias,
        step.recurrent_bias, of(step.dc), recompute=recompute,
    )  # fmt: skip
    *results, saved = forward(step)
    *exact, _ = forward(wide)
    assert_all_same_bits(results, [a.astype(narrow) for a in exact])
    made = backward(step, saved)
    for own, of_float32 in zip(made, backward(wide, tuple(map(of, saved))), strict=True):
        assert_same_bits(own, of_float32.astype(own.dtype))
    for i, d in enumerate(made):  # each alone
        out = tuple(np.empty_like(d) if k == i else None for k in range(len(made)))
        assert_same_bits(backward(step, saved, out=out)[i], d)


@each_op
@pytest.mark.parametrize("threads", [1, 3])
def test_dbias_alone(op, threads, isa):
    """Gradients that are not stored can't be read again, and have the same sums."""
    step = random_step(op, WIDE, np.float32)
    saved = forward(step)[-1]
    expected = backward(step, saved)
    out = tuple(np.empty_like(d) if d.ndim == 1 else None for d in expected)
    with fa.num_threads(threads):
        made = backward(step, saved, out=out)
    for gradient, same in zip(made, expected, strict=True):
        if same.ndim == 1:
            assert_same_bits(gradient, same)
        else:
            assert gradient is None


def test_sums_are_wide(backend):
    """1600 equal gradients in bfloat16, whose own sum would stop at 256 of them."""
    gates, ones = np.zeros((1600, 3), ml_dtypes.bfloat16), np.ones((1600, 3), ml_dtypes.bfloat16)
    reset = on(fa.gru_reset, backend)
    saved = reset.forward(gates, ones * 4, bias=np.zeros(3, np.float32))[1]
    np.testing.assert_array_equal(reset.backward(ones, *saved)[2], 1600.0)


@pytest.mark.parametrize("order", ["ifgo", "iofg", "iofc", "gofi", "ofig", "oigf"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(40, 50), (70, 6), (70, 40), (2100, 40)], ids=str)
def test_orders(order, dtype, shape, backend):
    """Gradients of biases lie as the gates do, also where they are added up of a buffer."""
    step = random_step(on(fa.lstm_gates, backend), shape, dtype)
    *results, saved = forward(step)
    dgates, dc_prev, dbias = backward(step, saved)
    letters = order.replace("c", "g")

    def turned(packed: Any) -> Any:
        parts = dict(zip("ifgo", np.split(packed, 4, -1), strict=True))
        return np.concatenate([parts[k] for k in letters], -1)

    other = Step(
        step.op, turned(step.gates), step.state, step.dh, turned(step.recurrent),
        turned(step.bias), turned(step.recurrent_bias), step.dc, order,
    )  # fmt: skip
    *others, kept = forward(other)
    assert_all_same_bits(others, results)
    assert_same_bits(kept[0], turned(saved[0]))
    assert_all_same_bits(backward(other, kept), (turned(dgates), dc_prev, turned(dbias)))


@each_op
def test_nan_and_inf(op, backend):
    """A NaN stays in its column, and spreads nowhere else; shut gates are exact."""
    step = random_step(on(op, backend), (4, 40), np.float32)
    step.bias = step.recurrent_bias = None
    expected = forward(step)[0].copy()
    step.gates[1, 3] = np.nan
    y = forward(step)[0]
    changed = y != expected
    assert np.isnan(y[1, 3])
    assert changed.sum() == 1
    saved = forward(step)[-1]
    assert np.isnan(backward(step, saved)[0]).any(-1).tolist() == [False, True, False, False]
    for value in (np.inf, -np.inf):
        step.gates[...] = value
        assert np.isfinite(forward(step)[0]).all()
    if op in (fa.gru_gates, fa.gru_blend):  # z is 1: the state is kept to the last bit
        step.gates[...] = np.inf
        assert_same_bits(forward(step)[0], step.state)


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_one_unit_with_gaps_between_the_gates(batch):
    """Gradients of one column a gate, written with gaps, are summed without them."""
    rng = np.random.default_rng(0)
    gates, c, dh = (rng.normal(size=(*batch, n)) for n in (4, 1, 1))
    bias = rng.normal(size=4)
    _, saved = fa.lstm_gates.forward(gates, c, bias=bias)
    expected = fa.lstm_gates.backward(dh, None, *saved)
    wide = np.full((*batch, 8), np.nan)
    dbias = np.empty(4)
    fa.lstm_gates.backward(dh, None, *saved, out=(wide[..., ::2], None, dbias))
    np.testing.assert_array_equal(wide[..., ::2], expected[0])
    np.testing.assert_array_equal(dbias, expected[2])
    assert np.isnan(wide[..., 1::2]).all()


def test_threads_that_begin_amid_an_axis(request):
    """Rows that are joined, as many at once as an axis of the batch has left.

    8009 is prime, so that no thread but the first begins where an axis does, and enough for several
    threads. The 5 rows of an axis are fewer than a tile may have, so that a thread's second tile
    has more rows than its first one.
    A call with other biases comes before, lest a thread's stack still has the right ones.
    """
    _cpu.set_back_off(0)  # all threads, however busy the cores are
    request.addfinalizer(lambda: _cpu.set_back_off(1))
    rng = np.random.default_rng(0)
    gates, c = (rng.normal(size=(8009, 8, n)).astype(np.float32)[:, :5] for n in (32, 8))
    bias = rng.normal(size=32).astype(np.float32)
    expected = fa.lstm_gates(gates.copy(), c.copy(), bias=bias)  # whose rows are one axis
    for threads in (1, 2, 3, 5):
        with fa.num_threads(threads):
            fa.lstm_gates(gates, c, bias=bias + 1)
            found = fa.lstm_gates(gates, c, bias=bias)
        assert_all_same_bits(found, expected)


def test_gradients_of_biases_are_added_up_once():
    """A step that a cache does not hold sums them from gradients that are stored, unless those are
    added to something."""
    rng = np.random.default_rng(0)
    gates, c, dy = (rng.normal(size=(40, n)).astype(np.float32) for n in (36_000, 9000, 9000))
    _, saved = fa.lstm_gates.forward(gates, c, bias=gates[0])
    found = fa.lstm_gates.backward(dy, dy, *saved)
    onto = tuple(np.ones_like(each) for each in found)
    fa.lstm_gates.backward(dy, dy, *saved, out=onto, accumulate=True)
    for more, each in zip(onto, found, strict=True):
        np.testing.assert_allclose(more - 1, each, atol=2e-5)  # 40 terms, rounded beside 1


def test_the_order_of_rows_does_not_depend_on_threads():
    """With rows in another order in memory, a sum of its own would add them up in that order."""
    rng = np.random.default_rng(0)
    shape = (9, 13, 320)  # more rows than lanes, and more than the first-level cache holds
    gates, c, dh = (
        np.asfortranarray(rng.normal(size=(*shape[:2], k * shape[2]))) for k in (4, 1, 1)
    )
    _, saved = fa.lstm_gates.forward(gates, c, bias=rng.normal(size=4 * shape[2]))
    found = []
    for threads in (1, 2, 3, 4):
        with fa.num_threads(threads):
            found.append(fa.lstm_gates.backward(dh, None, *saved)[2])
    for dbias in found[1:]:
        assert_same_bits(dbias, found[0])
