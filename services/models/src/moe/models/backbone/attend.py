"""Softmax attention of grouped query heads over keys already in place: the one formula that all paths share."""

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, mask: Tensor | None, sinks: Tensor | None = None
) -> Tensor:
    """Attention of [b, heads, groups, n, size] queries over [b, heads, length, size] keys and values of size v.

    Gives [b, heads, groups, n, v]. `groups` query heads share a key head.
    mask: added to the scores, 0 or -inf, broadcastable to [b, 1, 1, n, length].
    sinks: [heads, groups], a learnt score that takes its share of the softmax and has no value (GPT-OSS).
    Softmax runs in float32 and is rounded to the query's dtype, as the library's eager attention does.
    """
    if sinks is None and key.shape[-1] == value.shape[-1] and query.shape[3] == 1:
        return _fused_single(query, key, value, scale, mask)
    b, heads, groups, n, size = query.shape
    folded = query.reshape(b, heads, groups * n, size)
    scores = (folded @ key.transpose(-1, -2)).float().view(b, heads, groups, n, -1) * scale
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        column = sinks.float().view(1, heads, groups, 1, 1).expand(b, -1, -1, n, -1)
        scores = torch.cat((scores, column), dim=-1)
    shares = torch.softmax(scores, dim=-1)[..., : key.shape[2]].to(query.dtype)
    mixed = shares.reshape(b, heads, groups * n, -1) @ value
    return mixed.view(b, heads, groups, n, -1)


def _fused_single(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    folded = query.squeeze(3)
    mask = None if mask is None else mask.squeeze(1)
    return F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale).unsqueeze(3)
