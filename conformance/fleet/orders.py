"""What travels between the machines of a fleet: an order to run a round, and what came of it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from reports.files import ReportError

ROOT = Path(__file__).resolve().parents[2]
_LEFT_OUT = ("__pycache__", ".git", ".venv", ".venv-interpreter", ".cache", "build", "node_modules")
_MOST_BYTES = 256 << 20


class FleetError(RuntimeError):
    """A fleet cannot do what it was asked for. The message is one line."""


@dataclass(frozen=True, slots=True)
class Source:
    """A tree of kernels, ``path`` where the order was given and ``packed`` for where it is not there."""

    subject: str
    path: str
    digest: str
    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Order:
    """One round: number ``round`` of ``shard`` (of ``shards``, from 1), drawn with ``seed``. ``arguments`` are those of
    pytest, ``known_failures`` the texts of such files, ``suite`` says which version of this project is meant, and
    ``host`` which machine has it.
    """

    shard: int
    shards: int
    round: int
    seed: int
    suite: str
    host: str
    arguments: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    known_failures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"shard {self.shard}/{self.shards}, round {self.round}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a round left: pytest's exit status (None: there was no time to start it), its report folder, packed, the
    cases in its corpus and what it printed.
    """

    order: Order
    host: str
    status: int | None = None
    reports: bytes = field(default=b"", repr=False)
    cases: tuple[str, ...] = ()
    output: str = ""
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A round that brought nothing back, and why."""

    order: Order
    reason: str


def suite_version() -> str:
    """The same on two machines that have the same version of this project."""
    packages = ("reference", "strategies", "conformance", "reports")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    return _digest(ROOT, files)


def source(subject: str, path: Path) -> Source:
    """The tree at ``path``, to be sent. Compiled libraries stay behind: no entry point is in one. Raises FleetError."""
    files = _files(path)
    size = sum(file.stat().st_size for file in files)
    if size > _MOST_BYTES:
        raise FleetError(
            f"--source: {path} has {size >> 20} MiB, more than {_MOST_BYTES >> 20} to send to every machine"
        )
    return Source(subject, str(path), _digest(path, files), packed(path, files))


def is_there(source: Source) -> bool:
    """Whether this machine has the same tree at the same path."""
    path = Path(source.path)
    return path.is_dir() and _digest(path, _files(path)) == source.digest


def packed(folder: Path, files: Iterable[Path] | None = None) -> bytes:
    """The files of a folder as one value."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for file in sorted(folder.rglob("*")) if files is None else files:
            if file.is_file():
                archive.add(file, file.relative_to(folder).as_posix(), recursive=False)
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """What ``packed`` made, into ``folder``. Raises ReportError, with no more than a part of it written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ReportError(f"cannot write {folder}: {reason}") from error


def _files(folder: Path) -> list[Path]:
    found = (
        path for path in folder.rglob("*") if not any(part in _LEFT_OUT for part in path.relative_to(folder).parts)
    )
    return sorted(path for path in found if path.is_file() and path.suffix not in (".so", ".o", ".a", ".pyc"))


def _digest(folder: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
