"""Gradients by torch's autograd: every op, every tensor, and autograd's own ways."""

import gc
import sys
import weakref
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from calls import back
from conftest import ACTIVATIONS
from judged import refused
from processes import python_output
from tensors import called, differentiated, each_op, leaves, sample

import fastact as fa
from fastact.ops.engine.op import arrays_of
from fastact.torch.autograd import recorder


def by_hand(op: Any, named: dict[str, Any]) -> tuple[Any, ...]:
    """The gradients of all ones, by the entry points alone."""
    result, saved = op.bound("forward", named)()
    ones = [torch.ones_like(part) for part in arrays_of(result)]
    found: tuple[Any, ...] = arrays_of(back(op, named, saved, ones)())
    return found


@each_op
def test_the_bits_are_those_of_the_entry_points(op):
    """And each gradient is the same where it is the only one that is needed."""
    named = sample(op)
    names = differentiated(op, named)
    expected = dict(zip(op.differentiated, by_hand(op, named), strict=False))
    for chosen in ([*names], *([name] for name in names)):
        tensors = leaves(named, chosen)
        results = called(op, named, chosen)(*tensors)
        for y, raw in zip(results, called(op, named, [])(), strict=True):
            assert torch.equal(y.detach(), raw)
            assert type(y.grad_fn).__name__.lower() == f"{op.name.replace('_', '')}backward"
        ones = [torch.ones_like(y) for y in results]
        for name, got in zip(chosen, torch.autograd.grad(results, tensors, ones), strict=True):
            of = {**dict(zip(op.results, ones, strict=True)), **expected}
            assert torch.equal(got, of[op.shares.get(name, name)])


@each_op
def test_nothing_is_recorded_where_torch_records_nothing(op):
    named = sample(op)
    names = differentiated(op, named)
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            results = called(op, named, names)(*leaves(named, names))
        assert not any(y.requires_grad for y in results)


@each_op
def test_the_entry_points_are_raw(op):
    """They take what requires grad as it is, and record nothing."""
    named = sample(op)
    names = differentiated(op, named)
    named |= dict(zip(names, leaves(named, names), strict=True))
    for _ in range(3):
        result, saved = op.bound("forward", named)()
        assert not any(y.requires_grad for y in arrays_of(result))
        assert not any(dx is not None and dx.requires_grad for dx in by_hand(op, named))
        del saved


def frames_of(call: Any) -> int:
    """How many functions of Python a call enters once it is known."""
    for _ in range(3):
        call()
    entered = []
    gc.disable()  # a collection calls what others have registered for it
    sys.setprofile(lambda frame, event, _: entered.append(frame) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return len(entered)


@each_op
def test_the_entry_points_take_what_requires_grad_as_fast(op):
    """As they take other tensors: past the Python layer, where the call cache serves them."""
    named = sample(op)
    names = differentiated(op, named)
    recorded = named | dict(zip(names, leaves(named, names), strict=True))
    plain = frames_of(op.bound("forward", named))
    assert frames_of(op.bound("forward", recorded)) == plain


def test_an_output_that_requires_grad_is_refused_by_every_call():
    x, out = torch.ones(2, 3), torch.empty(2, 3)
    for entry in (fa.relu.forward, fa.layer_norm.forward):
        for _ in range(4):
            entry(x, out=out)
        learnt = torch.empty(2, 3, requires_grad=True)
        refused("gets no gradient and must not require grad", entry, x, out=learnt)


@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name)
def test_what_is_piecewise_linear(op):
    """Its derivative is the same to both sides of whatever is no corner; and has a derivative."""
    x = torch.linspace(-8, 8, 161, dtype=torch.float64) + 0.03
    y, beside = (op.backward(1.0, *op.forward(at)[1]) for at in (x, x + 0.01))
    assert op.piecewise_linear == torch.equal(y, beside)
    if op.piecewise_linear:
        x = x[::7].clone().requires_grad_()
        assert torch.autograd.gradgradcheck(op, x)
        (dx,) = torch.autograd.grad(op(x).square().sum(), x, create_graph=True)
        expected = 2 * (op.backward(1.0, x) ** 2)
        assert torch.allclose(torch.autograd.grad(dx.sum(), x)[0], expected)


SEVERAL = [op for op in fa.ops.values() if len({*op.gradients}) > 1]


@pytest.mark.parametrize("op", SEVERAL, ids=lambda op: op.name)
def test_what_is_not_needed_is_not_computed(op):
    """It is no output of `backward`: what is told to it is None there."""
    named = sample(op)
    names = differentiated(op, named)
    for name in names if len(names) > 1 else []:
        tensors = {**named, name: named[name].clone().requires_grad_()}
        call = op.bound("call", tensors)
        recorded = recorder(op, call.args, call.keywords)
        outs: list[Any] = []

        def backward(*args: Any, outs: list[Any] = outs, **options: Any) -> Any:
            outs.extend(options["out"])
            return op.backward(*args, **options)

        recorded.backward = backward
        sum(y.sum() for y in arrays_of(recorded(call.args, call.keywords))).backward()
        place = op.differentiated.index(op.shares.get(name, name))
        assert [out is not None for out in outs] == [i == place for i in range(len(outs))]


@each_op
def test_what_is_saved_is_all_that_is_kept(op):
    """Through the hooks of saved tensors goes what `forward` saves, and the graph holds no more."""
    named = sample(op)
    names = differentiated(op, named)
    _, saved = op.bound("forward", named)()
    count = sum(isinstance(one, torch.Tensor) for one in saved)
    packed: list[Any] = []

    def pack(tensor: torch.Tensor) -> Any:
        packed.append(tensor.shape)
        return tensor.detach().clone()

    tensors = leaves(named, names)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = called(op, named, names)(*tensors)
    assert len(packed) == count
    ones = [torch.ones_like(y) for y in results]
    expected = by_hand(op, named)
    got = torch.autograd.grad(results, tensors, ones)
    assert torch.equal(got[0], expected[op.differentiated.index(names[0])])


def test_no_tensor_is_remembered():
    """How a call is recorded stays known, the call does not."""
    gone = []
    for _ in range(3):
        x, w = torch.randn(2, 5, requires_grad=True), torch.randn(5, requires_grad=True)
        for y in (fa.layer_norm(x, w), fa.layer_norm(x, weight=w), fa.mean_var(x)[0]):
            y.sum().backward()
        gone += [weakref.ref(x), weakref.ref(w)]
    del x, w, y
    gc.collect()
    assert not any(each() is not None for each in gone)


def test_an_input_that_is_not_saved_is_let_go():
    w = torch.ones(3, requires_grad=True)
    x = w * 2
    gone = weakref.ref(x)
    y = fa.softmax(x)
    del x
    gc.collect()
    assert gone() is None
    y.sum().backward()


NUMBERS = [
    (op, name)
    for op in ACTIVATIONS
    for name, default in op.parameters.items()
    if not isinstance(default, str)
]


@pytest.mark.parametrize(("op", "name"), NUMBERS, ids=str)
def test_a_parameter_in_a_tensor(op, name):
    """Backward is told it again, and each call its own."""
    default = op.parameters[name]
    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    for value in (default, default + 0.125, default + 0.25):  # which each op takes
        for shape in ((), (1,)):
            given = torch.full(shape, value, dtype=torch.float64)
            (dx,) = torch.autograd.grad(op(x, **{name: given}).sum(), x)
            assert torch.equal(
                dx, op.backward(1.0, *op.forward(x, **{name: value})[1], **{name: value})
            )


def test_some_results_alone():
    x, r = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    y, total = fa.add_layer_norm(x, r)
    (dx,) = torch.autograd.grad(total.sum(), x, retain_graph=True)
    assert torch.allclose(dx, torch.ones_like(x))
    (dx,) = torch.autograd.grad(y.pow(2).sum(), x)
    assert torch.isfinite(dx).all()
    gates, c = torch.randn(2, 12, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    for which in (0, 1):
        results = fa.lstm_gates(gates, c)
        assert torch.autograd.grad(results[which].sum(), gates)[0].abs().sum() > 0
    moments = fa.moments(x)
    assert moments.count == 6
    (dx,) = torch.autograd.grad(moments.m2, x)
    assert torch.allclose(dx, 2 * (x - x.mean()).detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_dtypes(dtype):
    x = torch.randn(4, 6).to(dtype).requires_grad_()
    w = torch.randn(6, requires_grad=True)
    y = fa.layer_norm(x, w, activation="mish")
    assert y.dtype == dtype
    y.sum().backward()
    assert (x.grad.dtype, w.grad.dtype) == (dtype, torch.float32)
    moments = fa.moments(x, 0)
    moments.mean.sum().backward()


def test_numbers_and_gradients_that_repeat():
    x = torch.randn(3, 4, requires_grad=True)
    fa.mish(x).sum().backward()  # whose gradient has strides of 0
    assert torch.equal(x.grad, fa.mish.backward(1.0, x.detach()))
    fa.add_rms_norm(x, 1.0)[0].sum().backward()
    fa.gated(x, 2.0).sum().backward()
    turned = torch.randn(4, 3, requires_grad=True)
    fa.layer_norm(turned.t()[:, ::2]).pow(2).sum().backward()
    assert turned.grad.shape == (4, 3)


def test_what_repeats_is_recorded_as_before():
    """Calls alike but for what requires grad, for options, shapes and layouts, in turns."""
    w = torch.randn(6, dtype=torch.float64)
    for _ in range(4):
        for shape, eps, needs in (
            ((3, 6), 1e-5, 3),
            ((3, 6), 1e-1, 3),
            ((2, 6), 1e-5, 2),
            ((3, 6), 1e-5, 1),
        ):
            x = torch.randn(shape, dtype=torch.float64)
            tensors = [t.clone().requires_grad_(bool(needs & k)) for t, k in ((x, 1), (w, 2))]
            leaves = [t for t in tensors if t.requires_grad]
            y = fa.layer_norm(*tensors, eps=eps)
            expected = torch.nn.functional.layer_norm(tensors[0], (6,), tensors[1], None, eps)
            dy = torch.randn(shape, dtype=torch.float64)
            for got, right in zip(
                (y, *torch.autograd.grad(y, leaves, dy)),
                (expected, *torch.autograd.grad(expected, leaves, dy)),
                strict=True,
            ):
                assert torch.allclose(got, right)


def test_calls_that_record_are_remembered(monkeypatch):
    from fastact.torch import bridge

    asked, recorder = [], bridge.recorder
    monkeypatch.setattr(bridge, "recorder", lambda *call: asked.append(0) or recorder(*call))
    x = torch.randn(3, 5, 1, 2, requires_grad=True)  # as in no other test
    for _ in range(3):
        fa.softmax(x, axis=0).sum().backward()
    assert len(asked) == 1


def test_threads_record_beside_each_other():
    from concurrent.futures import ThreadPoolExecutor

    xs = [torch.randn(4, 8, requires_grad=True) for _ in range(4)]
    rights = [torch.autograd.grad(fa.layer_norm(x).pow(3).sum(), x)[0] for x in xs]

    def often(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.autograd.grad(fa.layer_norm(x).pow(3).sum(), x)[0] for _ in range(50)]

    with ThreadPoolExecutor(4) as pool:
        for right, found in zip(rights, pool.map(often, xs), strict=True):
            assert all(torch.equal(dx, right) for dx in found)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)

    def block(x: Any) -> Any:
        return fa.layer_norm(fa.mish(x), w)

    expected = torch.autograd.grad(block(x).pow(2).sum(), (x, w))
    checkpoint(block, x, use_reentrant=reentrant).pow(2).sum().backward()
    assert torch.equal(x.grad, expected[0])
    assert torch.equal(w.grad, expected[1])


@pytest.mark.parametrize("op", [fa.relu, fa.layer_norm, fa.softmax], ids=lambda op: op.name)
def test_what_is_saved_may_not_change(op):
    w = torch.randn(2, 3, requires_grad=True)
    x = w * 1
    y = op(x)
    with torch.no_grad():
        (y if op is fa.softmax else x).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("call", [
    lambda t: fa.mish(t, out=torch.empty(3)), lambda t: fa.mean_var(t, out=(torch.empty(()), None)),
])  # fmt: skip
def test_no_output_where_a_gradient_is_recorded(call):
    t = torch.ones(3, requires_grad=True)
    refused("out must be None", call, t)


def test_bad_shapes_of_what_requires_grad():
    x, w = torch.ones(2, 3, requires_grad=True), torch.ones(4, requires_grad=True)
    words = r"^fastact\.layer_norm: weight must have shape"
    refused(words, fa.layer_norm, x, w, error=ValueError)
    refused(r"^fastact\.softmax: axis", fa.softmax, x, axis=2, error=ValueError)
    refused(r"^fastact\.mish: ", fa.mish, x, slope=1)


def test_one_framework_and_complex_gradients():
    grad = {"requires_grad": True}
    with pytest.raises(TypeError, match="all arrays must come from one framework"):
        fa.layer_norm(torch.ones(3, **grad), np.ones(3))
    x = torch.ones(3, **grad)
    ones = torch.ones(3, dtype=torch.complex64)
    (dx,) = torch.autograd.grad(fa.mish(x), x, ones.conj().real)
    assert dx.shape == (3,)
    refused("Mismatch in dtype", torch.autograd.grad, fa.mish(x), x, ones, error=RuntimeError)
    y = fa.mish(x)
    y.register_hook(lambda dy: dy.to(torch.complex64))
    with pytest.raises(RuntimeError, match="changed the type"):
        y.sum().backward()
    for saved in (x, x.detach()):
        refused(r"^fastact\.mish\.backward: dy must have dtype", fa.mish.backward, ones, saved)


def test_one_device():
    """With a gradient and without; the meta device is one that any machine has."""
    x, meta = torch.ones(2, 3), torch.ones(3, device="meta")
    for _ in range(3):
        for first, second in ((x, meta), (meta.expand(2, 3), x[0])):
            for op, other in ((fa.layer_norm, second), (fa.gated, second.expand(2, 3))):
                refused("all arrays must be on one device", op, first, other, error=ValueError)
        x, meta = x.requires_grad_(), meta.requires_grad_()


def test_no_torch_without_need():
    code = """
        import sys
        import fastact as fa
        assert "torch" not in sys.modules and "fastact.torch" not in sys.modules
        import torch
        fa.mish(torch.ones(3))
        fa.mish.forward(torch.ones(3))
        assert "fastact.torch" not in sys.modules
        fa.mish(torch.ones(3, requires_grad=True)).sum().backward()
        assert "fastact.torch.autograd" in sys.modules
        assert "fastact.torch.dispatch" not in sys.modules
    """
    python_output(dedent(code))
