"""A hub on this machine: addresses, headers and redirects as the real one has them, and failures to order."""
from __future__ import annotations

import gzip
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SETTINGS = ("http_proxy", "https_proxy", "all_proxy", "hf_token")


@dataclass
class Request:
    """What a client asked for. ``host`` tells the hub from the storage that it sends clients to."""

    method: str
    host: str
    path: str
    range: str | None
    token: str | None


@dataclass
class Hub:
    """The server's content and behaviour; tests change it while it runs."""

    files: dict[str, bytes] = field(default_factory=dict)   # "owner/name/file" -> content
    requests: list[Request] = field(default_factory=list)
    endpoint: str = ""
    storage: str = ""
    cuts: list[int] = field(default_factory=list)           # bytes after which the next answers break off
    ranges: bool = True                                     # whether it can send a part of a file
    refusal: tuple[int, str] | None = None                  # status and X-Error-Code in place of an answer
    sha256: str | None = None                               # that it claims; None: the true one
    bytes: int | None = None                                # the same of the size
    endless: bool = False                                   # whether it sends more and more after the file
    gzip: bool = False                                      # whether it packs what nobody asked to be packed
    trickle: tuple[int, float] | None = None                # bytes at once, and seconds between
    before_body: Callable[[], object] = lambda: None

    def bodies(self) -> list[Request]:
        """The requests for content, as opposed to those that ask about it."""
        return [request for request in self.requests if request.method == "GET" and request.path.startswith("/blobs/")]


def allow_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back that tests are offline, and the proxy and token of whoever runs them."""
    from huggingface_hub import constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in (*SETTINGS, *map(str.upper, SETTINGS)):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that answers under ``hub.endpoint`` until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.handle_error = lambda *_: None       # clients that go away are part of the tests
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    hub.storage = f"http://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            asked = self.headers
            hub.requests.append(Request(self.command, asked["Host"].split(":")[0], self.path, asked["Range"],
                                        asked["Authorization"]))
            if self.path.startswith("/blobs/"):
                self.blob(hub.files[self.path.removeprefix("/blobs/")], asked["Range"])
            elif hub.refusal:
                self.head(hub.refusal[0], {"X-Error-Code": hub.refusal[1]})
            else:
                self.redirect()

        def redirect(self) -> None:
            """Large files lie in a storage on another host; size and hash are told before one goes there."""
            found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path)
            name = f"{found[1]}/{found[2]}"
            if name not in hub.files:
                return self.head(404, {"X-Error-Code": "EntryNotFound"})
            content = hub.files[name]
            etag = hub.sha256 or hashlib.sha256(content).hexdigest()
            return self.head(302, {"Location": f"{hub.storage}/blobs/{name}", "X-Repo-Commit": COMMIT,
                                   "X-Linked-Etag": f'"{etag}"',
                                   "X-Linked-Size": str(len(content) if hub.bytes is None else hub.bytes)})

        def blob(self, content: bytes, asked: str | None) -> None:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and hub.ranges else 0
            status, headers = 200, {}
            if asked and hub.ranges:
                status, headers = 206, {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            if hub.gzip:
                content, start = gzip.compress(content), 0
                status, headers = 200, {"Content-Encoding": "gzip"}
            hub.before_body()
            self.head(status, headers, None if hub.endless else len(content) - start)
            end = start + hub.cuts.pop(0) if hub.cuts else len(content)
            step, pause = hub.trickle or (len(content) or 1, 0.0)
            for begin in range(start, end, step):
                self.wfile.write(content[begin : min(end, begin + step)])
                time.sleep(pause)
            while hub.endless:
                self.wfile.write(bytes(len(content)))
            self.close_connection = end < len(content)

        def head(self, status: int, headers: dict[str, str], length: int | None = 0) -> None:
            self.send_response(status)
            size = {"Connection": "close"} if length is None else {"Content-Length": str(length)}
            for name, value in (headers | size).items():
                self.send_header(name, value)
            self.end_headers()

    return Handler
