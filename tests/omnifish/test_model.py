"""The model around its backbone: the published names and numbers, and how ids become embeddings."""
from __future__ import annotations

import pytest
import torch

from kit.blocks import golden_model, golden_state
from kit.golden import assert_within
from speechwright.assembly import shapes_of
from speechwright.omnifish import model as of
from speechwright.omnifish.config import CodeIds, OmniFishConfig
from speechwright.omnifish.model import OmniFish


def test_published_numbers():
    assert (of.NUM_CODEBOOKS, of.MASK_ID, of.END_ID, of.PAD_ID, of.CODEBOOK_ROWS) == (10, 4096, 4097, 4098, 4099)
    assert [CodeIds().sounding(codebook) for codebook in range(10)] == [4096] + 9 * [1024]


def test_full_size_names_and_shapes():
    """What is known of the published file: 642 million numbers and the depth decoder, 0.8 billion in all."""
    shapes = shapes_of(OmniFish(OmniFishConfig(), device="meta").state_dict())
    outer = {name: shape for name, shape in shapes.items() if not name.startswith(("llm.", "mtp."))}
    assert outer == {"audio_embeddings.weight": (40990, 1024), "semantic_head.weight": (4099, 1024)}
    assert {name.split(".")[0] for name in shapes} == {"llm", "mtp", "audio_embeddings", "semantic_head"}
    counts = {part: sum(torch.Size(shape).numel() for name, shape in shapes.items() if name.startswith("mtp.") == part)
              for part in (False, True)}
    assert counts[False] == 595_783_680 + 11 * 4099 * 1024 and 0.75e9 < sum(counts.values()) < 0.9e9


def test_sizes_are_measured():
    model = golden_model()
    assert OmniFishConfig.from_shapes(shapes_of(golden_state())) == model.config
    assert (model.config.backbone.heads, model.config.backbone.kv_heads, model.config.backbone.head_width) == (2, 1, 16)
    full = OmniFishConfig()
    assert OmniFishConfig.from_shapes(shapes_of(OmniFish(full, device="meta").state_dict())) == full


def test_embedding_is_a_sum_over_codebooks_or_a_row_of_text():
    """Text ids above the table of codes once were looked up in it: a GPU does not survive that."""
    model = golden_model()
    ids = torch.randint(0, 1024, (2, 10, 5), generator=torch.Generator().manual_seed(0))
    ids[:, 0, 1:3] = 4097
    audio = torch.tensor([[False, True, True, False, True], [True, False, False, False, False]])
    ids[:, 0][~audio] = 250
    ids[:, 1:, :][~audio[:, None].expand(-1, 9, -1)] = 151_000
    text, codes = model.llm.embed_tokens.weight, model.audio_embeddings.weight
    embedded = model.embed(ids, audio)
    for row in range(2):
        for column in range(5):
            own = ids[row, :, column].tolist()
            expected = text[own[0]] if not audio[row, column] else torch.stack(
                [codes[4099 * codebook + number] for codebook, number in enumerate(own)]).sum(dim=0)
            assert_within(embedded[row, column], expected, 1e-6)


def test_scores_are_float32():
    model = golden_model()
    hidden = torch.randn(2, 3, 32)
    assert_within(model.logits(hidden), hidden @ model.semantic_head.weight.T, 1e-5)
    assert model.logits(hidden.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("changes, text", [
    ({"semantic_head.weight": (4097, 32)}, "more than 4097 rows in semantic_head.weight.*found 4097"),
    ({"audio_embeddings.weight": (13312, 32)}, "10 times the 4099 rows of semantic_head.weight.*found 13312"),
    ({"llm.layers.0.self_attn.k_proj.weight": (24, 32)}, "heads of 16 channels, and found 32 of queries and 24"),
])
def test_odd_shapes(changes, text):
    with pytest.raises(ValueError, match=text):
        OmniFishConfig.from_shapes({**shapes_of(golden_state()), **changes})


def test_other_ids():
    """Which of the three is which no shape tells."""
    ids = CodeIds(mask=4098, end=4096, pad=4097)
    config = OmniFishConfig.from_shapes(shapes_of(OmniFish(OmniFishConfig(), device="meta").state_dict()), ids=ids)
    assert config.ids == ids and config.mtp.mask_id == 4098
