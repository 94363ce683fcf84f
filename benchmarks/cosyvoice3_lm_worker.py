"""The process in which ``cosyvoice3_lm.py`` measures one part; its table goes to stdout, in Markdown."""
from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable

import torch
from harness import bf16_features, import_checkout, in_turns, resident_bytes, say
from plain_ras import plain_ras_rows
from torch import Tensor

import_checkout()

from speechwright.cosyvoice3.config import LMConfig  # noqa: E402, from the checkout
from speechwright.cosyvoice3.lm import SpeechLM  # noqa: E402
from speechwright.cosyvoice3.sampling import ras_sample  # noqa: E402
from speechwright.cosyvoice3.weights import build, published_shapes  # noqa: E402

VOCABULARY = 6761
RAS_ROWS = (1, 16)
RAS_CALLS = 320         # rows in all, of one run
SPREAD = 3.5            # of the scores; their nucleus then holds a dozen ids, as a trained model's does
KIB = 1024


# The decoder


def random_weights(config: LMConfig) -> dict[str, Tensor]:
    """A state dict of full size whose activations stay near 1; the text head is the text table."""
    rng = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in published_shapes(SpeechLM(config, device="meta")).items():
        if "lm_head" in name:
            continue
        spread = 0.1 if len(shape) == 1 else 1.0 if "embed" in name else shape[-1] ** -0.5
        state[name] = torch.empty(shape).normal_(1.0 if "norm" in name else 0.0, spread, generator=rng)
    return state


class Side:
    """A decoder that is given embeddings: first the context, then a column at a time."""

    def __init__(self):
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.growth: list[int] = []     # of resident memory, bytes per step
        self.hidden: Tensor | None = None

    def begin(self, x: Tensor, steps: int) -> None:
        raise NotImplementedError

    def step(self, x: Tensor) -> None:
        """Fills ``hidden`` (B, D), and computes the scores of the next id."""
        raise NotImplementedError

    def run(self, context: Tensor, columns: list[Tensor]) -> None:
        start = time.perf_counter()
        self.begin(context, len(columns))
        self.seconds["prefill"].append(time.perf_counter() - start)
        self.step(columns[0])       # lets go of what the prefill left behind
        before, start = resident_bytes(), time.perf_counter()
        for column in columns[1:]:
            self.step(column)
        self.seconds["step"].append((time.perf_counter() - start) / len(columns[1:]))
        self.growth.append((resident_bytes() - before) // len(columns[1:]))


class Ours(Side):
    def __init__(self, state: dict[str, Tensor], dtype: torch.dtype):
        super().__init__()
        self.lm = build(state, dtype=dtype)

    def begin(self, x: Tensor, steps: int) -> None:
        self.cache = self.lm.new_cache(len(x), x.shape[1] + steps)
        self.first = torch.zeros(len(x), dtype=torch.int64)
        self.place = self.cache.keys.data_ptr()
        self.lm.logits(self.lm(x.to(self.lm.dtype), self.cache, self.first)[:, -1])

    def step(self, x: Tensor) -> None:
        self.hidden = self.lm(x.to(self.lm.dtype), self.cache, self.first)[:, -1]
        self.lm.logits(self.hidden)
        if self.cache.keys.data_ptr() != self.place:
            raise RuntimeError("the cache was allocated anew.")


class Reference(Side):
    """transformers' model, asked for all hidden states, of which the last goes to the head of speech.

    with_text_head: evaluate the head of text as well, as the published pipeline does at every step.
    """

    def __init__(self, state: dict[str, Tensor], config: LMConfig, with_text_head: bool):
        from transformers import Qwen2Config, Qwen2ForCausalLM
        from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
        super().__init__()
        sizes = Qwen2Config(
            hidden_size=config.width, num_hidden_layers=config.layers, num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads, intermediate_size=config.hidden, vocab_size=config.text_rows,
            rope_theta=config.rope_theta, rms_norm_eps=config.norm_eps, tie_word_embeddings=True)
        with torch.device("meta"):
            whole = Qwen2ForCausalLM(sizes)
        prefix = "llm.model."
        weights = {name[len(prefix):]: tensor for name, tensor in state.items() if name.startswith(prefix)}
        whole.load_state_dict(weights, strict=False, assign=True)
        whole.tie_weights()
        whole.model.rotary_emb = Qwen2RotaryEmbedding(sizes)
        if any(tensor.is_meta for tensor in whole.state_dict().values()):
            raise RuntimeError("transformers' model was not filled.")
        self.model = whole.eval() if with_text_head else whole.model.eval()
        self.head = state["llm_decoder.weight"]

    def begin(self, x: Tensor, steps: int) -> None:
        self.past = None
        self._call(x)

    def step(self, x: Tensor) -> None:
        self._call(x)

    def _call(self, x: Tensor) -> None:
        out = self.model(inputs_embeds=x, past_key_values=self.past, use_cache=True, output_hidden_states=True)
        self.past = out.past_key_values
        self.hidden = out.hidden_states[-1][:, -1]
        torch.nn.functional.linear(self.hidden, self.head)


def decoder(chosen: argparse.Namespace) -> str:
    """Prefill and decode step of both sides."""
    config = LMConfig()
    say("  making random weights of full size")
    state = random_weights(config)
    reference = "transformers"
    sides: dict[str, Side] = {
        "ours": Ours(state, torch.float32),
        reference: Reference(state, config, with_text_head=True),
        f"{reference}, without its text head": Reference(state, config, with_text_head=False),
    }
    if not chosen.no_bf16:
        sides["ours, bf16"] = Ours(state, torch.bfloat16)
    rng = torch.Generator().manual_seed(1)
    context = torch.randn(chosen.rows, chosen.context, config.width, generator=rng)
    columns = [torch.randn(chosen.rows, 1, config.width, generator=rng) for _ in range(chosen.steps)]
    with torch.inference_mode():
        in_turns(chosen.runs, {name: lambda side=side: side.run(context, columns) for name, side in sides.items()})

    def median(side: Side, what: str) -> float:
        return statistics.median(side.seconds[what][1:])

    goal = sides[reference]
    lines = [f"Decoder: fp32, rows: {chosen.rows}, {chosen.context} columns, then {chosen.steps} steps; "
             f"torch {torch.__version__}\n",
             f"| | prefill | a step | of {reference}' step | hidden apart |", "|---|---|---|---|---|"]
    for name, side in sides.items():
        apart = (side.hidden.float() - goal.hidden).abs().max().item()
        lines.append(
            f"| {name} | {median(side, 'prefill'):.2f} s | {median(side, 'step') * 1e3:.1f} ms "
            f"| {median(side, 'step') / median(goal, 'step'):.2f} | {apart:.1e} |")
    cache, growth = sides["ours"].lm.cache_bytes(chosen.rows, 1), statistics.median(sides["ours"].growth)
    lines.append(f"\nOur cache is made once, {cache / KIB:.1f} KiB per column, and stayed where it was; beside it a "
                 f"step took {growth / KIB:.1f} KiB of memory. For bf16 this processor has "
                 f"{', '.join(bf16_features()) or 'no instructions'}.\n")
    return "\n".join(lines)


# The sampler


def sampler(chosen: argparse.Namespace) -> str:
    """One token of every row, from scores on the device to ids on the host."""
    rng = torch.Generator().manual_seed(0)
    lines = [f"Repetition-aware sampling: {VOCABULARY} ids, torch {torch.__version__}\n",
             "| rows | plain loop | ours | of the loop | ours, compiled | of the loop |", "|---|---|---|---|---|---|"]
    for rows in RAS_ROWS:
        calls = RAS_CALLS // rows
        scores = SPREAD * torch.randn(calls, rows, VOCABULARY, generator=rng)
        # Of what the model likes, so that some ids are drawn anew.
        histories = scores.topk(40, dim=2).indices[:, :, torch.randperm(40, generator=rng)].tolist()
        sides = {"plain": lambda scores=scores, histories=histories: plain(scores, histories),
                 "ours": lambda scores=scores, histories=histories: ours(ras_sample, scores, histories)}
        if not chosen.no_compile:
            compiled = torch.compile(ras_sample, fullgraph=True, dynamic=False)
            sides["compiled"] = lambda scores=scores, histories=histories, draw=compiled: ours(draw, scores, histories)
        with torch.inference_mode():
            seconds = in_turns(chosen.runs, sides)
        ms = {name: 1e3 * found / calls for name, found in seconds.items()}
        line = f"| {rows} | {ms['plain']:.2f} ms | {ms['ours']:.2f} ms | {ms['ours'] / ms['plain']:.2f} "
        fast = f"| {ms['compiled']:.2f} ms | {ms['compiled'] / ms['plain']:.2f} |" if "compiled" in ms else "| | |"
        lines.append(line + fast)
    return "\n".join(lines) + "\n"


def plain(scores: Tensor, histories: list[list[list[int]]]) -> None:
    rng = torch.Generator().manual_seed(0)
    for rows, past in zip(scores, histories):
        plain_ras_rows(rows, past, rng)


def ours(draw: Callable, scores: Tensor, histories: list[list[list[int]]]) -> None:
    rows = scores.shape[1]
    past = torch.tensor(histories)[:, :, -10:]
    settings = {
        "seed": torch.arange(rows), "temperature": torch.ones(rows), "top_p": torch.full((rows,), 0.8),
        "top_k": torch.full((rows,), 25), "window": torch.full((rows,), 10), "repeat_threshold": torch.ones(rows),
        "blocked": torch.zeros(rows, VOCABULARY, dtype=torch.bool),
    }
    for index in range(len(scores)):
        draw(scores[index], step=torch.full((rows,), index), history=past[index], **settings).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["decoder", "sampler"])
    for name in ("runs", "threads", "rows", "context", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("no-bf16", "no-compile"):
        parser.add_argument(f"--{name}", action="store_true")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(chosen.threads)
    print({"decoder": decoder, "sampler": sampler}[chosen.part](chosen))


if __name__ == "__main__":
    main()
