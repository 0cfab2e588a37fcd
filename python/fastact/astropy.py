"""The bridge to astropy: which units an element-wise op takes.

It needs no import: a quantity that is given to an op has it loaded. Element-wise ops are functions
of numbers, as exp and logaddexp are: they take dimensionless quantities, and give one. Any other
unit astropy refuses, in its own words.
"""

from typing import Any

from astropy.units.quantity_helper import UFUNC_HELPERS
from astropy.units.quantity_helper.helpers import (
    helper_dimensionless_to_dimensionless,
    helper_two_arg_dimensionless,
)

_HELPERS = {1: helper_dimensionless_to_dimensionless, 2: helper_two_arg_dimensionless}


def as_ufunc(ufunc: Any) -> Any:
    """The op, which astropy knows from now on."""
    UFUNC_HELPERS.setdefault(ufunc, _HELPERS[ufunc.nin])
    return ufunc
