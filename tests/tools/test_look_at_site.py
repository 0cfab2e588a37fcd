"""tools/look_at_site.py: links that lead nowhere are found; the browser's part is not run here."""

import sys
from pathlib import Path

import pytest
from processes import output_of, run_program

TOOL = Path(__file__).parents[2] / "tools/look_at_site.py"

pytestmark = pytest.mark.skipif(not TOOL.is_file(), reason="tests away from the source tree")

GOOD = '<h1 id="top">a</h1><a href="b.html#here">b</a><a href="https://example.org/x">x</a>'


def looked(site, first):
    """What the tool says of two pages."""
    (site / "a.html").write_text(GOOD + first)
    (site / "b.html").write_text('<p id="here">b</p><a href="a.html">a</a>')
    return run_program(sys.executable, TOOL, site)


def test_links_that_lead_somewhere(tmp_path):
    done = looked(tmp_path, '<a href="#top">up</a>')
    assert "2 pages, 4 links" in output_of(done)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('<a href="c.html">c</a>', "c.html is not there"),
        ('<img src="c.png">', "c.png is not there"),
        ('<a href="b.html#there">b</a>', "b.html#there names no place of that page"),
        ('<script src="https://example.org/x.js"></script>', "x.js is loaded from the net"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "x.css is loaded from the net"),
        ('<a href="#nowhere">b</a>', "#nowhere names no place of that page"),
        ('<nav class="bd-docs-nav"><a href="#top"/><a href="#top"/></nav>', "#top is listed twice"),
    ],
)
def test_links_that_lead_nowhere(tmp_path, wrong, said):
    done = looked(tmp_path, wrong)
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout
    assert "1 faults" in done.stdout


def test_questions_that_the_search_does_not_answer(tmp_path):
    (tmp_path / "questions.html").write_text('<dt>why, Who</dt><dd><a href="a.html">a</a></dd>')
    index = (
        '{"docnames": ["a", "b"], "indexentries": {"why": [[1, "", true]], "who": [[0, "", true]]}}'
    )
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({index})")
    assert "wrong: search: 'why' finds b, and not a\n1 faults" in looked(tmp_path, "").stdout
