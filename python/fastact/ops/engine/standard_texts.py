"""The texts that the documentation of ops has in common, by family: `docstrings.py` composes them.

A text is a docstring without a summary. It has an entry for each parameter that some op of the
family takes; an op's documentation gets the entries of its own signature. In braces are fields,
among them the constants of the op's bounds. The notes that the op has alone come where [own]
stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..bounds import NormBounds, StatisticBounds

Fields = dict[str, Any]


class Family(NamedTuple):
    """The texts that the ops of a family share.

    fields : tells them of an op. errors : a parameter, an error, and the values of that parameter
        for which the error is raised, in words.
    """

    text: str
    fields: Callable[[Any], Fields]
    errors: Sequence[tuple[str, str, str]] = ()


OWN = "[own]"

CALL = """
Parameters
----------
{data} : array
    Of float16, bfloat16, float32 or float64; any shape and strides.
activation : str or op, default "{activation}"
    The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
out : array, optional
    Where to write y; it may be {data} itself.
accumulate : bool, default False
    Add the sum to `out`, before it is rounded, instead of overwriting it.
stream : optional
    For arrays on a GPU: the stream to work on.
**parameters : float or str
    The activation's own parameters, by keyword.

Returns
-------
array
    The result, of {data}'s shape, dtype and framework.

Raises
------
{raises}

Notes
-----
{saves}docs/conventions.md says what all ops share.
"""

ENTRY = """
Parameters
----------
accumulate : bool, default False
    Add {gradients} to `out` instead of overwriting it.
stream : optional
    For arrays on a GPU: the stream to work on.
**parameters : float or str
    The activation's own parameters, as given to `forward`.
"""

FORWARD = """
Parameters
----------
out : {out_type}, optional
    As for the call{apart}.
stream : optional
    For arrays on a GPU: the stream to work on.
**parameters : float or str
    The activation's own parameters, by keyword.

Returns
-------
{result}
    What calling the op gives.
saved : tuple
    ``({saves})``{lacking}.{not_copied}

Notes
-----
Of the same bits, and so as accurate, as calling the op.
"""

BACKWARD = f"""{ENTRY}
{{incoming}} : array, or Python scalar
    {{The}} of the loss with respect to {{of}}: of {{its}} shape, and of the dtype of {{data}}.
out : {{out_type}}, optional
    {{out}}

Returns
-------
{{result}}
"""

SECOND = f"""{ENTRY.replace("{gradients}", "the gradients")}
{{of_gradients}} : array, or Python scalar
    What comes back to {{gradients}} of `backward`: of its shape and dtype.
{{incoming}} : array, or Python scalar
    As given to `backward`.
out : tuple of arrays or None, optional
    Where to write each gradient; one that is None is not computed. It shares no memory with what is
    read.

Returns
-------
{{result}}
"""

_NOT_COPIED = " Arrays are not copied: do not change them before `backward`."

ENTRIES = {"forward": FORWARD, "backward": BACKWARD, "backward.backward": SECOND}


def fields_of_call(op: Any) -> Fields:
    """The fields of `CALL`, for the texts of families too."""
    taken, gradients = op.__signature__.parameters, op.gradients
    activation = taken["activation"].default if "activation" in taken else ""
    gives = gradients[0] if len(gradients) == 1 else f"``({', '.join(gradients)})``"
    gives += "".join(
        f", and d{like} is the gradient of {name}, too" for name, like in op.shares.items()
    )
    return {
        "data": next(iter(taken)),
        "activation": activation,
        "raises": _raises(family_of(op).errors, taken),
        "saves": saves(op, gives),
    }


def fields_of_entry(op: Any, name: str, result: str) -> Fields:
    """The fields of `ENTRIES`; result: how the documentation of the call names it, and its type."""
    taken, several = op.__signature__.parameters, op.entry_points[name].outputs > 1
    all_gradients = name == "backward" and len(op.gradients) > 1
    may_lack = any(taken[name].default is None for name in op.saves if name in taken)
    fields = {
        "out_type": "tuple of arrays or None" if several else "array",
        "gradients": "the gradients" if all_gradients else op.gradients[0],
        "result": result,
        "saves": _tuple(op.saves),
        "lacking": ", where None stands for an array that was not given" if may_lack else "",
        "not_copied": "" if op.saves == ("shape",) else _NOT_COPIED,
        "apart": (
            "" if op.results[0] in op.saves else "; it shares no memory with an array that is saved"
        ),
    }
    if name == "backward.backward":
        return fields | _of_second(op, op.entry_points[name])
    return fields | (_of_backward(op, several) if name == "backward" else {})


def _of_second(op: Any, entry: Any) -> Fields:
    incoming = [n for n in op.entry_points["backward"].arrays if n not in op.saves]
    result = [f"{d} : array\n    The gradient of {d.removeprefix('d')}." for d in entry.gives]
    return {
        "of_gradients": ", ".join(f"d{d}" for d in op.gradients if f"d{d}" in entry.arrays),
        "gradients": "the gradients" if len(op.gradients) > 1 else op.gradients[0],
        "incoming": ", ".join(incoming),
        "result": "\n".join(result),
    }


def _of_backward(op: Any, several: bool) -> Fields:
    incoming = [a for a in op.entry_points["backward"].arrays if a not in op.saves]
    data, first = (*op.saves, *incoming)[0], op.gradients[0]
    taken = op.entry_points["backward"].defaults
    out = f"Where to write {first}; it"
    result = f"array\n    The gradient {first}, of the shape, dtype and framework of {data}."
    if several:
        out = f"Where to write each gradient; one that is None is not computed. {first}"
    if len(op.gradients) > 1:
        pairs = zip(op.gradients, op.differentiated, strict=True)
        result = "\n".join(f"{d} : array\n    {_like(op, of)}" for d, of in pairs)
    return {
        "incoming": ", ".join(incoming),
        "The": "The gradients" if len(incoming) > 1 else "The gradient",
        "of": " and ".join(map(_result, incoming)),
        "its": "their" if len(incoming) > 1 else "its",
        "data": f"{data}, or the one that `dtype` names" if "dtype" in taken else data,
        "out": f"{out} may be {incoming[0]} or {data} itself.",
        "result": result,
    }


def _result(incoming: str) -> str:
    """The result that has a gradient: y, or a word."""
    name = incoming.removeprefix("d")
    return name if len(name) == 1 else f"the {name}"


def _like(op: Any, name: str) -> str:
    is_optional = op.__signature__.parameters[name].default is None
    return f"Of the shape and dtype of {name}{'; None where there is none' * is_optional}."


def _raises(errors: Sequence[tuple[str, str, str]], taken: Collection[str]) -> str:
    """Each error, with the values of the parameters that it is raised for."""
    clauses: dict[str, list[str]] = {}
    for name, error, clause in errors:
        if name in taken and clause not in clauses.setdefault(error, []):
            clauses[error].append(clause)
    return "\n".join(
        f"{error}\n    For {listed(clauses[error])}." for error in sorted(clauses) if clauses[error]
    )


def saves(op: Any, gives: str) -> str:
    """The sentence on what `forward` saves and which gradients `backward` gives."""
    return (
        f"`{op.name}.forward` saves ``({_tuple(op.saves)})``; `{op.name}.backward` gives {gives}. "
    )


def power(value: float) -> str:
    """A constant, powers of two as such."""
    fraction, exponent = math.frexp(value)
    return f"2**{exponent - 1}" if fraction == 0.5 else f"{value:g}"


def listed(parts: Sequence[str]) -> str:
    """The parts as a sentence lists them: a, b, or c."""
    return f"{', '.join(parts[:-1])}, or {parts[-1]}" if len(parts) > 1 else parts[0]


def _tuple(names: Sequence[str]) -> str:
    return f"{names[0]}," if len(names) == 1 else ", ".join(names)


# --- activations ----------------------------------------------------------------------------------

ACTIVATION = """
Parameters
----------
out : array, optional
    Where to write y; it may be x itself{in_forward}.

Notes
-----
float32 and float64: {value} from the true value, for every input; the derivative, {slope}. float16
and bfloat16: the float32 result, correctly rounded, on a GPU within {narrow:g} ULP.{other} A NaN
gives a NaN.

[own]
"""


def _absolute(b: Any, of: str) -> str:
    in_double = b.absolute("float64", of)
    return f" or {b.absolute('float32', of):g} (float64: {in_double:.3g}) absolute"


def _of_activation(op: Any) -> Fields:
    b, saves_x = op.bounds, "x" in op.saves
    value = f"at most {b.forward_ulp:g} ULP" if b.forward_ulp else "0 ULP"
    slope = f"within {b.derivative_ulp:g} ULP" if b.derivative_ulp else "exact"
    if b.forward_abs:
        value += _absolute(b, "forward")
    if b.derivative_abs:
        slope += _absolute(b, "derivative")
    rules = [text for text, _ in op.rules]
    for name, allowed in op.choices.items():
        rules.append(f"{name} must be {' or '.join(map(repr, allowed))}")
    of_y = "" if saves_x else ", from the y that it is given"
    return {
        "in_forward": "" if saves_x else ", in `forward` too",
        "raises": f"ValueError\n    {', and '.join(rules)}." if rules else "",
        "value": value,
        "slope": slope,
        "narrow": b.narrow_ulp,
        "other": f" {b.other.text}, with u = 2**-24 (float64: 2**-53)." if b.other else "",
        "saves": saves(op, f"dx = dy y'(x){of_y}"),
    }


# --- gated ----------------------------------------------------------------------------------------

GATED = """
Parameters
----------
a : array
    The gate. Of float16, bfloat16, float32 or float64; any shape and strides.
b : array or float
    Of a's shape and dtype.
axis : int, default -1
    The bias's axis.
bias : array, optional
    1-D, of twice the length of the axis `axis`: first the numbers that are added to a, then those
    for b; of a's dtype or a wider one.
limit : float, optional
    Above zero: a is held at limit from above, and b between -limit and limit, after the bias.
offset : float, default 0.0
    Is added to b after that.
out : array, optional
    Where to write y; it may be a or b itself.

Notes
-----
A sum with a bias errs by {sums:g} u (abs(a) + abs(bias)) at most, with u = 2**-24 (float64:
2**-53), and a sum with an offset by u times itself; 16 bits are computed in float32, to which
limit, offset and a wider bias are rounded. The activation follows within its own
bounds{own_bounds}, and the product is rounded, and then to 16 bits. The bits do not depend on the
number of threads.

[own]
"""


def _of_gated(op: Any) -> Fields:
    *arrays, bias = op.gradients
    own_bounds = ""
    if "activation" not in op.__signature__.parameters:
        ulp = op.activation_of({})[0].bounds.forward_ulp
        own_bounds = f" ({ulp:g} ULP)" if ulp else " (exact)"
    return {
        "sums": op.bounds.sums,
        "own_bounds": own_bounds,
        "saves": saves(op, f"{' and '.join(arrays)}, and {bias} where there is a bias"),
    }


_GATED_ERRORS = (
    ("bias", "TypeError", "a bias narrower than the data"),
    ("parameters", "TypeError", "a keyword that the activation does not have"),
    ("interleaved", "ValueError", "an odd length"),
    ("activation", "ValueError", "an unknown activation"),
    ("gate", "ValueError", "an unknown gate"),
    ("approximate", "ValueError", "an unknown approximation"),
    ("axis", "ValueError", "an axis out of range"),
    ("bias", "ValueError", "a bias of another length"),
    ("alpha", "ValueError", "an alpha that is not above zero"),
    ("limit", "ValueError", "a limit that is not above zero"),
    ("bias", "ValueError", "an `out` that shares memory with bias"),
)

# --- gates ----------------------------------------------------------------------------------------

GATES = """
Parameters
----------
{state} : array, of shape (..., H), or Python scalar
    The state before this step.
recurrent : array, optional
    The recurrent projection, U h: shape and dtype of gates, to which it is added.
bias : array, of shape ({count}H,), optional
    {packed} dtype or a wider one. Added to every row.
recurrent_bias : array, of shape ({count}H,), optional
    Another one.
out : array, optional
    Where to write {result}; it may be {state} itself.

Notes
-----
The pre-activations are added up in float32 (float64 for float64), as (gates + recurrent) + the sum
of the biases; sigmoid and tanh are `fastact.sigmoid` and `fastact.tanh`. With S the largest sum of
the magnitudes that a gate adds up, H the magnitude of the state before and u = 2^-24 (float64:
2^-53), an error is at most {ulp:g} u (1 + {sums:g} S) (1 + H){of_reset} and the rounding to the
dtype. The bits do not depend on the number of threads, nor on strides.

[own]

With G the magnitude of the gradients that came back, an error of theirs is at most {back:g} u (1 +
{sums:g} S) (1 + H)^2 G{of_reset_squared}, and the rounding to the dtype.
"""


def _of_gates(op: Any) -> Fields:
    b, resets = op.bounds, op.takes_recurrent
    errors = _GATES_ERRORS if op.count > 1 else _GATES_ERRORS[:1]  # all lengths are multiples of 1
    return {
        "raises": _raises(errors, op.__signature__.parameters).format(count=op.count),
        "state": op.state,
        "count": f"{op.count} " if op.count > 1 else "",
        "packed": "Packed as gates are; of their" if op.count > 1 else "Of gates'",
        "result": op.results[0],
        "ulp": b.state_ulp,
        "back": b.gradient_ulp,
        "sums": b.sums,
        "of_reset": " (1 + Q), where r scales a sum of the magnitudes Q," if resets else ",",
        "of_reset_squared": " (1 + Q)^2" if resets else "",
    }


_GATES_ERRORS = (
    ("bias", "TypeError", "a bias narrower than gates"),
    ("gates", "ValueError", "a last axis of gates that is no multiple of {count}"),
    ("order", "ValueError", "an order that is no permutation of the {count} gates"),
)

# --- norms ----------------------------------------------------------------------------------------

NORM = """
Parameters
----------
residual : array, or Python scalar
    Of x's shape and dtype.
gate : array, or Python scalar
    Of x's shape and dtype.
p : float
    The probability that an element of x is dropped, from 0 to 1.
seed : int
    Which mask it is: from -2**63 to 2**64 - 1, modulo 2**64.
offset : int, default 0
    The number of the first element of x, from 0 to 2**63 - 1, as `dropout` has it.
{weights} : array, optional
    {lengths}; of x's dtype or a wider one.{either}
axis : int or tuple of int, default -1
    The axes whose elements share statistics, and along which the parameters lie.
channel_axis : int, default 1
    The axis of the channels: 1 for NCHW, -1 for channels last.{batch}
eps : float, default {eps}
    Added to {added_to}; not negative. With 0, rstd is infinite where it leaves float32 (float64),
    as for a row of zeros.
weight_offset : float, optional
    Added to the weight, in the type in which x is computed; by default 0, with "gemma" 1.
casting : {{"exact", "llama", "gemma"}}, default "exact"
    Where values are rounded. "exact": the result alone. "llama": the normalised x to x's dtype, and
    then the product with the weight, as Llama's published code does. "gemma": as "exact", with a
    weight that is learnt less 1, as Gemma's does.
out : {out_type}, optional
    {out}

Returns
-------
{result}

Notes
-----
Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 (2**-53), xhat
the normalised x and z the value before the activation, z has an error of at most {scaled:g} u
abs(xhat weight) + u abs(z){of_mean} {moments} abs(weight) (1 + abs(xhat)), for the roundings of the
moments{given}. Then the activation's own error, and one rounding to x's dtype; a bias wider than
the type in which x is computed is rounded to that first.{rough}

{bits}

{adds}

{gates}

{casts}

[own]
"""

_ROUGH = """ On a GPU, whose moments of {data} are of float32 in part, there is {rough:g} u
abs(weight) (1 + abs(xhat){apart}) more."""

_OF_ROWS = """The result for a normalization row does not depend on the other rows, nor on the
number of threads. Terms are added up in the order of `fastact.sum`: the bits may depend on the
order in which memory holds the axes (channels last), but not on how they step."""

_OF_CHANNELS = """Terms are added up as by `fastact.sum`: the bits do not depend on the number of
threads, but may on whether channels come last in memory."""

_CASTING = """With casting="llama" and 16-bit data, `{name}.backward` rounds where the derivative of
that code does: what reaches the normalised x, the terms of dweight, and with an activation what
comes from it. Of float32 and float64 it rounds nothing that is not rounded anyway."""

_ADDS = """The x that is saved is the sum. `dtotal` is the gradient with respect to the sum that was
returned."""

_GATES_NORM = """act(gate) is within the activation's own bounds, too; products with it are rounded
in the type in which x is computed, and errors are carried through. With `gate_first`, the product
with x is normalised as it is in that type, which it must not leave."""

_TOTAL = """y : array
    The normalised sum, of x's shape, dtype and framework.
total : array
    The sum, rounded to x's dtype. It is normalised as rounded, so that y is the norm
    of this sum; kernels that normalise the sum before they round it, as vLLM's and flash-attn's,
    differ by that rounding in 16 bits."""


def _of_norm(op: Any) -> Fields:
    taken = op.__signature__.parameters
    of_rows = not {"running_mean", "rstd"} & taken.keys()  # else of channels, over the whole batch
    by_axes = of_rows and "axis" in taken
    lengths = "Of the lengths of x along `axis`, in the order of x"
    adds, has_bias = "total" in op.results, "bias" in taken
    out_type, out = _output_of_norm(adds, of_rows)
    return {
        "weights": "weight, bias" if has_bias else "weight",
        "lengths": lengths if by_axes else "1-D, one value a channel",
        "either": " Either may come without the other." if has_bias else "",
        "batch": " The batch is axis 0, unless the channels are." if of_rows else "",
        "eps": str(taken["eps"].default).replace("e-0", "e-") if "eps" in taken else "",
        "out_type": out_type,
        "out": out,
        "result": _TOTAL if adds else "array\n    The result y, of x's shape, dtype and framework.",
        "bits": _OF_ROWS if of_rows else _OF_CHANNELS,
        "adds": _ADDS if adds else "",
        "gates": _GATES_NORM if "gate" in taken else "",
        "casts": _CASTING.format(name=op.name) if "casting" in taken else "",
        **_accuracy_of_norm(op.bounds, taken, "mean" in op.saves, of_rows),
    }


def _accuracy_of_norm(
    b: NormBounds, taken: Collection[str], centred: bool, of_rows: bool
) -> Fields:
    of_mean, mean = "; for float64 also", "abs(mean weight) rstd"
    if centred:
        of_mean = (
            f", and {power(b.far)} {mean} for the rounding of the mean; for float64 instead "
            f"{power(b.far_double)} {mean} (1 + abs(xhat)) +"
        )
    given = "; statistics of `Moments` bring them along" if "rstd" in taken else ""
    rough = _ROUGH.format(
        data="16-bit data" if of_rows else "16-bit data and of float32",
        rough=b.rough,
        apart=" + abs(mean) rstd" if of_rows else "",
    )
    return {
        "added_to": "the variance" if centred else "the mean of the squares",
        "scaled": b.scaled,
        "of_mean": of_mean,
        "moments": power(b.moments),
        "given": "; running statistics have none" if "running_mean" in taken else given,
        "rough": "" if given else rough,
    }


def _output_of_norm(adds: bool, of_rows: bool) -> tuple[str, str]:
    """The type and the text of `out`."""
    if adds:
        return "tuple of arrays or None", (
            "Where to write y and the sum; one that is None is allocated. The sum may be x or "
            "residual itself, and y too. Of `forward`, the tuple may go on with arrays for the "
            "statistics."
        )
    text = "Where to write y; it may be x itself."
    if not of_rows:
        return "array", text
    more = " Of `forward`, also a tuple that goes on with arrays for the statistics."
    return "array or tuple", text + more


_WEIGHTS = ("axis", "channel_axis")
_NORM_ERRORS = (
    *((name, "TypeError", "a parameter of a dtype narrower than x's") for name in _WEIGHTS),
    *((name, "ValueError", "a parameter of another shape") for name in _WEIGHTS),
    ("axis", "ValueError", "an axis out of range or named twice"),
    ("channel_axis", "ValueError", "an axis out of range"),
    ("num_groups", "ValueError", "a number of groups that does not fit"),
    ("eps", "ValueError", "a negative eps"),
    ("casting", "ValueError", "another casting"),
    ("seed", "TypeError", "a seed or an offset that is no integer"),
    ("seed", "ValueError", "a p, a seed or an offset out of range"),
)

# --- softmax --------------------------------------------------------------------------------------

SOFTMAX = """
Parameters
----------
scale : float, default 1.0
    The factor of x: for attention, 1 / sqrt(d).
mask : array, float or bool, optional
    It broadcasts to x's shape: of bool, True where an element takes part; else numbers of any dtype
    that are added to it, integers too. It has no gradient.
keepdims : bool, default False
    Leave the axes that were reduced in the result, with length 1.

Returns
-------
array
    The result y, of x's shape, dtype and framework.

Notes
-----
[own]

{bits}
"""

_OF_A_ROW = """The result for a row does not depend on the other rows, nor on strides, layout or the
number of threads; with several axes elements are in the order of the axes."""

_SOFTMAX_ERRORS = (
    ("mask", "TypeError", "a mask of a dtype that is not supported"),
    ("mask", "ValueError", "a mask that does not broadcast to x's shape"),
    ("scale", "ValueError", "an axis out of range or named twice"),
    ("scale", "ValueError", "a scale that is not finite"),
    ("sink", "TypeError", "a sink of another dtype than x's or a wider one"),
    ("sink", "ValueError", "a sink that does not broadcast to the rows"),
    ("softcap", "ValueError", "a softcap that is not above zero, or not finite"),
)


def _of_softmax(op: Any) -> Fields:
    return {"bits": _OF_A_ROW if "scale" in op.__signature__.parameters else ""}


# --- sums, moments, statistics --------------------------------------------------------------------

OVER_AXES = """
Parameters
----------
{data} : array
    Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
    computed as float64; lists and scalars are taken as NumPy takes them.
axis : int or tuple of int, optional
    The axes to reduce, negative ones counted from the last; all of them without any. An empty tuple
    reduces none.
dtype : dtype, optional
    Of the result: float16, bfloat16, float32 or float64, by its name or as NumPy, torch or JAX has
    it; x's without one. It may be wider than x, or narrower, and is what the result alone is
    rounded to, once: NumPy rounds the elements to it first.
initial : float, optional
    What the sum begins with; it is finite, and added before the sum is rounded.
correction : float, default 0
    Subtracted from the number of elements, or from the sum of the weights: 1 for the unbiased
    variance.
ddof : float, optional
    NumPy's name of `correction`; one of the two may be given.
weights : array, optional
    How often each element counts: an array that broadcasts to x's shape, or lies along the axes
    that `axis` names, in its order, as np.average has it; of any dtype that x may have. An
    element of weight 0 does not count, whatever it is.
where : array of bool, or bool, optional
    It broadcasts to x's shape: True where an element counts. The others are not read as numbers:
    they may be NaN.
by : array of int, optional
    The group that each element belongs to, from 0 on, or -1 for none, in any order: an array that
    broadcasts to x's shape, or lies along the axes that `axis` names, in its order. The bits do
    not depend on the threads. On the CPU alone.
groups : int, optional
    How many groups there are, where `by` is given. The result has an axis of them, the last one, in
    the place of the axes that are reduced. A group without elements is one of no elements.
keepdims : bool, default False
    Leave the axes that were reduced in the result, with length 1.
out : array, optional
    Where to write y; it may not share memory with {data}.

Returns
-------
array
    The {called}, of {data}'s framework and dtype, or the one that `dtype` names; of integers it is
    float64. {of_nothing}.
"""

STATISTIC = f"""{OVER_AXES}

See Also
--------
mean_var : Mean and variance in one read.
moments : Mean and m2 in float64, which merge with others.

References
----------
{{reference}}

Notes
-----
{{accuracy}} Computed in double and rounded once. {{infinite}} propagate as they do in NumPy.

[own]

{{without_nan}}Terms are added up in the order of `fastact.sum`, with its promise of the same
bits.{{no_warning}}

{{weighted}}
"""

_OF_SUM = """At most {ulp:g} ULP of the result plus {absolute}, for float16 and bfloat16 {narrow},
times the {of} of the abs(x) that count from the true {of}."""

_OF_VARIANCE = """At most {ulp:g} ULP, a share of {m2} of itself (float64: {double}) and of {far} of
abs(mean) / std from the true {called}, also for data far from 0. Of equal values it is 0{never}."""

_AVERAGED = """With weights it is ``sum(weights * x) / sum(weights)``, and the bound is of the mean
of the abs(x) as they are weighted."""

_FREQUENCIES = """Weights are frequencies: the result is as if each element of x were repeated so
often, and n is the sum of the weights. Where they say how reliable elements are, and their scale
has no meaning, ``correction=np.sum(weights**2) / np.sum(weights)`` makes the variance unbiased.
Their sum has an error of {absolute} of itself, which shows where a correction takes nearly all of
it."""

_NO_WEIGHT = " A weight that is negative or not finite makes NaN, and a RuntimeWarning says so."

_SUMS = """T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput.
26 (2005), https://doi.org/10.1137/030601818"""

_VARIANCES = """T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise
Algorithm for Computing Sample Variances", Stanford University, STAN-CS-79-773 (1979)"""

_CALLED = {"sum": "sum", "mean": "mean", "var": "variance", "std": "standard deviation"}


def _of_statistic(op: Any) -> Fields:
    of, skips, is_weighted = op.bounds.of, op.skips, "weights" in op.__signature__.parameters
    same_bits = f"Without NaN, `fastact.{op.name.removeprefix('nan')}` gives the same bits. "
    fields = {
        "called": _CALLED[of],
        "reference": _SUMS if of in ("sum", "mean") else _VARIANCES,
        "of_nothing": _of_nothing(of, skips),
        "accuracy": _accuracy(op.bounds),
        "infinite": "Infinities" if skips else "Infinities and NaN",
        "without_nan": same_bits if skips and of != "mean" else "",
        "no_warning": "" if of == "sum" else " On a GPU there is no warning.",
        "weighted": _weighted(op.bounds) if is_weighted else "",
    }
    return fields | ({"saves": saves(op, "dx, which is 0 where x is NaN")} if skips else {})


def _of_nothing(of: str, skips: bool) -> str:
    nothing = "no elements, or of NaN alone," if skips else "no elements"
    if of == "sum":
        return f"Of {nothing} it is 0"
    if of == "mean":
        return f"Of {nothing} it is NaN, and a RuntimeWarning says so"
    left = "NaN" if skips else "infinite or NaN"
    return f"Of no more than `correction` elements it is {left}, and a RuntimeWarning says so"


def _accuracy(b: StatisticBounds) -> str:
    if b.of in ("sum", "mean"):
        shares = {name: power(getattr(b.sums, name)) for name in ("absolute", "narrow")}
        return _OF_SUM.format(ulp=b.sums.ulp, of=b.of, **shares)
    half = 2 if b.of == "std" else 1
    return _OF_VARIANCE.format(
        ulp=b.sums.ulp,
        m2=power(b.moments.m2 / half),
        double=power(b.moments.m2_double / half),
        far=power(b.moments.far / half),
        called=_CALLED[b.of],
        never=", and it is never negative" if b.of == "var" else "",
    )


def _weighted(b: StatisticBounds) -> str:
    text = _AVERAGED if b.of == "mean" else _FREQUENCIES.format(absolute=power(b.sums.absolute))
    return text + _NO_WEIGHT


_AXES_ERRORS = (
    ("axis", "TypeError", "an axis that is no integer"),
    ("dtype", "TypeError", "a `dtype` that is none of these, or that `out` does not have"),
    ("initial", "TypeError", "an initial number that is no real number"),
    ("correction", "TypeError", "a correction that is no real number"),
    ("ddof", "TypeError", "`correction` and `ddof` both given"),
    ("where", "TypeError", "a `where` that is not of bool"),
    (
        "by",
        "TypeError",
        "a `by` that is not of integers, comes without `groups`, or not on the CPU",
    ),
    ("axis", "ValueError", "an axis out of range or named twice"),
    ("initial", "ValueError", "an initial number that is not finite"),
    ("correction", "ValueError", "a correction that is not finite"),
    ("weights", "ValueError", "weights of another shape"),
    ("where", "ValueError", "a `where` of another shape"),
    ("by", "ValueError", "a `by` of another shape, or with a number that no group has"),
    ("by", "ValueError", "no groups, `keepdims` beside groups, or no axis that is reduced"),
)


def _of_sum(op: Any) -> Fields:
    return {"called": "sum", "of_nothing": "Over no elements it is 0"}


def family_of(op: Any) -> Family:
    """The texts of an op's family; it may have none."""
    return FAMILIES.get(op.family, Family("", lambda op: {}))


FAMILIES: Mapping[str, Family] = {
    "activations": Family(ACTIVATION, _of_activation),
    "gated": Family(GATED, _of_gated, _GATED_ERRORS),
    "gates": Family(GATES, _of_gates, _GATES_ERRORS),
    "norms": Family(NORM, _of_norm, _NORM_ERRORS),
    "reductions": Family(OVER_AXES, _of_sum, _AXES_ERRORS),
    "softmax": Family(SOFTMAX, _of_softmax, _SOFTMAX_ERRORS),
    "statistics": Family(STATISTIC, _of_statistic, _AXES_ERRORS),
}
