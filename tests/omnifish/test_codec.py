"""The codec against its golden data, and its laws: nothing looks ahead, pieces are the whole, rows are their own."""
from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kit.codec import CASES, FRAME, TINY, golden_codec, golden_codec_tensors, noise, random_codes, tiny_codec
from kit.golden import assert_within
from speechwright.omnifish import codec as codec_module
from speechwright.omnifish.codec_config import FRAME_SAMPLES, FRAMES_PER_SECOND, LATENT_SAMPLES
from speechwright.omnifish.codec_layers import Carry

BOOKS = len(TINY.rows)
SAME = 2e-5         # one thing computed in two ways


def wave(samples: int, rows: int = 1, seed: int = 0) -> Tensor:
    return 0.3 * noise(rows, samples, seed=seed)


# Golden data


@pytest.mark.parametrize("case", CASES)
def test_golden_recordings(case):
    golden, codec = golden_codec_tensors(), golden_codec()
    assert_within(codec.encode_latent(golden[f"{case}.wave"]), golden[f"{case}.latent"], 2e-4)
    codes = codec.encode(golden[f"{case}.wave"])
    assert codes.dtype == torch.int64 and torch.equal(codes, golden[f"{case}.codes"])
    assert_within(codec.dequantize(codes), golden[f"{case}.quantized"], 2e-4)
    assert_within(codec.decode(codes), golden[f"{case}.audio"], 5e-4)
    assert_within(codec.decoder(golden[f"{case}.quantized"]), golden[f"{case}.audio"], 2e-4)


@pytest.mark.parametrize("chunk_frames", [37, 16, 5])
def test_golden_codes(chunk_frames):
    """37 frames, more than twice the window."""
    golden = golden_codec_tensors()
    audio = golden_codec().decode(golden["random.codes"], chunk_frames=chunk_frames)
    assert_within(audio, golden["random.audio"], 5e-4)


def test_golden_recording_in_pieces():
    golden, codec = golden_codec_tensors(), golden_codec()
    for chunk_frames in (1, 4):
        assert torch.equal(codec.encode(golden["0.wave"], chunk_frames=chunk_frames), golden["0.codes"])


# Lengths


def test_frames_are_2048_samples():
    assert FRAME_SAMPLES == FRAME and LATENT_SAMPLES == 512 and FRAMES_PER_SECOND == pytest.approx(21.533, abs=1e-3)


@pytest.mark.parametrize("samples, frames", [(1, 1), (2047, 1), (2048, 1), (2049, 2)])
def test_lengths(samples, frames):
    codec = tiny_codec()
    sound = wave(samples, rows=2)
    codes, latent = codec.encode(sound), codec.encode_latent(sound)
    assert codes.shape == (2, BOOKS, frames) and latent.shape == (2, TINY.width, 4 * frames)
    assert codec.dequantize(codes).shape == latent.shape
    audio = codec.decode(codes)
    assert audio.shape == (2, 1, FRAME * frames) and audio.dtype == torch.float32
    assert audio.isfinite().all() and 0.001 < audio.std() and audio.abs().max() <= 1
    for book, ids in enumerate(codes.unbind(1)):
        assert 0 <= ids.min() and ids.max() < TINY.rows[book]


@pytest.mark.parametrize("samples", [1, 2047, 2048, 2049])
def test_the_last_frame_is_filled_with_zeros(samples):
    codec, sound = tiny_codec(), wave(samples)
    filled = torch.nn.functional.pad(sound, (0, -samples % FRAME))
    assert torch.equal(codec.encode_latent(sound), codec.encode_latent(filled))


# Nothing looks ahead


def first_change(one: Tensor, other: Tensor) -> int:
    """Where two results, alike up to their last axis, begin to differ."""
    return int((one != other).flatten(0, -2).any(dim=0).nonzero()[0])


@pytest.mark.parametrize("frame", [0, 1, 2, 7])
def test_a_frame_changes_no_earlier_sample(frame):
    codec, codes = tiny_codec(), random_codes(9)
    changed = codes.clone()
    changed[:, :, frame:] = (changed[:, :, frame:] + 1) % TINY.residual_rows
    assert FRAME * frame <= first_change(codec.decode(codes), codec.decode(changed)) < FRAME * (frame + 1)


@pytest.mark.parametrize("column", [0, 1, 5, 11])
def test_a_latent_changes_no_earlier_sample(column):
    """The decoder's first sample of a latent is at once, not a convolution later."""
    codec, latent = tiny_codec(), noise(1, TINY.width, 12)
    changed = latent.clone()
    changed[:, :, column:] += 1
    assert first_change(codec.decoder(latent), codec.decoder(changed)) == LATENT_SAMPLES * column


@pytest.mark.parametrize("sample", [0, 511, 512, 2047, 2048, 2049, 3 * 2048 - 1])
def test_a_sample_changes_no_earlier_latent_or_code(sample):
    codec, sound = tiny_codec(), wave(3 * FRAME)
    changed = sound.clone()
    changed[:, sample:] = 0.9 * noise(1, 3 * FRAME - sample, seed=1)
    before = sample // LATENT_SAMPLES
    assert first_change(codec.encode_latent(sound), codec.encode_latent(changed)) == before
    frames = sample // FRAME
    codes, changed_codes = codec.encode(sound), codec.encode(changed)
    assert torch.equal(codes[:, :, :frames], changed_codes[:, :, :frames])
    assert sample > 2 * FRAME or not torch.equal(codes, changed_codes)


# Pieces are the whole


@pytest.mark.parametrize("samples", [1, 2048, 2049, 3 * 2048 - 1, 3 * 2048, 3 * 2048 + 1, 6 * 2048, 7 * 2048 + 5])
def test_a_recording_in_pieces_is_the_whole(samples):
    codec, sound = tiny_codec(), wave(samples, rows=2)
    codes, latent = codec.encode(sound, chunk_frames=1000), codec.encode_latent(sound, chunk_frames=1000)
    for chunk_frames in (1, 2, 3):
        assert_within(codec.encode_latent(sound, chunk_frames=chunk_frames), latent, SAME)
        assert torch.equal(codec.encode(sound, chunk_frames=chunk_frames), codes)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 6, 7, 13])
def test_codes_in_pieces_are_the_whole(frames):
    codec, codes = tiny_codec(), random_codes(frames, rows=2)
    audio, latent = codec.decode(codes, chunk_frames=1000), codec.dequantize(codes, chunk_frames=1000)
    for chunk_frames in (1, 2, 3, frames - 1 or 1):
        assert_within(codec.dequantize(codes, chunk_frames=chunk_frames), latent, SAME)
        assert_within(codec.decode(codes, chunk_frames=chunk_frames), audio, SAME)


@pytest.mark.parametrize("part_samples", [512, 3 * 512])
def test_parts_of_a_piece_are_the_whole(part_samples, monkeypatch):
    """At high rates a piece is computed part by part, and no one may hear where they meet."""
    codec, sound, codes = tiny_codec(), wave(5 * FRAME), random_codes(5)
    results = []
    for samples in (2**20, part_samples):
        monkeypatch.setattr(codec_module, "PART_SAMPLES", samples)
        results.append((codec.encode_latent(sound), codec.decode(codes)))
    for whole, parts in zip(*results):
        assert_within(parts, whole, SAME)


def test_codes_that_come_bit_by_bit():
    """Two recordings in turns: what one's pieces leave for the next is no business of the other's."""
    codec, streams = tiny_codec(), []
    for seed in (1, 2):
        streams.append((random_codes(10, seed=seed), Carry(), []))
    for start, end in ((0, 1), (1, 4), (4, 6), (6, 10)):
        for codes, carry, pieces in streams:
            with torch.inference_mode(start != 4):      # ComfyUI's, and somebody else's in between
                pieces.append(codec.decode_piece(codes[:, :, start:end], carry))
    for codes, _, pieces in streams:
        assert_within(torch.cat(pieces, dim=2), codec.decode(codes), SAME)


def test_what_is_carried_does_not_grow():
    """The published code keeps masks of gigabytes; here all that outlives a piece is some inputs of each layer."""
    codec, sizes = tiny_codec(), []
    carry = Carry()
    for _ in range(4):
        codec.decode_piece(random_codes(5), carry)
        assert all(tail.untyped_storage().nbytes() == tail.nbytes for tail in carry.tails.values())
        sizes.append(sum(tail.nbytes for tail in carry.tails.values()))
    assert len(set(sizes)) == 1
    kept = (TINY.quantizer_transformer.window - 1) * 64 * 2 * TINY.quantizer_transformer.layers
    assert sizes[0] > 4 * kept


def test_pieces_are_told_and_may_be_cancelled():
    codec, codes = tiny_codec(), random_codes(7)
    told = []
    whole = codec.decode(codes, lambda *place: told.append(place), chunk_frames=3)
    codec.encode(wave(2 * FRAME + 1), lambda *place: told.append(place), chunk_frames=2)
    codec.encode(wave(1), lambda *place: told.append(place))
    assert told == [(1, 3), (2, 3), (3, 3), (1, 2), (2, 2), (1, 1)]

    def cancel(done: int, total: int) -> None:
        if done == 2:
            raise InterruptedError
    with pytest.raises(InterruptedError):
        codec.decode(random_codes(7, seed=3), cancel, chunk_frames=3)
    assert torch.equal(codec.decode(codes, chunk_frames=3), whole)     # nothing of it is left


# Rows are their own


def test_rows_of_unequal_recordings():
    """Zeros behind a row's end are what its last frame is filled with anyway."""
    codec, lengths = tiny_codec(), (1, 2047, 2048, 2049, 5000)
    sounds = [wave(samples, seed=samples) for samples in lengths]
    batch = torch.zeros(len(lengths), max(lengths))
    for row, sound in zip(batch, sounds):
        row[: sound.shape[1]] = sound[0]
    codes, latent = codec.encode(batch, chunk_frames=2), codec.encode_latent(batch)
    for row, sound in enumerate(sounds):
        alone = codec.encode(sound)
        assert torch.equal(codes[row : row + 1, :, : alone.shape[2]], alone)
        assert_within(latent[row : row + 1, :, : 4 * alone.shape[2]], codec.encode_latent(sound), SAME)


def test_rows_of_unequal_codes():
    codec, lengths = tiny_codec(), (1, 4, 7)
    batch = random_codes(7, rows=3)
    audio = codec.decode(batch, chunk_frames=3)
    for row, frames in enumerate(lengths):
        alone = codec.decode(batch[row : row + 1, :, :frames])
        assert_within(audio[row : row + 1, :, : FRAME * frames], alone, SAME)


def test_inputs_are_left_alone():
    """The published decoder limits the ids of its caller's own tensor."""
    codec, codes, sound = tiny_codec(), random_codes(3), wave(3000)
    before = codes.clone(), sound.clone()
    codec.decode(codes)
    codec.encode(sound)
    assert torch.equal(codes, before[0]) and torch.equal(sound, before[1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_whole_numbers_of_any_kind_are_codes(dtype):
    codes = random_codes(3)
    assert torch.equal(tiny_codec().decode(codes.to(dtype)), tiny_codec().decode(codes))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_waves_of_any_floats(dtype):
    sound = wave(3000).to(dtype)
    latent = tiny_codec().encode_latent(sound)
    assert latent.dtype == torch.float32 and torch.equal(latent, tiny_codec().encode_latent(sound.float()))


# What cannot be coded


def codes_with(value: int, row: int, book: int, frame: int) -> Tensor:
    codes = random_codes(8, rows=3)
    codes[row, book, frame] = value
    return codes


@pytest.mark.parametrize("codes, text", [
    (lambda: codes_with(40, 0, 0, 5), r"frame 5 of codebook 0 \(row 0\) is 40, and that codebook has the ids 0 to 39"),
    (lambda: codes_with(39, 2, 3, 0), r"frame 0 of codebook 3 \(row 2\) is 39, and that codebook has the ids 0 to 23"),
    (lambda: codes_with(-1, 1, 1, 7), r"frame 7 of codebook 1 \(row 1\) is -1"),
    (lambda: random_codes(0), "found 0 frames"),
    (lambda: random_codes(3)[0], r"expected \(batch, 4 codebooks, frames\), found \(4, 3\)"),
    (lambda: random_codes(3)[:, :3], r"found \(1, 3, 3\)"),
    (lambda: random_codes(3)[:0], r"found \(0, 4, 3\)"),
    (lambda: random_codes(3).float(), "expected whole numbers, found torch.float32"),
    (lambda: random_codes(3) > 0, "expected whole numbers, found torch.bool"),
])
def test_codes_that_are_none(codes, text):
    codec = tiny_codec()
    for call in (codec.decode, codec.dequantize, lambda codes: codec.decode_piece(codes, Carry())):
        with pytest.raises(ValueError, match=text):
            call(codes())


@pytest.mark.parametrize("sound, text", [
    (lambda: wave(0), "found 0 samples"),
    (lambda: wave(100)[0], r"expected \(batch, samples\) at 44100 Hz, found \(100,\)"),
    (lambda: wave(100)[:, None], r"found \(1, 1, 100\)"),
    (lambda: wave(100)[:0], r"found \(0, 100\)"),
    (lambda: (1000 * wave(100)).short(), "expected floats within .-1, found torch.int16"),
    (lambda: wave(100).index_fill(1, torch.tensor(7), float("nan")), "NaN or infinite"),
])
def test_waves_that_are_none(sound, text):
    for call in (tiny_codec().encode, tiny_codec().encode_latent):
        with pytest.raises(ValueError, match=text):
            call(sound())


@pytest.mark.parametrize("chunk_frames", [0, -1])
def test_a_piece_has_a_frame(chunk_frames):
    with pytest.raises(ValueError, match=f"chunk_frames: found {chunk_frames}"):
        tiny_codec().decode(random_codes(2), chunk_frames=chunk_frames)
