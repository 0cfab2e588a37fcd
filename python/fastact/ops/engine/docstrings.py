"""Documentation of ops: a person writes what an op has alone, the rest follows from its spec.

A function that declares an op has a docstring in numpydoc's form: the op's summary and formula, its
own parameters, notes, references, examples. `of_call` adds the texts that the ops of a family share
(`standard_texts.py`), by the signature, the results and the bounds of the op. `of_entry` does the
same for the other entry points, whose methods have the docstrings.

A text that is written by hand takes the standard one's place: an entry of Parameters, Returns,
Raises or See Also by its names; References as a whole; in Notes the sentence on what is saved,
where they name `forward` themselves.

Documentation is composed when it is first read: an import composes none.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from inspect import Parameter, cleandoc
from itertools import groupby
from typing import Any, TypeVar

from . import standard_texts as texts

C = TypeVar("C", bound=type)

#: Entries of a section by the names that each is of.
Entries = dict[tuple[str, ...], str]

#: Sections in numpydoc's order; the text before the first one has no title.
_ORDER = (
    "",
    "Parameters",
    "Returns",
    "Raises",
    "See Also",
    "Notes",
    "References",
    "Examples",
)
_TITLE = re.compile(rf"^({'|'.join(_ORDER[1:])})\n-+\n", re.MULTILINE)

#: Columns of a composed text: a docstring's in the sources, less its indentation.
_WIDTH = 96


class ComposedText:
    """`__doc__` of a class whose instances compose theirs, by `_documentation`, at the first look.

    help, inspect and functools find a string; the class keeps its own.
    """

    def __init__(self, of_class: str | None) -> None:
        self.of_class = of_class

    def __get__(self, instance: Any, owner: Any = None) -> str | None:
        if instance is None:
            return self.of_class
        found: str | None = instance._documentation()
        vars(instance)["__doc__"] = found  # found before this one from now on
        return found


def composes(cls: C) -> C:
    """Let the instances of a class compose their documentation."""
    cls.__doc__ = ComposedText(vars(cls).get("__doc__"))  # type: ignore[assignment]
    return cls


def of_call(op: Any, own: str | None) -> str | None:
    """The documentation of an op, from the docstring of the function that declares it."""
    if own is None:  # python -OO
        return None
    taken = op.__signature__.parameters
    family, written = texts.family_of(op), _sections(own)
    fields = {**texts.fields_of_call(op), **family.fields(op)}
    if f"`{op.name}.forward`" in written.get("Notes", ""):
        fields["saves"] = ""
    standard = _standard(texts.CALL, fields)
    of_family = _standard(family.text, fields)
    parameters = _entries(standard["Parameters"]) | _entries(of_family.get("Parameters", ""))
    notes = of_family.get("Notes", texts.OWN).split(texts.OWN)
    notes.insert(1, written.get("Notes", ""))
    return _text(
        {
            **written,
            "Parameters": _in_order(_entries(written.get("Parameters", "")), parameters, taken),
            "Returns": _merged("Returns", written, {**standard, **of_family}),
            "Raises": _merged("Raises", written, standard),
            "See Also": _with_others(written.get("See Also", ""), of_family.get("See Also", "")),
            "References": written.get("References") or of_family.get("References", ""),
            "Notes": "\n\n".join(filter(None, map(str.strip, [*notes, standard["Notes"]]))),
        }
    )


def method_of(op: Any, entry: str) -> Any:
    """The method that documents an entry point."""
    return getattr(type(op), f"_{entry.replace('.', '_')}" if "." in entry else entry)


def of_entry(op: Any, name: str, own: str | None) -> str | None:
    """The documentation of another entry point, from the docstring of its method."""
    if own is None:
        return None
    written, call = _sections(own), _sections(op.__doc__)
    fields = texts.fields_of_entry(op, name, _results(op, call["Returns"]))
    standard = _standard(texts.ENTRIES.get(name, texts.ENTRY), fields)
    by_hand, parameters = (_entries(each.get("Parameters", "")) for each in (written, standard))
    told = [name for names in (*by_hand, *parameters) for name in names]
    parameters |= _entries("\n".join(_told_elsewhere(op, name, told, call["Parameters"])))
    taken = op.entry_points[name].signature.parameters
    return _text(
        {
            **standard,
            **written,
            "Parameters": _in_order(by_hand, parameters, taken),
            "Returns": _merged("Returns", written, standard),
        }
    )


def _told_elsewhere(op: Any, entry: str, told: Collection[str], call: str) -> Iterator[str]:
    """The entries of parameters that another entry point explains, but for those that are told.

    Neighbours of one type have one entry.
    """
    where = {"forward": "As for the call.", "backward": "As given to `forward`."}
    types = {name: _type(text) for names, text in _entries(call).items() for name in names}

    def kind(p: Parameter) -> tuple[str, str] | None:
        if p.name in told:
            return None
        if entry != "forward" and p.name in op.saves:
            return "array or None", "What `forward` saved."
        of_type = types[p.name] if p.default is p.empty else "optional"
        return of_type, where.get(entry, "As for `backward`.")

    taken = op.entry_points[entry].signature.parameters.values()
    for found, group in groupby(taken, kind):
        if found is not None:
            yield f"{', '.join(p.name for p in group)} : {found[0]}\n    {found[1]}"


def _type(entry: str) -> str:
    """Find what stands between a name and its text."""
    return entry.partition("\n")[0].rpartition(" : ")[2]


def _results(op: Any, returns: str) -> str:
    """The head of the entry for all that a call returns."""
    first, *others = _entries(returns).values()
    if len(op.results) == 1:
        return f"{op.results[0]} : {_type(first)}"
    return f"({', '.join(op.results)}) : tuple of arrays" if others else f"result : {_type(first)}"


# --- a docstring taken apart and put together -----------------------------------------------------


def _sections(text: str) -> dict[str, str]:
    head, *rest = _TITLE.split(cleandoc(text))
    found = {"": head, **dict(zip(rest[::2], rest[1::2], strict=True))}
    return {title: part.strip() for title, part in found.items()}


def _standard(text: str, fields: Mapping[str, str]) -> dict[str, str]:
    """The sections of a standard text, with its fields filled in and its lines broken anew."""
    found = _sections(text.format_map(fields))
    for title, part in found.items():
        if title in ("Notes", "References"):
            found[title] = "\n\n".join(filter(None, map(_filled, part.split("\n\n"))))
        else:
            found[title] = "\n".join(map(_filled_entry, _entries(part).values()))
    return found


def _entries(section: str) -> Entries:
    found = re.split(r"\n+(?=\S)", section) if section else []
    return {_names(entry): entry for entry in found}


def _names(entry: str) -> tuple[str, ...]:
    names = entry.partition("\n")[0].partition(" : ")[0]
    return tuple(name.strip(" *") for name in names.split(","))


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _filled_entry(entry: str) -> str:
    header, _, told = entry.partition("\n")
    return f"{header}\n{_filled(told, '    ')}" if told else header


def _in_order(by_hand: Entries, standard: Entries, taken: Iterable[str]) -> str:
    """The entries of all parameters, those by hand before the standard ones, in their order."""
    entries = (*standard.items(), *by_hand.items())
    found = {name: entry for names, entry in entries for name in names}
    return "\n".join(dict.fromkeys(found[name] for name in taken if name in found))


def _merged(title: str, written: Mapping[str, str], standard: Mapping[str, str]) -> str:
    """A section by hand, with the other entries of the standard one where both have some."""
    own, other = written.get(title, ""), standard.get(title, "")
    by_hand, entries = _entries(own), _entries(other)
    names = [name for names in (*entries, *by_hand) for name in names]
    some_in_both = len(set(names)) < len(names)
    return _in_order(by_hand, entries, names) if some_in_both else own or other


def _with_others(own: str, standard: str) -> str:
    """The entries by hand, and the standard ones of other names."""
    by_hand = _entries(own)
    others = {names: text for names, text in _entries(standard).items() if names not in by_hand}
    return "\n".join((by_hand | others).values())


def _text(sections: Mapping[str, str]) -> str:
    found = [(title, sections[title]) for title in _ORDER if sections.get(title)]
    return "\n\n".join(f"{t}\n{'-' * len(t)}\n{part}" if t else part for t, part in found) + "\n"
