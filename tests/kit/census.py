"""Runs inside the ComfyUI under test, as a custom node without nodes: counts what is alive in its process.

``POST /census`` gives back what is free and tells the bytes that the process holds, how many tensors and patchers
live, which networks ComfyUI holds in memory, and their bytes. Ask while nothing runs: a tuple that another thread is
about to make fails when it is seen here.
"""
from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import comfy.model_management
import torch
from aiohttp import web
from comfy.model_patcher import ModelPatcher
from server import PromptServer

NODE_CLASS_MAPPINGS: dict[str, type] = {}


@PromptServer.instance.routes.post("/census")
async def census(request):
    gc.collect()
    kinds = [type(thing) for thing in gc.get_objects()]
    loaded = [entry.model.model for entry in comfy.model_management.current_loaded_models if entry.model is not None]
    counted = {
        "tensors": sum(issubclass(kind, torch.Tensor) for kind in kinds),
        "patchers": sum(issubclass(kind, ModelPatcher) for kind in kinds),
        "models": sorted(type(network).__name__ for network in loaded),
        "bytes": sum(tensor.nbytes for network in loaded for tensor in network.state_dict().values()),
    }
    ctypes.CDLL(None).malloc_trim(0)
    held = next(1024 * int(line.split()[1]) for line in Path("/proc/self/status").read_text("ascii").splitlines()
                if line.startswith("VmRSS"))
    return web.json_response({**counted, "held": held})
