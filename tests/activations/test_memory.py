"""With `out=` given no call allocates memory that grows with the array; without, one output."""

import platform
from pathlib import Path

import numpy as np
import pytest
from conftest import by_representatives, sample
from processes import HELD, OBJECTS, peak, python_output, reads_proc

SIZE = 4_000_000


@by_representatives
def test_python_and_numpy_allocate_nothing(op, dtype, many_threads):
    x, out = sample(dtype, SIZE), np.zeros(SIZE, dtype)
    strided, other = x[::-2], out[::-2]
    for call in (
        lambda: op(x, out=out),
        lambda: op.backward(x, x, out=out, accumulate=True),
        lambda: op(strided, out=other),
        lambda: op.backward(1.0, strided, out=other),
    ):
        assert peak(call) < OBJECTS
    assert peak(lambda: op(x)) < SIZE * dtype.itemsize + OBJECTS


@pytest.mark.skipif(not reads_proc, reason="reads Linux's /proc")
@by_representatives
@pytest.mark.parametrize("arrays", ["contiguous", "strided", "tensor"])
def test_peak_of_the_process_is_flat(op, arrays):
    """Resident memory counts what tracemalloc can't see: native scratch, torch, page tables."""
    code = f"""
import numpy as np, fastact as fa
{HELD}
op = fa.ops[{op.name!r}]
x, dy, out = (np.ones({SIZE}, np.float32) for _ in range(3))
if {arrays!r} == "strided":
    x, dy, out = x[::-2], dy[::-2], out[::-2]
elif {arrays!r} == "tensor":
    import torch
    x, dy, out = map(torch.from_numpy, (x, dy, out))
op(x[:100], out=out[:100]); op.backward(dy[:100], x[:100], out=out[:100])
fa.set_num_threads(4)
op(x[:100_000], out=out[:100_000])  # the thread pool
before = peak()
for _ in range(3):
    op(x, out=out); op.backward(dy, x, out=out); op.backward(dy, x, out=out, accumulate=True)
print(peak() - before)
"""
    assert int(python_output(code)) < SIZE  # a quarter of one float32 array


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
