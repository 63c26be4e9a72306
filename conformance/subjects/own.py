"""Subject ``kernels``: this project's own implementation, or a changed copy of it (``--source kernels=FOLDER``)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.lanes.base import Lane
from conformance.lanes.environment import installed
from conformance.subjects.entry import TESTABLE, EntryPoint, LoadedEntry, location, parameters
from conformance.subjects.host_functions import DraftTable, OverGroupTables, Tables
from strategies.declaration import Declaration

SUBJECT = "kernels"

V1 = Declaration(
    clauses=frozenset(),
    features=frozenset({"circular", "cp", "hybrid", "row_stride", "pad_id", "int64", "tail", "total"}),
)
DCP = Declaration(
    clauses=frozenset(),
    features=frozenset({"cp", "hybrid", "row_stride", "pad_id", "int64", "total"}),
)
V2 = Declaration(
    clauses=frozenset(),
    features=frozenset(
        {
            "cp",
            "enabled",
            "groups",
            "hybrid",
            "idx_mapping",
            "int64",
            "pad_id",
            "row_stride",
            "sharded",
            "stride32",
            "tail",
            "total",
        }
    ),
)
FUSED = Declaration(
    clauses=frozenset(),
    features=frozenset({"circular", "groups", "hybrid", "pad_id", "row_stride", "stride32", "tail", "total"}),
)
REPLAY = Declaration(
    clauses=frozenset(),
    features=frozenset({"circular", "groups", "hybrid", "pad_id", "replay", "row_stride", "tail", "total"}),
)
BLOCK_TABLE = Declaration(
    clauses=frozenset(),
    features=frozenset({"circular", "cp", "groups", "hybrid", "pad_id", "sharded", "tail"}),
)
PREWARM = Declaration(clauses=frozenset(), features=frozenset())
DRAFT = Declaration(
    clauses=frozenset(),
    features=frozenset({"cp", "hybrid", "pad_id"}),
)

_RING_FLAGS = frozenset({"IS_CIRCULAR", "is_circular_ptr", "is_circular"})


def load(source: str | None, lane: Lane) -> list[LoadedEntry]:
    if source is not None:
        if not Path(source, "kernels").is_dir():
            raise FileNotFoundError(f"{source} holds no package kernels")
        if not Path(source, "kernels", "__init__.py").is_file():  # without it, this project's own would be imported
            raise FileNotFoundError(f"{source}/kernels holds no __init__.py: add one, it may be empty")
        sys.path.insert(0, str(Path(source).resolve()))
    return [_load(place, source, lane) for place in PLACES]


@dataclass(frozen=True, slots=True)
class Place:
    """An entry point of this project: where it is, how it is bound, what it declares. ``made``: what calls a
    ``function`` (or "Class.method") of the module that takes objects, made from the module and the lane. ``prepares``:
    the entry point that it compiles for.
    """

    entry: str
    family: str
    declaration: Declaration
    module: str
    function: str
    is_kernel: bool = True
    made: Callable[[ModuleType, Lane], Any] | None = None
    prepares: str = ""


PLACES = (
    Place("v1", "v1", V1, "slot_mapping", "_compute_slot_mapping_kernel"),
    Place("v2", "v2", V2, "slot_mappings_v2", "_compute_slot_mappings_kernel"),
    Place("fused", "fused", FUSED, "fused_groups", "compute_slot_mapping_fused_groups", is_kernel=False),
    Place(
        "prewarm",
        "prewarm",
        PREWARM,
        "fused_groups",
        "prewarm_fused_slot_mapping_kernels",
        is_kernel=False,
        prepares="fused",
    ),
    Place("parallel", "parallel", FUSED, "fused_groups", "_compute_slot_mapping_fused_groups_kernel"),
    Place("adaptive", "parallel", FUSED, "fused_groups", "_compute_slot_mapping_fused_groups_adaptive_kernel"),
    Place("tiled", "tiled", V2, "tiled", "_compute_slot_mapping_tiled_kernel"),
    Place("replay", "replay", REPLAY, "replay", "pad_replayed_slot_mapping", is_kernel=False),
    Place("dcp", "dcp", DCP, "torch_dcp", "compute_dcp_slot_mapping", is_kernel=False),
    Place("v1_host", "v1-host", V1, "slot_mapping", "compute_slot_mapping", is_kernel=False),
    Place(
        "v2_host",
        "v2-host",
        V2,
        "slot_mappings_v2",
        "compute_slot_mappings",
        made=lambda module, lane: OverGroupTables(module, "compute_slot_mappings", lane),
    ),
    Place(
        "tiled_host",
        "tiled-host",
        V2,
        "tiled",
        "compute_slot_mapping_tiled",
        made=lambda module, lane: OverGroupTables(module, "compute_slot_mapping_tiled", lane),
    ),
    Place(
        "block_table",
        "allocating",
        BLOCK_TABLE,
        "block_table",
        "MultiGroupBlockTable.compute_slot_mapping",
        made=Tables,
    ),
    Place("draft", "allocating-draft", DRAFT, "block_table", "BlockTable.compute_slot_mapping_draft", made=DraftTable),
)


def _load(place: Place, source: str | None, lane: Lane) -> LoadedEntry:
    """One entry point. A tree given with ``--source`` may have fewer files and functions; a file that is there must
    import.
    """
    if source is not None and not Path(source, "kernels", f"{place.module}.py").is_file():
        return LoadedEntry(_description(place, status=f"no kernels/{place.module}.py"))
    module = importlib.import_module(f"kernels.{place.module}")
    function: Any = module
    for name in place.function.split("."):
        if source is not None and not hasattr(function, name):
            return LoadedEntry(_description(place, status=f"no {place.function} in kernels/{place.module}.py"))
        function = getattr(function, name)
    if place.made is not None:
        call = place.made(module, lane)
        return LoadedEntry(_description(place, location(function), call.parameters), call=call)
    names, constants = parameters(function)
    description = _description(place, location(function), names, constants)
    return LoadedEntry(description, kernel=function) if place.is_kernel else LoadedEntry(description, call=function)


def _description(
    place: Place,
    where: tuple[str, int] = ("", 0),
    names: tuple[str, ...] = (),
    constants: tuple[str, ...] = (),
    status: str = TESTABLE,
) -> EntryPoint:
    return EntryPoint(
        subject=SUBJECT,
        version=installed("slot-mapping-conformance") or "source tree",
        name=place.entry,
        function=place.function,
        family=place.family,
        file=where[0],
        line=where[1],
        parameters=names,
        constants=constants,
        declaration=_declared(place, names),
        status=status,
        prepares=place.prepares,
    )


def _declared(place: Place, names: tuple[str, ...]) -> Declaration:
    """What the place declares, without rings where a changed copy has no parameter to be told of them. Taking slots
    back after a prefix-cache hit is the same in a ring, so that needs none.
    """
    declared = place.declaration
    if not names or place.family == "replay" or _RING_FLAGS.intersection(names):
        return declared
    return Declaration(declared.clauses, declared.features - {"circular"})
