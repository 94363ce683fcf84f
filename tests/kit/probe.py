"""Runs inside the ComfyUI under test, as a custom node without nodes: shows what the interface does not.

``GET /probe`` lists the models that ComfyUI holds in memory, and whether its worker has yet to hear of a
request for memory. ``POST /probe/hold`` stops the next job after
the next step of progress until somebody interrupts it: tiny models are faster than any request, so an
interruption would otherwise come too late, now and then.
"""
from __future__ import annotations

import threading
import time

import comfy.model_management
from aiohttp import web
from server import PromptServer

from kit.offline import block_network

HOLD_LIMIT_S = 60

NODE_CLASS_MAPPINGS: dict = {}

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


PromptServer.send_sync = send_and_hold
block_network()
