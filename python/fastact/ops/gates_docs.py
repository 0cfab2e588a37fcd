"""The docstrings of the recurrent gates."""

from .. import _cpu
from .bounds import GateBounds
from .bounds_docs import gate_gradients, gate_states
from .docs import ALLOCATED, ARRAY, CHO, SKIPPED, STREAM, paragraph
from .reduction import SUM_BOUNDS

#: Their derivation is in src/common/gates/gates.h.
GATE_BOUNDS = GateBounds(*_cpu.GATE_ULPS, SUM_BOUNDS)

_BIASES = """\
bias, recurrent_bias : array, optional
    1-D, packed as gates are; of their dtype or a wider one. Added to every row."""

_RECURRENT = """\
recurrent : array, optional
    The recurrent projection, U h: shape and dtype of gates, to which it is added."""

_ORDER = """\
order : str
    How the gates are packed: i input, f forget, g (or c) cell, o output. "ifgo" is torch's and
    Flux's order, "iofc" that of ONNX."""

_RAISES = """\
Raises
------
TypeError
    For a dtype that is not supported, arrays of several dtypes, a bias narrower than gates, mixed
    frameworks, a tensor that requires grad, or an unknown keyword.
ValueError
    For a last axis that is no multiple of the gates, arrays of another shape{more}; an `out` that
    does not fit or that overlaps an input in part."""


def _states(reset: str = "", first: str = "") -> str:
    """reset: what the error of a reset gate meets."""
    return paragraph(
        f"{first}The pre-activations are added up in float32 (float64 for float64), as (gates + "
        f"recurrent) + the sum of the biases; sigmoid and tanh are `fastact.sigmoid` and "
        f"`fastact.tanh`. With S the largest sum of the magnitudes that a gate adds up, H that of "
        f"the state before and u = 2^-24 (float64: 2^-53), an error is at most "
        f"{gate_states(GATE_BOUNDS)}{reset}, and the rounding to the dtype. The bits do not depend "
        f"on the number of threads, nor on strides."
    )


def _back(dbias: str, reset: str = "") -> str:
    return paragraph(
        f"The gradients are those of the activated gates as they were kept. With S, H and u as for "
        f"the call and G the magnitude of the gradients that came back, an error is at most "
        f"{gate_gradients(GATE_BOUNDS)}{reset}, and the rounding to the dtype. {dbias} sum in "
        f"double, within the bounds of `fastact.sum` and of what its terms err by before they are "
        f"rounded, always in one order; on the CPU, for float32 and float64, with the bits of "
        f"``bias_grad`` of the gradients that belong to it, and where those are large, in a second "
        f"pass."
    )


_RESET = " (1 + Q), where r scales a sum of the magnitudes Q"
_RESET_BACK = " (1 + Q)^2, with Q as for the call"

_OUT_BACK = f"""\
out : tuple of arrays or None, optional
    Where to write each gradient; {SKIPPED}. {{place}}
accumulate : bool
    Add the gradients to `out` instead of overwriting it."""

_OF_EITHER = """\
    The sum of dgates over all rows, of either bias: in the dtype of bias, or of recurrent_bias
    where that is the only one; None where there is none."""

_FORWARD = """\
forward({call}, recompute=False, out=None, ...) -> ({y}, saved)

What calling the op gives, and the tuple that `backward` needs.

Parameters
----------
{arguments}
    As for the call.
recompute : bool
    Save the inputs alone, from which `backward` makes the gates again: as exact, less memory, more
    time.
out : tuple of arrays or None, optional
    As for the call, or one that goes on with an array for the activated gates, which may be gates
    itself. What is saved may not be written.

Returns
-------
{y} : array
    What calling the op returns.
saved : tuple
    ``{saved}``: in the place of gates, the activated gates{kept}, packed in one array, and no
    recurrent; with recompute=True, the inputs. Arrays are not copied: do not change them before
    `backward`.

Examples
--------
{example}
"""

_LSTM = f"""\
lstm_gates(gates, c_prev, *, recurrent=None, bias=None, recurrent_bias=None, order="ifgo", out=None)
-> (h, c)

c = sigmoid(f) c_prev + sigmoid(i) tanh(g) and h = sigmoid(o) tanh(c), with [i, f, g, o] =
gates + recurrent + bias + recurrent_bias, in one pass.

Parameters
----------
gates : array, of shape (..., 4 H)
    The input's projection, W x.
{paragraph(ARRAY, 4)}
c_prev : array, of shape (..., H), or Python scalar
    The cell's state before this step.
{_RECURRENT}
{_BIASES}
{_ORDER}
out : tuple of two arrays or None, optional
    Where to write h and c; {ALLOCATED}. c may be c_prev itself.
{STREAM}

Returns
-------
h, c : array
    Of shape (..., H).

{_RAISES.format(more=" or an order that is no permutation of the four gates")}

Notes
-----
{_states()}

References
----------
S. Hochreiter and J. Schmidhuber, "Long Short-Term Memory", Neural Computation 9 (1997),
https://doi.org/10.1162/neco.1997.9.8.1735

Examples
--------
>>> import numpy as np, fastact as fa
>>> h, c = fa.lstm_gates(np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[1.0]]))
>>> h, c
(array([[0.7978...]]), array([[1.2130...]]))
"""

LSTM = {
    "call": _LSTM,
    "forward": _FORWARD.format(
        call="gates, c_prev, *, recurrent=None, bias=None, recurrent_bias=None, order=...",
        y="(h, c)",
        arguments="gates, c_prev, recurrent, bias, recurrent_bias, order",
        saved="(gates, c_prev, c, recurrent, bias, recurrent_bias)",
        kept="",
        example="""\
>>> import numpy as np, fastact as fa
>>> gates, c_prev = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[1.0]])
>>> (h, c), saved = fa.lstm_gates.forward(gates, c_prev)
>>> saved[0]
array([[0.5       , 0.7310..., 0.9640..., 0.9525...]])""",
    ),
    "backward": f"""\
backward(dh, dc, *saved, order="ifgo", recompute=False, out=None, accumulate=False)
-> (dgates, dc_prev, dbias)

The gradients with respect to gates, which is that of recurrent too, to c_prev and to the biases, in
one pass.

Parameters
----------
dh : array, of shape (..., H), or Python scalar
    The gradient of the loss with respect to h.
dc : array, of shape (..., H), or Python scalar, or None
    That with respect to c, from the step that follows; None for the last one.
*saved
    What `forward` saved.
order, recompute
    As told to `forward`.
{_OUT_BACK.format(place="dgates may be the saved gates, dc_prev may be dc.")}

Returns
-------
dgates : array, of shape (..., 4 H)
    All four gates, packed as gates are.
dc_prev : array, of shape (..., H)
dbias : array, of shape (4 H,)
{_OF_EITHER}

Notes
-----
{_back("dbias is a")}

Examples
--------
>>> import numpy as np, fastact as fa
>>> gates, c_prev = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[1.0]])
>>> (h, c), saved = fa.lstm_gates.forward(gates, c_prev, bias=np.zeros(4))
>>> dgates, dc_prev, dbias = fa.lstm_gates.backward(np.ones((1, 1)), None, *saved)
>>> dgates
array([[0.0685..., 0.0558..., 0.0100..., 0.0378...]])
""",
}

_GRU = f"""\
gru_gates(gates, recurrent, h_prev, *, bias=None, recurrent_bias=None, out=None) -> h

h = (1 - z) n + z h_prev with r, z = sigmoid(gates + recurrent + biases) and n = tanh(gates + bias +
r (recurrent + recurrent_bias)), in one pass: the reset gate r works behind the matrix product, as
in torch, cuDNN and Flux's GRUv3.

Parameters
----------
gates : array, of shape (..., 3 H)
    The input's projection, W x, with its gates in the order r, z, n.
{paragraph(ARRAY, 4)}
recurrent : array, of shape (..., 3 H)
    The recurrent projection, U h.
h_prev : array, of shape (..., H), or Python scalar
    The state before this step.
{_BIASES}
out : array, optional
    Where to write h; h_prev itself is allowed.
{STREAM}

Returns
-------
h : array, of shape (..., H)

{_RAISES.format(more="")}

Notes
-----
{_states(_RESET, "Where z is 1, h has the bits of h_prev. ")}

References
----------
{CHO}

Examples
--------
>>> import numpy as np, fastact as fa
>>> fa.gru_gates(np.array([[0.0, 1.0, 2.0]]), np.zeros((1, 3)), np.array([[0.5]]))
array([[0.6247...]])
"""

GRU = {
    "call": _GRU,
    "forward": _FORWARD.format(
        call="gates, recurrent, h_prev, *, bias=None, recurrent_bias=None",
        y="h",
        arguments="gates, recurrent, h_prev, bias, recurrent_bias",
        saved="(gates, recurrent, h_prev, bias, recurrent_bias)",
        kept=" r, z, n and what r scales, (..., 4 H)",
        example="""\
>>> import numpy as np, fastact as fa
>>> h, saved = fa.gru_gates.forward(np.array([[0.0, 1.0, 2.0]]), np.zeros((1, 3)), 0.5)
>>> saved[0]
array([[0.5       , 0.7310..., 0.9640..., 0.        ]])""",
    ),
    "backward": f"""\
backward(dh, *saved, recompute=False, out=None, accumulate=False)
-> (dgates, drecurrent, dh_prev, dbias, drecurrent_bias)

The gradients with respect to gates, recurrent, h_prev (but through recurrent) and the biases, in
one pass.

Parameters
----------
dh : array, of shape (..., H), or Python scalar
    The gradient of the loss with respect to h.
*saved
    What `forward` saved.
recompute
    As told to `forward`.
{_OUT_BACK.format(place="dh_prev may be dh.")}

Returns
-------
dgates, drecurrent : array, of shape (..., 3 H)
    All three gates, packed; they differ in the last one.
dh_prev : array, of shape (..., H)
dbias, drecurrent_bias : array, of shape (3 H,)
    The sums of dgates and drecurrent over all rows, each in the dtype of its bias; None where there
    is none.

Notes
-----
{_back("dbias and drecurrent_bias are each a", _RESET_BACK)}

Examples
--------
>>> import numpy as np, fastact as fa
>>> h, saved = fa.gru_gates.forward(np.array([[0.0, 1.0, 2.0]]), np.ones((1, 3)), 0.5)
>>> dgates, drecurrent, dh_prev, _, _ = fa.gru_gates.backward(np.ones((1, 1)), *saved)
>>> drecurrent
array([[ 0.0003..., -0.0516...,  0.0014...]])
""",
}


def half_docs(name: str, summary: str, count: int, letters: str, example: str) -> dict[str, str]:
    """Of the two halves of a GRU with its reset gate before the product."""
    packed = "(..., H)" if count == 1 else f"(..., {count} H)"
    saved = "(gates, h_prev, recurrent, bias, recurrent_bias)"
    return {
        "call": f"""\
{name}(gates, h_prev, *, recurrent=None, bias=None, recurrent_bias=None, out=None) -> y

{summary}

Parameters
----------
gates : array, of shape {packed}
    The input's projection, W x, of {letters}: a slice of a packed array is read in place.
{paragraph(ARRAY, 4)}
h_prev : array, of shape (..., H), or Python scalar
    The state before this step.
{_RECURRENT}
{_BIASES}
out : array, optional
    Where to write the result; h_prev itself is allowed.
{STREAM}

Returns
-------
y : array, of shape (..., H)

{_RAISES.format(more="")}

Notes
-----
{_states()}

References
----------
{CHO}

Examples
--------
>>> import numpy as np, fastact as fa
{example}
""",
        "forward": _FORWARD.format(
            call="gates, h_prev, *, recurrent=None, bias=None, recurrent_bias=None",
            y="y",
            arguments="gates, h_prev, recurrent, bias, recurrent_bias",
            saved=saved,
            kept="",
            example=f"""\
>>> import numpy as np, fastact as fa
>>> y, saved = fa.{name}.forward(np.zeros((1, {count})), np.array([[3.0]]))
>>> len(saved)
5""",
        ),
        "backward": f"""\
backward(dy, *saved, recompute=False, out=None, accumulate=False) -> (dgates, dh_prev, dbias)

The gradients with respect to gates, which is that of recurrent too, to h_prev and to the biases, in
one pass.

Parameters
----------
dy : array, of shape (..., H), or Python scalar
    The gradient of the loss with respect to the result.
*saved
    What `forward` saved.
recompute
    As told to `forward`.
{_OUT_BACK.format(place="dgates may be the saved gates, dh_prev may be dy.")}

Returns
-------
dgates : array, of shape {packed}
dh_prev : array, of shape (..., H)
dbias : array
{_OF_EITHER}

Notes
-----
{_back("dbias is a")}

Examples
--------
>>> import numpy as np, fastact as fa
>>> y, saved = fa.{name}.forward(np.zeros((1, {count})), np.array([[3.0]]))
>>> dgates, dh_prev, dbias = fa.{name}.backward(np.ones((1, 1)), *saved)
>>> dh_prev
array([[0.5]])
""",
    }
