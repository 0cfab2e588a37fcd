"""Documentation of ops: people write what is special to an op, and its records give the rest.

A function that declares an op has a docstring in numpydoc's form: the op's summary and formula, its
own parameters, notes, references, and examples without their imports. For the parameters that the
op takes, `of_call` adds the texts that the ops of a family share (`Op._texts`) and those of all
ops, below. `of_entry` does this for the other entry points, whose methods have the docstrings;
where these have no examples, it shows the op's.

A text that is written by hand replaces the standard one: an entry of Parameters, Returns, Raises or
See Also with the same names; all of References; and, in Notes that name `forward` themselves, the
sentence on what is saved. In the Notes of a family, [own] marks the place of the op's own.

Documentation is composed when it is first read; an import composes none.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from inspect import Parameter, cleandoc, get_annotations
from itertools import groupby
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

#: Entries of a section, by the names that each explains.
Entries = dict[tuple[str, ...], str]

CALL = """
Parameters
----------
{data} : array
    Data of dtype float16, bfloat16, float32 or float64, with any shape and strides.
activation : str or op
    The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
residual : array, or Python scalar
    An array that is added, of {data}'s shape and dtype.
p : float
    The probability that an element of {data} is dropped, from 0 to 1.
seed : int
    The number of the mask, from -2**63 to 2**64 - 1, taken modulo 2**64.
weight_offset : float, optional
    A number that is added to the weight, in the type in which {data} is computed. It is 0 by
    default, and 1 with "gemma".
interleaved : bool
    If True, a pair is two neighbours, ``x[..., ::2], x[..., 1::2]``, not an element of each half.
keepdims : bool
    If True, the result keeps the reduced axes, with length 1.
out : array, optional
    Where to write {result}; it {may_be}.
accumulate : bool
    If True, add the sum to `out` before it is rounded, instead of overwriting `out`.
stream : optional
    The stream to work on, for arrays on a GPU.
**parameters : float or str
    The activation's own parameters by keyword; `backward` takes the same ones as `forward`.

Returns
-------
array
    The result, of {data}'s shape, dtype and framework.
"""

RAISES = """
TypeError
    axis: an axis that is not an integer
    weight: a weight narrower than {data}
    bias: a bias narrower than {data}
    parameters: a keyword that the activation does not have
    seed: a seed or an offset that is not an integer
ValueError
    axis: an axis out of range{twice}
    channel_axis: an axis out of range
    weight: a weight of another shape
    bias: a bias of another shape
    residual: a residual of another shape
    activation: an unknown activation
    eps: a negative eps
    casting: an unknown casting
    seed: a p, a seed or an offset out of range
"""

SAVES = "`{name}.forward` saves ``({saves})``; `{name}.backward` gives {gives}."

CONVENTIONS = "docs/conventions.md describes what all ops share."

#: The examples of a call begin with this.
IMPORTS = ">>> import numpy as np, fastact as fa"

ENTRY = """
Parameters
----------
accumulate : bool
    If True, add {gradients} to `out` instead of overwriting it.
"""

FORWARD = """
Parameters
----------
out : {out}, optional
    As for the call{more}{apart}.

Returns
-------
{results}
    The result of calling the op.
saved : tuple
    ``({saves})``{lacking}. Arrays are not copied: do not change them before `backward`.

Notes
-----
The result has the same bits, and so the same accuracy, as calling the op.
"""

INCOMING = """
{gradient} : array, or Python scalar
    The gradient of the loss with respect to {result}, with its shape and the dtype of {data}.
"""

OUT = """
out : {out}, optional
    {where} {may_be}.
"""

SECOND = """
{second} : array, or Python scalar
    The gradient of the loss with respect to {gradients} of `backward`, with its shape and dtype.
{incoming} : array, or Python scalar
    As given to `backward`.
out : tuple of arrays or None, optional
    Where to write each gradient; None skips one. These must not share memory with any input.
"""

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
    """`__doc__` of a class whose instances compose theirs, by `_documentation`, when first read.

    help, inspect and functools find a string, and the class keeps its own.
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
    """Compose the documentation of an op from the docstring of the function that declares it."""
    if own is None:  # python -OO
        return None
    taken, written = op.__signature__.parameters, _sections(own)
    standard, of_family = standard_of_call(op)
    parameters = _entries(standard["Parameters"]) | _entries(of_family.get("Parameters", ""))
    notes = of_family.get("Notes", "[own]").split("[own]")
    notes.insert(1, written.get("Notes", ""))
    others, of_others = (_entries(each.get("See Also", "")) for each in (written, of_family))
    all_others = (*others, *of_others)
    says_what_is_saved = f"`{op.name}.forward`" in written.get("Notes", "")
    saves = SAVES.format(name=op.name, saves=_tuple(op.saves), gives=op._gives())
    notes.append(CONVENTIONS if says_what_is_saved else _filled(f"{saves} {CONVENTIONS}"))
    return _text(
        {
            **written,
            "Parameters": _in_order(_entries(written.get("Parameters", "")), parameters, taken),
            "Returns": _merged("Returns", written, {**standard, **of_family}),
            "Raises": "\n".join(sorted(_entries(_merged("Raises", written, of_family)).values())),
            "See Also": _in_order(others, of_others, (n for names in all_others for n in names)),
            "References": written.get("References") or of_family.get("References", ""),
            "Notes": "\n\n".join(filter(None, map(str.strip, notes))),
            "Examples": f"{IMPORTS}\n{written['Examples']}",
        }
    )


def standard_of_call(op: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts of all ops, and those of the op's family, by section."""
    taken, result = op.__signature__.parameters, op.results[0]
    may_be, data = _may_be(op.entry_points["call"], result), next(iter(taken))
    named = "y" if op.family == "statistics" else _named(result)  # as its formula has it
    call = CALL.format(data=data, result=named, may_be=may_be)
    of_axis = str(get_annotations(op.__wrapped__, eval_str=True).get("axis"))
    twice = " or named twice" if "tuple" in of_axis else ""
    raises = RAISES.format(data=data, twice=twice).strip()
    return _standard(call, taken), _standard(op._texts(), taken, raises)


def _may_be(entry: Any, output: str) -> str:
    """Say which inputs of a call an output may be, and that it must not overlap the others."""
    made = entry.output(output)
    like = [n for n in entry.taken if n in entry.free and entry.seen(n) == made.seen]
    if not (made.in_place and like):
        return "must not share memory with any input"
    others = [name for name in entry.taken if name not in like]
    apart = f", but must not share memory with {_listed(others)}" if others else ""
    return f"may be {_listed(like)} itself{apart}"


def _named(result: str) -> str:
    """Give a result's name as it stands in a sentence: only a word has an article."""
    return result if len(result) == 1 or result.startswith("d") else f"the {result}"


def _listed(names: list[str], word: str = "or") -> str:
    *others, last = names or [""]
    return f"{', '.join(others)} {word} {last}" if others else last


def method_of(op: Any, entry: str) -> Any:
    """Find the method that documents an entry point."""
    return getattr(type(op), f"_{entry.replace('.', '_')}" if "." in entry else entry)


def of_entry(op: Any, name: str, own: str | None) -> str | None:
    """Compose the documentation of another entry point from the docstring of its method."""
    if own is None:
        return None
    written, call = _sections(own), _sections(op.__doc__)
    entry = op.entry_points[name]
    taken = entry.signature.parameters
    standard = _standard(_standard_of_entry(op, entry, call["Returns"]), taken)
    of_call = _entries(call["Parameters"])
    by_hand, parameters = (_entries(each.get("Parameters", "")) for each in (written, standard))
    parameters |= {n: of_call[n] for n in (("stream",), ("parameters",)) if n in of_call}
    told = {name for names in (*by_hand, *parameters) for name in names}
    parameters |= _entries("\n".join(_told_elsewhere(op, entry, told, call["Parameters"])))
    return _text(
        {
            **standard,
            **written,
            "Parameters": _in_order(by_hand, parameters, taken),
            "Returns": _merged("Returns", written, standard),
            "Examples": written.get("Examples") or call["Examples"],
        }
    )


def _standard_of_entry(op: Any, entry: Any, returns: str) -> str:
    """Return the text that the entry points of this name have in common."""
    out = "tuple of arrays or None" if entry.outputs > 1 else "array"
    taken, gradients = op.__signature__.parameters, op.gradients
    if entry.is_forward:
        may_lack = any(taken[name].default is None for name in op.saves if name in taken)
        is_apart = op.results[0] not in op.saves
        kept = _listed([*entry.gives[entry.outputs :][: entry.extra]], "and")
        arrays = "arrays" if entry.extra > 1 else "an array"
        more = f", or a tuple that also has {arrays} for {kept}; None allocates one"
        return FORWARD.format(
            out="array or tuple" if kept and out == "array" else out,
            more=more if kept else "",
            apart=". It must not share memory with a saved array" if is_apart else "",
            results=_results(op, returns),
            saves=_tuple(op.saves),
            lacking=", where None stands for an array that was not given" if may_lack else "",
        )
    backward = op.entry_points["backward"]
    incoming = [n for n in backward.arrays if n not in op.saves]
    is_of_all = entry.name.startswith("backward.") or (entry is backward and len(gradients) > 1)
    text = ENTRY.format(gradients="the gradients" if is_of_all else gradients[0])
    if entry.name == "backward.backward":
        second = ", ".join(f"d{d}" for d in gradients if f"d{d}" in entry.arrays)
        of = "the gradients" if len(gradients) > 1 else gradients[0]
        text += SECOND.format(second=second, incoming=", ".join(incoming), gradients=of)
        of = "    The gradient with respect to "
        results = [f"{d} : array\n{of}{d.removeprefix('d')}." for d in entry.gives]
        return f"{text}\nReturns\n-------\n" + "\n".join(results)
    if entry is not backward:
        return text
    data, first = (*op.saves, *incoming)[0], gradients[0]
    like = f"{data}, or the one that `dtype` names" if "dtype" in entry.defaults else data
    for gradient in incoming:
        result = _named(gradient.removeprefix("d"))
        text += INCOMING.format(gradient=gradient, result=result, data=like)
    where = f"Where to write {first}; it"
    if entry.outputs > 1:
        where = f"Where to write each gradient; None skips one. {first}"
    text += OUT.format(out=out, where=where, may_be=_may_be(entry, first))
    results = [f"array\n    The gradient {first}, of the shape, dtype and framework of {data}."]
    if len(gradients) > 1:
        pairs = zip(gradients, op.differentiated, strict=True)
        results = [
            f"{d} : array\n    The gradient with respect to {of}, of its shape and dtype"
            f"{'; None without one' if taken[of].default is None else ''}."
            for d, of in pairs
        ]
    return f"{text}\nReturns\n-------\n" + "\n".join(results)


def _told_elsewhere(op: Any, entry: Any, told: Iterable[str], call: str) -> Iterator[str]:
    """Yield entries of parameters that another entry point explains, except those in `told`.

    Neighbours of the same type share an entry.
    """
    where = {"forward": "As for the call.", "backward": "As given to `forward`."}
    types = {name: _type(text) for names, text in _entries(call).items() for name in names}
    may_lack = {name for name, may, _ in entry.asked if may}

    def kind(p: Parameter) -> tuple[str, str] | None:
        if p.name in told:
            return None
        if not entry.is_forward and p.name in op.saves:
            return f"array{' or None' * (p.name in may_lack)}", "What `forward` saved."
        of_type = types[p.name] if p.default is p.empty else "optional"
        return of_type, where.get(entry.name, "As for `backward`.")

    for found, group in groupby(entry.signature.parameters.values(), kind):
        if found is not None:
            yield f"{', '.join(p.name for p in group)} : {found[0]}\n    {found[1]}"


def _type(entry: str) -> str:
    """Find the type, which stands between a name and its text."""
    return entry.partition("\n")[0].rpartition(" : ")[2]


def _results(op: Any, returns: str) -> str:
    """Return the head of the entry for all that a call returns."""
    first, *others = _entries(returns).values()
    if len(op.results) == 1:
        return f"{op.results[0]} : {_type(first)}"
    return f"({', '.join(op.results)}) : tuple of arrays" if others else f"result : {_type(first)}"


def _tuple(names: tuple[str, ...]) -> str:
    return f"{names[0]}," if len(names) == 1 else ", ".join(names)


# --- a docstring taken apart and put together -----------------------------------------------------


def _sections(text: str) -> dict[str, str]:
    head, *rest = _TITLE.split(cleandoc(text))
    found = {"": head, **dict(zip(rest[::2], rest[1::2], strict=True))}
    return {title: part.strip() for title, part in found.items()}


def _standard(text: str, taken: Mapping[str, Parameter], raises: str = "") -> dict[str, str]:
    """Return the sections of a standard text for the parameters that are taken, wrapped again.

    raises : clauses on further errors.
    """
    found = _sections(text)
    errors = _entries(raises)
    for names, entry in _entries(found.get("Raises", "")).items():
        own = entry.partition("\n")[2]
        is_sentence = ": " not in own
        errors[names] = entry if is_sentence or names not in errors else f"{errors[names]}\n{own}"
    found["Raises"] = "\n".join(errors.values())
    for title, part in found.items():
        if title in ("Notes", "References"):
            found[title] = "\n\n".join(filter(None, map(_filled, part.split("\n\n"))))
        else:
            fill = _raised if title == "Raises" else _filled_entry
            filled = (fill(entry, taken) for entry in _entries(part).values())
            found[title] = "\n".join(filter(None, filled))
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


def _filled_entry(entry: str, taken: Mapping[str, Parameter]) -> str:
    """Fill an entry of a standard text, and add the default of its parameter."""
    header, _, told = entry.partition("\n")
    p = taken.get(_names(entry)[0])
    if p is not None and p.default is not p.empty and not re.search("optional|default", header):
        value = f'"{p.default}"' if isinstance(p.default, str) else p.default
        header += ", optional" if value is None else f", default {value}".replace("e-0", "e-")
    return f"{header}\n{_filled(told, '    ')}" if told else header


def _raised(entry: str, taken: Mapping[str, Parameter]) -> str:
    """Fill an error of a family, which has a clause for each parameter."""
    error, _, told = entry.partition("\n")
    if ": " not in told:  # it is a sentence
        return _filled_entry(entry, {})
    lines = (line.strip().partition(": ") for line in told.splitlines())
    found = list(dict.fromkeys(clause for name, _, clause in lines if name in taken))
    if not found:
        return ""
    *others, last = found
    listed = f"{', '.join(others)}, or {last}" if others else last
    return f"{error}\n{_filled(f'For {listed}.', '    ')}"


def _in_order(by_hand: Entries, standard: Entries, taken: Iterable[str]) -> str:
    """List the entries of all parameters in their order; those by hand replace standard ones."""
    entries = (*standard.items(), *by_hand.items())
    found = {name: entry for names, entry in entries for name in names}
    return "\n".join(dict.fromkeys(found[name] for name in taken if name in found))


def _merged(title: str, written: Mapping[str, str], standard: Mapping[str, str]) -> str:
    """Merge a section by hand with the other entries of the standard one, if they share any."""
    own, other = written.get(title, ""), standard.get(title, "")
    by_hand, entries = _entries(own), _entries(other)
    names = [name for names in (*entries, *by_hand) for name in names]
    some_in_both = len(set(names)) < len(names)
    return _in_order(by_hand, entries, names) if some_in_both else own or other


def _text(sections: Mapping[str, str]) -> str:
    found = [(title, sections[title]) for title in _ORDER if sections.get(title)]
    return "\n\n".join(f"{t}\n{'-' * len(t)}\n{part}" if t else part for t, part in found) + "\n"
