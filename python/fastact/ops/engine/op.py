"""The op object: what every op has, whatever its family.

An op is a callable with three entry points, as a NumPy ufunc is one with several methods::

    y        = op(x)                   # inference
    y, saved = op.forward(x)           # training
    dx       = op.backward(dy, *saved)

A function declares it. Its `def` line is the signature of the call, for programs and for type
checkers, unless `called_as` names an op with the same signature. Its docstring documents what is
special to the op, and `declared` names the op's class and the rest. The signatures of `forward`
and `backward` follow from that (`Entry`), and so do the standard parts of the documentation
(`docstrings.py`).

`ops` maps each op's name to the op; tests, benchmarks and framework wrappers iterate over it.
"""

import operator
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, update_wrapper
from inspect import Signature
from itertools import takewhile
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from ... import _cpu
from ...interop import handlers, validate
from . import docstrings
from .entry import BY_NAME, DATA, TOLD, Arg, Entry, Output, untyped

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

_ops: dict[str, Any] = {}

#: Every op by its name.
ops: Mapping[str, Any] = MappingProxyType(_ops)

_aliases: dict[str, Any] = {}

#: Ops by the other names that some have.
aliases: Mapping[str, Any] = MappingProxyType(_aliases)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def records(**named: T) -> Mapping[str, T]:
    """Make a read-only table of records of an op by their names."""
    return MappingProxyType(named)


#: Names that completion at a prompt shows for every op, besides its entry points.
_SHOWN = ("bounds", "family", "name", "parameters", "results", "saves", "gradients")

#: The key of the shape of a call's first array among its arguments by name, if it is known.
SHAPE = "shape of the first array"


class Model(NamedTuple):
    """The shape and dtype of an array that an op makes."""

    shape: tuple[int, ...] | None = None  # None: the first array's, with its order in memory
    dtype: str = DATA  # the data's, that in which they are computed, float64, or any by its name


class Traits(NamedTuple):
    """Properties that few ops have."""

    reads_whole: bool = False  # the data may be whole numbers, read as they are (not in backward)
    is_diagonal: bool = False  # an element of the result depends on one element of one argument
    piecewise_linear: bool = False  # the derivative by an element is constant between corners
    axis_of_bias: bool = False  # `axis` is that of a bias, and elements along it are independent
    counts_elements: bool = False  # the result depends on an element's position in the array
    #: The dtype in which a first array of integers is computed; None: np.tanh's, or torch.tanh's.
    integers: Any = None
    unrecorded: tuple[str, ...] = ()  # switches that must be off where torch records or traces
    autocast: frozenset[str] = frozenset()  # devices on which torch's autocast uses float32
    #: The number in `_cpu.SECOND_KINDS` of the kernel of second derivatives; None without one, or
    #: if `backward.backward` is a separate entry point.
    second: int | None = None


class Kernels(NamedTuple):
    """The native functions of an op."""

    runs: Mapping[str, str] = _NOTHING  # by entry point; calling the op runs `forward`'s
    names: Mapping[str, str] = _NOTHING  # the op's names by the kernels' names, where these differ
    numbers: Mapping[str, Any] = _NOTHING  # arguments that no option of their name gives


class Op(Generic[P, R]):
    """The base of ops: name, family, signatures, documentation and pickling."""

    name: str
    family: str
    bounds: Any
    __wrapped__: Callable[P, R]
    results: tuple[str, ...] = ("y",)  # the results of a call
    saves: tuple[str, ...] = ("x",)  # arrays that `forward` keeps for `backward`, in its order
    gradients: tuple[str, ...] = ("dx",)  # the results of `backward`
    parameters: Mapping[str, float | str] = _NOTHING  # an activation's own, with their defaults
    #: The arguments that are arrays but not plain data; the others are like the first.
    args: Mapping[str, Arg] = _NOTHING
    #: Outputs that are unlike the data, and gradients that are unlike their argument; those of one
    #: entry point have a name like "backward.dx".
    outs: Mapping[str, Output] = _NOTHING
    kernels: Kernels = Kernels()
    traits: Traits = Traits()
    #: Checks of options whose names alone do not tell how they are checked.
    checks: Mapping[str, Callable[[str, str, Any], Any]] = _NOTHING
    entry_points: Mapping[str, Entry]  # calling the op is the one named "call"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        docstrings.composes(cls)

    def _documentation(self) -> str | None:
        return docstrings.of_call(self, self.__wrapped__.__doc__)

    def _texts(self) -> str:
        """Return the text that the ops of the family share, from which `docstrings` composes."""
        return ""

    def _gives(self) -> str:
        """Say what `backward` gives."""
        gives, gradients = self.gradients[0], self.gradients
        gives = gives if len(gradients) == 1 else f"``({', '.join(gradients)})``"
        shared = (f"; d{like} is also the gradient of {n}" for n, like in self.shares.items())
        return gives + "".join(shared)

    def _declare(self, function: Callable[P, R]) -> Signature:
        """Take name, signature and documentation from the function that declares the op."""
        self.name = self.__name__ = self.__qualname__ = function.__name__
        # pickle and inspect look these up on the instance, as they do for ufuncs
        self.__module__ = "fastact"
        self.__wrapped__ = function
        self.__signature__ = untyped(function)
        _cpu.keep_compiled_call(type(self))
        return self.__signature__

    def _is(self, **traits: Any) -> None:
        """Add traits to those of the class."""
        self.traits = self.traits._replace(**traits)

    def _enter(self, **entry_points: Entry) -> None:
        """Take the entry points, which are declared last; `call` is calling the op."""
        every = [p for e in entry_points.values() for p in e.signature.parameters.values()]
        taken = {p.name for p in every if not isinstance(p.default, bool)}  # a switch is no array
        args = {**dict.fromkeys(validate.ROLES, Arg()), **self.args}
        roles = {**dict.fromkeys(args, validate.DATA), **validate.ROLES}
        self.args = MappingProxyType(
            {
                name: arg._replace(role=roles[name]) if arg.role is BY_NAME else arg
                for name, arg in args.items()
                if name in taken
            }
        )
        self.entry_points = MappingProxyType(entry_points)

    @property
    def roles(self) -> Mapping[str, Any]:
        """The roles of arguments other than data, by name; other arrays are data."""
        return {name: arg.role for name, arg in self.args.items() if not arg.is_shape}

    @property
    def shares(self) -> Mapping[str, str]:
        """The argument or result whose gradient another argument shares, by the latter."""
        return {name: arg.shares for name, arg in self.args.items() if arg.shares}

    @property
    def written(self) -> tuple[str, ...]:
        """The arguments that a call may write."""
        return tuple(name for name, arg in self.args.items() if arg.written)

    @property
    def piecewise_linear(self) -> bool:
        """Whether the derivative is constant between corners, so that its own is 0."""
        return self.traits.piecewise_linear

    @property
    def differentiated(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("d") for name in self.gradients)

    @property
    def moving(self) -> tuple[str, ...]:
        """The names in `saves` that have a gradient, by `backward.backward`."""
        return tuple(
            n for n in self.saves if n in {*self.differentiated, *self.shares, *self.results}
        )

    @property
    def stacks(self) -> bool:
        """Whether a call of arrays with another leading axis may stand for that many calls.

        Axes are then counted from the end, and the results must have that leading axis, too. This
        fails if each axis before that of the channels has a meaning, and if an element's number in
        the array matters.
        """
        named = self.entry_points["call"].defaults
        return "channel_axis" not in named and not self.traits.counts_elements

    # The following methods tell from shapes alone what a call gives, for torch's tracers.

    def writes(self, named: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the arguments that this call does write."""
        return self.written

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        """Model the results of a call, and what `forward` makes besides, by name in `saves`."""
        where, options, shapes = self._where(), self._options(named), self.shapes(named)

        def model(name: str) -> Model:
            made = self.outs.get(name, Output())
            told = getattr(options, made.dtype, None)
            dtype = DATA if made.dtype == TOLD else made.dtype
            if told is not None:
                dtype = validate.dtype_named(where, made.dtype, told)
            return Model(None if made.shape is None else getattr(shapes, made.shape), dtype)

        kept = self.outputs_of("forward", options)[len(self.results) :]
        return [*map(model, self.results)], {name: model(name) for name in kept}

    def shapes(self, named: Mapping[str, Any]) -> Any:
        """Find what follows from the shapes of a call's arrays and its options, by name."""
        point = self.entry_points["call"]
        first = point.arrays[0]
        call = SimpleNamespace(where=point.where, views={first: named[first], **named})
        return self._shapes(call, self._options(named))

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> Any:
        """Check the shapes of a call's arrays and its options, and find what follows."""
        return None

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        """Refuse options that are wrong for any array, and replace others by what they mean."""

    def _where(self, entry: str = "call") -> str:
        """Return the name of an entry point in messages."""
        return f"fastact.{self.name}" + (f".{entry}" if entry != "call" else "")

    def shape_of(self, named: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the shape of a call's first array."""
        first = self.entry_points["call"].arrays[0]
        return tuple(named[SHAPE] if SHAPE in named else named[first].shape)

    def unsaved(self, named: Mapping[str, Any]) -> Collection[str]:
        """Return the names in `saves` under which a call saves None."""
        return ()

    def saves_inputs(self, options: SimpleNamespace) -> tuple[str, ...]:
        """Return the arguments that `forward` saves."""
        others = {*self.outputs_of("forward", options), *self.unsaved(vars(options))}
        return tuple(name for name in self.saves if name not in others)

    def outputs_of(self, entry: str, options: SimpleNamespace) -> tuple[str, ...]:
        """Return the outputs of a call of an entry point, by name."""
        gives = self.entry_points[entry].gives
        lacks = self.unsaved(vars(options)) if entry == "forward" else ()
        return tuple(n for n in gives if n in self.results or n not in lacks) if lacks else gives

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Choose what `forward` saves from arguments, results and what it makes besides."""
        lacks = self.unsaved(named)
        return tuple([None if name in lacks else named.get(name) for name in self.saves])

    def gradient_shape(self, name: str, named: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return the shape of an argument's gradient, by what is saved and incoming gradients.

        None means the shape of the array saved under its name, or else of the result's gradient.
        """
        return None

    def result_of(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Make the result of calling the op from its arrays."""
        return arrays if len(arrays) > 1 else arrays[0]

    def has_operator(self, named: Mapping[str, Any]) -> bool:
        """Tell whether torch has an operator for a call."""
        return not any(named.get(name) for name in self.traits.unrecorded)

    def each_of(self, args: Sequence[Any], entry: str = "call") -> tuple[Any, ...] | None:
        """Return the arrays of a tuple in place of the first array, if the op takes one, or None.

        Each of them has its own result.
        """
        return None

    def _plain_call(self, *args: Any, **kwargs: Any) -> Any:
        """Carry out a call that compiled code does not serve."""
        handler = handlers.handler_of(self, args, kwargs)
        if handler is None:
            return self._serve("call", *args, **kwargs)
        return handler.call(self, args, kwargs)

    def _recorder(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Find what records calls like this one, in which some tensors require grad."""
        return handlers.bridge("torch").recorder(self, args, kwargs)

    if TYPE_CHECKING:

        def _watch_autocast(self) -> None: ...  # of the compiled half

        def _serve(self, entry: str, *args: Any, **kwargs: Any) -> Any: ...  # of `CachedOp`

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

        def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]: ...

    else:

        def __call__(self, *args, **kwargs):
            """Let torch.compile trace a call; others begin in compiled code, or `_plain_call`.

            NumPy and pandas look a ufunc's call up by its name, and find this.
            """
            if "torch" not in sys.modules or not sys.modules["torch"].compiler.is_compiling():
                return operator.call(self, *args, **kwargs)
            return handlers.traced(self, args, kwargs)

    def _options(self, named: Mapping[str, Any]) -> SimpleNamespace:
        """Return the arguments of a call, with defaults for those that were not given."""
        return SimpleNamespace(**{**self.entry_points["call"].defaults, **named})

    def entry_point(self, name: str) -> Any:
        """Return an entry point by its name, such as "backward.backward"."""
        return self if name == "call" else operator.attrgetter(name)(self)

    def bound(self, entry: str, named: Mapping[str, Any]) -> partial[Any]:
        """Bind a call of an entry point to the arguments that it takes among these.

        Arguments are positional as far as possible, as people write them, which is also faster.
        """
        point = self.entry_points[entry]
        leading = [*takewhile(named.__contains__, point.leading)]
        rest = [name for name in point.defaults if name in named and name not in leading]
        args, kwargs = map(named.get, leading), {name: named[name] for name in rest}
        return partial(self.entry_point(entry), *args, **kwargs)

    def __dir__(self) -> list[str]:
        """List what people use, for completion at a prompt."""
        points = {name.partition(".")[0] for name in self.entry_points} - {"call"}
        others = {name for name in ("jvp", "quantized") if hasattr(type(self), name)}
        return sorted({*points, *others, *_SHOWN})

    def __reduce__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<fastact op {self.name!r}>"


def arrays_of(result: Any) -> tuple[Any, ...]:
    if hasattr(result, "squares"):  # Moments
        return result.mean, result.squares if result.given is None else result.given
    return result if isinstance(result, tuple) else (result,)


def result_of(arrays: tuple[Any, ...], like: Any, *, moved: bool = False) -> Any:
    """Make a result like another one from these arrays, the inverse of `arrays_of`.

    moved : whether they are tangents, of which a negative one is not a root.
    """
    if hasattr(like, "squares"):
        return like.of_checked(like.count, *arrays, arrays[-1] if moved else None)
    return arrays if isinstance(like, tuple) else arrays[0]


AnyOp = TypeVar("AnyOp", bound=Op[..., Any])


def declared(
    cls: Callable[Concatenate[Callable[P, R], Q], AnyOp], *args: Q.args, **kwargs: Q.kwargs
) -> Callable[[Callable[P, R]], AnyOp]:
    """Make an op of a class of the function that declares it, and enter it into `ops`."""

    def declare(function: Callable[P, R]) -> AnyOp:
        op = cls(function, *args, **kwargs)
        if op.name in _ops:
            raise RuntimeError(f"two ops are named {op.name!r}")
        _ops[op.name] = op
        return op

    return declare


def called_as(op: Op[P, R]) -> Callable[[Callable[[], None]], Callable[P, R]]:
    """Let a function that declares a name and a docstring declare the parameters of an op, too."""

    def declare(function: Callable[[], None]) -> Callable[P, R]:
        declared: Any = update_wrapper(function, op.__wrapped__, ("__annotations__",), ())
        return declared  # type: ignore[no-any-return]

    return declare


def alias(name: str, op: AnyOp) -> AnyOp:
    """Give an op another name, which is valid wherever a name is taken."""
    _aliases[name] = op
    return op


def float32_under_autocast(*devices: str) -> Callable[[AnyOp], AnyOp]:
    """Declare that torch's autocast computes an op in float32 on these kinds of devices.

    This follows torch's own lists; an op that they do not name is computed in the data's dtype.
    """

    def declare(op: AnyOp) -> AnyOp:
        op._is(autocast=frozenset(devices))
        op._watch_autocast()
        return op

    return declare
