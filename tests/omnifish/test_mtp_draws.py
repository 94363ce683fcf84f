"""The depth decoder: its draws, its errors, its sizes and names, and the demo's weights."""
from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from kit.golden import assert_within
from kit.mtp import TINY, blocks, decode, kept, speech, spoken, state_for, tiny_mtp
from kit.tiny import fill
from speechwright.assembly import shapes_of
from speechwright.omnifish.mtp import MTP, MTPConfig, pick, race, random_state

SHAPES = shapes_of(MTP(MTPConfig(), device="meta").state_dict())


# Draws


def test_temperature_0_knows_no_seed():
    assert torch.equal(spoken(5, 37, 16, seed=1)["codes"], spoken(5, 37, 16, seed=2)["codes"])
    assert torch.equal(spoken(5, 37, 16, top_k=3)["codes"], spoken(5, 37, 16)["codes"])


@pytest.mark.parametrize("top_k", [0, 5])
def test_a_seed_is_a_take(top_k):
    takes = [spoken(5, 21, 16, seed=seed, temperature=0.8, top_k=top_k)["codes"][1:, 5:]
             for seed in (1, 1, 2, 1 + 2**32, 1 + 2**64, -1)]
    assert torch.equal(takes[0], takes[1]) and torch.equal(takes[0], takes[4])
    for other in (2, 3, 5):
        assert (takes[0] != takes[other]).float().mean() > 0.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nobody_elses_random_numbers_are_used(temperature):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = spoken(5, 21, 8, temperature=temperature)["codes"]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    assert torch.equal(spoken(5, 21, 8, temperature=temperature)["codes"], first)


def test_noise_is_a_function_of_its_numbers():
    """The take with the next seed once began like the second block of this one."""
    shape = (16, 9, 4, 64)
    takes = [race(seed, frame, shape).flatten() for seed, frame in ((0, 0), (0, 1), (1, 0), (0, 16), (2**32, 0))]
    together = torch.stack(takes)
    assert (torch.corrcoef(together) - torch.eye(5)).abs().max() < 0.02
    assert together.min() > 0 and together.device.type == "cpu" and together.dtype == torch.float32
    assert torch.equal(race(0, 16, (5, 9, 4, 64)), race(0, 16, shape)[:5])
    assert together.mean() == pytest.approx(1, abs=0.01) and together.std() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("temperature, top_k", [(1.0, 0), (0.5, 0), (2.0, 3), (1.0, 99)])
def test_ids_are_drawn_by_their_probability(temperature, top_k):
    scores = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, -30.0]).expand(40_000, -1)
    expected = scores[0] / temperature
    if top_k == 3:
        expected = torch.where(scores[0] >= 1, expected, float("-inf"))
    expected = expected.softmax(dim=0)
    ids, chance = pick(scores, temperature, top_k, race(0, 0, tuple(scores.shape)))
    assert_within(torch.bincount(ids, minlength=6) / len(ids), expected, 0.01)
    assert_within(chance, expected[ids], 1e-6)


def test_the_likeliest_id_and_its_probability():
    scores = torch.tensor([[1.0, 2.0, 2.0, 0.0]])
    ids, chance = pick(scores, 0.0, 1, None)
    assert ids.tolist() == [1] and float(chance) == pytest.approx(float(scores.softmax(dim=1)[0, 1]))
    assert pick(scores, 1e-40, 0, torch.ones(1, 4))[0].tolist() == [1]
    assert pick(scores[:, [0, 1, 3]], 5.0, 1, race(0, 0, (1, 3)))[0].tolist() == [1]


def test_equally_sure_frames_are_fixed_in_order():
    masked, ids = torch.full((6,), TINY.residual_rows), torch.arange(6)
    own = tiny_mtp()._fix(masked, ids, torch.tensor([0.5, 0.5, 0.9, 0.5, 0.5, 0.1]), 3)
    assert own.tolist() == [0, 1, 2] + [TINY.residual_rows] * 3
    own = tiny_mtp()._fix(own, ids + 10, torch.ones(6), 2)
    assert own.tolist() == [0, 1, 2, 13, 14, TINY.residual_rows]


# Errors


@pytest.mark.parametrize("frame, codebook, code, most", [
    (0, 0, 4096, 4095), (2, 0, -1, 4095), (4, 9, 1024, 1023), (9, 3, 4096, 1023), (3, 1, -5, 1023),
    (13, 0, 4097, 4095),
])
@pytest.mark.parametrize("primed", [True, False])
def test_codes_without_a_row(frame, codebook, code, most, primed):
    """An embedding of such an id is a crash of the whole process on a GPU."""
    state = state_for(*speech(21), 13)
    state["codes"][codebook, frame] = code
    with pytest.raises(ValueError, match=rf"id {code} at frame {frame} of codebook {codebook}, which has 0\.\.{most}"):
        if primed:
            tiny_mtp().prime(state, 5)
        tiny_mtp().decode_block(state, 13, 21, 8, prefix=5)
    assert state["codes"][1:, 13:].eq(4096).all()


def test_frames_that_were_left_out():
    state = state_for(*speech(29), 5)
    with pytest.raises(ValueError, match=r"id 4096 at frame 5 of codebook 1, .* Decode blocks in order"):
        tiny_mtp().decode_block(state, 13, 21, 8, prefix=5)


def test_scores_that_are_no_numbers():
    """They would be drawn from all the same, and heard as noise."""
    state = state_for(*speech(21), 13)
    state["states"][0][0, 17, 3] = float("nan")
    with pytest.raises(ValueError, match="scores of the frames 13 to 20 are NaN or infinite.* fp32 or bf16"):
        tiny_mtp().decode_block(state, 13, 21, 8, prefix=5)
    assert state["codes"][1:, 13:].eq(4096).all()
    state["states"][0][0, 17, 3] = 0
    assert decode(state, 5, 21, 8, start=13)[1:].max() < 1024


def test_one_head_that_gives_no_numbers():
    """What it scores is read by no layer, so nothing below it tells."""
    broken = copy.deepcopy(tiny_mtp())
    broken.heads[3].weight[7, 2] = float("inf")
    state = state_for(*speech(21), 13)
    with pytest.raises(ValueError, match="scores of the frames 13 to 20 are NaN or infinite"):
        broken.decode_block(state, 13, 21, 8, prefix=5)
    assert state["codes"][1:, 13:].eq(4096).all()


@pytest.mark.parametrize("options, text", [
    ({"block": 0}, "block: 0 is not possible; give 1 or more"),
    ({"rounds": 0}, "rounds: 0 is not possible"),
    ({"temperature": -0.1}, "temperature: -0.1 is not possible; give 0 or more"),
    ({"temperature": float("nan")}, "temperature: nan"), ({"temperature": float("inf")}, "temperature: inf"),
    ({"top_k": -1}, "top_k: -1 is not"),
    ({"lo": 6}, "frames 6 to 13 of 21 are not one of the blocks of 8 that follow 5 frames of prompt"),
    ({"hi": 14}, "frames 5 to 14 of 21"), ({"lo": 21, "hi": 29}, "frames 21 to 29 of 21"), ({"hi": 4}, "5 to 4 of 21"),
    ({"prefix": 6}, "that follow 6 frames"), ({"prefix": -3}, "that follow -3 frames"),
])
def test_options_that_are_not_possible(options, text):
    state = state_for(*speech(21), 5)
    with pytest.raises(ValueError, match=text):
        tiny_mtp().decode_block(state, **{"lo": 5, "hi": 13, "block": 8, "prefix": 5, **options})


@pytest.mark.parametrize("frames", [-1, 22])
def test_prompts_that_do_not_fit(frames):
    with pytest.raises(ValueError, match=f"prompt: {frames} frames do not fit a state of 21"):
        tiny_mtp().prime(state_for(*speech(21), 5), frames)


def test_states_of_another_backbone():
    with pytest.raises(ValueError, match="states of 32 channels, and it reads 24"):
        tiny_mtp().new_state(5, 32, "cpu", torch.float32)


# Sizes, names, weights


def test_full_size():
    """192 million weights, which make 0.8 billion with the backbone and its tables."""
    assert MTPConfig.from_shapes(SHAPES) == MTPConfig()
    assert sum(torch.Size(shape).numel() for shape in SHAPES.values()) == 191_947_008
    assert MTPConfig.from_shapes(shapes_of(tiny_mtp().state_dict())) == TINY


def test_names():
    layer = ["in_proj", "own_code", "norm_code", "norm_state", "norm_attention", "norm_mlp", "norm_out"]
    layer += [f"attention.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]
    layer += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    expected = {f"layers.{depth}.{part}.weight" for depth in range(9) for part in layer}
    expected |= {f"{part}.{depth}.weight" for depth in range(9) for part in ("embeddings", "heads")}
    assert set(SHAPES) == expected
    assert [SHAPES[f"embeddings.{depth}.weight"][0] for depth in range(9)] == [4096] + [1024] * 8
    assert SHAPES["layers.8.own_code.weight"] == (1025, 1024)
    assert SHAPES["layers.0.in_proj.weight"] == (1024, 2048) and SHAPES["heads.8.weight"] == (1024, 1024)


@pytest.mark.parametrize("name", [
    "layers.0.attention.q_proj.weight", "layers.0.attention.q_norm.weight", "layers.0.mlp.gate_proj.weight",
    "embeddings.0.weight"])
def test_what_is_missing_is_named(name):
    with pytest.raises(KeyError, match=name):
        MTPConfig.from_shapes({other: shape for other, shape in SHAPES.items() if other != name})


@pytest.mark.parametrize("changed, text", [
    ({"heads.9.weight": (1024, 1024)}, "9 heads, one for each residual codebook, and found 10"),
    ({"layers.0.attention.q_proj.weight": (2000, 1024)}, "heads of 128 channels, and found 2000 of queries and 1024"),
    ({"layers.0.attention.k_proj.weight": (1000, 1024)}, "found 2048 of queries and 1000 of keys"),
    ({"layers.0.attention.k_proj.weight": (0, 1024)}, "found 2048 of queries and 0 of keys"),
    ({"layers.0.attention.q_norm.weight": (0,)}, "heads of 0 channels"),
    ({"layers.0.attention.q_norm.weight": (1,)}, "heads of 1 channels"),
])
def test_odd_shapes(changed, text):
    with pytest.raises(ValueError, match=text):
        MTPConfig.from_shapes({**SHAPES, **changed})


def test_precision():
    """Layers take the precision that is asked for; norms, and the scores that are drawn from, are float32."""
    mtp = MTP(TINY, device="meta", dtype=torch.bfloat16)
    for name, tensor in mtp.state_dict().items():
        assert tensor.dtype == (torch.float32 if "norm" in name or name.startswith("heads.") else torch.bfloat16)


@torch.no_grad()
def test_bfloat16_is_near_float32():
    coarse = MTP(TINY, dtype=torch.bfloat16)
    coarse.load_state_dict(tiny_mtp().state_dict())
    codes, hidden = speech(21)
    found = []
    for mtp in (tiny_mtp(), coarse):
        state = mtp.new_state(21, TINY.width, "cpu", torch.float32)
        state["codes"].copy_(codes)
        state["states"][0].copy_(hidden)
        mtp.prime(state, 13)
        found.append(torch.stack(kept(state))[..., :13, :].float())
        mtp.decode_block(state, 13, 21, 8, temperature=1.0, prefix=13)
        assert 0 <= int(state["codes"][1:].min()) <= int(state["codes"][1:].max()) <= 1023
    assert state["cache"].keys.dtype == torch.bfloat16
    assert 0 < (found[0] - found[1]).std() < 0.03 * found[0].std()


def test_layers_come_from_whoever_moves_the_weights(comfyui_folder):
    import comfy.ops
    mtp = fill(MTP(TINY, comfy.ops.manual_cast, "meta"), "mtp.")
    linear = [module for name, module in mtp.named_modules() if name.endswith(("proj", "own_code"))]
    linear += [*mtp.heads, *mtp.embeddings]
    assert len(linear) == 9 * 11 and all(isinstance(layer, comfy.ops.CastWeightBiasOp) for layer in linear)
    state = state_for(*speech(21), 5)
    mtp.decode_block(state, 5, 21, 16, prefix=5)
    assert torch.equal(state["codes"], spoken(5, 21, 16)["codes"])


def test_another_id_for_what_is_not_decided():
    mtp = MTP(dataclasses.replace(TINY, mask_id=4098), device="meta")
    assert mtp.new_state(3, TINY.width, "cpu", torch.float32)["codes"].eq(4098).all()


# The demo's weights


def test_random_weights():
    state = random_state(TINY, seed=1)
    assert shapes_of(state) == shapes_of(tiny_mtp().state_dict())
    assert all(torch.equal(tensor, again) for tensor, again in zip(state.values(), random_state(TINY, 1).values()))
    assert not torch.equal(state["heads.0.weight"], random_state(TINY, seed=2)["heads.0.weight"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_random_weights_make_noise_of_many_codes(temperature):
    """One code held for seconds is a tone, and hides what the other codes of a codebook would do."""
    mtp = MTP(TINY)
    mtp.load_state_dict(random_state(TINY))
    state = state_for(*speech(64), 0)
    for lo, hi in blocks(0, 64, 16):
        mtp.decode_block(state, lo, hi, 16, temperature=temperature)
    assert all(len(set(row)) > 32 for row in state["codes"][1:].tolist())
