"""Fetching a file from a hub on this machine: cuts, lies, refusals, full disks and company."""
from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kit.checkout import CHECKOUT
from kit.hub import COMMIT, Hub, allow_downloads, running_hub
from speechwright import hub as downloads
from speechwright.hub import HIDDEN, Published, fetch

CONTENT = bytes(range(256)) * 40        # 10,240 bytes
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MODEL = Published("owner/models", "model.safetensors", len(CONTENT), SHA256, "MIT")
UNKNOWN = replace(MODEL, bytes=None, sha256=None)


class Cancelled(BaseException):
    """What ComfyUI raises when the user presses Cancel is of this kind in newer versions."""


@pytest.fixture
def hub(monkeypatch) -> Iterator[Hub]:
    """A hub with one model; downloads are allowed, in small pieces and without anybody's settings."""
    allow_downloads(monkeypatch)
    monkeypatch.setattr(downloads, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(downloads, "LOCK_SECONDS", 0.05)
    with running_hub() as running:
        running.files["owner/models/model.safetensors"] = CONTENT
        yield running


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "models" / "my model.safetensors"


@dataclass
class Room:
    free: int


def wait_until(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def left(target: Path) -> list[str]:
    """What lies in the hidden folder, but for locks."""
    folder = target.parent / HIDDEN
    return sorted(path.name for path in folder.glob("*") if path.suffix != ".lock") if folder.exists() else []


def assert_whole(target: Path) -> None:
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def fails(kind: type[Exception], text: str, target: Path, published: Published = MODEL, **options) -> str:
    """Nothing is in the target's place after an error that says what went wrong and what to do instead."""
    with pytest.raises(kind, match=text) as caught:
        fetch(published, target, **options)
    assert not target.exists()
    assert "model.safetensors of owner/models on Hugging Face" in str(caught.value)
    assert str(target) in str(caught.value) and "MIT licence" in str(caught.value)
    return str(caught.value)


def another_process(hub: Hub, target: Path, before: str = "") -> subprocess.Popen:
    """One that fetches the model in small pieces, each on the disk at once."""
    script = (
        "import sys; from types import ModuleType; from pathlib import Path\n"
        "package = ModuleType('speechwright'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['speechwright'] = package\n"
        "from speechwright import hub\n"
        "hub.CHUNK_BYTES = hub.TRICKLE_BYTES = 1000\n"
        f"{before}\n"
        "model = hub.Published('owner/models', 'model.safetensors', None, None, 'MIT')\n"
        "hub.fetch(model, Path(sys.argv[2]), endpoint=sys.argv[3])\n")
    command = [sys.executable, "-c", script, str(CHECKOUT), str(target), hub.endpoint]
    return subprocess.Popen(command, env=os.environ | {"HF_HUB_OFFLINE": "0"}, stderr=subprocess.PIPE, text=True)


class TestWhole:
    @pytest.mark.parametrize("published", [MODEL, UNKNOWN], ids=["known", "unknown"])
    def test_fetched_once(self, hub, target, published):
        reports = []
        assert fetch(published, target, lambda *report: reports.append(report), hub.endpoint) == target
        assert_whole(target)
        assert reports == sorted(reports) and reports[0] == (0, len(CONTENT)) and len(reports) == 12
        assert reports[-1] == (len(CONTENT), len(CONTENT))
        before = len(hub.requests)
        assert fetch(published, target, endpoint=hub.endpoint) == target
        assert len(hub.requests) == before

    @pytest.mark.parametrize("size", [0, 1, 1000, 1001])
    def test_sizes(self, hub, target, size):
        hub.files["owner/models/model.safetensors"] = CONTENT[:size]
        assert fetch(UNKNOWN, target, endpoint=hub.endpoint).read_bytes() == CONTENT[:size]

    def test_one_commit_from_question_to_answer(self, hub, target):
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert any(f"/resolve/{COMMIT}/" in request.path for request in hub.requests if request.method == "GET")

    def test_other_files_stay(self, hub, target):
        other = target.parent / HIDDEN / "other.safetensors.0123.part"
        other.parent.mkdir(parents=True)
        other.write_bytes(b"begun")
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert left(target) == [other.name] and target.read_bytes() == CONTENT

    def test_file_that_appeared_meanwhile_stays(self, hub, target):
        def put_there(done: int, total: int) -> None:
            if done == total:
                target.write_bytes(b"by hand")

        assert fetch(MODEL, target, put_there, hub.endpoint).read_bytes() == b"by hand"
        assert left(target) == []

    def test_token_stays_with_the_hub(self, hub, target, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert {request.token for request in hub.requests if request.host == "127.0.0.1"} == {"Bearer hf_secret"}
        assert {request.token for request in hub.requests if request.host == "localhost"} == {None}


class TestCuts:
    def test_goes_on_while_something_comes(self, hub, target):
        hub.cuts = [4500, 3000]
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)
        starts = [int((request.range or "bytes=0-")[6:-1]) for request in hub.bodies()]
        assert len(starts) == 3 and starts[0] == 0 and starts[1] >= 4000 and starts[2] >= starts[1] + 2000

    def test_next_call_goes_on_from_there(self, hub, target):
        """A download of 1 GB that begins anew after each cut never ends on a poor line."""
        hub.cuts = [4500, 0]
        fails(OSError, r"no more after 4,\d+ of 10,240 bytes .*kept, so queue again", target, endpoint=hub.endpoint)
        part, = (target.parent / HIDDEN).glob("*.part")
        assert part.read_bytes() == CONTENT[: part.stat().st_size]
        expected = f"bytes={part.stat().st_size}-"
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)
        assert hub.bodies()[-1].range == expected

    def test_server_without_ranges(self, hub, target):
        hub.ranges, hub.cuts = False, [4500]
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)
        assert len(hub.bodies()) == 2

    def test_file_that_changed_between_is_begun_anew(self, hub, target):
        hub.cuts = [4500, 0]
        fails(OSError, "queue again", target, UNKNOWN, endpoint=hub.endpoint)
        hub.files["owner/models/model.safetensors"] = CONTENT[::-1]
        assert fetch(UNKNOWN, target, endpoint=hub.endpoint).read_bytes() == CONTENT[::-1]
        assert hub.bodies()[-1].range is None and left(target) == []

    @pytest.mark.parametrize("at", [0, 3000, len(CONTENT)])
    def test_cancel(self, hub, target, at):
        def press(done: int, total: int) -> None:
            if done == at:
                raise Cancelled

        with pytest.raises(Cancelled):
            fetch(MODEL, target, press, hub.endpoint)
        assert not target.exists()
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)
        received = sum(len(CONTENT) - int((request.range or "bytes=0-")[6:-1]) for request in hub.bodies()[1:])
        assert received == (len(CONTENT) - at if at else 0)

    def test_cancel_of_a_trickle(self, hub, target, monkeypatch):
        """Of a slow connection a megabyte was awaited before Cancel was looked at: for a quarter of an hour."""
        monkeypatch.setattr(downloads, "CHUNK_BYTES", 2**20)
        monkeypatch.setattr(downloads, "TRICKLE_BYTES", 40)         # of those that wait, which others do not need
        hub.trickle = 40, 0.05                                      # 13 s in all

        def press(done: int, total: int) -> None:
            if done >= 80:
                raise Cancelled

        begun = time.monotonic()
        with pytest.raises(Cancelled):
            fetch(MODEL, target, press, hub.endpoint)
        assert time.monotonic() - begun < 8
        hub.trickle = None
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)
        assert hub.bodies()[-1].range

    def test_kill_amid_a_download(self, hub, target):
        """Nothing can be tidied up then, and a lock is left: the next one goes on behind what is on the disk."""
        hub.trickle = 2000, 0.3
        process = another_process(hub, target)
        wait_until(lambda: any(part.stat().st_size >= 4000 for part in (target.parent / HIDDEN).glob("*.part")))
        process.kill()
        process.wait()
        hub.trickle = None
        assert not target.exists()
        kept = next((target.parent / HIDDEN).glob("*.part")).stat().st_size
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)
        assert hub.bodies()[-1].range == f"bytes={kept}-" and kept >= 4000

    def test_two_processes_at_once(self, hub, target):
        """Both once appended to the same file. The first gets its first byte when the second has come."""
        asked = threading.Event()
        hub.before_body = lambda: asked.wait(30)
        processes = [another_process(hub, target) for _ in range(2)]
        wait_until(lambda: sum(request.method == "HEAD" for request in hub.requests) == 2)
        asked.set()
        assert [process.wait(timeout=60) for process in processes] == [0, 0]
        assert_whole(target)
        assert len(hub.bodies()) == 1


class TestFailures:
    def test_what_came_is_not_what_was_announced(self, hub, target):
        hub.sha256 = "0" * 64
        fails(OSError, r"not the published file \(sha256 [0-9a-f]{64}, not sha256 0{64}\) and was deleted",
              target, UNKNOWN, endpoint=hub.endpoint)
        assert left(target) == []

    @pytest.mark.parametrize("said, found", [(5000, "bytes, not 5,000"), (20_000, "after 10,240 of 20,000")])
    def test_hub_that_lies_about_the_size(self, hub, target, said, found):
        hub.bytes = said
        fails(OSError, found, target, UNKNOWN, endpoint=hub.endpoint)
        hub.bytes = None
        fetch(UNKNOWN, target, endpoint=hub.endpoint)
        assert_whole(target)

    def test_file_without_end(self, hub, target):
        """A body that goes on and on once filled the disk: its size was looked at when it had ended."""
        hub.endless = True
        fails(OSError, "and was deleted; queue again", target, endpoint=hub.endpoint)
        assert left(target) == []

    @pytest.mark.parametrize("cut", [None, 40, 0])
    def test_packed_though_nobody_asked(self, hub, target, cut):
        """Some proxies pack everything. Half of a packed file may end where a piece of the file does."""
        hub.gzip, hub.cuts = True, [] if cut is None else [cut] * 9
        if cut is None:
            fetch(MODEL, target, endpoint=hub.endpoint)
        else:
            fails(OSError, "the connection gave no more|is not the published file", target, endpoint=hub.endpoint)
            hub.gzip, hub.cuts = False, []
            fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)

    def test_part_that_was_spoilt(self, hub, target):
        """Whatever happened to the bytes that were kept, the file is not taken for a model."""
        hub.cuts = [4500, 0]
        fails(OSError, "queue again", target, endpoint=hub.endpoint)
        part, = (target.parent / HIDDEN).glob("*.part")
        part.write_bytes(bytes(len(CONTENT) + 1))
        fails(OSError, "10,241 bytes, not 10,240 bytes", target, endpoint=hub.endpoint)
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)

    @pytest.mark.parametrize("published, text", [
        (replace(MODEL, bytes=7), "bytes 10240, not 7; update Speechwright"),
        (replace(MODEL, sha256="1" * 64), f"sha256 {SHA256}, not 1{{64}}"),
    ], ids=["size", "hash"])
    def test_another_file_is_refused_before_it_is_fetched(self, hub, target, published, text):
        fails(OSError, text, target, published, endpoint=hub.endpoint)
        assert hub.bodies() == [] and not target.parent.exists()

    @pytest.mark.parametrize("refusal, kind, text", [
        ((404, "EntryNotFound"), FileNotFoundError, "the hub has no model.safetensors of owner/models"),
        ((404, "RepoNotFound"), FileNotFoundError, "the hub has no model.safetensors of owner/models"),
        ((401, "RepoNotFound"), FileNotFoundError, "the hub has no model.safetensors of owner/models"),
        ((403, "GatedRepo"), FileNotFoundError, "has accepted its terms|have accepted its terms"),
        ((503, ""), OSError, "asking the hub failed .*503"),
        ((429, ""), OSError, "asking the hub failed .*429"),
    ])
    def test_refusals(self, hub, target, refusal, kind, text):
        hub.refusal = refusal
        fails(kind, text, target, endpoint=hub.endpoint)
        assert not target.parent.exists()

    def test_storage_that_refuses(self, hub, target):
        def refuse():
            hub.before_body = lambda: None
            raise ConnectionAbortedError

        hub.before_body = refuse
        fails(OSError, "the connection gave no more after 0 of 10,240 bytes", target, endpoint=hub.endpoint)

    def test_no_connection(self, hub, target):
        fails(OSError, "asking the hub failed .*look after the connection", target, endpoint="http://127.0.0.1:1")

    def test_offline(self, hub, target, monkeypatch):
        """Those who say so get no request at all, and no minutes of waiting."""
        from huggingface_hub import constants
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        fails(FileNotFoundError, "HF_HUB_OFFLINE .* is set, so nothing is fetched", target, endpoint=hub.endpoint)
        assert hub.requests == []

    def test_without_huggingface_hub(self, target, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        fails(ImportError, "huggingface_hub comes with transformers", target)

    @pytest.mark.parametrize("number, kind", [
        (errno.EACCES, PermissionError), (errno.EROFS, OSError), (errno.ENOSPC, OSError)])
    def test_folder_that_takes_no_file(self, hub, target, monkeypatch, number, kind):
        """Whoever runs the tests may be allowed to write everywhere, so the refusal is made up."""
        def refuse(self, *args, **kwargs):
            raise OSError(number, os.strerror(number), str(self))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", refuse)
            text = fails(kind, os.strerror(number), target, endpoint=hub.endpoint)
        assert str(target.parent / HIDDEN) in text
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)

    def test_file_where_the_folder_should_be(self, hub, target):
        """What nobody may write to, not even an administrator."""
        target.parent.mkdir()
        (target.parent / HIDDEN).write_bytes(b"")
        fails(OSError, f"{HIDDEN}: ", target, endpoint=hub.endpoint)
        assert hub.bodies() == []

    def test_no_room_in_the_middle(self, hub, target):
        """The system refuses bytes 5,001 and on, whatever it said of free space: what fitted is kept."""
        limit = ("import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
                 "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))")
        process = another_process(hub, target, limit)
        _, words = process.communicate(timeout=60)
        assert process.returncode == 1 and f"OSError: download: {target.parent / HIDDEN}: File too large. Or " in words
        assert not target.exists() and [path.endswith(".part") for path in left(target)] == [True]
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)
        assert hub.bodies()[-1].range == "bytes=5000-"

    def test_disk_that_fills_up_while_writing(self, hub, target, monkeypatch):
        def refuse(descriptor):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(downloads.os, "fsync", refuse)
            fails(OSError, rf"{HIDDEN}: {os.strerror(errno.ENOSPC)}", target, endpoint=hub.endpoint)
        fetch(MODEL, target, endpoint=hub.endpoint)
        assert_whole(target)

    def test_too_little_room_is_seen_first(self, hub, target, monkeypatch):
        monkeypatch.setattr(downloads.shutil, "disk_usage", lambda path: Room(free=9000))
        fails(OSError, "10,240 bytes are needed, and 9,000 are free", target, endpoint=hub.endpoint)
        assert hub.bodies() == []

    @pytest.mark.parametrize("kind", ["link", "folder"])
    def test_something_else_in_its_place(self, hub, target, kind):
        """A link to a disk that is not connected is not to be replaced by a gigabyte."""
        target.parent.mkdir()
        target.symlink_to(target.parent / "gone") if kind == "link" else target.mkdir()
        with pytest.raises(OSError, match="is a folder or a link that leads nowhere; take it away first"):
            fetch(MODEL, target, endpoint=hub.endpoint)
        assert hub.requests == [] and target.is_symlink() == (kind == "link")
