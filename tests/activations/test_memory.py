"""With `out=` given no call allocates memory that grows with the array; without, one output."""

import numpy as np
import pytest
from conftest import by_representatives, sample
from processes import OBJECTS, peak, reads_proc, run_python

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
import numpy as np, fastact as fa, resource
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
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
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < SIZE  # a quarter of one float32 array
