"""Repetition-aware sampling is one program of fixed shape, whatever the data: the ground for CUDA graphs."""
from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from kit.ras import motley
from speechwright.cosyvoice3.sampling import ras_draw, ras_sample


class Sampler(torch.nn.Module):
    def forward(self, logits, seed, step, history, temperature, top_p, top_k, window, repeat_threshold, blocked):
        return ras_sample(
            logits, seed=seed, step=step, history=history, temperature=temperature, top_p=top_p, top_k=top_k,
            window=window, repeat_threshold=repeat_threshold, blocked=blocked)


def test_export_is_one_program_for_any_batch():
    """Nothing in it asks the host for a value or for float64."""
    logits, setting = motley(3, 90)
    rows = torch.export.Dim("rows")
    shapes = {name: {0: rows} for name in ("logits", *setting)}
    program = torch.export.export(Sampler(), (logits,), setting, dynamic_shapes=shapes)
    values = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    assert {value.dtype for value in values} <= {torch.float32, torch.int32, torch.int64, torch.bool}
    names = " ".join(str(node.target) for node in program.graph.nodes)
    assert "aten.topk" in names
    assert not any(word in names for word in ("aten.item", "local_scalar", "nonzero", "cond", "masked_select"))
    for count in (3, 5):
        logits, setting = motley(count, 90, seed=1)
        assert torch.equal(program.module()(logits, **setting), ras_sample(logits, **setting))


def test_runs_without_data():
    """On ``meta`` no tensor has a value, so whatever looked at one would raise."""
    logits, setting = motley(3, 90)
    drawn = ras_sample(logits.to("meta"), **{name: tensor.to("meta") for name, tensor in setting.items()})
    assert drawn.shape == (3,) and drawn.dtype == torch.int64


# Without a C++ compiler the graph is captured all the same, and run as it was captured.
BACKENDS = ["aot_eager"] + ["inductor"] * bool(shutil.which("g++"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiles_whole(backend):
    """Ids times a constant became loop counters times a constant, whose overflow let g++ drop the end of the
    loop: the compiled hash wrote over the heap."""
    torch._dynamo.reset()
    compiled = torch.compile(ras_draw, fullgraph=True, dynamic=False, backend=backend)
    for seed in range(20):
        logits, setting = motley(3, 90, seed)
        if seed == 0:
            setting["top_p"], setting["top_k"] = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
        for found, expected in zip(compiled(logits, **setting), ras_draw(logits, **setting)):
            assert torch.equal(found, expected)
