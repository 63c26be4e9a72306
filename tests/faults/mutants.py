"""The systematic faults: every change that the operators make to the functions behind an entry point, each with a name
that stays the same when lines move.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from tests.faults.catalogue import PACKAGE
from tests.faults.operators import Change, changes

MOST = 28
"""Changes of an entry point that are chosen, if it has that many: every kind of change alike."""

MORE = {"parallel": 34, "fused": 44, "draft": 36, "block_table": 36, "v2_host": 48}
"""The same where so many do not run, or are equivalent, that fewer than 20 faults would be left."""

PLACES: dict[str, tuple[str, ...]] = {
    "v1": ("slot_mapping._compute_slot_mapping_kernel", "window.look_up_slots"),
    "v2": (
        "slot_mappings_v2._compute_slot_mappings_kernel",
        "slot_mappings_v2.shard_position",
        "slot_mappings_v2.shard_offset",
    ),
    "tiled": ("tiled._compute_slot_mapping_tiled_kernel", "tiled.find_requests", "tiled.divide_positions"),
    "parallel": (
        "fused_groups._compute_slot_mapping_fused_groups_kernel",
        "fused_groups._output_of_group",
        "fused_groups._pad_tail",
        "fused_groups._request_in_group",
    ),
    "adaptive": ("fused_groups._compute_slot_mapping_fused_groups_adaptive_kernel", "fused_groups._map_tiles"),
    # Tiles and programs that it chooses decide how fast it is, never what comes out.
    "fused": ("fused_groups.compute_slot_mapping_fused_groups", "fused_groups._launch"),
    "replay": ("replay._pad_replayed_slots_kernel", "replay.pad_replayed_slot_mapping"),
    "dcp": ("torch_dcp.place_tokens", "torch_dcp.compute_dcp_slot_mapping"),
    "draft": (
        "group_block_table.BlockTable.compute_slot_mapping_draft",
        "group_block_table.BlockTable._compute_dcp_slot_mapping",
        "group_block_table._host_array",
    ),
    "block_table": (
        "block_table.MultiGroupBlockTable.__init__",
        "block_table.MultiGroupBlockTable.compute_slot_mapping",
        "block_table.MultiGroupBlockTable._compute_fused",
        "block_table.MultiGroupBlockTable._with_slots",
        "block_table.MultiGroupBlockTable._fused",
        "block_table._blocks",
        "group_block_table.BlockTable.__init__",
        "group_block_table.BlockTable.compute_slot_mapping",
        "group_block_table._by_token",
        "group_block_table._kernel_size",
        "block_rows.BlockRows.__init__",
        "block_rows.BlockRows._put",
        "block_rows.BlockRows.expanded",
        "block_rows.BlockRows.commit_block_table",
    ),
    "v1_host": ("slot_mapping.compute_slot_mapping", "window.block_table_window_size"),
    "v2_host": ("slot_mappings_v2.compute_slot_mappings", "group_tables.GroupTables.__init__"),
    "tiled_host": ("tiled.compute_slot_mapping_tiled", "group_tables.check_launch"),
}
"""The functions that are changed, each for the entry point that is tested for it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """``name`` is its id: file, function, statement, operator. ``entry_point`` is where it is looked for; ``source`` is
    the whole of ``kernels/<file>``; ``line`` where the change stands today.
    """

    name: str
    entry_point: str
    file: str
    operator: str
    line: int
    source: str

    @property
    def digest(self) -> str:
        return sha256(self.source.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def mutants() -> tuple[Mutant, ...]:
    """All of them that differ, by entry point and place. Whether one compiles is not known yet."""
    return tuple(mutant for entry in PLACES for mutant in _chosen(list(_of_entry(entry)), MORE.get(entry, MOST)))


def _of_entry(entry: str) -> Iterator[Mutant]:
    seen: set[str] = set()
    for place in PLACES[entry]:
        module, _, function = place.partition(".")
        file = f"{module}.py"
        source = (PACKAGE / file).read_text(encoding="utf-8")
        node = _function(ast.parse(source), function)
        found = sorted(changes(source, node), key=lambda each: (each.start, each.end, each.operator, each.detail))
        for name, change in zip(_names(source, node, found), found, strict=True):
            if change.source != source and change.source not in seen:
                seen.add(change.source)
                yield Mutant(f"{place}: {name}", entry, file, change.operator, change.start[0], change.source)


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    node: ast.Module | ast.ClassDef | ast.FunctionDef = tree
    for part in name.split("."):
        inner = [each for each in node.body if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == part]
        (node,) = inner
    assert isinstance(node, ast.FunctionDef)
    return node


def _names(source: str, function: ast.FunctionDef, found: list[Change]) -> list[str]:
    """What each change is called: the statement that it is in, what is done to it, and the how-manieth such."""
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    lines = source.splitlines()
    counts: Counter[str] = Counter()
    names = []
    for change in found:
        inside = [each for each in statements if (each.lineno, each.col_offset) <= change.start]
        inside = [each for each in inside if change.end <= (each.end_lineno or 0, each.end_col_offset or 0)]
        statement = max(inside, key=lambda each: (each.lineno, each.col_offset))
        text = " ".join(lines[statement.lineno - 1].split()).rstrip(" (,:")[:60]
        name = " ".join(part for part in (f"{text} |", change.operator, change.detail) if part)
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} #{counts[name]}")
    return names


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _chosen(found: list[Mutant], most: int = MOST) -> list[Mutant]:
    """At most so many of them, of every operator in turn, and of one operator those that come first by a digest of the
    name: the choice stays as it is when others come or go."""
    queues: dict[str, list[Mutant]] = {}
    for mutant in sorted(found, key=lambda each: sha256(each.name.encode()).digest()):
        queues.setdefault(mutant.operator, []).append(mutant)
    chosen: list[Mutant] = []
    while len(chosen) < most and any(queues.values()):
        for operator in sorted(queues):
            while queues[operator] and len(chosen) < most:
                mutant = queues[operator].pop(0)
                if _parses(mutant.source):
                    chosen.append(mutant)
                    break
    names = {mutant.name for mutant in chosen}
    return [mutant for mutant in found if mutant.name in names]
