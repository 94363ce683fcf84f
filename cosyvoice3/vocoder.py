"""CosyVoice3's causal HiFT: from mel to wave by way of an excitation, looking eight frames ahead and no further.

A source-filter vocoder like S3Gen's (Li et al. 2023, https://arxiv.org/abs/2309.09493), with convolutions that
see the past alone, save two: the first of the pitch predictor looks three frames ahead, the first of the
decoder four. So speech can be vocoded as it comes: without ``finalize`` a wave is the beginning of the whole one.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..s3gen.config import VocoderConfig
from ..s3gen.vocoder import (
    BINS,
    FFT_HOP_SAMPLES,
    HOP_SAMPLES,
    RATES,
    ResBlock,
    as_line,
    mean_of,
    stft,
    wave_of,
)
from .excitation import (
    PITCH_CONTEXT_FRAMES,
    PITCH_LOOKAHEAD_FRAMES,
    HarmonicSource,
    PitchPredictor,
    noise_table,
    phases,
    source_noise,
)

LOOKAHEAD_FRAMES = 4        # of the decoder
HELD_FRAMES = PITCH_LOOKAHEAD_FRAMES + LOOKAHEAD_FRAMES + 1     # without finalize; one is the inverse STFT's
CONTEXT_FRAMES = 30         # of the past that a frame of the wave depends on, but for its phase
# That are decoded at once, 20 s: in 0.4 GB, and no tensor is above the 32 MiB from which on malloc keeps none.
SEGMENT_FRAMES = 1000
EXCITED_FRAMES = 64         # whose noise is drawn at once: each is 480 x 9 numbers, several times over
# Convolutions of little are computed in other ways, whose last bits differ. What is shorter is decoded with
# silence behind it, for the start of a stream to be that of the whole.
SHORTEST_FRAMES = 64


def up_taps(kernel: int, rate: int) -> int:
    """How many frames the ``kernel`` last samples reach into, of a rate that is so many times lower."""
    return 2 + (kernel - 2) // rate


def fold_up(weight: Tensor, rate: int) -> Tensor:
    """(C', C, taps at the upper rate) -> (rate C', C, taps at the lower one)

    Upsampling repeats each frame, so a causal convolution behind it takes sums of its taps times few frames,
    other sums for each of the ``rate`` samples of a frame: a third of the work.
    """
    outputs, inputs, kernel = weight.shape
    taps = up_taps(kernel, rate)
    folded = weight.new_zeros(rate, outputs, inputs, taps)
    for sample in range(rate):
        for tap in range(kernel):
            # A frame begins with the sample 0; the last tap is the sample's own.
            folded[sample, ..., taps - 1 + (sample + tap - kernel + 1) // rate] += weight[..., tap]
    return folded.flatten(0, 1)


def behind_past(conv: nn.Module, x: Tensor, slope: float) -> Tensor:
    """A causal convolution of what a leaky ReLU lets pass: (B, C, 1, F) -> (B, C', 1, F)"""
    return conv(F.leaky_relu_(F.pad(x, (conv.kernel_size[1] - 1, 0)), slope))


class CausalHiFT(nn.Module):
    """The whole vocoder.

    The pitch predictor stays in the CPU's memory wherever the module goes, for few other devices have float64;
    so it is none of its submodules.
    """

    def __init__(self, config: VocoderConfig | None = None, operations=nn, device=None):
        super().__init__()
        self.config = config = config or VocoderConfig()
        factory = {"device": device, "dtype": torch.float32}
        channels = [config.channels >> stage for stage in range(len(RATES) + 1)]
        self.m_source = HarmonicSource(operations, **factory)
        self._beside = (PitchPredictor(config, device),)
        self.conv_pre = operations.Conv2d(config.mels, channels[0], (1, LOOKAHEAD_FRAMES + 1), **factory)
        self.ups, self.source_downs = nn.ModuleList(), nn.ModuleList()
        self.source_resblocks, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for stage, (rate, kernel) in enumerate(zip(RATES, config.up_kernels)):
            wide, narrow = channels[stage], channels[stage + 1]
            taps = up_taps(kernel, rate)
            self.ups.append(operations.Conv2d(wide, rate * narrow, (1, taps), **factory))
            down = math.prod(RATES[stage + 1 :])    # from the excitation's rate to this stage's
            self.source_downs.append(
                operations.Conv2d(2 * BINS, narrow, (1, 2 * down if down > 1 else 1), (1, down), **factory))
            self.source_resblocks.append(
                ResBlock(narrow, config.source_kernels[stage], operations, causal=True, **factory))
            self.resblocks.extend(
                ResBlock(narrow, kernel, operations, causal=True, **factory) for kernel in config.kernels)
        self.conv_post = operations.Conv2d(channels[-1], 2 * BINS, (1, 7), **factory)

    @property
    def f0_predictor(self) -> PitchPredictor:
        return self._beside[0]

    def pitch(self, mel: Tensor, finalize: bool = True, exact: bool = True) -> Tensor:
        """(B, M, F) -> (B, F) in Hz, or (B, F - 3) without finalize.

        exact: float64 and on the CPU, as published; else float32, where the mel is, in which the start of a
        stream may differ from that of the whole in phase.
        """
        mel = mel.cpu().double() if exact else mel.float()      # cast on the CPU: others may not know float64
        return self.f0_predictor(F.pad(mel, (0, PITCH_LOOKAHEAD_FRAMES)) if finalize else mel)

    def source(self, f0: Tensor, noise: Tensor, start: Tensor | None = None) -> Tensor:
        """(B, F) in Hz, uniform noise (B, 480 F, 9), phases int64 (B,) of ``advance``, 0 if None -> (B, 1, 480 F)"""
        return self.m_source(f0.float(), noise, start)

    def advance(self, f0: Tensor, start: Tensor | None = None) -> Tensor:
        """The phases int64 (B,) in which a pitch (B, F), F > 0, ends that began in ``start``."""
        return phases(f0, start)[:, -1]

    def decode(self, mel: Tensor, source: Tensor, finalize: bool = True, least: int = SHORTEST_FRAMES) -> Tensor:
        """(B, M, F), excitation (B, 1, 480 F) -> (B, 480 F) within +-0.99

        Without finalize, excitation (B, 1, 480 (F - 3)) -> (B, 480 (F - 8)). least: frames that are computed, with
        silence behind the given ones.
        """
        spectrum = stft(source)                                                         # (B, 18, 120 F + 1)
        if finalize:
            mel = F.pad(mel, (0, LOOKAHEAD_FRAMES))
        else:
            mel = mel[:, :, : source.shape[2] // HOP_SAMPLES]
            spectrum = spectrum[:, :, : -LOOKAHEAD_FRAMES * HOP_SAMPLES // FFT_HOP_SAMPLES]
        frames, short = spectrum.shape[2], max(0, least + LOOKAHEAD_FRAMES - mel.shape[2])
        mel = F.pad(mel, (0, short))
        spectrum = F.pad(spectrum, (0, short * HOP_SAMPLES // FFT_HOP_SAMPLES))
        x = self.conv_pre(as_line(mel))                                                 # (B, C, 1, F)
        kinds = len(self.resblocks) // len(self.ups)
        for stage, rate in enumerate(RATES):
            x = behind_past(self.ups[stage], x, 0.1).permute(0, 2, 3, 1)                # (B, 1, F, rate C / 2)
            x = x.reshape(len(x), 1, rate * x.shape[2], -1).permute(0, 3, 1, 2)         # (B, C / 2, 1, rate F)
            down = self.source_downs[stage]
            beside = down(as_line(F.pad(spectrum, (down.stride[1] - 1, 0))))
            beside = self.source_resblocks[stage](beside)
            # The STFT has one frame more than hops: the last stage's first is the second once more.
            extra = beside.shape[3] - x.shape[3]
            beside[..., :extra].add_(x[..., 1 : 1 + extra])
            beside[..., extra:].add_(x)
            x = mean_of(self.resblocks[stage * kinds : (stage + 1) * kinds], beside)
        x = behind_past(self.conv_post, x, 0.01)[:, :, 0, :frames]
        wave = wave_of(x.contiguous())
        return wave if finalize else wave[:, :-HOP_SAMPLES]

    @torch.no_grad()
    def forward(
        self, mel: Tensor, *, seed: int = 0, noise: Tensor | None = None, finalize: bool = True, exact: bool = True,
        segment: int = SEGMENT_FRAMES, on_segment: Callable[[], None] = lambda: None, even: bool = False,
    ) -> Tensor:
        """Mel (B, M, F) -> wave (B, 480 F) within +-0.99

        Without finalize the last eight frames are seen but not heard: (B, 480 (F - 8)), the beginning of what
        they and more frames give. Row i draws from ``seed + i``, or takes its noise, uniform between 0 and 1,
        from a table (480 F, 9) or (B, 480 F, 9), which may be longer. exact: see ``pitch``.

        Each ``segment`` of frames is decoded with those before it that reach into it, so that the pieces equal
        the whole: memory beside mel and wave is bounded. ``on_segment`` is called before each and may raise to
        cancel. even: all are computed at one length, or the last at half of it, with silence behind it.
        """
        rows, heard = self._frames(mel, finalize)
        mel, waves = mel.float(), [mel.new_zeros(rows, 0, dtype=torch.float32)]
        source = self._excitation(mel, seed, noise, finalize, exact, segment) if heard else None
        for start in range(0, heard, segment):
            on_segment()
            end, left = min(heard, start + segment), max(0, start - CONTEXT_FRAMES)
            right = end + HELD_FRAMES
            ends = finalize and right >= mel.shape[2]
            excited = right if ends else right - PITCH_LOOKAHEAD_FRAMES
            length = segment // 2 if end - start <= segment // 2 else segment
            wave = self.decode(mel[:, :, left:right], source[:, :, HOP_SAMPLES * left : HOP_SAMPLES * excited], ends,
                               CONTEXT_FRAMES + length + HELD_FRAMES if even else SHORTEST_FRAMES)
            waves.append(wave[:, HOP_SAMPLES * (start - left) : HOP_SAMPLES * (end - left)])
        return torch.cat(waves, dim=1)

    def _excitation(self, mel: Tensor, seed: int, noise: Tensor | None, finalize: bool, exact: bool,
                    segment: int) -> Tensor:
        """(B, M, F) -> (B, 1, 480 F), or (B, 1, 480 (F - 3)) without finalize, a segment at a time"""
        rows = len(mel)
        mel = F.pad(mel, (0, PITCH_LOOKAHEAD_FRAMES)) if finalize else mel
        frames = mel.shape[2] - PITCH_LOOKAHEAD_FRAMES
        table = None if noise is None else noise_table(noise, rows, HOP_SAMPLES * frames)
        phase, sources = None, []
        for start in range(0, frames, segment):
            end, left = min(frames, start + segment), max(0, start - PITCH_CONTEXT_FRAMES)
            f0 = self.pitch(mel[:, :, left : end + PITCH_LOOKAHEAD_FRAMES], False, exact)[:, start - left :]
            for begin in range(start, end, EXCITED_FRAMES):
                stop = min(end, begin + EXCITED_FRAMES)
                drawn = (source_noise(seed, rows, begin, stop - begin, mel.device) if table is None
                         else table[:, HOP_SAMPLES * begin : HOP_SAMPLES * stop].to(mel))
                part = f0[:, begin - start : stop - start]
                sources.append(self.source(part, drawn, phase))
                phase = self.advance(part, phase)
        return torch.cat(sources, dim=2)

    def _frames(self, mel: Tensor, finalize: bool) -> tuple[int, int]:
        """Rows, and frames that will be heard."""
        if mel.ndim != 3 or mel.shape[1] != self.config.mels:
            raise ValueError(f"mel: expected (B, {self.config.mels}, F), got {tuple(mel.shape)}.")
        rows, _, frames = mel.shape
        if finalize:
            return rows, frames
        if frames < HELD_FRAMES:
            raise ValueError(f"mel: {frames} frames with finalize=False, which holds back {HELD_FRAMES}; give at least "
                             f"{HELD_FRAMES}, or finalize=True.")
        return rows, frames - HELD_FRAMES
