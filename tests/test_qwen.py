"""The cache of the shared decoder: cut back, seen row by row, and padded. Other laws stand with the families."""
from __future__ import annotations

import pytest
import torch

from kit.golden import assert_within
from kit.qwen3 import TINY, tiny_backbone
from speechwright.qwen import Decoder, KVCache


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def filled(rows: int, columns: int, capacity: int) -> KVCache:
    cache = KVCache.empty(TINY, rows, capacity, "cpu", torch.float32)
    cache.keys[:, :, :, :columns] = cache.values[:, :, :, :columns] = 1
    cache.length = columns
    return cache


def heard(cache: KVCache) -> int:
    """How many columns hold numbers, the first of them."""
    columns = cache.keys.isfinite().all(dim=4).flatten(0, 2).all(dim=0)
    assert torch.equal(columns, cache.values.isfinite().all(dim=4).flatten(0, 2).all(dim=0))
    assert columns.long().diff().le(0).all()
    return int(columns.sum())


@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_what_is_cut_shouts_again(length):
    cache = filled(2, 5, 8)
    place = cache.keys.data_ptr()
    cache.truncate(length)
    assert cache.length == heard(cache) == length and cache.keys.data_ptr() == place and cache.capacity == 8


@pytest.mark.parametrize("length", [-1, 6, 8])
def test_a_cut_is_within_what_is_filled(length):
    cache = filled(1, 5, 8)
    with pytest.raises(ValueError, match=f"a cache of 5 columns cannot be cut to {length}"):
        cache.truncate(length)
    assert cache.length == heard(cache) == 5


def test_a_cut_and_another_way_on():
    """What was read and cut leaves no trace in what is read instead."""
    x = torch.randn(1, 7, TINY.width, generator=torch.Generator().manual_seed(0))
    position = torch.arange(7)[None]

    def read(cache: KVCache, *parts: slice) -> torch.Tensor:
        return [tiny_backbone()(x[:, part], None, position[:, part], cache) for part in parts][-1]

    cache, straight = tiny_backbone().new_cache(1, 7), tiny_backbone().new_cache(1, 7)
    read(cache, slice(0, 4), slice(5, 7))
    cache.truncate(4)
    assert_within(read(cache, slice(4, 7)), read(straight, slice(0, 4), slice(4, 7)), 1e-6)


def test_rows_share_memory_and_count_for_themselves():
    cache = filled(3, 2, 6)
    middle = cache.rows(1, 2)
    middle.pad(3)
    assert (middle.length, cache.length) == (5, 2) and heard(middle) == 5
    assert (cache.keys[:, 1, :, 2:5] == 0).all() and heard(cache) == 2
    middle.truncate(2)
    assert heard(cache.rows(1, 2)) == 2 and cache.rows(1, 1).keys.shape[1] == 0
    with pytest.raises(ValueError, match=r"2 \+ 5 columns do not fit a cache of 6"):
        cache.pad(5)


@pytest.mark.parametrize("generation", [2, 3])
def test_what_the_generations_add(generation):
    decoder = Decoder(TINY, generation, torch.nn, "meta")
    names = {name.removeprefix("layers.2.self_attn.") for name in decoder.state_dict() if "layers.2.self_attn" in name}
    own = {2: {"q_proj.bias", "k_proj.bias", "v_proj.bias"}, 3: {"q_norm.weight", "k_norm.weight"}}
    assert names == {f"{letter}_proj.weight" for letter in "qkvo"} | own[generation]
