"""The benchmark of ops in autograd and of models: that it measures what it says, not how fast."""

import pytest
import torch
from benchmarks import autograd, models, torch_calls


def test_a_page(tmp_path, capsys):
    numbers, page = tmp_path / "ops.json", tmp_path / "torch.md"
    options = ["--seconds", "0.001", "--threads", "1", "--json", str(numbers)]
    names = ["mish", "layer_norm", "lstm_gates", "cross_entropy", "mean_var", "bias_act"]
    assert autograd.main(["ops", *names, "--sizes", "1,64", *options]) == 0
    others = tmp_path / "others.json"
    assert autograd.main(["ops", "relu", "--sizes", "64,4096", *options[:-1], str(others)]) == 0
    files = [str(numbers), str(others)]
    assert autograd.main(["page", *files, "--markdown", str(page)]) == 0
    assert "left out" not in capsys.readouterr().out
    lines = page.read_text().splitlines()
    assert [line for line in lines if line.startswith("##")] == ["## Ops, forward and backward"]
    (header,) = (line for line in lines if line.startswith("|  |"))
    assert header == "|  | type | 1 | 64 | 4,096 |"
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in lines if "float32" in line}
    assert {*rows} == {*names, "relu"}
    assert [bool(cell.strip(" |")) for cell in rows["relu"]] == [True, False, True, True]
    assert [bool(cell.strip(" |")) for cell in rows["mish"]] == [True, True, True, False]


def test_what_a_call_costs(tmp_path):
    numbers, page = tmp_path / "ways.json", tmp_path / "torch.md"
    assert autograd.main(["ways", "--seconds", "0.001", "--json", str(numbers)]) == 0
    assert autograd.main(["page", str(numbers), "--markdown", str(page)]) == 0
    assert page.read_text().count("| relu | 64, ") == 2


@pytest.mark.parametrize("name", torch_calls.BLOCKS)
def test_blocks_compute_the_same(name):
    ours, theirs, whole = torch_calls.BLOCKS[name]
    shapes = [(3, 768), *((3, 768) if n in whole else (768,) for n in "ab")]
    inputs = [torch.randn(shape) for shape in shapes]
    torch.testing.assert_close(ours(*inputs), theirs(*inputs), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", models.MODELS)
def test_models_compute_the_same(name):
    pair = models.pair(name, torch.float32)
    results = [pair["inference"][which]() for which in ("converted", "as it is")]
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    for which in ("converted", "as it is"):
        pair["training step"][which]()
