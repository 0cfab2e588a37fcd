"""What one op or entry point refuses, beyond what tests/invariants/test_refused.py asks of all ops.

A row is the class of the error, words of its message behind the entry point's name, and the call.
"""

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from arrays import Elsewhere, f32

import fastact as fa
from fastact import Moments

BIG = np.zeros(100_000)
HELD, SQUARE, IMAGE = f32(9, 4), f32(4, 4), f32(2, 6, 3)
X, X4, X6 = f32(2, 3), HELD[:8], f32(4, 6)
W, B4, B12, TWO = f32(3), f32(4), f32(12), f32(2)
FROZEN = f32(3)
FROZEN.flags.writeable = False
ONE_ELEMENT = np.lib.stride_tricks.as_strided(f32(4), (3,), (0,), writeable=True)
GATES = f32(2, 12)
TALL = np.ones((1, 4) + (1,) * 62, np.float32)
COS = SIN = f32(4, 4)
ROWS, ROTATED = f32(2, 4, 8), f32(2, 4, 8)
HALF, BRAIN = np.float16, ml_dtypes.bfloat16
SINK = f32(3)
SCORES = f32(2, 3, 4)
CLASSES = np.array([0, 1])
SHARE = f32(2, 3)
LSTM, GRU = fa.lstm_gates.forward(GATES, X)[1], fa.gru_gates.forward(f32(2, 9), f32(2, 9), X)[1]
MEAN = f32(1, 3)
M, PAIR = fa.moments(X, 0), fa.moments(X)

Row = tuple[type[Exception], str, partial[Any]]


def at(*positions: int) -> dict[str, np.ndarray]:
    return {"positions": np.array(positions)}


ACTIVATIONS: list[Row] = [
    (TypeError, r"x must have dtype .* got 1180591620717411303424", partial(fa.mish, 2**70)),
    (TypeError, r"x must have dtype .* got \[0.5, None\]", partial(fa.mish, [0.5, None])),
    (TypeError, "got (longdouble|float128)", partial(fa.mish, np.ones(3, np.longdouble))),
    (ValueError, "partial overlap", partial(fa.mish, SQUARE[1:], out=SQUARE[:3])),
    (ValueError, "partial overlap", partial(fa.mish, SQUARE[:3], out=SQUARE[1:])),
    (ValueError, "out must not overlap itself", partial(fa.mish, W, out=ONE_ELEMENT)),
    (TypeError, "not lazily conjugated",
     partial(fa.mish, torch.ones(3, dtype=torch.complex64).conj())),
    (TypeError, "takes at most", partial(fa.mish, W, W, W)),
    (TypeError, "by position and by keyword", partial(fa.mish, W, W, out=W)),
    (TypeError, "unexpected keyword argument", partial(fa.mish, X, **{"k" * 10**5: 1})),
    (TypeError, "axis.*; did you mean .channel_axis", partial(fa.batch_norm, X, W, W, axis=1)),
    (ValueError, "stream must be None", partial(fa.mish, X, stream=BIG)),
    (TypeError, "dy must come from torch.*got list",
     partial(fa.mish.backward, [1, 2, 3], torch.ones(3))),
    (TypeError, "dtype float16, .*got bfloat16",
     partial(fa.mish.backward, W.astype(BRAIN), W.astype(HALF))),
    (ValueError, "lambd must not be negative", partial(fa.softshrink, W, lambd=-0.5)),
    (ValueError, "alpha must not be zero", partial(fa.celu, W, alpha=0)),
    (ValueError, "alpha must be finite, got nan", partial(fa.elu, W, alpha=np.nan)),
    (ValueError, r"min_val must not exceed max_val, got min_val=2\.0, max_val=1\.0",
     partial(fa.hardtanh, W, min_val=2.0, max_val=1.0)),
    (ValueError, "approximate must be .*, got ndarray of", partial(fa.gelu, X, BIG)),
    (ValueError, "approximate must be", partial(fa.gelu, X, "t" * 10**6)),
]  # fmt: skip

BIAS: list[Row] = [
    (ValueError, r"bias must have shape \(4,\), the length of axis -1 of x, got \(8,\)",
     partial(fa.bias_act, X4, f32(8))),
    (TypeError, "bias must have dtype float16, .*got bfloat16",
     partial(fa.bias_act, X4.astype(HALF), B4.astype(BRAIN))),
    (TypeError, "bias must be an array .* bits", partial(fa.bias_act, X, 10**5000)),
    (ValueError, "activation must be 'identity'", partial(fa.bias_act, X4, B4, "sum")),
    (TypeError, "axis must be given by keyword", partial(fa.bias_act, X4, B4, "mish", 1)),
    (ValueError, "residual|not share",
     partial(fa.bias_act, f32(8, 4), B4, residual=X4, out=HELD[1:])),
    (ValueError, "partial overlap", partial(fa.bias_act, SQUARE, B4, out=SQUARE.T)),
    (ValueError, "(bias|not share memory)",
     partial(fa.bias_act, f32(1, 4), B4, out=B4.reshape(1, 4))),
    (TypeError, "x must be an array, as forward",
     partial(fa.bias_act.backward, X4, None, B4, None, "mish")),
    (ValueError, "a tuple of 2, got one ndarray",
     partial(fa.bias_act.backward, X4, X4, B4, out=f32(8, 4))),
    (ValueError, r"out\[0\] must",
     partial(fa.bias_act.backward, f32(1, 4), f32(1, 4), B4, out=(B4.reshape(1, 4), None))),
    (ValueError, "dy must have an axis, got", partial(fa.bias_grad, f32())),
    (TypeError, "got 1; axis must be given by keyword", partial(fa.bias_grad, X4, 1)),
    (ValueError, "axis must be from .* bits", partial(fa.bias_grad, X, axis=10**5000)),
    (ValueError, r"shape \(5,\), got", partial(fa.bias_grad.backward, B4, (3, 5))),
    (ValueError, "out must not share memory", partial(fa.bias_grad, X4, out=X4[0])),
    (ValueError, r"shape must broadcast to \(8, 4\), the shape of dy, got \(3,\)",
     partial(fa.unbroadcast, X4, (3,))),
    (ValueError, r"\(8, 4\), .*got \(1, 8, 4\)", partial(fa.unbroadcast, X4, (1, 8, 4))),
    (TypeError, "shape must be a tuple of integers", partial(fa.unbroadcast, X4, 4)),
    (ValueError, r"dy must have a shape that broadcasts to \(2, 3\), got \(4,\)",
     partial(fa.unbroadcast.backward, B4, (2, 3))),
]  # fmt: skip

GATED_AND_GATES: list[Row] = [
    (ValueError, "x must have an even length along", partial(fa.glu, X6[:, :5])),
    (ValueError, "x must have an axis, got", partial(fa.glu, np.float32(1))),
    (ValueError, "alpha must be above zero", partial(fa.swiglu, X6, X6, alpha=-1.0)),
    (ValueError, r"bias must have shape \(12,\)", partial(fa.swiglu, X6, X6, bias=B12[:6])),
    (ValueError, "out must not share memory with x", partial(fa.glu, X6, out=X6[:, :3])),
    (ValueError, "must not share .* with dy",
     partial(fa.glu.backward, X6[:, :3], f32(4, 6), out=X6)),
    (ValueError, "gates must have a last axis of 4", partial(fa.lstm_gates, f32(2, 10), X)),
    (ValueError, "gates must have a last axis of 3 gates",
     partial(fa.gru_gates, f32(2, 10), f32(2, 10), X)),
    (ValueError, "recurrent_bias must have shape",
     partial(fa.lstm_gates, GATES, X, recurrent_bias=f32(1, 12))),
    (ValueError, "order must be", partial(fa.lstm_gates, f32(1, 4), f32(1, 1), order=BIG)),
    (ValueError, "partial overlap",
     partial(fa.lstm_gates, GATES, X, out=(GATES[:, 1:4], f32(2, 3)))),
    (ValueError, "must not share memory with bias",
     partial(fa.lstm_gates, GATES[:1], X[:1], bias=B12, out=(B12[:3].reshape(1, 3), f32(1, 3)))),
    (ValueError, r"out\[1\] must not share memory with c_prev, which is still",
     partial(fa.lstm_gates.forward, GATES, X, out=(f32(2, 3), X, None))),
    (ValueError, "must not share memory with gates, which is still needed",
     partial(fa.lstm_gates.forward, GATES, X, out=(GATES[:, :3], None, None), recompute=True)),
    (TypeError, "dc must be given", partial(fa.lstm_gates.backward, X)),
    (TypeError, "c must be given", partial(fa.lstm_gates.backward, X, None, GATES, X)),
    (TypeError, "c must be an array, as forward saved it with recompute=False",
     partial(fa.lstm_gates.backward, X, None, GATES, X, None)),
    (TypeError, "gates must be an array, as forward",
     partial(fa.lstm_gates.backward, X, None, None, *LSTM[1:])),
    (ValueError, "a last axis of 4 gates",
     partial(fa.gru_gates.backward, X, f32(2, 9), *GRU[1:])),
    (TypeError, "recurrent must be an array, as forward saved it with recompute=True",
     partial(fa.gru_gates.backward, X, *GRU, recompute=True)),
    (ValueError, r"out\[2\] must be None, as there is no bias",
     partial(fa.lstm_gates.backward, X, None, *LSTM, out=(None, None, f32(12)))),
]  # fmt: skip

NORMS: list[Row] = [
    (ValueError, r"weight must have shape \(6, 3\), got \(6,\)",
     partial(fa.layer_norm, IMAGE, f32(6), axis=(1, 2))),
    (TypeError, "weight must be an array, got .* bits", partial(fa.layer_norm, X, 10**5000)),
    (ValueError, "x must have an axis to normalize along, got shape",
     partial(fa.layer_norm, np.float32(1))),
    (ValueError, "must be weight itself or share no memory|must not share memory with weight",
     partial(fa.layer_norm, X6, X6[0], out=X6)),
    (ValueError, "must not share memory with x, which is still needed",
     partial(fa.layer_norm.forward, X6, out=X6)),
    (ValueError, "must not share memory with x, which is still needed",
     partial(fa.mish.forward, X6, out=X6)),
    (TypeError, "activation must be .*, got ndarray", partial(fa.layer_norm, X, activation=BIG)),
    (ValueError, "activation must be", partial(fa.layer_norm, X, activation="m" * 10**4)),
    (ValueError, "name each axis once", partial(fa.rms_norm, X6, axis=(0, -2))),
    (ValueError, "axis must be from -1 to 0", partial(fa.instance_norm, f32(6))),
    (ValueError, "num_groups must divide the 6 channels along axis 1, got 4",
     partial(fa.group_norm, IMAGE, 4)),
    (TypeError, "num_groups must be an integer, got ndarray of", partial(fa.group_norm, X, BIG)),
    (ValueError, "num_groups must be .* bits", partial(fa.group_norm, X, 10**5000)),
    (ValueError, "num_groups must be an integer from -",  # of no channels
     partial(fa.group_norm, f32(2, 0), num_groups=10**400)),
    (ValueError, "x must have at most 63 axes, got 64", partial(fa.group_norm, TALL, 2)),
    (ValueError, "x must have at most 63 axes",
     partial(fa.group_norm.backward, TALL, TALL, f32(1, 2), f32(1, 2))),
    (ValueError, r"mean must have shape \(2, 2\), got \(2, 3\)",
     partial(fa.group_norm.backward, IMAGE, IMAGE, f32(2, 3), f32(2, 2))),
    (TypeError, "axis must be an integer with group_size, got ",
     partial(fa.gated_rms_norm, X6, X6, axis=(0, 1), group_size=2)),
    (ValueError, r"weight must have shape \(6,\), got \(3,\)",
     partial(fa.gated_rms_norm, X6, X6, W, group_size=3)),
    (ValueError, r"rstd must have shape \(4, 2\), got \(4, 1\)",
     partial(fa.gated_rms_norm.backward, X6, X6, X6, f32(4, 1), group_size=3)),
    (ValueError, "num_batches must not be negative, got -1",
     partial(fa.batch_norm, X, f32(3), W, training=True, momentum=None, num_batches=-1)),
    (TypeError, "num_batches must be given",
     partial(fa.batch_norm, X, f32(3), W, training=True, momentum=None)),
    (ValueError, "running_mean must be writable",
     partial(fa.batch_norm, X, FROZEN, W, training=True)),
    (ValueError, "running_var must be writable, got a read-only array",
     partial(fa.batch_norm, X, W, FROZEN, training=True)),
    (ValueError, r"running_mean must have shape \(3,\), got \(4,\)",
     partial(fa.batch_norm, X, B4, W)),
    (ValueError, "running_mean must not share memory with running_var",
     partial(fa.batch_norm, X, W, W, training=True)),
    (ValueError, "x must have more than one value per channel in training",
     partial(fa.batch_norm, X[:1], f32(3), W, training=True)),
    (ValueError, r"rstd must have shape \(1, 3\), got \(3, 1\)",
     partial(fa.batch_norm.backward, X, X, MEAN, f32(3, 1))),
    (ValueError, r"rstd must have shape \(1, 3\), got \(2,\)",
     partial(fa.batch_norm.backward_reduce, X, X, W, TWO)),
    (ValueError, r"sum_dy_xhat must have shape \(1, 3\), got \(2,\)",
     partial(fa.batch_norm.backward_apply, X, X, MEAN, MEAN, None, W, TWO, 4)),
    (ValueError, "count must be positive, got 0",
     partial(fa.batch_norm.backward_apply, X, X, MEAN, MEAN, None, W, W, 0)),
    (ValueError, r"bias must have shape \(3,\), got \(3, 1\)",
     partial(fa.norm_apply, X, W, W, None, f32(3, 1), axis=1)),
]  # fmt: skip

SUMS: list[Row] = [
    (ValueError, r"axis must be 0, -1, None or \(\).*got 1", partial(fa.sum, f32(), 1)),
    (ValueError, "axis must name each axis once", partial(fa.sum, X, (0, -2))),
    (TypeError, "dtype must be given by key", partial(fa.sum, W, 0, True)),
    (TypeError, "did you mean 'keepdims'", partial(fa.sum, W, keepdim=True)),
    (TypeError, "keepdims must be .*, got ndarray of", partial(fa.sum, X, keepdims=BIG)),
    (ValueError, r"shape \(1, 3\), got", partial(fa.sum, X, 0, keepdims=True, out=W)),
    (ValueError, "out must not share memory with x", partial(fa.sum, SQUARE, 0, out=SQUARE[1])),
    (TypeError, "out must have dtype float64, as x has", partial(fa.sum, X.astype(int), out=f32())),
    (ValueError, r"dy must have shape \(3,\), got",
     partial(fa.sum.backward, f32(1), (2, 3), axis=0)),
    (ValueError, r"shape \(1, 3\), got \(3,",
     partial(fa.sum.backward, W, (2, 3), axis=0, keepdims=True)),
    (TypeError, "shape must be a tuple of integers",
     partial(fa.sum.backward, W, (2.0, 3), axis=0)),
    (TypeError, "shape must be a tuple of integers", partial(fa.sum.backward, W, 3, axis=0)),
    (ValueError, "shape must have no negative length",
     partial(fa.sum.backward, W, (-2, 3), axis=0)),
    (ValueError, "not share memory with dy",
     partial(fa.sum.backward, SQUARE[0], (4, 4), axis=0, out=SQUARE)),
    (ValueError, "out must be a tuple of 2", partial(fa.sum_squares.value_and_grad, W, W)),
    (ValueError, r"out\[0\] must have shape", partial(fa.sum_squares.value_and_grad, W, (W, None))),
    (ValueError, r"out\[1\] must not share memory with out",
     partial(fa.sum_squares.value_and_grad, f32(3), (W[1:2].reshape(()), W))),
    (TypeError, "keyword argument 'axis'", partial(fa.sum_squares.value_and_grad, W, axis=0)),
    (ValueError, "axis must be from -2 to 1", partial(fa.mean_var, X, 2)),
    (ValueError, "out must be a tuple of 2", partial(fa.mean_var, X, out=X)),
    (ValueError, r"out\[1\] must have shape \(3,\)", partial(fa.mean_var, X, 0, out=(f32(3), TWO))),
    (ValueError, r"out\[1\] must not shar", partial(fa.mean_var, X, 0, out=(W, W))),
    (ValueError, "not share memory with x", partial(fa.mean_var, X, 0, out=(X[0], None))),
    (ValueError, r"dy\[0\] must have shape", partial(fa.mean_var.backward, (X, None), X, axis=0)),
    (TypeError, "a tuple of two gradients", partial(fa.mean_var.backward, X, X, axis=0)),
    (TypeError, "dy must be a tuple of two", partial(fa.mean_var.backward, [BIG] * 3, X)),
    (TypeError, "dy must be a tuple of two", partial(fa.mean_var.backward, BIG, X)),
    (ValueError, "axis must name each axis once", partial(fa.moments, X, (0, -2))),
    (ValueError, r"other must have shape \(3,\), got \(2,\)",
     partial(M.merge, fa.moments(X, 1))),
    (TypeError, "other must be Moments, got ndarray", partial(PAIR.merge, X)),
    (TypeError, "other must be Moments", partial(PAIR.merge, [BIG])),
    (ValueError, "parts must not be empty", partial(Moments.merge_many, [])),
    (ValueError, r"must have shape \(7,\)", partial(Moments.from_buffer, PAIR.to_buffer(), (2,))),
    (ValueError, r"or be along axis 0 \(2,\), got \(4,\)", partial(fa.mean, X, 0, weights=B4)),
    (ValueError, r"or be along axes \(0, 1\), in this order, \(2, 3\), got \(3, 2\)",
     partial(fa.mean, SCORES, axis=(0, 1), weights=f32(3, 2))),
    (ValueError, "the lengths along the axes that axis= names",
     partial(fa.mean, SCORES, weights=f32(2, 3))),
    (ValueError, "out must not share memory with weights",
     partial(fa.mean, f32(3, 3), 0, weights=W[:, None], out=W)),
]  # fmt: skip

SOFTMAX: list[Row] = [
    (ValueError, "partial overlap", partial(fa.softmax, SQUARE[:, :-1], out=SQUARE[:, 1:])),
    (ValueError, "mask", partial(fa.softmax, SQUARE, mask=SQUARE[0], out=SQUARE)),
    (ValueError, r"sink must broadcast to x's rows \(2, 3\)", partial(fa.softmax, SCORES, sink=B4)),
    (TypeError, "sink must have dtype float32, .* or a wider",
     partial(fa.softmax, SCORES, sink=SINK.astype(HALF))),
    (TypeError, r"sink must be an array, got 1\.0", partial(fa.softmax, SCORES, sink=1.0)),
    (TypeError, "unexpected keyword argument 'sink'", partial(fa.log_softmax, SCORES, sink=SINK)),
    (ValueError, r"out\[1\] must be None, as there is no sink",
     partial(fa.softmax.forward, SCORES, out=(f32(2, 3, 4), f32(2, 3)))),
    (TypeError, "share must be given with sink",
     partial(fa.softmax.backward, SCORES, SCORES, SINK)),
    (TypeError, "sink must be given with share",
     partial(fa.softmax.backward, SCORES, SCORES, None, SHARE)),
    (ValueError, r"share must have shape \(2, 3\)",
     partial(fa.softmax.backward, SCORES, SCORES, SINK, SHARE[:1])),
    (ValueError, "softcap must be finite", partial(fa.softmax, X, softcap=np.nan)),
    (TypeError, "unexpected keyword argument 'softcap'", partial(fa.log_softmax, X, softcap=2.0)),
    (TypeError, "x must be given with softcap", partial(fa.softmax.backward, X, X, softcap=2.0)),
    (TypeError, "softcap must be given with x", partial(fa.softmax.backward, X, X, x=X)),
    (ValueError, "shape", partial(fa.softmax.backward, X, X, x=X[:1], softcap=2.0)),
    (ValueError, "weight must have shape", partial(fa.cross_entropy, X, CLASSES, weight=TWO)),
    (TypeError, "weight must have dtype bool, ",
     partial(fa.cross_entropy, X, CLASSES, weight=np.ones(3, complex))),
    (ValueError, "target must have shape", partial(fa.cross_entropy, X, np.array([0, 1, 2]))),
    (ValueError, r"\(2, 4\), got \(2, 3\); use axis=-1 for",
     partial(fa.cross_entropy, SCORES, np.zeros((2, 3), int))),
    (TypeError, r"must have an integer dtype where .*, got float32 of shape \(2,\)",
     partial(fa.cross_entropy, X, TWO)),
    (ValueError, "must have a class", partial(fa.cross_entropy, f32(2, 0), CLASSES)),
]  # fmt: skip

OTHERS: list[Row] = [
    *((ValueError, "channel_axis must be from -2 to 1", partial(op, X, W[:1], channel_axis=2))
      for op in (fa.prelu, fa.snake)),
    *((ValueError, rf"{op.parameter} must have shape \(3,\), got \(2,\)", partial(op, X, TWO))
      for op in (fa.prelu, fa.snake)),
    (ValueError, "channel_axis must be from -1 to 0", partial(fa.prelu, X[0], W)),
    (ValueError, "at most 63 axes", partial(fa.prelu, TALL, f32(1))),
    (TypeError, "seed must be given", partial(fa.dropout, X, 0.5)),
    (TypeError, "p must be given", partial(fa.dropout, X, seed=1)),
    (ValueError, "cos must have from 0 to 4 pairs",
     partial(fa.rotary, ROWS, f32(4, 5), f32(4, 5), out=ROTATED)),
    (ValueError, "cos must broadcast to x's pairs",
     partial(fa.rotary, ROWS, f32(3, 4), f32(3, 4), out=ROTATED)),
    (ValueError, r"sin must have shape \(4, 4\), as cos",
     partial(fa.rotary, ROWS, COS, SIN[:1], out=ROTATED)),
    (ValueError, "cos must have from 0 to 0",
     partial(fa.rotary, ROWS[..., :1], f32(4, 1), f32(4, 1))),
    (ValueError, "x must have an axis", partial(fa.rotary, np.float32(3), COS, SIN)),
    (TypeError, "positions must have dtype int32 or int64",
     partial(fa.rotary, ROWS, COS, SIN, positions=np.zeros(4), out=ROTATED)),
    *((ValueError, "positions must be from 0 to 3",
       partial(op, ROWS, COS, SIN, **at(0, 1, 2, far), out=ROTATED))
      for op in (fa.rotary, fa.rms_norm_rotary) for far in (4, -1)),
    (ValueError, r"positions must broadcast to x's rows \(2, 4\)",
     partial(fa.rotary, ROWS, COS, SIN, **at(0, 0, 0), out=ROTATED)),
    (ValueError, "cos must be 2-D",
     partial(fa.rotary, ROWS, COS[0], SIN[0], **at(0, 0, 0, 0), out=ROTATED)),
    (TypeError, "x must be an array or a tuple of two",
     partial(fa.rotary, (ROWS, ROWS, ROWS), COS, SIN)),
    (ValueError, "cos must broadcast to k's pairs",
     partial(fa.rotary, (ROWS, ROWS[:, :3]), COS, SIN, out=(ROTATED, None))),
    (ValueError, r"out\[0\] must not share memory with k",
     partial(fa.rotary, (ROWS, ROTATED), COS, SIN, out=(ROTATED, None))),
    (ValueError, "cos must have from 0 to 4 pairs",
     partial(fa.rms_norm_rotary, ROWS, f32(4, 5), f32(4, 5), out=ROTATED)),
    (ValueError, "cos must broadcast to x's pairs",
     partial(fa.rms_norm_rotary, ROWS, f32(3, 4), f32(3, 4), out=ROTATED)),
    (TypeError, "axis must be an integer",
     partial(fa.rms_norm_rotary, ROWS, COS, SIN, axis=(1, 2), out=ROTATED)),
    (ValueError, r"rstd must have shape \(2, 4, 1\)",
     partial(fa.rms_norm_rotary.backward, ROWS, ROWS, f32(2, 4), COS, SIN, out=(ROTATED, None))),
    (ValueError, "positions must be from 0 to 3",
     partial(fa.rms_norm_rotary.backward, ROWS, ROWS, f32(2, 4, 1), COS, SIN, None,
             np.array([[9]]), out=(ROTATED, None))),
]  # fmt: skip

CALLS = [*ACTIVATIONS, *BIAS, *GATED_AND_GATES, *NORMS, *SUMS, *SOFTMAX, *OTHERS]


WHERE = {op.entry_point(e): p.where for op in fa.ops.values() for e, p in op.entry_points.items()}


def where(function: Any) -> str:
    return WHERE.get(function) or f"fastact.{function.__qualname__}"


@pytest.mark.parametrize(
    ("error", "words", "call"), CALLS, ids=[f"{where(c.func)[8:]}: {w}" for _, w, c in CALLS]
)
def test_refused(error, words, call):
    """A call as well as `forward`; again and again, when another call of the kind is recorded."""
    forward = getattr(call.func, "forward", None)
    for function in (call.func, forward) if forward else (call.func,):
        for _ in range(3):
            with pytest.raises(error, match=words) as caught:
                function(*call.args, **call.keywords)
            name = where(function)  # native code says the op's alone
            assert str(caught.value).partition(": ")[0] in (name, "fastact." + name.split(".")[1])
            assert len(str(caught.value)) < 500
    arrays = [value for value in globals().values() if isinstance(value, np.ndarray)]
    assert all((array == 1).all() for array in arrays if array.dtype == np.float32)


def test_missing_arguments():
    with pytest.raises(TypeError):
        fa.mish()
    with pytest.raises(TypeError):
        fa.mish.backward(W)


def test_arrays_of_a_device_name_the_reason_and_the_cure():
    assert issubclass(fa.CudaUnavailableError, RuntimeError)
    reason = r"^fastact.mish: got an array on cuda:1, but .*move the array to the CPU"
    with pytest.raises(fa.CudaUnavailableError, match=reason):
        fa.mish(Elsewhere(2))
    with pytest.raises(ValueError, match="on the CPU or a CUDA device, got metal:1"):
        fa.mish(Elsewhere(8))
