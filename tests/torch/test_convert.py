"""`convert`: which modules it swaps, which it joins, and what it leaves; `revert` undoes that."""

import copy
import pickle
from typing import Any

import pytest
import torch
from judged import refused
from torch import nn
from torch.nn.utils import parametrizations
from torch_modules import CASES

import fastact.torch
import fastact.torch.nn as fnn
from fastact.torch.nn.convert import REPLACEMENTS
from fastact.torch.nn.module import WithActivation


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, bias=False),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Sequential(nn.Linear(16, 8), nn.GELU("tanh"), nn.Dropout(0.0), nn.LayerNorm(8)),
        nn.Mish(),
        nn.Linear(8, 3),
        nn.Softmax(1),
    )


def trained(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Parameters and buffers after three steps of an optimiser, and the result in evaluation."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        y = model.eval()(x)
    return [*model.state_dict().values(), y]


def test_a_converted_network_is_the_same_network():
    model, x = network().double(), torch.randn(5, 1, 6, 6, dtype=torch.float64)
    before = copy.deepcopy(model)
    parameters = dict(model.named_parameters())
    report = fnn.convert(model)
    assert report.converted == {"1": "BatchNorm2d", "6.3": "LayerNorm", "7": "Mish", "9": "Softmax"}
    assert report.fused == {
        "1": "BatchNorm2d with ReLU(inplace=True)",
        "3": "Conv2d with LeakyReLU(negative_slope=0.2)",
        "6.0": "Linear with GELU(approximate='tanh')",
    }
    assert report.left == {"6.2": "Dropout: its random numbers differ from torch's"}
    assert type(model[8]) is nn.Linear
    assert type(model[2]) is type(model[4]) is nn.Identity
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert list(model.state_dict()) == list(before.state_dict())
    for ours, theirs in zip(trained(model, x), trained(before, x), strict=True):
        torch.testing.assert_close(ours, theirs)
    before.load_state_dict(model.state_dict())
    model.load_state_dict(before.state_dict())


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's, of its own
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_module_alone(case):
    theirs = case.torch_class(*case.args, **case.options).eval()
    ours: Any = copy.deepcopy(theirs)
    report = fnn.convert(ours, only=case.torch_class)
    # A layer without an activation behind it is torch's.
    is_layer = case.torch_class.__name__.startswith(("Linear", "Conv"))
    assert type(ours) is (case.torch_class if is_layer else REPLACEMENTS[case.torch_class])
    assert report.converted == ({} if is_layer else {"": case.torch_class.__name__})
    assert repr(ours) == ("" if is_layer else "fastact.torch.nn.") + repr(theirs)
    inputs = case.inputs(torch.float32)
    a, b = (case.call(m, [t.clone() for t in inputs]) for m in (ours, theirs))
    torch.testing.assert_close(a, b)
    assert fnn.revert(ours).converted == report.converted
    assert (type(ours), vars(ours).keys()) == (case.torch_class, vars(theirs).keys())


FUSING = [c for c in CASES if issubclass(REPLACEMENTS[c.torch_class], WithActivation)]


@pytest.mark.parametrize("case", FUSING, ids=str)
def test_each_layer_with_an_activation_behind(case):
    theirs = nn.Sequential(case.torch_class(*case.args, **case.options), nn.Hardtanh(-0.5, 0.7))
    ours: Any = copy.deepcopy(theirs)
    assert list(fnn.convert(ours).fused) == ["0"]
    assert ours[0].fused == {"activation": "hardtanh", "min_val": -0.5, "max_val": 0.7}
    inputs = case.inputs(torch.float32)
    torch.testing.assert_close(ours(*inputs), theirs(*inputs))
    assert list(fnn.revert(ours).parted) == ["0"]
    assert [*map(type, ours)] == [*map(type, theirs)]
    assert [vars(m).keys() for m in ours] == [vars(m).keys() for m in theirs]


def test_shared_modules_stay_shared():
    act, norm = nn.SiLU(), nn.LayerNorm(4)
    model = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act, nn.Identity(), act, norm)
    model.append(nn.Sequential(norm, nn.ReLU()))
    before = copy.deepcopy(model)
    report = fnn.convert(model)
    assert list(report.fused) == ["0", "2"]
    assert report.left == {"7.1": "7.0 before it is in several places"}
    assert model[5] is act
    assert model[6] is model[7][0] is norm
    assert not norm.fused
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), before(x))


def scaled(module: nn.Module, *args: Any) -> Any:
    """What a hook before or behind a module makes of what goes in or comes out."""
    return tuple(3 * t for t in args[-1]) if isinstance(args[-1], tuple) else 3 * args[-1]


def renamed(module: nn.Module, state: Any, prefix: str, *others: Any) -> None:
    state[f"{prefix}note"] = torch.ones(1)


def forgotten(module: nn.Module, state: Any, prefix: str, *others: Any) -> None:
    del state[f"{prefix}note"]


def before_state(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 1


def after_load(module: nn.Module, keys: Any) -> None:
    keys.missing_keys.append("a key of the hook's own")


# How each kind of hook is put on a module, and whether it sees or changes what lies behind it.
HOOKS: dict[str, tuple[Any, bool]] = {
    "forward_pre": (lambda m: m.register_forward_pre_hook(scaled), False),
    "forward_pre with kwargs": (
        lambda m: m.register_forward_pre_hook(
            lambda module, args, kwargs: (scaled(module, args), kwargs), with_kwargs=True
        ),
        False,
    ),
    "forward": (lambda m: m.register_forward_hook(scaled), True),
    "forward always": (lambda m: m.register_forward_hook(scaled, always_call=True), True),
    "full_backward_pre": (lambda m: m.register_full_backward_pre_hook(scaled), True),
    "full_backward": (
        lambda m: m.register_full_backward_hook(lambda module, dx, dy: scaled(module, dx)),
        True,
    ),
    "backward of old": (lambda m: m.register_backward_hook(lambda module, dx, dy: None), True),
    "state_dict": (lambda m: m.register_state_dict_post_hook(renamed), False),
    "state_dict_pre": (lambda m: m.register_state_dict_pre_hook(before_state), False),
    "load_state_dict_pre": (
        lambda m: (
            m.register_state_dict_post_hook(renamed),
            m.register_load_state_dict_pre_hook(forgotten),
        ),
        False,
    ),
    "load_state_dict_post": (lambda m: m.register_load_state_dict_post_hook(after_load), False),
    "parametrization": (
        lambda m: nn.utils.parametrize.register_parametrization(m, "weight", nn.Tanh()),
        False,
    ),
    "weight_norm": (parametrizations.weight_norm, False),
    "spectral_norm": (parametrizations.spectral_norm, False),
    "weight_norm of old": (nn.utils.weight_norm, False),
    "spectral_norm of old": (nn.utils.spectral_norm, False),
    "of a parameter": (lambda m: m.weight.register_hook(lambda d: 3 * d), False),
}

# Of a layer, of the activation behind it, of a norm, and of the whole model.
PLACES = ("0", "1", "2", "")
OF_A_WEIGHT = ("parametrization", "of a parameter")
HOOKED = [
    (kind, at)
    for kind in HOOKS
    for at in PLACES
    if at in ("0", "2") or kind not in OF_A_WEIGHT
    if at == "0" or "norm" not in kind  # which is one of a matrix
]


def everything(model: nn.Module) -> list[Any]:
    """A step, and an exchange of states: results, gradients, keys, and what was missing."""
    torch.manual_seed(0)
    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    y = model(x)
    y.square().sum().backward()
    state = model.state_dict()
    keys = model.load_state_dict(state, strict=False)
    found = [*y, x.grad, *(p.grad for p in model.parameters()), *state.values()]
    return [found, list(state), *keys]


def assert_alike(ours: nn.Module, model: nn.Module, **tolerance: float) -> None:
    (found, *keys), (exact, *theirs) = everything(ours), everything(model)
    assert keys == theirs
    torch.testing.assert_close(found, exact, **tolerance)


@pytest.mark.filterwarnings("ignore:.*torch.nn.utils.weight_norm.* is deprecated")
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("kind", "at"), HOOKED)
def test_beside_every_kind_of_hook(kind, at, training):
    """Hooks see and change what they did, and an activation that has any stays where it is."""
    put, looks_behind = HOOKS[kind]
    model = nn.Sequential(nn.Linear(4, 4), nn.Mish(), nn.LayerNorm(4), nn.ReLU()).double()
    ours = copy.deepcopy(model)
    for each in (model, ours):
        torch.manual_seed(0)  # spectral_norm begins at random
        put(each.get_submodule(at))
        each.train(training)
    report = fnn.convert(ours)
    is_parametrized = nn.utils.parametrize.is_parametrized
    for name, following in (("0", "1"), ("2", "3")):
        is_hooked = at == following or (at == name and looks_behind)
        is_own = is_parametrized(ours.get_submodule(name))
        assert (name in report.fused) is not (is_hooked or is_own)
        assert (following in report.left) is is_hooked
    assert {m.training for m in ours.modules()} == {training}
    assert set(ours.state_dict()) == set(model.state_dict())
    assert_alike(ours, model)
    model.zero_grad()
    ours.zero_grad()
    fnn.revert(ours)
    assert repr(ours) == repr(model)
    assert_alike(ours, model, rtol=0, atol=0)


def test_a_forward_of_its_own_is_left():
    """Of one module, as tools put it there that move or count what goes through."""
    x = torch.randn(3, 4)
    for place in range(5):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Mish(), fnn.Sigmoid())
        own = model[place]
        own.forward = lambda y, of=own.forward: 2 * of(y)
        before = model(x)
        report = fnn.convert(model)
        assert "forward" in vars(model[place])
        assert str(place) not in (*report.converted, *report.fused)
        torch.testing.assert_close(model(x), before)
        assert fnn.convert(model).fused == {}
    whole = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    whole.forward = lambda x, of=whole: of[0](x)
    assert fnn.convert(whole).fused == {}


def test_lazy_modules_are_left_until_their_first_call():
    model = nn.Sequential(
        nn.LazyConv1d(4, 1), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3), nn.Mish()
    )
    report = fnn.convert(model)
    assert report.converted == {"2": "ReLU", "4": "Mish"}
    assert report.fused == {}
    assert report.left == {
        "1": "LazyBatchNorm1d is lazy: convert it after its first call",
        "2": "1 before it is lazy: convert after its first call",
        "4": "3 before it is lazy: convert after its first call",
    }
    x = torch.randn(2, 3, 5)
    exact = model(x)
    assert list(fnn.convert(model).fused) == ["1", "3"]
    torch.testing.assert_close(model(x), exact)


class Squared(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) ** 2


class Own(nn.LayerNorm):
    pass


def test_what_is_not_torchs_own_is_left():
    normed = parametrizations.weight_norm(nn.Conv1d(2, 2, 1))
    orthogonal = parametrizations.orthogonal(nn.LSTM(2, 2), "weight_hh_l0")
    model = nn.ModuleDict(
        {
            "own": Own(4),
            "squared": Squared(nn.Linear(4, 4), nn.ReLU()),
            "normed": nn.Sequential(normed, nn.ReLU()),
            "orthogonal": orthogonal,
            "projected": nn.LSTM(3, 4, proj_size=2),
            "lstm": nn.LSTM(3, 4),
            "early": nn.Softplus(threshold=3),
            "prelu": nn.PReLU(),
        }
    )
    report = fnn.convert(model)
    expected = {"squared.1": "ReLU", "normed.1": "ReLU", "projected": "LSTM", "prelu": "PReLU"}
    assert report.converted == expected
    assert report.fused == {}
    assert report.left == {
        "own": "Own is a class of its own",
        "orthogonal": "ParametrizedLSTM is a class of its own",
        "lstm": f"LSTM: {fnn.LSTM.unasked_for(model['lstm'])}",
        "early": "Softplus: torch computes it with threshold=3",
    }
    assert type(model["own"]) is Own


@pytest.mark.parametrize(
    "sent", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_there_and_back(sent):
    """What is reverted is what was converted, and can be converted again."""
    model = network()
    before, modules, x = copy.deepcopy(model), [*model.modules()], torch.randn(5, 1, 6, 6)
    report = fnn.convert(model)
    model = sent(model)
    shown = repr(model)
    undone = fnn.revert(model)
    assert list(undone.parted) == list(report.fused)
    assert undone.left == {}
    assert undone.converted["2"] == "ReLU"
    assert str(undone).count("in two passes") == 3
    assert repr(model) == repr(before)
    assert [*map(type, model.modules())] == [*map(type, before.modules())]
    assert [vars(m).keys() for m in model.modules()] == [vars(m).keys() for m in before.modules()]
    assert list(model.state_dict()) == list(before.state_dict())
    if model is modules[0]:
        assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert torch.equal(model(x), before(x))
    assert str(fnn.revert(model)) == "nothing to convert"
    assert vars(fnn.convert(model)) == vars(report)
    assert repr(model) == shown


def test_what_revert_leaves():
    given, norm = fnn.LayerNorm(4, activation="gelu"), nn.LayerNorm(4)
    layers = [nn.Linear(4, 4), nn.ReLU(), norm, nn.Mish(), given, fnn.Lisht(), fnn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Sequential(nn.Linear(4, 4), nn.Mish()))
    fnn.convert(model)
    model[0].register_forward_hook(scaled)
    model[6].forward = model[6].forward
    model.append(norm)
    model[7][1] = nn.Identity()
    before = model(torch.ones(2, 4))
    assert fnn.revert(model).left == {
        "0": "hooks may look at it, or at 1",
        "2": "it is in several places",
        "4": "its activation was given to it, not taken from behind it",
        "5": "Lisht: torch has no such class",
        "6": "Sigmoid: its forward was replaced",
        "7.0": "its activation was given to it, not taken from behind it",
    }
    assert torch.equal(model(torch.ones(2, 4)), before)
    refused(r"fastact.torch.nn.revert: model must be a torch.nn.Mod", fnn.revert, [model])


LAYER_NORM = ["LayerNorm", nn.LayerNorm, fnn.LayerNorm, ["LayerNorm", nn.PReLU], (nn.LayerNorm,)]


@pytest.mark.parametrize("only", LAYER_NORM, ids=str)
def test_only(only):
    model = network()
    assert list(fastact.torch.convert(model, only=only).converted) == ["6.3"]
    assert list(fnn.convert(model, only=(nn.Softmax, nn.Mish)).converted) == ["7", "9"]
    report = fnn.convert(model, only=lambda name, module: name.startswith("6"))
    assert list(report.fused) == ["6.0"]
    rest = fnn.convert(model)
    assert (list(rest.converted), list(rest.fused)) == (["1"], ["1", "3"])
    refused(r"fastact.torch.nn.convert: model must be a torch.nn.Module", fnn.convert, [model])
    refused(r"^fastact.torch.nn.convert: only .* got 3$", fnn.convert, model, only=[3])
    hint = r"got 'Layernorm'; did you mean 'LayerNorm'\?"
    refused(hint, fnn.convert, model, only="Layernorm", error=ValueError)


def test_a_transformer():
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation=nn.GELU(), batch_first=True
    )
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 5, 8)
    before = copy.deepcopy(model)
    assert len(fnn.convert(model).converted) == 6
    torch.testing.assert_close(model(x), before(x))
    torch.testing.assert_close(model.eval()(x), before.eval()(x))
