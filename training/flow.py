"""Trains the demo voice's flow: the pack's diffusion transformer, small, from noise to the mel under the tokens.

Embeddings and lookahead come from the tokenizer's training and learn on. The speaker's layer is zero, since there
is one voice. As published: half of the rows are given the beginning of their mel, and a fifth nothing at all.
The forward pass is the pack's layers in another order, for it computes in place and at one time for all rows.
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
from tokenizer import LOOKAHEAD_WIDTH, MEL_MEAN
from torch import Tensor, nn
from trainer import arguments, crops, train

from speechwright.cosyvoice3.config import HEAD_WIDTH, FlowConfig
from speechwright.cosyvoice3.dit import NORM_EPSILON, DiT, rotation
from speechwright.cosyvoice3.flow import MelFlow
from speechwright.cosyvoice3.flow_weights import INPUT

CONFIG = FlowConfig(lookahead_width=LOOKAHEAD_WIDTH, width=128, layers=4, heads=2, hidden=384, time_channels=128)
LENGTHS = (48, 96, 192)
GIVEN, MOST_GIVEN, WITHOUT = 0.5, 0.3, 0.2      # rows with a beginning, how long it is, rows without a condition


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, F, D) with the channels of head 0 turned"""
    head, others = x[..., :HEAD_WIDTH], x[..., HEAD_WIDTH:]
    swapped = head.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.cat((head * cos + swapped * sin, others), dim=-1)


def position(net: nn.Module, x: Tensor) -> Tensor:
    """(B, F, D) -> (B, F, D)"""
    line = x.transpose(1, 2)
    for conv in (net.conv1[0], net.conv2[0]):
        line = F.mish(F.conv1d(F.pad(line, (conv.kernel_size[1] - 1, 0)), conv.weight[:, :, 0], conv.bias,
                               groups=conv.groups))
    return line.transpose(1, 2)


def velocity(net: DiT, x: Tensor, given: Tensor, t: Tensor) -> Tensor:
    """(B, F, M), prompt, mu and speaker (B, F, 3 M), times (B,) -> (B, F, M)"""
    time = F.silu(net.time_embed(t))
    x = net.input_embed.noisy(x) + net.input_embed.known(given)
    x = x + position(net.input_embed.conv_pos_embed, x)
    turn = rotation(x.shape[1], x.device)

    def normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON) * scale[:, None] + shift[:, None]

    for block in net.transformer_blocks:
        shift, scale, gate, ff_shift, ff_scale, ff_gate = block.attn_norm(time).unbind(1)
        q, k, v = block.attn.to_qkv(normed(x, scale, shift)).chunk(3, dim=-1)
        q, k = turned(q, *turn), turned(k, *turn)
        q, k, v = (part.unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate[:, None] * block.attn.to_out[0](mixed)
        x = x + ff_gate[:, None] * block.ff(normed(x, ff_scale, ff_shift))
    scale, shift = net.norm_out(time).unbind(1)
    return net.proj_out(normed(x, scale, shift))


def fresh(front: dict[str, Tensor]) -> MelFlow:
    """A flow that begins with what the tokenizer's training left, and with the mean mel."""
    flow = MelFlow(CONFIG)
    net = flow.decoder["estimator"]
    with torch.no_grad():
        flow.input_embedding.weight.copy_(front["table"])
        for name, parameter in flow.pre_lookahead_layer.named_parameters():
            parameter.copy_(front[f"lookahead.{name}"])
        for layer in (*(block.attn_norm for block in net.transformer_blocks), net.norm_out):
            layer.linear.weight.zero_()
            layer.linear.bias.zero_()
        net.proj_out.weight.zero_()
        net.proj_out.bias.fill_(MEL_MEAN)
        for parameter in flow.spk_embed_affine_layer.parameters():
            parameter.requires_grad_(False).zero_()
    return flow


def published(average: dict[str, Tensor]) -> dict[str, Tensor]:
    """The averaged weights by the published names, in float16."""
    state = {}
    for name, tensor in average.items():
        if ".to_qkv." in name:
            state.update((name.replace("to_qkv", f"to_{letter}"), part) for letter, part in zip("qkv", tensor.chunk(3)))
        elif name == f"{INPUT}known.weight":
            state[f"{INPUT}proj.weight"] = torch.cat((average[f"{INPUT}noisy.weight"], tensor), dim=1)
        elif name == f"{INPUT}known.bias":
            state[f"{INPUT}proj.bias"] = tensor
        elif name != f"{INPUT}noisy.weight":
            state[name] = tensor[:, :, 0] if tensor.ndim == 4 else tensor
    return {name: tensor.half().contiguous() for name, tensor in state.items()}


def main() -> None:
    given = arguments(__doc__, steps=2500, rate=1e-3, rows=8).parse_args()
    torch.manual_seed(given.seed)
    speech, flow = Speech(given.data), fresh(load_file(given.folder / "front.safetensors"))
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
        t = 1 - torch.cos(torch.rand(rows) * (math.pi / 2))
        noise = torch.randn_like(mel)
        x = torch.lerp(noise, mel, t[:, None, None])
        condition = torch.cat((prompt, mu, torch.zeros_like(mu)), dim=-1)
        condition = condition * (torch.rand(rows, 1, 1) >= WITHOUT)
        found = velocity(flow.decoder["estimator"], x, condition, t)
        asked = (torch.arange(frames) >= known[:, None])[..., None]
        return {"velocity": ((found - (mel - noise)).square() * asked).sum() / asked.sum() / CONFIG.mels}

    average = train("flow", flow, given, loss)
    pack.write(published(average), given.folder / "flow.safetensors")


if __name__ == "__main__":
    main()
