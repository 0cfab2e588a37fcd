"""Memory that norms move and keep, against the chains of array operations that they replace.

    python tools/norm_traffic.py > docs/results/norms.md

Nothing is measured. Of a chain, the bytes of the arrays that each operation reads and writes are
counted: of NumPy by an array that sees its ufuncs, of torch by what it dispatches, forward and
backward; of fastact, its passes. What an operation may find in a cache counts all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

SHAPE = (16, 32, 28, 28)
GROUPS = 8


class Counting(np.ndarray):
    """An array whose ufuncs are counted."""

    moved = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = lambda a: a.view(np.ndarray) if isinstance(a, Counting) else a  # noqa: E731
        if kwargs.get("out"):
            kwargs["out"] = tuple(map(plain, kwargs["out"]))
        result = getattr(ufunc, method)(*map(plain, inputs), **kwargs)
        Counting.moved += sum(a.nbytes for a in (*inputs, result) if isinstance(a, np.ndarray))
        return result.view(Counting) if isinstance(result, np.ndarray) else result


class Traffic(TorchDispatchMode):
    """Counts the bytes of what each operation reads, and of what it writes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        leaves = [*torch.utils._pytree.tree_leaves(args), *torch.utils._pytree.tree_leaves(kwargs)]
        inputs = [a for a in leaves if isinstance(a, torch.Tensor)]
        outputs = [
            a for a in torch.utils._pytree.tree_leaves(result) if isinstance(a, torch.Tensor)
        ]
        memory = {a.untyped_storage().data_ptr() for a in inputs}
        made = [a for a in outputs if a.untyped_storage().data_ptr() not in memory]
        if made or not outputs:  # else a view
            self.moved += sum(bytes_of(a) for a in (*inputs, *made))
        return result


def bytes_of(tensor: Any) -> int:
    """Of memory, however often it repeats."""
    return int(min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()))


@contextmanager
def kept_in(held: dict[int, int]) -> Iterator[None]:
    """What autograd keeps for backward, by address."""

    def pack(tensor: Any) -> Any:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


# --- the chains, over NumPy or torch --------------------------------------------------------------


def standardised(x: Any, axes: tuple[int, ...], m: Any, centred: bool = True) -> Any:
    """(x - mean) / sqrt(variance + eps), as it is written down."""
    if centred:
        x = x - x.mean(axes, keepdims=True)
    return x / m.sqrt((x * x).mean(axes, keepdims=True) + 1e-5)


def layer_norm(x: Any, w: Any, b: Any, m: Any) -> Any:
    return standardised(x, (-1,), m) * w + b


def rms_norm(x: Any, w: Any, b: Any, m: Any) -> Any:
    return standardised(x, (-1,), m, centred=False) * w


def add_layer_norm(x: Any, w: Any, b: Any, m: Any) -> Any:
    return layer_norm(x + x, w, b, m)


def add_rms_norm(x: Any, w: Any, b: Any, m: Any) -> Any:
    return rms_norm(x + x, w, b, m)


def of_channels(x: Any, w: Any, b: Any, m: Any, axes: tuple[int, ...]) -> Any:
    return standardised(x, axes, m) * w[:, None, None] + b[:, None, None]


def group_norm(x: Any, w: Any, b: Any, m: Any) -> Any:
    units = standardised(x.reshape(len(x), GROUPS, -1), (-1,), m).reshape(x.shape)
    return units * w[:, None, None] + b[:, None, None]


def norm_apply(x: Any, w: Any, b: Any, m: Any) -> Any:
    mean, rstd = b[:, None, None], w[:, None, None]
    return (x - mean) * rstd * w[:, None, None] + b[:, None, None]


#: By name: the chain, and the arrays of x's size that fastact moves forward and backward. For the
#: way back it keeps x (of ops that add, the sum, which is one of their results anyway).
OPS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "layer_norm": (layer_norm, 2, 3),
    "rms_norm": (rms_norm, 2, 3),
    "add_layer_norm": (add_layer_norm, 4, 3),
    "add_rms_norm": (add_rms_norm, 4, 3),
    "group_norm": (group_norm, 2, 3),
    "instance_norm": (partial(of_channels, axes=(2, 3)), 2, 3),
    "batch_norm, training": (partial(of_channels, axes=(0, 2, 3)), 3, 5),
    "norm_apply": (norm_apply, 2, 5),
}


def by_numpy(chain: Callable[..., Any], mish: bool) -> float:
    """Arrays of x's size that NumPy moves."""
    x = np.ones(SHAPE, np.float32).view(Counting)
    w = np.ones(SHAPE[-1 if is_of_rows(chain) else 1], np.float32)
    Counting.moved = 0
    y = chain(x, w, w, np)
    if mish:
        y * np.tanh(np.log1p(np.exp(y)))
    return Counting.moved / x.nbytes


def by_torch(chain: Callable[..., Any], mish: bool) -> tuple[float, float, float]:
    """Those that torch moves forward, and backward, and keeps between."""
    x = torch.ones(SHAPE, requires_grad=True)
    w, b = (torch.ones(SHAPE[-1 if is_of_rows(chain) else 1], requires_grad=True) for _ in "wb")
    held: dict[int, int] = {}
    with Traffic() as ahead, kept_in(held):
        y = chain(x, w, b, torch)
        y = torch.nn.functional.mish(y) if mish else y
    dy = torch.ones(SHAPE)
    with Traffic() as back:
        torch.autograd.grad(y, [x, w, b], dy, allow_unused=True)
    unit = x.numel() * x.itemsize
    return ahead.moved / unit, back.moved / unit, sum(held.values()) / unit


def is_of_rows(chain: Any) -> bool:
    return chain in (layer_norm, rms_norm, add_layer_norm, add_rms_norm)


PAGE = """\
# Memory that norms move

Counted by `python tools/norm_traffic.py`, in arrays of x's size ({shape}, float32) that are
read or written. The chains are the textbook's, one array operation after the other: NumPy's, and
torch's in eager mode with autograd's way back. less: what fastact saves of the shorter one. kept:
held between forward and backward. A second look at what one pass has in the cache (a row, a group)
counts as none, for fastact; the chains' arrays may be found there too where they are small.
"""


def main() -> None:
    print(PAGE.format(shape=" × ".join(map(str, SHAPE))))
    header = [
        "op",
        "forward",
        "NumPy",
        "torch",
        "less",
        "backward",
        "torch",
        "less",
        "kept",
        "torch",
    ]
    print("| " + " | ".join(header) + " |")
    print("|---|" + "---:|" * (len(header) - 1))
    for name, (chain, forward, backward) in OPS.items():
        for mish in (False, True):
            ahead, back, kept = by_torch(chain, mish)
            chained = by_numpy(chain, mish)
            cells = [
                f"{name}, mish" if mish else name,
                f"{forward}",
                f"{chained:.1f}",
                f"{ahead:.1f}",
                f"{1 - forward / min(ahead, chained):.0%}",
                f"{backward}",
                f"{back:.1f}",
                f"{1 - backward / back:.0%}",
                "1",
                f"{kept:.1f}",
            ]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
