"""NumPy's own tests of its nan-functions, run against ours.

    python tools/numpy_nanfunctions.py

numpy.lib.tests.test_nanfunctions is collected with `nansum`, `nanmean`, `nanvar` and `nanstd`
replaced by ours under NumPy's signature. What deviates, and why, stands in DEVIATIONS: any other
failure ends the script with an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from others_tests import Outcomes, report, run

import fastact as fa

#: A part of a failure's message, or of a test's name, and why ours deviates.
DEVIATIONS: dict[str, str] = {
    "float64, got complex": "complex data are refused, in words",
    "float64, got float128": "there are no kernels of long double",
    "LongDoubleDType": "there are no kernels of long double",
    "float64, got object": "objects are refused, in words",
    "unknown keyword 'mean'": "no mean= that was computed before: there is one pass",
    "must be a plain array": "subclasses, which mean something by their memory, are refused",
    "test_signature_match": "fastact's signatures: keyword-only where torch lacks them",
    "int64') = np.": "sums of integers are of float64",
    "test_dtype_from_char": "long double and complex are among the characters",
    "test_nanfunc_ddof[nanstd-1d-f]": "NumPy's own float32 result is the less accurate one",
    # Complex, and extended precision, where the message says that a warning did not come.
    **{
        f"test_allnans[{shape}-{kind}": "no kernels for it"
        for shape in ("0d", "2d")
        for kind in "DFGg"
    },
}


def under_numpys_signature(op: Any) -> Callable[..., Any]:
    """Ours, called as NumPy's; what it does not take is a TypeError that says so."""

    def function(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, **more: Any
    ) -> Any:
        if "correction" in more:
            if ddof != 0:
                raise ValueError("ddof and correction can't be provided simultaneously.")
            ddof = more.pop("correction")
        named = {"correction": ddof} if "correction" in op.entry_points["call"].defaults else {}
        named |= {} if dtype is None else {"dtype": dtype}
        more = {name: v for name, v in more.items() if v is not np._NoValue}
        return op(a, axis, out=out, **named, **more)

    function.__name__ = op.name
    return function


def main() -> int:
    """Run them, and print the list."""
    for name in ("nansum", "nanmean", "nanvar", "nanstd"):
        setattr(np, name, under_numpys_signature(fa.ops[name]))
    outcomes = Outcomes()
    file = "numpy.lib.tests.test_nanfunctions"
    chosen = "not median and not percentile and not quantile and not ArgminArgmax and not MinMax"
    run(outcomes, file, "-k", chosen)
    return report(outcomes, DEVIATIONS)


if __name__ == "__main__":
    sys.exit(main())
