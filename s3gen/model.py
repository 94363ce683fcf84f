"""S3Token2Wav: speech tokens and a reference voice in, 24 kHz audio out.

The composed network behind the published interface of Chatterbox's S3Gen. What the original draws
from the global generator is drawn here from ``seed``, row i from ``seed + i``, and every draw can be
given instead (``z``, ``phase``, ``noise``). Rows of a batch may differ in length and in voice; each
comes out as it would alone. Nothing that is passed in is changed.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from . import generate, inputs, reference, sampling
from .config import PARTS, S3GenConfig
from .encoder import LOOKAHEAD_TOKENS, UPSAMPLING
from .flow import Flow
from .generate import OnStep
from .speaker import CAMPPlus
from .tokenizer import S3Tokenizer
from .vocoder import HARMONICS, HOP_SAMPLES, HiFT

REFERENCE_PARTS = PARTS[:2]         # read a voice or a source
SYNTHESIS_PARTS = PARTS[2:]         # speak
FADE_MUTED_SAMPLES = 480            # 20 ms in which the reference may spill over
FADE_SAMPLES = 480                  # 20 ms of fade behind it


def fade_in(wave: Tensor) -> Tensor:
    """(B, T) with the first 20 ms muted and the next 20 ms faded in; any length."""
    ramp = (torch.linspace(math.pi, 0, FADE_SAMPLES, dtype=wave.dtype, device=wave.device).cos() + 1) / 2
    fade = torch.cat((ramp.new_zeros(FADE_MUTED_SAMPLES), ramp))[: wave.shape[-1]]
    return torch.cat((wave[:, : len(fade)] * fade, wave[:, len(fade) :]), dim=1)


class S3Token2Wav(nn.Module):
    """The whole model, or those of its ``parts`` that are needed.

    ``operations`` makes the layers (torch.nn's, or ComfyUI's, which cast and move), ``dtype`` is that
    of the flow's estimator; everything else is float32 and has to stay so (no ``.half()`` of the whole).
    ``weights.build`` makes one from a checkpoint.
    """

    def __init__(
        self, meanflow: bool = False, config: S3GenConfig | None = None, operations=nn,
        device=None, dtype: torch.dtype = torch.float32, parts: tuple[str, ...] = PARTS,
    ):
        super().__init__()
        config = config or S3GenConfig.default(meanflow)
        if config.estimator.meanflow != meanflow:
            raise ValueError(f"meanflow is {meanflow}, but the configuration's is {config.estimator.meanflow}.")
        make = {
            "tokenizer": lambda: S3Tokenizer(config.tokenizer, operations, device, torch.float32),
            "speaker_encoder": lambda: CAMPPlus(config.speaker, operations, device, torch.float32),
            "flow": lambda: Flow(config, operations, device, dtype),
            "mel2wav": lambda: HiFT(config.vocoder, operations, device),
        }
        self.config = config
        for part in parts:
            self.add_module(part, make[part]())

    def _on(self, device) -> torch.device:
        return next(self.parameters()).device if device in (None, "auto") else torch.device(device)

    @torch.no_grad()
    def embed_ref(self, ref_wav, ref_sr: int, device="auto", ref_fade_out: bool = True) -> dict:
        """A recording, (T,) or (B, T) floats in +-1 at ``ref_sr`` Hz, as the dict that the others take.

        See ``reference.embed`` for its entries. ``ref_fade_out`` has no effect, as published.
        """
        return reference.embed(self.tokenizer, self.speaker_encoder, ref_wav, ref_sr, self._on(device))

    @torch.no_grad()
    def flow_inference(
        self, speech_tokens, ref_wav=None, ref_sr: int | None = None, ref_dict: dict | None = None,
        finalize: bool = False, *, z: Tensor | None = None, seed: int = 0, speech_token_lens=None,
        n_cfm_timesteps: int | None = None, guidance: float = generate.GUIDANCE,
        on_step: OnStep | None = None, device="auto",
    ) -> Tensor:
        """Tokens (N,) or (B, N) -> mel (B, 80, 2N), zero past the end of a shorter row.

        Give either a recording or a ``ref_dict`` of ``embed_ref``. Without ``finalize`` the last three
        tokens serve as lookahead only: (B, 80, 2N - 6). ``z`` is the noise (B, 80, 2 (L + N)) of the
        voice's L tokens and the N new ones; without it row i draws from ``seed + i``.
        """
        device = self._on(device)
        rows = inputs.token_rows(speech_tokens, speech_token_lens, self.config.vocabulary)
        held = 0 if finalize else LOOKAHEAD_TOKENS
        if min(map(len, rows)) <= held:
            raise ValueError(
                f"speech_tokens: {min(map(len, rows))} tokens with finalize=False, which holds back "
                f"{held}; give at least {held + 1}, or finalize=True.")
        voices = self._voices(ref_wav, ref_sr, ref_dict, len(rows), device)
        mels = self.config.estimator.mels
        whole = [UPSAMPLING * (len(prompt) + len(row)) for (prompt, _, _), row in zip(voices, rows)]
        given = inputs.pinned(z, (len(rows), mels, max(whole) - UPSAMPLING * held), "z")
        noise = given if given is not None else [
            sampling.flow_noise(mels, n, sampling.flow_rng(seed, i)) for i, n in enumerate(whole)]
        steps = inputs.step_count(n_cfm_timesteps, generate.default_steps(self.flow.decoder.estimator))

        # On a CPU a batch gains nothing and its padding costs, so rows go one after another there.
        size = 1 if device.type == "cpu" else len(rows)
        spoken: list[Tensor] = []
        for start in range(0, len(rows), size):
            some = slice(start, start + size)

            def report(done: int, _: int, before: int = steps * (start // size)) -> None:
                if on_step is not None:
                    on_step(before + done, steps * -(-len(rows) // size))

            spoken += self._flow(rows[some], voices[some], noise[some], finalize, steps, guidance, report, device)
        return nn.utils.rnn.pad_sequence(spoken, batch_first=True).transpose(1, 2)      # (B, M, F)

    def _flow(self, rows, voices, noise, finalize, steps, guidance, on_step, device) -> list[Tensor]:
        """Rows of ids, voices of ``_voices`` and noise (M, F_i) -> mels (2 N_i, M), computed together."""
        schedule = generate.schedule(self.flow.decoder.estimator, steps, device)
        condition = self.flow.lay_out(rows, voices, finalize, device)
        return generate.mels(self.flow.decoder.estimator, condition, noise, schedule, guidance, on_step)

    @torch.no_grad()
    def hift_inference(
        self, speech_feat: Tensor, cache_source: Tensor | None = None, *,
        phase: Tensor | None = None, noise: Tensor | None = None, seed: int = 0, device="auto",
    ) -> tuple[Tensor, Tensor]:
        """Mel (B, 80, F) -> wave (B, 480 F) within +-0.99 and its excitation (B, 1, 480 F).

        ``cache_source`` (B, 1, T) replaces the first T samples of the excitation. ``phase`` (B, 9, 1)
        and ``noise`` (B, 9, 480 F) pin the draws; without them row i draws from ``seed + i``. One row of
        any of the three serves all.
        """
        mel = speech_feat.to(self._on(device), torch.float32)
        samples = HOP_SAMPLES * mel.shape[2]
        phase = inputs.pinned(phase, (len(mel), HARMONICS, 1), "phase")
        noise = inputs.pinned(noise, (len(mel), HARMONICS, samples), "noise")
        kept = inputs.pinned(cache_source, (len(mel), 1, 0), "cache_source")
        rngs = [sampling.vocoder_rng(seed, row) for row in range(len(mel))]
        drawn = torch.stack([sampling.start_phase(HARMONICS, rng) for rng in rngs])
        phase = drawn if phase is None else phase
        if noise is None:
            noise = torch.stack([sampling.source_noise(HARMONICS, samples, rng) for rng in rngs])
        phase = phase.to(mel).clone()
        phase[:, 0] = 0     # the fundamental always starts at zero
        source = self.mel2wav.source(self.mel2wav.pitch(mel), phase, noise[:, :, :samples].to(mel))
        if kept is not None:
            kept = kept[:, :, :samples].to(source)
            source = torch.cat((kept, source[:, :, kept.shape[-1] :]), dim=2)
        return self.mel2wav.decode(mel, source), source

    @torch.no_grad()
    def inference(
        self, speech_tokens, ref_wav=None, ref_sr: int | None = None, ref_dict: dict | None = None,
        cache_source: Tensor | None = None, finalize: bool = True, *, z: Tensor | None = None,
        phase: Tensor | None = None, noise: Tensor | None = None, seed: int = 0, speech_token_lens=None,
        n_cfm_timesteps: int | None = None, guidance: float = generate.GUIDANCE,
        on_step: OnStep | None = None, device="auto",
    ) -> tuple[Tensor, Tensor]:
        """Tokens (N,) or (B, N) -> wave (B, 960 N), faded in, and its excitation (B, 1, 960 N).

        Arguments as in ``flow_inference`` and ``hift_inference``; shorter rows end in zeros.
        """
        mel = self.flow_inference(
            speech_tokens, ref_wav, ref_sr, ref_dict, finalize, z=z, seed=seed,
            speech_token_lens=speech_token_lens, n_cfm_timesteps=n_cfm_timesteps, guidance=guidance,
            on_step=on_step, device=device)
        held = 0 if finalize else LOOKAHEAD_TOKENS
        rows = inputs.token_rows(speech_tokens, speech_token_lens, self.config.vocabulary)
        longest = HOP_SAMPLES * mel.shape[2]
        phase = inputs.pinned(phase, (len(rows), HARMONICS, 1), "phase")
        noise = inputs.pinned(noise, (len(rows), HARMONICS, longest), "noise")
        kept = inputs.pinned(cache_source, (len(rows), 1, 0), "cache_source")
        # The vocoder sees to the right, so each row is vocoded at its own length.
        waves, sources = [], []
        for index, row in enumerate(rows):
            frames = UPSAMPLING * (len(row) - held)
            one = slice(index, index + 1)
            wave, source = self.hift_inference(
                mel[one, :, :frames], None if kept is None else kept[one],
                phase=None if phase is None else phase[one], noise=None if noise is None else noise[one],
                seed=seed + index, device=device)
            waves.append(wave[0])
            sources.append(source[0, 0])
        pad = nn.utils.rnn.pad_sequence
        return fade_in(pad(waves, batch_first=True)), pad(sources, batch_first=True)[:, None]

    def forward(self, speech_tokens, ref_wav=None, ref_sr: int | None = None, ref_dict: dict | None = None,
                finalize: bool = True, **pinned) -> tuple[Tensor, Tensor]:
        """As ``inference``, whose keywords it takes."""
        return self.inference(speech_tokens, ref_wav, ref_sr, ref_dict, finalize=finalize, **pinned)

    def _voices(self, ref_wav, ref_sr, ref_dict, rows: int, device) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Per row its voice, as ``inputs.voices``, from a recording or from what was read of one."""
        if (ref_dict is None) == (ref_wav is None):
            raise ValueError("Give either ref_wav with ref_sr, or ref_dict; exactly one of them.")
        if ref_dict is None:
            ref_dict = self.embed_ref(ref_wav, ref_sr, device)
        return inputs.voices(ref_dict, rows, self.config.vocabulary, device)
