"""Importing one file of a package that is not installed: stand-ins do nothing while it is imported and say what is
missing when it is used.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from conformance.subjects.loading import PartialPackage, StandInUsed
from tests import published_trees as trees

FILE = "vllm_ascend/worker/block_table.py"


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """What can be imported, and what has been, as before: a PartialPackage is made for a process of its own."""
    finders, modules = list(sys.meta_path), set(sys.modules)
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]


class Tree:
    """A tree in which ``text`` is FILE; ``load`` imports it."""

    def __init__(self, folder: Path, text: str, others: Mapping[str, str] | None = None) -> None:
        self.folder = trees.write(folder, {FILE: text, **(others or {})})

    def load(
        self, *, absent: tuple[str, ...] = ("vllm",), known: Mapping[str, object] | None = None, neighbours: bool = True
    ) -> ModuleType:
        package = PartialPackage(self.folder / "vllm_ascend", absent, known or {}, neighbours=neighbours)
        return package.load(self.folder / FILE)


# Everything that the top of a file does with what it imports.
INERT = {
    "logger": "from vllm.logger import init_logger\nlogger = init_logger(__name__)\nlogger.info('%s', 1)",
    "decorator": "from vllm.x import d\n@d\ndef f(a):\n    return a + 1\nassert f(1) == 2",
    "decorator-with-arguments": "from vllm.x import d\n@d('name', key=1)\ndef f(a):\n    return -a\nassert f(1) == -1",
    "decorated-class": "import vllm.x as x\n@x.y.d()\nclass C:\n    value = 3\nassert C().value == 3",
    "base": "from vllm.x import Base\nclass C(Base):\n    value = 3\nassert C.value == 3",
    "two-bases": "from vllm.x import A, B\nclass C(A, B):\n    pass",
    "annotations": "from vllm.x import T\ndef f(a: T | None, b: 'T' = None) -> dict[str, T]: ...\nu: None | T = None",
    "subscript": "from vllm.x import T\nalias = T[int][str]\ndef f(a: list[T['k']]): ...",
    "attributes": "import vllm\nvalue = vllm.envs.SOMETHING.of.depth",
    "submodule": "import vllm.a.b.c\nfrom vllm.a import b\nassert b is vllm.a.b",
    "instance": "from vllm.x import T\nassert not isinstance(3, T)",
    "star": "from vllm.x import *",
    "neighbour": "from vllm_ascend.other import value\nassert value == 7",
    "neighbour-that-ends-early": "from vllm_ascend.partial import value, later\nassert value == 7\nlater()",
    "package-above": "import vllm_ascend\nfrom vllm_ascend import platform\nplatform.setup()",
}
NEIGHBOURS = {
    "vllm_ascend/other.py": "from vllm.x import y\nvalue = 7\n",
    "vllm_ascend/partial.py": "value = 7\nimport a_module_of_nobody\nlater = 8\n",
}


@pytest.mark.parametrize("name", INERT)
def test_stand_ins_do_nothing_while_a_file_is_imported(name: str, tmp_path: Path) -> None:
    assert Tree(tmp_path, INERT[name], NEIGHBOURS).load().__name__ == "vllm_ascend.worker.block_table"


# What a function does when it is called, and what must be said to be missing.
USED = {
    "function": ("from vllm.x import g", "g()", "vllm.x.g was called"),
    "with-a-callable": ("from vllm.x import g", "g(len)", "vllm.x.g was called"),
    "attribute": ("import vllm.a as a", "a.b.c(1)", "vllm.a.b.c was called"),
    "result": ("from vllm.x import g\nmade = g(1)", "made.method()", "vllm.x.g().method was called"),
    "derived": ("from vllm.x import Base\nclass C(Base):\n    pass", "C()", "C, made of vllm.x.Base was called"),
    "late": ("", "__import__('vllm.late', fromlist=['g']).g()", "vllm.late.g was called"),
}


@pytest.mark.parametrize("name", USED)
def test_a_stand_in_that_is_used_says_what_is_missing(name: str, tmp_path: Path) -> None:
    top, call, message = USED[name]
    module = Tree(tmp_path, f"{top}\ndef use():\n    return {call}\n").load()
    with pytest.raises(StandInUsed) as raised:
        module.use()
    assert str(raised.value) == f"{message}, but its package is not installed"


def test_a_file_that_raises_leaves_stand_ins_that_raise(tmp_path: Path) -> None:
    """The import is over however it ends, and its module is gone."""
    tree = Tree(tmp_path, "from vllm.x import g\nkept = [g]\nraise LookupError('no')\n")
    with pytest.raises(LookupError, match=r"^no$"):
        tree.load()
    assert "vllm_ascend.worker.block_table" not in sys.modules
    from vllm.x import g

    with pytest.raises(StandInUsed):
        g()


def test_packages_above_are_not_executed_and_neighbours_only_where_asked(tmp_path: Path) -> None:
    text = "from vllm_ascend.other import value\n"
    ran = Tree(tmp_path / "ran", text, NEIGHBOURS).load()
    assert ran.value == 7
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_ascend"]:
        del sys.modules[name]
    replaced = Tree(tmp_path / "replaced", text, NEIGHBOURS).load(neighbours=False)
    with pytest.raises(StandInUsed, match=r"^vllm_ascend\.other\.value was called"):
        replaced.value()


def test_what_is_known_is_real_by_its_module_or_in_any(tmp_path: Path) -> None:
    text = "from vllm.x import a, b\nfrom vllm.y import a as other, b as same\n"
    module = Tree(tmp_path, text).load(known={"vllm.x.a": 1, "*.b": 2})
    assert (module.a, module.b, module.same) == (1, 2, 2)
    assert module.other != 1


def test_a_package_that_is_installed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed" / "vllm").mkdir(parents=True)
    (tmp_path / "installed" / "vllm" / "__init__.py").write_text("value = 9\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    assert Tree(tmp_path / "tree", "from vllm import value\n").load().value == 9


def test_a_package_that_nobody_named_stays_missing(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_of_nobody"):
        Tree(tmp_path, "import a_module_of_nobody\n").load()


def test_the_neighbours_of_vllm_are_replaced(tmp_path: Path) -> None:
    """They would start an engine's worth of imports; those of vllm-ascend are run."""
    stop = "raise SystemExit('a neighbour was executed')\n"
    upstream = trees.source("v1_upstream") + "\nfrom vllm.v1.other import helper\n"
    ascend = trees.source("v1_circular") + "\nfrom vllm_ascend.other import helper\nassert helper == 7\n"
    written = [
        ("vllm", trees.write(tmp_path / "one", {trees.UPSTREAM_V1: upstream, "vllm/v1/other.py": stop})),
        ("vllm-ascend", trees.write(tmp_path / "two", {trees.V1: ascend, "vllm_ascend/other.py": "helper = 7\n"})),
    ]
    for entries in trees.found(written):
        assert entries["v1"].status == "testable"


def test_the_process_of_the_suite_imports_nothing_of_a_subject(tmp_path: Path) -> None:
    """What a file does when it is imported happens in the process that holds the subject, and ends with it."""
    noisy = "import os, sys\nos.environ['NOISY'] = 'yes'\nsys.path.insert(0, 'nowhere')\nprint('noise')\n"
    trees.write(tmp_path, {trees.V1: noisy + trees.source("v1_circular")})
    program = (
        "import os, sys\n"
        "from conformance import lanes\n"
        "from conformance.execution.session import Session\n"
        "before = list(sys.path), list(sys.meta_path), dict(os.environ)\n"
        f"with Session(lanes.automatic(), 'vllm-ascend', {str(tmp_path)!r}, cache={tmp_path / 'cache'!r}) as session:\n"
        "    assert session.entries['v1'].status == 'testable', session.entries['v1'].status\n"
        "assert before == (list(sys.path), list(sys.meta_path), dict(os.environ))\n"
        "theirs = ('vllm', 'vllm_ascend', 'triton', 'torch')\n"
        "found = [name for name in sys.modules if name.partition('.')[0] in theirs]\n"
        "assert not found, found\n"
    ).replace("PosixPath(", "__import__('pathlib').Path(")
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
