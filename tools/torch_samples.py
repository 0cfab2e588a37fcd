"""torch's own samples of modules and functions, given to ours.

    python tools/torch_samples.py

`torch.testing` has arguments for each module of torch.nn and each function, some of them errors.
Ours compute what torch computes in float64 of the same values, forward and backward, and refuse
what torch refuses, with an error of the same class. What deviates, and why, stands in DEVIATIONS:
any other failure ends the script with an error. `torch.testing` imports the package expecttest.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from inspect import signature
from types import FunctionType
from typing import Any

import torch
from others_tests import Outcomes, report
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

import fastact as fa
from fastact.torch.nn.convert import REPLACEMENTS

#: A part of a failure's name and message, and why ours deviates.
DEVIATIONS: dict[str, str] = {
    "ValueError instead of RuntimeError": "what does not fit is a ValueError, in words of ours",
    "TypeError instead of RuntimeError": "a dtype or a kind of argument is a TypeError",
    "TypeError instead of ValueError: fastact.torch.nn.": "a dtype is a TypeError",
    "softplus: unexpected keyword argument 'threshold'": "softplus is computed of any x",
    "fastact.dropout: ": "its mask follows from a seed, which the module draws",
    "eps must not be negative": "a root of a negative number is none",
    "momentum must be from 0 to 1": "outside, running statistics are no averages",
    "channel_axis must be from -1 to 0": "an array without channels",
    "target gets no gradient": "of probabilities; the module asks torch for it",
    "instance_norm: unexpected keyword argument 'running_mean'": "InstanceNorm1d to 3d have them",
    "hardsigmoid(20): result 1 is off": "torch's derivative has one sixth rounded to float32",
    "mean(3x4x5, ()), an error: computed": "means of integers are of float64",
    "rms_norm(2x2x3, (2, 2)": "an op takes axes, whatever their lengths",
}

# The tolerance is a share of the largest value, or of 1: what cancels has its terms' errors.
TOLERANCE = {torch.float32: 3e-6, torch.float64: 5e-13}

#: Options that torch calls otherwise.
NAMES = {"dim": "axis", "keepdim": "keepdims"}

#: Arguments that follow the input by position, for functions without a signature.
POSITIONAL = {
    "softmax": ("dim", "dtype"),
    "log_softmax": ("dim", "dtype"),
    "logsumexp": ("dim", "keepdim"),
    **dict.fromkeys(("sum", "mean", "nansum", "nanmean"), ("dim", "keepdim")),
    **dict.fromkeys(("std", "var"), ("dim",)),
}

#: Defaults that torch has, and ours otherwise.
DEFAULTS: dict[str, dict[str, Any]] = {
    "rms_norm": {"eps": 1e-6},
    "std": {"correction": 1},
    "var": {"correction": 1},
}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return [value.data]
    parts = value.values() if isinstance(value, dict) else value
    return (
        [t for v in parts for t in tensors_of(v)] if isinstance(value, dict | tuple | list) else []
    )


def in_dtype(value: Any, dtype: torch.dtype, *, leaves: bool = True) -> Any:
    """A copy with tensors of that dtype that require grad as they did."""
    if isinstance(value, torch.Tensor):
        made = value.detach().to(dtype if value.is_floating_point() else value.dtype).clone()
        return made.requires_grad_(leaves and value.requires_grad)
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return value._replace(data=in_dtype(value.data, dtype))
    if isinstance(value, dict):
        return {name: in_dtype(v, dtype) for name, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(in_dtype(v, dtype) for v in value)
    return value


def attempted(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function: its results, or the error that it raises."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return error


def outcome(
    call: Callable[..., Any], args: Any, kwargs: Any, module: Any = None
) -> list[torch.Tensor]:
    """Results of a call and gradients of a weighted sum of them; also a module's buffers."""
    parameters, buffers = ([], []) if module is None else (module.parameters(), module.buffers())
    wanted = [*(t for t in tensors_of((args, kwargs)) if t.requires_grad), *parameters]
    torch.manual_seed(0)  # of dropout
    results = tensors_of(call(*args, **kwargs))
    differentiable = [y for y in results if y.requires_grad]
    if not differentiable:
        return [*results, *buffers]
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randint(-8, 9, y.shape, generator=generator).to(y.dtype) / 4 for y in differentiable
    ]
    found = torch.autograd.grad(differentiable, wanted, weights, allow_unused=True)
    pairs = zip(wanted, found, strict=True)
    return [*results, *(torch.zeros_like(t) if d is None else d for t, d in pairs), *buffers]


def difference(ours: list[torch.Tensor], theirs: list[torch.Tensor], dtype: torch.dtype) -> str:
    """The difference; "" if there is none."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results, torch has {len(theirs)}"
    for i, (mine, exact) in enumerate(zip(ours, theirs, strict=True)):
        if mine.shape != exact.shape:
            return f"result {i} has shape {tuple(mine.shape)}, torch's {tuple(exact.shape)}"
        mine, exact = mine.detach().double(), exact.detach().double()
        finite = exact[exact.isfinite()]
        scale = max(float(finite.abs().max()), 1.0) if finite.numel() else 1.0
        if not torch.allclose(mine, exact, 0, TOLERANCE[dtype] * scale, equal_nan=True):
            error = float((mine - exact).abs().max())
            return f"result {i} is off by {error:.2g} of {scale:.2g}"
    return ""


def compare(ours: Any, theirs: Any, dtype: torch.dtype) -> str:
    """Tell what deviates in values, or in whether there are any."""
    if isinstance(theirs, Exception):
        return refusal(ours, type(theirs), f"torch: {theirs}")
    if isinstance(ours, Exception):
        return f"{type(ours).__name__}: {ours}"
    return difference(ours, theirs, dtype)


def refusal(found: Any, expected: type[BaseException], of: str = "") -> str:
    """Tell what deviates from an error of that class."""
    if isinstance(found, expected):
        return ""
    if isinstance(found, Exception):
        return f"{type(found).__name__} instead of {expected.__name__}: {found}"
    return f"computed instead of {expected.__name__} {of}"


def of_modules() -> Iterator[tuple[str, str]]:
    """The name of each sample of a module, and what deviates."""
    for info in module_db:
        cls = REPLACEMENTS.get(info.module_cls)
        if cls is None:
            continue
        for training in (True, False):
            draw = {"device": "cpu", "dtype": torch.float32, "requires_grad": True}
            torch.manual_seed(0)
            for sample in info.module_inputs_func(info, **draw, training=training):
                made, given = sample.constructor_input, sample.forward_input
                name = f"{cls.__name__}({shown(made)}) of {shown(given)}"
                for dtype in TOLERANCE:
                    yield name, of_module(info.module_cls, cls, made, given, training, dtype)
            errors = info.module_error_inputs_func or (lambda *_, **__: ())
            for error in errors(info, **draw, training=training):
                sample = error.module_error_input
                made, given = sample.constructor_input, sample.forward_input
                name = f"{cls.__name__}({shown(made)}) of {shown(given)}, an error"
                # Some are errors in training alone.
                if not of_module_error(info.module_cls, error, training):
                    yield name, of_module_error(cls, error, training)


def of_module_error(cls: Any, error: Any, training: bool) -> str:
    """Tell what deviates from the error that torch has for a sample."""
    made, given = error.module_error_input.constructor_input, error.module_error_input.forward_input

    def call() -> None:
        module = cls(*made.args, **made.kwargs).train(training)
        if error.error_on is ModuleErrorEnum.FORWARD_ERROR:
            module(*given.args, **given.kwargs)

    return refusal(attempted(call), error.error_type)


def of_module(
    torch_class: Any, cls: Any, made: Any, given: Any, training: bool, dtype: torch.dtype
) -> str:
    """The difference where a module is made and called, in that dtype."""
    options = in_dtype(made.kwargs, torch.float64)
    options.pop("dtype", None)
    theirs = torch_class(*in_dtype(made.args, torch.float64), **options).double()
    try:
        ours = cls(*in_dtype(made.args, torch.float32), **options)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_((parameter + torch.randn_like(parameter) / 4).float())
    ours.load_state_dict(theirs.state_dict())
    ours.to(dtype).train(training), theirs.train(training)

    def run(module: Any, dtype: torch.dtype) -> Any:
        args, kwargs = in_dtype(given.args, dtype), in_dtype(given.kwargs, dtype)
        # A module that works in place may not write into a leaf.
        inplace = getattr(module, "inplace", False)
        call = (lambda x, *more, **kw: module(x * 1, *more, **kw)) if inplace else module
        return attempted(outcome, call, args, kwargs, module)

    return compare(run(ours, dtype), run(theirs, torch.float64), dtype)


def of_functions() -> Iterator[tuple[str, str]]:
    """The name of each sample of a function, and what deviates."""
    for info in op_db:
        name = info.name.removeprefix("nn.functional.")
        if name not in fa.ops or info.variant_test_name in ("with_dtype", "complex", "unbiased"):
            continue
        op = fa.ops[name]
        torch.manual_seed(0)
        for sample in info.sample_inputs("cpu", torch.float32, requires_grad=True):
            label = f"{name}({shown(sample)})"
            for dtype in TOLERANCE:
                yield label, of_function(op, info, sample, dtype)
        for error in info.error_inputs("cpu") if info.error_inputs_func else ():
            label = f"{name}({shown(error.sample_input)}), an error"
            yield label, of_function_error(op, error)


def of_function_error(op: Any, error: Any) -> str:
    """Tell what deviates from the error that torch has for a sample."""
    args, kwargs = arguments(op, error.sample_input)
    return refusal(attempted(op, *args, **kwargs), error.error_type)


def of_function(op: Any, info: Any, sample: Any, dtype: torch.dtype) -> str:
    """The difference where a function is called, in that dtype."""
    args = in_dtype((sample.input, *sample.args), torch.float64)
    kwargs = DEFAULTS.get(op.name, {}) | in_dtype(sample.kwargs, torch.float64)
    theirs = attempted(outcome, info.op, args, kwargs)
    args, kwargs = (in_dtype(given, dtype) for given in arguments(op, sample))
    return compare(attempted(outcome, op, args, kwargs), theirs, dtype)


def arguments(op: Any, sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """torch's arguments as ours: by name, but for those that have none."""
    function = getattr(torch.nn.functional, op.name, None)
    is_python = isinstance(function, FunctionType)  # else ours have its names
    names = [*signature(function if is_python else op).parameters][1:]
    by_position = dict(zip(POSITIONAL.get(op.name, names), sample.args, strict=False))
    named = DEFAULTS.get(op.name, {}) | by_position | sample.kwargs
    shape = named.pop("normalized_shape", None)
    if shape is not None:
        named["axis"] = tuple(range(-len(shape), 0))
    named.pop("inplace", None)
    if named.get("correction", 1) is None:  # torch's other way to say 1
        named["correction"] = 1
    unnamed = [p.name for p in signature(op).parameters.values() if p.kind is p.POSITIONAL_ONLY]
    args = [named.pop(name) for name in unnamed if name in named]
    return (sample.input, *args), {NAMES.get(name, name): value for name, value in named.items()}


def shown(value: Any) -> str:
    """Arguments with shapes for tensors."""
    if value is None:  # of a constructor's error
        return "nothing"
    args = (value.input, *value.args) if hasattr(value, "input") else value.args
    parts = [brief(v) for v in args] + [f"{name}={brief(v)}" for name, v in value.kwargs.items()]
    return ", ".join(parts)


def brief(value: Any) -> str:
    """A tensor as its shape, anything else as it is."""
    if isinstance(value, torch.Tensor):
        return "x".join(map(str, value.shape)) or "0-d"
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return "packed"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(brief, value))})"
    return str(value)


def main() -> int:
    """Run them, and print the list."""
    warnings.simplefilter("ignore")
    outcomes = Outcomes()
    for samples in (of_modules, of_functions):
        for name, message in samples():
            outcomes.passed += not message
            outcomes.failed += [f"{name}: {message}"] * bool(message)
    return report(outcomes, DEVIATIONS)


if __name__ == "__main__":
    sys.exit(main())
