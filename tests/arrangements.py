"""The same values in other memory: how arrays may lie, each function by what it does to one."""

import numpy as np


def plain(a: np.ndarray) -> np.ndarray:
    return a.copy()


def transposed(a: np.ndarray) -> np.ndarray:
    return a.copy("F")


def reversed_(a: np.ndarray) -> np.ndarray:
    every = (slice(None, None, -1),) * a.ndim
    return a[every].copy()[every] if a.ndim else a


def stepped(a: np.ndarray) -> np.ndarray:
    held = np.zeros([2 * n for n in a.shape], a.dtype)
    made = held[(..., *(slice(1, None, 2),) * a.ndim)]
    made[...] = a
    return made


def padded(a: np.ndarray, by: int = 3) -> np.ndarray:
    """Rows with something between them."""
    if a.ndim == 0:
        return a
    made = np.zeros((*a.shape[:-1], a.shape[-1] + by), a.dtype)[..., : a.shape[-1]]
    made[...] = a
    return made


def turned(a: np.ndarray) -> np.ndarray:
    """The first axis lies next to the last one, as examples between pixels and channels."""
    return np.moveaxis(np.moveaxis(a, 0, -2).copy("C"), -2, 0) if a.ndim > 1 else a.copy()


def repeated(a: np.ndarray) -> np.ndarray:
    """One row in place of all; what has one axis stays."""
    return np.broadcast_to(a[:1], a.shape) if a.ndim > 1 else a


def shifted(a: np.ndarray, by: int = 1) -> np.ndarray:
    """Begins so many elements behind a multiple of 64 bytes."""
    held = np.zeros(a.size + 64 + by, a.dtype)
    start = -held.ctypes.data // a.itemsize % (64 // a.itemsize) + by
    made = held[start : start + a.size].reshape(a.shape)
    made[...] = a
    return made


def misaligned(a: np.ndarray) -> np.ndarray:
    """Begins one byte behind where an element may; no device takes it."""
    made = np.ndarray(a.shape, a.dtype, np.zeros(a.nbytes + 1, np.uint8)[1:])
    made[...] = a
    return made


LAYOUTS = [plain, transposed, reversed_, stepped, padded, turned, repeated, shifted]
#: Layouts that hold the axes in memory in their order.
IN_ORDER = [misaligned, reversed_, stepped, padded]
