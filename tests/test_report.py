"""Speech Report's picture: what a column means, which colours and letters there are, and what it costs."""
from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import ImageDraw

from kit.audio import tone
from kit.reports import RATE_HZ, clip_of, noise, piece, rows_of, speech, spoken, tokens_of
from speechwright.audio import Clip
from speechwright.cosyvoice3.generate import SILENT_IDS
from speechwright.report import canvas, colours, picture, pipeline, sound, words
from speechwright.report.timeline import timeline
from speechwright.s3gen import features
from speechwright.wires import FISH_44K, S3_V2, S3_V3, Made, Piece, SpeechTokens

WIDTHS = (400, 800, 1200, 2000)


def drawn(tokens: SpeechTokens | None, clip: Clip | None = None, width: int = 1200) -> picture.Picture:
    line = timeline(tokens, 0, clip) if tokens is not None else None
    return picture.draw(line, clip, sound.measure(clip) if clip is not None else None, width)


# The axis


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", [S3_V3, FISH_44K])
def test_a_border_is_where_its_time_is(width, kind):
    tokens = speech(kind, 4)
    clip = spoken(tokens)
    found = drawn(tokens, clip, width)
    assert found.image.shape[1] == width and found.axis.seconds == pytest.approx(clip.seconds, abs=1e-3)
    dark = (rows_of(found, "tokens") == torch.tensor(colours.BORDER)).all(dim=2).all(dim=0)
    white = (rows_of(found, "mel") == torch.tensor(colours.BORDER_ON_DARK)).all(dim=2).all(dim=0)
    now_s, times = 0.3, []
    for one in tokens.batch[0]:
        times += [now_s, now_s + one.ids.shape[1] / tokens.frames_per_second]
        now_s = times[-1] + one.pause_s
    for time_s in times:
        column = min(int(time_s / found.axis.seconds * found.axis.columns + 1e-6), found.axis.columns - 1)
        assert dark[column] and white[column]
    stroke = max(1, round(width / 1200))
    assert int(white.sum()) <= stroke * len(set(times))


@pytest.mark.parametrize("width", WIDTHS)
def test_ticks_are_round_apart_and_where_they_say(width):
    for seconds in (4e-5, 0.04, 1.0, 7.3, 61.0, 600.0, 7200.0):
        axis = canvas.Axis(50, width - 70, seconds)
        ticks = axis.ticks(40)
        assert ticks[0][0] == 0 and len(ticks) >= 2
        for time_s, text in ticks:
            assert float(text) == pytest.approx(time_s, abs=1e-9)
            assert axis.column(time_s) - 50 == pytest.approx(time_s / seconds * (width - 70), abs=1.0001)
        columns = [axis.column(time_s) for time_s, _ in ticks]
        assert min(np.diff(columns)) >= 39


def test_a_click_is_in_its_column():
    wave = torch.zeros(2 * RATE_HZ)
    wave[30_000] = 0.9
    low, high, rms, clipped = sound.envelope(clip_of(wave), 500)
    assert high.argmax() == 30_000 * 500 // len(wave) and high.max() == pytest.approx(0.9) and not clipped.any()
    assert (high > 0).sum() == 1 and not low.any() and rms.argmax() == high.argmax()


# Tokens


def test_every_id_has_a_colour_of_its_own():
    """Ids that look alike would show a repetition where there is none."""
    for ids, silent in ((np.arange(6561), SILENT_IDS), (np.arange(4096), frozenset())):
        found = colours.of_ids(ids, silent)
        assert len(np.unique(found, axis=0)) == len(ids)
        assert np.abs(np.diff(found.astype(int), axis=0)).max(axis=1).min() >= (2 if silent else 20)
    for token in SILENT_IDS:
        assert len(set(colours.of_ids(np.array([token]), SILENT_IDS)[0].tolist())) == 1
    assert colours.of_ids(np.array([2**40 + 7])).shape == (1, 3)


@pytest.mark.parametrize("width", WIDTHS)
def test_equal_ids_are_equal_cells(width):
    ids = [5, 9, 9, 5, 7, 5, 2, 2, 2, 9]
    found = drawn(tokens_of(piece(ids)), width=width)
    strip = rows_of(found, "tokens")
    middles = [round((index + 0.5) / len(ids) * found.axis.columns) for index in range(len(ids))]
    cells = [tuple(strip[strip.shape[0] // 2, column].tolist()) for column in middles]
    assert cells == [tuple(colours.of_ids(np.array([token]))[0]) for token in ids]
    edges = {round(index / len(ids) * found.axis.columns, 3): ids[index] != ids[index - 1] for index in range(1, 10)}
    for edge, differs in edges.items():
        parted = tuple(strip[5, math.floor(edge + 1e-6)].tolist()) == colours.PAPER
        assert parted == differs


def test_codebooks_are_rows():
    ids = torch.arange(10)[:, None].expand(10, 4).contiguous()
    found = drawn(SpeechTokens(FISH_44K, 21.5, ((Piece(ids),),)))
    strip = rows_of(found, "tokens")[:, 20]
    changes = [0, *(1 + (strip[1:] != strip[:-1]).any(dim=1).nonzero()[:, 0]).tolist(), len(strip)]
    assert [tuple(strip[row].tolist()) for row in changes[:-1]] == [tuple(c) for c in colours.of_ids(np.arange(10))]
    heights = np.diff(changes)
    assert heights[0] > 1.5 * heights[1:].max() and heights[1:].max() - heights[1:].min() <= 1


@pytest.mark.parametrize("width", WIDTHS)
def test_a_pause_is_as_wide_as_it_is_long(width):
    found = drawn(tokens_of(piece([3] * 25, pause_s=0.5), piece([3] * 25, pause_s=0.0), piece([3] * 25)), width=width)
    own = torch.tensor(colours.of_ids(np.array([3]))[0].astype(int))
    strip = rows_of(found, "tokens")
    border = (strip == torch.tensor(colours.BORDER)).all(dim=2).all(dim=0)
    pause = ~(strip == own).all(dim=2).all(dim=0) & ~border
    edge = found.axis.edge
    columns = pause.nonzero()[:, 0]
    # The lines at its ends are of its first column, and of the next piece's.
    stroke = max(1, round(width / 1200))
    assert (int(columns[0]), int(columns[-1])) == (edge(1.0) + stroke, edge(1.5) - 1)
    assert len(columns) == edge(1.5) - edge(1.0) - stroke


@pytest.mark.parametrize("width", WIDTHS)
def test_every_redraw_has_its_mark(width):
    redraws = (3, 10, 24)
    found = drawn(tokens_of(piece(range(30), made=Made("x", "end", redraws=redraws)), piece([1])), width=width)
    marked = (rows_of(found, "redraws")[-2] == torch.tensor(colours.PURPLE)).all(dim=1)
    begins = (marked & ~torch.cat((torch.tensor([False]), marked[:-1]))).nonzero()[:, 0].tolist()
    assert begins == [found.axis.edge((frame + 0.5) / 25) for frame in redraws]


def test_endings_differ_in_shape_and_colour():
    shapes = {}
    for ended in ("end", "loop", "budget"):
        panel = rows_of(drawn(tokens_of(piece([1] * 9, made=Made("x", ended)))), "ends")
        mark = (panel != torch.tensor(colours.PAPER)).any(dim=2)
        columns = mark.any(dim=0).nonzero()[:, 0]
        assert panel.shape[1] - 1 - int(columns[-1]) <= 1       # at the end of the piece
        middle = panel[panel.shape[0] // 2, int(columns.float().mean())]
        shapes[ended] = (tuple(middle.tolist()), tuple(mark.sum(dim=1).tolist()))
    assert len({colour for colour, _ in shapes.values()}) == len({form for _, form in shapes.values()}) == 3


def test_blocks_are_marked_where_there_is_room():
    ids = torch.zeros(10, 40, dtype=torch.int64)
    made = Made("x", "end", block=16)
    found = drawn(SpeechTokens(FISH_44K, 20.0, ((Piece(ids, made=made),),)))
    stroke = (rows_of(found, "blocks")[-1] == torch.tensor(colours.INK)).all(dim=1).nonzero()[:, 0].tolist()
    assert stroke == [found.axis.edge(0.8), found.axis.edge(1.6)]
    many = Piece(torch.zeros(10, 40_000, dtype=torch.int64), made=made)
    assert not (rows_of(drawn(SpeechTokens(FISH_44K, 20.0, ((many,),))), "blocks")[-1] < 60).any()


# The spectrogram


@pytest.mark.parametrize("hz", [500, 1000, 2000, 4000])
@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 44_100, 44_101])
def test_a_tone_is_at_its_tick(hz, rate_hz):
    found = drawn(None, clip_of(tone(hz, 1.0, rate_hz), rate_hz))
    column = rows_of(found, "mel")[:, 500].sum(dim=1)
    top = found.panels["mel"][0]
    assert top + int(column.argmax()) == pytest.approx(picture.hz_row(found.panels["mel"], hz), abs=2)


@pytest.mark.parametrize("time_s", [0.01, 0.7, 19.99, 20.0, 41.5])
def test_a_click_is_heard_in_its_column(time_s):
    wave = torch.zeros(42 * RATE_HZ)
    wave[round(time_s * RATE_HZ)] = 1.0
    for columns in (420, 3000, 4200):
        loudest = sound.spectrum(clip_of(wave), columns).sum(axis=0)
        heard = np.flatnonzero(loudest > 0.5 * loudest.max())
        assert heard.mean() + 0.5 == pytest.approx(time_s / 42 * columns, abs=max(1.0, 0.011 / 42 * columns))


def test_sound_ends_where_it_ends():
    found = drawn(tokens_of(piece([1] * 100)), clip_of(noise(RATE_HZ)))
    edge = found.axis.edge(1.0)
    empty = (rows_of(found, "mel") == torch.tensor(colours.PANEL)).all(dim=2).all(dim=0)
    assert found.axis.seconds == 4.0 and not empty[:edge].any() and empty[edge:-1].all()


@pytest.mark.parametrize("seconds", [0.3, 4.0, 6.01])
def test_chunks_are_seamless(monkeypatch, seconds):
    """A chunk that began without its past showed a line in the picture every 20 seconds."""
    clip = clip_of(noise(round(seconds * 44_100)), 44_100)
    whole = sound.spectrum(clip, 200)
    monkeypatch.setattr(sound, "CHUNK_SECONDS", 1)
    np.testing.assert_allclose(sound.spectrum(clip, 200), whole, atol=2e-4)


def test_silence_is_dark_and_loudness_rises_evenly():
    assert not sound.spectrum(clip_of(torch.zeros(RATE_HZ)), 100).any()
    shades = colours.of_levels().astype(float) @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(shades) > -0.6).all() and shades[0] < 30 and shades[-1] > 200


def test_clipped_samples_are_marked():
    wave = 0.5 * torch.ones(RATE_HZ)
    wave[12_000:12_010] = 1.0
    found = drawn(None, clip_of(wave))
    marked = (rows_of(found, "wave")[0] == torch.tensor(colours.ALARM)).all(dim=1).nonzero()[:, 0].tolist()
    assert marked == [found.axis.columns // 2]


# What it costs


@pytest.mark.parametrize("seconds", [60, 600])
def test_ten_minutes_are_read_in_pieces(monkeypatch, seconds):
    """Counted in samples: the spectrum is made of 22 s at a time, of each second little more than once."""
    seen = []

    def counted(wave):
        seen.append(wave.shape[-1])
        return torch.zeros(128, wave.shape[-1] // 160)

    monkeypatch.setattr(features, "log_mel_16k", counted)
    clip = clip_of(torch.zeros(seconds * 8000), 8000)
    assert sound.spectrum(clip, 1000).shape == (128, 1000)
    assert max(seen) == 22 * 16_000 and sum(seen) == 1.1 * seconds * 16_000
    found = sound.spectrum(clip_of(torch.zeros(seconds * 8000 + 1), 8000), 7)
    assert found.shape == (128, 7)


def test_ten_minutes_of_tokens():
    tokens = speech(S3_V3, 60, frames=250)
    found = drawn(tokens, width=800)
    assert found.axis.seconds > 600 and found.image.shape[0] < 800
    strip = rows_of(found, "tokens")[0]
    assert len(torch.unique(strip, dim=0)) > 300


# Letters


def test_letters_that_the_font_lacks_are_no_boxes():
    letters = canvas.Letters(14)
    assert letters.plain("Dzień dobry — „żółw”!") == 'Dzien dobry - "zolw”!'
    for text in ("你好", "Привет", "한국", "café 你", "😀", "a\u200bb"):
        assert letters.plain(text) == ""
    assert words.foldable("Über Straße, Øre") == "Uber Strasse, Ore"


def test_a_text_is_cut_to_its_room():
    letters = canvas.Letters(14)
    text = "A rather long sentence, longer than its piece."
    assert letters.fit(text, letters.width(text)) == text and letters.fit(text, 10) == ""
    cut = letters.fit(text, 150)
    assert cut.endswith("...") and text.startswith(cut[:-3]) and 120 < letters.width(cut) <= 150


@pytest.mark.parametrize("width", [*WIDTHS, 4096])
@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("kind", [S3_V3, FISH_44K])
def test_no_words_overlap(monkeypatch, kind, count, width):
    boxes, original = [], ImageDraw.ImageDraw.text

    def text(self, xy, words, fill, font, anchor):
        boxes.append((words, self.textbbox(xy, words, font, anchor)))
        original(self, xy, words, fill, font, anchor)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    tokens = speech(kind, count)
    found = drawn(tokens, spoken(tokens), width)
    assert len(boxes) > 15
    for index, (words_, (left, top, right, bottom)) in enumerate(boxes):
        assert 0 <= left and right <= width and 0 <= top and bottom <= found.image.shape[0], words_
        for other, box in boxes[index + 1:]:
            assert right <= box[0] or box[2] <= left or bottom <= box[1] or box[3] <= top, (words_, other)


# Odd input


@pytest.mark.parametrize("samples", [1, 2, 100, 201, 4799])
@pytest.mark.parametrize("rate_hz", [8000, 24_000, 44_101])
def test_short_sounds(samples, rate_hz):
    image, text = pipeline.report(None, [clip_of(noise(samples), rate_hz)], width=400)
    assert image.isfinite().all() and f"{samples} sample" in text


@pytest.mark.parametrize("kind", [S3_V2, S3_V3, FISH_44K])
@pytest.mark.parametrize("frames", [1, 2])
def test_few_tokens(kind, frames):
    tokens = speech(kind, 1, frames=frames)
    image, text = pipeline.report(tokens, [spoken(tokens)], width=4096)
    assert image.shape[2] == 4096 and f"1 piece, {frames} frame" in text


def test_rows():
    tokens = SpeechTokens(S3_V2, 25.0, ((piece([1] * 9),), (piece([2] * 30, made=Made("x", "end")),)))
    sounds = [clip_of(noise(RATE_HZ)), clip_of(noise(RATE_HZ, 1))]
    images, text = pipeline.report(tokens, sounds, pipeline.ALL_ROWS)
    singles = [pipeline.report(tokens, sounds, row) for row in (0, 1)]
    assert images.shape[0] == 2 and text == "\n\n".join(single for _, single in singles)
    for image, (single, _) in zip(images, singles):
        assert torch.equal(image[:single.shape[1]], single[0])
        assert (image[single.shape[1]:] * 255).round().unique().tolist() in ([], [250.0, 252.0])
    assert "Speech Report, row 1 of 0 to 1\n" in singles[1][1]


@pytest.mark.parametrize("given, words", [
    ((None, None), "neither tokens nor audio is connected"),
    ((speech(S3_V2, 1), None, 1), "there is no row 1 in tokens, which has 1; choose 0 to 0, or -1 for all"),
    ((None, [clip_of(noise(5))], 2), "there is no row 2 in audio"),
    ((None, [clip_of(noise(5))], -2), "there is no row -2 in audio"),
    ((speech(S3_V2, 1), [clip_of(noise(5))] * 2, -1), "the tokens have 1 and the audio has 2"),
    ((None, [clip_of(noise(5))], 0, 399), "width: 399 pixels; give 400 to 4096"),
    ((None, [clip_of(noise(5))], 0, 4097), "width: 4097 pixels; give 400 to 4096"),
])
def test_what_is_refused(given, words):
    with pytest.raises(ValueError, match=words) as caught:
        pipeline.report(*given)
    assert str(caught.value).startswith("Speech Report: ")
