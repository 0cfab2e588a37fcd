"""What the docstrings say of accuracy, rendered from the bounds that everybody else checks by."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

from .bounds import BiasBounds, GateBounds, MomentBounds, NormBounds, SumBounds, text
from .docs import paragraph

_EXAMPLES = "\nExamples\n--------\n"


def noted(method: Callable[..., Any], notes: str) -> str:
    """A method's docstring with notes before its examples."""
    doc = cleandoc(method.__doc__ or "")
    head, examples, rest = doc.partition(_EXAMPLES)
    return f"{head}\nNotes\n-----\n{paragraph(notes)}\n{examples}{rest}"


def norm_forward(bounds: NormBounds, *, centred: bool = True, moments: str = "") -> str:
    """moments: where the roundings of float64's moments count."""
    error = (
        f"Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 "
        f"(2**-53), xhat the normalised x and z the value before the activation, z has an error of "
        f"at most {bounds.scaled:g} u abs(xhat weight) + u abs(z)"
    )
    roundings = f"{text(bounds.moments)} abs(weight) (1 + abs(xhat))"
    if centred:
        error += f", and {text(bounds.far)} abs(mean weight) rstd for the rounding of the mean"
        roundings = f"{text(bounds.far_double)} abs(mean weight) rstd (1 + abs(xhat)) + {roundings}"
    rough = (
        f" On a GPU, whose moments of 16-bit data are of float32 in part, there is "
        f"{bounds.rough:g} u abs(weight) (1 + abs(xhat) + abs(mean) rstd) more."
        if bounds.rough
        else ""
    )
    return (
        f"{error}; for float64 {'instead' if centred else 'also'} {roundings}, for the roundings "
        f"of the moments{moments}. Then the activation's own error, and one rounding to x's dtype; "
        f"a bias wider than what x is computed in is rounded to that first.{rough}"
    )


def norm_backward(bounds: NormBounds, *, training: bool = True, given: bool = False) -> str:
    """training: of statistics that depend on x; given: of such that do not."""
    both = f"{bounds.averaged:g} (mean abs(g) + abs(xhat) mean abs(g xhat))"
    of_dx = f"u rstd ({bounds.gradient:g} abs(g) + {both})"
    of_given = f"{bounds.given:g} u rstd abs(g)"
    if training and given:
        of_dx += f" in training, else {of_given}"
    elif given:
        of_dx = of_given
    constants = " and ".join(
        f"{constant:g} + n / {1 / bounds.each:g} for {constant:g}"
        for constant in sorted({bounds.averaged, bounds.summed})
    )
    return (
        f"With u = 2**-24 (float64: 2**-53), xhat = (x - mean) rstd for the statistics as they "
        f"were saved, p = dy act'(z) and g = p weight, dx has an error of at most {of_dx}, dweight "
        f"one of {bounds.summed:g} u sum abs(p xhat), dbias one of {bounds.summed:g} u sum abs(p). "
        f"Sums of float64 are added up in float64: of n terms, read {constants}. p is off by the "
        f"derivative's own error, by that of z ({bounds.scaled:g} u abs(xhat weight) + u abs(z)) "
        f"times the second derivative, and by u abs(p), with which dx, dweight and dbias follow by "
        f"the same formulas; without an activation it is exact. Then one rounding to the dtype."
    )


def mean_var_notes(bounds: MomentBounds) -> str:
    return (
        f"Computed in double and rounded once. The mean errs by at most 0.5 ULP and "
        f"{text(bounds.mean)} of the mean of abs(x), for types narrower than "
        f"float64 of the largest abs(x) more; the variance by 0.5 ULP and a share of "
        f"{text(bounds.m2)} of itself (float64: {text(bounds.m2_double)}), and of "
        f"{text(bounds.far)} of abs(mean) / std, also for data far from 0 and near the ends of the "
        f"dtype's range. Of equal values it is 0, and it is never negative."
    )


def moments_notes(bounds: MomentBounds) -> str:
    merged = "twice that" if bounds.merged == 2 else f"{bounds.merged:g} times that"
    return (
        f"Computed and returned in double. The mean errs by at most 2**-53 of itself and "
        f"{text(bounds.mean)} of the mean of abs(x), for types narrower than float64 of "
        f"the largest abs(x) more, m2 by a share of {text(bounds.m2)} of itself "
        f"(float64: {text(bounds.m2_double)}), and of {text(bounds.far)} of abs(mean) / std. "
        f"Moments that merged err by at most {merged}, whatever the split; the same split gives "
        f"the same bits."
    )


def moments_backward(bounds: MomentBounds, second: str) -> str:
    """second: what x - mean is multiplied by."""
    return (
        f"With u = 2**-24 (float64: 2**-53), dx has an error of at most {bounds.gradient:g} u "
        f"times the magnitudes of its two terms, and, for x - mean, {text(bounds.mean)} of the "
        f"mean of abs(x), for types narrower than float64 of the largest abs(x) more, times "
        f"{second}; then one rounding to x's dtype."
    )


def bias_forward(bounds: BiasBounds) -> str:
    return (
        f"(x + bias) + residual is computed in float32 (float64 for float64), to which a wider "
        f"bias is rounded first: with u = 2**-24 (2**-53), an error of at most {bounds.sums:g} u "
        f"(abs(x) + abs(bias) + abs(residual)). The activation follows within its own bounds, and "
        f"one rounding to x's dtype. The bits are those of the activation of the sums, for any "
        f"number of threads."
    )


def bias_backward(bounds: BiasBounds) -> str:
    sums = bounds.dbias
    return (
        f"dx is dy times the derivative that `backward` of the activation uses, within its bounds, "
        f"of a sum that is off by {bounds.sums:g} u (abs(x) + abs(bias) + abs(residual)), as for "
        f"the call; the product is rounded, and then to x's dtype. dbias errs by what its terms do "
        f"before they are rounded to x's dtype, {sums.ulp:g} ULP, and {text(sums.absolute)} of the "
        f"sum of their magnitudes. Of the identity dx is dy."
    )


def sum_notes(bounds: SumBounds, of: str) -> str:
    """of: what the errors are a share of."""
    return (
        f"At most {bounds.ulp:g} ULP of the result plus {text(bounds.absolute)} times {of} from "
        f"the true sum"
    )


def gate_states(bounds: GateBounds) -> str:
    return f"{bounds.state_ulp:g} u (1 + {bounds.sums:g} S) (1 + H)"


def gate_gradients(bounds: GateBounds) -> str:
    return f"{bounds.gradient_ulp:g} u (1 + {bounds.sums:g} S) (1 + H)^2 G"
