"""``python -m conformance.audit.block_sizes``: what ``v1``, ``v2`` and ``tiled`` cost, and how far they are right, for
each of several block sizes.

Vector operations of the program for Ascend910B3 (tile 1024, int32 slots, interleave 1) and the largest right position,
as the audit has them; nothing is run. Prints the table of docs/ascend-audit.md. ``--source`` takes another tree with a
package ``kernels``; of one from before commit 766e92b ``--by-position`` says that its kernels divide positions. Exit
status 0: all could be measured; 1: not all; 2: there is no compiler.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from conformance import subjects
from conformance.agreement import _positive
from conformance.audit.bounds import by_own_position, largest_position
from conformance.audit.rows import Row
from conformance.lanes.ascend import compiler
from conformance.lanes.lowered import LoweredLane
from reference.case import ContextParallel
from reference.fields import INT32_MAX
from strategies.geometry import Geometry
from strategies.specializations import Specialization, production_window

BLOCK_SIZES = (1, 2, 3, 7, 16, 48, 128)
KERNELS = ("v1", "v2", "tiled")
TARGET = "Ascend910B3"
TILE = 1024


def specialization(kernel: str, block_size: int, cp_size: int) -> Specialization:
    """What serving uses, in blocks of that size."""
    window = None if kernel == "tiled" else production_window(TILE, block_size)
    return Specialization(block_size, 1, ContextParallel(cp_size, 0, 1), tile=TILE, window=window)


def cell(row: Row, geometry: Geometry, by_position: bool) -> str:
    """Vector operations, and how far positions are right; of what was not measured why."""
    if row.measures is None or row.bounds is None:
        return row.not_measured or row.status
    position = row.bounds.position
    if by_position:
        divides = any(each.kind == "division" for each in row.measures.float32)
        position = largest_position(geometry, by_own_position) if divides else INT32_MAX
    reach = "everywhere" if position == INT32_MAX else f"up to {position:,}"
    return f"{row.measures.vector.total()}, {reach}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.audit.block_sizes", description=__doc__)
    parser.add_argument("--source", metavar="PATH", help="another tree with a package kernels than this project's")
    parser.add_argument("--by-position", action="store_true", help="its kernels divide positions, not distances")
    parser.add_argument("--kernel", action="append", choices=KERNELS, help="only this one; repeatable")
    parser.add_argument("--block-size", type=_positive, action="append", metavar="B", help="only this one; repeatable")
    options = parser.parse_args(arguments)
    missing = LoweredLane().unavailable()
    if missing is not None:
        print(f"{parser.prog}: {missing}", file=sys.stderr)
        return 2
    # Both need triton-ascend.
    from conformance.audit.launches import builds
    from conformance.audit.workers import audit

    names, sizes = options.kernel or KERNELS, options.block_size or BLOCK_SIZES
    try:
        entries = {each.description.name: each for each in subjects.load("kernels", options.source, LoweredLane())}
    except FileNotFoundError as error:
        parser.error(str(error))
    columns = [(name, cp_size) for cp_size in (1, 2) for name in names]
    chosen = [specialization(name, size, cp_size) for size in sizes for name, cp_size in columns]
    owners = [entries[name] for _ in sizes for name, _ in columns]
    planned = [builds(entry, [each])[0] for entry, each in zip(owners, chosen, strict=True)]
    rows = audit(planned, [TARGET], compiler.find(60.0), len(os.sched_getaffinity(0)), _progress)
    cells = [cell(row, each, options.by_position) for row, each in zip(rows, chosen, strict=True)]
    print(f"| b | {' | '.join(f'`{name}`, W = {cp_size}' for name, cp_size in columns)} |")
    print(f"|---:|{'---|' * len(columns)}")
    for index, size in enumerate(sizes):
        print(f"| {size} | {' | '.join(cells[index * len(columns) : (index + 1) * len(columns)])} |")
    return 0 if all(row.measures is not None for row in rows) else 1


def _progress(done: int, total: int) -> None:
    print(f"compiled {done} of {total}", end="\n" if done == total else "\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
