"""Block diffusion as published: transformers' Qwen3, over a cache that grows and is cut back.

What ``omnifish.generate.blocks_cached`` is measured against. Whatever is asked about a block is a forward of its
own over all rows, with a mask made for it: one for each step, one to look at what was decided, one to commit it.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, Qwen3Config, Qwen3Model
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

MASK_ID, END_ID = 4096, 4097


class PlainModel:
    """Backbone, tables and head, on the very tensors of a state dict by the published names."""

    def __init__(self, state: Mapping[str, Tensor], sizes: Qwen3Config):
        prefix = "llm."
        with torch.device("meta"):
            self.backbone = Qwen3Model(sizes).eval()
        self.backbone.load_state_dict(
            {name[len(prefix):]: tensor for name, tensor in state.items() if name.startswith(prefix)}, assign=True)
        self.backbone.rotary_emb = Qwen3RotaryEmbedding(sizes)      # its table is in no state dict
        self.table, self.head = state["audio_embeddings.weight"], state["semantic_head.weight"].float()

    def embed(self, ids: Tensor, audio_mask: Tensor) -> Tensor:
        """int64 (K, L), of codes where bool (L,) is true -> (L, D)"""
        first = torch.arange(len(ids))[:, None] * len(self.head)
        audio = F.embedding(ids.masked_fill(~audio_mask, 0) + first, self.table).sum(dim=0)
        text = self.backbone.embed_tokens(ids[0].masked_fill(audio_mask, 0))
        return torch.where(audio_mask[:, None], audio, text)


class PlainStream:
    """Rows of one speech: the first with the context, the second, where there is one, without; padded on the left."""

    def __init__(self, model: PlainModel, ids: Tensor, audio_mask: Tensor, rows: int):
        self.model, length = model, ids.shape[1]
        self.cache = DynamicCache(config=model.backbone.config)
        self.padding = torch.tensor([0, length][:rows])[:, None]        # columns of each row
        embedded = model.embed(ids, audio_mask)
        column = torch.arange(length)
        real = column >= self.padding
        # Padding sees itself, so that no softmax is over nothing.
        seen = real[:, :, None] & real[:, None] | torch.eye(length, dtype=torch.bool)
        x = torch.stack([embedded, torch.zeros_like(embedded)][:rows])
        self.hidden = self._forward(x, seen, (column - self.padding).clamp(min=0))[0]       # (L, D)

    def logits(self, semantic: Tensor) -> Tensor:
        """int64 (F,) -> float32 (rows, F, V)"""
        return F.linear(self._look(semantic).float(), self.model.head)

    def peek(self, semantic: Tensor) -> Tensor:
        """int64 (F,) -> (F, D) of the row with the context"""
        return self._look(semantic)[0]

    def commit(self, codes: Tensor) -> None:
        """int64 (K, F), a decided block."""
        self._read(codes)

    def _look(self, semantic: Tensor) -> Tensor:
        """int64 (F,) -> (rows, F, D), the other codebooks being unknown; leaves no trace"""
        codes = torch.full((len(self.model.table) // len(self.model.head), len(semantic)), MASK_ID)
        codes[0] = semantic
        hidden = self._read(codes)
        self.cache.crop(-len(semantic))
        return hidden

    def _read(self, codes: Tensor) -> Tensor:
        """int64 (K, F) -> (rows, F, D), behind what the cache holds, and then in it"""
        frames, known = codes.shape[1], self.cache.get_seq_length()
        column = torch.arange(known + frames)
        seen = (column >= self.padding)[:, None].expand(-1, frames, -1)
        x = self.model.embed(codes, torch.ones(frames, dtype=torch.bool)).expand(len(self.padding), -1, -1)
        return self._forward(x, seen, column[known:] - self.padding)

    def _forward(self, x: Tensor, seen: Tensor, position: Tensor) -> Tensor:
        """(rows, S, D), bool (rows, S, columns), int64 (rows, S) -> (rows, S, D)"""
        return self.model.backbone(inputs_embeds=x, attention_mask=seen[:, None], position_ids=position,
                                   cache=self.cache, use_cache=True).last_hidden_state


@torch.no_grad()
def plain_blocks(
    model: PlainModel, mtp, ids: Tensor, audio_mask: Tensor, prompt: Tensor, max_frames: int, block: int = 16,
    steps: int = 6, cfg: float = 1.5, temperature: float = 0.8, min_frames: int = 0, seed: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """A context int64 (K, L), bool (L,) that ends with a voice (K, P) -> what ``blocks_cached`` gives, block by block.

    The last block is committed like every other.
    """
    rng, first = torch.Generator().manual_seed(seed), prompt.shape[1]
    stream = PlainStream(model, ids, audio_mask, 2 if cfg > 0 else 1)
    state = mtp.new_state(first + max_frames + block, stream.hidden.shape[1], "cpu", torch.float32)
    codes, states = state["codes"], state["states"][0][0]
    if first:
        codes[:, :first], states[:first] = prompt, stream.hidden[-first:]
        mtp.prime(state, first)
    clean = torch.zeros(0, dtype=torch.int64)
    while len(clean) < max_frames:
        semantic = decide(stream, block, steps, cfg, temperature, min_frames - len(clean), rng)
        ends = (semantic >= END_ID).nonzero()
        speech = int(ends[0]) if len(ends) else block
        lo = first + len(clean)
        hi = lo + speech
        if speech:
            codes[0, lo:hi], states[lo:hi] = semantic[:speech], stream.peek(semantic)[:speech]
            mtp.decode_block(state, lo, hi, block, 4, 0.0, 0, prefix=first)
        clean = torch.cat((clean, semantic))
        yield clean, codes[:, first:hi]
        if speech < block:
            return
        stream.commit(codes[:, lo:hi])


def decide(
    stream: PlainStream, block: int, steps: int, cfg: float, temperature: float, endless: int, rng: torch.Generator,
) -> Tensor:
    """int64 (F,), the semantic ids of the next block, of which the first ``endless`` are not the end."""
    semantic = torch.full((block,), MASK_ID)
    for step in range(steps):
        scores = stream.logits(semantic)
        guided = scores[0] + cfg * (scores[0] - scores[1]) if cfg > 0 else scores[0]
        guided[:, MASK_ID] = float("-inf")
        guided[:max(0, endless), END_ID:] = float("-inf")
        chances = (guided / max(temperature, 1e-5)).softmax(dim=-1)
        drawn = chances.multinomial(1, generator=rng)[:, 0] if temperature > 0 else guided.argmax(dim=-1)
        chance = chances.gather(1, drawn[:, None])[:, 0]
        waiting = semantic == MASK_ID
        count = int(waiting.sum()) - math.floor(block * math.cos(math.pi / 2 * (step + 1) / steps))
        surest = chance.masked_fill(~waiting, -1).topk(count).indices
        semantic[surest] = drawn[surest]
    return semantic
