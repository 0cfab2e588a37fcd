"""What the docstrings of the activations have in common: it stands here once."""

from dataclasses import dataclass
from textwrap import fill

from ._op import Bounds

_WIDTH = 98
_TEMPLATE = """\
{title}: {formula}.

Parameters
----------
x : array
    Any shape and strides; float16, bfloat16, float32 or float64, a NumPy array or an array of any
    framework with DLPack. Integers, lists and scalars are taken as np.tanh takes them.
{parameters}out : array, optional
    Where to write y: shape, dtype, device and framework of x. It may be x itself. As in NumPy, a
    tuple of one is the same.
stream : optional
    For arrays on a GPU: the stream to work on, instead of their framework's current one.

Returns
-------
y : array
    `out` where it was given, else a new array of x's framework, in x's layout.

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
{notes}

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
    return _TEMPLATE.format(
        title=doc.title,
        formula=doc.formula,
        parameters=doc.parameters,
        errors=doc.errors and f"; {doc.errors}",
        forward=forward,
        derivative=derivative,
        on_gpu=f", on a GPU within {bounds.narrow_ulp:g} ULP",
        notes=fill(f"A NaN gives a NaN. {doc.notes}", _WIDTH, break_on_hyphens=False),
        reference=fill(doc.reference, _WIDTH, break_on_hyphens=False),
        example=doc.example,
    )
