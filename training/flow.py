"""Trains the demo voice's flow, the small one of S3Gen and CosyVoice2, from noise to the mel under the tokens.

Token embeddings begin with those of the tokenizer's training and learn on. What the encoder reads in the tokens is
held to the mel, too, as Grad-TTS does (Popov et al. 2021, https://arxiv.org/abs/2105.06337): the estimator then has
less to find out by itself. What is asked for lies between the mel and the mean that the tokenizer's decoder makes of
the tokens: a small estimator that is to draw all that the tokens leave open draws words amiss. The speaker's layer is
zero, since there is one voice. As published: half of the rows are given the beginning of their mel, and a fifth
nothing at all.
"""
from __future__ import annotations

import math
import random

import numpy as np
import pack
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from speech import Speech
from tokenizer import MEL_DEVIATION, MEL_MEAN, Model, digits_of, normalised
from torch import Tensor, nn
from trainer import arguments, crops, train

from speechwright.s3gen import flow as networks
from speechwright.s3gen.config import EncoderConfig, EstimatorConfig, S3GenConfig
from speechwright.s3gen.model import S3Token2Wav
from speechwright.s3gen.weights import published_shapes

CONFIG = S3GenConfig(
    encoder=EncoderConfig(width=96, heads=2, hidden=256, layers=2, up_layers=1),
    estimator=EstimatorConfig(width=96, heads=1, hidden=256, time_width=128, mid_blocks=2, transformers=1))
LENGTHS = (48, 96, 192)
SHARP = 0.1                                     # of the mel, in what is asked for; the rest is the decoder's mean
GIVEN, MOST_GIVEN, WITHOUT = 0.5, 0.3, 0.2      # rows with a beginning, how long it is, rows without a condition

networks.mish = F.mish                          # the pack's own computes in place, which has no gradient


def fresh(table: Tensor) -> networks.Flow:
    """A flow that begins with the mean mel, and with a table (V, 80) of embeddings."""
    flow = networks.Flow(CONFIG)
    with torch.no_grad():
        turn = nn.init.orthogonal_(torch.empty(table.shape[1], CONFIG.encoder.width))
        flow.input_embedding.weight.copy_(table @ turn)
        for name, parameter in flow.named_parameters():
            if "pos_bias" in name:
                parameter.zero_()
        final = flow.decoder["estimator"].final_proj
        final.weight.zero_()
        final.bias.fill_(MEL_MEAN)
        for parameter in flow.spk_embed_affine_layer.parameters():
            parameter.requires_grad_(False).zero_()
    return flow


def published(average: dict[str, Tensor]) -> dict[str, Tensor]:
    """The averaged weights by the published names of a file of the flow alone, in float16."""
    shapes = published_shapes(S3Token2Wav(False, CONFIG, device="meta"))
    return {name: tensor.reshape(shapes[f"flow.{name}"]).half().contiguous() for name, tensor in average.items()}


def main() -> None:
    given = arguments(__doc__, steps=3000, rate=1e-3, rows=8).parse_args()
    torch.manual_seed(given.seed)
    speech, flow = Speech(given.data), fresh(load_file(given.folder / "front.safetensors")["table"])
    estimator, decoder = flow.decoder["estimator"], Model()
    decoder.load_state_dict(torch.load(given.folder / "tokenizer.pt", weights_only=True)["average"])
    tokens = np.memmap(given.data / "tokens.bin", np.int16, "r")
    heard = [one for one in speech.utterances if one.start + one.tokens <= len(tokens)]

    def loss(rng: random.Random, step: int) -> dict[str, Tensor]:
        count = rng.choice(LENGTHS)
        places = list(crops(heard, max(2, given.rows * 96 // count), count, rng))
        ids = torch.from_numpy(np.stack([tokens[start : start + count] for start, _ in places]).astype(np.int64))
        mel = torch.from_numpy(np.stack([speech.part("mel", *place).astype(np.float32) for place in places]))
        rows, frames, _ = mel.shape
        mu = flow.read(flow.input_embedding(ids), None)
        begun = torch.rand(rows) < GIVEN
        known = (torch.rand(rows) * MOST_GIVEN * frames * begun).long()
        prompt = mel * (torch.arange(frames) < known[:, None])[..., None]
        with torch.no_grad():
            mean = decoder.decoder(decoder.mu(digits_of(ids))).transpose(1, 2) * MEL_DEVIATION + MEL_MEAN
        wanted = torch.lerp(mean, mel, SHARP)
        t = 1 - torch.cos(torch.rand(rows) * (math.pi / 2))
        noise = torch.randn_like(mel)
        x = torch.lerp(noise, wanted, t[:, None, None])
        condition = torch.cat((mu, torch.zeros_like(mu), prompt), dim=-1)
        condition = condition * (torch.rand(rows, 1, 1) >= WITHOUT)
        found = estimator(torch.cat((x, condition), dim=-1), estimator.embed_time(t))
        asked = (torch.arange(frames) >= known[:, None])[..., None]
        return {"velocity": ((found - (wanted - noise)).square() * asked).sum() / asked.sum() / CONFIG.estimator.mels,
                "mu": MEL_DEVIATION * F.l1_loss(mu, normalised(mel))}

    average = train("flow", flow, given, loss)
    pack.write(published(average), given.folder / "flow.safetensors")


if __name__ == "__main__":
    main()
