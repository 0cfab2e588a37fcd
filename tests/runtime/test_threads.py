"""Threads and processes: one resolver, and nothing hangs, also with small stacks."""

import multiprocessing
import os
import platform
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from conftest import assert_same_bits
from processes import TESTS, TIMEOUT, forks, python_output, python_path, run_python

import fastact as fa
from fastact import _cpu
from fastact.runtime import openmp, threads

SIZE = 300_000  # enough for several threads


def work(_: object = None) -> float:
    return float(np.nansum(fa.mish(np.linspace(-5, 5, SIZE, dtype=np.float32))))


def test_set_get_and_block():
    before = fa.get_num_threads()
    try:
        fa.set_num_threads(3)
        assert fa.get_num_threads() == 3
        with fa.num_threads(2) as block:
            assert fa.get_num_threads() == 2
            with block, fa.num_threads(5):
                assert fa.get_num_threads() == 5
            assert fa.get_num_threads() == 2
            with ThreadPoolExecutor(1) as pool:  # a block is its own thread's
                assert pool.submit(fa.get_num_threads).result() == 3
        with pytest.raises(KeyError), fa.num_threads(1):
            raise KeyError
        assert fa.get_num_threads() == 3
    finally:
        fa.set_num_threads(before)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"FASTACT_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, (3, "FASTACT_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "5"}, (5, "OMP_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "4,2"}, (4, "OMP_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "9999999999"}, (threads.MOST, "OMP_NUM_THREADS")),
    ],
)
def test_default_from_environment(environ, expected):
    assert threads.default_num_threads(environ) == expected


@pytest.mark.parametrize("value", ["0", "x", "-2", "1.5", "9999999999"])
def test_bad_environment_fails_the_import(value):
    words = f"FASTACT_NUM_THREADS must be an integer from 1 to {threads.MOST}, got '{value}'"
    with pytest.raises(ValueError, match=words):
        threads.default_num_threads({"FASTACT_NUM_THREADS": value})
    if value == "0":  # the import reads it by that function
        done = run_python("import fastact", FASTACT_NUM_THREADS=value)
        assert done.returncode != 0
        assert words in done.stderr


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "sys/fs/cgroup/cpu"
CGROUPS = {
    "none": ({}, np.inf),
    "v2, no quota": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"}, np.inf),
    "v2": ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
    "v2, on a level above": (
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5,
    ),
    "v2, in a container": (
        {"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4,
    ),
    "v1": (
        {"proc/self/cgroup": "4:cpu,cpuacct:/job\n2:memory:/\n",
         f"{V1}/job/cpu.cfs_quota_us": "200000", f"{V1}/job/cpu.cfs_period_us": "100000"}, 2,
    ),
    "v1, no quota": (
        {"proc/self/cgroup": "4:cpu,cpuacct:/\n",
         f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"}, np.inf,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CGROUPS)
def test_cgroup_quota(case, tmp_path):
    files, expected = CGROUPS[case]
    assert threads.cgroup_cpus(write(tmp_path, files)) == expected


def test_quota_rounds_up_and_affinity_bounds(tmp_path):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000"}
    assert threads.default_num_threads({}, write(tmp_path, files)) == (1, "cgroup quota")
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert threads.default_num_threads({}, tmp_path / "none") == (available, "CPU affinity")


@pytest.mark.skipif(not _cpu.build_info()["openmp"], reason="built without OpenMP")
def test_threadpoolctl_sees_and_limits(many_threads):
    loaded = threadpoolctl.threadpool_info()
    assert any(pool["user_api"] == "openmp" for pool in loaded)
    with threadpoolctl.threadpool_limits(1):
        assert fa.get_num_threads() == 1
        work()
    assert fa.get_num_threads() == many_threads


# A process that is started anew imports all again, which takes seconds, by either method.
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=pytest.mark.thorough if method == "forkserver" else ())
        for method in multiprocessing.get_all_start_methods()
    ],
)
@forks
def test_multiprocessing(method, many_threads):
    expected = work()
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map_async(work, range(4)).get(TIMEOUT) == [expected] * 4


class Doubled:
    """A torch dataset that computes with fastact in its workers."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int):
        import torch

        return fa.mish(torch.full((SIZE,), float(index)))[:2]


@forks
def test_torch_data_loader(many_threads):
    from torch.utils.data import DataLoader

    work()
    loader = DataLoader(Doubled(), batch_size=4, num_workers=2, timeout=TIMEOUT)
    rows = np.concatenate([batch.numpy() for batch in loader])
    assert_same_bits(rows[:, 0], fa.mish(np.arange(8, dtype=np.float32)))


def test_the_gil_is_released(many_threads):
    """Another Python thread runs while big calls are under way.

    No thread is made to give the lock up (the switch interval is too long for that): what the
    other one does during a call, it does because the call released it. A busy machine may not give
    it a core within one call, so calls go on until it had one.
    """
    x = np.zeros(20_000_000, np.float32)
    out = np.zeros_like(x)
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        clock = threading.Thread(target=tick)
        clock.start()
        before, end = ticks[0], time.monotonic() + TIMEOUT
        while ticks[0] == before and time.monotonic() < end:
            fa.mish(x, out=out)
        during = ticks[0] - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
    clock.join()
    assert during > 0


DECIDES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
IDLE = f"""
import os
before = dict(os.environ)
import fastact as fa
from fastact.runtime import openmp
import numpy as np, subprocess
assert dict(os.environ) == before
child = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
told = [line for line in child.splitlines() if line.startswith("GOMP_SPINCOUNT=")]
assert len(told) == ("GOMP_SPINCOUNT" in before)
fa.set_num_threads(4)
x = np.linspace(-5, 5, {SIZE}, dtype=np.float32)
y = fa.mish(x)
fa.set_num_threads(1)
assert np.array_equal(fa.mish(x), y)
print(openmp.idle)
"""


MAPS = Path("/proc/self/maps")  # of Linux: the files that this process has loaded


@pytest.mark.skipif(
    not MAPS.exists() or b"/libgomp" not in MAPS.read_bytes(),
    reason="the OpenMP runtime is not libgomp",
)
@pytest.mark.parametrize(
    ("environ", "turns", "told"),
    [
        # 300 000 is libgomp's own number.
        ({}, "1000", "GOMP_SPINCOUNT=1000, by fastact")
        if openmp.own_runtime()
        else ({}, "300000", "as the OpenMP runtime has it"),
        ({"GOMP_SPINCOUNT": "0"}, "0", "GOMP_SPINCOUNT=0"),
        ({"GOMP_SPINCOUNT": "12345"}, "12345", "GOMP_SPINCOUNT=12345"),
        ({"OMP_WAIT_POLICY": "passive"}, "0", "OMP_WAIT_POLICY=passive"),
        # Some 30 000 000 000 turns.
        ({"OMP_WAIT_POLICY": "active"}, None, "OMP_WAIT_POLICY=active"),
    ],
)
def test_idle_threads_wait_as_told(environ, turns, told, monkeypatch):
    if platform.machine() != "x86_64" and not environ:
        pytest.skip("fastact decides on x86-64 only")
    for name in DECIDES:
        monkeypatch.delenv(name, raising=False)
    done = run_python(IDLE, OMP_DISPLAY_ENV="verbose", **environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == told
    shown = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)  # what libgomp made of it
    assert len(shown) == 1
    assert shown[0] == turns or (turns is None and int(shown[0]) > 1_000_000)


def test_a_runtime_is_our_own_where_the_wheel_brought_it(tmp_path):
    """One that others may load as well keeps the waiting that they know."""
    package = tmp_path / "fastact"
    assert openmp.own_runtime(package) is None
    brought = write(tmp_path / "fastact.libs", {"libgomp-0123abcd.so.1.0.0": ""})
    write(tmp_path / "others.libs", {"libgomp.so.1": ""})
    assert openmp.own_runtime(package) == brought / "libgomp-0123abcd.so.1.0.0"
    assert openmp.own_runtime(tmp_path / "else") is None


def test_a_shared_runtime_is_not_told_how_to_wait(monkeypatch):
    asked = []
    monkeypatch.setattr(openmp, "own_runtime", lambda: None)
    monkeypatch.setattr(openmp, "import_module", asked.append)

    class Untouched(dict):
        def __setitem__(self, name: str, value: str) -> None:
            raise AssertionError(name)

    assert openmp._import(Untouched()) == "as the OpenMP runtime has it"
    assert asked == ["fastact._cpu"]


# The least that libgomp's threads are known to live with here: their stack holds the threads' own
# storage, of Python and of whatever is loaded, as well.
SMALL = "128K"

CODE = """
import os, threading
import fastact as fa
import numpy as np
import native
from every import PAIRS, Call, large
from fastact import _cpu

def run():
    for turn, isa in enumerate(_cpu.supported_isas()):
        _cpu.select_isa(isa)
        for k, (op, way) in enumerate(PAIRS, turn):
            if {*way} <= {"axis", "channel_axis"}:
                dtype = (np.float32, np.float64, np.float16)[k % 3]
                for run in Call(op, way, large(op, way, k), dtype).both:
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
