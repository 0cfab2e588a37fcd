"""The ops in thinc and spaCy: thinc's backend for the CPU, with some of its functions by fastact.

    from thinc.api import get_ops, set_current_ops

    set_current_ops(get_ops("fastact"))

thinc finds it by its entry point. docs/thinc.md says which functions it replaces, and which not.
"""

try:
    import thinc as _thinc  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"fastact.thinc: thinc can't be imported ({error}); use pip install 'fastact[thinc]'"
    ) from error

from .layers import convert as convert
from .ops import FastactOps as FastactOps
