"""OGG TTS as ComfyUI calls it: prompts, Block Diffusion Sampler, Encode and Decode Fish Codes."""
from __future__ import annotations

from dataclasses import replace

import comfy.model_management
import pytest
import torch
from safetensors.torch import save_file
from test_nodes import DEMO, run, speech

from kit.audio import BAD_AUDIO, audio, good_audio
from speechwright import loader, nodes
from speechwright.nodes.load import OGG_OPTION
from speechwright.omnifish import codec_demo, demo
from speechwright.wires import FISH_44K, S3_V2, Piece, SpeechTokens

FRAME_S = 2048 / 44100
TEXT = "Good morning to you."
WORDS = "He said so, and then he left the room."


@pytest.fixture(scope="module")
def ogg():
    return run(nodes.LoadModel, DEMO | {"demo": "OGG TTS"})


@pytest.fixture(scope="module")
def ada():
    return run(nodes.VoiceNode, audio(speech(2.0, seed=1)), WORDS, "Ada")


@pytest.fixture(scope="module")
def bo():
    return run(nodes.VoiceNode, audio(speech(1.5, seed=2)), "And she said no.", "Bo")


def encode(model, text: str = TEXT, *voices, **options):
    with torch.inference_mode():
        slots = {f"voice{number}": voice for number, voice in enumerate(voices)}
        return nodes.EncodePrompt.execute(model, text, slots, **options).args


def sample(model, prompt, seed: int = 0, **options):
    with torch.inference_mode():
        return nodes.BlockDiffusionSampler.execute(model, prompt, seed, **options).args


def codes(tokens) -> torch.Tensor:
    return tokens.batch[0][0].ids


class TestCodec:
    @pytest.mark.parametrize("kind, given", good_audio(0.5).items(), ids=good_audio(0.1))
    def test_there_and_back(self, ogg, kind, given):
        tokens = run(nodes.FishEncode, ogg, given)
        (piece,), = tokens.batch
        assert tokens.kind == FISH_44K and piece.ids.shape == (10, 11)
        found = run(nodes.FishDecode, ogg, tokens)
        assert found["sample_rate"] == 44100 and found["waveform"].shape == (1, 1, 11 * 2048)
        assert found["waveform"].isfinite().all() and found["waveform"].abs().max() <= 1

    @pytest.mark.parametrize("kind", BAD_AUDIO)
    def test_bad_sound(self, ogg, kind):
        make, text = BAD_AUDIO[kind]
        with pytest.raises(ValueError, match=text) as caught:
            run(nodes.FishEncode, ogg, make())
        assert str(caught.value).startswith("Encode Fish Codes: audio")

    def test_pauses_are_exact(self, ogg):
        ids = torch.zeros(10, 3, dtype=torch.int64)
        tokens = SpeechTokens(FISH_44K, 21.5, ((Piece(ids, 0.3, None, 0.2), Piece(ids, 0.1)),))
        wave = run(nodes.FishDecode, ogg, tokens)["waveform"][0, 0]
        assert len(wave) == 2 * 3 * 2048 + 8820 + 13230 + 4410
        assert not wave[:8820].any() and not wave[-4410:].any() and wave[8820 : 8820 + 6144].any()

    def test_other_tokens_and_models(self, ogg):
        tokens = SpeechTokens(S3_V2, 25.0, ((Piece(torch.zeros(1, 5, dtype=torch.int64)),),))
        with pytest.raises(ValueError, match="Decode Fish Codes: the tokens are s3-v2 codes; this model decodes fish"):
            run(nodes.FishDecode, ogg, tokens)
        s3gen = run(nodes.LoadModel, DEMO)
        with pytest.raises(ValueError, match="Encode Fish Codes: the model is S3Gen .* no Fish codec; connect a"):
            run(nodes.FishEncode, s3gen, audio(speech()))
        with pytest.raises(ValueError, match="S3 Tokenize: the model is OGG TTS .* which has no speech tokenizer"):
            run(nodes.S3Tokenize, ogg, audio(speech()))

    def test_ids_beyond_the_table(self, ogg):
        ids = torch.zeros(10, 3, dtype=torch.int64)
        ids[2, 1] = 4097
        with pytest.raises(ValueError, match=r"frame 1 of codebook 2 .* is 4097"):
            run(nodes.FishDecode, ogg, SpeechTokens(FISH_44K, 21.5, ((Piece(ids),),)))


class TestPrompt:
    def test_pieces_see_their_neighbours(self, ogg, ada):
        text = "One is here. Two is there. Three is gone."
        prompt, preview = encode(ogg, text, ada, split_limit=15, before="It was dark.", after="Nobody came.")
        assert preview == "1. Ada: One is here.\n2. Ada: Two is there.\n3. Ada: Three is gone."
        around = [(piece.content.before, piece.content.after) for piece in prompt.pieces]
        assert around == [(("It was dark.",), ("Two is there.",)), (("One is here.",), ("Three is gone.",)),
                          (("Two is there.",), ("Nobody came.",))]
        assert all(piece.content.prompt_text == WORDS and piece.content.prompt_codes.shape == (10, 44)
                   for piece in prompt.pieces)

    def test_without_a_voice(self, ogg):
        prompt, preview = encode(ogg, language="pl", speaker="pl_3", quality="q35")
        content = prompt.pieces[0].content
        assert (content.lang, content.speaker, content.quality, content.prompt_codes) == ("pl", "pl_3", "q35", None)
        assert preview == f"1. pl_3: {TEXT}"

    def test_a_scene_is_one_piece_up_to_a_pause(self, ogg, ada, bo):
        script = "Ada: Hi.\nBo: Hello.\nAda: Well. [pause:0.5s] Bye.\nBo: Bye."
        prompt, preview = encode(ogg, script, ada, bo)
        assert [(piece.text, piece.pause_s) for piece in prompt.pieces] == [
            ("Ada: Hi. Bo: Hello. Ada: Well.", 0.5), ("Ada: Bye. Bo: Bye.", 0)]
        assert preview.startswith("1. Ada: Hi. Bo: Hello.")
        for piece in prompt.pieces:
            assert [(name, words) for name, words, _ in piece.content.voices] == [("Ada", WORDS),
                                                                                 ("Bo", "And she said no.")]
        scene, _ = encode(ogg, "S1: Hi.\nS2: Hello.", mode="dialogue")
        assert scene.pieces[0].content.speaker == "dialogue" and scene.pieces[0].content.voices is None

    @pytest.mark.parametrize("changed, words", [
        ({"text": " "}, "text: empty"), ({"text": "[pause:1]"}, "nothing but pauses"),
        ({"method": "zero-shot"}, "method: 'zero-shot' is CosyVoice's"),
        ({"language": "zh"}, "language: 'zh' is not one of en, pl"),
        ({"instruction": "Softly."}, "instruction: OGG TTS follows none"), ({"mode": "x"}, "mode: 'x' is not one of"),
    ])
    def test_what_is_refused(self, ogg, changed, words):
        with pytest.raises(ValueError, match=words):
            encode(ogg, **{"text": TEXT, **changed})


class TestSampler:
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_contract(self, ada, precision):
        model = run(nodes.LoadModel, DEMO | {"demo": "OGG TTS"}, precision)
        tokens, report = sample(model, encode(model, TEXT, ada)[0])
        (piece,), = tokens.batch
        assert tokens.kind == FISH_44K and piece.ids.shape[0] == 10 and piece.voice is ada
        assert report.startswith(f"piece 1 of 1: {piece.ids.shape[1]} frames, ") and report.endswith(TEXT)
        wave = run(nodes.FishDecode, model, tokens)["waveform"]
        assert wave.shape[2] == 2048 * piece.ids.shape[1]

    def test_seed_is_the_only_source_of_chance(self, ogg, ada):
        prompt, state = encode(ogg, TEXT, ada)[0], torch.get_rng_state()
        first = codes(sample(ogg, prompt, 7)[0])
        torch.rand(3)
        assert torch.equal(first, codes(sample(ogg, prompt, 7)[0]))
        torch.set_rng_state(state)
        for seed in (0, 8, 2**63 + 7, 2**64 - 1):
            other = codes(sample(ogg, prompt, seed)[0])
            assert first.shape != other.shape or not torch.equal(first, other)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("changed", [
        {"steps": 2}, {"cfg": 0.0}, {"temperature": 0.0}, {"block": 8}, {"mtp_rounds": 1}, {"mtp_temperature": 1.0},
        {"full_context": False}, {"min_seconds": 6.0}, {"max_seconds": 0.7}])
    def test_options_reach_the_sampler(self, ogg, ada, changed):
        prompt = encode(ogg, TEXT, ada)[0]
        plain, other = (codes(sample(ogg, prompt, 1, **options)[0]) for options in ({}, changed))
        assert plain.shape != other.shape or not torch.equal(plain, other)

    def test_length_is_kept_within_bounds(self, ogg, ada):
        prompt = encode(ogg, TEXT, ada)[0]
        tokens, report = sample(ogg, prompt, 1, min_seconds=20, max_seconds=3.0)
        assert codes(tokens).shape[1] == 80 and "ended by its budget of frames" in report

    def test_going_on_from_codes(self, ogg, ada):
        prompt = encode(ogg, TEXT, ada, keep_whole=True)[0]
        whole = sample(ogg, prompt, 3, temperature=0.0, min_seconds=3)[0]
        begun = SpeechTokens(FISH_44K, 21.5, ((Piece(codes(whole)[:, :37]),),))
        again = sample(ogg, prompt, 3, temperature=0.0, min_seconds=3, continue_from=begun)[0]
        assert torch.equal(codes(again), codes(whole))
        two = encode(ogg, "One is here. Two is there.", ada, split_limit=15)[0]
        with pytest.raises(ValueError, match="continue_from: the prompt has 2 pieces"):
            sample(ogg, two, continue_from=begun)

    def test_cancel_within_a_step_leaves_nothing(self, ogg, ada, monkeypatch):
        prompt, calls = encode(ogg, TEXT, ada)[0], []
        expected = codes(sample(ogg, prompt)[0])

        def press():
            calls.append(1)
            if len(calls) == 4:
                raise comfy.model_management.InterruptProcessingException

        with monkeypatch.context() as patch:
            patch.setattr(comfy.model_management, "throw_exception_if_processing_interrupted", press)
            with pytest.raises(comfy.model_management.InterruptProcessingException):
                sample(ogg, prompt)
        assert len(calls) == 4 and torch.equal(codes(sample(ogg, prompt)[0]), expected)

    def test_models_of_other_families(self, ogg):
        other = run(nodes.LoadModel, DEMO | {"demo": "CosyVoice3"})
        with pytest.raises(ValueError, match="the prompt is for CosyVoice3; this model is OGG TTS"):
            sample(ogg, encode(other)[0])
        with pytest.raises(ValueError, match="Block Diffusion Sampler: the model is CosyVoice3 .* has no backbone"):
            sample(other, encode(ogg)[0])


class TestFiles:
    @pytest.fixture
    def folder(self, two_roots, monkeypatch):
        """The checkpoint among ComfyUI's diffusion models, the codec among its VAEs."""
        import folder_paths
        registered = dict(folder_paths.folder_names_and_paths)
        for key in ("diffusion_models", "vae"):
            registered[key] = ([str(two_roots[0].parent / key)], set())
            (two_roots[0].parent / key).mkdir()
        monkeypatch.setattr(folder_paths, "folder_names_and_paths", registered)
        save_file(demo.random_state(), two_roots[0].parent / "diffusion_models" / "my ogg.safetensors")
        save_file(codec_demo.DEMOS["Fish codec"](), two_roots[0].parent / "vae" / "drama3_codec.safetensors")
        return two_roots[0].parent

    GIVEN = {"family": OGG_OPTION, "checkpoint": "my ogg.safetensors", "codec": "drama3_codec.safetensors"}

    def test_found_where_users_have_them(self, folder):
        assert loader.ogg_choices()[0] == "my ogg.safetensors"
        assert loader.codec_choices()[0] == "drama3_codec.safetensors" and loader.codec_choices()[-1] == "none"
        model = run(nodes.LoadModel, self.GIVEN)
        assert run(nodes.FishEncode, model, audio(speech())).kind == FISH_44K
        before = nodes.LoadModel.fingerprint_inputs(self.GIVEN)
        (folder / "vae" / "drama3_codec.safetensors").touch()
        assert nodes.LoadModel.fingerprint_inputs(self.GIVEN) != before

    def test_missing_tokenizer_is_told_where_it_is_needed(self, folder):
        model = run(nodes.LoadModel, self.GIVEN)
        with pytest.raises(ValueError, match="whose text tokenizer is missing: tokenizer.json of k2-fsa/OmniVoice, in"):
            encode(model)

    def test_without_a_codec(self, folder):
        model = run(nodes.LoadModel, self.GIVEN | {"codec": "none"})
        with pytest.raises(ValueError, match="whose Fish codec is missing: a codec, chosen in Load Speech Model"):
            run(nodes.FishEncode, model, audio(speech()))

    def test_files_of_the_wrong_kind(self, folder, two_roots):
        with pytest.raises(ValueError, match="none fits .* It is the checkpoint of OGG TTS: choose that family"):
            (two_roots[0] / "my ogg.safetensors").symlink_to(folder / "diffusion_models" / "my ogg.safetensors")
            loader.load("my ogg.safetensors")
        with pytest.raises(FileNotFoundError, match="codec: 'x.pth' is in none of"):
            run(nodes.LoadModel, self.GIVEN | {"codec": "x.pth"})
        with pytest.raises(ValueError, match="content: 'half' is not one of full, semantic-only"):
            run(nodes.LoadModel, self.GIVEN | {"content": "half"})

    def test_semantic_only(self, folder, ogg, monkeypatch):
        """The user's own choice; speech of one codebook, which the codec decodes, and which the report names."""
        model = run(nodes.LoadModel, self.GIVEN | {"content": "semantic-only"})
        monkeypatch.setattr(model, "text_tokenizer", ogg.text_tokenizer)
        monkeypatch.setattr(model, "_opened", replace(model._opened, text_tokenizer=ogg.text_tokenizer))
        tokens, report = sample(model, encode(ogg)[0])
        assert codes(tokens).shape[0] == 1 and "semantic codes only" in report
        wave = run(nodes.FishDecode, model, tokens)["waveform"]
        assert wave.shape[2] == 2048 * codes(tokens).shape[1] and wave.isfinite().all()
