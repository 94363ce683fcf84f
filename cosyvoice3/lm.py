"""The language model of CosyVoice 2 and 3: text ids and speech ids in, scores of the next speech id out.

A Qwen2 decoder: each layer is attention and a gated MLP behind RMS norms; positions turn the queries and
keys (Su et al. 2021, https://arxiv.org/abs/2104.09864, first half of a head against the second); several
heads of queries share one of keys and values (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245).
What goes in are embeddings: control, text, control, speech. Norms, rotation and scores are float32
in every precision.

Keys and values live in a cache that is made per call, at its full size. The module holds weights only.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import TEXT_TABLE, LMConfig

Rotation = tuple[Tensor, Tensor]


@dataclass(eq=False)
class KVCache:
    """Keys and values of all layers, each (layers, B, H', columns, D/H) with H' heads of their own.

    Slots past ``length`` hold NaN: reading one spoils the output where everybody hears it.
    """
    keys: Tensor
    values: Tensor
    length: int = 0         # columns that are filled
    padded: bool = False    # whether a row begins behind column 0

    @classmethod
    def empty(cls, config: LMConfig, rows: int, capacity: int, device, dtype: torch.dtype) -> KVCache:
        shape = (config.layers, rows, config.kv_heads, capacity, config.head_width)
        return cls(*(torch.full(shape, float("nan"), device=device, dtype=dtype) for _ in range(2)))

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    def after(self, steps: int) -> int:
        """The length that ``steps`` more columns make; ``ValueError`` where there is no room."""
        if self.length + steps > self.capacity:
            raise ValueError(f"language model: {self.length} + {steps} columns do not fit a cache of {self.capacity}; "
                             "shorten the text or the prompt, or lower the most tokens that may be spoken.")
        return self.length + steps

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's (B, H', S, D/H) behind its filled columns -> views of all its columns so far.

        ``length`` stays as it is until every layer has written.
        """
        end = self.after(keys.shape[2])
        self.keys[layer, :, :, self.length:end] = keys
        self.values[layer, :, :, self.length:end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, width: int, eps: float, device=None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, device=device, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


def rotation(position: Tensor, config: LMConfig) -> Rotation:
    """int64 (B, S) -> float32 (B, S, 1, D/H) cosines, and sines with the sign that ``rotate`` needs."""
    channel = torch.arange(0, config.head_width, 2, device=position.device, dtype=torch.float32)
    # Rounded as in training: a product with the inverse, not a quotient. It shows after a thousand columns.
    angle = position[..., None, None] * (1 / config.rope_theta ** (channel / config.head_width))
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, S, H, D/H) -> the same, channel i turned against channel i + D/2H."""
    return (x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention over the cache."""

    def __init__(self, config: LMConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        inner, kv_inner = config.heads * config.head_width, config.kv_heads * config.head_width
        self.kv_heads, self.group, self.head_width = config.kv_heads, config.group, config.head_width
        self.q_proj = operations.Linear(config.width, inner, **factory)
        self.k_proj = operations.Linear(config.width, kv_inner, **factory)
        self.v_proj = operations.Linear(config.width, kv_inner, **factory)
        self.o_proj = operations.Linear(inner, config.width, bias=False, **factory)

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor | None, cache: KVCache, layer: int) -> Tensor:
        """(B, S, D), additive (B, 1, G S, columns) or None -> (B, S, D), with G heads on one key"""
        steps = x.shape[1]
        q, k, v = (linear(x).unflatten(-1, (-1, self.head_width)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, *turn), rotate(k, *turn)
        keys, values = cache.append(layer, k.transpose(1, 2), v.transpose(1, 2))
        # Heads that share a key are so many more queries of one head: no key is ever copied.
        q = q.unflatten(2, (self.kv_heads, self.group)).permute(0, 2, 3, 1, 4).flatten(2, 3)    # (B, H', G S, D/H)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out = out.unflatten(2, (self.group, steps)).permute(0, 3, 1, 2, 4).flatten(2)           # (B, S, H D/H)
        return self.o_proj(out)


class MLP(nn.Module):
    """Two linear layers, the first of them gated through SiLU."""

    def __init__(self, config: LMConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"bias": False, "device": device, "dtype": dtype}
        self.gate_proj = operations.Linear(config.width, config.hidden, **factory)
        self.up_proj = operations.Linear(config.width, config.hidden, **factory)
        self.down_proj = operations.Linear(config.hidden, config.width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)"""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each behind its norm and beside what went in."""

    def __init__(self, config: LMConfig, operations, device=None, dtype=None):
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.norm_eps, device)
        self.self_attn = Attention(config, operations, device, dtype)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps, device)
        self.mlp = MLP(config, operations, device, dtype)

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor | None, cache: KVCache, layer: int) -> Tensor:
        """(B, S, D) -> (B, S, D)"""
        x = x + self.self_attn(self.input_layernorm(x), turn, mask, cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The layers and the norm behind them."""

    def __init__(self, config: LMConfig, operations, device=None, dtype=None):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, operations, device, dtype) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps, device)


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
        self.llm = nn.ModuleDict({"model": nn.ModuleDict({"model": Decoder(config, operations, **factory)})})
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
        turn = rotation(position, self.config)
        for index, layer in enumerate(self.decoder.layers):
            x = layer(x, turn, mask, cache, index)
        cache.length = end
        return self.decoder.norm(x)

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
