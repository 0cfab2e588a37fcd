"""Dropout."""

from __future__ import annotations

import numpy as np

from ...measure.cases import Case
from .. import reference
from .common import Expected, widened


def expected(case: Case) -> dict[str, Expected]:
    back = case.entry == "backward"
    x, p = widened(case, "dy" if back else "x"), case.option("p")
    kept = reference.kept(x.shape, p, case.option("seed"), case.option("offset"))
    scaled = np.where(kept, x, 0) / np.where(kept, 1 - x.dtype.type(p), 1)
    has_residual = not back and case.has("residual")
    y = scaled + widened(case, "residual") if has_residual else scaled
    return {"dx" if back else "y": Expected(y, case.op.bounds.of_result(scaled, y, case.dtype))}
