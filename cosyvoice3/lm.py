"""The language model of CosyVoice 2 and 3: text ids and speech ids in, scores of the next speech id out.

A Qwen2 decoder. What goes in are embeddings: control, text, control, speech. Keys and values live in a cache
that is made per call, at its full size. The module holds weights only.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import qwen
from ..qwen import Decoder, RMSNorm, rotate, rotation
from .config import TEXT_TABLE, LMConfig

__all__ = ["Decoder", "KVCache", "RMSNorm", "SpeechLM", "rotate", "rotation"]


@dataclass(eq=False)
class KVCache(qwen.KVCache):
    """A cache whose rows may begin behind column 0."""
    padded: bool = False    # whether one does


class SpeechLM(nn.Module):
    """The whole model, by the published names.

    The table of text ids is a quarter of the weights and read once per text. It stays in the CPU's memory
    wherever the module goes, so it is none of its parameters: ``text_table`` (rows, D).
    """

    def __init__(self, config: LMConfig, operations=nn, device=None, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config, self.dtype = config, dtype
        factory = {"device": device, "dtype": dtype}
        rows, width = config.speech_rows, config.width
        self.llm = nn.ModuleDict({"model": nn.ModuleDict({"model": Decoder(config, 2, operations, **factory)})})
        self.text_table = torch.empty(config.text_rows, width, **factory)
        self.speech_embedding = operations.Embedding(rows, width, **factory)
        if config.version == 2:
            self.llm_embedding = operations.Embedding(2, width, **factory)
        # Its product is what is drawn from, and 1 % of the work.
        self.llm_decoder = operations.Linear(width, rows, bias=config.version == 2, device=device, dtype=torch.float32)

    @property
    def decoder(self) -> Decoder:
        return self.llm["model"]["model"]

    def embed_text(self, ids: Tensor) -> Tensor:
        """int64 (L,) -> (L, D) on the device of the ids"""
        found = ids.cpu()
        if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < len(self.text_table):
            raise ValueError(f"text: ids {int(found.min())} to {int(found.max())} are not in {TEXT_TABLE}, which has "
                             f"{len(self.text_table)} rows; take the tokenizer that came with the model.")
        return F.embedding(found, self.text_table).to(ids.device, self.dtype)

    def embed_speech(self, ids: Tensor) -> Tensor:
        """int64 (...) -> (..., D) on the device of the ids, which have to be rows of the table"""
        return self.speech_embedding(ids)

    def start(self, device: torch.device | str = "cpu") -> Tensor:
        """(1, D), what stands before the text"""
        return self._control(self.config.ids.sos, 0, device)

    def task(self, device: torch.device | str = "cpu") -> Tensor:
        """(1, D), what stands between text and speech"""
        return self._control(self.config.ids.task, 1, device)

    def _control(self, speech_id: int | None, row: int, device) -> Tensor:
        table = self.llm_embedding if speech_id is None else self.speech_embedding
        return table(torch.tensor([row if speech_id is None else speech_id], device=device))

    def new_cache(self, rows: int, capacity: int, device: torch.device | str = "cpu") -> KVCache:
        """Room for ``capacity`` columns of ``rows`` rows; see ``cache_bytes``."""
        return KVCache.empty(self.config, rows, capacity, device, self.dtype)

    def cache_bytes(self, rows: int, capacity: int) -> int:
        """The memory that such a cache takes."""
        heads = 2 * self.config.layers * self.config.kv_heads
        return heads * rows * capacity * self.config.head_width * self.dtype.itemsize

    def forward(self, x: Tensor, cache: KVCache, first: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D) behind the last norm; each column sees those of its row up to itself.

        first: int64 (B,), the column in which each row begins. What stands before, in the first call of a
        cache only, is padding: its values do not matter, and positions count from behind it.
        """
        steps = x.shape[1]
        begin, end = cache.length, cache.after(steps)
        if begin == 0:
            cache.padded = bool(first.any())    # waits for the device, once per prompt
        column = torch.arange(end, device=x.device)
        position = column[begin:] - first[:, None]                                      # (B, S)
        if cache.padded and begin == 0:
            x = torch.where((position >= 0)[..., None], x, 0)
        mask = None
        if steps > 1 or cache.padded:
            mask = self._mask(column, begin, first, x.dtype)
        return self.decoder.run(x, rotation(position, self.config), mask, cache)

    def _mask(self, column: Tensor, begin: int, first: Tensor, dtype: torch.dtype) -> Tensor:
        """Additive (B, 1, G S, columns), or (B, 1, 1, columns) where S is 1."""
        query = column[begin:, None]
        # Padding sees itself: a query without any key would be NaN, which spoils whoever multiplies it by 0.
        seen = (column <= query) & (column >= first[:, None, None]) | (column == query)     # (B, S, columns)
        mask = torch.zeros(seen.shape, dtype=dtype, device=column.device).masked_fill(~seen, float("-inf"))
        group = self.config.group if len(query) > 1 else 1
        return mask.repeat(1, group, 1)[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, D) -> float32 (B, rows), the scores of the next id"""
        return self.llm_decoder(hidden.float())
