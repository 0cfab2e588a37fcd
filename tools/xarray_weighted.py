"""xarray's own tests of weighted reductions, run against ours.

    python tools/xarray_weighted.py

xarray.tests.test_weighted is collected with `weighted` of DataArray and Dataset replaced by
`fastact.xarray.weighted`. What deviates, and why, stands in DEVIATIONS: any other failure ends the
script with an error.
"""

from __future__ import annotations

import sys
from typing import Any

import xarray as xr
from others_tests import Outcomes, report, run

from fastact import xarray as fx

_WORDS = "the error has words of ours"
_WEIGHT_0 = "an element of weight 0 does not count, whatever it is: NaN that is not skipped, too"

#: A part of a test's name, and why ours deviates.
DEVIATIONS: dict[str, str] = {
    "test_weighted_bad_dim": _WORDS,
    "test_weighted_sum_equal_weights[False-0-da": _WEIGHT_0,
    "test_weighted_sum_nan[False-weights1-4]": _WEIGHT_0,
    "test_weighted_sum_nan[False-weights3-0]": _WEIGHT_0,
    "test_weighted_sum_of_squares_no_nan[weights0-0.66": "equal but for the last digit of float64",
}

_OWN = {cls: cls.weighted for cls in (xr.DataArray, xr.Dataset)}


class Weighted(fx.Weighted):
    """Ours, and xarray's own for what ours has not: quantiles, and how it is printed."""

    def __init__(self, obj: Any, weights: Any) -> None:
        self._own = _OWN[type(obj)](obj, weights)
        self.obj, self.weights = obj, self._own.weights

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __repr__(self) -> str:
        return repr(self._own)


def main() -> int:
    """Run them, and print the list."""
    for cls in _OWN:
        cls.weighted = lambda self, weights: Weighted(self, weights)
    outcomes = Outcomes()
    run(outcomes, "xarray.tests.test_weighted")
    return report(outcomes, DEVIATIONS)


if __name__ == "__main__":
    sys.exit(main())
