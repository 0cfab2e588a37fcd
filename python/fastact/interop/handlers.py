"""Who carries out a call of an op where the op's own code does not: handlers, asked in one order.

Tensors that record gradients, chunks that are not computed yet and arrays with a mask are not for
the kernels alone. Who knows such objects registers a handler here, so that no op knows who there
is. The bridges to torch and dask are imported when an object of theirs arrives.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from . import foreign

Args = tuple[Any, ...]
Named = Mapping[str, Any]


class Handler(NamedTuple):
    """Calls of a kind: which they are, and what carries one out, by the op and its arguments."""

    serves: Callable[[Any, Args, Named], bool]
    call: Callable[[Any, Args, Named], Any]


_handlers: list[Handler] = []


def register(handler: Handler, *, first: bool = False) -> None:
    """Ask this one too: before those that are there, or after them."""
    _handlers.insert(0 if first else len(_handlers), handler)


def handler_of(op: Any, args: Args, kwargs: Named) -> Handler | None:
    """Return the handler of a call, or None for the op itself."""
    for handler in _handlers:
        if handler.serves(op, args, kwargs):
            return handler
    return None


# --- bridges that wait for an object of theirs ----------------------------------------------------


#: How each is imported, by its name (`waiting.py`).
bridges: dict[str, Callable[[], Any]] = {}


def _by(name: str, function: str) -> Callable[[Any, Args, Named], Any]:
    return lambda op, args, kwargs: getattr(bridge(name), function)(op, args, kwargs)


def _is_cast(op: Any, args: Args, kwargs: Named) -> bool:
    return bool(op.traits.autocast) and foreign.is_cast(op.traits.autocast, args)


def _is_lazy(op: Any, args: Args, kwargs: Named) -> bool:
    return bool(args) and foreign.is_lazy(args[0]) and bool(bridge("dask").serves(op))


register(Handler(_is_cast, _by("torch", "call_in_float32")))
register(Handler(lambda op, *call: foreign.is_overridden(*call), _by("torch", "call_overridden")))
register(Handler(lambda op, *call: foreign.is_for_torch(*call), _by("torch", "call")))
register(Handler(_is_lazy, _by("dask", "call")))


def bridge(name: str) -> Any:
    """Import a bridge: "derivatives" is what finds those that ops have no kernels for."""
    return bridges[name]()


def traced(op: Any, args: Args, kwargs: Named) -> Any:
    """The call as torch.compile reads it, with guards of all functions and values on the way."""
    call = bridge("dispatch").traced
    if args and isinstance(args[0], tuple):
        return one_by_one(op, partial(call, op), args, kwargs)
    return call(op, args, kwargs)


def entered(op: Any, entry: str, args: Args, kwargs: Named) -> Any:
    """A call of an entry point where somebody looks at each operation of torch, by its operator.

    NotImplemented: there is none for it, or nothing of torch's is given.
    """
    if next(foreign.tensors(args, kwargs), None) is None:
        return NotImplemented
    return bridge("entries").entered(op, entry, args, kwargs)


def one_by_one(op: Any, call: Callable[[Args, Named], Any], args: Args, kwargs: Named) -> Any:
    """Return the result of a call, or the results for each array of a tuple in its place."""
    each = op.each_of(args)
    if each is None:
        return call(args, kwargs)
    return tuple(call((x, *args[1:]), kwargs) for x in each)
