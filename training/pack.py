"""The pack's modules for the trainings, as the tests import them: under an alias, without ComfyUI."""
from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

CHECKOUT = Path(__file__).resolve().parents[1]

# The checkout's folder may have any name, and its __init__ needs ComfyUI.
package = ModuleType("speechwright")
package.__path__ = [str(CHECKOUT)]
sys.modules["speechwright"] = package
sys.path.append(str(CHECKOUT / "tests"))

from safetensors.torch import save_file  # noqa: E402

from kit.ear import SENTENCES  # noqa: E402
from speechwright.s3gen import features  # noqa: E402

__all__ = ["CHECKOUT", "SENTENCES", "features", "write"]


def write(state: dict, path: Path) -> None:
    """A file of safetensors, whole or not at all."""
    unfinished = path.with_suffix(".part")
    save_file(state, unfinished)
    unfinished.replace(path)
    print(f"{path}: {sum(tensor.numel() for tensor in state.values())} numbers, {path.stat().st_size} bytes")
