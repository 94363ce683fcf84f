"""ONNX files: what they hold, or refused in words before anything that they claim is allocated."""
from __future__ import annotations

import torch

from kit.onnx_files import constant, field, joined, model, node, tensor, varint
from speechwright.onnx_weights import OnnxFile, open_onnx
from speechwright.s3gen.onnx import speaker_sources, tokenizer_sources

from .choices import Choices
from .laws import assert_in_words, bounded, written

NUMBERS = (0, 1, 2, 3, 7, 8, 127, 128, 2**16, 2**31, 2**32, 2**53, 2**53 + 1, 2**62, 2**63, 2**64 - 1)
NAMES = ("", "a", "b", "x", "../../x", "/conv1/Conv", "/blocks.0/attn/query/MatMul", "/blocks.0/mlp/mlp.0/Add",
         "/blocks.9999999999/attn_ln/Mul", "/head/conv1/Conv", "/xvector/tdnn/linear/Conv", "/quantizer/MatMul",
         "/xvector/block1/tdnnd1/linear1/Conv", "quantizer.project_in.bias", "blocks.0.attn.fsmn_block.weight",
         "/xvector/dense/nonlinear/batchnorm/BatchNormalization", "模型")
OPS = ("Conv", "MatMul", "Add", "Mul", "Identity", "Constant", "BatchNormalization", "LayerNormalization", "If")
DICTIONARY = ("Identity", "Constant", "Conv", "MatMul", "pytorch", "\x08\x08", "weights.bin")


def seeds() -> list[bytes]:
    weight = torch.arange(6.0).reshape(2, 3)
    nodes = [node("Conv", "/conv1/Conv", ["x", "a", "b"], ["y"]), node("Identity", "", ["a"], ["alias"]),
             constant("b", torch.ones(2))]
    tensors = [tensor("a", weight), tensor("ids", torch.tensor([-1, 2**40]), "listed"),
               tensor("half", torch.ones(3).half(), "one by one"),
               field(1, 2) + field(8, "out") + field(13, field(1, "location") + field(2, "../../x"))]
    return [b"\0" + joined(model(nodes, tensors[:3])), b"\0" + joined(model(nodes, tensors)), b"\1" + bytes(30),
            b"\1" + bytes(range(120)), b"\2" + bytes(range(200)), b"\3" + bytes(range(99))]


def content(choices: Choices) -> bytes:
    """Bytes as they are; fields of any kind; or nodes and tensors of which most fit."""
    kind = choices.number(3)
    if kind == 0:
        return choices.rest()
    if kind == 1:
        return joined(field(1, 8) + field(7, _message(choices, 0)))
    nodes, tensors = [], []
    while choices.left and len(nodes) + len(tensors) < 60:
        if choices.number(2):
            inputs = [choices.pick(NAMES) for _ in range(choices.number(4))]
            nodes.append(node(choices.pick(OPS), choices.pick(NAMES), inputs, [choices.pick(NAMES)]))
        else:
            shape = [choices.number(4) for _ in range(choices.number(4))]
            value = torch.zeros(shape, dtype=choices.pick((torch.float32, torch.int64, torch.float16)))
            tensors.append(tensor(choices.pick(NAMES), value, choices.pick(("raw", "listed"))))
    return joined(model(nodes, tensors))


def _message(choices: Choices, depth: int) -> list:
    parts: list = []
    while choices.left and len(parts) < 100:
        kind, number = choices.number(8), choices.pick((1, 2, 3, 4, 5, 7, 8, 9, 13, 14))
        if kind == 0:
            break
        if kind < 3 and depth < 50:
            parts += field(number, _message(choices, depth + 1))
        elif kind == 3:
            parts += field(number, choices.pick(NUMBERS))
        elif kind == 4:
            parts += field(number, choices.pick(NAMES))
        elif kind == 5:
            parts += field(number, choices.bytes(choices.number(30)))
        elif kind == 6:
            parts.append(varint(number << 3 | choices.number(8)) + choices.bytes(choices.number(12)))
        else:
            parts.append(varint(number << 3 | 2) + varint(choices.pick(NUMBERS)))
    return parts


def check(raw: bytes) -> None:
    file = content(Choices(raw))
    path = written("fuzzed.onnx", file)
    with bounded(len(file), spare=2**21):
        try:
            _use(open_onnx(path), len(file))
        except ValueError as error:
            assert_in_words(error, f"{path}: ", 5000)


def _use(found: OnnxFile, size: int) -> None:
    """All tensors at once take no more than the file, but for numbers that it holds in fewer bytes."""
    taken, problems = 0, []
    for name in (*found.tensors, *found.aliases):
        try:
            if found.origin(name):
                value = found.read(name)
                assert value.shape == found.shape(name)
                taken += value.numel() * value.itemsize if name in found.tensors else 0
        except ValueError as error:
            problems.append(error)
    assert taken <= 8 * size
    for read in (tokenizer_sources, speaker_sources):
        try:
            read(found)
        except ValueError as error:
            problems.append(error)
    for problem in problems:
        assert_in_words(problem, f"{found.path}: ", 5000)
