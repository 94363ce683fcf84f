"""One running ComfyUI server, over its HTTP interface and its events."""
from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from .events import EventStream

ANSWER_LIMIT_S = 60
SILENCE_S = 20              # without an event, before the server is asked how the job does
POLL_S = 1.0                # between such questions where events no longer come

OnEvent = Callable[[str, Mapping], None]


class ServerGone(ConnectionError):
    """The server does not answer, or has forgotten the job."""


class Refused(ValueError):
    """The server answered with an error. ``answer`` is what it said."""

    def __init__(self, url: str, status: int, answer: Mapping) -> None:
        super().__init__(f"{url}: status {status}: {answer}")
        self.status, self.answer = status, answer


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:          # of ports, brackets and parts of names
        return False
    return whole and url.isascii() and url.isprintable() and " " not in url


class Client:
    """Talks to the server at ``url``."""

    def __init__(self, url: str) -> None:
        url = url if "://" in url else f"http://{url}"
        if not _is_address(url):
            raise ValueError(f"--server {url}: not an address; give one such as http://127.0.0.1:8188.")
        self.url = url.rstrip("/")
        # The events could not go through a proxy, so nothing does.
        self._opener = build_opener(ProxyHandler({}))
        self._uploaded: dict[Path, str] = {}
        self._uploading = threading.Lock()

    def __repr__(self) -> str:
        return self.url

    def get(self, path: str):
        """What the server answers to a question, as JSON."""
        try:
            return json.loads(self._ask(path))
        except json.JSONDecodeError as error:
            raise ServerGone(f"{self.url} answers, but not as a ComfyUI does.") from error

    def post(self, path: str, body: Mapping):
        """What the server answers to a command, as JSON; None where it says nothing."""
        answer = self._ask(path, json.dumps(body).encode(), "application/json")
        return json.loads(answer) if answer else None

    def _ask(self, path: str, body: bytes | None = None, kind: str = "") -> bytes:
        request = Request(self.url + path, body, {"Content-Type": kind} if kind else {})
        try:
            with self._opener.open(request, timeout=ANSWER_LIMIT_S) as response:
                return response.read()
        except HTTPError as error:
            text = error.read().decode("utf-8", errors="replace")
            try:
                answer = json.loads(text)
            except json.JSONDecodeError:
                answer = {"error": text or error.reason}
            raise Refused(self.url + path, error.code, answer) from error
        except (URLError, OSError, HTTPException) as error:
            raise ServerGone(f"{self.url} does not answer: {getattr(error, 'reason', error)}.") from error

    def load(self) -> int:
        """How many jobs it has, running and waiting."""
        return self.get("/prompt")["exec_info"]["queue_remaining"]

    def upload(self, path: Path) -> str:
        """Put a file into the input folder. The name that it has there: another one if its own is taken."""
        with self._uploading:
            if path not in self._uploaded:
                edge = uuid.uuid4().hex
                name = path.name.replace('"', "_")
                head = (f'--{edge}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
                        "Content-Type: application/octet-stream\r\n\r\n")
                body = head.encode() + path.read_bytes() + f"\r\n--{edge}--\r\n".encode()
                answer = json.loads(self._ask("/upload/image", body, f"multipart/form-data; boundary={edge}"))
                self._uploaded[path] = answer["name"]
            return self._uploaded[path]

    def view(self, file: Mapping) -> bytes:
        """The content of a file that a job wrote, named as in its history."""
        named = {key: file.get(key, "") for key in ("filename", "subfolder", "type")}
        return self._ask(f"/view?{urlencode(named)}")

    def run(self, graph: Mapping, on_event: OnEvent = lambda kind, data: None) -> dict:
        """Queue a graph, follow it, and return its entry in the history. Refused where it is not valid.

        ``on_event`` gets ``("queued", {"prompt_id": ...})`` and then each event of the job.
        """
        client_id = uuid.uuid4().hex
        try:
            with EventStream(f"{self.url}/ws?clientId={client_id}") as events:
                answer = self.post("/prompt", {"prompt": graph, "client_id": client_id})
                prompt_id = answer["prompt_id"]
                on_event("queued", {"prompt_id": prompt_id})
                try:
                    return self._follow(events, prompt_id, on_event)
                except ServerGone:
                    raise
                except OSError:             # only the events broke off: the job may go on
                    return self._await_history(prompt_id)
        except ServerGone:
            raise
        except OSError as error:
            raise ServerGone(f"{self.url} does not answer: {error}.") from error

    def _follow(self, events: EventStream, prompt_id: str, on_event: OnEvent) -> dict:
        while True:
            message = events.next(SILENCE_S)
            if message is None:
                entry = self._history(prompt_id)
                if entry is not None:
                    return entry
                continue
            kind, data = message["type"], message.get("data") or {}
            if data.get("prompt_id") != prompt_id:
                continue
            on_event(kind, data)
            # The history is written before this event, and after execution_success.
            if kind == "executing" and data.get("node") is None:
                return self._await_history(prompt_id)

    def _await_history(self, prompt_id: str) -> dict:
        while (entry := self._history(prompt_id)) is None:
            time.sleep(POLL_S)
        return entry

    def _history(self, prompt_id: str) -> dict | None:
        """The entry of a job, None while it waits or runs. ServerGone if the server does not know it."""
        entry = self.get(f"/history/{prompt_id}").get(prompt_id)
        if entry is not None:
            return entry
        queue = self.get("/queue")
        if any(item[1] == prompt_id for item in queue["queue_running"] + queue["queue_pending"]):
            return None
        entry = self.get(f"/history/{prompt_id}").get(prompt_id)        # it may have ended in between
        if entry is None:
            raise ServerGone(f"{self.url} was started anew and has forgotten the job.")
        return entry

    def cancel(self, prompt_id: str) -> None:
        """Take a job out of the queue, and stop it if it runs."""
        self.post("/queue", {"delete": [prompt_id]})
        self.post("/interrupt", {"prompt_id": prompt_id})
