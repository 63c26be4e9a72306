"""Three things that happen to a kernel's signature, done to every variant that is known: a parameter is renamed, one is
added, all are put in another order. Nothing is guessed in the first two, and the third changes nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.execution.array import Array
from conformance.subjects.binding import FAMILIES, BindingError, bind, check
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.subjects.launching import Settings
from reference.case import Case, ContextParallel, Group, Launch, Replay
from tests import published_trees as trees
from tests.test_subjects_binding import VARIANTS, Variant

UNCHANGED = [variant for variant in VARIANTS if variant.name != "v1-reordered"]
FUNCTIONS = {"v1": "_compute_slot_mapping_kernel", "v2": "_compute_slot_mappings_kernel"}
FUNCTIONS |= {"fused": "compute_slot_mapping_fused_groups", "replay": "pad_replayed_slot_mapping"}
FUNCTIONS |= {"dcp-earlier": "_compute_pcp_dcp_slot_mapping", "dcp": "_compute_dcp_slot_mapping"}
FUNCTIONS |= {"draft": "compute_slot_mapping_draft"}


def function_of(variant: Variant) -> str:
    return FUNCTIONS.get(variant.name) or FUNCTIONS[variant.entry]


def needed(variant: Variant) -> str:
    """A parameter that the whole family has."""
    return "req_indices" if variant.entry in ("dcp", "draft") else FAMILIES[variant.entry].needed[0]


def renamed(variant: Variant, function: ast.FunctionDef) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.arg == needed(variant):
            node.arg = f"{needed(variant)}_now"
        elif isinstance(node, ast.Name) and node.id == needed(variant):
            node.id = f"{needed(variant)}_now"


def added(variant: Variant, function: ast.FunctionDef) -> None:
    function.args.args.insert(1, ast.arg("num_cores"))


def reordered(variant: Variant, function: ast.FunctionDef) -> None:
    """The other way round, without defaults that would no longer come last."""
    arguments = function.args
    first = [each for each in arguments.args if each.arg == "self"]
    arguments.args = [*first, *reversed(arguments.args[len(first) :])]
    arguments.defaults = []
    arguments.kwonlyargs.reverse()
    arguments.kw_defaults.reverse()


CHANGES: dict[str, Callable[[Variant, ast.FunctionDef], None]] = {
    "as-it-is": lambda variant, function: None,
    "renamed": renamed,
    "added": added,
    "reordered": reordered,
}


def changed(variant: Variant, change: str) -> str:
    tree = ast.parse(variant.text)
    definitions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    [function] = [node for node in definitions if node.name == function_of(variant)]
    CHANGES[change](variant, function)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], EntryPoint]:
    """The entry point of every variant after every change, found as the suite finds it."""
    folder = tmp_path_factory.mktemp("signatures")
    sources: dict[tuple[str, str], tuple[str, Path]] = {}
    for variant in UNCHANGED:
        for change in CHANGES:
            files = {variant.path: changed(variant, change)}
            sources[variant.name, change] = variant.subject, trees.write(folder / variant.name / change, files)
    entries = trees.found(list(sources.values()))
    names = {variant.name: variant.entry for variant in UNCHANGED}
    return {key: each[names[key[0]]] for key, each in zip(sources, entries, strict=True)}


def test_there_are_variants_enough() -> None:
    assert len(UNCHANGED) >= 8
    assert {variant.entry for variant in UNCHANGED} == {"v1", "v2", "fused", "replay", "dcp", "draft"}


@pytest.mark.parametrize("variant", UNCHANGED, ids=lambda variant: variant.name)
@pytest.mark.parametrize("change", ["renamed", "added"])
def test_a_name_that_is_not_known_is_an_error_that_says_where_it_stands_and_what_to_do(
    variant: Variant, change: str, found: dict[tuple[str, str], EntryPoint]
) -> None:
    entry = found[variant.name, change]
    assert entry.status == TESTABLE
    with pytest.raises(BindingError) as raised:
        check(entry)
    parameter = f"{needed(variant)}_now" if change == "renamed" else "num_cores"
    assert str(raised.value) == (
        f"{entry.function} has a parameter {parameter!r} that the suite does not know ({entry.file}:{entry.line}): "
        f"add it to the table of family {entry.family!r} in conformance/subjects/binding.py"
    )
    assert entry.function.endswith(function_of(variant))
    line = Path(entry.file).read_text(encoding="utf-8").splitlines()[entry.line - 1]
    assert line.lstrip().startswith(f"def {function_of(variant)}(")


CASES = {
    "one": Case((0, 2, 3), (4, 5, 0), 3, 5, (Group(((7, 3, 2), (9, 1, 4)), 2, 2),), cp=ContextParallel(2, 1, 2)),
    "several": Case(
        *((0, 2, 3), (4, 5, 0), 3, 5, (Group(((7, 3, 2), (9, 1, 4)), 2, 2), Group(((1,), (5,)), 8, 8))),
        idx_mapping=None,
        replay=Replay((1, 0), 2, (0,)),
    ),
}


def bound(entry: EntryPoint) -> tuple[tuple[int, ...], dict[str, object], dict[str, object]]:
    case = CASES["several" if "groups" in entry.declaration.features else "one"]
    invocation, launch = bind(entry, case, Launch(), Settings(tile=16))
    return invocation.grid, {name: shown(value) for name, value in invocation.arguments.items()}, dict(launch.constants)


def shown(value: object) -> object:
    if not isinstance(value, Array):
        return value
    data = None if value.data is None else value.data.tolist()
    return value.name, value.dtype, value.shape, value.strides, data, [shown(each) for each in value.addresses_of]


@pytest.mark.parametrize("variant", UNCHANGED, ids=lambda variant: variant.name)
def test_another_order_gives_every_parameter_the_same_value(
    variant: Variant, found: dict[tuple[str, str], EntryPoint]
) -> None:
    before, after = found[variant.name, "as-it-is"], found[variant.name, "reordered"]
    assert after.status == TESTABLE
    check(after)
    assert set(after.parameters) == set(before.parameters)
    assert after.parameters != before.parameters
    assert bound(after) == bound(before)
    assert after.declaration == before.declaration
