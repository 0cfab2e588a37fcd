"""What an editor shows of an op: its parameters, and its documentation, read off the source."""

import inspect

import jedi
import pytest
from conftest import each_family
from processes import is_editable

import fastact as fa


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """jedi reads a file of its cache while another process is still writing it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jedi.settings, "cache_directory", str(tmp_path_factory.mktemp("jedi")))
        yield


@pytest.mark.skipif(is_editable, reason="an editable install, whose sources jedi does not find")
@each_family
def test_parameters_and_documentation(op):
    """By jedi, in a notebook or at a prompt; that pyright knows them, typing_sample.py shows."""
    for name, point in op.entry_points.items():
        entry = op.entry_point(name)
        if inspect.ismethod(entry) or inspect.isbuiltin(entry):
            continue  # compiled, and one for all activations
        code = f"fa.{op.name}(" if name == "call" else f"fa.{op.name}.{name}("
        (found,) = jedi.Interpreter(code, [{"fa": fa}]).get_signatures()
        assert [p.name for p in found.params] == list(point.signature.parameters)
    summary = op.__doc__.strip().partition("\n")[0]
    (where,) = jedi.Script(f"import fastact as fa\nfa.{op.name}").help(2, 4)
    assert summary in where.docstring()  # read off the source
