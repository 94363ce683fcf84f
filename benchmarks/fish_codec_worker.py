"""The process in which ``fish_codec.py`` measures one thing; the answer goes to stdout, a line of JSON."""
from __future__ import annotations

import argparse
import json
import sys
import time
import types
from pathlib import Path

import torch
from harness import resident_bytes
from safetensors.torch import save_file

CHECKOUT = Path(__file__).resolve().parents[1]
# This checkout, as a package without the __init__ that needs ComfyUI.
package = types.ModuleType("speechwright")
package.__path__ = [str(CHECKOUT)]
sys.modules["speechwright"] = package

from speechwright.checkpoint import open_checkpoint  # noqa: E402, from the folder above
from speechwright.omnifish.codec import CHUNK_FRAMES  # noqa: E402
from speechwright.omnifish.codec_config import FRAME_SAMPLES, SAMPLE_RATE_HZ, CodecConfig  # noqa: E402
from speechwright.omnifish.codec_demo import random_state  # noqa: E402
from speechwright.omnifish.codec_weights import load_codec  # noqa: E402


def peak_bytes() -> int:
    """The most memory that this process has ever held; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(chosen: argparse.Namespace) -> dict:
    before, start, busy = resident_bytes(), time.perf_counter(), time.process_time()
    codec, given = load_codec(open_checkpoint(chosen.path)), 0
    if chosen.call:
        rng = torch.Generator().manual_seed(0)
        samples = round(chosen.seconds * SAMPLE_RATE_HZ)
        frames = -(-samples // FRAME_SAMPLES)
        sound = (0.2 * torch.randn(1, samples, generator=rng) if chosen.call == "encode" else
                 torch.stack([torch.randint(0, rows, (1, frames), generator=rng) for rows in codec.config.rows], 1))
        before, start, busy = resident_bytes(), time.perf_counter(), time.process_time()
        with torch.inference_mode():
            given = getattr(codec, chosen.call)(sound, chunk_frames=chosen.chunk or CHUNK_FRAMES).nbytes
    return {"seconds": time.perf_counter() - start, "processor": time.process_time() - busy,
            "peak_bytes": peak_bytes(), "above_bytes": peak_bytes() - before - given}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True)
    mode = modes.add_parser("weights")
    mode.add_argument("path", type=Path)
    mode = modes.add_parser("measure")
    mode.add_argument("path", type=Path)
    mode.add_argument("--threads", type=int, required=True)
    mode.add_argument("--call", choices=["encode", "decode"])
    mode.add_argument("--seconds", type=float, default=0)
    mode.add_argument("--chunk", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.mode == "weights":
        part = chosen.path.with_suffix(".part")
        save_file(random_state(CodecConfig()), part)
        part.replace(chosen.path)
    else:
        torch.set_num_threads(chosen.threads)
        print(json.dumps(measure(chosen)))


if __name__ == "__main__":
    main()
