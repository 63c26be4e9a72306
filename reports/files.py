"""Writing into the report folder: whole files or none, and one clear error when the folder cannot be written; and
reading what somebody else has put into one.
"""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from reference.fields import CaseError, printable

MOST_BYTES = 64 << 20
"""Of a file that is read."""
_PROBE = 1 << 16  # bytes; a file of none can be made on a disk that is full


class ReportError(Exception):
    """A report could not be written. The message, one line, names the file and why.

    Nothing is lost with it: whoever catches this still holds the report and can print it.
    """


def write_text(path: Path, text: str) -> Path:
    """Write ``path`` and its folder in one step: readers see the old file or the new one. A link stays one. Raises
    ReportError, also for what is no regular file, which a file would replace.
    """
    path = path.resolve()
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ReportError(f"cannot write {printable(path)}: it is no regular file")
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")  # others may write it too, on other machines
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise ReportError(f"cannot write {printable(path)}: {error.strerror or error}") from error
    return path


def remove(path: Path) -> None:
    """Take away what an earlier run has left, if it has. Raises ReportError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"cannot remove {printable(path)}: {error.strerror or error}") from error


def read_bytes(path: Path) -> bytes:
    """What is in a file of a folder that others have filled. Raises CaseError: also for what is no file, which to open
    could mean to wait for ever, or of which there is no end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CaseError("it is no regular file")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except CaseError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise CaseError(str(getattr(error, "strerror", None) or error)) from None
    if len(data) > MOST_BYTES:
        raise CaseError(f"more than {MOST_BYTES >> 20} MiB")
    return data


def read_text(path: Path) -> str:
    """The same as UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise CaseError(f"not UTF-8: {error.reason} at byte {error.start}") from None


def unwritable(folder: Path) -> str | None:
    """Why no file of some size can be written into ``folder``, which is made if it is not there; None: one can."""
    probe = folder / f".{uuid.uuid4().hex}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(_PROBE))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return f"cannot write {printable(folder)}: {error.strerror or error}"
    return None


def json_lines(fields: Mapping[str, object]) -> str:
    """A JSON object with one field a line, so that a long case stays one line and a diff of two reports is readable."""
    body = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in fields.items())
    return f"{{\n{body}\n}}\n"
