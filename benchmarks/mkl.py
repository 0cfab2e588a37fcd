"""MKL's vector functions as a mark to reach: the transcendental function of an activation alone.

`pip install mkl` brings the library, and no module; it is called by ctypes. Of its modes this is
the most exact one, within 1 ULP.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.metadata import files
from typing import TYPE_CHECKING, Any

import numpy as np

from fastact.measure.peers import MKL, LeftOut

if TYPE_CHECKING:
    from .workloads.work import Call, Work

_HIGH_ACCURACY = 2  # VML_HA of mkl_vml_defines.h
_LETTERS = {"float32": "s", "float64": "d"}

#: The function that the usual formula cannot do without.
_FUNCTIONS = {
    **dict.fromkeys(("sigmoid", "silu", "quick_gelu", "logsigmoid", "softplus"), "Exp"),
    **dict.fromkeys(("tanh", "softcap", "mish", "lisht", "tanhshrink"), "Tanh"),
    **dict.fromkeys(("elu", "selu", "celu", "xielu"), "Expm1"),
    "gelu": "Erf",
}


@cache
def _library() -> Any:
    # Its threads stay awake for 200 ms after a call by default, on the cores of whoever comes next.
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    for file in files(MKL) or ():
        if file.name.startswith("libmkl_rt.") or file.name.startswith("mkl_rt."):
            return ctypes.CDLL(str(file.locate()))
    raise LeftOut("its package has no libmkl_rt")


def call(work: Work, threads: int) -> Call:
    """Its call on the case's x."""
    case = work.case
    function, letter = _FUNCTIONS.get(case.op.name), _LETTERS.get(case.dtype)
    if case.direction != "forward" or function is None or letter is None:
        raise LeftOut("it has no function of that, or of its type")
    library = _library()
    library.MKL_Set_Num_Threads(threads)
    x, y = work.inputs["x"], np.empty_like(work.inputs["x"])
    of = getattr(library, f"vm{letter}{function}")
    of.restype = None
    told = ctypes.c_int(x.size), *(ctypes.c_void_p(a.ctypes.data) for a in (x, y))

    def run() -> Any:
        of(*told, ctypes.c_int64(_HIGH_ACCURACY))
        return y, x  # which live as long as this function

    return run
