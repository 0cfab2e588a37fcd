"""The modules of torch.nn that fastact computes, under their names, `convert` and `revert`.

Each is derived from torch's class: constructor, `state_dict` and repr are torch's own. Norms,
linear and convolutional layers take an activation as well: ``LayerNorm(768, activation="gelu")``.
"""

from typing import TYPE_CHECKING, Any

from .activations import *  # noqa: F403
from .bias import Conv1d as Conv1d
from .bias import Conv2d as Conv2d
from .bias import Conv3d as Conv3d
from .bias import Linear as Linear
from .convert import Report as Report
from .convert import convert as convert
from .convert import revert as revert
from .gates import GRU as GRU
from .gates import LSTM as LSTM
from .gates import GRUCell as GRUCell
from .gates import LSTMCell as LSTMCell
from .norms import BatchNorm1d as BatchNorm1d
from .norms import BatchNorm2d as BatchNorm2d
from .norms import BatchNorm3d as BatchNorm3d
from .norms import GroupNorm as GroupNorm
from .norms import InstanceNorm1d as InstanceNorm1d
from .norms import InstanceNorm2d as InstanceNorm2d
from .norms import InstanceNorm3d as InstanceNorm3d
from .norms import LayerNorm as LayerNorm
from .norms import RMSNorm as RMSNorm
from .plain import GLU as GLU
from .plain import CrossEntropyLoss as CrossEntropyLoss
from .plain import Dropout as Dropout
from .plain import LogSoftmax as LogSoftmax
from .plain import PReLU as PReLU
from .plain import Softmax as Softmax
from .plain import Softmax2d as Softmax2d
from .plain import Softmin as Softmin
from .sync_batch_norm import SyncBatchNorm as SyncBatchNorm

if TYPE_CHECKING:  # the classes of activations are made of the ops

    def __getattr__(name: str) -> Any: ...
