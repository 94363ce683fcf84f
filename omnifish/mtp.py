"""The depth decoder of OGG TTS: it fills the nine residual codebooks of frames whose semantic code is decided.

A chain of layers, one for each residual codebook. A layer reads the code of the codebook above it, what is
known of its own, and what the layer above (the backbone, for the first) made of the frame. It looks at the
prompt, at all earlier blocks and at the whole of its own block, and scores the codes of its codebook. Each
codebook of a block is unmasked in a few rounds, the surest frames first (Chang et al. 2022,
https://arxiv.org/abs/2202.04200).

Groups of frames, the prompt and then each block, run one after another, each over the keys and values of
those before it. That is the block-causal mask, in memory that grows with the frames and not with their square.
All that is kept between blocks is in the state, which is made per call. The module holds weights only.
"""
from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..assembly import Shapes
from ..qwen import MLP, Attention, KVCache, RMSNorm, Rotation, rotation
from .sampling import draw, schedule

RESIDUALS = 9       # codebooks below the semantic one, so layers of the chain
FIRST = "layers.0."

State = dict[str, Any]


@dataclass(frozen=True)
class MTPConfig:
    """Sizes of the depth decoder."""

    width: int = 1024           # D, that of the backbone too
    heads: int = 16             # H, of the queries
    kv_heads: int = 8           # of keys and values
    head_width: int = 128       # channels of one head
    hidden: int = 3072          # width of the MLP
    semantic_rows: int = 4096   # codes of codebook 0,
    residual_rows: int = 1024   # and of each of the others
    mask_id: int = 4096         # stands in a state for a code that is not decided
    rope_theta: float = 1e6
    norm_eps: float = 1e-6

    @property
    def layers(self) -> int:
        return RESIDUALS

    @property
    def group(self) -> int:
        """Heads of queries that share one of keys."""
        return self.heads // self.kv_heads

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> MTPConfig:
        """Read the sizes off ``name -> shape``; ``KeyError`` names what is missing, ``ValueError`` what is odd."""
        depths = sum(name.startswith("heads.") for name in shapes)
        if depths != RESIDUALS:
            raise ValueError(f"{RESIDUALS} heads, one for each residual codebook, and found {depths}")
        inner, width = shapes[f"{FIRST}attention.q_proj.weight"]
        kv_inner, head_width = (shapes[f"{FIRST}attention.{name}.weight"][0] for name in ("k_proj", "q_norm"))
        if not head_width or head_width % 2 or not kv_inner or kv_inner % head_width or inner % kv_inner:
            raise ValueError(f"heads of {head_width} channels, and found {inner} of queries and {kv_inner} of keys")
        return cls(
            width=width,
            heads=inner // head_width,
            kv_heads=kv_inner // head_width,
            head_width=head_width,
            hidden=shapes[f"{FIRST}mlp.gate_proj.weight"][0],
            semantic_rows=shapes["embeddings.0.weight"][0],
            residual_rows=shapes["heads.0.weight"][0],
        )


class DepthLayer(nn.Module):
    """One codebook's link of the chain."""

    def __init__(self, config: MTPConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        norm = (config.width, config.norm_eps, device)
        # The last row stands for a code that is not decided.
        self.own_code = operations.Embedding(config.residual_rows + 1, config.width, **factory)
        self.norm_code, self.norm_state = RMSNorm(*norm), RMSNorm(*norm)
        self.in_proj = operations.Linear(2 * config.width, config.width, bias=False, **factory)
        self.norm_attention = RMSNorm(*norm)
        self.attention = Attention(config, 3, operations, **factory)
        self.norm_mlp = RMSNorm(*norm)
        self.mlp = MLP(config, operations, **factory)
        self.norm_out = RMSNorm(*norm)

    def forward(
        self, code: Tensor, own: Tensor, hidden: Tensor, turn: Rotation, cache: KVCache, depth: int,
    ) -> Tensor:
        """The code above as (1, S, D), the own as int64 (1, S), what the layer above gave (1, S, D) -> (1, S, D)"""
        code = self.norm_code(code + self.own_code(own))
        x = self.in_proj(torch.cat((code, self.norm_state(hidden)), dim=-1))
        x = x + self.attention(self.norm_attention(x), turn, None, cache, depth)
        return self.norm_out(x + self.mlp(self.norm_mlp(x)))


class MTP(nn.Module):
    """The whole decoder. ``new_state``, then ``prime`` once, then ``decode_block`` from left to right."""

    def __init__(self, config: MTPConfig, operations=nn, device=None, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config, self.dtype = config, dtype
        factory = {"device": device, "dtype": dtype}
        above = [config.semantic_rows] + [config.residual_rows] * (RESIDUALS - 1)
        self.embeddings = nn.ModuleList(operations.Embedding(rows, config.width, **factory) for rows in above)
        self.layers = nn.ModuleList(DepthLayer(config, operations, **factory) for _ in above)
        # Their product is what is drawn from, and a small part of the work.
        self.heads = nn.ModuleList(
            operations.Linear(config.width, config.residual_rows, bias=False, device=device, dtype=torch.float32)
            for _ in above)

    def new_state(self, total_frames: int, hidden_size: int, device, dtype: torch.dtype) -> State:
        """What one speech of at most so many frames needs; the caller writes to the first three.

        codes: int64 (10, F), the mask id throughout. Row 0 of a block, and all rows of what came before it, have to
        be in place when it is decoded, and so have the states.
        states: a list of one, ``dtype`` (1, F, D), what the backbone gave.
        seed: any integer, for draws.
        ready: how many frames the chain has read. Lower it after a change to frames below it.
        borders: where the groups that it has read begin and end.
        cache: keys and values of all layers.
        """
        config = self.config
        if hidden_size != config.width:
            raise ValueError(f"depth decoder: states of {hidden_size} channels, and it reads {config.width}; "
                             "take the backbone that belongs to it.")
        return {
            "codes": torch.full((RESIDUALS + 1, total_frames), config.mask_id, device=device),
            "states": [torch.zeros(1, total_frames, hidden_size, device=device, dtype=dtype)],
            "seed": 0,
            "ready": 0,
            "borders": [0],
            "cache": KVCache.empty(config, 1, total_frames, device, self.dtype),
        }

    @torch.no_grad()
    def prime(self, state: State, frames: int) -> None:
        """Read the prompt, the first ``frames`` frames, all of whose codes and states are in place."""
        total = state["codes"].shape[1]
        if not 0 <= frames <= total:
            raise ValueError(f"prompt: {frames} frames do not fit a state of {total}; make the state for prompt and "
                             "speech together.")
        self._keep(state, [0])
        self._check_codes(state, 0, frames, frames)
        self._read(state, sorted({0, frames}))

    @torch.no_grad()
    def decode_block(
        self, state: State, lo: int, hi: int, block: int, rounds: int = 4, temperature: float = 0.0, top_k: int = 0,
        prefix: int = 0,
    ) -> None:
        """Fill rows 1 to 9 of ``codes`` for the frames ``lo`` to ``hi``, a block or as much as there is of the last.

        block: frames of a block, counted from ``prefix``, the end of the prompt.
        rounds: in which the frames of a codebook are decided; 1 decides all at once.
        temperature: 0 takes the likeliest codes. top_k: the likeliest codes that are drawn from; 0: all.

        Whatever stands before ``lo`` and was not read yet is read first. Waits for the device twice.
        ``ValueError`` for a code without a row in its table, and for scores that are no numbers; the codes then stay.
        """
        _check_options(state["codes"].shape[1], lo, hi, block, rounds, temperature, top_k, prefix)
        if lo == hi:
            return
        borders = sorted({0, *range(prefix, lo + 1, block)})
        self._keep(state, borders)
        self._check_codes(state, state["ready"], lo, hi)
        self._read(state, borders)

        codes = state["codes"]
        hidden = state["states"][0][:, lo:hi].to(self.dtype)
        turn = self._turn(lo, hi, codes.device)
        counts = [count for count in schedule(hi - lo, rounds) if count]
        times = None
        if temperature > 0:
            shape = (hi - lo, RESIDUALS, len(counts), self.config.residual_rows)
            times = race(state["seed"], lo, shape).to(codes.device)
        decided, sound = [codes[0, lo:hi]], torch.ones((), dtype=torch.bool, device=codes.device)
        for depth, head in enumerate(self.heads):
            run = partial(self._run, state, depth, decided[-1], hidden=hidden, turn=turn)
            own = torch.full_like(decided[0], self.config.residual_rows)
            for turned, count in enumerate(counts):
                scores = head(run(own)[0].float()).float()
                sound = sound & scores.isfinite().all()
                ids, chance = pick(scores, temperature, top_k, None if times is None else times[:, depth, turned])
                own = self._fix(own, ids, chance, count)
            hidden = run(own)
            decided.append(own)
        if not sound:
            raise ValueError(f"depth decoder: scores of the frames {lo} to {hi - 1} are NaN or infinite, so that no "
                             "code can be drawn. Load the model in fp32 or bf16 (fp16 overflows), and check its file.")
        codes[1:, lo:hi] = torch.stack(decided[1:])
        self._advance(state, hi)

    def _fix(self, own: Tensor, ids: Tensor, chance: Tensor, count: int) -> Tensor:
        """(S,) thrice -> int64 (S,), where the ``count`` surest of the masked frames have their id"""
        chance = chance.masked_fill(own < self.config.residual_rows, -1)
        # Equals in the order of frames, on every device.
        surest = chance.argsort(descending=True, stable=True)[:count]
        return own.index_copy(0, surest, ids[surest])

    def _run(self, state: State, depth: int, above: Tensor, own: Tensor, hidden: Tensor, turn: Rotation) -> Tensor:
        """One layer over the frames behind those that were read: int64 (S,) twice, (1, S, D) -> (1, S, D)"""
        code = self.embeddings[depth](above[None])
        return self.layers[depth](code, own[None], hidden, turn, state["cache"], depth)

    def _turn(self, lo: int, hi: int, device) -> Rotation:
        return rotation(torch.arange(lo, hi, device=device)[None], self.config)

    def _read(self, state: State, borders: list[int]) -> None:
        """Run the chain over the groups that are still to be read, whose codes are all known."""
        for lo, hi in itertools.pairwise(borders[len(state["borders"]) - 1 :]):
            codes, hidden = state["codes"][:, lo:hi], state["states"][0][:, lo:hi].to(self.dtype)
            turn = self._turn(lo, hi, codes.device)
            for depth, (above, own) in enumerate(itertools.pairwise(codes)):
                hidden = self._run(state, depth, above, own, hidden, turn)
            self._advance(state, hi)

    def _advance(self, state: State, hi: int) -> None:
        """The group up to ``hi`` was read: every layer has written its keys and values."""
        state["cache"].length = state["ready"] = hi
        state["borders"] = [*state["borders"], hi]

    def _keep(self, state: State, borders: list[int]) -> None:
        """Forget what was read in other groups than those between ``borders``, and what comes behind the last."""
        known = [border for border in state["borders"] if border <= state["ready"]]
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(known, borders))
        state["borders"] = [border for border, _ in same]
        state["ready"] = state["borders"][-1]
        state["cache"].truncate(state["ready"])

    def _check_codes(self, state: State, start: int, lo: int, hi: int) -> None:
        """``ValueError`` for the first code that no table has: of all rows from ``start`` to ``lo``, then of row 0."""
        rows = [self.config.semantic_rows] + [self.config.residual_rows] * RESIDUALS
        found = state["codes"][:, start:hi].clone()
        found[1:, lo - start :] = 0
        wrong = (found < 0) | (found >= torch.tensor(rows, device=found.device)[:, None])
        for frame, codebook in wrong.T.nonzero()[:1].tolist():
            code = int(found[codebook, frame])
            raise ValueError(f"codes: id {code} at frame {start + frame} of codebook {codebook}, which has 0.."
                             f"{rows[codebook] - 1}. Decode blocks in order, and give a prompt or a beginning all ten "
                             "codes of the Fish 44.1 kHz codec for each frame.")


def race(seed: int, frame: int, shape: tuple[int, ...]) -> Tensor:
    """float32 on the CPU for the block that begins at ``frame``, from these numbers alone, for ``pick`` to draw with.

    The frames come first, so a block that is cut short draws what the whole one would have drawn.
    """
    # A generator looks at 32 bits of its seed, and neighbours must not share theirs; nor may the backbone's draws.
    digest = hashlib.blake2b(f"depth {seed % 2**64} {frame}".encode(), digest_size=8).digest()
    rng = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    return -torch.rand(shape, generator=rng).log()


def pick(scores: Tensor, temperature: float, top_k: int, times: Tensor | None) -> tuple[Tensor, Tensor]:
    """float32 (S, V), and their ``race`` where it is warm -> int64 (S,), float32 (S,)

    An id for each frame, and its probability; where it is cold, the one that it has at temperature 1.
    """
    if temperature == 0:
        return draw(scores, 1.0, None)
    if 0 < top_k < scores.shape[1]:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], float("-inf"))
    return draw(scores, temperature, times)


def _check_options(
    total: int, lo: int, hi: int, block: int, rounds: int, temperature: float, top_k: int, prefix: int,
) -> None:
    allowed = {
        "block": (block >= 1, block, "1 or more"),
        "rounds": (rounds >= 1, rounds, "1 or more"),
        "temperature": (0 <= temperature < math.inf, temperature, "0 or more"),
        "top_k": (top_k >= 0, top_k, "0 or more"),
    }
    for name, (fine, value, text) in allowed.items():
        if not fine:
            raise ValueError(f"{name}: {value} is not possible; give {text}.")
    if not 0 <= prefix <= lo <= hi <= min(total, lo + block) or lo < hi and (lo - prefix) % block:
        raise ValueError(f"block: frames {lo} to {hi} of {total} are not one of the blocks of {block} that follow "
                         f"{prefix} frames of prompt; decode from one border of a block to the next.")


def random_state(config: MTPConfig, seed: int = 0) -> dict[str, Tensor]:
    """Weights by name that make noise of every code, float32: for graphs that run without a download."""
    rng = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in MTP(config, device="meta").state_dict().items():
        if "norm" in name:
            state[name] = torch.ones(tensor.shape)
            continue
        spread = 1 if name.startswith("embeddings.") or ".own_code." in name else 1 / math.sqrt(tensor.shape[1])
        state[name] = spread * torch.randn(tensor.shape, generator=rng)
        if ".own_code." in name:
            state[name][-1] *= 0.1      # else it is what all frames have in common, and so are their codes
    return state
