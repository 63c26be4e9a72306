"""Between a failed check and its report: gathers what the report needs, keeps count, and says in a few lines what was found."""

from __future__ import annotations

import json
import time
from pathlib import Path

from conformance.engine import Engine
from conformance.verdicts import Finding


class Recorder:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.failures: dict[Path, Finding] = {}
        self._started = time.monotonic()

    def record(self, engine: Engine, nodeid: str, finding: Finding) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"failure-{len(self.failures)}.json"
        path.write_text(json.dumps({"case": finding.case.to_json(), "launch": finding.launch.to_json(), "subject": finding.entry.subject, "entry_point": finding.entry.name}))
        self.failures[path] = finding
        return f"{finding.verdict.summary()}\n{path.read_text()}"

    def finish(self, engine: Engine) -> list[str]:
        cases = sum(t.cases for t in engine.tallies.values())
        specs = {k: len(t.specializations) for k, t in engine.tallies.items()}
        return [f"{cases} cases, {specs} {len(self.failures)} failures {time.monotonic()-self._started:.1f}s"]
