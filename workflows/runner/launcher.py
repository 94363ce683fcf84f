"""The first file that a ComfyUI process runs: ``python launcher.py COMFYUI_FOLDER [ComfyUI's options]``.

Beside starting ``main.py`` it does two things that ComfyUI's own start does not:

* It ends the process when its standard input closes. The parent holds the other end, so a server never
  outlives the command that booted it, however that command ended.
* It lets a torchvision that was built for CUDA be imported on a torch that was built for CPU, as package
  indexes pair them on Linux. ComfyUI's core never calls torchvision's compiled operators.
"""
from __future__ import annotations

import os
import runpy
import sys
import threading
from importlib.machinery import PathFinder
from pathlib import Path

SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class TorchvisionOperators:
    """Import hook: declares two operators of torchvision just before it is imported, where it cannot itself.

    Without its compiled library, torchvision's import stops at the registration of ``nms``. A hook, and not
    an import of torch here, because ComfyUI wants to be the first to import torch.
    """

    def __init__(self) -> None:
        self.declared = None        # torch forgets a Library that nobody holds

    def find_spec(self, name, path=None, target=None) -> None:
        if name == "torchvision" and self.declared is None:
            import torch
            cpu_only = torch.version.cuda is None and torch.version.hip is None
            if sys.platform == "linux" and cpu_only and not _loads(torch):
                self.declared = torch.library.Library("torchvision", "DEF")
                for operator in ("nms", "qnms"):
                    self.declared.define(operator + SIGNATURE)


def _loads(torch) -> bool:
    """Whether the compiled library of the installed torchvision fits this torch."""
    spec = PathFinder.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True                                      # nothing to help: its own import will say so
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(library)
        except OSError:
            return False
    return True


def _end_with_parent() -> None:
    """Wait until the parent closes the pipe, then leave at once: what runs now has nobody to answer to."""
    while sys.stdin.buffer.read(1024):
        pass
    os._exit(0)


def main() -> None:
    root = os.path.abspath(sys.argv[1])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.meta_path.insert(0, TorchvisionOperators())
    os.chdir(root)
    # As if main.py had been started: its folder first, this file's not at all.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [root, *(folder for folder in sys.path if folder != here)]
    sys.argv = [os.path.join(root, "main.py"), *sys.argv[2:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
