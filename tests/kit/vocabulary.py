"""The tokenizers of tests: with the published vocabulary, which ComfyUI has too, and the demo's."""
from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from speechwright.cosyvoice3 import tokenizer
from speechwright.cosyvoice3.tokenizer import TextTokenizer


def vocabulary_folder(comfyui: Path) -> Path:
    """vocab.json and merges.txt of Qwen2. The tokenizer_config.json beside them is another model's."""
    return comfyui / "comfy" / "text_encoders" / "qwen25_tokenizer"


@lru_cache(maxsize=2)
def published(comfyui: Path, version: int = 3) -> TextTokenizer:
    return tokenizer.load(vocabulary_folder(comfyui), version)


@lru_cache(maxsize=2)
def demo(version: int = 3) -> TextTokenizer:
    return tokenizer.demo(version)
