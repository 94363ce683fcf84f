"""Published files of the language model: names, what is skipped, wrappers, and what is wrong with one, in words."""
from __future__ import annotations

import pytest
import torch

from kit.golden import manifest as s3gen_manifest
from kit.lm import GOLDEN_CONFIG, golden_state, llm_manifest, tiny_lm_state
from speechwright.checkpoint import open_checkpoint
from speechwright.cosyvoice3.config import CONTROL_TABLE, TEXT_TABLE, LMConfig
from speechwright.cosyvoice3.demo import demo_config
from speechwright.cosyvoice3.lm import SpeechLM
from speechwright.cosyvoice3.weights import TELLTALE, TEXT_HEAD, build, measure, own_name, published_shapes
from speechwright.s3gen.weights import TELLTALE as S3GEN_TELLTALE

# What CosyVoice2's file has in other sizes, or beside.
SECOND = {"llm_embedding.weight": (2, 896), "llm_decoder.bias": (6564,), "llm_decoder.weight": (6564, 896),
          "speech_embedding.weight": (6564, 896)}


@pytest.mark.parametrize("version, changes", [(3, {}), (2, SECOND)])
def test_full_size_names_and_shapes_are_the_published_ones(version, changes):
    shapes = {**llm_manifest(), **changes}
    module = SpeechLM(LMConfig(version=version), device="meta")
    assert published_shapes(module) == shapes
    assert measure(shapes, "llm.pt") == module.config
    assert len(shapes) == (293 if version == 3 else 295)


def test_weights_are_counted_once():
    """506 million numbers; the file's text head, which is the text table again, is not among them."""
    module = SpeechLM(LMConfig(), device="meta")
    assert sum(p.numel() for p in module.parameters()) + module.text_table.numel() == 506_148_480


def test_families_are_told_apart():
    assert TELLTALE <= llm_manifest().keys() and not TELLTALE <= s3gen_manifest().keys()
    assert not S3GEN_TELLTALE <= llm_manifest().keys()


@pytest.mark.parametrize("head", [None, (300, 16), (7, 5)])
def test_text_head_is_skipped_whatever_it_is(head):
    """Fine-tuning unties the head, or leaves it out; speech does not pass through it."""
    state = tiny_lm_state()
    if head:
        state[TEXT_HEAD] = torch.full(head, float("nan"))
    module = build(state)
    assert module.config == LMConfig(**{**vars(demo_config(3)), "text_rows": 300})
    assert not any("lm_head" in name for name in module.state_dict())


def test_unread_tensors_have_no_name_of_ours():
    """Older exports hold the rotary table of each layer."""
    assert own_name(TEXT_HEAD) is None and own_name("llm.model.model.layers.3.self_attn.rotary_emb.inv_freq") is None
    assert own_name("llm.model.model.norm.weight") == "llm.model.model.norm.weight"
    build({**tiny_lm_state(), "llm.model.model.rotary_emb.inv_freq": torch.ones(32)})


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_training_files_load(tmp_path, wrapper):
    """Fine-tuned files carry the epoch and the step as numbers, and some put the weights one level down."""
    state = tiny_lm_state()
    content = {**(state if wrapper is None else {wrapper: state}), "epoch": 3, "step": 1200}
    torch.save(content, tmp_path / "llm.rl.pt")
    checkpoint = open_checkpoint(tmp_path / "llm.rl.pt")
    module = build(checkpoint.read(own_name), config=measure(checkpoint.shapes, "llm.rl.pt"), source="llm.rl.pt")
    assert torch.equal(module.speech_embedding.weight, state["speech_embedding.weight"])


def test_nothing_is_copied_that_need_not_be():
    state = golden_state()
    module = build(state, config=GOLDEN_CONFIG)
    assert module.text_table.data_ptr() == state[TEXT_TABLE].data_ptr()
    for name, tensor in module.state_dict().items():
        assert tensor.data_ptr() == state[name].data_ptr()
    assert not module.training and not any(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_precision(stored, dtype):
    """Norms and the head are float32 whatever the layers are; nothing else is."""
    module = build({name: tensor.to(stored) for name, tensor in tiny_lm_state(2).items()}, dtype=dtype)
    assert module.text_table.dtype == dtype
    for name, tensor in module.state_dict().items():
        exact = "norm" in name or name.startswith("llm_decoder")
        assert tensor.dtype == (torch.float32 if exact else dtype), name


def test_half_precision_is_refused_by_name():
    with pytest.raises(ValueError, match="float16 is not for CosyVoice's language model; it runs in float32 or"):
        build(tiny_lm_state(), dtype=torch.float16)


def test_weights_made_in_inference_mode_serve_outside_it():
    with torch.inference_mode():
        module = build({name: tensor.clone() for name, tensor in tiny_lm_state().items()})
    assert not module.text_table.is_inference()
    assert not any(tensor.is_inference() for tensor in module.state_dict().values())


def changed(version: int, drop: str = "", **tensors: torch.Tensor) -> dict:
    return {**{name: tensor for name, tensor in tiny_lm_state(version).items() if name != drop}, **tensors}


@pytest.mark.parametrize("state, text", [
    (lambda: changed(3, "llm.model.model.norm.weight"), r"1 missing \(llm.model.model.norm.weight\)"),
    (lambda: changed(3, TEXT_TABLE), f"not a whole file .* looked for '{TEXT_TABLE}'"),
    (lambda: changed(3, **{"llm_decoder.bias": torch.ones(6761)}), r"1 unexpected \(llm_decoder.bias\)"),
    (lambda: changed(2, "llm_decoder.bias"), r"1 missing \(llm_decoder.bias\)"),
    (lambda: changed(2, CONTROL_TABLE), "6761 rows in speech_embedding.weight, as in CosyVoice3, and found 6564"),
    (lambda: changed(2, **{CONTROL_TABLE: torch.ones(3, 16)}), r"llm_embedding.weight is \(3, 16\), not \(2, 16\)"),
    (lambda: changed(3, **{TEXT_TABLE: torch.ones(300, 17)}), r"embed_tokens.weight is \(300, 17\), not \(300, 16\)"),
    (lambda: changed(3, **{"llm.model.model.layers.1.mlp.up_proj.weight": torch.ones(31, 16)}),
     r"layers.1.mlp.up_proj.weight is \(31, 16\), not \(32, 16\)"),
])
def test_files_that_do_not_fit(state, text):
    with pytest.raises(ValueError, match=text) as caught:
        build(state(), source="llm.pt")
    assert str(caught.value).startswith("llm.pt: ") and len(str(caught.value)) < 500
