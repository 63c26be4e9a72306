"""What only the contents of the tensors can tell. Reading them waits for the device: ``validate=True`` asks for
it."""

from __future__ import annotations

from itertools import pairwise

import torch

from kernels.arguments import Geometry, refuse
from kernels.torch_dcp import Placement, place_tokens


def check_tokens(
    query_start_loc: torch.Tensor, positions: torch.Tensor, *, num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Raise ``ValueError`` for the first broken clause of ``qsl-monotone``, ``qsl-capacity`` and ``pos-int32``. Returns
    request and position of each token, both int64 [num_tokens] on the host.
    """
    bounds = query_start_loc.tolist()
    if bounds[0] != 0:
        refuse("qsl-monotone", f"query_start_loc[0] is {bounds[0]}, must be 0")
    for r, (start, end) in enumerate(pairwise(bounds)):
        if end < start:
            refuse("qsl-monotone", f"query_start_loc[{r + 1}] is {end}, below query_start_loc[{r}] = {start}")
    if bounds[-1] != num_tokens:
        refuse("qsl-capacity", f"query_start_loc ends at {bounds[-1]}, num_tokens is {num_tokens}")

    position = positions[:num_tokens].cpu()
    _check_int32(position)
    return torch.repeat_interleave(torch.tensor(bounds).diff()), position


def check_contents(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    slot_dtype: torch.dtype,
    *,
    num_tokens: int,
    geometry: Geometry,
    is_circular: bool,
) -> None:
    """Raise ``ValueError`` for the first broken clause of ``qsl-monotone``, ``qsl-capacity``, ``pos-int32``,
    ``row-width`` and ``slot-fits``, naming the token. Request r uses row r of ``block_table``; the shapes have been
    checked already.
    """
    request, position = check_tokens(query_start_loc, positions, num_tokens=num_tokens)
    place = _places(position, geometry, is_circular)
    _check_places(request, position, place, block_table, slot_dtype, geometry.block_size)


def check_indexed_contents(
    req_indices: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    slot_dtype: torch.dtype,
    geometry: Geometry,
) -> None:
    """Raise ``ValueError`` for the first broken clause of ``row-exists``, ``pos-int32``, ``row-width`` and
    ``slot-fits``, naming the token. ``req_indices`` gives the row of each token; the shapes have been checked already.
    """
    row, position = req_indices.cpu().to(torch.int64), positions.cpu().to(torch.int64)
    check_rows_exist(row, block_table.shape[0])
    _check_int32(position)
    place = place_tokens(position, geometry)
    _check_places(row, position, place, block_table, slot_dtype, geometry.block_size, owner="row")


def check_allocated(
    row: torch.Tensor, position: torch.Tensor, blocks_per_row: torch.Tensor, geometry: Geometry, *, is_circular: bool
) -> None:
    """Raise ``ValueError`` for the first broken clause of ``row-exists``, ``pos-int32`` and ``row-width``, which here
    means that a row holds the block of each of its tokens. ``row`` and ``position`` [num_tokens] int64 on the host;
    ``blocks_per_row`` [rows]: the kernel blocks that each row holds.
    """
    check_rows_exist(row, len(blocks_per_row))
    _check_int32(position)
    place = _places(position, geometry, is_circular)
    held = blocks_per_row.to(torch.int64)[row]
    if (t := _first(place.is_local & (place.block_index >= held))) is not None:
        refuse(
            "row-width",
            f"position {position[t]} of row {row[t]} (token {t}) needs block index {place.block_index[t]}, "
            f"the row holds {held[t]} blocks",
        )


def check_row_stride(
    request: torch.Tensor, position: torch.Tensor, *, block_size: int, row_stride: int, group: int
) -> None:
    """Raise ``ValueError`` (``row-width``) for the first token of a paged group whose block lies past its row, all that
    is known of a row being its stride. ``request`` and ``position`` as :func:`check_tokens` returns them.
    """
    if (t := _first(position >= block_size * row_stride)) is not None:
        refuse(
            "row-width",
            f"position {position[t]} of request {request[t]} (token {t}) needs block index {position[t] // block_size}"
            f" in group {group}, whose row stride is {row_stride}",
        )


def check_rows_exist(row: torch.Tensor, rows: int) -> None:
    """Raise ``ValueError`` (``row-exists``) for the first token whose ``row``, on the host, is not in [0, rows)."""
    if (t := _first((row < 0) | (row >= rows))) is not None:
        refuse("row-exists", f"req_indices[{t}] is {row[t]}, must be in [0, {rows})")


def _check_int32(position: torch.Tensor) -> None:
    int32 = torch.iinfo(torch.int32)
    if (t := _first((position < int32.min) | (position > int32.max))) is not None:
        refuse("pos-int32", f"positions[{t}] is {position[t]}, outside [{int32.min}, {int32.max}]")


def _places(position: torch.Tensor, geometry: Geometry, is_circular: bool) -> Placement:
    if is_circular:
        return Placement(position >= 0, torch.zeros_like(position), position % geometry.block_size)
    return place_tokens(position, geometry)


def _check_places(
    row: torch.Tensor,
    position: torch.Tensor,
    place: Placement,
    block_table: torch.Tensor,
    slot_dtype: torch.dtype,
    block_size: int,
    owner: str = "request",
) -> None:
    """Refuse the first token whose cell is not in its row, else the first whose slot does not fit."""
    width = block_table.shape[1]
    if (t := _first(place.is_local & (place.block_index >= width))) is not None:
        refuse(
            "row-width",
            f"position {position[t]} of {owner} {row[t]} (token {t}) needs block index {place.block_index[t]}, "
            f"the row has {width}",
        )
    local = place.is_local.nonzero().flatten()
    number = block_table.cpu()[row[local], place.block_index[local]].to(torch.int64)
    slot = number * block_size + place.offset[local]
    limit = torch.iinfo(slot_dtype)
    if (i := _first((slot < limit.min) | (slot > limit.max))) is not None:
        refuse(
            "slot-fits",
            f"token {local[i]} in block {number[i]} has slot {slot[i]}, outside [{limit.min}, {limit.max}]",
        )


def _first(wrong: torch.Tensor) -> int | None:
    """Index of the first true element of a 1-D bool tensor."""
    places = wrong.nonzero()
    return int(places[0]) if len(places) else None
