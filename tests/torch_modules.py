"""How each module of torch.nn that fastact has is made and called in tests."""

from collections.abc import Iterator, Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from fastact.torch.nn import activations

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


class Case(NamedTuple):
    """A module by the arguments of its constructor, and the shapes of the inputs of a call.

    classes : how many the second input chooses from, where it is a class for each row.
    """

    torch_class: type[nn.Module]
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})
    shapes: tuple[tuple[int, ...], ...] = ((4, 6),)
    classes: int = 0

    def __str__(self) -> str:
        given = ["weight" if isinstance(a, torch.Tensor) else str(a) for a in self.args]
        given += [f"{n}={v}" for n, v in self.options.items()]
        return f"{self.torch_class.__name__}({', '.join(given)})-{self.shapes[0]}"

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in self.shapes]
        made = [tensor.to(dtype) for tensor in made]
        if self.classes:
            made[1] = torch.randint(self.classes, self.shapes[1], generator=generator)
        return made

    def with_sizes(self, n: int) -> Iterator["Case"]:
        """The same calls of arrays that have the length n along an axis, or along all but one.

        Of several inputs all that have a length have n in its place, for it means the same.
        """
        if len(self.shapes) > 1:
            lengths = sorted({length for shape in self.shapes for length in shape})
            found = [
                tuple(tuple(n if m == length else m for m in shape) for shape in self.shapes)
                for length in lengths
            ]
        else:
            (shape,) = self.shapes
            axes = range(len(shape))
            found = [(tuple(n if i == j else m for i, m in enumerate(shape)),) for j in axes]
            found += [(tuple(m if i == j else n for i, m in enumerate(shape)),) for j in axes]
        return (self._replace(shapes=shapes) for shapes in dict.fromkeys(found))

    def call(self, module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """All results of a call; the states of an LSTM come and go as a tuple."""
        torch.manual_seed(0)  # of dropout
        x, *others = inputs
        if len(others) > 1:
            others = [tuple(others)]
        y = module(x, *others)
        parts = y if isinstance(y, tuple) else (y,)
        return [t for part in parts for t in (part if isinstance(part, tuple) else (part,))]


def _activations() -> list[Case]:
    """Each with its parameters as they are by default, and with others."""
    cases = []
    for cls in vars(activations).values():
        base = cls.__bases__[-1] if isinstance(cls, type) else None
        if base is None or vars(nn).get(base.__name__) is not base or base is nn.Module:
            continue
        cases.append(
            Case(base, (), {"inplace": True} if "inplace" in signature(base).parameters else {})
        )
        parameters = activations.ACTIVATIONS[cls.op].parameters
        others = {n: "tanh" if isinstance(v, str) else 1.5 * v for n, v in parameters.items()}
        cases.append(Case(base, (), others))
    return cases


def _norms() -> list[Case]:
    cases = []
    for d, spatial in ((1, (7,)), (2, (4, 3)), (3, (2, 3, 2))):
        batch, instance = getattr(nn, f"BatchNorm{d}d"), getattr(nn, f"InstanceNorm{d}d")
        shapes = ((3, 4, *spatial),)
        for options in (
            {},
            {"affine": False, "momentum": 0.3},
            {"track_running_stats": False, "eps": 1e-3},
            {"momentum": None, "bias": False},
        ):
            cases.append(Case(batch, (4,), options, shapes))
        cases.append(Case(instance, (4,), {}, shapes))
        cases.append(Case(instance, (4,), {"affine": True, "track_running_stats": True}, shapes))
        cases.append(Case(instance, (4,), {"affine": True, "bias": False}, (shapes[0][1:],)))
    cases.append(Case(nn.BatchNorm1d, (6,)))
    cases.append(Case(nn.SyncBatchNorm, (4,), {}, ((3, 4, 5),)))  # of one process
    for shape in ((6,), (4, 6)):
        cases.append(Case(nn.LayerNorm, (shape,), {}, ((3, 4, 6),)))
        cases.append(Case(nn.RMSNorm, (shape,), {"eps": 1e-5}, ((3, 4, 6),)))
    cases.append(Case(nn.LayerNorm, (6,), {"bias": False, "eps": 1e-3}))
    cases.append(Case(nn.LayerNorm, (6,), {"elementwise_affine": False}))
    cases.append(Case(nn.RMSNorm, (6,), {"elementwise_affine": False, "eps": 1e-3}))
    cases.append(Case(nn.GroupNorm, (2, 6), {}, ((3, 6, 4),)))
    cases.append(Case(nn.GroupNorm, (4, 4), {}, ((3, 4, 5),)))
    cases.append(Case(nn.GroupNorm, (3, 6), {"affine": False, "eps": 1e-3}, ((3, 6, 4, 2),)))
    return cases


def _rows() -> list[Case]:
    cases = [
        Case(cls, (dim,), {}, ((3, 5, 4),))
        for cls in (nn.Softmax, nn.Softmin, nn.LogSoftmax)
        for dim in (0, 1, -1)
    ]
    cases += [Case(nn.Softmax2d, (), {}, shapes) for shapes in (((5, 4, 3),), ((2, 5, 4, 3),))]
    loss, per_row = nn.CrossEntropyLoss, ((6, 5), (6,))
    cases.append(Case(loss, (), {}, per_row, classes=5))
    cases.append(Case(loss, (), {"ignore_index": 2, "reduction": "sum"}, per_row, classes=5))
    options = {"reduction": "none", "label_smoothing": 0.1}
    cases.append(Case(loss, (), options, ((2, 5, 3), (2, 3)), classes=5))
    cases.append(Case(loss, (torch.linspace(0.5, 2, 5),), {}, per_row, classes=5))
    cases.append(Case(loss, (), {}, ((6, 5), (6, 5))))  # probabilities
    return cases


def _recurrent() -> list[Case]:
    cases = []
    for cell, layers, count in ((nn.LSTMCell, nn.LSTM, 2), (nn.GRUCell, nn.GRU, 1)):
        cases.append(Case(cell, (3, 5), {}, ((4, 3),)))
        cases.append(Case(cell, (3, 5), {"bias": False}, ((4, 3), *((4, 5),) * count)))
        cases.append(Case(cell, (3, 5), {}, ((3,), *((5,),) * count)))
        cases.append(Case(layers, (3, 5), {}, ((6, 4, 3), *((1, 4, 5),) * count)))
        if count == 2:
            projected = {"proj_size": 2, "bidirectional": True}
            states = ((2, 4, 2), (2, 4, 5))
            cases.append(Case(layers, (3, 5), projected, ((6, 4, 3), *states)))
            cases.append(Case(layers, (3, 5), {"proj_size": 2, "num_layers": 2}, ((6, 4, 3),)))
        deep = {"num_layers": 2, "bidirectional": True}
        cases.append(Case(layers, (3, 5), {**deep, "dropout": 0.5}, ((6, 4, 3),)))
        cases.append(Case(layers, (3, 5), {**deep, "bias": False}, ((6, 3), *((4, 5),) * count)))
        cases.append(Case(layers, (3, 5), {"batch_first": True}, ((4, 6, 3),)))
    return cases


CASES = [
    *_activations(),
    *_norms(),
    *_rows(),
    *_recurrent(),
    Case(nn.GLU),
    Case(nn.GLU, (1,), {}, ((3, 6, 4),)),
    Case(nn.PReLU),
    Case(nn.PReLU, (4,), {"init": 0.1}, ((3, 4, 5),)),
    Case(nn.Dropout, (1.0,)),  # of any seed
    Case(nn.Linear, (6, 3)),
    Case(nn.Conv1d, (3, 4, 3), {"padding": 1}, ((2, 3, 7),)),
    Case(nn.Conv2d, (3, 4, 3), {"padding_mode": "circular", "padding": 1}, ((2, 3, 5, 5),)),
    Case(nn.Conv3d, (3, 4, 2), {"bias": False}, ((2, 3, 4, 4, 4),)),
]
