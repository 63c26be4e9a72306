"""A launch outside the contract that did what it must not: kept as a file, told in a few lines and counted.

There is no answer to hold it against, so it is no failure report. ``--replay`` takes its file, and asks of the launch
what the test that met it asked.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _pytest.outcomes import Failed

from conformance.engine import Engine
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from reference import verdict as v
from reference.case import Case, Launch
from reference.fields import printable
from reports.files import ReportError, json_lines, write_text

SCHEMA = 1
_LONGEST = 400  # characters of what the code under test says


class BoundaryFailure(Failed):
    """``broken``: the clause that the case breaks, and where; empty if it breaks none."""

    def __init__(
        self, entry: EntryPoint, case: Case, launch: Launch, settings: Settings, verdict: v.Verdict, broken: str
    ) -> None:
        where = f"outside the contract ({broken})" if broken else "inside the contract"
        super().__init__(f"{entry.id} {where}: {verdict.summary()}", pytrace=False)
        self.entry, self.verdict, self.broken = entry, verdict, broken
        self.document = {"case": case.to_json(), "launch": launch.to_json(), "settings": asdict(settings)}


@dataclass(frozen=True, slots=True)
class Outside:
    """What there is to say of one. ``replay`` is the command that runs its ``file`` again, ``again`` the one that finds
    it again without it; ``problem`` says why it is not there, if it is not.
    """

    entry_point: str
    message: str
    again: str
    replay: str
    file: Path
    document: Mapping[str, Any]
    problem: str = ""

    def lines(self) -> list[str]:
        if self.problem:
            return [self.message, self.problem, json.dumps(self.document), f"again: {self.again}"]
        return [self.message, f"case: {printable(self.file)}", f"replay: {self.replay}"]


def outside(engine: Engine, folder: Path, seed: int, nodeid: str, failed: BoundaryFailure, *, drawn: bool) -> Outside:
    """Write the case of ``failed`` into ``folder``; the same one has the same file in every run. One that was not
    ``drawn`` is from such a file, which knows more, and is left alone.
    """
    entry, verdict = failed.entry, failed.verdict
    identity = json.dumps([failed.document, verdict.kind], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:10]
    file = folder / f"boundary-{entry.subject}-{entry.name}-{digest}.json"
    common = ["--lane", engine.lane.name, *engine.lane.options(), "--subject", entry.subject]
    source = engine.options.sources.get(entry.subject, "")
    common += ["--source", f"{entry.subject}={source}"] if source else []
    replay = printable(shlex.join(["pytest", "conformance", "--replay", str(file), *common]))
    shard = engine.options.shard
    sharded = [] if shard.is_whole else ["--shard", str(shard)]
    again = printable(shlex.join(["pytest", nodeid, *common, *sharded, "--hypothesis-seed", str(seed)]))
    document = {
        "schema": SCHEMA,
        "subject": entry.subject,
        "entry_point": entry.name,
        "lane": engine.lane.name,
        "test": nodeid,
        "broken": failed.broken,
        "verdict": verdict.to_json(),
        "summary": verdict.summary(),
        **failed.document,
        "again": again,
    }
    problem = ""
    try:
        if drawn or not file.exists():
            write_text(file, json_lines(document))
    except ReportError as error:
        problem = str(error)
    return Outside(entry.id, printable(str(failed))[:_LONGEST], again, replay, file, document, problem)
