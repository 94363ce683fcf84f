"""Every node as ComfyUI calls it: schemas, the output contract, odd and bad input, seeds, cancelling."""
from __future__ import annotations

import asyncio
import gc
import inspect
from dataclasses import replace

import comfy.model_management
import numpy as np
import pytest
import torch
from comfy_api.latest import io

from kit.audio import BAD_AUDIO, UNSPEAKABLE, audio, good_audio, tone
from speechwright import files, loader, nodes
from speechwright.nodes.load import DEMO_OPTION, S3GEN_OPTION
from speechwright.wires import FISH_44K, S3_V2, Piece, SpeechTokens
from speechwright.workflows.runner.client import Refused

NODES = asyncio.run(asyncio.run(nodes.comfy_entrypoint()).get_node_list())
DEMO = {"family": DEMO_OPTION, "demo": "S3Gen"}


def run(node, *args, **kwargs):
    """The first output of a node, run in inference mode as ComfyUI does."""
    with torch.inference_mode():
        return node.execute(*args, **kwargs)[0]


@pytest.fixture(scope="module")
def model():
    return run(nodes.LoadModel, DEMO)


@pytest.fixture(scope="module")
def voice():
    return run(nodes.VoiceNode, audio(speech(1.2, seed=1)))


def speech(seconds: float = 0.8, rate_hz: int = 24_000, seed: int = 0) -> torch.Tensor:
    """(T,) a tone with noise, so that spectra are not empty."""
    rng = torch.Generator().manual_seed(seed)
    return tone(150 + 50 * seed, seconds, rate_hz, 0.3) + 0.02 * torch.randn(round(seconds * rate_hz), generator=rng)


def convert(model, source, voice, seed=0, **options) -> dict:
    return run(nodes.S3Token2Wav, model, run(nodes.S3Tokenize, model, source), seed, voice, **options)


def assert_audio(found: dict, seconds: float, rows: int = 1) -> None:
    assert type(found) is dict and found.keys() == {"waveform", "sample_rate"}
    wave = found["waveform"]
    assert wave.dtype == torch.float32 and wave.device.type == "cpu" and wave.is_contiguous()
    assert wave.shape[:2] == (rows, 1) and wave.isfinite().all() and wave.abs().max() <= 1
    assert type(found["sample_rate"]) is int
    assert abs(wave.shape[2] / found["sample_rate"] - seconds) <= 0.04


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.__name__)
class TestSchemas:
    def test_schema_is_complete(self, node):
        schema = node.GET_SCHEMA()
        assert schema.node_id.startswith("Speechwright") and schema.category == "audio/speech"
        assert schema.description and schema.display_name and len(schema.search_aliases) >= 3
        inputs = [nested for given in schema.inputs for nested in given.get_all()]
        assert all(given.tooltip for given in inputs)
        assert all(out.tooltip and out.display_name for out in schema.outputs)
        for given in inputs:
            if isinstance(given, io.Int.Input) and given.id == "seed":
                assert (given.min, given.max, given.control_after_generate) == (0, 2**64 - 1, True)

    def test_optional_inputs_have_the_schema_s_defaults(self, node):
        """A workflow saved before an input existed runs without it, and means the same."""
        parameters = inspect.signature(node.execute).parameters
        for given in node.GET_SCHEMA().inputs:
            if not given.optional and not isinstance(given, io.DynamicCombo.Input):
                assert parameters[given.id].default is inspect.Parameter.empty
                continue
            assert parameters[given.id].default == getattr(given, "default", None), given.id

    def test_only_what_reads_files_has_a_fingerprint(self, node):
        """Pure nodes need none, and a wrong one means stale audio or needless work."""
        own = "fingerprint_inputs" in vars(node)
        assert own == (node in (nodes.LoadModel, nodes.VoiceLibrary, nodes.Transcribe))
        assert not {"validate_inputs", "IS_CHANGED", "VALIDATE_INPUTS"} & vars(node).keys()


def test_loader_s_fingerprint(tmp_path):
    assert nodes.LoadModel.fingerprint_inputs(DEMO) == nodes.LoadModel.fingerprint_inputs(DEMO, "auto", "auto")
    given = {"family": S3GEN_OPTION, "checkpoint": "nowhere.safetensors"}
    assert nodes.LoadModel.fingerprint_inputs(given) == nodes.LoadModel.fingerprint_inputs(given, None, None)
    assert nodes.LoadModel.fingerprint_inputs(given) == nodes.LoadModel.fingerprint_inputs(given, download=True)


class TestDownload:
    GIVEN = {"family": S3GEN_OPTION, "checkpoint": next(iter(loader.published_checkpoints()))}

    @pytest.fixture
    def fetched(self, monkeypatch) -> list:
        """What was to be fetched; the download reports once and then fails."""
        calls = []

        def fetch(published, target, on_progress):
            calls.append(published)
            on_progress(1, 2)
            raise OSError("as far as it goes")

        monkeypatch.setattr(files.hub, "fetch", fetch)
        return calls

    def test_off_and_last(self, fetched):
        last = nodes.LoadModel.GET_SCHEMA().inputs[-1]
        assert (last.id, last.default, last.optional, last.advanced) == ("download", False, True, True)
        with pytest.raises(FileNotFoundError, match="switch `download` on"):
            run(nodes.LoadModel, self.GIVEN)
        assert fetched == []

    def test_on(self, fetched):
        with pytest.raises(OSError, match="as far as it goes"):
            run(nodes.LoadModel, self.GIVEN, download=True)
        assert fetched == [loader.published_checkpoints()[self.GIVEN["checkpoint"]]]

    def test_cancel(self, fetched, monkeypatch):
        def press():
            raise comfy.model_management.InterruptProcessingException

        monkeypatch.setattr(comfy.model_management, "throw_exception_if_processing_interrupted", press)
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            run(nodes.LoadModel, self.GIVEN, download=True)


class TestConversion:
    @pytest.mark.parametrize("demo", ["S3Gen", "S3Gen meanflow"])
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_contract(self, voice, demo, precision):
        model = run(nodes.LoadModel, DEMO | {"demo": demo}, precision)
        found = convert(model, audio(speech(2.03)), voice)
        assert_audio(found, 2.03)
        again = convert(model, found, run(nodes.VoiceNode, found))
        assert_audio(again, 2.04)

    @pytest.mark.parametrize("kind, given", good_audio(0.5).items(), ids=good_audio(0.1))
    def test_every_wrapping_of_sound(self, model, voice, kind, given):
        assert_audio(convert(model, given, voice), 0.5)
        assert_audio(convert(model, audio(speech(0.2)), run(nodes.VoiceNode, given)), 0.2)

    @pytest.mark.parametrize("kind", BAD_AUDIO)
    @pytest.mark.parametrize("role", ["S3 Tokenize: audio", "Voice: audio"])
    def test_bad_sound(self, model, kind, role):
        make, text = BAD_AUDIO[kind]
        with pytest.raises(ValueError, match=text) as caught:
            run(nodes.S3Tokenize, model, make()) if role.startswith("S3") else run(nodes.VoiceNode, make())
        assert str(caught.value).startswith(role)

    @pytest.mark.parametrize("kind", UNSPEAKABLE)
    def test_sound_without_speech(self, model, kind):
        make, text = UNSPEAKABLE[kind]
        with pytest.raises(ValueError, match=f"Voice: audio.*{text}"):
            run(nodes.VoiceNode, make())
        with pytest.raises(ValueError, match=f"S3 Tokenize: audio.*{text}"):
            run(nodes.S3Tokenize, model, make())

    def test_batch_is_its_rows(self, model, voice):
        """Row i is what it would be alone with seed + i; taking the first row in silence is a fault."""
        rows = [speech(0.6, seed=n) for n in range(3)]
        together = convert(model, audio(torch.stack(rows)[:, None]), voice, seed=2**64 - 2)
        assert_audio(together, 0.6, rows=3)
        for index, row in enumerate(rows):
            alone = convert(model, audio(row), voice, seed=2**64 - 2 + index)
            assert torch.equal(together["waveform"][index : index + 1], alone["waveform"])

    def test_batch_is_no_voice(self):
        with pytest.raises(ValueError, match="Voice: audio: the audio is a batch of 3 recordings"):
            run(nodes.VoiceNode, audio(torch.rand(3, 1, 24_000)))

    def test_stereo_is_mixed_not_doubled(self, model, voice):
        left, right = speech(0.5), speech(0.5, seed=1)
        stereo = convert(model, audio(torch.stack((left, right))), voice)
        mono = convert(model, audio((left + right) / 2), voice)
        assert torch.equal(stereo["waveform"], mono["waveform"])

    def test_a_b_a(self, model, voice):
        """A model that remembers the last voice gives the second run something of the first."""
        other, source = run(nodes.VoiceNode, audio(speech(0.9, seed=3))), audio(speech())
        first, between, second = (convert(model, source, who)["waveform"] for who in (voice, other, voice))
        assert torch.equal(first, second) and not torch.equal(first, between)
        fresh = convert(run(nodes.LoadModel, DEMO), source, voice)["waveform"]
        assert torch.equal(fresh, first)

    def test_tokens_may_carry_the_voice(self, model, voice):
        tokens = run(nodes.S3Tokenize, model, audio(speech()))
        batch = tuple(tuple(replace(piece, voice=voice) for piece in row) for row in tokens.batch)
        carried = replace(tokens, batch=batch)
        assert torch.equal(run(nodes.S3Token2Wav, model, carried, 0)["waveform"],
                           run(nodes.S3Token2Wav, model, tokens, 0, voice)["waveform"])
        with pytest.raises(ValueError, match="S3Token2Wav: voice: nothing is connected.*connect a Voice"):
            run(nodes.S3Token2Wav, model, tokens, 0)

    def test_tokens_of_another_kind(self, model, voice):
        fish = SpeechTokens(FISH_44K, 21.5, ((Piece(torch.zeros(10, 5, dtype=torch.int64)),),))
        with pytest.raises(ValueError, match="S3Token2Wav: the tokens are fish-44k codes; this model decodes s3-v2"):
            run(nodes.S3Token2Wav, model, fish, 0, voice)

    @pytest.mark.parametrize("token", [6561, 6562, 2**40])
    def test_ids_beyond_the_table(self, model, voice, token):
        tokens = SpeechTokens(S3_V2, 25.0, ((Piece(torch.tensor([[1, token]])),),))
        with pytest.raises(ValueError, match=f"id {token} at position 1"):
            run(nodes.S3Token2Wav, model, tokens, 0, voice)

    def test_options_change_the_result(self, model, voice):
        source = audio(speech())
        default = convert(model, source, voice)["waveform"]
        assert torch.equal(default, convert(model, source, voice, steps=10, cfg=0.7)["waveform"])
        for options in ({"steps": 3}, {"cfg": 0.0}, {"cfg": 2.0}):
            assert not torch.equal(default, convert(model, source, voice, **options)["waveform"]), options


    def test_joint_fade_reaches_the_joint(self, model, voice):
        ids = torch.randint(0, 6561, (2, 1, 8), generator=torch.Generator().manual_seed(0))
        tokens = SpeechTokens(S3_V2, 25.0, (tuple(Piece(row) for row in ids),))
        hard, soft = (run(nodes.S3Token2Wav, model, tokens, 0, voice, joint_fade=ms)["waveform"] for ms in (0.0, 40.0))
        assert hard.shape == soft.shape and not torch.equal(hard, soft)

    def test_model_of_another_family(self, voice):
        model = run(nodes.LoadModel, DEMO | {"demo": "CosyVoice2"})
        with pytest.raises(ValueError, match="S3 Tokenize: the model is CosyVoice2 .* speech tokenizer is missing"):
            run(nodes.S3Tokenize, model, audio(speech()))


@pytest.mark.parametrize(("option", "given"), [
    ("CosyVoice", {"folder": "nowhere"}), ("OGG TTS", {"checkpoint": "nowhere.safetensors", "codec": "none"})])
def test_what_a_family_has_a_default_for_may_be_left_out_over_the_interface(comfy, option, given):
    """It passes validation, and only what is chosen is missing."""
    graph = {"1": {"class_type": "SpeechwrightLoadModel", "inputs": {
        "family": option, **{f"family.{name}": value for name, value in given.items()}}}}
    graph["2"] = {"class_type": "SpeechwrightRASSampler", "inputs": {"model": ["1", 0], "seed": 0}}
    graph["3"] = {"class_type": "PreviewAny", "inputs": {"source": ["2", 1]}}
    with pytest.raises(Refused) as refused:
        comfy.queue(graph)
    told = [(error["type"], error["extra_info"]["input_name"])
            for node in refused.value.answer["node_errors"].values() for error in node["errors"]]
    assert ("required_input_missing", "prompt") in told
    assert not [name for kind, name in told if kind == "required_input_missing" and name.startswith("family")]


@pytest.mark.parametrize("family", [None, {}, {"family": "OGG"}])
def test_unknown_family_over_the_interface(family):
    """ComfyUI drops an unknown choice from the call, which then lacked an argument."""
    with pytest.raises(ValueError, match="Load Speech Model: family: .*choose one of 'S3Gen"):
        run(nodes.LoadModel, family)
    assert nodes.LoadModel.fingerprint_inputs(family) == ""


class TestRuns:
    def test_seed_is_the_only_source_of_chance(self, model, voice):
        source = audio(speech())
        states = torch.get_rng_state(), np.random.get_state()[1].copy()
        first = convert(model, source, voice, seed=7)["waveform"]
        assert torch.equal(torch.get_rng_state(), states[0]) and (np.random.get_state()[1] == states[1]).all()
        torch.rand(5)
        assert torch.equal(first, convert(model, source, voice, seed=7)["waveform"])
        for seed in (0, 8, 2**32 + 7, 2**64 - 1):
            assert not torch.equal(first, convert(model, source, voice, seed=seed)["waveform"])

    @pytest.mark.parametrize("at", [1, 4, 10])
    def test_cancel_at_any_step_leaves_nothing(self, model, voice, monkeypatch, at):
        tokens = run(nodes.S3Tokenize, model, audio(speech()))
        expected = run(nodes.S3Token2Wav, model, tokens, 3, voice)["waveform"]
        calls = []

        def press():
            calls.append(1)
            if len(calls) == at:
                raise comfy.model_management.InterruptProcessingException

        with monkeypatch.context() as patch:
            patch.setattr(comfy.model_management, "throw_exception_if_processing_interrupted", press)
            with pytest.raises(comfy.model_management.InterruptProcessingException):
                run(nodes.S3Token2Wav, model, tokens, 3, voice)
        assert len(calls) == at
        assert torch.equal(run(nodes.S3Token2Wav, model, tokens, 3, voice)["waveform"], expected)

    def test_works_again_after_memory_was_freed(self, model, voice):
        source = audio(speech())
        first = convert(model, source, voice)["waveform"]
        comfy.model_management.free_memory(1e30, torch.device("cpu"))
        comfy.model_management.unload_all_models()
        assert torch.equal(convert(model, source, voice)["waveform"], first)

    def test_memory_stays_level(self, voice):
        model, counts = run(nodes.LoadModel, DEMO), []
        for index in range(6):
            convert(model, audio(speech(0.3)), voice, seed=index)
            gc.collect()
            counts.append(sum(torch.is_tensor(thing) for thing in gc.get_objects()))
        assert counts[5] == counts[1]

    def test_a_run_changes_nothing_that_it_was_given(self, model, voice):
        source = audio(speech())
        before = source["waveform"].clone(), voice.clip.wave.clone(), set(model.patcher.model.__dict__)
        weights = {name: t.clone() for name, t in model.patcher.model.state_dict().items()}
        convert(model, source, voice)
        assert torch.equal(source["waveform"], before[0]) and torch.equal(voice.clip.wave, before[1])
        assert set(model.patcher.model.__dict__) == before[2]
        assert all(torch.equal(t, weights[name]) for name, t in model.patcher.model.state_dict().items())

    def test_voice_is_read_once(self, voice, monkeypatch):
        model, reads = run(nodes.LoadModel, DEMO), []
        original = model.decoder.read_voice
        monkeypatch.setattr(model, "decoder", replace(
            model.decoder, read_voice=lambda *args: reads.append(1) or original(*args)))
        for seed in range(3):
            convert(model, audio(speech()), voice, seed=seed)
        assert reads == [1]


def test_voice_s_words_are_cleaned():
    found = run(nodes.VoiceNode, audio(speech()), "\ufeffHello\r\nthere. ", " Zoe\u0308 ")
    assert (found.transcript, found.name) == ("Hello\nthere.", "Zo\u00eb")
    assert run(nodes.VoiceNode, audio(speech())).transcript == ""
