"""Subject ``vllm-ascend``: the torch path of context parallelism, on its real class and method, from a source tree or
wheel.

``vllm`` need not be installed. The engine around the class (process groups, the buffer class) is the smallest thing
that lets its own constructor run; the two buffers are then replaced by guarded ones of the shape that the class
computed.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from conformance.lanes.environment import installed
from conformance.subjects import loading
from conformance.subjects.entry import EntryPoint, LoadedEntry, location
from strategies.declaration import Declaration

if TYPE_CHECKING:
    import torch

SUBJECT = "vllm-ascend"
_MODULE = "vllm_ascend.worker.block_table"
# Until August 2026 the method carried the older name.
_METHODS = ("_compute_dcp_slot_mapping", "_compute_pcp_dcp_slot_mapping")
_ABSENT = ("vllm", "torch_npu")

# The formula holds at W == 1 too. Nothing published promises an answer for negative positions; the pad value is fixed
# at -1, and the class allocates its table itself, so that stride and width are one number.
DCP = Declaration(clauses=frozenset({"pos-nonneg"}), features=frozenset({"cp", "hybrid"}))

_given = SimpleNamespace(world_size=1, rank=0)


def _group(name: str) -> Any:
    """A process group as the constructor reads it. All ranks are decode ranks: prefill parallelism has size 1."""

    def get() -> SimpleNamespace:
        if name == "dcp":
            return SimpleNamespace(world_size=_given.world_size, rank_in_group=_given.rank)
        return SimpleNamespace(world_size=1, rank_in_group=0)

    return get


class _HostBuffer:
    """Stands for vLLM's CpuGpuBuffer on a machine with one memory: ``cpu``, ``gpu`` and ``np`` are views of the same
    tensor.
    """

    def __init__(self, *size: int, dtype: torch.dtype, **_: object) -> None:
        import torch

        self.hold(torch.zeros(*size, dtype=dtype))

    def hold(self, tensor: torch.Tensor) -> None:
        self.cpu = self.gpu = tensor
        self.np = tensor.numpy()


def _known() -> dict[str, object]:
    return {
        "vllm.distributed.get_dcp_group": _group("dcp"),
        "vllm.distributed.get_pcp_group": _group("pcp"),
        "vllm.utils.math_utils.cdiv": lambda a, b: -(-a // b),
        "vllm.v1.attention.backends.utils.PAD_SLOT_ID": -1,
        "vllm.v1.utils.CpuGpuBuffer": _HostBuffer,
    }


def find_package(source: str | None) -> Path:
    """The folder ``vllm_ascend`` of a checkout, an unpacked wheel or the installed package."""
    if source is None:
        spec = importlib.util.find_spec("vllm_ascend")
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(
                "vllm_ascend is not installed: give a checkout or an unpacked wheel with --source PATH"
            )
        return Path(next(iter(spec.submodule_search_locations)))
    for folder in (Path(source), Path(source, "vllm_ascend")):
        if folder.name == "vllm_ascend" and folder.is_dir():
            return folder.resolve()
    raise FileNotFoundError(f"{source} holds no folder vllm_ascend")


def version_of(package: Path) -> str:
    """From the wheel's metadata beside the package, else the installed distribution's, else said to be unknown."""
    for metadata in sorted(package.parent.glob("vllm_ascend-*.dist-info/METADATA")):
        found = re.search(r"^Version: (.+)$", metadata.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found:
            return found[1].strip()
    if importlib.util.find_spec("vllm_ascend") is not None:
        return installed("vllm-ascend") or "unknown"
    return "unknown"


def load(source: str | None) -> list[LoadedEntry]:
    package = find_package(source)
    file = package / "worker" / "block_table.py"
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist in this version")
    module = loading.load_file(file, _MODULE, absent=_ABSENT, known=_known())
    return [_dcp(module.BlockTable, version_of(package))]


def _dcp(block_table: Any, version: str) -> LoadedEntry:
    name = next((name for name in _METHODS if hasattr(block_table, name)), None)
    if name is None:
        raise AttributeError(f"{_MODULE}.BlockTable has none of {', '.join(_METHODS)}")
    method = getattr(block_table, name)
    file, line = location(method)
    constructor = [parameter for parameter in inspect.signature(block_table.__init__).parameters if parameter != "self"]
    own = [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]

    def call(**arguments: Any) -> None:
        _given.world_size, _given.rank = arguments["cp_world_size"], arguments["cp_rank"]
        values = {parameter: arguments[parameter] for parameter in constructor if parameter in arguments}
        if "kernel_sizes" in constructor:
            values["kernel_sizes"] = [arguments["kernel_size"]]
        table = block_table(**values)
        _replace(table.block_table, arguments["block_table"], "block_table")
        table.slot_mapping.hold(arguments["slot_mapping"])
        getattr(table, name)(**{parameter: arguments[parameter] for parameter in own})

    given = ["block_table", "slot_mapping", "kernel_size", "cp_world_size", "cp_rank"]
    listed = [parameter for parameter in constructor if parameter != "kernel_sizes"]
    description = EntryPoint(
        subject=SUBJECT,
        version=version,
        name="dcp",
        function=f"BlockTable.{name}",
        family="block-table",
        file=file,
        line=line,
        parameters=tuple(dict.fromkeys([*listed, *own, *given])),
        constants=(),
        declaration=DCP,
    )
    return LoadedEntry(description, call=call)


def _replace(buffer: _HostBuffer, guarded: torch.Tensor, name: str) -> None:
    """Give the class the case's table, provided that it would have made one of that shape itself."""
    if buffer.cpu.shape != guarded.shape:
        raise RuntimeError(f"the class makes {name} {tuple(buffer.cpu.shape)}, the case has {tuple(guarded.shape)}")
    buffer.hold(guarded)
