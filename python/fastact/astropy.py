"""The bridge to astropy: which units an element-wise op takes.

Nobody has to import it: an op that is given a quantity loads it. Element-wise ops are functions of
numbers, as exp and logaddexp are: they take dimensionless quantities, and return one. astropy
refuses any other unit, with an error of its own.
"""

from typing import Any

from astropy.units.quantity_helper import UFUNC_HELPERS
from astropy.units.quantity_helper.helpers import (
    helper_dimensionless_to_dimensionless,
    helper_two_arg_dimensionless,
)

_HELPERS = {1: helper_dimensionless_to_dimensionless, 2: helper_two_arg_dimensionless}


def as_ufunc(ufunc: Any) -> Any:
    """Return the op, which astropy knows from now on."""
    UFUNC_HELPERS.setdefault(ufunc, _HELPERS[ufunc.nin])
    return ufunc
