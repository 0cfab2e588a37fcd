"""ONNX Runtime as a peer: a model of one op, or of the few nodes that exporters write for it."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

from fastact.measure.peers import LeftOut

if TYPE_CHECKING:
    from .shapes import Axis
    from .workloads.work import Call, Work

# Where an activation is no node of its own: what exporters write for it. ONNX Runtime fuses some.
_BETWEEN = """\
low{i} = Constant <value_float = {low}> ()
high{i} = Constant <value_float = {high}> ()
min{i} = CastLike(low{i}, {x})
max{i} = CastLike(high{i}, {x})
{y} = Clip({x}, min{i}, max{i})"""
_NODES: dict[str, str] = {
    "identity": "{y} = Identity({x})",
    "relu": "{y} = Relu({x})",
    "relu6": _BETWEEN.replace("{low}", "0.0").replace("{high}", "6.0"),
    "relu2": "r{i} = Relu({x})\n{y} = Mul(r{i}, r{i})",
    "leaky_relu": "{y} = LeakyRelu <alpha = 0.01> ({x})",
    "elu": "{y} = Elu <alpha = 1.0> ({x})",
    "selu": "{y} = Selu({x})",
    "celu": "{y} = Celu <alpha = 1.0> ({x})",
    "gelu": "{y} = Gelu({x})",
    "silu": "s{i} = Sigmoid({x})\n{y} = Mul({x}, s{i})",
    "mish": "{y} = Mish({x})",
    "sigmoid": "{y} = Sigmoid({x})",
    "logsigmoid": "n{i} = Neg({x})\ns{i} = Softplus(n{i})\n{y} = Neg(s{i})",
    "hardsigmoid": "{y} = HardSigmoid <alpha = 0.16666667> ({x})",
    "tanh": "{y} = Tanh({x})",
    "hardtanh": _BETWEEN.replace("{low}", "-1.0").replace("{high}", "1.0"),
    "softcap": (
        "c{i} = Constant <value_float = 30.0> ()\n"
        "cap{i} = CastLike(c{i}, {x})\n"
        "s{i} = Div({x}, cap{i})\n"
        "t{i} = Tanh(s{i})\n"
        "{y} = Mul(cap{i}, t{i})"
    ),
    "tanhshrink": "t{i} = Tanh({x})\n{y} = Sub({x}, t{i})",
    "softplus": "{y} = Softplus({x})",
    "softsign": "{y} = Softsign({x})",
    "softshrink": "{y} = Shrink <lambd = 0.5, bias = 0.5> ({x})",
    "hardshrink": "{y} = Shrink <lambd = 0.5> ({x})",
    "hardswish": "{y} = HardSwish({x})",
    "lisht": "t{i} = Tanh({x})\n{y} = Mul({x}, t{i})",
}
_TYPES = {"float16": "float16", "float32": "float", "float64": "double", "int64": "int64"}


def activation(name: str, x: str, y: str) -> str:
    """Its nodes, from x to y."""
    if name not in _NODES:
        raise LeftOut(f"ONNX has no {name}")
    return _NODES[name].format(x=x, y=y, i=y)


def reduced(node: str, x: str, axis: Axis, y: str) -> str:
    """A reduction of x over axes; None for all."""
    if axis is None:
        return f"{y} = {node} <keepdims = 0> ({x})"
    axes = ", ".join(map(str, axis))
    return f"axes = Constant <value_ints = [{axes}]> ()\n{y} = {node} <keepdims = 0> ({x}, axes)"


def by_onnx(work: Work, threads: int) -> Call:
    """The run of a session of one model; the results are new arrays."""
    case, family = work.case, work.family
    if case.direction != "forward":
        raise LeftOut("it is for inference")
    if family.onnx is None:
        raise LeftOut(f"it has no op of {case.op.family}")
    nodes = family.onnx(case)
    unknown = {array.dtype.name for array in work.inputs.values()} - {*_TYPES}
    if unknown:
        raise LeftOut(f"NumPy hands it no {', '.join(unknown)}")
    # Running statistics and rstd that the nodes do not name are no inputs.
    words = {*re.findall(r"\w+", nodes)}
    inputs = {name: array for name, array in work.inputs.items() if name in words}
    given = ", ".join(f"{_TYPES[a.dtype.name]}{[*a.shape]} {n}" for n, a in inputs.items())
    made = ", ".join(f"{_TYPES[case.dtype]}[] {name}" for name in ("y", "total") if name in words)
    sets = '["" : 21, "com.microsoft" : 1]'
    text = f"<ir_version: 10, opset_import: {sets}>\ng ({given}) => ({made}) {{\n{nodes}\n}}"
    runtime = importlib.import_module("onnxruntime")
    model = importlib.import_module("onnx.parser").parse_model(text)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Threads that stay awake hold the cores of whoever comes next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    return lambda: tuple(session.run(None, inputs))
