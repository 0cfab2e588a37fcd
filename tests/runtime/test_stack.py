"""Kernels on threads with small stacks, as musl gives them, or OMP_STACKSIZE does."""

import pytest
from processes import TESTS, python_output, python_path

from fastact import _cpu

# The least that libgomp's threads are known to live with here: their stack holds the threads' own
# storage, of Python and of whatever is loaded, as well.
SMALL = "128K"

CODE = """
import os, threading
import fastact as fa
import numpy as np
import native
from every import LARGE, PAIRS, Call, fits
from fastact import _cpu

def run():
    for turn, isa in enumerate(_cpu.supported_isas()):
        _cpu.select_isa(isa)
        for k, (op, way) in enumerate(PAIRS, turn):
            shapes = [shape for shape in LARGE if fits(op, repr(way), shape)]
            if shapes and {*way} <= {"axis", "channel_axis"}:
                dtype = (np.float32, np.float64, np.float16)[k % 3]
                for run in Call(op, way, shapes[k % len(shapes)], dtype).both:
                    run()
        for call in native.calls():
            call.bits(call.size())
    print("done")

fa.set_num_threads(4)
if "ASAN_OPTIONS" not in os.environ:  # whose stacks are of its own
    threading.stack_size(256 << 10)  # of Python's; musl gives 128 KiB
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def test_every_family_on_a_small_stack():
    if _cpu.build_info()["openmp"] == 0:
        pytest.skip("built without OpenMP: there are no threads whose stacks are small")
    told = python_output(CODE, OMP_STACKSIZE=SMALL, PYTHONPATH=python_path(TESTS))
    assert told.strip() == "done"
