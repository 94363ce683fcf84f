"""One window of sound to text ids, greedily, by a network of transformers that is asked for one id at a time."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..repetition import Guard, trim_at_budget
from .folder import MOONSHINE, Ear

RATE_HZ = 16_000
HOP_SAMPLES = 160               # of Whisper's frames, two of which are one position of its encoder
WINDOW_S = 30                   # of both; Moonshine was trained on up to a minute, most of it shorter
NO_SPEECH = 0.6                 # Whisper's published thresholds: where it finds that likelier than this, and
UNSURE = -1.0                   # its words less likely than this on average (log), nobody speaks
START, NO_TIMES, TRANSCRIBE = "<|startoftranscript|>", "<|notimestamps|>", "<|transcribe|>"
NOBODY = ("<|nospeech|>", "<|nocaptions|>")     # of newer and of older files

END, LOOP, BUDGET = "end", "loop", "budget"


@dataclass(frozen=True)
class Heard:
    """What a window holds: text ids, and how they ended: by the model, the stop rule, or where its room did."""
    ids: list[int]
    ended: str


def window_samples(ear: Ear) -> int:
    """The longest window at 16 kHz."""
    if ear.kind == MOONSHINE:
        return WINDOW_S * RATE_HZ
    return min(2 * ear.config.max_source_positions * HOP_SAMPLES, WINDOW_S * RATE_HZ)


def encode(ear: Ear, network: nn.Module, wave: Tensor, device: torch.device) -> object:
    """(T,) float32 at 16 kHz -> what the decoder reads: transformers' output of the encoder, (1, F, D)"""
    given = wave[None]                                          # (1, T)
    if ear.kind != MOONSHINE:
        from transformers import WhisperFeatureExtractor
        seconds = 2 * ear.config.max_source_positions * HOP_SAMPLES // RATE_HZ
        extractor = WhisperFeatureExtractor(ear.config.num_mel_bins, RATE_HZ, HOP_SAMPLES, seconds)
        # Alone, since loudness is measured over all that it is given.
        given = extractor(wave.numpy(), sampling_rate=RATE_HZ, return_tensors="pt").input_features     # (1, M, F)
    return network.get_encoder()(given.to(device, network.dtype))


def first_look(ear: Ear, network: nn.Module, encoded: object) -> Tensor:
    """(V,) probabilities of the id after the one that starts a text: a language, or that nobody speaks. Whisper's."""
    start = torch.tensor([[ear.id(START)]], device=encoded[0].device)
    logits = network(encoder_outputs=encoded, decoder_input_ids=start, use_cache=False).logits
    return logits[0, 0].float().softmax(-1).cpu()


def likeliest(ear: Ear, probabilities: Tensor, languages: Sequence[str]) -> str:
    """Of the languages that the model knows, the one that is spoken."""
    known = [code for code in languages if ear.tokenizer.token_to_id(f"<|{code}|>") is not None]
    return max(known, key=lambda code: float(probabilities[ear.id(f"<|{code}|>")]))


def prompt_ids(ear: Ear, language: str | None) -> list[int]:
    """What a text begins with. ``language``: of a multilingual Whisper, the code of one that it knows."""
    if ear.kind == MOONSHINE:
        return [ear.config.decoder_start_token_id]
    spoken = [f"<|{language}|>", TRANSCRIBE] if ear.multilingual else []
    return [ear.id(token) for token in (START, *spoken, NO_TIMES)]


def decode(ear: Ear, network: nn.Module, encoded: object, prompt: Sequence[int], nobody: float,
           on_id: Callable[[int], None]) -> Heard:
    """The text ids of an encoded window; none where nobody speaks.

    nobody: how likely that is, from ``first_look``. on_id: is told how many ids there are, before each; what it raises
    ends the work.
    """
    from transformers import LogitsProcessorList, StoppingCriteriaList
    from transformers.generation import GenerationMixin

    places = ear.config.max_position_embeddings if ear.kind == MOONSHINE else ear.config.max_target_positions
    watch, choice = _Watch(len(prompt), ear.end, on_id), _Choice(ear, len(prompt))
    # Whisper's own version of this divides and repeats windows by rules of its own.
    given = torch.tensor([prompt], device=encoded[0].device)
    GenerationMixin.generate(
        network, encoder_outputs=encoded, decoder_input_ids=given,
        decoder_start_token_id=prompt[0], max_new_tokens=places - len(prompt), eos_token_id=ear.end,
        pad_token_id=prompt[0], do_sample=False, num_beams=1,       # one row has no padding; transformers wants an id
        logits_processor=LogitsProcessorList([choice]), stopping_criteria=StoppingCriteriaList([watch]))
    ids, ended = watch.guard.ids, watch.ended
    if ended == BUDGET:
        trim_at_budget(ids)
    if nobody > NO_SPEECH and choice.mean() < UNSURE:
        return Heard([], END)
    return Heard(ids, ended)


class _Choice:
    """Forbids what is no text: times, control ids, and what the model's settings silence."""

    def __init__(self, ear: Ear, prompt: int):
        self._prompt, self._scores, self._steps = prompt, 0.0, 0
        forbidden = {*ear.silenced} - {ear.end}
        if ear.kind != MOONSHINE:
            forbidden |= {*range(ear.end + 1, ear.config.vocab_size)}           # all of Whisper's control ids
        self._never = torch.tensor(sorted(n for n in forbidden if n < ear.config.vocab_size), dtype=torch.int64)
        first = forbidden.union(ear.silenced_first)
        self._first = torch.tensor(sorted(n for n in first if n < ear.config.vocab_size), dtype=torch.int64)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """(1, S) ids, (1, V) scores -> (1, V)"""
        forbidden = self._first if ids.shape[1] == self._prompt else self._never
        scores = scores.float().index_fill(1, forbidden.to(scores.device), -torch.inf)
        self._scores = self._scores + scores.log_softmax(-1).max()
        self._steps += 1
        return scores

    def mean(self) -> float:
        """Of the logarithms of how likely the chosen ids were."""
        return float(self._scores) / max(1, self._steps)


class _Watch:
    """Ends a text at its end, or when it goes round in circles, of which one round is kept."""

    def __init__(self, prompt: int, end: int, on_id: Callable[[int], None]):
        self.guard, self.ended = Guard(), BUDGET
        self._prompt, self._end, self._on_id = prompt, end, on_id

    def __call__(self, ids: Tensor, scores: object, **_: object) -> Tensor:
        """(1, S) -> (1,) whether that is all"""
        token = int(ids[0, -1])
        self._on_id(ids.shape[1] - self._prompt)
        if token == self._end:
            self.ended = END
        elif self.guard.push(token):
            self.ended = LOOP
        return torch.tensor([self.ended != BUDGET], device=ids.device)
