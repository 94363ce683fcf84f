"""Speech Report in words: pieces on the tokens' clock and on the audio's, loudness, and what sampling took."""
from __future__ import annotations

import pytest
import torch

from kit.audio import tone
from kit.reports import RATE_HZ, clip_of, noise, piece, speech, spoken, tokens_of
from speechwright.audio import Clip, join_row
from speechwright.report import pipeline
from speechwright.report.timeline import timeline
from speechwright.wires import S3_V2, S3_V3, Made, SpeechTokens


def said(tokens: SpeechTokens | None, clip: Clip | None = None) -> str:
    return pipeline.report(tokens, [clip] if clip is not None else None)[1]


def test_every_piece_has_its_line():
    made = (Made("Hello\nthere.", "end", 0, (2, 3), 0, 1.5), Made("你好", "loop", 1, (), 0, 0.7))
    tokens = tokens_of(piece([1] * 25, 0.5, 0.25, made[0]), piece([2] * 50, 0.0, 0.0, made[1]), piece([3]), kind=S3_V3)
    assert said(tokens) == """\
Speech Report
s3-v3 tokens: 3 pieces, 76 frames, 25 per second, 3.79 s
   pause of 0.25 s
1. 0.25 to 1.25 s, 25 frames, ended by itself, 2 redraws, 0 retries, sampled in 1.50 s (1.50 of real time): Hello there.
   pause of 0.50 s
2. 1.75 to 3.75 s, 50 frames, ended in a loop, 0 redraws, 1 retry, sampled in 0.70 s (0.35 of real time): 你好
3. 3.75 to 3.79 s, 1 frame, not sampled here
total: 3.04 s of speech, 0.75 s of pauses, 1 ended by itself, 1 ended in a loop, 2 redraws, 1 retry, \
sampled in 2.20 s, 0.73 of real time"""


def test_loudness_in_words():
    wave = torch.cat((tone(300, 1.0), torch.zeros(12_000), tone(300, 0.5, level=1.0)))
    text = said(None, clip_of(wave))
    assert text.startswith("Speech Report\naudio: 2.00 s, 48000 samples at 24000 Hz\npeak 0.0 dBFS, RMS -7.3 dBFS, ")
    assert text.endswith("longest silence (below -50 dBFS) 0.50 s from 1.00 s on")
    clipped = 100 * float((wave.abs() >= 0.9999).float().mean())
    assert clipped > 0.5 and float(text.split("clipped ")[1].split(" %")[0]) == pytest.approx(clipped, abs=0.0051)
    assert "longest silence (below -50 dBFS) none" in said(None, clip_of(tone()))


@pytest.mark.parametrize("wave, words", [
    (torch.zeros(RATE_HZ), "silent: its peak is digital silence"),
    (torch.full((RATE_HZ,), 0.5), "silent: its peak is -6.0 dBFS"), (torch.zeros(1), "silent")])
def test_silence_is_told(wave, words):
    assert words in said(None, clip_of(wave))


def test_the_same_twice():
    tokens = speech(S3_V3, 3)
    first, second = (pipeline.report(tokens, [spoken(tokens)]) for _ in range(2))
    assert torch.equal(first[0], second[0]) and first[1] == second[1]


# The audio has its own clock


def test_borders_follow_what_was_trimmed():
    """A piece that lost its silence moved all borders after it beside the words that they belong to."""
    tokens = tokens_of(*(piece([index] * 50, pause_s=0.5) for index in range(3)), piece([9] * 50))
    line = timeline(tokens, 0, spoken(tokens, (0.3, 0.0, 0.2, 0.0)))
    found = [(round(span.begin_s, 3), round(span.end_s, 3)) for span in line.spans]
    assert found == [(0.0, 1.7), (2.2, 4.2), (4.7, 6.5), (7.0, 9.0)]
    assert line.note.startswith("The audio is 0.50 s shorter than the tokens") and line.seconds == pytest.approx(9.0)
    assert "note: The audio is 0.50 s shorter" in said(tokens, spoken(tokens, (0.3, 0.0, 0.2, 0.0)))


def test_what_pieces_without_a_pause_lost_is_shared():
    tokens = tokens_of(piece([1] * 50), piece([1] * 100, pause_s=1.0), piece([1] * 25), piece([1] * 25))
    line = timeline(tokens, 0, spoken(tokens, (0.3, 0.0, 0.1, 0.0)))
    ends = [round(span.end_s, 3) for span in line.spans]
    assert ends == [1.9, 5.7, 7.6, 8.6] and line.spans[2].begin_s == pytest.approx(6.7)
    assert line.seconds == pytest.approx(8.6)


def test_audio_that_fits_or_does_not():
    tokens = speech(S3_V2, 3)
    clip = spoken(tokens)
    assert timeline(tokens, 0, clip).note == "" == timeline(tokens, 0).note
    longer = timeline(tokens, 0, clip_of(torch.cat((clip.wave, torch.zeros(RATE_HZ)))))
    assert longer.note.startswith("The audio goes on for 1.00 s after the tokens")
    assert [span.end_s for span in longer.spans] == [span.end_s for span in timeline(tokens, 0).spans]
    other = timeline(tokens, 0, clip_of(noise(RATE_HZ)))
    assert "it seems to be of other tokens" in other.note and other.seconds == timeline(tokens, 0).seconds


def test_borders_are_where_the_decoders_join():
    """By the joiner that decoders use: it trims tails, but not the last one, and fades what meets."""
    said, row = [], []
    for index, (sounding_s, pause_s) in enumerate(((1.6, 0.5), (2.0, 0.0), (1.2, 0.8), (1.5, 0.0))):
        sounding = round(sounding_s * RATE_HZ)
        wave = 1e-4 * noise(2 * RATE_HZ, 9)
        wave[:sounding] = tone(200 + 50 * index, sounding_s) + noise(sounding, index)
        said.append(wave - wave.mean())
        row.append(piece([index] * 50, pause_s))

    def fill(index: int, room: torch.Tensor) -> int:
        room[: len(said[index])] = said[index]
        return len(said[index])

    wave = join_row(fill, row, sum(map(len, said)), RATE_HZ, 20.0)
    line = timeline(tokens_of(*row), 0, clip_of(wave))
    found = [(round(span.begin_s, 2), round(span.end_s, 2)) for span in line.spans]
    # 50 ms of silence stay before a pause; what the second piece did not lose it shares with the third.
    assert (found[0], found[1][0], found[3]) == ((0.0, 1.65), 2.15, (6.2, 8.2)) and found[2][1] == 5.4
    assert line.seconds == pytest.approx(len(wave) / RATE_HZ, abs=1e-3) and 3.65 <= found[1][1] <= 4.15


@pytest.mark.parametrize("lost", [(0.0, 1.2, 0.0), (0.5, 0.5, 0.5), (1.19, 1.19, 1.19)])
def test_pieces_never_end_before_they_begin(lost):
    tokens = speech(S3_V2, 3, frames=30)
    line = timeline(tokens, 0, spoken(tokens, lost))
    times = [time_s for span in line.spans for time_s in (span.begin_s, span.end_s)]
    assert times == sorted(times)
