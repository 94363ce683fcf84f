"""Which numbers a run is computed in: none that a device may lack, 16 bits where they do no harm, ids whole.

Weights are the demos'. Figures beside a bound are what was measured.
"""
from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kit.calls import WORDS, Calls, calls, plain, sound
from kit.ledger import Ledger
from speechwright import nodes
from speechwright.cosyvoice3.lm import SpeechLM
from speechwright.cosyvoice3.vocoder import CausalHiFT
from speechwright.omnifish.model import OmniFish
from speechwright.s3gen import features
from speechwright.s3gen.vocoder import HiFT

# Where float64 and complex numbers may be, and why that is on the CPU wherever the networks are.
WIDE = {
    "s3gen/features.py: _power": "spectra of recordings, which are brought to the CPU",
    "s3gen/features.py: fbank": "the same, in torchaudio",
    "hearing/decode.py: encode": "the same, in transformers",
    "cosyvoice3/vocoder.py: pitch": "the pitch predictor, as published; it stays on the CPU",
    "cosyvoice3/vocoder.py: _excitation": "a part of it",
    "cosyvoice3/excitation.py: forward": "a part of it",
    "cosyvoice3/excitation.py: <genexpr>": "a part of it",
}
# What may be computed in 16 bits: products, functions of one number, and what moves numbers.
COARSE = {
    "linear", "conv1d", "conv2d", "scaled_dot_product_attention", "embedding", "add", "add_", "mul", "addcmul_", "sum",
    "silu", "gelu", "mish", "layer_norm",
    "_has_compatible_shallow_copy_type", "alias", "cat", "copy_", "detach", "expand", "fill_", "flatten", "flip",
    "full", "index_select", "lift_fresh", "masked_fill", "masked_fill_", "new_zeros", "pad", "permute", "repeat",
    "reshape", "roll", "select", "slice", "stack", "to", "transpose", "unbind", "unflatten", "unsqueeze", "view",
    "where", "zero_", "zeros",
}
# Where 32 bits become 16, and nowhere else: before a product.
CASTS = {"cosyvoice3/dit.py: forward", "cosyvoice3/dit.py: rotate_", "qwen.py: forward", "qwen.py: rotate",
         "s3gen/flow.py: forward"}
IN_16_BITS = {"RASSampler", "BlockDiffusionSampler", "S3Token2Wav", "S3Token2Wav of CosyVoice3"}


@pytest.fixture(scope="module")
def coarse() -> Calls:
    return calls("bf16")


def with_new_voice(scene: Calls, name: str) -> dict:
    """Inputs of which a model has read nothing so far."""
    voice, = scene.run("VoiceNode", audio=sound(1.7, 178.0), transcript=WORDS, name="Eve")
    return {"voice": voice} if name.startswith("S3Token2Wav") else {}


def test_wide_numbers_are_where_the_table_says(scene):
    """Apple's graphics cards have no float64 and few complex operations; a table that a default dtype, or one
    `.double()`, had made in the middle of a network stopped it there."""
    assert {scene.node(name) for name in scene.inputs} == {getattr(nodes, name) for name in (
        "LoadModel", "VoiceNode", "VoiceLibrary", "SaveVoice", "EncodePrompt", "BlockDiffusionSampler", "RASSampler",
        "S3Tokenize", "S3Token2Wav", "FishEncode", "FishDecode", "Transcribe", "SpeechReport")}
    found = {}
    for name in scene.inputs:
        changed = with_new_voice(scene, name)
        with Ledger() as ledger:
            scene.run(name, **changed)
        found |= ledger.wide
    assert set(found) == set(WIDE)


@pytest.mark.parametrize("read", [
    lambda: features.log_mel_16k(torch.empty(4000, device="meta")),
    lambda: features.mel_24k(torch.empty(4000, device="meta")),
    lambda: features.fbank(torch.empty(4000, device="meta")),
    lambda: CausalHiFT(device="meta").pitch(torch.empty(1, 80, 9, device="meta")),
], ids=["tokenizer", "mel", "speaker", "pitch"])
def test_wide_numbers_are_on_the_cpu(read):
    """Whatever device brings the input: from one without data nothing can be brought to the CPU, and that is said."""
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        read()


def test_16_bits_are_for_products_alone(scene, coarse):
    """A softmax, a sum over a spectrum or noise in 16 bits is heard; ids above 256 are others after bfloat16."""
    operations, ids, casts, seen = {}, set(), set(), set()
    for name in (*IN_16_BITS, "S3Tokenize", "S3Tokenize of CosyVoice3", "EncodePrompt"):
        with Ledger() as ledger:
            scene.run(name, model=coarse.inputs[name]["model"])
        for operation, places in ledger.coarse.items():
            operations.setdefault(operation, set()).update(places)
        ids, casts = ids | ledger.ids, casts | ledger.casts
        seen |= {name} if "linear" in ledger.coarse else set()
    assert {operation: places for operation, places in operations.items() if operation not in COARSE} == {}
    assert ids == set() and casts == set(CASTS) and seen == IN_16_BITS


def scores(scene: Calls, name: str, model: object, network: type, monkeypatch, told: list[Tensor] | None) -> tuple:
    """(the scores at each step of a sampler, its ids); with ``told`` it draws from those in place of its own."""
    found, own = [], network.logits

    def logits(self, hidden: Tensor) -> Tensor:
        found.append(own(self, hidden))
        return found[-1] if told is None else told[len(found) - 1]

    with monkeypatch.context() as patch:
        patch.setattr(network, "logits", logits)
        result = scene.run(name, model=model)[0]
    return found, [ids[0] for ids in plain(result)[1:]]


# How far bf16 may move the scores of the next id, as a share of their spread: at most (0.0057, 0.0036), and on
# average (0.0025, 0.0035).
SCORES = {"RASSampler": (SpeechLM, 0.009, 0.0035), "BlockDiffusionSampler": (OmniFish, 0.006, 0.0045)}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_bf16_are_near_those_of_fp32(scene, coarse, name, monkeypatch):
    """From text to ids, with the same ids before each: what differs is rounding, and does not grow."""
    network, most, average = SCORES[name]
    fine, ids = scores(scene, name, scene.inputs[name]["model"], network, monkeypatch, None)
    rough, same_ids = scores(scene, name, coarse.inputs[name]["model"], network, monkeypatch, fine)
    assert len(fine) == len(rough) and all(map(torch.equal, ids, same_ids))
    moved = [float((there - here).norm() / (here - here.mean()).norm()) for here, there in zip(fine, rough)]
    assert 0 < max(moved) < most and sum(moved) / len(moved) < average


# How far bf16 may move the mel, as a share of its size (0.0074, 0.0029), and what is heard, in dB of its mel on average
# (2.7, 4.0). Random vocoders make much of little.
HEARD = {"S3Token2Wav": (HiFT, 0.011, 3.6), "S3Token2Wav of CosyVoice3": (CausalHiFT, 0.0043, 5.4)}


@pytest.mark.parametrize("name", HEARD)
def test_waves_of_bf16_are_near_those_of_fp32(scene, coarse, name, monkeypatch):
    """From ids to sound, with the same noise; what follows the mel is float32."""
    vocoder, most, loudest = HEARD[name]
    mels, decode = [], vocoder.decode

    def noted(self, mel: Tensor, source: Tensor, *rest) -> Tensor:
        assert mel.dtype == source.dtype == torch.float32
        mels.append(mel)
        return decode(self, mel, source, *rest)

    monkeypatch.setattr(vocoder, "decode", noted)
    fine, rough = (scene.run(name, model=given.inputs[name]["model"])[0]["waveform"][0, 0] for given in (scene, coarse))
    here, there = torch.cat(mels[: len(mels) // 2], -1), torch.cat(mels[len(mels) // 2 :], -1)
    heard = (features.log_mel_16k(fine) - features.log_mel_16k(rough)).abs().mean() * 40        # dB in its unit
    assert fine.shape == rough.shape and 0 < heard < loudest
    assert 0 < (there - here).norm() < most * here.norm()


@pytest.mark.parametrize("name", ["RASSampler", "BlockDiffusionSampler"])
def test_every_id_has_its_own_row_in_16_bits(coarse, name):
    """Of 4095 and 4096, which are one number in bfloat16, each finds its own row of the table."""
    model = coarse.inputs[name]["model"]
    with model.loaded(next(iter(model._opened.parts)), 0) as network:
        for table in (part for part in network.modules() if isinstance(part, torch.nn.Embedding)):
            ids = torch.arange(table.num_embeddings)
            assert torch.equal(table(ids), table.weight) and len(table.weight.unique(dim=0)) == len(ids)
