"""The languages of the nodes: names and tooltips, as the editor asks the genuine server for them."""
from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from kit import locales
from kit.checkout import read, shipped, tracked
from kit.translations import faults

INFO = locales.node_info()
ENGLISH = locales.english(INFO)
OPTIONS = locales.choices(INFO)
# What the editor calls Portuguese. The same text is in `pt`, for whoever asks by that name.
PORTUGUESE = "pt-BR"
LANGUAGES = sorted({"en", "zh", "pl", "de", "es", "fr", "ru", "pt", PORTUGUESE, "it", "ja"})
# English texts that are the language's own word, too, or a term that nobody translates.
TERMS = {"S3Token2Wav", "CFG", "Tau", "Top k", "Top p", "MTP top k"}
ALIKE = {
    "de": {"Name", "Text", "Demo", "Codec", "Audio", "Prompt", "Seed"},
    "es": {"Audio", "Prompt", "Tokens"},
    "fr": {"Audio", "Codec", "Instruction", "Image", "Mode", "Prompt"},
    "it": {"Audio", "Checkpoint", "Codec", "Demo", "Prompt"},
    "pl": {"Audio", "Demo", "Prompt", "Model", "Folder"},
    "pt": {"Checkpoint", "Codec", "Prompt", "Tokens"},
    "zh": {"Checkpoint"},
}
translations = pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "en"])


def found(language: str, translated: dict) -> list[str]:
    own = ALIKE.get(language.split("-")[0], set())
    return faults(language, ENGLISH, translated, frozenset(TERMS | own), OPTIONS)


def test_english_is_what_the_schemas_say():
    """A tooltip that had changed stayed as it was for all who had not asked for another language."""
    assert locales.path("en").read_text(encoding="utf-8") == locales.text_of(ENGLISH), (
        f"locales/en is not what the schemas say; `{locales.COMMAND}` writes it anew, and marks "
        "in the other languages what has to be translated again.")


def test_other_languages_are_marked_where_english_is_another():
    """A tooltip was corrected, and nine languages went on saying what it had said before."""
    before = {"A": {"display_name": "Voice", "description": "Says.", "inputs": {"old": {"name": "Width"}}}}
    translated = {"A": {"display_name": "Stimme", "description": "Sagt.", "inputs": {"old": {"name": "Breite"}}}}
    assert locales.follow(before, before, translated) == translated
    now = {"A": {"display_name": "Voice", "description": "Speaks.", "inputs": {
        "other": {"name": "Width"}, "new": {"name": "Row"}}}, "B": {"display_name": "Says."}}
    marked = {"A": {"display_name": "Stimme", "description": "?? Sagt.", "inputs": {
        "other": {"name": "Breite"}, "new": {"name": "?? Row"}}}, "B": {"display_name": "Sagt."}}
    assert locales.follow(before, now, translated) == marked
    assert locales.follow(now, now, marked) == marked
    translated = locales.follow(ENGLISH, {**ENGLISH, "SpeechwrightVoice": {
        **ENGLISH["SpeechwrightVoice"], "description": "A voice."}}, locales.read("de"))
    assert found("de", translated) == ["SpeechwrightVoice.description: '??' is no text"]


def test_ids_of_inputs_are_those_that_the_editor_looks_up():
    inputs = ENGLISH["SpeechwrightLoadModel"]["inputs"]
    assert inputs["family_lm"]["name"] == "Language model"
    both = inputs["family_checkpoint"]["tooltip"].split("\n")
    assert [line.split(": ")[0] for line in both] == ["S3Gen (Chatterbox / CosyVoice2)", "OGG TTS"]
    voices = {name: entry for name, entry in ENGLISH["SpeechwrightEncodePrompt"]["inputs"].items() if "voice" in name}
    assert list(voices) == ["voices", *(f"voices_voice{index}" for index in range(8))]
    assert voices["voices_voice7"]["name"] == "Voice 8"
    assert [place for place in locales.texts(ENGLISH) if re.search(r"\.inputs\.[^.]*\.[^.]*\.", place)] == []


@pytest.mark.parametrize(("name", "shown"), [
    ("split_limit", "Split limit"), ("cfg", "CFG"), ("mtp_top_k", "MTP top k"), ("family.codec", "Codec"),
    ("voices.voice0", "Voice 1"), ("text", "Text"), ("tau", "Tau")])
def test_labels_are_plain_words(name, shown):
    assert locales.label(name) == shown


def test_every_language_is_there():
    assert locales.languages() == LANGUAGES
    files = [name for name in tracked() if name.startswith("locales/")]
    assert sorted(files) == sorted(f"locales/{language}/{locales.FILE}" for language in LANGUAGES)
    assert [name for name in files if name not in shipped()] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_files_are_written_in_one_form(language):
    """Plain UTF-8, each id once: of two with the same name one would be lost without a word."""
    raw = locales.path(language).read_bytes()
    assert raw.decode() == locales.text_of(json.loads(raw)) and b"\r" not in raw and not raw.startswith(b"\xef\xbb\xbf")


@translations
def test_says_what_the_english_text_says(language):
    assert found(language, locales.read(language)) == []


@translations
def test_titles_of_nodes_differ(language):
    titles = [entry["display_name"] for entry in locales.read(language).values()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(("language", "terms"), [
    ("zh", {"Model": "模型", "Audio": "音频", "Seed": "种子", "Steps": "步数", "Text": "文本", "Image": "图像"}),
    ("ja", {"Model": "モデル", "Audio": "オーディオ", "Seed": "シード", "Text": "テキスト", "Image": "画像"}),
    ("fr", {"Model": "Modèle", "Seed": "Graine", "Steps": "Étapes", "Width": "Largeur"}),
    ("es", {"Model": "Modelo", "Seed": "Semilla", "Steps": "Pasos", "Width": "Ancho"}),
    ("ru", {"Model": "Модель", "Audio": "Аудио", "Steps": "Шаги", "Image": "Изображение"}),
    ("pt-BR", {"Model": "Modelo", "Audio": "Áudio", "Seed": "Semente", "Width": "Largura"}),
])
def test_terms_are_the_editor_s(language, terms):
    """Two words for one thing side by side: the nodes of ComfyUI itself have theirs."""
    source, target = locales.texts(ENGLISH), locales.texts(locales.read(language))
    assert {text: target[place] for place, text in source.items() if text in terms} == terms


def test_portuguese_is_one():
    assert locales.path("pt").read_bytes() == locales.path(PORTUGUESE).read_bytes()


MODE = "SpeechwrightEncodePrompt.inputs.mode.tooltip"
TEXT = "SpeechwrightEncodePrompt.inputs.text.tooltip"
PROMPT = "SpeechwrightRASSampler.inputs.prompt.tooltip"
FADE = "SpeechwrightFishDecode.inputs.joint_fade"


# Without old text the new one takes the place of all.
@pytest.mark.parametrize(("language", "place", "old", "new", "told"), [
    ("de", TEXT, "0.8s", "0.9s", "numbers"),
    ("de", TEXT, "[laughter]", "[Lachen]", "'[laughter]'"),
    ("zh", MODE, "dialogue", "对话", "'dialogue'"),
    ("pl", MODE, "Ada: Hello.", "Ada: Cześć.", "'Ada: Hello.'"),
    ("es", PROMPT, "", "Qué decir, de Codificador de habla.", "does not name"),
    ("es", "SpeechwrightLoadModel.inputs.download.name", "", "Obtener", "does not name"),
    ("it", f"{FADE}.tooltip", "", "", "is empty"),
    ("it", f"{FADE}.tooltip", " ", "  ", "'  ' is no text"),
    ("ja", f"{FADE}.tooltip", "", "Milliseconds of fade on each side of a joint.", "is not in the script"),
    ("ru", f"{FADE}.name", "", "Joint fade", "is the English text"),
    ("ru", f"{FADE}.tooltip", "о", "o", "another script"),
    ("fr", MODE, "\u00a0:", " :", "without its hard blank"),
    ("zh", MODE, "。", ".", "half width"),
    ("de", f"{FADE}.tooltip", ".", " {fade}.", "has a meaning to the editor"),
    ("de", f"{FADE}.tooltip", ".", "", "ends, or breaks"),
    ("pl", f"{FADE}.tooltip", ".", " the.", "is English"),
    ("de", f"{FADE}.tooltip", "", "Dauer in Millisekunden.", "times as long"),
    ("de", f"{FADE}.tooltip", "", "Millisekunden, über die auf jeder Seite ausgeblendet wird.", "elsewhere"),
])
def test_what_is_amiss_is_found(language, place, old, new, told):
    translated = locales.read(language)
    *way, key = place.split(".")
    entry = translated
    for step in way:
        entry = entry[step]
    changed = entry[key].replace(old, new) if old else new
    assert changed != entry[key]
    entry[key] = changed
    assert any(told in line for line in found(language, translated)), found(language, translated)


def test_what_is_missing_left_over_or_swapped_is_found():
    translated = locales.read("de")
    entry = copy.deepcopy(translated)
    entry["SpeechwrightVoice"]["inputs"]["old"] = entry["SpeechwrightVoice"]["inputs"].pop("name")
    assert found("de", entry) == [
        *(f"lacks SpeechwrightVoice.inputs.name.{key}" for key in ("name", "tooltip")),
        *(f"has SpeechwrightVoice.inputs.old.{key}, which no node has" for key in ("name", "tooltip"))]
    entry = dict(reversed(translated.items()))
    assert found("de", entry) == ["is not in the order of the schemas"]
    assert found("de", locales.read("pl"))[-1].startswith("is written in pl")


# As ComfyUI takes them


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_server_gives_the_page_what_the_files_say(comfy, language):
    """Whatever is not JSON, or has another name, is passed over without an error."""
    served = comfy.get("/i18n")
    ours = {node: entry for node, entry in served[language]["nodeDefs"].items() if node in INFO}
    assert ours == locales.read(language)
    assert set(locales.read(language)) <= set(comfy.get("/object_info"))


def test_texts_of_other_packs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import folder_paths
    from app.custom_node_manager import CustomNodeManager
    for pack, node in (("a", "Other"), ("z", "Another")):
        folder = tmp_path / pack / "locales" / "de"
        folder.mkdir(parents=True)
        (folder / locales.FILE).write_text(json.dumps({node: {"display_name": pack}}))
    (tmp_path / "speechwright").mkdir()
    (tmp_path / "speechwright" / "locales").symlink_to(locales.FOLDER, target_is_directory=True)
    monkeypatch.setattr(folder_paths, "get_folder_paths", lambda _: [str(tmp_path)])
    merged = CustomNodeManager().build_translations()
    assert sorted(merged) == LANGUAGES
    assert merged["de"]["nodeDefs"] == {
        "Other": {"display_name": "a"}, **locales.read("de"), "Another": {"display_name": "z"}}


def test_the_command_is_told():
    assert locales.COMMAND in read("CONTRIBUTING.md")
