"""Fixtures: the dtypes, the frameworks and the instruction sets over which the suite runs.

Tests iterate over `fastact.ops`: an op that is registered is tested, without a line here.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import pytest
import torch
from asserting import pytest_configure as pytest_configure
from asserting import pytest_pyfunc_call as pytest_pyfunc_call
from devices import DEVICES, DTYPES, FORCED_ISA, FRAMEWORKS, KERNELS, Framework
from hypothesis import HealthCheck, settings

import fastact as fa
from fastact import _cpu
from fastact.interop.call import Call

# The same examples in every run, so that a failure is a change's own; others are drawn by
# `pytest --hypothesis-profile=random`, and by tools/fuzz.py.
# How long an example takes to draw is the machine's affair.
settings.register_profile(
    "random", deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.load_profile("repeatable")

ACTIVATIONS = [op for op in fa.ops.values() if op.family == "activations"]

# No code but the formulas knows which activation it runs: what is held of the code around them, in
# many layouts and sizes, is held for one without parameters, one with a number and one with a
# choice. Tests of formulas are for all of them.
REPRESENTATIVES = [fa.mish, fa.leaky_relu, fa.gelu]
by_representatives = pytest.mark.parametrize("op", REPRESENTATIVES, ids=lambda op: op.name)


def first_of_families(cases: Iterable[Any]) -> list[Any]:
    """Ops, or ops with values, where each takes long and runs code that its family shares.

    A plain run has of each family, and of each value with it, the first one.
    """
    shown, found = set(), []
    for case in cases:
        op, *values = case if isinstance(case, tuple) else (case,)
        key = op.family, *values
        marks = pytest.mark.thorough if key in shown else ()
        shown.add(key)
        found.append(pytest.param(op, *values, marks=marks, id="-".join([op.name, *values])))
    return found


#: Ops of a family go one way through a bridge: a plain run has one of them.
each_family = pytest.mark.parametrize("op", first_of_families(fa.ops.values()))


THOROUGH = pytest.mark.thorough.mark  # made once: a run gives it to 100,000 cases


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        default="1/1",
        metavar="K/N",
        help="run one N-th of the thorough tests, the K-th: over N runs, each of them once",
    )


@pytest.hookimpl(trylast=True)  # when all lists of parameters are known, fixtures' too
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Marks `thorough` what a plain run leaves out of a test with several parameters.

    It runs as many cases as show each value of each parameter (op, dtype, instruction set, device,
    shape, ...) at least once, and few more; `pytest -m "not large"` runs their whole product. Of
    cases that show as many new values the first one in the order of a hash is taken: values of
    different parameters meet at random, and yet in the same way in every run. The emulated device
    has its turn last, for it takes longest. A case that the command names is none of the rest.

    The rest are 100,000 cases, whose items take each process half a minute: a run that leaves them
    out makes none.
    """
    test, config, calls = metafunc.definition, metafunc.config, metafunc._calls
    own = test.get_closest_marker("thorough") is not None
    named = {arg.partition("::")[2] for arg in config.args if test.path.name in arg}
    runs = {"not large and not thorough": {False}, "thorough and not large": {True}}.get(
        config.option.markexpr, {False, True}
    )
    # A list's rows of several values are whole; what no list here has are values of fixtures.
    lists = [mark.args[0] for mark in test.iter_markers("parametrize")]
    lists = [names.split(",") if isinstance(names, str) else names for names in lists]
    lists = [[name.strip() for name in names] for names in lists]

    def values_of(call: Any) -> set[tuple[Any, ...]]:
        values = {name: id(value) for name, value in call.params.items()}
        rows = {tuple((name, values.pop(name)) for name in names) for names in lists}
        return rows | set(values.items())

    def name_of(call: Any) -> str:
        return f"{test.nodeid}[{call.id}]"

    def is_thorough(call: Any) -> bool:
        return own or any(mark.name == "thorough" for mark in call.marks)

    # The name of a call is put together each time that it is asked for.
    rest = [(name_of(call), values_of(call), call) for call in calls if not is_thorough(call)]
    rest.sort(key=lambda one: crc32(one[0].encode()))
    shown: set[tuple[Any, ...]] = set()
    most = max((len(values) for _, values, _ in rest), default=0)
    on_emulated = {name for name, *_ in rest if "emulated" in name.partition("[")[2]}
    for emulated, least in product((False, True), range(most, 0, -1)):  # who shows most comes first
        left = []
        for one in rest:
            name, values, _ = one
            if (name in on_emulated) is emulated and len(values - shown) >= least:
                shown |= values
            else:
                left.append(one)
        rest = left
    for name, _, call in rest:
        if name.partition("::")[2] not in named:
            call.marks.append(THOROUGH)

    # Without any, pytest would take the test for one without parameters: it deselects this one.
    calls[:] = [
        call
        for call in calls
        if is_thorough(call) in runs and (not is_thorough(call) or _in_part(config, name_of(call)))
    ] or calls[:1]


def _in_part(config: pytest.Config, name: str) -> bool:
    part, parts = map(int, config.getoption("--part").split("/"))
    return crc32(name.encode()) % parts == part % parts


@pytest.hookimpl(tryfirst=True)  # pytest itself then deselects what is marked
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [
        item
        for item in items
        if item.get_closest_marker("thorough") and not _in_part(config, item.nodeid)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in gone]


def collect() -> None:
    """Collect garbage; what is left stays to the end, and no later collection looks through it.

    The test items alone are tens of thousands, and torch's compiler has as many objects as they.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    collect()


ISAS = [FORCED_ISA] if FORCED_ISA else _cpu.supported_isas()
#: Those with a fused multiply-add, which return the same bits. An install from source has one of
#: them unless it builds all: a test that compares them is skipped there, lest it compare nothing.
FUSED_ISAS = [isa for isa in ISAS if isa not in ("v2", "baseline")]
needs_a_fused_isa = pytest.mark.skipif(
    not FUSED_ISAS, reason="without a fused multiply-add the bits differ from a device's"
)
needs_two_fused_isas = pytest.mark.skipif(
    len(FUSED_ISAS) < 2, reason="needs AVX2 and AVX-512 to compare: FASTACT_BUILD_ISAS=ALL"
)


def on_fused_isas(call: Callable[[], Any]) -> list[Any]:
    """What a call gives on each of them."""
    before, found = _cpu.isa(), []
    try:
        for isa in FUSED_ISAS:
            _cpu.select_isa(isa)
            found.append(call())
    finally:
        _cpu.select_isa(before)
    return found


@pytest.fixture(params=DTYPES.values(), ids=DTYPES.keys())
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=ACTIVATIONS, ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    _cpu.select_isa(request.param)
    return request.param


#: Wherever kernels run.
BACKENDS = [*ISAS, *KERNELS]


def on_backends(names: str, rows: Iterable[Any], on_devices: Iterable[Any] = ()) -> Any:
    """Each of these rows of values on each backend, and some on devices alone.

    A plain run has each row on one instruction set, on the next one for the next row, and on all
    devices.
    """
    pairs = []
    for k, row in enumerate(rows):
        for backend in BACKENDS:
            is_other = backend in ISAS and backend != ISAS[k % len(ISAS)]
            pairs.append(((*row, backend), pytest.mark.thorough if is_other else ()))
    pairs += [((*row, device), ()) for row in on_devices for device in KERNELS]
    params = [
        pytest.param(*pair, marks=marks, id="-".join(getattr(v, "name", str(v)) for v in pair))
        for pair, marks in pairs
    ]
    return pytest.mark.parametrize((*names.split(), "backend"), params, indirect=["backend"])


on_kernels = pytest.mark.parametrize("device", KERNELS, ids=lambda device: device.name)

#: Rows of several blocks: their chunks are of packs, and float64 has them with the fewest elements;
#: the others take seconds.
each_long = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(dtype, id=name, marks=pytest.mark.thorough if name != "float64" else ())
        for name, dtype in DTYPES.items()
    ],
)


@pytest.fixture(params=BACKENDS, ids=lambda p: getattr(p, "name", p))
def backend(request: pytest.FixtureRequest) -> Framework:
    """Wherever kernels run: each instruction set of the CPU, by NumPy arrays, and each device."""
    if isinstance(request.param, Framework):
        return request.param
    _cpu.select_isa(request.param)
    return FRAMEWORKS[0]


@pytest.fixture(autouse=True)
def _no_test_knows_of_another() -> Iterator[None]:
    """torch's random numbers are the same ones whatever ran before, and its threads as many, and
    the instruction set is the same.

    A test that sets torch's threads, as benchmarks do, sets the OpenMP runtime's too. That is ours
    too, where both load the same one: all tests after it would run on so many.
    """
    before, isa = torch.get_num_threads(), _cpu.isa()
    torch.default_generator.manual_seed(0)
    yield
    _cpu.select_isa(isa)
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture
def many_threads() -> Iterator[int]:
    """More threads than one, whatever the machine has: results may not depend on it."""
    before = fa.get_num_threads()
    fa.set_num_threads(4)
    yield 4
    fa.set_num_threads(before)


@pytest.fixture(params=FRAMEWORKS, ids=lambda f: f.name)
def framework(request: pytest.FixtureRequest) -> Framework:
    return request.param


@pytest.fixture(params=DEVICES, ids=lambda f: f.name)
def device(request: pytest.FixtureRequest) -> Framework:
    return request.param


@pytest.fixture
def held() -> Iterator[Callable[[], int]]:
    """How many bytes a test holds on the emulated device, whoever else holds some: none at last."""
    emulated = pytest.importorskip("fastact._cuda_emulated")
    collect()  # what others left in cycles goes before, not meanwhile
    before = emulated.live_bytes()
    yield lambda: emulated.live_bytes() - before
    assert emulated.live_bytes() == before


@contextmanager
def stores_past_the_caches() -> Iterator[None]:
    """Results of rows, however small, are stored as large ones are on some processors."""
    before = _cpu.bypass_caches_from(0)
    try:
        yield
    finally:
        _cpu.bypass_caches_from(before)


def bits(array: Any) -> np.ndarray:
    """An array's bits as integers: equality that tells -0 from 0 and one NaN from another."""
    array = np.asarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def assert_same_bits(actual: Any, expected: Any) -> None:
    assert np.asarray(actual).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(bits(actual), bits(expected))


def assert_all_same_bits(found: Iterable[Any], expected: Iterable[Any]) -> None:
    """Each array's, in whichever order memory holds its axes; where one is None, both are."""
    for one, two in zip(found, expected, strict=True):
        assert (one is None) == (two is None)
        if two is not None:
            assert_same_bits(np.ascontiguousarray(one), np.ascontiguousarray(two))


def assert_agrees(framework: Framework, actual: Any, expected: Any, scale: float = 1.0) -> None:
    """The same bits where the framework is exact, else as close as the ops' bounds are.

    scale: what a derivative was multiplied with, and its absolute error.
    """
    if framework.exact:
        assert_same_bits(actual, expected)
        return
    assert actual.dtype == expected.dtype
    wide = np.float64 if actual.dtype == np.float64 else np.float32
    # 3 ULP on either side, 1 more for a difference that crosses a power of two; beside a root of
    # a derivative the absolute bound holds, for 16 bits with the error of the fast functions.
    epsilon = float(ml_dtypes.finfo(actual.dtype).eps)
    smallest = float(ml_dtypes.finfo(actual.dtype).smallest_subnormal)
    absolute = scale * (4e-7 if wide == np.float32 else 1e-15)
    np.testing.assert_allclose(
        actual.astype(wide), expected.astype(wide), 7 * epsilon, max(absolute, 2 * smallest)
    )


def sample(dtype: Any, size: int = 1000, seed: int = 0) -> np.ndarray:
    """Values of every magnitude that matters to an activation, and the specials."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=size) * 10.0 ** rng.uniform(-3, 1.5, size)
    specials = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40]
    count = min(len(specials), size)
    if count:
        x[rng.permutation(size)[:count]] = specials[:count]
    with np.errstate(all="ignore"):
        return x.astype(dtype)


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn; closed in the end."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    drawn = []
    close = pyplot.close
    monkeypatch.setattr(pyplot, "close", drawn.append)
    yield drawn
    for figure in drawn:
        close(figure)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls that take the slow path, through Python."""
    seen: list[int] = []
    begin = Call.__init__

    def counted(self: Any, *args: Any, **named: Any) -> None:
        seen.append(0)
        begin(self, *args, **named)

    monkeypatch.setattr(Call, "__init__", counted)
    return seen
