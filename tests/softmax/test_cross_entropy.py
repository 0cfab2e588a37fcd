"""cross_entropy: against the oracle and torch, and what it refuses."""

from itertools import product
from typing import Any

import judged
import numpy as np
import pytest
from conftest import assert_same_bits, on_backends
from devices import DTYPES, FRAMEWORKS, Framework

import fastact as fa

SHAPES: list[tuple[tuple[int, ...], int | None]] = [
    ((5,), None), ((70, 10), None), ((4, 2100), -1), ((3, 7, 4, 5), None), ((2, 1100, 40), None),
    # What a device's kernels tell apart.
    ((37, 5), 1), ((5, 7, 9), 1), ((2, 21, 16), 1), ((6, 40), 0), ((257, 1028), 0),
]  # fmt: skip


def example(
    shape: tuple[int, ...], axis: int | None, dtype: str, probable: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, target and weight."""
    rng = np.random.default_rng(5)
    at = (1 if len(shape) > 1 else 0) if axis is None else axis % len(shape)
    x = (3 * rng.standard_normal(shape)).astype(DTYPES[dtype])
    kept = tuple(n for i, n in enumerate(shape) if i != at)
    weight = rng.uniform(0.5, 2, shape[at]).astype(np.promote_types(x.dtype, np.float32))
    if probable:
        target = np.exp(rng.standard_normal(shape))
        target = (target / target.sum(at, keepdims=True)).astype(x.dtype)
    else:
        target = rng.integers(0, shape[at], kept, dtype=np.int64)
        if len(kept) > 0:
            target[(0,) * len(kept)] = -100
    return x, target, weight


@pytest.mark.parametrize("dtype", list(DTYPES))
@on_backends("shape axis", SHAPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("probable", [False, True], ids=["classes", "probabilities"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_and_gradients(
    dtype: str,
    shape: tuple[int, ...],
    axis: int | None,
    reduction: str,
    probable: bool,
    smoothing: float,
    backend: Framework,
) -> None:
    x, target, weight = example(shape, axis, dtype, probable)
    options = {"axis": axis, "reduction": reduction, "label_smoothing": smoothing}
    for more in ({}, {"weight": weight}):
        given = {n: judged.each(v, backend.of) for n, v in {**options, **more}.items()}
        arrays = backend.of(x), backend.of(target)
        loss = np.asarray(backend.numpy(fa.cross_entropy(*arrays, **given)))
        dloss = np.asarray(np.random.default_rng(6).standard_normal(loss.shape)).astype(x.dtype)
        named = {"logits": x, "target": target, **options, **more}
        found = judged.assert_right(fa.cross_entropy, named, [dloss], backend)
        assert_same_bits(found["loss"], loss)
        _, saved = fa.cross_entropy.forward(*arrays, **given)
        into = backend.of(x.copy())
        back = fa.cross_entropy.backward(backend.of(dloss), into, *saved[1:], **options, out=into)
        assert_same_bits(backend.numpy(back), found["dlogits"])


def with_z_loss(x: Any, target: Any, w: Any, smoothing: float, z_loss: float) -> Any:
    """Each row's loss as Liger's kernel has it, in torch's arithmetic."""
    torch = pytest.importorskip("torch")
    losses = torch.nn.functional.cross_entropy(
        x, target, weight=w, reduction="none", label_smoothing=smoothing
    )
    counts = target != -100 if target.dtype == torch.int64 else torch.ones_like(losses)
    return losses + counts * z_loss * torch.logsumexp(x, min(1, x.ndim - 1)) ** 2


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
@pytest.mark.parametrize("probable", [False, True], ids=["classes", "probabilities"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_z_loss(framework: Framework, probable: bool, smoothing: float) -> None:
    torch = pytest.importorskip("torch")
    for (shape, axis), weighted, reduction in product(
        (*SHAPES[:2], ((4, 2100), None), ((3, 7, 4, 5), None)),
        (False, True),
        ("mean", "sum", "none"),
    ):
        x, target, weight = example(shape, axis, "float64", probable)
        given = torch.tensor(x, requires_grad=True)
        of_torch = torch.tensor(target), torch.tensor(weight) if weighted else None
        losses = with_z_loss(given, *of_torch, smoothing, 0.25)
        divisor: Any = 1.0
        if reduction == "mean" and probable:
            divisor = losses.numel()
        elif reduction == "mean":
            of_class = weight if weighted else np.ones_like(weight)
            divisor = of_class[target[target >= 0]].sum()
        exact = (losses if reduction == "none" else losses.sum()) / divisor
        dloss = torch.full_like(exact, 1.5)
        (of_x,) = torch.autograd.grad(exact, given, dloss)
        options = {"reduction": reduction, "label_smoothing": smoothing, "z_loss": 0.25}
        w = {"weight": framework.of(weight)} if weighted else {}
        arrays = framework.of(x), framework.of(target)
        loss, saved = fa.cross_entropy.forward(*arrays, **w, **options)
        np.testing.assert_allclose(framework.numpy(loss), exact.detach().numpy(), 1e-13, 1e-14)
        dx = fa.cross_entropy.backward(framework.of(dloss.numpy()), *saved, **options)
        np.testing.assert_allclose(framework.numpy(dx), of_x.numpy(), 1e-11, 1e-13)


def test_no_z_loss_of_rows_without_bounds() -> None:
    """0 times an infinite logsumexp is not added."""
    x = np.float32([[np.inf, 0], [1, 2]])
    plain = fa.cross_entropy(x, np.array([0, 1]), reduction="none")
    assert_same_bits(fa.cross_entropy(x, np.array([0, 1]), reduction="none", z_loss=0.0), plain)


def test_a_class_that_is_not_there_writes_nothing() -> None:
    x, out = np.zeros((3, 4), np.float32), np.full(3, 7, np.float32)
    good = np.array([0, 1, 3])
    _, saved = fa.cross_entropy.forward(x, good, reduction="none")
    for wrong in (4, -1, -(2**40)):
        target = np.array([0, 1, wrong])
        for _ in range(4):  # by a recorded plan, too
            with pytest.raises(ValueError, match="target must hold classes from 0 to 3"):
                fa.cross_entropy(x, target, reduction="none", out=out)
        dx = np.full((3, 4), 7, np.float32)
        with pytest.raises(ValueError, match="target must hold classes"):
            fa.cross_entropy.backward(
                np.ones(3, np.float32), x, target, *saved[2:], reduction="none", out=dx
            )
        assert np.all(out == 7)
        assert np.all(dx == 7)
    assert fa.cross_entropy(x, np.array([0, 1, 4]), ignore_index=4) > 0


def test_integers_of_any_size() -> None:
    x, target = np.float32([[1, 2, 3], [3, 2, 1]]), np.array([1, 2])
    loss = fa.cross_entropy(x, target)
    for dtype in (np.int32, np.uint8, np.int16):
        assert fa.cross_entropy(x, target.astype(dtype)) == loss
    assert fa.cross_entropy(x, [1, 2]) == loss


def test_all_are_ignored() -> None:
    x, target = np.zeros((2, 3), np.float32), np.array([-100, -100])
    assert np.isnan(fa.cross_entropy(x, target))
    assert fa.cross_entropy(x, target, reduction="sum") == 0
    _, saved = fa.cross_entropy.forward(x, target)
    assert np.all(fa.cross_entropy.backward(1.0, *saved) == 0)


# Of fewer than 4096 rows each has its own partial sum, of more 64 share one.
@pytest.mark.parametrize("rows", [63, 64, 65, 129, 4095, 4096, 4100])
@pytest.mark.parametrize("classes", [7, 40])
@pytest.mark.parametrize("transposed", [False, True])
def test_losses_are_added_up_by_64_rows(rows, classes, transposed) -> None:
    x, target, _ = example((rows, classes), None, "float64", False)
    target[::5] = -100
    losses = fa.cross_entropy(x, target, reduction="none")
    total = 0.0
    for first in range(0, rows, 64):
        some = 0.0
        for loss in losses[first : first + 64]:
            some += loss
        total += some
    given = np.asfortranarray(x) if transposed else x
    for threads in (1, 2, 5):
        with fa.num_threads(threads):
            assert_same_bits(fa.cross_entropy(given, target, reduction="sum"), np.float64(total))
            mean = np.float64(total / (target >= 0).sum())
            assert_same_bits(fa.cross_entropy(given, target), mean)


def test_weights_that_are_alike_are_not_rounded_alike() -> None:
    """The sum of 10 000 weights of 0.1, one after the other, is off by 1400 ULP of float64."""
    logits, weight = np.zeros((1, 10_000)), np.full(10_000, 0.1)
    options = {"label_smoothing": 1.0, "reduction": "none"}
    _, saved = fa.cross_entropy.forward(logits, np.array([0]), weight=weight, **options)
    found = fa.cross_entropy.backward(np.ones(1), *saved, **options)
    # p sum(t w) - t w = 0, whose terms are 1e-5: n / 32 + 8 units for each, as is stated.
    assert abs(found).max() <= 2 * 1e-5 * (10_000 / 32 + 8) * 2.0**-53


def test_gradients_of_probable_targets_wherever_they_stand(backend: Framework) -> None:
    """A p near 1 keeps the digits that it lacks at both ends of each 1024 classes, too."""
    target = np.array([0, 1023, 1024, 2047, 2048, 2299])
    logits = example((6, 2300), None, "float32", False)[0]
    logits[np.arange(6), target] = 20 + np.arange(6)  # as far above the rest as no other row's

    def gradients(dloss: Any, *given: Any) -> Any:
        _, saved = fa.cross_entropy.forward(*given, reduction="none")
        return fa.cross_entropy.backward(dloss, *saved, reduction="none")

    found = backend.run(gradients, np.ones(6, np.float32), logits, target)
    found = found[np.arange(6), target].astype(np.float64)
    apart = np.exp(logits.astype(np.float64) - logits[np.arange(6), target][:, None])
    apart[np.arange(6), target] = 0
    expected = -apart.sum(1) / (1 + apart.sum(1))
    np.testing.assert_allclose(found, expected, rtol=2e-5)  # lse is rounded: 25 ULP(25)
