"""Composed documentation: what is written by hand stays, what is standard is written once."""

import doctest
import functools
import inspect
import pydoc
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from processes import output_of, run_program

import fastact as fa
from fastact.ops.engine import docstrings

OPS = list(fa.ops.values())
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)

POINTS = [
    (op, name)
    for op in OPS
    for name in op.entry_points
    if name != "call" and not inspect.isroutine(op.entry_point(name))  # compiled, one for all
]
each_entry = pytest.mark.parametrize(
    ("op", "entry"), POINTS, ids=lambda part: getattr(part, "name", part)
)


def entries(text: str | None, section: str = "Parameters") -> dict[tuple[str, ...], str]:
    """The entries of a section of a docstring by their names."""
    assert text
    return docstrings._entries(docstrings._sections(text).get(section, ""))


def plain(text: str) -> str:
    return " ".join(text.split())


def by_hand() -> Iterator[Any]:
    """Each docstring that is written by hand, and the parameters that it may tell of."""
    for op in OPS:
        yield pytest.param(op.__wrapped__.__doc__, set(op.__signature__.parameters), id=op.name)
    methods: dict[Any, set[str]] = {}
    for op, entry in POINTS:
        taken = op.entry_points[entry].signature.parameters
        methods.setdefault(docstrings.method_of(op, entry), set()).update(taken)
    for method, taken in methods.items():
        yield pytest.param(method.__doc__, taken, id=method.__qualname__)


@pytest.mark.parametrize(("own", "taken"), [*by_hand()])
def test_parameters_that_are_told_by_hand_are_there(own, taken):
    assert set(told(own)) <= taken


@each_op
def test_no_standard_text_is_written_by_hand(op):
    for standard in docstrings.standard_of_call(op):
        for section in ("Parameters", "Returns", "Raises"):
            own = entries(op.__wrapped__.__doc__, section)
            known = docstrings._entries(standard.get(section, ""))
            assert not {n for n, entry in own.items() if plain(entry) == plain(known.get(n, ""))}


def told(text: str | None) -> list[str]:
    return [name for names in entries(text) for name in names]


@each_op
def test_parameters_of_a_call_in_their_order(op):
    assert told(op.__doc__) == list(op.__signature__.parameters)


@each_entry
def test_parameters_of_an_entry_point_in_their_order(op, entry):
    assert told(op.entry_point(entry).__doc__) == list(op.entry_points[entry].signature.parameters)


@each_op
def test_nothing_that_is_written_by_hand_is_lost(op):
    composed = plain(op.__doc__)
    for section in docstrings._sections(op.__wrapped__.__doc__).values():
        for paragraph in section.split("\n\n"):
            assert all(plain(line) in composed for line in paragraph.splitlines())


@each_op
def test_examples(op):
    """doctest finds no docstrings of instances by itself."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for name in ("call", *(entry for of, entry in POINTS if of is op)):
        text = op.__doc__ if name == "call" else op.entry_point(name).__doc__
        test = doctest.DocTestParser().get_doctest(text, {}, op.name, None, 0)
        assert test.examples or name not in ("call", "forward", "backward")
        assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0
    for section in ("Parameters", "Returns", "Notes", "References", "Examples"):
        assert re.search(rf"\n *{section}\n *-+\n", op.__doc__)
    for name in ("forward", "backward"):
        assert f"fa.{op.name}.{name}(" in op.__doc__  # what it saves, what it gives
    assert "docs/conventions.md" in op.__doc__


def test_a_field_is_not_left_open():
    for op in OPS:
        assert "[own]" not in op.__doc__
        for name in op.entry_points:
            assert "{" not in docstrings._sections(op.entry_point(name).__doc__)["Returns"]


# --- whoever asks for it --------------------------------------------------------------------------


def test_help_shows_the_op_and_its_class():
    assert "Rectified linear unit." in pydoc.render_doc(fa.relu)
    assert "What `forward` saved." in pydoc.render_doc(fa.layer_norm.backward)
    kind = type(fa.relu)
    assert kind.__doc__
    assert kind.__doc__.startswith("An element-wise op, y = f(x).")
    assert inspect.getdoc(kind) != inspect.getdoc(fa.relu)


def test_functools_copy_it():
    @functools.wraps(fa.mean)
    def mean(*args: Any) -> Any:
        return fa.mean(*args)

    assert mean.__doc__ == fa.mean.__doc__
    assert mean.__name__ == "mean"


def run(code: str, *options: str) -> str:
    done = run_program(sys.executable, *options, "-c", f"import fastact as fa\n{code}")
    return output_of(done).strip()


def test_an_import_composes_nothing():
    assert run("print([op.name for op in fa.ops.values() if '__doc__' in vars(op)])") == "[]"


def test_without_docstrings_there_is_none():
    assert run("print(fa.sum.__doc__, fa.sum.forward.__doc__)", "-OO") == "None None"
