"""Subjects ``vllm-ascend`` and ``vllm``: entry points found wherever a version keeps them, in a checkout, a wheel or
an installed package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.subjects import promises
from conformance.subjects.block_table_class import Method
from conformance.subjects.entry import TESTABLE, EntryPoint, LoadedEntry, parameters
from conformance.subjects.loading import PartialPackage
from conformance.subjects.sources import find_package, version_of
from conformance.subjects.stand_ins import known


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry point has been seen: ``files``, newest first, relative to the package; ``names``, newest first.

    ``versions`` are known to have it, whatever else does; "": none is.
    ``kind``: "kernel" a ``@triton.jit`` function, "host" a function that launches one, "method" one of the file's class
    BlockTable. ``prepares``: the entry point that it compiles for.
    """

    entry: str
    family: str
    kind: str
    files: tuple[str, ...]
    names: tuple[str, ...]
    versions: str = ""
    prepares: str = ""

    def expected(self, version: str) -> bool:
        """Whether a tree of this version must have it: not to find it then means that it moved."""
        return bool(self.versions) and promises.within(version, self.versions)


_V1_FILE = "ops/triton/compute_slot_mapping.py"
_V2_FILES = ("ops/triton/v2/block_table/compute_slot_mappings.py", "worker/v2/block_table.py")
_CLASS_FILE = "worker/block_table.py"

PLACES: Mapping[str, tuple[Place, ...]] = {
    "vllm-ascend": (
        Place("v1", "v1", "kernel", (_V1_FILE,), ("_compute_slot_mapping_kernel",), ">=0.26.0rc1"),
        Place("v2", "v2", "kernel", _V2_FILES, ("_compute_slot_mappings_kernel",), ">=0.18"),
        Place("fused", "fused", "host", (_V1_FILE,), ("compute_slot_mapping_fused_groups",)),
        Place(
            "prewarm",
            "prewarm",
            "host",
            (_V1_FILE,),
            ("prewarm_fused_slot_mapping_kernels",),
            prepares="fused",
        ),
        Place("replay", "replay", "host", (_V1_FILE,), ("pad_replayed_slot_mapping",)),
        Place(
            "dcp",
            "block-table",
            "method",
            (_CLASS_FILE,),
            # Until August 2026 prefill parallelism was in the name; before 0.20 one method served every W.
            ("_compute_dcp_slot_mapping", "_compute_pcp_dcp_slot_mapping", "compute_slot_mapping"),
            ">=0.18",
        ),
        Place(
            "draft",
            "draft",
            "method",
            (_CLASS_FILE,),
            ("compute_slot_mapping_draft", "compute_slot_mapping"),
            ">=0.18",
        ),
    ),
    "vllm": (
        Place("v1", "v1", "kernel", ("v1/worker/block_table.py",), ("_compute_slot_mapping_kernel",), ">=0.23"),
        Place("v2", "v2", "kernel", ("v1/worker/gpu/block_table.py",), ("_compute_slot_mappings_kernel",), ">=0.23"),
    ),
}


class NotPython(ValueError):
    """A file in which an entry point would have been looked for."""

    def __init__(self, file: Path, error: SyntaxError | ValueError) -> None:
        self.file, self.line = file, getattr(error, "lineno", None) or 0
        super().__init__(f"{file.name} cannot be parsed: {getattr(error, 'msg', error)}, line {self.line}")


# Methods that are given NumPy arrays; the others get torch tensors.
_TAKE_NUMPY = frozenset({"compute_slot_mapping", "compute_slot_mapping_draft"})
_ABSENT = ("vllm", "vllm_ascend", "torch_npu")


def load(subject: str, source: str | None) -> list[LoadedEntry]:
    """Every entry point that has a place in this version, and the others with the reason why they have none.

    Raises FileNotFoundError when the package is not there.
    """
    folder = find_package(subject.replace("-", "_"), source)
    # vLLM's other files start an engine's worth of imports; those of vllm-ascend import vLLM, which is a stand-in.
    package = PartialPackage(folder, _ABSENT, known(), neighbours=subject == "vllm-ascend")
    version = version_of(folder)
    modules: dict[Path, ModuleType | str] = {}
    return [_entry(subject, version, place, folder, package, modules) for place in PLACES[subject]]


def _entry(
    subject: str,
    version: str,
    place: Place,
    folder: Path,
    package: PartialPackage,
    modules: dict[Path, ModuleType | str],
) -> LoadedEntry:
    try:
        found = _find(place, folder)
    except NotPython as error:
        return LoadedEntry(_absent(subject, version, place, str(error), str(error.file), error.line))
    if found is None:
        where = " or ".join(f"{folder.name}/{file}" for file in place.files)
        reason = f"no {' or '.join(place.names)} in {where}{_elsewhere(place, folder)}"
        return LoadedEntry(_absent(subject, version, place, reason))
    file, name, line = found
    if file not in modules:
        modules[file] = _import(package, file)
    module = modules[file]
    if isinstance(module, str):
        return LoadedEntry(_absent(subject, version, place, module, str(file), line))
    if place.kind == "kernel" and not hasattr(getattr(module, name, None), "arg_names"):
        reason = f"{name} is no @triton.jit function after import"
        return LoadedEntry(_absent(subject, version, place, reason, str(file), line))
    kernel, call, names, constants = _function(place, module, name)
    description = EntryPoint(
        subject=subject,
        version=version,
        name=place.entry,
        function=_qualified(place, name),
        family=place.family,
        file=str(file),
        line=line,
        parameters=names,
        constants=constants,
        declaration=promises.declaration(subject, place.entry, place.family, version, names),
        status=TESTABLE,
        conditional=promises.conditional(subject, place.entry, version, names),
        expected=place.expected(version),
        prepares=place.prepares,
    )
    return LoadedEntry(description, kernel=kernel, call=call)


def _function(place: Place, module: ModuleType, name: str) -> tuple[Any, Any, tuple[str, ...], tuple[str, ...]]:
    """Kernel or callable, its parameters, and which of them are compile-time ones."""
    if place.kind == "method":
        method = Method(module.BlockTable, name, as_numpy=name in _TAKE_NUMPY)
        return None, method, method.parameters, ()
    function = getattr(module, name)
    names, constants = parameters(function)
    return (function, None, names, constants) if place.kind == "kernel" else (None, function, names, constants)


def _import(package: PartialPackage, file: Path) -> ModuleType | str:
    """The module, or why it cannot be imported."""
    try:
        return package.load(file)
    except Exception as error:
        return f"{file.name} cannot be imported: {type(error).__name__}: {error}"


def _absent(subject: str, version: str, place: Place, reason: str, file: str = "", line: int = 0) -> EntryPoint:
    return EntryPoint(
        subject=subject,
        version=version,
        name=place.entry,
        function=place.names[0],
        family=place.family,
        file=file,
        line=line,
        parameters=(),
        constants=(),
        declaration=promises.declaration(subject, place.entry, place.family, version, ()),
        status=reason,
        expected=place.expected(version),
        prepares=place.prepares,
    )


def _find(place: Place, folder: Path) -> tuple[Path, str, int] | None:
    """File, name and line of the definition, read without importing anything. Raises NotPython."""
    for relative in place.files:
        file = folder / relative
        if not file.is_file():
            continue
        defined = _definitions(file)
        for name in place.names:
            line = defined.get(_qualified(place, name))
            if line is not None:
                return file, name, line
    return None


def _elsewhere(place: Place, folder: Path) -> str:
    """Where else in the package a function of that name is defined, which may be where it moved to."""
    if place.kind == "method":
        return ""  # other classes have methods of these names
    wanted = re.compile(rf"^def ({'|'.join(place.names)})\b".encode(), re.MULTILINE)
    for file in sorted(folder.rglob("*.py")):
        if file.is_file() and (found := wanted.search(file.read_bytes())):
            line = file.read_bytes().count(b"\n", 0, found.start()) + 1
            return (
                f" (there is one in {file.relative_to(folder.parent)}:{line}: if that is it, add the place to PLACES)"
            )
    return ""


def _qualified(place: Place, name: str) -> str:
    return f"BlockTable.{name}" if place.kind == "method" else name


def _definitions(file: Path) -> dict[str, int]:
    """Every function and method of a file, as "function" or "Class.method", with its line. Raises NotPython."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise NotPython(file, error) from error
    found = {node.name: node.lineno for node in tree.body if isinstance(node, ast.FunctionDef)}
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef):
            methods = (node for node in owner.body if isinstance(node, ast.FunctionDef))
            found |= {f"{owner.name}.{node.name}": node.lineno for node in methods}
    return found
