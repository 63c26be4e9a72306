"""What a launch must have for a mistake to be about it: nobody misreads flags that nobody passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from reports.diagnosis.mapping import Observation


def _several_ranks(seen: Observation) -> bool:
    return seen.case.cp.size > 1


NEEDED: Mapping[str, Callable[[Observation], bool]] = MappingProxyType(
    {
        "foreign request": lambda seen: seen.case.num_reqs > 1 or seen.case.max_num_tokens > seen.case.num_tokens,
        "foreign group": lambda seen: len(seen.case.groups) > 1,
        "idx_mapping": lambda seen: seen.case.idx_mapping is not None,
        "row stride": lambda seen: any(group.stride != group.row_width for group in seen.case.groups),
        "virtual block": _several_ranks,
        "ownership": _several_ranks,
        "local offset": _several_ranks,
        "sharded group replicated": _several_ranks,
        "replicated group sharded": lambda seen: (
            _several_ranks(seen) and not all(group.sharded for group in seen.case.groups)
        ),
        "circular": lambda seen: any(group.kind == "circular" for group in seen.case.groups),
        "disabled group": lambda seen: not all(group.enabled for group in seen.case.groups),
        "replay window": lambda seen: seen.case.replay is not None,
        # Code that is told of no tile, torch's for one, has none: what it leaves out is left out for another reason.
        "window": lambda seen: bool(seen.tile or seen.window or "TOTAL_BLOCK_SIZE" in seen.launch.constants),
        "tile": lambda seen: seen.tile is not None,
        "output width": lambda seen: seen.launch.output_dtype == "int64",
    }
)
"""By cause. A mistake of another cause can be about any launch."""


def met(cause: str, launches: Iterable[Observation]) -> bool:
    """Whether one of ``launches`` has what the cause is about."""
    needed = NEEDED.get(cause)
    return needed is None or any(needed(seen) for seen in launches)
