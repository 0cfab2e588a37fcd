"""Models of Hugging Face's transformers made to compute by fastact, in the way of their `kernels`.

    from fastact.torch.transformers import kernelize

    model = kernelize(LlamaForCausalLM(config))

`kernels` finds layers by names that transformers gives its classes, and puts another `forward` into
their modules; parameters, hooks and checkpoints stay. `MAPPING` has the layer for each name, as
`kernels.register_kernel_mapping` and `use_kernel_mapping` take it. Some classes have no name: the
norms of Gemma, which add 1 to their weight; the gated feed-forward layers, whose activation and
product are one pass here; and every class, where transformers finds no version of `kernels` that it
takes. `name_layers` names them.

Norms round as the model's code does (`casting` of `fastact.rms_norm`). Only act(a) b is rounded
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
    """A layer of `kernels`, in models that torch.compile compiles, too."""

    can_torch_compile = True


class RMSNorm(_Layer):
    """Llama's norm, and most others': it is rounded to the data's dtype before the weight."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return fa.rms_norm(hidden_states, self.weight, eps=self.variance_epsilon, casting="llama")


class GemmaRMSNorm(_Layer):
    """Gemma's norm: the weight is one more, in float32, and the result is rounded once."""

    weight: Tensor
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        return fa.rms_norm(x, self.weight, eps=self.eps, casting="gemma")


class RMSNormGated(_Layer):
    """A norm times an activation of a gate, as Qwen3-Next has it, Kimi and others.

    They share the layer's name, but not their roundings: a class that is not known computes itself.
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
    """Mamba-2's norm: it normalises the product with silu(gate), in groups."""

    weight: Tensor
    variance_epsilon: float
    group_size: int

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None:
            return type(self).forward(self, hidden_states)
        gate, weight = (
            t.to(torch.promote_types(t.dtype, hidden_states.dtype)) for t in (gate, self.weight)
        )  # in a model of bfloat16, float32 comes of the scan
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
    """The approximation by tanh, which transformers has under three names."""

    def forward(self, input: Tensor) -> Tensor:
        return fa.gelu(input, "tanh")


class ReLU2(_Layer):
    def forward(self, input: Tensor) -> Tensor:
        return fa.relu2(input)


class GatedMLP(_Layer):
    """down(act(gate(x)) up(x))."""

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
    """Stands for a repository of `kernels`: it loads a class."""

    layer: type[torch.nn.Module]

    def load(self) -> type[torch.nn.Module]:
        return self.layer


_NORMS = (RMSNorm, GemmaRMSNorm, RMSNormGated, MambaRMSNormGated)
LAYERS: dict[str, type[torch.nn.Module]] = {
    **{layer.__name__: layer for layer in (*_NORMS, SiLU, GeLU, GeluTanh, ReLU2, GatedMLP)},
    **dict.fromkeys(("NewGELU", "FastGELU"), GeluTanh),
}

#: For `kernels`: the layers on the CPU, by their names. "rotary_pos_emb" is left out: `kernels`
#: replaces that function for every model of the process at once, not for the one that is given.
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
    """Give classes of a model's modules the names by which `MAPPING` has them.

    Only classes of transformers itself that have no name: a subclass may compute something else.
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
    """Let fastact compute the layers of a model of transformers that it has, in place.

    For inference and training, compiled or not. Copies and pickles of the model keep its layers,
    which its repr shows; what has its weights alone, as `save_pretrained`, is a model as before.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU. It is changed.

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
    """Let a module keep the layer that it got, if it got one, and its repr show that.

    A pickle of a bound method looks the method up by its name, and finds that of the class.
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
