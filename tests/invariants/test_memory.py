"""With `out=` no call allocates what grows with the data; without, its outputs."""

import platform
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import calls
import numpy as np
import pytest
from calls import OPS, parts
from conftest import REPRESENTATIVES
from every import moved
from processes import HELD, OBJECTS, TESTS, peak, python_output, python_path, reads_proc

SIZES = (2000, 8000)  # rows: of both there are more than a kernel keeps sums of


def every_second(a: np.ndarray) -> np.ndarray:
    """The same values with others between them, the last row first."""
    made = np.repeat(a[::-1], 2, 0)[::-2] if a.ndim else a
    assert a.ndim == 0 or made.base is not None
    return made


def entries(op: Any, rows: int, dtype: Any) -> Iterator[tuple[str, Any, Callable[..., Any]]]:
    """Calls, how their arrays and results lie, and the name of an entry point with that."""
    x, dy = (np.random.default_rng(s).random((rows, 40)).astype(dtype) for s in (0, 1))
    for lie in (np.asarray, every_second):
        for entry in (calls.forward, calls.backward):
            yield f"{entry.__name__}, {lie.__name__}", lie, moved(entry(op, x, dy), lie)


def outs(made: Any, lie: Any = np.asarray) -> Any:
    """Memory for results like these."""
    held = tuple(None if part is None else lie(np.zeros_like(part)) for part in parts(made))
    return held if len(held) > 1 else held[0]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_python_and_numpy_allocate_the_outputs(op, dtype, many_threads):
    found: dict[str, list[list[int]]] = {}
    for rows in SIZES:
        for entry, lie, call in entries(op, rows, dtype):
            made = call()
            size, out = sum(a.nbytes for a in parts(made) if a is not None), outs(made, lie)
            adds = {"accumulate": True} if "backward" in entry else {}
            ways = (partial(call, out=out), partial(call, out=out, **adds), call)
            least, least_added, least_new = map(peak, ways)
            found.setdefault(entry, []).append([least, least_added, least_new - size])
    for entry, (few, many) in found.items():
        assert all(m - f < OBJECTS for f, m in zip(few, many, strict=True)), (entry, few, many)
        # Partial sums of a fixed number of blocks: 16 MiB are allowed, for any length of a row.
        assert max(many) < 2**24


#: Activations differ by their formula alone.
SOME = [*REPRESENTATIVES, *(op for op in OPS if op.family == "reductions")]
LIES = {
    "np.array": [*SOME, *(op for op in OPS if op.family in ("norms", "gates"))],
    **{"every_second": SOME, "np.asfortranarray": SOME},
    "lambda a: torch.from_numpy(np.array(a))": SOME,
}


@pytest.mark.skipif(not reads_proc, reason="reads Linux's /proc")
@pytest.mark.parametrize(("lie", "ops"), LIES.items(), ids=LIES)
def test_peak_of_the_process_is_flat(lie, ops):
    """Resident memory counts what tracemalloc can't see: what the kernels and plans allocate."""
    rows = 50_000
    code = f"""
import numpy as np, torch, fastact as fa, calls
from test_memory import every_second, moved, outs
{HELD}
lie = {lie}
fa.set_num_threads(4)
x, dy = (np.random.default_rng(s).random(({rows}, 40), np.float32) for s in (0, 1))
held = []
for name in {[op.name for op in ops]}:
    for entry in (calls.forward, calls.backward):
        call = entry(fa.ops[name], x, dy)
        held.append((moved(call, lie), outs(call(), lie), entry is calls.backward))
fa.sum(lie(x[:9]))
before = peak()
for call, out, adds in held:  # nothing is freed: what is allocated on top shows
    for again in range(4):  # the long way, then a plan
        call(out=out, **({{"accumulate": True}} if adds and again else {{}}))
print(len(held), peak() - before)
"""
    path = python_path(TESTS, TESTS / "invariants")
    count, grown = map(int, python_output(code, PYTHONPATH=path).split())
    assert count == 2 * len(ops)
    assert grown < rows * 40 * 4 / 2  # half of one array of the 2 * count that were written


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other habits")
def test_fresh_tensors_take_no_new_pages():
    """What a loop makes and drops comes from memory that the process has, as torch's own does.

    From 32 MB on glibc takes memory from the system each time: huge pages then keep the faults few.
    """
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    has_huge_pages = huge.exists() and "[never]" not in huge.read_text()
    told = python_output(f"""
import resource, torch, fastact as fa
def faults(call, few):
    for _ in range(12):  # until malloc has learnt the size
        call()
    found = []
    while len(found) < 3 and min(found, default=few) >= few:  # something may move our pages
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            call()
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(found)
for megabytes in (2, 5, 7, 15, 30, *{[64] * has_huge_pages}):
    x = torch.ones(megabytes * 1_000_000 // 512, 64, dtype=torch.float64)
    few = 10 if megabytes < 32 else megabytes * 1_000_000 // 4096
    for call in (
        lambda: fa.relu(x),              # the fast path
        lambda: fa.leaky_relu(x, 0.1),   # the call cache
        lambda: fa.relu(x.t()),          # Python
    ):
        print(megabytes, faults(call, few), few)
""")
    counted = [tuple(map(int, line.split())) for line in told.splitlines()]
    assert all(faults < few for _, faults, few in counted), counted
