"""Runs inside the ComfyUI under test, as a custom node without nodes: shows what the interface does not.

``GET /probe`` lists the models that ComfyUI holds in memory, and whether its worker has yet to hear of a request for
memory. ``POST /probe/hold`` stops the next job after the next step of progress until somebody interrupts it: tiny
models are faster than any request, so an interruption would otherwise come too late, now and then; ``POST
/probe/release`` takes that back, where the job ended before. ``POST /probe/memory`` gives back what is free and
counts the peak from then on; ``GET /probe/memory`` tells it. The node ``ProbeAudio`` takes audio and tells its bytes:
nodes that write files make copies of it. The nodes of ``kit.odd_nodes`` are there too.
"""
from __future__ import annotations

import ctypes
import gc
import threading
import time
from pathlib import Path

import comfy.model_management
from aiohttp import web
from server import PromptServer

from kit import odd_nodes
from kit.offline import block_network

HOLD_LIMIT_S = 60


class ProbeAudio:
    """Where audio ends without a copy of it."""

    CATEGORY, FUNCTION, OUTPUT_NODE, RETURN_TYPES = "test", "look", True, ()

    @classmethod
    def INPUT_TYPES(cls) -> dict:
        return {"required": {"audio": ("AUDIO",)}}

    def look(self, audio: dict) -> dict:
        wave = audio["waveform"]
        return {"ui": {"bytes": [wave.numel() * wave.element_size()], "shape": list(wave.shape)}}


NODE_CLASS_MAPPINGS = {"ProbeAudio": ProbeAudio, **odd_nodes.NODE_CLASS_MAPPINGS}

wanted, holding = threading.Event(), threading.Event()
send_sync = PromptServer.send_sync


def send_and_hold(self, event, data, sid=None):
    send_sync(self, event, data, sid)
    if event == "progress" and wanted.is_set():
        wanted.clear()
        holding.set()
        limit = time.monotonic() + HOLD_LIMIT_S
        while time.monotonic() < limit and not comfy.model_management.processing_interrupted():
            time.sleep(0.01)
        holding.clear()


@PromptServer.instance.routes.get("/probe")
async def state(request):
    models = [type(entry.model.model).__name__ for entry in comfy.model_management.current_loaded_models
              if entry.model is not None]
    asked = bool(PromptServer.instance.prompt_queue.flags)
    return web.json_response({"models": models, "asked": asked, "holding": holding.is_set()})


@PromptServer.instance.routes.post("/probe/hold")
async def hold(request):
    wanted.set()
    return web.json_response({})


@PromptServer.instance.routes.post("/probe/release")
async def release(request):
    wanted.clear()
    return web.json_response({})


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


@PromptServer.instance.routes.post("/probe/memory")
async def settle(request):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")     # the peak is what is held now
    return web.json_response({})


@PromptServer.instance.routes.get("/probe/memory")
async def memory(request):
    return web.json_response({"held": status("VmRSS"), "peak": status("VmHWM")})


PromptServer.send_sync = send_and_hold
block_network()
