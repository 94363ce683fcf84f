"""Linear layers: oneDNN's products are MKL's up to rounding, and are asked for only where they are quicker."""
from __future__ import annotations

import comfy.ops
import pytest
import torch
from torch import nn

from speechwright import products
from speechwright.assembly import UNFILLED

WIDTH, OUT = 96, 80


@pytest.fixture(params=[UNFILLED, products.quick(comfy.ops.disable_weight_init), products.quick(comfy.ops.manual_cast)],
                ids=["torch", "ComfyUI", "ComfyUI, cast"])
def layer(request) -> nn.Linear:
    """A layer with weights, of each of the kinds that networks are built from."""
    rng = torch.Generator().manual_seed(0)
    layer = request.param.Linear(WIDTH, OUT, bias=True, device="cpu", dtype=torch.float32)
    layer.load_state_dict({"weight": torch.randn(OUT, WIDTH, generator=rng), "bias": torch.randn(OUT, generator=rng)})
    return layer.requires_grad_(False)


@pytest.fixture
def asked(monkeypatch) -> list[tuple[int, ...]]:
    """Shapes for which oneDNN was asked, on a processor where it is said to be quicker, whatever the size."""
    shapes = []
    convert = torch.Tensor.to_mkldnn

    def watched(x, *arguments):
        shapes.append(tuple(x.shape))
        return convert(x, *arguments)

    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "LEAST_WORK", 0)
    monkeypatch.setattr(torch.Tensor, "to_mkldnn", watched)
    return shapes


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [(WIDTH,), (1, WIDTH), (7, WIDTH), (2, 3, WIDTH), (2, 3, 4, WIDTH)])
def test_the_same_numbers(layer, asked, shape):
    x = random(*shape)
    expected = nn.functional.linear(x, layer.weight, layer.bias)
    found = layer(x)
    assert found.shape == expected.shape and found.layout == torch.strided and found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert asked == ([] if getattr(layer, "comfy_cast_weights", False) else [shape])


@pytest.mark.parametrize("shape", [(0, WIDTH), (2, 0, WIDTH)])
def test_no_rows(layer, asked, shape):
    assert layer(random(*shape)).shape == (*shape[:-1], OUT) and not asked


def test_rows_do_not_see_each_other(layer, asked):
    x = random(5, WIDTH)
    torch.testing.assert_close(layer(x)[2:3], layer(x[2:3]), rtol=1e-5, atol=1e-5)


def test_inputs_of_any_stride(layer, asked):
    x = random(WIDTH, 6).t()
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


def test_other_precisions_and_gradients_are_left_to_torch(asked):
    layer = UNFILLED.Linear(WIDTH, OUT, bias=False)
    layer.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    layer(random(4, WIDTH)).sum().backward()
    assert layer.weight.grad.isfinite().all()
    layer.requires_grad_(False).bfloat16()
    assert layer(random(4, WIDTH).bfloat16()).dtype == torch.bfloat16
    layer.float()
    layer.weight.data = layer.weight.data.t().contiguous().t()
    layer(random(4, WIDTH))
    assert layer.to("meta")(torch.empty(4, WIDTH, device="meta")).is_meta
    assert not asked


def test_small_products_and_other_processors_are_left_to_torch(asked, monkeypatch):
    layer = UNFILLED.Linear(WIDTH, OUT, bias=False).requires_grad_(False)
    nn.init.zeros_(layer.weight)
    monkeypatch.setattr(products, "LEAST_WORK", 4 * WIDTH * OUT)
    layer(random(4, WIDTH))
    assert asked == []
    layer(random(5, WIDTH))
    assert asked == [(5, WIDTH)]
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    layer(random(5, WIDTH))
    assert asked == [(5, WIDTH)]


@pytest.mark.parametrize(("maker", "capability", "faster"), [
    ("vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC", "AVX512", True),
    ("AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD", "AVX512", True),
    ("AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD", "AVX2", False),
    ("Intel64 Family 6 Model 85 Stepping 7, GenuineIntel", "AVX512", False),
    ("", "DEFAULT", False)])
def test_which_processors(monkeypatch, maker, capability, faster):
    monkeypatch.setattr(products, "_maker", lambda: maker)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products.onednn_is_faster.__wrapped__() is faster
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert products.onednn_is_faster.__wrapped__() is False


def test_the_processor_is_asked_without_starting_a_program():
    assert isinstance(products._maker(), str)


def test_a_layer_keeps_its_names_and_kind():
    for operations in (comfy.ops.disable_weight_init, comfy.ops.manual_cast):
        layer = products.quick(operations).Linear(3, 2, device="meta")
        assert isinstance(layer, operations.Linear) and set(layer.state_dict()) == {"weight", "bias"}
