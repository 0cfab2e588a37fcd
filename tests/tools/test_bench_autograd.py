"""The benchmark of ops in autograd and of models: that it measures what it says, not how fast."""

import pytest
import torch
from benchmarks import autograd, models

from fastact.measure.peers import OURS, TORCH

OPTIONS = ["--seconds", "0.001", "--threads", "1"]


def test_a_page(tmp_path, capsys):
    page = tmp_path / "torch.md"
    names = ["mish", "layer_norm", "lstm_gates", "cross_entropy", "mean_var", "bias_act"]
    words = ["ops", *names, "--sizes", "1,64", *OPTIONS, "--markdown", str(page)]
    autograd.run(words)
    autograd.run(words)  # takes the place of the section that is there
    assert "left out" not in capsys.readouterr().out
    lines = page.read_text().splitlines()
    assert lines[:3] == ["# Speed in torch", "", "## Ops, forward and backward"]
    (header,) = (line for line in lines if line.startswith("|  |"))
    assert header == "|  | type | 1 | 64 |"
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in lines if "float32" in line}
    assert {*rows} == {*names}
    assert all(cell.strip(" |") for cell in rows["mish"])


@pytest.mark.parametrize("name", autograd.BLOCKS)
def test_blocks_compute_the_same(name):
    ours, theirs, whole = autograd.BLOCKS[name]
    shapes = [(3, 768), *((3, 768) if n in whole else (768,) for n in "ab")]
    inputs = [torch.randn(shape) for shape in shapes]
    torch.testing.assert_close(ours(*inputs), theirs(*inputs), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", models.MODELS)
def test_models_compute_the_same(name):
    pair = models.pair(name, torch.float32)
    results = [pair["inference"][which]() for which in (OURS, TORCH)]
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    for which in (OURS, TORCH):
        pair["training step"][which]()
