"""Conversion of models of Hugging Face's transformers to fastact, by means of their `kernels`.

    from fastact.torch.transformers import kernelize

    model = kernelize(LlamaForCausalLM(config))

`kernels` finds layers by the names that transformers gives its classes, and replaces `forward` of
their modules; parameters, hooks and checkpoints stay. `MAPPING` has the layer for each name, in the
form that `kernels.register_kernel_mapping` and `use_kernel_mapping` take. Some classes have no
name: the norms of Gemma, which add 1 to their weight; the gated feed-forward layers, whose
activation and product are one pass here; and all classes, if transformers finds no version of
`kernels` that it accepts. `name_layers` names them.

Norms round as the model's code does (see `casting` of `fastact.rms_norm`). Only act(a) b is rounded
once instead of twice.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..waiting import installed

with installed("kernels", "torch.transformers", "transformers"):
    import kernels
    import torch
    from torch import Tensor

import fastact as fa

from ..ops.types import Casting


class _Layer(torch.nn.Module):
    """A layer of `kernels` that also works in models under torch.compile."""

    can_torch_compile = True


class RMSNorm(_Layer):
    """The norm of Llama and most others, which rounds to the data's dtype before the weight."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return fa.rms_norm(hidden_states, self.weight, eps=self.variance_epsilon, casting="llama")


class GemmaRMSNorm(_Layer):
    """The norm of Gemma, which adds 1 to the weight, in float32, and rounds the result once."""

    weight: Tensor
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        return fa.rms_norm(x, self.weight, eps=self.eps, casting="gemma")


class RMSNormGated(_Layer):
    """A norm times an activation of a gate, as in Qwen3-Next, Kimi and others.

    They share the layer's name but not their roundings, so an unknown class computes itself.
    """

    weight: Tensor
    variance_epsilon: float
    activation: str

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        casting = _CASTINGS.get(type(self).__name__)
        if casting is None:
            return type(self).forward(self, hidden_states, gate)
        return fa.gated_rms_norm(
            hidden_states,
            gate,
            self.weight,
            eps=self.variance_epsilon,
            activation=self.activation,
            casting=casting,
        )


class MambaRMSNormGated(_Layer):
    """The norm of Mamba-2, which normalises the product with silu(gate), in groups."""

    weight: Tensor
    variance_epsilon: float
    group_size: int

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None:
            return type(self).forward(self, hidden_states)
        gate, weight = (
            t.to(torch.promote_types(t.dtype, hidden_states.dtype)) for t in (gate, self.weight)
        )  # in a bfloat16 model, the scan gives float32
        return fa.gated_rms_norm(
            hidden_states,
            gate,
            weight,
            eps=self.variance_epsilon,
            gate_first=True,
            group_size=self.group_size,
            casting="llama",
        )


class SiLU(_Layer):
    def forward(self, input: Tensor) -> Tensor:
        return fa.silu(input)


class GeLU(_Layer):
    def forward(self, input: Tensor) -> Tensor:
        return fa.gelu(input)


class GeluTanh(_Layer):
    """Gelu approximated by tanh, which transformers has under three names."""

    def forward(self, input: Tensor) -> Tensor:
        return fa.gelu(input, "tanh")


class ReLU2(_Layer):
    def forward(self, input: Tensor) -> Tensor:
        return fa.relu2(input)


class GatedMLP(_Layer):
    """A gated feed-forward layer, down(act(gate(x)) up(x))."""

    gate_proj: torch.nn.Module
    up_proj: torch.nn.Module
    down_proj: torch.nn.Module
    act_fn: torch.nn.Module

    def forward(self, x: Tensor) -> Tensor:
        options = _GATES[type(self.act_fn).__name__]
        product = fa.gated(self.gate_proj(x), self.up_proj(x), **options)
        return self.down_proj(product)  # type: ignore[no-any-return]


# The casting of gated norms, by the module's class.
_CASTINGS: dict[str, Casting] = {
    "OlmoHybridRMSNormGated": "llama",
    "Qwen3NextRMSNormGated": "llama",
    "Qwen3_5RMSNormGated": "llama",
    "Qwen3_5MoeRMSNormGated": "llama",
    "BailingHybridRMSNormGated": "exact",
    "KimiLinearRMSNormGated": "exact",
    "LaraMiniRMSNormGated": "exact",
}

# The activations of a gated layer, by the class of the module that computes them.
_GATES: dict[str, dict[str, Any]] = {
    "SiLUActivation": {"activation": "silu"},
    "SiLU": {"activation": "silu"},
    "GELUActivation": {"activation": "gelu"},
    "GELUTanh": {"activation": "gelu", "approximate": "tanh"},
    "NewGELUActivation": {"activation": "gelu", "approximate": "tanh"},
    "FastGELUActivation": {"activation": "gelu", "approximate": "tanh"},
    "ReLU": {"activation": "relu"},
    "ReLUSquaredActivation": {"activation": "relu2"},
    "MishActivation": {"activation": "mish"},
}


@dataclass(frozen=True)
class Layer:
    """A stand-in for a repository of `kernels`, which loads a class."""

    layer: type[torch.nn.Module]

    def load(self) -> type[torch.nn.Module]:
        return self.layer


_NORMS = (RMSNorm, GemmaRMSNorm, RMSNormGated, MambaRMSNormGated)
LAYERS: dict[str, type[torch.nn.Module]] = {
    **{layer.__name__: layer for layer in (*_NORMS, SiLU, GeLU, GeluTanh, ReLU2, GatedMLP)},
    **dict.fromkeys(("NewGELU", "FastGELU"), GeluTanh),
}

#: The layers on the CPU by their names, for `kernels`. "rotary_pos_emb" is left out, because
#: `kernels` replaces that function for every model of the process, not just for the given one.
MAPPING: dict[str, dict[str, Layer]] = {
    name: {"cpu": Layer(layer)} for name, layer in LAYERS.items()
}

# Classes that may have no name, by the name of the layer for them.
_NAMELESS = {
    "RMSNorm": ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"),
    "GemmaRMSNorm": ("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"),
    "RMSNormGated": tuple(_CASTINGS),
    "MambaRMSNormGated": (
        *("MambaRMSNormGated", "BambaRMSNormGated", "GraniteMoeHybridRMSNormGated"),
        *("NemotronHRMSNormGated", "Zamba2RMSNormGated"),
    ),
    "GatedMLP": (
        *("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"),
        *("GemmaMLP", "Gemma2MLP", "Gemma3MLP"),
    ),
    "SiLU": ("SiLUActivation",),
    "GeLU": ("GELUActivation",),
    "GeluTanh": ("GELUTanh",),
    "NewGELU": ("NewGELUActivation",),
    "FastGELU": ("FastGELUActivation",),
    "ReLU2": ("ReLUSquaredActivation",),
}
_NAMES = {cls: name for name, classes in _NAMELESS.items() for cls in classes}


def name_layers(model: torch.nn.Module) -> None:
    """Give the classes of a model's modules the names under which `MAPPING` has them.

    This names only nameless classes of transformers itself, as a subclass may compute otherwise.
    """
    for cls in set(map(type, model.modules())):
        name = _NAMES.get(cls.__name__, "")
        is_theirs = cls.__module__.startswith(("transformers.models.", "transformers.activations"))
        if not (name and is_theirs) or "kernel_layer_name" in vars(cls):
            continue
        condition = _has_known_gate if name == "GatedMLP" else None
        kernels.replace_kernel_forward_from_hub(cls, name, condition)


def _has_known_gate(module: Any) -> bool:
    return type(module.act_fn).__name__ in _GATES


def kernelize(model: torch.nn.Module) -> torch.nn.Module:
    """Let fastact compute the layers of a transformers model that it has, in place.

    This works for inference and training, compiled or not. Copies and pickles of the model keep its
    layers, which its repr shows. `save_pretrained` and others that keep only the weights give a
    model as before.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on the CPU, which is changed.

    Returns
    -------
    torch.nn.Module
        The same model.

    Warns
    -----
    UserWarning
        If the model has no layer that fastact computes.
    """
    name_layers(model)
    mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
    with kernels.use_kernel_mapping(MAPPING, inherit_mapping=False):
        made: torch.nn.Module = kernels.kernelize(model, mode=mode, device="cpu")
    if not sum(map(_keep, made.modules())):
        warnings.warn(
            f"fastact.torch.transformers.kernelize: {type(model).__name__} has no layer that "
            f"fastact computes, and stays as it is",
            stacklevel=2,
        )
    return made


def _keep(module: torch.nn.Module) -> bool:
    """Let a module keep the layer that it got, if any, and show it in its repr.

    A pickle of a bound method looks the method up by name, and would find that of the class.
    """
    forward = vars(module).get("forward")
    function = getattr(forward, "__func__", getattr(forward, "func", None))
    layer = next((cls for cls in LAYERS.values() if cls.forward is function), None)
    if layer is None:
        return False
    vars(module).update(
        forward=partial(layer.forward, module), extra_repr=partial(_shown, layer, module)
    )
    return True


def _shown(layer: type[torch.nn.Module], module: torch.nn.Module) -> str:
    own = type(module).extra_repr(module)
    return ", ".join([*([own] if own else []), f"by fastact's {layer.__name__}"])
