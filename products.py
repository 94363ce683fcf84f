"""Linear layers through whichever of torch's two libraries multiplies faster on this processor.

torch hands float32 products to Intel's MKL, which leaves the AVX-512 units of AMD's processors idle. oneDNN, which
torch brings too and uses for convolutions, does not: there it takes half the time, from one row to thousands. So on
such a processor, and only there, a linear layer asks for it, through torch's public conversion of what goes in; its
copy is small beside the weights. On Intel's own processors MKL stays.
"""
from __future__ import annotations

import functools
import platform
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEAST_WORK = 2**20      # rows x weights, below which the copies cost what the product gains
KINDS = ("Linear", "Conv1d", "Conv2d", "ConvTranspose1d", "LayerNorm", "Embedding")     # that our networks are made of


class Linear(nn.Linear):
    """torch's linear layer, equal up to the order of its sums."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D')"""
        if not _prefers_onednn(x, self.weight):
            return super().forward(x)
        return F.linear(x.to_mkldnn(), self.weight, self.bias).to_dense()


def quick(operations) -> SimpleNamespace:
    """``operations``, such as ComfyUI's, with a linear layer that is quick where theirs computes by itself."""
    kinds = {kind: getattr(operations, kind) for kind in KINDS}
    # Theirs decides first whether to cast or to fetch weights, and else calls torch's, in whose place ours stands.
    kinds["Linear"] = type("Linear", (operations.Linear, Linear), {})
    return SimpleNamespace(**kinds)


@functools.lru_cache(maxsize=1)
def onednn_is_faster() -> bool:
    """Whether MKL leaves units of this processor idle that oneDNN uses."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in _maker()


def _prefers_onednn(x: Tensor, weight: Tensor) -> bool:
    return (x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
            and x.numel() * weight.shape[0] > LEAST_WORK and weight.is_contiguous()
            and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
            and onednn_is_faster())


def _maker() -> str:
    """What the system tells of the processor: Linux in a file, Windows where Python asks."""
    told = Path("/proc/cpuinfo")
    return told.read_text(encoding="utf-8", errors="replace") if told.is_file() else platform.processor()
