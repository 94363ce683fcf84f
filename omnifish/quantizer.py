"""Residual vector quantization (Zeghidour et al. 2021, https://arxiv.org/abs/2107.03312) of the codec's latents.

Latents are brought down to 21.5 frames per second and passed through a transformer. A first codebook, which
training tied to what is said, takes its code off each frame; nine more code what is left. A code is the nearest
row of a table by cosine, in eight channels (Yu et al. 2021, https://arxiv.org/abs/2110.04627). The way back is
the sum of all rows, another transformer, and the same steps up.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .codec_config import QUANTIZER_RATES, CodecConfig
from .codec_layers import Carry, CausalConv, CausalUpsampling, ConvNeXt, as_line
from .codec_transformer import WindowTransformer


class Codebook(nn.Module):
    """One table of codes and the projections to and from its channels."""

    def __init__(self, width: int, rows: int, code_width: int, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.in_proj = operations.Linear(width, code_width, **factory)
        self.out_proj = operations.Linear(code_width, width, **factory)
        self.codebook = operations.Embedding(rows, code_width, **factory)

    def nearest(self, x: Tensor) -> Tensor:
        """(B, F, D) -> int64 (B, F)"""
        code = self.in_proj(x)      # its own length changes no order
        # Through the layer, which fetches its weights where they are kept elsewhere.
        rows = self.codebook(torch.arange(self.codebook.num_embeddings, device=code.device))
        return (code @ F.normalize(rows.to(code), dim=-1).T).argmax(dim=-1)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 (B, F) -> (B, F, D)"""
        return self.out_proj(self.codebook(ids))


class Codebooks(nn.Module):
    """Tables of which each codes what the ones before it left."""

    def __init__(self, width: int, rows: tuple[int, ...], code_width: int, operations, device=None, dtype=None):
        super().__init__()
        self.quantizers = nn.ModuleList(Codebook(width, r, code_width, operations, device, dtype) for r in rows)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, F, D) -> int64 (B, K, F), and the (B, F, D) that is left"""
        codes = []
        for codebook in self.quantizers:
            codes.append(codebook.nearest(x))
            x = x - codebook(codes[-1])
        return torch.stack(codes, dim=1), x

    def forward(self, codes: Tensor) -> Tensor:
        """int64 (B, K, F) -> (B, F, D)"""
        return sum(codebook(ids) for codebook, ids in zip(self.quantizers, codes.unbind(1)))


class Quantizer(nn.Module):
    """Latents to codes and back."""

    def __init__(self, config: CodecConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"operations": operations, "device": device, "dtype": dtype}
        width, semantic_rows, *residual_rows = config.width, *config.rows
        self.semantic_quantizer = Codebooks(width, (semantic_rows,), config.code_width, **factory)
        self.quantizer = Codebooks(width, tuple(residual_rows), config.code_width, **factory)
        self.downsample = nn.ModuleList(
            nn.ModuleList((CausalConv(width, width, rate, stride=rate, **factory), ConvNeXt(width, **factory)))
            for rate in QUANTIZER_RATES)
        self.upsample = nn.ModuleList(
            nn.ModuleList((CausalUpsampling(width, width, 1, rate, **factory), ConvNeXt(width, **factory)))
            for rate in reversed(QUANTIZER_RATES))
        self.pre_module = WindowTransformer(width, config.quantizer_transformer, **factory)
        self.post_module = WindowTransformer(width, config.quantizer_transformer, **factory)

    @torch.no_grad()
    def encode(self, latent: Tensor, carry: Carry) -> Tensor:
        """(B, D, 4 F) -> int64 (B, K, F)"""
        x = as_line(latent[:, :, None])
        for conv, block in self.downsample:
            x = block(conv(x, carry), carry)
        x = self.pre_module(x, carry)[:, :, 0].transpose(1, 2)                          # (B, F, D)
        semantic, left = self.semantic_quantizer.encode(x)
        residual, _ = self.quantizer.encode(left)
        return torch.cat((semantic, residual), dim=1)

    @torch.no_grad()
    def decode(self, codes: Tensor, carry: Carry) -> Tensor:
        """int64 (B, K, F), or the semantic ids alone (B, 1, F) -> (B, D, 4 F)"""
        x = self.semantic_quantizer(codes[:, :1])
        if codes.shape[1] > 1:
            x = x + self.quantizer(codes[:, 1:])
        x = self.post_module(as_line(x.transpose(1, 2)[:, :, None]), carry)
        for conv, block in self.upsample:
            x = block(conv(x, carry), carry)
        return x[:, :, 0]
