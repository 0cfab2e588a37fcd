"""Every check of an argument, and every message about one.

A message names the op, the argument, what is allowed and what came. All checks of a call pass
before anything is written.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import _cpu
from .._cpu import View
from . import foreign
from .foreign import DTYPES
from .foreign import describe as describe

T = TypeVar("T")

#: Names that others have for a keyword, and its name here.
_SYNONYMS = {
    "alpha": ("negative_slope",),
    "axis": ("channel_axis",),
    "dim": ("axis", "channel_axis"),
    "inplace": ("out",),
    "normalized_shape": ("axis",),
    "unbiased": ("correction",),
    "where": ("mask",),
}

# How hard NumPy tries to tell whether two strided arrays meet (its stubs know only 0 and -1).
_WORK: Any = 100_000


class CudaUnavailableError(RuntimeError):
    """The error for a GPU array where no GPU can be used; the message says why."""


def bind(
    where: str,
    defaults: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    keyword_only: frozenset[str],
) -> dict[str, Any]:
    """Name optional arguments that were given by position or by keyword."""
    values = dict(defaults)
    if args:
        positional = [name for name in defaults if name not in keyword_only]
        if len(args) > len(positional):
            names = f" ({', '.join(positional)})" if positional else ""
            of_next = next(name for name in defaults if name in keyword_only)
            raise TypeError(
                f"{where}: takes at most {len(positional)} arguments after the arrays{names} by "
                f"position, got {len(args)}; {of_next} must be given by keyword"
            )
        given = positional[: len(args)]
        values.update(zip(given, args, strict=True))
    else:
        given = []
    for key, value in kwargs.items():
        if key not in defaults:
            raise unknown_keyword(where, key, defaults)
        if key in given:
            raise TypeError(f"{where}: {key} is given by position and by keyword")
        values[key] = value
    return values


def unknown_keyword(where: str, key: str, names: Iterable[str]) -> TypeError:
    """Make the error for an unknown keyword, with a guess at which name was meant."""
    if key in _SYNONYMS:
        near = [name for name in _SYNONYMS[key] if name in names]
    else:
        near = get_close_matches(key, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return TypeError(
        f"{where}: unexpected keyword argument {describe(key)}; allowed are "
        f"{', '.join(names)}{hint}"
    )


def number(where: str, name: str, value: Any) -> float:
    """Check a parameter of an op, which is a finite real number."""
    if type(value) is not float:
        value = foreign.real(where, name, value)
    try:
        converted = float(value)
    except OverflowError:
        raise ValueError(
            f"{where}: {name} must be a number that float64 holds, got {describe(value)}"
        ) from None
    except (TypeError, ValueError):
        raise TypeError(f"{where}: {name} must be a real number, got {describe(value)}") from None
    if not isfinite(converted):
        raise ValueError(f"{where}: {name} must be finite, got {converted!r}")
    return converted


def above_zero(where: str, name: str, value: Any, default: float) -> float:
    """Check a number above zero, or None, which stands for the default."""
    if value is None:
        return default
    found = number(where, name, value)
    if found <= 0:
        raise ValueError(f"{where}: {name} must be above zero or None, got {found!r}")
    return found


def initial(where: str, name: str, value: Any) -> float:
    """Read the number that a sum starts from; None is -0, which changes no sum."""
    return -0.0 if value is None else number(where, name, value)


def dtype_named(where: str, name: str, value: Any) -> str:
    """Find the name of a computed dtype that an option gives."""
    named = dtype_among(value, _cpu.DTYPE_NAMES)
    if named is None:
        raise TypeError(f"{where}: {name} must be {DTYPES}, got {describe(value)}")
    return named


def dtype_among(value: Any, names: Collection[str]) -> str | None:
    """Find the name of a dtype of any library, or None if it is none of these."""
    cls = type(value)
    if (cls.__module__, cls.__name__) == _TORCHS:
        named = str(value)[len("torch.") :]
    elif isinstance(value, str) and value in names:
        named = value
    else:
        try:
            # NumPy would print a tensor in its error, and torch reads memory that may be gone.
            named = "" if foreign.is_tensor(value) else str(np.dtype(value))
        except (TypeError, ValueError):
            named = ""
    return named if named in names else None


_TORCHS = ("torch", "dtype")


def dtype_number(where: str, name: str, value: Any) -> int | None:
    """Number a dtype as kernels do; None stays None."""
    return None if value is None else _cpu.DTYPE_NAMES.index(dtype_named(where, name, value))


# The least numbers that round to infinity.
_TOO_LARGE = {
    "float16": 65520.0,
    "bfloat16": 2.0**128 - 2.0**119 - 2.0**103,  # rounded to float32 first
    "float32": 2.0**128 - 2.0**103,
    "float64": np.inf,
}


def holds(where: str, name: str, value: float, dtype: str) -> None:
    """Refuse a finite number in an array's place that is infinite in the array's dtype."""
    try:
        magnitude = abs(float(value))
    except OverflowError:
        magnitude = -1.0
    if magnitude < 0 or _TOO_LARGE.get(dtype, np.inf) <= magnitude < np.inf:
        raise ValueError(
            f"{where}: {name} must be a number that {dtype} holds, got {describe(value)}"
        )


def is_flag(where: str, name: str, value: float, role: "Role", dtype: str) -> bool:
    """Whether a number in an array's place is a mask's bool; else the data's dtype holds it."""
    if isinstance(value, bool) and "bool" in role.also:
        return True
    if isinstance(role.also, Only):
        raise wrong_dtype(where, name, describe(value), role.also)
    holds(where, name, value, dtype)
    return False


def choice(where: str, name: str, value: Any, allowed: Mapping[str, T]) -> T:
    """Find the value that a string stands for, if an option is one of a few strings."""
    if not isinstance(value, str) or value not in allowed:
        listed = " or ".join(map(repr, allowed))
        raise ValueError(f"{where}: {name} must be {listed}, got {describe(value)}")
    return allowed[value]


def rule(where: str, text: str, holds: Callable[..., bool], numbers: Mapping[str, float]) -> None:
    """Check a rule for an op's parameters, besides that they are finite."""
    if not holds(**numbers):
        came = ", ".join(f"{name}={value!r}" for name, value in numbers.items())
        raise ValueError(f"{where}: {text}, got {came}")


def flag(where: str, name: str, value: Any) -> bool:
    """Check a switch, which is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{where}: {name} must be True or False, got {describe(value)}")
    return bool(value)


def one_framework(where: str, frameworks: Mapping[str, Any]) -> None:
    """Refuse arrays of a call that come from several frameworks."""
    if len({id(f) for f in frameworks.values()}) > 1:
        came = ", ".join(f"{name} from {f.name}" for name, f in frameworks.items())
        raise TypeError(f"{where}: all arrays must come from one framework, got {came}")


class Only(tuple[str, ...]):
    """The only dtypes of an argument; a plain tuple has those besides the computed ones."""


class Labels(Only):
    """The dtypes of labels: NumPy's bools are labels, too, and for others there is np.unique."""


class Role(NamedTuple):
    """The role of an argument other than data; docs/conventions.md has the rules."""

    #: Dtypes that it may have beside those that are computed, or (`Only`) instead of them.
    also: Sequence[str] = ()
    repeats: bool = False  # it broadcasts to the data's shape, or to what it is of
    number: bool = False  # a number stands for one that repeats
    #: The rule of native calls for it beside the data's; "told": the one that the option `dtype`
    #: says, or else the same.
    dtype: str = "same"
    array: bool = False  # no number stands for it


#: Integers and bools as they are read.
WHOLE = ("bool", "int32", "int64")

DATA = Role()
OF_RESULT = Role(dtype="told")  # as the result has it: the data's, or what `dtype` says
ARRAY = Role(array=True)  # data that has axes of its own
PARAMETER = Role(dtype="wide_enough", array=True)
STATISTIC = Role(dtype="compute_type", array=True)  # of the data, as `forward` saved it
TOTAL = Role(dtype="double", array=True)
INDICES = Role(("int32", "int64"), dtype="any")
MASK = Role(WHOLE, repeats=True, number=True, dtype="any")
WEIGHTS = Role(WHOLE, repeats=True, dtype="any")  # a number would be an axis in the wrong place
COUNTS = Role(Only(("bool",)), repeats=True, number=True, dtype="any")
LABELS = Role(Labels(("int32", "int64")), repeats=True, dtype="any")

#: The roles of arguments that are not data, by their names.
ROLES: Mapping[str, Role] = MappingProxyType(
    {
        **dict.fromkeys(("weight", "bias", "recurrent_bias"), PARAMETER),
        **dict.fromkeys(("running_mean", "running_var"), PARAMETER),
        "target": INDICES,
        "mask": MASK,
        "weights": WEIGHTS,
        "where": COUNTS,
        "by": LABELS,
    }
)


def supported_dtype(where: str, name: str, view: View, also: Sequence[str] = ()) -> None:
    """Refuse a dtype that the kernels do not compute and the argument may not have."""
    is_computed = 0 <= view.dtype < len(_cpu.DTYPE_NAMES) and not isinstance(also, Only)
    if not is_computed and view.dtype_name not in also:
        raise wrong_dtype(where, name, view.dtype_name, also)


def wrong_dtype(where: str, name: str, came: str, also: Sequence[str] = ()) -> TypeError:
    """Make the error for a dtype that no kernel takes, or for a value without one."""
    is_all = isinstance(also, Only)
    allowed = " or ".join(also) if is_all else "".join(f"{dtype}, " for dtype in also) + DTYPES
    is_label = isinstance(also, Labels)
    way = f"; use names, labels = np.unique({name}, return_inverse=True)" if is_label else ""
    if way and came.startswith(("bool", "int", "uint")):
        way = "; cast it to int64"
    return TypeError(f"{where}: {name} must have dtype {allowed}, got {came}{way}")


def same_device(where: str, name: str, device: tuple[int, int], expected: tuple[int, int]) -> None:
    """Refuse an array on another device than the call's."""
    if device != expected:
        raise ValueError(
            f"{where}: all arrays must be on one device, {device_name(expected)}, got {name} on "
            f"{device_name(device)}"
        )


def epsilon(where: str, name: str, value: Any) -> float:
    """Check the number that is added to a variance, which is finite and not negative."""
    eps = number(where, name, value)
    if eps < 0:
        raise ValueError(f"{where}: {name} must not be negative, got {describe(value)}")
    return eps


DOUBLE = _cpu.DTYPE_NAMES.index("float64")


def computed_in(view: View) -> int:
    """Return the dtype in which an array is computed: its own, or float32 for 16 bits."""
    return _cpu.dtype_of_rule("compute_type", view.dtype)


def aligned(where: str, name: str, view: View) -> None:
    """Refuse unaligned elements, which a GPU cannot read."""
    bits = view.address
    for stride, length in zip(view.strides, view.shape, strict=True):
        bits |= stride if length > 1 else 0
    if bits % view.itemsize:
        raise ValueError(
            f"{where}: {name} must be aligned to its items of {view.itemsize} bytes on a GPU, got "
            f"address {view.address:#x} and strides {view.strides}"
        )


def same_as(where: str, name: str, view: View, reference_name: str, reference: View) -> None:
    """Refuse a `view` of another dtype or shape than the reference."""
    has_dtype(where, name, view, "same", reference_name, reference)
    if view.shape != reference.shape:
        raise ValueError(f"{where}: {name} must have shape {reference.shape}, got {view.shape}")


#: How messages explain a dtype that a rule of native calls requires (common/core/call.h).
_WHY = {
    "same": "as {} has",
    "wide_enough": "as {} has, or a wider one",
    "compute_type": "in which {} is computed",
    "double": "as forward's has",
}


def has_dtype(
    where: str, name: str, view: View, rule: str, reference_name: str, reference: View
) -> None:
    """Refuse a dtype that a rule of native calls does not allow beside another array."""
    if _cpu.has_dtype(rule, view.dtype, reference.dtype):
        return
    expected = _cpu.VIEW_DTYPE_NAMES[_cpu.dtype_of_rule(rule, reference.dtype)]
    why = _WHY[rule].format(reference_name)
    raise TypeError(f"{where}: {name} must have dtype {expected}, {why}, got {view.dtype_name}")


def no_number(where: str, name: str, value: Any) -> Any:
    """Refuse a number in place of an array."""
    if isinstance(value, bool | int | float):
        raise TypeError(f"{where}: {name} must be an array, got {describe(value)}")
    return value


def device_name(device: tuple[int, int]) -> str:
    kinds = {1: "cpu", 2: "cuda", 7: "vulkan", 8: "metal", 10: "rocm", 12: "emulated"}
    kind = kinds.get(device[0], f"dlpack-{device[0]}")
    return kind if kind == "cpu" else f"{kind}:{device[1]}"


def writable(where: str, name: str, view: View) -> None:
    """Refuse an output that is read-only or overlaps itself."""
    if view.readonly:
        raise ValueError(f"{where}: {name} must be writable, got a read-only array")
    if view.overlaps_itself:
        raise ValueError(
            f"{where}: {name} must not overlap itself, got strides {view.strides} for shape "
            f"{view.shape}"
        )


def may_write(
    where: str, out_name: str, out: View, inputs: Mapping[str, View], *, in_place: bool = True
) -> None:
    """Refuse inputs that overlap `out`, unless they are `out` itself and `in_place` allows it."""
    for name, view in inputs.items():
        if not in_place and _share_memory(out, view):
            raise ValueError(
                f"{where}: {out_name} must not share memory with {name}, which is still needed"
            )
        same = out.address == view.address and steps(out) == steps(view)
        if in_place and not same and _share_memory(out, view):
            raise ValueError(
                f"{where}: {out_name} must be {name} itself or share no memory with it, got a "
                f"partial overlap"
            )


def _share_memory(a: View, b: View) -> bool:
    (low, high), (from_, to) = a.reach, b.reach
    if high <= from_ or to <= low:
        return False
    try:
        return np.shares_memory(np.asarray(a), np.asarray(b), max_work=_WORK)
    except np.exceptions.TooHardError:
        return True  # cannot be told in reasonable time; refusing is safe


def steps(view: View) -> list[int]:
    """Return the strides that matter, which are those of axes longer than 1."""
    return [s for s, n in zip(view.strides, view.shape, strict=True) if n > 1]


def out_name(i: int, outs: Sequence[Any]) -> str:
    """Return the name of an output in messages."""
    return "out" if len(outs) == 1 else f"out[{i}]"


def outputs(where: str, out: Any, count: int = 1) -> tuple[Any, ...]:
    """Turn `out`, an array or a tuple with an array or None per output, into a tuple."""
    if out is None:
        return (None,) * count
    given = out if isinstance(out, tuple) else (out,)
    if len(given) != count or (count > 1 and given is not out):
        came = f"a tuple of {len(given)}" if given is out else f"one {type(out).__name__}"
        raise ValueError(
            f"{where}: out must be {'an array or ' if count == 1 else ''}a tuple of {count}, got "
            f"{came}"
        )
    return given


def wants_one(where: str, outs: tuple[Any, ...]) -> None:
    """Refuse a tuple in which every gradient is None, and so skipped."""
    if all(out is None for out in outs):
        raise ValueError(
            f"{where}: out must have an array for at least one gradient (None skips one), got "
            f"{describe(outs)}"
        )


def needs_out(where: str, *outs: Any) -> None:
    """Refuse accumulate=True without an array to add into for each output."""
    if any(out is None for out in outs):
        into = "the array" if len(outs) == 1 else "the arrays"
        raise ValueError(f"{where}: accumulate=True must come with out=, {into} to add into")


def apart(where: str, name: str, out: View, others: Mapping[str, View]) -> None:
    """Refuse an output that overlaps other outputs, or inputs that all of it depends on."""
    for other, view in others.items():
        if _share_memory(out, view):
            raise ValueError(f"{where}: {name} must not share memory with {other}")
