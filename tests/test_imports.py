"""Imports point one way: reference <- strategies, kernels <- conformance -> reports; and each package's own diet."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"reference", "strategies", "kernels", "conformance", "reports", "tests", "conftest"}

# What each package may import beside itself and the standard library. None: any package that is not ours.
MAY_IMPORT = {
    "reference": frozenset(),
    "strategies": frozenset({"reference", "hypothesis", "covertable"}),
    "kernels": frozenset({"torch", "torch_npu", "triton", "numpy"}),
    "reports": frozenset({"reference", "jinja2", "markupsafe"}),
    "conformance": frozenset({"reference", "strategies", "kernels", "reports", None}),
}
# The one file of reference/ that may vectorize.
EXCEPTIONS = {"reference/vectorized.py": frozenset({"numpy"})}


def imported(source):
    """(line, top-level package) of every import in ``source``, inside functions too; relative imports are ours."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module.partition(".")[0]
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("__import__", "importlib.import_module", "import_module")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value).partition(".")[0]


def forbidden(package, path, source):
    allowed = MAY_IMPORT[package] | EXCEPTIONS.get(path, frozenset()) | {package}
    for line, name in imported(source):
        if name in sys.stdlib_module_names or name in allowed:
            continue
        if name not in OURS and None in allowed:
            continue
        yield f"{path}:{line}: {package} must not import {name}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"{package}/ has no Python file"
    found = []
    for file in files:
        path = file.relative_to(ROOT).as_posix()
        if not path.startswith("reports/output/"):
            found += forbidden(package, path, file.read_text(encoding="utf-8"))
    assert found == []


@pytest.mark.parametrize(
    ("path", "source", "name"),
    [
        ("reference/oracle.py", "import numpy as np", "numpy"),
        ("reference/oracle.py", "def f():\n    from strategies.cases import cases", "strategies"),
        ("reference/case.py", "import importlib\nimportlib.import_module('torch.nn')", "torch"),
        ("strategies/cases.py", "from kernels import slot_mapping", "kernels"),
        ("kernels/slot_mapping.py", "import conformance.plugin", "conformance"),
        ("kernels/slot_mapping.py", "from reference.case import Case", "reference"),
        ("reports/failure.py", "from conformance import plugin", "conformance"),
        ("conformance/plugin.py", "import tests.data", "tests"),
    ],
)
def test_a_wrong_import_is_seen(path, source, name):
    package = path.partition("/")[0]
    assert [message.rpartition(" ")[2] for message in forbidden(package, path, source)] == [name]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("reference/vectorized.py", "import numpy"),
        ("reference/oracle.py", "from reference.case import Case\nfrom . import steps\nimport json"),
        ("strategies/cases.py", "import hypothesis.strategies as st\nfrom reference.case import Case"),
        ("kernels/slot_mapping.py", "import triton.language as tl\nimport torch"),
        ("conformance/plugin.py", "import pytest\nfrom kernels import slot_mapping\nfrom reports import failure"),
    ],
)
def test_a_right_import_passes(path, source):
    assert list(forbidden(path.partition("/")[0], path, source)) == []
