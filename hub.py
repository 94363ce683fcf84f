"""Published files, fetched one at a time: only when asked, going on after a cut, checked before they are used.

huggingface_hub finds a file, tells its size and hash, and opens the connection, with the user's own mirror,
proxy and token. The bytes are written here: since its version 1.18 a download of its own begins anew after a
cut, and one that runs cannot be cancelled.
"""
from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .needed import needed

CHUNK_BYTES = 2**20         # between two reports, at most
TRICKLE_BYTES = 2**14       # the same where huggingface_hub waits until so much is there, as it does before 1.0
HIDDEN = ".downloads"       # beside the file to come, so that moving it there is one step within one disk
LOCK_SECONDS = 0.5          # between two looks at whether another process has finished


@dataclass(frozen=True)
class Published:
    """A file on the Hugging Face Hub. ``bytes`` and ``sha256`` are None where they are not known."""

    repository: str
    file: str
    bytes: int | None
    sha256: str | None
    licence: str

    def __str__(self) -> str:
        size = "" if self.bytes is None else f"{self.bytes / 1e9:.2f} GB, "
        return f"{self.file} of {self.repository} on Hugging Face ({size}{self.licence} licence)"


@dataclass(frozen=True)
class _Remote:
    """A file as the hub has it today; ``key`` is another one when its content is."""

    url: str
    bytes: int
    sha256: str | None
    key: str


class _Cut(Exception):
    """The connection could not be opened, or broke."""


def unwatched(done: int, total: int) -> None:
    """An ``on_progress`` for downloads that nobody looks at."""


def fetch(published: Published, target: Path, on_progress: Callable[[int, int], None] = unwatched,
          endpoint: str | None = None) -> Path:
    """``target``, after fetching the published file to it if it is not there.

    on_progress: is told (bytes that are here, bytes in all). What it raises ends the download; what has come
    is kept in a hidden folder beside ``target``, and the next call goes on from there.
    endpoint: address of a hub other than the user's own setting.
    FileNotFoundError where the hub does not give the file, or is not to be asked; OSError where the connection,
    the disk or the file that came is at fault; ImportError without huggingface_hub. Each says what to do.
    """
    if target.is_file():
        return target
    folder = target.parent / HIDDEN
    by_hand = f"Or download {published} yourself, and put it at {target}."
    try:
        if os.path.lexists(target):
            raise FileExistsError(f"{target} is a folder or a link that leads nowhere; take it away first")
        remote = _look_up(published, endpoint)
        part = folder / f"{target.name}.{remote.key}.part"
        with alone(folder / f"{target.name}.lock", lambda: on_progress(_size(part), remote.bytes)):
            if not target.is_file():
                _receive(remote, part, on_progress)
                _check(remote, part)
                if not os.path.lexists(target):
                    os.replace(part, target)
    except ImportError as error:
        raise ImportError(f"download: {error}. huggingface_hub comes with transformers: install ComfyUI's "
                          f"requirements again. {by_hand}") from error
    except OSError as error:
        kind = next(kind for kind in (FileNotFoundError, PermissionError, OSError) if isinstance(error, kind))
        # Only what the system raises has a number.
        words = str(error) if error.errno is None else f"{error.filename or folder}: {error.strerror}"
        raise kind(f"download: {words}. {by_hand}") from error
    _tidy(folder, target.name)
    return target


def _look_up(published: Published, endpoint: str | None) -> _Remote:
    """Ask the hub for address, size and hash, which have to be those that are known."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        raise FileNotFoundError("HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, so nothing is fetched; "
                                "start ComfyUI without it")
    where = {"repo_id": published.repository, "filename": published.file, "endpoint": endpoint}
    try:
        found = huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(**where))
    except errors.GatedRepoError as error:
        raise FileNotFoundError(f"{published.repository} is for those who have accepted its terms; do so on its "
                                "page, and log in with `hf auth login`") from error
    except (errors.EntryNotFoundError, errors.RepositoryNotFoundError) as error:
        raise FileNotFoundError(f"the hub has no {published.file} of {published.repository}; update "
                                "Speechwright, in case it has moved") from error
    except _connection_errors() as error:
        raise OSError(f"asking the hub failed ({_short(error)}); look after the connection, queue "
                      "again") from error
    sha256 = found.etag if re.fullmatch("[0-9a-f]{64}", found.etag or "") else None
    for what, known, now in (("bytes", published.bytes, found.size), ("sha256", published.sha256, sha256)):
        if known is not None and now is not None and known != now:
            raise OSError(f"the hub has another {published.file} than this version of Speechwright knows: "
                          f"{what} {now}, not {known}; update Speechwright")
    size = published.bytes if found.size is None else found.size
    if size is None:
        raise OSError("the hub does not say how large the file is")
    return _Remote(
        url=huggingface_hub.hf_hub_url(**where, revision=found.commit_hash),
        bytes=size,
        sha256=published.sha256 or sha256,
        key=hashlib.sha256(f"{found.etag or found.commit_hash} {size}".encode()).hexdigest()[:16])


@contextmanager
def alone(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time in. A lock goes with the process that holds it, however that ends."""
    with needed("filelock", "a file that several processes may write"):
        from filelock import FileLock, Timeout

    lock = FileLock(path)
    while not lock.is_locked:
        on_wait()
        path.parent.mkdir(parents=True, exist_ok=True)      # who is done takes it away
        try:
            with suppress(Timeout, FileNotFoundError):
                lock.acquire(timeout=LOCK_SECONDS)
        except NotImplementedError:
            break           # a file system without locks; should two have written at once, the hash tells
    try:
        yield
    finally:
        lock.release()


def _receive(remote: _Remote, part: Path, on_progress: Callable[[int, int], None]) -> None:
    """Append what ``part`` lacks, over as many connections as it takes while each of them brings something."""
    with open(part, "ab") as file:
        while (have := file.tell()) < remote.bytes:
            free = shutil.disk_usage(part.parent).free
            if free < remote.bytes - have:
                raise OSError(f"{part.parent}: {remote.bytes - have:,} bytes are needed, and {free:,} are free")
            reason = "it ended early"
            try:
                with closing(_body(remote.url, have)) as body:
                    for place, piece in body:
                        if place != file.tell():
                            file.seek(place)
                            file.truncate()
                        file.write(piece)
                        on_progress(min(file.tell(), remote.bytes), remote.bytes)
                        if file.tell() > remote.bytes:
                            break           # it is another file, and might have no end
            except _Cut as cut:
                reason = str(cut)
            if file.tell() <= have:
                raise OSError(f"the connection gave no more after {have:,} of {remote.bytes:,} bytes ({reason}); "
                              "they are kept, so queue again to go on from there")
        file.flush()
        os.fsync(file.fileno())


def _body(url: str, start: int) -> Iterator[tuple[int, bytes]]:
    """Pieces and their places, from ``start`` on, or from 0 where a server sends nothing but whole files."""
    from huggingface_hub.utils import build_hf_headers

    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        with _response(url, headers) as (status, pieces):
            if status not in (200, 206):
                raise _Cut(f"status {status}")
            place = start if status == 206 else 0
            for arrived in pieces:
                for start in range(0, len(arrived), CHUNK_BYTES):
                    piece = arrived[start : start + CHUNK_BYTES]
                    yield place, piece
                    place += len(piece)
    except _connection_errors() as error:
        raise _Cut(_short(error)) from error


@contextmanager
def _response(url: str, headers: dict[str, str]) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Status and body of an answer, as it arrives: whoever cancels a slow download is heard between two pieces.

    The session is one of httpx, or of requests before huggingface_hub 1.0.
    """
    from huggingface_hub import constants, get_session

    session, timeout = get_session(), constants.HF_HUB_DOWNLOAD_TIMEOUT
    if callable(session.stream):
        with session.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
            yield response.status_code, response.iter_bytes()
    else:
        with session.get(url, headers=headers, timeout=timeout, stream=True) as response:
            yield response.status_code, response.iter_content(TRICKLE_BYTES)


def _connection_errors() -> tuple[type[Exception], ...]:
    """What a connection may raise: the hub's own error is made of that of the library below it."""
    from huggingface_hub.errors import HfHubHTTPError

    return OSError, *HfHubHTTPError.__bases__


def _check(remote: _Remote, part: Path) -> None:
    """Delete what is not the published file."""
    found, expected = f"{_size(part):,} bytes", f"{remote.bytes:,} bytes"
    if found == expected and remote.sha256:
        digest = hashlib.sha256()
        with open(part, "rb") as file:
            while piece := file.read(CHUNK_BYTES):
                digest.update(piece)
        found, expected = f"sha256 {digest.hexdigest()}", f"sha256 {remote.sha256}"
    if found != expected:
        part.unlink()
        raise OSError(f"what came is not the published file ({found}, not {expected}) and was deleted; queue "
                      "again to fetch it anew")


def _tidy(folder: Path, name: str) -> None:
    """Take away what the download of that name left; the folder goes with the last one."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith(f"{name}."):
                path.unlink(missing_ok=True)
        folder.rmdir()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _short(error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:200]}"
