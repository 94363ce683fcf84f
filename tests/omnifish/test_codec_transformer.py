"""The codec's transformers: how far a position sees, and attention and rotation written out once more."""
from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kit.codec import TINY, noise
from kit.golden import assert_within
from speechwright.omnifish.codec_config import TransformerConfig
from speechwright.omnifish.codec_layers import Carry
from speechwright.omnifish.codec_transformer import WindowTransformer, rotation, window_mask

WIDTH = 48


def transformer(layers: int, window: int) -> WindowTransformer:
    """One with random weights, whose branches are as loud as what they are added to."""
    network = WindowTransformer(WIDTH, TransformerConfig(layers, window, heads=2, hidden=40), torch.nn)
    for number, parameter in enumerate(network.parameters()):
        value = noise(*parameter.shape, seed=number)
        parameter.data = value / math.sqrt(value.shape[-1]) if value.ndim == 2 else 1 + 0.2 * value
    return network.eval().requires_grad_(False)


def run(network: WindowTransformer, x: Tensor, *cuts: int) -> Tensor:
    """(B, D, 1, S) in pieces that end at the cuts -> the same"""
    carry, ends = Carry(), (*cuts, x.shape[3])
    return torch.cat([network(x[..., start:end], carry) for start, end in zip((0, *cuts), ends)], dim=3)


def plain(network: WindowTransformer, x: Tensor) -> Tensor:
    """A single layer, position by position; pairs of channels are complex numbers. (1, D, 1, S) -> the same"""
    layer = network.layers[0]
    x = x[0, :, 0].T                                                                    # (S, D)
    normed = x / (x.square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * layer.attention_norm.weight
    q, k, v = (normed @ layer.attention.wqkv.weight.T).view(len(x), 3, 2, 64).unbind(1)
    angle = torch.arange(len(x))[:, None] * 10000 ** (-torch.arange(0, 64, 2) / 64)
    turn = torch.complex(angle.cos().bfloat16().float(), angle.sin().bfloat16().float())[:, None]
    q, k = (torch.view_as_real(torch.view_as_complex(part.reshape(len(x), 2, 32, 2)) * turn).flatten(2)
            for part in (q, k))
    out = torch.zeros(len(x), 2, 64)
    for position in range(len(x)):
        seen = slice(max(0, position - network.window + 1), position + 1)
        for head in range(2):
            weights = (k[seen, head] @ q[position, head] / 8).softmax(0)
            out[position, head] = weights @ v[seen, head]
    x = x + out.flatten(1) @ layer.attention.wo.weight.T * layer.attention_layer_scale.gamma
    normed = x / (x.square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * layer.ffn_norm.weight
    gate, up = (normed @ weight.weight.T for weight in (layer.feed_forward.w1, layer.feed_forward.w3))
    x = x + (gate * gate.sigmoid() * up) @ layer.feed_forward.w2.weight.T * layer.ffn_layer_scale.gamma
    x = x / (x.square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * network.norm.weight
    return x.T[None, :, None]


@pytest.mark.parametrize("window", [1, 2, 5, 100])
@pytest.mark.parametrize("cuts", [(), (1,), (4, 5, 10)])
def test_attention_written_out(window, cuts):
    network, x = transformer(1, window), noise(1, WIDTH, 1, 13)
    assert_within(run(network, x, *cuts), plain(network, x), 2e-5)


@pytest.mark.parametrize("layers, window", [(1, 1), (1, 2), (1, 5), (2, 3), (3, 4)])
@pytest.mark.parametrize("cuts", [(), (3, 4, 9)])
def test_a_window_is_the_last_positions_and_oneself(layers, window, cuts):
    """Each layer carries a change on by window - 1 positions; a window of one more would go on by more."""
    network, x = transformer(layers, window), noise(1, WIDTH, 1, 14)
    changed = x.clone()
    changed[..., 2] += 1
    moved = (run(network, x, *cuts) != run(network, changed, *cuts)).any(dim=1).flatten().nonzero().flatten()
    assert moved.tolist() == list(range(2, 2 + layers * (window - 1) + 1))


def test_rotation_is_rounded_and_goes_on():
    """The published table is stored in bfloat16, and its angles count from the beginning of the recording."""
    whole, later = rotation(0, 300), rotation(200, 100)
    for table, part in zip(whole, later):
        assert table.dtype == torch.float32 and table.shape == (300, 1, 32)
        assert torch.equal(table, table.bfloat16().float()) and torch.equal(table[200:], part)
    assert torch.equal(whole[0][0], torch.ones(1, 32)) and not torch.equal(*whole)


def test_a_mask_is_as_large_as_its_piece():
    """Ten hours into a recording the published table of masks would have a terabyte."""
    mask = window_mask(3_000_000, 4, 8, "cpu")
    assert mask.shape == (4, 11) and mask.sum(dim=1).tolist() == [8] * 4
    assert window_mask(0, 3, 8, "cpu").int().tolist() == [[0] * 7 + [1, 0, 0], [0] * 7 + [1, 1, 0], [0] * 7 + [1, 1, 1]]
    assert window_mask(1, 1, 2, "cpu").tolist() == [[True, True]]


@pytest.mark.parametrize("name", ["encoder_transformer", "quantizer_transformer"])
def test_a_window_has_a_position(name):
    with pytest.raises(ValueError, match=f"{name}: a window of 0 positions"):
        replace(TINY, **{name: replace(getattr(TINY, name), window=0)})
