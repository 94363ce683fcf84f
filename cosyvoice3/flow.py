"""The mel flow of CosyVoice3: speech tokens and a voice in, a mel of 50 frames per second out.

Each token sees the next three through two convolutions, stands for two frames, and a diffusion transformer
(``dit``) tells how noise flows to a mel under them, in ten steps (``s3gen.generate``). A voice's tokens and mel
stand before what is to be spoken; that part is computed again and dropped.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..s3gen import generate, inputs
from ..s3gen.encoder import LOOKAHEAD_TOKENS, UPSAMPLING, PreLookahead
from ..s3gen.flow import TokenFlow, Voice
from ..s3gen.generate import GUIDANCE, OnStep, Schedule
from ..s3gen.sampling import flow_rng
from .config import FlowConfig
from .dit import BLOCK_FRAMES, DiT

NOISE_FRAMES = 15000    # 300 s, columns of the noise that the published model begins with


def start_noise(mels: int, frames: int, seed: int = 0) -> Tensor:
    """(M, F) start of the flow, standard normal, on the CPU. Frame i is the same for any F; seed 0 is as published.

    The published model has one block of 300 s, the first draw of a generator seeded with 0, and fails beyond.
    Here further blocks follow, each the next draw of the same generator.
    """
    rng = flow_rng(seed)
    blocks = [torch.randn(mels, NOISE_FRAMES, generator=rng, dtype=torch.float32, device="cpu")
              for _ in range(max(1, -(-frames // NOISE_FRAMES)))]
    return torch.cat(blocks, dim=1)[:, :frames]


class MelFlow(TokenFlow):
    """Embeddings, lookahead and estimator."""

    def __init__(self, config: FlowConfig, operations=nn, device=None, dtype: torch.dtype = torch.float32):
        super().__init__(config.vocabulary, config.mels, config.speaker, config.mels, operations, device)
        self.config = config
        self.pre_lookahead_layer = PreLookahead(
            config.mels, config.lookahead_width, operations, device, torch.float32)
        self.decoder = nn.ModuleDict({"estimator": DiT(config, operations, device, dtype)})

    def read(self, embedded: Tensor, valid: Tensor | None) -> Tensor:
        """(B, L, M) and, where rows are padded, bool (B, L) -> (B, 2L, M)"""
        if valid is not None:
            embedded = embedded * valid[..., None]      # the lookahead of a row's last tokens must read zeros
        return self.pre_lookahead_layer(embedded).repeat_interleave(UPSAMPLING, dim=1)

    def schedule(self, steps: int = 0, device: torch.device | str = "auto") -> Schedule:
        """What all pieces spoken in so many steps share; 0: as many as published."""
        return generate.schedule(self.decoder.estimator, steps or generate.BASE_STEPS, self.on(device))

    def on(self, device: torch.device | str | None) -> torch.device:
        """Where to compute: where the weights are, unless told."""
        return next(self.parameters()).device if device in (None, "auto") else torch.device(device)


@torch.no_grad()
def mels(
    flow: MelFlow, rows: Sequence, voices: Sequence[Voice], noise: Sequence[Tensor] | None = None, *,
    schedule: Schedule | None = None, guidance: float = GUIDANCE, finalize: bool = True, streaming: bool = False,
    on_step: OnStep | None = None, device: torch.device | str = "auto", even: int = 1,
) -> list[Tensor]:
    """Ids (N_i,) per row, in a voice each -> (M, 2 N_i), computed as one batch; no row sees another.

    voices: (ids (L,), mel (F, M), embedding (D,)) of each row, as ``s3gen.inputs.voices`` gives; L and F may be 0.
    noise: (M, 2 L + 2 N_i or more) per row, by default that of seed 0. Without ``finalize`` the last three tokens
    are read as lookahead only: (M, 2 N_i - 6). streaming: no frame sees beyond its block of 50, which makes the
    blocks that are complete those of the whole; it sounds a little different. even: computed at a multiple of so
    many tokens. ``ValueError`` for 0 tokens and for ids that are no speech.
    """
    ids = [inputs.token_rows(row, None, flow.vocabulary)[0] for row in rows]
    held = 0 if finalize else LOOKAHEAD_TOKENS
    if min(map(len, ids)) <= held:
        raise ValueError(f"speech_tokens: {min(map(len, ids))} tokens with finalize=False, which holds back {held}; "
                         f"give at least {held + 1}, or finalize=True.")
    device = flow.on(device)
    voices = [tuple(part.to(device) for part in voice) for voice in voices]
    condition = flow.lay_out(ids, voices, finalize, device, even)
    if streaming:
        condition = replace(condition, block_frames=BLOCK_FRAMES)
    if noise is None:
        noise = [start_noise(flow.config.mels, max(condition.frames))] * len(ids)
    spoken = generate.mels(flow.decoder.estimator, condition, noise, schedule or flow.schedule(device=device),
                           guidance, on_step)
    return [mel.T for mel in spoken]
