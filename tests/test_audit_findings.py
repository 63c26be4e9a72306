"""From rows to findings, from findings to an exit status and to files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conformance import lanes

if lanes.by_name("lowered").unavailable() is not None:
    pytest.skip("the audit needs triton-ascend and ascendnpu-ir", allow_module_level=True)

from conformance.audit import accepted
from conformance.audit.__main__ import main
from conformance.audit.report import Audit
from conformance.audit.rules import RULES, findings
from conformance.lanes.ascend import compiler
from tests.audited import CHIPS, build, fake, rows
from tests.commands import ROOT

ACCEPTING = "ASC002  small.*  arith.remsi:i32  Ascend910*  counted by hand\n"


def acceptances(folder: Path, text: str) -> list[accepted.Acceptance]:
    path = folder / "accepted.txt"
    path.write_text(text, encoding="utf-8")
    return accepted.read(path)


def some_audit(folder: Path, text: str = "") -> Audit:
    seen = (*rows("remainders", *CHIPS), *rows("quotients_of_gathered", *CHIPS), *rows("too_large", CHIPS[0]))
    left = (("small.dcp", "launches nothing | at all"),)
    return Audit(seen, "bishengir-compile 1.2.0", CHIPS, 1.0, left, tuple(acceptances(folder, text)))


def test_each_cause_is_one_finding_whatever_the_chip() -> None:
    found = findings([*rows("remainders", *CHIPS), *rows("quotients_of_gathered", *CHIPS)])
    assert [(each.rule.id, each.entry, each.cause, str(each.line), each.targets) for each in found] == [
        ("ASC002", "small.remainders", "arith.remsi:i32", "audited_kernels.py:12", CHIPS),
        ("ASC003", "small.quotients_of_gathered", "division", "audited_kernels.py:20", CHIPS),
        ("ASC006", "small.quotients_of_gathered", "gather", "audited_kernels.py:19", CHIPS),
    ]
    # With a block of one token: exact to 2**24, and no further.
    assert "up to 16,777,216 " in found[1].message
    assert "up to 16,777,216 " in found[2].message


def test_rules_are_numbered_and_say_what_to_do() -> None:
    assert list(RULES) == [f"ASC{number:03}" for number in range(1, len(RULES) + 1)]
    assert all(rule.explanation.endswith(".") and rule.remedy.endswith(".") for rule in RULES.values())
    assert {rule.severity for rule in RULES.values()} == {"error", "warning", "note"}


# Accepting


def test_an_acceptance_covers_what_it_names(tmp_path: Path) -> None:
    audit = some_audit(tmp_path, f"# a remark\n\n{ACCEPTING}")
    reasons = {finding.rule.id: acceptance and acceptance.reason for finding, acceptance in audit.findings}
    assert reasons == {"ASC001": None, "ASC002": "counted by hand", "ASC003": None, "ASC006": None}
    assert [finding.rule.id for finding in audit.open] == ["ASC001", "ASC003", "ASC006"]


@pytest.mark.parametrize(
    "line",
    [
        "ASC002 small.remainders arith.remsi:i32 Ascend910B3 only one of both chips",
        "ASC002 kernels.* * * another subject",
        "ASC003 * * * another rule, as far as the remainder goes",
        "ASC002 * arith.addi:* * another cause",
    ],
)
def test_an_acceptance_covers_nothing_else(tmp_path: Path, line: str) -> None:
    audit = some_audit(tmp_path, line)
    assert "ASC002" in [finding.rule.id for finding in audit.open]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ASC002 small.* * *", r"accepted\.txt:1: expected rule, entry point, cause, chip and a reason, got 4 words"),
        ("\nASC999 small.* * * why not", r"accepted\.txt:2: there is no rule ASC999"),
    ],
)
def test_a_line_without_a_reason_or_rule_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(accepted.AcceptedError, match=message):
        acceptances(tmp_path, text)


def test_acceptances_that_nothing_needs_are_named(tmp_path: Path) -> None:
    audit = some_audit(tmp_path)
    lines = acceptances(tmp_path, f"{ACCEPTING}ASC006 small.remainders * * no gather there\n")
    found = [finding for finding, _ in audit.findings]
    assert [each.reason for each in accepted.unused(lines, found)] == ["no gather there"]


# Files


def test_the_json_has_a_row_a_compilation_and_every_finding(tmp_path: Path) -> None:
    audit = some_audit(tmp_path, ACCEPTING)
    audit.write(tmp_path / "out", ROOT)
    written = json.loads((tmp_path / "out" / "audit.json").read_text(encoding="utf-8"))
    assert written["schema"] == 1
    assert [(row["entry_point"], row["target"], row["status"]) for row in written["rows"]] == [
        *(("small.remainders", chip, "compiled") for chip in CHIPS),
        *(("small.quotients_of_gathered", chip, "compiled") for chip in CHIPS),
        ("small.too_large", CHIPS[0], "refused"),
    ]
    assert written["rows"][0]["ub_bytes"] == {"used": 832, "available": 196608}
    assert written["rows"][2]["float32"][1]["kind"] == "division"
    assert written["rows"][4]["scalar_loops"] is None
    accepted_because = {each["rule"]: each["accepted"] for each in written["findings"]}
    assert accepted_because == {"ASC001": None, "ASC002": "counted by hand", "ASC003": None, "ASC006": None}
    assert written["left_out"] == [{"entry_point": "small.dcp", "reason": "launches nothing | at all"}]


def test_the_markdown_shows_rows_refusals_and_findings(tmp_path: Path) -> None:
    audit = some_audit(tmp_path, ACCEPTING)
    audit.write(tmp_path / "out", ROOT)
    text = (tmp_path / "out" / "audit.md").read_text(encoding="utf-8")
    assert text.count("`small.remainders`") == 3  # two rows, one finding
    assert "requires 4194304 bits while 1572864 bits available" in text
    assert "counted by hand" in text
    assert text.count("**not accepted**") == 3
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {14, 8}


def check_sarif(log: Any) -> None:
    """What sections 3.13 to 3.35 of SARIF 2.1.0 ask of the properties that are there."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for rule in driver["rules"]:
        assert rule["defaultConfiguration"]["level"] in {"none", "note", "warning", "error"}
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert rule["help"]["text"]
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["message"]["text"]
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        for location in result.get("locations", []):
            physical = location["physicalLocation"]
            assert physical["region"]["startLine"] >= 1
            uri = physical["artifactLocation"]["uri"]
            assert "\\" not in uri
            assert " " not in uri
            assert not uri.startswith("/")
        for suppression in result.get("suppressions", []):
            assert suppression["kind"] in {"inSource", "external"}
            assert suppression["justification"]


def test_the_sarif_log_is_one(tmp_path: Path) -> None:
    audit = some_audit(tmp_path, ACCEPTING)
    audit.write(tmp_path / "out", ROOT)
    log = json.loads((tmp_path / "out" / "audit.sarif").read_text(encoding="utf-8"))
    check_sarif(log)
    overflow, remainder, *_ = log["runs"][0]["results"]
    place = overflow["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "tests/audited_kernels.py"}, "region": {"startLine": 53}}
    assert "suppressions" not in overflow
    assert remainder["suppressions"] == [{"kind": "external", "justification": "counted by hand"}]


def test_files_outside_the_checkout_are_given_whole(tmp_path: Path) -> None:
    audit = some_audit(tmp_path)
    audit.write(tmp_path / "out", tmp_path)
    log = json.loads((tmp_path / "out" / "audit.sarif").read_text(encoding="utf-8"))
    check_sarif(log)
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == (ROOT / "tests" / "audited_kernels.py").as_uri()


# The command

ONE = ["--entry-point", "replay", "--specializations", "1", "--target", "Ascend910B3"]


def audit_command(folder: Path, *more: str) -> int:
    return main([*ONE, "--report-dir", str(folder), *more])


def test_findings_decide_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audit_command(tmp_path) == 0
    written = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert [row["status"] for row in written["rows"]] == ["compiled"]
    assert "kernels.replay" in capsys.readouterr().out

    monkeypatch.setattr(compiler, "find", lambda timeout: compiler.at(fake(tmp_path, "exit 70"), timeout))
    assert audit_command(tmp_path) == 1
    assert "ASC005 unsupported-operation (error) kernels.replay" in capsys.readouterr().out


def test_no_compiler_is_a_row_and_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(timeout: float) -> compiler.Compiler:
        raise compiler.Unavailable("the package ascendnpu-ir is not installed")

    monkeypatch.setattr(compiler, "find", missing)
    assert audit_command(tmp_path) == 1
    said = capsys.readouterr().out
    assert "ASC009 not-compiled (error) kernels.replay" in said
    assert "the package ascendnpu-ir is not installed" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--entry-point", "v9"], "--entry-point v9: there are "),
        (["--source", "/nowhere"], "/nowhere holds no package kernels"),
        (["--source", "vllm=/nowhere"], "--source vllm=/nowhere: 'vllm' is not a subject of this audit"),
        (["--subject", "vllm"], "vllm is not installed"),
        (["--accepted", "nothing.txt"], "cannot read nothing.txt"),
        (["--specializations", "0"], "--specializations and --jobs are at least 1"),
        (["--entry-point", "dcp"], "nothing to audit: kernels.dcp: launches"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(message)
    assert said.count("\n") == 1


def test_an_entry_point_of_the_small_kernels_is_like_any_other() -> None:
    assert build("remainders").function == "remainders"
