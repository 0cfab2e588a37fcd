"""Comments, docstrings and pages say who does what.

"the error is that of x", "arrays, of which one is read", "What is read is converted": a reader has
to find out what the words stand for, and parses them twice. A noun may be repeated, an apostrophe
is shorter, and a sentence may have a subject: "x's error", "one of the arrays is read", "the array
is converted".
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

READ = {
    "src": (".h", ".cpp", ".cu", ".cuh", ".pyx", ".pxi", ".txt"),
    "python": (".py", ".pyi"),
    "docs": (".md", ".toml", ".py", ".css"),
    "examples": (".py", ".md"),
    "asv_bench": (".py", ".md"),
    "tests": (".py", ".h", ".cpp", ".txt"),
    "tools": (".py", ".sh"),
    ".github": (".yml", ".md"),
}
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CMakeLists.txt")
PAGES += ("pyproject.toml", ".ci/run")

#: Not read: pages that programs make, the programs that have such pages' texts, and this file.
LEFT_OUT = ("docs/_build", "docs/results", "tests/tools/test_plain_english.py")
LEFT_OUT += ("tools/overview_tables.py",)

# "two arrays, each of which ..", "4 minutes, of which 2 ..": how many are meant is said, which is
# good English.
_COUNTED = ("each", "all", "both", "some", "one", "none", "most", "first", "second", "last", "half")
_COUNTS = (
    r"(?:[\d.{]+|(?:at (?:most|least)|some|most|many|few|half|all|none|each|one|two|three|four)\b)"
)
_WORD = r"[\w`-]+(?:\.\w+)*`?"

PATTERNS = {
    "of which": "".join(rf"(?<!\b{word} )" for word in _COUNTED) + rf"\bof which\b(?! {_COUNTS})",
    "that of": r"\b(?:that|those) of\b",
    # As a subject or an object, not in a question: "What x is multiplied by", "of what is left".
    "what .. is": rf"(?:\bWhat|\bof what)(?: {_WORD}){{0,5}}? (?:is|are)\b(?![^.]*\?)",
}

pytestmark = pytest.mark.skipif(not (ROOT / "src").is_dir(), reason="the sources are not there")


def _prose(text: str, suffix: str) -> str:
    """The text of the same length, its lines joined; without headings, which name a subject."""
    if suffix == ".md":
        text = re.sub(r"^#+ .*", lambda heading: " " * len(heading[0]), text, flags=re.M)
    joined = re.sub(r"\n[ \t]*(?://|#:|#)?[ \t]*", lambda gap: " " * len(gap[0]), text)
    # One space between words, and the others before it, so that places stay.
    return re.sub(r"(?<=\S) ( +)(?=\S)", lambda gap: "\0" * len(gap[1]) + " ", joined)


def _found(text: str, suffix: str = ".py") -> Iterator[tuple[int, str]]:
    """The lines of a text, from 1 on, at which a pattern is found, and the pattern's name."""
    prose = _prose(text, suffix)
    plain = prose.replace("\0", "")
    places = [i for i, c in enumerate(prose) if c != "\0"]
    for name, pattern in PATTERNS.items():
        for match in re.finditer(pattern, plain):
            yield text.count("\n", 0, places[match.start()]) + 1, name


def _files() -> list[Path]:
    below = [
        path
        for folder, ends in READ.items()
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in ends
    ]
    return [
        path
        for path in [*below, *(ROOT / name for name in PAGES)]
        if not path.relative_to(ROOT).as_posix().startswith(LEFT_OUT)
        if "generated" not in path.parts
    ]


@pytest.mark.parametrize(
    "text",
    [
        "The error is that of x.",
        "// Sums over rows, those\n// of a batch.",
        "#: Arrays, of\n#: which x is read.",
        "What x is multiplied by.",
        "The mean of what is not NaN.",
    ],
)
def test_a_text_that_is_parsed_twice_is_found(text):
    assert [line for line, _ in _found(text)] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "Two divisions, each of which waits for the one before it.",
        "It takes 4 minutes, of which 2 are tests.",
        "A message says what is allowed.",
        "The class of whatever is given.",
        "What is the dtype of x?",
    ],
)
def test_good_english_is_not_refused(text):
    assert not [*_found(text)]


def test_headings_name_a_subject():
    assert not [*_found("# What is supported\n\nAll of it.\n", ".md")]


def test_who_does_what_is_said():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in _files()
        for line, name in _found(path.read_text(encoding="utf-8"), path.suffix)
    ]
    assert not found, "\n".join(["say who does what:", *found])
