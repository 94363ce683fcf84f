"""Trains the demo voice's language model: the pack's Qwen2 design, small, from text ids to speech tokens.

Tables of speech tokens, in and out, are sums over a token's digits and a part of its own, so that what is learned
of one token serves its neighbours; they are baked into plain tables in the end. A row is one utterance, or two in
the order of a prompt and what goes on from it: both texts, then both speeches. The design is CosyVoice2's, whose
table of text ends where the tokenizer does; CosyVoice3 has a control id in row 151 646 of its. The forward pass is the
pack's without its cache.
"""
from __future__ import annotations

import random

import numpy as np
import pack
import torch
import torch.nn.functional as F
from encode import TEXT_ROWS, text_tokenizer
from speech import Speech, Utterance
from tokenizer import digits_of
from torch import Tensor, nn
from trainer import arguments, train

from speechwright.cosyvoice3.config import TEXT_TABLE, LMConfig
from speechwright.cosyvoice3.lm import SpeechLM
from speechwright.cosyvoice3.weights import own_shapes
from speechwright.qwen import rotate, rotation

CONFIG = LMConfig(version=2, width=128, layers=5, heads=4, kv_heads=2, hidden=288, text_rows=TEXT_ROWS)
IDS = CONFIG.ids
START, TASK = IDS.rows, IDS.rows + 1    # rows of the table of control, behind that of speech
COLUMNS = 2600                  # of a batch, padding included
PAIRED = 0.3                    # rows that are a prompt and what goes on from it
LONGEST = 700                   # columns of a row
IGNORED = -100
PICKED = 8                      # batches whose utterances are sorted by length at once


class Digits(nn.Module):
    """A table of speech rows: sums over digits, and what each row has of its own."""

    def __init__(self, rows: int, width: int):
        super().__init__()
        self.digits = nn.Parameter(0.3 * torch.randn(3 * 8, width))
        self.pairs = nn.Parameter(0.1 * torch.randn(9 * 4, width))
        self.own = nn.Parameter(torch.zeros(rows, width))
        with torch.no_grad():
            self.own[IDS.vocabulary :] = 0.5 * torch.randn(rows - IDS.vocabulary, width)
        digit = digits_of(torch.arange(IDS.vocabulary)).long() + 1                      # (V, 8)
        one = F.one_hot(digit, 3).flatten(1)
        two = F.one_hot(digit[:, ::2] * 3 + digit[:, 1::2], 9).flatten(1)
        self.register_buffer("which", torch.cat((one, two), dim=1).float(), persistent=False)

    def forward(self) -> Tensor:
        """(rows, D)"""
        shared = self.which @ torch.cat((self.digits, self.pairs))
        return self.own + F.pad(shared, (0, 0, 0, len(self.own) - len(shared)))


class Model(nn.Module):
    """The language model as it is trained."""

    def __init__(self):
        super().__init__()
        self.net = SpeechLM(CONFIG)
        for parameter in self.net.parameters():
            if parameter.ndim == 1:
                nn.init.ones_(parameter)
        for name, parameter in self.net.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        self.text = nn.Parameter(0.5 * torch.randn(CONFIG.text_rows, CONFIG.width))
        self.table, self.head = Digits(IDS.rows, CONFIG.width), Digits(IDS.rows, CONFIG.width)
        self.control = nn.Parameter(0.5 * torch.randn(2, CONFIG.width))
        self.bias = nn.Parameter(torch.zeros(IDS.rows))
        with torch.no_grad():
            for part in (self.head.digits, self.head.pairs, self.head.own):
                part *= 0.1
        self.net.speech_embedding = self.net.llm_embedding = self.net.llm_decoder = None

    def forward(self, ids: Tensor, spoken: Tensor) -> tuple[Tensor, Tensor]:
        """int64 (B, L), bool (B, L) false where an id is of the text -> states (B, L, D), head (rows, D)"""
        table = torch.cat((self.text, self.table(), self.control))
        x = F.embedding(ids + spoken * len(self.text), table)
        decoder = self.net.decoder
        turn = rotation(torch.arange(ids.shape[1]).expand(1, -1), CONFIG)
        for layer in decoder.layers:
            own = layer.self_attn
            h = layer.input_layernorm(x)
            q, k, v = (linear(h).unflatten(-1, (-1, CONFIG.head_width))
                       for linear in (own.q_proj, own.k_proj, own.v_proj))
            q, k, v = (part.transpose(1, 2) for part in (rotate(q, *turn), rotate(k, *turn), v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + own.o_proj(mixed.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return decoder.norm(x), self.head()


def published(module: Model) -> dict[str, Tensor]:
    """The weights by the published names, in float16."""
    state = {name: tensor for name, tensor in module.state_dict().items() if name.startswith("net.")}
    state = {name.removeprefix("net."): tensor for name, tensor in state.items()}
    state |= {TEXT_TABLE: module.text, "speech_embedding.weight": module.table(),
              "llm_embedding.weight": module.control,
              "llm_decoder.weight": module.head(), "llm_decoder.bias": module.bias}
    names = own_shapes(SpeechLM(CONFIG, device="meta"))
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == names
    return {name: tensor.detach().half().contiguous() for name, tensor in state.items()}


class Rows:
    """Utterances as rows of ids."""

    def __init__(self, speech: Speech, tokens: np.ndarray, encode):
        self.tokens = tokens
        self.heard = [one for one in speech.utterances if one.start + one.tokens <= len(tokens)]
        self.texts = {one.start: encode(one.text) for one in self.heard}

    def row(self, said: list[Utterance]) -> tuple[list[int], int]:
        """Ids, and how many there are before the first speech token."""
        text = [number for one in said for number in self.texts[one.start]]
        speech = [number for one in said for number in self.tokens[one.start : one.start + one.tokens].tolist()]
        front = [START, *text, TASK]
        return [*front, *speech, IDS.eos], len(front)

    def batch(self, rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
        """ids (B, L), which are of the speech table, what is to follow each or ``IGNORED``"""
        drawn = []
        for _ in range(PICKED * COLUMNS // 140):
            said = rng.sample(self.heard, 1 + (rng.random() < PAIRED))
            row, front = self.row(said)
            if len(row) <= LONGEST:
                drawn.append((row, front))
        drawn.sort(key=lambda pair: len(pair[0]))
        place = rng.randrange(len(drawn))
        length = len(drawn[place][0])
        rows = drawn[max(0, place - max(1, COLUMNS // length) + 1) : place + 1]
        ids = torch.zeros(len(rows), length, dtype=torch.int64)
        spoken = torch.zeros(len(rows), length, dtype=torch.bool)
        follows = torch.full((len(rows), length), IGNORED)
        for index, (row, front) in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            spoken[index, 0], spoken[index, front - 1 :] = True, True
            follows[index, front - 1 : len(row) - 1] = torch.tensor(row[front:])
        return ids, spoken, follows


def main() -> None:
    given = arguments(__doc__, steps=6000, rate=2e-3, rows=1).parse_args()
    torch.manual_seed(given.seed)
    texts = text_tokenizer(given.folder)
    rows = Rows(Speech(given.data), np.memmap(given.data / "tokens.bin", np.int16, "r"), texts.encode)
    module = Model()

    def loss(rng: random.Random, step: int) -> dict[str, Tensor]:
        ids, spoken, follows = rows.batch(rng)
        states, head = module(ids, spoken)
        asked = follows != IGNORED
        scores, wanted = F.linear(states[asked], head, module.bias), follows[asked]
        with torch.no_grad():
            right = (scores.argmax(-1) == wanted).float().mean()
        return {"nats": F.cross_entropy(scores, wanted), "_right": right, "_rows": torch.tensor(float(len(ids)))}

    average = train("lm", module, given, loss, decay=0.05)
    module.load_state_dict(average)
    pack.write(published(module), given.folder / "llm.safetensors")


if __name__ == "__main__":
    main()
