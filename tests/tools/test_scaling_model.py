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

from scaling_model import WORK, columns, everything, main, row_sums  # noqa: E402

SUM = 16  # bytes of a workspace: a value and its error; of a norm, dweight and dbias


@pytest.fixture
def workspaces(monkeypatch):
    """Bytes that calls are told to bring, by the name of who was asked; nothing is replayed."""
    found = {}

    def recorder(name):
        asked = getattr(_cpu, name)

        def record(*args):
            found[name] = asked(*args)
            return found[name]

        return record

    for name in ("norm_workspace", "sum_workspace"):
        monkeypatch.setattr(_cpu, name, recorder(name))
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
    assert workspaces["norm_workspace"] == row_sums(shape) * shape[1] * SUM


@pytest.mark.parametrize("shape", [(4096, 768), (8192, 64 * 9), (5000, 512)], ids=str)
def test_chunks_of_terms(shape, workspaces):
    x = np.ones(shape, np.float32)
    with fa.num_threads(2):
        fa.sum(x, axis=0)
        tiles = -(-shape[1] // 512)
        assert workspaces["sum_workspace"] == columns(shape) // tiles * shape[1] * SUM
        fa.sum(x)
        assert workspaces["sum_workspace"] == everything(shape) * SUM


def test_more_threads_are_no_slower_while_there_is_work_for_them():
    for work in WORK:
        few = [n for n in (1, 2, 4) if n <= work.units(work.shape)]
        assert sorted(map(work.seconds, few), reverse=True) == [work.seconds(n) for n in few]


def test_the_page_has_its_table(capsys):
    main()
    page = (TOOLS.parent / "docs/design/scaling.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in page
