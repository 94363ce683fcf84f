"""The demo's language models: small, and they speak for as long as a text of that length would take."""
from __future__ import annotations

import pytest
import torch

from kit.lm import tiny_lm
from speechwright.cosyvoice3.demo import DEMOS, TEXT_ROWS, demo_config
from speechwright.cosyvoice3.sampling import ras_sample
from speechwright.cosyvoice3.weights import build

ROWS = 8
BUDGET = 20         # tokens per text id


def speak(version: int, texts: int, prompt: int) -> tuple[list[int], list[list[int]]]:
    """Where each row ends that says the same text with a seed of its own, and its tokens."""
    lm, vocabulary = tiny_lm(version), demo_config(version).ids.vocabulary
    text, speech = torch.arange(texts + prompt) % 256, torch.arange(2 * prompt) * 17
    x = torch.cat((lm.start(), lm.embed_text(text), lm.task(), lm.embed_speech(speech)))
    x = x.expand(ROWS, -1, -1)
    zeros = torch.zeros(ROWS, dtype=torch.int64)
    cache = lm.new_cache(ROWS, x.shape[1] + BUDGET * texts)
    history, said, ended = torch.full((ROWS, 10), -1), [[] for _ in range(ROWS)], {}
    for step in range(BUDGET * texts):
        ids = ras_sample(
            lm.logits(lm(x, cache, zeros)[:, -1]), seed=torch.arange(ROWS), step=zeros + step, history=history,
            temperature=torch.ones(ROWS), top_p=torch.full((ROWS,), 0.8), top_k=zeros + 25, window=zeros + 10,
            repeat_threshold=torch.ones(ROWS), blocked=torch.zeros(ROWS, lm.config.speech_rows, dtype=torch.bool))
        for row, token in enumerate(ids.tolist()):
            if token >= vocabulary:
                assert token == lm.config.ids.eos
                ended.setdefault(row, step)
            said[row].append(token)
        if len(ended) == ROWS:
            break
        history = torch.cat((history[:, 1:], ids[:, None]), dim=1)
        x = lm.embed_speech(ids)[:, None]
    return [ended.get(row, BUDGET * texts) for row in range(ROWS)], said


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("texts, prompt, least, most", [(12, 0, 2, 5), (12, 12, 2, 7), (3, 20, 2, 18)])
def test_a_demo_ends_by_itself(version, texts, prompt, least, most):
    with torch.inference_mode():
        lengths, said = speak(version, texts, prompt)
    assert all(least <= length / texts <= most for length in lengths), lengths
    assert len({tuple(row) for row in said}) == ROWS
    assert all(len(set(row[:length])) > 0.6 * length for row, length in zip(said, lengths))


def test_demos_are_small_and_have_every_row():
    for version, (title, files) in zip((2, 3), DEMOS.items()):
        make = files["llm.safetensors"]
        state = make()
        assert title == f"CosyVoice{version}"
        assert sum(tensor.nbytes for tensor in state.values()) < 6e6
        lm = build(state)
        assert lm.config == demo_config(version)
        assert lm.embed_text(torch.tensor([TEXT_ROWS - 1])).isfinite().all()
        assert all(torch.equal(tensor, again) for tensor, again in zip(state.values(), make().values()))
