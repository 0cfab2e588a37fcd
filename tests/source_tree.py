"""The source tree around the tests; where they are installed, they lie elsewhere without it."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"


def import_tool(name: str) -> Any:
    """A module of the tools; the module that asks is skipped where there are only tests."""
    if not TOOLS.is_dir():
        pytest.skip("the tools are in the source tree only", allow_module_level=True)
    sys.path.insert(0, str(TOOLS))
    return import_module(name)
