"""What goes wrong around a call: no memory, no stack, signals, an interpreter that ends.

Each case runs in a process of its own, which may not crash, hang, leak or answer wrongly, and in
which the op must work afterwards. Memory that is not there is a MemoryError.
"""

import os
import shutil
import subprocess
import sys
import sysconfig

import numpy as np
import pytest
from calls import OPS
from processes import TESTS, TIMEOUT, is_editable, python_output, python_path

import fastact as fa

PATHS = python_path(TESTS)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
# Instrumented builds have allocators, stacks and address spaces of their own.
SANITIZED = any(name in os.environ for name in ("ASAN_OPTIONS", "TSAN_OPTIONS"))
PLAIN = pytest.mark.skipif(SANITIZED, reason="instrumented")

# One op of each module and kind; what they share is shared with the rest.
NAMES = [
    *("mish", "leaky_relu", "bias_act", "bias_grad", "unbroadcast", "sum", "sum_squares"),
    *("moments", "mean_var", "layer_norm", "add_rms_norm", "group_norm", "batch_norm"),
    *("norm_apply", "lstm_gates", "gru_gates", "gru_blend"),
]
# Each takes a process of its own, and up to 2 seconds: a plain run has one of a module.
FEW = ("mish", "bias_act", "sum", "moments", "layer_norm", "batch_norm", "lstm_gates")
EACH = [pytest.param(n, marks=() if n in FEW else pytest.mark.thorough) for n in NAMES]

PRELUDE = """
import os, signal, sys, threading
import numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
import fastact as fa
from calls import OPS, backward, forward, parts
def arrays(*shape, dtype=np.float32):
    rng = np.random.default_rng(0)
    return rng.normal(size=shape).astype(dtype), rng.normal(size=shape).astype(dtype)
def same(result, expected):
    for part, right in zip(parts(result), parts(expected), strict=True):
        assert right is None and part is None or np.array_equal(part, right), (part, right)
"""


def succeeds(code: str, **environ: str) -> str:
    return python_output(PRELUDE + code, PYTHONPATH=PATHS, **environ)


# --- signals and the end --------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="no signals to send")
@pytest.mark.parametrize("call", ["fa.mish(x, out=out)", "fa.layer_norm(x, out=out)"])
def test_an_interrupt_waits_for_the_op(call):
    """Ctrl-C while native code runs: the output is whole, and then KeyboardInterrupt is raised."""
    # No thread is made to give the interpreter's lock up: the other one first runs when the op
    # releases it, and the signal arrives while it computes, or at the latest in the sleep.
    succeeds(f"""
import time
x, out = np.ones((8, 2_000_000), np.float32), np.zeros((8, 2_000_000), np.float32)
x[:, ::2] = -1
def op(x, out):
    return {call}
expected = op(x[:, :8].copy(), np.empty((8, 8), np.float32))[0, :2]
go = threading.Event()
def interrupt():
    go.wait()
    os.kill(os.getpid(), signal.SIGINT)
thread = threading.Thread(target=interrupt)
thread.start()
sys.setswitchinterval(1000)
try:
    go.set()
    op(x, out)
    time.sleep({TIMEOUT // 2})
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    pass
sys.setswitchinterval(0.005)
thread.join()
whole = out.reshape(-1, 2)
assert (whole == whole[0]).all() and np.allclose(whole[0], expected), whole
op(x, out)
""")


@pytest.mark.parametrize("big", [100, 3_000_000])
def test_the_interpreter_ends_while_daemons_compute(big):
    succeeds(f"""
x, dy = arrays(4, {big} // 4)
started = threading.Barrier(4)
def work():
    out = np.empty_like(x)
    fa.mish(x, out=out)
    started.wait()
    while True:
        fa.mish(x, out=out)
        fa.layer_norm(x)
        fa.bias_act.backward(dy, x, x[0], activation="gelu")
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
started.wait()
""")


@pytest.mark.skipif(is_editable, reason="an editable install, which builds on import")
@pytest.mark.parametrize("first", ["main", "sub"])
def test_a_subinterpreter_imports_or_is_refused(first):
    interpreters = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    pytest.importorskip(interpreters)
    code = f"""
import {interpreters} as interpreters
def main():
    import numpy as np, fastact as fa
    assert fa.sum(fa.relu(np.ones(9))) == 9
script = '''
import warnings
warnings.simplefilter("ignore")  # numpy's, of subinterpreters
try:
    import numpy as np, fastact as fa
except (ImportError, RuntimeError):  # NumPy 2.0 has the latter
    print("refused")
else:
    assert fa.sum(fa.relu(np.ones(9))) == 9
    print("works")
'''
if {first!r} == "main":
    main()
for _ in range(2):
    sub = interpreters.create()
    interpreters.run_string(sub, script)
    interpreters.destroy(sub)
if {first!r} == "main":
    main()
"""
    told = python_output(code, PYTHONPATH=PATHS).split()
    assert set(told) <= {"works", "refused"}
    assert len(told) == 2


# --- threads and stacks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environ",
    [
        {"OMP_THREAD_LIMIT": "1"},
        {"OMP_THREAD_LIMIT": "2"},
        {"OMP_THREAD_LIMIT": "-3"},
        {"OMP_NUM_THREADS": "0"},
        {"OMP_NUM_THREADS": "many"},
        {"OMP_NUM_THREADS": "99999999999999999999"},
        {"OMP_NUM_THREADS": "2,,3"},
        {"OMP_STACKSIZE": "tiny"},
        {"OMP_DYNAMIC": "true"},
        {"OMP_SCHEDULE": "nonsense", "OMP_PROC_BIND": "close", "OMP_PLACES": "{99}"},
    ],
    ids=lambda environ: ",".join(f"{k}={v}" for k, v in environ.items()),
)
def test_settings_of_openmp(environ):
    """Fewer threads than were asked for, none, or nonsense: the same bits."""
    x = np.linspace(-5, 5, 300_000, dtype=np.float32).reshape(100, 3000)
    expected = [float(fa.sum(fa.mish(x))), float(fa.sum(fa.layer_norm(x)))]
    if environ.get("OMP_NUM_THREADS", "1")[0] == "9":
        environ = {**environ, "FASTACT_NUM_THREADS": "2"}  # which else would be that many
    told = succeeds(
        """
x = np.linspace(-5, 5, 300_000, dtype=np.float32).reshape(100, 3000)
fa.sum(fa.layer_norm(x))
fa.set_num_threads(4)
print(float(fa.sum(fa.mish(x))), float(fa.sum(fa.layer_norm(x))))
""",
        **environ,
    )
    assert [float(word) for word in told.split()] == expected


# --- memory ---------------------------------------------------------------------------------------


@PLAIN
@LINUX
@pytest.mark.parametrize("torch", [False, True], ids=["numpy", "torch"])
def test_outputs_that_do_not_fit(torch):
    """Of an address space that has room for 512 MiB more, outputs ask for 40 GiB."""
    succeeds(f"""
import resource
x = np.ones(1_000_000, np.float32)
if {torch}:
    import torch
    x = torch.from_numpy(x)
small = x[:1000].reshape(10, 100)
expected = np.asarray(fa.mish(small)).copy()
fa.mish(x)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (512 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
big = x.expand(10_000, -1) if {torch} else np.broadcast_to(x, (10_000, len(x)))
for turn in range(3):
    for call in (
        lambda: fa.mish(big),
        lambda: fa.gelu(big, "tanh"),
        lambda: fa.layer_norm(big),
        lambda: fa.bias_act(big, x, "relu"),
        lambda: fa.mish.backward(big, big),
        lambda: fa.layer_norm.backward(big, *fa.layer_norm.forward(big)[1]),
    ):
        try:
            call()
        except MemoryError:
            pass
        else:
            raise SystemExit("not refused")
    assert np.array_equal(np.asarray(fa.mish(small)), expected)
""")


@pytest.mark.parametrize("name", EACH)
def test_python_gets_no_memory(name):
    """Every allocation of Python's in a call fails once: MemoryError, or the call does not care.

    The call is the first of its kind, one that may be written down, or one that is replayed.
    """
    pytest.importorskip("_testcapi")
    succeeds(
        f"""
import _testcapi, gc
gc.disable()  # a collection's allocations are nobody's
op = fa.ops[{name!r}]
x, dy = arrays(2000, 4)

def attempt(call, n):
    _testcapi.set_nomemory(n, n + 1)
    try:
        call()
    except MemoryError:
        return True
    finally:
        _testcapi.remove_mem_hooks()
    return False

rows = 2
for make in forward, backward:
    for earlier in 0, 1, 3:
        # Python keeps freed objects for the next of their kind, so that which allocation is a
        # call's last varies: the end is where several in a row are beyond it.
        n = quiet = 0
        while quiet < 8:
            rows = rows % 1999 + 1  # a kind of call that was not seen, or long ago
            call = make(op, x[:rows + 1], dy[:rows + 1])
            for _ in range(earlier):
                call()
            quiet = 0 if attempt(call, n) else quiet + 1
            n += 1 if n < 100 else 5
            assert n < 3000
            if n % 4 == 0:
                expected = call()
                for _ in range(3):
                    same(call(), expected)
                assert all(p is None or np.isfinite(p).all() for p in parts(expected))
""",
        PYTHONMALLOC="debug",  # which finds what is written or freed where it should not be
    )


SHIM = r"""
/* malloc and its kin. After arm(n, bytes) the n-th call of one thread for at least so many bytes
 * fails. The live bytes of big blocks show what is not freed. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static __thread long left;         /* calls until one fails; 0: none will */
static __thread long failed;
static __thread size_t least;
static _Atomic long live;          /* bytes of blocks of BIG and more */
enum { BIG = 1 << 16 };

void arm(long n, size_t bytes) { left = n; failed = 0; least = bytes; }
long disarm(void) { left = 0; return failed; }
long live_bytes(void) { return live; }

static int fails(size_t bytes) {
  if (left == 0 || bytes < least || --left > 0) return 0;
  failed = 1;
  errno = ENOMEM;
  return 1;
}
static void *count(void *p) {
  size_t size = p ? malloc_usable_size(p) : 0;
  if (size >= BIG) live += size;
  return p;
}
static void uncount(void *p) {
  size_t size = p ? malloc_usable_size(p) : 0;
  if (size >= BIG) live -= size;
}
void *malloc(size_t n) { return fails(n) ? NULL : count(__libc_malloc(n)); }
void *calloc(size_t n, size_t k) { return fails(n * k) ? NULL : count(__libc_calloc(n, k)); }
void *realloc(void *p, size_t n) {
  if (fails(n)) return NULL;
  uncount(p);
  void *q = __libc_realloc(p, n);
  count(q ? q : n ? p : NULL);
  return q;
}
void *memalign(size_t a, size_t n) { return fails(n) ? NULL : count(__libc_memalign(a, n)); }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }
int posix_memalign(void **to, size_t a, size_t n) {
  void *p = memalign(a, n);
  if (!p) return ENOMEM;
  *to = p;
  return 0;
}
void free(void *p) { uncount(p); __libc_free(p); }
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """The path of an allocator that fails when it is told to."""
    compiler = shutil.which("cc")
    if compiler is None or "gnu" not in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
        pytest.skip("no C compiler, or a C library that is not GNU's")
    folder = tmp_path_factory.mktemp("shim")
    source, made = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-fno-builtin", str(source), "-o", str(made)],
        check=True,
        timeout=TIMEOUT,
    )
    return str(made)


@PLAIN
@LINUX
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        *(pytest.param("numpy", *each.values, marks=each.marks) for each in EACH),
        # torch's own part is the same for all ops, and torch is slow to import.
        ("torch", "mish"),
        *(
            pytest.param("torch", name, marks=pytest.mark.thorough)
            for name in ("bias_act", "sum", "layer_norm", "lstm_gates")
        ),
    ],
)
def test_malloc_gets_no_memory(name, framework, shim):
    """Every call of malloc fails once, with outputs of 1 MiB and workspaces for two threads.

    Those of torch's own small objects do not: it ends the process then.
    """
    succeeds(
        f"""
import ctypes, gc
shim = ctypes.CDLL(None)
for function in (shim.disarm, shim.live_bytes):
    function.restype = ctypes.c_long
gc.disable()
fa.set_num_threads(2)
x, dy = arrays(256, 1024)
name = {name!r}
if {framework!r} == "torch":
    import torch
    def to(value):
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value)
        if isinstance(value, (tuple, list)):
            return type(value)(to(part) for part in value)
        return {{k: to(v) for k, v in value.items()}} if isinstance(value, dict) else value
    from functools import partial
    def of(call):
        return partial(call.func, *to(call.args), **to(call.keywords))
else:
    of = lambda call: call
op = fa.ops[name]
calls = [of(forward(op, x, dy)), of(backward(op, x, dy))]
least = 1 << 16 if {framework!r} == "torch" else 0
expected = [call() for call in calls for _ in range(4)][3::4]
gc.collect()
before = shim.live_bytes()
for call, right in zip(calls, expected):
    quiet, n = 0, 1
    while quiet < 3:
        shim.arm(n, ctypes.c_size_t(least))
        try:
            call()
        except MemoryError:
            pass
        finally:
            failed = shim.disarm()
        quiet = quiet + 1 if not failed else 0
        n += 1
        assert n < 3000
        if n % 8 == 0 or not failed:
            same(call(), right)
gc.collect()
assert shim.live_bytes() - before < 1 << 19, shim.live_bytes() - before
""",
        LD_PRELOAD=shim,
        # Warnings and the like would be imports that fail.
        PYTHONWARNINGS="ignore",
    )


# --- more than 2**31 elements ---------------------------------------------------------------------

ODD = (1 << 31) + 7


@pytest.mark.large
def test_more_elements_than_an_int_counts():
    """float16, 4.3 GB: all indices beyond 2**31 are used, in any of the engines."""
    x = np.ones(ODD, np.float16)
    x[-1] = -3
    assert float(fa.sum(x.reshape(1, -1), axis=0)[-1]) == -3  # a column of each
    assert fa.sum(x, axis=0) == np.inf  # more than float16 holds
    counted = fa.moments(x)
    assert counted.count == ODD
    assert abs(counted.mean * ODD - (ODD - 4)) < 1
    fa.relu(x, out=x)
    assert (x[-1], x[-2], x[0], x[1 << 31]) == (0, 1, 1, 1)
    gradient = fa.bias_grad(x.reshape(-1, 1)[:-7])
    assert gradient.shape == (1,)
    assert np.isinf(gradient[0])


def test_the_ops_that_fail_are_ops_of_the_library():
    assert set(NAMES) <= {op.name for op in OPS}


def test_keywords_that_another_thread_takes_away():
    """An array that nobody but the dict of keywords holds lives as long as a kernel writes it."""
    code = """
import _thread, time
import fastact as fa
import numpy as np
x = np.random.default_rng(0).normal(size=(256, 1 << 14))
for _ in range(4):
    fa.softmax(x, out=np.empty_like(x))
for _ in range(8):
    named = {"out": np.empty_like(x)}
    _thread.start_new_thread(fa.softmax, (x,), named)
    time.sleep(0.003)  # it runs for longer
    named.clear()
    time.sleep(0.05)
print("done")
"""
    assert python_output(code).strip() == "done"
