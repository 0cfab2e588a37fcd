"""Models of transformers from small random configurations, as they are and computed by fastact."""

import copy
import io
import pickle
from inspect import signature
from types import MethodType
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("kernels")

import transformers
from transformers.activations import ACT2CLS

import fastact as fa
import fastact.torch
from fastact.torch.transformers import (
    GatedMLP,
    GemmaRMSNorm,
    MambaRMSNormGated,
    RMSNorm,
    RMSNormGated,
    kernelize,
    name_layers,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
MODELS = {
    "Llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "Qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "Gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
}
each_model = pytest.mark.parametrize("name", MODELS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def model_of(name: str, seed: int = 0) -> Any:
    """With weights of norms that are no ones, and logits that are apart."""
    config, cls = MODELS[name]
    torch.manual_seed(seed)
    model = cls(config(**SMALL, attn_implementation="eager")).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.3 if "norm" in key else 2 * p.shape[-1] ** -0.5))
    return model


def exact_of(model: Any) -> Any:
    """The model in float64, where its norms would go by way of float32."""

    def norm(module: Any, x: torch.Tensor) -> torch.Tensor:
        is_gemma = not hasattr(module, "variance_epsilon")
        eps = module.eps if is_gemma else module.variance_epsilon
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (module.weight + is_gemma)

    model = copy.deepcopy(model).double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(norm, module)
    return model


def forwards(model: Any) -> list[Any]:
    """Where the forward of each module is from."""
    return [getattr(m.forward, "func", m.forward) for m in model.modules()]


@each_model
@each_dtype
def test_logits_are_as_near_to_float64(name, dtype):
    """Over several models: of one alone, chance decides which errors cancel."""
    errors = torch.zeros(2, dtype=torch.float64)
    for seed in range(4):
        model = model_of(name, seed).to(dtype)
        tokens = torch.randint(2, 96, (8, 24), generator=torch.Generator().manual_seed(seed))
        ours = kernelize(copy.deepcopy(model))
        with torch.inference_mode():
            right = exact_of(model)(tokens).logits
            for i, each in enumerate((ours, model)):
                errors[i] += (each(tokens).logits.double() - right).square().mean()
    assert errors[0] <= 1.05 * errors[1]


@each_model
@each_dtype
def test_the_same_greedy_tokens(name, dtype):
    model = model_of(name).to(dtype)
    start = torch.randint(2, 96, (2, 8), generator=torch.Generator().manual_seed(2))
    options = {"max_new_tokens": 16, "do_sample": False}
    expected = model.generate(start, **options)
    ours = kernelize(copy.deepcopy(model))
    assert torch.equal(ours.generate(start, **options), expected)


@each_model
def test_which_layers_are_computed(name):
    model = model_of(name)
    before = list(model.state_dict())
    assert kernelize(model) is model
    assert list(model.state_dict()) == before
    found = forwards(model)
    norm = GemmaRMSNorm if name == "Gemma" else RMSNorm
    blocks = SMALL["num_hidden_layers"]
    assert found.count(GatedMLP.forward) == blocks
    assert found.count(norm.forward) == (4 if name == "Qwen3" else 2) * blocks + 1


def saved(model: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("sent", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved])
def test_copies_keep_their_layers(sent):
    model = model_of("Llama")
    assert "fastact.torch.kernelize" in fastact.torch.convert(model).left["model.norm"]
    model = fastact.torch.kernelize(model)
    assert not fastact.torch.convert(model).left
    other = sent(model)
    assert repr(other) == repr(kernelize(other)) == repr(model)
    ours, theirs = (
        [(m, m.forward) for m in each.modules() if "forward" in vars(m)] for each in (other, model)
    )
    # Three blocks of two norms, a gated layer and its activation; and a norm.
    assert len(ours) == len(theirs) == 13
    assert [forward.func for _, forward in ours] == [forward.func for _, forward in theirs]
    assert all(forward.args[0] is m and "fastact" in m.extra_repr() for m, forward in ours)
    tokens = torch.arange(12).reshape(2, 6)
    assert torch.equal(other(tokens).logits, model(tokens).logits)


def test_a_compiled_layer():
    torch._dynamo.reset()
    layer = kernelize(model_of("Llama")).model.layers[0].mlp
    x = torch.randn(4, 64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), layer(x))


def test_a_model_without_a_layer_of_ours():
    with pytest.warns(UserWarning, match=r"kernelize: Linear has no layer that fastact computes"):
        kernelize(torch.nn.Linear(2, 2))


@each_model
def test_gradients(name):
    model = model_of(name)
    tokens = torch.randint(2, 96, (2, 12), generator=torch.Generator().manual_seed(3))
    ours = kernelize(copy.deepcopy(model))
    for m in (ours, model):
        m(tokens, labels=tokens).loss.backward()
    for (key, p), q in zip(ours.named_parameters(), model.parameters(), strict=True):
        scale = float(q.grad.abs().max())
        assert float((p.grad - q.grad).abs().max()) <= 1e-4 * scale, key


ALIKE = [n for n in sorted(ACT2CLS.keys() & fa.ops.keys()) if len(fa.ops[n].gradients) == 1]


@pytest.mark.parametrize("name", ALIKE)  # that take x alone
def test_activations_of_the_same_name(name):
    """Ours are theirs, with the parameters that their modules begin with."""
    content = ACT2CLS[name]
    cls, options = content if isinstance(content, tuple) else (content, {})
    if "dtype" in signature(cls).parameters:
        options = {**options, "dtype": torch.float64}
    x = 3 * torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.cat([x, torch.tensor([0.0, -5e-7, -2e-6, 40.0, -40.0])]).requires_grad_()
    theirs, ours = cls(**options)(x), fa.ops[name](x)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-14)
    of_theirs, of_ours = (torch.autograd.grad(y.sum(), x)[0] for y in (theirs, ours))
    torch.testing.assert_close(of_ours, of_theirs, rtol=1e-13, atol=1e-14)


#: Modules of gated norms, by the models that publish them: of 192 features, the first in groups.
GATED = {
    **dict.fromkeys(("mamba2", "bamba", "granitemoehybrid", "nemotron_h", "zamba2"), (192, 48)),
    **dict.fromkeys(("olmo_hybrid", "qwen3_next", "qwen3_5", "qwen3_5_moe"), (192,)),
    **dict.fromkeys(("bailing_hybrid", "kimi_linear", "lara_mini"), (192,)),
}


def gated_norm(name: str) -> torch.nn.Module:
    theirs = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    (cls,) = (c for n, c in vars(theirs).items() if n.endswith("RMSNormGated"))
    torch.manual_seed(0)
    module: torch.nn.Module = cls(*GATED[name], eps=1e-5)
    with torch.no_grad():
        module.weight.copy_(torch.randn(192))
    return module


@pytest.mark.parametrize("name", GATED)
@each_dtype
def test_gated_norms(name, dtype):
    """As their modules round, but for ties: these take the mean of the squares in float32."""
    module = gated_norm(name).to(dtype)
    ours = kernelize(copy.deepcopy(module))
    layer = MambaRMSNormGated if len(GATED[name]) > 1 else RMSNormGated
    assert forwards(ours) == [layer.forward]
    dy, *arrays = (torch.randn(64, 192).to(dtype) for _ in range(3))
    leaves = [[a.detach().clone().requires_grad_() for a in arrays] for _ in range(2)]
    expected, found = module(*leaves[0]), ours(*leaves[1])
    expected.backward(dy), found.backward(dy)
    pairs = [(a.grad, b.grad) for a, b in zip(leaves[1], leaves[0], strict=True)]
    for got, right in ((found, expected), *pairs, (ours.weight.grad, module.weight.grad)):
        assert got.dtype == dtype
        got, right = got.detach().double(), right.detach().double()
        # Some roundings of float32 where terms cancel; one of bfloat16 where a tie goes elsewhere.
        near = 2.0**-20 * float(right.abs().max())
        away, most = (got - right).abs(), near + 2.0**-7 * right.abs() * (dtype != torch.float32)
        assert (away <= most).all()
        assert (away > near).double().mean() <= 2e-2


def test_a_mamba_of_bfloat16():
    """Its scan is of float32, beside gates and weights of bfloat16."""
    sizes = {"hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8, "chunk_size": 16}
    few = {"n_groups": 2, "num_hidden_layers": 2, "vocab_size": 96, "pad_token_id": 0}
    torch.manual_seed(0)
    config = transformers.Mamba2Config(**sizes, **few, bos_token_id=1, eos_token_id=None)
    model = transformers.Mamba2ForCausalLM(config).to(torch.bfloat16).eval()
    tokens = torch.randint(2, 96, (2, 12))
    ours = kernelize(copy.deepcopy(model))
    assert MambaRMSNormGated.forward in forwards(ours)
    with torch.inference_mode():
        found, expected = ours(tokens).logits, model(tokens).logits
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", GATED)
def test_gated_norms_that_compute_themselves(name, monkeypatch):
    """Mamba-2 without a gate does, and a class that is not known, whether its base has a name."""
    module = gated_norm(name)
    x, cls = torch.randn(4, 192), type(module)
    if len(GATED[name]) > 1:
        assert torch.equal(kernelize(copy.deepcopy(module))(x), module(x))
        return
    module.__class__ = type("Another", (cls,), {"forward": lambda self, x, gate: x - gate})
    monkeypatch.delattr(cls, "kernel_layer_name", raising=False)  # by which others found the layer
    with pytest.warns(UserWarning, match="Another has no layer that fastact computes"):
        assert not kernelize(copy.deepcopy(module))(x, x).any()
    name_layers(gated_norm(name))
    assert not kernelize(copy.deepcopy(module))(x, x).any()
