"""Records of what an op takes and gives: `Arg`, `Output`, and `Entry`, one of its entry points.

`Entry` parses the arguments of a call, and tells `execute` its arrays, outputs and kernels. All of
this follows from the signature and from the records of the op, once for all calls.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature, signature
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ...interop.validate import Role
from .weighting import ROLES as COUNTING

if TYPE_CHECKING:
    from .execute import Execution

REQUIRED: Any = Parameter.empty

_EVERY = ("out", "accumulate", "stream")  # options of all entry points where they apply

# The dtype of an array that an op makes: the data's, the one in which they are computed, float64.
DATA, COMPUTED, DOUBLE = "data", "computed", "double"

# Or the dtype that an option gives, of a result or of x as `forward` saved it; else the data's.
TOLD, OF_X = "dtype", "x_dtype"

#: The option that may be an array in a program of JAX, as no shape depends on it.
DRAWN = "seed"

#: The shape of an argument that may have any shape, which the family checks.
ANY = "any"

#: The role of an argument whose name determines it.
BY_NAME = Role()


class Arg(NamedTuple):
    """An argument that is an array, or a gradient."""

    #: How its dtype follows from the data's, and whether a number may replace it; `BY_NAME` is the
    #: role of arguments of its name in all ops (`validate.ROLES`), or else the data's.
    role: Role = BY_NAME
    #: The name of its shape in the result of `_shapes`, several joined by " or ", or `ANY`; "" is
    #: the data's, or that of its role.
    shape: str = ""
    repeats: bool = False  # it broadcasts to that shape, as masks and weights do by their role
    may_be_out: bool = True  # an output may overwrite it, if it is data
    optional: bool = False  # it may be None, though it has no default
    unsaved: bool = False  # it may be None in backward only
    called: str = "an array"  # its kind in messages
    note: str = ""  # added to its shape in messages, with the options and the `leader`'s name
    of_forward: bool = False  # `forward` may have returned it as a NumPy number
    written: bool = False  # the call may write it
    shares: str = ""  # the argument or result whose gradient it shares
    composed: bool = False  # its gradient is not in `backward`; frameworks use its formula
    is_shape: bool = False  # it is not an array, but the lengths of one


class Output(NamedTuple):
    """An output."""

    like: str | None = None  # the argument that it is like; None: the first one
    shape: str | None = None  # the shape that it has instead, as `_shapes` names it
    #: The argument's dtype, that of the computation, float64, or an option's.
    dtype: str = DATA
    in_place: bool = False  # it may overwrite an argument


class Made(NamedTuple):
    """An output of calls of one entry point."""

    name: str
    label: str  # how messages name it
    at: int | None  # its place in `out`; None: it has none
    like: str | None  # None: the first array
    shape: str | None  # the name of the shape that it has instead
    seen: str  # the name of the shape that it has in any case
    dtype: str | None  # None: the array's
    in_place: bool


#: An argument of a native function: its name, how a call finds it, and the argument to whose shape
#: it repeats.
Source = tuple[str, Callable[["Execution"], Any], str | None]

#: How options that are numbers are checked, by their names.
_NUMBERS: Mapping[str, Callable[[str, str, Any], float | None]] = {
    "eps": validate.epsilon,
    "initial": validate.initial,
    **dict.fromkeys((TOLD, OF_X), validate.dtype_number),
    **dict.fromkeys(("scale", "offset", "correction"), validate.number),
}

#: The entry points that take what `forward` saved.
_TAKE_SAVED = ("backward", "backward.backward")

#: The kinds of parameters that have a name for callers.
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

#: An array that no record names is data.
_PLAIN = Arg(validate.DATA)


#: The arguments of each native function (src/common/<family>/call.h), found at the first call.
_tables = cache(_cpu.native_calls)


class Entry:
    """An entry point: its arguments, how a call of it is parsed, and what a call makes.

    A parameter whose default is a bool is a switch. The facts after `by_keyword` also follow from
    the op's records; they are found at the first use, because no import needs them.
    """

    where: str  # how messages name it
    name: str  # how the op names it; calling the op is "call"
    gives: tuple[str, ...]  # the outputs; not every call has all of them
    outputs: int  # how many of them `out` stands for
    extra: int  # how many more may follow these in a tuple
    skips: bool  # the outputs are gradients, of which one that is None in a tuple is not computed
    arrays: tuple[str, ...]  # the arguments that have no name for callers
    defaults: dict[str, Any]  # the others, with their defaults
    by_keyword: frozenset[str]  # the ones that are given by keyword alone
    leading: tuple[str, ...]  # what may be given by position, in its order
    numbers: list[tuple[str, Callable[[str, str, Any], Any]]]  # options that are checked, and how
    constants: dict[str, Any]  # numbers that native functions are told of options that it lacks
    first: str  # the data of the call; a result or a gradient leads where it is not saved
    parts: tuple[str, ...]  # the gradients in the tuple that dy is, where they have no names
    taken: dict[str, Arg]  # the arguments that are arrays, in their order
    leaders: list[str]  # candidates, the first of which that is given leads
    asked: list[tuple[str, bool, bool]]  # whether each may be None, and whether it may be a number
    data: set[str]  # arrays of the data's dtype
    free: set[str]  # arrays that an output may be
    of_forward: tuple[str, ...]  # arrays that may be numbers of NumPy's
    #: For each array the rule of its dtype, the names of the shapes that it may have, in front the
    #: one that messages tell (None: any), and whether it repeats over that.
    rules: dict[str, tuple[str, tuple[str, ...] | None, bool]]
    roles: dict[str, Role]
    takes_shape: bool  # an argument is the shape of an array that is not there
    counts: bool  # it takes weights, or a mask that tells what counts
    reads_whole: bool  # the data may be whole numbers, read as they are
    run: Callable[["Execution"], None]  # the kernels of a call; a call of the op has `forward`'s

    def __init__(
        self,
        where: str,
        signature: Signature,
        gives: tuple[str, ...] = ("y",),
        outputs: int = -1,
        extra: int = 0,
        skips: bool = False,
        op: Any = None,
        name: str = "call",
    ) -> None:
        self.where, self.signature, self.gives, self.op = where, signature, gives, op
        self.outputs = len(gives) if outputs < 0 else outputs
        self.extra, self.skips, self.name = extra, skips, name
        self.is_forward = name == "forward"
        # An entry point that gives what gradients are made of counts, too.
        self.is_backward = name not in ("call", "forward")
        named = [p for p in signature.parameters.values() if p.kind in _NAMED]
        self.arrays = positional(signature)
        self.defaults = {p.name: p.default for p in named}
        self.by_keyword = frozenset(p.name for p in named if p.kind is Parameter.KEYWORD_ONLY)
        self.leading = (*self.arrays, *(n for n in self.defaults if n not in self.by_keyword))
        self.is_fused = "activation" in self.defaults
        self._required = [n for n, value in self.defaults.items() if value is REQUIRED]
        self._switches = [n for n, value in self.defaults.items() if isinstance(value, bool)]

    def __getattr__(self, name: str) -> Any:
        found = vars(self)
        if "taken" not in found and "op" in found:  # a copy that is being made has none
            found.update(self._facts())
        if name not in found:
            raise AttributeError(f"an entry point has no {name}")
        return found[name]

    def option(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Find one option of a call that is not parsed yet."""
        by_position = dict(zip(self.leading, args, strict=False))
        return by_position.get(name, kwargs.get(name, self.defaults[name]))

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SimpleNamespace:
        """Name the arguments of a call, and check them as far as possible without arrays.

        `out` becomes a tuple of all outputs, and `wanted` tells which of them are computed.
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

    # --- what follows from the op's records -------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        op, call, named = self.op, self.op.entry_points["call"], {*self.arrays, *self.defaults}
        args, first, takes_saved = op.args, call.arrays[0], self.name in _TAKE_SAVED
        parts: tuple[str, ...] = ()
        if "dy" in named and len(op.results) > 1 and not {f"d{n}" for n in op.results} <= named:
            parts = tuple(f"dy[{i}]" for i in range(len(op.results)))
        names = [*parts, *(n for n in self.arrays if not (parts and n == "dy"))]
        names += [n for n in args if n in self.defaults]
        every = {name: args.get(_whole(name), _PLAIN) for name in names}
        taken = {n: arg for n, arg in every.items() if not arg.is_shape}
        reads_whole = op.traits.reads_whole and not self.is_backward
        data = {n for n, arg in taken.items() if arg.role.dtype == "same"}
        roles = {n: arg.role for n, arg in args.items()}
        checks = {**_NUMBERS, **op.checks}

        def may_lack(name: str) -> bool:
            is_none = None in (point.defaults.get(name, REQUIRED) for point in (call, self))
            return is_none or taken[name].optional or (taken[name].unsaved and takes_saved)

        runs = "forward" if self.name == "call" else self.name
        return {
            "numbers": [(n, check) for n, check in checks.items() if n in self.defaults],
            "constants": {n: v for n, v in op.kernels.numbers.items() if n not in self.defaults},
            "first": first,
            "parts": parts,
            "taken": taken,
            "leaders": [n for n in (first, op.results[0], *self.arrays[:1]) if n in taken],
            "asked": [
                (n, may_lack(n), arg.of_forward or not arg.role.array) for n, arg in taken.items()
            ],
            "data": data,
            "free": {n for n in data if taken[n].may_be_out} | {"out"},
            "of_forward": tuple(n for n, a in taken.items() if a.of_forward and takes_saved),
            "rules": {
                n: (a.role.dtype, _shapes_of(a), a.repeats or (a.role.repeats and a.role.number))
                for n, a in taken.items()
            },
            "roles": {**roles, first: Role(validate.WHOLE)} if reads_whole else roles,
            "takes_shape": any(n in args and args[n].is_shape for n in self.arrays),
            "counts": not COUNTING.keys().isdisjoint(taken),
            "reads_whole": reads_whole,
            "run": getattr(op, f"_run_{runs.replace('.', '_')}", None)
            or (lambda now: now.run(op.kernels.runs[runs])),
        }

    def seen(self, name: str) -> str:
        """Name an argument's shape, or the argument where it may have any."""
        if name == self.first and not self.is_backward:
            return "data"
        if name in self.rules and self.rules[name][1] is None:
            return name
        shape: str = self.op.args.get(_whole(name), _PLAIN).shape
        return "data" if shape in ("", ANY) else shape

    def output(self, name: str, at: int | None = None, count: int = 0) -> Made:
        """Tell how an output is made."""
        label = name if at is None else validate.out_name(at, (None,) * count)
        out = self.op.outs.get(f"{self.name}.{name}") or self.op.outs.get(name)
        if out is None and self.is_backward:  # a gradient is as its argument
            of = name.removeprefix("d")
            in_place = self.name != "backward.backward" and (of == self.first or of in self.data)
            out = Output(of, in_place=in_place)
        out = out or Output(in_place=True)
        seen = out.shape or self.seen(out.like or self.first)
        like = None if out.like == self.first else out.like
        is_same = out.dtype == DATA and not self.reads_whole
        dtype = None if is_same else out.dtype
        return Made(name, label, at, like, out.shape, seen, dtype, out.in_place)

    def source(
        self, field: str, facts: Mapping[str, Any], shapes: type
    ) -> Callable[["Execution"], Any]:
        """Tell where a call finds an argument of a native function.

        An array is the call's own; a number is in its shapes, or else in its options.
        shapes : the class of the result of the op's `_shapes`.
        """
        names = self.op.kernels.names
        name = names.get(field, field)
        if facts["kind"] != "array":
            if field.startswith("accumulate"):
                output = field.removeprefix("accumulate").lstrip("_")
                return lambda now: now.adds(names.get(output, output))
            is_of_shapes = name in getattr(shapes, "__match_args__", ())
            return attrgetter(f"{'shapes' if is_of_shapes else 'options'}.{name}")
        is_read, is_optional = facts["role"] == "in", facts["optional"]
        see = seen_by(shapes, self.seen(name) if is_read else self.output(name).seen)

        def find(now: "Execution") -> Any:
            view = now.views.get(name) if is_read else now.view(name)
            if view is not None:
                return view if see is None else see(now.shapes, view)
            return None if is_read or is_optional else now.temporary(name)

        return find


@cache
def with_parameters(entry: Entry, op: Any) -> Entry:
    """Make the entry point that also takes an activation's own parameters, by keyword."""
    kept = [p for p in entry.signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    own = [Parameter(n, Parameter.KEYWORD_ONLY, default=v) for n, v in op.parameters.items()]
    points = (entry.gives, entry.outputs, entry.extra, entry.skips, entry.op, entry.name)
    return Entry(entry.where, Signature([*kept, *own]), *points)


@cache
def outputs_of(entry: Entry, names: tuple[str, ...]) -> list[Made]:
    """Tell how these outputs of a call are made."""
    count = entry.outputs + entry.extra
    return [entry.output(n, i if i < count else None, count) for i, n in enumerate(names)]


@cache
def sources_of(entry: Entry, function: str, shapes: type) -> list[Source]:
    """Tell where a call finds the arguments of a native function, in its table's order."""
    return [
        (
            field,
            entry.source(field, facts, shapes),
            facts["shape_of"] if facts["role"] == "in" and facts["shape"] == "like" else None,
        )
        for field, facts in _tables()[function].items()
    ]


def seen_by(shapes: type, shape: str) -> Callable[[Any, View], View] | None:
    """Tell how an array whose shape has this name gets the axes of kernels; None: it has them."""
    found: Callable[[Any, View], View] | None = getattr(shapes, f"seen_{shape}", None)
    return found


def _shapes_of(arg: Arg) -> tuple[str, ...] | None:
    shape = arg.shape or ("data" if arg.role.number or not arg.role.repeats else ANY)
    return None if shape == ANY else tuple(shape.split(" or "))


def _whole(name: str) -> str:
    """Find the argument that an array is a part of, such as dy for dy[0]."""
    return name.partition("[")[0]


# --- signatures -----------------------------------------------------------------------------------


def by_our_names(where: str, named: Mapping[str, Any], taken: Collection[str]) -> Mapping[str, Any]:
    """Rename `ddof`, NumPy's name, to `correction`."""
    if "ddof" not in taken or named.get("ddof") is None:
        return named
    if "correction" in named:
        raise TypeError(f"{where}: correction and ddof are one option and must not both be given")
    return {("correction" if name == "ddof" else name): value for name, value in named.items()}


def one_correction(where: str, correction: Any, ddof: float | None) -> Any:
    """Return the correction of a function that is not an op, by either name."""
    is_told = ddof is None or not (isinstance(correction, int | float) and correction == 0)
    named = {"correction": correction} if is_told else {}
    return by_our_names(where, {**named, "ddof": ddof}, ("ddof",))["correction"]


def signature_of(
    call: Signature,
    positional: Sequence[str],
    either: Iterable[str] = (),
    *,
    but: Iterable[str] = (),
    accumulates: bool = True,
    **more: Any,
) -> Signature:
    """Make the signature of another entry point than the call.

    positional : its arrays. either : the parameters that follow by position or keyword, with the
    defaults of the call, or required if the call lacks them. but : options of the call that it does
    not take. more : options that the call lacks, with their defaults; they are keyword-only unless
    they are among `either`.
    """
    either, of_call = list(either), call.parameters
    has_name = {n: p.default for n, p in of_call.items() if p.kind is not p.POSITIONAL_ONLY}
    defaults = {**has_name, **more}
    skipped = {*positional, *either, *but, *_EVERY}
    options = [p for p in of_call.values() if p.name not in skipped]
    has_both = Parameter.POSITIONAL_OR_KEYWORD
    follow = [Parameter(n, has_both, default=defaults.get(n, REQUIRED)) for n in either]
    follow += [p for p in options if p.kind is has_both]
    only = [p for p in options if p.kind is Parameter.KEYWORD_ONLY]
    only_more = ((name, value) for name, value in more.items() if name not in either)
    every = [*only_more, ("out", None), *([("accumulate", False)] * accumulates)]
    return Signature(
        [
            *(Parameter(name, Parameter.POSITIONAL_ONLY) for name in positional),
            *follow,
            *only,
            *(Parameter(n, of_call["out"].kind, default=default) for n, default in every),
            Parameter("stream", Parameter.KEYWORD_ONLY, default=None),
            *(p for p in of_call.values() if p.kind is Parameter.VAR_KEYWORD),
        ]
    )


def positional(call: Signature) -> tuple[str, ...]:
    """Return the positional-only arrays of a call."""
    return tuple(n for n, p in call.parameters.items() if p.kind is Parameter.POSITIONAL_ONLY)


def untyped(function: Callable[..., Any]) -> Signature:
    """Return a function's signature without annotations, which are for type checkers."""
    found = signature(function)
    plain = [p.replace(annotation=Parameter.empty) for p in found.parameters.values()]
    return Signature(plain)
