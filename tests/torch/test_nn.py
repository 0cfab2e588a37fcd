"""The modules of `fastact.torch.nn` against torch's: whatever torch has, by iteration."""

import copy
import gc
import pickle
import weakref
from inspect import signature
from typing import Any

import pytest
import torch
from judged import refused
from processes import python_output
from torch.nn import RNNBase
from torch_modules import CASES, DTYPES, Case

import fastact.torch.nn as fnn
from fastact.torch.nn.activations import ACTIVATIONS
from fastact.torch.nn.convert import REPLACEMENTS
from fastact.torch.nn.module import WithActivation

# Relative to the largest value: a sum that cancels has no digits to compare.
TOLERANCE = {torch.float32: 3e-6, torch.float64: 5e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2}

# torch's derivative has one sixth rounded to float32.
ROUGH = {torch.nn.Hardsigmoid: 1e-7}

by_case = pytest.mark.parametrize("case", CASES, ids=str)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).rpartition(".")[2])


def pair(case: Case, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A module of torch's in float64, and fastact's with the same random parameters."""
    torch.manual_seed(0)
    ours = REPLACEMENTS[case.torch_class](*case.args, **case.options).to(dtype)
    theirs = case.torch_class(*case.args, **case.options).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += torch.randn_like(parameter) / 4
    theirs.load_state_dict(ours.state_dict())
    return theirs, ours


def assert_close(ours: Any, exact: Any, dtype: torch.dtype, theirs_is_off: float = 0) -> None:
    assert ours.shape == exact.shape
    if exact.numel():
        ours, exact = ours.detach(), exact.detach()
        scale = max(float(exact.abs().max()), 1e-3)
        assert (
            float((ours.double() - exact).abs().max())
            <= max(TOLERANCE[dtype], theirs_is_off) * scale
        )


def gradients(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of a sum of all results, with weights that all dtypes hold."""
    generator = torch.Generator().manual_seed(100)
    weights = [torch.randint(-8, 9, y.shape, generator=generator).to(y.dtype) / 4 for y in results]
    return list(torch.autograd.grad(results, wanted, weights))


@by_dtype
@pytest.mark.parametrize("training", [True, False])
@by_case
def test_computes_as_torch(case, training, dtype):
    """Results, gradients and what the module remembers, twice."""
    theirs, ours = pair(case, dtype)
    theirs.train(training), ours.train(training)
    for seed in range(2):
        inputs = [case.inputs(dtype, seed), case.inputs(dtype, seed)]
        inputs[1] = [t.double() if t.is_floating_point() else t for t in inputs[1]]
        results, found = [], []
        for module, tensors in zip((ours, theirs), inputs, strict=True):
            is_target = case.torch_class is torch.nn.CrossEntropyLoss
            floating = tensors[:1] if is_target else tensors
            wanted = [t.requires_grad_() for t in floating]
            x = tensors[0] * 1  # what works in place may not write into a leaf
            results.append(case.call(module, [x, *tensors[1:]]))
            found.append(gradients(results[-1], [*wanted, *module.parameters()]))
        for mine, exact in zip(*results, strict=True):
            assert mine.dtype == dtype
            assert_close(mine, exact, dtype)
        for mine, exact in zip(*found, strict=True):
            assert_close(mine, exact, dtype, ROUGH.get(case.torch_class, 0))
        for mine, exact in zip(ours.buffers(), theirs.buffers(), strict=True):
            assert_close(mine, exact, dtype)


# One for each `forward`; dynamo traces no layers of an RNN.
ONE_GRAPH = {
    REPLACEMENTS[case.torch_class].forward.__code__: case
    for case in CASES
    if not issubclass(case.torch_class, RNNBase)
}


@pytest.mark.parametrize("case", ONE_GRAPH.values(), ids=str)
def test_compiles_as_one_graph(case):
    module, tensors = pair(case, torch.float32)[1].eval(), case.inputs(torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    results = case.call(compiled, tensors), case.call(module, tensors)
    for mine, eager in zip(*results, strict=True):
        assert_close(mine, eager, torch.float32)


# Of a call with a length of 0 or 1: a part of either's message, and why one of the two computes.
DEVIATIONS = {
    "select(): index 0 out of range": "torch looks for statistics of an example that is not there",
    "must have shape (0,), got": "parameters fit the channels, of an empty batch too",
    "must have a class along axis": "there is nothing to choose from",
}


def outcome(case: Case, module: torch.nn.Module, dtype: torch.dtype) -> Any:
    """All that a call and its backward leave, or the error."""
    tensors = case.inputs(dtype)
    wanted = [t.requires_grad_() for t in tensors if t.is_floating_point()]
    try:
        results = case.call(module, [tensors[0] * 1, *tensors[1:]])
        if case.torch_class is torch.nn.CrossEntropyLoss:
            wanted = wanted[:1]
        found = [*results, *gradients(results, [*wanted, *module.parameters()])]
    except (RuntimeError, ValueError, IndexError) as error:
        return error
    return [*found, *module.buffers()]


@pytest.mark.filterwarnings("ignore:input's size at dim=1 does not match num_features")
@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("training", [True, False])
@by_case
def test_of_nothing_and_of_one_value_as_torch(case, training, length):
    """Calls that torch computes are computed, others are refused; backward as forward.

    Where torch has NaN of nothing, a sum of nothing is 0 and a running statistic what it was.
    """
    bound = TOLERANCE[torch.float32]
    for changed in case.with_sizes(length):
        theirs, ours = pair(case, torch.float32)
        exact = outcome(changed, theirs.train(training), torch.float64)
        found = outcome(changed, ours.train(training), torch.float32)
        messages = f"{exact}|{found}"
        if isinstance(exact, Exception) is not isinstance(found, Exception):
            assert any(part in messages for part in DEVIATIONS), messages
        elif isinstance(exact, Exception):
            is_torchs = str(found) == str(exact)  # of a layer without an activation
            assert isinstance(found, ValueError) or is_torchs, messages
        else:
            for mine, one in zip(found, exact, strict=True):
                is_known = ~one.isnan()
                assert mine.shape == one.shape
                # Values are about 1; what should be 0 may have their rounding error.
                torch.testing.assert_close(
                    mine[is_known].double(), one[is_known].double(), rtol=bound, atol=bound
                )


@by_case
def test_is_torchs_but_for_forward(case):
    """Constructor, state, copies: an exchange of states goes both ways, strictly."""
    theirs, ours = case.torch_class(*case.args, **case.options), pair(case, torch.float32)[1]
    # DistributedDataParallel refuses what is derived from torch's SyncBatchNorm on the CPU.
    assert isinstance(ours, case.torch_class) or case.torch_class is torch.nn.SyncBatchNorm
    assert repr(ours) == f"fastact.torch.nn.{theirs!r}"
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(again) is type(ours)
        assert repr(again) == repr(ours)
        inputs = case.inputs(torch.float32)
        results = zip(case.call(ours.eval(), inputs), case.call(again.eval(), inputs), strict=True)
        assert all(torch.equal(a, b) for a, b in results)


def test_modules_are_loaded_when_asked_for():
    code = """
import sys, fastact.torch
assert "fastact.torch.nn" not in sys.modules
assert fastact.torch.nn.Mish.__module__.startswith("fastact.torch.nn")
assert not hasattr(fastact.torch, "optim")
import fastact.torch.dispatch
late = ("torch.distributed.tensor", "torch.onnx", "onnx", "scipy")
assert not [name for name in sys.modules if name.startswith(late)]
"""
    python_output(code)


def test_every_module_has_a_case():
    assert {case.torch_class for case in CASES} == set(REPLACEMENTS)


@pytest.mark.parametrize("op", ACTIVATIONS.values(), ids=lambda op: op.name)
def test_every_activation_is_a_module(op):
    (cls,) = [cls for cls in vars(fnn).values() if getattr(cls, "op", None) == op.name]
    x = torch.randn(5)
    module = cls()
    assert torch.equal(module(x), op(x))
    assert module.options(module) == dict(op.parameters)
    others = {n: "tanh" if isinstance(v, str) else v + 0.5 for n, v in op.parameters.items()}
    assert torch.equal(cls(**others)(x), op(x, **others))
    assert pickle.loads(pickle.dumps(module))(x).equal(op(x))


WITH_ACTIVATION = [
    case for case in CASES if issubclass(REPLACEMENTS[case.torch_class], WithActivation)
]


@pytest.mark.parametrize("activation", ["mish", "leaky_relu", "gelu"])
@pytest.mark.parametrize("case", WITH_ACTIVATION, ids=str)
def test_activation_behind(case, activation):
    """As the layer of torch's and the activation one behind the other, gradients too."""
    theirs, _ = pair(case, torch.float64)
    cls = REPLACEMENTS[case.torch_class]
    parameters = {"leaky_relu": {"negative_slope": 0.3}, "gelu": {"approximate": "tanh"}}
    own = parameters.get(activation, {})
    ours = cls(*case.args, **case.options, activation=activation, **own).double()
    ours.load_state_dict(theirs.state_dict())
    x, y = (case.inputs(torch.float64)[0].requires_grad_() for _ in range(2))
    mine = ours(x)
    exact = getattr(torch.nn.functional, activation)(theirs(y), **own)
    assert_close(mine, exact, torch.float64)
    for a, b in zip(
        gradients([mine], [x, *ours.parameters()]),
        gradients([exact], [y, *theirs.parameters()]),
        strict=True,
    ):
        assert_close(a, b, torch.float64)
    told = f"activation='{activation}'"
    assert told in repr(ours)
    assert repr(pickle.loads(pickle.dumps(ours))) == repr(ours)


def test_no_activation_that_is_none():
    with pytest.raises(ValueError, match=r"fastact.torch.nn.LayerNorm: activation must be 'id"):
        fnn.LayerNorm(3, activation="rellu")
    with pytest.raises(TypeError, match=r"LayerNorm: negative_slope must be"):
        fnn.LayerNorm(3, activation="leaky_relu", negative_slope="steep")
    refused("negative_slope", fnn.LayerNorm, 3, activation="relu", negative_slope=0.3)


@pytest.mark.parametrize("threshold", [-3, 0.5, 20, 50])
def test_a_threshold_is_torchs(threshold):
    """Results, gradients of two orders, and no layer before it computes it."""
    x = torch.linspace(-4, 40, 50, dtype=torch.float64).requires_grad_()
    found = []
    for cls in (fnn.Softplus, torch.nn.Softplus):
        y = cls(2, threshold)(x)
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found.append([y, dx])
        if threshold != 20:
            found[-1].append(torch.autograd.grad(dx.sum(), x)[0])
    torch.testing.assert_close(*found)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), fnn.Softplus(2, threshold))
    assert bool(fnn.convert(model).fused) == (threshold == 20)


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (lambda: fnn.LayerNorm((4, 3)), (3, 4), r"LayerNorm: input must end with shape \(4, 3\)"),
        (lambda: fnn.LayerNorm(()), (3,), r"LayerNorm: input must end with shape \(\), got \(3,\)"),
        (lambda: fnn.RMSNorm(3, elementwise_affine=False), (3, 4), r"RMSNorm: input must end"),
        (lambda: fnn.InstanceNorm1d(3), (2, 3, 1), "InstanceNorm1d: input must have more than one"),
        (lambda: fnn.BatchNorm1d(3), (1, 3), "more than one value per channel in training"),
        (lambda: fnn.GroupNorm(2, 2), (1, 2), "GroupNorm: input must have more than one value"),
        (lambda: fnn.BatchNorm2d(3), (2, 3), "expected 4D input"),
        (lambda: fnn.Softmax2d(), (2, 3), "Softmax2d: input must have three axes or four, got"),
        (lambda: fnn.LSTMCell(3, 4), (2, 4), r"LSTMCell: input must have shape \(3,\) or"),
        (lambda: fnn.GRU(3, 4), (2, 2, 4), "GRU: input must have 3 features"),
        (lambda: fnn.GRU(3, 4), (2, 2, 2, 3), "GRU: input must have two axes or three"),
        (lambda: fnn.LSTM(3, 4), (0, 2, 3), "LSTM: input must have at least one step"),
    ],
)
def test_shapes_that_do_not_fit(module, shape, message):
    with pytest.raises(ValueError, match=message):
        module()(torch.zeros(shape))


def test_numbers_that_do_not_fit():
    with pytest.raises(ValueError, match=r"BatchNorm1d: eps must be positive in training, got 0"):
        fnn.BatchNorm1d(3, eps=0)(torch.zeros(2, 3))
    assert fnn.BatchNorm1d(3, eps=0).eval()(torch.zeros(2, 3)).shape == (2, 3)
    with pytest.raises(ValueError, match="CrossEntropyLoss: ignore_index must be negative for a"):
        fnn.CrossEntropyLoss(ignore_index=1)(torch.zeros(2, 3), torch.ones(2, 3))
    for cls in (fnn.LSTM, fnn.GRU):
        with pytest.raises(TypeError, match=rf"nn.{cls.__name__}: input must have the parameters'"):
            cls(3, 4)(torch.zeros(5, 2, 3, dtype=torch.float64))


def test_states_that_do_not_fit():
    with pytest.raises(ValueError, match=r"GRU: hx must have shape \(1, 2, 4\), got \(1, 3, 4\)"):
        fnn.GRU(3, 4)(torch.zeros(5, 2, 3), torch.zeros(1, 3, 4))
    with pytest.raises(ValueError, match=r"LSTM: hx must have shape \(1, 2, 1\), got \(1, 2, 4\)"):
        fnn.LSTM(3, 4, proj_size=1)(torch.zeros(5, 2, 3), (torch.zeros(1, 2, 4),) * 2)
    with pytest.raises(ValueError, match=r"LSTMCell: hx must have shape \(2, 4\), got \(4,\)"):
        fnn.LSTMCell(3, 4)(torch.zeros(2, 3), (torch.zeros(2, 4), torch.zeros(4)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_by_default_has_the_eps_of_torch(dtype):
    x = (torch.randn(3, 8) / 1000).to(dtype)
    ours, theirs = fnn.RMSNorm(8).to(dtype)(x), torch.nn.RMSNorm(8).to(dtype)(x)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("cls", [fnn.Softmax, fnn.Softmin], ids=lambda cls: cls.__name__)
def test_softmax_without_an_axis_is_torchs(cls):
    with pytest.warns(UserWarning, match="Implicit dimension"):
        y = cls()(torch.zeros(2, 3))
    torch.testing.assert_close(y, torch.full((2, 3), 1 / 3))


OF_AN_AXIS = sorted(
    {case.torch_class for case in CASES if "dim" in signature(case.torch_class).parameters}
    - {torch.nn.GLU},  # halves of an axis
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("torch_class", OF_AN_AXIS, ids=lambda cls: cls.__name__)
def test_of_an_axis_of_a_number(torch_class, dim):
    """An array without axes has one of length 1 where torch's has."""
    found = []
    for cls in (REPLACEMENTS[torch_class], torch_class):
        x = torch.tensor(3.0, requires_grad=True)
        y = cls(dim)(x)
        (dx,) = torch.autograd.grad(y, x)
        found.append((y, dx))
    assert found[0] == found[1]
    with pytest.raises(IndexError, match="axis"):
        REPLACEMENTS[torch_class](3 * dim + 1)(x.detach())  # one further


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_target_with_a_gradient_has_one(reduction):
    given = [torch.randn(4, 3, 2).double().requires_grad_() for _ in range(2)]
    options = {"weight": torch.rand(3).double(), "reduction": reduction, "label_smoothing": 0.1}
    made = (of.CrossEntropyLoss(**options) for of in (fnn, torch.nn))
    losses = [lambda x, t, loss=loss: loss(x, t).sin().sum() for loss in made]
    for derivative, argnums in ((torch.func.grad, 1), (torch.func.hessian, (0, 1))):
        found = (derivative(f, argnums)(*(t.detach() for t in given)) for f in losses)
        torch.testing.assert_close(*found)
    assert torch.autograd.gradgradcheck(losses[0], given)


def test_in_place_is_in_place():
    x, module = torch.randn(4), fnn.ReLU(inplace=True)
    with torch.no_grad():
        assert module(x) is x
    a = torch.randn(4).requires_grad_()
    y = a * 1
    assert module(y) is y
    y.sum().backward()
    assert torch.equal(a.grad, (a > 0).float())


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("layers", [torch.nn.LSTM, torch.nn.GRU], ids=lambda c: c.__name__)
def test_packed_sequences(layers, enforce_sorted, batch_first):
    options = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64}
    theirs, ours = (cls(3, 5, **options) for cls in (layers, REPLACEMENTS[layers]))
    ours.load_state_dict(theirs.state_dict())
    lengths = [5, 5, 3, 1] if enforce_sorted else [3, 1, 5, 5]
    found = []
    for module in (ours, theirs):
        x = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        x.requires_grad_()
        given = x if batch_first else x.transpose(0, 1)
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            given, lengths, batch_first=batch_first, enforce_sorted=enforce_sorted
        )
        h = torch.randn(4, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        out, last = module(packed, (h, h) if layers is torch.nn.LSTM else h)
        out, sizes = torch.nn.utils.rnn.pad_packed_sequence(out)
        assert sizes.tolist() == lengths
        results = [out, *(last if isinstance(last, tuple) else [last])]
        found.append([*results, *gradients(results, [x, *module.parameters()])])
    for mine, exact in zip(*found, strict=True):
        assert_close(mine, exact, torch.float64)


@pytest.mark.parametrize("layers", [torch.nn.LSTM, torch.nn.GRU], ids=lambda c: c.__name__)
def test_a_layer_leaves_nothing_behind(layers):
    """Arrays that a step of training makes are freed without the garbage collector."""
    module = REPLACEMENTS[layers](3, 4)
    gc.collect()
    gc.disable()
    try:
        out, _ = module(torch.randn(5, 2, 3))
        of_the_node = weakref.ref(out._base)
        out.sum().backward()
        del out, _
        assert of_the_node() is None
    finally:
        gc.enable()


def test_layers_under_autocast():
    x = torch.randn(5, 2, 3)
    for cls in (fnn.LSTM, fnn.GRU):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, _ = cls(3, 4)(x)
        assert out.dtype == torch.bfloat16
        out.sum().backward()
