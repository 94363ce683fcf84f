"""Windows over long pieces, and pieces and rows in turn, with speakers that do nothing but count."""
from __future__ import annotations

import pytest
import torch

from speechwright.s3gen import pieces
from speechwright.wires import S3_V2, Piece, SpeechTokens


@pytest.mark.parametrize("count, windows", [
    (1, [(0, 1)]), (749, [(0, 749)]), (750, [(0, 750)]), (751, [(0, 750), (650, 751)]),
    (1400, [(0, 750), (650, 1400)]), (1401, [(0, 750), (650, 1400), (1300, 1401)]),
])
def test_windows(count, windows):
    assert pieces.windows(count) == windows


@pytest.mark.parametrize("count", [1, 750, 751, 1401])
@pytest.mark.parametrize("prompt", [0, 7])
def test_each_window_has_its_own_ids_and_noise(count, prompt):
    """A flow that gives back what it was told to start from: what comes out is the noise behind the voice's."""
    ids, z = torch.arange(count), torch.arange(prompt + 2 * count).float().expand(3, -1)

    def flow(own: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        assert torch.equal(noise[:, :prompt], z[:, :prompt])
        assert torch.equal(noise[0, prompt::2], prompt + 2.0 * own)
        return noise[None, :, prompt:]

    assert torch.equal(pieces.mel_in_windows(ids, z, flow)[0], z[:, prompt:])


def test_seeds_pauses_and_steps():
    def piece(count: int, pause_s: float = 0.0) -> Piece:
        return Piece(torch.zeros(1, count, dtype=torch.int64), pause_s)

    tokens = SpeechTokens(S3_V2, 25.0, ((piece(3, 0.5), piece(4), piece(760)), (piece(5),)))
    asked, seen = [], []

    def say(piece: Piece, seed: int, after_silence: bool, advance) -> torch.Tensor:
        asked.append((piece.ids.shape[1], seed, after_silence))
        for _ in pieces.windows(piece.ids.shape[1]):
            advance(2)
        return torch.full((10,), float(seed))

    first, second = pieces.speak(tokens, say, 7, 2, 100, 0.0, lambda *at: seen.append(at))
    assert asked == [(3, 7, True), (4, 8, True), (760, 9, False), (5, 8, True)]
    assert seen == [(done, 10) for done in (2, 4, 6, 8, 10)]
    assert first.tolist() == [7.0] * 10 + [0.0] * 50 + [8.0] * 10 + [9.0] * 10 and second.tolist() == [8.0] * 10


def test_longest_piece_and_window():
    tokens = SpeechTokens(S3_V2, 25.0, (
        (Piece(torch.zeros(1, 20, dtype=torch.int64)),), (Piece(torch.zeros(1, 900, dtype=torch.int64)),)))
    assert pieces.longest(tokens, {"prompt_token_len": torch.tensor([30])}) == (1800, 1560)
