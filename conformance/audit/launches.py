"""What is compiled: every kernel that an entry point launches, in the settings of its specialization pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from triton.runtime.jit import JITFunction

from conformance.engine import AXES, settings_of
from conformance.execution.array import Array
from conformance.lanes.ascend.binding import Bound
from conformance.lanes.ascend.binding import bind as bind_types
from conformance.subjects.binding import bind
from conformance.subjects.entry import EntryPoint, LoadedEntry
from conformance.subjects.launching import Settings
from reference.case import Case, ContextParallel, Group, Launch, Replay
from strategies.specializations import Axes, Specialization, pool, production_window

# Requests and tokens of each: what a host function chooses by. Few and short, one and long.
_BATCHES = ((3, 5), (1, 3000))
_EVERY_STEP = frozenset({"num_reqs", "num_tokens", "max_num_tokens", "num_positions", "num_tiles"})
_ROW_BLOCKS = 64
_MAX_NUM_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel in one setting. ``settings`` says which, in words, for a reader; ``bound`` are its types, constants
    and promises as a launch has them.
    """

    entry: EntryPoint
    kernel: Any = field(repr=False)
    bound: Bound = field(repr=False)
    settings: Mapping[str, object]
    specialization: Specialization

    @property
    def function(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def every_step(self) -> tuple[str, ...]:
        """What is compiled in although each batch has another."""
        return tuple(each.name for each in self.kernel.params if each.is_constexpr and each.name.lower() in _EVERY_STEP)


class NotLaunchable(Exception):
    """What an entry point launches cannot be found out. The message says why."""


def pooled(entry: EntryPoint, most: int) -> Sequence[Specialization]:
    """At most ``most`` settings of the pool that a conformance run compiles for ``entry``."""
    axes = AXES.get(entry.family, Axes(world_sizes=(1,), block_sizes=(128,), blocks_per_kv_block=(1,)))
    return tuple(pool(entry.declaration, axes, most))


def production(entry: EntryPoint) -> Sequence[Specialization]:
    """What serving uses, as far as ``entry`` has it: one rank, a ring, two ranks one token in turn; block 128, tile
    1024 and the window of the published rule.
    """
    axes = AXES.get(entry.family, Axes())
    tile = 1024 if axes.tiles != (None,) else None
    window = production_window(1024, 128) if axes.windows != (None,) else None
    plain = Specialization(128, tile=tile, window=window)
    found = [plain]
    if "circular" in entry.declaration.features and axes.rings:
        found.append(replace(plain, circular=True))
    if "cp" in entry.declaration.features:
        found.append(replace(plain, cp=ContextParallel(2, 0, 1)))
    return found


def builds(loaded: LoadedEntry, specializations: Sequence[Specialization]) -> list[Build]:
    """Each kernel once in each setting. Raises NotLaunchable."""
    found: dict[tuple[object, ...], Build] = {}
    for each in specializations:
        for kernel, arguments in _launches(loaded, each):
            try:
                bound = bind_types(kernel, arguments)
            except Exception as error:
                raise NotLaunchable(f"{type(error).__name__}: {error}") from error
            build = Build(loaded.description, kernel, bound, _in_words(each, bound), each)
            key = (kernel, *bound.types.items(), *map(repr, bound.constants.items()), bound.multiples)
            found.setdefault(key, build)
    return list(found.values())


def _launches(loaded: LoadedEntry, specialization: Specialization) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    entry = loaded.description
    if loaded.is_kernel:
        invocation, _ = bind(*_bound_case(entry, specialization, 3, 5))
        yield loaded.kernel, {name: _typed(value) for name, value in invocation.arguments.items()}
        return
    for requests, tokens in _BATCHES:
        invocation, _ = bind(*_bound_case(entry, specialization, requests, tokens))
        with _recorded() as launched:
            made: dict[int, torch.Tensor] = {}
            arguments = {name: _tensor(value, made) for name, value in invocation.arguments.items()}
            try:
                loaded.invoke((), arguments)
            except Exception as error:
                raise NotLaunchable(f"{type(error).__name__}: {error}") from error
        yield from launched


def _bound_case(
    entry: EntryPoint, s: Specialization, requests: int, tokens: int
) -> tuple[EntryPoint, Case, Launch, Settings]:
    """A launch as serving has them, so that nothing is equal to 1 or a multiple of 16 that is not so in serving."""
    width = 1 if s.circular else max(_ROW_BLOCKS, -(-tokens // s.block_size)) * s.blocks_per_kv_block
    group = Group(
        block_table=(tuple(range(width)),) * requests,
        block_size=s.block_size,
        kv_cache_block_size=s.kv_cache_block_size,
        kind="circular" if s.circular else "paged",
    )
    starts = tuple(tokens * request for request in range(requests + 1))
    case = Case(
        query_start_loc=starts,
        positions=tuple(range(tokens)) * requests,
        num_tokens=starts[-1],
        max_num_tokens=_MAX_NUM_TOKENS + 1,
        groups=(group,),
        cp=s.cp,
        pad_id=s.pad_id,
        replay=Replay((1,) * requests, 2, (0,)) if "replay" in entry.declaration.features else None,
    )
    return entry, case, Launch(output_dtype=s.output_dtype), settings_of(s)


@dataclass(frozen=True, slots=True)
class _Pointer:
    """All that a compiler sees of a buffer."""

    dtype: str

    def data_ptr(self) -> int:
        return 0


def _typed(value: object) -> object:
    return _Pointer(value.dtype) if isinstance(value, Array) else value


def _tensor(value: object, made: dict[int, torch.Tensor]) -> object:
    """A host function's argument. ``made`` keeps the buffers that others hold the addresses of."""
    if not isinstance(value, Array):
        return value
    if id(value) not in made:
        data = value.data
        if value.addresses_of:
            addresses = [_tensor(each, made) for each in value.addresses_of]
            data = np.array([each.data_ptr() for each in addresses if isinstance(each, torch.Tensor)], dtype=np.uint64)
        flat = np.zeros(value.size, dtype=value.dtype) if data is None else np.ascontiguousarray(data).reshape(-1)
        tensor = torch.from_numpy(flat)
        made[id(value)] = tensor.as_strided(value.shape, value.strides) if value.strides else tensor.view(value.shape)
    return made[id(value)]


@contextmanager
def _recorded() -> Iterator[list[tuple[Any, Mapping[str, Any]]]]:
    """Meanwhile, a launch is written down and not done."""
    launched: list[tuple[Any, Mapping[str, Any]]] = []

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launched.append((kernel, dict(zip(kernel.arg_names, args, strict=False), **kwargs)))

    own = JITFunction.run
    JITFunction.run = run
    try:
        yield launched
    finally:
        JITFunction.run = own


def _in_words(s: Specialization, bound: Bound) -> dict[str, object]:
    """The settings as far as the compiled kernel has them, in the symbols of the contract."""
    words: dict[str, object] = {"b": s.block_size}
    if s.blocks_per_kv_block > 1:
        words["k"] = s.blocks_per_kv_block
    if s.cp.size > 1:
        words |= {"W": s.cp.size, "R": s.cp.rank, "I": s.cp.interleave}
    words |= {word: bound.constants[name] for name, word in _SIZES.items() if name in bound.constants}
    if s.circular:
        words["ring"] = True
    if s.output_dtype != "int32":
        words["output"] = s.output_dtype
    if _FLAGS & bound.types.keys():
        words["flags"] = True
    if bound.types.get("block_table_strides", bound.types.get("block_table_strides_ptr")) == "*i32":
        words["strides"] = "int32"
    return words


# Compile-time parameters by what they are, whatever a version calls them.
_SIZES = {
    "TILE_BLOCK_SIZE": "tile",
    "TRITON_BLOCK_SIZE": "tile",
    "BLOCK_SIZE": "tile",
    "BLOCK_TABLE_WINDOW_SIZE": "window",
    "SMALL_TILE_BLOCK_SIZE": "small_tile",
    "SMALL_BLOCK_TABLE_WINDOW_SIZE": "small_window",
    "TOTAL_BLOCK_SIZE": "staged",
    "BLOCK_TABLE_PAD_SIZE": "staged",
}
_FLAGS = {"slot_mapping_enabled", "dcp_sharded", "is_circular_ptr"}
