"""Weight norm as files hold it: torch's own formula, each spelling, and what cannot be folded."""
from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kit.golden import assert_within
from speechwright.assembly import shapes_of
from speechwright.weight_norm import fold, folded_name, folded_shapes, unfolded_shapes

SPELLINGS = [("parametrizations.weight.original0", "parametrizations.weight.original1"), ("weight_g", "weight_v")]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("magnitude, direction", SPELLINGS)
@pytest.mark.parametrize("make", [
    lambda: nn.Conv1d(3, 5, 7), lambda: nn.ConvTranspose1d(3, 5, 4), lambda: nn.Conv2d(2, 3, (1, 4)),
    lambda: nn.Linear(4, 6)])
def test_folding_is_torch_s(make, magnitude, direction):
    """The norm is over all axes but the first, which in transposed convolutions is the input's."""
    net = nn.ModuleDict({"a": nn.utils.parametrizations.weight_norm(make(), dim=0)})
    for parameter in net.parameters():
        parameter.data.copy_(noise(*parameter.shape, seed=parameter.numel()))
    state = {name.replace(SPELLINGS[0][0], magnitude).replace(SPELLINGS[0][1], direction): tensor
             for name, tensor in net.state_dict().items()}
    folded = fold(state, "a.pt")
    assert folded.keys() == {"a.weight", "a.bias"} == set(map(folded_name, state))
    assert_within(folded["a.weight"], net["a"].weight.detach(), 1e-6)
    assert torch.equal(folded["a.bias"], net["a"].bias)
    assert folded_shapes(shapes_of(state)) == shapes_of(folded)


def test_shapes_there_and_back():
    shapes = unfolded_shapes("a.weight", (5, 3, 7))
    assert shapes == {f"a.{SPELLINGS[0][0]}": (5, 1, 1), f"a.{SPELLINGS[0][1]}": (5, 3, 7)}
    assert folded_shapes(shapes) == {"a.weight": (5, 3, 7)}


def test_what_has_no_norm_is_left_alone():
    state = {"a.weight": noise(2, 3).half(), "b.alpha": noise(3)}
    folded = fold(state, "a.pt")
    assert folded.keys() == state.keys() and all(folded[name] is state[name] for name in state)


def test_folding_in_double_precision():
    """Pitch is summed up over the whole speech: a rounded weight goes out of phase."""
    state = {"a.weight_g": noise(5, 1), "a.weight_v": noise(5, 4, seed=1)}
    exact = fold({name: tensor.double() for name, tensor in state.items()}, "a.pt", torch.float64)["a.weight"]
    assert torch.equal(fold(state, "a.pt", torch.float64)["a.weight"], exact) and exact.dtype == torch.float64
    assert 0 < (fold(state, "a.pt")["a.weight"] - exact).abs().max() < 1e-6


@pytest.mark.parametrize("state, text", [
    ({"a.weight_v": noise(3, 2)}, "a.weight_v: weight norm has a direction but no magnitude"),
    ({"a.weight_g": noise(3, 1)}, "a.weight_g: weight norm has a magnitude but no direction"),
    ({"a.weight_g": noise(2, 1), "a.weight_v": noise(3, 2)},
     r"a.weight_g: a magnitude of \(2, 1\) does not fit a direction of \(3, 2\)"),
    ({"a.weight_g": noise(3), "a.weight_v": noise(3)}, r"a.weight_g: a magnitude of .* does not fit a direction"),
    ({"a.weight": noise(3, 2), "a.weight_g": noise(3, 1), "a.weight_v": noise(3, 2)},
     "a.weight: the weight is there twice, the second time as a.weight_v"),
])
def test_what_does_not_fit(state, text):
    with pytest.raises(ValueError, match=f"^a.pt: {text}"):
        fold(state, "a.pt")


def test_a_flat_magnitude_scales_its_own_row():
    """Three numbers beside three taps: a broadcast over the wrong axis would go unseen."""
    v = noise(3, 2, 3)
    shaped = fold({"a.weight_g": torch.tensor([1.0, 2, 3]).view(3, 1, 1), "a.weight_v": v}, "a.pt")["a.weight"]
    assert torch.equal(fold({"a.weight_g": torch.tensor([1.0, 2, 3]), "a.weight_v": v}, "a.pt")["a.weight"], shaped)
    assert_within(shaped.flatten(1).norm(dim=1), torch.tensor([1.0, 2, 3]), 1e-6)
