"""Gated activations: the activation of one array, times another one, in one pass.

Each is declared by a function: signature, defaults and its own documentation; `@gated_op` makes the
op. The formula stands in `src/common/gated/`, the oracle in `check/reference.py`.
"""

from typing import TYPE_CHECKING, Any, Unpack

from ..interop import validate
from . import activations as _activations
from .activations import Parameters
from .engine.gated import gated_op
from .engine.op import names_of_ops
from .types import A, ActivationLike, Array, ArrayOrNumber, Out, Stream


def _silu(where: str, options: Any) -> Any:
    is_silu = validate.number(where, "alpha", options.alpha) == 1
    return _activations.silu if is_silu else _activations.quick_gelu


@gated_op()
def glu(
    x: A,
    /,
    activation: ActivationLike = "sigmoid",
    *,
    axis: int = -1,
    gate: str = "second",
    interleaved: bool = False,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Gated linear unit of a packed array: one half through an activation, times the other one.

    ``b, a = np.split(x, 2, axis)``, ``y = act(a) * b``; with gate="first" the halves change places.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; of an even length along `axis`; any strides.
    axis : int, default -1
        The axis that holds both halves, and along which the bias lies.
    gate : str, default "second"
        Which half goes through the activation: "second" as in torch, or "first" as in fused
        projections of gate and up.
    interleaved : bool, default False
        The halves are not one behind the other, but take turns: ``x[..., ::2], x[..., 1::2]``.
    bias : array, optional
        1-D, packed as x is along `axis`, to which it is added; of x's dtype or a wider one.
    out : array, optional
        Where to write y; it may not share memory with x or bias.

    Returns
    -------
    array
        The result, of half of x's length along `axis`, of its dtype and framework.

    See Also
    --------
    gated : The same of two arrays.
    swiglu : With silu, of two arrays.

    References
    ----------
    Y. N. Dauphin et al., "Language Modeling with Gated Convolutional Networks", ICML 2017,
    https://arxiv.org/abs/1612.08083

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[1.0, 2.0, -1.0, 0.0]])
    >>> fa.glu(x)
    array([[0.2689..., 1.        ]])
    >>> fa.glu(x, "relu", gate="first", interleaved=True)
    array([[2., 0.]])
    >>> y, saved = fa.glu.forward(x)
    >>> fa.glu.backward(np.ones((1, 2)), *saved)
    array([[0.2689..., 0.5       , 0.1966..., 0.5       ]])
    """


@gated_op()
def gated(
    a: A,
    b: ArrayOrNumber,
    /,
    activation: ActivationLike = "silu",
    *,
    axis: int = -1,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """An activation of one array, times another one.

    ``y = act(a) * b``; with `limit` and `offset` it is
    ``act(np.minimum(a, limit)) * (np.clip(b, -limit, limit) + offset)``.

    See Also
    --------
    swiglu, geglu, reglu : With the activation named.
    glu : The same of the halves of one array.

    References
    ----------
    N. Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
    >>> fa.gated(a, b, "mish")
    array([-0.3034...,  0.        ,  2.5952...])
    >>> y, saved = fa.gated.forward(a, b, "mish")
    >>> da, db = fa.gated.backward(np.ones(3), *saved, "mish")
    >>> db
    array([-0.3034...,  0.        ,  0.8650...])
    """


@gated_op(_silu)
def swiglu(
    a: A,
    b: ArrayOrNumber,
    /,
    *,
    alpha: float = 1.0,
    axis: int = -1,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Silu of one array, times another one.

    ``y = a * sigmoid(alpha * a) * b``, of what `gated` makes of a and b by `limit` and `offset`.

    Parameters
    ----------
    alpha : float, default 1.0
        Above zero: how sharp the bend is. With 1 it is `silu`, else `quick_gelu`; gpt-oss has
        ``alpha=1.702, limit=7.0, offset=1.0``.

    See Also
    --------
    gated : With any activation.
    glu : Of the halves of one array.

    References
    ----------
    N. Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
    >>> fa.swiglu(a, b)
    array([-0.2689...,  0.        ,  2.1931...])
    >>> y, saved = fa.swiglu.forward(a, b)
    >>> da, db = fa.swiglu.backward(np.ones(3), *saved)
    >>> da
    array([0.0723..., 1.        , 2.7830...])
    >>> fa.swiglu(a, b, alpha=1.702, limit=7.0, offset=1.0)
    array([-0.3084...,  0.        ,  3.3831...])
    """


@gated_op(lambda where, options: _activations.gelu)
def geglu(
    a: A,
    b: ArrayOrNumber,
    /,
    *,
    approximate: str = "none",
    axis: int = -1,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Gelu of one array, times another one.

    ``y = gelu(a) * b``, of what `gated` makes of a and b by `limit` and `offset`.

    Parameters
    ----------
    approximate : str, default "none"
        "tanh" for the approximation by tanh, as `gelu` has it.

    See Also
    --------
    gated : With any activation.
    glu : Of the halves of one array.

    References
    ----------
    N. Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
    >>> fa.geglu(a, b)
    array([-0.1586...,  0.        ,  2.5240...])
    >>> y, saved = fa.geglu.forward(a, b)
    >>> da, db = fa.geglu.backward(np.ones(3), *saved)
    >>> da
    array([-0.0833...,  1.        ,  3.2499...])
    """


@gated_op(lambda where, options: _activations.relu)
def reglu(
    a: A,
    b: ArrayOrNumber,
    /,
    *,
    axis: int = -1,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Relu of one array, times another one.

    ``y = max(a, 0) * b``, of what `gated` makes of a and b by `limit` and `offset`.

    See Also
    --------
    gated : With any activation.
    glu : Of the halves of one array.

    References
    ----------
    N. Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
    >>> fa.reglu(a, b)
    array([0., 0., 3.])
    >>> y, saved = fa.reglu.forward(a, b)
    >>> da, db = fa.reglu.backward(np.ones(3), *saved)
    >>> da
    array([0., 0., 3.])
    """


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
