from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import disjoint_base

@disjoint_base
class DeviceMemory:
    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]: ...

def prepare(
    of_text: Callable[[bytes], Callable[[Sequence[Any]], object]],
    of_text_on_device: Callable[[bytes], Callable[[Sequence[Any], int, DeviceMemory], object]],
    more: Mapping[int, np.dtype[Any]],
) -> None: ...
def handler() -> Any: ...
def device_handler() -> Any: ...
