"""Source trees as vllm-ascend and vLLM keep them, filled with the stand-ins of ``tests/data/signatures``.

The packages above a file raise when they are executed: no test passes by importing more than that one file.

As a program it loads several sources, a JSON list of (subject, folder) on its input, each in a fork of its own: as
the suite's server does, but importing Triton once for all of them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import lanes, subjects
from conformance.subjects.entry import EntryPoint
from tests.commands import run

SIGNATURES = Path(__file__).parent / "data" / "signatures"
ARITHMETIC = "from tests.data.signatures.arithmetic import pad, slots_of\n"

V1 = "vllm_ascend/ops/triton/compute_slot_mapping.py"
V2 = "vllm_ascend/worker/v2/block_table.py"
V2_LATER = "vllm_ascend/ops/triton/v2/block_table/compute_slot_mappings.py"
CLASS = "vllm_ascend/worker/block_table.py"
UPSTREAM_V1 = "vllm/v1/worker/block_table.py"
UPSTREAM_V2 = "vllm/v1/worker/gpu/block_table.py"


def source(name: str) -> str:
    """The text of a stand-in, complete in itself."""
    text = (SIGNATURES / f"{name}.py").read_text(encoding="utf-8")
    if ARITHMETIC not in text:
        return text
    helpers = (SIGNATURES / "arithmetic.py").read_text(encoding="utf-8")
    return text.replace(ARITHMETIC, helpers.partition("\n\n")[2])


def write(folder: Path, files: dict[str, str], version: str | None = None) -> Path:
    """Write ``files``, texts by path below ``folder``, with an ``__init__`` that raises in every package above one, and
    a wheel's metadata where a version is given. Returns ``folder``.
    """
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        package = file.parent
        while package != folder:
            (package / "__init__.py").write_text('raise RuntimeError("a package above the file was executed")\n')
            package = package.parent
        if version is not None:
            metadata = folder / f"{path.partition('/')[0]}-{version}.dist-info" / "METADATA"
            metadata.parent.mkdir(exist_ok=True)
            metadata.write_text(f"Metadata-Version: 2.4\nName: stand-in\nVersion: {version}\n")
    return folder


def replaced(text: str, old: str, new: str) -> str:
    """``text`` with one change. Asserts that there is exactly one place for it."""
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    return text.replace(old, new)


def reordered(text: str, function: str) -> str:
    """``text`` with the parameters of ``function`` the other way round, without their defaults."""
    signature = re.search(rf"def {function}\(\n(.*?)\n\):", text, re.DOTALL)
    assert signature
    lines = [re.sub(r" = \w+,$", ",", line) for line in signature[1].splitlines()]
    return replaced(text, signature[1], "\n".join(reversed(lines)))


def found(sources: Sequence[tuple[str, Path]]) -> list[dict[str, EntryPoint]]:
    """The entry points of each (subject, folder) by their names."""
    text = json.dumps([(subject, str(folder)) for subject, folder in sources])
    variables = lanes.automatic().environment()
    done = run(sys.executable, "-m", "tests.published_trees", variables=variables, text=text)
    assert done.status == 0, done.tail
    answers = [[EntryPoint.from_json(item) for item in json.loads(line)] for line in done.lines]
    return [{entry.name: entry for entry in entries} for entries in answers]


def _each_in_a_fork() -> None:
    import triton  # noqa: F401  (once, before the forks)

    for subject, folder in json.load(sys.stdin):
        pid = os.fork()
        if not pid:
            entries = subjects.load(subject, folder, lanes.automatic())
            print(json.dumps([entry.description.to_json() for entry in entries]), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    _each_in_a_fork()
