"""All native modules have the functions of `interop.native`, with the same arguments in one order.

A type checker compares the declarations with `_cpu.pyi`; here they are compared with what was
compiled.
"""

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_type_hints

import pytest

from fastact import _cpu
from fastact._cpu import View
from fastact.interop.native import Device, Native

MODULES = [name for name in ("fastact._cuda", "fastact._cuda_emulated") if find_spec(name)]

#: How pybind11 writes the types of arguments and results.
_WRITTEN = {
    "typing.SupportsInt | typing.SupportsIndex": int,
    "typing.SupportsFloat | typing.SupportsIndex": float,
    "collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]": tuple[int, ...],
    "collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]": tuple[float, ...],
    "object": View,  # or None
    "bool": bool,
    "int": int,
    "None": type(None),
    "str | None": str | None,
}


def functions(protocol: type) -> dict[str, Any]:
    return {n: f for n, f in vars(protocol).items() if inspect.isfunction(f) and n[0] != "_"}


def declared(function: Any) -> list[Any]:
    """The types of its arguments, and of its result; that of an array may be one of None too."""
    types = list(get_type_hints(function).values())
    return [View if kind == View | None else kind for kind in types]


@pytest.mark.parametrize("name", functions(Native))
def test_of_the_cpu(name):
    expected = list(inspect.signature(getattr(Native, name)).parameters)[1:]
    assert list(inspect.signature(getattr(_cpu, name)).parameters) == expected


@pytest.mark.parametrize("name", [*functions(Native), *functions(Device)])
@pytest.mark.parametrize("module", MODULES)
def test_of_a_device(module, name):
    function = getattr(import_module(module), name)
    line = function.__doc__.partition("\n")[0]
    arguments, _, result = line.removeprefix(f"{name}(").rpartition(") -> ")
    kinds = [_WRITTEN[kind] for kind in re.split(r",? ?arg\d+: ", arguments)[1:]]
    assert [*kinds, _WRITTEN[result]] == declared(getattr(Device, name))
