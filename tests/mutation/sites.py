"""Where a module can be changed, and into what: small mistakes that a programmer makes.

A change replaces one piece of the source text: comments and everything else stay as they are.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from typing import NamedTuple

SWAPPED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
REMOVABLE = (ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break)
NEVER_RUN = {"TYPE_CHECKING"}


class Site(NamedTuple):
    """One change of one module."""

    line: int
    function: int
    """The line at which the innermost function begins, decorators included; 0 for the module itself."""
    kind: str
    start: int
    end: int
    """Bytes of the source that are replaced."""
    text: bytes

    def apply(self, source: bytes) -> bytes:
        """The changed source."""
        return source[: self.start] + self.text + source[self.end :]


def sites(source: bytes) -> list[Site]:
    """Every change that can be made to this source, from its beginning to its end."""
    return list(_Walker(source).walk(ast.parse(source), 0))


def drawn(source: bytes, rng: random.Random, count: int) -> list[Site]:
    """Some of them; no line is changed twice before every line was."""
    by_line: dict[int, list[Site]] = {}
    for site in sites(source):
        by_line.setdefault(site.line, []).append(site)
    piles = list(by_line.values())
    for pile in piles:
        rng.shuffle(pile)
    rng.shuffle(piles)
    order = [pile[depth] for depth in range(max(map(len, piles), default=0)) for pile in piles if depth < len(pile)]
    return order[:count]


class _Walker:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def walk(self, node: ast.AST, function: int) -> Iterator[Site]:
        """The sites in a node; annotations, docstrings and what only a type checker reads are left alone."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        if isinstance(node, ast.expr | ast.stmt):
            yield from (self._site(node, function, kind, new) for kind, new in _changes(node))
        for child in _live_children(node):
            yield from self.walk(child, function)

    def _site(self, node: ast.expr | ast.stmt, function: int, kind: str, new: ast.AST) -> Site:
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        text = ast.unparse(new)
        # In parentheses, because the place may bind closer than the new expression does.
        text = f"({text})" if isinstance(new, ast.Compare | ast.BoolOp | ast.UnaryOp) else text
        return Site(node.lineno, function, kind, start, end, text.encode())


def _live_children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.JoinedStr):
        return  # before Python 3.12 its parts do not know where they are
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id in NEVER_RUN:
        return
    if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
        return
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "type_comment", "decorator_list"}:
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield each


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                for other in SWAPPED[type(operator)]:
                    new = copy.deepcopy(node)
                    new.ops[at] = other()
                    yield "comparison", new
        case ast.BoolOp():
            yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", ast.Call(ast.Name("bool"), [node.operand], [])
        case ast.Constant(value=bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(value=int(number)):
            yield "constant", ast.Constant(number + 1)
            yield "constant", ast.Constant(number - 1)
        case ast.Call(args=[_, _, *_]) if not any(isinstance(each, ast.Starred) for each in node.args):
            for at in range(len(node.args) - 1):
                if ast.dump(node.args[at]) != ast.dump(node.args[at + 1]):
                    new_call = copy.deepcopy(node)
                    new_call.args[at : at + 2] = reversed(new_call.args[at : at + 2])
                    yield "arguments", new_call
        case ast.Return(value=ast.expr()) if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield "return", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()):
            yield "statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", ast.Pass()
        case _ if isinstance(node, REMOVABLE):
            yield "statement", ast.Pass()
        case _:
            pass
