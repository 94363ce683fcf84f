"""Trains the demo voice's vocoder, the HiFT of S3Gen and CosyVoice2 with few channels, on mels of the data.

The network is the pack's own, but for its activation, which here computes its gradient. The excitation comes from
the pitch of the data; the pitch predictor learns that beside it. There is no discriminator: it is the excitation
that has the harmonics. CosyVoice3's, whose sines stand still within a mel frame, has none.
"""
from __future__ import annotations

import math
import random

import numpy as np
import pack
import torch
import torch.nn.functional as F
from speech import Speech
from tokenizer import MEL_DEVIATION, MEL_MEAN
from torch import Tensor, nn
from trainer import arguments, crops, train

from speechwright.s3gen.config import VocoderConfig
from speechwright.s3gen.features import mel_24k, slaney_filters
from speechwright.s3gen.vocoder import BINS, HARMONICS, HOP_SAMPLES, MAGNITUDE_LIMIT, HiFT, Snake
from speechwright.s3gen.weights import NORMED

CONFIG = VocoderConfig(channels=96, source_kernels=(5, 5, 5), kernels=(3, 7), f0_channels=96)
CROP_TOKENS, EDGE_TOKENS = 14, 1     # of the edge comes a mel alone
HERTZ = 100.0                   # a pitch is learned in these
WINDOWS = (256, 1024, 2048)
FLOOR = 1e-4                    # of magnitudes, before their logarithm


class SnakeGradient(torch.autograd.Function):
    """x + sin(a x)**2 / a behind so many zeros, of which only x is kept. No gradient reaches a."""

    @staticmethod
    def forward(ctx, x: Tensor, alpha: Tensor, before: int) -> Tensor:
        ctx.save_for_backward(x, alpha)
        ctx.before = before
        padded = x.new_empty(*x.shape[:3], before + x.shape[3]).contiguous(memory_format=torch.channels_last)
        padded[..., :before] = 0
        wave = padded[..., before:]
        torch.mul(x, alpha, out=wave).sin_().square_()
        torch.addcmul(x, wave, 1 / alpha, out=wave)
        return padded

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        x, alpha = ctx.saved_tensors
        grad = grad[..., ctx.before :]
        return torch.addcmul(grad, grad, (x * (2 * alpha)).sin_()), None, None


class TrainedSnake(Snake):
    """The vocoder's activation with a gradient. Its frequencies stay as they were drawn, which costs a third."""

    def forward(self, x: Tensor, before: int = 0) -> Tensor:
        return SnakeGradient.apply(x, self.alpha[:, None, None], before)


class Post(nn.Conv1d):
    """The last convolution, whose log magnitudes end where the vocoder cuts them, before their powers overflow."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return torch.cat((x[:, :BINS].clamp(max=math.log(MAGNITUDE_LIMIT)), x[:, BINS:]), dim=1)


class Vocoder(nn.Module):
    """The network as it is trained."""

    def __init__(self, config: VocoderConfig = CONFIG):
        super().__init__()
        self.net = net = HiFT(config)
        for name, parameter in net.named_parameters():
            if name.endswith("alpha"):
                parameter.requires_grad_(False).copy_(torch.exp2(3 * torch.rand(len(parameter)) - 1))   # 0.5 to 4
        for block in (*net.resblocks, *net.source_resblocks):
            for conv in (*block.convs1, *block.convs2):
                nn.init.normal_(conv.weight, std=0.01)
                nn.init.zeros_(conv.bias)
        nn.init.normal_(net.conv_post.weight, std=0.01)
        with torch.no_grad():
            net.conv_post.bias[:BINS] = 1.0             # about as loud as speech, at first
            for first in (net.conv_pre, net.f0_predictor.condnet["0"]):     # as if mels were normalised
                first.weight /= MEL_DEVIATION
                first.bias -= MEL_MEAN * first.weight.flatten(1).sum(dim=1)
        net.conv_post.__class__ = Post
        for module in self.modules():
            if type(module) is Snake:
                module.__class__ = TrainedSnake

    def forward(self, mel: Tensor, pitch: Tensor) -> Tensor:
        """(B, M, F), (B, F) in Hz -> (B, 480 F)"""
        rows, frames = pitch.shape
        noise = torch.randn(rows, HARMONICS, frames * HOP_SAMPLES)
        phase = 2 * math.pi * torch.rand(rows, HARMONICS, 1)
        return self.net.decode(mel, self.net.source(pitch, phase, noise))


def published(average: dict[str, Tensor]) -> dict[str, Tensor]:
    """The averaged weights by the published names, in float16."""
    state = {}
    for name, tensor in average.items():
        name = name.removeprefix("net.")
        tensor = tensor[:, :, 0] if tensor.ndim == 4 else tensor
        if NORMED.match(name):
            stem = name.removesuffix("weight") + "parametrizations.weight.original"
            state[f"{stem}0"] = tensor.flatten(1).norm(dim=1).view(-1, 1, 1)
            state[f"{stem}1"] = tensor
        else:
            state[name] = tensor
    return {name: tensor.half().contiguous() for name, tensor in state.items()}


def spectra(wave: Tensor, window: int) -> Tensor:
    """(B, T) -> (B, bins, F) magnitudes"""
    found = torch.stft(wave, window, window // 4, window=torch.hann_window(window), return_complex=True)
    return torch.view_as_real(found).square().sum(-1).add(FLOOR**2 / 100).sqrt()


def mel_of(magnitudes: Tensor, window: int) -> Tensor:
    return (slaney_filters(24_000, window, 80) @ magnitudes).clamp(min=1e-5).log()


def wave_losses(made: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    """How far apart two waves (B, T) are in their spectra."""
    log, convergence, mel = 0, 0, 0
    for window in WINDOWS:
        a, b = spectra(made, window), spectra(wanted, window)
        log = log + F.l1_loss((a + FLOOR).log(), (b + FLOOR).log())
        convergence = convergence + (a - b).norm() / b.norm().clamp(min=1e-3)
        if window == 1024:
            mel = F.l1_loss(mel_of(a, window), mel_of(b, window))
    return {"log": log / len(WINDOWS), "convergence": convergence / len(WINDOWS), "mel": 3 * mel}


def main() -> None:
    given = arguments(__doc__, steps=6000, rate=5e-4, rows=4).parse_args()
    torch.manual_seed(given.seed)
    module, speech = Vocoder(), Speech(given.data)

    def loss(rng: random.Random, step: int) -> dict[str, Tensor]:
        places = list(crops(speech.utterances, given.rows, CROP_TOKENS + 2 * EDGE_TOKENS, rng))

        def part(name: str) -> Tensor:
            return torch.from_numpy(np.stack([speech.part(name, *place).astype(np.float32) for place in places]))

        edge = 2 * EDGE_TOKENS
        wave = part("wave") / 32768
        mel = mel_24k(wave)[:, :, edge:-edge].contiguous()
        pitch, wave = part("pitch")[:, edge:-edge], wave[:, edge * HOP_SAMPLES : -edge * HOP_SAMPLES]
        parts = wave_losses(module(mel, pitch), wave)
        # What lies outside of the crop, the predictor sees nothing of.
        parts["pitch"] = F.l1_loss(module.net.pitch(mel)[:, 5:-5], pitch[:, 5:-5]) / HERTZ
        return parts

    average = train("vocoder", module, given, loss, betas=(0.8, 0.98))
    pack.write(published(average), given.folder / "hift.safetensors")


if __name__ == "__main__":
    main()
