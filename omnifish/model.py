"""OGG TTS as a network: embeddings of text and codes, the backbone, the semantic head, the depth decoder.

A frame is ten codes. The backbone speaks the first of them, the semantic one, a block of frames at a time; the
depth decoder adds the other nine. ``generate.py`` has the way from text to codes.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn

from .backbone import Backbone
from .config import NUM_CODEBOOKS, CodeIds, OmniFishConfig
from .markup import context_text, dialogue_text
from .mtp import MTP

__all__ = ["CODEBOOK_ROWS", "END_ID", "MASK_ID", "NUM_CODEBOOKS", "PAD_ID", "OmniFish", "context_text", "dialogue_text"]

MASK_ID, END_ID, PAD_ID = CodeIds.mask, CodeIds.end, CodeIds.pad
CODEBOOK_ROWS = OmniFishConfig.codebook_rows


class OmniFish(nn.Module):
    """The whole model, by the published names. ``mtp`` is None where it speaks the semantic codebook alone."""

    def __init__(self, config: OmniFishConfig, operations=nn, device=None, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config, self.dtype = config, dtype
        factory = {"device": device, "dtype": dtype}
        width, rows = config.backbone.width, config.codebook_rows
        self.llm = Backbone(config.backbone, operations, **factory)
        self.audio_embeddings = operations.Embedding(NUM_CODEBOOKS * rows, width, **factory)
        # Its product is what is drawn from, and 1 % of the work.
        self.semantic_head = operations.Linear(width, rows, bias=config.head_bias, device=device, dtype=torch.float32)
        self.mtp = None if config.mtp is None else MTP(config.mtp, operations, **factory)

    def embed(self, ids: Tensor, audio_mask: Tensor) -> Tensor:
        """int64 (B, K, L) -> (B, L, D): of codes where bool (B, L) is true, else of the text id in row 0"""
        text = self.llm.embed_tokens(ids[:, 0].masked_fill(audio_mask, 0))
        audio = self.embed_codes(ids.masked_fill(~audio_mask[:, None], 0))
        return torch.where(audio_mask[..., None], audio, text)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """int64 (B, K, F) -> (B, F, D), the sum over the codebooks"""
        first = torch.arange(NUM_CODEBOOKS, device=codes.device)[:, None] * self.config.codebook_rows
        return self.audio_embeddings(codes + first).sum(dim=1)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> float32 (..., V), the scores of each semantic id"""
        return self.semantic_head(hidden.float())
