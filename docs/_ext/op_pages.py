"""A page for each op, from its spec, its documentation and docs/results, before Sphinx reads.

An op that is registered has its page and its line in the lists of families; nothing is added here.
What a page says besides, pitfalls and questions that it answers, is in docs/op_notes.toml.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import measured
import pictures
from benchmarks.workloads import FAMILIES
from benchmarks.workloads.work import Options
from formulas import latex
from numpydoc.docscrape_sphinx import SphinxDocString
from sphinx.application import Sphinx
from sphinx.errors import ConfigError

import fastact as fa
from fastact.ops.bounds import Bounds
from fastact.ops.engine.entry import REQUIRED

_ROOT = Path(__file__).parents[2]
_WHITE_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Sources:
    """The sources of the pages, beside the ops themselves."""

    notes: Mapping[str, Any]
    machines: Sequence[measured.Machine]
    accuracy: Sequence[measured.Table]


def families() -> dict[str, list[Any]]:
    by_family: dict[str, list[Any]] = {}
    for op in fa.ops.values():
        by_family.setdefault(op.family, []).append(op)
    return by_family


def summary(op: Any) -> str:
    return _WHITE_SPACE.sub(" ", op.__doc__.strip().partition("\n\n")[0])


# --- parts of a page ------------------------------------------------------------------------------


def page(op: Any, sources: Sources) -> str:
    names = [op.name.replace("_", by) for by in (" ", "")]
    names += sources.notes["ops"].get(op.name, {}).get("index", ())
    parts = [
        f".. index:: {', '.join(f'! {name}' for name in dict.fromkeys(names))}",
        _title(op.name, "="),
        *([summary(op)] if summary(op).rstrip(".").lower() != op.name else ()),
        *(f".. math:: {formula}" for formula in _formulas(op)),
        _html(f'<div class="fa-pictures">{pictures.of_activation(op)}</div>')
        if _is_activation(op)
        else _html(pictures.of_call(op)),
        _calls(op),
        _facts(op, sources),
        *_pitfalls(op, sources.notes),
        _title("Reference", "-"),
        *(_documented(op, entry) for entry in op.entry_points),
        *_accuracy(op, sources.accuracy),
        *_speed(op, sources.machines),
        *_answers(op, sources.notes),
    ]
    return "\n\n".join(parts) + "\n"


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}"


def _is_activation(op: Any) -> bool:
    return isinstance(op.bounds, Bounds)


def _formulas(op: Any) -> Iterator[str]:
    told = _WHITE_SPACE.sub(" ", op.__doc__.strip().split("\n\n")[1])
    for formula in re.findall(r"``([^`]* = [^`]*)``", told):
        if (as_latex := latex(formula)) is not None:
            yield as_latex


def _html(text: str) -> str:
    return f".. raw:: html\n\n{indent(text, '   ')}"


def _documented(op: Any, entry: str) -> str:
    """An entry point as numpydoc sets it, the op itself under its own name."""
    function = op.entry_point(entry)
    name = op.name if entry == "call" else f"{op.name}.{entry}"
    text = str(
        SphinxDocString(dedent(_first_indented(function.__doc__)), {"show_class_members": False})
    )
    text = text.replace("docs/conventions.md", ":doc:`The page on conventions </conventions>`")
    # An author's initial would begin a list.
    text = re.sub(r"^( *)([A-Z])\. ", r"\1\\\2. ", text, flags=re.MULTILINE)
    head = f".. py:function:: {name}{op.entry_points[entry].signature}\n   :module: fastact"
    return f"{head}\n\n{indent(_without_summary(text, entry), '   ')}"


def _first_indented(doc: str) -> str:
    """A docstring whose first line stands as far in as the others."""
    first, _, rest = doc.partition("\n")
    body = dedent(rest)
    # numpydoc takes such a first line for the signature, which the page has already.
    return body if re.match(r"\w+\(.*\) -> ", first) else f"{first}\n{body}"


def _without_summary(text: str, entry: str) -> str:
    """The page begins with the summary of the op."""
    return text.strip().partition("\n\n")[2] if entry == "call" else text


def _calls(op: Any) -> str:
    """Each entry point as a line of code, with the options of a call."""
    call, (_, result) = op.entry_points["call"], pictures.example(op)
    several = isinstance(result, tuple)
    names = op.results if several or len(op.results) == 1 else (op.name,)
    asked = {n: "..." if v is REQUIRED else repr(v) for n, v in call.defaults.items()}
    options = [
        n if asked[n] == "..." and n not in call.by_keyword else f"{n}={asked[n]}"
        for n in asked
        if n not in ("out", "stream")
    ]
    name, results, moved = f"fa.{op.name}", ", ".join(names), ", ".join(f"d{n}" for n in names)
    one, moved = (f"({results})", f"({moved})") if several else (results, moved)
    given = ", ".join([*call.arrays, *options])
    lines = [f"{results} = {name}({given})", f"{one}, saved = {name}.forward(...)"]
    incoming = [n for n in op.entry_points["backward"].arrays if n not in op.saves]
    takes = [*incoming, "*saved", *("..." for _ in _options_of_both(op)[:1])]
    lines.append(f"{', '.join(op.gradients)} = {name}.backward({', '.join(takes)})")
    lines.append(f"{one}, {moved} = {name}.jvp(..., tangents=...)")
    if hasattr(op, "quantized"):
        codes = ", ".join(["codes", "scale", *op.results[1:]])
        lines.append(f'{codes} = {name}.quantized(..., dtype="int8", per="row")')
    codes = "".join(f"<code>{escape(line)}</code>" for line in lines)
    return _html(f'<div class="fa-calls">{codes}</div>')


def _facts(op: Any, sources: Sources) -> str:
    integers = "integers give float64" if op.traits.integers else "integers become floating point"
    kernels = "backward.backward" in op.entry_points or op.traits.second is not None
    second = "by a kernel" if kernels else "by formulas"
    rows = [
        ("shapes, for example", pictures.shapes(op)),
        ("dtypes", f"float16, bfloat16, float32, float64; {integers}: :doc:`/conventions`"),
        ("``forward`` saves", ", ".join(f"``{name}``" for name in op.saves) or "nothing"),
        ("``backward`` gives", ", ".join(f"``{name}``" for name in op.gradients) or "none"),
        ("more derivatives", f"forward mode; the second {second}: :doc:`/derivatives`"),
    ]
    if hasattr(op, "quantized"):
        rows.append(("results in 8 bits", "int8 and float8 codes with scales: :doc:`/quantized`"))
    if moved := _moved(op):
        rows.append(("memory moved, in copies of x", moved))
    if _is_activation(op):
        rows.append(("error of float32", _bounds(op.bounds)))
        rows.append(("float16, bfloat16", "the float32 result, rounded once"))
    elif worst := measured.worst(op.name, sources.accuracy):
        rows.append(("error of float32", f"measured: {worst} of the bound that Notes state"))
    if speed := measured.likely(op.name, sources.machines):
        rows.append(("speed", speed))
    if near := _near(op):
        rows.append(("see also", ", ".join(f":doc:`{name} <{name}>`" for name in near)))
    folder = f"src/common/{op.family}"
    native = f"; formulas of the kernels in ``{folder}``" if (_ROOT / folder).is_dir() else ""
    module = op.__wrapped__.__module__.replace(".", "/")
    read = f"../../_modules/{module}.html#{op.name}"
    rows.append(("source", f"`python/{module}.py <{read}>`__{native}"))
    lines = "\n".join(f"   * - {left}\n     - {right}" for left, right in rows)
    return f".. list-table::\n   :class: facts\n\n{lines}"


def _near(op: Any) -> list[str]:
    """The ops that its documentation names as neighbours, and those that name it."""

    def named(other: Any) -> list[str]:
        _, _, told = (other.__doc__ or "").partition("See Also\n")
        return re.findall(r"^ *fastact\.(\w+) :", told.partition("\n\n")[0], re.MULTILINE)

    back = [name for name, other in fa.ops.items() if op.name in named(other)]
    return [n for n in dict.fromkeys([*named(op), *back]) if n in fa.ops and n != op.name]


def _moved(op: Any) -> str:
    """How many bytes a call has to read and write, over the bytes of a copy of x."""
    options = Options((1 << 20,), (), (), (), 1)
    found: dict[str, float] = {}
    for direction in ("forward", "backward"):
        for case in FAMILIES[op.family].on_cpu(op, direction, "float32", options):
            found.setdefault(direction, case.accesses / 2)  # two accesses are a copy
    return ", ".join(f"{direction} {ratio:.3g}" for direction, ratio in found.items())


def _bounds(bounds: Bounds) -> str:
    value = f"at most {bounds.forward_ulp:g} ULP" if bounds.forward_ulp else "none"
    if bounds.forward_abs:
        value += f" or {bounds.forward_abs:.2g} absolute"
    slope = f"{bounds.derivative_ulp:g} ULP" if bounds.derivative_ulp else "none"
    if bounds.derivative_abs:
        slope += f" or {bounds.derivative_abs:.2g} absolute"
    return f"{value}; of the derivative {slope}"


def _pitfalls(op: Any, notes: Mapping[str, Any]) -> Iterator[str]:
    """Those of its family, its own, and what follows from its spec."""
    told = [
        *notes["ops"].get(op.name, {}).get("pitfalls", ()),
        *notes["families"].get(op.family, {}).get("pitfalls", ()),
    ]
    if "backward" in op.entry_points:
        if any(name != "shape" for name in op.saves):
            told.append("`forward` saves arrays without a copy: leave them alone until `backward`.")
        if again := ", ".join(f"`{name}`" for name in _options_of_both(op)):
            told.append(f"`backward` has to be told again what the call was told: {again}.")
    if told:
        yield _title("Pitfalls", "-")
        yield "\n".join(f"- {_code(text)}" for text in told)


def _options_of_both(op: Any) -> list[str]:
    """The options of a result that are parameters of `backward` too."""
    call, backward = (op.entry_points[entry].defaults for entry in ("call", "backward"))
    given = {*op.saves, "out", "stream", "accumulate"}
    return [name for name in backward if name in call and name not in given]


def _code(text: str) -> str:
    """Markdown's inline code as reStructuredText's; roles of that stay."""
    return re.sub(r"(:\w+:)?`([^`]+)`", lambda m: m[0] if m[1] else f"``{m[2]}``", text)


def _accuracy(op: Any, every: Sequence[measured.Table]) -> Iterator[str]:
    parts = list(measured.accuracy(op.name, every))
    if parts:
        yield _title("Accuracy", "-")
        yield (
            f"What was found, as ``python -m fastact check {op.name}`` finds it again. The bounds, "
            "which hold for all input, stand in the notes above, and in ``op.bounds`` for programs."
        )
        yield from parts


def _speed(op: Any, machines: Sequence[measured.Machine]) -> Iterator[str]:
    parts = list(measured.speed(op.name, machines))
    if parts:
        yield _title("Speed", "-")
        yield (
            "How many times our time the fastest peer takes in the same run, with its name; bold "
            f"where it is faster. ``python -m fastact bench {op.name}`` measures yours."
        )
        yield from parts


def _answers(op: Any, notes: Mapping[str, Any]) -> Iterator[str]:
    answers = notes["ops"].get(op.name, {}).get("answers", ())
    if answers:
        yield _title("Asked elsewhere", "-")
        for answer in answers:
            where = "/".join(answer["url"].split("/")[3:5])
            yield f"- `{answer['title']} <{answer['url']}>`__ ({where}). {_code(answer['how'])}"


# --- the list of all ------------------------------------------------------------------------------


def index() -> str:
    parts = [
        _title("Ops", "="),
        "A page for each: formula, pictures, pitfalls, reference, accuracy and speed. What they "
        "share, from dtypes to ``out``, is said once: :doc:`/conventions`. Sets of moments that "
        "merge have a page of their own: :doc:`/moments`.",
    ]
    for family, members in families().items():
        title = (import_module(f"fastact.ops.{family}").__doc__ or family).partition(":")[0]
        parts.append(_title(title, "-"))
        activations = all(map(_is_activation, members))
        parts.append(_cards(members) if activations else _lines(members))
        names = "\n".join(f"   generated/{op.name}" for op in members)
        parts.append(f".. toctree::\n   :hidden:\n   :caption: {title}\n\n{names}")
    return "\n\n".join(parts) + "\n"


def _lines(members: Sequence[Any]) -> str:
    rows = [[f":doc:`generated/{op.name}`", summary(op)] for op in members]
    lines = [f"   {'*' if not i else ' '} - {cell}" for row in rows for i, cell in enumerate(row)]
    return ".. list-table::\n   :class: ops\n\n" + "\n".join(lines)


def _cards(members: Sequence[Any]) -> str:
    """The curves of functions, each a link to its page."""
    cards = "".join(
        f'<a class="fa-op" href="generated/{op.name}.html">{pictures.sparkline(op)}'
        f"<code>{op.name}</code></a>"
        for op in members
    )
    return _html(f'<div class="fa-ops">{cards}</div>')


def overview(machines: Sequence[measured.Machine]) -> str:
    """The picture of the front page, of the machine that was measured last."""
    if not machines:
        return ""
    machine = max(machines, key=lambda machine: machine.facts.get("date", ""))
    about = re.sub(r":doc:`(.*?) <.*?>`", r"\1", machine.about)
    about += " Left of the line the other one is faster."
    picture = pictures.overview(*measured.overview(machine))
    return f'<figure class="fa-overview">{picture}<figcaption>{about}</figcaption></figure>\n'


# --- the build ------------------------------------------------------------------------------------


def write(app: Sphinx) -> None:
    root = Path(app.srcdir)
    folder = root / "ops" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    results = root / "results"
    sources = Sources(
        _notes(root / "op_notes.toml"), measured.machines(results), measured.tables(results)
    )
    for op in fa.ops.values():
        replace(folder / f"{op.name}.rst", page(op, sources))
    for left in folder.iterdir():
        if left.stem not in fa.ops or left.suffix != ".rst":
            left.unlink()  # of an op, or by an extension, of an earlier build
    replace(folder.parent / "index.rst", index())
    replace(folder.parent / "overview.html", overview(sources.machines))


def _notes(file: Path) -> dict[str, Any]:
    notes = tomllib.loads(file.read_text(encoding="utf-8"))
    unknown = (set(notes["ops"]) - set(fa.ops)) | (set(notes["families"]) - set(families()))
    if unknown:
        raise ConfigError(f"{file.name}: there are no {', '.join(sorted(unknown))}")
    return notes


def replace(path: Path, text: str) -> None:
    """Only where it differs, so that Sphinx reads again only what has changed."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _declared_in(app: Sphinx, module: str, name: str) -> str | None:
    """The module whose text shows an op."""
    op = fa.ops.get(name) if module == "fastact" else None
    return op and op.__wrapped__.__module__


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("sphinx.ext.viewcode")
    app.connect("builder-inited", write)
    app.connect("viewcode-follow-imported", _declared_in)
    return {"parallel_read_safe": True}
