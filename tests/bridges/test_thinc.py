"""The backend for thinc: what it replaces is held against thinc's own."""

import sys
from inspect import signature
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from judged import refused
from processes import output_of, run_program

thinc = pytest.importorskip("thinc")
from thinc.api import Maxout, Mish, NumpyOps, chain, get_ops, use_ops  # noqa: E402

import fastact as fa  # noqa: E402
import fastact.thinc  # noqa: E402
from fastact.thinc import FastactOps  # noqa: E402

OURS, THEIRS = FastactOps(), NumpyOps()
# maxout has no parameters like theirs, and a test of its own.
REPLACED = [n for n, value in vars(FastactOps).items() if callable(value) and n != "maxout"]
each = pytest.mark.parametrize("name", REPLACED)


def arguments(name: str, dtype: Any) -> dict[str, Any]:
    """Arrays by the names of thinc's parameters; Y is what the forward function gives."""
    x, dy = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(dtype)
    given = {"X": 3 * x, "x": 3 * x, "dY": dy}
    if "Y" in signature(getattr(THEIRS, name)).parameters:
        given["Y"] = getattr(THEIRS, name.removeprefix("backprop_"))(given["X"].copy())
    return {n: given[n].copy() for n in signature(getattr(OURS, name)).parameters if n in given}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@each
def test_as_thinc_has_it(name, dtype):
    """Of signature, dtype and value, in place and not; thinc's erf has an error of 1e-7."""
    ours, theirs = getattr(OURS, name), getattr(THEIRS, name)
    assert list(signature(ours).parameters) == list(signature(theirs).parameters)
    given = arguments(name, dtype)
    before = {n: a.copy() for n, a in given.items()}
    expected = theirs(**{n: a.copy() for n, a in given.items()})
    result = ours(**given)
    np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-6)
    assert result.dtype == dtype
    assert all(np.array_equal(given[n], a) for n, a in before.items())
    if "inplace" in signature(ours).parameters:
        written = next(iter(given.values()))
        assert ours(**given, inplace=True) is written
        assert np.array_equal(written, result)


@each
def test_options_are_thincs(name):
    """A number that thinc's function takes has the effect that it has there."""
    given, ours = arguments(name, np.float64), signature(getattr(OURS, name)).parameters
    assert {*given} <= {*ours}
    for option, value in {"slope": 0.3, "temperature": 2.0, "threshold": 1.5, "axis": 0}.items():
        if option in ours:
            np.testing.assert_allclose(
                getattr(OURS, name)(**given, **{option: value}),
                getattr(THEIRS, name)(**given, **{option: value}),
            )


@each
def test_arrays_of_a_gpu_are_refused(name):
    class Foreign:
        shape, dtype = (5, 7), np.dtype(np.float32)

    given = {n: Foreign() for n in arguments(name, np.float32)}
    with pytest.raises(TypeError, match=r"fastact\.thinc: .*Foreign.*CupyOps"):
        getattr(OURS, name)(**given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "shape", [(5, 7, 1), (5, 7, 2), (5, 7, 3), (5, 7, 4), (5, 7, 9), (0, 7, 3)]
)
def test_maxout(shape, dtype):
    """The same bits; of equal pieces the first."""
    X = np.random.default_rng(0).integers(-2, 3, shape).astype(dtype)
    for ours, theirs in zip(OURS.maxout(X), THEIRS.maxout(X), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.flags.c_contiguous
        assert np.array_equal(ours, theirs)
    refused(r"fastact\.thinc: maxout must be given arrays of NumPy", OURS.maxout, [1.0])


def test_thinc_finds_it_by_name():
    assert isinstance(get_ops("fastact"), FastactOps)
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'FastactOps = "fastact.thinc:FastactOps"' in text


def test_converted_layer_norms():
    X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    dY = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)

    def trained(converts: bool) -> list[np.ndarray]:
        with use_ops("fastact"):
            model = chain(Maxout(8, 4, normalize=True), Mish(3, 8, normalize=True))
            model.initialize(X, dY)
            for node in model.walk():
                for name in node.param_names:
                    rng = np.random.default_rng(len(name))
                    node.set_param(name, rng.normal(size=node.get_param(name).shape).astype("f"))
            assert fastact.thinc.convert(model) == 2 * converts if converts else True
            Y, backprop = model.begin_update(X)
            dX = backprop(dY)
            norms = [node for node in model.walk() if node.name == "layernorm"]
            return [Y, dX, *(node.get_grad(n) for node in norms for n in ("G", "b"))]

    for ours, theirs in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5)


def test_convert():
    model = Maxout(8, 4, normalize=True)
    assert fastact.thinc.convert(model) == 1
    assert fastact.thinc.convert(model) == 0
    with use_ops("numpy"):  # whose layer norm is thinc's
        X = np.ones((2, 4), np.float32)
        assert Maxout(8, 4, normalize=True).initialize(X).predict(X).shape == (2, 8)
    refused(r"fastact\.thinc\.convert: model must be a Model", fastact.thinc.convert, fa)


def test_thincs_own_tests(tmp_path):
    """Of its backends, with ours in the place of NumpyOps."""
    (tmp_path / "ours.py").write_text(
        dedent("""
            import thinc.api, thinc.backends
            from fastact.thinc import FastactOps

            thinc.api.NumpyOps = thinc.backends.NumpyOps = FastactOps
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ours", "-p", "no:cacheprovider"]
    # That one takes a float of an array with an axis, which NumPy 2.4 refuses: with thinc's, too.
    # What it compares, the test above does.
    command += [
        "-k",
        "not compare_activations_to_torch and not test_get_ops",
        "--pyargs",
        "thinc.tests.backends.test_ops",
    ]
    path = f"{tmp_path}:{Path(fa.__file__).parents[1]}"
    output_of(run_program(*command, cwd=tmp_path, env={"PYTHONPATH": path, "PATH": ""}))
