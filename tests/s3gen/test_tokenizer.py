"""The speech tokenizer: golden ids, and the laws of its windows, of its batches, of little audio."""
from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from kit.golden import assert_within, golden_state, load_golden, weight_shapes
from kit.tiny import fill, tiny_config
from speechwright.s3gen import tokenizer as module
from speechwright.s3gen.config import TokenizerConfig
from speechwright.s3gen.features import log_mel_16k
from speechwright.s3gen.tokenizer import S3Tokenizer, rotary_table

PREFIX = "tokenizer."
RATE = 16000
WINDOW, STRIDE = 480000, 416000     # samples of 30 s and of 26 s
SECONDS = [29.9, 30.0, 30.1, 52.5, 61.0]


@pytest.fixture(scope="module")
def tiny() -> S3Tokenizer:
    return fill(S3Tokenizer(tiny_config().tokenizer, device="meta"), PREFIX)


def noise(samples: int, seed: int = 0) -> torch.Tensor:
    """(T,) noise whose loudness and colour change every 0.1 s, so that tokens differ."""
    rng = torch.Generator().manual_seed(seed)
    wave = torch.randn(samples, generator=rng)
    steps = 1 + samples // 1600
    gain, colour = (torch.rand(steps, generator=rng).repeat_interleave(1600)[:samples] for _ in range(2))
    return 0.3 * 10 ** (-2 * gain) * (wave + (2 * colour - 1) * wave.roll(1))


def tokens_of(samples: int) -> int:
    return math.ceil(math.ceil(samples // 160 / 2) / 2)


def test_every_stage_is_the_published_one():
    tokenizer = S3Tokenizer(TokenizerConfig(), device="meta")
    tokenizer.load_state_dict(golden_state(PREFIX), assign=True)
    golden = load_golden()
    with torch.no_grad():
        hidden = tokenizer.hidden(golden["logmel16"])
        assert_within(hidden, golden["tok_hidden"], 5e-4)
        assert_within(tokenizer.quantizer.project(hidden), golden["tok_pre"], 1e-4)
        assert torch.equal(tokenizer.quantizer(hidden), golden["tok"].long())
    assert torch.equal(tokenizer.encode(golden["r16"][0]), golden["tok"][0].long())


def test_names_and_shapes_are_the_published_ones():
    shapes = weight_shapes(PREFIX)
    assert TokenizerConfig.from_shapes(shapes) == TokenizerConfig()
    built = S3Tokenizer(TokenizerConfig(), device="meta")
    assert {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()} == shapes


def test_sizes_are_read_off_any_shapes(tiny):
    shapes = {name: tuple(tensor.shape) for name, tensor in tiny.state_dict().items()}
    assert TokenizerConfig.from_shapes(shapes) == tiny_config().tokenizer


class Positions(S3Tokenizer):
    """Hears a wave whose samples are their own frame numbers and gives each token its absolute index."""

    def __init__(self):
        super().__init__(tiny_config().tokenizer)
        self.quantizer = nn.Flatten()

    def hidden(self, mel):
        return (mel[:, 0, ::4] / 4).long()


@pytest.mark.parametrize(
    "seconds", [0.04, 1.0, *SECONDS, 30.01, 30.04, 56.0, 56.01, 81.99, 82.0, 82.2, 600.0])
def test_every_token_occurs_once_and_in_order(monkeypatch, seconds):
    """Merging by fixed overlaps loses up to 2 s of tokens where the last window is shorter than the
    overlap: 52.5 s gave 1263 tokens in place of 1313."""
    def frame_numbers(wave, mels):
        return wave[: len(wave) // 160 * 160 : 160].expand(mels, -1)

    monkeypatch.setattr(module, "log_mel_16k", frame_numbers)
    samples = round(seconds * RATE)
    ids = Positions().encode((torch.arange(samples) // 160).float())
    assert torch.equal(ids, torch.arange(tokens_of(samples)))


@pytest.mark.parametrize("seconds", SECONDS)
def test_each_token_is_that_of_its_own_window(tiny, seconds):
    """Loud noise in the first second: were the floor of the log-mel taken over the whole clip, it would
    reach the windows that do not hear that second."""
    wave = noise(round(seconds * RATE))
    wave[:RATE] *= 30
    ids = tiny.encode(wave)
    assert ids.dtype == torch.int64
    assert abs(len(ids) - round(25 * seconds)) <= 1
    assert len(ids.unique()) > 50      # else the law would hold for a constant
    windows = max(1, math.ceil((len(wave) // 160 - 3000) / 2600) + 1)
    for index in range(windows):
        alone = tiny.encode(wave[index * STRIDE : index * STRIDE + WINDOW])
        first = 650 * index + (50 if index else 0)
        end = len(ids) if index + 1 == windows else 650 * index + 700
        assert torch.equal(ids[first:end], alone[first - 650 * index : end - 650 * index])


@pytest.mark.parametrize("samples, windows", [
    (RATE, 1), (WINDOW, 1), (WINDOW + 159, 1), (WINDOW + 160, 2), (WINDOW + STRIDE, 2),
    (WINDOW + STRIDE + 160, 3),
])
def test_progress_counts_the_windows(tiny, samples, windows):
    calls = []
    tiny.encode(noise(samples), lambda done, total: calls.append((done, total)))
    assert calls == [(index + 1, windows) for index in range(windows)]


def test_cancelling_ends_after_the_window_at_hand(tiny):
    class Cancelled(Exception):
        pass

    def cancel(done, total):
        calls.append(done)
        raise Cancelled

    calls = []
    with pytest.raises(Cancelled):
        tiny.encode(noise(61 * RATE), cancel)
    assert calls == [1]


@pytest.mark.parametrize("samples", [640, 641, 799, 800, 1279, 1280, 1281])
def test_few_samples_give_few_tokens(tiny, samples):
    ids = tiny.encode(noise(samples))
    assert len(ids) == tokens_of(samples)
    assert 0 <= ids.min() and ids.max() < 3**8


@pytest.mark.parametrize("samples", [0, 1, 200, 201, 639])
def test_less_than_a_token_is_refused(tiny, samples):
    with pytest.raises(ValueError, match=rf"found {samples} samples .* one token takes 640 \(40 ms\)"):
        tiny.encode(noise(samples))
    with pytest.raises(ValueError, match=f"found {samples} samples"):
        tiny([noise(RATE), noise(samples)], max_len=3)


@pytest.mark.parametrize("shape", [(), (1, RATE), (2, 1, RATE)])
def test_encode_takes_one_clip(tiny, shape):
    with pytest.raises(ValueError, match=r"expected one clip \(samples,\), found"):
        tiny.encode(torch.zeros(shape))


def test_silence_gives_ids(tiny):
    assert len(tiny.encode(torch.zeros(RATE))) == 25


def test_rows_are_padded_and_blind_to_each_other(tiny):
    """Padding of the mel used to take part in the attention of shorter rows."""
    waves = [noise(RATE), 30 * noise(640), noise(31 * RATE)]
    ids, lengths = tiny(waves)
    assert ids.dtype == lengths.dtype == torch.int64
    assert lengths.tolist() == [25, 1, 775]
    assert ids.shape == (3, 775)
    for row, length, wave in zip(ids, lengths, waves):
        assert torch.equal(row[:length], tiny.encode(wave))
        assert (row[length:] == 0).all()


def test_a_batch_tensor_is_its_rows(tiny):
    waves = torch.stack((noise(RATE), noise(RATE, seed=1)))
    ids, lengths = tiny(waves)
    assert lengths.tolist() == [25, 25]
    assert torch.equal(ids[1], tiny.encode(waves[1]))
    assert torch.equal(tiny(waves.numpy())[0], ids)


@pytest.mark.parametrize("max_len", [1, 24, 25, 26, 2000])
def test_max_len_cuts_the_mel_but_not_its_floor(tiny, max_len):
    """The loudest bin is looked for in the whole clip, also where the cut drops it."""
    wave = noise(RATE)
    wave[-3200:] *= 1000
    ids, lengths = tiny([wave], max_len)
    mel = log_mel_16k(wave, tiny.mels)[None, :, : 4 * max_len]
    assert lengths.tolist() == [min(25, max_len)]
    assert torch.equal(ids, tiny.quantizer(tiny.hidden(mel)))


def test_max_len_beyond_a_window(tiny):
    wave = noise(40 * RATE)
    assert torch.equal(tiny([wave], max_len=800)[0][0], tiny.encode(wave)[:800])


@pytest.mark.parametrize("max_len", [0, -1])
def test_max_len_below_one_is_refused(tiny, max_len):
    with pytest.raises(ValueError, match=f"max_len: found {max_len}"):
        tiny([noise(RATE)], max_len)


def test_no_clips_are_refused(tiny):
    with pytest.raises(ValueError, match="wavs: found no clips"):
        tiny([])


def test_ids_read_the_first_digit_as_the_smallest(tiny, monkeypatch):
    """Each digit is 0, 1 or 2 for a projection far below, at or far above zero."""
    digits = torch.tensor([[0, 1, 2, 1, 0, 2, 2, 1], [2] * 8, [0] * 8])
    monkeypatch.setattr(tiny.quantizer, "project", lambda x: 100.0 * (digits[None] - 1))
    ids = tiny.quantizer(torch.zeros(1, 3, 64))
    assert ids.tolist() == [[sum(d * 3**i for i, d in enumerate(row.tolist())) for row in digits]]
    assert ids[0, 1] == 3**8 - 1


def test_rotary_table_made_under_inference_serves_elsewhere():
    """ComfyUI runs nodes in inference mode, and a tensor made there may not meet gradients later."""
    with torch.inference_mode():
        rotary_table(333)
    assert not any(table.is_inference() for table in rotary_table(333))


def test_encode_gives_ordinary_tensors_and_keeps_no_graph():
    trainable = fill(S3Tokenizer(tiny_config().tokenizer)).requires_grad_(True)
    assert not trainable.encode(noise(RATE)).requires_grad
