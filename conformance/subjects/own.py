"""Subject ``kernels``: this project's own implementation, or a changed copy of it (``--source kernels=FOLDER``)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from conformance.lanes.environment import installed
from conformance.subjects.entry import EntryPoint, LoadedEntry, location, parameters
from strategies.declaration import Declaration

SUBJECT = "kernels"

V1 = Declaration(
    clauses=frozenset(),
    features=frozenset({"circular", "cp", "hybrid", "row_stride", "pad_id", "int64", "tail"}),
)
DCP = Declaration(
    clauses=frozenset(),
    features=frozenset({"cp", "hybrid", "row_stride", "pad_id", "int64"}),
)
V2 = Declaration(
    clauses=frozenset(),
    features=frozenset(
        {"cp", "enabled", "groups", "hybrid", "idx_mapping", "int64", "pad_id", "row_stride", "sharded", "tail"}
    ),
)
FUSED = Declaration(
    clauses=frozenset(),
    features=frozenset({"circular", "groups", "hybrid", "pad_id", "row_stride", "tail"}),
)
REPLAY = Declaration(
    clauses=frozenset(),
    features=frozenset({"circular", "groups", "hybrid", "pad_id", "replay", "row_stride", "tail"}),
)


def load(source: str | None) -> list[LoadedEntry]:
    if source is not None:
        if not Path(source, "kernels", "__init__.py").is_file():
            raise FileNotFoundError(f"{source} holds no package kernels")
        sys.path.insert(0, str(Path(source).resolve()))
    return [
        _entry("v1", "v1", V1, kernel=_named("slot_mapping", "_compute_slot_mapping_kernel")),
        _entry("v2", "v2", V2, kernel=_named("slot_mappings_v2", "_compute_slot_mappings_kernel")),
        _entry("fused", "fused", FUSED, call=_named("fused_groups", "compute_slot_mapping_fused_groups")),
        _entry(
            "parallel", "parallel", FUSED, kernel=_named("fused_groups", "_compute_slot_mapping_fused_groups_kernel")
        ),
        _entry(
            "adaptive",
            "parallel",
            FUSED,
            kernel=_named("fused_groups", "_compute_slot_mapping_fused_groups_adaptive_kernel"),
        ),
        _entry("tiled", "tiled", V2, kernel=_named("tiled", "_compute_slot_mapping_tiled_kernel")),
        _entry("replay", "replay", REPLAY, call=_named("replay", "pad_replayed_slot_mapping")),
        _entry("dcp", "dcp", DCP, call=_named("torch_dcp", "compute_dcp_slot_mapping")),
    ]


def _named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"kernels.{module}"), name)


def _entry(name: str, family: str, declaration: Declaration, *, kernel: Any = None, call: Any = None) -> LoadedEntry:
    function = kernel if kernel is not None else call
    file, line = location(function)
    names, constants = parameters(function)
    description = EntryPoint(
        subject=SUBJECT,
        version=installed("slot-mapping-conformance") or "source tree",
        name=name,
        function=getattr(function, "__name__", name),
        family=family,
        file=file,
        line=line,
        parameters=names,
        constants=constants,
        declaration=declaration,
    )
    return LoadedEntry(description, kernel=kernel, call=call)
