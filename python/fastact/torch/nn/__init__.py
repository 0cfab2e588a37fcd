"""Modules of torch.nn that fastact computes, under the same names, with `convert` and `revert`.

Each is derived from torch's class. The constructor and `state_dict` are torch's own, and the repr
is torch's, after ``fastact.torch.nn.``. Norms, linear and convolutional layers also take an
activation: ``LayerNorm(768, activation="gelu")``.
"""

from typing import TYPE_CHECKING, Any

from .activations import *  # noqa: F403
from .bias import *  # noqa: F403
from .convert import *  # noqa: F403
from .gates import *  # noqa: F403
from .norms import *  # noqa: F403
from .plain import *  # noqa: F403
from .sync_batch_norm import *  # noqa: F403

if TYPE_CHECKING:  # the classes of activations are made of the ops

    def __getattr__(name: str) -> Any: ...
