"""The page of a run: what it shows is what the files say, whatever is in them, and it stays small."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reference.case import Case, Group
from reference.oracle import trace
from reference.verdict import Guard
from reports import __main__ as command_line
from reports import page as pages
from reports.coverage import Coverage
from reports.diagnosis import Diagnosis
from reports.files import ReportError, json_lines
from reports.page import charts
from reports.page.failures import grouped, read
from reports.page.picture import MOST_TOKENS, Picture, pictures
from reports.page.rendering import content_hash
from tests.commands import ROOT
from tests.pages import TWO_TOKENS, answered, coverage, failure, many, summary
from tests.random_cases import draw

TEMPLATES = ROOT / "reports" / "page" / "templates"
ROW = Diagnosis("table row", "The row of another request is read.")


class Element:
    """An element of the page: its attributes and all text in it."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes, self.text = tag, attributes, ""


class Parsed(HTMLParser):
    """The elements of a page, in order."""

    NEVER_CLOSED = frozenset(["meta", "link", "rect", "line", "path", "circle"])

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in self.NEVER_CLOSED:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in self.NEVER_CLOSED:
            return
        assert self._open, f"</{tag}> closes nothing"
        element = self._open.pop()
        assert element.tag == tag, f"</{tag}> closes <{element.tag} {element.attributes}>"

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, kind: str | None = None) -> Iterator[Element]:
        for element in self.elements:
            if element.tag == tag and (kind is None or kind in element.attributes.get("class", "").split()):
                yield element

    def by_id(self, name: str) -> Element:
        (found,) = (element for element in self.elements if element.attributes.get("id") == name)
        return found


def drawn(*reports: dict, run: dict | None = None, seen: dict | None = None) -> Parsed:
    named = {f"failure-{number}.json": report for number, report in enumerate(reports)}
    return Parsed(pages.page(run or summary(len(reports)), named, seen))


# What it says


def test_a_run_without_failures_says_so() -> None:
    page = drawn(seen=coverage())
    (title,) = page.all("h1")
    assert title.text == "No failure in 4,000 cases"
    assert title.attributes["class"] == "good"
    assert not list(page.all("details", "failure"))


def test_a_run_without_cases_does_not_look_green() -> None:
    (title,) = drawn(run=summary(0, 0)).all("h1")
    assert (title.text, title.attributes["class"]) == ("No case was run", "none")


def test_failures_of_one_cause_are_one_group_and_the_unknown_comes_last() -> None:
    unknown, row = failure(wrong={(0, 0): 1}), failure(wrong={(0, 0): 9}, diagnosis=ROW)
    elsewhere = {**row, "entry_point": "v2"}
    page = drawn(unknown, row, {**row, "seed": 8}, elsewhere)
    assert [heading.text for heading in page.all("h3") if "cause" in heading.attributes.get("id", "")] == [
        "table row",
        "table row",
        "cause unknown",
    ]
    assert next(page.all("h1")).text == "4 failures of 2 causes, 1 unexplained"
    assert [entry.text.split() for entry in page.all("p", "tally")] == [
        ["2", "failures", "mismatch"],
        ["1", "failure", "mismatch"],
        ["1", "failure", "mismatch"],
    ]
    assert ROW.summary in next(page.all("p", "why")).text


def test_a_message_is_no_heading_of_any_length() -> None:
    message = "TypeError: " + "an argument of this kind is not taken here, " * 4
    crash = failure(diagnosis=Diagnosis("crash", "It raises.", message))
    page = drawn(crash, failure(wrong={(0, 0): 9}, diagnosis=ROW))
    (entry,) = [each.text for each in page.all("b") if each.text.startswith("crash TypeError")]
    assert len(entry) <= 60
    assert entry.endswith("\N{HORIZONTAL ELLIPSIS}")
    headings = [each.text for each in page.all("h3") if each.text.startswith("crash TypeError")]
    assert [len(each) <= 100 and "characters in all" not in each for each in headings] == [True]


def test_buffers_are_told_apart_and_a_report_without_diagnosis_is_of_unknown_cause() -> None:
    def group_count(*reports: dict) -> int:
        return len(grouped([read(f"{number}.json", report) for number, report in enumerate(reports)]))

    reads = [failure(diagnosis=Diagnosis("out of bounds read past", "", name)) for name in ("block_table", "positions")]
    assert group_count(*reads) == 2
    assert group_count(reads[0], reads[0]) == 1
    old = failure()
    del old["diagnosis"]
    assert read("old.json", {**old, "schema": 1}).diagnosis.key is None


def test_the_smallest_failure_of_a_cause_comes_first() -> None:
    larger = failure(wrong={(0, 0): 9}, diagnosis=ROW)
    smaller = failure(Case((0, 1), (0,), 1, 1, (Group(((3,),), 4, 4),)), {(0, 0): 5}, ROW)
    page = drawn(larger, smaller)
    assert [each.attributes["id"] for each in page.all("details", "failure")] == ["failure-1", "failure-0"]


def test_what_is_copied_is_what_the_report_holds() -> None:
    script = "import torch\nassert 1 < 2 and 'x' != \"</pre><script>\"\n"
    commands = {"replay": "pytest conformance --replay 'a & b.json'", "replay_on_host": "pytest 'a & b.json' --lane a"}
    report = failure(wrong={(0, 0): 1}, script=script, **commands)
    page = drawn(report)
    assert json.loads(page.by_id("failure-0-case").text) == report["case"]
    assert page.by_id("failure-0-command").text == commands["replay"]
    assert page.by_id("failure-0-host-command").text == commands["replay_on_host"]
    assert page.by_id("failure-0-script").text == script
    targets = [button.attributes["data-copy"] for button in page.all("button")]
    assert targets == [f"failure-0-{each}" for each in ("command", "host-command", "case", "script")]


def test_without_a_script_there_is_no_button_for_one() -> None:
    page = drawn(failure(script=None))
    assert len(list(page.all("button"))) == 2


def test_a_text_too_long_for_the_page_is_in_its_file_only() -> None:
    page = drawn(failure(script="x" * 16_001, replay="y" * 16_000))
    assert [button.attributes["data-copy"] for button in page.all("button")] == [
        "failure-0-command",
        "failure-0-case",
    ]
    assert any("Too long for this page" in note.text for note in page.all("p", "note"))


def test_expected_stands_beside_actual() -> None:
    page = drawn(failure(wrong={(0, 0): 77, (0, 3): -559038737}))
    (table,) = page.all("table", "elements")
    assert "77" in table.text
    assert "nothing written" in table.text
    (steps, *_) = page.all("div", "current")
    assert "Element 0: request 0, position 0" in steps.text
    for step in trace(TWO_TOKENS, 0, 0).steps:
        assert step.rpartition(": ")[2] in steps.text


def test_guards_and_messages_are_shown() -> None:
    guard = Guard("block_table[0]", "read", 4096, 4, "read block_table[0] 0 bytes past its last element")
    page = drawn(failure(guards=(guard,)))
    (picture,) = page.all("figure", "memory")
    assert guard.message in picture.text
    assert "block_table[0]" in picture.text


def test_a_case_without_a_picture_says_why() -> None:
    report = failure(wrong={(0, 0): 1})
    report["case"]["query_start_loc"] = [0, 5, 3]
    page = drawn(report)
    assert not list(page.all("svg", "picture"))
    assert "No picture: " in " ".join(each.text for each in page.all("p", "note"))


def test_what_cannot_be_read_is_listed_and_the_rest_is_shown() -> None:
    named = {"good.json": failure(), "list.json": [1], "none.json": {"schema": 1}, "later.json": {"schema": 99}}
    page = Parsed(pages.page(summary(4), named, {"schema": 1, "entry_points": {"x": {"cases": "many"}}}))
    (problems,) = page.all("section", "problems")
    for name in ("list.json", "none.json", "later.json", "coverage.json"):
        assert name in problems.text
    assert len(list(page.all("details", "failure"))) == 1


# Pictures


def the_picture(case: Case, wrong: dict[tuple[int, int], int]) -> Picture:
    failed = read("x.json", failure(case, wrong))
    (picture,), why = failed.pictures()
    assert why == ""
    return picture


def test_a_wrong_token_has_two_ends_and_a_right_one_has_one() -> None:
    picture = the_picture(TWO_TOKENS, {(0, 0): 9})
    kinds = {token.index: [mark.kind for mark in token.marks] for token in picture.tokens}
    assert kinds == {0: ["should", "went"], 1: ["right"], 2: ["right"]}
    assert [token.wrong for token in picture.tokens] == [True, False, False]
    assert [(token.expected, token.actual) for token in picture.tokens] == [("3", "9"), ("4", None), ("-1", None)]


def test_a_token_goes_through_its_owner_and_its_cell() -> None:
    picture = the_picture(TWO_TOKENS, {(0, 0): 9})
    by_text = {box.lines: box for box in picture.boxes if box.lines}
    rank, cell = by_text[("R0",)], by_text[("4",)]
    path = picture.tokens[1].curves[0].d  # position 1
    assert f"{rank.middle:.1f} {rank.y:.1f}" in path
    assert rank.kind == "rank this"
    assert by_text[("9",)].kind == "cell misused"  # block 9 is another row's
    other = picture.tokens[2].curves[0].d  # position 5 is rank 2's: it ends without a cell
    assert f"{by_text[('R2',)].middle:.1f}" in other
    assert f"{cell.middle:.1f} {cell.y:.1f}" not in other


def test_marks_stand_where_the_slot_is_in_its_block() -> None:
    case = Case((0, 2), (0, 7), 2, 2, (Group(((3,),), 8, 8),))
    picture = the_picture(case, {(0, 0): 31})
    (first, last) = (token.marks[0] for token in picture.tokens)
    (block,) = (box for box in picture.boxes if box.kind == "place")
    assert block.x < first.x < block.middle < last.x < block.x + block.width
    assert picture.tokens[0].marks[1].x == last.x  # slot 31 is the last of block 3 too


@pytest.mark.parametrize("seed", range(4))
def test_pictures_of_all_kinds_of_cases_fit(seed: int) -> None:
    rng = random.Random(seed)
    shown = 0
    while shown < 60:
        case = answered(draw(rng, world_sizes=(1, 2, 3, 8, 16), circular=rng.random() < 0.2))
        if case is None or not case.max_num_tokens:
            continue
        shown += 1
        values = (-1, -7, -559038737, 0, 12, 1 << 30, rng.randrange(1 << 20))
        wrong = {(0, rng.randrange(case.max_num_tokens)): rng.choice(values) for _ in range(rng.randint(0, 9))}
        for picture in pictures(case, read("x.json", failure(case, wrong))._differences()):
            assert 0 < len(picture.tokens) <= MOST_TOKENS or not case.num_tokens
            for box in (*picture.boxes, *(token.chip for token in picture.tokens)):
                assert box.x >= 0
                assert box.y >= 0
                assert box.x + box.width <= picture.width + 0.1, box
                assert box.bottom <= picture.height, box
            for token in picture.tokens:
                if token.index < case.max_num_tokens:
                    assert len(token.steps) == len(trace(case, 0, token.index).steps)


# Hostile content

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><img src=x onerror='window.hacked = 1'>",
    '"><svg onload="window.hacked = 1">',
    "' autofocus onfocus='window.hacked = 1",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:window.hacked=1",
    "]]><!--<style>*{display:none}</style>",
    "\x1b[31mred\x1b]0;title\x07",
    "\N{RIGHT-TO-LEFT OVERRIDE}txt.exe\N{LEFT-TO-RIGHT ISOLATE}",
    "NUL\0and\rthe\x85rest\x7f\N{LINE SEPARATOR}",
    "\ud800 alone \udfff",
    "\N{ZERO WIDTH SPACE}\ufeff\ufffe\U0010ffff",
    "Z\u0351\u036b\u0343a\u0325" * 50,
    "\N{HEBREW LETTER ALEF}\N{ARABIC LETTER ALEF}\N{CJK UNIFIED IDEOGRAPH-4E2D}\N{PILE OF POO}",
    "x" * 1_000_000,
    "a\n" * 50_000,
]
STRINGS = ("subject", "version", "source", "entry_point", "lane", "test", "summary", "replay", "script", "commit")


def hostile(text: str) -> tuple[dict, dict, dict]:
    """Failure, summary and coverage with ``text`` wherever there is text."""
    report = failure(wrong={(0, 0): 1}, guards=(Guard(text, text, 1, 1, text),))
    report.update(dict.fromkeys(STRINGS, text))
    report["verdict"].update(kind=text, detail=text)
    report["diagnosis"] = {"cause": text, "summary": text, "buffer": text}
    report["environment"] = {text: text}
    for each in report["traces"]:
        each.update(reason=text, rule=text, steps=[text])
    run = {**summary(1), "subject": text, "lane": text, "environment": {text: text}}
    run["entry_points"] = {text: run["entry_points"]["kernels.v1"]}
    seen = coverage(30)
    counts = seen["entry_points"]["kernels.v1"]
    counts["pairs"] = {text: [[text, text, 3], [1, text, 0]]}
    counts["shapes"] = {text: 4}
    seen["entry_points"] = {text: counts, "other": counts}
    return report, run, {**seen, "started": text}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_content_stays_text(text: str) -> None:
    report, run, seen = hostile(text)
    drawn_page = pages.page(run, {f"{text[:100]}.json": report}, seen)
    assert len(drawn_page.encode()) < 1_000_000  # which fails for a lone surrogate too
    assert not re.search(
        "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b-\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff]", drawn_page
    )
    page = Parsed(drawn_page)
    harmless = Parsed(pages.page(*(lambda each: (each[1], {"n.json": each[0]}, each[2]))(hostile("name"))))
    assert {element.tag for element in page.elements} == {element.tag for element in harmless.elements}
    assert sum(element.tag in ("script", "style") for element in page.elements) == 2
    for element in page.elements:
        assert not any(name.startswith("on") or name in ("style", "autofocus") for name in element.attributes)
        if "href" in element.attributes:
            assert element.attributes["href"].startswith(("./", "#", "data:,")), element.attributes


def test_the_policy_of_the_page_lets_nothing_else_run() -> None:
    page = drawn(failure())
    (policy,) = (meta.attributes["content"] for meta in page.all("meta") if "http-equiv" in meta.attributes)
    (script,), (style,) = page.all("script"), page.all("style")
    assert f"script-src '{content_hash(script.text)}'" in policy
    assert f"style-src '{content_hash(style.text)}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


# A thousand


def test_a_thousand_failures_are_a_page_of_less_than_five_megabytes() -> None:
    reports = many(1000)
    started = time.process_time()
    text = pages.page(summary(1000), reports, coverage())
    assert time.process_time() - started < 10
    assert len(text.encode()) < 5_000_000
    page = Parsed(text)
    in_full = list(page.all("details", "failure"))
    assert len(in_full) == pages.MOST_IN_FULL
    assert f"{pages.MOST_IN_FULL} of 1,000 are shown with their picture" in text
    links = {link.attributes["href"] for link in page.all("a")}
    assert {f"./{name}" for name in reports} <= links
    causes = {report["diagnosis"]["cause"] for report in reports.values()}
    assert len(list(page.all("section", "cause"))) == len(causes)


@pytest.mark.parametrize(
    "text", ["word " * 20_000, '"' * 20_000, "\U0010ffff" * 20_000], ids=["words", "quotes", "escapes"]
)
def test_the_size_is_bounded_whatever_the_failures_are(text: str) -> None:
    report = failure(diagnosis=Diagnosis("cause", text), script=text[:15_000], summary=text)
    report["verdict"]["detail"] = text
    reports = {
        f"{number}.json": {**report, "diagnosis": {**report["diagnosis"], "cause": f"cause {number} {text}"}}
        for number in range(3000)
    }
    page = pages.page(summary(3000), reports, coverage())
    assert len(page.encode()) < 5_000_000
    assert f"{3000 - pages.MOST_GROUPS:,} more causes: only in the files" in page


def test_failures_in_full_have_a_size_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [failure(wrong={(0, 0): number}) for number in range(10, 20)]
    assert len(list(drawn(*reports).all("details", "failure"))) == 10
    monkeypatch.setattr(pages, "ROOM", 30_000)
    page = drawn(*reports)
    assert 1 <= len(list(page.all("details", "failure"))) < 5
    assert len(list(page.all("details", "rest"))) == 1


def test_more_rows_than_fit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_ROWS", 3)
    monkeypatch.setattr(pages, "MOST_IN_FULL", 2)
    page = drawn(*[failure(wrong={(0, 0): number}) for number in range(10, 20)])
    assert len(list(page.all("details", "failure"))) == 2
    (rest,) = page.all("details", "rest")
    assert "3 more failures" in rest.text
    assert any("5 failures more of this cause: only in the files" in note.text for note in page.all("p", "note"))


# Charts


def test_a_heat_map_shows_every_count_and_what_was_never_drawn() -> None:
    counts = {
        **coverage(30)["entry_points"]["kernels.v1"],
        "pairs": {"tile x window": [[64, "the rule", 12], [16, "below the rule", 0], [64, "below the rule", 1500]]},
    }
    (heat,) = charts.drawn("x", [counts]).maps
    assert [(cell.level, cell.text) for cell in heat.cells] == [(0, "0"), (6, "1.5k"), (3, "12")]
    assert heat.gaps == 1
    assert [label for *_, label in heat.row_labels] == ["16", "64"]
    assert [label for *_, label in heat.column_labels] == ["below the rule", "the rule"]


def test_entry_points_are_added_up() -> None:
    seen = coverage()["entry_points"]
    whole = charts.drawn("all", seen.values())
    assert whole.cases == sum(counts["cases"] for counts in seen.values()) == 300
    ranks = next(heat for heat in whole.maps if heat.title == "world size x rank")
    assert sum(int(cell.text) for cell in ranks.cells) == 300
    mixed = next(share for share in whole.shapes if share.name == "mixed")
    assert mixed.number == sum(counts["shapes"]["mixed"] for counts in seen.values())
    assert mixed.percent == pytest.approx(mixed.number / 3)


def test_many_values_are_shown_by_powers_of_two() -> None:
    counts = {**coverage(30)["entry_points"]["kernels.v1"], "pairs": {"a x b": [[n, 1, 1] for n in range(1, 40)]}}
    (heat,) = charts.drawn("x", [counts]).maps
    assert [as_ascii(label) for *_, label in heat.row_labels] == ["1", "2-3", "4-7", "8-15", "16-31", "32-63"]
    assert sorted((cell.y, int(cell.text)) for cell in heat.cells) == [
        (y, number) for (_, y, _), number in zip(heat.row_labels, (1, 2, 4, 8, 16, 8), strict=True) for y in [y - 16]
    ]
    labels = [as_ascii(charts.power_label(power)) for power in (-1, 0, 9, 10, 11, 21, 31)]
    assert labels == ["< 0", "0", "256-511", "512-1k", "1k-2k", "1M-2M", "1G-2G"]


def as_ascii(label: str) -> str:
    return label.replace("\N{EN DASH}", "-")


# Colours


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(scheme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", (TEMPLATES / "style.css").read_text(), re.DOTALL)
    assert len(blocks) == 2
    found = colours(blocks[scheme])
    pairs = [(text, on) for text in ("ink", "soft", "quiet", "blue", "red") for on in ("paper", "panel")]
    pairs += [("ink", "sunk"), ("soft", "sunk"), ("ink", "red-soft"), ("soft", "red-soft")]
    pairs += [("ink", f"blue-{level}") for level in (1, 2, 3, 4)] + [("on-dark", f"blue-{level}") for level in (5, 6)]
    low = {pair: round(contrast(found[pair[0]], found[pair[1]]), 2) for pair in pairs}
    assert {pair: value for pair, value in low.items() if value < 4.5} == {}


# Files


def write_run(folder: Path, reports: dict[str, dict], **more: object) -> None:
    for name, report in reports.items():
        (folder / name).write_text(json_lines(report))
    named = [f"elsewhere/{name}" for name in reports]
    (folder / "summary.json").write_text(json_lines({**summary(len(reports)), "reports": named, **more}))
    (folder / "coverage.json").write_text(json_lines(coverage()))


def test_the_page_is_drawn_from_the_files_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path, {"failure-a.json": failure(wrong={(0, 0): 1}), "failure-b.json": failure(diagnosis=ROW)})
    (tmp_path / "failure-of-an-earlier-run.json").write_text(json_lines(failure()))
    assert pages.draw(tmp_path) == tmp_path / "index.html"
    page = Parsed((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert {each.attributes["id"] for each in page.all("details", "failure")} == {"failure-a", "failure-b"}
    assert len(list(page.all("svg", "heat"))) > 5


def test_a_report_that_is_gone_or_broken_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, {"failure-a.json": failure(), "failure-b.json": failure(), "failure-c.json": failure()})
    (tmp_path / "failure-a.json").unlink()
    (tmp_path / "failure-b.json").write_text("{")
    (tmp_path / "coverage.json").unlink()
    pages.draw(tmp_path)
    page = Parsed((tmp_path / "index.html").read_text(encoding="utf-8"))
    (problems,) = page.all("section", "problems")
    assert "failure-a.json" in problems.text
    assert "failure-b.json" in problems.text
    assert len(list(page.all("details", "failure"))) == 1
    assert "left no count" in page.by_id("coverage").text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}'])
def test_a_summary_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ReportError, match=r"cannot draw index\.html"):
        pages.draw(tmp_path)
    assert not (tmp_path / "index.html").exists()


def test_the_command_draws_the_page_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, {"failure-a.json": failure()})
    assert command_line.main(["page", "--report-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'index.html'}\n"
    assert command_line.main(["page", "--report-dir", str(tmp_path / "none")]) == 1
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)


def test_the_end_of_a_run_writes_coverage_and_page(tmp_path: Path) -> None:
    write_run(tmp_path, {})
    (tmp_path / "coverage.json").unlink()
    assert pages.finish(Coverage(), tmp_path) == [f"page: {tmp_path / 'index.html'}"]
    assert (tmp_path / "coverage.json").exists()


def test_a_page_that_cannot_be_drawn_costs_a_line_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, {})
    (tmp_path / "file").touch()
    (line,) = pages.finish(Coverage(), tmp_path / "file")
    assert "cannot write" in line

    def broken(*_: object) -> None:
        raise ZeroDivisionError("\x1b[2Jno")

    monkeypatch.setattr(pages, "page", broken)
    assert pages.finish(Coverage(), tmp_path) == ["cannot draw index.html: ZeroDivisionError: \\x1b[2Jno"]


def test_templates_are_installed_with_the_package() -> None:
    """setuptools packages what these patterns name; nothing else that is no module."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["reports.page"]
    folder = TEMPLATES.parent
    packaged = {path for pattern in named for path in folder.glob(pattern)}
    there = {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert there == packaged
    assert len(there) >= 6


def test_the_page_needs_nothing_of_the_suite() -> None:
    """So that the reports of many machines can be drawn where no kernel runs."""
    names = ("torch", "numpy", "hypothesis", "conformance")
    code = f"import sys, reports.page; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
