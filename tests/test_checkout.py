"""Which commit a file of the subject is from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conformance.checkout import commit_of

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "kernel.py").write_text("x = 1\n")
    for words in (
        ["init", "-q"],
        ["add", "package"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return tmp_path


def test_a_tracked_file_has_a_commit(checkout: Path) -> None:
    file = checkout / "package" / "kernel.py"
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert commit_of(str(file)) == head.stdout.strip()


def test_a_changed_file_is_dirty(checkout: Path) -> None:
    file = checkout / "package" / "kernel.py"
    file.write_text("x = 2\n")
    assert commit_of(str(file)).endswith("-dirty")


def test_a_file_that_git_does_not_track_has_none(checkout: Path) -> None:
    other = checkout / "package" / "other.py"
    other.write_text("x = 3\n")
    assert commit_of(str(other)) == ""


@pytest.mark.parametrize("file", ["", "/nowhere/kernel.py", "x" * 5000, "a\0b"], ids=["none", "missing", "long", "nul"])
def test_what_is_no_file_has_none(file: str) -> None:
    assert commit_of(file) == ""


def test_without_git_there_is_none(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    commit_of.cache_clear()
    assert commit_of(str(checkout / "package" / "kernel.py")) == ""
