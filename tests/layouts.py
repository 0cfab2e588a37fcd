"""Views of any layout, for hypothesis."""

import numpy as np
from hypothesis import strategies as st


@st.composite
def views(draw, shape, writable: bool = False, aligned: bool = False):
    """Functions that lay values out: any order of axes, steps, repeats, misaligned or not.

    aligned : as devices ask for it.
    """
    order = draw(st.permutations(range(len(shape))))
    steps = draw(st.tuples(*(st.sampled_from([1, 1, 2, 3, -1, -2]) for _ in shape)))
    spread = draw(st.tuples(*(st.booleans() for _ in shape)))
    offset = 0 if aligned else draw(st.sampled_from([0, 0, 1]))  # bytes: 1 misaligns every element

    def make(values: np.ndarray) -> np.ndarray:
        """A view of this layout. Broadcast axes repeat the first of their values."""
        repeated = tuple(
            slice(0, 1) if b and not writable and n > 1 else slice(None)
            for b, n in zip(spread, values.shape, strict=True)
        )
        core = values[repeated]
        held = tuple(n * abs(s) for n, s in zip(core.shape, steps, strict=True))
        bytes_ = int(np.prod(held)) * values.dtype.itemsize
        memory = np.full(bytes_ + offset, 0xAB, np.uint8)[offset:]
        base = np.ndarray(tuple(held[i] for i in order), values.dtype, memory)
        base = base.transpose(np.argsort(order)) if order else base
        view = base[(..., *(slice(None, None, s) for s in steps))]
        view[...] = core
        return np.broadcast_to(view, values.shape) if view.shape != values.shape else view

    return make


def is_aligned(array: np.ndarray) -> bool:
    return array.__array_interface__["data"][0] % array.itemsize == 0
