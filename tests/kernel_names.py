"""From the names of CUDA kernels to what they do, in words."""

from __future__ import annotations

import re

DTYPES = {"f16": "float16", "bf16": "bfloat16", "float": "float32", "double": "float64"}
ACCESS = {"0": "aligned", "1": "any"}
_WORDS = {"Identity": "broadcast"}
WAYS = ("lines", "columns", "singles")  # of strips
_NORM_WORDS = {
    "true": "identity",
    "false": "any activation",
    "FixedActivation": "identity",
    "ChosenActivation": "any activation",
    "NormRows": "rows",
    "NormQuick": "quick rows",
    "NormQuickGated": "quick rows, gated",
    "NormRuns": "quick rows of runs",
    "NormElements": "quick rows by elements",
    "NormStrided": "any strides",
}
#: Of softmax: how the arrays lie; kinds and phases, by their numbers.
_SOFTMAX_LAYOUTS = {
    "SoftmaxQuick": "quick rows",
    "SoftmaxRows": "rows",
    "SoftmaxColumns": "columns",
    "SoftmaxStrided": "any strides",
}
_SOFTMAX = ("softmax_", "lse_", "forward_long_columns", "backward_long_columns")
_KINDS = {
    "0": "softmax",
    "1": "log_softmax",
    "2": "logsumexp",
    "3": "cross_entropy",
    "-2": "without y",
    "-1": "any kind",
}
_PHASES = ("whole", "chunks found", "chunks applied", "any phase")
#: Of the kernels that all families over rows have.
_ROWS = ("forward_rows", "merge_chunks")
GATE_KERNELS = {"gates_forward_kernel": "forward", "gates_backward_kernel": "backward"}


def _arguments(text: str) -> list[str]:
    """The template arguments at the front of `text`, up to the bracket that closes the list."""
    parts, depth = [""], 0
    for letter in text:
        if letter == ">" and depth == 0:
            break
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _arguments_of(kind: str) -> str:
    """A template's own name, in small letters."""
    return kind.partition("<")[0].lower()


def _functor(name: str) -> str:
    """What a map computes, in words."""
    functor, _, arguments = name.partition("<")
    words = _WORDS.get(functor) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", functor).lower()
    ops = [one.lower() for one in _arguments(arguments) if re.fullmatch(r"[A-Z]\w*", one)]
    return " ".join([*ops, words])


def identify(demangled: str) -> tuple[str, str, str]:
    """Kernel, what it does, dtype.

    Examples
    --------
    >>> identify("void fastact::map_contiguous<float, 2, true, Backward<float, Mish> >(int)")
    ('map_contiguous', 'mish backward, accumulate', 'float32')
    >>> identify("void fastact::moment_columns<(fastact::Access)1, double>(fastact::RowSums)")
    ('moment_columns', 'any', 'float64')
    >>> identify("void reduce_rows<(Access)0, double, SumLane<Square, double>, SumResults>(Sums)")
    ('reduce_rows', 'aligned, square', 'float64')
    >>> identify("void reduce_short_rows<float, SumLane<Square, float>, SumResults>(RowSums)")
    ('reduce_short_rows', 'square', 'float32')
    >>> identify("void few_rows<3, bf16, FewSumsOf<Valid, bf16> >(RowSums)")
    ('few_rows', 'valid', 'bfloat16')
    >>> identify("void few_rows<3, float, FewMomentsOf<float, true, false> >(RowSums)")
    ('few_rows', 'moments', 'float32')
    >>> identify("void gates_backward_kernel<Lstm<float>, float, true, true>(GateTask)")
    ('gates_backward_kernel', 'lstm again', 'float32')
    >>> identify("void forward_rows<float, 4, (RowPhase)0, NormOf<float>, NormQuick>(NormQuick)")
    ('forward_rows', 'norm, whole, quick rows', 'float32')
    >>> identify("void forward_rows<float, 4, (RowPhase)3, NormOf<float, AnyGate>, NormRows>(int)")
    ('forward_rows', 'gated norm, any phase, rows', 'float32')
    >>> identify("void strip_backward<float, (Way)1, FixedActivation<Unchanged, float> >()")
    ('strip_backward', 'columns, identity', 'float32')
    >>> identify("void sum_channels<float, BiasBackward<float, ChosenActivation> >(ChannelSums)")
    ('sum_channels', 'bias backward', 'float32')
    >>> identify("void map_strided<f16, StridedFunctor<Dropped<f16, 1>, f16, 1> >(StridedMap)")
    ('map_strided', 'dropped', 'float16')
    >>> identify("void map_rows<bf16, GatedBackward<bf16, ChosenActivation> >(RowMap<...>)")
    ('map_rows', 'gated backward, any activation', 'bfloat16')
    >>> identify("void lse_gradients<double, 8, -1, true, SoftmaxRows>(SoftmaxRows)")
    ('lse_gradients', 'any kind, shares, rows', 'float64')
    """
    short = re.sub(r"\(anonymous namespace\)::|\b(?:fastact|baseline)::", "", demangled)
    match = re.match(r"void (\w+)(<?)", short)
    if match is None:
        return short.partition("(")[0], "", ""
    kernel = match[1]
    arguments = _arguments(short[match.end() :]) if match[2] else []
    dtype = next((DTYPES[one] for one in arguments if one in DTYPES), "")
    if kernel.startswith("map_") and len(arguments) == 4:
        what = _functor(arguments[3]) + (", accumulate" if arguments[2] == "true" else "")
        return kernel, what, dtype
    if kernel == "map_rows":
        functor, _, of = arguments[1].partition("<")
        fixed, _, which = _arguments(of)[1].partition("<")
        op = _arguments(which)[0].lower() if fixed == "FixedActivation" else "any activation"
        return kernel, f"{_functor(functor)}, {op}", dtype
    if kernel in GATE_KERNELS:
        way = "again" if arguments[3:] == ["true"] else GATE_KERNELS[kernel]
        apart = "" if arguments[2] == "true" else ", single columns"
        return kernel, f"{_arguments_of(arguments[0])} {way}{apart}", dtype
    if kernel in ("map_strided", "sum_channels"):
        functor = arguments[1].removeprefix("StridedFunctor<")
        return kernel, _functor(functor.partition("<")[0]), dtype
    if kernel.startswith(("strip_", "whole_")):
        way = WAYS[int(arguments[1][-1])]
        words = [_NORM_WORDS[one.partition("<")[0]] for one in arguments[2:3]]
        return kernel, ", ".join([way, *words]), dtype
    if kernel.startswith("norm_"):
        known = [_NORM_WORDS[one] for one in arguments if one in _NORM_WORDS]
        return kernel, ", ".join(known), dtype
    if kernel.startswith((*_ROWS, *_SOFTMAX)):
        op, _, of = next((one for one in arguments if "Of<" in one), "").partition("<")
        constants = [*arguments, *_arguments(of)]
        kinds = [_KINDS[one] for one in constants if one in _KINDS]
        if op == "NormOf":
            kinds = ["gated norm" if re.search("AnyGate|FixedGate", of) else "norm"]
        words = kinds[:1] + ["shares"] * ("true" in constants)
        words += [_PHASES[int(one[-1])] for one in arguments if one.startswith("(RowPhase)")]
        layouts = {**_NORM_WORDS, **_SOFTMAX_LAYOUTS}
        words += [layouts[one] for one in arguments if one in layouts and one != "true"]
        dtype = dtype or next((DTYPES[one] for one in constants if one in DTYPES), "")
        return kernel, ", ".join(words), dtype
    # Of a sum: how it reads, and its term, unless that is the element itself.
    access = arguments[0].rpartition(")")[2] if arguments else ""
    is_reduction = kernel.startswith("reduce_") or kernel == "few_rows"
    if is_reduction:
        functor, _, of = next(one for one in arguments if "<" in one).partition("<")
        arguments += _arguments(of) if "Sum" in functor else ["Moments"]
    terms = [one.lower() for one in arguments if re.fullmatch("[A-Z][a-z]+", one)]
    words = [ACCESS[access]] if access in ACCESS else []
    if words or is_reduction:
        words += [one for one in terms if one != "itself"]
    return kernel, ", ".join(words), dtype
