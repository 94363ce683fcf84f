"""Long texts piece by piece: rows that grow, silence that goes, scenes in parts, pieces that fail."""
from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_fish_nodes import ada, bo, encode, ogg, sample  # noqa: F401, fixtures among them

from kit.audio import RATE_HZ, tone
from kit.scripted import ScriptedLM, Spoken
from speechwright import nodes
from speechwright.audio import TAIL_BEFORE_PAUSE_S, TAIL_S, join, join_row, sounding
from speechwright.cosyvoice3 import generate
from speechwright.omnifish import pipeline
from speechwright.omnifish.markup import speakers, without_speakers
from speechwright.wires import S3_V3, Made, Piece

FRAME = RATE_HZ // 50           # in which silence is looked for
EOS = 6562


def silence(seconds: float, level: float = 0.0) -> torch.Tensor:
    return level * torch.randn(round(seconds * RATE_HZ), generator=torch.Generator().manual_seed(1))


def row_of(waves, pauses=None, leads=None, fade_ms: float = 20.0) -> torch.Tensor:
    pauses, leads = pauses or [0.0] * len(waves), leads or [0.0] * len(waves)
    ids = torch.zeros(1, 1, dtype=torch.int64)
    pieces = [Piece(ids, pause_s, lead_s=lead_s) for pause_s, lead_s in zip(pauses, leads)]
    asked = []

    def fill(index: int, room: torch.Tensor) -> int:
        asked.append(index)
        room[: len(waves[index])] = waves[index]
        return len(waves[index])

    row = join_row(fill, pieces, sum(map(len, waves)), RATE_HZ, fade_ms)
    assert asked == list(range(len(waves))), "one after another"
    return row


class TestSilence:
    @pytest.mark.parametrize("level", [0.9, 1e-3])
    @pytest.mark.parametrize("hiss_db", [-math.inf, -60])
    @pytest.mark.parametrize("offset", [0.0, 0.05])
    def test_it_is_measured_by_the_piece_s_own_level(self, level, hiss_db, offset):
        said, hiss = tone(220, 1.0, level=level), 0.0 if hiss_db == -math.inf else level * 10 ** (hiss_db / 20)
        wave = torch.cat((said, silence(1.0, hiss))) + offset * level
        left = sounding(wave, RATE_HZ, 0.1)
        assert len(said) + 2400 <= left <= len(said) + 2400 + FRAME

    @pytest.mark.parametrize("below_db", [-20, -40])
    def test_a_soft_end_is_speech(self, below_db):
        """An s at the end of a word is 40 dB below its vowel; it was cut off, and words sounded clipped."""
        wave = torch.cat((tone(220, 0.5, level=0.9), silence(0.3, 0.6 * 10 ** (below_db / 20)), silence(0.4)))
        assert sounding(wave, RATE_HZ, 0.0) >= round(0.8 * RATE_HZ)

    @pytest.mark.parametrize("wave", [
        torch.zeros(0), torch.zeros(1), torch.ones(FRAME - 1), torch.zeros(FRAME), torch.zeros(RATE_HZ),
        silence(0.5, 1e-5), tone(220, 0.5), torch.full((RATE_HZ,), math.nan)])
    def test_a_piece_of_silence_or_sound_alone_stays(self, wave):
        assert sounding(wave, RATE_HZ, 0.0) == len(wave)

    def test_silence_within_and_before_a_piece_stays(self):
        wave = torch.cat((silence(0.7), tone(220, 0.2), silence(0.9), tone(220, 0.2)))
        assert sounding(wave, RATE_HZ, 0.0) == len(wave)

    def test_where_it_goes(self):
        """Between pieces and before pauses, never behind the last one."""
        said = torch.cat((tone(220, 0.5), silence(0.8)))
        assert torch.equal(row_of([said]), said)
        between, before_pause = (round((0.5 + keep) * RATE_HZ) for keep in (TAIL_S, TAIL_BEFORE_PAUSE_S))
        assert len(row_of([said, said])) == between + len(said)
        assert len(row_of([said, said], [0.3, 0.25])) == 2 * before_pause + round(0.55 * RATE_HZ)
        assert len(row_of([said], [0.3])) == before_pause + round(0.3 * RATE_HZ)
        assert len(row_of([said, said], leads=[0.1, 0.2])) == before_pause + len(said) + round(0.3 * RATE_HZ)
        assert len(row_of([silence(0.4), said])) == round(0.4 * RATE_HZ) + len(said)


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=5), st.data(), st.sampled_from([0.0, 5.0, 20.0]))
def test_a_row_is_the_join_of_its_pieces(lengths, data, fade_ms):
    """The law of ``join`` for what has no silence at its ends: exact lengths, pauses of zeros, and its fades."""
    seconds = st.sampled_from([0.0, 0.001, 0.05])
    pauses = data.draw(st.lists(seconds, min_size=len(lengths), max_size=len(lengths)))
    lead_s = data.draw(seconds)
    waves = [tone(220, 1.0)[7 : 7 + length] for length in lengths]
    row, lead = row_of(waves, pauses, [lead_s, *[0.0] * (len(waves) - 1)], fade_ms), round(lead_s * RATE_HZ)
    assert len(row) == lead + sum(lengths) + sum(round(pause * RATE_HZ) for pause in pauses)
    assert not row[:lead].any() and torch.equal(row[lead:], join(waves, pauses, RATE_HZ, fade_ms))


class TestScenes:
    def lines(self, turns: int) -> list[tuple[str, str]]:
        return [(("Ada", "Bo")[turn % 2], f"This is what number {turn} says.") for turn in range(turns)]

    def test_a_long_scene_is_parted_between_turns(self, ogg, ada, bo):  # noqa: F811
        lines = self.lines(40)
        script = "\n".join(f"{name}: {words}" for name, words in lines)
        prompt, preview = encode(ogg, script, ada, bo)
        assert len(prompt.pieces) > 2 and preview.count("\n") == len(prompt.pieces) - 1
        assert " ".join(piece.text for piece in prompt.pieces) == " ".join(f"{name}: {words}" for name, words in lines)
        assert all(len(piece.text) <= pipeline.SCENE_CHARACTERS for piece in prompt.pieces)
        for before, piece, after in zip(prompt.pieces, prompt.pieces[1:], prompt.pieces[2:]):
            assert [name for name, _, _ in piece.content.voices] == ["Ada", "Bo"] and piece.pause_s == 0
            assert all(sentence in before.text for sentence in piece.content.before)
            assert all(sentence in after.text for sentence in piece.content.after)
            assert len(piece.content.before) == len(piece.content.after) == 2
        assert prompt.pieces[0].content.before == prompt.pieces[-1].content.after == ()
        whole, _ = encode(ogg, script, ada, bo, keep_whole=True)
        assert len(whole.pieces) == 1
        voiceless, _ = encode(ogg, "\n".join(f"S{turn % 3 + 1}: {words}" for turn, (_, words) in enumerate(lines)),
                              mode="dialogue")
        assert {piece.content.speaker for piece in voiceless.pieces} == {"dialogue"} and len(voiceless.pieces) > 2

    def test_a_turn_longer_than_a_scene_goes_on(self, ogg, ada, bo):  # noqa: F811
        story = " ".join(f"Then came day {day} and it rained." for day in range(40))
        prompt, _ = encode(ogg, f"Ada: {story} [pause:0.4s]\nBo: Really?", ada, bo)
        *parts, last = prompt.pieces
        assert last.text == "Bo: Really?" and [piece.pause_s for piece in parts] == [0.0] * (len(parts) - 1) + [0.4]
        assert all(speakers(piece.content.text) == ["Ada"] for piece in parts)
        assert " ".join(without_speakers(piece.content.text).strip() for piece in parts) == story

    def test_split_limit_holds_for_scenes(self, ogg, ada, bo):  # noqa: F811
        prompt, _ = encode(ogg, "Ada: Hello there.\nBo: Hello.\nAda: Bye.", ada, bo, split_limit=20)
        assert [piece.text for piece in prompt.pieces] == ["Ada: Hello there.", "Bo: Hello. Ada: Bye."]


def blocks(*attempts):
    """A stand-in for ``blocks_cached``: of each attempt, what its blocks say; an exception is raised."""
    asked = []

    def speak(model, tok, prompt_codes, prompt_text, text, *rest, target_prefix=None, on_step, device):
        told = attempts[len(asked)]
        asked.append(rest[6])
        said = []

        def go():
            for index, block in enumerate(told):
                if isinstance(block, Exception):
                    raise block
                said.extend(block)
                on_step(index + 1, len(told))
                semantic = torch.tensor(said)
                speech = int((semantic < 4097).sum())
                yield semantic, semantic[:speech].expand(10, -1)

        return go()

    return speak, asked


def fresh(start: int) -> list[int]:
    return list(range(start, start + 16))


ENDS = [fresh(0), [*range(500, 510), *[4097] * 6]]
NOTHING = [[4097] * 16]
LOOPS = [fresh(0), *[[7] * 16 for _ in range(9)]]


class TestFishPieces:
    def speak(self, ogg, monkeypatch, *attempts, text="One is here. Two is there. Three is gone.", **options):  # noqa: F811
        stand_in, asked = blocks(*attempts)
        monkeypatch.setattr(pipeline, "blocks_cached", stand_in)
        prompt = encode(ogg, text, split_limit=15)[0]
        tokens, report = sample(ogg, prompt, 5, **options)
        return tokens.batch[0], report.splitlines(), asked

    def test_what_reports_are_told(self, ogg, monkeypatch):  # noqa: F811
        pieces, lines, asked = self.speak(ogg, monkeypatch, ENDS, NOTHING, ENDS, LOOPS, LOOPS, block=16)
        assert [(piece.made.text, piece.made.ended, piece.made.retries) for piece in pieces] == [
            ("One is here.", "end", 0), ("Two is there.", "end", 1), ("Three is gone.", "loop", 1)]
        assert all(piece.made.block == 16 and piece.made.seconds > 0 and piece.made.redraws == () for piece in pieces)
        assert "ended by the stop rule against loops, 1 retries" in lines[2] and len(lines) == 3
        # Sixteen frames, and one copy of the loop.
        assert pieces[2].ids[0].tolist() == [*range(16), 7]
        again = pipeline.RETRY_SEED
        assert asked == [5, 6, 6 + again, 7, 7 + again]

    def test_a_loop_may_go_on(self, ogg, monkeypatch):  # noqa: F811
        pieces, _, _ = self.speak(ogg, monkeypatch, LOOPS, text="One.", stop_on_loop=False)
        assert pieces[0].ids.shape[1] == 160 and pieces[0].made.ended == "budget"
        pieces, _, _ = self.speak(ogg, monkeypatch, LOOPS, text="One.", min_seconds=20.0)
        assert pieces[0].ids.shape[1] == 160, "no rule before the least length"

    def test_nothing_said_after_a_loop_does_not_take_its_place(self, ogg, monkeypatch):  # noqa: F811
        pieces, _, _ = self.speak(ogg, monkeypatch, LOOPS, NOTHING, text="One.")
        assert (pieces[0].ids.shape[1], pieces[0].made.ended, pieces[0].made.retries) == (17, "loop", 0)

    @pytest.mark.parametrize("attempts, words", [
        ([NOTHING, NOTHING], "piece 2 of 3 ended before its first frame with seed 6, twice"),
        ([[fresh(0), ValueError("model: its scores are NaN")]], "^piece 2 of 3: model: its scores are NaN"),
    ])
    def test_a_piece_that_fails_is_named_and_the_others_told(self, ogg, monkeypatch, attempts, words):  # noqa: F811
        with pytest.raises(ValueError, match=words) as caught:
            self.speak(ogg, monkeypatch, ENDS, *attempts)
        assert str(caught.value).splitlines()[-2:] == [
            "Done before it:", "piece 1 of 3: 26 frames, 1.21 s, ended by its end id, 0 retries: One is here."]
        with pytest.raises(ValueError) as first:
            self.speak(ogg, monkeypatch, [[*fresh(0)], ValueError("x")])
        assert str(first.value) == "piece 1 of 3: x"

    def test_the_bar_never_goes_back(self, ogg, monkeypatch):  # noqa: F811
        told = []
        monkeypatch.setattr(nodes.samplers, "progress_and_interrupt", lambda: lambda *at: told.append(at))
        self.speak(ogg, monkeypatch, ENDS, LOOPS, ENDS, ENDS)
        assert told == sorted(told) and told[-1] == (3000, 3000) and len({done for done, _ in told}) > 6

    def test_interruption_passes_through(self, ogg, monkeypatch):  # noqa: F811
        with pytest.raises(KeyboardInterrupt):
            stand_in, _ = blocks(ENDS, ENDS, ENDS)
            monkeypatch.setattr(pipeline, "blocks_cached", stand_in)
            calls = []

            def press(done: int, total: int) -> None:
                calls.append(done)
                if len(calls) == 3:
                    raise KeyboardInterrupt

            pieces = encode(ogg, "One is here. Two is there.", split_limit=15)[0].pieces
            pipeline.sample(ogg, None, pieces, 0, on_progress=press)


class TestRasPieces:
    PROMPTS = [Spoken((0,) * 9 + (name,)) for name in (1, 2, 3)]
    TEXTS = ("One.", "Two.", "Three.")

    def decode(self, script, **options):
        lm = ScriptedLM(lambda name, attempt, step: script(lm, name, attempt, step))
        return generate.decode(lm, self.PROMPTS, [5, 6, 7], generate.SamplingOptions(
            **{"temperature": 1.0, "min_ratio": 0.0, **options}), texts=self.TEXTS)

    def test_redraws_are_told_by_the_frames_that_are_left(self):
        """Of five silent tokens three are cut, which moves those behind them."""
        said = [30, 1, 2, 28, 29, 55, 31, 31, 32]

        def script(lm, name, attempt, step):
            return lm.favour(said[step], second=33) if step < len(said) else EOS

        take, *_ = self.decode(script, tau=0.1, pause_cap=2)
        assert take.ids.tolist() == [30, 1, 2, 31, 33, 32] and take.redrawn == (4,)
        assert take.redraws == 1 and take.took > 0

    def test_redraws_of_a_loop_that_is_cut_are_not_frames(self):
        takes = self.decode(lambda lm, name, attempt, step: lm.favour(9, second=10), tau=0.1, retries=0)
        assert all(all(frame < len(take.ids) for frame in take.redrawn) for take in takes)

    def test_pieces_that_say_nothing_are_named_and_the_others_told(self):
        def script(lm, name, attempt, step):
            return EOS if name in (1, 3) or step > 3 else 20 + step

        with pytest.raises(ValueError) as caught:
            self.decode(script)
        first, *done = str(caught.value).splitlines()
        assert first.startswith("speech tokens: piece 1 of 3 ended before its first token with seed 5, 2 times. So did "
                                "piece 3 of 3.")
        assert done == ["Done without it:", "piece 2 of 3: 4 tokens, 0.16 s, 0 redraws, ended by its end id, 0 "
                                            "retries: Two."]

    def test_unsound_scores_name_the_piece(self):
        def script(lm, name, attempt, step):
            if name == 2 and step == 6:
                return torch.full((lm.config.ids.rows,), math.nan)
            return 20 + step if step < 3 * name else EOS

        with pytest.raises(ValueError, match="^piece 2 of 3: language model: row 0 has 6761 NaN") as caught:
            self.decode(lambda lm, name, attempt, step: script(lm, name, attempt, min(step, 6) if name == 2 else step))
        assert [line[:12] for line in str(caught.value).splitlines()[2:]] == ["piece 1 of 3"]


def test_what_was_made_stands_beside_the_tokens():
    piece = Piece(torch.zeros(1, 3, dtype=torch.int64), made=Made("Hi.", "end", redraws=(1,)))
    assert piece.made.redraws == (1,) and Piece(piece.ids).made is None and S3_V3 == "s3-v3"
