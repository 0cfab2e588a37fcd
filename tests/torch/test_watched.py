"""What traces, transforms and watches torch's operations, by the table of docs/torch.md."""

import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import first_of_families
from tensors import Dispatched, differentiated, each_op, sample
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._debug_mode import DebugMode
from torch.utils.flop_counter import FlopCounterMode

import fastact as fa
import fastact.torch.nn as fnn
from fastact import _cpu
from fastact.interop import foreign
from fastact.ops.engine.op import arrays_of
from fastact.torch.spec import spec_of

pytestmark = [
    # torch's own, of what it loads at the first use, and of what it gives up
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    # A tracer that turns a tensor into a number would keep the number.
    pytest.mark.filterwarnings("error::torch.jit.TracerWarning"),
]

PAGE = Path(__file__).parents[2] / "docs/torch.md"


def table() -> dict[str, tuple[str, str]]:
    """What the page says of value and gradient, by what the op is tried with."""
    rows = re.findall(r"^\| (.+?) \| (yes|no|error) \| (\w+) \|", PAGE.read_text(), re.M)
    return {name.strip("`"): (value, gradient) for name, value, gradient in rows}


class Call:
    """A call of an op on some arrays, and on others of their shapes.

    names : of the arrays that get a gradient; value and gradient are functions of these.
    rest : the other arguments.
    """

    def __init__(self, op: Any) -> None:
        self.op, self.name, named = op, op.name, sample(op)
        self.names = differentiated(op, named)
        self.rest = {name: value for name, value in named.items() if name not in self.names}
        self.given = [named[name] for name in self.names]
        self.others = [sample(op, seed=1)[name] for name in self.names]
        self.value = self.function("[*arrays_of({})]")

    def function(self, result: str = "{}") -> Callable[..., Any]:
        """The call as people write it: its signature has the names of the arrays."""
        text = {**{name: f"rest[{name!r}]" for name in self.rest}, **{n: n for n in self.names}}
        first = [text.pop(name) for name in self.op.entry_points["call"].arrays]
        given = ", ".join([*first, *(f"{name}={value}" for name, value in text.items())])
        space = {"op": self.op, "rest": self.rest, "arrays_of": arrays_of}
        text = f"lambda {', '.join(self.names)}: {result.format(f'op({given})')}"
        return eval(text, space)  # type: ignore[no-any-return]

    def gradient(self, *arrays: Any) -> list[Any]:
        leaves = [array.detach().requires_grad_() for array in arrays]
        made = self.value(*leaves)
        return [*torch.autograd.grad(made, leaves, [torch.ones_like(y) for y in made])]


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


# --- tracers: a program gives what the op gives, of arrays that it has not seen -------------------


def kept(trace: Callable[[Any, list[Any]], Any]) -> Any:
    def tried(call: Call, what: str) -> None:
        if what == "value":
            made = trace(call.value, call.given)
            same(made(*call.others), call.value(*call.others))
            return
        # A program may be differentiated, or have the gradient in it.
        made = trace(call.value, call.given)
        given = [array.clone().requires_grad_() for array in call.others]
        results = [*made(*given)]
        found = torch.autograd.grad(results, given, [torch.ones_like(y) for y in results])
        same(list(found), call.gradient(*call.others))

    return tried


class Program(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arrays: Any) -> Any:
        return self.function(*arrays)


def compiled(function: Any, given: list[Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def exported(function: Any, given: list[Any]) -> Any:
    return torch.export.export(Program(function), tuple(given)).module()


def jit_traced(function: Any, given: list[Any]) -> Any:
    return torch.jit.trace(lambda *each: tuple(function(*each)), tuple(given), check_trace=False)


def scripted(call: Call, what: str) -> None:
    torch.jit.script(call.function())


def by_make_fx(call: Call, what: str) -> None:
    function = getattr(call, what)
    for mode in ("real", "symbolic"):
        made = make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)(*call.given)
        same([*made(*call.others)], function(*call.others))


def by_fx(call: Call, what: str) -> None:
    made = torch.fx.symbolic_trace(call.function())
    kept(lambda function, given: lambda *each: [*arrays_of(made(*each))])(call, what)


def to_onnx(call: Call, what: str) -> None:
    with pytest.raises(TypeError, match=rf"^fastact\.{call.name}: .*dynamo=True"):
        torch.onnx.export(
            Program(call.value), tuple(call.given), io.BytesIO(), dynamo=False, verbose=False
        )
    raise NotImplementedError  # as is expected here


# --- transforms -----------------------------------------------------------------------------------


def by_vjp(call: Call, what: str) -> None:
    made, back = torch.func.vjp(lambda *each: tuple(call.value(*each)), *call.given)
    if what == "value":
        same([*made], call.value(*call.given))
    else:
        same([*back(tuple(torch.ones_like(y) for y in made))], call.gradient(*call.given))


def by_jvp(call: Call, what: str) -> None:
    tangents = tuple(torch.ones_like(array) for array in call.given)
    made, moved = torch.func.jvp(
        lambda *each: tuple(call.value(*each)), tuple(call.given), tangents
    )
    for one, other in zip(made, call.value(*call.given), strict=True):
        torch.testing.assert_close(one, other)
    if what == "gradient":  # the sum of all derivatives, in one order and in the other
        total = sum(y.sum() for y in moved)
        torch.testing.assert_close(total, sum(dx.sum() for dx in call.gradient(*call.given)))


def by_vmap(call: Call, what: str) -> None:
    batch = [torch.stack(pair) for pair in zip(call.given, call.others, strict=True)]
    function = getattr(call, what)
    if what == "gradient":

        def function(*each: Any) -> Any:
            total = lambda *each: sum(y.sum() for y in call.value(*each))  # noqa: E731
            return [*torch.func.grad(total, tuple(range(len(each))))(*each)]

    made = torch.func.vmap(function)(*batch)
    same([y[1] for y in made], getattr(call, what)(*call.others))


# --- modes and a profiler: they see the op by its name, and its values are the call's -------------


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def profiled(profile: Any) -> list[str]:
    return [event.key.replace("::", ".") for event in profile.key_averages()]


def counting(call: Call) -> Any:
    """A counter of operations for which each call of an op counts as 1."""
    entries = ("", "_forward", "_backward", "_functional", "_functional_backward")
    names = (f"{call.name}{entry}" for entry in entries)
    found = [getattr(torch.ops.fastact, n) for n in names if hasattr(torch.ops.fastact, n)]
    return FlopCounterMode(
        display=False, custom_mapping={operator: lambda *_, **__: 1 for operator in found}
    )


def counted(mode: Any) -> list[str]:
    return [str(name) for name in mode.get_flop_counts()["Global"]]


def watched(begin: Callable[[Call], Any], names: Callable[[Any], list[str]]) -> Any:
    def tried(call: Call, what: str) -> None:
        function = getattr(call, what)
        for _ in range(3):  # a call that is replayed is seen as well
            expected = function(*call.given)
        with begin(call) as mode:
            found = function(*call.given)
        same(found, expected)
        # A batch norm that writes no running statistics is an operator of its own.
        wanted = rf"fastact.{call.name}(_functional)?" + "_backward" * (what == "gradient")
        assert any(re.match(rf"{wanted}(\.default)?$", name) for name in names(mode))

    return tried


def without_memory(place: Callable[[Any], Any]) -> Any:
    def tried(call: Call, what: str) -> None:
        function = getattr(call, what)
        expected = function(*call.given)
        placed = place(call)
        for made, like in zip(function(*placed), expected, strict=True):
            assert (made.shape, made.dtype) == (like.shape, like.dtype)
            assert made.is_meta is placed[0].is_meta

    return tried


def of_fakes(call: Call) -> list[Any]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return [mode.from_tensor(array) for array in call.given]


def on_meta(call: Call) -> list[Any]:
    tensors = {n: v.to("meta") for n, v in call.rest.items() if isinstance(v, torch.Tensor)}
    call.rest.update(tensors)
    return [array.to("meta") for array in call.given]


TRIED: dict[str, Callable[[Call, str], None]] = {
    "torch.compile(fullgraph=True)": kept(compiled),
    "torch.export.export": kept(exported),
    "torch.jit.trace": kept(jit_traced),
    "torch.jit.script": scripted,
    "make_fx": by_make_fx,
    "torch.fx.symbolic_trace": by_fx,
    "torch.func.vjp": by_vjp,
    "torch.func.jvp": by_jvp,
    "torch.func.vmap": by_vmap,
    "TorchDispatchMode": watched(lambda call: Dispatched(), lambda mode: mode.names),
    "TorchFunctionMode": watched(lambda call: Functions(), lambda mode: mode.names),
    "torch.profiler.profile": watched(lambda call: torch.profiler.profile(), profiled),
    "FlopCounterMode": watched(counting, counted),
    "DebugMode": watched(
        lambda call: DebugMode(),
        lambda mode: re.findall(r"fastact[.:]+\w+", mode.debug_string().replace("::", ".")),
    ),
    "FakeTensorMode": without_memory(of_fakes),
    "meta device": without_memory(on_meta),
    "torch.onnx.export(dynamo=False)": to_onnx,
}

OPS = list(fa.ops.values())

# Compilers, and what starts threads of its own, take long.
SLOW = ("torch.compile(fullgraph=True)", "torch.export.export")


def cases() -> list[Any]:
    found = first_of_families((op, name) for name in TRIED if name not in SLOW for op in OPS)
    for op, name in ((op, name) for name in SLOW for op in OPS):
        marks = () if op is fa.layer_norm else pytest.mark.thorough
        found.append(pytest.param(op, name, marks=marks, id=f"{op.name}-{name}"))
    return found


def test_the_page_has_what_is_tried():
    elsewhere = {"torch.onnx.export(dynamo=True)", "DTensor"}  # test_onnx.py, test_sharding.py
    assert {*table()} == {*TRIED} | elsewhere


@pytest.mark.parametrize(("op", "name"), cases())
def test_the_table(op, name):
    for what, says in zip(("value", "gradient"), table()[name], strict=True):
        tried = partial(TRIED[name], Call(op), what)
        if says == "yes":
            tried()
        else:
            kinds = {"no": AssertionError, "error": (NotImplementedError, RuntimeError)}
            with pytest.raises(kinds[says]):
                tried()


# --- what the table does not say ------------------------------------------------------------------


@each_op
def test_entry_points_are_seen(op):
    """`forward`, `backward` and what is saved, with the bits of the kernels alone; with `out`."""
    named, spec = sample(op), spec_of(op)

    def entries() -> list[Any]:
        result, saved = op.bound("forward", named)()
        args, options = spec.arguments([torch.ones_like(y) for y in arrays_of(result)], saved)
        told = {n: v for n, v in named.items() if n in spec.told and n not in options}
        found = op.backward(*args, **options, **told)
        gradients = found if isinstance(found, tuple) else (found,)
        outs = tuple(None if dx is None else torch.full_like(dx, 7) for dx in gradients)
        op.backward(*args, **options, **told, out=outs)
        return [v for v in (*arrays_of(result), *saved, *gradients, *outs)
                if isinstance(v, torch.Tensor)]  # fmt: skip

    expected = entries()
    with Dispatched() as mode:
        found = entries()
    same(found, expected)
    seen = [name for name in mode.names if name.startswith("fastact")]
    backward = f"fastact.{op.name}_backward.default"
    assert seen == [f"fastact.{op.name}_forward.default", backward, backward]


def test_second_derivatives_of_activations_are_seen():
    x = torch.randn(3, 4)
    expected = fa.mish.backward.backward(x, x, x)
    with Dispatched() as mode:
        found = fa.mish.backward.backward(x, x, x)
    same(found, expected)
    assert mode.names == ["fastact.mish_second.default"]


UNKEPT = {
    "accumulate": lambda x: fa.mish.backward(x, x, out=torch.zeros(3, 4), accumulate=True),
    "a number for a gradient": lambda x: fa.mish.backward(1.0, x),
    "value_and_grad": lambda x: fa.sum_squares.value_and_grad(x)[1],
    "jvp": lambda x: fa.layer_norm.jvp(x, tangents=x)[1],
    "a count": lambda x: fa.moments(x, 0, skipna=True).mean,
    "the sum of weights": lambda x: fa.average(x, 0, weights=x * x, returned=True)[1],
}


@pytest.mark.parametrize("function", UNKEPT.values(), ids=UNKEPT)
def test_what_has_no_operator(function):
    """A mode does not see it, and has its values; a tracer would keep these, and refuses it."""
    x = torch.randn(3, 4)
    with Dispatched():
        found = function(x)
    same([found], [function(x)])
    for trace in (lambda: torch.jit.trace(function, x), lambda: make_fx(function)(x)):
        with pytest.raises(TypeError, match=r"^fastact\.\w+[.\w]*: .*\btrace"):
            trace()


def test_a_tensor_in_the_place_of_a_number():
    x, slope = torch.randn(3, 4), torch.tensor(0.5)
    with Dispatched():
        same([fa.leaky_relu(x, slope)], [fa.leaky_relu(x, 0.5)])
    with pytest.raises(TypeError, match="negative_slope must not be a tensor"):
        torch.jit.trace(lambda x, slope: fa.leaky_relu(x, slope), (x, slope))


def test_outputs_are_checked_where_somebody_looks():
    x, short, wide = torch.randn(3, 4), torch.zeros(3, 2), torch.zeros(3, 4, dtype=torch.float64)
    with Dispatched():
        y = torch.zeros(3, 4)
        assert fa.mish(x, out=y) is y
        with pytest.raises(ValueError, match=r"out must have shape \(3, 4\), got \(3, 2\)"):
            fa.mish(x, out=short)
        with pytest.raises(TypeError, match="out must have dtype float32, got float64"):
            fa.mish(x, out=wide)
    same([y], [fa.mish(x)])
    assert not short.any()
    assert not wide.any()


def test_a_default_device_is_no_mode():
    x, y = torch.randn(3, 4), torch.zeros(3, 4)
    with torch.device("cpu"):
        assert not foreign.is_watched()
        with Functions() as mode:
            fa.mish(x, out=y)
    assert "fastact.mish.default" in mode.names


def test_without_the_functions_of_torchs_libraries(monkeypatch):
    """What Python has tells the same."""
    symbols = ("_IS_INCLUDED", "_HAS_CALLBACKS", "_HAS_FUNCTION_MODE")
    for symbol in symbols:
        monkeypatch.setattr(foreign, symbol, "no_such_function")
    foreign._ask_torch.cache_clear()
    try:
        assert not foreign.is_watched()
        for mode in (Dispatched(), Functions(), torch.profiler.profile()):
            with mode:
                assert foreign.is_watched()
        seen = []
        torch.jit.trace(lambda x: (seen.append(foreign.is_watched()), x + 1)[1], torch.zeros(2))
        assert seen[0]
        assert not foreign.is_watched()
    finally:
        monkeypatch.undo()
        foreign._ask_torch.cache_clear()
        assert not foreign.is_watched()


def test_an_operator_computes_unwatched():
    assert _cpu.enter_operator(True) is False
    try:
        with Dispatched() as mode:
            fa.mish(torch.randn(3, 4))
        assert not any(name.startswith("fastact") for name in mode.names)
    finally:
        assert _cpu.enter_operator(False) is True


# --- modules --------------------------------------------------------------------------------------


def block() -> torch.nn.Module:
    layers = torch.nn
    model = torch.nn.Sequential(
        *(layers.Conv2d(3, 4, 3, bias=False), layers.BatchNorm2d(4), layers.Mish()),
        *(layers.GroupNorm(2, 4), layers.PReLU(4), layers.Dropout(0.5)),
        *(layers.Flatten(2), layers.LayerNorm(16), layers.GELU(), layers.RMSNorm(16), layers.GLU()),
        *(layers.Linear(8, 6), layers.ReLU(inplace=True), layers.Softmax(-1)),
    )
    fnn.convert(model, only=lambda name, module: True)
    return model.eval()


TRACED: dict[str, Callable[..., Any]] = {
    "torch.fx": lambda model, x: torch.fx.symbolic_trace(model),
    "torch.jit": lambda model, x: torch.jit.trace(model, x, check_trace=False),
    "make_fx": lambda model, x: make_fx(model)(x),
}


@pytest.mark.parametrize("trace", TRACED.values(), ids=TRACED)
def test_a_converted_model_is_traced(trace):
    model, x, other = block(), torch.randn(2, 3, 6, 6), torch.randn(2, 3, 6, 6)
    same([trace(model, x)(other)], [model(other)])


def test_modules_are_leaves_where_torchs_are():
    model = block()
    graph = torch.fx.symbolic_trace(model).graph
    assert {node.op for node in graph.nodes} == {"placeholder", "call_module", "output"}

    class Inside(torch.fx.Tracer):
        def is_leaf_module(self, m: torch.nn.Module, name: str) -> bool:
            return False

    norm = torch.nn.Sequential(fnn.Mish(), fnn.GELU())
    targets = [node.target for node in Inside().trace(norm).nodes if node.op == "call_function"]
    assert targets == [fa.mish, fa.gelu]


@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM])
def test_recurrent_layers_are_torchs_in_a_trace(kind):
    layer, x = kind(6, 4), torch.randn(3, 2, 6)
    fnn.convert(layer, only=kind)
    assert type(layer) is not kind
    graph = make_fx(lambda x: layer(x)[0])(x)
    torch.testing.assert_close(graph(2 * x), layer(2 * x)[0])
    assert "fastact" not in graph.code
