"""Rotary position embeddings: the elements of queries and keys, rotated in pairs.

The formula is in `src/common/rotary/`, the oracle is in `check/expected/rotary.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Signature
from types import SimpleNamespace
from typing import Any, NamedTuple, Unpack

from .. import _cpu
from .._cpu import View
from ..interop import handlers, validate
from ..interop.validate import Only, Role
from .bounds import NormRotaryBounds, RotaryBounds
from .engine import axes
from .engine.entry import ANY, COMPUTED, Arg, Entry, Output, positional
from .engine.execute import Execution, execute
from .engine.fused import IDENTITY
from .engine.op import Kernels, P, R, declared, records
from .engine.parts import Part, Parts, cut, for_each, part_of, threads_of
from .engine.served import CachedOp
from .norms import PLAIN, Rows, read_casting
from .types import A, Array, ArrayOrNumber, Casting, Kwargs, Out, Stream

#: Cosines or sines, which broadcast to the pairs of the data and have its dtype or a wider one.
_ANGLE = Role(dtype="wide_enough", array=True)
_POSITIONS = Role(Only(("int32", "int64")), dtype="any", array=True)


class Pairs(NamedTuple):
    """The positions of the pairs of an array."""

    axis: int  # a number from 0 on
    length: int  # the number of pairs along it
    each: tuple[int, ...]  # the shape of a, and of b
    rows: tuple[int, ...]  # all axes but that one, to which positions broadcast
    pairs: tuple[int, ...]  # to which cos and sin broadcast: `each`, or the shape of the table
    angles: tuple[Any, Any, Any]  # cos, sin and positions as they were given

    def parts(self, view: View, interleaved: bool) -> tuple[View, View, View]:
        """Cut a view into its a, its b, and the unchanged elements."""
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
    """Find the pairs of an array of this shape; without angles, half of its length."""
    shape, (cos, sin, positions) = tuple(shape), angles
    axis = axes.one(where, options.axis, len(shape), of=name)
    has_table, count = positions is not None, shape[axis] // 2
    of_cos = None if cos is None else tuple(cos.shape)
    if of_cos is not None:
        at = -1 if has_table else axis - len(shape)
        if has_table and len(of_cos) != 2:
            raise ValueError(f"{where}: cos must be 2-D, a row per position, got shape {of_cos}")
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
    """An op that rotates pairs of elements by angles."""

    family = "rotary"
    args: Mapping[str, Arg] = records(
        cos=Arg(_ANGLE, "pairs", repeats=True),
        sin=Arg(_ANGLE, "pairs", repeats=True),
        positions=Arg(_POSITIONS, "rows", repeats=True, unsaved=True),
    )

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> Any:
        views = call.views
        name, first = next(iter(views.items()))
        angles = views.get("cos"), views.get("sin"), views.get("positions")
        return _pairs_of(call.where, name, first.shape, options, angles)

    def _angles(self, now: Execution, of: Pairs, name: str) -> dict[str, View | None]:
        """Prepare cosines, sines and positions for the native function.

        name : the array that the pairs belong to.
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
        """Write or add the rotated pairs of x to y, and all other elements unchanged."""
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

    several : the op for a tuple of arrays, which serves calls of this op and is not public.
    """

    bounds = RotaryBounds()
    saves = ("cos", "sin", "positions")
    several: Any = None

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function)
        self._arrays = arrays = positional(call)
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
        self._enter_points(*incoming)

    def _run_forward(self, now: Execution) -> None:
        self._turn_all(now, self._arrays, self.results, turns_back=False)

    def backward(self, dy: A, /, *saved: Any, **options: Unpack[Kwargs[A]]) -> A:
        """Compute the gradient with respect to x: dy, rotated back by the same angles.

        For each pair ``da = dya * cos + dyb * sin`` and ``db = dyb * cos - dya * sin``; where x is
        not rotated, the gradient is dy. Angles and positions have no gradient.

        Parameters
        ----------
        dy : array
            The gradient of the loss with respect to y, of its shape and dtype, or a tuple of two.
        out : array or tuple, optional
            Where to write dx; it may be dy itself.

        Returns
        -------
        array or tuple
            The gradient dx, of dy's shape and dtype; a tuple if dy is one.

        Notes
        -----
        The gradient is as accurate as the call.
        """

    def _run_backward(self, now: Execution) -> None:
        self._turn_all(now, self._incoming, self.gradients, turns_back=True)

    # --- kernels ----------------------------------------------------------------------------------

    def _turn_all(
        self, now: Execution, names: tuple[str, ...], made: tuple[str, ...], *, turns_back: bool
    ) -> None:
        """Rotate each array of these names, once all of them are checked."""
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
        """Serve a call of one array, or of a tuple of arrays in its place."""
        each = self.each_of(args, entry)
        if each is None:
            return super()._serve(entry, *args, **kwargs)
        return execute(self.several.entry_points[entry], *each, *args[1:], **kwargs)

    def _plain_call(self, *args: Any, **kwargs: Any) -> Any:
        each = [(x, *args[1:]) for x in self.each_of(args) or ()]
        if each and not any(handlers.handler_of(self, one, kwargs) for one in each):
            return self._serve("call", *args, **kwargs)
        of_one = super()._plain_call
        return handlers.one_by_one(self, lambda args, kw: of_one(*args, **kw), args, kwargs)

    def _recorder(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.each_of(args) is not None:
            return lambda args, kwargs: tuple(self(x, *args[1:], **kwargs) for x in args[0])
        return super()._recorder(args, kwargs)


#: The most elements of a part for a thread of the CPU.
_PART = 1 << 15


class NormedPairs(NamedTuple):
    """The pairs of a call, and its normalization rows, which lie along the axis of the pairs.

    pairs, rows : the fields of `Pairs`; the others are those of the normalization rows.
    """

    of: Pairs
    normed: Rows
    pairs: tuple[int, ...]
    rows: tuple[int, ...]
    axes: tuple[int, ...]
    of_parameter: tuple[int, ...]
    statistics: tuple[int, ...]
    parameter: tuple[int, ...]

    def seen_parameter(self, view: View) -> View:
        """Give the weight or its gradient the axes of x."""
        return self.normed.seen_parameter(view)


class NormRotary(Turning[P, R]):
    """A root-mean-square norm of rows along an axis, whose pairs are then rotated, and backward."""

    bounds = NormRotaryBounds(scaled=6, rough=4)
    saves = ("x", "rstd", "cos", "sin", "weight", "positions")
    gradients = ("dx", "dweight")
    args = records(
        **Turning.args,
        x=Arg(validate.ARRAY),
        rstd=Arg(validate.STATISTIC, "statistics"),
        weight=Arg(shape="parameter"),
    )
    outs = records(rstd=Output(shape="statistics", dtype=COMPUTED))
    kernels = Kernels(
        numbers={
            **PLAIN,
            "norm": _cpu.ROW_NORMS.index("RmsNorm"),
            "which": _cpu.ACTIVATIONS.index(IDENTITY),
            "parameters": (),
        },
        names={"reduced": "axes"},
    )

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        read_casting(entry.where, options)

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> NormedPairs:
        of: Pairs = super()._shapes(call, options)
        along, shape = (of.axis,), tuple(call.views["x"].shape)
        statistics, parameter = axes.reduced(shape, along, keepdims=True), (shape[of.axis],)
        rows = Rows(shape, along, along, statistics, parameter)
        return NormedPairs(of, rows, of.pairs, of.rows, along, along, statistics, parameter)

    def _run_forward(self, now: Execution) -> None:
        x, y, rstd = now.views["x"], now.view("y"), now.view("rstd")
        of, angles = self._checked(now, y)

        def work(part: Part, _: int) -> None:
            into, saved = part_of(y, part), None if rstd is None else part_of(rstd, part)
            now.run("norm_forward", x=part_of(x, part), y=into, rstd=saved)
            if of.length:
                self._turn(now, of, _angles_of(angles, part), into, into, turns_back=False)

        threads, most = threads_of(now.call, x.size, _PART)
        order = [axis for axis in x.order if axis != of.axis]
        parts = cut(x.shape, order, most)[1] if x.size else [Parts({})]
        for_each(now.call, parts, threads, work)

    def backward(
        self, dy: ArrayOrNumber, x: A, /, *saved: Any, **options: Unpack[Kwargs[A]]
    ) -> tuple[A | None, Array | None]:
        """Compute the gradients with respect to x and weight.

        Let p be dy, rotated back by the same angles (`fastact.rotary.backward`), ``xhat = x *
        rstd`` and ``g = p * weight``. Then ``dx = rstd * (g - xhat * mean(g * xhat))`` and
        ``dweight = sum(p * xhat)``, as for `fastact.rms_norm`.

        Notes
        -----
        The gradients have the bits of the two ops' backwards. p has an error of at most 3 u
        (abs(dya cos) + abs(dyb sin)) and is rounded to the dtype. For that p, dx has an error of at
        most u rstd (6 abs(g) + 18 abs(xhat) mean abs(g xhat)), and dweight of at most 18 u sum
        abs(p xhat), with more for float64 as for `fastact.rms_norm.backward`. The error of p enters
        both by the same formulas. p is stored in dx, or in temporary memory if dx is added to, is
        x, or is skipped.
        """

    def _run_backward(self, now: Execution) -> None:
        dy, x, dx = now.views["dy"], now.views["x"], now.view("dx")
        is_kept = dx is None or now.adds("") or dx.address == x.address
        p = now.call.temporary("x") if is_kept else dx
        of, angles = self._checked(now, p)
        self._turn(now, of, angles, dy, p, turns_back=True)
        now.run("norm_backward", dy=p)

    def _checked(self, now: Execution, into: View) -> tuple[Pairs, Mapping[str, View | None]]:
        """Find the pairs and angles; check positions before anything is written `into`."""
        of, angles = now.shapes.of, self._angles(now, now.shapes.of, "x")
        if angles["positions"] is not None and not now.call.is_on_gpu:
            tables = {n: of.angles[i].sliced(1, 0, 1, 0) for i, n in enumerate(("cos", "sin"))}
            none, nothing = of._replace(length=0), into.sliced(of.axis, 0, 1, 0)
            self._turn(now, none, {**angles, **tables}, nothing, nothing, turns_back=False)
        return of, angles


def _angles_of(angles: Mapping[str, View | None], part: Part) -> dict[str, View | None]:
    """Cut angles to those of a part; tables of cosines and sines serve all parts."""
    of_rows = angles.keys() if angles["positions"] is None else ("positions",)
    return {
        name: part_of(view, part) if view is not None and name in of_rows else view
        for name, view in angles.items()
    }


@declared(Rotary)
def rotary(
    x: A,
    /,
    cos: Array,
    sin: Array,
    *,
    axis: int = -1,
    interleaved: bool = False,
    positions: Array | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Rotary position embedding of one array, or of queries and keys together.

    ``a, b = np.split(x, 2, axis)`` and ``y = np.concatenate([a * cos - b * sin, b * cos + a * sin],
    axis)``. Pairs are formed from halves, as in GPT-NeoX and Llama, or neighbours, as in GPT-J.

    Parameters
    ----------
    x : array or tuple
        Data of dtype float16, bfloat16, float32 or float64, with any strides. Or a tuple (q, k) of
        two arrays of the same dtype, of any two shapes; then the result, dy and `out` are tuples.
    cos, sin : array
        The cosine and the sine of each pair's angle, of the same shape, and of x's dtype or a wider
        one, or of any dtype if x is float64. Their length along `axis` is the number of pairs: the
        first ``2 * cos.shape[axis]`` elements are rotated, and the others are unchanged. Along the
        other axes they broadcast: for x of shape (batch, heads, seq, d) they are (seq, d / 2) or
        (batch, 1, seq, d / 2), and for (batch, seq, heads, d), (seq, 1, d / 2). They have no
        gradient.
    axis : int, default -1
        The axis of the pairs.
    positions : array, optional
        An array of int32 or int64 that says which row of cos and sin has an element's angles; they
        are then tables of shape (rows, d / 2). It broadcasts to x's shape without `axis`, for
        example with shape (seq,) or (batch, 1, seq).
    out : array or tuple, optional
        Where to write y, which may be x itself; in a tuple, each array may be its own x.

    Returns
    -------
    array or tuple
        The result, of x's shape, dtype and framework.

    Raises
    ------
    TypeError
        For cos or sin of a dtype narrower than x's, or positions that are not integers.
    ValueError
        For more pairs than x has, cos and sin of different shapes, or a position that is not a row
        of the table. A GPU call does not wait for this check; such an element is NaN there.

    Notes
    -----
    Hugging Face's models repeat cos and sin over both halves. Pass ``cos[..., : d // 2]`` with an
    axis for heads, as their ``unsqueeze_dim`` adds it.

    Each product is rounded to the type in which x is computed, so ``x * cos + rotate_half(x) *
    sin`` in float32 has the same bits. With u = 2**-24 (float64: 2**-53), y is within 3 u (abs(a
    cos) + abs(b sin)) of the exact value, likewise for b, and is then rounded to x's dtype. Cosines
    and sines that are wider than the type in which x is computed are first rounded to it. The bits
    depend neither on the layout nor on the number of threads.

    References
    ----------
    J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
    https://arxiv.org/abs/2104.09864

    Examples
    --------
    >>> angle = np.outer(np.arange(2), [1.0, 0.01])
    >>> fa.rotary(np.ones((2, 4)), np.cos(angle), np.sin(angle))
    array([[ 1.        ,  1.        ,  1.        ,  1.        ],
           [-0.3011...,  0.9899...,  1.3817...,  1.0099...]])
    >>> fa.rotary(np.array([1.0, 0.0, 5.0]), np.array([0.8]), np.array([0.6]), interleaved=True)
    array([0.8, 0.6, 5. ])
    >>> y, saved = fa.rotary.forward(np.array([1.0, 0.0]), np.array([0.8]), np.array([0.6]))
    >>> fa.rotary.backward(y, *saved)
    array([1., 0.])
    """


def _of_two(op: Rotary[P, R]) -> Rotary[..., Any]:
    """Declare the op of two arrays that share angles."""

    def function(*args: Any) -> Any:
        raise NotImplementedError  # it only declares

    x, *others = op.__signature__.parameters.values()
    declared: Any = function
    declared.__name__ = op.name
    declared.__signature__ = Signature([x.replace(name="q"), x.replace(name="k"), *others])
    return Rotary(declared)


rotary.several = _of_two(rotary)


@declared(NormRotary)
def rms_norm_rotary(
    x: A,
    /,
    cos: Array,
    sin: Array,
    weight: Array | None = None,
    *,
    axis: int = -1,
    eps: float = 1e-6,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    interleaved: bool = False,
    positions: Array | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Root-mean-square normalization of heads, followed by rotary position embedding.

    ``y = rotary(rms_norm(x, weight), cos, sin)``, with the mean of the squares over `axis`, in one
    pass over memory. Qwen3 and Gemma 3 normalise queries and keys in this way.

    Parameters
    ----------
    cos, sin : array
        The cosine and the sine of each pair's angle, as for `rotary`.
    weight : array, optional
        An array as long as x along `axis`, of x's dtype or a wider one, or any if x is float64.
    axis : int, default -1
        The axis of the pairs, and of the norm.
    eps : float, default 1e-6
        A number that is added to the mean of the squares; it must not be negative.
    casting : {"exact", "llama", "gemma"}, default "exact"
        Where the norm rounds, as for `rms_norm`.
    positions : array, optional
        An array of int32 or int64: the row of cos and sin, then tables, with an element's angles.

    Raises
    ------
    TypeError
        For a weight, cos or sin of a dtype narrower than x's, or positions that are not integers.
    ValueError
        For a negative eps, an unknown casting, a weight of another shape, or what `rotary` refuses.

    See Also
    --------
    fastact.rms_norm : The norm alone, also over several axes.
    fastact.rotary : The rotary embedding alone, also of queries and keys together.

    Notes
    -----
    The result has the bits of ``rotary(rms_norm(x, weight), cos, sin)``: n, the result of the norm,
    is rounded to x's dtype, and so is the result of its rotation. Models round in both places, too,
    and also round each product with cos and sin.

    With u = 2**-24 (float64: 2**-53) and xhat the normalised x, z = xhat weight has an error of at
    most 6 u abs(xhat weight) + u abs(z), plus 2**-46 abs(weight) (1 + abs(xhat)) for float64, and
    plus 4 u abs(weight) (1 + abs(xhat)) for 16-bit data on a GPU. n is the rounded z. Its rotation
    has an error of at most 3 u (abs(n_a cos) + abs(n_b sin)), likewise for the other half of a
    pair, plus the errors of n times abs(cos) and abs(sin), plus the second rounding.

    References
    ----------
    J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
    https://arxiv.org/abs/2104.09864

    `Qwen3Attention` and `Gemma3Attention` of https://github.com/huggingface/transformers

    Examples
    --------
    >>> x, cos, sin = np.array([3.0, 4.0]), np.array([0.6]), np.array([0.8])
    >>> fa.rms_norm_rotary(x, cos, sin, eps=0)
    array([-0.3959...,  1.3576...])
    >>> y, saved = fa.rms_norm_rotary.forward(x, cos, sin, np.ones(2), eps=0)
    >>> fa.rms_norm_rotary.backward(np.array([1.0, 0.0]), *saved)
    (array([ 0.2172..., -0.1629...]), array([ 0.5091..., -0.9050...]))
    """
