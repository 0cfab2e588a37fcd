"""With `out=` no norm, sum or gate allocates what grows with the data; without, its outputs."""

from collections.abc import Callable, Iterator
from typing import Any

import calls
import numpy as np
import pytest
from calls import OPS, parts
from processes import HELD, OBJECTS, peak, python_output, reads_proc

import fastact as fa

SHAPED = [op for op in OPS if op.family != "activations"]
SIZES = (2000, 8000)  # rows: of both there are more than a kernel keeps sums of


def entries(op: Any, rows: int) -> Iterator[tuple[str, Callable[..., Any]]]:
    x, dy = (np.random.default_rng(s).random((rows, 40), np.float32) for s in (0, 1))
    yield "forward", calls.forward(op, x, dy)
    yield "backward", calls.backward(op, x, dy)


def outs(result: Any) -> Any:
    made = tuple(np.empty_like(part) for part in parts(result))
    return made if len(made) > 1 else made[0]


@pytest.mark.parametrize("op", SHAPED, ids=lambda op: op.name)
def test_python_and_numpy_allocate_the_outputs(op, many_threads):
    found: dict[str, list[tuple[int, int]]] = {}
    for rows in SIZES:
        for entry, call in entries(op, rows):
            result = call()
            out = outs(result)
            size = sum(part.nbytes for part in parts(result))
            ways = (lambda: call(out=out), call)  # noqa: B023
            least, least_new = map(peak, ways)
            found.setdefault(entry, []).append((least, least_new - size))
    for entry, ((few, few_new), (many, many_new)) in found.items():
        assert many - few < OBJECTS, entry
        assert many_new - few_new < OBJECTS, entry
        # Partial sums of a fixed number of blocks: 16 MiB are allowed, for any length of a row.
        assert max(many, many_new) < 2**24


@pytest.mark.skipif(not reads_proc, reason="reads Linux's /proc")
def test_peak_of_the_process_is_flat():
    """Resident memory counts what tracemalloc can't see: what the kernels and plans allocate."""
    rows = 50_000
    code = f"""
import sys
sys.path.insert(0, {str(calls.__file__).rpartition("/")[0]!r})
import numpy as np, fastact as fa, calls
{HELD}
fa.set_num_threads(4)
x, dy = (np.random.default_rng(s).random(({rows}, 40), np.float32) for s in (0, 1))
held = []
for op in calls.OPS:
    if op.family in ("norms", "reductions", "gates"):
        for call in (calls.forward(op, x, dy), calls.backward(op, x, dy)):
            result = call()
            out = tuple(np.ones_like(part) for part in calls.parts(result))
            held.append((call, result, out if len(out) > 1 else out[0]))
before = peak()
for call, _, out in held:  # nothing is freed: what is allocated on top shows
    for _ in range(4):  # the long way, then a plan
        call(out=out)
print(len(held), peak() - before)
"""
    count, grown = map(int, python_output(code).split())
    assert count == 2 * sum(op.family in ("norms", "reductions", "gates") for op in fa.ops.values())
    assert grown < rows * 40 * 4 / 2  # half of one array of the 2 * count that were written
