"""Models of torch made to compute by fastact, in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from . import bias, dropout, gated, gates, norms, parametric, softmax, sync_batch_norm  # noqa: F401
from .activations import ACTIVATIONS, ActivationModule
from .module import Module, WithActivation

#: Which modules: classes of torch's, or a function of a module's name and the module.
Only: TypeAlias = (
    "type[torch.nn.Module] | tuple[type[torch.nn.Module], ...] | "
    "Callable[[str, torch.nn.Module], bool] | None"
)


def _derived(cls: type[Module]) -> Iterator[type[Module]]:
    for derived in cls.__subclasses__():
        yield derived
        yield from _derived(derived)


#: The class that takes the place of each of torch's classes.
REPLACEMENTS: dict[type[torch.nn.Module], type[Module]] = {
    base: cls
    for cls in _derived(Module)
    if not cls.__name__.startswith("_")
    for base in cls.__bases__
    if vars(torch.nn).get(base.__name__) is base and base is not torch.nn.Module
}
REPLACEMENTS[torch.nn.SyncBatchNorm] = sync_batch_norm.SyncBatchNorm

_CLASSES = frozenset(REPLACEMENTS.values())

# Without an activation behind it such a layer is torch's, whatever its class.
_LAYERS = tuple(base for base, cls in REPLACEMENTS.items() if cls.__module__ == bias.__name__)


@dataclass
class Report:
    """What `convert` did.

    converted : the modules that fastact computes now, by their names, and their classes.
    fused : the modules that now have the one behind them inside, and what that activation is.
    left : modules that fastact has, but not as this one is, and why.
    """

    converted: dict[str, str] = field(default_factory=dict)
    fused: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name}: {kind}" for name, kind in self.converted.items()]
        lines += [f"{name}: {kind}, in one pass" for name, kind in self.fused.items()]
        lines += [f"{name}: left, {reason}" for name, reason in self.left.items()]
        return "\n".join(lines) or "nothing to convert"


def convert(model: torch.nn.Module, *, only: Only = None) -> Report:
    """Let fastact compute the modules of a model, where it has them, in place.

    Modules get another class and stay what they are: parameters, buffers, hooks, training mode and
    the keys of `state_dict` do not change, and what is shared stays so. In a `torch.nn.Sequential`
    an activation behind a norm, a linear or a convolutional layer is computed by that layer, and an
    identity is left in its place. Converting again changes nothing.

    Parameters
    ----------
    model : torch.nn.Module
        It is changed.
    only : class, tuple of classes, or function, optional
        Which modules to convert: classes of torch.nn, or a function of a module's name and the
        module.

    Returns
    -------
    Report
        What was converted, fused, and left, and why; print it.

    Notes
    -----
    These modules are left: subclasses of torch's classes, which may compute something else, among
    them parametrized modules; modules whose `forward` somebody has replaced; lazy modules before
    their first call, which would give them torch's class again; modules that torch computes
    whatever their class; and, unless `only` asks for them, `torch.nn.LSTM` without a projection,
    which is faster in torch, and `torch.nn.Dropout`, whose random numbers are others here.

    An activation stays apart from the layer before it where anybody could see the array between
    them: where the layer has hooks on its output, where the activation has hooks, parameters or
    buffers, where the layer has a second place in the model, or where the sequence's own `forward`
    was replaced. Called by itself, as ``model.layers[0](x)``, a fused layer applies the activation
    too; `only` can spare such a layer.

    In 16 bits a fused result is rounded once instead of twice.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"fastact.torch.nn.convert: model must be a torch.nn.Module, got {type(model).__name__}"
        )
    chosen, report = _chosen(only), Report()
    for name, module in model.named_modules():
        if chosen(name, module):
            _convert(name, module, report, asked_for=only is not None)
    places = Counter(id(child) for module in model.modules() for child in module._modules.values())
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Sequential):
            _fuse_neighbours(name, module, places, chosen, report)
    return report


def _chosen(only: Only) -> Callable[[str, torch.nn.Module], bool]:
    if only is None:
        return lambda name, module: True
    if isinstance(only, type | tuple):
        classes = only
        return lambda name, module: isinstance(module, classes)
    return only


def _convert(name: str, module: torch.nn.Module, report: Report, *, asked_for: bool) -> None:
    """Give the module the class that stands for its own, if one does."""
    cls = REPLACEMENTS.get(type(module))
    if isinstance(module, (Module, *_LAYERS)):
        return
    if cls is None:
        if _becomes(module) in REPLACEMENTS:
            report.left[name] = f"{type(module).__name__} is lazy: convert it after its first call"
        elif any(isinstance(module, base) for base in REPLACEMENTS):
            report.left[name] = f"{type(module).__name__} is a class of its own"
        return
    if _has_own_forward(module):
        report.left[name] = f"{cls.__name__}: its forward is another one"
        return
    if reason := cls.leaves(module) or (not asked_for and cls.unasked_for(module)):
        report.left[name] = f"{cls.__name__}: {reason}"
        return
    module.__class__ = cls
    report.converted[name] = cls.__name__


def _fuse_neighbours(
    name: str,
    sequence: torch.nn.Sequential,
    places: Counter[int],
    chosen: Callable[[str, torch.nn.Module], bool],
    report: Report,
) -> None:
    """Take activations of a sequence into the layers before them."""
    if type(sequence).forward is not torch.nn.Sequential.forward or _has_own_forward(sequence):
        return
    for key, following in pairwise(list(sequence._modules)):
        layer, activation = sequence._modules[key], sequence._modules[following]
        names = [f"{name}.{key}".lstrip("."), f"{name}.{following}".lstrip(".")]
        if not isinstance(activation, ActivationModule) or type(activation) not in _CLASSES:
            continue
        if _has_own_forward(activation) or activation.leaves(activation):
            continue
        if not all(map(chosen, names, (layer, activation))):
            continue
        if issubclass(REPLACEMENTS.get(_becomes(layer), Module), WithActivation):
            report.left[names[1]] = f"{names[0]} before it is lazy: convert after its first call"
        elif not _takes_activation(layer):
            continue
        elif places[id(layer)] > 1:
            report.left[names[1]] = f"{names[0]} before it is in several places"
        elif activation._parameters or activation._buffers or activation._modules:
            report.left[names[1]] = "it has more than its options"
        elif _is_watched(layer, activation):
            report.left[names[1]] = f"hooks may look between {names[0]} and it"
        else:
            if type(layer) in _LAYERS:
                layer.__class__ = REPLACEMENTS[type(layer)]
            assert isinstance(layer, WithActivation)
            layer.fuse(ACTIVATIONS[activation.op], activation.options(activation))
            sequence._modules[following] = torch.nn.Identity().train(activation.training)
            report.converted.pop(names[1], None)
            report.fused[names[0]] = f"{type(layer).__name__} with {activation}"


def _takes_activation(layer: Any) -> bool:
    """Whether it is a layer that can have an activation behind it, and has none."""
    if _has_own_forward(layer):
        return False
    if isinstance(layer, WithActivation):
        return type(layer) in _CLASSES and not layer.fused
    return type(layer) in _LAYERS


def _becomes(module: Any) -> Any:
    """The class that a lazy module has from its first call on."""
    return getattr(module, "cls_to_become", None)


def _has_own_forward(module: Any) -> bool:
    """Whether `forward` of this one module was replaced, whatever its class's is."""
    return "forward" in vars(module)


def _is_watched(layer: Any, activation: Any) -> bool:
    """Whether hooks may see the array between them, or would be gone with the activation."""
    after = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [getattr(layer, kind) for kind in after]
    hooks += [held for kind, held in vars(activation).items() if kind.endswith("_hooks")]
    return any(hooks)
