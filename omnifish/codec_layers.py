"""What the codec's encoder, quantizer and decoder are made of: layers that see no later sample.

What such a layer needs of the past is a fixed number of its last inputs. A ``Carry`` keeps them between calls,
so that a recording which is put through in pieces comes out as it would at once. It is made per recording and
passed along; modules hold weights only.

On a CPU a two-dimensional convolution with channels last takes half the time of a one-dimensional one, so
samples are laid out as an image of one line, (B, C, 1, F).
"""
from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .codec_config import DILATIONS, KERNEL


class Carry:
    """The last inputs of every causal layer; nothing at first, which counts as zeros."""

    def __init__(self):
        self.tails: dict[Hashable, Tensor] = {}
        self.seen: dict[Hashable, int] = {}

    def extend(self, owner: Hashable, x: Tensor, count: int, dim: int) -> Tensor:
        """``x`` behind the ``count`` columns that ``owner`` was given before, along ``dim``."""
        if count == 0:
            return x
        tail = self.tails.get(owner)
        if tail is None:
            x = F.pad(x, (0, 0) * (x.ndim - 1 - dim) + (count, 0))
            with torch.inference_mode(False):       # made in that mode, it could not be written to in another
                self.tails[owner] = x.narrow(dim, x.shape[dim] - count, count).clone()
        else:
            x = torch.cat((tail, x), dim=dim)
            # In place: small tensors that come and go between large ones leave the heap in holes.
            tail.copy_(x.narrow(dim, x.shape[dim] - count, count))
        return x

    def advance(self, owner: Hashable, count: int) -> int:
        """How many columns ``owner`` was given before these ``count``."""
        before = self.seen.get(owner, 0)
        self.seen[owner] = before + count
        return before


def as_line(x: Tensor) -> Tensor:
    """(B, C, 1, F), on a CPU with the channels last in memory"""
    return x.contiguous(memory_format=torch.channels_last) if x.device.type == "cpu" else x.contiguous()


class CausalConv(nn.Module):
    """A convolution over the past: ``taps`` wide, ``dilation`` apart, one output for ``stride`` inputs."""

    def __init__(self, inputs: int, outputs: int, taps: int, operations, device=None, dtype=None,
                 stride: int = 1, dilation: int = 1, groups: int = 1):
        super().__init__()
        self.context = (taps - 1) * dilation + 1 - stride   # inputs of earlier outputs that are read again
        self.conv = operations.Conv2d(inputs, outputs, (1, taps), stride=(1, stride), dilation=(1, dilation),
                                      groups=groups, device=device, dtype=dtype)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """(B, C, 1, F), F a multiple of the stride -> (B, C', 1, F / stride)"""
        return self.conv(carry.extend(self, x, self.context, dim=3))


class PointConv(nn.Module):
    """A convolution of a single tap, which is a linear layer."""

    def __init__(self, inputs: int, outputs: int, operations, device=None, dtype=None):
        super().__init__()
        self.conv = operations.Linear(inputs, outputs, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, 1, F) -> (B, C', 1, F)"""
        return self.conv(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class CausalUpsampling(nn.Module):
    """A transposed convolution that spreads an input over ``reach`` times ``rate`` outputs, beginning with its own.

    It is computed as a plain one from the last ``reach`` inputs to the ``rate`` outputs of the last, each a channel.
    """

    def __init__(self, inputs: int, outputs: int, reach: int, rate: int, operations, device=None, dtype=None):
        super().__init__()
        self.rate, self.context = rate, reach - 1
        self.conv = operations.Conv2d(inputs, rate * outputs, (1, reach), device=device, dtype=dtype)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """(B, C, 1, F) -> (B, C', 1, rate F)"""
        x = self.conv(carry.extend(self, x, self.context, dim=3)).permute(0, 2, 3, 1)   # (B, 1, F, rate C')
        return x.unflatten(3, (self.rate, -1)).flatten(2, 3).permute(0, 3, 1, 2)


class Snake(nn.Module):
    """x + sin(a x)**2 / a with one a per channel (Ziyin et al. 2020, https://arxiv.org/abs/2006.08195)."""

    def __init__(self, channels: int, device=None, dtype=None):
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1, channels, 1, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, 1, F) -> (B, C, 1, F)"""
        alpha = self.alpha.to(x)[..., None]
        wave = (x * alpha).sin_().square_()
        return torch.addcmul(x, wave, 1 / (alpha + 1e-9), out=wave)


class ResidualUnit(nn.Module):
    """A dilated convolution and one of a single tap, each behind Snake, beside what went in."""

    def __init__(self, channels: int, dilation: int, operations, device=None, dtype=None):
        super().__init__()
        factory = {"operations": operations, "device": device, "dtype": dtype}
        self.block = nn.ModuleList((
            Snake(channels, device, dtype),
            CausalConv(channels, channels, KERNEL, dilation=dilation, **factory),
            Snake(channels, device, dtype),
            PointConv(channels, channels, **factory),
        ))

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """(B, C, 1, F) -> (B, C, 1, F)"""
        snake1, conv1, snake2, conv2 = self.block
        return conv2(snake2(conv1(snake1(x), carry))).add_(x)


def residual_units(channels: int, operations, device=None, dtype=None) -> list[ResidualUnit]:
    """The units of one rate."""
    return [ResidualUnit(channels, dilation, operations, device, dtype) for dilation in DILATIONS]


class ConvNeXt(nn.Module):
    """A depthwise convolution, then an MLP of each column, beside what went in.

    Liu et al. 2022, https://arxiv.org/abs/2201.03545.
    """

    def __init__(self, channels: int, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.dwconv = CausalConv(channels, channels, KERNEL, operations, groups=channels, **factory)
        self.norm = operations.LayerNorm(channels, eps=1e-6, **factory)
        self.pwconv1 = operations.Linear(channels, 4 * channels, **factory)
        self.pwconv2 = operations.Linear(4 * channels, channels, **factory)
        self.gamma = nn.Parameter(torch.empty(channels, **factory))

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """(B, C, 1, F) -> (B, C, 1, F)"""
        y = self.norm(self.dwconv(x, carry).permute(0, 2, 3, 1))        # (B, 1, F, C)
        y = self.pwconv2(F.gelu(self.pwconv1(y))) * self.gamma.to(y)
        return x + y.permute(0, 3, 1, 2)
