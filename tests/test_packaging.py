"""What an installation rests on: pinned versions that agree, make targets that run what they say, no machine's own."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
LOCKED_LANES = ("lowered", "interpreter")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(*files: str) -> dict[str, str]:
    """``name: version`` for every line of the lock files; a line of another form is an error."""
    found = {}
    for file in files:
        for line in (REQUIREMENTS / file).read_text().splitlines():
            if stripped := line.partition("#")[0].strip():
                match = re.fullmatch(r"([a-z0-9-]+)==([0-9][0-9A-Za-z.]*)", stripped)
                assert match, f"{file}: {stripped!r} is not name==version"
                assert match[1] not in found, f"{file}: {match[1]} is pinned twice"
                found[match[1]] = match[2]
    return found


def lane_pins(lane: str) -> dict[str, str]:
    return pins(f"{lane}.txt", f"{lane}-triton.txt")


def declared(extra: str) -> list[Requirement]:
    return [Requirement(line) for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]]


def disagreements(requirements: list[Requirement], locked: dict[str, str]) -> list[str]:
    """Requirements that a lock file leaves out or pins to a version they do not admit."""
    versions = [(requirement, locked.get(canonicalize_name(requirement.name))) for requirement in requirements]
    return [
        f"{requirement}: locked is {version}"
        for requirement, version in versions
        if version is None or not requirement.specifier.contains(version)
    ]


# --- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", LOCKED_LANES)
def test_a_lock_file_pins_what_its_extra_declares(lane: str) -> None:
    assert disagreements(declared(lane), lane_pins(lane)) == []


def test_the_lock_file_of_the_developer_tools_pins_what_their_extra_declares() -> None:
    tools = [Requirement(line) for line in PROJECT["optional-dependencies"]["dev"]]
    assert disagreements(tools, pins("dev.txt")) == []


def test_the_lock_file_of_a_fleet_pins_what_its_extra_declares_and_nothing_of_a_lane_otherwise() -> None:
    wanted = [Requirement(line) for line in PROJECT["optional-dependencies"]["fleet"]]
    locked = pins("fleet.txt")
    assert disagreements(wanted, locked) == []
    for others in (lane_pins("lowered"), lane_pins("interpreter"), pins("dev.txt"), pins("faults.txt")):
        assert {name: locked[name] for name in locked.keys() & others.keys()}.items() <= others.items()


def test_lock_files_agree_with_each_other() -> None:
    lowered, interpreter, tools = lane_pins("lowered"), lane_pins("interpreter"), pins("dev.txt")
    for one, other in ((lowered, interpreter), (lowered, tools), (interpreter, tools)):
        assert {name: one[name] for name in one.keys() & other.keys()} == {
            name: other[name] for name in one.keys() & other.keys()
        }


def test_a_device_is_given_what_the_suite_needs_and_keeps_what_its_driver_needs() -> None:
    given, lowered = pins("device.txt"), lane_pins("lowered")
    assert given.items() <= lowered.items()
    needed = {canonicalize_name(requirement.name) for extra in ("cuda", "npu") for requirement in declared(extra)}
    assert needed - given.keys() == {"numpy", "torch", "torch-npu", "triton", "triton-ascend"}
    assert not {"numpy", "torch", "triton", "triton-ascend"} & given.keys()


@pytest.mark.parametrize("lane", LOCKED_LANES)
def test_the_triton_of_a_lane_is_in_a_lock_file_of_its_own(lane: str) -> None:
    assert not {"triton", "triton-ascend"} & pins(f"{lane}.txt").keys()
    assert set(pins(f"{lane}-triton.txt")) == {"triton-ascend" if lane == "lowered" else "triton"}


def test_the_lock_file_of_this_environment_is_complete() -> None:
    """Every requirement of every pinned package is pinned too, as far as these are installed here.

    A torch for CUDA requires the packages of that toolkit and a triton, and pins them itself: they are left out here.
    """
    locked = lane_pins(own_lane())
    missing = {
        f"{name} requires {requirement}"
        for name in locked
        for requirement in map(Requirement, metadata.requires(name) or ())
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        and not re.match(r"nvidia-|cuda-|triton$", canonicalize_name(requirement.name))
        and disagreements([requirement], locked)
    }
    assert missing == set()


def test_every_package_of_the_project_gets_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert there
    assert there <= {pattern.removesuffix("*") for pattern in settings["include"]}


# --- the environment check -------------------------------------------------------------------------------------------


def load_check() -> ModuleType:
    specification = importlib.util.spec_from_file_location("check_environment", REQUIREMENTS / "check_environment.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def own_lane() -> str:
    """The lane whose environment this is; a device machine's own environment has no lock file to agree with."""
    if not (Path(sys.prefix) / ".complete").exists():
        pytest.skip("not an environment that make created")
    return "lowered" if load_check().installed("triton-ascend") else "interpreter"


def check(lane: str, *, first_on_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if first_on_path is not None:
        environment["PYTHONPATH"] = str(first_on_path)
    command = [sys.executable, str(REQUIREMENTS / "check_environment.py"), lane]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def distribution(folder: Path, name: str, version: str) -> None:
    information = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_the_environment_check_accepts_this_environment_and_prints_its_versions() -> None:
    result = check(own_lane())
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 1
    assert f"torch {metadata.version('torch')}" in result.stdout


def test_the_environment_check_rejects_the_environment_of_the_other_lane() -> None:
    (other,) = set(LOCKED_LANES) - {own_lane()}
    result = check(other)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1


def test_the_environment_check_sees_a_triton_installed_over_the_one_of_the_lane(tmp_path: Path) -> None:
    distribution(tmp_path, "triton" if own_lane() == "lowered" else "triton-ascend", "3.7.1")
    result = check(own_lane(), first_on_path=tmp_path)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "3.7.1 is installed beside or over" in result.stderr


def test_the_environment_check_sees_another_triton_being_imported(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text('__version__ = "3.7.1"\n')
    result = check(own_lane(), first_on_path=tmp_path)
    assert result.returncode == 1
    assert "`import triton` finds triton 3.7.1, expected" in result.stderr


def test_the_environment_check_names_a_package_of_another_version(tmp_path: Path) -> None:
    distribution(tmp_path, "hypothesis", "6.0.0")
    result = check(own_lane(), first_on_path=tmp_path)
    assert result.returncode == 1
    assert f"hypothesis is 6.0.0, the lock file says {lane_pins(own_lane())['hypothesis']}" in result.stderr


# --- make ------------------------------------------------------------------------------------------------------------

FAKE_PYTHON = """#!/bin/sh
# Answers the Makefile's question which Python this is.
echo "{answer}"
"""


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``make`` as somebody types it: without what a `make` around this test run passes on."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    environment = {name: value for name, value in os.environ.items() if not re.match(r"MAKE|MFLAGS|LANE$", name)}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


def last_command(*arguments: str) -> str:
    result = make("--dry-run", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


def fake_python(folder: Path, answer: str) -> str:
    path = folder / "python"
    path.write_text(FAKE_PYTHON.format(answer=answer))
    path.chmod(0o755)
    return f"PYTHON={path}"


@pytest.fixture
def python_for_lowered(tmp_path: Path) -> str:
    return fake_python(tmp_path, "lowered 3.11.9 x86_64")


@pytest.fixture
def later_python(tmp_path: Path) -> str:
    return fake_python(tmp_path, "interpreter 3.13.1 x86_64")


def test_make_conformance_runs_the_gate_on_the_lowered_lane(python_for_lowered: str) -> None:
    command = last_command("conformance", python_for_lowered)
    assert command.split() == (
        ".venv/bin/python -m pytest conformance --subject kernels --lane lowered --hypothesis-profile gate".split()
    )


def test_make_conformance_passes_its_variables_on(python_for_lowered: str) -> None:
    command = last_command(
        "conformance",
        python_for_lowered,
        "SUBJECT=kernels vllm-ascend",
        "SOURCE=vllm-ascend=a folder/it's here",
        "LANE=interpreter",
        "PROFILE=deep",
        'ARGS=-k "circular and not fused" -x',
    )
    assert command.split() == [
        *".venv-interpreter/bin/python -m pytest conformance --subject kernels --subject vllm-ascend".split(),
        *r"--source 'vllm-ascend=a folder/it'\''s here' --lane interpreter --hypothesis-profile deep".split(),
        *'-k "circular and not fused" -x'.split(),
    ]


def test_make_conformance_uses_the_interpreter_lane_on_another_python_and_says_so(later_python: str) -> None:
    result = make("--dry-run", "conformance", later_python)
    assert "no wheel for CPython 3.13.1 on x86_64: using the interpreter lane" in " ".join(result.stdout.split())
    command = result.stdout.splitlines()[-1]
    assert command.startswith(".venv-interpreter/bin/python")
    assert "--lane interpreter" in command


def test_make_says_nothing_of_lanes_where_one_was_asked_for(later_python: str) -> None:
    result = make("explain-lane", later_python, "LANE=interpreter")
    assert (result.returncode, result.stderr) == (0, "")
    assert "wheel" not in result.stdout


def test_make_refuses_to_build_the_lowered_environment_with_another_python(later_python: str) -> None:
    result = make("--dry-run", "--always-make", "environment", later_python)
    assert result.returncode == 2
    assert "lane lowered needs CPython 3.11" in result.stderr
    assert "found 3.13.1 x86_64" in result.stderr


def test_make_names_the_pythons_it_tried_when_none_serves() -> None:
    result = make("--dry-run", "--always-make", "environment", "PYTHON=/nonexistent/python")
    assert result.returncode == 2
    assert "no CPython 3.11 or later that can create an environment (tried: /nonexistent/python)" in result.stderr


@pytest.mark.parametrize("lane", ["npu", "cuda"])
def test_make_leaves_a_device_machine_its_own_environment(lane: str) -> None:
    result = make("--dry-run", "conformance", f"LANE={lane}", "PYTHON=/opt/python/bin/python3")
    assert [line.split()[:2] for line in result.stdout.splitlines() if line != ":"] == [
        ["/opt/python/bin/python3", "requirements/check_environment.py"],
        ["/opt/python/bin/python3", "-m"],
    ]
    assert "venv" not in result.stdout


def test_torch_can_come_from_a_wheel(python_for_lowered: str) -> None:
    result = make("--dry-run", "--always-make", "environment", python_for_lowered, "TORCH=a folder/torch.whl")
    installation = next(line for line in result.stdout.splitlines() if "requirements/lowered.txt" in line)
    assert installation.endswith("'a folder/torch.whl'")


@pytest.mark.parametrize("lane", LOCKED_LANES)
def test_the_triton_of_a_lane_is_installed_last_and_alone(lane: str, python_for_lowered: str) -> None:
    target = {"lowered": "environment", "interpreter": "environment-interpreter"}[lane]
    result = make("--dry-run", "--always-make", target, python_for_lowered)
    steps = [line for line in result.stdout.splitlines() if " -m pip " in line]
    assert [("--no-deps" in step, step.split()[-1]) for step in steps] == [
        (False, f"requirements/{lane}.txt"),
        (False, "triton"),
        (True, f"requirements/{lane}-triton.txt"),
    ]
    assert "uninstall" in steps[1]


def test_a_changed_lock_file_rebuilds_the_environment_it_belongs_to(tmp_path: Path, python_for_lowered: str) -> None:
    shutil.copytree(REQUIREMENTS, tmp_path / "requirements")
    shutil.copy(ROOT / "Makefile", tmp_path)
    stamp = tmp_path / ".venv" / ".complete"
    stamp.parent.mkdir()
    stamp.touch()
    arguments = ("--directory", str(tmp_path), "--dry-run", "environment", python_for_lowered)
    later = stamp.stat().st_mtime + 10
    assert "-m venv" not in make(*arguments).stdout
    os.utime(tmp_path / "requirements" / "interpreter.txt", (later, later))
    assert "-m venv" not in make(*arguments).stdout
    os.utime(tmp_path / "requirements" / "lowered-triton.txt", (later, later))
    assert "-m venv --clear .venv" in make(*arguments).stdout


# --- what the repository says ----------------------------------------------------------------------------------------


def files_in_git() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


# Written so that this file does not match itself.
MACHINE_SPECIFIC = {
    "a package index": r"(pypi|pythonhosted|download\.pytorch)[.](org|io)|[-]-(extra-)?index[-]url",
    "a folder of one machine": r"(?<![\w.])/(home|root|Users|work|workspace)[/]\w",
}


@pytest.mark.parametrize("what", MACHINE_SPECIFIC)
def test_no_file_names(what: str) -> None:
    pattern = re.compile(MACHINE_SPECIFIC[what])
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files_in_git()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_generated_files_are_ignored_by_git() -> None:
    files_in_git()
    generated = [
        ".venv/bin/python",
        ".venv-interpreter/bin/python",
        ".cache/lowered/kernel.so",
        ".hypothesis/examples/0",
        "reports/output/summary.json",
        "reference/__pycache__/case.cpython-311.pyc",
    ]
    command = ["git", "check-ignore", "--no-index", *generated]
    ignored = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert ignored == generated


def commands_of_ci(folder: Path, *, failing: str, browser: bool) -> tuple[int, list[str]]:
    """Exit status of the CI script and what it ran, on a machine whose `make` and `apt-get` only record it."""
    recorded = folder / "recorded"
    recorded.unlink(missing_ok=True)
    script = f"""#!/bin/sh
echo "$(basename "$0") $* $BROWSER_REQUIRED" >> {recorded}
read -r line && exit 9
test "$1" != "{failing.split()[0]}"
"""
    for name in ("make", "apt-get", "chromium"):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    if not browser:
        (folder / "chromium").unlink()
    for name in ("bash", "dirname", "basename", "cat", "mktemp"):
        if not (folder / name).exists():
            (folder / name).symlink_to(shutil.which(name) or name)
    done = subprocess.run([ROOT / ".ci" / "run"], env={**os.environ, "PATH": str(folder)}, input=b"typed\n")
    return done.returncode, recorded.read_text().splitlines()


def test_the_ci_script_runs_without_input_and_fails_when_a_step_does(tmp_path: Path) -> None:
    """With a `make` that only records its goal: the steps, and that a failing one is not passed over."""
    steps = ["lint", "environment-interpreter environment-fleet", "test-interpreter", "test"]
    status, ran = commands_of_ci(tmp_path, failing="none", browser=True)
    assert status == 0
    assert ran[:2] == [f"make {step} 1" for step in steps[:2]]
    assert sorted(ran[2:]) == sorted(f"make {step} 1" for step in steps[2:])  # at the same time
    for step, number in zip(steps, (1, 2, 4, 4), strict=True):
        status, ran = commands_of_ci(tmp_path, failing=step, browser=True)
        assert status != 0, step
        assert len(ran) == number


def test_the_ci_script_installs_a_browser_where_there_is_none(tmp_path: Path) -> None:
    status, ran = commands_of_ci(tmp_path, failing="none", browser=False)
    assert status == 0
    assert [line.split()[:2] for line in ran[:3]] == [["apt-get", "update"], ["apt-get", "install"], ["make", "lint"]]
    assert "chromium" in ran[1].split()
    for step in ("update", "install"):
        status, ran = commands_of_ci(tmp_path, failing=step, browser=False)
        assert status != 0
        assert not any(line.startswith("make") for line in ran)
