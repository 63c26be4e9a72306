"""``coverage.json``: what a run drew, counted case by case. The page of a run shows it as pictures.

Counting happens in the loop that tests kernels, so it costs a few microseconds a case: what is drawn is put into a few
``Counter`` under tuples, and sorted out only when the run ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from reference.case import Case, Launch
from reports.files import json_lines, write_text

SCHEMA = 1

PAIRS = {
    "block size x kernel blocks": ("block_size", "blocks_per_kv_block"),
    "world size x rank": ("world_size", "rank"),
    "world size x interleave": ("world_size", "interleave"),
    "block size x tile": ("block_size", "tile"),
    "tile x window": ("tile", "window"),
    "output x group": ("output_dtype", "kind"),
}
"""The pairs of parameters that are counted together, by the name that ``coverage.json`` gives them."""

INTERLEAVES = ("1", "below b", "b", "above b", "B")
"""The interleave by its place between one token and the allocated block."""

WINDOWS = ("below the rule", "the rule", "above the rule")
"""The block-table window against the production rule, next_power_of_2(cdiv(tile, b) + 1)."""

SHAPES = (
    "decode only",
    "prefill only",
    "mixed",
    "no tokens",
    "with empty requests",
    "over one tile",
    "gaps in positions",
    "negative positions",
    "padded",
    "longer buffer",
    "several groups",
    "mapped rows",
    "replayed",
)
"""What is told of a batch; the first four exclude one another. A request of one token is decode, of more prefill."""

_TILES = ("TILE_BLOCK_SIZE", "TRITON_BLOCK_SIZE", "BLOCK_SIZE")
_WINDOW = "BLOCK_TABLE_WINDOW_SIZE"
_MANY = 4096  # tokens: more than a drawn case has


class Parameters(NamedTuple):
    """The parameters of one launch that decide how it is compiled, those of its first group where it has several."""

    block_size: int
    blocks_per_kv_block: int
    world_size: int
    rank: int
    interleave: str
    tile: int | None
    window: str | None
    output_dtype: str
    kind: str


def parameters_of(case: Case, launch: Launch) -> Parameters:
    """``launch`` holds the constants as they were bound."""
    group, cp, constants = case.groups[0], case.cp, launch.constants
    b, size = group.block_size, group.kv_cache_block_size
    tile = next((constants[name] for name in _TILES if name in constants), None)
    return Parameters(
        b, size // b, cp.size, cp.rank, _interleave(cp.interleave, b, size), tile,
        _window(tile, constants.get(_WINDOW), b), launch.output_dtype, group.kind,
    )  # fmt: skip


def _interleave(turn: int, b: int, size: int) -> str:
    if turn == 1:
        return "1"
    if turn <= b:
        return "b" if turn == b else "below b"
    return "B" if turn == size else "above b"


def _window(tile: int | None, window: int | None, b: int) -> str | None:
    if tile is None or window is None:
        return None
    rule = 1 << (-(-tile // b)).bit_length()
    return WINDOWS[(window >= rule) + (window > rule)]


def power(number: int) -> int:
    """Which power of two: 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, and so on; -1 for everything negative."""
    return number.bit_length() if number >= 0 else -1


@dataclass(slots=True)
class Counts:
    """What one entry point was given. Keys of ``tokens``, ``longest``, ``positions`` are powers of two (``power``),
    ``batches`` is counted by the powers of requests and tokens.
    """

    cases: int = 0
    launch_seconds: float = 0.0
    compile_seconds: float = 0.0
    parameters: Counter[Parameters] = field(default_factory=Counter)
    compiled: set[Parameters] = field(default_factory=set)
    shapes: Counter[tuple[bool | int, ...]] = field(default_factory=Counter)
    batches: Counter[tuple[int, int]] = field(default_factory=Counter)
    longest: Counter[int] = field(default_factory=Counter)
    positions: Counter[int] = field(default_factory=Counter)

    def count_compiled(self, case: Case, launch: Launch) -> None:
        """One launch that was compiled for: what of it is never drawn shows as 0 and not as if it could not be."""
        self.compiled.add(parameters_of(case, launch))

    def count(self, case: Case, launch: Launch, seconds: float) -> None:
        """One launch, which took ``seconds``. ``launch`` holds the constants as they were bound."""
        self.cases += 1
        self.launch_seconds += seconds
        drawn = parameters_of(case, launch)
        self.parameters[drawn] += 1
        bounds, positions, tokens = case.query_start_loc, case.positions, case.num_tokens
        lengths = [end - start for start, end in pairwise(bounds)]
        longest = max(lengths, default=0)
        if len(positions) != tokens:
            positions = positions[:tokens]
        negative = tokens > 0 and min(positions) < 0
        if tokens > _MANY:
            self.positions.update(_powers(positions))
        else:
            if negative:
                self.positions[-1] += sum(position < 0 for position in positions)
                positions = tuple(position for position in positions if position >= 0)
            self.positions.update(map(int.bit_length, positions))
        some = tokens > 0
        decode, prefill = some and longest == 1, some and all(length != 1 for length in lengths)
        self.shapes[
            decode, prefill, some and not decode and not prefill, not some, 0 in lengths,
            drawn.tile is not None and longest > drawn.tile, _gaps(case), negative, case.max_num_tokens > tokens,
            launch.output_length is not None and launch.output_length > case.max_num_tokens, len(case.groups) > 1,
            case.idx_mapping is not None, case.replay is not None,
        ] += 1  # fmt: skip
        self.batches[len(lengths).bit_length(), tokens.bit_length()] += 1
        self.longest[longest.bit_length()] += 1

    def to_json(self) -> dict[str, object]:
        shapes = Counter[str]()
        for flags, number in self.shapes.items():
            shapes.update({name: number for name, flag in zip(SHAPES, flags, strict=True) if flag})
        tokens = Counter[int]()
        for (_, power_of_tokens), number in self.batches.items():
            tokens[power_of_tokens] += number
        return {
            "cases": self.cases,
            "seconds": {"compile": round(self.compile_seconds, 3), "launch": round(self.launch_seconds, 3)},
            "pairs": {name: self._pairs(*axes) for name, axes in PAIRS.items()},
            "shapes": {name: shapes[name] for name in SHAPES},
            "batches": [[*powers, number] for powers, number in sorted(self.batches.items())],
            "tokens": _listed(tokens),
            "longest_request": _listed(self.longest),
            "positions": _listed(self.positions),
        }

    def _pairs(self, first: str, second: str) -> list[list[object]]:
        """[value, value, cases] of each pair; 0 cases where something that has it was compiled and never drawn."""
        counts: dict[tuple[object, object], int] = {}
        for drawn in self.compiled | self.parameters.keys():
            pair = getattr(drawn, first), getattr(drawn, second)
            if None not in pair:
                counts[pair] = counts.get(pair, 0) + self.parameters[drawn]
        return [[*pair, number] for pair, number in sorted(counts.items(), key=lambda item: str(item[0]))]


class Coverage:
    """What a run has drawn so far, by ``subject.entry_point``."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)
        self.entry_points: dict[str, Counts] = {}

    def of(self, entry_point: str) -> Counts:
        found = self.entry_points.get(entry_point)
        if found is None:
            found = self.entry_points[entry_point] = Counts()
        return found

    def to_json(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "started": self.started.isoformat(timespec="seconds"),
            "entry_points": {name: counts.to_json() for name, counts in self.entry_points.items()},
        }


def write(coverage: Coverage, folder: str | Path) -> Path:
    """Write ``coverage.json`` into ``folder``, over the one of an earlier run. Raises ReportError."""
    return write_text(Path(folder) / "coverage.json", json_lines(coverage.to_json()))


def _powers(positions: Sequence[int]) -> dict[int, int]:
    """How many have each ``power``: quick where they are many, because they are in order then, or nearly."""
    ordered = sorted(positions)
    bounds = [0, *(bisect_left(ordered, edge) for edge in (0, *(1 << bit for bit in range(64)))), len(ordered)]
    return {bit - 1: end - start for bit, (start, end) in enumerate(pairwise(bounds)) if end > start}


def _gaps(case: Case) -> bool:
    """Whether the positions of some request are not consecutive."""
    positions = case.positions
    for start, end in pairwise(case.query_start_loc):
        if end - start > 1 and positions[start:end] != tuple(range(positions[start], positions[start] + end - start)):
            return True
    return False


def _listed(counts: Mapping[int, int]) -> list[list[int]]:
    return [[key, counts[key]] for key in sorted(counts)]
