"""Memory that norms move and keep, against the chains of array operations that they replace.

    python tools/norm_traffic.py > docs/results/norms.md

Nothing is measured. Of a chain, the bytes of the arrays that each operation reads and writes are
counted: of NumPy by an array that sees its ufuncs, of torch by what it dispatches, forward and
backward; of fastact, its passes. What an operation may find in a cache counts all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fastact as fa
from fastact.measure.norm_rows import rows_of, traits
from fastact.terminal import markdown_table

Chain = Callable[[Any, Any, Any, Any], Any]

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


def chain_of(op: Any) -> Chain:
    """The chain that a norm replaces, of x, weight and bias, by its signature.

    Of an op that is given statistics these stand for weight and bias, too.
    """
    kind = traits(op)
    options: dict[str, Any] = {kind.channels: 1} if kind.channels else {}
    rows = rows_of(op, SHAPE, {**options, "num_groups": GROUPS})
    flat = (*SHAPE[:1], GROUPS, -1)  # groups of channels, in memory one after the other

    def along(parameter: Any) -> Any:
        return parameter[:, None, None] if kind.channels else parameter

    def chain(x: Any, w: Any, b: Any, m: Any) -> Any:
        x = x + x if kind.adds else x
        if kind.given:
            y = (x - along(b)) * along(w)
        elif kind.groups:
            y = standardised(x.reshape(flat), (-1,), m).reshape(x.shape)
        else:
            y = standardised(x, rows.axes, m, centred=kind.centred)
        return y * along(w) + along(b) if kind.centred else y * along(w)

    return chain


def moved_by(op: Any) -> tuple[int, int]:
    """Arrays of x's size that fastact moves forward and backward.

    Forward x is read and y written; an op that adds reads the residual and writes the sum, and one
    that takes the moments of the batch reads x for them first. Backward dy and x are read, twice
    where dx waits for sums over the batch, and dx is written. For the way back all keep x (of ops
    that add, the sum, which is one of their results anyway).
    """
    kind = traits(op)
    return 2 + 2 * kind.adds + kind.moves, 5 if kind.by_channel else 3


def by_numpy(chain: Chain, length: int, mish: bool) -> float:
    """Arrays of x's size that NumPy moves."""
    x = np.ones(SHAPE, np.float32).view(Counting)
    w = np.ones(length, np.float32)
    Counting.moved = 0
    y = chain(x, w, w, np)
    if mish:
        y * np.tanh(np.log1p(np.exp(y)))
    return Counting.moved / x.nbytes


def by_torch(chain: Chain, length: int, mish: bool) -> tuple[float, float, float]:
    """Those that torch moves forward, and backward, and keeps between."""
    x = torch.ones(SHAPE, requires_grad=True)
    w, b = (torch.ones(length, requires_grad=True) for _ in "wb")
    held: dict[int, int] = {}
    with Traffic() as ahead, kept_in(held):
        y = chain(x, w, b, torch)
        y = torch.nn.functional.mish(y) if mish else y
    dy = torch.ones(SHAPE)
    with Traffic() as back:
        torch.autograd.grad(y, [x, w, b], dy, allow_unused=True)
    size = x.numel() * x.itemsize
    return ahead.moved / size, back.moved / size, sum(held.values()) / size


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
    header = ["op", "forward", "NumPy", "torch", "less", "backward", "torch", "less"]
    header += ["kept", "torch"]
    lines = []
    norms = [op for op in fa.ops.values() if op.family == "norms"]
    norms.sort(key=lambda op: traits(op).by_channel)
    for op, mish in product(norms, (False, True)):
        kind, (forward, backward) = traits(op), moved_by(op)
        chain, length = chain_of(op), SHAPE[1 if kind.channels else -1]
        ahead, back, kept = by_torch(chain, length, mish)
        chained = by_numpy(chain, length, mish)
        name = op.name + ", training" * kind.moves + ", mish" * mish
        line = [f"{forward}", f"{chained:.1f}", f"{ahead:.1f}"]
        line += [f"{1 - forward / min(ahead, chained):.0%}", f"{backward}", f"{back:.1f}"]
        lines.append([name, *line, f"{1 - backward / back:.0%}", "1", f"{kept:.1f}"])
    print(markdown_table(header, lines))


if __name__ == "__main__":
    main()
