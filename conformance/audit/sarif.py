"""Findings as SARIF 2.1.0, so that code hosts show them on the line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conformance.audit.accepted import Acceptance
from conformance.audit.rules import RULES, Finding

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_INDEX = {rule: index for index, rule in enumerate(RULES)}


def log(found: Iterable[tuple[Finding, Acceptance | None]], root: Path) -> dict[str, object]:
    """A log of one run. Files below ``root`` are given relative to it, as a code host wants them; accepted findings are
    there, suppressed with their reason.
    """
    rules = [
        {
            "id": rule.id,
            "name": rule.name,
            "shortDescription": {"text": rule.name},
            "fullDescription": {"text": rule.explanation},
            "help": {"text": rule.remedy},
            "defaultConfiguration": {"level": rule.severity},
        }
        for rule in RULES.values()
    ]
    driver = {"name": "Ascend compile audit", "rules": rules}
    results = [_result(finding, acceptance, root) for finding, acceptance in found]
    run = {"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: Finding, acceptance: Acceptance | None, root: Path) -> dict[str, object]:
    where = ", ".join(finding.targets)
    result: dict[str, object] = {
        "ruleId": finding.rule.id,
        "ruleIndex": _INDEX[finding.rule.id],
        "level": finding.rule.severity,
        "message": {"text": f"{finding.entry}: {finding.message} ({where})"},
        # The same finding keeps its identity when lines move.
        "partialFingerprints": {"finding/v1": f"{finding.rule.id} {finding.entry} {finding.function} {finding.cause}"},
    }
    if finding.line is not None:
        place = {
            "artifactLocation": {"uri": _uri(Path(finding.line.file), root)},
            "region": {"startLine": finding.line.line},
        }
        result["locations"] = [{"physicalLocation": place}]
    if acceptance is not None:
        result["suppressions"] = [{"kind": "external", "justification": acceptance.reason}]
    return result


def _uri(file: Path, root: Path) -> str:
    try:
        return file.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return file.resolve().as_uri()
