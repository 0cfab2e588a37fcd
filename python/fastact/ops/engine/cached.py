"""A property that is computed once for each object.

`functools.cached_property` holds a lock meanwhile, until Python 3.12: a child that is forked then
has a lock that nobody gives back, and waits for ever at its next use. Here two threads may both
compute a value, and the later one's stays.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property whose value is kept in the object's dictionary, under its own name."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        value = instance.__dict__[self.function.__name__] = self.function(instance)
        return value
