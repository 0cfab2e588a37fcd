"""A second derivative is right; gradients of a batch.

By iteration over all ops, all modules and all our functions of autograd.
"""

import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from native import recording
from tensors import Dispatched, called, differentiated, leaves, sample
from torch import distributed, nn
from torch.autograd import forward_ad
from torch.autograd.functional import hessian, jacobian
from torch_modules import CASES, Case

import fastact as fa
import fastact.torch
import fastact.torch.nn as fnn
from fastact import _cpu
from fastact.torch import autograd
from fastact.torch.nn import activations

# torch's own, of what it loads at the first use
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

FEW = (nn.Mish, nn.LeakyReLU, nn.GELU)


def cases() -> Iterator[Any]:
    """Modules of activations go one way, and so do norms of 1, 2 or 3 axes: a plain run has three
    of the former, and the latter of one."""
    for case in CASES:
        name = case.torch_class.__name__
        is_activation = issubclass(getattr(fnn, name), activations.ActivationModule)
        is_more = is_activation and case.torch_class not in FEW
        is_more |= name.endswith(("Norm2d", "Norm3d"))
        yield pytest.param(case, marks=pytest.mark.thorough if is_more else (), id=str(case))


each_case = pytest.mark.parametrize("case", [*cases()])


def total(results: Any) -> torch.Tensor:
    """Of whatever arrays there are, with weights, so that nothing cancels."""
    weighted = (
        (y * torch.linspace(0.5, 2, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()
        for y in results
    )
    return sum(weighted, torch.zeros((), dtype=torch.float64))


def values_or_refusal(get: Callable[[], Any]) -> Any:
    """What a derivative gives; None where torch's own op in the place of ours has none."""
    try:
        return get()
    except RuntimeError as error:
        if "hardsigmoid_backward is not impl" not in str(error):
            raise
        return None


# --- ops ------------------------------------------------------------------------------------------


def nodes(tensor: torch.Tensor) -> list[str]:
    """Those of a tensor's graph that compute something."""
    found, left = [], [tensor.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node.name() != "torch::autograd::AccumulateGrad":
            found.append(node.name())
            left += [other for other, _ in node.next_functions]
    return found


@pytest.mark.parametrize(
    "op", [op for op in fa.ops.values() if op.traits.second is not None], ids=str
)
def test_a_second_derivative_is_one_pass_over_rows(op):
    """Nothing is computed by torch, and the graph has a node for each call of an entry point."""
    named = {name: value for name, value in sample(op).items() if name != "sink"}
    names = differentiated(op, named)
    tensors = leaves(named, names)
    saves_result = {*op.saves} & {*op.results}
    _cpu.enable_call_cache(False)
    try:
        (y,) = called(op, named, names)(*tensors)
        dy = torch.ones_like(y).requires_grad_()
        (dx,) = torch.autograd.grad(y, tensors[:1], dy, create_graph=True)
        assert len(nodes(dx)) == (2 if saves_result else 1)
        for by, more in ([dy], []), ([dy, *tensors], ["sum"][: len(names) - 1]):
            ddx = torch.ones_like(dx)
            with recording() as (calls, _), Dispatched() as by_torch:
                torch.autograd.grad(dx, by, ddx, retain_graph=True, allow_unused=True)
            made = [function.__name__ for function, _ in calls]
            assert made[0] == "second_rows"
            if len(by) > 1:
                assert made[1:] == [*more, *([f"{op.family}_backward"] if saves_result else [])]
            found = {name.split(".")[1] for name in by_torch.names}
            assert found <= {"empty_like", "detach", f"{op.name}_backward"}
    finally:
        _cpu.enable_call_cache(True)


# --- modules --------------------------------------------------------------------------------------


def pair(case: Case) -> tuple[nn.Module, nn.Module]:
    """A module of torch's and the one of fastact, with the same parameters."""
    made = []
    for cls in (case.torch_class, getattr(fnn, case.torch_class.__name__)):
        torch.manual_seed(0)
        made.append(cls(*case.args, **case.options).double())
    return made[0], made[1]


def loss(case: Case, module: nn.Module, x: torch.Tensor, squared: bool) -> torch.Tensor:
    _, *others = case.inputs(torch.float64)
    results = case.call(module, [x.clone(), *others])
    return total(y * y if squared else y for y in results)


def penalty(case: Case, module: nn.Module, squared: bool) -> list[torch.Tensor | None]:
    """The gradients by parameters and x of a penalty on the gradient by x."""
    x = case.inputs(torch.float64)[0].requires_grad_()
    (dx,) = torch.autograd.grad(loss(case, module, x, squared), x, create_graph=True)
    every = [x, *module.parameters()]
    if not dx.requires_grad:  # as of relu: it depends on nothing
        return [None for _ in every]
    return [*torch.autograd.grad(dx.square().sum(), every, allow_unused=True)]


def by_parameters(case: Case, module: nn.Module, squared: bool) -> list[torch.Tensor | None]:
    """Those of the square of the gradients by parameters."""
    parameters = [*module.parameters()]
    x = case.inputs(torch.float64)[0].requires_grad_()
    if not parameters:
        return []
    found = torch.autograd.grad(loss(case, module, x, squared), parameters, create_graph=True)
    square = total(g.square() for g in found)
    if not square.requires_grad:
        return [None for _ in (x, *parameters)]
    return [*torch.autograd.grad(square, [x, *parameters], allow_unused=True)]


def of_x(case: Case, module: nn.Module, squared: bool) -> list[torch.Tensor | None]:
    x = case.inputs(torch.float64)[0]
    return [hessian(lambda x: loss(case, module, x, squared), x)]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("squared", [True, False], ids=["squared", "linear"])
@each_case
def test_second_derivatives_of_modules(case, squared):
    """torch's; `squared` has gradients that come in and require grad themselves."""
    theirs, ours = pair(case)
    for way in (of_x, penalty, by_parameters):
        found = values_or_refusal(partial(way, case, ours, squared))
        if found is None:
            assert not isinstance(ours, nn.RNNBase)
            continue
        try:
            expected = way(case, theirs, squared)
        except RuntimeError as error:  # torch has none of hardsigmoid
            if "is not implemented" not in str(error):
                raise
            assert case.torch_class is nn.Hardsigmoid
            continue
        for got, right in zip(found, expected, strict=True):
            like = got if right is None else right
            if like is not None:
                pad = [torch.zeros_like(like) if each is None else each for each in (got, right)]
                torch.testing.assert_close(*pad)


@pytest.mark.parametrize("way", ["jacobian", "grad", "vmap"])
@each_case
def test_transforms_of_modules(case, way):
    """Derivatives of functions of modules, and of batches, as torch's modules have them."""
    if way == "vmap" and (case.options.get("dropout") or case.torch_class is nn.SyncBatchNorm):
        pytest.skip(
            "torch asks how the numbers of a batch are drawn, and has none of SyncBatchNorm"
        )
    theirs, ours = pair(case)
    x = case.inputs(torch.float64)[0]
    found = []
    for module in (theirs, ours):
        buffers = {name: b.clone() for name, b in module.named_buffers()}

        def f(
            x: torch.Tensor, parameters: Any, module: Any = module, buffers: Any = buffers
        ) -> Any:
            state = (parameters, {name: b.clone() for name, b in buffers.items()})
            _, *others = case.inputs(torch.float64)
            functional = partial(torch.func.functional_call, module, state)
            return case.call(lambda *given: functional(given), [x.clone(), *others])[0]

        weights = {name: p.detach() for name, p in module.named_parameters()}
        if way == "jacobian":
            found.append(jacobian(lambda x, f=f, w=weights: f(x, w), x, vectorize=True))
        elif way == "grad":
            g = torch.func.grad(lambda w, f=f: f(x, w).square().sum())(weights)
            found.append([*g.values()])
        elif module is ours:
            module.eval()  # in training each example would move the same statistics
            found.append(
                torch.func.vmap(f, (0, None), randomness="same")(torch.stack([x, 2 * x]), weights)
            )
        else:  # torch has no rule for its recurrent layers
            module.eval()
            found.append(torch.stack([f(x, weights), f(2 * x, weights)]))
    torch.testing.assert_close(found[1], found[0])


def test_statistics_of_one_array_for_all_examples_are_an_error():
    with pytest.raises(ValueError, match=r"fastact\.batch_norm: running_mean is written"):
        torch.func.vmap(fnn.BatchNorm1d(3))(torch.ones(2, 4, 3))


def test_the_offset_of_a_casting():
    """Which is added to the weight: of every gradient, of x and of the weight."""
    x, weight = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((3, 5), 5))

    def call(x: Any, weight: Any) -> Any:
        return fa.rms_norm(x, weight, casting="gemma")

    assert torch.autograd.gradgradcheck(call, (x, weight))


def test_an_empty_batch():
    assert torch.func.vmap(fa.softmax)(torch.ones(0, 3)).shape == (0, 3)


# --- functions of autograd ------------------------------------------------------------------------


def functions(cls: Any) -> Iterator[Any]:
    for sub in cls.__subclasses__():
        # torch makes classes of nodes of the same name, and functions for transforms
        if sub.__module__.startswith("fastact.torch") and "Generated" not in sub.__name__:
            yield sub
        yield from functions(sub)


def test_every_function_of_autograd_is_one_of_these():
    """Those through which all ops go are tested above, by iteration over ops. Any other is
    differentiated by torch's own ops, or is linear and its own gradient."""
    for module in pkgutil.walk_packages(fastact.torch.__path__, "fastact.torch."):
        if module.name != "fastact.torch.transformers" or importlib.util.find_spec("kernels"):
            importlib.import_module(module.name)
    from fastact.torch.dispatch import Traced
    from fastact.torch.nn.recomputed import differentiated_by
    from fastact.torch.nn.sync_batch_norm import _Total

    by_torch = differentiated_by(lambda call, *tensors: tensors)(lambda ctx, *incoming: incoming)
    of_ops = {autograd.Step, autograd.Twice, autograd.Once}
    tested = {*of_ops, Traced, _Total}
    found = set(functions(torch.autograd.Function)) - {autograd.Function}
    assert found >= tested
    for cls in found - tested:
        assert issubclass(cls, autograd.Function)
        assert cls.backward.__code__ is by_torch.__code__, cls


@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_a_synchronised_norm(activation):
    """Of one process, which the module leaves to `BatchNorm1d`."""
    from fastact.torch.nn.sync_batch_norm import _SyncBatchNorm

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        x = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
        parameters = [torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        fused = {} if activation == "identity" else {"activation": activation}
        call = (distributed.group.WORLD, (None, None), 0.1, 1e-5, fused)

        def ours(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return _SyncBatchNorm.apply(call, x, w, b)

        def theirs(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            y = nn.functional.batch_norm(x, None, None, w, b, True)
            return y if activation == "identity" else y.relu()

        given = (x, *parameters)
        found, expected = (
            (
                jacobian(lambda *each, f=f: f(*each), given, vectorize=True),
                hessian(lambda *each, f=f: total([f(*each)]), given),
                hessian(lambda *each, f=f: total([f(*each).square()]), given, vectorize=True),
            )
            for f in (ours, theirs)
        )
        torch.testing.assert_close(found, expected)
        assert torch.autograd.gradgradcheck(ours, given)
        module = fnn.SyncBatchNorm(3).double()
        assert module(x).shape == x.shape
    finally:
        distributed.destroy_process_group()


def test_a_tensor_given_twice_and_two_of_them():
    """The first call, by which later ones are recorded, can't tell gates from the state."""

    def theirs(gates: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return gates.sigmoid() * state

    values = torch.randn(2, 5).double(), torch.randn(2, 5).double()  # shapes no other test has
    found = []
    for f in (fa.gru_reset, theirs):
        x, gates = (t.clone().requires_grad_() for t in values)
        (dx,) = torch.autograd.grad(f(x, x).sum(), x, create_graph=True)
        both = torch.autograd.grad(f(gates, x).sum(), (gates, x), create_graph=True)
        found.append([*torch.autograd.grad(dx.sum(), x)])
        found[-1] += torch.autograd.grad((both[0] * both[1]).sum(), (gates, x))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "case", [c for c in CASES if issubclass(c.torch_class, nn.RNNBase)], ids=str
)
def test_forward_mode_of_layers(case):
    """As differences have it, by torch.func and by dual numbers."""
    _, module = pair(case)
    x, *others = case.inputs(torch.float64)
    v = torch.ones_like(x)

    def f(x: torch.Tensor) -> torch.Tensor:
        return total(case.call(module, [x, *others]))

    step = 1e-5  # as above
    slope = (f(x + step * v) - f(x - step * v)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(f, (x,), (v,))[1], slope, rtol=1e-7, atol=1e-7)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(f(forward_ad.make_dual(x, v))).tangent
    torch.testing.assert_close(found, slope, rtol=1e-7, atol=1e-7)


def test_a_weight_that_a_state_is_made_of():
    """Each of the two has its own part of the gradient."""
    found = []
    for cls in (nn.GRU, fnn.GRU):
        torch.manual_seed(0)
        module, x = cls(3, 4).double(), torch.randn(5, 2, 3, dtype=torch.float64)
        weight = module.weight_hh_l0
        y = module(x, weight.mean(0).expand(1, 2, 4))[0].square().sum()
        (d,) = torch.autograd.grad(y, weight, create_graph=True)
        found.append([d, *torch.autograd.grad(d.square().sum(), [weight])])
    torch.testing.assert_close(*found)


SUMS = [op for op in fa.ops.values() if op.family == "reductions" and len(op.results) == 1]


@pytest.mark.parametrize("op", SUMS, ids=lambda op: op.name)
def test_of_one_number(op):
    """A shape that is saved is then empty."""
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: op(x) * x, x)
