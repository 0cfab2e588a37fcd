"""The ops as operators of torch: what has no memory, torch.compile, torch.export, torch.func."""

from typing import Any

import pytest
import torch
from judged import refused
from tensors import called, differentiated, each_op, leaves, sample

import fastact as fa
import fastact.torch.nn as fnn
from fastact.ops.engine.op import arrays_of

# torch's own, of what it loads at the first use
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

COMPILED = [fa.mish, fa.gelu, fa.layer_norm, fa.add_rms_norm, fa.lstm_gates, fa.cross_entropy]
each_compiled = pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=() if op in COMPILED else pytest.mark.thorough, id=op.name)
        for op in fa.ops.values()
    ],
)


def operators(op: Any) -> Any:
    from fastact.torch.dispatch import OPERATORS

    return OPERATORS[op.name]


def on_meta(named: dict[str, Any]) -> dict[str, Any]:
    return {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in named.items()}


@each_op
def test_the_specification_tells_shapes(op):
    """On the meta device, where nothing is computed: of the call, and of its gradients."""
    named = sample(op, seed=1)
    names = differentiated(op, named)
    results = called(op, named, [])()
    meta = on_meta(named)
    tensors = leaves(meta, names)
    made = called(op, meta, names)(*tensors)
    for got, expected in zip(made, results, strict=True):
        assert got.is_meta
        assert (got.shape, got.dtype, got.stride()) == (
            expected.shape, expected.dtype, expected.stride(),
        )  # fmt: skip
    gradients = torch.autograd.grad(made, tensors, [torch.ones_like(y) for y in made])
    for got, like in zip(gradients, tensors, strict=True):
        assert (got.shape, got.dtype) == (like.shape, like.dtype)


def test_what_is_traced_lies_in_memory_as_what_is_computed():
    x = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert fa.swiglu(x.to("meta"), x.to("meta")).stride() == fa.swiglu(x, x).stride() == x.stride()


def complaint(op: Any, named: dict[str, Any]) -> str:
    try:
        op.bound("call", named)()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def others(op):
    """The names of a sample's arrays but the first."""
    return [name for name, value in sample(op).items() if isinstance(value, torch.Tensor)][1:]


@pytest.mark.parametrize("op", [op for op in fa.ops.values() if others(op)], ids=lambda op: op.name)
def test_what_has_no_memory_is_checked_alike(op):
    """None, and an array that is too short, in the place of each array but the first."""
    named = sample(op)
    for name in others(op):
        for bad in (None, named[name][..., :-1] if named[name].ndim else None):
            wrong = {**named, name: bad}
            assert complaint(op, on_meta(wrong)) == complaint(op, wrong)


@each_op
def test_the_specification_tells_what_is_saved(op):
    """By name, as `forward` saves it."""
    named = sample(op)
    result, saved = op.bound("forward", named)()
    results, kept = op.models(named)
    assert len(results) == len(op.results)
    by_name = dict(zip(op.saves, saved, strict=True))
    known = {**named, **dict(zip(op.results, arrays_of(result), strict=True))}
    known |= {name: by_name[name] for name in kept}
    for got, expected in zip(op.saved(known), saved, strict=True):
        assert got is expected or got == expected  # tuples of lengths
    for name, model in kept.items():
        assert model.shape == tuple(by_name[name].shape)


def assert_same(one: Any, other: Any) -> None:
    """The results of two ways, each with what they are of, have the same bits and gradients."""
    ones = [torch.ones_like(y) for y in one[0]]
    found = ((*ys, *torch.autograd.grad(ys, xs, ones)) for ys, xs in (one, other))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@each_op
def test_operators_have_the_bits_of_the_call(op):
    named = sample(op)
    names = differentiated(op, named)
    tensors, others = leaves(named, names), leaves(named, names)
    of = operators(op)
    made = of.call(*of.values({**named, **dict(zip(names, tensors, strict=True))}))
    results = made if isinstance(made, tuple) else (made,)
    assert_same((results, tensors), (called(op, named, names)(*others), others))


@each_compiled
def test_opcheck(op):
    named = sample(op)
    names = differentiated(op, named)
    of = operators(op)
    given = {**named, **dict(zip(names, leaves(named, names), strict=True))}
    torch.library.opcheck(of.call, tuple(of.values(given)))


def test_vmap_along_any_axis():
    x = torch.randn(3, 4, 2)
    y = torch.func.vmap(fa.mish, in_dims=2, out_dims=2)(x)
    assert torch.equal(y, fa.mish(x))
    y = torch.func.vmap(lambda a, b: fa.gated(a, b, "mish"), (0, None))(x, x[0])
    assert torch.equal(y, fa.gated(x, x[:1].expand(3, 4, 2), "mish"))
    assert torch.func.grad(torch.func.grad(fa.sum_squares))(torch.tensor(1.0)) == 2


def test_shapes_may_change_without_another_graph():
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def block(x: Any, w: Any) -> Any:
        return fa.softmax(fa.layer_norm(fa.mish(x), w, activation=fa.relu)) + fa.sum(x)

    w = torch.randn(6, requires_grad=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (2, 3, 5, 8):
            x = torch.randn(rows, 6)
            y = block(x, w)
            normed = fa.layer_norm(fa.mish(x), w, activation="relu")
            assert torch.equal(y, fa.softmax(normed) + fa.sum(x))
            torch.autograd.grad(y.sum(), w)


@pytest.mark.parametrize("call", [fa.mish, fa.rms_norm, fa.rms_norm.quantized])
def test_a_compiled_call_has_few_guards(call):
    """Each is checked at each call: what an op's record says needs none."""
    found: list[int] = []

    def keep(guards: Any) -> list[bool]:
        found.append(len(guards))
        return [True for _ in guards]

    torch._dynamo.reset()
    options = {"guard_filter_fn": keep}
    compiled = torch.compile(lambda x: call(x), backend="eager", options=options, fullgraph=True)
    compiled(torch.ones(2, 3))
    assert max(found) < 120


def test_running_statistics_and_out_are_written_in_a_graph():
    torch._dynamo.reset()
    x, mean, var = torch.randn(4, 3), torch.zeros(3), torch.ones(3)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: Any, mean: Any, var: Any, y: Any) -> Any:
        fa.mish(x, out=y)
        return fa.batch_norm(x, mean, var, training=True)

    others, y = (mean.clone(), var.clone()), torch.zeros(4, 3)
    assert torch.equal(step(x, mean, var, y), fa.batch_norm(x, *others, training=True))
    assert torch.equal(mean, others[0])
    assert torch.equal(var, others[1])
    assert torch.equal(y, fa.mish(x))


def test_a_batch_norm_that_writes_nothing():
    """It is functional, so that graphs hold it as it is."""
    norm = torch.nn.BatchNorm1d(3).eval()
    fnn.convert(norm)
    x = torch.randn(4, 3)
    program = torch.export.export(norm, (x,)).run_decompositions()
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["fastact.batch_norm_functional.default"]
    assert torch.equal(program.module()(x), norm(x))
    operator = torch.ops.fastact.batch_norm_functional.default
    leaves_of_call = [t.detach().requires_grad_() for t in (x, norm.weight, norm.bias)]
    x, *parameters = leaves_of_call
    torch.library.opcheck(operator, (x, norm.running_mean, norm.running_var, *parameters))


def test_export():
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(6))

        def forward(self, x: Any) -> Any:
            return fa.rms_norm(fa.gelu(x, "tanh"), self.weight)

    block = Block()
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(block, (torch.randn(4, 6),), dynamic_shapes=({0: rows},))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["fastact.gelu.default", "fastact.rms_norm.default"]
    x = torch.randn(7, 6)
    assert torch.equal(program.module()(x), block(x))


@pytest.mark.thorough  # the C++ compiler of inductor takes tens of seconds
def test_inductor():
    torch._dynamo.reset()
    x, w = torch.randn(8, 6, requires_grad=True), torch.randn(6, requires_grad=True)

    def block(x: Any, w: Any) -> Any:
        return (fa.layer_norm(fa.mish(2 * x), w, activation="silu") ** 2).sum()

    expected = torch.autograd.grad(block(x, w), (x, w))
    got = torch.autograd.grad(torch.compile(block, fullgraph=True)(x, w), (x, w))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.thorough  # as above
def test_a_package_of_aot_inductor(tmp_path, monkeypatch):
    monkeypatch.setenv("CI", "true")  # where inductor refuses what it could take apart

    class Block(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return fa.rms_norm(fa.gelu(2 * x, "tanh"))

    x = torch.randn(4, 6)
    with torch.no_grad():
        program = torch.export.export(Block(), (torch.zeros(4, 6),))
        path = str(tmp_path / "block.pt2")
        package = torch._inductor.aoti_compile_and_package(program, package_path=path)
        assert torch.equal(torch._inductor.aoti_load_package(package)(x), Block()(x))


def test_bad_calls():
    meta = torch.ones(3, device="meta")
    refused("keyword argument 'slope'; allowed are x, negative_slope", fa.leaky_relu, meta, slope=1)
    for call in (lambda: fa.mish(torch.ones(3), out=meta), lambda: fa.gated(meta, torch.ones(3))):
        refused(r"all arrays must be on one device, .*, got \w+ on", call, error=ValueError)
    refused(r"\w+ must be given", fa.cross_entropy, meta)
