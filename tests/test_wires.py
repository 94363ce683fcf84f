"""Values on the wires: checked when they are made, so that no decoder meets an id that cannot be."""
from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from kit.audio import RATE_HZ, tone
from speechwright.audio import Clip
from speechwright.wires import DECODERS, FISH_44K, S3_V2, S3_V3, Piece, SpeechTokens, Voice


def piece(codebooks: int = 1, frames: int = 3, pause_s: float = 0.0) -> Piece:
    return Piece(torch.arange(codebooks * frames).reshape(codebooks, frames), pause_s)


def tokens(kind: str = S3_V2, codebooks: int = 1) -> SpeechTokens:
    return SpeechTokens(kind, 25.0, ((piece(codebooks),), (piece(codebooks), piece(codebooks, 1))))


def test_the_hash_stands_for_rate_and_samples_alone():
    wave = tone()
    voice = Voice(Clip(wave, RATE_HZ), "hello", "Ada")
    assert voice.content_hash == Voice(Clip(wave.clone(), RATE_HZ), "", "Bob").content_hash
    changed = wave.clone()
    changed[-1] += 1e-4
    others = [Clip(changed, RATE_HZ), Clip(wave, RATE_HZ + 1), Clip(wave[:-1], RATE_HZ)]
    hashes = {Voice(clip, "hello", "Ada").content_hash for clip in others}
    assert len(hashes | {voice.content_hash}) == 4
    assert len(voice.content_hash) == 64 and int(voice.content_hash, 16)


def test_a_view_hashes_as_its_samples():
    wide = torch.stack([tone(), tone(330)], dim=1)
    strided = Clip(wide[:, 0], RATE_HZ)
    assert Voice(strided, "", "").content_hash == Voice(Clip(tone(), RATE_HZ), "", "").content_hash


@pytest.mark.parametrize("value", [
    Clip(tone(), RATE_HZ), Voice(Clip(tone(), RATE_HZ), "", ""), piece(), tokens(),
])
def test_wires_are_not_changed_by_nodes(value):
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)


@pytest.mark.parametrize("value", [piece(), tokens()])
def test_values_with_tensors_compare_by_identity(value):
    """Comparing field by field asks a tensor for its truth, which raises in the middle of a cache look-up."""
    assert value == value and value in {value}
    assert value != dataclasses.replace(value)


@pytest.mark.parametrize("codebooks, frames", [(1, 1), (1, 500), (10, 1), (10, 7)])
def test_any_number_of_frames_but_none_fits(codebooks, frames):
    made = piece(codebooks, frames, pause_s=0.5)
    assert SpeechTokens(FISH_44K, 21.5, ((made,),)).batch[0][0].ids.shape == (codebooks, frames)


@pytest.mark.parametrize("ids, text", [
    (torch.zeros(3, dtype=torch.int64), r"\(codebooks, frames\), got \(3,\)"),
    (torch.zeros(1, 1, 3, dtype=torch.int64), r"got \(1, 1, 3\)"),
    (torch.zeros(0, 3, dtype=torch.int64), r"got \(0, 3\)"),
    (torch.zeros(1, 0, dtype=torch.int64), "0 frames"),
    (torch.tensor([[]]), "0 frames"),
    (torch.zeros(1, 3), "torch.float32"),
    (torch.zeros(1, 3, dtype=torch.int32), "torch.int32"),
    (torch.tensor([[5, -1, 7]]), "id -1 is negative"),
    (torch.zeros(1, 3, dtype=torch.int64, device="meta"), "on meta"),
])
def test_ids_that_cannot_be(ids, text):
    """A model that ends at once gives ``torch.tensor([])``, float32; it died deep inside the vocoder."""
    with pytest.raises(ValueError, match=f"speech tokens: .*{text}"):
        Piece(ids)


@pytest.mark.parametrize("pause_s", [-0.1, 601, math.nan, math.inf])
def test_pauses_that_cannot_be(pause_s):
    with pytest.raises(ValueError, match=f"a pause of {pause_s} s"):
        piece(pause_s=pause_s)


@pytest.mark.parametrize("kind, rate, batch, text", [
    ("s3-v9", 25.0, ((piece(),),), "unknown kind 's3-v9'; known are s3-v2, s3-v3, fish-44k"),
    (S3_V2, 0.0, ((piece(),),), "0.0 frames per second"),
    (S3_V2, math.nan, ((piece(),),), "nan frames per second"),
    (S3_V2, 25.0, (), "at least one piece"),
    (S3_V2, 25.0, ((piece(),), ()), r"\[1, 0\] pieces"),
    (FISH_44K, 21.5, ((piece(10),), (piece(9),)), r"codebooks: \[9, 10\]"),
])
def test_token_values_that_cannot_be(kind, rate, batch, text):
    with pytest.raises(ValueError, match=text):
        SpeechTokens(kind, rate, batch)


@pytest.mark.parametrize("kind", DECODERS)
def test_the_right_kind_passes(kind):
    tokens(kind).require(kind, "S3Token2Wav")


@pytest.mark.parametrize("kind, wanted, remedy", [
    (FISH_44K, S3_V2, "Use Decode Fish Codes."),
    (S3_V2, FISH_44K, "Use S3Token2Wav with an S3Gen or CosyVoice2 model."),
    (S3_V3, S3_V2, "Use S3Token2Wav with a CosyVoice3 model."),
])
def test_the_wrong_kind_names_both_sides_and_the_remedy(kind, wanted, remedy):
    with pytest.raises(ValueError) as caught:
        tokens(kind).require(wanted, "Some Node")
    expected = f"Some Node: the tokens are {kind} codes; this model decodes {wanted}. {remedy}"
    assert str(caught.value) == expected
