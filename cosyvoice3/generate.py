"""The decode loop: prompts in, the speech tokens that the language model draws out.

Several pieces or seeds are decoded as one batch, padded on the left. Rows know nothing of each other: each
has its own seed, limits, history and end, and a row that has ended is carried along unheard. Once per token
the host learns what was drawn and whether the scores were sound, in one transfer.
"""
from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..repetition import Guard, trim_at_budget
from ..s3gen.pipeline import SECONDS_PER_TOKEN
from .sampling import MAX_TOP_K, check_logits, drawable, fold_seed, ras_draw

if TYPE_CHECKING:
    from .config import LMConfig
    from .lm import KVCache, SpeechLM
    from .prompt import Prompt

END, LOOP, BUDGET = "end", "loop", "budget"
ENDINGS = {END: "its end id", LOOP: "the stop rule against loops", BUDGET: "its budget of tokens"}

# What the tokens of CosyVoice3 spell silence and breath with. Those of version 2 mean something else.
SILENT_IDS = frozenset((1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323))

GROUP_BYTES = 2**29         # of keys and values that are held at once; further pieces wait for their turn
PREFILL_BYTES = 2**28       # and what else it takes
GROUP_ROWS = 16             # beyond, a row costs about as much together as alone
MAX_RATIO = 100.0           # tokens for a text id, 4 s; there is room for all of them from the start
MAX_WINDOW = 500            # tokens, 20 s
USUAL_RATE = 5.0            # speech tokens per text id, where no voice shows its pace

OnToken = Callable[[int, int], None]    # (done, likely in the end), may raise to cancel

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn; the defaults are the published ones."""

    temperature: float = 1.0        # 0 takes the likeliest id, which soon is silence for ever
    top_p: float = 0.8              # of the nucleus: its mass,
    top_k: int = 25                 # and how many ids it may hold
    window: int = 10                # how many tokens are looked back upon for repetition,
    tau: float = 0.1                # and which share of them may be the same before it is drawn anew; 0: any
    min_ratio: float = 2.0          # speech tokens per text id, before which no end is drawn,
    max_ratio: float = 20.0         # and after which the piece is cut
    stop_on_loop: bool = True       # end where a block of tokens repeats, see ``repetition``
    pause_cap: int = 5              # tokens that a silence may last, 0: as long as it likes; CosyVoice3 only
    retries: int = 1                # with another seed, after a loop or where nothing was said
    strict_reference: bool = False  # below the minimum block id 6561 alone, as published, which ends too early

    def __post_init__(self) -> None:
        allowed = {
            "temperature": (0 <= self.temperature < math.inf, "0 or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (1 <= self.top_k <= MAX_TOP_K, f"1 to {MAX_TOP_K}"),
            "window": (0 <= self.window <= MAX_WINDOW, f"0 to {MAX_WINDOW}"),
            "tau": (0 <= self.tau < math.inf, "0 or more"),
            "min_ratio": (0 <= self.min_ratio <= self.max_ratio, f"0 to max_ratio, which is {self.max_ratio}"),
            "max_ratio": (0 < self.max_ratio <= MAX_RATIO, f"above 0 and at most {MAX_RATIO:g}"),
            "pause_cap": (self.pause_cap >= 0, "0 or more"),
            "retries": (self.retries >= 0, "0 or more"),
        }
        for name, (fine, text) in allowed.items():
            if not fine:
                called = "cap_pauses" if name == "pause_cap" else name      # as the node's input is
                raise ValueError(f"{called}: {getattr(self, name)} is not possible; give {text}.")

    @property
    def repeat_threshold(self) -> int:
        """How many earlier occurrences make a repetition; 0: none does. A whole number is safe in float32."""
        return math.ceil(self.window * self.tau)


@dataclass(frozen=True, eq=False)
class Take:
    """What one prompt became.

    ids: int64 (F,) on the CPU, fit for the flow: without end ids, loops and the rest of long silences.
    ended: "end" by the model itself, "loop" by the rule against loops, "budget" where its tokens ran out.
    sampled: tokens drawn, those left out of ``ids`` included. redraws: how often the second draw counted.
    redrawn: the places in ``ids`` at which it did. took: seconds for all attempts; those of a batch are shared by
    the tokens drawn.
    """
    ids: Tensor
    ended: str
    redraws: int
    sampled: int
    retries: int
    redrawn: tuple[int, ...] = ()
    took: float = 0.0

    @property
    def seconds(self) -> float:
        """How long the speech is."""
        return len(self.ids) * SECONDS_PER_TOKEN


@dataclass(eq=False)
class _Row:
    """One row of a batch while it is decoded."""

    index: int      # of its prompt
    total: int      # prompts
    seed: int
    retry: int
    least: int      # tokens before which it may not end
    budget: int     # tokens at which it is cut
    guard: Guard | None
    ids: list[int] = field(default_factory=list)    # with a guard, its own
    ended: str = ""
    redrawn: list[bool] = field(default_factory=list)   # for each token drawn, of which ``ids`` are the first
    sampled: int = 0

    @property
    def name(self) -> str:
        return f"piece {self.index + 1} of {self.total}"

    def __post_init__(self) -> None:
        if self.guard is not None:
            self.ids = self.guard.ids

    def hear(self, token: int, redrawn: bool, vocabulary: int) -> None:
        """Take in what was drawn."""
        self.redrawn.append(redrawn)
        if token >= vocabulary:
            self.ended = END
            return
        self.sampled += 1
        if self.guard is None:
            self.ids.append(token)
        elif self.guard.push(token):
            self.ended = LOOP
        if not self.ended and self.sampled == self.budget:
            self.ended = BUDGET
            if self.guard is not None:
                trim_at_budget(self.ids)


def report(texts: Sequence[str], takes: Sequence[Take | None]) -> str:
    """A line for each piece that there is: how long it is, how it ended, and what it took."""
    return "\n".join(
        f"piece {number} of {len(takes)}: {len(take.ids)} tokens, {take.seconds:.2f} s, {take.redraws} redraws, "
        f"ended by {ENDINGS[take.ended]}, {take.retries} retries: {text}"
        for number, (text, take) in enumerate(zip(texts, takes), 1) if take is not None)


def cap_pauses(ids: list[int], cap: int) -> list[int]:
    """``ids`` with at most ``cap`` silent ones in a row; 0 leaves them as they are."""
    return [ids[place] for place in _within_cap(ids, cap)]


def _within_cap(ids: list[int], cap: int) -> list[int]:
    """The places of those ids."""
    kept, run = [], 0
    for place, token in enumerate(ids):
        run = run + 1 if token in SILENT_IDS else 0
        if not cap or run <= cap:
            kept.append(place)
    return kept


def limits(text_ids: int, options: SamplingOptions) -> tuple[int, int]:
    """How many tokens a piece of so many ids must have before it may end, and how many it may have at most."""
    least, budget = int(text_ids * options.min_ratio), int(text_ids * options.max_ratio)
    return (least if options.strict_reference else min(least, budget - 1)), budget


@torch.no_grad()
def decode(
    lm: SpeechLM, prompts: list[Prompt], seeds: list[int], options: SamplingOptions | None = None,
    on_token: OnToken | None = None, device: torch.device | str = "auto", texts: Sequence[str] = (),
) -> list[Take]:
    """Speak every prompt with the seed that stands beside it, any integer modulo 2**64.

    Rows are decoded together as far as their caches fit into ``GROUP_BYTES``. ``on_token(done, likely)`` counts
    steps, each of which draws a token of every such row, and may raise to cancel; in the end both are equal.
    ``ValueError`` for a prompt that cannot be spoken, and for a piece that says nothing or whose scores are unsound;
    it tells of the pieces that are done as ``report`` does, with their ``texts``.
    """
    options = options or SamplingOptions()
    device = next(lm.parameters()).device if device in (None, "auto") else torch.device(device)
    _check(lm, prompts, seeds, options)
    rows: dict[int, _Row] = {}
    pending, done, took = list(range(len(prompts))), 0, [0.0] * len(prompts)
    for retry in range(options.retries + 1):
        again = [_Row(index, len(prompts), seeds[index], retry, *limits(len(prompts[index].text_ids), options),
                      Guard() if options.stop_on_loop else None) for index in pending]
        if not again:
            break
        groups = _groups(lm, again, prompts)
        for number, batch in enumerate(groups):
            left = sum(_likely(prompts, group, options) for group in groups[number:])

            def heard(steps: int, before: int = done, left: int = left) -> None:
                if on_token is not None:
                    on_token(before + steps, before + max(left, steps + 1))

            embedded = [_embed(lm, prompts[row.index], device) for row in batch]
            folded = [fold_seed(row.seed, retry=retry) for row in batch]
            began = time.perf_counter()
            try:
                done += _decode_batch(lm, batch, embedded, folded, options, heard, device)
            except ValueError as error:
                raise ValueError(f"{error}{_done(lm, [*rows.values(), *again], texts, options)}") from error
            spent, drawn = time.perf_counter() - began, sum(len(row.redrawn) for row in batch)
            for row in batch:
                took[row.index] += spent * len(row.redrawn) / drawn
        # One copy of a loop is better than nothing at all.
        rows.update((row.index, row) for row in again
                    if row.ids or row.index not in rows or not rows[row.index].ids)
        failed = [row for row in again if row.ended == LOOP or not row.ids]
        for row in failed:
            logger.warning(
                "%s %s after %d tokens with seed %d%s.", row.name.capitalize(),
                "fell into a loop" if row.ended == LOOP else "ended", row.sampled, row.seed,
                "; it is drawn anew" if retry < options.retries else "")
        pending = [row.index for row in failed]
    if on_token is not None:
        on_token(done, done)
    silent = [row for row in rows.values() if not row.ids]
    if silent:
        row, *others = sorted(silent, key=lambda row: row.index)
        also = f" So did {', '.join(other.name for other in others)}." if others else ""
        raise ValueError(
            f"speech tokens: {row.name} ended before its first token with seed {row.seed}, {row.retry + 1} times."
            f"{also} Text of signs alone, a transcript that is not that of the recording, or a language that the model "
            f"does not speak do this: mend them, try another seed, or raise min_ratio."
            f"{_done(lm, rows.values(), texts, options)}")
    for row in rows.values():
        if row.ended == BUDGET:
            logger.warning("%s found no end in %d tokens and was cut there. See whether the transcript is that of the "
                           "recording, or try another seed.", row.name.capitalize(), row.sampled)
    return [_take(lm, rows[index], options, took[index]) for index in range(len(prompts))]


def working_bytes(config: LMConfig, itemsize: int, prompts: Sequence[Prompt], options: SamplingOptions) -> int:
    """About how much memory ``decode`` needs beside the weights, whose numbers have so many bytes."""
    column = 2 * config.layers * config.kv_heads * config.head_width * itemsize
    longest = max(2 + len(prompt.prompt_text_ids) + len(prompt.text_ids) + len(prompt.speech_ids)
                  + limits(len(prompt.text_ids), options)[1] for prompt in prompts)
    return max(GROUP_BYTES, column * longest) + PREFILL_BYTES


def _groups(lm: SpeechLM, rows: list[_Row], prompts: list[Prompt]) -> list[list[_Row]]:
    """Neighbours that are decoded together, alike on every machine."""
    groups: list[list[_Row]] = []
    widest = longest = 0
    for row in rows:
        prompt = prompts[row.index]
        width = 2 + len(prompt.prompt_text_ids) + len(prompt.text_ids) + len(prompt.speech_ids)
        widest, longest = max(widest, width), max(longest, row.budget)
        count = 1 + len(groups[-1]) if groups else 1
        if not groups or count > GROUP_ROWS or lm.cache_bytes(count, widest + longest) > GROUP_BYTES:
            groups.append([])
            widest, longest = width, row.budget
        groups[-1].append(row)
    return groups


def _likely(prompts: list[Prompt], rows: list[_Row], options: SamplingOptions) -> int:
    """About how many tokens the longest of these rows will have."""
    lengths = []
    for row in rows:
        prompt = prompts[row.index]
        paced = prompt.prompt_text_ids and prompt.speech_ids
        rate = len(prompt.speech_ids) / len(prompt.prompt_text_ids) if paced else USUAL_RATE
        rate = min(max(rate, options.min_ratio), options.max_ratio)
        lengths.append(min(row.budget, math.ceil(rate * len(prompt.text_ids))))
    return max(lengths)


def _decode_batch(
    lm: SpeechLM, rows: list[_Row], embedded: list[Tensor], seeds: list[int], options: SamplingOptions,
    heard: Callable[[int], None], device: torch.device,
) -> int:
    """Draw until every row has ended; their prompts as (L, D). Returns the steps taken, which ``heard`` counts."""
    longest = max(row.budget for row in rows)
    x, first = _pad(embedded)
    cache = lm.new_cache(len(rows), x.shape[1] + longest - 1, device)
    hidden = _prefill(lm, x, cache, first)
    cache.padded = len(set(map(len, embedded))) > 1

    # The hash is proven on these two; elsewhere the scores are few enough to be fetched.
    place = device if device.type in ("cpu", "cuda") else torch.device("cpu")
    ids = lm.config.ids
    entry = torch.arange(ids.rows, device=place)
    ends = entry == ids.vocabulary if options.strict_reference else entry >= ids.vocabulary
    least = torch.tensor([row.least for row in rows], device=place)
    step = torch.zeros(len(rows), dtype=torch.int64, device=place)
    history = torch.full((len(rows), max(1, options.window)), -1, device=place)
    setting = {name: torch.full((len(rows),), getattr(options, name), device=place)
               for name in ("temperature", "top_p", "top_k", "window", "repeat_threshold")}
    setting["seed"] = torch.tensor(seeds, device=place)

    for count in range(1, longest + 1):
        logits = lm.logits(hidden).to(place)
        blocked = (step < least)[:, None] & ends
        drawn, redrawn = ras_draw(logits, step=step, history=history, blocked=blocked, **setting)
        fetched = torch.stack((drawn, redrawn.long(), drawable(logits, blocked).long()), dim=1).tolist()
        for number, (row, (token, again, sound)) in enumerate(zip(rows, fetched)):
            if not row.ended:
                if not sound:
                    _refuse(row, logits[number : number + 1], blocked[number : number + 1])
                row.hear(token, bool(again), ids.vocabulary)
        heard(count)
        if all(row.ended for row in rows):
            break
        history = torch.cat((history[:, 1:], drawn[:, None]), dim=1)
        step = step + 1
        hidden = lm(lm.embed_speech(drawn.to(device))[:, None], cache, first)[:, -1]
    return count


def _prefill(lm: SpeechLM, x: Tensor, cache: KVCache, first: Tensor) -> Tensor:
    """(B, S, D) -> (B, D) of the last column; row by row, since masks and scores have S x S numbers for each."""
    hidden = []
    for index in range(len(x)):
        row = cache.rows(index, index + 1)
        hidden.append(lm(x[index : index + 1], row, first[index : index + 1])[:, -1])
    cache.length = row.length
    return torch.cat(hidden)


def _embed(lm: SpeechLM, prompt: Prompt, device: torch.device) -> Tensor:
    """(L, D), what the model reads before it speaks"""
    text = torch.tensor([*prompt.prompt_text_ids, *prompt.text_ids], device=device)
    speech = torch.tensor(prompt.speech_ids, dtype=torch.int64, device=device)
    return torch.cat((lm.start(device), lm.embed_text(text), lm.task(device), lm.embed_speech(speech)))


def _pad(embedded: list[Tensor]) -> tuple[Tensor, Tensor]:
    """(L_i, D) each -> (B, S, D) with zeros on the left, and int64 (B,), the column in which each begins"""
    longest = max(map(len, embedded))
    x = embedded[0].new_zeros(len(embedded), longest, embedded[0].shape[1])
    for row, own in zip(x, embedded):
        row[longest - len(own) :] = own
    return x, torch.tensor([longest - len(own) for own in embedded], device=x.device)


def _check(lm: SpeechLM, prompts: list[Prompt], seeds: list[int], options: SamplingOptions) -> None:
    if len(prompts) != len(seeds):
        raise ValueError(f"seeds: {len(seeds)} for {len(prompts)} prompts; give one for each.")
    vocabulary = lm.config.ids.vocabulary
    for number, prompt in enumerate(prompts, 1):
        if not prompt.text_ids:
            raise ValueError(f"text: piece {number} of {len(prompts)} has no text ids, so there is nothing to say.")
        if limits(len(prompt.text_ids), options)[1] < 1:
            raise ValueError(f"max_ratio: {options.max_ratio} gives the {len(prompt.text_ids)} text ids of piece "
                             f"{number} not even one token; give more.")
        wrong = [token for token in prompt.speech_ids if not 0 <= token < vocabulary]
        if wrong:
            raise ValueError(f"speech prompt: id {wrong[0]} of piece {number}; speech ids are 0..{vocabulary - 1}.")


def _refuse(row: _Row, logits: Tensor, blocked: Tensor) -> None:
    try:
        check_logits(logits, blocked)
    except ValueError as error:
        raise ValueError(f"{row.name}: {error}") from error


def _done(lm: SpeechLM, rows: Collection[_Row], texts: Sequence[str], options: SamplingOptions) -> str:
    """What an error says of the pieces that have become speech."""
    spoken = {row.index: _take(lm, row, options) for row in rows if row.ended and row.ids}
    if not spoken:
        return ""
    total = next(iter(rows)).total
    return "\nDone without it:\n" + report(texts or [""] * total, [spoken.get(index) for index in range(total)])


def _take(lm: SpeechLM, row: _Row, options: SamplingOptions, took: float = 0.0) -> Take:
    kept = _within_cap(row.ids, options.pause_cap if lm.config.version == 3 else 0)
    ids, redrawn = [row.ids[place] for place in kept], [row.redrawn[place] for place in kept]
    return Take(torch.tensor(ids, dtype=torch.int64), row.ended, sum(row.redrawn), row.sampled, row.retry,
                tuple(place for place, again in enumerate(redrawn) if again), took)
