"""Documentation as people see it, by numpydoc's checks: python tools/check_docstrings.py

An op's documentation is composed (`ops/engine/docstrings.py`), and numpydoc's own lint, which reads
sources, would see a part. This reads all public objects, every entry point, and whatever
else the modules of `fastact.ops` define. pyproject.toml names the checks; ops and entry
points have to document all parameters and what they return, too.
"""

import argparse
import inspect
import pkgutil
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from numpydoc.validate import ERROR_MSGS, validate

import fastact as fa

ROOT = Path(__file__).parents[1]

#: Ops and entry points document their parameters and results.
OF_OPS = {"PR01", "RT01"}


def checks() -> set[str]:
    """The checks of pyproject.toml: where "all" is one of them, the others are left out."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = set(settings["tool"]["numpydoc_validation"]["checks"])
    return set(ERROR_MSGS) - named if "all" in named else named


def of_ops() -> Iterator[str]:
    """Ops and entry points, but those that compiled code documents once for all activations."""
    for name, op in fa.ops.items():
        yield f"fastact.{name}"
        entries = (entry for entry in op.entry_points if entry != "call")
        yield from (
            f"fastact.{name}.{entry}"
            for entry in entries
            if not inspect.isroutine(op.entry_point(entry))
        )


def others() -> Iterator[str]:
    """Further public names, and what the modules of ops define."""
    for name in fa.__all__:
        if callable(getattr(fa, name)) and name not in fa.ops:
            yield f"fastact.{name}"
    package = import_module("fastact.ops")
    for module in pkgutil.walk_packages(package.__path__, "fastact.ops."):
        yield from _defined(module.name)


def _defined(name: str) -> Iterator[str]:
    """The functions, classes and methods of a module; entry points, `of_ops` has.

    A named tuple's methods are not of the module.
    """
    module = import_module(name)
    for known, value in vars(module).items():
        if inspect.isclass(value) and value.__module__ == name:
            if value.__doc__:
                yield f"{name}.{known}"
            entries = {entry for op in _ops_of(value) for entry in op.entry_points}
            for member, function in vars(value).items():
                if member not in entries and _is_documented(function, module):
                    yield f"{name}.{known}.{member}"
        elif _is_documented(value, module):
            yield f"{name}.{known}"


def _is_documented(value: Any, module: Any) -> bool:
    """Whether it is a function or property that a module defines, with a docstring."""
    function = getattr(value, "fget", value)
    if not (inspect.isfunction(function) and function.__doc__):
        return False
    return bool(function.__code__.co_filename == module.__file__)


def _ops_of(cls: type) -> Iterator[Any]:
    return (op for op in fa.ops.values() if cls in type(op).__mro__)


def errors(name: str, wanted: set[str]) -> Iterator[str]:
    for code, text in validate(name)["errors"]:
        if code in wanted:
            yield f"{name}: {code}: {text}"


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    wanted = checks()
    found = [error for name in of_ops() for error in errors(name, wanted | OF_OPS)]
    found += [error for name in others() for error in errors(name, wanted)]
    print("\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
