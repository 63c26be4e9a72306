"""Calls of this project's host code, which takes objects: they are made in the script as users make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.call import Argument, Buffer, Call
from reports.reproduction.literals import expression, listed, name_of

_OF_A_BATCH = ("query_start_loc", "positions", "idx_mapping", "slot_mappings", "max_num_tokens", "pad_id", "validate")

FILL = '''
def fill(tables, rows):
    """Bring row r of group g to hold the allocated blocks rows[g][r], as they stand after a while of serving: requests
    came and went before, began with a few blocks or with more, were moved, and grew by the others.
    """
    count, last = len(rows[0]), len(rows[0]) - 1
    begun = [[(row + 1) % (len(own[row]) + 1) for own in rows] for row in range(count)]  # with this many blocks
    for row in range(count):
        tables.add_row([[1] * len(own[row]) for own in rows], row)
        if row > 0:
            tables.clear_row(row)
    for row in range(last):
        tables.add_row([own[row][: begun[row][g]] for g, own in enumerate(rows)], last - row)
    for row in range(count // 2):
        tables.swap_row(row, last - row)
    if last > 0:
        tables.move_row(last - 1, last)
        tables.move_row(last, last - 1)
    tables.add_row([own[last][: begun[last][g]] for g, own in enumerate(rows)], last)
    for row in range(count):
        tables.append_row([own[row][begun[row][g] :] for g, own in enumerate(rows)], row)
'''


_STEP_BEFORE = (
    "",
    "# In a step before, rows, requests and tokens were in the reverse order.",
    "fill(tables, [own[::-1] for own in rows])",
    "tables.commit_block_table(len(rows[0]))",
    "reverse = positions.new_zeros(max_num_tokens)",
    "reverse[:num_tokens] = positions[:num_tokens].flip(0)",
    "starts = (query_start_loc[-1] - query_start_loc).flip(0)",
    "tables.compute_slot_mapping(num_reqs, starts, reverse)",
    "",
)


def fills_rows(call: Call) -> bool:
    """Whether the tables are filled through their own operations, which are a part of the script then."""
    return "." in call.function


def buffers(call: Call) -> list[Buffer]:
    """Those that the objects are made around, or that the call is given: not what holds sizes, flags and addresses."""
    wanted = ("block_table_ptrs", "slot_mapping_ptrs", "query_start_loc", "positions", "idx_mapping", "slot_mappings")
    names = ("block_table", "slot_mapping", "req_indices", "positions") if _is_draft(call) else wanted
    given = (value for name in names if isinstance(value := call.arguments.get(name), Buffer))
    return [each for value in given for each in value.addresses_of or (value,)]


def lines(call: Call) -> list[str]:
    """The statements that make the objects and call the function."""
    if not fills_rows(call):
        return _with_group_tables(call)
    return _draft(call) if _is_draft(call) else _with_tables(call)


def _is_draft(call: Call) -> bool:
    return "allocated_blocks" in call.arguments


def _with_group_tables(call: Call) -> list[str]:
    given = call.arguments
    return [
        "groups = module.GroupTables(",
        f"    {_names(given['block_table_ptrs'])},",
        f"    block_sizes={_numbers(given['kernel_block_sizes'])},",
        f"    kv_cache_block_sizes={_numbers(given['block_sizes'])},",
        *(f"    {name}={expression(given[name])}," for name in ("cp_size", "cp_rank", "cp_interleave")),
        f"    sharded={_flags(given['is_sharded'])},",
        f"    enabled={_flags(given['is_enabled'])},",
        ")",
        "getattr(module, FUNCTION)(",
        "    groups=groups,",
        *(
            f"    {name}={expression(given[name])},"
            for name in _OF_A_BATCH
            if name == "idx_mapping" or given[name] is not None
        ),
        ")",
    ]


def _with_tables(call: Call) -> list[str]:
    given = call.arguments
    kernel_sizes = given["kernel_block_sizes"]
    return [
        "tables = module.MultiGroupBlockTable(",
        *_plain(given, "max_num_reqs", "max_model_len", "max_num_batched_tokens"),
        "    pin_memory=False,",
        "    device=DEVICE,",
        f"    block_sizes={_numbers(given['block_sizes'])},",
        *_plain(given, "num_speculative_tokens"),
        f"    max_num_blocks={_numbers(given['max_num_blocks'])},",
        f"    kernel_sizes={[[size] for size in _values(kernel_sizes)] if kernel_sizes is not None else None},",
        *_of_ranks(given),
        f"    circular={_flags(given['is_circular'])},",
        f"    sharded={_flags(given['is_sharded'])},",
        ")",
        f"block_tables = {_names(given['block_table_ptrs'])}",
        f"slot_mappings = {_names(given['slot_mapping_ptrs'])}",
        f"num_tokens, max_num_tokens = {given['num_tokens']!r}, {given['max_num_tokens']!r}",
        "for table, rows, slots in zip(tables.block_tables, block_tables, slot_mappings):",
        "    table.block_table.gpu, table.slot_mapping.gpu = rows, slots[:max_num_tokens]",
        *_filled(_buffer(given["allocated_blocks_ptrs"]).addresses_of),
        "num_reqs = query_start_loc.numel() - 1",
        *(_STEP_BEFORE if given["is_later_step"] else ()),
        "fill(tables, rows)",
        "tables.commit_block_table(len(rows[0]))",
        f"tables.compute_slot_mapping(num_reqs, query_start_loc, positions, validate={given['validate']!r})",
    ]


def _draft(call: Call) -> list[str]:
    given = call.arguments
    allocated = _buffer(given["allocated_blocks"])
    rows, width = allocated.shape
    arrays = ".cpu().numpy()" if given["as_numpy"] else ".cpu()"
    return [
        'package = MODULE.rpartition(".")[0]',
        "if module.__name__ != MODULE:  # its class may be defined in another file of the package",
        '    stop(f"{module.__file__} is not in a folder {package}")',
        'module = importlib.import_module(f"{package}.block_table")',
        "tables = module.MultiGroupBlockTable(",
        f"    max_num_reqs={rows},",
        "    max_model_len=1,",
        f"    max_num_batched_tokens={given['max_num_tokens']!r},",
        "    pin_memory=False,",
        "    device=DEVICE,",
        f"    block_sizes=[{given['block_size']!r}],",
        f"    max_num_blocks=[{width}],",
        f"    kernel_sizes=[[{given['kernel_block_size']!r}]],",
        *_of_ranks(given),
        ")",
        "table = tables[0]",
        f"table.block_table.gpu, table.slot_mapping.gpu = {_names(given['block_table'], given['slot_mapping'])}",
        'if DEVICE == "cpu":  # the rows of the host, which are looked at, are these too',
        "    table.block_table.cpu, table.block_table.np = table.block_table.gpu, table.block_table.gpu.numpy()",
        "    tables.clear()",
        *_filled((allocated,)),
        "fill(tables, rows)",
        f"table.compute_slot_mapping_draft(req_indices{arrays}, positions{arrays}, validate={given['validate']!r})",
    ]


def _plain(given: Mapping[str, Argument], *names: str) -> list[str]:
    return [f"    {name}={given[name]!r}," for name in names]


def _of_ranks(given: Mapping[str, Argument]) -> list[str]:
    return [
        f"    cp_kv_cache_interleave_size={given['cp_interleave']!r},",
        f"    dcp_world_size={given['cp_size']!r},",
        f"    dcp_rank={given['cp_rank']!r},",
        f"    pad_id={given['pad_id']!r},",
    ]


def _filled(allocated: Sequence[Buffer]) -> list[str]:
    """Rows of allocated blocks, a list of them a group."""
    written = ["rows = ["]
    for each in allocated:
        values = _values(each)
        rows, width = each.shape
        written += [
            "    [",
            *(f"        {listed(values[r * width : (r + 1) * width], {})}," for r in range(rows)),
            "    ],",
        ]
    return [*written, "]"]


def _names(*values: Argument) -> str:
    """The buffers whose addresses a table holds as a list display, others one by one."""
    return ", ".join(
        f"[{', '.join(map(name_of, value.addresses_of))}]" if value.addresses_of else name_of(value)
        for value in map(_buffer, values)
    )


def _numbers(value: Argument) -> str:
    return "None" if value is None else repr(list(_values(value)))


def _flags(value: Argument) -> str:
    return "None" if value is None else repr([bool(each) for each in _values(value)])


def _values(value: Argument) -> tuple[int, ...]:
    return _buffer(value).values or ()


def _buffer(value: Argument) -> Buffer:
    assert isinstance(value, Buffer), value
    return value
