"""Norms: (x - mean) rstd weight + bias over units of x, with any activation fused behind.

What a unit is, is all that tells one from another; how they work is in `norm_op.py`, the formulas
and the gradients are in src/common/norms/norms.h.
"""

from . import norm_op
from .batch_norm import batch_norm as batch_norm
from .bounds_docs import norm_forward
from .docs import paragraph
from .norm_apply import norm_apply as norm_apply
from .norm_op import NormOp
from .op import register

_WEIGHTS = """\
        weight, bias : array, optional
            {shape}; of x's dtype or a wider one. Either may come without the other.
"""
_WEIGHT = """\
        weight : array, optional
            {shape}; of x's dtype or a wider one.
"""
_MORE = """\
        eps : float
            Added to the {variance}; not negative.
        activation : str or op
            The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
        out : {out}
        ... : float
            The activation's own parameters, by keyword.

        Returns
        -------
{returns}

        Raises
        ------
        TypeError
            For a dtype that is not supported or a parameter narrower than x, mixed frameworks, a
            tensor that requires grad, or an unknown keyword.
        ValueError
            For a parameter of another shape, {errors}, a negative eps, an unknown
            activation; an `out` that does not fit, that overlaps x in part, or that shares memory
            with a parameter.
"""
_ONE_OUT = """array, optional
            Where to write y: shape, dtype, device and framework of x. It may be x itself."""
_TWO_OUTS = """tuple of two arrays or None, optional
            Where to write y and the sum: shape, dtype, device and framework of x; one that is None
            is allocated. The sum may be x or residual itself, and y too."""
_Y = """\
        y : array
            `out` where it was given, else a new array of x's framework, in x's layout."""
_Y_AND_SUM = """\
        y : array
            Of x's framework, dtype and layout.
        total : array
            x + residual, rounded to x's dtype; it is what is normalised."""
_X = """\
        x : array
            Any shape and strides; float16, bfloat16, float32 or float64, a NumPy array or an array
            of any framework with DLPack.
"""
_RESIDUAL = """\
        residual : array, or Python scalar
            Of x's shape and dtype.
"""
_AXIS = """\
        axis : int or tuple of int
            The axes whose elements share statistics, and along which the parameters lie.
"""
_CHANNEL = """\
        channel_axis : int
            The axis of the channels: 1 for NCHW, -1 for channels last. The batch is axis 0, unless
            the channels are.
"""
_NOTES = """
The result for a unit does not depend on the other units, nor on the number of threads. Terms are
added up in the order of `fastact.sum`: the bits may depend on the order in which memory holds the
axes (channels last), but not on how they step."""


def _doc(
    first: str,
    formula: str,
    *,
    x: str = _X,
    weights: str,
    axes: str,
    errors: str,
    paper: str,
    example: str,
    variance: str = "variance",
    out: str = _ONE_OUT,
    returns: str = _Y,
    centred: bool = True,
) -> str:
    more = _MORE.format(variance=variance, out=out, returns=returns, errors=errors)
    notes = norm_forward(NormOp.bounds, centred=centred) + _NOTES
    accuracy = paragraph(notes, 8) + "\n"
    indented = "\n".join(f"        {line}" for line in example.splitlines())
    return (
        f"{first}\n\n        {formula}\n\n        Parameters\n        ----------\n"
        f"{x}{weights}{axes}{more}\n        Notes\n        -----\n{accuracy}\n"
        f"        References\n        ----------\n        {paper}\n\n"
        f"        Examples\n        --------\n{indented}\n        "
    )


_LAYER = """J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer Normalization",
        https://arxiv.org/abs/1607.06450"""
_RMS = """B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019,
        https://arxiv.org/abs/1910.07467"""
_GROUP = """Y. Wu and K. He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494"""
_INSTANCE = """D. Ulyanov, A. Vedaldi and V. Lempitsky, "Instance Normalization: The Missing
        Ingredient for Fast Stylization", https://arxiv.org/abs/1607.08022"""
_AXIS_ERRORS = "an axis out of range or named twice"


layer_norm = register(
    NormOp(
        "layer_norm",
        _doc(
            'layer_norm(x, weight=None, bias=None, *, axis=-1, eps=1e-5, activation="identity", '
            "...)",
            "y = act((x - mean) / sqrt(variance + eps) weight + bias), mean and variance over\n"
            "        `axis`, in one pass over memory.",
            weights=_WEIGHTS.format(shape="Of the lengths of x along `axis`, in the order of x"),
            axes=_AXIS,
            errors=_AXIS_ERRORS,
            paper=_LAYER,
            example=""">>> import numpy as np, fastact as fa
>>> x = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]])
>>> fa.layer_norm(x)
array([[-1.2247...,  0.        ,  1.2247...],
       [-0.7071..., -0.7071...,  1.4142...]])
>>> fa.layer_norm(x, np.full(3, 2.0), activation="mish")
array([[-0.2023...,  0.        ,  2.4187...],
       [-0.3029..., -0.3029...,  2.8108...]])""",
        ),
        norm_op.rows,
        {"axis": -1},
        eps=1e-5,
    )
)

rms_norm = register(
    NormOp(
        "rms_norm",
        _doc(
            'rms_norm(x, weight=None, *, axis=-1, eps=1e-6, activation="identity", ...)',
            "y = act(x / sqrt(mean(x**2) + eps) weight), the mean over `axis`, in one pass over\n"
            "        memory.",
            weights=_WEIGHT.format(shape="Of the lengths of x along `axis`, in the order of x"),
            axes=_AXIS,
            errors=_AXIS_ERRORS,
            variance="mean of the squares",
            paper=_RMS,
            centred=False,
            example=""">>> import numpy as np, fastact as fa
>>> fa.rms_norm(np.array([3.0, 4.0]), eps=0)
array([0.8485..., 1.1313...])""",
        ),
        norm_op.rows,
        {"axis": -1},
        eps=1e-6,
        is_centred=False,
    )
)

add_layer_norm = register(
    NormOp(
        "add_layer_norm",
        _doc(
            "add_layer_norm(x, residual, weight=None, bias=None, *, axis=-1, eps=1e-5, "
            'activation="identity", ...)',
            "total = x + residual, and `layer_norm` of it, in one pass over memory.",
            x=_X + _RESIDUAL,
            weights=_WEIGHTS.format(shape="Of the lengths of x along `axis`, in the order of x"),
            axes=_AXIS,
            errors=_AXIS_ERRORS,
            out=_TWO_OUTS,
            returns=_Y_AND_SUM,
            paper=_LAYER,
            example=""">>> import numpy as np, fastact as fa
>>> fa.add_layer_norm(np.array([1.0, 2.0]), np.array([0.0, 1.0]), eps=0)
(array([-1.,  1.]), array([1., 3.]))""",
        ),
        norm_op.rows,
        {"axis": -1},
        eps=1e-5,
        inputs=("x", "residual"),
    )
)

add_rms_norm = register(
    NormOp(
        "add_rms_norm",
        _doc(
            "add_rms_norm(x, residual, weight=None, *, axis=-1, eps=1e-6, "
            'activation="identity", ...)',
            "total = x + residual, and `rms_norm` of it, in one pass over memory.",
            x=_X + _RESIDUAL,
            weights=_WEIGHT.format(shape="Of the lengths of x along `axis`, in the order of x"),
            axes=_AXIS,
            errors=_AXIS_ERRORS,
            variance="mean of the squares",
            out=_TWO_OUTS,
            returns=_Y_AND_SUM,
            paper=_RMS,
            centred=False,
            example=""">>> import numpy as np, fastact as fa
>>> fa.add_rms_norm(np.array([1.0, 2.0]), np.array([2.0, 2.0]), eps=0)
(array([0.8485..., 1.1313...]), array([3., 4.]))""",
        ),
        norm_op.rows,
        {"axis": -1},
        eps=1e-6,
        inputs=("x", "residual"),
        is_centred=False,
    )
)

group_norm = register(
    NormOp(
        "group_norm",
        _doc(
            "group_norm(x, num_groups, weight=None, bias=None, *, eps=1e-5, channel_axis=1, "
            'activation="identity", ...)',
            "y = act((x - mean) / sqrt(variance + eps) weight + bias), mean and variance over\n"
            "        each group of neighbouring channels of each example.",
            x=_X
            + """\
        num_groups : int
            How many groups; it divides the number of channels.
""",
            weights=_WEIGHTS.format(shape="1-D, one a channel"),
            axes=_CHANNEL,
            errors="an axis out of range, a number of groups that does not fit",
            paper=_GROUP,
            example=""">>> import numpy as np, fastact as fa
>>> fa.group_norm(np.array([[1.0, 3.0, 5.0, 5.0]]), 2, eps=1e-12)
array([[-1.,  1.,  0.,  0.]])""",
        ),
        norm_op.groups,
        {"channel_axis": 1},
        eps=1e-5,
        required=("num_groups",),
    )
)

instance_norm = register(
    NormOp(
        "instance_norm",
        _doc(
            "instance_norm(x, weight=None, bias=None, *, eps=1e-5, channel_axis=1, "
            'activation="identity", ...)',
            "y = act((x - mean) / sqrt(variance + eps) weight + bias), mean and variance over\n"
            "        each channel of each example.",
            weights=_WEIGHTS.format(shape="1-D, one a channel"),
            axes=_CHANNEL,
            errors="an axis out of range",
            paper=_INSTANCE,
            example=""">>> import numpy as np, fastact as fa
>>> fa.instance_norm(np.array([[[1.0, 3.0], [5.0, 9.0]]]), eps=0)
array([[[-1.,  1.],
        [-1.,  1.]]])""",
        ),
        norm_op.instances,
        {"channel_axis": 1},
        eps=1e-5,
    )
)
