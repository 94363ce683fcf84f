"""The logic of ``workflows/run.py`` by itself: values, batches, spreading, events, names, words."""
from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.checkout import CHECKOUT
from speechwright.workflows.runner import cli, events, graph, jobs, report
from speechwright.workflows.runner.client import Client, ServerGone
from speechwright.workflows.runner.jobs import Job, least_busy, spread

GRAPH = {
    "1": {"class_type": "LoadAudio", "_meta": {"title": "Source"}, "inputs": {"audio": "ada.flac"}},
    "2": {"class_type": "Load", "inputs": {"family": "Demo", "family.demo": "S3Gen", "on": True}},
    "3": {"class_type": "Say", "inputs": {"model": ["2", 0], "text": "hello", "seed": 0, "cfg": 0.7}},
}


def value_of(text: str):
    address, value = graph.parse_set(GRAPH, text)
    node, name = graph.find_input(GRAPH, address)
    return graph.assign(GRAPH, [(address, value)])[node]["inputs"][name]


# Values


@pytest.mark.parametrize(("text", "value"), [
    ("3.seed=7", 7), ("3.seed=18446744073709551615", 2**64 - 1), ("3.cfg=0", 0), ("3.cfg=1e-3", 1e-3),
    ("2.on=false", False), ("2.on=no", "no"), ("2.family.demo=Other", "Other"), ("Say.seed=1", 1),
    ("Source.audio=a=b.wav", "a=b.wav"), ("3.text=", ""), ("3.text=7", "7"), ("3.text=true", "true"),
    ('3.text="two\\nlines"', "two\nlines"), ('3.text="Hi," she said.', '"Hi," she said.'),
    ('3.text=["1", 0]', ["1", 0]), ("3.text=[laughs]", "[laughs]"), ("3.text=[1, 2]", "[1, 2]"),
    ("3.model=[\"9\", 0]", ["9", 0]),
])
def test_a_value_is_json_where_the_input_is_no_text(text, value):
    assert value_of(text) == value and type(value_of(text)) is type(value)


def test_assigning_changes_a_copy():
    before = json.dumps(GRAPH)
    assert graph.assign(GRAPH, [("3.seed", 5)])["3"]["inputs"]["seed"] == 5
    assert json.dumps(GRAPH) == before


@pytest.mark.parametrize(("text", "parts"), [
    ("9.seed=1", ["no such node", '1 "Source", 2 "Load", 3 "Say"']),
    ("3.sed=1", ['node 3 "Say" has no input \'sed\'', "model, text, seed, cfg"]),
    ("3=1", ["give node.input"]), ("3.seed", ["give node.input=value"]), ("", ["give node.input=value"]),
])
def test_what_does_not_exist_is_an_error_that_lists_what_does(text, parts):
    with pytest.raises(graph.GraphError) as error:
        graph.parse_set(GRAPH, text)
    assert all(part in str(error.value) for part in parts)


def test_the_inputs_of_another_choice_may_be_set():
    """A checkpoint is an input of one kind of model, and the example chooses another: both can be set."""
    given = {"1": {"class_type": "Load", "inputs": {"family": "Demo", "family.demo": "small"}}}
    found = [graph.parse_set(given, text) for text in ("Load.family=Real", "Load.family.checkpoint=a/b.pt")]
    assert graph.assign(given, found)["1"]["inputs"] == {
        "family": "Real", "family.demo": "small", "family.checkpoint": "a/b.pt"}


def test_a_title_must_be_one_nodes():
    twice = {"1": GRAPH["3"], "2": GRAPH["3"]}
    with pytest.raises(graph.GraphError, match="several nodes have this title"):
        graph.find_input(twice, "Say.seed")


@pytest.mark.parametrize(("text", "values"), [
    ("3.seed=1,2,3", [1, 2, 3]), ("3.seed= 1 , 2,", [1, 2]), ("3.seed=[4, 5]", [4, 5]), ("3.seed=9", [9]),
    ("3.text=one,two", ["one", "two"]), ('3.text=["Hello, you", "7"]', ["Hello, you", "7"]),
])
def test_batches_list_values(text, values):
    assert graph.parse_batch(GRAPH, text) == [(text.split("=")[0], value) for value in values]


def test_a_batch_may_come_from_a_file(tmp_path):
    """Windows editors write a mark before the first line, and files end with an empty one."""
    (tmp_path / "lines.txt").write_text("\ufeffOne, two.\n\n  42 \n", encoding="utf-8")
    found = graph.parse_batch(GRAPH, f"3.text=@{tmp_path / 'lines.txt'}")
    assert found == [("3.text", "One, two."), ("3.text", "42")]
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    for name, part in (("empty.txt", "no values"), ("none.txt", "cannot be read")):
        with pytest.raises(graph.GraphError, match=part):
            graph.parse_batch(GRAPH, f"3.text=@{tmp_path / name}")


def test_batches_combine():
    batches = [graph.parse_batch(GRAPH, "3.seed=1,2"), graph.parse_batch(GRAPH, "3.text=a,b")]
    found = [(job["3"]["inputs"]["seed"], job["3"]["inputs"]["text"])
             for _, job in graph.spread_out(GRAPH, batches)]
    assert found == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert graph.spread_out(GRAPH, batches)[1][0] == "3.seed=1, 3.text=b"
    assert graph.spread_out(GRAPH, []) == [("", GRAPH)]


def test_workflows_are_found_by_name_and_by_path(tmp_path):
    for name, text in (("one", json.dumps(GRAPH)), ("editor", '{"nodes": [], "links": []}'), ("list", "[1]"),
                       ("broken", "{")):
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    assert graph.load("one", tmp_path) == graph.load(str(tmp_path / "one.json"), Path("nowhere")) == GRAPH
    for name, part in (("two", "There are: broken, editor, list, one"), ("editor", r"Export \(API\)"),
                       ("list", "not a workflow in API format"), ("broken", "not a JSON file")):
        with pytest.raises(graph.GraphError, match=part):
            graph.load(name, tmp_path)


def test_local_files_are_sent_and_others_left_to_the_server(tmp_path):
    (tmp_path / "ada.flac").write_bytes(b"1")
    sent = []

    def upload(path: Path) -> str:
        sent.append(path)
        return "ada (1).flac"

    changed = graph.with_uploads(GRAPH, tmp_path, upload)
    assert changed["1"]["inputs"]["audio"] == "ada (1).flac" and sent == [(tmp_path / "ada.flac").resolve()]
    assert graph.with_uploads(GRAPH, tmp_path / "none", upload) == GRAPH and len(sent) == 1


# Servers


def test_the_least_busy_server_is_chosen():
    assert least_busy({}, {}) is None
    assert least_busy({"a": 0, "b": 0}, {}) == "a"
    assert least_busy({"a": 1, "b": 0}, {}) == "b"
    assert least_busy({"a": 0, "b": 1}, {"a": 1}) == "b"
    assert least_busy({"a": 2, "b": 9}, {"a": 2}) is None, "others' work takes longer than a short wait"
    assert least_busy({"a": 0}, {"a": jobs.AT_ONCE}) is None, "what was just sent is not in its count yet"


class Fake:
    """A server that answers at once, or dies at its ``lifetime``-th job."""

    def __init__(self, lifetime: int = 10**6) -> None:
        self.lifetime, self.done, self.lock = lifetime, [], threading.Lock()

    def load(self) -> int:
        if self.lifetime <= 0:
            raise ServerGone("dead")
        return 0

    def work(self, job: Job) -> str:
        with self.lock:
            self.lifetime -= 1
            if self.lifetime <= 0:
                raise ServerGone("died")
            self.done.append(job.label)
            return job.label


def run_spread(servers: list[Fake], labels: list[str]) -> tuple[list, list]:
    lost: list = []
    work = spread([Job({}, label) for label in labels], servers, Fake.work, lost.append)
    return [result for _, result in work], lost


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_job_is_done_once(count):
    servers = [Fake(), Fake(), Fake()]
    labels = [str(i) for i in range(count)]
    results, lost = run_spread(servers, labels)
    assert sorted(results) == sorted(label for fake in servers for label in fake.done) == labels and not lost


def test_jobs_of_a_dying_server_go_to_another():
    servers = [Fake(lifetime=2), Fake(lifetime=0), Fake()]
    labels = [str(i) for i in range(9)]
    results, lost = run_spread(servers, labels)
    assert sorted(results) == labels and len(lost) == 2


def test_without_any_server_there_is_one_error():
    with pytest.raises(ServerGone, match="No server is left for 3 of 3 jobs"):
        run_spread([Fake(lifetime=0), Fake(lifetime=0)], ["a", "b", "c"])


def test_a_job_that_takes_servers_down_is_given_up():
    """One graph that needs too much memory once would have ended every server in turn."""
    servers = [Fake(lifetime=1), Fake(lifetime=1), Fake()]
    results, lost = run_spread(servers, ["heavy"])
    assert len(lost) == 2 and isinstance(results[0], ServerGone) and not servers[2].done


def test_a_failing_job_does_not_stop_the_others():
    def work(_, job):
        if job.label == "bad":
            raise jobs.JobFailed("no")
        return job.label

    found = dict((job.label, result) for job, result in
                 spread([Job({}, "bad"), Job({}, "good")], [Fake()], work, pytest.fail))
    assert found["good"] == "good" and isinstance(found["bad"], jobs.JobFailed)


@pytest.mark.parametrize(("given_url", "url"), [
    ("127.0.0.1:8188", "http://127.0.0.1:8188"), ("https://host/comfy/", "https://host/comfy")])
def test_addresses_are_taken_as_people_write_them(given_url, url):
    assert Client(given_url).url == url


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ValueError, match="give one such as http://127.0.0.1:8188"):
        Client("ftp://host")


def test_a_server_that_goes_in_the_middle_is_noticed():
    """It once hung: the events ended, and nobody asked whether the server was still there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve() -> None:
            socket_, _ = listener.accept()
            with socket_:
                socket_.recv(4096)
                socket_.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
                asking, _ = listener.accept()
                with asking:
                    asking.recv(4096)
                    body = b'{"prompt_id": "p"}'
                    asking.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            listener.close()

        threading.Thread(target=serve, daemon=True).start()
        heard = []
        with pytest.raises(ServerGone, match="does not answer"):
            Client(f"127.0.0.1:{listener.getsockname()[1]}").run({}, lambda kind, data: heard.append(kind))
    assert heard == ["queued"]


# Events


@given(st.binary(max_size=70000), st.integers(0, 15), st.booleans(), st.integers(0, 12))
def test_frames_are_read_when_they_are_whole(payload, opcode, is_last, cut):
    length = len(payload)
    size = bytes([length]) if length < 126 else \
        b"\x7e" + length.to_bytes(2, "big") if length < 1 << 16 else b"\x7f" + length.to_bytes(8, "big")
    frame = bytes([opcode | 0x80 * is_last]) + size + payload
    assert events.parse_frame(frame + b"next") == (opcode, is_last, payload, len(frame))
    assert events.parse_frame(frame[:min(cut, len(frame) - 1)]) is None


def test_what_a_client_sends_is_masked():
    frame = events.client_frame(events.PONG, b"abc")
    assert frame[:2] == bytes([0x8A, 0x83]) and bytes(a ^ b for a, b in zip(frame[6:], frame[2:6])) == b"abc"


# Files


def test_nothing_is_overwritten(tmp_path):
    names = [jobs.save(tmp_path / "new", "take_00009.flac", bytes([i])).name for i in range(3)]
    assert names == ["take_00009.flac", "take_00010.flac", "take_00011.flac"]
    assert [(tmp_path / "new" / name).read_bytes() for name in names] == [b"\0", b"\1", b"\2"]
    for free in ("take.flac", "take_2.flac", "take_3.flac"):
        assert jobs.save(tmp_path, "take.flac", b"").name == free
    for free in ("old_00001_.flac", "old_00002.flac"):          # older ComfyUI ended names so
        assert jobs.save(tmp_path, "old_00001_.flac", b"").name == free


@pytest.mark.parametrize("name", ["../up.flac", "/top.flac", "..\\up.flac"])
def test_a_server_cannot_write_elsewhere(tmp_path, name):
    assert jobs.save(tmp_path / "out", name, b"").parent == tmp_path / "out"


def test_only_files_of_the_output_folder_are_fetched():
    preview = {"audio": [{"filename": "a", "type": "temp"}], "text": ["words"], "animated": True}
    history = {"outputs": {"9": {"audio": [{"filename": "b", "type": "output"}]}, "7": preview}}
    assert [file["filename"] for file in jobs.written(history)] == ["b"]


# Words


def test_errors_are_told_with_the_node():
    fault = {"message": "Value too big", "details": "seed"}
    answer = {"error": {}, "node_errors": {"3": {"errors": [fault]}}}
    assert report.refusal(answer, GRAPH) == 'node 3 "Say": Value too big: seed'
    answer = {"error": {"message": "No outputs", "details": ""}, "node_errors": {}}
    assert report.refusal(answer, GRAPH) == "No outputs"
    error = {"node_id": "1", "exception_type": "ValueError", "exception_message": "0 samples\n"}
    messages = [["execution_start", {}], ["execution_error", error]]
    history = {"status": {"completed": False, "messages": messages}}
    assert report.failure(history, GRAPH) == 'node 1 "Source": ValueError: 0 samples'
    assert report.failure({"status": {"completed": True}}, GRAPH) is None
    assert "without saying why" in report.failure({}, GRAPH)


@pytest.mark.parametrize(("arguments", "part"), [
    (["nope"], "There are: "), (["voice_conversion", "--set", "1"], "give node.input=value"),
    (["voice_conversion", "--server", "ftp://x"], "not an address")])
def test_mistakes_end_before_anything_is_built(arguments, part, capsys):
    assert cli.main(arguments) == 2
    assert part in capsys.readouterr().err


def test_run_starts_on_a_plain_python():
    """It starts before anything is installed: -S hides what is."""
    done = subprocess.run([sys.executable, "-S", str(CHECKOUT / "workflows" / "run.py"), "--help"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "voice_conversion" in done.stdout
