"""The report on a header, and the command that prints it: without torch, and under a name that Python uses itself."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kit.checkout import CHECKOUT
from speechwright.assembly import shapes_of
from speechwright.omnifish.config import OmniFishConfig
from speechwright.omnifish.inspect import inspect, read_header
from speechwright.omnifish.model import OmniFish

FULL = shapes_of(OmniFish(OmniFishConfig(), device="meta").state_dict())


def without(*prefixes: str, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {**{name: shape for name, shape in FULL.items() if not name.startswith(prefixes)}, **more}


def test_the_model_that_we_build():
    lines = inspect(FULL).split("\n")
    numbers = sum(torch.Size(shape).numel() for shape in FULL.values())
    assert lines[:7] == [
        f"{len(FULL)} tensors, {numbers:,} numbers in all",
        "backbone: llm.*, layers 28, width 1024, heads 16, heads of keys 8, channels of a head 128, MLP 3072, "
        "text ids 151676",
        "  the sizes of OmniVoice's, Qwen3-0.6B",
        "audio embedding: one table, 10 times 4099 rows",
        "  audio_embeddings.weight (40990, 1024)",
        "semantic head: 4099 ids, 3 beside the 4096 of speech: taken for mask 4096, end 4097, pad 4098; no shape tells "
        "their order",
        "  semantic_head.weight (4099, 1024)"]
    depth = {name: shape for name, shape in FULL.items() if name.startswith("mtp.")}
    numbers = sum(torch.Size(shape).numel() for shape in depth.values())
    assert lines[7] == f"depth decoder: {len(depth)} tensors, {numbers:,} numbers"
    assert "  mtp.layers.0-8.attention.q_proj.weight (2048, 1024), 9 times" in lines
    assert "  mtp.embeddings.0.weight (4096, 1024)" in lines
    assert "  mtp.embeddings.1-8.weight (1024, 1024), 8 times" in lines
    assert not any("beside these" in line for line in lines) and len(lines) < 40


@pytest.mark.parametrize("shapes, text", [
    ({}, "backbone: none; no tensor is called ...layers.N.self_attn.q_proj.weight"),
    ({}, "audio embedding: none"), ({}, "semantic head: none"), ({}, "depth decoder: none; no name begins with mtp."),
    (without("mtp."), "depth decoder: none"),
    ({f"model.{name}": shape for name, shape in FULL.items()}, "backbone: model.llm.*, layers 28,"),
    (without("llm.layers.1", "llm.layers.2"), "OmniVoice's differs: layers 28"),
    (without(**{"llm.embed_tokens.weight": (151936, 1024)}), "  OmniVoice's differs: text ids 151676"),
    (without("llm.layers.0.self_attn.q_norm"), "no llm.layers.0.self_attn.q_norm.weight, so no Qwen3"),
    (without(**{"audio_embeddings.weight": (13310, 1024)}), "one table, 10 times 1331"),
    (without(**{"audio_embeddings.weight": (13312, 1024)}), "one table of 13312 rows, not 10 times as many as "),
    (without("audio", **{f"codebook_embeddings.{n}.weight": (1025, 1024) for n in range(10)}),
     "audio embedding: 10 tables, 10250 rows in all\n  codebook_embeddings.0-9.weight (1025, 1024), 10 times"),
    (without(**{"semantic_head.weight": (4098, 1024)}), "4098 ids, 2 beside the 4096 of speech: taken for mask 4096"),
    (without(**{"semantic_head.weight": (4098, 1024)}), "end 4097;"),
    (without(**{"semantic_head.weight": (4101, 1024)}), "end 4097, pad 4098, and 2 more;"),
    (without(**{"semantic_head.weight": (4096, 1024)}), "4096 ids, too few for the 4096 of speech, mask and end"),
    (without(**{"extra.0.b{}d.weight": (2,), "extra.1.b{}d.weight": (2,), "scale": ()}),
     "beside these: 3 tensors\n  extra.0-1.b{}d.weight (2,), 2 times\n  scale ()"),
    ({f"{'x' * n}.weight": (n,) for n in range(1, 64)}, "  and 3 kinds more"),
])
def test_other_files(shapes, text):
    assert text in inspect(shapes)


def test_headers_as_they_stand_in_files():
    header = {name: {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 0]} for name, shape in FULL.items()}
    assert inspect({"__metadata__": {"format": "pt"}, **header}) == inspect(FULL)


def command(*arguments: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=CHECKOUT, capture_output=True, text=True)


@pytest.mark.parametrize("script", [["omnifish/inspect.py"], ["-m", "omnifish.inspect"]])
def test_command(tmp_path, script):
    """Run by path its folder comes first, where Python's own modules then find it under the name of another."""
    path = tmp_path / "ogg ü.safetensors"
    save_file({"llm.layers.0.self_attn.q_proj.weight": torch.ones(4, 2)}, path, metadata={"format": "pt"})
    done = command(*script, path)
    assert done.stdout == f"{path}\n{inspect(read_header(str(path)))}\n" and "layers 1, width 2" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("content, text", [
    (b"", "this is no .safetensors file; give one"), (b"PK\3\4 and more", "this is no .safetensors file"),
    ((99).to_bytes(8, "little") + b"{}", "the file is cut: its header alone takes 99 bytes"),
    ((2).to_bytes(8, "little") + b"{]", "Expecting"),
    ((8).to_bytes(8, "little") + b'{"a":{}}', "its header is damaged"),
    ((7).to_bytes(8, "little") + b'{"a":1}', "its header is damaged"), (None, "No such file"),
])
def test_command_on_what_is_no_checkpoint(tmp_path, content, text):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    done = command("omnifish/inspect.py", path)
    assert done.returncode == 1 and done.stdout == "" and text in done.stderr and "Traceback" not in done.stderr


def test_command_without_a_file():
    done = command("omnifish/inspect.py")
    assert done.returncode == 1 and done.stderr.startswith("usage: ")


def test_the_command_needs_neither_torch_nor_comfyui():
    code = "import sys, omnifish.inspect; print(sorted({'torch', 'comfy', 'numpy', 'dataclasses'} & set(sys.modules)))"
    assert command("-c", code).stdout == "[]\n"
