"""The benchmarks of families of few lines, and of a family that has none: without any peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastact.measure.peers import LeftOut, function_named

from .. import shapes
from ..shapes import hidden, shape_label
from .libraries import Library
from .work import ITEM, Asked, Case, Family

_HEAD = 128  # elements of a head, of rotary embeddings
_LOG_2 = 0.6931471805599453


def _cases(asked: Asked) -> list[Case]:
    """Arrays of rows, of which the call reads and writes those that it names."""
    point = asked.op.entry_points["call" if asked.forward else "backward"]
    count = len(point.arrays) + point.outputs
    return [asked.case(hidden(size), count) for size in asked.sized()]


def _by(m: Library, case: Case) -> Callable[..., Any]:
    raise LeftOut(f"{case.op.family} has no workloads of its own")


OTHER = Family(_cases, _by)

# --- divergences of rows of log-probabilities: two arrays are read, and next to nothing written ---


def _divergences(asked: Asked) -> list[Case]:
    count, sums = (2, True) if asked.forward else (4, False)
    return [asked.case(hidden(size), count, axis=(1,), sums=sums) for size in asked.sized()]


def _divergence(m: Library, case: Case) -> Callable[..., Any]:
    kl_div = function_named(m.functional, "kl_div")

    def kl(log_q: Any, log_p: Any) -> Any:
        return kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)

    def js(log_q: Any, log_p: Any) -> Any:
        log_m = m.module.logaddexp(log_q, log_p) - _LOG_2
        return (kl(log_m, log_p) + kl(log_m, log_q)) / 2

    return {"kl_div": kl, "js_div": js}[case.op.name]


DIVERGENCES = Family(_divergences, _divergence)

# --- dropout: torch alone has it; its mask is another one, which backward reads -------------------


def _dropouts(asked: Asked) -> list[Case]:
    return [asked.case(hidden(size), 2, options={"p": 0.1, "seed": 3}) for size in asked.sized()]


def _dropout(m: Library, case: Case) -> Callable[..., Any]:
    function, p = function_named(m.functional, "dropout"), case.options["p"]
    return lambda x: function(x, p)


DROPOUT = Family(_dropouts, _dropout)

# --- parametric activations: forward reads x and writes y; backward reads dy and x, writes dx -----


def _parametric(asked: Asked) -> list[Case]:
    on_gpu = shapes.of_lengths(asked.sized(), (1024,))
    on_gpu += [picture for picture in shapes.pictures(asked.sizes) if picture.channel == 1]
    table = [layout for layout in shapes.BIASED if layout.channel is not None]
    more = {"options": {"channel_axis": 1}, "channel": 1}
    return [
        asked.case(
            layout.shape,
            2 if asked.forward else 3,
            f"{shape_label(layout.shape)}, channels 1",
            axis=shapes.others(layout.shape, 1),
            **more,
        )
        for layout in asked.layouts(table, on_gpu)
    ]


PARAMETRIC = Family(_parametric, lambda m, case: function_named(m.functional, case.op.name))

# --- rotary embeddings: x is read and y written; a token's angles are the same for its heads ------


def _is_normed(op: Any) -> bool:
    return "weight" in op.saves


def _rotary(asked: Asked) -> list[Case]:
    """The whole head is turned, as halves and as neighbours; behind a norm backward reads x."""
    found = []
    for tokens, columns in map(hidden, asked.sized()):
        head = min(_HEAD, columns)
        shape, small = (tokens, columns // head, head), tokens * head * ITEM[asked.dtype]
        accesses = 2 + (_is_normed(asked.op) and not asked.forward)
        found.append(asked.case(shape, accesses, small=small))
        label = f"{shape_label(shape)}, interleaved"
        found.append(asked.case(shape, accesses, label, small=small, options={"interleaved": True}))
    return found


def _angles_of_tokens(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
    return {n: a[:, :1] if n in ("cos", "sin") else a for n, a in arrays.items()}


def _turned(m: Library, case: Case) -> Callable[..., Any]:
    stack, join = m.module.stack, m.module.concatenate
    norm = getattr(m.functional, "rms_norm", _rms_norm)

    def turned(x: Any, cos: Any, sin: Any, weight: Any = None) -> Any:
        if _is_normed(case.op):
            x = norm(x, x.shape[-1:], weight, 1e-6)
        if case.options.get("interleaved"):
            a, b = x[..., ::2], x[..., 1::2]
            return stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape)
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        return join((a * cos - b * sin, b * cos + a * sin), -1)

    return turned


def _rms_norm(x: Any, shape: Any, weight: Any, eps: float) -> Any:
    return x / ((x * x).mean(-1, keepdims=True) + eps) ** 0.5 * weight


ROTARY = Family(
    _rotary,
    _turned,
    optional=("weight",),
    prepared=_angles_of_tokens,
    constant=frozenset({"cos", "sin"}),
)
