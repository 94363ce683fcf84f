"""Transcribe Speech with tiny networks that write what a script says: windows, loops, files, Cancel, refusals."""
from __future__ import annotations

import gc
import json
import logging
import shutil
import sys
import weakref
from functools import partial
from types import ModuleType

import comfy.model_management
import pytest
import torch
from test_nodes import run, speech

from kit import whisper
from kit.audio import BAD_AUDIO, UNSPEAKABLE, audio, good_audio, tone
from kit.whisper import END, ids
from speechwright import nodes
from speechwright.hearing import decode, folder, pipeline
from speechwright.hearing.folder import Ear
from speechwright.hearing.windows import windows

NAME = "small one"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return whisper.write_small(tmp_path_factory.mktemp("ears") / "small")


@pytest.fixture
def here(two_roots, small):
    """The folder of the tiny Whisper among the models."""
    target = two_roots[0] / NAME
    shutil.copytree(small, target)
    return target


@pytest.fixture
def script(monkeypatch):
    """Makes every network that is built write these texts."""
    return partial(whisper.script, monkeypatch)


class TestWindows:
    @pytest.mark.parametrize("samples", [1, 2, 319, 320, 15_999, 16_000, 16_001, 31_999, 48_001, 250_000])
    @pytest.mark.parametrize("longest", [16_000, 480_000])
    def test_nothing_is_lost_or_doubled(self, samples, longest):
        wave = torch.randn(samples, generator=torch.Generator().manual_seed(samples))
        found = windows(wave, 16_000, longest)
        assert [begin for begin, _ in found] == [0, *(end for _, end in found[:-1])] and found[-1][1] == samples
        assert all(0 < end - begin <= longest for begin, end in found)
        assert len(found) == 1 or all(end - begin >= longest * 0.6 for begin, end in found[:-1])

    @pytest.mark.parametrize("rate_hz", [16_000, 8_000])
    @pytest.mark.parametrize("pause_s", [0.35, 0.6, 2.0])
    def test_cut_within_pauses(self, rate_hz, pause_s):
        """Of speech of 7 s at a time every cut lies in a pause, however faint its hiss."""
        said, rng = speech(7.0, rate_hz), torch.Generator().manual_seed(0)
        hiss = 0.001 * torch.randn(round(pause_s * rate_hz), generator=rng)
        wave, period = torch.cat([said, hiss] * 14), len(said) + len(hiss)
        cuts = [end for _, end in windows(wave, rate_hz, 30 * rate_hz)[:-1]]
        assert len(cuts) >= 3
        assert all(len(said) < cut % period for cut in cuts)

    def test_digital_silence_is_cut_as_late_as_can_be(self):
        wave = torch.cat((tone(seconds=22, rate_hz=16_000), torch.zeros(16_000 * 20)))
        (_, end), _ = windows(wave, 16_000, 480_000)
        assert end == 480_000 - 2400


class TestLoops:
    @pytest.mark.parametrize("words", [" no", " thank you very much.", " and so we came to the bridge over the river"])
    def test_one_copy_stays(self, here, script, caplog, words):
        said, block = ids(" It began, and"), ids(words)
        # The loop never ends by itself.
        scripted = script(said + block * 200)
        with caplog.at_level(logging.WARNING):
            found = run(nodes.Transcribe, audio(speech(3.0)), NAME)
        assert found == f"It began, and{words}"
        assert scripted[0].steps <= len(said) + max(64 + len(block), 8 * len(block))
        assert "row 1, 0.0 to 3.0 s: the model went round in circles" in caplog.text

    def test_out_of_room(self, here, script, caplog):
        """More ids than the network has places for: what fits is kept, less a loop of three at its end."""
        many, block = list(range(1000, 1330)), list(range(2000, 2040))
        scripted = script(many + block * 9)
        ear = folder.open_folder(here)
        with caplog.at_level(logging.WARNING):
            heard = listen(ear, ear.build(torch.float32))
        places = ear.config.max_target_positions - 2
        assert heard.ended == decode.BUDGET and heard.ids == (many + block * 9)[:places]
        assert scripted[0].steps == places
        script(many[:300] + block * 9)
        heard = listen(ear, ear.build(torch.float32))
        assert heard.ended == decode.BUDGET and len(heard.ids) == places - 2 * 40
        script(many + block * 9)
        run(nodes.Transcribe, audio(speech(1.0)), NAME)
        assert "the model ran out of room; words may be missing there" in caplog.text


def listen(ear, network) -> decode.Heard:
    with torch.inference_mode():
        encoded = decode.encode(ear, network, speech(1.0, 16_000), torch.device("cpu"))
        return decode.decode(ear, network, encoded, decode.prompt_ids(ear, None), 0.0, lambda count: None)


class TestText:
    def test_control_ids_and_times_are_never_written(self, small):
        choice = decode._Choice(folder.open_folder(small), prompt=2)
        scores = torch.zeros(1, 51864)
        scores[0, [50257, 50362, 50363, 51863]] = torch.tensor([9.0, 8.0, 7.0, 6.0])
        scores[0, 318] = 1.0
        assert choice(torch.zeros(1, 2), scores).argmax() == 318
        assert choice(torch.zeros(1, 3), scores).isfinite().sum() == END + 1

    def test_silenced_ids(self, here, script):
        """Of the settings; the end cannot be silenced, except as the first."""
        (here / "generation_config.json").write_text(json.dumps(
            {"suppress_tokens": [END, *ids(" music")], "begin_suppress_tokens": [220, END], "max_length": 3}))
        script([END] * 9)
        assert len(run(nodes.Transcribe, audio(speech(1.0)), NAME)) == 1        # the first id that is allowed
        script([*ids(" music"), END])
        assert "music" not in run(nodes.Transcribe, audio(speech(1.0)), NAME)

    def test_windows_are_joined(self, here, script):
        """75 s are three windows, or four; silent ones are passed over."""
        wave = torch.cat((speech(25.0, 16_000), torch.zeros(40 * 16_000), speech(10.0, 16_000)))
        scripted = script([*ids(" Hello there."), END], [*ids(" How are\n you?"), END])
        assert run(nodes.Transcribe, audio(wave, 16_000), NAME) == "Hello there. How are you?"
        assert scripted[0].window == 1

    def test_a_language_without_blanks(self, here, script):
        wave = torch.cat((speech(25.0, 16_000), torch.zeros(16_000), speech(10.0, 16_000)))
        script([*ids("你好"), END], [*ids("再见"), END])
        assert run(nodes.Transcribe, audio(wave, 16_000), NAME) == "你好再见"

    def test_rows_are_lines(self, here, script):
        script([*ids(" One."), END], [*ids(" Two."), END], [*ids(" Three."), END])
        assert run(nodes.Transcribe, audio(torch.rand(3, 1, 8_000)), NAME) == "One.\nTwo.\nThree."

    def test_nothing_is_heard(self, here, monkeypatch):
        texts = iter((decode.Heard([318], decode.END), decode.Heard([], decode.END)))
        monkeypatch.setattr(decode, "decode", lambda *args: next(texts))
        with pytest.raises(ValueError, match=r"^Transcribe Speech: audio: no words are heard in row 2 \(0\.5 s\)\. "):
            run(nodes.Transcribe, audio(torch.rand(2, 1, 12_000)), NAME)

    def test_whoever_is_unsure_of_what_is_no_speech_says_nothing(self, small):
        """The published rule: likely nobody, and words that are guesses."""
        ear = folder.open_folder(small)
        network = ear.build(torch.float32)
        with torch.inference_mode():
            encoded = decode.encode(ear, network, speech(1.0, 16_000), torch.device("cpu"))
            for nobody, empty in ((0.61, True), (0.59, False)):
                heard = decode.decode(ear, network, encoded, decode.prompt_ids(ear, None), nobody, lambda count: None)
                assert (heard.ids == []) == empty

    def test_moonshine(self, two_roots, script):
        whisper.write_moonshine(two_roots[0] / "moon")
        scripted = script([3, 5, 2], [4, 6, 2])
        wave = torch.cat((speech(25.0, 16_000), torch.zeros(16_000), speech(10.0, 16_000)))
        assert run(nodes.Transcribe, audio(wave, 16_000), "moon", "en") == "yes tea no milk"
        assert run(nodes.Transcribe, audio(speech(0.1)), "moon") == "yes tea"
        script([3] * 9)
        assert run(nodes.Transcribe, audio(speech(0.1)), "moon") == "yes" and scripted[0].steps == 6
        with pytest.raises(ValueError, match="language: 'pl' cannot be asked of Moonshine .*choose auto"):
            run(nodes.Transcribe, audio(speech(0.1)), "moon", "pl")


class TestLanguage:
    @pytest.fixture
    def multilingual(self, here):
        (here / "generation_config.json").write_text(json.dumps({"is_multilingual": True}))
        return folder.open_folder(here)

    def test_english_alone(self, here, script):
        script([*ids(" Yes."), END])
        for language in ("auto", "en"):
            assert run(nodes.Transcribe, audio(speech(1.0)), NAME, language) == "Yes."
        with pytest.raises(ValueError, match="language: 'pl', but .* knows English alone; choose auto or en, or"):
            run(nodes.Transcribe, audio(speech(1.0)), NAME, "pl")
        with pytest.raises(ValueError, match="language: 'klingon' is not known; choose auto, or a code such as en"):
            run(nodes.Transcribe, audio(speech(1.0)), NAME, "klingon")
        assert decode.prompt_ids(folder.open_folder(here), "en") == [50257, 50362]

    def test_sizes_tell(self, here):
        """Without settings: a table of one id more is that of a multilingual one."""
        whisper.write_small(here, vocab_size=51865)
        assert folder.open_folder(here).multilingual
        whisper.write_small(here)
        assert not folder.open_folder(here).multilingual

    def test_prompts(self, multilingual):
        code = {token: multilingual.id(f"<|{token}|>") for token in ("pl", "transcribe", "notimestamps")}
        assert decode.prompt_ids(multilingual, "pl") == [50257, *code.values()]
        assert multilingual.tokenizer.token_to_id("<|yue|>") is None
        with pytest.raises(ValueError, match="does not know 'yue'; choose auto or another"):
            pipeline.check_language(multilingual, "yue")

    def test_the_likeliest(self, multilingual):
        probabilities = torch.zeros(51864)
        probabilities[[multilingual.id("<|de|>"), multilingual.id("<|pl|>"), 318]] = torch.tensor([0.2, 0.3, 0.5])
        assert decode.likeliest(multilingual, probabilities, pipeline.LANGUAGES) == "pl"

    def test_one_language_for_a_row(self, multilingual, script, monkeypatch):
        """Found in the first window, and not asked for again; the user's is never asked for."""
        prompts, looks = [], iter(["pl", "de", "fr"])
        original = decode.prompt_ids
        monkeypatch.setattr(decode, "likeliest", lambda *args: next(looks))
        monkeypatch.setattr(decode, "prompt_ids", lambda ear, code: prompts.append(code) or original(ear, code))
        script([*ids(" Tak."), END])
        wave = speech(40.0, 16_000).expand(2, 1, -1)
        run(nodes.Transcribe, audio(wave, 16_000), NAME)
        assert prompts == ["pl", "pl", "de", "de"]
        run(nodes.Transcribe, audio(wave[:1], 16_000), NAME, "en")
        assert prompts[4:] == ["en", "en"]


class TestSound:
    @pytest.mark.parametrize("kind, given", good_audio(0.5).items(), ids=good_audio(0.1))
    def test_every_wrapping(self, here, script, kind, given):
        script([*ids(" Yes."), END])
        assert run(nodes.Transcribe, given, NAME) == "Yes."

    @pytest.mark.parametrize("kind", BAD_AUDIO)
    def test_bad_sound(self, here, kind):
        make, text = BAD_AUDIO[kind]
        with pytest.raises(ValueError, match=text) as caught:
            run(nodes.Transcribe, make(), NAME)
        assert str(caught.value).startswith("Transcribe Speech: audio")

    @pytest.mark.parametrize("kind", UNSPEAKABLE)
    def test_sound_without_speech(self, here, kind):
        make, text = UNSPEAKABLE[kind]
        with pytest.raises(ValueError, match=f"Transcribe Speech: audio.*{text}"):
            run(nodes.Transcribe, make(), NAME)


class TestRuns:
    @pytest.mark.parametrize("at", [1, 2, 5])
    def test_cancel_before_any_id(self, here, script, monkeypatch, at):
        scripted, calls = script([*ids(" one two three four five"), END]), []

        def press():
            calls.append(1)
            if len(calls) == at:
                raise comfy.model_management.InterruptProcessingException

        with monkeypatch.context() as patch:
            patch.setattr(comfy.model_management, "throw_exception_if_processing_interrupted", press)
            with pytest.raises(comfy.model_management.InterruptProcessingException):
                run(nodes.Transcribe, audio(speech(1.0)), NAME)
        assert scripted[0].steps == at - 1
        assert run(nodes.Transcribe, audio(speech(1.0)), NAME) == "one two three four five"

    def test_the_bar_goes_up_to_its_end(self, small, script):
        script([*ids(" one two three four five"), END])
        ear, told = folder.open_folder(small), []
        clips = [pipeline.Clip(speech(seconds, 16_000), 16_000) for seconds in (40.0, 2.0)]
        with torch.inference_mode():
            pipeline.transcribe(ear, ear.build(torch.float32), clips, "auto", torch.device("cpu"),
                                lambda done, total: told.append((done, total)))
        assert {total for _, total in told} == {420} and told[0][0] == 0 and told[-1][0] == 420
        assert [done for done, _ in told] == sorted(done for done, _ in told)

    def test_nothing_stays_in_memory(self, here, monkeypatch):
        """ComfyUI holds patchers weakly; whoever held one of ours would keep weights through /free."""
        made, build = [], Ear.build

        def watched(ear, dtype):
            network = build(ear, dtype)
            made.append(weakref.ref(network))
            return network

        monkeypatch.setattr(Ear, "build", watched)
        for _ in range(2):
            run(nodes.Transcribe, audio(speech(0.5)), NAME)
        gc.collect()
        assert len(made) == 2 and [reference() for reference in made] == [None, None]
        assert not [entry for entry in comfy.model_management.current_loaded_models
                    if type(getattr(entry.model, "model", None)).__name__ == "SpeechToText"]

    def test_through_comfyui_s_memory_management(self, here, monkeypatch):
        loads, load = [], comfy.model_management.load_models_gpu

        def watched(models, **options):
            loads.append((type(models[0]).__mro__, options))
            return load(models, **options)

        monkeypatch.setattr(comfy.model_management, "load_models_gpu", watched)
        run(nodes.Transcribe, audio(speech(0.5)), NAME)
        (kinds, options), = loads
        assert comfy.model_patcher.ModelPatcher in kinds and options["force_full_load"] is True
        assert options["memory_required"] > 0

    def test_chance_has_no_part(self, here):
        state, source = torch.get_rng_state(), audio(speech(1.0))
        first = run(nodes.Transcribe, source, NAME)
        torch.rand(5)
        assert run(nodes.Transcribe, source, NAME) == first and first
        torch.set_rng_state(state)

    def test_unknown_device(self, here):
        with pytest.raises(ValueError, match="Transcribe Speech: device: 'tpu' is not known; choose auto or cpu"):
            run(nodes.Transcribe, audio(speech(0.5)), NAME, device="tpu")
        assert run(nodes.Transcribe, audio(speech(0.5)), NAME, device="cpu")

    def test_without_transformers(self, here, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(ImportError, match=r"^Transcribe Speech: transformers cannot make a Whisper \(.*\)\. "):
            run(nodes.Transcribe, audio(speech(0.5)), NAME)
        monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))     # an older one
        with pytest.raises(ImportError, match="cannot make a Whisper .*WhisperConfig.* or update it"):
            run(nodes.Transcribe, audio(speech(0.5)), NAME)
