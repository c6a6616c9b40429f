"""Mutants of a strategy's source: one small fault each, of the kinds that bookkeeping is prone to.

Left alone are what no contract can judge: annotations, defaults of arguments and of empty maxima, docstrings and
messages, the refusal of wrong configurations, which free block is taken first, and `counts`, which only tell of
what was done.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
LEFT_ALONE = {"annotation", "returns", "defaults", "kw_defaults", "decorator_list", "bases", "step", "exc"}
Change = tuple[str, ast.AST]  # kind, what stands there instead


class Mutant(NamedTuple):
    where: str  # class and method
    line: int
    kind: str
    before: str
    after: str
    source: str  # of the whole module


def mutants(source: str) -> list[Mutant]:
    """All of them, in the order of the source."""
    tree, found = ast.parse(source), list[Mutant]()
    for holder, name, index, node, where in list(places(tree, "")):
        for kind, instead in changes(node, where):
            put(holder, name, index, instead)
            made = ast.unparse(ast.fix_missing_locations(tree))
            put(holder, name, index, node)
            found.append(Mutant(where, node.lineno, kind, words(node), words(instead), made))  # type: ignore[attr-defined]
    return found


def places(node: ast.AST, where: str) -> Iterator[tuple[ast.AST, str, int | None, ast.AST, str]]:
    """Every node that may be changed: (its holder, the field, the index in it, itself, class and method)."""
    for name, value in ast.iter_fields(node):
        if (
            name in LEFT_ALONE
            or getattr(node, "arg", "") == "default"
            or (name == "slice" and isinstance(value, ast.Constant))
        ):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or untouched(child):
                continue
            inside = where
            if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
                inside = f"{where}.{child.name}".lstrip(".")
            if hasattr(child, "lineno"):
                yield node, name, index, child, inside
            yield from places(child, inside)


def untouched(node: ast.AST) -> bool:
    """Messages, docstrings, refusals of a configuration, statements that count."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return True
    if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
        return "ValueError" in ast.unparse(node.body[0])
    return isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign)) and "self.counts" in ast.unparse(node)


def changes(node: ast.AST, where: str) -> Iterator[Change]:
    """What may stand in a node's place."""
    match node:
        case ast.If() | ast.For() | ast.While():
            yield from of_control(node)
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Assign():
            yield from of_statement(node, where)
        case ast.Call():
            yield from of_call(node)
        case ast.Slice():
            yield from of_slice(node)
        case ast.Subscript(slice=ast.Constant(value=0)):
            yield "one off", ast.Subscript(node.value, ast.Constant(1))
        case ast.Compare(ops=[op]):
            yield "comparison", ast.Compare(node.left, [OTHER[type(op)]()], node.comparators)  # type: ignore[list-item]
        case ast.BoolOp():
            yield "and, or", ast.BoolOp(OTHER[type(node.op)](), node.values)  # type: ignore[arg-type]
        case ast.BinOp(op=ast.Add() | ast.Sub()) if not isinstance(node.left, ast.List):
            yield "+, -", ast.BinOp(node.left, OTHER[type(node.op)](), node.right)  # type: ignore[arg-type]
        case ast.IfExp():
            yield "condition negated", ast.IfExp(negated(node.test), node.body, node.orelse)
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            yield from (("one off", ast.Constant(number + by)) for by in (1, -1))


def of_control(node: ast.If | ast.For | ast.While) -> Iterator[Change]:
    if isinstance(node, ast.For):
        yield "dropped", ast.Pass()
        return
    yield "condition negated", type(node)(negated(node.test), node.body, node.orelse)
    if not node.orelse:
        yield "dropped", ast.Pass()
        if isinstance(node, ast.If):
            yield "guard removed", ast.If(ast.Constant(True), node.body, [])


def of_statement(node: ast.Expr | ast.AugAssign | ast.Delete | ast.Assign, where: str) -> Iterator[Change]:
    """A dropped one; what sets up an attribute or a name would be missed at once, and is no likely fault."""
    if (
        isinstance(node, ast.AugAssign)
        and type(node.op) in OTHER
        and not isinstance(node.value, (ast.List, ast.ListComp))
    ):
        yield "+, -", ast.AugAssign(node.target, OTHER[type(node.op)](), node.value)  # type: ignore[arg-type]
    names = isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)
    if not names and not where.endswith("__init__"):
        yield "dropped", ast.Pass()


def of_call(node: ast.Call) -> Iterator[Change]:
    match node:
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, _, *_]):
            yield "min, max", ast.Call(ast.Name("max" if name == "min" else "min"), node.args, node.keywords)
        case ast.Call(func=ast.Name(id="ceil_div"), args=[a, b]):
            yield "rounded down", ast.BinOp(a, ast.FloorDiv(), b)
        case ast.Call(func=ast.Attribute(attr="pop", value=holder), args=[]) if not equals(ast.unparse(holder)):
            yield "other end", ast.Call(node.func, [ast.Constant(0)], [])


def equals(holder: str) -> bool:
    """Whether it holds what is as good one as the other."""
    return holder.endswith((".idle", ".free", ".unmapped"))


def of_slice(node: ast.Slice) -> Iterator[Change]:
    """Bounds that are numbers are one off as such."""
    numbers, one = (ast.Constant, ast.UnaryOp), ast.Constant(1)
    if node.lower and not isinstance(node.lower, numbers):
        yield "one off", ast.Slice(ast.BinOp(node.lower, ast.Add(), one), node.upper, node.step)
    if node.upper and not isinstance(node.upper, numbers):
        yield "one off", ast.Slice(node.lower, ast.BinOp(node.upper, ast.Add(), one), node.step)


def negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def put(holder: ast.AST, name: str, index: int | None, node: Any) -> None:
    if index is None:
        setattr(holder, name, node)
    else:
        getattr(holder, name)[index] = node


def words(node: ast.AST) -> str:
    """A node on one line; of an `if` or a loop its first line."""
    return ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
