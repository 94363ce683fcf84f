"""What holds for whatever is read: an error in words or a result, in little time and in memory like the file's size."""
from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SPARE_BYTES = 2**20         # that any reader may take
TIMES = 60                  # as much as the file, beside those: an object takes some hundred bytes, its text a few
SPARE_SECONDS = 1.0
SECONDS_PER_BYTE = 1e-4
MAX_WORDS = 1000            # characters of an error
REMEDY = re.compile(r"\b(Download|Give|Choose|Run|Copy|Put|Unpack|Load it again|give|write|indent|run|name the)\b")

MEMORY = Path("/dev/shm")   # opening a file on a disk takes longer than reading it
FOLDER = Path(tempfile.mkdtemp(prefix="speechwright-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


@contextmanager
def bounded(size: int, times: int = TIMES, spare: int = SPARE_BYTES) -> Iterator[None]:
    """What the block takes is in proportion to ``size`` bytes of input. Of torch's memory nothing is seen here."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
    finally:
        seconds = time.process_time() - start
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= spare + times * size, f"{peak:,} bytes for {size:,}"
    assert seconds <= SPARE_SECONDS + SECONDS_PER_BYTE * size, f"{seconds:.1f} s for {size:,} bytes"


def assert_in_words(error: Exception, begin: str, longest: int = MAX_WORDS) -> None:
    """The error names what it is about, fits on a screen, and tells what to do."""
    said = str(error)
    assert said.startswith(begin), said
    assert said.encode(), "it cannot be shown"
    assert len(said) - len(begin) <= longest, said
    assert REMEDY.search(said), said


def written(name: str, content: bytes) -> Path:
    path = FOLDER / name
    path.write_bytes(content)
    return path
