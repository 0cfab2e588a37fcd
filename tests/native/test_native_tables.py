"""The tables of native functions: each says what its calls may be, and the one check holds to it.

On the CPU, and on the emulated device, which has a function for each table too, but for groups.
Functions are called by their tables alone, so that one that is added is tested as well.
"""

import inspect
import re
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any, get_type_hints

import numpy as np
import pytest
from devices import EMULATED
from judged import refused
from native_tables import Block, DeviceBlock, Made, Maker, broken

from fastact import _cpu
from fastact._cpu import NativeCall
from fastact.interop.devices import Device

TABLES = _cpu.native_calls()
REFUSED = (ValueError, TypeError, OverflowError)
NEEDS_SCRATCH = {  # others do with less than they ask for
    *("norm_backward", "cross_entropy_forward"),
    *("batch_norm_forward", "norm_apply", "batch_norm_backward", "grouped"),
}
CPU_ALONE = ("grouped", "grouped_gradient")
DEVICES_ALONE = ("spread_backward",)
BROKEN = 10  # of them, each in every argument by itself
CASES = 200  # calls made of a table: every optional array is there and missing many times
FEW = 20  # of them on the emulated device, which is slow
BLOCKS = {"cpu": Block} | ({"emulated": DeviceBlock} if EMULATED else {})


def calls(name: str, block: type[Block], cases: int) -> list[Made]:
    """Those of the calls that a table allows, that its function runs."""
    found = []
    for seed in range(20 * cases):
        if seed >= cases and len(found) > cases // 20:  # few, of what a table can say less of
            break
        made = Maker(name, Random(f"{name} {seed}"), block).make()
        with suppress(ValueError):  # of what the table can't say
            made.run()
            found.append(made)
        assert made.are_whole(), (name, seed)
    return found


@pytest.fixture(
    scope="module",
    params=[
        f"{d}-{n}"
        for d in BLOCKS
        for n in TABLES
        if n not in (DEVICES_ALONE if d == "cpu" else CPU_ALONE)
    ],
)
def made(request):
    device, name = request.param.split("-")
    return calls(name, BLOCKS[device], CASES if device == "cpu" else FEW)


def test_tables_name_their_own_fields():
    for name, fields in TABLES.items():
        before: dict[str, str] = {}
        for field, facts in fields.items():
            for other in (facts[n] for n in ("shape_of", "dtype_of", "axes", "written_if")):
                assert other is None or other in before, (name, field, other)
            by_flags = facts["shape"] in ("reduced", "kept", "grouped")
            needs_axes = by_flags or facts["shape"] in ("along", "channels", "packed")
            needs_axes |= facts["shape"] == "along_packed" or facts["kind"] == "places"
            assert (facts["axes"] is not None) == needs_axes, (name, field)
            if needs_axes:
                kind = "axes" if by_flags else "integer"
                assert before[facts["axes"]] == kind, (name, field)
            assert facts["kind"] != "integer" or facts["end"] > 0, (name, field)
            before[field] = facts["kind"]
        assert next(iter(before.values())) == "array", name  # it leads
        assert any(facts["role"] != "in" for facts in fields.values()), name


def test_calls_that_tables_allow_run(made):
    assert len(made) > (CASES if made[0].block is Block else FEW) // 20


def test_arguments_that_are_wrong(made):
    """One at a time, in calls that are right otherwise: refused by name, and nothing is written."""
    for right in made[: BROKEN if made[0].block is Block else 2]:
        for name in right.arguments:
            for what, wrong, block in broken(right, name):
                before = {n: b.whole for n, b in right.blocks.items()}
                memory = None if block is None else block.whole
                with pytest.raises(REFUSED) as caught:
                    right.run({**right.arguments, name: wrong})
                assert right.name in str(caught.value), (name, what)
                assert before == {n: b.whole for n, b in right.blocks.items()}
                assert block is None or memory == block.whole, (name, what)


def test_arguments_that_are_missing_or_unknown(made):
    right = made[0]
    for name, facts in TABLES[right.name].items():
        fewer = {n: value for n, value in right.arguments.items() if n != name}
        if not facts["optional"]:
            refused(rf"{right.name}.* {name}\b", right.run, fewer, error=REFUSED)
    refused(rf"{right.name} takes .*, got colour", right.run, {**right.arguments, "colour": 1})
    with pytest.raises(ValueError, match=r"native functions are .*, got colour"):
        _cpu.native_call("colour", {})


def refusal(call: NativeCall, block: type[Block], nbytes: int) -> str | None:
    """What it says to a workspace of so many bytes."""
    try:
        call.run(block.scratch(nbytes), block.stream)
    except ValueError as error:
        return str(error)
    return None


def test_workspaces_that_are_short(made):
    """Refused, or done without."""
    refused = 0
    assert made
    for right in made:
        call = _cpu.native_call(right.name, right.arguments)
        size = call.workspace_size()
        for short in {0, size - 1} if size else ():
            message = refusal(call, right.block, short)
            assert message is None or re.search(rf"must have \d+ bytes, got {short}", message)
            assert right.are_whole()
            refused += message is not None
    if made[0].block is Block:
        assert bool(refused) == (made[0].name in NEEDS_SCRATCH)


def test_made_by_hand():
    call = _cpu.NativeCall()
    for use in (call.workspace_size, lambda: call.run(None, 0)):
        refused("native_call makes one", use, error=ValueError)
    refused("native_loop makes one", _cpu.NativeLoop().run, 0, error=ValueError)


def _parts(x: np.ndarray, y: np.ndarray) -> list[Any]:
    """Calls for the first two rows of x and y."""
    views = [_cpu.View.from_numpy(a) for a in (x, y)]
    rows = [[view.sliced(0, i, 1, 1) for view in views] for i in range(2)]
    return [
        [(_cpu.native_call("broadcast", {"x": a, "y": b, "accumulate": False}), None)]
        for a, b in rows
    ]


def test_calls_for_many_parts():
    x, y = np.arange(12.0).reshape(4, 3), np.zeros((4, 3))
    first, second = _parts(x, y)
    loop = _cpu.native_loop(first, second, first, 4, 1)
    for sign in (1, -1):
        np.multiply(np.abs(x), sign, out=x)
        loop.run(0)
        np.testing.assert_array_equal(y, x)


def test_parts_that_lie_beyond_their_arrays():
    first, second = _parts(np.zeros((4, 3)), np.zeros((4, 3)))
    x = _cpu.View.from_numpy(np.zeros(3))
    call = _cpu.native_call("broadcast", {"x": x, "y": x, "accumulate": False})
    wrong: list[Any] = [(first, second, first, n, 1) for n in (5, 2**62, 1, 0, -1)]
    wrong += [(first, second, first, 4, 0), (first, second, second, 4, 5), (first, [], [], 4, 1)]
    wrong += [(first, second * 2, first, 4, 1), (second, first, first, 4, 1)]
    wrong += [(first, [(other, None)], first, 3, 1) for other in (call, None)]
    for arguments in wrong:
        refused("native_loop: ", _cpu.native_loop, *arguments, error=ValueError)


MODULES = [name for name in ("fastact._cuda", "fastact._cuda_emulated") if find_spec(name)]

#: How pybind11 writes the types of arguments and results.
_WRITTEN = {"typing.SupportsInt | typing.SupportsIndex": int, "int": int, "None": type(None)}


def functions_of(protocol: type) -> dict[str, Any]:
    return {n: f for n, f in vars(protocol).items() if inspect.isfunction(f) and n[0] != "_"}


@pytest.mark.parametrize("name", functions_of(Device))
@pytest.mark.parametrize("module", MODULES)
def test_of_a_device(module, name):
    function = getattr(import_module(module), name)
    line = function.__doc__.partition("\n")[0]
    arguments, _, result = line.removeprefix(f"{name}(").rpartition(") -> ")
    kinds = [_WRITTEN[kind] for kind in re.split(r",? ?arg\d+: ", arguments)[1:]]
    assert [*kinds, _WRITTEN[result]] == list(get_type_hints(getattr(Device, name)).values())
