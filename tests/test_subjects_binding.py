"""Arguments find their parameters by name, whatever a version calls them and in whatever order: stand-ins with the
signatures of published versions run right, and what cannot be bound is refused in a line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.execution.array import Array
from conformance.search import KINDS, failures
from conformance.subjects import binding
from conformance.subjects.binding import FAMILIES, BindingError, bind, check
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.subjects.launching import Settings
from conformance.under_test import UnderTest
from reference.case import Case, ContextParallel, Group, Launch
from strategies.declaration import Declaration
from tests import published_trees as trees
from tests.commands import ROOT, USAGE_ERROR, in_few_processes

EXAMPLES = 25
COMPILATIONS = 3
PROFILE = settings(settings.get_profile("gate"), max_examples=EXAMPLES)


@dataclass(frozen=True, slots=True)
class Variant:
    """A signature seen in some version: ``text`` at ``path`` is ``entry`` of ``subject``, and has ``features`` beside
    those of its family.
    """

    name: str
    subject: str
    entry: str
    path: str
    text: str
    features: frozenset[str] = frozenset()

    def write(self, folder: Path) -> Path:
        return trees.write(folder, {self.path: self.text})


CIRCULAR = trees.source("v1_circular")
CLASS = trees.source("block_table_class")
ASCEND, UPSTREAM = "vllm-ascend", "vllm"
DCP = "_compute_dcp_slot_mapping"
VARIANTS = (
    Variant("v1-upstream", UPSTREAM, "v1", trees.UPSTREAM_V1, trees.source("v1_upstream"), frozenset({"int64"})),
    Variant("v1-padding-by-tile", ASCEND, "v1", trees.V1, trees.source("v1_padding_by_tile"), frozenset({"hybrid"})),
    Variant("v1-circular", ASCEND, "v1", trees.V1, CIRCULAR, frozenset({"circular", "hybrid"})),
    Variant(
        "v1-reordered",
        ASCEND,
        "v1",
        trees.V1,
        trees.reordered(CIRCULAR, "_compute_slot_mapping_kernel"),
        frozenset({"circular", "hybrid"}),
    ),
    Variant(
        "v2-num-tokens-first", UPSTREAM, "v2", trees.UPSTREAM_V2, trees.source("v2_num_tokens"), frozenset({"int64"})
    ),
    Variant("v2-total-block-size", ASCEND, "v2", trees.V2, trees.source("v2_total_block_size")),
    Variant("v2-pad-size", ASCEND, "v2", trees.V2_LATER, trees.source("v2_pad_size")),
    Variant("v2-enabled", ASCEND, "v2", trees.V2_LATER, trees.source("v2_enabled"), frozenset({"enabled", "hybrid"})),
    Variant(
        "v2-group-sizes",
        ASCEND,
        "v2",
        trees.V2_LATER,
        trees.source("v2_group_cp_sizes"),
        frozenset({"hybrid", "sharded"}),
    ),
    Variant("fused", ASCEND, "fused", trees.V1, trees.source("by_address"), frozenset({"circular"})),
    Variant("replay", ASCEND, "replay", trees.V1, trees.source("by_address")),
    Variant("dcp", ASCEND, "dcp", trees.CLASS, CLASS),
    Variant("dcp-earlier", ASCEND, "dcp", trees.CLASS, CLASS.replace(DCP, "_compute_pcp_dcp_slot_mapping")),
    Variant("draft", ASCEND, "draft", trees.CLASS, CLASS),
)


def engine_for(subject: str, source: Path) -> Engine:
    options = Options((subject,), {subject: str(source)}, COMPILATIONS, 10.0, ROOT / ".cache", 1)
    return Engine(lanes.automatic(), options)


def entry_of(engine: Engine, name: str) -> EntryPoint:
    return next(entry for entry in engine.entries() if entry.name == name)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_published_signature_is_bound_and_runs_right(variant: Variant, tmp_path: Path) -> None:
    engine = engine_for(variant.subject, variant.write(tmp_path))
    try:
        entry = entry_of(engine, variant.entry)
        assert entry.status == TESTABLE
        assert variant.features <= entry.declaration.features
        found = failures(UnderTest(engine, entry), KINDS, PROFILE, 0)
        assert [failure.finding.verdict.summary() for failure in found] == []
        tally = engine.tallies[entry.id]
    finally:
        engine.close()
    assert tally.cases >= EXAMPLES
    assert tally.verdicts == {"pass": tally.cases}


# What cannot be bound


WRONG = {
    "renamed": (
        "v1-circular",
        ("positions_ptr", "pos_ptr"),
        "_compute_slot_mapping_kernel has a parameter 'pos_ptr' that the suite does not know "
        "({file}:{line}): add it to the table of family 'v1' in conformance/subjects/binding.py",
    ),
    "added": (
        "v2-total-block-size",
        ("    CP_SIZE: tl.constexpr,\n", "    CP_SIZE: tl.constexpr,\n    NUM_CORES: tl.constexpr,\n"),
        "_compute_slot_mappings_kernel has a parameter 'NUM_CORES' that the suite does not know "
        "({file}:{line}): add it to the table of family 'v2' in conformance/subjects/binding.py",
    ),
    "missing": (
        "v2-num-tokens-first",
        ("    pos,\n", ""),
        "_compute_slot_mappings_kernel has no parameter 'pos' ({file}:{line}), which family 'v2' in "
        "conformance/subjects/binding.py cannot do without: give it a family of its own",
    ),
    "method": (
        "dcp",
        ("        num_speculative_tokens: int", "        num_extra_tokens: int"),
        "BlockTable._compute_dcp_slot_mapping has a parameter 'num_extra_tokens' that the suite does not know "
        "({file}:{line}): add it to the table of family 'block-table' in conformance/subjects/binding.py",
    ),
}


def test_what_cannot_be_bound_is_refused_in_one_line(tmp_path: Path) -> None:
    variants = {variant.name: variant for variant in VARIANTS}
    commands, messages = [], []
    for name, (base, (old, new), message) in WRONG.items():
        variant = replace(variants[base], text=variants[base].text.replace(old, new))
        source = variant.write(tmp_path / name)
        function = message.partition(" has ")[0].rpartition(".")[2]
        lines = variant.text.splitlines()
        defined = next(number for number, line in enumerate(lines, 1) if line.lstrip().startswith(f"def {function}("))
        commands.append(("conformance", "--subject", variant.subject, "--source", source, "-p", "no:cacheprovider"))
        messages.append(message.format(file=source / variant.path, line=defined))
    for done, message in zip(in_few_processes(commands), messages, strict=True):
        assert done.status == USAGE_ERROR, done.tail
        assert f"ERROR: {message}" in done.lines
        assert "Traceback" not in done.output
        assert len(done.lines) <= 10


# The tables


def entry_point(family: str, *parameters: str, constants: tuple[str, ...] = ()) -> EntryPoint:
    """One as it would have been found, with what its family cannot do without and ``parameters``."""
    names = tuple(dict.fromkeys((*FAMILIES[family].needed, *parameters)))
    return EntryPoint(
        "vllm-ascend", "1.0", "any", "function", family, "file.py", 3, names, constants, Declaration(), TESTABLE
    )


# What published versions call their parameters, whether or not a version here has them all.
DOCUMENTED = {
    "v1": "num_tokens max_num_tokens num_reqs query_start_loc_ptr positions_ptr block_table_ptr block_table_stride "
    "block_size slot_mapping_ptr KV_CACHE_BLOCK_SIZE BLOCKS_PER_KV_BLOCK TOTAL_CP_WORLD_SIZE TOTAL_CP_RANK "
    "CP_KV_CACHE_INTERLEAVE_SIZE PAD_ID TILE_BLOCK_SIZE BLOCK_SIZE BLOCK_TABLE_WINDOW_SIZE IS_CIRCULAR",
    "v2": "num_tokens max_num_tokens idx_mapping query_start_loc pos block_table_ptrs block_table_strides block_sizes "
    "kernel_block_sizes slot_mappings_ptr slot_mappings_stride cp_rank CP_SIZE CP_INTERLEAVE PAD_ID TRITON_BLOCK_SIZE "
    "TOTAL_BLOCK_SIZE BLOCK_TABLE_PAD_SIZE slot_mapping_enabled HAS_SLOT_MAPPING_ENABLED dcp_sharded group_cp_sizes",
    "fused": "group_count num_reqs num_tokens max_num_tokens query_start_loc_ptr positions_ptr block_table_addrs_ptr "
    "slot_mapping_addrs_ptr block_table_strides_ptr block_sizes_ptr min_block_size pad_id is_circular_ptr",
    "replay": "num_reqs query_start_loc positions replay_start slot_mapping_addrs cacheable_groups window pad_id",
    "block-table": "block_size max_num_reqs max_num_blocks_per_req max_num_batched_tokens pin_memory "
    "cp_kv_cache_interleave_size num_speculative_tokens kv_cache_group req_indices positions",
    "draft": "block_size max_num_reqs max_num_blocks_per_req req_indices positions",
}


@pytest.mark.parametrize("family", DOCUMENTED)
def test_every_documented_parameter_is_known(family: str) -> None:
    check(entry_point(family, *DOCUMENTED[family].split()))


CASE = Case(
    (0, 2, 3),
    (4, 5, 0),
    3,
    40,
    (
        Group(((7, 3), (9, 1)), 2, 4, row_stride=5),
        Group(((1,), (2,)), 8, 8, sharded=False, enabled=False),
    ),
    idx_mapping=(1, 0),
    cp=ContextParallel(2, 1, 2),
)


def bound(family: str, *parameters: str, case: Case = CASE, tile: int = 16) -> dict[str, object]:
    invocation, _ = bind(entry_point(family, *parameters), case, Launch(), Settings(tile=tile))
    return {
        name: value.data.tolist() if hasattr(value, "data") and value.data is not None else value
        for name, value in invocation.arguments.items()
    }


def test_block_sizes_are_the_allocated_ones_only_beside_those_of_the_kernel() -> None:
    assert bound("v2", "block_sizes")["block_sizes"] == [2, 8]
    both = bound("v2", "block_sizes", "kernel_block_sizes")
    assert (both["block_sizes"], both["kernel_block_sizes"]) == ([4, 8], [2, 8])


@pytest.mark.parametrize("tile", [16, 64])
def test_flags_of_groups_are_tables_where_a_group_differs(tile: int) -> None:
    flags = ("slot_mapping_enabled", "HAS_SLOT_MAPPING_ENABLED", "dcp_sharded", "group_cp_sizes")
    differ = bound("v2", *flags, tile=tile)
    assert [differ[name] for name in flags] == [[True, False], True, [True, False], [2, 1]]


def test_flags_of_groups_that_agree_are_tables_in_one_half_of_the_specializations_only() -> None:
    flags = ("slot_mapping_enabled", "HAS_SLOT_MAPPING_ENABLED", "dcp_sharded", "group_cp_sizes")
    plain = replace(CASE, groups=(CASE.groups[0],))
    given, absent = ([True], True, [True], [2]), (None, False, None, [2])
    launches = [bound("v2", *flags, case=plain, tile=1 << bits) for bits in range(4, 16)]
    seen = [tuple(each[name] for name in flags) for each in launches]
    assert set(map(repr, seen)) == {repr(given), repr(absent)}


def test_row_strides_are_int32_in_one_half_of_the_specializations_where_they_may_be() -> None:
    entry = entry_point("v2", "block_table_strides")
    narrow = replace(entry, declaration=Declaration(features=frozenset({"stride32"})))
    seen: dict[str, set[str]] = {"either": set(), "int64": set()}
    for bits in range(4, 16):
        for name, each in (("either", narrow), ("int64", entry)):
            invocation, _ = bind(each, CASE, Launch(), Settings(tile=1 << bits))
            strides = invocation.arguments["block_table_strides"]
            assert isinstance(strides, Array)
            assert strides.data is not None
            assert strides.data.tolist() == [each.stride for each in CASE.groups]
            seen[name].add(strides.dtype)
    assert seen == {"either": {"int32", "int64"}, "int64": {"int64"}}


def test_buffers_of_a_request_each_are_longer_where_positions_are() -> None:
    names = ("query_start_loc", "idx_mapping")
    exact = bound("v2", *names)
    longer = bound("v2", *names, case=replace(CASE, positions=(*CASE.positions, 0, 0)))
    for name in names:
        assert longer[name][: len(exact[name])] == exact[name]  # type: ignore[index, arg-type]
        assert len(longer[name]) == len(exact[name]) + 2  # type: ignore[arg-type]


@pytest.mark.parametrize(("stale", "dtype"), [((), "int32"), ((7,), "int64")])
def test_rows_of_tokens_are_int64_in_buffers_of_serving(stale: tuple[int, ...], dtype: str) -> None:
    case = replace(CASE, groups=CASE.groups[:1], idx_mapping=None, positions=(*CASE.positions, *stale))
    invocation, _ = bind(entry_point("dcp", "req_indices", "positions"), case, Launch(), Settings())
    rows, positions = invocation.arguments["req_indices"], invocation.arguments["positions"]
    assert isinstance(rows, Array)
    assert isinstance(positions, Array)
    assert (rows.dtype, rows.shape, positions.shape) == (dtype, (case.num_tokens,), (case.num_tokens,))


def test_one_to_four_programs_share_a_request() -> None:
    grids = set()
    for length in range(CASE.max_num_tokens, CASE.max_num_tokens + 4):
        case = replace(CASE, cp=ContextParallel(), max_num_tokens=length)
        invocation, _ = bind(entry_point("parallel"), case, Launch(), Settings(tile=16))
        grids.add(invocation.grid)
    assert grids == {(2, 3, programs) for programs in (1, 2, 3, 4)}


def test_a_whole_row_fits_what_pads_it() -> None:
    assert bound("v2", "BLOCK_TABLE_PAD_SIZE")["BLOCK_TABLE_PAD_SIZE"] == 4096
    wide = replace(CASE, groups=(replace(CASE.groups[0], row_stride=4097), CASE.groups[1]))
    assert bound("v2", "BLOCK_TABLE_PAD_SIZE", case=wide)["BLOCK_TABLE_PAD_SIZE"] == 8192


def test_a_v1_that_counts_requests_gets_a_program_for_every_tile_it_may_pad() -> None:
    one = replace(CASE, groups=CASE.groups[:1])
    for parameters, programs in (((), 2 + 1), (("num_reqs",), 2 + 3)):
        invocation, _ = bind(entry_point("v1", *parameters), one, Launch(), Settings(tile=16))
        assert invocation.grid == (programs,)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_cannot_do_without_is_in_its_table(family: str) -> None:
    known = FAMILIES[family]
    assert set(known.needed) <= known.values.keys()
    assert family == "prewarm" or any("slot_mapping" in name for name in known.needed)  # that one has no output
    for name in known.needed:
        entry = entry_point(family)
        without = replace(entry, parameters=tuple(each for each in entry.parameters if each != name))
        with pytest.raises(BindingError, match=rf"^function has no parameter '{name}' \(file.py:3\)"):
            check(without)


def test_the_message_names_the_file_that_holds_the_tables() -> None:
    assert (ROOT / binding._HERE).resolve() == Path(binding.__file__).resolve()
