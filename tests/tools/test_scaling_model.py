"""The units that the scaling model counts are those into which the kernels cut their work."""

import sys
from pathlib import Path

import numpy as np
import pytest

import fastact as fa
from fastact import _cpu

TOOLS = Path(__file__).resolve().parents[2] / "tools"
if not TOOLS.is_dir():
    pytest.skip("the tools are in the source tree only", allow_module_level=True)
sys.path.insert(0, str(TOOLS))

from scaling_model import (  # noqa: E402
    K_LEAST_TILE,
    K_TILE,
    WORK,
    columns,
    everything,
    main,
    row_sums,
    with_chunks,
)

SUM = 16  # bytes of a workspace: a value and its error; of a norm, dweight and dbias


@pytest.fixture
def workspaces(monkeypatch):
    """Bytes that calls are told to bring, by the name of who was asked; nothing is replayed."""
    found = {}

    make = _cpu.native_call

    def record_call(name, arguments):
        call = make(name, arguments)
        found[name] = call.workspace_size()
        return call

    monkeypatch.setattr(_cpu, "native_call", record_call)
    _cpu.enable_call_cache(False)
    yield found
    _cpu.enable_call_cache(True)


SHAPES = [(4096, 768), (64, 65536), (640, 64), (70, 4096), (9, 4096)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_sums(shape, workspaces):
    x = np.ones(shape, np.float32)
    weight = np.ones(shape[1:], np.float32)
    _, saved = fa.layer_norm.forward(x, weight, weight)
    fa.layer_norm.backward(x, *saved)
    assert workspaces["norm_backward"] == row_sums(shape) * shape[1] * SUM


@pytest.mark.parametrize("shape", [(4096, 768), (8192, 64 * 9), (5000, 512)], ids=str)
def test_chunks_of_terms(shape, workspaces):
    x = np.ones(shape, np.float32)
    with fa.num_threads(2):
        fa.sum(x, axis=0)
        chunks = with_chunks(1, shape[0])
        assert columns(shape) == chunks * -(-shape[1] // K_LEAST_TILE)
        assert workspaces["sum"] == chunks * shape[1] * SUM
        fa.sum(x)
        assert workspaces["sum"] == everything(shape) * SUM


@pytest.mark.parametrize("shape", [(2048, 768), (1000, 512), (200, 4096), (300, 1000)], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 32])
def test_equal_shares_of_columns(shape, threads):
    """As many tasks for each thread, or the narrowest there are; on one thread the widest."""
    x, y = np.ones(shape, np.float32), np.ones((1, shape[1]), np.float32)
    arguments = {
        **{"x": _cpu.View.from_numpy(x), "y": _cpu.View.from_numpy(y), "axes": (0,)},
        **{"term": 0, "divisor": 1.0, "accumulate": False},
    }
    tile, tasks = _cpu.shares_of_columns(arguments, threads)
    assert tasks == -(-shape[1] // tile)
    assert K_LEAST_TILE <= tile <= K_TILE
    assert tasks % threads == 0 or tile == K_LEAST_TILE or tasks >= 4 * threads
    if threads == 1:
        assert tasks == -(-shape[1] // K_TILE)


# With a workspace, so that chunks of rows are shared out as well; two sums at a time.
@pytest.mark.parametrize("shape", [(4100, 300), (2000, 520)], ids=str)
def test_shares_do_not_change_bits(shape):
    x = np.linspace(-3, 3, shape[0] * shape[1], dtype=np.float32).reshape(shape)
    bias = np.linspace(-1, 1, 2 * shape[1], dtype=np.float32)

    def results():
        sums = fa.sum(x, axis=0), fa.var(x, axis=0), fa.average(x, axis=0, weights=np.abs(x))
        return *sums, *fa.swiglu.backward(x, x, x, bias)

    with fa.num_threads(1):
        expected = [np.array(part) for part in results()]
    for threads in (2, 3, 40):
        with fa.num_threads(threads):
            for part, right in zip(results(), expected, strict=True):
                np.testing.assert_array_equal(part, right)


def test_more_threads_are_no_slower_while_there_is_work_for_them():
    for work in WORK:
        few = [n for n in (1, 2, 4) if n <= work.units(work.shape)]
        assert sorted(map(work.seconds, few), reverse=True) == [work.seconds(n) for n in few]


def test_the_page_has_its_table(capsys):
    main()
    page = (TOOLS.parent / "docs/design/scaling.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in page
