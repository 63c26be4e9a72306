"""Methods of a published ``BlockTable``, on a real instance made by its own constructor.

The engine around the class is the smallest thing that lets the constructor run
(:mod:`conformance.subjects.stand_ins`). The two buffers that it makes are then replaced by guarded ones.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from conformance.subjects.stand_ins import HostAndDevice, given

if TYPE_CHECKING:
    import torch

# What the class would have made or found out itself; bound like parameters.
GIVEN = ("block_table", "slot_mapping", "kernel_size", "cp_world_size", "cp_rank")


class Method:
    """One method of the class as an entry point. ``parameters`` are the constructor's, the method's and GIVEN."""

    def __init__(self, block_table: Any, name: str, *, as_numpy: bool) -> None:
        self.block_table, self.name, self.as_numpy = block_table, name, as_numpy
        self.function = getattr(block_table, name)
        self._constructor = _parameters(block_table.__init__)
        self._own = _parameters(self.function)
        listed = [parameter for parameter in self._constructor if parameter not in ("kernel_sizes", "device")]
        self.parameters = tuple(dict.fromkeys([*listed, *self._own, *GIVEN]))

    def __call__(self, **arguments: Any) -> None:
        given.world_size, given.rank = arguments["cp_world_size"], arguments["cp_rank"]
        values = {parameter: arguments[parameter] for parameter in self._constructor if parameter in arguments}
        if "device" in self._constructor:
            values["device"] = arguments["slot_mapping"].device
        if "kernel_sizes" in self._constructor:
            values["kernel_sizes"] = [arguments["kernel_size"]]
        table = self.block_table(**values)
        _replace(table.block_table, arguments["block_table"])
        table.slot_mapping.hold(arguments["slot_mapping"])
        own = {parameter: arguments[parameter] for parameter in self._own}
        if self.as_numpy:
            own = {parameter: value.cpu().numpy() for parameter, value in own.items()}
        getattr(table, self.name)(**own)
        if self.as_numpy:  # such a method leaves its slots on the host
            table.slot_mapping.copy_to_gpu()


def _parameters(function: Any) -> list[str]:
    return [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]


def _replace(buffer: HostAndDevice, guarded: torch.Tensor) -> None:
    """Give the class the case's table, provided that it would have made one of that shape itself."""
    if buffer.cpu.shape != guarded.shape:
        raise RuntimeError(f"the class makes a table {tuple(buffer.cpu.shape)}, the case has {tuple(guarded.shape)}")
    buffer.hold(guarded)
