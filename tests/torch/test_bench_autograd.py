"""The benchmark of ops in autograd and of models: that it measures what it says, not how fast."""

import pytest
import torch

from fastact.bench import autograd, models


def test_a_page(tmp_path, capsys):
    numbers, page = tmp_path / "ops.json", tmp_path / "torch.md"
    options = ["--seconds", "0.001", "--threads", "1", "--json", str(numbers)]
    names = ["mish", "layer_norm", "lstm_gates", "cross_entropy", "mean_var", "bias_act"]
    assert autograd.main(["ops", *names, "--sizes", "1,64", *options]) == 0
    assert autograd.main(["page", str(numbers), "--markdown", str(page)]) == 0
    assert "left out" not in capsys.readouterr().out
    lines = page.read_text().splitlines()
    assert any(line.startswith("| mish | 64 | float32 |") for line in lines)
    assert {line.split()[1] for line in lines if line.startswith("| ")} >= {*names}


@pytest.mark.parametrize("name", models.MODELS)
def test_models_compute_the_same(name):
    pair = models.pair(name, torch.float32)
    results = [pair["inference"][which]() for which in ("converted", "as it is")]
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    for which in ("converted", "as it is"):
        pair["training step"][which]()
