"""tools/mutants.py: its table applies to this tree, and it tells who was killed."""

import subprocess

import pytest
from source_tree import ROOT, import_tool

mutants = import_tool("mutants")

# Two faults of a module, of which its tests see one.
MODULE, TESTS = "/".join(("python", "sample.py")), "/".join(("tests", "test_sample.py"))
TABLE = f"""
[{MODULE}] {TESTS}
half: return {{{{x / 2 => x / 3}}}}
of-none: if {{{{x is None => not x}}}}:
"""
SAMPLE = """def half(x):
    if x is None:
        return None
    return x / 2
"""
TEST = """from sample import half

def test_half():
    assert half(3) == 1.5
    assert half(None) is None
"""


def test_the_table_applies_to_this_tree():
    """If it does not, mend its line, or write another fault of that kind in its place."""
    found = mutants.read_table(mutants.TABLE.read_text())
    assert [*mutants.problems(ROOT, found)] == []
    assert len({mutant.number for mutant in found}) == len({mutant.name for mutant in found})
    assert len(found) >= 60
    kinds = [mutant.path.partition("/")[2].partition("/")[0] for mutant in found]
    assert min(map(kinds.count, ("common", "cpu", "cuda", "fastact"))) >= 10


@pytest.fixture
def tree(tmp_path):
    """A checkout with one module, and the table of its faults."""
    for name, text in ((MODULE, SAMPLE), (TESTS, TEST)):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "table.txt").write_text(TABLE)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.check_call(["git", "-C", tmp_path / "tree", *command])
    return tmp_path


def run(tree):
    given = {"--tree": "tree", "--table": "table.txt", "--scratch": "copy"}
    return mutants.main([part for n, path in given.items() for part in (n, str(tree / path))])


def test_who_survived(tree, capsys):
    assert run(tree) == 0
    said = capsys.readouterr().out
    assert f"half: killed by FAILED {TESTS}::test_half" in said
    assert "of-none: SURVIVED" in said
    assert "1 of 2 killed" in said


def test_a_line_that_is_not_there_is_told(tree, capsys):
    (tree / "tree" / MODULE).write_text(SAMPLE.replace("x / 2", "0.5 * x"))
    assert run(tree) == 1
    assert f"half: its line stands 0 times in {MODULE}" in capsys.readouterr().out
    assert not (tree / "copy").exists()


def test_tests_that_fail_without_a_fault(tree, capsys):
    (tree / "tree" / TESTS).write_text(TEST.replace("1.5", "2"))
    assert run(tree) == 1
    assert f"without a fault: FAILED {TESTS}" in capsys.readouterr().out
