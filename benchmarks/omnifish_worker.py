"""The process in which ``omnifish.py`` measures; its table goes to stdout, in Markdown."""
from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Iterator

import torch
from harness import bf16_features, import_checkout, in_turns, resident_bytes, say
from plain_blocks import PlainModel, plain_blocks
from torch import Tensor
from transformers import Qwen3Config

import_checkout()

from speechwright.omnifish.config import NUM_CODEBOOKS, BackboneConfig, OmniFishConfig  # noqa: E402, from the checkout
from speechwright.omnifish.generate import blocks_cached  # noqa: E402
from speechwright.omnifish.model import MASK_ID, OmniFish  # noqa: E402
from speechwright.omnifish.prompt import context  # noqa: E402
from speechwright.omnifish.tokenizer import demo as demo_tokenizer  # noqa: E402
from speechwright.omnifish.weights import build  # noqa: E402

BLOCK, STEPS, CFG, TEMPERATURE = 16, 6, 1.5, 0.8
CONTEXT = 150           # columns, of which
VOICE_FRAMES = 60       # are codes
MB = 1e6

Blocks = Iterator[tuple[Tensor, Tensor]]


def random_weights() -> dict[str, Tensor]:
    """A float32 state dict of full size, without a depth decoder; activations stay near 1."""
    rng = torch.Generator().manual_seed(0)
    state = {}
    for name, tensor in OmniFish(OmniFishConfig(mtp=None), device="meta").state_dict().items():
        spread = 0.1 if "norm" in name else 1.0 if "embed" in name else tensor.shape[-1] ** -0.5
        spread = NUM_CODEBOOKS**-0.5 if "audio" in name else spread     # as many of its rows are added
        state[name] = torch.empty(tensor.shape).normal_(1.0 if "norm" in name else 0.0, spread, generator=rng)
    return state


class StandIn:
    """A depth decoder whose codes are a formula, in no time; it keeps the states that it was told last."""

    def new_state(self, total_frames: int, hidden_size: int, device, dtype: torch.dtype) -> dict:
        self.heard = torch.zeros(total_frames, hidden_size, device=device, dtype=dtype)
        return {"codes": torch.full((NUM_CODEBOOKS, total_frames), MASK_ID, device=device),
                "states": [self.heard[None]]}

    def prime(self, state: dict, frames: int) -> None:
        """The formula does not look back."""

    def decode_block(self, state: dict, lo: int, hi: int, block: int, rounds: int, temperature: float, top_k: int,
                     prefix: int) -> None:
        frame, codebook = torch.arange(lo, hi), torch.arange(1, NUM_CODEBOOKS)[:, None]
        state["codes"][1:, lo:hi] = (7 * state["codes"][:1, lo:hi] + 31 * codebook + frame) % 1024


class Side:
    """One way to speak the scene, in as many blocks as were asked for."""

    def __init__(self, blocks: int):
        self.mtp = StandIn()
        frames = blocks * BLOCK
        # Random weights would end the speech somewhere: the end is masked before the last frame.
        self.setting = {"block": BLOCK, "steps": STEPS, "cfg": CFG, "temperature": TEMPERATURE,
                        "max_frames": frames, "min_frames": frames}
        self.growth: list[float] = []       # of resident memory, bytes per block after the first

    def speak(self) -> Blocks:
        raise NotImplementedError

    def run(self) -> None:
        """Fills ``clean`` and ``codes``."""
        marks = []
        for so_far in self.speak():
            marks.append(resident_bytes())
            self.clean, self.codes = so_far
        if len(marks) > 1:
            self.growth.append((marks[-1] - marks[0]) / (len(marks) - 1))


class Ours(Side):
    def __init__(self, blocks: int, scene: dict, state: dict[str, Tensor], dtype: torch.dtype):
        super().__init__(blocks)
        self.scene, self.model = scene, build("model", state, mtp=self.mtp, dtype=dtype)

    def speak(self) -> Blocks:
        return blocks_cached(self.model, demo_tokenizer(), **self.scene, **self.setting)


class Plain(Side):
    def __init__(self, blocks: int, scene: dict, state: dict[str, Tensor], config: BackboneConfig):
        super().__init__(blocks)
        self.model = PlainModel(state, Qwen3Config(
            hidden_size=config.width, num_hidden_layers=config.layers, num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads, head_dim=config.head_width, intermediate_size=config.hidden,
            vocab_size=config.text_rows, rms_norm_eps=config.norm_eps, attn_implementation="sdpa",
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta}))
        found = context(demo_tokenizer(), **scene)
        self.scene = found.ids, found.audio_mask, found.prompt

    def speak(self) -> Blocks:
        return plain_blocks(self.model, self.mtp, *self.scene, **self.setting)


def scene_of(columns: int) -> dict:
    """A voice, and a text as long as the context of so many columns needs it."""
    rng = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 1024, (NUM_CODEBOOKS, VOICE_FRAMES), generator=rng)
    scene = {"text": "a", "lang": "en", "prompt_codes": codes, "prompt_text": ""}
    return {**scene, "text": "a" * (1 + columns - context(demo_tokenizer(), **scene).ids.shape[1])}


def measure(chosen: argparse.Namespace) -> str:
    """Both sides in fp32, and in bf16."""
    config, scene, sides = BackboneConfig(), scene_of(CONTEXT), {}
    say("  making random weights of full size")
    state = random_weights()
    for dtype in (torch.float32,) if chosen.no_bf16 else (torch.float32, torch.bfloat16):
        held = state if dtype == torch.float32 else {name: tensor.to(dtype) for name, tensor in state.items()}
        kind = "fp32" if dtype == torch.float32 else "bf16"
        sides[f"plain, {kind}"] = Plain(chosen.blocks, scene, held, config)
        sides[f"ours, {kind}"] = Ours(chosen.blocks, scene, held, dtype)
    say("  speaking in turns")
    with torch.inference_mode():
        seconds = in_turns(chosen.runs, {name: side.run for name, side in sides.items()})

    lines = [f"Blocks: {chosen.blocks} of {BLOCK} frames after {CONTEXT} columns, guidance, {STEPS} steps; torch "
             f"{torch.__version__}\n",
             "| | the speech | a block | of plain | equal ids | states apart | memory a block |",
             "|---|---|---|---|---|---|---|"]
    for name, side in sides.items():
        plain = name.replace("ours", "plain")
        same = int((side.codes == sides[plain].codes).all(dim=0).sum())
        if same < len(side.clean) and "fp32" in name:
            raise RuntimeError(f"{name}: only {same} of {len(side.clean)} frames have the ids of the plain rendering.")
        apart = (side.mtp.heard - sides[plain].mtp.heard).abs().max().item()
        growth = f"{statistics.median(side.growth) / MB:.1f} MB" if side.growth else ""
        lines.append(f"| {name} | {seconds[name]:.2f} s | {seconds[name] / chosen.blocks:.2f} s "
                     f"| {seconds[name] / seconds[plain]:.2f} | {same} of {len(side.clean)} frames | {apart:.1e} "
                     f"| {growth} |")
    rows, ours = 2, sides["ours, fp32"].model.llm
    lines.append(f"\nA block takes {ours.cache_bytes(rows, BLOCK) / MB:.1f} MB of cache in fp32, which ours has from "
                 "the beginning. For bf16 this processor has "
                 f"{', '.join(bf16_features()) or 'no instructions'}.\n")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("runs", "threads", "blocks"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--no-bf16", action="store_true")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(chosen.threads)
    print(measure(chosen))


if __name__ == "__main__":
    main()
