"""Every utterance of the data as the trained speech tokenizer hears it, and the text ids of what it says.

The text tokenizer is byte-level BPE of few merges, learned here: a text has then as many ids as the limits of the
sampler expect, two to twenty speech tokens for each.
"""
from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from speech import Speech

from speechwright.assembly import fill, shapes_of
from speechwright.cosyvoice3.tokenizer import PRE_SPLIT, TextTokenizer, load_small
from speechwright.s3gen.config import TokenizerConfig
from speechwright.s3gen.tokenizer import S3Tokenizer

BYTES, MERGES = 256, 511
TEXT_ROWS = BYTES + MERGES
VERSION = 2                                 # of CosyVoice


def speech_tokenizer(path: Path) -> S3Tokenizer:
    state = load_file(path)
    module = S3Tokenizer(TokenizerConfig.from_shapes(shapes_of(state)), device="meta")
    return fill(module, state, lambda _: torch.float32, str(path))


def learned(texts: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of these texts."""
    from tokenizers import Regex, Tokenizer, pre_tokenizers, trainers
    from tokenizers.models import BPE
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRE_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=TEXT_ROWS, initial_alphabet=alphabet, show_progress=False))
    merges = [tuple(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
    vocabulary = {entry: number for number, entry in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    if len(vocabulary) != TEXT_ROWS:
        raise ValueError(f"{len(vocabulary)} entries of {TEXT_ROWS}: two merges make the same, or texts are few.")
    return vocabulary, merges


def text_tokenizer(folder: Path) -> TextTokenizer:
    """That of ``learned``, from the two files that were written of it."""
    return load_small(folder, VERSION)


def write_text_tokenizer(folder: Path, texts: list[str]) -> None:
    vocabulary, merges = learned(texts)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False, indent=0), encoding="utf-8")
    (folder / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the trained tokenizer is")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    speech = Speech(given.data)
    tokenizer = speech_tokenizer(given.folder / "speech_tokenizer_v2.safetensors")
    if not (given.folder / "vocab.json").is_file():
        write_text_tokenizer(given.folder, [one.text for one in speech.utterances])
    texts = text_tokenizer(given.folder)
    path, used, ids = given.data / "tokens.bin", Counter(), 0
    done = path.stat().st_size // 2 if path.is_file() else 0
    with path.open("ab") as file:
        for one in speech.utterances:
            ids += len(texts.encode(one.text))
            if one.start < done:
                continue
            log_mel = torch.from_numpy(speech.part("log_mel", one.start, one.tokens).astype(np.float32)).T
            found = tokenizer.quantizer(tokenizer.hidden(log_mel[None]))[0].numpy().astype(np.int16)
            file.write(found.tobytes())
            used.update(found.tolist())
    count = sum(used.values())
    if count:
        shares = np.array(list(used.values())) / count
        print(f"{count} tokens, {len(used)} of 6561 used, {-(shares * np.log2(shares)).sum():.2f} bits each")
    print(f"{speech.utterances[-1].start / ids:.2f} speech tokens for a text id, {TEXT_ROWS} rows of text")


if __name__ == "__main__":
    main()
