"""Exports to ONNX, of ops and of converted models, computed by ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
import torch
from tensors import called, sample
from torch import nn
from torch_modules import CASES

import fastact as fa
import fastact.torch.nn as fnn

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")  # by which torch translates

# torch's own, of what it loads at the first use
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

#: Some roundings of float32, by other formulas than the kernels'.
TOLERANCE = {"rtol": 4e-6, "atol": 1e-6}

# Who draws random numbers has no export.
OPS = [op for op in fa.ops.values() if not op.traits.counts_elements]


class Calls(nn.Module):
    """Results of several functions, each of its own arrays out of all that are given."""

    def __init__(self, calls: list[Any], counts: list[int], modules: list[nn.Module]) -> None:
        super().__init__()
        self.calls, self.counts, self.inside = calls, counts, nn.ModuleList(modules)
        self.eval()

    def forward(self, *arrays: torch.Tensor) -> list[torch.Tensor]:
        parts: list[torch.Tensor] = []
        for call, given in zip(self.calls, _split(arrays, self.counts), strict=True):
            made = call(*given)
            parts += made if isinstance(made, tuple | list) else (made,)
        return parts


def _split(arrays: Any, counts: list[int]) -> list[Any]:
    ends = np.cumsum(counts)
    return [arrays[end - count : end] for end, count in zip(ends, counts, strict=True)]


def by_runtime(model: Any, arrays: list[torch.Tensor], **options: Any) -> list[np.ndarray]:
    """What ONNX Runtime computes of a model that torch exports."""
    program = torch.onnx.export(model, tuple(arrays), dynamo=True, verbose=False, **options)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [each.name for each in session.get_inputs()]
    return session.run(None, dict(zip(names, (a.numpy() for a in arrays), strict=True)))


def assert_close(found: list[np.ndarray], expected: list[torch.Tensor]) -> None:
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), right.detach(), **TOLERANCE)


def call_of(op: Any) -> tuple[Any, list[torch.Tensor]]:
    """A call as a function of its tensors, and these."""
    named = sample(op, np.float32)
    names = [name for name, value in named.items() if isinstance(value, torch.Tensor)]
    return called(op, named, names), [named[name] for name in names]


class Case(nn.Module):
    """A module as its case calls it."""

    def __init__(self, case: Any, module: nn.Module) -> None:
        super().__init__()
        self.case, self.module = case, module

    def forward(self, *arrays: torch.Tensor) -> list[torch.Tensor]:
        return self.case.call(self.module, list(arrays))


def module_of(case: Any) -> tuple[Any, list[torch.Tensor]]:
    module = case.torch_class(*case.args, **case.options)
    fnn.convert(module, only=lambda name, each: True)
    return Case(case, module), case.inputs(torch.float32)


def assert_exports(calls: list[tuple[Any, list[torch.Tensor]]]) -> None:
    """All in one model, for an export takes half a second whatever is in it."""
    functions, each = zip(*calls, strict=True)
    arrays = [a for one in each for a in one]
    modules = [call for call in functions if isinstance(call, nn.Module)]
    model = Calls(list(functions), [*map(len, each)], modules)
    with torch.no_grad():
        expected = model(*(array.clone() for array in arrays))  # some work in place
    assert_close(by_runtime(model, arrays), expected)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_formula_of_an_operator(op):
    """The decomposition that exporters find in torch's table gives what the kernels give."""
    from fastact.torch.dispatch import OPERATORS

    operators = OPERATORS[op.name]
    for dtype in (np.float32, np.float16):
        named = operators.promoted(sample(op, dtype))
        values = operators.values(named)
        found, expected = (
            torch._decomp.decomposition_table[operators.call](*values),
            operators.call(*values),
        )
        unit = float(np.finfo(dtype).eps)
        torch.testing.assert_close(found, expected, rtol=32 * unit, atol=8 * unit)


@pytest.mark.parametrize("part", ["first", pytest.param("rest", marks=pytest.mark.thorough)])
def test_ops(part):
    """The first of each family, for a formula takes a sixth of a second on its way to ONNX."""
    first = list({op.family: op for op in reversed(OPS)}.values())
    assert_exports([call_of(op) for op in OPS if (op in first) == (part == "first")])


#: torch's own has no export with a projection.
MODULES = [case for case in CASES if "proj_size" not in case.options]
LAST = {case.torch_class: case for case in MODULES}


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # of torch's RNNs
@pytest.mark.parametrize("part", ["last", pytest.param("rest", marks=pytest.mark.thorough)])
def test_modules(part):
    """Of each class the last case; the others take as long as ops do."""
    cases = [c for c in MODULES if (c is LAST[c.torch_class]) == (part == "last")]
    assert_exports([module_of(case) for case in cases])


def test_a_program_that_is_exported_already():
    """By torch.export, for a batch of any length."""
    layers = [nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Softmax(-1)]
    model = nn.Sequential(*layers).eval()
    fnn.convert(model)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(model, (torch.randn(3, 6),), dynamic_shapes=(({0: rows}),))
    exported = torch.onnx.export(program, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(exported.model_proto.SerializeToString())
    x = torch.randn(5, 6)
    assert_close(session.run(None, {session.get_inputs()[0].name: x.numpy()}), [model(x)])


def test_known_activations_are_onnx_s_own():
    model = nn.Mish().eval()
    fnn.convert(model)
    program = torch.onnx.export(model, (torch.randn(3),), dynamo=True, verbose=False)
    assert [node.op_type for node in program.model_proto.graph.node] == ["Mish"]
