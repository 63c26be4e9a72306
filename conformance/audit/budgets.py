"""What this project's kernels may cost on the chip: the file ``budgets.toml``, and what exceeds it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conformance.audit.rows import Row

FILE = Path(__file__).with_name("budgets.toml")


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one entry point. ``ub_share`` of the on-chip buffer, 0 to 1; ``scalar_loops`` with the reason for any."""

    ub_share: float
    scalar_loops: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Budgets:
    """``targets``: the chips that every entry point compiles for."""

    targets: tuple[str, ...]
    entries: Mapping[str, Budget]

    def exceeded(self, row: Row) -> list[str]:
        """What a row of one of the entry points costs too much, a line each."""
        budget = self.entries[row.entry.name]
        where = f"{row.entry.id} on {row.target} ({row.setting})"
        if not row.compiled:
            return [f"{where} does not compile: {row.status}: {row.message}"]
        if row.ub is None:
            return [f"{where}: UB is not known: {row.not_measured}"]
        found = []
        if row.ub[0] > budget.ub_share * row.ub[1]:
            found.append(f"{where} uses {row.ub[0]} of {row.ub[1]} bytes of UB, {budget.ub_share:.0%} are allowed")
        if row.measures is not None and len(row.measures.scalar_loops) > budget.scalar_loops:
            loops = "; ".join(f"{loop.line} {loop.operation}" for loop in row.measures.scalar_loops)
            found.append(
                f"{where} has {len(row.measures.scalar_loops)} scalar loops, not {budget.scalar_loops}: {loops}"
            )
        return found


def read(path: Path = FILE) -> Budgets:
    """The budgets in ``path``. Raises ValueError for a kernel that may have scalar loops without saying why."""
    text = tomllib.loads(path.read_text(encoding="utf-8"))
    share = float(text["ub_share"])
    entries = {name: Budget(share, **fields) for name, fields in text.items() if isinstance(fields, dict)}
    for name, budget in entries.items():
        if budget.scalar_loops and not budget.why:
            raise ValueError(f"{path.name}: {name} may have {budget.scalar_loops} scalar loops and does not say why")
    return Budgets(tuple(text["targets"]), entries)
