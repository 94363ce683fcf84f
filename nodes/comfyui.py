"""What nodes are made of, from ComfyUI; one that is too old for them is told so."""
from __future__ import annotations

OLDEST = "0.16"
SINCE_THEN = ("Autogrow", "DynamicCombo")       # inputs whose number and kind a choice decides
ADVICE = f"Speechwright needs ComfyUI {OLDEST} or newer; update ComfyUI."

try:
    from comfy_api.latest import ComfyExtension, io
except ImportError as error:
    # What else fails in there is another matter, and has its own words.
    if (error.name or "").split(".")[0] != "comfy_api":
        raise
    raise ImportError(f"{ADVICE} (Here: {error}.)") from error

if lacking := [name for name in SINCE_THEN if not hasattr(io, name)]:
    raise ImportError(f"{ADVICE} (Here there is no {' and no '.join(lacking)}.)")

__all__ = ["ComfyExtension", "io"]
