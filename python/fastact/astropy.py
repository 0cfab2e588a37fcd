"""The bridge to astropy: which units an element-wise op takes.

It needs no import: a quantity that is given to an op has it loaded. Activations are functions of
numbers, as exp is: they take dimensionless quantities, and give them. Any other unit astropy
refuses, in its own words.
"""

from typing import Any

from astropy.units.quantity_helper import UFUNC_HELPERS
from astropy.units.quantity_helper.helpers import helper_dimensionless_to_dimensionless


def as_ufunc(ufunc: Any) -> Any:
    """The op, which astropy knows from now on."""
    if ufunc.nin == 1:
        UFUNC_HELPERS.setdefault(ufunc, helper_dimensionless_to_dimensionless)
    return ufunc
