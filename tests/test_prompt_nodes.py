"""The way from text to tokens as ComfyUI calls it: Encode Speech Prompt and RAS Sampler."""
from __future__ import annotations

import logging
from dataclasses import replace

import comfy.model_management
import pytest
import torch
from test_nodes import DEMO, run, speech

from kit.audio import audio
from speechwright import nodes
from speechwright.audio import Clip
from speechwright.cosyvoice3.prompt import AUTO, CROSS_LINGUAL, INSTRUCT, INSTRUCT_AS_VOICE, METHODS, ZERO_SHOT
from speechwright.cosyvoice3.tokenizer import CONTROL
from speechwright.wires import S3_V2, S3_V3, SpeechPrompt, Voice

TEXT = "Good morning."
WORDS = "He said so, and then he left the room."


@pytest.fixture(scope="module")
def v2():
    return run(nodes.LoadModel, DEMO | {"demo": "CosyVoice2"})


@pytest.fixture(scope="module")
def v3():
    return run(nodes.LoadModel, DEMO | {"demo": "CosyVoice3"})


@pytest.fixture(scope="module")
def s3gen():
    return run(nodes.LoadModel, DEMO)


@pytest.fixture(scope="module")
def ogg():
    return run(nodes.LoadModel, DEMO | {"demo": "OGG TTS"})


@pytest.fixture(scope="module")
def voice():
    return run(nodes.VoiceNode, audio(speech(3.0, seed=1)), WORDS, "Ada")


@pytest.fixture(scope="module")
def bo():
    return run(nodes.VoiceNode, audio(speech(2.0, seed=2)), "And she said no.", "Bo")


def encode(model, text: str = TEXT, *voices, **options) -> tuple[SpeechPrompt, str]:
    with torch.inference_mode():
        slots = {f"voice{number}": voice for number, voice in enumerate(voices)}
        return nodes.EncodePrompt.execute(model, text, slots, **options).args


def sample(model, prompt, seed: int = 0, **options) -> tuple:
    with torch.inference_mode():
        return nodes.RASSampler.execute(model, prompt, seed, **options).args


class TestEncode:
    def test_as_the_voice(self, v3, voice):
        prompt, preview = encode(v3, "One is here. Two is there.", voice, split_limit=25)
        assert prompt.family == "CosyVoice3" and preview == (
            "1. Ada (zero-shot): One is here.\n2. Ada (zero-shot): Two is there.")
        for piece in prompt.pieces:
            assert piece.voice is voice and len(piece.content.speech_ids) == 75
            assert piece.content.prompt_text_ids.count(CONTROL.end_of_prompt) == 1

    @pytest.mark.parametrize("method, transcript, instruction, taken", [
        (AUTO, WORDS, "", ZERO_SHOT), (AUTO, "", "", CROSS_LINGUAL), (AUTO, WORDS, "Softly.", INSTRUCT),
        (AUTO, "", "Softly.", INSTRUCT), (ZERO_SHOT, WORDS, "Softly.", ZERO_SHOT),
        (CROSS_LINGUAL, WORDS, "Softly.", CROSS_LINGUAL), (INSTRUCT_AS_VOICE, WORDS, "Softly.", INSTRUCT_AS_VOICE),
    ])
    def test_what_auto_means(self, v3, method, transcript, instruction, taken):
        who = run(nodes.VoiceNode, audio(speech(3.0)), transcript, "Bo")
        prompt, preview = encode(v3, TEXT, who, method=method, instruction=instruction)
        assert preview == f"1. Bo ({taken}): {TEXT}"
        ids = prompt.pieces[0].content
        assert bool(ids.speech_ids) == (taken in (ZERO_SHOT, INSTRUCT_AS_VOICE))
        assert (*ids.prompt_text_ids, *ids.text_ids).count(CONTROL.end_of_prompt) == 1

    def test_without_a_voice(self, v3):
        for given in (None, {}, {"voice0": None}):
            prompt, preview = nodes.EncodePrompt.execute(v3, TEXT, given).args
            assert prompt.pieces[0].voice is None and preview == f"1. voice of the decoder (cross-lingual): {TEXT}"
        with pytest.raises(ValueError, match="voices: none is connected, and zero-shot goes on as one; connect a"):
            encode(v3, method=ZERO_SHOT)

    def test_second_model_reads_the_voice(self, v2, v3, s3gen, voice):
        prompt, _ = encode(v2, TEXT, voice, speech_tokenizer=s3gen)
        tokens = run(nodes.S3Tokenize, s3gen, audio(speech(3.0, seed=1)))
        assert prompt.pieces[0].content.speech_ids == tuple(tokens.batch[0][0].ids[0].tolist())
        with pytest.raises(ValueError, match="Encode Speech Prompt: the model is CosyVoice2 .* whose speech tokenizer "
                                             r"is missing: speech_tokenizer_v2.onnx \(.*campplus.onnx.* not there"):
            encode(v2, TEXT, voice)
        with pytest.raises(ValueError, match="S3Gen .* reads s3-v2 tokens, and s3-v3 are needed; connect CosyVoice3"):
            encode(v3, TEXT, voice, speech_tokenizer=s3gen)

    def test_voice_is_read_once_whatever_the_text(self, v3, voice, monkeypatch):
        model, reads = run(nodes.LoadModel, DEMO | {"demo": "CosyVoice3"}), []
        original = model._opened.reader
        monkeypatch.setattr(model, "_opened", replace(model._opened, reader=replace(
            original, read=lambda *args: reads.append(1) or original.read(*args))))
        first, other = encode(model, "One.", voice)[0], encode(model, "Two.", voice)[0]
        assert reads == [1] and first.pieces[0].content.speech_ids == other.pieces[0].content.speech_ids

    def test_what_cannot_be_spoken(self, v3, s3gen, voice):
        for text, words in (("", "text: empty"), (" \n", "text: empty"), ("?!", "nothing in .* can be spoken"),
                            ("[pause:1]", "text: nothing but pauses")):
            with pytest.raises(ValueError, match=words):
                encode(v3, text, voice)
        with pytest.raises(ValueError, match="instruction: empty"):
            encode(v3, TEXT, voice, method=INSTRUCT)
        with pytest.raises(ValueError, match=f"method: 'sft' is not one of {METHODS[0]}, "):
            encode(v3, TEXT, voice, method="sft")
        with pytest.raises(ValueError, match="the model is S3Gen .* no text tokenizer; connect a model of CosyVoice"):
            encode(s3gen, TEXT, voice)

    def test_words_of_the_recording(self, v3):
        """Cutting a long recording and not its transcript makes the model say the rest of it."""
        mute = run(nodes.VoiceNode, audio(speech(1.0)), "", "Bo")
        with pytest.raises(ValueError, match="voices: 'Bo' has no transcript, and zero-shot needs the words"):
            encode(v3, TEXT, mute, method=ZERO_SHOT)
        long = Voice(Clip(speech(31.0), 24000), WORDS, "Bo")
        with pytest.raises(ValueError, match="voices: 'Bo' is 31.0 s long, and zero-shot takes at most 30 s"):
            encode(v3, TEXT, long)
        assert encode(v3, TEXT, long, method=CROSS_LINGUAL)[0].pieces[0].voice is long

    def test_voice_without_transcript_is_told(self, v3, caplog):
        caplog.set_level(logging.WARNING)
        encode(v3, TEXT, run(nodes.VoiceNode, audio(speech(1.0)), "", "Bo"))
        assert "The voice 'Bo' has no transcript" in caplog.text

    def test_pieces(self, v3):
        text = "One two three. " * 20
        split, whole = encode(v3, text)[0], encode(v3, text, keep_whole=True)[0]
        assert len(whole.pieces) == 1 < len(split.pieces)
        assert " ".join(piece.text for piece in split.pieces) == whole.pieces[0].text == text.strip()


class TestInputs:
    """What comes over ComfyUI's interface may lack anything, or have nothing in it."""

    OPTIONAL = ("voices", "speech_tokenizer", "mode", "method", "instruction", "split_limit", "keep_whole", "language",
                "before", "after", "speaker", "quality")

    @pytest.mark.parametrize("absent", [*((name,) for name in OPTIONAL), OPTIONAL])
    def test_nothing_in_it_is_as_if_it_were_not_there(self, v3, absent):
        plain, preview = nodes.EncodePrompt.execute(v3, TEXT).args
        prompt, told = nodes.EncodePrompt.execute(v3, TEXT, **dict.fromkeys(absent)).args
        assert [piece.content for piece in prompt.pieces] == [piece.content for piece in plain.pieces]
        assert told == preview == f"1. voice of the decoder (cross-lingual): {TEXT}"

    def test_null_over_the_interface(self, v3):
        """ComfyUI makes the text None of a null."""
        nothing = dict.fromkeys(("instruction", "before", "after", "speaker", "quality"), "None")
        assert encode(v3, **nothing)[0].pieces[0].content == encode(v3)[0].pieces[0].content
        for nothing in (None, "None"):
            with pytest.raises(ValueError, match="^Encode Speech Prompt: text: expected text, got nothing, or None, "):
                encode(v3, nothing)
        assert encode(v3, "None.")[0].pieces[0].text == "None."

    @pytest.mark.parametrize("more, expected", [
        ({"voices.voice1": ["3", 0], "voices.voice0": ["4", 0]},
         "1. Bo (cross-lingual): Yes.\n2. Ada (cross-lingual): No."),
        ({"instruction": None, "before": None, "speaker": None}, "voices: none is connected, and a dialogue has some"),
        ({"voices.voice0": ["3", 0], "voices.voice8": ["4", 0]}, "voices.voice8 is no input of it; connect at most 8"),
    ])
    def test_over_the_interface(self, comfy, more, expected):
        """A ninth voice was a TypeError about keywords."""
        def voice(name: str) -> dict:
            return {"class_type": "SpeechwrightVoice", "inputs": {"audio": ["2", 0], "transcript": "", "name": name}}

        found = comfy.queue({
            "1": {"class_type": "SpeechwrightLoadModel", "inputs": {
                "family": "Demo", "family.demo": "CosyVoice3", "precision": "auto", "device": "auto"}},
            "2": {"class_type": "LoadAudio", "inputs": {"audio": "ada.flac"}}, "3": voice("Ada"), "4": voice("Bo"),
            "5": {"class_type": "SpeechwrightEncodePrompt", "inputs": {
                "model": ["1", 0], "text": "S1: Yes.\nS2: No.", **more}},
            "6": {"class_type": "PreviewAny", "inputs": {"source": ["5", 1]}}})
        told = [output["text"][0] for output in found.history["outputs"].values() if "text" in output]
        errors = [data["exception_message"] for data in found.of("execution_error")]
        assert any(expected in text for text in (*told, *errors)), (told, errors)

    def test_voices_by_slot(self, v3, voice, bo):
        text = "S1: One.\nS2: Two."
        slots = {"voice2": voice, "voice3": None, "voice7": bo}
        prompt, _ = nodes.EncodePrompt.execute(v3, text, slots).args
        assert [piece.voice for piece in prompt.pieces] == [voice, bo]

    def test_a_ninth_voice(self, v3, voice):
        with pytest.raises(ValueError, match="Encode Speech Prompt: voices.voice8 is no input of it; connect at most 8 "
                                             "voices, as voices.voice0 to voices.voice7"):
            nodes.EncodePrompt.execute(v3, TEXT, {"voice0": voice}, **{"voices.voice8": voice})

    def test_what_cosyvoice_does_not_use_is_told(self, v3, caplog):
        caplog.set_level(logging.WARNING)
        encode(v3, before="It was dark.", quality="q35")
        encode(v3, speaker="pl_3")
        encode(v3, before=" \n")
        assert caplog.messages == ["CosyVoice does not use before and quality, which are inputs of OGG TTS.",
                                   "CosyVoice does not use speaker, which is an input of OGG TTS."]


class TestOgg:
    def test_preview(self, ogg, voice, bo):
        text = "[pause:1s] One is here. Two is there. [pause:0.5s] Three."
        assert encode(ogg, text, voice, split_limit=15)[1].splitlines() == [
            "1. Ada: [pause:1s] One is here.", "2. Ada: Two is there. [pause:0.5s]", "3. Ada: Three."]
        assert encode(ogg, "[pause:1s] Ada: One.\nBo: Two. [pause:0.5s] Three.", voice, bo)[1].splitlines() == [
            "1. [pause:1s] Ada: One. Bo: Two. [pause:0.5s]", "2. Bo: Three."]

    def test_a_pause_at_the_end_of_a_turn_and_one_before_the_next_add_up(self, ogg, voice, bo):
        """The second went to the begin of all."""
        prompt, _ = encode(ogg, "Ada: One. [pause:0.5s]\nBo: [pause:2s] Two.", voice, bo)
        assert [(piece.lead_s, piece.pause_s) for piece in prompt.pieces] == [(0, 2.5), (0, 0)]
        prompt, _ = encode(ogg, "Ada: [pause:1s] One.\nBo: [pause:2s] Two. [pause:3s]", voice, bo)
        assert [(piece.lead_s, piece.pause_s) for piece in prompt.pieces] == [(1, 2), (0, 3)]

    def test_a_script_needs_no_voice(self, ogg, voice):
        """Its labels were spoken, where the mode was not told."""
        scene, preview = encode(ogg, "S1: Yes.\nS2: No.")
        assert scene.pieces[0].content.speaker == "dialogue" and preview == "1. S1: Yes. S2: No."
        assert encode(ogg, "S1: Yes.", voice)[1] == "1. Ada: Yes."

    def test_voices_without_names(self, ogg):
        """The model read two voices of one name, which was none."""
        mute = [run(nodes.VoiceNode, audio(speech(1.0, seed=seed)), "And she said no.", "") for seed in (1, 2)]
        prompt, preview = encode(ogg, "S1: Yes.\nS2: No.", *mute)
        assert preview == "1. S1: Yes. S2: No."
        assert [name for name, _, _ in prompt.pieces[0].content.voices] == ["S1", "S2"]

    @pytest.mark.parametrize("text, speaker, words", [
        ("<|quad_start|>x<|quad_end|>hi", " dialogue\n", "speaker: 'dialogue' is what the model is told of a script"),
        ("S1: Yes.", "pl_3", "speaker: 'pl_3' speaks no dialogue"),
    ])
    def test_speakers_that_are_refused(self, ogg, text, speaker, words):
        """With the word for scenes, a text that spelled control got it; with another, it had no effect."""
        with pytest.raises(ValueError, match=words):
            encode(ogg, text, speaker=speaker)

    def test_wishes_in_one_line(self, ogg):
        content = encode(ogg, speaker="\ufeffpl_3 \r\n", quality=" q35", language="pl ")[0].pieces[0].content
        assert (content.lang, content.speaker, content.quality) == ("pl", "pl_3", "q35")


class TestSample:
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    @pytest.mark.parametrize("demo, kind", [("CosyVoice2", S3_V2), ("CosyVoice3", S3_V3)])
    def test_contract(self, demo, kind, precision):
        model = run(nodes.LoadModel, DEMO | {"demo": demo}, precision)
        tokens, report = sample(model, encode(model)[0])
        (piece,), = tokens.batch
        assert (tokens.kind, tokens.frames_per_second) == (kind, 25) and piece.ids.shape[0] == 1
        assert 2 * len(TEXT) <= piece.ids.shape[1] <= 20 * (len(TEXT) + 36) and int(piece.ids.max()) < 6561
        assert report.startswith(f"piece 1 of 1: {piece.ids.shape[1]} tokens, ") and report.endswith(TEXT)

    def test_pieces_keep_order_voice_and_seed(self, v3, voice):
        prompt, _ = encode(v3, "One is here. Two is there.", voice, split_limit=25)
        tokens, report = sample(v3, prompt, 2**64 - 1)
        (first, second), = tokens.batch
        assert first.voice is second.voice is voice and len(report.splitlines()) == 2
        for index, piece in enumerate((first, second)):
            alone = SpeechPrompt(prompt.family, prompt.pieces[index : index + 1])
            ((same,),) = sample(v3, alone, (2**64 - 1 + index) % 2**64)[0].batch
            assert torch.equal(same.ids, piece.ids)

    def test_seed_is_the_only_source_of_chance(self, v3):
        prompt, state = encode(v3)[0], torch.get_rng_state()
        first = sample(v3, prompt, 7)[0].batch[0][0].ids
        torch.rand(3)
        assert torch.equal(first, sample(v3, prompt, 7)[0].batch[0][0].ids)
        torch.set_rng_state(state)
        for seed in (0, 8, 2**32 + 7, 2**63 + 7, 2**64 - 1):
            other = sample(v3, prompt, seed)[0].batch[0][0].ids
            assert first.shape != other.shape or not torch.equal(first, other)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("changed", [
        {"temperature": 0.5}, {"top_p": 0.3}, {"top_k": 2}, {"window": 0}, {"tau": 0.0}, {"max_ratio": 2.0},
        {"min_ratio": 8.0}])
    def test_options_reach_the_sampler(self, v3, changed):
        prompt = encode(v3)[0]
        plain, other = (sample(v3, prompt, 1, **options)[0].batch[0][0].ids for options in ({}, changed))
        assert plain.shape != other.shape or not torch.equal(plain, other)

    def test_cancel_at_any_token_leaves_nothing(self, v3, monkeypatch):
        prompt, calls = encode(v3)[0], []
        expected = sample(v3, prompt)[0].batch[0][0].ids

        def press():
            calls.append(1)
            if len(calls) == 7:
                raise comfy.model_management.InterruptProcessingException

        with monkeypatch.context() as patch:
            patch.setattr(comfy.model_management, "throw_exception_if_processing_interrupted", press)
            with pytest.raises(comfy.model_management.InterruptProcessingException):
                sample(v3, prompt)
        assert len(calls) == 7
        assert torch.equal(sample(v3, prompt)[0].batch[0][0].ids, expected)

    def test_prompt_for_another_model(self, v2, v3, s3gen):
        prompt = encode(v2)[0]
        with pytest.raises(ValueError, match="RAS Sampler: the prompt is for CosyVoice2; this model is CosyVoice3"):
            sample(v3, prompt)
        with pytest.raises(ValueError, match="RAS Sampler: the model is S3Gen .* no language model"):
            sample(s3gen, prompt)

    def test_impossible_option(self, v3):
        with pytest.raises(ValueError, match="min_ratio: 30.0 is not possible; give 0 to max_ratio, which is 20"):
            sample(v3, encode(v3)[0], min_ratio=30.0)

    def test_tokens_of_the_other_version(self, v3, s3gen, voice):
        tokens = sample(v3, encode(v3)[0])[0]
        with pytest.raises(ValueError, match="S3Token2Wav: the tokens are s3-v3 codes; this model decodes s3-v2"):
            run(nodes.S3Token2Wav, s3gen, tokens, 0, voice)


class TestDialogue:
    @pytest.mark.parametrize("script", [
        "Ada: Hello there.\nBo: Hello.\nAda: Bye.", "[Ada] Hello there.\n[Bo] Hello.\n\n[Ada] Bye.",
        "S1: Hello there.\nS2: Hello.\nS1: Bye.", "\ufeffada: Hello there.\r\nBO: Hello.\r\nADA: Bye.\r\n"])
    @pytest.mark.parametrize("mode", ["auto", "dialogue"])
    def test_each_turn_in_its_own_voice(self, v3, voice, bo, script, mode):
        prompt, preview = encode(v3, script, voice, bo, mode=mode)
        assert [piece.voice for piece in prompt.pieces] == [voice, bo, voice]
        assert preview.splitlines() == [
            "1. Ada (zero-shot): Hello there.", "2. Bo (zero-shot): Hello.", "3. Ada (zero-shot): Bye."]
        assert [len(piece.content.speech_ids) for piece in prompt.pieces] == [75, 50, 75]
        tokens, _ = sample(v3, prompt)
        assert [piece.voice for piece in tokens.batch[0]] == [voice, bo, voice]

    def test_pauses_add_up(self, v3, voice, bo):
        script = ("[pause:1]Ada: [pause:300ms] One. [pause:0.5s] Two.\n"
                  "Bo: [pause:200ms][pause:50ms] Three.[pause:2s]")
        prompt, _ = encode(v3, script, voice, bo, mode="dialogue")
        assert [(piece.text, piece.lead_s, piece.pause_s) for piece in prompt.pieces] == [
            ("One.", 1.3, 0.5), ("Two.", 0, 0), ("Three.", 0.25, 2.0)]
        assert [(piece.lead_s, piece.pause_s) for piece in sample(v3, prompt)[0].batch[0]] == [
            (1.3, 0.5), (0, 0), (0.25, 2.0)]

    def test_preview_tells_of_pauses(self, v3, voice, bo):
        script = "Ada: [pause:1300ms] One. Two. [pause:0.5s] Three.\nBo: [pause:0.25s] Four."
        assert encode(v3, script, voice, bo, split_limit=6)[1].splitlines() == [
            "1. Ada (zero-shot): [pause:1.3s] One.", "2. Ada (zero-shot): Two. [pause:0.5s]",
            "3. Ada (zero-shot): Three.", "4. Bo (zero-shot): [pause:0.25s] Four."]
        assert encode(v3, "One. [pause:2]")[1] == "1. voice of the decoder (cross-lingual): One. [pause:2s]"

    def test_what_is_amiss_with_a_voice_is_told_once(self, v3, caplog):
        """A long script was a page of the same warning."""
        caplog.set_level(logging.WARNING)
        far = run(nodes.VoiceNode, audio(speech(3.0)), WORDS * 9, "Ada")
        mute = run(nodes.VoiceNode, audio(speech(1.0)), "", "Bo")
        encode(v3, "Ada: One. [pause:1s] Two.\nBo: Three.\n" * 3, far, mute)
        assert [text[:24] for text in caplog.messages] == ["The voice's recording ha", "The voice 'Bo' has no tr"]

    def test_a_name_is_spoken_where_there_is_no_dialogue(self, v3, voice):
        assert encode(v3, "Note: Ada is here.", voice)[0].pieces[0].text == "Note: Ada is here."
        assert encode(v3, "Ada: I am here.", voice)[0].pieces[0].text == "I am here."
        assert encode(v3, "Ada: I am here.", voice, mode="speech")[0].pieces[0].text == "Ada: I am here."
        assert encode(v3, "S1: It is here.", voice, mode="speech")[0].pieces[0].text == "S1: It is here."
        assert encode(v3, "S3: It is here.", voice)[0].pieces[0].text == "S3: It is here."

    @pytest.mark.parametrize("text", ["S1: It is here.", "[s1] It is here.", "\n S1： It is here."])
    def test_one_voice_is_s1(self, v3, voice, text):
        """Of a script for one voice, the label was spoken too."""
        prompt, preview = encode(v3, text, voice)
        assert prompt.pieces[0].voice is voice and preview == "1. Ada (zero-shot): It is here."

    def test_voices_without_names_are_told_by_number(self, v3):
        mute = [run(nodes.VoiceNode, audio(speech(1.0, seed=seed)), "And she said no.", "") for seed in (1, 2)]
        prompt, preview = encode(v3, "S1: Yes.\nS2: No.\nS1: Oh.", *mute)
        assert [piece.voice for piece in prompt.pieces] == [mute[0], mute[1], mute[0]]
        assert preview.splitlines() == ["1. S1 (zero-shot): Yes.", "2. S2 (zero-shot): No.", "3. S1 (zero-shot): Oh."]
        assert encode(v3, "Yes.", mute[0])[1] == "1. S1 (zero-shot): Yes."

    @pytest.mark.parametrize("text, count, mode, words", [
        ("Hello.", 2, "auto", "voices: 2 are connected, and the text names none of them .* write 'Ada: ...'"),
        ("Ada: Hi.\nBo: Hi.", 2, "speech", "voices: 2 are connected"),
        ("Ada: Hi.\nCid: Hi.\nCid: Bye.", 2, "auto", "no connected voice is called 'Cid'"),
        ("Ada: Hi.\nS3: Hi.", 2, "auto", "text: line 2 is for S3, and 2 voices are connected: Ada, Bo. Connect"),
        ("Hello.\nAda: Hi.", 2, "auto", "before the first name"),
        ("S1: Hi.", 0, "dialogue", "voices: none is connected, and a dialogue has some"),
        ("Ada: Hi.", 1, "scene", "mode: 'scene' is not one of auto, speech, dialogue"),
        ("Hi. [pause:]", 1, "auto", r"\[pause:\]' in line 1 is not a pause of 0 to 600 s"),
    ])
    def test_what_is_refused(self, v3, voice, bo, text, count, mode, words):
        with pytest.raises(ValueError, match=words):
            encode(v3, text, *(voice, bo)[:count], mode=mode)
