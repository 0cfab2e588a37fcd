"""Types of arguments, for type checkers."""

from typing import Any, Protocol


class Array(Protocol):
    """An array of any framework with DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...
