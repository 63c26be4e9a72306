"""``bishengir-compile`` of ascendnpu-ir: everything that Ascend's compiler does before machine code.

Its last step calls ``hivmc``, which only CANN has. A stub in its place lets it finish and keep the last program. Each
compilation has a temporary folder and a time limit, and leaves neither files nor processes behind.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from conformance.lanes.ascend.ir import Line
from reference.fields import printable

KNOWN_VERSIONS = ("1.2.0",)
"""Whose programs ``measure`` was checked on by hand."""

# What triton-ascend 3.2.0 asks for on a device, and lines of source in messages and in the program.
_OPTIONS = (
    "--enable-hfusion-compile=true",
    "--enable-triton-kernel-compile=true",
    "--enable-hivm-compile=true",
    "--enable-auto-multi-buffer=true",
    "--enable-auto-bind-sub-block=true",
    "--enable-debug-info=true",
)
# Named otherwise for some chips. Asked for its version, it must answer as the compiler's own would.
_LAST_STEPS = ("hivmc", "hivmc-a5")
_STUB = '#!/bin/sh\ncase "$*" in *--version*) echo "hivmc {version}";; esac\nexit 0\n'
_PROGRAM = "module.hivm.opt.mlir"
_QUICK = 60.0  # seconds for a question that compiles nothing

COMPILED = "compiled"
REFUSED = "refused"
DIED = "died"
TIMED_OUT = "timed out"
UNKNOWN_TARGET = "unknown target"


class Unavailable(Exception):
    """There is no compiler here, or it does not answer. The message says which."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """What became of one. ``program`` only where ``status`` is COMPILED, and where the compiler wrote one.

    ``message`` is the compiler's own, with the ``line`` of source that it belongs to; ``notes`` are what it said beside
    it: warnings, and settings that it had to change.
    """

    status: str
    seconds: float
    message: str = ""
    line: Line | None = None
    notes: tuple[str, ...] = ()
    program: str | None = None


@dataclass(frozen=True)
class Compiler:
    """The program ``path`` and the seconds that one compilation may take."""

    path: Path
    timeout: float

    @cached_property
    def version(self) -> str:
        """As it says itself. Raises Unavailable."""
        done = self._ask("--version")
        found = re.search(r"bishengir-compile (\S+)", done)
        if found is None:
            raise Unavailable(f"{self.path.name} --version does not say its version but {printable(done[:80])!r}")
        return found[1]

    @cached_property
    def targets(self) -> frozenset[str]:
        """The chips it can be asked for. Raises Unavailable."""
        found = re.findall(r"^ +=(Ascend\w[\w-]*) ", self._ask("--help"), re.MULTILINE)
        if not found:
            raise Unavailable(f"{self.path.name} --help lists no target")
        return frozenset(found)

    def compile(self, linalg: str, target: str) -> Compilation:
        """Compile the linalg text of one kernel (with named operations) for ``target``. Raises Unavailable."""
        if target not in self.targets:
            message = f"{self.path.name} {self.version} knows no target {target}"
            return Compilation(UNKNOWN_TARGET, 0.0, message)
        with tempfile.TemporaryDirectory(prefix="audit-") as name:
            folder = Path(name)
            for step in _LAST_STEPS:
                (folder / step).write_text(_STUB.format(version=self.version), encoding="utf-8")
                (folder / step).chmod(0o755)
            source = folder / "kernel.mlir"
            # The back end does not know the attribute; triton-ascend takes it out as well.
            source.write_text(re.sub(r', mix_mode = "\w+"', "", linalg), encoding="utf-8")
            return self._run(folder, source, target)

    def _run(self, folder: Path, source: Path, target: str) -> Compilation:
        command = [self.path, source, f"--target={target}", *_OPTIONS, f"--save-temps={folder}"]
        started = time.perf_counter()
        returned, said = _finish([*map(str, command), "-o", str(folder / "kernel.o")], folder, self.timeout)
        seconds = time.perf_counter() - started
        said = said.replace(f"{folder}{os.sep}", "")
        notes = _notes(said)
        if returned is None:
            return Compilation(TIMED_OUT, seconds, f"not done after {self.timeout:g} s", notes=notes)
        if returned < 0:
            name = signal.Signals(-returned).name if -returned in set(signal.Signals) else f"signal {-returned}"
            return Compilation(DIED, seconds, f"ended by {name}: {_last_lines(said)}".rstrip(": "), notes=notes)
        if returned:
            message, line = _error(said)
            return Compilation(REFUSED, seconds, message or f"exit status {returned}", line, notes)
        program = folder / _PROGRAM
        text = program.read_text(encoding="utf-8", errors="replace") if program.exists() else None
        return Compilation(COMPILED, seconds, notes=notes, program=text)

    def _ask(self, question: str) -> str:
        returned, said = _finish([str(self.path), question], None, _QUICK)
        if returned != 0:
            raise Unavailable(f"{self.path.name} {question}: {'no answer' if returned is None else said[:200]}")
        return said


def find(timeout: float) -> Compiler:
    """The compiler of the installed package ascendnpu-ir. Raises Unavailable."""
    spec = importlib.util.find_spec("ascendnpuir")
    if spec is None or spec.origin is None:
        raise Unavailable("the package ascendnpu-ir is not installed")
    path = Path(spec.origin).parent / "bin" / "bishengir-compile"
    return at(path, timeout)


def at(path: Path, timeout: float) -> Compiler:
    """The one at ``path``. Raises Unavailable."""
    if not path.is_file():
        raise Unavailable(f"there is no file {printable(path)}")
    # The wheel does not always mark its programs as executable; those beside it are its helpers.
    for program in path.parent.glob(f"{path.name}*"):
        if not os.access(program, os.X_OK):
            with suppress(OSError):  # then it cannot be started, which is said
                program.chmod(program.stat().st_mode | 0o111)
    return Compiler(path, timeout)


def _finish(command: list[str], folder: Path | None, timeout: float) -> tuple[int | None, str]:
    """Exit status (None: the time was up) and all that was printed. Nothing it has started goes on afterwards."""
    before = [str(folder)] if folder is not None else []
    # For some chips it looks for programs beside itself on the path.
    paths = os.pathsep.join([*before, str(Path(command[0]).parent), os.environ.get("PATH", os.defpath)])
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(os.environ, PATH=paths),
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(f"{Path(command[0]).name} cannot be started: {error.strerror or error}") from error
    try:
        said, _ = process.communicate(timeout=timeout)
        returned: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        returned = None
    return returned, said.decode(errors="replace")


_MESSAGE = re.compile(
    r'^(?:loc\()?(?:"(?P<file>[^"]+)"|(?P<bare>[^\s:"()]+)):(?P<line>\d+):\d+\)?: '
    r"(?P<kind>error|warning): (?P<what>.*)$"
)
_PLAIN = re.compile(r"^(?:[\w-]+: )?(?:\[ERROR\] |error: |for the )(?P<what>.*)$")


def _error(said: str) -> tuple[str, Line | None]:
    """The message that tells most, and its line: the last error with a reason, else the first."""
    found = [match for line in said.splitlines() if (match := _MESSAGE.match(line)) and match["kind"] == "error"]
    told = [match for match in found if not match["what"].startswith("Failed to run")] or found
    if told:
        file = told[-1]["file"] or told[-1]["bare"]
        line = None if file.endswith(".mlir") else Line(file, int(told[-1]["line"]))
        return told[-1]["what"][:600], line
    for each in said.splitlines():
        if plain := _PLAIN.match(each):
            return plain["what"][:600], None
    return _last_lines(said), None


def _notes(said: str) -> tuple[str, ...]:
    """Warnings, and what the compiler changed to get through, each once."""
    notes = []
    for line in said.splitlines():
        if line.startswith("[NOTE] "):
            notes.append(line.removeprefix("[NOTE] "))
        elif (found := _MESSAGE.match(line)) and found["kind"] == "warning":
            file = found["file"] or found["bare"]
            notes.append(f"{Line(file, int(found['line']))}: {found['what']}")
    return tuple(dict.fromkeys(notes))


def _last_lines(said: str) -> str:
    return " / ".join([line.strip() for line in said.splitlines() if line.strip()][-2:])[:400]
