"""The bridge to torch: gradients, torch.compile, transforms of torch.func.

Nobody has to import it: a call of an op with a tensor that requires grad, or inside torch.compile,
loads it. `import fastact` alone imports no torch. `fastact.torch.nn` has modules.
"""

from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    if name == "nn":  # which calls of ops do not need
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
