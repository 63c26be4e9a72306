"""``python -m conformance.ranks``: W processes share random batches by the slots of the code under test, and together
compute the attention of each sequence.

Exit status 0: every token is on exactly one rank and the attention is right. 1: not so. 2: it could not be run.
"""

from __future__ import annotations

import argparse
import sys

from conformance import lanes, subjects
from conformance.both_lanes import CACHE
from conformance.ranks.batches import GEOMETRIES
from conformance.ranks.rank import Orders, RankError
from conformance.ranks.together import Told, ask
from conformance.runs import interruptible
from reference.fields import printable

TOLERANCE = 1e-12
DEFAULT_ENTRIES = ("dcp",)
MOST_RANKS = 64
"""Each is two processes of several hundred megabytes."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    names = tuple(options.entry or DEFAULT_ENTRIES)
    orders = Orders(
        rank=0,
        ranks=options.ranks,
        backend=options.backend,
        store="",
        subject=options.subject,
        source=options.source,
        entries=names,
        lane=options.lane,
        batches=options.batches,
        seed=options.seed,
        timeout=options.timeout,
        cache=str(CACHE),
    )
    try:
        with interruptible():
            told = ask(orders)
    except KeyboardInterrupt:
        print("python -m conformance.ranks: stopped, with all ranks", file=sys.stderr)
        return 2
    except RankError as error:
        print(f"python -m conformance.ranks: {printable(str(error))}", file=sys.stderr)
        return 2
    wrong = 0
    for entry in dict.fromkeys(each.entry for each in told):
        wrong += _say(orders, [each for each in told if each.entry == entry])
    return 1 if wrong else 0


def _say(orders: Orders, told: list[Told]) -> int:
    """A line for each batch that is wrong, and one for the entry point; returns how many were."""
    wrong = 0
    for each in told:
        said = each.wrong(TOLERANCE)
        wrong += bool(said)
        for line in said:
            print(f"{each.entry}: batch {each.batch}: {line}")
    first, tokens = told[0], sum(sum(each.mine) for each in told)
    shares = " + ".join(str(sum(each.mine[rank] for each in told)) for rank in range(orders.ranks))
    where = f"{orders.ranks} ranks, {orders.backend}, lane {first.lane}, seed {orders.seed}"
    if wrong:
        print(f"{first.entry}: {wrong} of {len(told)} batches wrong ({where})")
    else:
        largest = max(each.difference for each in told)
        print(
            f"{first.entry}: {len(told)} batches, {tokens:,} tokens ({shares}), each on exactly one rank; attention"
            f" as over the whole sequences, largest difference {largest:.2g} ({where})"
        )
    return wrong


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance.ranks", description="All ranks at once.")
    parser.add_argument("--ranks", type=int, default=2, metavar="W", help="processes, one a rank (default 2)")
    parser.add_argument(
        "--entry", action="append", metavar="NAME", help="v1, v2, tiled, dcp (default), ...; repeatable"
    )
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="nccl: one GPU a rank")
    parser.add_argument(
        "--batches", type=int, default=2 * len(GEOMETRIES), metavar="N", help="random batches an entry point"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="draw other batches")
    parser.add_argument("--subject", choices=subjects.NAMES, default="kernels")
    parser.add_argument("--source", metavar="PATH", help="a checkout or an unpacked wheel of the subject")
    parser.add_argument("--lane", default="auto", choices=("auto", *lanes.names()))
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="seconds without progress until all are ended"
    )
    options = parser.parse_args(arguments)
    for name in ("ranks", "batches"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: {getattr(options, name)} is below 1")
    if options.ranks > MOST_RANKS:
        parser.error(f"--ranks: {options.ranks} is above {MOST_RANKS}")
    if not options.timeout > 0:
        parser.error(f"--timeout: {options.timeout} is not above 0")
    if options.seed < 0:
        parser.error(f"--seed: {options.seed} is below 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
