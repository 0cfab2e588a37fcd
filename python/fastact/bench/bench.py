"""The benchmark behind ``python -m fastact bench``: ops beside a copy and other libraries.

The call of an op follows from its signature (`measure.cases`), with every option at its default.
NumPy's call is the textbook's formula, torch's and JAX's is their function of the op's name, where
they have one. Boards of many shapes, devices and peers are the repository's (`benchmarks`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import groupby, product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..measure import cases, formulas, peers
from ..measure.cases import Shape
from ..measure.peers import COPY, FRESH, JAX, NUMPY, OURS, TORCH, Call, LeftOut
from ..ops.engine.op import arrays_of
from ..runtime import config
from ..runtime.threads import num_threads
from ..terminal import Progress, paragraph, say, styled, table
from .turns import Row, asked, duration, medians, take_turns

Function = Callable[..., Any]
Arrays = Mapping[str, Any]  # by the names that entry points give them

PEERS = (NUMPY, TORCH, JAX)
_COLUMNS = 768  # of the rows of ops that have an axis
_MAP = (64, 28, 28)  # channels and lengths of an image, for ops that have channels

LEGEND = """\
Times are medians. fastact and copy write to a given array; peers, and fastact with "no out=",
return a new one. × copy: fastact's time over the time of a parallel copy of the same bytes through
the same threads; 1 is the speed of memory. × numpy, × torch …: their time over fastact's."""


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement."""

    sizes: tuple[int, ...]  # elements of the data, about
    dtypes: tuple[np.dtype[Any], ...]
    directions: tuple[str, ...]
    peers: tuple[str, ...]  # libraries; one that is not installed is named and left out
    threads: tuple[int, ...]  # for everybody, one number after the other
    seconds: float = 1.0  # to spend on a row, about


def _normal(generator: np.random.Generator, *shape: int) -> NDArray[Any]:
    return generator.standard_normal(shape, np.float32)


def shape_of(op: Any, size: int) -> Shape:
    """Return the shape of data with about so many elements."""
    defaults = op.entry_points["call"].defaults
    if "channel_axis" in defaults:
        return (max(size // prod(_MAP), 1), *_MAP)
    if op.family == "activations":
        return (size,)
    columns = min(size, _COLUMNS)
    return (max(size // columns, 1), columns)


class TimedCall:
    """A call of an op on arrays of its own, and what peers get of them.

    named : the arrays and options of the call, by name. incoming : of backward, the gradients.
    fresh, ours : the call, with its results allocated, and written to `out`.
    out : those arrays; None for a result that there is not.
    """

    def __init__(
        self, op: Any, entry: str, named: dict[str, Any], incoming: Mapping[str, Any]
    ) -> None:
        self.op, self.entry, self.named, self.incoming = op, entry, named, incoming
        self.fresh = cases.bound(op, entry, named, incoming)
        # NumPy turns an array without axes into a number.
        made = (np.asarray(y) if isinstance(y, np.generic) else y for y in arrays_of(self.fresh()))
        self.out: tuple[Any, ...] = (*made,)
        self.ours = partial(self.fresh, out=self.out if len(self.out) > 1 else self.out[0])

    @property
    def read(self) -> list[Any]:
        """The arrays that our call reads."""
        given = peers.flat((*self.fresh.args, *self.fresh.keywords.values()))
        return list({id(one): one for one in given if hasattr(one, "dtype")}.values())


def timed_call(op: Any, direction: str, dtype: str, shape: Shape) -> TimedCall:
    """Return the call of an example of that shape."""
    entry = "call" if direction == "forward" else "backward"
    options, make = cases.options_of_example(op, shape), cases.Drawn(_normal, _normal)
    data = (shape, dtype, options, make)
    # A norm is measured with its parameters, which may be left out; torch's glu has no bias.
    has_weight = "weight" in op.entry_points["call"].defaults
    optional = ("weight", "bias", "residual") if has_weight else ()
    named = {**cases.arguments(op, "call", *data, optional), **options}
    incoming = cases.arguments(op, "backward", *data) if entry == "backward" else {}
    return TimedCall(op, entry, named, incoming)


def by_torch(
    torch: Any, function: Function, inputs: Arrays, incoming: Arrays, constant: Collection[str] = ()
) -> Call:
    """Return a function's call, or what autograd does over a graph of it that is there already.

    constant : names of inputs that it is not differentiated by.
    """
    if not incoming:
        return partial(function, **inputs)
    leaves = {n: t.detach().requires_grad_() for n, t in inputs.items() if n not in constant}
    results, dys = arrays_of(function(**{**inputs, **leaves})), peers.flat(incoming.values())
    of = results[: len(dys)], tuple(leaves.values()), dys
    return lambda: torch.autograd.grad(*of, retain_graph=True, allow_unused=True)


def by_jax(
    jax: Any, function: Function, inputs: Arrays, incoming: Arrays, constant: Collection[str] = ()
) -> Call:
    """Return the same by jax, compiled, on arrays of its own, and waited for."""
    arrays = {name: jax.numpy.asarray(a) for name, a in inputs.items()}
    dys = tuple(jax.numpy.asarray(dy) for dy in peers.flat(incoming.values()))

    def run(leaves: Arrays, rest: Arrays, dys: tuple[Any, ...]) -> Any:
        def results(leaves: Arrays) -> tuple[Any, ...]:
            return arrays_of(function(**leaves, **rest))[: len(dys) or None]

        return tuple(jax.vjp(results, leaves)[1](dys)[0].values()) if dys else results(leaves)

    leaves = {name: a for name, a in arrays.items() if name not in constant}
    rest = {name: a for name, a in arrays.items() if name in constant}
    compiled = jax.jit(run)
    compiled.lower(leaves, rest, dys).compile()  # which the first call would, and finds done
    return lambda: jax.block_until_ready(compiled(leaves, rest, dys))


def _torch_call(work: TimedCall, threads: int) -> Call:
    torch = peers.open_torch(threads)
    function = _function(work, (torch.nn.functional, torch), torch)
    tensors = {n: peers.as_tensor(torch, a) for n, a in _arrays(work.named).items()}
    dys = {"dy": tuple(peers.as_tensor(torch, dy) for dy in peers.flat(work.incoming.values()))}
    constant = {name for name, tensor in tensors.items() if not tensor.is_floating_point()}
    return by_torch(torch, function, tensors, dys if work.incoming else {}, constant)


def _jax_call(work: TimedCall, threads: int) -> Call:
    jax = peers.open_jax(threads)
    function = _function(work, (jax.nn, jax.numpy), jax.numpy)
    return by_jax(jax, function, _arrays(work.named), work.incoming)


def _numpy_call(work: TimedCall, threads: int) -> Call:
    if work.entry != "call":
        raise LeftOut("NumPy has no gradients")
    return partial(_function(work, (), formulas.NUMPY), **_arrays(work.named))


_MAKERS: dict[str, Callable[[TimedCall, int], Call]] = {
    NUMPY: _numpy_call,
    TORCH: _torch_call,
    JAX: _jax_call,
}


def call_of_peer(work: TimedCall, threads: int, peer: str) -> Call:
    """Return a peer's call of the same work, which has been made once; an error leaves it out."""
    call = _MAKERS[peer](work, threads)
    call()
    return call


def _arrays(named: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return {name: value for name, value in named.items() if isinstance(value, np.ndarray)}


def _function(work: TimedCall, modules: Sequence[Any], m: Any) -> Callable[..., Any]:
    """Return a peer's function of the arrays of our call by keyword, or leave it out.

    modules : where a function of the op's name may stand; its parameters get ours by their names.
    m : the namespace for the formulas that are written once for all, of sums and in NumPy.
    """
    op = work.op
    if op.name in peers.SUMS:
        return lambda x: peers.SUMS[op.name](x, work.named.get("axis"), m)
    if not modules:
        formula = formulas.naive(op.name)
        return lambda x: formula(x, m)
    function = next((f for of in modules if (f := getattr(of, op.name, None))), None)
    if function is None:
        raise LeftOut(f"it has no {op.name}")
    try:
        parameters = [*signature(function).parameters][1:]
    except ValueError:  # a function of C's, whose parameters nobody can read
        parameters = []
    first, defaults = op.entry_points["call"].arrays[0], op.entry_points["call"].defaults

    unknown = {*_arrays(work.named)} - {first, *parameters}
    if unknown:
        raise LeftOut(f"its {op.name} takes no {', '.join(sorted(unknown))}")

    def run(**arrays: Any) -> Any:
        named = {**work.named, **arrays}
        x, axis = named[first], named.get("axis", defaults.get("axis"))
        known = {**named, "dim": axis, "axis": axis, "normalized_shape": x.shape[-1:]}
        known["approximate"] = False  # of JAX's gelu
        return function(x, **{n: known[n] for n in parameters if known.get(n) is not None})

    return run


def measure(
    op: Any, direction: str, dtype: str, shape: Shape, threads: int, options: Settings
) -> tuple[Row, dict[str, str]]:
    """Measure one row; give it and the peers that had to be left out of it, with the reasons."""
    work = timed_call(op, direction, dtype, shape)
    source = np.zeros(prod(shape), dtype)
    calls = {OURS: work.ours, FRESH: work.fresh}
    calls[COPY] = partial(_cpu.copy, np.empty_like(source), source)
    with num_threads(threads), np.errstate(all="ignore"):
        theirs, left_out = asked(options.peers, partial(call_of_peer, work, threads))
        samples = take_turns(calls | theirs, options.seconds)
    # The copy's time is scaled to the bytes that the call reads and writes.
    moved = sum(a.nbytes for a in (*work.read, *work.out) if a is not None) / (2 * source.nbytes)
    samples[COPY] = [sample * moved for sample in samples[COPY]]
    what = " × ".join(f"{n:,}" for n in shape)
    facts = {"op": op.name, "direction": direction, "dtype": dtype, "what": what}
    found: dict[str, Any] = {**facts, **medians(samples), "size": prod(shape), "threads": threads}
    return Row(**found, without=(*left_out,)), left_out


def bench(chosen: Sequence[Any], options: Settings, json_file: Path | None = None) -> list[Row]:
    """Measure ops, print a table for each, and return the rows.

    json_file : where the machine and the rows are written.
    """
    there = peers.versions(options.peers)
    for peer in options.peers:
        if peer not in there:
            say(f"{peer}: not installed, left out")
    asking = Settings(**{**vars(options), "peers": (*there,)})
    found: list[Row] = []
    every = product(chosen, options.threads, options.dtypes, options.directions)
    tables = [one for one in every if one[3] in ("forward", *one[0].entry_points)]
    with Progress("bench", len(tables) * len(options.sizes)) as progress:
        for op, threads, dtype, direction in tables:
            reasons: dict[str, None] = {}  # in order, once each
            rows = []
            for shape in dict.fromkeys(shape_of(op, size) for size in options.sizes):
                row, left_out = measure(op, direction, dtype.name, shape, threads, asking)
                rows.append(row)
                reasons |= dict.fromkeys(f"{p}: left out, {why}" for p, why in left_out.items())
                progress.advance(1)
            show(rows)
            say(*reasons, end="\n" if reasons else "")
            found += rows
    if found:
        say("", paragraph(LEGEND))
    if json_file is not None:
        machine = {**config.config(), "peers": there}
        text = json.dumps({"machine": machine, "rows": [vars(row) for row in found]}, indent=1)
        json_file.write_text(text, encoding="utf-8")
    return found


def title_of(row: Row) -> str:
    """Return the title of a table: one op, direction and dtype."""
    threads = f", {row.threads} thread{'s' if row.threads > 1 else ''}" if row.threads else ""
    return f"{row.op}, {row.direction}, {row.dtype}{threads}"


def columns(rows: Sequence[Row], heading: str, known: Sequence[str]) -> Iterator[list[str]]:
    """Yield the header of a table and then its lines; known : the peers, in their order."""
    named = {name for row in rows for name in row.seconds}
    there = [peer for peer in known if peer in named]
    yield [heading, OURS, COPY, f"× {COPY}", "no out=", *(w for p in there for w in (p, f"× {p}"))]
    for row in rows:
        line = [row.what, *(duration(row.seconds[name]) for name in (OURS, COPY))]
        line += [f"{1 / row.ratios[COPY]:.2f}", duration(row.seconds[FRESH])]
        for peer in there:
            took_part = peer in row.seconds
            line += [duration(row.seconds[peer]) if took_part else "–"]
            line += [f"{row.ratios[peer]:.1f}" if took_part else "–"]
        yield line


_ALIKE = 0.95  # and its inverse: between them nobody is faster


def _gain(column: str, cell: str) -> str:
    """Return the style of a ratio: whether the peer is slower than we are, or faster."""
    if not column.startswith("× ") or column == f"× {COPY}" or cell == "–":
        return ""
    return "green" if float(cell) > 1 / _ALIKE else "red" if float(cell) < _ALIKE else ""


def show(
    rows: Sequence[Row], heading: str = "elements or shape", known: Sequence[str] = PEERS
) -> None:
    """Print the tables of rows, one for each op, direction and dtype."""
    for title, part in groupby(rows, title_of):
        header, *lines = columns([*part], heading, known)
        say("", styled(title, "bold"), table(header, lines, left=1, style=_gain))
