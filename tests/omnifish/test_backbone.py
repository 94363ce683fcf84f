"""The backbone: the plain computation once more, the golden context, and the laws of masks, padding and the cache."""
from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kit.blocks import golden, golden_model
from kit.golden import assert_within
from kit.qwen3 import TINY, plain, tiny_backbone
from speechwright.omnifish.backbone import Backbone
from speechwright.omnifish.config import BackboneConfig

GOLDEN_GATE = 2e-5
SAME = 1e-5         # one thing computed in two ways


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Scene:
    """Rows of unequal context and the same blocks, padded on the left: what each column sees, by plain loops."""

    def __init__(self, lengths: list[int], width: int, block: int, blocks: int) -> None:
        self.lengths, self.width, self.block = lengths, width, block
        total = width + blocks * block
        self.position = torch.zeros(len(lengths), total, dtype=torch.int64)
        self.seen = torch.zeros(len(lengths), 1, total, total, dtype=torch.bool)
        for row, length in enumerate(lengths):
            begin = width - length
            for query in range(total):
                self.position[row, query] = max(0, query - begin)
                for key in range(total):
                    within = query >= begin and key >= begin
                    self.seen[row, 0, query, key] = query == key or within and self.group(key) <= self.group(query)
        self.x = torch.zeros(len(lengths), total, TINY.width)
        for row, length in enumerate(lengths):
            self.x[row, width - length : width] = noise(length, TINY.width, seed=row)
            self.x[row, width:] = noise(blocks * block, TINY.width, seed=99)

    def group(self, column: int) -> int:
        """0 for the context, then the blocks."""
        return 0 if column < self.width else 1 + (column - self.width) // self.block

    def whole(self) -> Tensor:
        return tiny_backbone()(self.x, self.seen, self.position)

    def in_pieces(self, dtype: torch.dtype = torch.bool) -> Tensor:
        """The context, then each block, by a cache."""
        cache = tiny_backbone().new_cache(len(self.lengths), self.x.shape[1])
        outs, begin = [], 0
        for end in range(self.width, self.x.shape[1] + 1, self.block):
            seen = self.seen[:, :, begin:end, :end]
            if dtype != torch.bool:
                seen = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
            outs.append(tiny_backbone()(self.x[:, begin:end], seen, self.position[:, begin:end], cache))
            begin = end
            assert cache.length == end
        return torch.cat(outs, dim=1)

    def real(self, hidden: Tensor) -> list[Tensor]:
        """Each row without its padding."""
        return [own[self.width - length :] for own, length in zip(hidden, self.lengths)]


SCENES = [([7, 3, 0], 7, 4, 3), ([5, 0], 5, 3, 2), ([1], 1, 1, 4), ([2, 6, 6, 0], 9, 2, 2)]


@pytest.mark.parametrize("scene", SCENES)
def test_plain_computation(scene):
    scene = Scene(*scene)
    for row, hidden in enumerate(scene.whole()):
        expected = plain(tiny_backbone(), scene.x[row], scene.seen[row, 0], scene.position[row])
        assert_within(hidden, expected, SAME)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_cached_is_uncached(scene, dtype):
    """Unequal contexts, and the empty one that guidance speaks from; masks told and masks added."""
    scene = Scene(*scene)
    assert_within(scene.in_pieces(dtype), scene.whole(), SAME)


@pytest.mark.parametrize("scene", SCENES)
def test_padding_changes_nothing(scene):
    lengths, width, block, blocks = scene
    narrow, wide = Scene(lengths, width, block, blocks), Scene(lengths, width + 11, block, blocks)
    for own, other in zip(narrow.real(narrow.whole()), wide.real(wide.in_pieces())):
        assert_within(own, other, SAME)


@pytest.mark.parametrize("scene", SCENES)
def test_rows_are_blind_to_each_other(scene):
    lengths, width, block, blocks = scene
    together = Scene(lengths, width, block, blocks)
    hidden = together.real(together.in_pieces())
    for row, length in enumerate(lengths):
        cache = tiny_backbone().new_cache(1, together.x.shape[1])
        begin = width - length
        outs, start = [], begin
        for end in range(width, together.x.shape[1] + 1, block):
            if end > start:     # nothing is masked in a row alone
                place = (slice(row, row + 1), slice(start, end))
                outs.append(tiny_backbone()(together.x[place], None, together.position[place], cache))
            start = end
        assert_within(hidden[row], torch.cat(outs, dim=1)[0], SAME)


def test_one_mask_for_all_queries():
    x, position = noise(2, 5, TINY.width), torch.arange(5).repeat(2, 1)
    seen = torch.tensor([[True] * 5, [False, False, True, True, True]])[:, None, None]
    whole = tiny_backbone()(x, seen.repeat(1, 1, 5, 1), position)
    assert_within(tiny_backbone()(x, seen, position), whole, SAME)
    assert not torch.allclose(whole[1], tiny_backbone()(x, None, position)[1], atol=0.1)


def test_golden_context():
    """Of the second row nothing is context: its columns see themselves alone."""
    model, ids, audio = golden_model(), golden()["trace.ids"], golden()["trace.audio_mask"]
    total = ids.shape[1]
    x = torch.cat((model.embed(ids[None], audio[None]), model.embed(ids[None] * 0, audio[None] & False)))
    seen = torch.stack((torch.ones(total, total), torch.eye(total))).bool()[:, None]
    position = torch.stack((torch.arange(total), torch.zeros(total, dtype=torch.int64)))
    assert_within(model.llm(x, seen, position), golden()["trace.context_hidden"], GOLDEN_GATE)


def test_positions_count_where_the_caller_says():
    """Only the distance of two columns matters to what they make of each other."""
    x, position = noise(1, 6, TINY.width), torch.arange(6)[None]
    moved = tiny_backbone()(x, None, position + 1000)
    assert_within(moved, tiny_backbone()(x, None, position), 1e-3)
    assert not torch.allclose(moved, tiny_backbone()(x, None, 2 * position), atol=0.05)


def test_bfloat16_is_near_float32():
    coarse = Backbone(TINY, nn, "cpu", torch.bfloat16)
    for name, parameter in coarse.named_parameters():
        parameter.copy_(tiny_backbone().state_dict()[name])
        assert parameter.dtype == (torch.float32 if "norm" in name else torch.bfloat16)
    x, position = noise(1, 9, TINY.width), torch.arange(9)[None]
    near, far = tiny_backbone()(x, None, position), coarse(x.bfloat16(), None, position)
    assert far.dtype == torch.bfloat16 and 0 < (near - far.float()).std() < 0.03 * near.std()


def test_full_size():
    """OmniVoice's: 596 million numbers by Hugging Face's names, 112 KB of bfloat16 cache for each column."""
    backbone = Backbone(BackboneConfig(), nn, "meta", torch.bfloat16)
    names = {name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items()}
    first = {name.removeprefix("layers.0."): shape for name, shape in names.items() if name.startswith("layers.0.")}
    assert first == {
        "self_attn.q_proj.weight": (2048, 1024), "self_attn.k_proj.weight": (1024, 1024),
        "self_attn.v_proj.weight": (1024, 1024), "self_attn.o_proj.weight": (1024, 2048),
        "self_attn.q_norm.weight": (128,), "self_attn.k_norm.weight": (128,),
        "mlp.gate_proj.weight": (3072, 1024), "mlp.up_proj.weight": (3072, 1024), "mlp.down_proj.weight": (1024, 3072),
        "input_layernorm.weight": (1024,), "post_attention_layernorm.weight": (1024,)}
    assert len(names) == 28 * len(first) + 2 and names["embed_tokens.weight"] == (151676, 1024)
    assert names["norm.weight"] == (1024,) and backbone.config.hidden_size == 1024
    assert sum(tensor.numel() for tensor in backbone.state_dict().values()) == 595_783_680
    cache = tiny_backbone().new_cache(3, 5)
    assert cache.keys.nbytes + cache.values.nbytes == tiny_backbone().cache_bytes(3, 5)
    assert backbone.cache_bytes(1, 1) == 114_688
