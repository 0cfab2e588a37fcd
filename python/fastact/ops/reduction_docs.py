"""What the docstrings of sums over axes have in common: it stands here once."""

from dataclasses import dataclass
from inspect import Parameter

from .docs import ARRAY, OGITA, STREAM, paragraph
from .op_before import Takes

_CALL = """\
{name}({call})

{summary}

Parameters
----------
{array} : array
{description}
{parameters}out : array, optional
{out}
{accumulate}{stream}

Returns
-------
{result} : array
{returns}

Raises
------
TypeError
{wrong_type}
ValueError
{wrong_value}

Notes
-----
{notes}

References
----------
{references}

Examples
--------
>>> import numpy as np, fastact as fa
{example}
"""

_FORWARD = """\
forward({call}) -> ({result}, saved)

The sum, as calling the op gives it, and the tuple that `backward` needs.

Returns
-------
{result} : array
saved : tuple
{saved}

Examples
--------
>>> import numpy as np, fastact as fa
{example}
"""

_BACKWARD = """\
backward({call}) -> dx

dx = {gradient}

Parameters
----------
dy : array, or Python scalar
{dy}
{saved}
    What `forward` saved.
{as_told}out : array, optional
    Where to write dx; {may_be}not share memory with dy.
accumulate : bool
    Add dx to `out` instead of overwriting it.
{stream}

Returns
-------
dx : array
    `out` where it was given, else a new array of {like}'s dtype and framework.

Examples
--------
>>> import numpy as np, fastact as fa
{example}
"""

_ACCUMULATE = """\
accumulate : bool
    Add the sum to `out`, before it is rounded, instead of overwriting it.
"""


@dataclass(frozen=True)
class SumDoc:
    """What a sum's docstrings say of it alone.

    array, result : what it calls its argument and its value.
    parameters : for each option of its own, a line and what it means, indented.
    wrong_type, wrong_value : what is refused beside what all sums refuse.
    saved : "shape" or "x".
    *example : calls and their results, as in a doctest.
    """

    array: str
    result: str
    summary: str
    parameters: str
    wrong_type: str
    wrong_value: str
    notes: str
    example: str
    forward_example: str
    gradient: str
    backward_example: str
    saved: str = "shape"
    references: str = OGITA
    takes_numbers: bool = False


def _called(arguments: str, takes: Takes) -> str:
    """How an entry point is called, without its streams."""
    either = [n if v is Parameter.empty else f"{n}={v!r}" for n, v in takes.either.items()]
    only = [f"{name}={value!r}" for name, value in takes.by_keyword.items() if name != "stream"]
    return ", ".join([arguments, *either, "*", *only])


def docstrings(name: str, takes: Takes, back: Takes, doc: SumDoc) -> dict[str, str]:
    """Those of the entry points, by name."""
    array, result, saves_x = doc.array, doc.result, doc.saved == "x"
    told = (*back.either, *back.only)
    numbers = " Integers, lists and scalars are taken as np.tanh takes them."
    return {
        "call": _CALL.format(
            name=name,
            call=_called(array, takes),
            summary=doc.summary,
            array=array,
            description=paragraph(
                ARRAY.replace("\n", " ") + (numbers if doc.takes_numbers else ""), 4
            ),
            parameters=doc.parameters,
            out=paragraph(
                f"Where to write {result}: its shape, and dtype, device and framework of {array}. "
                f"It may not share memory with {array}.",
                4,
            ),
            accumulate=_ACCUMULATE if takes.accumulates else "",
            stream=STREAM,
            result=result,
            returns=paragraph(
                f"`out` where it was given, else a new array of {array}'s framework and dtype. A "
                "sum over no elements is 0.",
                4,
            ),
            wrong_type=paragraph(
                "For a dtype that is not supported, mixed frameworks, a tensor that requires grad, "
                f"or {doc.wrong_type}.",
                4,
            ),
            wrong_value=paragraph(
                f"For {doc.wrong_value}; an `out` of another shape or device, read-only, or that "
                f"shares memory with {array}.",
                4,
            ),
            notes=doc.notes,
            references=doc.references,
            example=doc.example,
        ),
        "forward": _FORWARD.format(
            call=_called(array, takes),
            result=result,
            saved=paragraph(
                "``(x,)``. It is not copied: do not change it before `backward`."
                if saves_x
                else f"``(shape,)``, the shape of {array}: the gradient of a sum needs nothing "
                "else of it.",
                4,
            ),
            example=doc.forward_example,
        ),
        "backward": _BACKWARD.format(
            call=_called(f"dy, {doc.saved}", back),
            gradient=doc.gradient,
            dy=paragraph(
                "The gradient of the loss with respect to what `forward` gave, of its shape"
                + (" and x's dtype." if saves_x else "."),
                4,
            ),
            saved="x : array" if saves_x else "shape : tuple of int",
            as_told=f"{', '.join(told)}\n    As told to `forward`.\n" if told else "",
            may_be="it may be x itself, but " if saves_x else "it may ",
            stream=STREAM,
            like="x" if saves_x else "dy",
            example=doc.backward_example,
        ),
    }
