"""The fuzzer itself: a short run of each device, and that it sees what it is there to see.

The runs are `thorough`, for they take 10 to 30 s each.
"""

import importlib.util
import json
import sys
from typing import Any

import numpy as np
import pytest
from processes import output_of, run_program
from source_tree import TOOLS, import_tool

import fastact as fa
from fastact.check.expected.common import ulp
from fastact.ops.engine.entry import OF_X, TOLD

import_tool("fuzzing")
from fuzzing import calls, campaign, cases, derivatives, judge  # noqa: E402

# Promises that are known not to hold, by the check and where: none.
EMULATED = importlib.util.find_spec("fastact._cuda_emulated") is not None


def run(*arguments: str) -> dict[str, Any]:
    """What a campaign came to; its words where promises did not hold."""
    command = [sys.executable, str(TOOLS / "fuzz.py"), "--jobs", "1", "--json", *arguments]
    told = output_of(run_program(*command))
    summary: dict[str, Any] = json.loads(told.splitlines()[-1])
    return summary


@pytest.mark.thorough
def test_campaign() -> None:
    """Some thousand calls of every family; a fresh seed is .ci/run's."""
    found = run("--cases", "2000", "--seed", "20251122")
    assert found["cases"] == 2000
    assert set(found["families"]) == set(calls.FAMILIES)
    assert found["refusals"] > 20
    # Each case repeats its calls, so that most kinds are recorded and then replayed.
    assert found["replays"] > 400


@pytest.mark.thorough
@pytest.mark.skipif(not EMULATED, reason="built without the emulated device")
def test_emulated_device() -> None:
    found = run("--cases", "150", "--seed", "20251122", "--device", "emulated", "--no-fresh")
    assert found["cases"] == 150


@pytest.mark.thorough
def test_hostile_objects() -> None:
    found = run("--cases", "1500", "--seed", "20251122", "--kind", "hostile")
    assert found["cases"] == 1500


@pytest.mark.thorough
def test_derivatives() -> None:
    found = run("--cases", "300", "--seed", "20251122", "--kind", "derivatives")
    assert found["cases"] == 300


# --- that it can fail -----------------------------------------------------------------------------


def failures(count: int = 60, **chosen: Any) -> set[str]:
    """The checks that fail in cases of one family."""
    settings = campaign.Settings(1, fresh=False, **chosen)
    worker = campaign.Worker(settings)
    with np.errstate(all="ignore"):
        tally = worker.run(range(count))
    return {failure.check for failure in tally.failures}


@pytest.fixture(autouse=True)
def same_settings() -> Any:
    """What a worker changes of its process."""
    threads, errors = fa.get_num_threads(), np.geterr()
    yield
    fa.set_num_threads(threads)
    np.seterr(**errors)


@pytest.mark.parametrize("family", sorted(calls.FAMILIES))
def test_an_error_of_ten_bounds_is_seen(family, monkeypatch) -> None:
    """In any family, where results of finite numbers are off by ten times what is allowed."""
    compare = judge.compare

    def off(name: str, result: Any, expected: Any) -> None:
        some = np.isfinite(result) & np.isfinite(expected.exact)
        unit = np.abs(ulp(np.asarray(expected.exact), result.dtype))
        error = 10 * (np.broadcast_to(expected.allowed, result.shape) + unit)
        compare(name, np.where(some, result + error, result).astype(result.dtype), expected)

    monkeypatch.setattr(campaign, "compare", off)
    assert "value" in failures(family=family)


def test_other_bits_are_seen(monkeypatch) -> None:
    """A result that depends on how often it was asked for."""
    calls = []
    run_once = judge.run

    def drifting(function: Any, live: Any) -> Any:
        calls.append(1)
        found = run_once(function, live)
        if found and isinstance(found[0], np.ndarray) and len(calls) % 2:
            found[0] = np.nextafter(found[0].astype(np.float64), np.inf)
        return found

    monkeypatch.setattr(campaign, "run", drifting)
    assert "bits" in failures(family="activations")


@pytest.mark.parametrize("family", sorted(calls.FAMILIES))
def test_wrong_derivatives_are_seen(family, monkeypatch) -> None:
    """Tangents, and gradients of gradients, that are off by a thousandth."""

    def off(what: str, got: Any, *rest: Any, close: Any = derivatives._close) -> None:
        close(what, got * 1.001, *rest)

    monkeypatch.setattr(derivatives, "_close", off)
    worker = derivatives.DerivativesWorker(campaign.Settings(1, family, fresh=False))
    with np.errstate(all="ignore"):
        found = (failure for i in range(60) for failure in worker.run(range(i, i + 1)).failures)
        assert next(found).check in ("second derivatives", "tangents")


def test_written_guard_bytes_are_seen(monkeypatch) -> None:
    """A byte behind an output, or an input, that a call changes."""
    call = judge.Live.call

    def spilling(live: Any, function: Any) -> Any:
        found = call(live, function)
        for block in live.blocks.values():
            block.raw[-5] = 1
        return found

    monkeypatch.setattr(judge.Live, "call", spilling)
    assert failures(family="reductions") & {"guard bytes", "inputs"}


def test_a_refusal_that_writes_is_seen(monkeypatch) -> None:
    call = judge.Live.call

    def writing(live: Any, function: Any) -> Any:
        try:
            return call(live, function)
        except ValueError:
            for block in live.blocks.values():
                block.raw[200:] = 0
            raise

    monkeypatch.setattr(judge.Live, "call", writing)
    assert "refusal wrote" in failures(200, family="bias")


def test_a_case_depends_on_its_number_alone() -> None:
    settings = campaign.Settings(3)
    first = [str(campaign.Case(settings, k).request) for k in (5, 6, 7)]
    assert [str(campaign.Case(settings, k).request) for k in (7, 6, 5)] == first[::-1]


@pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)
def test_whatever_an_entry_point_takes_is_drawn(op) -> None:
    """Each argument of each entry point is given in some call, and left out or varied in others."""
    settings, missing = campaign.Settings(2, op=op.name), {}
    for entry, point in op.entry_points.items():
        every = {*point.arrays, *point.defaults} - {"out", "accumulate", "stream", "num_batches"}
        # Of a gradient whose dtype is dy's own.
        told = {"eps", TOLD} if OF_X in op.saves else {"eps"}
        missing[entry] = every - (told if entry == "backward" else set())
    for number in range(400):
        with np.errstate(all="ignore"):
            request = campaign.Case(settings, number).request
        missing.setdefault(request.entry, set()).difference_update(request.given)
        if not any(missing.values()):
            break
    assert not any(missing.values()), missing


@pytest.mark.parametrize("family", sorted(calls.FAMILIES))
def test_a_bad_call_is_refused(family, monkeypatch) -> None:
    """Whichever array or option is bad, also where lengths are the same by chance."""
    monkeypatch.setattr(cases, "LENGTHS", (0, 1, 1, 2, 2, 2))
    settings, seen = campaign.Settings(4, family=family), 0
    with np.errstate(all="ignore"):
        for number in range(100):  # fuzz.py draws more each day
            case = campaign.Case(settings, number)
            if case.request.refused or case.request.entry == "merge":
                continue
            for _ in range(5):
                bad, of_wrong_shape = calls.refused(case.request, case.r)
                if bad is case.request:
                    break
                seen += 1
                live = judge.Live(bad, {**case.values[0], **of_wrong_shape})
                with pytest.raises((TypeError, ValueError)):
                    live.call(calls.function(bad))
    assert seen > 100
