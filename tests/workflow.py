"""A workflow of GitHub Actions as far as it is shell: its ``run`` steps, one after the other, as a runner runs them.

What an action does (``uses``) is GitHub's and left out. Steps run in a bash with the runner's own switches and an
environment that has nothing but what the workflow and the runner put into it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "WORKFLOW_TOOLS_REQUIRED"
"""The variable that says that what reads workflows must be there: then a test without it fails and does not skip."""
_ALWAYS = {"${{ always() }}", "${{ !cancelled() }}"}
_TIMEOUT = 300


def read(file: Path) -> dict[str, Any]:
    """The workflow in ``file``. Its key ``on`` is True: YAML takes the word for that."""
    if REQUIRED not in os.environ:
        pytest.importorskip("yaml", reason="PyYAML is not installed: `make lint` installs it")
    import yaml

    workflow: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return workflow


def jobs(workflow: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(workflow["jobs"].values())


def run(
    workflow: Mapping[str, Any],
    workspace: Path,
    temporary: Path,
    variables: Mapping[str, str],
    overriding: Mapping[str, str],
) -> tuple[dict[str, int], str, str]:
    """The statuses of the only job's ``run`` steps by their names, as far as they run, what they printed, and the
    summary.

    ``variables`` are those of the repository (``vars``); ``overriding`` replaces values of the workflow's own ``env``.
    """
    (job,) = jobs(workflow)
    summary = temporary / "summary.md"
    summary.touch()
    runner = {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(workspace),
        "GITHUB_STEP_SUMMARY": str(summary),
        "RUNNER_TEMP": str(temporary),
        "HOME": str(temporary / "home"),
        "PATH": os.environ["PATH"],
    }
    unknown = overriding.keys() - workflow["env"].keys()
    assert not unknown, f"the workflow has no variable {unknown}"
    statuses: dict[str, int] = {}
    printed = ""
    for step in job["steps"]:
        if "run" not in step or (any(statuses.values()) and step.get("if") not in _ALWAYS):
            continue
        own = {name: _value(text, variables) for name, text in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=workspace / job["defaults"]["run"]["working-directory"],
            env={**runner, **workflow["env"], **overriding, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT,
        )
        statuses[step["name"]] = done.returncode
        printed += f"--- {step['name']}\n{done.stdout}"
    return statuses, printed, summary.read_text(encoding="utf-8")


def _value(text: str, variables: Mapping[str, str]) -> str:
    """``text`` with the expressions that a step's ``env`` may hold; a variable that is not set is empty."""
    return re.sub(r"\$\{\{ vars\.(\w+) \}\}", lambda found: variables.get(found[1], ""), text)
