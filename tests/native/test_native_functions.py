"""Modules of devices have the functions of `interop.devices.Device`, with the same arguments.

Here its declarations are compared with what was compiled.
"""

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_type_hints

import pytest

from fastact.interop.devices import Device

MODULES = [name for name in ("fastact._cuda", "fastact._cuda_emulated") if find_spec(name)]

#: How pybind11 writes the types of arguments and results.
_WRITTEN = {"typing.SupportsInt | typing.SupportsIndex": int, "int": int, "None": type(None)}


def functions(protocol: type) -> dict[str, Any]:
    return {n: f for n, f in vars(protocol).items() if inspect.isfunction(f) and n[0] != "_"}


@pytest.mark.parametrize("name", functions(Device))
@pytest.mark.parametrize("module", MODULES)
def test_of_a_device(module, name):
    function = getattr(import_module(module), name)
    line = function.__doc__.partition("\n")[0]
    arguments, _, result = line.removeprefix(f"{name}(").rpartition(") -> ")
    kinds = [_WRITTEN[kind] for kind in re.split(r",? ?arg\d+: ", arguments)[1:]]
    assert [*kinds, _WRITTEN[result]] == list(get_type_hints(getattr(Device, name)).values())
