"""CAM++, the speaker encoder: who says it, as one vector (Wang et al. 2023, https://arxiv.org/abs/2303.00332).

A small two-dimensional residual network halves the frequencies three times, then densely connected
time-delay layers follow, each of which gates its output by the mean over the clip and over its second.
The vector is read from the mean and the deviation over time. Padding would count as speech in all of
them: every row of a batch must be full.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import SpeakerConfig
from .features import FBANK_BINS

SEGMENT_FRAMES = 100    # 2 s after the first time-delay layer, which halves the rate
MIN_FRAMES = 3          # of the filterbank: two are left then, and one has no deviation
DILATIONS = (1, 2, 2)   # of the three dense blocks
NORM_EPSILON = 1e-5     # added to the variance


class BatchNorm(nn.Module):
    """Batch norm by stored statistics, in one, two or any number of dimensions.

    Weights and statistics follow the input's device and dtype at each call.
    """

    def __init__(self, channels: int, affine: bool = True, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(channels, **factory)) if affine else None
        self.bias = nn.Parameter(torch.empty(channels, **factory)) if affine else None
        self.register_buffer("running_mean", torch.empty(channels, **factory))
        self.register_buffer("running_var", torch.empty(channels, **factory))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C, ...)"""
        mean, variance, weight, bias = (
            None if part is None else part.to(x.device, x.dtype)
            for part in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        return F.batch_norm(x, mean, variance, weight, bias, eps=NORM_EPSILON)


class Activation(nn.Module):
    """Batch norm and ReLU."""

    def __init__(self, channels: int, device=None, dtype=None):
        super().__init__()
        self.batchnorm = BatchNorm(channels, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, F) -> (B, C, F)"""
        return self.batchnorm(x).relu_()


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut; ``stride`` is over frequencies alone."""

    def __init__(self, channels: int, stride: int, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}

        def conv(kernel: int, stride: int) -> nn.Module:
            return operations.Conv2d(
                channels, channels, kernel, stride=(stride, 1), padding=kernel // 2, bias=False, **factory)

        self.conv1 = conv(3, stride)
        self.bn1 = BatchNorm(channels, **factory)
        self.conv2 = conv(3, 1)
        self.bn2 = BatchNorm(channels, **factory)
        projection = [conv(1, stride), BatchNorm(channels, **factory)] if stride > 1 else []
        self.shortcut = nn.Sequential(*projection)      # the input itself where no size changes

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, M, F) -> (B, C, M / stride, F)"""
        h = self.bn1(self.conv1(x)).relu_()
        return (self.bn2(self.conv2(h)) + self.shortcut(x)).relu_()


class Head(nn.Module):
    """The two-dimensional front: 80 bins become 10, each with C channels."""

    def __init__(self, config: SpeakerConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        channels = config.head_channels
        self.conv1 = operations.Conv2d(1, channels, 3, padding=1, bias=False, **factory)
        self.bn1 = BatchNorm(channels, **factory)
        self.layer1 = nn.Sequential(
            Residual(channels, 2, operations, **factory), Residual(channels, 1, operations, **factory))
        self.layer2 = nn.Sequential(
            Residual(channels, 2, operations, **factory), Residual(channels, 1, operations, **factory))
        self.conv2 = operations.Conv2d(channels, channels, 3, stride=(2, 1), padding=1, bias=False, **factory)
        self.bn2 = BatchNorm(channels, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """(B, M, F) -> (B, C * M / 8, F)"""
        x = self.bn1(self.conv1(x[:, None])).relu_()
        x = self.layer2(self.layer1(x))
        return self.bn2(self.conv2(x)).relu_().flatten(1, 2)


class ContextGate(nn.Module):
    """A convolution over time, gated by what the clip and the segment sound like."""

    def __init__(self, config: SpeakerConfig, dilation: int, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        inner, half, growth = config.bottleneck, config.bottleneck // 2, config.growth
        self.linear_local = operations.Conv1d(
            inner, growth, 3, padding=dilation, dilation=dilation, bias=False, **factory)
        self.linear1 = operations.Conv1d(inner, half, 1, **factory)
        self.linear2 = operations.Conv1d(half, growth, 1, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, F) -> (B, growth, F)"""
        # The gate is the same in all frames of a segment, so it is computed once for each.
        segments = F.avg_pool1d(x, SEGMENT_FRAMES, ceil_mode=True)                  # (B, C, F / 100)
        context = self.linear1(x.mean(dim=-1, keepdim=True) + segments).relu_()
        gate = self.linear2(context).sigmoid_().repeat_interleave(SEGMENT_FRAMES, dim=-1)
        return self.linear_local(x) * gate[..., : x.shape[-1]]


class DenseLayer(nn.Module):
    """A bottleneck and a gated convolution, whose output is joined to the input."""

    def __init__(self, config: SpeakerConfig, channels: int, dilation: int, operations, **factory):
        super().__init__()
        self.nonlinear1 = Activation(channels, **factory)
        self.linear1 = operations.Conv1d(channels, config.bottleneck, 1, bias=False, **factory)
        self.nonlinear2 = Activation(config.bottleneck, **factory)
        self.cam_layer = ContextGate(config, dilation, operations, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, F) -> (B, C + growth, F)"""
        return torch.cat((x, self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(x))))), dim=1)


class DenseBlock(nn.Module):
    """Dense layers ``tdnnd1``, ``tdnnd2`` ... one after the other."""

    def __init__(
        self, config: SpeakerConfig, channels: int, depth: int, dilation: int, operations, **factory,
    ):
        super().__init__()
        for index in range(depth):
            self.add_module(f"tdnnd{index + 1}", DenseLayer(
                config, channels + index * config.growth, dilation, operations, **factory))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, F) -> (B, C + depth * growth, F)"""
        for layer in self.children():
            x = layer(x)
        return x


class TimeDelay(nn.Module):
    """The first convolution over time, which halves the rate."""

    def __init__(self, channels_in: int, channels_out: int, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.linear = operations.Conv1d(
            channels_in, channels_out, 5, stride=2, padding=2, bias=False, **factory)
        self.nonlinear = Activation(channels_out, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, F) -> (B, C', F / 2 rounded up)"""
        return self.nonlinear(self.linear(x))


class Transit(nn.Module):
    """Halves the channels between dense blocks."""

    def __init__(self, channels: int, operations, device=None, dtype=None):
        super().__init__()
        self.nonlinear = Activation(channels, device=device, dtype=dtype)
        self.linear = operations.Conv1d(channels, channels // 2, 1, bias=False, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, F) -> (B, C / 2, F)"""
        return self.linear(self.nonlinear(x))


class Embedding(nn.Module):
    """The last projection, and a norm without weights."""

    def __init__(self, channels: int, width: int, operations, device=None, dtype=None):
        super().__init__()
        self.linear = operations.Conv1d(channels, width, 1, bias=False, device=device, dtype=dtype)
        self.nonlinear = nn.ModuleDict(
            {"batchnorm": BatchNorm(width, affine=False, device=device, dtype=dtype)})

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) -> (B, D)"""
        return self.nonlinear["batchnorm"](self.linear(x[..., None])[..., 0])


class CAMPPlus(nn.Module):
    """Filterbank of one clip per row to speaker embeddings."""

    def __init__(self, config: SpeakerConfig, operations=nn, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.head = Head(config, operations, **factory)
        channels = config.channels
        layers: dict[str, nn.Module] = {
            "tdnn": TimeDelay(config.head_channels * FBANK_BINS // 8, channels, operations, **factory)}
        for number, (depth, dilation) in enumerate(zip(config.blocks, DILATIONS), start=1):
            layers[f"block{number}"] = DenseBlock(config, channels, depth, dilation, operations, **factory)
            channels += depth * config.growth
            layers[f"transit{number}"] = Transit(channels, operations, **factory)
            channels //= 2
        layers["out_nonlinear"] = Activation(channels, **factory)
        layers["dense"] = Embedding(2 * channels, config.embedding, operations, **factory)
        self.xvector = nn.ModuleDict(layers)

    def forward(self, features: Tensor) -> Tensor:
        """(B, F, 80) of ``features.fbank`` -> (B, D), not normalised

        ``ValueError`` for fewer than three frames, which have no deviation over time.
        """
        frames = features.shape[1]
        if frames < MIN_FRAMES:
            raise ValueError(
                f"speaker encoder: found {frames} frames of 10 ms; it takes at least {MIN_FRAMES}. "
                "Give a longer reference.")
        x = self.head(features.transpose(1, 2))                                     # (B, C, F)
        *layers, dense = self.xvector.values()
        for layer in layers:
            x = layer(x)
        return dense(torch.cat((x.mean(dim=-1), x.std(dim=-1)), dim=-1))
