"""Mutation operators: each gives every place of a function where it can change one thing, and the changed source.

Operators, comparisons, constants and flags are those of cosmic-ray, applied to the syntax tree of parso that it works
on. Its own are the mistakes of this domain, which no library knows: a mask, a branch, a condition or a conversion left
out, two arguments exchanged, a name taken for another of its kind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.operators import (
    binary_operator_replacement,
    boolean_replacer,
    comparison_operator_replacement,
    unary_operator_replacement,
)
from cosmic_ray.operators.number_replacer import OFFSETS, NumberReplacer
from parso.python.tree import PythonNode

Position = tuple[int, int]
"""Line from 1, column from 0, in characters."""

# At most two for each operator of a function: one that is easily written by mistake, and one that is far off.
_BINARY = {
    "Add": ("Sub", "Mul"),
    "Sub": ("Add", "FloorDiv"),
    "Mul": ("Add", "FloorDiv"),
    "FloorDiv": ("Mul", "Mod"),
    "Mod": ("FloorDiv", "Add"),
    "BitAnd": ("BitOr", "BitXor"),
    "RShift": ("LShift",),
}
_COMPARISON = {
    "Lt": ("LtE", "Gt"),
    "LtE": ("Lt", "Gt"),
    "Gt": ("GtE", "Lt"),
    "GtE": ("Gt", "Lt"),
    "Eq": ("NotEq", "LtE"),
    "NotEq": ("Eq", "Gt"),
    "Is": ("IsNot",),
    "IsNot": ("Is",),
}

NAMES: tuple[tuple[str, ...], ...] = (
    ("num_tokens", "max_num_tokens", "num_reqs", "group_count", "num_positions"),
    ("start", "end", "tile_start", "first", "all_tokens"),
    ("query_start_loc_ptr", "positions_ptr", "replay_start_ptr", "cacheable_groups_ptr"),
    ("block_table_addrs_ptr", "slot_mapping_addrs_ptr", "block_table_ptrs"),
    ("block_table_strides_ptr", "block_sizes_ptr", "is_circular_ptr"),
    ("block_table_strides", "block_sizes", "kernel_block_sizes"),
    ("slot_mapping_enabled", "dcp_sharded"),
    ("query_start_loc", "idx_mapping"),
    ("token", "lane", "loaded", "position"),
    ("request", "group", "row"),
    ("in_request", "is_local", "is_own", "found"),
    ("offset", "block_index", "local_offset", "virtual_offset", "virtual_block"),
    ("run", "turn", "owner", "kernel_block"),
    ("cell", "distance"),
    ("slots", "padding"),
    ("window", "carried"),
    ("block_size", "kv_cache_block_size", "row_stride", "KV_CACHE_BLOCK_SIZE", "BLOCKS_PER_KV_BLOCK"),
    ("TOTAL_CP_WORLD_SIZE", "CP_KV_CACHE_INTERLEAVE_SIZE", "TOTAL_CP_RANK"),
    ("CP_SIZE", "CP_INTERLEAVE"),
    ("group_cp_size", "group_cp_rank", "cp_size", "cp_rank", "cp_interleave"),
    ("TILE_BLOCK_SIZE", "BLOCK_TABLE_WINDOW_SIZE"),
    ("SMALL_TILE_BLOCK_SIZE", "TILE_BLOCK_SIZE"),
    ("SMALL_BLOCK_TABLE_WINDOW_SIZE", "BLOCK_TABLE_WINDOW_SIZE"),
    ("b", "interleave", "size"),
    ("rows", "width", "count"),
    ("req_indices", "positions"),
)
"""Names that mean things of one kind, so that one can be written for another: the next that is there."""

ATTRIBUTES: tuple[tuple[str, ...], ...] = (
    ("addresses", "strides"),
    ("kv_cache_block_sizes", "block_sizes"),
    ("is_sharded", "is_enabled"),
    ("cp_size", "cp_rank", "cp_interleave"),
    ("block_size", "kv_cache_block_size", "blocks_per_kv_block"),
    ("block_table_addrs", "slot_mapping_addrs"),
    ("block_table", "slot_mapping"),
    ("dcp_world_size", "dcp_rank", "cp_kv_cache_interleave_size"),
    ("is_circular", "is_sharded", "is_shared", "is_mamba_group"),
)
"""The same for attributes of objects, whatever the object."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a source: which operator, what it replaces (in ``source``'s own coordinates) and the whole result.
    ``detail`` tells apart what one operator does to one place.
    """

    operator: str
    detail: str
    start: Position
    end: Position
    source: str


def changes(source: str, function: ast.FunctionDef) -> list[Change]:
    """Every change of ``function``, which was parsed from ``source``: its body, not its signature and its docstring."""
    first = function.body[1 if ast.get_docstring(function) is not None else 0]
    begin, end = (first.lineno, first.col_offset), (function.end_lineno or 0, function.end_col_offset or 0)
    skipped = [_span(node) for node in ast.walk(function) if _only_refuses(node)]

    def is_wanted(change: Change) -> bool:
        inside = begin <= change.start and change.end <= end
        return inside and not any(start <= change.start and change.end <= stop for start, stop in skipped)

    found = [*_of_the_library(source, begin, end), *_of_the_domain(source, function)]
    return [change for change in found if is_wanted(change)]


# What the library does.


def _of_the_library(source: str, begin: Position, end: Position) -> Iterator[Change]:
    tree, lines = parso.parse(source), _Lines(source)
    nodes = [node for node in ast_nodes(tree) if begin <= node.start_pos and node.end_pos <= end]
    for name, operator in _operators():
        for node in nodes:
            for index, (start, stop) in enumerate(operator.mutation_positions(node)):
                yield Change(*_named(name, index), start, stop, _mutated(lines, operator, node, index))


def _operators() -> Iterator[tuple[str, Any]]:
    for module, prefix, wanted in (
        (binary_operator_replacement, "ReplaceBinaryOperator", _BINARY),
        (comparison_operator_replacement, "ReplaceComparisonOperator", _COMPARISON),
    ):
        for before, others in wanted.items():
            for after in others:
                yield f"{before}->{after}", getattr(module, f"{prefix}_{before}_{after}")()
    yield "number", NumberReplacer()
    yield "sign", unary_operator_replacement.ReplaceUnaryOperator_Delete_USub()
    yield "not", unary_operator_replacement.ReplaceUnaryOperator_Delete_Not()
    yield "true", boolean_replacer.ReplaceTrueWithFalse()
    yield "false", boolean_replacer.ReplaceFalseWithTrue()
    yield "and", boolean_replacer.ReplaceAndWithOr()
    yield "or", boolean_replacer.ReplaceOrWithAnd()


def _named(name: str, index: int) -> tuple[str, str]:
    return (name, f"{OFFSETS[index]:+d}") if name == "number" else (name, "")


def _mutated(lines: _Lines, operator: Any, node: Any, index: int) -> str:
    """The source with one mutation, which is undone in the tree: parsing it anew for each takes a minute."""
    outer = node.parent
    span = outer.start_pos, outer.end_pos
    changed = [node, *getattr(node, "children", [])]
    values = [getattr(each, "value", None) for each in changed]
    children = list(node.children) if isinstance(node, PythonNode) or hasattr(node, "children") else None
    siblings = outer.children
    place = siblings.index(node)
    try:
        siblings[place] = operator.mutate(node, index)
        return lines.replaced(span, outer.get_code(include_prefix=False))
    finally:
        siblings[place] = node
        if children is not None:
            node.children = children
        for each, value in zip(changed, values, strict=True):
            if value is not None:
                each.value = value


# What it does not know.


def _of_the_domain(source: str, function: ast.FunctionDef) -> Iterator[Change]:
    lines = _Lines(source)
    bound = _bound_names(function)
    assigned: set[str] = {each.arg for each in function.args.args + function.args.kwonlyargs}
    for node in _in_order(function):
        for operator in (_drop_mask, _drop_branch, _drop_condition, _swap_arguments, _drop_conversion, _one_tile):
            for detail, span, text in operator(node, lines):
                yield Change(operator.__name__.lstrip("_").replace("_", "-"), detail, *span, lines.replaced(span, text))
        for detail, span, text in _wrong_name(node, lines, bound):
            yield Change("wrong-name", detail, *span, lines.replaced(span, text))
        for detail, span, text in _drop_statement(node, lines, assigned):
            yield Change("drop-statement", detail, *span, lines.replaced(span, text))


Span = tuple[Position, Position]
Edit = tuple[str, Span, str]


class _Lines:
    """The text between two places of a source that has no other characters than ASCII in its code."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines(keepends=True)

    def of(self, node: ast.AST) -> str:
        (line, column), (last, end) = _span(node)
        if line == last:
            return self.lines[line - 1][column:end]
        return "".join([self.lines[line - 1][column:], *self.lines[line : last - 1], self.lines[last - 1][:end]])

    def replaced(self, span: Span, text: str) -> str:
        (line, column), (last, end) = span
        before = [*self.lines[: line - 1], self.lines[line - 1][:column]]
        return "".join([*before, text, self.lines[last - 1][end:], *self.lines[last:]])


def _span(node: ast.AST) -> Span:
    assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _in_order(function: ast.FunctionDef) -> list[ast.AST]:
    """Expressions and statements as they stand in the text, outer ones first."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.expr | ast.stmt) and node is not function]
    return sorted(nodes, key=lambda node: (_span(node)[0], tuple(-each for each in _span(node)[1])))


def _called(node: ast.AST) -> str:
    """The last name of what a call calls: load of tl.load."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _drop_mask(node: ast.AST, lines: _Lines) -> Iterator[Edit]:
    """A load or store without its mask; what stands for masked elements goes with it."""
    if isinstance(node, ast.Call) and _called(node) in ("load", "store"):
        kept = [lines.of(each) for each in node.args]
        kept += [lines.of(each) for each in node.keywords if each.arg not in ("mask", "other")]
        if len(kept) < len(node.args) + len(node.keywords):
            yield "", _span(node), f"{lines.of(node.func)}({', '.join(kept)})"


def _drop_branch(node: ast.AST, lines: _Lines) -> Iterator[Edit]:
    """A condition that is taken always, or never; a loop that is run once."""
    if isinstance(node, ast.If):
        yield "always", _span(node.test), "True"
        yield "never", _span(node.test), "False"
    elif isinstance(node, ast.IfExp):
        yield "always", _span(node), lines.of(node.body)
        yield "never", _span(node), lines.of(node.orelse)
    elif isinstance(node, ast.While):
        line, column = node.lineno, node.col_offset
        yield "once", ((line, column), (line, column + len("while"))), "if"


def _drop_condition(node: ast.AST, lines: _Lines) -> Iterator[Edit]:
    """One side of a conjunction, of a choice or of a limit, in place of the whole."""
    parts: Sequence[ast.expr] = ()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        parts = (node.left, node.right)
    elif isinstance(node, ast.BoolOp):
        parts = node.values
    elif _called(node) == "where":
        parts = node.args[1:]  # type: ignore[attr-defined]
    elif _called(node) in ("minimum", "maximum", "min", "max"):
        parts = [each for each in node.args if not isinstance(each, ast.GeneratorExp)]  # type: ignore[attr-defined]
        parts = parts if len(parts) == 2 else ()
    for number, part in enumerate(parts):
        text = lines.of(part)
        yield str(number), _span(node), text if isinstance(part, ast.Name | ast.Call) else f"({text})"


def _swap_arguments(node: ast.AST, lines: _Lines) -> Iterator[Edit]:
    """Two neighbours of a call exchanged, by place or by name."""
    if not isinstance(node, ast.Call) or _called(node) in ("minimum", "maximum", "min", "max"):
        return
    given = [each for each in node.args if not isinstance(each, ast.Starred)]
    named = [each.value for each in node.keywords if each.arg]
    for values in (given, named):
        for number, (one, two) in enumerate(pairwise(values)):
            if lines.of(one) != lines.of(two):
                (start, _), (_, end) = _span(one), _span(two)
                middle = _between(lines, _span(one)[1], _span(two)[0])
                detail = f"{number}" if values is given else f"named {number}"
                yield detail, (start, end), f"{lines.of(two)}{middle}{lines.of(one)}"


def _between(lines: _Lines, start: Position, end: Position) -> str:
    if start[0] == end[0]:
        return lines.lines[start[0] - 1][start[1] : end[1]]
    rows = lines.lines
    return "".join([rows[start[0] - 1][start[1] :], *rows[start[0] : end[0] - 1], rows[end[0] - 1][: end[1]]])


def _drop_conversion(node: ast.AST, lines: _Lines) -> Iterator[Edit]:
    """``x`` for ``x.to(type)`` and ``x.astype(type)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "astype"):
        text = lines.of(node.func.value)
        yield "", _span(node), text if isinstance(node.func.value, ast.Name | ast.Call) else f"({text})"


def _one_tile(node: ast.AST, lines: _Lines) -> Iterator[Edit]:
    """A loop over tiles that ends after the first."""
    if isinstance(node, ast.For) and _called(node.iter) == "range":
        bounds = node.iter.args  # type: ignore[attr-defined]
        if len(bounds) == 3:
            first, end, step = map(lines.of, bounds)
            yield "", _span(node.iter), f"range({first}, tl.minimum({end}, {first} + 1), {step})"


def _wrong_name(node: ast.AST, lines: _Lines, bound: Mapping[str, Position]) -> Iterator[Edit]:
    """The next name of the same kind that the function knows at this place."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        there = [name for name, where in bound.items() if where < (node.lineno, node.col_offset)]
        for kind in NAMES:
            if node.id in kind:
                others = [name for name in _after(kind, node.id) if name in there]
                for other in others[:1]:
                    yield f"{node.id}->{other}", _span(node), other
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        for kind in ATTRIBUTES:
            if node.attr in kind:
                other = _after(kind, node.attr)[0]
                yield f".{node.attr}->{other}", _span(node), f"{lines.of(node.value)}.{other}"


def _after(kind: Sequence[str], name: str) -> list[str]:
    place = kind.index(name)
    return [*kind[place + 1 :], *kind[:place]]


def _drop_statement(node: ast.AST, lines: _Lines, assigned: set[str]) -> Iterator[Edit]:
    """A call that is not made, a value that is not brought up to date."""
    targets: list[str] = []
    if isinstance(node, ast.Assign):
        targets = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    again = bool(targets) and set(targets) <= assigned
    assigned.update(targets)
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        assigned.add(node.target.id)
    made = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if again or made or isinstance(node, ast.AugAssign):
        yield "", _span(node), "pass"


def _bound_names(function: ast.FunctionDef) -> dict[str, Position]:
    """Every local name with the place from which on it is known."""
    parameters = function.args.args + function.args.kwonlyargs
    found: dict[str, Position] = {each.arg: (0, 0) for each in parameters}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.For):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            known = (node.iter.end_lineno or 0, 0) if isinstance(node, ast.For) else _span(node)[1]
            for target in targets:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                        found[each.id] = min(found.get(each.id, known), known)
    return found


def _only_refuses(node: ast.AST) -> bool:
    """Whether a statement does nothing but refuse what is outside the contract: what is refused has tests of its own
    (tests/test_kernels_*.py), and a legal case cannot tell whether something else is."""
    if isinstance(node, ast.Expr):
        return _refuses(node.value)
    if isinstance(node, ast.If):
        named = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
        told = [each for each in node.body if not isinstance(each, ast.Assign)]  # what the message says
        return "validate" in named or (not node.orelse and bool(told) and all(map(_only_refuses, told)))
    if isinstance(node, ast.For):
        return all(_only_refuses(each) for each in node.body)
    if isinstance(node, ast.With):
        return all(_only_refuses(each) for each in node.body)
    return False


def _refuses(call: ast.AST) -> bool:
    return _called(call) == "refuse" or _called(call).lstrip("_").startswith("check_")
