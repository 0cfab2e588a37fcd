"""Conversion of torch models to fastact, in place, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from ...interop import validate
from . import bias, gates, norms, plain, sync_batch_norm  # noqa: F401
from .activations import ACTIVATIONS, ActivationModule
from .module import Module, WithActivation

__all__ = ["Report", "convert", "revert"]

#: A class of torch.nn, or its name.
Kind: TypeAlias = "str | type[torch.nn.Module]"

#: Modules to convert: torch's classes, or a function of a module's name and the module.
Only: TypeAlias = "Kind | Collection[Kind] | Callable[[str, torch.nn.Module], bool] | None"


def _derived(cls: type[Module]) -> Iterator[type[Module]]:
    for derived in cls.__subclasses__():
        yield derived
        yield from _derived(derived)


#: The class that replaces each of torch's classes.
REPLACEMENTS: dict[type[torch.nn.Module], type[Module]] = {
    base: cls
    for cls in _derived(Module)
    if not cls.__name__.startswith("_")
    for base in cls.__bases__
    if vars(torch.nn).get(base.__name__) is base and base is not torch.nn.Module
}
REPLACEMENTS[torch.nn.SyncBatchNorm] = sync_batch_norm.SyncBatchNorm

#: The class that each of ours replaces.
_ORIGINALS: dict[Any, type[torch.nn.Module]] = {cls: base for base, cls in REPLACEMENTS.items()}

# Without an activation behind it, such a layer is torch's, whatever its class.
_LAYERS = tuple(base for base, cls in REPLACEMENTS.items() if cls.__module__ == bias.__name__)


@dataclass
class Report:
    """A report of what `convert` or `revert` did, by the names of modules.

    converted : the new classes of the modules that fastact, or torch again, now computes.
    fused : the layers that now apply the activation behind them, with that activation.
    parted : the layers whose activation is behind them again.
    left : the modules that were left as they are, and why.
    """

    converted: dict[str, str] = field(default_factory=dict)
    fused: dict[str, str] = field(default_factory=dict)
    parted: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name}: {kind}" for name, kind in self.converted.items()]
        lines += [f"{name}: {kind}, in one pass" for name, kind in self.fused.items()]
        lines += [f"{name}: {kind}, in two passes" for name, kind in self.parted.items()]
        lines += [f"{name}: left, {reason}" for name, reason in self.left.items()]
        return "\n".join(lines) or "nothing to convert"


def convert(model: torch.nn.Module, *, only: Only = None) -> Report:
    """Let fastact compute the modules of a model that it has, in place.

    Modules only get another class: parameters, buffers, hooks, training mode and the keys of
    `state_dict` do not change, and shared modules stay shared. In a `torch.nn.Sequential`, an
    activation behind a norm, a linear or a convolutional layer is computed by that layer, and an
    identity takes its place. Converting again changes nothing.

    Parameters
    ----------
    model : torch.nn.Module
        The model, which is changed.
    only : class, its name, a collection of these, or function, optional
        The modules to convert: classes of torch.nn, such as ``"LayerNorm"``, or a function of a
        module's name and the module.

    Returns
    -------
    Report
        What was converted and fused, and what was left and why, in a form to print.

    Notes
    -----
    These modules are left: subclasses of torch's classes, such as parametrized modules, because
    they may compute something else; modules whose `forward` has been replaced; lazy modules before
    their first call, which would restore torch's class; and modules that torch computes in any
    case. Unless `only` asks for them, `convert` also leaves `torch.nn.LSTM` without a projection,
    which is faster in torch, and `torch.nn.Dropout`, whose random numbers differ here.

    An activation is not fused if anything could see the array between it and the layer before it:
    if the layer has hooks on its output, if the activation has hooks, parameters or buffers, if the
    layer occurs twice in the model, or if the sequence's own `forward` was replaced. A fused layer
    that is called alone, as ``model.layers[0](x)``, also applies the activation; `only` can exclude
    it.

    For 16-bit data a fused result is rounded once instead of twice.

    See Also
    --------
    revert : Undoes the conversion.
    """
    _check_model("convert", model)
    chosen, report = _chosen(only), Report()
    for name, module in model.named_modules():
        if chosen(name, module):
            _convert(name, module, report, asked_for=only is not None)
    places = _places(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Sequential):
            _fuse_neighbours(name, module, places, chosen, report)
    return report


def revert(model: torch.nn.Module) -> Report:
    """Undo `convert`, in place: let torch compute the modules of a model again.

    Modules get torch's class back and are otherwise unchanged. A fused activation is behind its
    layer again, as the same module as before. Reverting again changes nothing.

    Parameters
    ----------
    model : torch.nn.Module
        The model, which is changed.

    Returns
    -------
    Report
        What was converted and parted, and what was left and why, in a form to print.

    Notes
    -----
    These modules are left: modules that torch lacks, such as `Lisht`; subclasses of fastact's
    classes; modules whose `forward` has been replaced; and layers whose activation did not come
    from the module behind them, or that now have hooks on either of the two.

    See Also
    --------
    convert : Does what this undoes.
    """
    _check_model("revert", model)
    report, places = Report(), _places(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Sequential):
            _part_neighbours(name, module, places, report)
    for name, module in model.named_modules():
        if isinstance(module, Module):
            _revert(name, module, report)
    return report


def _check_model(function: str, model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"fastact.torch.nn.{function}: model must be a torch.nn.Module, got "
            f"{type(model).__name__}"
        )


def _places(model: torch.nn.Module) -> Counter[int]:
    """Count the places of each module in a model."""
    return Counter(id(child) for module in model.modules() for child in module._modules.values())


def _chosen(only: Only) -> Callable[[str, torch.nn.Module], bool]:
    if only is None:
        return lambda name, module: True
    if callable(only) and not isinstance(only, type):
        return only
    kinds: Any = (only,) if isinstance(only, str | type) else only
    classes = tuple(map(_class_of, kinds if isinstance(kinds, Collection) else (only,)))
    return lambda name, module: isinstance(module, classes)


def _class_of(kind: Any) -> type[torch.nn.Module]:
    """Find torch's class, given that class, its name, or our class."""
    if isinstance(kind, type) and issubclass(kind, torch.nn.Module):
        return _ORIGINALS.get(kind, kind)
    named = {cls.__name__: cls for cls in REPLACEMENTS}
    if isinstance(kind, str) and kind in named:
        return named[kind]
    near = get_close_matches(kind, named, 1) if isinstance(kind, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise (ValueError if isinstance(kind, str) else TypeError)(
        f"fastact.torch.nn.convert: only must have classes of torch.nn, names of those that "
        f"fastact has, or be a function, got {validate.describe(kind)}{hint}"
    )


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
        elif _is_for_kernelize(module):
            report.left[name] = f"{type(module).__name__}: fastact.torch.kernelize takes it"
        return
    if _has_own_forward(module):
        report.left[name] = f"{cls.__name__}: its forward was replaced"
        return
    if reason := cls.leaves(module) or (not asked_for and cls.unasked_for(module)):
        report.left[name] = f"{cls.__name__}: {reason}"
        return
    module.__class__ = cls
    report.converted[name] = cls.__name__


def _neighbours(name: str, sequence: torch.nn.Sequential) -> Iterator[tuple[Any, ...]]:
    """Yield the names of two modules in a row, the key of the second, and both."""
    for keys in pairwise([*sequence._modules]):
        names = [f"{name}.{key}".lstrip(".") for key in keys]
        yield names, keys[1], *map(sequence._modules.get, keys)


def _fuse_neighbours(
    name: str,
    sequence: torch.nn.Sequential,
    places: Counter[int],
    chosen: Callable[[str, torch.nn.Module], bool],
    report: Report,
) -> None:
    """Fuse activations of a sequence into the layers before them."""
    if type(sequence).forward is not torch.nn.Sequential.forward or _has_own_forward(sequence):
        return
    for names, following, layer, activation in _neighbours(name, sequence):
        if not isinstance(activation, ActivationModule) or type(activation) not in _ORIGINALS:
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
            stand_in: Any = torch.nn.Identity().train(activation.training)
            stand_in.stands_for = (activation,)  # in a tuple, where torch does not look for modules
            sequence._modules[following] = stand_in
            report.converted.pop(names[1], None)
            report.fused[names[0]] = f"{type(layer).__name__} with {_own_repr(activation)}"


def _part_neighbours(
    name: str, sequence: torch.nn.Sequential, places: Counter[int], report: Report
) -> None:
    """Put activations of a sequence back behind the layers that they were fused into."""
    for names, following, layer, stand_in in _neighbours(name, sequence):
        (activation,) = getattr(stand_in, "stands_for", (None,))
        if activation is None or not isinstance(layer, WithActivation):
            continue
        op = ACTIVATIONS[activation.op].name
        if layer.fused != {"activation": op, **activation.options(activation)}:
            report.left[names[0]] = f"its activation is not the one that was in {names[1]}"
        elif places[id(layer)] > 1:
            report.left[names[0]] = "it is in several places"
        elif _is_watched(layer, stand_in):
            report.left[names[0]] = f"hooks may look at it, or at {names[1]}"
        else:
            del layer.fused
            sequence._modules[following] = activation.train(stand_in.training)
            report.parted[names[0]] = f"{type(layer).__name__} with {_own_repr(activation)}"


def _revert(name: str, module: Any, report: Report) -> None:
    """Give the module the class that its own stands for, if there is one."""
    cls, base = type(module), _ORIGINALS.get(type(module))
    if base is None:
        is_ours = cls.__module__.startswith(__package__)
        reason = "torch has no such class" if is_ours else "it is a class of its own"
        report.left[name] = f"{cls.__name__}: {reason}"
    elif _has_own_forward(module):
        report.left[name] = f"{cls.__name__}: its forward was replaced"
    elif isinstance(module, WithActivation) and module.fused:
        report.left.setdefault(name, "its activation was given to it, not taken from behind it")
    else:
        module.__class__ = base
        report.converted[name] = base.__name__


_own_repr = torch.nn.Module.__repr__  # with the class's name alone, as a report has it


def _takes_activation(layer: Any) -> bool:
    """Tell whether a layer can take in an activation, and has none."""
    if _has_own_forward(layer):
        return False
    if isinstance(layer, WithActivation):
        return type(layer) in _ORIGINALS and not layer.fused
    return type(layer) in _LAYERS


def _becomes(module: Any) -> Any:
    """Return the class that a lazy module has after its first call."""
    return getattr(module, "cls_to_become", None)


def _has_own_forward(module: Any) -> bool:
    """Tell whether `forward` of this one module was replaced."""
    return "forward" in vars(module)


def _is_for_kernelize(module: torch.nn.Module) -> bool:
    """Tell whether a module is a norm or activation of transformers that `kernels` left alone."""
    cls = type(module)
    is_layer = cls.__module__ == "transformers.activations" or "Norm" in cls.__name__
    is_theirs = cls.__module__.startswith("transformers.")
    return is_theirs and is_layer and not _has_own_forward(module)


def _is_watched(layer: Any, activation: Any) -> bool:
    """Tell whether hooks may see the array between both, or would vanish with the activation."""
    after = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [getattr(layer, kind) for kind in after]
    hooks += [held for kind, held in vars(activation).items() if kind.endswith("_hooks")]
    return any(hooks)
