"""Words for a module that is missing: ComfyUI's requirements bring it, and it is imported where it is used, so that
whoever lacks one loses only what needs it."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(package: str, what: str) -> Iterator[None]:
    """For the import of a module: where it fails, ``ImportError`` says what needs the package and how to get it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{what} needs {package}, which is not there or does not load ({error}). ComfyUI's requirements have it: "
            f"run `pip install {package}` in ComfyUI's environment, and start ComfyUI again.") from error
