"""The softmax family: functions of rows under masks, and the loss behind them."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import fastact as fa
from fastact.ops.bounds import CrossEntropyBounds, SoftmaxBounds

from ..cases import FLOAT64, INFO, Array, Draw, Number, Request, Shape, computed_in, number
from ..judge import Expected, ulp
from ..oracle import reference, wide
from .base import Adapter, added_to, full

_VALUES = ("plain", "wide", "wide", "far", "constant", "huge", "not finite", "specials")
_BOOL, _INT16, _INT32, _INT64 = map(np.dtype, ("bool", "int16", "int32", "int64"))
_IGNORED = -100  # unless another one is given
_OF_LSE = SoftmaxBounds("logsumexp")


def _is_loss(op: Any) -> bool:
    return isinstance(op.bounds, CrossEntropyBounds)


class Softmax(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        return _sample_loss(op, draw) if _is_loss(op) else _sample_rows(op, draw)

    def fill(self, request: Request, rng: np.random.Generator) -> dict[str, Any]:
        """Masks that hide whole rows, classes, and what backward is given as saved."""
        values, made = super().fill(request, rng), request.notes["made"]
        if _is_loss(fa.ops[request.op]):
            _fill_loss(request, values, rng)
            return values
        if "mask" in made:
            values["mask"] = _hiding(request.notes, values["mask"], rng)
        for name in ("y", "lse"):  # the operand "x" is not there beside a y
            if name in made and made[name].stored is None:
                of = made[name]
                z = _logits(request, values, "x" if name == "lse" else "y")
                kind = request.op if name == "y" else "logsumexp"
                with np.errstate(all="ignore"):
                    saved = reference.softmax_row(kind, z, request.notes["over"], True)
                values[name] = _drawn(saved.reshape(of.shape).astype(of.dtype), of)
        return values

    def holds(self, request: Request, name: str, value: float) -> bool:
        if name == "label_smoothing":
            return 0 <= value <= 1
        return "lse" not in request.notes["made"]  # which is of one scale

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        with np.errstate(all="ignore"):
            if _is_loss(fa.ops[request.op]):
                back = request.entry == "backward"
                return (_loss_gradient if back else _loss)(request, values)
            if request.entry != "backward":
                return _rows(request, values)
            saves_lse = "lse" in request.notes["made"]
            return (_lse_gradient if saves_lse else _rows_gradient)(request, values)


def _drawn(value: Any, array: Array) -> Any:
    """Along an axis of stride 0 there is one value for all."""
    return value[tuple(slice(0, 1) if i in array.repeats else slice(None)
                       for i in range(value.ndim))]  # fmt: skip


def _is_rough(request: Request) -> bool:
    """Whether exponentials are those of 16-bit data on a GPU."""
    return request.framework == "emulated" and request.dtype.itemsize == 2


def _tiny(request: Request) -> float:
    """What factors on the way are off by that are subnormal: on a GPU, where they are 0, more."""
    info = INFO[computed_in(request.dtype)]
    on_gpu = request.framework == "emulated"
    return float(info.smallest_normal if on_gpu else info.smallest_subnormal)


def _sum(
    request: Request, values: dict[str, Any], exact: Any, error: Any, judged: Any, nan: Any = None
) -> Expected:
    """A gradient, or what it is added to with it."""
    dtype = request.dtype
    if request.accumulate:
        exact = exact + wide(added_to(request, values, 0), dtype)
        error = error + ulp(exact, computed_in(dtype)) + ulp(exact, dtype) / 2
    judged = judged & np.isfinite(exact) & np.isfinite(error)
    return Expected(exact, error, False, judged, nan)


# --- functions of rows ----------------------------------------------------------------------------


def _axes(r: Random, ndim: int) -> Any:
    """An axis, or some of them, in any order."""
    if ndim and r.random() < 0.7:
        return r.randrange(-ndim, ndim)
    chosen = r.sample(range(ndim), r.randrange(0, ndim + 1))
    return tuple(axis - ndim * r.randrange(2) for axis in chosen)


def _mask(draw: Draw, shape: Shape) -> Array:
    """Of bool or of numbers, over a shape that broadcasts."""
    r = draw.r
    dropped = r.randrange(len(shape) + 1) if draw.chance(0.3) else 0
    of = tuple(1 if draw.chance(0.3) else n for n in shape[dropped:])
    if draw.chance(0.5):
        return draw.array("mask", of, "bits", _BOOL)
    wider = draw.chance(0.3) and draw.framework != "plain"
    dtype = r.choice((computed_in(draw.dtype), FLOAT64)) if wider else draw.dtype
    made = draw.array("mask", of, r.choice(("plain", "wide")), dtype)
    # A float64 of NumPy is Python's float: a number, which no mask may be.
    return replace(made, form="array") if made.form == "scalar" else made


def _sample_rows(op: Any, draw: Draw) -> Request:
    r, entry = draw.r, draw.r.choice(("call", "call", "forward", "backward", "backward"))
    shape, made = draw.shape(), {}
    axis, back = _axes(r, len(shape)), entry == "backward"
    over = tuple(sorted(a % len(shape) for a in (axis if isinstance(axis, tuple) else (axis,))))
    keepdims = op.reduces and draw.chance(0.4)
    kept = tuple(1 if a in over else n for a, n in enumerate(shape))
    left = kept if keepdims else tuple(n for a, n in enumerate(shape) if a not in over)
    result = left if op.reduces else shape
    saves_y = "y" in op.saves
    leader = "y" if back and saves_y else "x"
    values = ("plain", "wide") if back else _VALUES
    made[leader] = draw.leader(leader, shape, r.choice(values))
    if draw.chance(0.5) and not (back and saves_y):
        made["mask"] = _mask(draw, shape)
    named: dict[str, Any] = {"axis": axis} if axis != -1 or draw.chance(0.3) else {}
    if draw.chance(0.4):
        named["scale"] = number(r, 1, 0.125, 0.37, -2, 3, 0)
    if keepdims:
        named["keepdims"] = True
    mask = tuple(made[k] for k in ("mask",) if k in made)
    computed = computed_in(draw.dtype)
    if back:
        made["dy"] = draw.array("dy", result, r.choice(("plain", "wide")), number=True)
        args: tuple[Any, ...] = (made["dy"], made[leader])
        places: dict[int, tuple[Array, ...]] = {0: (made["dy"], made[leader])}
        forbidden: tuple[Array, ...] = ()
        if not saves_y:
            made["lse"] = Array("lse", result, computed, layout=draw.layout(len(result), computed))
            args = (*args, made.get("mask"), made["lse"])
            places, forbidden = {0: (made["x"],)}, (made["dy"], made["lse"], *mask)
        outs = draw.outs([("dx", shape, draw.dtype)], places, forbidden=forbidden, accumulates=True)
    else:
        args = (made["x"],)
        named |= {"mask": made["mask"]} if mask else {}
        outputs = [("y", result, draw.dtype)]
        if op.reduces and entry == "forward":
            outputs.append(("lse", result, computed))
        places = {} if op.reduces else {0: (made["x"],)}
        outs = draw.outs(outputs, places, forbidden=(made["x"], *mask) if op.reduces else mask)
    notes = {"made": made, "over": over, "kept": kept, "result": result}
    return Request(op.name, entry, draw.framework, draw.dtype, args, named, notes=notes, **outs)


def _hiding(notes: dict[str, Any], mask: Any, rng: np.random.Generator) -> Any:
    """A mask under which nothing of some rows takes part."""
    first = len(notes["kept"]) - mask.ndim
    rows = tuple(1 if a + first in notes["over"] else n for a, n in enumerate(mask.shape))
    hidden = rng.random(rows) < 0.2
    if mask.dtype == _BOOL:
        return mask & ~hidden
    hidden = hidden | (rng.random(mask.shape) < 0.2 * rng.integers(2))
    return np.where(hidden, -np.inf, mask.astype(np.float64)).astype(mask.dtype)


def _scale(request: Request) -> float:
    return float(request.named.get("scale", Number(1.0)).value)


def _mask_as_read(request: Request, values: dict[str, Any]) -> Any:
    """The mask in the type that is computed in, if there is one."""
    made = request.notes["made"]
    if "mask" not in made:
        return None
    mask = full(made["mask"], values)
    return mask if mask.dtype == _BOOL else mask.astype(computed_in(request.dtype))


def _left_out(request: Request, values: dict[str, Any]) -> Any:
    """What the mask leaves out, as it broadcasts."""
    mask = _mask_as_read(request, values)
    return False if mask is None else reference.left_out(mask)


def _logits(
    request: Request, values: dict[str, Any], name: str = "x", of: Any = reference.row_logits
) -> Any:
    """z = scale x + mask, or another function of them."""
    made, mask = request.notes["made"], _mask_as_read(request, values)
    with np.errstate(all="ignore"):
        return of(full(made[name], values), _scale(request), mask, request.dtype)


def _fits(request: Request, values: dict[str, Any], z: Any) -> Any:
    """Of each row, whether nothing overflows on the way to z."""
    largest = float(INFO[computed_in(request.dtype)].max) / 4
    scaled = wide(full(request.notes["made"]["x"], values), request.dtype) * _scale(request)
    over = (np.abs(scaled) > largest) & np.isfinite(full(request.notes["made"]["x"], values))
    over = over | ((np.abs(z) > largest) & np.isfinite(z))
    return ~over.any(request.notes["over"], keepdims=True)


def _rows(request: Request, values: dict[str, Any]) -> list[Expected | None]:
    op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
    over, made, z = notes["over"], notes["made"], _logits(request, values)
    masked = "mask" in made
    exact = reference.softmax_row(op.name, z, over, masked, _left_out(request, values))
    added = _logits(request, values, of=reference.row_magnitudes)
    size = np.max(np.broadcast_to(added, z.shape), over, keepdims=True, initial=0)
    rounds = masked or _scale(request) != 1
    count = math.prod(z.shape[a] for a in over)
    fits = np.broadcast_to(_fits(request, values, z), exact.shape)

    def of(to: np.dtype[Any]) -> Expected:
        rough = _is_rough(request)
        error = op.bounds.allowed(exact, size, count, to, rounds=rounds, on_gpu=rough)
        parts = (exact, np.broadcast_to(error, exact.shape), fits)
        value, error, judged = (part.reshape(notes["result"]) for part in parts)
        return Expected(value, error, False, judged)

    found: list[Expected | None] = [of(dtype)]
    if request.entry == "forward":
        found += [of(computed_in(dtype)) if name == "lse" else None for name in op.saves]
    return found


def _rows_gradient(request: Request, values: dict[str, Any]) -> list[Expected | None]:
    """Of the y that is given."""
    op, dtype, over = fa.ops[request.op], request.dtype, request.notes["over"]
    made, scale = request.notes["made"], _scale(request)
    y = wide(full(made["y"], values), dtype)
    dy = np.broadcast_to(wide(full(made["dy"], values), dtype), y.shape)
    exact, factor, total = reference.softmax_gradient(op.name, dy, y, over, scale)
    count = math.prod(y.shape[a] for a in over)
    exponent = y if _is_rough(request) else None  # of softmax there is none, and y is small
    error = op.bounds.gradient(exact, scale, factor, dy, total, count, dtype, exponent)
    error = error + _tiny(request) * (np.abs(scale) + np.abs(dy) + total)
    return [_sum(request, values, exact, error, True)]


def _lse_gradient(request: Request, values: dict[str, Any]) -> list[Expected | None]:
    """Of the lse that is given."""
    op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
    made, z = notes["made"], _logits(request, values)
    lse = wide(full(made["lse"], values), dtype).reshape(notes["kept"])
    dy = wide(full(made["dy"], values), dtype)
    dy = dy if made["dy"].form == "number" else dy.reshape(notes["kept"])
    exact = _scale(request) * dy * np.exp(z - lse)
    void = np.isneginf(z) & np.isneginf(lse) & ("mask" in made)
    exact = np.where(void | _left_out(request, values), 0, exact)
    finite = np.where(np.isfinite(z), z, 0)
    exponent = finite - lse if _is_rough(request) else None
    added = _logits(request, values, of=reference.row_magnitudes)
    error = op.bounds.through_lse(exact, added, dtype, exponent)
    error = error + _tiny(request) * (1 + np.abs(_scale(request)) + np.abs(dy))
    return [_sum(request, values, exact, error, _fits(request, values, z))]


# --- the loss -------------------------------------------------------------------------------------


def _target(draw: Draw, shape: Shape, kept: Shape, ignored: int) -> Array:
    """Classes, or probabilities."""
    r = draw.r
    if draw.chance(0.35):
        return draw.array("target", shape, r.choice(("positive", "positive", "bits")))
    dtype = r.choice((_INT32, _INT64))
    made = draw.array("target", kept, "small integers", dtype)
    fits = max(*shape, abs(ignored)) < np.iinfo(_INT16).max
    if draw.framework == "numpy" and fits and draw.chance(0.1):
        listed = math.prod(kept) > 0 and kept and draw.chance(0.5)
        return replace(
            made, dtype=_INT64, stored=_INT16, form="list" if listed else "array",
            layout=draw.layout(len(kept), _INT16), repeats=() if listed else made.repeats,
        )  # fmt: skip
    return made


def _sample_loss(op: Any, draw: Draw) -> Request:
    r, entry = draw.r, draw.r.choice(("call", "forward", "backward", "backward"))
    shape, back = draw.shape(1), entry == "backward"
    ndim = len(shape)
    usual = min(1, ndim - 1)
    named: dict[str, Any] = {"axis": r.randrange(-ndim, ndim)} if draw.chance(0.5) else {}
    axis = named.get("axis", usual) % ndim
    if draw.chance(0.1):
        named["axis"] = None
        axis = usual
    kept = tuple(n for a, n in enumerate(shape) if a != axis)
    ignored = _IGNORED
    if draw.chance(0.3):
        ignored = named["ignore_index"] = r.choice((-1, 0, 2, 255, 2**40))
    if draw.chance(0.4):
        named["label_smoothing"] = number(r, 0, 1, 0.1, 0.75)
    reduction = r.choice(("mean", "sum", "none"))
    if reduction != "mean" or draw.chance(0.2):
        named["reduction"] = reduction
    values = ("plain", "wide") if back else _VALUES
    made = {"logits": draw.leader("logits", shape, r.choice(values))}
    computed = computed_in(draw.dtype)
    made["target"] = _target(draw, shape, kept, ignored)
    if draw.chance(0.4):
        weight = draw.array("weight", (shape[axis],), "positive", computed)
        made["weight"] = replace(weight, form="array") if weight.form == "scalar" else weight
    of_loss = kept if reduction == "none" else ()
    classes = made["target"].dtype.kind == "i"
    # Classes that are not there: refused on the CPU, NaN where nobody waits for the answer.
    wrong = classes and math.prod(kept) > 0 and draw.chance(0.12)
    target = (made["target"],) if not classes else ()
    if back:
        made["dloss"] = draw.array("dloss", of_loss, r.choice(("plain", "wide")), number=True)
        made["lse"] = Array("lse", kept, computed, layout=draw.layout(len(kept), computed))
        if reduction != "none":
            made["divisor"] = Array("divisor", (), FLOAT64, layout=draw.layout(0, FLOAT64))
        args = tuple(
            made.get(name) for name in ("dloss", "logits", "target", "weight", "lse", "divisor")
        )
        outs = draw.outs(
            [("dlogits", shape, draw.dtype)],
            {0: (made["logits"],)},
            forbidden=target,
            accumulates=True,
        )
    else:
        args = (made["logits"], made["target"])
        named |= {"weight": made["weight"]} if "weight" in made else {}
        outputs = [("loss", of_loss, draw.dtype)]
        if entry == "forward":
            outputs.append(("lse", kept, computed))
        outs = draw.outs(outputs, {}, forbidden=(made["logits"], *target))
    if shape[axis] == 0:
        outs["refused"] = "no classes"
    elif wrong and draw.device == "cpu":
        outs["refused"] = outs.get("refused") or "a class that is not there"
    notes: dict[str, Any] = {
        "made": made, "axis": axis, "kept": kept, "ignored": ignored, "wrong": wrong,
        "reduction": reduction,
    }  # fmt: skip
    if wrong:  # kernels see it, which know the op
        notes["says"] = f"fastact.{op.name}"
    return Request(op.name, entry, draw.framework, draw.dtype, args, named, notes=notes, **outs)


def _fill_loss(request: Request, values: dict[str, Any], rng: np.random.Generator) -> None:
    """Classes, some of which are ignored, and what backward is given as saved."""
    notes = request.notes
    made, axis = notes["made"], notes["axis"]
    logits, target = made["logits"], made["target"]
    classes = logits.shape[axis]
    if not classes:
        return
    if target.dtype.kind == "i":
        of = np.iinfo(target.stored or target.dtype)
        drawn = rng.integers(0, classes, target.drawn)
        if of.min <= notes["ignored"] <= of.max:
            share = rng.choice((0.0, 0.2, 0.2, 1.0))
            drawn = np.where(rng.random(target.drawn) < share, notes["ignored"], drawn)
        if notes["wrong"]:
            outside = [classes, classes + 5, -1, -7, of.min, of.max]
            outside = [n for n in outside if not 0 <= n < classes and n != notes["ignored"]]
            drawn.reshape(-1)[rng.integers(drawn.size)] = rng.choice(outside)
        values["target"] = drawn.astype(target.dtype)
    if "lse" in made:
        x = wide(full(logits, values), request.dtype)
        lse = reference.softmax_row("logsumexp", x, (axis,))
        values["lse"] = lse.reshape(notes["kept"]).astype(made["lse"].dtype)
    if "divisor" in made:
        _, _, counts, _ = _losses(request, values)
        divisor = np.sum(counts) if notes["reduction"] == "mean" else 1.0
        values["divisor"] = np.asarray(divisor).astype(FLOAT64)


def _losses(request: Request, values: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """What the oracle tells of each row."""
    notes, dtype = request.notes, request.dtype
    made = notes["made"]
    weight = wide(full(made["weight"], values), dtype) if "weight" in made else None
    smoothing = request.named.get("label_smoothing", Number(0.0)).value
    x, target = wide(full(made["logits"], values), dtype), full(made["target"], values)
    found: tuple[Any, Any, Any, Any] = reference.cross_entropy(
        x, target, weight, notes["axis"], notes["ignored"], smoothing
    )
    return found


def _is_wrong(request: Request, values: dict[str, Any]) -> Any:
    """Of each row, whether its class is not there."""
    notes, target = request.notes, full(request.notes["made"]["target"], values)
    if not notes["wrong"]:
        return np.zeros(notes["kept"], bool)
    classes = notes["made"]["logits"].shape[notes["axis"]]
    return ((target < 0) | (target >= classes)) & (target != notes["ignored"])


def _loss(request: Request, values: dict[str, Any]) -> list[Expected | None]:
    op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
    x, axis = wide(full(notes["made"]["logits"], values), dtype), notes["axis"]
    losses, terms, counts, tw = _losses(request, values)
    wrong, many = _is_wrong(request, values), x.shape[axis]
    # Rows of numbers, of which some may be -inf; the others are NaN, or what their target leaves.
    # So may be a share of 0 in a loss without bounds, as it is for torch.
    smoothed = request.named.get("label_smoothing", Number(0.0)).value == 1
    classes = notes["made"]["target"].dtype.kind == "i"
    no_share = np.bool_(smoothed) if classes else tw == 0
    usual = (np.isfinite(x) | (np.isneginf(x) & ~no_share)).all(axis) & np.isfinite(x).any(axis)
    one: Any = 1.0
    if notes["reduction"] != "none":
        one = np.sum(counts) if notes["reduction"] == "mean" else one
        losses, terms = np.sum(losses) / one, np.sum(terms) / one
    judged, nan = (usual, wrong) if notes["reduction"] == "none" else (usual.all(), wrong.any())
    rows = 1 if notes["reduction"] == "none" else np.size(counts)
    error = op.bounds.allowed(losses, terms, many, dtype, rows=rows, on_gpu=_is_rough(request))
    found: list[Expected | None] = [Expected(losses, error, False, judged & ~nan, nan)]
    if request.entry != "forward":
        return found
    lse = reference.softmax_row("logsumexp", x, (axis,)).reshape(notes["kept"])
    size = np.max(np.abs(np.where(np.isfinite(x), x, 0)), axis)
    error = _OF_LSE.allowed(
        lse, size, many, computed_in(dtype), rounds=False, on_gpu=_is_rough(request)
    )
    saved = {"lse": Expected(lse, error, False)}
    if notes["reduction"] != "none":
        error = 2.0**-52 * max(np.size(counts), 1) * np.abs(one)
        saved["divisor"] = Expected(np.asarray(one), error, True, ~wrong.any())
    return found + [saved.get(name) for name in op.saves]


def _loss_gradient(request: Request, values: dict[str, Any]) -> list[Expected | None]:
    op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
    made, axis = notes["made"], notes["axis"]
    x = wide(full(made["logits"], values), dtype)
    g = wide(full(made["dloss"], values), dtype)
    if notes["reduction"] != "none":
        g = g / wide(values["divisor"], dtype)
    elif made["dloss"].form != "number":
        g = np.expand_dims(g, axis)
    tw = _losses(request, values)[3]
    lse = np.expand_dims(wide(full(made["lse"], values), dtype), axis)
    p = np.exp(x - lse) * tw.sum(axis, keepdims=True)
    ignored = np.bool_(False)
    if made["target"].dtype.kind == "i":
        ignored = np.expand_dims(full(made["target"], values) == notes["ignored"], axis)
    exact = np.where(ignored, 0, g * (p - tw))
    size = np.where(ignored, 0, np.abs(g) * (p + tw))
    exponent = np.where(p > 0, x - lse, 0) if _is_rough(request) else None
    error = op.bounds.gradient(exact, size, x.shape[axis], dtype, exponent)
    error = error + np.where(ignored, 0, _tiny(request) * (1 + np.abs(g)))
    wrong = np.expand_dims(_is_wrong(request, values), axis)
    nan = np.broadcast_to(wrong, x.shape)
    return [_sum(request, values, exact, error, ~nan, nan)]
