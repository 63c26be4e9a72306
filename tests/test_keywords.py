"""``-k cp`` finds the tests of context parallelism and nothing else; so do the other words that people select by.

Which tests those are is not listed here: each conformance test is run, and what it launches tells.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.commands import Done, in_few_processes, pytest_
from tests.launched import FILE

# What a test must have launched for the word to find it, and what it must not have launched.
WORDS = {"cp": ("cp", None), "circular": ("circular", "without a ring"), "dcp": ("dcp", None)}
# In a name, the two letters may only be the field's abbreviations: cp, dcp, pcp, with or without a number of ranks.
MEANT = re.compile(r"(?<![a-z])(d|p)?cp\d*(?![a-z])", re.IGNORECASE)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Node id of every conformance test -> what its launches were."""
    folder = tmp_path_factory.mktemp("launched")
    file = folder / "launched.json"
    options = ("--max-examples", "25", "--compile-budget", "3", "--report-dir", folder)
    done = pytest_("conformance", "-p", "tests.launched", *options, variables={FILE: str(file)})
    assert done.status in (0, 1), done.tail  # what a test launches does not depend on whether it passes
    return {name: set(found) for name, found in json.loads(file.read_text()).items()}


@pytest.fixture(scope="module")
def selected() -> dict[str, Done]:
    commands = [("-k", word, "--collect-only", "-q") for word in WORDS]  # a bare pytest means the suite
    return dict(zip(WORDS, in_few_processes(commands), strict=True))


@pytest.fixture(scope="module")
def everything() -> set[str]:
    done = pytest_("conformance", "tests", "--collect-only", "-q")
    assert done.status == 0, done.tail
    return done.collected()


@pytest.mark.parametrize("word", WORDS, ids=["parallel", "circular", "torch"])
def test_a_keyword_selects_what_launches_such_cases(word: str, launched: dict, selected: dict[str, Done]) -> None:
    wanted, unwanted = WORDS[word]
    should = {name for name, found in launched.items() if wanted in found and unwanted not in found}
    assert should
    # A test that these kernels have nothing for is skipped, and what it would launch is not known.
    unknown = {name for name, found in launched.items() if "skipped" in found}
    assert selected[word].collected() - unknown == should


def test_every_conformance_test_was_looked_at(launched: dict[str, set[str]], everything: set[str]) -> None:
    assert launched.keys() == {name for name in everything if name.startswith("conformance/")}
    assert all(found & {"launched", "skipped"} for found in launched.values())


def test_no_name_holds_the_letters_by_accident(everything: set[str]) -> None:
    """Not in ``cpu`` or ``memcpy``, not in a file's name, anywhere in the suite or its own tests."""
    assert len(everything) > 100
    assert {name for name in everything if "cp" in MEANT.sub("", name).lower()} == set()


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("conformance/test_cp.py::test_cp_slots[kernels.v1]", True),
        ("tests/test_kernels_torch_dcp.py::test_x[case-cp8]", True),
        ("tests/test_kernels.py::test_x[cpu]", False),
        ("tests/test_memcpy.py::test_x", False),
        ("tests/test_x.py::test_tcp", False),
    ],
    ids=["alone", "with-ranks", "processor", "copy", "network"],
)
def test_letters_by_accident_are_seen(name: str, clean: bool) -> None:
    assert ("cp" not in MEANT.sub("", name)) == clean
