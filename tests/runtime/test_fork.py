"""A child made by fork computes, whatever the parent's threads did: no lock outlives them."""

import os
import subprocess
import sys

import pytest
from processes import TESTS, TIMEOUT, python_output, python_path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

# Seconds that a child may take, of some milliseconds that it takes; what hangs does so for ever.
PATIENCE = TIMEOUT // 4


def test_a_first_call_holds_no_lock():
    """Whatever the first use of an op's options runs is run while another thread forks."""
    code = f"""
import os, signal, threading, warnings
from inspect import signature
from fastact.ops.engine.entry import Entry
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
entered, leave = threading.Event(), threading.Event()

class Slow(dict):
    def items(self):
        entered.set()
        leave.wait({2 * PATIENCE})
        return []

point = Entry("f", signature(lambda *, b=2, out=None: None))
thread = threading.Thread(target=lambda: point.bind((), Slow()))
thread.start()
assert entered.wait({PATIENCE})
child = os.fork()
if child == 0:
    signal.alarm({PATIENCE})
    point.bind((), {{}})
    os._exit(0)
leave.set()
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""
    python_output(code)


# The module lock of an import is held as long as the import takes.
IMPORTS = """
import sys
import numpy as np, torch, fastact as fa
from calls import OPS, backward, forward
x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
dy = x[::-1].copy()
calls = [fa.mish, fa.mish.backward, fa.sum, fa.layer_norm]
before = set(sys.modules)
for op in OPS:
    forward(op, x, dy)()
    backward(op, x, dy)()
    forward(op, x.astype(np.float64)[::2], dy[::2].astype(np.float64))()
t = torch.ones(4, 8)
for _ in range(3):
    fa.mish.backward(t, t), fa.sum(t), fa.layer_norm(t.T), fa.bias_act(t, t[0], "gelu")
print(*sorted(set(sys.modules) - before))
"""


def test_no_call_imports_anything():
    assert python_output(IMPORTS, PYTHONPATH=python_path(TESTS)).split() == []


# Threads that call every op for the first time, in orders of their own, and then again and again;
# the main thread forks. switchinterval: the lock of the interpreter changes hands in the midst of
# whatever the others do.
FORKS = """
import os, random, signal, sys, threading, warnings
import numpy as np
if {torch}:
    import torch
import fastact as fa
from calls import OPS, backward, forward
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
fa.set_num_threads(2)
rng = np.random.default_rng(0)
x = rng.normal(size=(6, 8)).astype(np.float32)
dy = rng.normal(size=(6, 8)).astype(np.float32)
big = rng.normal(size=(40, 1000)).astype(np.float32)  # enough for two threads
stop = threading.Event()

def work(seed):
    order = random.Random(seed)
    while not stop.is_set():
        for op in order.sample(OPS, len(OPS)):
            forward(op, x, dy)()
            backward(op, x, dy)()
            if {torch}:
                fa.mish(torch.from_numpy(dy)), fa.sum(torch.from_numpy(x), axis=0)
            fa.layer_norm(big), fa.sum(big, axis=0)
            if stop.is_set():
                break

def compute():
    fa.set_num_threads(4)  # libgomp's pool does not survive a fork: one thread it stays
    y = fa.mish(x)
    norm = fa.layer_norm(big)  # serial here: the threads of libgomp are the parent's
    gradient, = fa.layer_norm.backward(dy, *fa.layer_norm.forward(x)[1])[:1]
    sums = fa.bias_act(x, x[0], "gelu"), fa.sum(big, axis=0), fa.group_norm(x, 2), fa.lstm_gates(
        np.tile(x, 4), x
    )[0]
    good = all(np.isfinite(part).all() for part in (y, norm, gradient, *sums))
    if {torch}:
        t = torch.from_numpy(x)
        good = good and np.array_equal(fa.mish(t).numpy(), y) and fa.sum(t, axis=0).shape == (8,)
    return good and fa.get_num_threads() == 1

sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
for thread in threads:
    thread.start()
statuses = []
for _ in range({forks}):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm({patience})
            status = 0 if compute() else 2
        finally:
            os._exit(status)
    statuses.append(os.waitpid(child, 0)[1])
stop.set()
for thread in threads:
    thread.join()
assert statuses == [0] * {forks}, statuses
fa.set_num_threads(2)
assert fa.get_num_threads() == 2
"""


def forked(forks: int, torch: bool) -> "subprocess.Popen[str]":
    code = FORKS.format(forks=forks, torch=torch, patience=PATIENCE)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True
    )


# Each process calls the ops for the first time, and forks from the first moment on: 1000 forks, 200
# of them in a plain run. With torch a process is slow to start and slow to copy.
@pytest.mark.parametrize(
    ("torch", "processes"),
    [
        pytest.param(False, 1, id="numpy"),
        pytest.param(False, 3, id="numpy, again", marks=pytest.mark.thorough),
        pytest.param(True, 1, id="torch", marks=pytest.mark.thorough),
    ],
)
def test_forks_at_any_moment(torch, processes):
    for _ in range(processes):
        with forked(200, torch) as parent:
            _, errors = parent.communicate()
            assert parent.returncode == 0, errors
