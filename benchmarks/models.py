"""Whole models in torch, as they are and converted: what `autograd.py` measures beside single ops.

Each is small enough for a step on two cores in well under a second, and has what its kind has: the
share of the time that goes into products of matrices, which are torch's on both sides, included.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fastact as fa
from fastact.measure.peers import OURS, TORCH
from fastact.torch.nn import convert

from .pages import growth

Calls = dict[str, Callable[[], Any]]


class _Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.layers(x)
        return y


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution, batch norm and Mish, as YOLOv4 has them."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.Mish())


class _CrossStage(nn.Module):
    """A stage of CSP-Darknet: half of the channels go past the residual blocks."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        half = outputs // 2
        self.down = _conv(inputs, outputs, 3, 2)
        self.past, self.through = _conv(outputs, half, 1), _conv(outputs, half, 1)
        self.blocks = nn.Sequential(
            *(_Residual(_conv(half, half, 1), _conv(half, half, 3)) for _ in range(blocks))
        )
        self.joined = _conv(outputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        y: Tensor = self.joined(torch.cat((self.past(x), self.blocks(self.through(x))), 1))
        return y


def _darknet() -> tuple[nn.Module, Tensor]:
    stages = [_conv(3, 16, 3), _CrossStage(16, 32, 1), _CrossStage(32, 64, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*stages, *head), torch.randn(8, 3, 64, 64)


class _ConvNeXt(nn.Module):
    """A block of ConvNeXt: channels are last but for the convolution of each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.rest = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.rest(self.conv(x.movedim(-1, 1)).movedim(1, -1))
        return y


def _convnext() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(_ConvNeXt(64), _ConvNeXt(64)), torch.randn(8, 28, 28, 64)


class Product(nn.Module):
    """silu(a) b, which torch.nn has no module of."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return functional.silu(a) * b


class _Transformer(nn.Module):
    """A decoder's block as Llama has it."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_after = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.product, self.down = Product(), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attention(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        y = self.norm_after(x)
        z: Tensor = x + self.down(self.product(self.gate(y), self.up(y)))
        return z


def _transformer() -> tuple[nn.Module, Tensor]:
    return _Transformer(256, 688, 4), torch.randn(8, 128, 256)


class _First(nn.Module):
    def forward(self, results: Any) -> Any:
        return results[0]


def _lstm() -> tuple[nn.Module, Tensor]:
    layers = [nn.LSTM(64, 128), _First(), nn.LayerNorm(128), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.randn(50, 32, 64)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "CSP-Darknet": _darknet,
    "ConvNeXt": _convnext,
    "transformer": _transformer,
    "LSTM": _lstm,
    "LSTM, asked for": _lstm,
}


# Small, of random weights: nothing is downloaded.
_SIZES: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "head_dim": 64,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_ATTENTION = {"intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 4}
_MAMBA = {"num_heads": 16, "state_size": 64, "n_groups": 2, "chunk_size": 64}

LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "Llama": _ATTENTION,
    "Qwen3": _ATTENTION,
    "Gemma": _ATTENTION,
    "Mamba2": _MAMBA,
}
NEW_TOKENS = 32
PROMPT = 64


def _language_models(name: str, dtype: torch.dtype) -> dict[str, Any]:
    """A model of transformers as it is and converted."""
    import transformers

    from fastact.torch.transformers import kernelize

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**_SIZES, **LANGUAGE_MODELS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(dtype).eval()
    return {TORCH: model, OURS: kernelize(copy.deepcopy(model))}


def _prompt(count: int) -> Tensor:
    return torch.randint(1, _SIZES["vocab_size"], (count, PROMPT))


def generations(name: str, dtype: torch.dtype) -> Calls:
    """Greedy tokens behind a prompt by a model of transformers, as it is and converted."""
    both, prompt = _language_models(name, dtype), _prompt(1)
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    return {which: partial(one.generate, prompt, **options) for which, one in both.items()}


@contextmanager
def _in_float64() -> Iterator[None]:
    """What the models' code computes in float32, whatever their weights are of, is float64."""
    was = torch.float32, Tensor.float
    torch.float32, Tensor.float = torch.float64, Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.float32, Tensor.float = was  # type: ignore[method-assign]


def logits(name: str, dtype: torch.dtype) -> tuple[Calls, dict[str, float]]:
    """Logits behind four prompts, as it is and converted, and how far they are from float64.

    The distance is a root of a mean square, over the logits' own.
    """
    both, prompt = _language_models(name, dtype), _prompt(4)

    def run(model: Any) -> Tensor:
        with torch.inference_mode():
            found: Tensor = model(prompt).logits
            return found

    with _in_float64():
        right = run(copy.deepcopy(both[TORCH]).double())
    calls: Calls = {which: partial(run, one) for which, one in both.items()}
    size = float(right.square().mean().sqrt())
    far = {w: float((call().double() - right).square().mean().sqrt()) for w, call in calls.items()}
    return calls, {which: error / size for which, error in far.items()}


def _converted(model: nn.Module, *, asked_for: bool) -> nn.Module:
    """A copy of it, with what `convert` leaves to torch unless it is asked for, or without."""
    model = copy.deepcopy(model)
    convert(model, only=(lambda name, module: True) if asked_for else None)
    for part in model.modules():
        if isinstance(part, Product):
            part.forward = fa.swiglu  # type: ignore[method-assign, assignment]
    return model


def _training(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


def _inference(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    model = copy.deepcopy(model).eval()

    def run() -> Any:
        with torch.inference_mode():
            return model(x)

    return run


def pair(name: str, dtype: torch.dtype) -> dict[str, Calls]:
    """Calls of a model, by its name, as it is and converted."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model, x = model.to(dtype), x.to(dtype)
    both = {TORCH: model, OURS: _converted(model, asked_for="asked for" in name)}
    return {
        "training step": {which: _training(one, x) for which, one in both.items()},
        "inference": {which: _inference(one, x) for which, one in both.items()},
    }


def peak_memory(name: str, dtype: str, case: str, which: str, threads: str) -> float:
    """By how many bytes this process grows at most in which a model's call is made three times."""
    torch.set_num_threads(int(threads))
    call = pair(name, getattr(torch, dtype))[case][which]
    with fa.num_threads(int(threads)):
        return growth(call, 3)


if __name__ == "__main__":
    print(json.dumps(peak_memory(*sys.argv[1:])))
