"""Rotary position embeddings: the elements of queries and keys, turned in pairs.

Declared by a function: signature, defaults and its own documentation; `@rotary_op` makes the op.
The formula stands in `src/common/rotary/`, the oracle in `check/reference.py`.
"""

from typing import TYPE_CHECKING

from .engine.norm_rotary import NormRotary
from .engine.op import names_of_ops, register
from .engine.rotary import rotary_op
from .types import A, Array, Casting, Out, Outs, Stream


def _rotary_of_two(
    q: A,
    k: A,
    /,
    cos: Array,
    sin: Array,
    *,
    axis: int = -1,
    interleaved: bool = False,
    positions: Array | None = None,
    out: Outs[A] = None,
    stream: Stream = None,
) -> tuple[A, A]:
    raise NotImplementedError  # it declares alone


_rotary_of_two.__name__ = "rotary"


@rotary_op(_rotary_of_two)
def rotary(
    x: A,
    /,
    cos: Array,
    sin: Array,
    *,
    axis: int = -1,
    interleaved: bool = False,
    positions: Array | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Rotary position embedding, of one array or of queries and keys together.

    ``a, b = np.split(x, 2, axis)``, ``y = np.concatenate([a * cos - b * sin, b * cos + a * sin],
    axis)``: halves, as GPT-NeoX and Llama have them; or neighbours, as GPT-J.

    Parameters
    ----------
    x : array or tuple
        Of float16, bfloat16, float32 or float64; any strides. Or a tuple (q, k) of two of one
        dtype, which may differ in shape; then the result is a tuple, and so are dy and `out`.
    cos, sin : array
        The cosine and the sine of each pair's angle, of one shape, and of x's dtype or a wider one.
        Their length along `axis` is the number of pairs: the first ``2 * cos.shape[axis]``
        elements are turned, and the others stay as they are. Along the other axes they broadcast:
        for x of shape (batch, heads, seq, d) they are (seq, d / 2) or (batch, 1, seq, d / 2), for
        (batch, seq, heads, d) they are (seq, 1, d / 2). They have no gradient.
    axis : int, default -1
        The axis of the pairs.
    interleaved : bool, default False
        A pair is two neighbours, ``x[..., ::2], x[..., 1::2]``, and not an element of each half.
    positions : array, optional
        Of int32 or int64: which row of cos and sin, now tables of shape (rows, d / 2), an element's
        angles are in. They broadcast to x's shape without `axis`: (seq,), or (batch, 1, seq).
    out : array or tuple, optional
        Where to write y; it may be x itself. Of a tuple each array may be its own x.

    Returns
    -------
    array or tuple
        The result, of x's shape, dtype and framework.

    Raises
    ------
    TypeError
        For cos or sin of a dtype narrower than x's, or positions that are no integers.
    ValueError
        For more pairs than x has, cos and sin of different shapes, or a position that is no row of
        the table; on a GPU, where nobody waits for the answer, such an element is NaN.

    Notes
    -----
    Hugging Face's models repeat cos and sin over both halves: give ``cos[..., : d // 2]``, with an
    axis of heads, as their ``unsqueeze_dim`` adds it.

    In the type in which x is computed each product is rounded: ``x * cos + rotate_half(x) * sin``
    in float32 has the same bits. With u = 2**-24 (float64: 2**-53) y is within 3 u
    (abs(a cos) + abs(b sin)) of the exact value, for b likewise, and rounded to x's dtype; a cosine
    or a sine wider than the type in which x is computed is rounded to that first. The bits depend
    on no layout, and not on the number of threads.

    References
    ----------
    J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
    https://arxiv.org/abs/2104.09864

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> angle = np.outer(np.arange(2), [1.0, 0.01])
    >>> fa.rotary(np.ones((2, 4)), np.cos(angle), np.sin(angle))
    array([[ 1.        ,  1.        ,  1.        ,  1.        ],
           [-0.3011...,  0.9899...,  1.3817...,  1.0099...]])
    >>> fa.rotary(np.array([1.0, 0.0, 5.0]), np.array([0.8]), np.array([0.6]), interleaved=True)
    array([0.8, 0.6, 5. ])
    >>> y, saved = fa.rotary.forward(np.array([1.0, 0.0]), np.array([0.8]), np.array([0.6]))
    >>> fa.rotary.backward(y, *saved)
    array([1., 0.])
    """


@register
@NormRotary
def rms_norm_rotary(
    x: A,
    /,
    cos: Array,
    sin: Array,
    weight: Array | None = None,
    *,
    axis: int = -1,
    eps: float = 1e-6,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    interleaved: bool = False,
    positions: Array | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Root-mean-square normalization of heads, and rotary position embedding of what it gives.

    ``y = rotary(rms_norm(x, weight), cos, sin)``, the mean of the squares over `axis`, in one pass
    over memory: the norm of queries and of keys, as Qwen3 and Gemma 3 have it.

    Parameters
    ----------
    cos, sin : array
        The cosine and the sine of each pair's angle, as `rotary` has them.
    weight : array, optional
        Of the length of x along `axis`; of x's dtype or a wider one.
    axis : int, default -1
        The axis of the pairs, and of the norm.
    eps : float, default 1e-6
        Added to the mean of the squares; not negative.
    weight_offset : float, optional
        Added to the weight, in the type in which x is computed; by default 0, with "gemma" 1.
    casting : {"exact", "llama", "gemma"}, default "exact"
        Where the norm rounds, as `rms_norm` has it.
    interleaved : bool, default False
        A pair is two neighbours, ``x[..., ::2], x[..., 1::2]``, and not an element of each half.
    positions : array, optional
        Of int32 or int64: which row of cos and sin, now tables, an element's angles are in.

    Raises
    ------
    TypeError
        For a weight, cos or sin of a dtype narrower than x's, or positions that are no integers.
    ValueError
        For a negative eps, another casting, a weight of another shape, or what `rotary` refuses.

    See Also
    --------
    fastact.rms_norm : The norm alone, also over several axes.
    fastact.rotary : The rotary embedding alone, also of queries and keys together.

    Notes
    -----
    It has the bits of ``rotary(rms_norm(x, weight), cos, sin)``: n, which the norm gives, is
    rounded to x's dtype, and so is what it becomes. Models round in both places, too, and each
    product with cos and sin besides.

    With u = 2**-24 (float64: 2**-53) and xhat the normalised x, z = xhat weight has an error of at
    most 6 u abs(xhat weight) + u abs(z), for float64 also 2**-46 abs(weight) (1 + abs(xhat)), and
    on a GPU, for 16-bit data, 4 u abs(weight) (1 + abs(xhat)); n is z, rounded. Turning it has an
    error of at most 3 u (abs(n_a cos) + abs(n_b sin)), for the other half of a pair likewise, takes
    errors of n times abs(cos) and abs(sin), and ends with the second rounding.

    References
    ----------
    J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
    https://arxiv.org/abs/2104.09864

    `Qwen3Attention` and `Gemma3Attention` of https://github.com/huggingface/transformers

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x, cos, sin = np.array([3.0, 4.0]), np.array([0.6]), np.array([0.8])
    >>> fa.rms_norm_rotary(x, cos, sin, eps=0)
    array([-0.3959...,  1.3576...])
    >>> y, saved = fa.rms_norm_rotary.forward(x, cos, sin, np.ones(2), eps=0)
    >>> fa.rms_norm_rotary.backward(np.array([1.0, 0.0]), *saved)
    (array([ 0.2172..., -0.1629...]), array([ 0.5091..., -0.9050...]))
    """


if not TYPE_CHECKING:  # a type checker reads the imports
    __all__ = names_of_ops(globals())
