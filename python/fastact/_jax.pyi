from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

def prepare(
    of_text: Callable[[bytes], Callable[[Sequence[Any]], object]], bfloat16: np.dtype[Any]
) -> None: ...
def handler() -> Any: ...
