"""Recurrent gates: what an LSTM or a GRU does at each step besides its matrix products.

The ops are `lstm_gates`; `gru_gates`, with the reset gate after the product; and `gru_reset` and
`gru_blend`, for the form with the reset gate before it. Packed arrays (..., G H) hold G gates side
by side.

The formulas are in `src/common/gates/`, the oracle is in `check/expected/gates.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, Unpack, overload

from .. import _cpu
from .._cpu import View
from ..interop import validate
from .bounds import GateBounds
from .engine.entry import Arg, Entry, Output, positional, signature_of
from .engine.execute import Execution
from .engine.op import Kernels, P, R, called_as, declared
from .engine.reductions import GRADIENT_SUM_BOUNDS, add_up
from .engine.served import CachedOp
from .types import A, Array, ArrayOrNumber, Kwargs, Out, Outs, Stream

_BIASES = ("bias", "recurrent_bias")
_PACKED = ("gates", "recurrent", *_BIASES)

Shape = tuple[int, ...]


class GateShapes(NamedTuple):
    """The shapes of a step."""

    batch: Shape  # without the last axis
    state: Shape
    packed: Shape  # the gates side by side
    kept: Shape  # the array that `forward` saves in place of the gates
    row: Shape  # a bias


#: Words that the docstrings of all gates share.
_TEXTS = """
Parameters
----------
{op.state} : array, of shape (..., H), or Python scalar
    The state before this step.
recurrent : array, optional
    The recurrent projection, U h, which is added to gates and has their shape and dtype.
bias : array, of the shape of a row of gates, optional
    A bias that is added to every row, packed like gates. It has their dtype or a wider one, or any
    dtype if they are float64.
recurrent_bias : array, of that shape, optional
    A second bias.

Returns
-------
array
    The state after this step, {op.results[0]}, of shape (..., H).

Raises
------
ValueError
    gates: a last axis of gates that is not a multiple of the number of gates
    order: an order that is not a permutation of the gates

References
----------
K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical
Machine Translation", https://arxiv.org/abs/1406.1078

Notes
-----
The pre-activations are added up in float32 (float64 for float64), as (gates + recurrent) + the sum
of the biases; sigmoid and tanh are `fastact.sigmoid` and `fastact.tanh`. Let S be the largest sum
of magnitudes that a gate adds up, H the magnitude of the state before, and u = 2^-24 (float64:
2^-53). Then an error is at most {op.bounds.state_ulp:g} u (1 + 0.15 S) (1 + H), plus the rounding
to the dtype. Where r scales a sum of magnitude Q, as in `gru_gates`, the bound is multiplied by
(1 + Q). The bits depend neither on the number of threads nor on strides.

Instead of gates `forward` saves the activated gates ({letters}), packed in one array of shape
(..., {kept}H), and it does not save recurrent. With recompute=True it saves the inputs{and_no}.

[own]
"""


class Gates(CachedOp[P, R]):
    """A step of a recurrent layer after its matrix products, and its gradients.

    Its positional-only arrays are gates, recurrent if a gate works on it, and the state before.

    kind : the kind of the native gates (src/common/gates).
    results : the names of the op's results.
    letters : the gates of a packed array in their default order; by default that of `order`.
    kept : what `forward` saves in place of the gates, packed too; by default the gates. q is what a
        reset gate scales.
    state : the name of the state before the step.
    takes_recurrent : whether the recurrent projection is a positional array with a gradient of its
        own, because a gate works on it; otherwise it is an option that is added to the gates.
    """

    family = "gates"
    bounds = GateBounds(*_cpu.GATE_ULPS, GRADIENT_SUM_BOUNDS)  # derived in src/common/gates/gates.h

    def __init__(
        self,
        function: Callable[P, R],
        kind: str,
        results: tuple[str, ...],
        letters: str = "",
        kept: str = "",
    ) -> None:
        call = self._declare(function)
        self.kind = _cpu.GATE_KINDS.index(kind)
        self.letters = letters or str(call.parameters["order"].default)
        self.kept, self.results = kept or self.letters, results
        arrays = positional(call)
        options = tuple(name for name in _PACKED if name not in arrays)
        self.state, self.takes_recurrent = arrays[-1], "recurrent" in arrays
        self.saves = (*arrays, *results[1:], *options)
        of_biases = _BIASES if self.takes_recurrent else _BIASES[:1]
        self.gradients = tuple(f"d{name}" for name in (*arrays, *of_biases))
        incoming = tuple(f"d{name}" for name in results)
        of_gates, of_bias = ("", "") if self.takes_recurrent else ("gates", "bias")
        self.args = {
            "gates": Arg(validate.ARRAY),
            "recurrent": Arg(validate.ARRAY, "packed", unsaved=True, shares=of_gates),
            self.state: Arg(shape="state"),
            "c": Arg(shape="state", unsaved=True),
            **dict.fromkeys(incoming, Arg(shape="state", unsaved=True)),
            incoming[0]: Arg(shape="state", called="an array or a number"),
            "bias": Arg(shape="row"),
            "recurrent_bias": Arg(shape="row", shares=of_bias),
        }
        self.outs = {
            **dict.fromkeys((*results, f"d{self.state}"), Output(shape="state", in_place=True)),
            **dict.fromkeys(("dgates", "drecurrent"), Output(shape="packed", in_place=True)),
            "gates": Output(shape="kept", in_place=True),
        }
        names = {
            **{"state": self.state, "kept": "gates", "places": "positions"},
            **{"hidden": results[0], "cell": "c"},
            **{"hidden_gradient": incoming[0], "cell_gradient": "dc"},
            **{f"{name}_gradient": f"d{name}" for name in _PACKED},
            "state_gradient": f"d{self.state}",
        }
        self.kernels = Kernels({"forward": "gates_forward"}, names, {"kind": self.kind})
        forward = signature_of(call, arrays, recompute=False, accumulates=False)
        told = {"recompute": False}
        self._enter_points(*incoming, front=(), told=told, forward=forward)

    def _texts(self) -> str:
        has_order, count = "order" in self.__signature__.parameters, len(self.kept)
        return _TEXTS.format(
            op=self,
            letters="as `order` says" if has_order else ", ".join(self.kept),
            kept=f"{count} " if count > 1 else "",
            and_no=", and no c" if "c" in self.results else "",
        )

    @property
    def count(self) -> int:
        """The number of gates in a packed array."""
        return len(self.letters)

    def unsaved(self, named: Mapping[str, Any]) -> tuple[str, ...]:
        return ("c",) if named.get("recompute") else ("recurrent",)

    def outputs_of(self, entry: str, options: SimpleNamespace) -> tuple[str, ...]:
        is_kept = entry != "forward" or not getattr(options, "recompute", False)
        return super().outputs_of(entry, options) if is_kept else self.results

    def gradient_shape(self, name: str, named: Mapping[str, Any]) -> tuple[int, ...] | None:
        if name not in ("gates", "recurrent"):
            return None
        *batch, kept = named["gates"].shape
        return (*batch, kept // len(self.kept) * self.count)

    @overload
    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]: ...

    @overload
    def forward(
        self, gates: Array, /, *arrays: ArrayOrNumber, **options: Unpack[Kwargs[Array]]
    ) -> tuple[Any, tuple[Any, ...]]: ...

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return what calling the op gives, and the tuple that `backward` needs.

        The docstring of the op says what the saved gates are.

        Parameters
        ----------
        recompute : bool, default False
            If True, save only the inputs, from which `backward` computes the gates again: just as
            exact, with less memory and more time.
        out : array or tuple, optional
            As for the call, or a tuple that also has an array for the activated gates, which may be
            gates itself. Do not write to saved arrays.

        Returns
        -------
        saved : tuple
            The inputs of the step, in the order of the op's `saves`. The activated gates, packed in
            one array, replace gates and recurrent, unless recompute=True. Arrays are not copied: do
            not change them before `backward`.
        """

    def backward(
        self, *arrays: ArrayOrNumber | None, **options: Unpack[Kwargs[Array]]
    ) -> tuple[Any, ...]:
        """Compute the gradients with respect to the arrays of a step and its biases, in one pass.

        In the columns of a gate k that is a sigmoid, ``dgates = dk * k * (1 - k)``; for a tanh,
        ``dgates = dk * (1 - k**2)``. Here dk is the gradient with respect to that gate; the
        docstring of the op has its formula. ``dbias = dgates.sum(axes)`` over all but the last.

        Parameters
        ----------
        out : tuple of arrays or None, optional
            Where to write each gradient; None skips one. The docstring of the op states which of
            them may be inputs.

        Returns
        -------
        tuple
            The gradients in the order of the op's `gradients`. dgates is packed like gates and,
            unless drecurrent follows, is also recurrent's gradient. Then comes the gradient of the
            state before. dbias is the sum of dgates over all rows, for either bias; it has the
            dtype of bias, or of recurrent_bias if that is the only one. With drecurrent there is
            also drecurrent_bias, its sum, and each has the dtype of its bias. The gradient is None
            without a bias.

        Notes
        -----
        The gradients are computed from the activated gates as they were saved. With S, H and u as
        for the call and G the magnitude of the incoming gradients, an error is at most 40 u (1 +
        0.15 S) (1 + H)^2 G, plus the rounding to the dtype. Where a reset gate works after the
        matrix product, the first term is multiplied by (1 + Q)^2, with Q as for the call. dbias and
        drecurrent_bias are each summed in double, always in the same order, within the bounds of
        `fastact.sum` and the errors of the terms before they are rounded. On the CPU, for float32
        and float64, they have the bits of ``bias_grad``; large ones take a second pass.
        """

    # --- kernels ----------------------------------------------------------------------------------

    def _run_backward(self, now: Execution) -> None:
        pairs = zip(_BIASES, _PACKED, strict=False)
        views = ((now.view(f"d{bias}"), now.view(f"d{packed}")) for bias, packed in pairs)
        sums = [(bias, packed) for bias, packed in views if bias is not None]
        # The biases' gradients may be summed in a second pass, not by the kernel of gates.
        apart = (
            bool(sums)
            and not now.options.accumulate
            and all(packed is not None and _rows_in_order(packed) for _, packed in sums)
            and _cpu.gates_sums_apart(self.kind, now.views[self.state])
        )
        # The kernels read the pre-activations' terms, or the activated gates.
        missing = ["kept"] if now.options.recompute else [*_PACKED]
        if apart:
            missing += ["bias_gradient", "recurrent_bias_gradient"]
        now.run("gates_backward", **dict.fromkeys(missing))
        if apart:
            rows = tuple(range(len(now.shapes.batch)))
            for bias, packed in sums:
                add_up(now.call, packed, bias.with_axes(rows), rows)

    # --- both -------------------------------------------------------------------------------------

    def _positions(self, where: str, options: SimpleNamespace) -> tuple[int, ...]:
        """Find the position of each gate of the kernels in packed arrays."""
        order = getattr(options, "order", self.letters)
        if isinstance(order, str):
            found = order.replace("c", "g") if "g" not in order else order
            if sorted(found) == sorted(self.letters):
                return tuple(found.index(letter) for letter in self.letters)
        raise ValueError(
            f"{where}: order must be a permutation of {self.letters!r} (c may stand for g), got "
            f"{validate.describe(order)}"
        )

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        where = entry.where
        options.positions = self._positions(where, options)
        recompute, count = getattr(options, "recompute", False), len(self.results)
        if not entry.is_backward:
            if recompute and options.out[count] is not None:
                raise ValueError(
                    f"{where}: out[{count}] must be None with recompute=True, which keeps no "
                    f"activated gates"
                )
            return
        unread, needed = self.unsaved(vars(options)), (*self.entry_points["call"].arrays, "c")
        for name in self.saves:
            if name in unread:
                setattr(options, name, None)
            elif name in needed and getattr(options, name) is None:
                raise TypeError(
                    f"{where}: {name} must be an array, as forward saved it with "
                    f"recompute={recompute}, got None"
                )

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> GateShapes:
        """Find the shapes of a step; backward gets the activated gates, or the inputs."""
        shape = call.views["gates"].shape
        is_kept = entry == "backward" and not options.recompute
        count = len(self.kept) if is_kept else self.count
        if not shape or shape[-1] % count:
            raise ValueError(
                f"{call.where}: gates must have a last axis of {count} gates of one length, got "
                f"shape {shape}"
            )
        batch, columns = tuple(shape[:-1]), shape[-1] // count
        state, packed, kept = ((*batch, n * columns) for n in (1, self.count, len(self.kept)))
        return GateShapes(batch, state, packed, kept, (self.count * columns,))


def _rows_in_order(packed: View) -> bool:
    """Tell whether a separate sum takes the rows in the kernels' order, not in memory's order."""
    steps = [abs(s) for s, n in zip(packed.strides[:-1], packed.shape, strict=False) if n > 1]
    return steps == sorted(steps, reverse=True)


@declared(Gates, kind="lstm", results=("h", "c"))
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
    ``c = sigmoid(f) * c_prev + sigmoid(i) * tanh(g)`` and ``h = sigmoid(o) * tanh(c)``.

    Parameters
    ----------
    gates : array, of shape (..., 4 H)
        The input's projection, W x, of float16, bfloat16, float32 or float64, with any strides.
    c_prev : array, of shape (..., H), or Python scalar
        The cell state before this step.
    order : str, default 'ifgo'
        The order in which the gates are packed: i input, f forget, g (or c) cell, o output. torch
        and Flux use "ifgo", ONNX uses "iofc".
    out : tuple of two arrays or None, optional
        Where to write h and c; None allocates one. c may be c_prev itself.

    Returns
    -------
    tuple of two arrays
        The states after this step, h and c, of shape (..., H).

    See Also
    --------
    gru_gates : The gates of a GRU.

    Notes
    -----
    With the activated gates and ``d = dc + dh * o * (1 - tanh(c)**2)``, the gradients are ``di = d
    * g``, ``df = d * c_prev``, ``dg = d * i``, ``do = dh * tanh(c)`` and ``dc_prev = d * f``. For
    the last step dc may be None. dgates may overwrite the saved gates, and dc_prev dc.

    References
    ----------
    S. Hochreiter and J. Schmidhuber, "Long Short-Term Memory", Neural Computation 9 (1997),
    https://doi.org/10.1162/neco.1997.9.8.1735

    Examples
    --------
    >>> gates, c_prev = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[1.0]])
    >>> fa.lstm_gates(gates, c_prev)
    (array([[0.7978...]]), array([[1.2130...]]))
    >>> (h, c), saved = fa.lstm_gates.forward(gates, c_prev, bias=np.zeros(4))
    >>> dgates, dc_prev, dbias = fa.lstm_gates.backward(np.ones((1, 1)), None, *saved)
    >>> dgates
    array([[0.0685..., 0.0558..., 0.0100..., 0.0378...]])
    """


@declared(Gates, kind="gru", letters="rzn", kept="rznq", results=("h",))
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
    """The gates of a GRU with its reset gate after the matrix product: the state after a step.

    ``x_r, x_z, x_n = split(gates + bias)``, ``u_r, u_z, q = split(recurrent + recurrent_bias)``,
    ``r = sigmoid(x_r + u_r)``, ``z = sigmoid(x_z + u_z)``, ``n = tanh(x_n + r * q)``,
    ``h = (1 - z) * n + z * h_prev``, in one pass. torch, cuDNN and Flux's GRUv3 have this form.

    Parameters
    ----------
    gates : array, of shape (..., 3 H)
        The input's projection, W x, with its gates in the order r, z, n. Its dtype is float16,
        bfloat16, float32 or float64, with any strides.
    recurrent : array, of shape (..., 3 H)
        The recurrent projection, U h.
    recurrent_bias : array, of shape (3 H,), optional
        A bias that is added to recurrent.

    See Also
    --------
    gru_reset, gru_blend : The two halves of a GRU with its reset gate before the product.

    Notes
    -----
    Where z is 1, h has the bits of h_prev.

    With the derivatives of the activated gates ``r' = r * (1 - r)``, ``z' = z * (1 - z)`` and ``n'
    = 1 - n**2``, dgates is ``dr = dn * q * r'``, ``dz = dh * (h_prev - n) * z'`` and ``dn = dh * (1
    - z) * n'``, packed. drecurrent has ``dn * r`` in place of dn, and ``dh_prev = dh * z``, without
    the part that goes through recurrent. dh_prev may overwrite dh.

    Examples
    --------
    >>> gates, recurrent = np.array([[0.0, 1.0, 2.0]]), np.ones((1, 3))
    >>> fa.gru_gates(gates, recurrent, np.array([[0.5]]))
    array([[0.5585...]])
    >>> h, saved = fa.gru_gates.forward(gates, recurrent, 0.5)
    >>> dgates, drecurrent, dh_prev, _, _ = fa.gru_gates.backward(np.ones((1, 1)), *saved)
    >>> drecurrent
    array([[ 0.0003..., -0.0516...,  0.0014...]])
    """


@declared(Gates, kind="reset", letters="r", results=("y",))
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
    """First half of a GRU with its reset gate before the matrix product.

    ``y = r * h_prev`` with ``r = sigmoid(gates + recurrent + bias + recurrent_bias)``, in one pass.
    Cho et al. and Flux's GRU have this form.

    Parameters
    ----------
    gates : array, of shape (..., H)
        The input's projection for r, W x; a slice of a packed array is read in place. Its dtype is
        float16, bfloat16, float32 or float64, with any strides.

    Returns
    -------
    array
        The reset state, of shape (..., H).

    See Also
    --------
    gru_blend : The second half.

    Notes
    -----
    The gradients are ``dgates = dy * h_prev * r * (1 - r)`` and ``dh_prev = dy * r``. dgates may
    overwrite the saved gates, and dh_prev dy.

    Examples
    --------
    >>> fa.gru_reset(np.zeros((1, 2)), np.array([[1.0, 3.0]]))
    array([[0.5, 1.5]])
    >>> y, saved = fa.gru_reset.forward(np.zeros((1, 1)), np.array([[3.0]]))
    >>> dgates, dh_prev, dbias = fa.gru_reset.backward(np.ones((1, 1)), *saved)
    >>> dgates, dh_prev
    (array([[0.75]]), array([[0.5]]))
    """


@declared(Gates, kind="blend", letters="zn", results=("h",))
@called_as(gru_reset)
def gru_blend() -> None:
    """Second half of a GRU with its reset gate before the matrix product.

    ``h = (1 - z) * n + z * h_prev`` with ``z = sigmoid(a)``, ``n = tanh(b)`` and
    ``a, b = split(gates + recurrent + bias + recurrent_bias)``, in one pass.

    Parameters
    ----------
    gates : array, of shape (..., 2 H)
        The input's projection for z and n, W x; a slice of a packed array is read in place. Its
        dtype is float16, bfloat16, float32 or float64, with any strides.
    recurrent : array, optional
        The recurrent projection, U h_prev for z and U (r h_prev) for n, which is added to gates and
        has their shape and dtype.

    See Also
    --------
    gru_reset : The first half.

    Notes
    -----
    Where z is 1, h has the bits of h_prev.

    The gradients are ``dz = dh * (h_prev - n) * z * (1 - z)`` and ``dn = dh * (1 - z) * (1 -
    n**2)``, packed, and ``dh_prev = dh * z``. dgates may overwrite the saved gates, and dh_prev dh.

    Examples
    --------
    >>> fa.gru_blend(np.array([[0.0, 1.0]]), np.array([[0.5]]))
    array([[0.6307...]])
    >>> y, saved = fa.gru_blend.forward(np.zeros((1, 2)), np.array([[3.0]]))
    >>> dgates, dh_prev, dbias = fa.gru_blend.backward(np.ones((1, 1)), *saved)
    >>> dgates, dh_prev
    (array([[0.75, 0.5 ]]), array([[0.5]]))
    """
