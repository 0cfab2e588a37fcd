"""Formulas: Python's notation of the docstrings as LaTeX, and LaTeX as MathML.

MathML is what browsers set by themselves: no script, nothing to load, so the site is read offline.
"""

import ast
import html
from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

_GREEK = {"alpha", "beta", "Phi"}
_FUNCTIONS = {"exp", "log", "tanh", "cosh", "max", "min"}
_WORDS = {"lambd": r"\lambda", "eps": r"\varepsilon", "variance": r"\sigma^2", "mean": r"\mu"}
_INFIX = {
    ast.Add: (1, " + "),
    ast.Sub: (1, " - "),
    ast.Mult: (2, r" \, "),
    ast.UAdd: (1, "+"),
    ast.USub: (1, "-"),
}
_COMPARED = {ast.Gt: ">", ast.Lt: "<", ast.GtE: r"\ge", ast.LtE: r"\le", ast.Eq: "="}


class _NoMathematics(ValueError):
    """The expression is Python that has no notation here, such as a call of a method."""


def latex(assignment: str) -> str | None:
    """``y = x * tanh(x) = ...`` as LaTeX; None where it is code rather than a formula."""
    sides = assignment.replace("...", "").split(" = ")
    try:
        return " = ".join(_latex(ast.parse(side, mode="eval").body, 0) for side in sides)
    except (SyntaxError, _NoMathematics):
        return None


def _latex(node: ast.expr, outer: int) -> str:
    """An expression, in parentheses where it binds less than what it stands in."""
    match node:
        case ast.Constant(value=value):
            return f"{value}"
        case ast.Name(id=name):
            return _name(name)
        case ast.Tuple(elts=parts):
            return ",\\ ".join(_latex(part, 0) for part in parts)
        case ast.BinOp(left=a, op=ast.Div(), right=b):
            return rf"\frac{{{_latex(a, 0)}}}{{{_latex(b, 0)}}}"
        case ast.BinOp(left=a, op=ast.Pow(), right=b):
            return rf"{_latex(a, 4)}^{{{_latex(b, 0)}}}"
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _INFIX:
            level, sign = _INFIX[type(op)]
            within = level + isinstance(op, ast.Sub | ast.Mult)
            return _parted(f"{_latex(a, level)}{sign}{_latex(b, within)}", level < outer)
        case ast.UnaryOp(op=op, operand=a) if type(op) in _INFIX:
            return _parted(f"{_INFIX[type(op)][1]}{_latex(a, 2)}", outer > 2)
        case ast.IfExp(test=test, body=a, orelse=b):
            first = rf"{_latex(a, 0)} & \text{{if }} {_latex(test, 0)}"
            return rf"\begin{{cases}} {first} \\ {_latex(b, 0)} & \text{{else}} \end{{cases}}"
        case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in _COMPARED:
            return f"{_latex(a, 0)} {_COMPARED[type(op)]} {_latex(b, 0)}"
        case ast.Subscript(value=a, slice=index):
            return f"{_latex(a, 4)}_{{{_latex(index, 0)}}}"
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _call(name, [_latex(arg, 0) for arg in args])
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"), attr=name)):
            return _parted(_of_numpy(name, node.args, node.keywords), outer > 3)
        case ast.Call(func=ast.Attribute(value=a, attr="reshape")):
            return _latex(a, outer)
    raise _NoMathematics(ast.dump(node))


def _call(name: str, args: list[str]) -> str:
    match name, args:
        case "sqrt", [a]:
            return rf"\sqrt{{{a}}}"
        case "exp", [a]:
            return rf"e^{{{a}}}"
        case "abs", [a]:
            return rf"\left|{a}\right|"
        case "sum", [a]:
            return rf"\sum {a}"
    if name in _FUNCTIONS:
        head = rf"\{name}"
    else:
        head = _name(name) if name in _GREEK else rf"\operatorname{{{_plain(name)}}}"
    return rf"{head}\left({', '.join(args)}\right)"


def _of_numpy(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> str:
    """A function of NumPy; over which axes a sum is says the text."""
    skips, name = name.startswith("nan"), name.removeprefix("nan")
    total = r"\sum_{x_i \ne \mathrm{NaN}}" if skips else r"\sum_{i}"
    less = "".join(f" - {_latex(k.value, 2)}" for k in keywords if k.arg == "ddof")
    squares = rf"\frac{{1}}{{n{less}}} {total} \left({_each(args[0])} - \mu\right)^2"
    match name:
        case "sum":
            return f"{total} {_each(args[0])}"
        case "mean":
            return rf"\frac{{1}}{{n}} {total} {_each(args[0])}"
        case "var":
            return squares
        case "std":
            return rf"\sqrt{{{squares}}}"
        case "take":
            return rf"{_latex(args[0], 4)}_{{\ldots {_latex(args[1], 0)} \ldots}}"
        case "split":
            return _call(name, [_latex(args[0], 0)])
    raise _NoMathematics(name)


def _each(of: ast.expr) -> str:
    """The i-th of the terms of a sum."""
    match of:
        case ast.Name():
            return f"{_latex(of, 4)}_i"
        case ast.BinOp(left=ast.Name() as a, op=ast.Pow(), right=power):
            return f"{_latex(a, 4)}_i^{{{_latex(power, 0)}}}"
    return _latex(of, 3)


def _parted(text: str, is_parted: bool) -> str:
    return rf"\left({text}\right)" if is_parted else text


def _plain(name: str) -> str:
    return name.replace("_", r"\_")


def _name(name: str) -> str:
    if name in _WORDS:
        return _WORDS[name]
    if name in _GREEK:
        return rf"\{name}"
    head, _, index = name.partition("_")
    if len(head) == 1:
        return f"{head}_{{{index}}}" if index else head
    return rf"\mathrm{{{_plain(name)}}}"


def _mathml(writer: HTML5Translator, node: Any, display: str) -> None:
    source = node.astext()
    made = latex2mathml.converter.convert(source, display=display)
    writer.body.append(made.replace("<math ", f'<math alttext="{html.escape(source)}" '))
    raise nodes.SkipNode


def _inline(writer: HTML5Translator, node: nodes.math) -> None:
    _mathml(writer, node, "inline")


def _block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append('<div class="formula">')
    try:
        _mathml(writer, node, "block")
    finally:
        writer.body.append("</div>")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
