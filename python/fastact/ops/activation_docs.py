"""What the docstrings of the activations have in common: it stands here once."""

from dataclasses import dataclass

from .docs import ARRAY, LIKE_X, STREAM, paragraph
from .op import Bounds

_X = f"{ARRAY} Integers, lists and scalars are taken as np.tanh takes them."
_TEMPLATE = """\
{title}: {formula}.

Parameters
----------
x : array
{array}
{parameters}out : array, optional
    Where to write y: shape, dtype, device and framework of x. It may be x itself. As in NumPy, a
    tuple of one is the same.
{stream}

Returns
-------
{like_x}

Raises
------
TypeError
    For a dtype that is not supported, mixed frameworks, or a tensor that requires grad.
ValueError
    For an `out` of another shape or device, read-only, or that overlaps x in part{errors}.

Notes
-----
float32 and float64: {forward} from the true value, for every input. The derivative
that `backward` uses is {derivative}.
float16 and bfloat16: the float32 result, correctly rounded{on_gpu}.
{scaling}{notes}

References
----------
{reference}

Examples
--------
>>> import numpy as np, fastact as fa
>>> {example}
"""


def parameter(name: str, meaning: str) -> str:
    """A parameter's line, and what it means."""
    return f"{name}\n    {meaning}\n"


@dataclass(frozen=True)
class Doc:
    """What an activation's docstring says of it alone.

    title, formula : its first line.
    parameters : for each of its own, a line and what it means, indented as in NumPy's docstrings.
    notes : kinks, limits, what else is worth knowing.
    example : a call and its result, as in a doctest.
    """

    title: str
    formula: str
    reference: str
    example: str
    notes: str = ""
    parameters: str = ""
    errors: str = ""


def docstring(doc: Doc, bounds: Bounds) -> str:
    """The whole of it."""
    forward = f"at most {bounds.forward_ulp:g} ULP" if bounds.forward_ulp else "0 ULP"
    derivative = f"within {bounds.derivative_ulp:g} ULP" if bounds.derivative_ulp else "exact"
    if bounds.derivative_abs:
        derivative += (
            f" or {bounds.derivative_abs:g} (float32;\n"
            f"{bounds.derivative_abs * 2.0**-29:.2g} for float64) absolute"
        )
    scaling = ""
    if bounds.scaling is not None:
        product = bounds.scaling.formula
        scaling = (
            f"With another {bounds.scaling.parameter} than the default, {product} is rounded, for "
            f"which 2 u (1 + abs({product}))\ntimes the result comes on top, with u = 2**-24 "
            "(float64: 2**-53).\n"
        )
    return _TEMPLATE.format(
        scaling=scaling,
        title=doc.title,
        formula=doc.formula,
        array=paragraph(_X, 4),
        stream=STREAM,
        like_x=LIKE_X,
        parameters=doc.parameters,
        errors=doc.errors and f"; {doc.errors}",
        forward=forward,
        derivative=derivative,
        on_gpu=f", on a GPU within {bounds.narrow_ulp:g} ULP",
        notes=paragraph(f"A NaN gives a NaN. {doc.notes}"),
        reference=paragraph(doc.reference),
        example=doc.example,
    )
