"""Trains the demo voice's speech tokenizer, and with it what the flow makes of tokens.

The tokenizer is the pack's, small; its eight ternary digits are rounded with a straight-through gradient. Token
embeddings and lookahead are the flow's. They learn to be the mel of two frames each, and a convolutional decoder,
which is thrown away, learns the whole mel from them. Half of the recordings are heard as if by another voice: the
frequencies are stretched, and the mel that is asked for stays.
"""
from __future__ import annotations

import random

import numpy as np
import pack
import torch
import torch.nn.functional as F
from speech import TOKENIZER_MELS, Speech
from torch import Tensor, nn
from trainer import arguments, crops, train

from speechwright.s3gen.config import TokenizerConfig
from speechwright.s3gen.encoder import UPSAMPLING, PreLookahead
from speechwright.s3gen.tokenizer import DIGIT_SCALE, S3Tokenizer

CONFIG = TokenizerConfig(mels=TOKENIZER_MELS, width=128, layers=2, hidden=384, kernel=15)
MELS, LOOKAHEAD_WIDTH = 80, 128
DECODER_WIDTH, DECODER_LAYERS = 192, 4
LENGTHS = (24, 48, 96, 192)     # tokens of a crop; a batch has as many rows as fit
STRETCH, LOUDNESS = 0.25, 0.1   # the most that the copies of other voices differ by
MEL_MEAN, MEL_DEVIATION = -6.0, 2.5


class Table(nn.Module):
    """A token's embedding from its digits."""

    def __init__(self, digits: int = CONFIG.digits, hidden: int = 384):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(digits, hidden), nn.GELU(), nn.Linear(hidden, MELS))

    def forward(self, digits: Tensor) -> Tensor:
        """(..., 8) of -1, 0 and 1 -> (..., 80)"""
        return self.layers(digits)


class Decoder(nn.Module):
    """From what the flow is conditioned on to the mel, by regression."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Conv1d(UPSAMPLING * MELS, DECODER_WIDTH, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Conv1d(DECODER_WIDTH, DECODER_WIDTH, 5, padding=2) for _ in range(DECODER_LAYERS))
        self.norms = nn.ModuleList(nn.GroupNorm(1, DECODER_WIDTH) for _ in range(DECODER_LAYERS))
        self.leave = nn.Conv1d(DECODER_WIDTH, MELS, 1)

    def forward(self, mu: Tensor) -> Tensor:
        """(B, 80, 2 S), every second frame a copy -> (B, 80, 2 S)"""
        side = torch.ones_like(mu)
        side[..., ::2] = -1
        x = self.enter(torch.cat((mu, mu * side), dim=1))
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(F.gelu(norm(x)))
        return mu + self.leave(F.gelu(x))


class Model(nn.Module):
    """Tokenizer, embeddings, lookahead, decoder."""

    def __init__(self):
        super().__init__()
        self.tokenizer = S3Tokenizer(CONFIG)
        for name, parameter in self.tokenizer.named_parameters():
            if name.endswith("fsmn_block.weight"):
                nn.init.normal_(parameter, std=0.05)
        self.table, self.decoder = Table(), Decoder()
        self.lookahead = PreLookahead(MELS, LOOKAHEAD_WIDTH, nn)

    def digits(self, log_mel: Tensor) -> tuple[Tensor, Tensor]:
        """(B, M, F) -> digits (B, S, 8) as they were rounded and before"""
        soft = self.tokenizer.quantizer.project(self.tokenizer.hidden(log_mel)).tanh() * DIGIT_SCALE
        return soft + (soft.round() - soft).detach(), soft

    def mu(self, digits: Tensor) -> Tensor:
        """(B, S, 8) -> (B, 80, 2 S), in units of the normalised mel"""
        return self.lookahead(self.table(digits)).repeat_interleave(UPSAMPLING, dim=1).transpose(1, 2)


def digits_of(ids: Tensor) -> Tensor:
    """(...) -> (..., 8) of -1, 0 and 1"""
    return (ids[..., None] // 3 ** torch.arange(CONFIG.digits) % 3 - 1).float()


def normalised(mel: Tensor) -> Tensor:
    return (mel - MEL_MEAN) / MEL_DEVIATION


def other_voices(log_mel: Tensor) -> Tensor:
    """(B, M, F), every second row as another voice would say it"""
    rows, mels, _ = log_mel.shape
    warp = torch.where(torch.arange(rows) % 2 == 1, torch.exp(STRETCH * (2 * torch.rand(rows) - 1)), torch.ones(rows))
    place = (torch.arange(mels) * warp[:, None]).clamp(max=mels - 1)                    # (B, M)
    low = place.floor().long()
    share = (place - low)[..., None]
    index = low[..., None].expand_as(log_mel)
    above = (index + 1).clamp(max=mels - 1)
    louder = LOUDNESS * (2 * torch.rand(rows, 1, 1) - 1)
    return log_mel.gather(1, index) * (1 - share) + log_mel.gather(1, above) * share + louder


def main() -> None:
    given = arguments(__doc__, steps=1500, rate=1.5e-3, rows=16).parse_args()
    torch.manual_seed(given.seed)
    module, speech = Model(), Speech(given.data)

    def loss(rng: random.Random, step: int) -> dict[str, Tensor]:
        tokens = rng.choice(LENGTHS)
        rows = max(2, given.rows * 64 // tokens)
        places = list(crops(speech.utterances, rows, tokens, rng))

        def part(name: str) -> Tensor:
            found = np.stack([speech.part(name, *place).astype(np.float32) for place in places])
            return torch.from_numpy(found).transpose(1, 2).contiguous()

        mel = normalised(part("mel"))
        digits, soft = module.digits(other_voices(part("log_mel")))
        mu = module.mu(digits)
        # Digits that a row uses alike everywhere say nothing.
        even = (soft.mean(dim=(0, 1)).square() + (soft.square().mean(dim=(0, 1)) - 0.6).square()).mean()
        return {"mel": F.l1_loss(module.decoder(mu), mel), "mu": 0.5 * F.l1_loss(mu, mel), "even": 0.1 * even}

    average = train("tokenizer", module, given, loss)
    module.load_state_dict(average)
    with torch.no_grad():
        table = module.table(digits_of(torch.arange(3**CONFIG.digits)))
    state = {name.removeprefix("tokenizer."): tensor.half().contiguous() for name, tensor in average.items()
             if name.startswith("tokenizer.")}
    pack.write(state, given.folder / "speech_tokenizer_v2.safetensors")
    front = {"table": table, **{name: tensor for name, tensor in average.items() if name.startswith("lookahead.")}}
    pack.write({name: tensor.contiguous() for name, tensor in front.items()}, given.folder / "front.safetensors")


if __name__ == "__main__":
    main()
