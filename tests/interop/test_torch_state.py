"""torch's own state: versions, gradients that are recorded, tangents, tensors of other kinds.

A call may come by three ways (the Python layer, a recorded call, the compiled short cut of the
activations): each test repeats what it calls until all have served it.
"""

import warnings
from collections.abc import Callable
from typing import Any

import judged
import numpy as np
import pytest
import torch
from asserting import passes
from torch.autograd import forward_ad

import fastact as fa
from fastact import _cpu
from fastact.interop import call as _call
from fastact.interop.foreign import is_for_dispatcher

TIMES = 5  # the Python layer, noted, written down, and then as a plan


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


X, W = ones(2, 3), ones(3)


def saved_by_a_norm() -> tuple[Any, ...]:
    return fa.layer_norm.forward(X, W, W)[1]


# Calls that write into arrays of the caller's: the shapes of these, and a call with them.
WRITES: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any]]] = {
    "out": ([(2, 3)], lambda y: fa.relu(X, out=y)),
    "in place": ([(2, 3)], lambda x: fa.relu(x, out=x)),
    "strided out": ([(3, 2)], lambda y: fa.relu(X, out=y.t())),
    "with a parameter": ([(2, 3)], lambda y: fa.elu(X, 0.5, out=y)),
    "backward": ([(2, 3)], lambda dx: fa.mish.backward(X, X, out=dx)),
    "accumulate": ([(2, 3)], lambda dx: fa.mish.backward(X, X, out=dx, accumulate=True)),
    "norm in place": ([(2, 3)], lambda x: fa.layer_norm(x, W, out=x)),
    "gradients": (
        [(2, 3), (3,), (3,)], lambda *made: fa.layer_norm.backward(X, *saved_by_a_norm(), out=made),
    ),
    "accumulated gradients": (
        [(2, 3), (3,)],
        lambda *made: fa.bias_act.backward(X, X, W, None, "relu", out=made, accumulate=True),
    ),
    "running statistics": (
        [(3,), (3,)], lambda mean, var: fa.batch_norm(X, mean, var, training=True),
    ),
    "statistics": ([(3,), (3,)], lambda *made: fa.mean_var(X, 0, out=made)),
    "value_and_grad": ([(), (2, 3)], lambda *made: fa.sum_squares.value_and_grad(X, out=made)),
    "gates": ([(2, 3)] * 2, lambda *made: fa.lstm_gates(ones(2, 12), X, out=made)),
    "nothing in it": ([(0,)], lambda y: fa.relu(ones(0), out=y)),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITES)
def test_what_is_written_is_a_new_version(case):
    shapes, call = WRITES[case]
    written, read = [ones(*shape) for shape in shapes], (X._version, W._version)
    for _ in range(TIMES):
        before = [tensor._version for tensor in written]
        call(*written)
        assert all(t._version > v for t, v in zip(written, before, strict=True))
    assert (X._version, W._version) == read


def test_what_was_written_before_a_warning_that_is_an_error_is_a_new_version():
    x, out = torch.full((2, 3), float("nan")), ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(TIMES):
            before = out._version
            with pytest.raises(RuntimeWarning, match="Mean of empty slice"):
                fa.nanmean(x, 0, out=out)
            assert out._version > before


def test_a_refused_call_makes_no_version():
    y = ones(4)
    judged.refused("out must have shape", fa.relu, X, out=y, error=ValueError)
    assert y._version == 0


@pytest.mark.parametrize("op", [fa.relu, fa.layer_norm], ids=lambda op: op.name)
def test_autograd_sees_that_a_saved_tensor_was_overwritten(op):
    """As it does of torch's own operations in place; without it the gradient would be wrong."""
    w = torch.full((2, 3), 2.0, requires_grad=True)
    for _ in range(TIMES):
        x = ones(2, 3)
        y = w * x
        op(x, out=x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    base = ones(4, 3)  # a view's counter is its base's
    y = w * base[::2]
    op(base[:2], out=base[:2])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_tensors_have_no_version():
    with torch.inference_mode():
        x, mean, var = ones(2, 3), ones(3), ones(3)
        for _ in range(TIMES):
            assert fa.relu(x, out=x) is x
            fa.layer_norm(x, out=x)
    for _ in range(TIMES):
        assert fa.relu(x, out=x) is x
        fa.layer_norm(x, out=x)
        fa.batch_norm(X, mean, var, training=True)


def test_marking_is_for_tensors():
    from fastact.interop import foreign

    x = ones(3)
    for array in (np.ones(3), [1.0], None, x):
        foreign.mark_written(array)
    assert x._version == 1
    foreign._mark_each((x,))  # where torch's own takes one tensor
    assert x._version == 2


# --- gradients that torch records -----------------------------------------------------------------


def learnt(*shape: int) -> Any:
    return torch.nn.Parameter(ones(*shape))


RECORDED: dict[str, Callable[[], Any]] = {
    "x": lambda: fa.mish(learnt(2, 3)),
    "x of a norm": lambda: fa.layer_norm(learnt(2, 3)),
    "weight": lambda: fa.layer_norm(X, learnt(3)),
    "bias": lambda: fa.bias_act(X, learnt(3), "relu"),
    "target": lambda: fa.cross_entropy(X, learnt(2, 3)),
}

RAW: dict[str, Callable[[], Any]] = {
    "forward": lambda: fa.mish.forward(learnt(2, 3))[0],
    "forward of a norm": lambda: fa.layer_norm.forward(X, learnt(3))[0],
    "a number of forward": lambda: fa.leaky_relu.forward(X, learnt())[0],
    "dy": lambda: fa.mish.backward(learnt(2, 3), X),
    "saved": lambda: fa.layer_norm.backward(X, *fa.layer_norm.forward(learnt(2, 3))[1])[0],
}

REFUSED: dict[str, Callable[[], Any]] = {
    "out": lambda: fa.relu(X, out=learnt(2, 3)),
    "out of a norm": lambda: fa.layer_norm(X, out=learnt(2, 3)),
    "running_mean": lambda: fa.batch_norm(X, learnt(3), learnt(3), training=True),
    "a number": lambda: fa.leaky_relu(X, learnt()),
    "eps": lambda: fa.layer_norm(X, eps=learnt()),
    "mean": lambda: fa.norm_apply(X, learnt(3), learnt(3), axis=1),
    "mask": lambda: fa.softmax(X, mask=learnt(3)),
}


@pytest.mark.parametrize("case", [*RECORDED, *RAW, *REFUSED])
def test_what_requires_grad_is_ordinary_where_nothing_is_recorded(case):
    call = {**RECORDED, **RAW, **REFUSED}[case]

    def where_gradients_are_recorded() -> None:
        for _ in range(TIMES):
            if case in REFUSED:
                with pytest.raises(TypeError, match=r"not require grad; use \w+\.detach\(\)"):
                    call()
            else:
                assert call().requires_grad == (case in RECORDED)

    where_gradients_are_recorded()
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            for _ in range(TIMES):
                result = call()
        assert isinstance(result, torch.Tensor)
        assert result.requires_grad == case.startswith("out")  # which is returned
        where_gradients_are_recorded()  # no call that was noted there serves here


def test_parameters_give_tensors_and_the_same_bits():
    x, w = torch.randn(4, 3), torch.randn(3)
    expected = fa.layer_norm(x, w, w)
    weight, bias = (torch.nn.Parameter(w.clone()) for _ in range(2))
    with torch.no_grad():
        for _ in range(TIMES):
            y, saved = fa.layer_norm.forward(torch.nn.Parameter(x), weight, bias)
            assert type(y) is torch.Tensor
            assert not y.requires_grad
            assert torch.equal(y, expected)
            assert saved[3] is weight
            assert fa.relu(weight, out=weight) is weight
            weight.copy_(w)
    assert weight.requires_grad


def test_parameters_beside_tensors_are_recorded(monkeypatch):
    """Their class differs from torch.Tensor in nothing that a kernel could lose."""
    weight = learnt(3)
    with torch.no_grad():
        for time in range(TIMES + 1):
            if time == TIMES and _cpu.is_call_cache_enabled():
                monkeypatch.setattr(_call.Call, "__init__", lambda *_, **__: pytest.fail("slow"))
            fa.layer_norm(X, weight, weight)
            fa.bias_act(X, weight, "relu")
    passes("the slow path was not met")


def test_a_step_of_training_in_place():
    """Under no_grad an optimizer writes into parameters, and torch hears of it."""
    p = torch.nn.Parameter(torch.randn(3))
    y = (p * p).sum()
    with torch.no_grad():
        for _ in range(TIMES):
            before = p._version
            fa.relu(p, out=p)
            assert p._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


# --- tangents, and tensors that stand for others --------------------------------------------------

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "x": fa.mish,
    "forward": lambda x: fa.mish.forward(x)[0],
    "dy": lambda x: fa.mish.backward(x, ones(*x.shape)),
    "saved": lambda x: fa.mish.backward(1.0, x),
    "a norm's x": fa.layer_norm,
    "weight": lambda x: fa.layer_norm(ones(2, 3), x[0]),
    "out": lambda x: fa.relu(ones(*x.shape), out=x),
    "in place": lambda x: fa.relu(x, out=x),
    "sum": fa.sum,
    "gates": lambda x: fa.gru_reset(x, ones(*x.shape)),
}


# Of a raw entry point, of an argument without a gradient, and of an op without forward mode.
NO_TANGENT = (
    "(must be a tensor without a forward-mode tangent|gets no gradient|must not be a tensor"
    "|has no derivative in forward mode|must be None where a gradient is recorded)"
)


def refused(words: str, call: Callable[..., Any], *args: Any) -> None:
    words = rf"^fastact\.\w+(\.\w+)?: (\w+ )?{words}"
    judged.refused(words, call, *args, error=(TypeError, NotImplementedError))


# torch loads decompositions with the first dual, by its own deprecated `torch.jit.script`
quiet = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


@quiet
@pytest.mark.parametrize("case", CALLS)
def test_a_tangent_is_not_lost(case):
    call, x = CALLS[case], ones(2, 3)
    for _ in range(TIMES):
        call(x)  # recorded
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        if case in ("x", "a norm's x", "weight", "sum", "gates"):
            for _ in range(TIMES):
                assert forward_ad.unpack_dual(call(dual)).tangent is not None
        else:
            refused(NO_TANGENT, call, dual)
        for _ in range(TIMES):
            call(ones(2, 3))  # others are as before
            call(dual.detach())
    call(dual)  # whose tangent has ended with its level


@quiet
def test_a_number_with_a_tangent():
    with forward_ad.dual_level():
        slope = forward_ad.make_dual(torch.tensor(0.5), torch.tensor(1.0))
        refused(NO_TANGENT, fa.leaky_relu, X, slope)


# Entry points are raw, the call is not.
@quiet
@pytest.mark.parametrize("case", [n for n in CALLS if n.startswith(("forward", "dy", "saved"))])
def test_transforms_are_refused(case):
    call = CALLS[case]
    for _ in range(TIMES):
        call(ones(2, 3))
    words = r"must be a dense array whose memory can be shared, got a tensor .* torch\.func\."
    refused(words + "vmap", torch.func.vmap(call), ones(4, 2, 3))
    refused(words + "grad", torch.func.grad(lambda x: call(x).sum()), ones(2, 3))
    refused(words + "grad, jvp", lambda x: torch.func.jvp(call, (x,), (x,)), ones(2, 3))
    refused(words + "grad, jvp or func", torch.func.functionalize(call), ones(2, 3))


def test_plain_tensors_inside_a_transform():
    def loss(x: torch.Tensor) -> torch.Tensor:
        for _ in range(TIMES):
            y = fa.mish(X)  # a constant here
        return (x * y).sum()

    assert torch.equal(torch.func.grad(loss)(ones(2, 3)), fa.mish(X))


class Subclass(torch.Tensor):
    """Nothing of its own."""


class Answering(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        raise AssertionError("dispatched")

    def to_local(self) -> torch.Tensor:  # as DTensor has it
        return torch.ones(3)


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3)


SPECIAL: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "fake": (fake, r"torch\._subclasses\.fake_tensor\.FakeTensor, which answers torch's functions"),
    "function": (lambda: ones(3).as_subclass(Answering), r".*Answering, which answers torch's"),
    "dispatch": (lambda: ones(3).as_subclass(Dispatching), r".*Dispatching, .*use \S+\.to_local\("),
    "uninitialized": (torch.nn.UninitializedParameter, r".*UninitializedParameter, which answers"),
    "meta": (lambda: torch.empty(3, device="meta"), "a meta tensor, which has no data"),
    "sparse": (lambda: torch.eye(3).to_sparse(), r"a tensor of layout torch\.sparse_coo; .*dense"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), r"a tensor of layout torch\.sparse_csr"),
    "zero": (lambda: torch._efficientzerotensor(3), "a zero tensor, which has no data"),
    "nested": (
        lambda: torch.nested.nested_tensor([ones(2), ones(3)]), "a nested tensor; use torch.nested",
    ),
    "jagged": (
        lambda: torch.nested.nested_tensor([ones(2), ones(3)], layout=torch.jagged),
        r"a nested tensor; use \S+\.values\(\)",
    ),
    "quantized": (
        lambda: torch.quantize_per_tensor(ones(3), 0.1, 0, torch.quint8),
        r"a quantized tensor; use \S+\.dequantize\(\)",
    ),
}  # fmt: skip
#: Calls with these are torch's to hand on.
HANDED_ON = ("fake", "meta", "dispatch")


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # torch's, of prototypes and deprecations
@pytest.mark.parametrize("case", SPECIAL)
def test_tensors_of_other_kinds_are_refused_by_name(case):
    make, words = SPECIAL[case]
    tensor = make()
    words = "must be a dense array whose memory can be shared, got " + words
    refused(words, fa.mish.forward, tensor)
    refused(words, fa.mish.backward, tensor, ones(3))
    refused(words, fa.layer_norm.forward, tensor)
    refused(words, fa.layer_norm.forward, ones(2, 3), tensor)
    if not is_for_dispatcher(tensor):
        refused(words, fa.mish, tensor)
        with torch.no_grad():
            refused(words, lambda: fa.mish(ones(3), out=tensor))
    for requires_grad in (False, True) if case not in HANDED_ON else ():
        tensor.requires_grad = requires_grad and tensor.dtype.is_floating_point
        for op in (fa.mish, fa.layer_norm, fa.softmax):
            refused("must ", op, tensor)


def test_subclasses_with_nothing_of_their_own_are_tensors():
    for _ in range(TIMES):
        assert type(fa.mish(X.as_subclass(Subclass))) is torch.Tensor
        assert type(fa.layer_norm(X, torch.nn.Buffer(W))) is torch.Tensor
