"""The ops in thinc and spaCy: a backend for the CPU that is thinc's own but for these functions.

    from thinc.api import get_ops, set_current_ops

    set_current_ops(get_ops("fastact"))

thinc finds it by its entry point. What it replaces, and what it can't: docs/thinc.md.
"""

try:
    import thinc as _thinc  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"fastact.thinc: thinc can't be imported ({error}); use pip install 'fastact[thinc]'"
    ) from error

from .layers import convert as convert
from .ops import FastactOps as FastactOps
