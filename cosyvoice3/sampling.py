"""Repetition-aware sampling of the next speech token, and the random numbers that it stands on.

An id is drawn from a nucleus (top-p, top-k). Where it has been heard too often of late it is drawn once
more, from all other ids: the way out of a nucleus that has collapsed to silence (VALL-E 2,
https://arxiv.org/abs/2406.05370; here the repeated id takes no part in the second draw).

Random numbers are a hash of (seed, step, salt, id). Nothing is carried from one call to the next, so a
row draws the same ids on every device, in every batch and at every place in it. Both draws are made for
each row, each with noise of its own: one fixed program without a branch or a look at the data, which
``torch.compile`` and CUDA graphs can take whole. With shared noise the second draw would favour the ids
that the nucleus had left out.
"""
from __future__ import annotations

import torch
from torch import Tensor

MAX_TOP_K = 64      # ids that are sorted, so the most that a nucleus may hold
FIRST_DRAW, SECOND_DRAW = 1, 2      # salts

UNIFORM_BITS = 23   # with 24, the half step that keeps 1.0 away would itself round up to 1.0 in float32
LOWEST = torch.finfo(torch.float32).min
SMALLEST_TEMPERATURE = 1e-20        # any logit over it is still finite


def _int64(value: int) -> int:
    """The two's complement reading of ``value`` modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63


# Odd numbers whose bits look random, the fractions of the golden ratio and of the square roots of 2 and 3; and
# the multipliers of SplitMix64 (Steele et al. 2014, doi 10.1145/2660193.2660195).
SEED_STEP = _int64(0x9E3779B97F4A7C15)
SALT_STEP = 0x6A09E667F3BCC909
RETRY_STEP = 0xBB67AE8584CAA73B
MULTIPLIERS = (_int64(0xBF58476D1CE4E5B9), _int64(0x94D049BB133111EB))


def fold_seed(seed: int, piece: int = 0, retry: int = 0) -> int:
    """The int64 seed of one take, from any integer; all 64 bits of it count, and ``piece`` is added.

    A retry goes far off: were it the next seed, the take after this one would repeat it.
    """
    return _int64(seed + piece + retry * RETRY_STEP)


def _mix_(x: Tensor) -> Tensor:
    """int64 of any shape, in place; its upper bits then depend on every bit that it had.

    SplitMix64's finalizer without its last step, which leaves the upper bits alone. Products wrap, and ``>>``
    copies the sign: that halves the 2**64 states, which nobody can tell from the few bits that are used.
    """
    x ^= x >> 30
    x *= MULTIPLIERS[0]
    x ^= x >> 27
    x *= MULTIPLIERS[1]
    return x


def _unit(hashed: Tensor) -> Tensor:
    """int64 -> float32 strictly between 0 and 1: the upper bits, and half a step. Exact in each operation."""
    steps = (hashed >> (64 - UNIFORM_BITS)).to(torch.float32)       # -2**22 .. 2**22 - 1
    steps += 2 ** (UNIFORM_BITS - 1) + 0.5
    steps *= 2.0**-UNIFORM_BITS
    return steps


def _key(seed: Tensor, step: Tensor) -> Tensor:
    """(B,), (B,) -> (B, 1), where the hashes of a row start."""
    return _mix_(seed * SEED_STEP + step)[:, None]


def _uniform(key: Tensor, salt: int, ids: Tensor) -> Tensor:
    """(B, 1) and ids (N,) or (B, N) -> (B, N) in (0, 1), each from its row's key and its id alone."""
    # Not ids times a constant: a compiler that knows the ids for loop counters may take it that no such
    # product overflows, and then has the loop run past its end.
    return _unit(_mix_(key + _int64(salt * SALT_STEP) + ids))


def hashed_uniform(seed: Tensor, step: Tensor, salt: int, n: int) -> Tensor:
    """Uniform float32 (B, n) strictly between 0 and 1, a function of (seed[b], step[b], salt, j) alone.

    seed, step: int64 (B,). Integers wrap, so devices agree to the bit.
    """
    return _uniform(_key(seed, step), salt, torch.arange(n, device=seed.device))


def _largest(mass: Tensor, count: int, everything: Tensor) -> Tensor:
    """(B, V) not negative, all ids (V,) -> int64 (B, count) ids, largest first, equals in the order of ids.

    ``topk`` promises no order among equals, so it is given integers without equals: the bits of a float
    that is not negative rank as it does, and below them the id counts down.
    """
    ranks = mass.view(torch.int32).to(torch.int64)
    ranks <<= 32
    ranks -= everything
    return ranks.topk(count).indices


def ras_draw(
    logits: Tensor, *, seed: Tensor, step: Tensor, history: Tensor, temperature: Tensor, top_p: Tensor,
    top_k: Tensor, window: Tensor, repeat_threshold: Tensor, blocked: Tensor,
) -> tuple[Tensor, Tensor]:
    """As ``ras_sample``, and bool (B,): whether the id comes from the second draw."""
    everything = torch.arange(logits.shape[1], device=logits.device)
    key = _key(seed, step)
    warm = temperature > 0
    logits = torch.where(blocked, float("-inf"), logits.float())
    logits = logits / temperature.float().clamp_min(SMALLEST_TEMPERATURE)[:, None]
    mass = logits.softmax(dim=1)

    # First draw, from a nucleus cut from the mass of all ids: the one that crosses top_p belongs to it, and
    # without warmth the likeliest alone. -log(u) is an exponential waiting time; the id for which it is the
    # shortest by measure of its mass is a draw by mass.
    ids = _largest(mass, min(MAX_TOP_K, logits.shape[1]), everything)                       # (B, K)
    mass = mass.gather(1, ids)
    before = mass.cumsum(dim=1)[:, :-1]                         # of all but the first, which always stays
    left_out = (before >= top_p[:, None]) | (everything[1 : ids.shape[1]] >= (top_k * warm)[:, None])
    mass[:, 1:].masked_fill_(left_out, 0)
    pace = mass / -_uniform(key, FIRST_DRAW, ids).log()
    first = ids.gather(1, pace.argmax(dim=1, keepdim=True))                                 # (B, 1)

    slot = torch.arange(history.shape[1], device=history.device)
    recent = slot >= history.shape[1] - window[:, None]
    repeats = ((history == first) & recent).sum(dim=1)
    redrawn = (repeats >= repeat_threshold) & (repeat_threshold > 0) & warm

    # Second draw, over all ids, by logarithms, for what is left beside a very likely first id may have a mass
    # of 0 in float32. The first id falls below any other, yet not below the blocked: with no other, it stays.
    waiting = _uniform(key, SECOND_DRAW, everything).log_().neg_().log_()
    second = (logits - waiting).scatter_(1, first, LOWEST).argmax(dim=1)
    return torch.where(redrawn, second, first[:, 0]), redrawn


def ras_sample(
    logits: Tensor, *, seed: Tensor, step: Tensor, history: Tensor, temperature: Tensor, top_p: Tensor,
    top_k: Tensor, window: Tensor, repeat_threshold: Tensor, blocked: Tensor,
) -> Tensor:
    """One id for each row, int64 (B,), on the device of the logits.

    logits: float (B, V); see ``check_logits``.
    seed, step: int64 (B,). The same two numbers draw the same id, so each draw needs another step.
    history: int (B, W), the last W ids drawn, newest last, -1 where there are fewer.
    temperature: float (B,); 0 takes the likeliest id that is not blocked, and never redraws.
    top_p: float (B,). Ids are kept, likeliest first, as long as the mass before them is below it.
    top_k: int (B,), at most ``MAX_TOP_K``. The likeliest id is always kept.
    window: int (B,), at most W: how many of the newest ids are searched for the one drawn.
    repeat_threshold: float (B,): how often it must be among them to be drawn anew; 0 or less: never.
    blocked: bool (B, V), ids that neither draw may return and whose mass does not count.
    """
    return ras_draw(
        logits, seed=seed, step=step, history=history, temperature=temperature, top_p=top_p, top_k=top_k,
        window=window, repeat_threshold=repeat_threshold, blocked=blocked)[0]


def drawable(logits: Tensor, blocked: Tensor) -> Tensor:
    """(B, V), (B, V) -> bool (B,): whether a row has a finite score that is not blocked, no NaN and no +inf."""
    return torch.where(blocked & ~logits.isnan(), float("-inf"), logits).amax(dim=1).isfinite()


def check_logits(logits: Tensor, blocked: Tensor | None = None) -> None:
    """``ValueError`` for a row of (B, V) from which nothing can be drawn. Waits for the device."""
    blocked = torch.zeros_like(logits, dtype=torch.bool) if blocked is None else blocked
    for index in (~drawable(logits, blocked)).nonzero()[:1, 0].tolist():
        row, free = logits[index], int((~blocked[index]).sum())
        raise ValueError(
            f"language model: row {index} has {int(row.isnan().sum())} NaN, {int(row.isposinf().sum())} +inf and "
            f"{int((row.isfinite() & ~blocked[index]).sum())} usable scores among its {free} allowed ids, so no "
            "token can be drawn. Load the model in fp32 or bf16 (fp16 overflows), and check its file.")
