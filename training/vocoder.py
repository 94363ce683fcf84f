"""Trains the demo voice's vocoder, CosyVoice3's causal HiFT with few channels, on mels of the data.

The network is the pack's own, but for two of its layers: where upsampling is folded into a convolution, what is
trained are the weights before folding, and the activation computes its gradient. The excitation comes from the
pitch of the data; the pitch predictor learns that beside it. There is no discriminator.
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

from speechwright.cosyvoice3.vocoder import CausalHiFT, fold_up
from speechwright.cosyvoice3.vocoder_weights import PITCH
from speechwright.s3gen.config import VocoderConfig
from speechwright.s3gen.features import slaney_filters
from speechwright.s3gen.vocoder import BINS, HARMONICS, HOP_SAMPLES, MAGNITUDE_LIMIT, RATES, Snake
from speechwright.s3gen.weights import NORMED

CONFIG = VocoderConfig(channels=96, source_kernels=(5, 5, 5), kernels=(3, 7), f0_channels=96)
CROP_TOKENS = 14
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


class Up(nn.Module):
    """A causal convolution behind an upsampling, by its weights before folding."""

    def __init__(self, folded: nn.Conv2d, rate: int, kernel: int):
        super().__init__()
        self.rate, self.kernel_size = rate, folded.kernel_size
        narrow, wide = folded.out_channels // rate, folded.in_channels
        self.weight = nn.Parameter(torch.randn(narrow, wide, kernel) * (wide * kernel) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(narrow))
        # Which taps are summed: folding is linear, and one product is quicker than a sum for each tap.
        summed = fold_up(torch.eye(kernel)[:, None], rate)[:, 0].unflatten(0, (rate, kernel))
        self.register_buffer("summed", summed, persistent=False)                        # (rate, taps, taps below)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.einsum("nwk,rkt->rnwt", self.weight, self.summed).flatten(0, 1)[:, :, None]
        return F.conv2d(x, weight.contiguous(memory_format=torch.channels_last), self.bias.repeat(self.rate))


class Post(nn.Conv2d):
    """The last convolution, whose log magnitudes end where the vocoder cuts them, before their powers overflow."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return torch.cat((x[:, :BINS].clamp(max=math.log(MAGNITUDE_LIMIT)), x[:, BINS:]), dim=1)


class Vocoder(nn.Module):
    """The network as it is trained."""

    def __init__(self, config: VocoderConfig = CONFIG):
        super().__init__()
        self.net = CausalHiFT(config)
        self.net.ups = nn.ModuleList(
            Up(up, rate, kernel) for up, rate, kernel in zip(self.net.ups, RATES, config.up_kernels))
        self.pitch = self.net.f0_predictor.float()
        for name, parameter in self.named_parameters():
            if name.endswith("alpha"):
                parameter.requires_grad_(False).copy_(torch.exp2(3 * torch.rand(len(parameter)) - 1))   # 0.5 to 4
            elif name.startswith("pitch.") and parameter.ndim > 1:
                nn.init.kaiming_uniform_(parameter, a=5**0.5)
            elif name.startswith("pitch."):
                nn.init.zeros_(parameter)
        for block in (*self.net.resblocks, *self.net.source_resblocks):
            for conv in (*block.convs1, *block.convs2):
                nn.init.normal_(conv.weight, std=0.01)
                nn.init.zeros_(conv.bias)
        nn.init.normal_(self.net.conv_post.weight, std=0.01)
        with torch.no_grad():
            self.net.conv_post.bias[:BINS] = 1.0          # about as loud as speech, at first
            for first in (self.net.conv_pre, self.pitch.condnet["0"]):      # as if mels were normalised
                first.weight /= MEL_DEVIATION
                first.bias -= MEL_MEAN * first.weight.flatten(1).sum(dim=1)
        self.net.conv_post.__class__ = Post
        for module in self.modules():
            if type(module) is Snake:
                module.__class__ = TrainedSnake
        self.to(memory_format=torch.channels_last)

    def forward(self, mel: Tensor, pitch: Tensor) -> Tensor:
        """(B, M, F), (B, F) in Hz -> (B, 480 F)"""
        rows, frames = pitch.shape
        noise = torch.rand(rows, frames * HOP_SAMPLES, HARMONICS)
        start = torch.randint(0, 2**20, (rows,))
        return self.net.decode(mel, self.net.source(pitch, noise, start), least=0)


def published(average: dict[str, Tensor]) -> dict[str, Tensor]:
    """The averaged weights by the published names, in float16."""
    state = {}
    for name, tensor in average.items():
        name = name.removeprefix("net.").replace("pitch.", PITCH, 1) if name.startswith(("net.", "pitch.")) else name
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
    return (slaney_filters(24_000, window, 80, 12_000.0) @ magnitudes).clamp(min=1e-5).log()


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
    given = arguments(__doc__, steps=3000, rate=5e-4, rows=4).parse_args()
    torch.manual_seed(given.seed)
    module, speech = Vocoder(), Speech(given.data)

    def loss(rng: random.Random, step: int) -> dict[str, Tensor]:
        places = list(crops(speech.utterances, given.rows, CROP_TOKENS, rng))

        def part(name: str) -> Tensor:
            return torch.from_numpy(np.stack([speech.part(name, *place).astype(np.float32) for place in places]))

        mel, pitch, wave = part("mel").transpose(1, 2).contiguous(), part("pitch"), part("wave") / 32768
        guessed = module.pitch(F.pad(mel, (0, 3)))
        parts = wave_losses(module(mel, pitch), wave)
        # A predictor without what comes after the crop cannot know its last frames.
        parts["pitch"] = F.l1_loss(guessed[:, 8:-3], pitch[:, 8:-3]) / HERTZ
        return parts

    average = train("vocoder", module, given, loss, betas=(0.8, 0.98))
    pack.write(published(average), given.folder / "hift.safetensors")


if __name__ == "__main__":
    main()
