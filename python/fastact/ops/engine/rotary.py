"""The op object of rotary embeddings: pairs of elements along an axis, turned by angles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from ..._cpu import View
from ...interop import handlers, validate
from ...interop.validate import Only, Role
from ..bounds import RotaryBounds
from ..types import A, Array, Out, Stream
from . import axes
from .entry import ANY, Arg, Output, positional, signature_of
from .execute import Execution, execute
from .op import P, R, register
from .served import CachedOp

#: A cosine or a sine: it broadcasts to the pairs of the data, whose dtype or a wider one it has.
_ANGLE = Role(dtype="wide_enough", array=True)
_POSITIONS = Role(Only(("int32", "int64")), dtype="any", array=True)


class Pairs(NamedTuple):
    """The places of the pairs of an array.

    axis : as a number from 0 on. length : of pairs along it. each : the shape of a, and of b.
    rows : all axes but that one, to which positions broadcast.
    pairs : to which cos and sin broadcast: `each`, or with positions the shape of the table.
    angles : cos, sin and positions as they were given.
    """

    axis: int
    length: int
    each: tuple[int, ...]
    rows: tuple[int, ...]
    pairs: tuple[int, ...]
    angles: tuple[Any, Any, Any]

    def parts(self, view: View, interleaved: bool) -> tuple[View, View, View]:
        """Cut a view into its a, its b, and the elements that stay as they are."""
        first, step = (1, 2) if interleaved else (self.length, 1)
        rest = view.shape[self.axis] - 2 * self.length
        return (
            view.sliced(self.axis, 0, step, self.length),
            view.sliced(self.axis, first, step, self.length),
            view.sliced(self.axis, 2 * self.length, 1, rest),
        )


def _pairs_of(
    where: str, name: str, shape: tuple[int, ...], options: Any, angles: tuple[Any, Any, Any]
) -> Pairs:
    """The pairs of an array of this shape; without angles, examples have half of it."""
    shape, (cos, sin, positions) = tuple(shape), angles
    axis = axes.one(where, options.axis, len(shape), of=name)
    has_table, count = positions is not None, shape[axis] // 2
    of_cos = None if cos is None else tuple(cos.shape)
    if of_cos is not None:
        at = -1 if has_table else axis - len(shape)
        if has_table and len(of_cos) != 2:
            raise ValueError(f"{where}: cos must be 2-D, a row a position, got shape {of_cos}")
        if len(of_cos) < -at or of_cos[at] > count:
            raise ValueError(
                f"{where}: cos must have from 0 to {count} pairs along axis {at}, for {name} of "
                f"shape {shape}, got shape {of_cos}"
            )
        if sin is None:
            raise TypeError(f"{where}: sin must be an array, got None")
        if tuple(sin.shape) != of_cos:
            raise ValueError(
                f"{where}: sin must have shape {of_cos}, as cos has, got {tuple(sin.shape)}"
            )
        count = of_cos[at]
    each = (*shape[:axis], count, *shape[axis + 1 :])
    rows = shape[:axis] + shape[axis + 1 :]
    return Pairs(axis, count, each, rows, of_cos if has_table and of_cos else each, angles)


class Turning(CachedOp[P, R]):
    """An op with pairs of elements that are turned by angles."""

    args: Mapping[str, Arg] = MappingProxyType(
        {
            "cos": Arg(_ANGLE, "pairs", repeats=True),
            "sin": Arg(_ANGLE, "pairs", repeats=True),
            "positions": Arg(_POSITIONS, "rows", repeats=True, unsaved=True),
        }
    )

    def _pairs(self, call: Any, options: SimpleNamespace) -> Pairs:
        views = call.views
        name, first = next(iter(views.items()))
        angles = views.get("cos"), views.get("sin"), views.get("positions")
        return _pairs_of(call.where, name, first.shape, options, angles)

    def _angles(self, now: Execution, of: Pairs, name: str) -> dict[str, View | None]:
        """Cosines, sines and positions as the native function takes them.

        name : the array whose pairs these are.
        """
        where, (cos, sin, positions) = now.where, of.angles
        validate.has_dtype(where, "sin", sin, "same", "cos", cos)
        if positions is not None:
            axes.check_repeats(where, "positions", positions.shape, of.rows, f"{name}'s rows")
            positions = axes.repeated(positions, of.rows).with_axes((of.axis,))
        else:
            axes.check_repeats(where, "cos", cos.shape, of.each, f"{name}'s pairs")
            cos, sin = axes.repeated(cos, of.each), axes.repeated(sin, of.each)
        return {"cos": cos, "sin": sin, "positions": positions}

    def _turn(
        self,
        now: Execution,
        of: Pairs,
        angles: Mapping[str, View | None],
        x: View,
        y: View,
        *,
        turns_back: bool,
        accumulate: bool = False,
    ) -> None:
        """Turn the pairs of x into y, or add them to it; all others go there as they are."""
        interleaved = now.options.interleaved
        a, b, rest = of.parts(x, interleaved)
        out_a, out_b, out_rest = of.parts(y, interleaved)
        arrays: Any = {"a": a, "b": b, "axis": of.axis, **angles, "out_a": out_a, "out_b": out_b}
        arrays |= {"turns_back": turns_back, "accumulate": accumulate, "op": self.name}
        now.call.run("rotary", **arrays)
        if rest.size and (rest.address != out_rest.address or accumulate):
            now.call.run("broadcast", x=rest, y=out_rest, accumulate=accumulate)


class Rotary(Turning[P, R]):
    """A rotary embedding of one array, or of several that share cosines and sines, and backward.

    several : the same of a tuple of arrays. It serves calls of this op, and is none by itself.
    """

    bounds = RotaryBounds()
    saves = ("cos", "sin", "positions")

    def __init__(self, function: Callable[P, R], several: Callable[..., Any] | None = None) -> None:
        call = self._declare(function, "rotary")
        self._arrays = arrays = positional(call)
        self.several: Any = several and Rotary(several)
        self.results = ("y",) if len(arrays) == 1 else tuple(f"y{name}" for name in arrays)
        self.gradients = tuple(f"d{name}" for name in arrays)
        self._incoming = incoming = tuple(f"d{name}" for name in self.results)
        others = (*arrays[1:], *incoming)
        # Each has a shape of its own.
        anyhow = dict.fromkeys((*arrays[1:], *incoming[1:]), ANY)
        self.args = {**self.args, **{n: Arg(validate.ARRAY, anyhow.get(n, "")) for n in others}}
        if arrays[1:]:
            names = zip(arrays, self.results, incoming, strict=True)
            self.outs = {
                made: Output(like, in_place=True)
                for of, y, dy in names
                for made, like in ((y, of), (f"backward.d{of}", dy))
            }
        self._enter_points(call, signature_of(call, incoming, self.saves))

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> Pairs:
        return self._pairs(call, options)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """What calling the op gives, and what `backward` needs: the angles alone.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.rotary.forward(np.array([1.0, 0.0]), np.array([0.8]), np.array([0.6]))
        >>> y
        array([0.8, 0.6])
        """

    def _run_forward(self, now: Execution) -> None:
        self._turn_all(now, self._arrays, self.results, turns_back=False)

    def backward(
        self,
        dy: A,
        /,
        cos: Array,
        sin: Array,
        positions: Array | None = None,
        *,
        axis: int = -1,
        interleaved: bool = False,
        out: Out[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> A:
        """The gradient with respect to x: dy, turned back by the same angles.

        ``da = dya * cos + dyb * sin`` and ``db = dyb * cos - dya * sin``, of each pair; dy where x
        is not turned. Angles and positions have no gradient.

        Parameters
        ----------
        dy : array
            The gradient of the loss with respect to y, of its shape and dtype; or a tuple of them.
        out : array or tuple, optional
            Where to write dx; it may be dy itself.

        Returns
        -------
        array or tuple
            dx, of dy's shape and dtype; a tuple where dy is one.

        Notes
        -----
        As accurate as the call.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.rotary.forward(np.array([1.0, 0.0]), np.array([0.8]), np.array([0.6]))
        >>> fa.rotary.backward(y, *saved)
        array([1., 0.])
        """

    def _run_backward(self, now: Execution) -> None:
        self._turn_all(now, self._incoming, self.gradients, turns_back=True)

    # --- kernels ----------------------------------------------------------------------------------

    def _turn_all(
        self, now: Execution, names: tuple[str, ...], made: tuple[str, ...], *, turns_back: bool
    ) -> None:
        """Turn each array of these names, once all of them are checked."""
        where, views = now.where, now.views
        written = [(name, view) for name, view in zip(names, map(now.view, made), strict=True)]
        for i, (name, out) in enumerate(written):
            if out is not None:  # it may be its own array alone
                others = {n: views[n] for n in names if n != name}
                validate.apart(where, validate.out_name(i, names), out, others)
        calls = []
        for name, out in written:
            if out is not None:
                of = _pairs_of(where, name, views[name].shape, now.options, now.shapes.angles)
                calls.append((of, self._angles(now, of, name), views[name], out))
        for each in calls:
            self._turn(now, *each, turns_back=turns_back, accumulate=now.adds(""))

    # --- several arrays ---------------------------------------------------------------------------

    def each_of(self, args: Sequence[Any], entry: str = "call") -> tuple[Any, ...] | None:
        if self.several is None or not args or not isinstance(args[0], tuple):
            return None
        if len(args[0]) != len(self.several._arrays):
            came = validate.describe(args[0])
            first = self.entry_points[entry].arrays[0]
            raise TypeError(
                f"{self._where(entry)}: {first} must be an array or a tuple of two, got {came}"
            )
        return args[0]

    def _serve(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Serve a call of one array, or of a tuple of them, which takes the place of the first."""
        each = self.each_of(args, entry)
        if each is None:
            return super()._serve(entry, *args, **kwargs)
        return execute(self.several.entry_points[entry], *each, *args[1:], **kwargs)

    def _plain_call(self, *args: Any, **kwargs: Any) -> Any:
        each = [(x, *args[1:]) for x in self.each_of(args) or ()]
        if each and not any(handlers.handler_of(self, one, kwargs) for one in each):
            return self._call(*args, **kwargs)
        return handlers.one_by_one(self, self._plain_call_of_one, args, kwargs)

    def _plain_call_of_one(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return super()._plain_call(*args, **kwargs)

    def _recorder(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.each_of(args) is not None:
            return lambda args, kwargs: tuple(self(x, *args[1:], **kwargs) for x in args[0])
        return super()._recorder(args, kwargs)


def rotary_op(several: Callable[..., Any]) -> Callable[[Callable[P, R]], Rotary[P, R]]:
    """Make the rotary embedding that a function declares; its formula is in src/common/rotary.

    several : declares the same of several arrays.
    """
    return lambda function: register(Rotary(function, several))
