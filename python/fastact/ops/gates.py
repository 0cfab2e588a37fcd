"""Recurrent gates: what an LSTM or a GRU does at each step besides its matrix products.

`lstm_gates`, `gru_gates` with the reset gate behind the product, `gru_reset` and `gru_blend` for
the form with the reset gate before it. Packed arrays (..., G H) hold G gates side by side.

Each is declared by a function: signature, defaults and its own documentation; `@gates` adds the
rest and makes the op. The formulas stand in `src/common/gates/`, the oracle in
`check/reference.py`.
"""

from typing import TYPE_CHECKING

from .engine.gates import gates
from .engine.op import names_of_ops
from .types import A, Array, ArrayOrNumber, Out, Outs, Stream


@gates(kind="lstm", results=("h", "c"))
def lstm_gates(
    gates: A,
    c_prev: ArrayOrNumber,
    /,
    *,
    recurrent: Array | None = None,
    bias: Array | None = None,
    recurrent_bias: Array | None = None,
    order: str = "ifgo",
    out: Outs[A] = None,
    stream: Stream = None,
) -> tuple[A, A]:
    """The gates of an LSTM: the states after a step, in one pass.

    ``i, f, g, o = split(gates + recurrent + bias + recurrent_bias)``,
    ``c = sigmoid(f) * c_prev + sigmoid(i) * tanh(g)``, ``h = sigmoid(o) * tanh(c)``.

    Parameters
    ----------
    gates : array, of shape (..., 4 H)
        The input's projection, W x. Of float16, bfloat16, float32 or float64; any strides.
    c_prev : array, of shape (..., H), or Python scalar
        The cell's state before this step.
    order : str, default 'ifgo'
        How the gates are packed: i input, f forget, g (or c) cell, o output. "ifgo" is torch's and
        Flux's order, "iofc" ONNX's.
    out : tuple of two arrays or None, optional
        Where to write h and c; one that is None is allocated. c may be c_prev itself.

    Returns
    -------
    tuple of two arrays
        The states after this step, h and c, of shape (..., H).

    See Also
    --------
    gru_gates : The gates of a GRU.

    Notes
    -----
    `lstm_gates.forward` saves ``(gates, c_prev, c, recurrent, bias, recurrent_bias)``: in the place
    of gates the activated ones, packed in `order`, and no recurrent; with recompute=True the inputs
    and no c.

    `lstm_gates.backward` takes dh, dc and what was saved, and gives (dgates, dc_prev, dbias), and
    dgates is recurrent's gradient too. Of the activated gates, with ``d = dc + dh * o * (1 -
    tanh(c)**2)``: ``di = d * g``, ``df = d * c_prev``, ``dg = d * i``, ``do = dh * tanh(c)`` and
    ``dc_prev = d * f``. dc may be None, for the last step. dgates may be written over the saved
    gates, dc_prev over dc.

    References
    ----------
    S. Hochreiter and J. Schmidhuber, "Long Short-Term Memory", Neural Computation 9 (1997),
    https://doi.org/10.1162/neco.1997.9.8.1735

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> gates, c_prev = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[1.0]])
    >>> fa.lstm_gates(gates, c_prev)
    (array([[0.7978...]]), array([[1.2130...]]))
    >>> (h, c), saved = fa.lstm_gates.forward(gates, c_prev, bias=np.zeros(4))
    >>> dgates, dc_prev, dbias = fa.lstm_gates.backward(np.ones((1, 1)), None, *saved)
    >>> dgates
    array([[0.0685..., 0.0558..., 0.0100..., 0.0378...]])
    """


@gates(kind="gru", letters="rzn", kept="rznq", results=("h",))
def gru_gates(
    gates: A,
    recurrent: Array,
    h_prev: ArrayOrNumber,
    /,
    *,
    bias: Array | None = None,
    recurrent_bias: Array | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """The gates of a GRU with its reset gate behind the matrix product: the state after a step.

    ``x_r, x_z, x_n = split(gates + bias)``, ``u_r, u_z, q = split(recurrent + recurrent_bias)``,
    ``r = sigmoid(x_r + u_r)``, ``z = sigmoid(x_z + u_z)``, ``n = tanh(x_n + r * q)``,
    ``h = (1 - z) * n + z * h_prev``, in one pass. It is the form of torch, cuDNN and Flux's GRUv3.

    Parameters
    ----------
    gates : array, of shape (..., 3 H)
        The input's projection, W x, with its gates in the order r, z, n. Of float16, bfloat16,
        float32 or float64; any strides.
    recurrent : array, of shape (..., 3 H)
        The recurrent projection, U h.
    bias : array, of shape (3 H,), optional
        Packed as gates are; of their dtype or a wider one. Added to every row of gates.
    recurrent_bias : array, of shape (3 H,), optional
        The same for recurrent.

    Returns
    -------
    array
        The state after this step, h, of shape (..., H).

    See Also
    --------
    gru_reset, gru_blend : The two halves of a GRU whose reset gate works before the product.

    Notes
    -----
    Where z is 1, h has the bits of h_prev.

    `gru_gates.forward` saves ``(gates, recurrent, h_prev, bias, recurrent_bias)``: in the place of
    gates r, z, n and q, packed in one array of shape (..., 4 H), and no recurrent; with
    recompute=True the inputs.

    `gru_gates.backward` takes dh and what was saved, and gives (dgates, drecurrent, dh_prev, dbias,
    drecurrent_bias). With the derivatives of the activated gates ``r' = r * (1 - r)``, ``z' = z *
    (1 - z)`` and ``n' = 1 - n**2``, dgates is ``dr = dn * q * r'``, ``dz = dh * (h_prev - n) * z'``
    and ``dn = dh * (1 - z) * n'``, packed; drecurrent has ``dn * r`` in the place of dn; and
    ``dh_prev = dh * z``, without what goes through recurrent. dh_prev may be written over dh.

    References
    ----------
    K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical
    Machine Translation", https://arxiv.org/abs/1406.1078

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> gates, recurrent = np.array([[0.0, 1.0, 2.0]]), np.ones((1, 3))
    >>> fa.gru_gates(gates, recurrent, np.array([[0.5]]))
    array([[0.5585...]])
    >>> h, saved = fa.gru_gates.forward(gates, recurrent, 0.5)
    >>> dgates, drecurrent, dh_prev, _, _ = fa.gru_gates.backward(np.ones((1, 1)), *saved)
    >>> drecurrent
    array([[ 0.0003..., -0.0516...,  0.0014...]])
    """


@gates(kind="reset", letters="r", results=("y",))
def gru_reset(
    gates: A,
    h_prev: ArrayOrNumber,
    /,
    *,
    recurrent: Array | None = None,
    bias: Array | None = None,
    recurrent_bias: Array | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """First half of a GRU whose reset gate works before the matrix product.

    ``y = r * h_prev`` with ``r = sigmoid(gates + recurrent + bias + recurrent_bias)``, in one pass.
    It is the form of Cho et al. and Flux's GRU.

    Parameters
    ----------
    gates : array, of shape (..., H)
        The input's projection, W x, of r: a slice of a packed array is read in place. Of float16,
        bfloat16, float32 or float64; any strides.
    out : array, optional
        Where to write the result; it may be h_prev itself.

    Returns
    -------
    array
        The state before, reset, of shape (..., H).

    See Also
    --------
    gru_blend : The second half.

    Notes
    -----
    `gru_reset.forward` saves ``(gates, h_prev, recurrent, bias, recurrent_bias)``: in the place of
    gates r, and no recurrent; with recompute=True the inputs.

    `gru_reset.backward` takes dy and what was saved, and gives (dgates, dh_prev, dbias), and dgates
    is recurrent's gradient too: ``dgates = dy * h_prev * r * (1 - r)`` and ``dh_prev = dy * r``.
    dgates may be written over the saved gates, dh_prev over dy.

    References
    ----------
    K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical
    Machine Translation", https://arxiv.org/abs/1406.1078

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.gru_reset(np.zeros((1, 2)), np.array([[1.0, 3.0]]))
    array([[0.5, 1.5]])
    >>> y, saved = fa.gru_reset.forward(np.zeros((1, 1)), np.array([[3.0]]))
    >>> dgates, dh_prev, dbias = fa.gru_reset.backward(np.ones((1, 1)), *saved)
    >>> dgates, dh_prev
    (array([[0.75]]), array([[0.5]]))
    """


@gates(kind="blend", letters="zn", results=("h",))
def gru_blend(
    gates: A,
    h_prev: ArrayOrNumber,
    /,
    *,
    recurrent: Array | None = None,
    bias: Array | None = None,
    recurrent_bias: Array | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Second half of a GRU whose reset gate works before the matrix product.

    ``h = (1 - z) * n + z * h_prev`` with ``z = sigmoid(a)``, ``n = tanh(b)`` and
    ``a, b = split(gates + recurrent + bias + recurrent_bias)``, in one pass.

    Parameters
    ----------
    gates : array, of shape (..., 2 H)
        The input's projection, W x, of z and n: a slice of a packed array is read in place. Of
        float16, bfloat16, float32 or float64; any strides.
    recurrent : array, optional
        The recurrent projection, of z U h_prev and of n U (r h_prev): shape and dtype of gates, to
        which it is added.

    Returns
    -------
    array
        The state after this step, h, of shape (..., H).

    See Also
    --------
    gru_reset : The first half.

    Notes
    -----
    Where z is 1, h has the bits of h_prev.

    `gru_blend.forward` saves ``(gates, h_prev, recurrent, bias, recurrent_bias)``: in the place of
    gates z and n, packed in one array, and no recurrent; with recompute=True the inputs.

    `gru_blend.backward` takes dh and what was saved, and gives (dgates, dh_prev, dbias), and dgates
    is recurrent's gradient too: ``dz = dh * (h_prev - n) * z * (1 - z)`` and ``dn = dh * (1 - z) *
    (1 - n**2)``, packed; and ``dh_prev = dh * z``. dgates may be written over the saved gates,
    dh_prev over dh.

    References
    ----------
    K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical
    Machine Translation", https://arxiv.org/abs/1406.1078

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.gru_blend(np.array([[0.0, 1.0]]), np.array([[0.5]]))
    array([[0.6307...]])
    >>> y, saved = fa.gru_blend.forward(np.zeros((1, 2)), np.array([[3.0]]))
    >>> dgates, dh_prev, dbias = fa.gru_blend.backward(np.ones((1, 1)), *saved)
    >>> dgates, dh_prev
    (array([[0.75, 0.5 ]]), array([[0.5]]))
    """


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
