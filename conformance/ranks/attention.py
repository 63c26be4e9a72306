"""Attention over a part of the keys, and what each part weighs in the whole."""

from __future__ import annotations

import math

import torch

Part = tuple[torch.Tensor, torch.Tensor]
"""Output [heads, size] of one query over some of its keys, and the log-sum-exp [heads] of its scores."""


def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Part:
    """``query`` [heads, size], ``keys`` and ``values`` [tokens, heads, size], all float64. Over no keys the output is 0
    and the log-sum-exp -inf, which has no weight in a merge.
    """
    if not len(keys):
        return torch.zeros_like(query), query.new_full(query.shape[:1], -math.inf)
    scores = torch.einsum("hs,ths->ht", query, keys) / math.sqrt(query.shape[1])
    total = torch.logsumexp(scores, dim=1)
    return torch.einsum("ht,ths->hs", torch.exp(scores - total[:, None]), values), total


def weights(totals: torch.Tensor, rank: int) -> torch.Tensor:
    """What the part of ``rank`` weighs in the whole: ``totals`` [ranks, ...] are the log-sum-exps of all parts."""
    return torch.exp(totals[rank] - torch.logsumexp(totals, dim=0))
