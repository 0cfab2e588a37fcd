"""The op object: what every op has, whatever its family.

An op is a callable with three entry points, as a NumPy ufunc is one with several methods::

    y        = op(x)                   # inference
    y, saved = op.forward(x)           # training
    dx       = op.backward(dy, *saved)

It is declared by a function: the `def` line is the signature of the call, for programs and for type
checkers, and the docstring documents what the op has alone; a decorator of the family
(`activation`, `norm`, ...) says the rest and makes the op of it. The signatures of `forward` and
`backward` follow from that (`EntryPoint`), and so do the standard parts of the documentation
(`docstrings.py`).

`ops` maps each op's name to the op; tests, benchmarks and framework wrappers iterate over it.
"""

import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, signature
from itertools import takewhile
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

from ... import _cpu
from ...interop import handlers, validate
from ...interop.validate import Role
from . import docstrings

P = ParamSpec("P")
R = TypeVar("R")

_ops: dict[str, Any] = {}

#: Every op by its name.
ops: Mapping[str, Any] = MappingProxyType(_ops)

_aliases: dict[str, Any] = {}

#: Ops by the other names that some have.
aliases: Mapping[str, Any] = MappingProxyType(_aliases)

REQUIRED: Any = Parameter.empty

_EVERY = ("out", "accumulate", "stream")  # what entry points of all ops have, where it applies


class EntryPoint:
    """What an entry point takes, read off its signature, and how a call of it is understood.

    A parameter whose default is a bool is a switch.

    gives : the outputs by name; not every call has all of them.
    outputs : how many of them `out` stands for. extra : how many more may follow these in a tuple.
    skips : the outputs are gradients, of which one that is None in a tuple is not computed.
    """

    def __init__(
        self,
        where: str,
        sig: Signature,
        gives: tuple[str, ...] = ("y",),
        *,
        outputs: int | None = None,
        extra: int = 0,
        skips: bool = False,
    ) -> None:
        self.where, self.signature, self.gives = where, sig, gives
        self.outputs = len(gives) if outputs is None else outputs
        self.extra, self.skips = extra, skips
        parameters = sig.parameters.values()
        only, either = Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD
        self.arrays = positional(sig)
        self.defaults = {p.name: p.default for p in parameters if p.kind in (either, only)}
        self.by_keyword = frozenset(p.name for p in parameters if p.kind is only)
        self._places = {n: i for i, n in enumerate(self.defaults, len(self.arrays))}
        self._required = [name for name, v in self.defaults.items() if v is REQUIRED]
        self._switches = [name for name, v in self.defaults.items() if isinstance(v, bool)]
        self._with: dict[str, EntryPoint] = {}

    def with_parameters(self, op: Any) -> "EntryPoint":
        """The same with an activation's own parameters, by keyword."""
        if op.name not in self._with:
            kept = [p for p in self.signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
            own = [
                Parameter(n, Parameter.KEYWORD_ONLY, default=v) for n, v in op.parameters.items()
            ]
            self._with[op.name] = EntryPoint(
                self.where,
                Signature([*kept, *own]),
                self.gives,
                outputs=self.outputs,
                extra=self.extra,
                skips=self.skips,
            )
        return self._with[op.name]

    def option(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One option of a call that is not understood yet."""
        at = self._places[name]
        is_given = name not in self.by_keyword and at < len(args)
        return args[at] if is_given else kwargs.get(name, self.defaults[name])

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SimpleNamespace:
        """The arguments of a call by name, checked as far as that takes no array.

        `out` becomes a tuple of all outputs; `wanted` tells which of them are computed.
        """
        where, count = self.where, len(self.arrays)
        if kwargs:
            kwargs = by_our_names(where, kwargs, self.defaults)
        if len(args) < count:
            raise TypeError(f"{where}: {self.arrays[len(args)]} must be given, by position")
        values = validate.bind(where, self.defaults, args[count:], kwargs, self.by_keyword)
        for name in self._required:
            if values[name] is REQUIRED:
                raise TypeError(f"{where}: {name} must be given")
        for name in self._switches:
            if values[name] is not False:
                values[name] = validate.flag(where, name, values[name])
        values.update(zip(self.arrays, args, strict=False))
        given, every = values["out"], self.outputs + self.extra
        if isinstance(given, tuple) and len(given) == every:
            values["out"] = given
        else:
            values["out"] = validate.outputs(where, given, self.outputs) + (None,) * self.extra
        values["wanted"] = [True] * every
        if self.skips and given is not None:
            values["wanted"] = [out is not None for out in values["out"]]
            validate.wants_one(where, values["out"])
        elif values.get("accumulate"):
            validate.needs_out(where, *values["out"])
        return SimpleNamespace(**values)


#: Options that have NumPy's name, too.
_NUMPYS = {"ddof": "correction"}


def by_our_names(where: str, named: Mapping[str, Any], taken: Collection[str]) -> Mapping[str, Any]:
    """Give arguments by NumPy's names ours."""
    for other, ours in _NUMPYS.items():
        if other not in taken or named.get(other) is None:
            continue
        if ours in named:
            raise TypeError(
                f"{where}: {ours} and {other} name one option, and must not both be given"
            )
        named = {(ours if name == other else name): value for name, value in named.items()}
    return named


def signature_of(
    call: Signature,
    positional: Sequence[str],
    either: Iterable[str] = (),
    *,
    but: Iterable[str] = (),
    accumulates: bool = True,
    **more: Any,
) -> Signature:
    """The signature of another entry point than the call.

    positional : its arrays. either : what follows by position or by keyword, with the defaults of
    the call, and required where the call has no such parameter. but : options of the call that it
    does not take. more : options that the call does not have, with their defaults: by keyword,
    where they are not among `either`.
    """
    either, of_call = list(either), call.parameters
    skipped = {*positional, *either, *but, *_EVERY}
    options = [p for p in of_call.values() if p.name not in skipped]
    follow = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=more.pop(name) if name in more else _default(of_call, name),
        )
        for name in either
    ]
    follow += [p for p in options if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    only = [p for p in options if p.kind is Parameter.KEYWORD_ONLY]
    every = [*more.items(), ("out", None), *([("accumulate", False)] * accumulates)]
    out_is_last = of_call["out"].kind is Parameter.POSITIONAL_OR_KEYWORD
    kind = Parameter.POSITIONAL_OR_KEYWORD if out_is_last else Parameter.KEYWORD_ONLY
    return Signature(
        [
            *(Parameter(name, Parameter.POSITIONAL_ONLY) for name in positional),
            *follow,
            *only,
            *(Parameter(name, kind, default=default) for name, default in every),
            Parameter("stream", Parameter.KEYWORD_ONLY, default=None),
            *(p for p in of_call.values() if p.kind is Parameter.VAR_KEYWORD),
        ]
    )


def _default(of_call: Mapping[str, Parameter], name: str) -> Any:
    parameter = of_call.get(name)
    if parameter is None or parameter.kind is Parameter.POSITIONAL_ONLY:
        return REQUIRED
    return parameter.default


def positional(call: Signature) -> tuple[str, ...]:
    """The arrays of a call that have no name for callers."""
    return tuple(n for n, p in call.parameters.items() if p.kind is Parameter.POSITIONAL_ONLY)


def untyped(function: Callable[..., Any]) -> Signature:
    """A function's signature, without annotations, which are for type checkers."""
    found = signature(function)
    plain = [p.replace(annotation=Parameter.empty) for p in found.parameters.values()]
    return Signature(plain)


# What an array that an op makes is like beside the data: of a statistic, say.
DATA, COMPUTED, DOUBLE = "data", "computed", "double"

# Or as an option says: of a result, and what `forward` has saved of x; without it as the data.
TOLD, OF_X = "dtype", "x_dtype"


#: The shape of a call's first array, among its arguments by name, where somebody has found it.
SHAPE = "shape of the first array"


class Model(NamedTuple):
    """Shape and dtype of an array that an op makes.

    shape : None: as the first array, whose order in memory it has too.
    dtype : the data's, the one in which they are computed, float64, or any by its name.
    """

    shape: tuple[int, ...] | None = None
    dtype: str = DATA


class Makes(NamedTuple):
    """An output of an op, by its spec.

    like : the argument that it is like; None: the first one.
    shape : whose it has instead, by its name among what `_shapes` finds.
    dtype : the argument's, the one in which the data are computed, float64, or an option's.
    in_place : it may be written where an argument lies.
    """

    like: str | None = None
    shape: str | None = None
    dtype: str = DATA
    in_place: bool = False


class Op(Generic[P, R]):
    """Name, family, signatures, documentation and pickling.

    results : what a call gives, by name. saves : what `forward` keeps for `backward`, in its order.
    besides : what of that `forward` makes besides the results.
    gradients : what `backward` gives.
    makes : outputs that are not as the data, or a gradient that is not as its argument, by name; of
    an entry point alone by that, too: "backward.dx".
    differentiated : the arguments that have one of these gradients.
    shares : maps an argument to the one whose gradient it shares, or to the result.
    parameters : an activation's own, with their defaults.
    entry_points : what each takes; calling the op is the one named "call".
    roles : what arguments are to the data, by name; arrays among the others are data.
    shapes : the name of their shape among what `_shapes` finds, None where no shape is the only
    one; the others have the data's.
    spreads : those that broadcast to it, and no masks or weights, whose roles say so.
    apart : data that share no memory with an output, as what is no data never does.
    optional : arrays that may be None, though they have no default.
    unsaved : arguments of backward that may be None.
    called : arrays that messages call something else than an array.
    reads_whole : the data may be whole numbers, read as they are, but in backward.
    of_forward : arguments of backward that `forward` may have returned as numbers of NumPy's.
    sizes : arguments by position that are no arrays, but lengths.
    checks : of options whose names alone do not tell how they are checked.
    runs : the native functions of entry points; calling the op runs the one of `forward`.
    fields : what native functions call something else than the op does: its names by theirs.
    second : the kernel of its second derivatives, by its number in `_cpu.SECOND_KINDS`; None: there
    is none, or `backward.backward` is an entry point of its spec.
    """

    name: str
    family: str
    bounds: Any
    __wrapped__: Callable[P, R]
    results: tuple[str, ...] = ("y",)
    saves: tuple[str, ...] = ("x",)
    gradients: tuple[str, ...] = ("dx",)
    shares: Mapping[str, str] = MappingProxyType({})
    parameters: Mapping[str, float | str] = MappingProxyType({})
    roles: Mapping[str, Role] = MappingProxyType({})
    besides: tuple[str, ...] = ()
    makes: Mapping[str, Makes] = MappingProxyType({})
    shapes: Mapping[str, str | None] = MappingProxyType({})
    spreads: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()
    called: Mapping[str, str] = MappingProxyType({})
    of_forward: tuple[str, ...] = ()
    reads_whole: bool = False
    sizes: tuple[str, ...] = ()
    checks: Mapping[str, Callable[[str, str, Any], Any]] = MappingProxyType({})
    runs: Mapping[str, str] = MappingProxyType({})
    fields: Mapping[str, str] = MappingProxyType({})
    second: int | None = None
    entry_points: Mapping[str, EntryPoint]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        docstrings.composes(cls)

    def _documentation(self) -> str | None:
        return docstrings.of_call(self, self.__wrapped__.__doc__)

    def _declare(self, function: Callable[P, R], family: str) -> Signature:
        """Take name, signature and documentation from the function that declares the op."""
        self.name = self.__name__ = self.__qualname__ = function.__name__
        self.family = family
        # pickle and inspect look these up on the instance, as they do for ufuncs
        self.__module__ = "fastact"
        self.__wrapped__ = function
        self.__signature__ = untyped(function)
        names = self.__signature__.parameters
        own = {name: role for name, role in validate.ROLES.items() if name in names}
        self.roles = MappingProxyType({**own, **self.roles})
        _cpu.keep_compiled_call(type(self))
        return self.__signature__

    def _has_second(self, kind: str) -> None:
        """Take the kernel of second derivatives of this kind, if there is one."""
        if kind in _cpu.SECOND_KINDS:
            self.second = _cpu.SECOND_KINDS.index(kind)

    @property
    def differentiated(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("d") for name in self.gradients)

    @property
    def moving(self) -> tuple[str, ...]:
        """What of `saves` has a gradient: by `backward.backward`."""
        return tuple(
            n for n in self.saves if n in {*self.differentiated, *self.shares, *self.results}
        )

    @property
    def stacks(self) -> bool:
        """Whether a call of arrays with one axis more in front may be as many calls.

        Axes are counted from the end then, and the results have to have that axis in front, too.
        Not where the axis of channels tells the others apart: each axis before it has a meaning;
        nor where an element's number in the array counts.
        """
        named = self.entry_points["call"].defaults
        return "channel_axis" not in named and not self.counts_elements

    # What follows says without memory, of shapes alone, what a call gives, for torch's tracers.

    #: Arguments that a call may write.
    written: tuple[str, ...] = ()

    def writes(self, named: Mapping[str, Any]) -> tuple[str, ...]:
        """Those that this one does write."""
        return self.written

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        """The results of a call, and what `forward` makes besides, by its name in `saves`."""
        point = self.entry_points["call"]
        first = point.arrays[0]
        call: Any = SimpleNamespace(where=point.where, views={first: named[first], **named})
        options = self._options(named)
        shapes = self._shapes(call, options)

        def model(name: str) -> Model:
            made = self.makes.get(name, Makes())
            told = getattr(options, made.dtype, None)
            dtype = DATA if made.dtype == TOLD else made.dtype
            if told is not None:
                dtype = validate.dtype_named(call.where, made.dtype, told)
            return Model(None if made.shape is None else getattr(shapes, made.shape), dtype)

        kept = self.outputs_of("forward", options)[len(self.results) :]
        return [*map(model, self.results)], {name: model(name) for name in kept}

    def _shapes(self, call: Any, options: SimpleNamespace) -> Any:
        """What follows from the shapes of a call's arrays and its options, checked."""
        return None

    def _check_options(self, where: str, options: SimpleNamespace) -> None:
        """Refuse options that no array would make right, and put in what they stand for."""

    def shape_of(self, named: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape of a call's first array."""
        first = self.entry_points["call"].arrays[0]
        return tuple(named[SHAPE] if SHAPE in named else named[first].shape)

    def saves_inputs(self, options: SimpleNamespace) -> tuple[str, ...]:
        """The arguments that `forward` saves."""
        return self.saves

    def outputs_of(self, entry: str, options: SimpleNamespace) -> tuple[str, ...]:
        """The outputs of a call of an entry point, by name."""
        return self.entry_points[entry].gives

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """What `forward` saves, of the arguments, the results and what it makes besides."""
        return tuple(map(named.get, self.saves))

    def gradient_shape(self, name: str, named: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The shape of an argument's gradient, by what is saved and the gradients of the results.

        None: the shape of the array saved under its name, or else of the result's gradient.
        """
        return None

    def result_of(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """What calling the op gives, of the arrays in it."""
        return arrays if len(arrays) > 1 else arrays[0]

    #: Switches that must be off where torch records or traces a call.
    unrecorded: tuple[str, ...] = ()

    def has_operator(self, named: Mapping[str, Any]) -> bool:
        """Whether torch has an operator for a call."""
        return not any(named.get(name) for name in self.unrecorded)

    #: Whether it is an element-wise op whose derivative is constant between corners.
    piecewise_linear: bool = False

    #: Whether each element of the result depends on one element of one argument alone.
    is_diagonal: bool = False

    #: Whether `axis` says where a bias lies, and along it no elements are computed together.
    axis_of_bias: bool = False

    #: Whether the result depends on where in the array an element is.
    counts_elements: bool = False

    #: The dtype in which a first array of integers is computed; None: np.tanh's, or torch.tanh's.
    integers: Any = None

    #: Kinds of devices on which torch's autocast computes it in float32.
    autocast: frozenset[str] = frozenset()

    def each_of(self, args: Sequence[Any], entry: str = "call") -> tuple[Any, ...] | None:
        """The arrays of a tuple in the first one's place, where the op takes one; None: it is none.

        Each has a result of its own.
        """
        return None

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _plain_call(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the op does where compiled code does not serve it."""
        handler = handlers.handler_of(self, args, kwargs)
        return self._call(*args, **kwargs) if handler is None else handler.call(self, args, kwargs)

    def _recorder(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Whoever records calls like this one, where some tensors require grad."""
        return handlers.recorder(self, args, kwargs)

    if TYPE_CHECKING:

        def _watch_autocast(self) -> None: ...  # of the compiled half

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

        def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]: ...

    else:

        def __call__(self, *args, **kwargs):
            """What torch.compile traces; other calls begin in compiled code, or `_plain_call`.

            NumPy and pandas look a ufunc's call up by its name, and find this.
            """
            if "torch" not in sys.modules or not sys.modules["torch"].compiler.is_compiling():
                return operator.call(self, *args, **kwargs)
            return handlers.traced(self, args, kwargs)

    def _options(self, named: Mapping[str, Any]) -> SimpleNamespace:
        """The arguments of a call, and the defaults of those that were not given."""
        return SimpleNamespace(**{**self.entry_points["call"].defaults, **named})

    def entry_point(self, name: str) -> Any:
        """An entry point by its name; "backward.backward" is one of another's."""
        return self if name == "call" else operator.attrgetter(name)(self)

    def bound(self, entry: str, named: Mapping[str, Any]) -> partial[Any]:
        """A call of an entry point, with the arguments that it takes among these.

        By position as far as that goes, as people write it: it is faster, too.
        """
        point = self.entry_points[entry]
        function = self.entry_point(entry)
        either = [name for name in point.defaults if name not in point.by_keyword]
        leading = [*point.arrays, *takewhile(named.__contains__, either)]
        rest = {name: named[name] for name in point.defaults if name in named}
        for name in leading:
            rest.pop(name, None)
        return partial(function, *(named[name] for name in leading), **rest)

    def __reduce__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<fastact op {self.name!r}>"


def arrays_of(result: Any) -> tuple[Any, ...]:
    """The arrays of a result."""
    if hasattr(result, "squares"):  # Moments
        return result.mean, result.squares if result.given is None else result.given
    return result if isinstance(result, tuple) else (result,)


def result_of(arrays: tuple[Any, ...], like: Any, *, moved: bool = False) -> Any:
    """The result that has these arrays, in the place of another one's: `arrays_of` backwards.

    moved : they are its tangents, and a negative one is no root.
    """
    if hasattr(like, "squares"):
        return like.of_checked(like.count, *arrays, arrays[-1] if moved else None)
    return arrays if isinstance(like, tuple) else arrays[0]


AnyOp = TypeVar("AnyOp", bound=Op[..., Any])


def register(op: AnyOp) -> AnyOp:
    """Enter an op into `ops`, under its name."""
    if op.name in _ops:
        raise RuntimeError(f"two ops are named {op.name!r}")
    _ops[op.name] = op
    return op


def alias(name: str, op: AnyOp) -> AnyOp:
    """Another name for an op, by which it may be named wherever a name is taken."""
    _aliases[name] = op
    return op


def float32_under_autocast(*devices: str) -> Callable[[AnyOp], AnyOp]:
    """Declare of an op that torch's autocast computes it in float32 on these kinds of devices.

    As torch's own lists have its op; an op that they do not name is computed in the data's dtype.
    """

    def declare(op: AnyOp) -> AnyOp:
        op.autocast = frozenset(devices)
        op._watch_autocast()
        return op

    return declare


def names_of_ops(names: Mapping[str, Any]) -> list[str]:
    """Those of a module's names that stand for ops: what it makes public."""
    return [name for name, value in names.items() if isinstance(value, Op)]
