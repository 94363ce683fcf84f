"""ONNX files written here, from any message to the graphs that are published.

A message is a list of pieces, and a piece is bytes, or a number of zero bytes that take no room on the disk.
"""
from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

Pieces = list  # of bytes and int

TYPES = {torch.float32: 1, torch.float16: 10, torch.bfloat16: 16, torch.int32: 6, torch.int64: 7, torch.float64: 11}
FORMS = ("raw", "listed", "one by one")     # how a tensor may hold its numbers


def varint(number: int) -> bytes:
    number %= 2**64
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def size_of(pieces: Pieces) -> int:
    return sum(piece if isinstance(piece, int) else len(piece) for piece in pieces)


def field(number: int, value: int | str | bytes | Pieces) -> Pieces:
    """A varint of an int; else text, bytes or a message behind its length."""
    if isinstance(value, int):
        return [varint(number << 3) + varint(value)]
    pieces = [value.encode()] if isinstance(value, str) else [value] if isinstance(value, bytes) else value
    return [varint(number << 3 | 2) + varint(size_of(pieces)), *pieces]


def write(path: Path, pieces: Pieces) -> Path:
    with open(path, "wb") as file:
        for piece in pieces:
            if isinstance(piece, int):
                file.seek(piece, 1)
            else:
                file.write(piece)
        file.truncate()
    return path


def joined(pieces: Pieces) -> bytes:
    return b"".join(bytes(piece) if isinstance(piece, int) else piece for piece in pieces)


def tensor(name: str, value: Tensor, form: str = "raw") -> Pieces:
    """A tensor; on ``meta`` its numbers are zeros."""
    head = [piece for size in value.shape for piece in field(1, size)] + field(2, TYPES[value.dtype]) + field(8, name)
    if value.is_meta:
        return head + field(9, [value.numel() * value.itemsize])
    flat = value.contiguous().reshape(-1)
    if form == "raw":
        return head + field(9, flat.view(torch.uint8).numpy().tobytes())
    if value.dtype == torch.float32:
        numbers = [flat[index:index + 1].numpy().tobytes() for index in range(len(flat))]
        number, kind = 4, 5
    else:
        bits = flat.view(torch.int16) if value.dtype.itemsize == 2 else flat
        numbers = [varint(n % 2**16 if value.dtype.itemsize == 2 else n) for n in bits.tolist()]
        number, kind = (7 if value.dtype == torch.int64 else 5), 0
    if form == "listed":
        return head + field(number, b"".join(numbers))
    return head + [varint(number << 3 | kind) + piece for piece in numbers]


def node(op: str, name: str, inputs: Iterable[str], outputs: Iterable[str], attributes: Pieces = ()) -> Pieces:
    texts = [(1, text) for text in inputs] + [(2, text) for text in outputs] + [(3, name), (4, op)]
    return [piece for number, text in texts for piece in field(number, text)] + list(attributes)


def constant(output: str, value: Tensor) -> Pieces:
    return node("Constant", f"{output}_node", [], [output], field(5, field(1, "value") + field(5, tensor("", value))))


def model(nodes: Iterable[Pieces] = (), tensors: Iterable[Pieces] = ()) -> Pieces:
    """A file, in the order in which exporters write it."""
    graph = [piece for number, messages in ((1, nodes), (5, tensors))
             for message in messages for piece in field(number, message)]
    return field(1, 8) + field(2, "pytorch") + field(7, graph) + field(8, field(1, "") + field(2, 17))


class Graph:
    """Nodes in order, named by where they stand in the network, and tensors, named or by a running number."""

    def __init__(self):
        self.nodes: list[tuple[str, Pieces]] = []
        self.tensors: dict[str, Tensor] = {}

    def stored(self, value: Tensor, name: str | None = None, user: str = "Add") -> str:
        name = name or f"onnx::{user}_{2216 + len(self.tensors)}"
        self.tensors[name] = value
        return name

    def node(self, name: str, *inputs: str, output: str | None = None) -> str:
        """Its operation is the last part of its name, up to a number."""
        output = output or f"{name}_output_0"
        self.nodes.append((name, node(name.rsplit("/", 1)[-1].split("_")[0], name, inputs, [output])))
        return output

    def constant(self, value: Tensor) -> str:
        name = f"/Constant_{len(self.nodes)}"
        self.nodes.append((name, constant(f"{name}_output_0", value)))
        return f"{name}_output_0"

    def drop(self, prefix: str) -> None:
        """Take away the nodes whose names begin so."""
        self.nodes = [(name, pieces) for name, pieces in self.nodes if not name.startswith(prefix)]

    def share(self, kept: str, alias: str) -> None:
        """Store one of two tensors that are equal, as exporters may."""
        assert torch.equal(self.tensors[kept], self.tensors.pop(alias))
        name = f"Identity_{len(self.nodes)}"
        self.nodes.insert(0, (name, node("Identity", name, [kept], [alias])))

    def file(self) -> Pieces:
        return model([pieces for _, pieces in self.nodes], [tensor(*item) for item in self.tensors.items()])


def tokenizer_graph(state: dict[str, Tensor], version: int) -> Graph:
    """The speech tokenizer as published: anonymous weights, those of linear layers transposed.

    Version 2 has layer norms in one node each, version 3 taken apart. A few nodes around the weights are there
    as well, since they bear names that are like those of the weights' own.
    """
    graph = Graph()
    x = "feats"
    for layer in ("conv1", "conv2"):
        weight, bias = (graph.stored(state[f"encoder.{layer}.{part}"], user="Conv") for part in ("weight", "bias"))
        x = graph.node(f"/{layer}/Conv", x, weight, bias)
    x = graph.node("/Transpose", graph.node("/Mul_1", x, graph.constant(torch.tensor(0.5))))
    layers = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("encoder.blocks."))
    for index in range(layers):
        x = _block(graph, x, f"/blocks.{index}", {
            name.removeprefix(f"encoder.blocks.{index}."): value for name, value in state.items()
            if name.startswith(f"encoder.blocks.{index}.")}, version)
    bias = graph.stored(state["quantizer._codebook.project_down.bias"], "quantizer.project_in.bias")
    weight = graph.stored(state["quantizer._codebook.project_down.weight"].T, user="MatMul")
    x = graph.node("/quantizer/project_in/Add", bias, graph.node("/quantizer/project_in/MatMul", x, weight))
    graph.node("/quantizer/Mul", graph.node("/quantizer/Tanh", x), graph.constant(torch.full((1,), 0.999)))
    return graph


def _block(graph: Graph, x: str, path: str, state: dict[str, Tensor], version: int) -> str:
    def linear(x: str, name: str, bias: bool = True) -> str:
        at = f"{path}/{name}"
        added = graph.stored(state[f"{_parameter(name)}.bias"]) if bias else None
        x = graph.node(f"{at}/MatMul", x, graph.stored(state[f"{_parameter(name)}.weight"].T, user="MatMul"))
        return graph.node(f"{at}/Add", added, x) if bias else x

    def norm(x: str, name: str) -> str:
        at = f"{path}/{name}"
        weight, bias = (graph.stored(state[f"{name}.{part}"], user="LayerNormalization") for part in ("weight", "bias"))
        if version == 2:
            return graph.node(f"{at}/LayerNormalization", x, weight, bias)
        centred = graph.node(f"{at}/Sub", x, graph.node(f"{at}/ReduceMean", x))
        square = graph.node(f"{at}/Pow", centred, graph.constant(torch.tensor(2.0)))
        epsilon = graph.constant(torch.full((1,), 1e-5))
        variance = graph.node(f"{at}/Add", graph.node(f"{at}/ReduceMean_1", square), epsilon)
        scaled = graph.node(f"{at}/Div", centred, graph.node(f"{at}/Sqrt", variance))
        return graph.node(f"{at}/Add_1", graph.node(f"{at}/Mul", scaled, weight), bias)

    h = norm(x, "attn_ln")
    query, key, value = linear(h, "attn/query"), linear(h, "attn/key", bias=False), linear(h, "attn/value")
    query = graph.node(f"{path}/attn/Mul", query, graph.constant(torch.full((64,), 0.35)))
    filtered = graph.node(f"{path}/attn/fsmn_block/Conv", value, graph.stored(
        state["attn.fsmn_block.weight"], f"{path[1:]}.attn.fsmn_block.weight"))
    scores = graph.node(f"{path}/attn/Softmax", graph.node(f"{path}/attn/MatMul", query, key))
    mixed = linear(graph.node(f"{path}/attn/MatMul_1", scores, value), "attn/out")
    x = graph.node(f"{path}/Add", x, graph.node(f"{path}/attn/Add_1", mixed, filtered))
    h = linear(norm(x, "mlp_ln"), "mlp/mlp.0")
    half = graph.node(f"{path}/mlp/mlp.1/Add", h, graph.constant(torch.tensor(1.0)))
    return graph.node(f"{path}/Add_1", x, linear(half, "mlp/mlp.2"))


def _parameter(path: str) -> str:
    """mlp/mlp.0 -> mlp.0, attn/query -> attn.query"""
    return path.split("/")[-1] if "." in path else path.replace("/", ".")


def campplus_graph(state: dict[str, Tensor], folded: bool = True) -> Graph:
    """The speaker encoder as published: norms that follow a convolution at once are folded into it.

    Of convolutions and norms alone; what joins them has no weights and is left out.
    """
    graph = Graph()
    for name in dict.fromkeys(name.rsplit(".", 1)[0] for name in state):
        if f"{name}.running_var" in state:
            if not folded or name not in {followed_by(other) for other in _convolutions(state)}:
                _batch_norm(graph, state, name)
            continue
        weight, bias = state[f"{name}.weight"], state.get(f"{name}.bias")
        after = followed_by(name)
        if not (folded and after):
            names = [f"{name}.weight"] + ([f"{name}.bias"] if bias is not None else [])
            graph.node(f"{scope(name)}/Conv", "x", *(graph.stored(state[name], name) for name in names))
            continue
        scale = state[f"{after}.weight"].double() / (state[f"{after}.running_var"].double() + 1e-5).sqrt()
        bias = state[f"{after}.bias"] - state[f"{after}.running_mean"] * scale
        weight = weight.double() * scale.reshape(-1, *[1] * (weight.ndim - 1))
        graph.node(f"{scope(name)}/Conv", "x", *(graph.stored(part.float(), user="Conv") for part in (weight, bias)))
    return graph


def _convolutions(state: dict[str, Tensor]) -> list[str]:
    return [name.removesuffix(".weight") for name, value in state.items() if value.ndim > 1]


def _batch_norm(graph: Graph, state: dict[str, Tensor], name: str) -> None:
    channels = len(state[f"{name}.running_var"])
    inputs = [
        graph.stored(state[f"{name}.{part}"], f"{name}.{part}") if f"{name}.{part}" in state
        else graph.constant(torch.full((channels,), value))
        for part, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0))]
    graph.node(f"{scope(name)}/BatchNormalization", "x", *inputs)


def followed_by(convolution: str) -> str | None:
    """The norm that a convolution of the speaker encoder goes into with nothing between, or None."""
    for pattern, norm in (
        (r"(head\.(?:layer\d\.\d\.)?)conv(\d)", r"\1bn\2"),
        (r"(head\.layer\d\.\d\.shortcut)\.0", r"\1.1"),
        (r"xvector\.tdnn\.linear", r"xvector.tdnn.nonlinear.batchnorm"),
        (r"(xvector\.block\d\.tdnnd\d+)\.linear1", r"\1.nonlinear2.batchnorm"),
        (r"xvector\.transit3\.linear", r"xvector.out_nonlinear.batchnorm"),
    ):
        if re.fullmatch(pattern, convolution):
            return re.sub(pattern, norm, convolution)
    return None


def scope(module: str) -> str:
    """head.layer1.0.conv1 -> /head/layer1/layer1.0/conv1, which is how exporters write members of a list"""
    parts: list[str] = []
    for part in module.split("."):
        parts.append(f"{parts[-1]}.{part}" if part.isdigit() else part)
    return "/" + "/".join(parts)
