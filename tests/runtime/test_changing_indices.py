"""Indices that another thread changes while a call reads them.

Calls compare all indices before they write, and read them again to use them. Whatever they find
then leads nowhere outside of an array: a call is right, wrong or an error, and never a crash.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from asserting import passes

import fastact as fa

R = np.random.default_rng(0)
#: A crash took some dozen calls.
CALLS = 200


@contextlib.contextmanager
def changing(indices: np.ndarray) -> Iterator[None]:
    """Meanwhile they are as they were, or far outside of what they choose from."""
    right, is_over = indices.copy(), threading.Event()

    def change() -> None:
        while not is_over.is_set():
            indices.fill(np.iinfo(indices.dtype).max // 2**20)
            np.copyto(indices, right)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def rotary(op: Any) -> Callable[[np.ndarray], Callable[[], Any]]:
    def of(i: np.ndarray) -> Callable[[], Any]:
        x, table = R.standard_normal((i.size, 4, 64)), np.ones((i.size, 32))
        return lambda: op(x, table, table, positions=i[:, None])

    return of


def cross_entropy(*shape: int) -> Callable[[np.ndarray], Callable[[], Any]]:
    def of(i: np.ndarray) -> Callable[[], Any]:
        z, weight, dy = R.standard_normal(shape), np.ones(shape[1]), np.ones(())

        def call() -> None:
            _, saved = fa.cross_entropy.forward(z, i[: shape[0]], weight=weight)
            fa.cross_entropy.backward(dy, *saved)

        return call

    return of


def groups(rows: bool) -> Callable[[np.ndarray], Callable[[], Any]]:
    """Columns whose rows have one label are listed, others are not."""

    def of(i: np.ndarray) -> Callable[[], Any]:
        x, dy = R.standard_normal((i.size, 40 if rows else 1)), np.ones((40 if rows else 1, 3))

        def call() -> None:
            with contextlib.suppress(ValueError):
                fa.sum(x, axis=0, by=i, groups=3)
            fa.sum.backward(dy, x.shape, by=i, axis=0, groups=3)

        return call

    return of


CASES = {
    "rotary": rotary(fa.rotary),
    "rotary behind a norm": rotary(fa.rms_norm_rotary),
    "cross_entropy of many rows": cross_entropy(2000, 50),
    "cross_entropy of long rows": cross_entropy(5, 4000),
    "groups of rows": groups(rows=True),
    "groups of elements": groups(rows=False),
}


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_indices_lead_nowhere_outside(made):
    indices = np.zeros(2000, np.int64)
    call = made(indices)
    call()
    with changing(indices):
        for _ in range(CALLS):
            with contextlib.suppress(ValueError):
                call()
    call()
    passes("nothing outside was read, which a sanitizer or the system would have told")
