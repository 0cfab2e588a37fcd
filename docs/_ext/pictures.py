"""Pictures of ops, as SVG in the page itself: its text has the page's font and colours."""

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from fastact.measure.cases import sample
from fastact.ops.engine.op import arrays_of

_SPAN = np.linspace(-6.0, 6.0, 601)
_JUMP = 0.2  # of neighbours in it: no slope is that steep
_FARTHEST, _BINS, _IN_BIN = 20.0, 160, 500  # inputs whose errors are shown

# Stand for the page's own colours until the picture is in it.
_INK = "#010203"
_SERIES = ("#010204", "#010205", "#010206", "#010207")
_FIRST, _SECOND, *_ = _SERIES
_MARKERS = ("o", "s", "^", "D")
_PAGE_COLOURS = {
    _INK: "currentColor",
    **{colour: f"var(--fa-{number})" for number, colour in enumerate(_SERIES, 1)},
}
_STYLE = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.alpha": 0.15,
    "grid.color": _INK,
    "legend.framealpha": 0,
    "svg.fonttype": "none",
    "svg.hashsalt": "fastact",  # the same picture has the same names in it
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def of_activation(op: Any) -> str:
    """The function with its derivative, and the error of float32 beside float64's."""
    with matplotlib.rc_context(_STYLE):
        return "".join(
            _inline(figure, f"{op.name}-{kind}", told)
            for kind, figure, told in (
                ("curves", _curves(op), f"{op.name} and its derivative from -6 to 6"),
                ("errors", _errors(op), f"errors of {op.name} in float32, and their bounds"),
            )
        )


def of_call(op: Any) -> str:
    """An element of the first result, and the elements of the arguments that it depends on."""
    named, result = example(op)
    results = arrays_of(result)
    arrays = {n: v for n, v in named.items() if isinstance(v, np.ndarray)}
    found = {name: _moves(op, named, name, results[0]) for name in arrays}
    # An element in the middle, of those that depend on most: a dropped one depends on none.
    counts = sum(moved.sum(axis=0) for moved in found.values())
    middle = np.abs(np.arange(counts.size) - counts.size // 2)
    chosen = max(range(counts.size), key=lambda i: (counts[i], -middle[i]))
    parts = [_cells(n, a, found[n][:, chosen], "fa-read") for n, a in arrays.items()]
    one = np.arange(counts.size) == chosen
    told = f"One element of {op.results[0]}, and the elements that it depends on"
    options = [f"{n}={v!r}" for n, v in named.items() if n not in arrays and v is not None]
    told += f", with {', '.join(options)}." if options else "."
    last = _cells(op.results[0], results[0], one, "fa-made")
    return (
        f'<div class="fa-cells" role="img" aria-label="{told}">{"".join(parts)}<span>→</span>{last}'
        f'</div><p class="fa-told">{told}</p>'
    )


def shapes(op: Any) -> str:
    """The shapes of an example of a call and of its results."""
    named, result = example(op)
    given = [f"``{n}`` {v.shape}" for n, v in named.items() if isinstance(v, np.ndarray)]
    made = [f"``{n}`` {np.shape(v)}" for n, v in zip(op.results, arrays_of(result), strict=False)]
    return f"{', '.join(given)} → {', '.join(made)}"


def example(op: Any) -> tuple[dict[str, Any], Any]:
    """The arguments of a call by name, and its result; channels have an axis behind them."""
    shape = (2, 4, 6) if "channel_axis" in op.entry_points["call"].defaults else (4, 6)
    x, dy = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    named = sample(op, x, dy)
    return named, op.bound("call", named)()


def _moves(op: Any, named: Mapping[str, Any], name: str, y: Any) -> NDArray[np.bool_]:
    """Whether a change of an element changes one of the result: a row for each."""
    moved = np.zeros((named[name].size, np.size(y)), bool)
    for element, row in enumerate(moved):
        changed = named[name].copy()
        changed.flat[element] += 1
        if changed.dtype.kind == "i":  # one of so many classes
            changed %= named[name].max() + 1
        after, *_ = arrays_of(op.bound("call", {**named, name: changed})())
        row[:] = np.ravel(after != y)
    return moved


def _cells(name: str, array: Any, is_marked: NDArray[np.bool_], mark: str) -> str:
    """An array as cells, the planes of three axes below each other."""
    *planes, rows, columns = (1, 1, 1, *np.shape(array))[-max(np.ndim(array), 2) :]
    down = int(np.prod(planes)) * (rows + 1) - 1
    cells = "".join(
        f'<rect x="{at % columns}" y="{at // columns + at // (rows * columns)}" width=".86" '
        f'height=".86" class="{mark if is_marked[at] else ""}"/>'
        for at in range(np.size(array))
    )
    box = f'viewBox="-.1 -.1 {columns + 0.1} {down + 0.1}" style="width: {0.9 * columns:.1f}rem"'
    return f"<figure><svg {box}>{cells}</svg><figcaption>{name}</figcaption></figure>"


def overview(rows: Sequence[Mapping[str, Any]], peers: Mapping[str, str]) -> str:
    """Beside each op, how many times our time others take: a dot for each of them.

    rows : of one machine, a case for each op; peers : names of those that are shown.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 0.9 + 0.36 * len(rows)))
        axes = figure.add_axes((0.37, 0.11, 0.61, 0.82))
        places = np.arange(len(rows))[::-1]
        for number, (peer, name) in enumerate(peers.items()):
            ratios = [row["ratios"].get(peer, np.nan) for row in rows]
            axes.plot(ratios, places, _MARKERS[number], color=_SERIES[number], ms=6, label=name)
        axes.axvline(1, color=_INK, lw=1.5)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g} ×"))
        axes.set_yticks(places, [_in_words(row) for row in rows], fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("their time over ours (float32, forward)", fontsize=9)
        axes.grid(axis="both")
        figure.legend(loc="upper right", ncols=len(peers), fontsize=9, columnspacing=1)
        return _inline(figure, "overview", "how many times our time NumPy, torch and others take")


def _in_words(row: Mapping[str, Any]) -> str:
    return f"{row['op']}\n{row['what'].removesuffix(', identity')}"


def sparkline(op: Any) -> str:
    """The function from -6 to 6, without axes."""
    x = _SPAN[::10]
    y = np.clip(op(x), -3.0, 6.0)
    low, high = min(y.min(), -1.0), max(y.max(), 1.0)
    points = zip(8 * (x + 6), 36 * (high - y) / (high - low) + 2, strict=True)
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    zero = 36 * high / (high - low) + 2
    return (
        '<svg class="fa-spark" viewBox="0 0 96 40" aria-hidden="true">'
        f'<path d="M0 {zero:.1f}H96M48 0V40"/><polyline points="{path}"/></svg>'
    )


def _figure(title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(5, 3.3))
    axes = figure.add_axes((0.075, 0.15, 0.9, 0.75))
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("x")
    axes.grid()
    return figure, axes


def _curves(op: Any) -> Figure:
    figure, axes = _figure(f"{op.name} and its derivative")
    y, slope = _value_and_slope(op, _SPAN)
    for values, colour, style, name in (
        (slope, _SECOND, (0, (4, 2)), "derivative"),
        (y, _FIRST, "-", op.name),
    ):
        broken = np.where(np.abs(np.diff(values, prepend=values[0])) > _JUMP, np.nan, values)
        axes.plot(_SPAN, broken, color=colour, ls=style, lw=2, label=name)
    axes.legend(fontsize=10, reverse=True)
    return figure


def _errors(op: Any) -> Figure:
    """Float64, whose own error is 2**-29 of a float32 unit, stands for the truth."""
    edges = np.linspace(-_FARTHEST, _FARTHEST, _BINS + 1)
    rng = np.random.default_rng(0)
    x = rng.uniform(edges[:-1, None], edges[1:, None], (_BINS, _IN_BIN)).astype(np.float32)
    pairs = zip(_value_and_slope(op, x), _value_and_slope(op, x.astype(np.float64)), strict=True)
    value, slope = (_in_ulp(ours, true) for ours, true in pairs)
    # Near a root, and in a tail that vanishes, the bound of the derivative is absolute.
    bounds = op.bounds
    value[value[..., 1] <= bounds.forward_abs] = 0
    slope[slope[..., 1] <= bounds.derivative_abs] = 0

    figure, axes = _figure("largest error of float32, in units in the last place")
    for errors, bound, colour, name in (
        (value, bounds.forward_ulp, _FIRST, op.name),
        (slope, bounds.derivative_ulp, _SECOND, "derivative"),
    ):
        axes.step(edges[:-1], errors[..., 0].max(1), where="post", color=colour, lw=1.4, label=name)
        axes.axhline(bound, color=colour, lw=1, ls=":")
    axes.plot([], [], color=_INK, lw=1, ls=":", label="bounds")
    axes.set_ylim(0, 1.35 * max(bounds.forward_ulp, bounds.derivative_ulp, 0.5))
    axes.legend(fontsize=10, ncols=3, loc="upper left")
    return figure


def _value_and_slope(op: Any, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    y, saved = op.forward(x)
    return y, op.backward(np.ones_like(x), *saved)


def _in_ulp(ours: NDArray[Any], true: NDArray[Any]) -> NDArray[Any]:
    """The error in units in the last place, and as it is."""
    smallest = np.finfo(np.float32).tiny
    unit = np.spacing(np.maximum(np.abs(true), smallest).astype(np.float32))
    error = np.abs(ours - true)
    return np.stack([error / unit, error], axis=-1)


def _inline(figure: Figure, name: str, told: str) -> str:
    """A figure as an element of a page: as wide as there is place, with names of its own."""
    written = StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    picture = written.getvalue()
    picture = picture[picture.index("<svg") :]
    # The style that it begins with would be one of the whole page.
    picture = re.sub(r"<(metadata|style).*?</\1>", "", picture, flags=re.DOTALL)
    picture = re.sub(r' (width|height)="[\d.]+pt"', "", picture, count=2)
    picture = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", picture)
    for ours, of_page in _PAGE_COLOURS.items():
        picture = picture.replace(ours, of_page)
    return picture.replace("<svg ", f'<svg role="img" aria-label="{told}" ', 1)
