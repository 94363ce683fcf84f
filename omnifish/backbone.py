"""The backbone of OGG TTS: Qwen3's decoder, which sees whatever a mask lets it see, over a cache.

Text, prompt and speech are columns of one sequence. There is nothing causal in it: what a query sees is told
by its caller, and so are the positions.
"""
from __future__ import annotations

import torch
from torch import Tensor

from ..qwen import Decoder, KVCache, rotation
from .config import BackboneConfig


class Backbone(Decoder):
    """Qwen3 by the names of Hugging Face's Qwen3Model, with the table of text ids."""

    def __init__(self, config: BackboneConfig, operations, device=None, dtype: torch.dtype = torch.float32):
        super().__init__(config, 3, operations, device, dtype)
        self.config, self.dtype = config, dtype
        self.embed_tokens = operations.Embedding(config.text_rows, config.width, device=device, dtype=dtype)

    def new_cache(self, rows: int, capacity: int, device: torch.device | str = "cpu") -> KVCache:
        """Room for ``capacity`` columns of ``rows`` rows; see ``cache_bytes``."""
        return KVCache.empty(self.config, rows, capacity, device, self.dtype)

    def cache_bytes(self, rows: int, capacity: int) -> int:
        """The memory that such a cache takes."""
        heads = 2 * self.config.layers * self.config.kv_heads
        return heads * rows * capacity * self.config.head_width * self.dtype.itemsize

    def forward(
        self, inputs_embeds: Tensor, attention_mask: Tensor | None, position_ids: Tensor, cache: KVCache | None = None,
    ) -> Tensor:
        """(B, S, D) -> (B, S, D) behind the last norm; the cache is S columns longer afterwards.

        attention_mask: (B, 1, S, columns), or (B, 1, 1, columns) where all queries of a row see the same, over all
        columns of the cache, the new ones last; bool, where True is seen, or float, which is added to the scores;
        None where everybody sees everything. A query has to see something, so let padding see itself.
        position_ids: int64 (B, S). cache: None where nothing came before and nothing will follow.
        """
        if cache is None:
            cache = self.new_cache(*inputs_embeds.shape[:2], inputs_embeds.device)
        mask = attention_mask
        if mask is not None:
            if mask.dtype == torch.bool:
                mask = additive(mask, inputs_embeds.dtype)
            if mask.shape[2] > 1:
                mask = mask.repeat(1, 1, self.config.group, 1)
        return self.run(inputs_embeds, rotation(position_ids, self.config), mask, cache)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of what is seen as what is added to the scores: 0, or minus infinity."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, float("-inf"))
