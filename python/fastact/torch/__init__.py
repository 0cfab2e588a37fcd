"""The bridge to torch: gradients, torch.compile, transforms of torch.func.

It need not be imported: a call of an op with a tensor that requires grad, or inside torch.compile,
loads it. `import fastact` alone does not import torch. `fastact.torch.nn` has modules. Functions
that take models, `convert`, `revert` and `kernelize`, are loaded on demand.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .nn.convert import convert as convert
    from .nn.convert import revert as revert
    from .transformers import kernelize as kernelize

_HOMES = {"convert": "nn", "revert": "nn", "kernelize": "transformers"}


def __getattr__(name: str) -> Any:
    if name in _HOMES.values():  # which calls of ops do not need
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
