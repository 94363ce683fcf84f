"""What the server may make of any graph, and how it is held to that.

It refuses the graph with an error that names the input; or runs it to sound outputs; or ends the run in one error that
names an input or a file, and says what is allowed or what to do. Afterwards it is as it was.
"""
from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from kit.drawn import MARK, OURS, Drawn, Graph, read
from kit.server import Comfy
from speechwright.workflows.runner.client import Refused

LIMIT_S = 40.0              # for a job that asks for little, on a machine that does other things too
HEAVY_S = 3.0               # for one that asks for much, before Cancel, which is to be obeyed
CANCEL_S = 40.0
POLL_S = 0.02
LONGEST_ERROR = 3000        # characters; one of a long run holds its report

ALLOWED = ("ValueError", "FileNotFoundError", "FileExistsError", "OSError", "ImportError")
# What an error says that is of use: a verb that tells what to do.
REMEDY = re.compile(r"\b(give|choose|connect|write|put|switch|install|use|leave|raise|lower|pick|shorten|disconnect|"
                    r"correct|check|set|save|convert|load|try|run|press|rename|see|mend|download|at fault)\b", re.I)
# Python's own words, which tell a user nothing.
RAW = re.compile(r"object has no attribute|not subscriptable|unsupported operand|not supported between|must be real|"
                 r"positional argument|keyword argument|NoneType|out of range|Traceback|\[Errno|0x[0-9a-f]{6}")
# The server's own misfortunes, in its log.
BROKEN = ("Error handling request", "--- Logging error ---", "Task exception was never retrieved")
RATES = {"S3Token2Wav": 24_000, "FishDecode": 44_100}
IDS = {"s3-v2": 6561, "s3-v3": 6561, "fish-44k": 4096}


class Broken(AssertionError):
    """A law that was not kept. ``law`` is its name."""

    def __init__(self, law: str, drawn: Drawn, told: object) -> None:
        self.law, self.told = law, told
        target = drawn.graph[drawn.target]["class_type"]
        graph = json.dumps(drawn.graph)
        super().__init__(f"{law}: {target} with {_short(drawn.odd)}: {_short(told)}\n"
                         f"{graph if len(graph) < 20_000 else _short(graph)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 1500 else f"{text[:1500]}... ({len(text)} characters)"


class Judge:
    """Runs graphs in one server and counts how they ended."""

    def __init__(self, comfy: Comfy) -> None:
        self.comfy = comfy
        self.nodes = read(comfy.get("/object_info"))
        self.counts: Counter[str] = Counter()
        self.inputs = 0
        self.log_seen = comfy.booted.log.stat().st_size
        self.files = tree(comfy.booted.base)
        self.probes = 0
        self.first = self.probe()

    def try_(self, drawn: Drawn) -> str:
        """How a graph ended: "refused", "done", "error" or "stopped". Broken where that is against a law."""
        self.inputs += len(drawn.odd)
        files = tree(self.comfy.booted.base / "models" / "voices")
        ended = self._run(drawn)
        self.counts[ended] += 1
        self._check_log(drawn)
        self._check_voices(drawn, files)
        return ended

    def _run(self, drawn: Drawn) -> str:
        try:
            answer = self.comfy.post("/prompt", {"prompt": drawn.graph})
        except Refused as refused:
            if refused.status != 400:
                raise Broken("the server answers", drawn, refused) from refused
            self._check_refusal(drawn, refused.answer["node_errors"])
            return "refused"
        if answer["node_errors"]:
            self._check_refusal(drawn, answer["node_errors"])
        entry, stopped = self._await(drawn, answer["prompt_id"])
        messages = dict(entry["status"]["messages"])
        if "execution_error" in messages:
            self._check_error(drawn, messages["execution_error"], entry)
            return "error"
        if "execution_interrupted" in messages:
            if not stopped:
                raise Broken("nobody stopped it", drawn, messages)
            return "stopped"
        self._check_outputs(drawn, entry)
        return "done"

    def _await(self, drawn: Drawn, job: str) -> tuple[dict, bool]:
        start, stopped = time.monotonic(), False
        while True:
            entry = self.comfy.get(f"/history/{job}").get(job)
            if entry is not None:
                return entry, stopped
            took = time.monotonic() - start
            if not stopped and took > (HEAVY_S if drawn.heavy else LIMIT_S):
                self.comfy.post("/interrupt", {"prompt_id": job})
                stopped, start = True, time.monotonic()
                if not drawn.heavy:
                    raise Broken("no job hangs", drawn, f"{LIMIT_S} s are over")
            elif stopped and took > CANCEL_S:
                raise Broken("Cancel is obeyed", drawn, f"{took:.0f} s after it")
            time.sleep(min(0.25, POLL_S + took / 20))

    def _check_refusal(self, drawn: Drawn, node_errors: Mapping) -> None:
        for place, told in node_errors.items():
            node = drawn.graph[place]
            for error in told["errors"]:
                name = error.get("extra_info", {}).get("input_name", "")
                if not name or error["type"].startswith("exception") or not error["details"]:
                    raise Broken("a refusal names the input", drawn, (node["class_type"], error))

    def _check_error(self, drawn: Drawn, told: Mapping, entry: Mapping) -> None:
        text, kind = told["exception_message"].strip(), told["exception_type"].rsplit(".", 1)[-1]
        if not told["node_type"].startswith(OURS):
            raise Broken("an error is of our node", drawn, told)
        if kind not in ALLOWED:
            raise Broken("an error is of an allowed type", drawn, (kind, text, told["traceback"][-2:]))
        errors = [name for name, _ in entry["status"]["messages"] if name == "execution_error"]
        if len(errors) != 1:
            raise Broken("there is one error", drawn, entry["status"]["messages"])
        names = {*self.nodes[told["node_type"]].names(), *WORDS}
        about = [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]
        if not about and not re.search(r"[\w.]+/[\w./ -]+", text):
            raise Broken("an error names an input or a file", drawn, text)
        if not REMEDY.search(text):
            raise Broken("an error says what to do", drawn, text)
        if RAW.search(text) or len(text) > LONGEST_ERROR:
            raise Broken("an error is in words", drawn, text)

    def _check_outputs(self, drawn: Drawn, entry: Mapping) -> None:
        for place, outputs in entry["outputs"].items():
            for told in outputs.get("seen", []):
                source = drawn.graph[drawn.graph[place]["inputs"]["value"][0]]["class_type"].removeprefix(OURS)
                problem = unsound(json.loads(told), source)
                if problem:
                    raise Broken("an output is sound", drawn, (source, problem))

    def _check_log(self, drawn: Drawn) -> None:
        with open(self.comfy.booted.log, "rb") as log:
            log.seek(self.log_seen)
            new = log.read()
        self.log_seen += len(new)
        for sign in BROKEN:
            if sign.encode() in new:
                raise Broken("the server's handlers stay whole", drawn, new[-3000:].decode("utf-8", "replace"))

    def _check_voices(self, drawn: Drawn, before: Mapping[str, str]) -> None:
        """Voices that are there are changed by nobody but a Save Voice that overwrites."""
        after = tree(self.comfy.booted.base / "models" / "voices")
        may = any(node["class_type"] == "SpeechwrightSaveVoice" and node["inputs"].get("overwrite", False) is not False
                  for node in drawn.graph.values())
        saves = any(node["class_type"] == "SpeechwrightSaveVoice" for node in drawn.graph.values())
        changed = {name for name in before if after.get(name) != before[name]}
        new = set(after) - set(before)
        stray = {name for name in new if not name.endswith((".flac", ".txt")) or "/" in name or name.startswith(".")}
        if changed and not may or new and not saves or stray:
            raise Broken("voices are kept", drawn, (changed, new, stray))

    def check_files(self) -> None:
        """Nothing new lies in the server's folders but voices, nor where paths in names would lead."""
        base = self.comfy.booted.base
        now = tree(base)
        new = {name for name in set(self.files) ^ set(now) if not name.startswith("models/voices/")}
        changed = {name for name in set(self.files) & set(now) if self.files[name] != now[name]}
        assert not new and all(name.startswith("models/voices/") for name in changed), (new, changed)
        places = {base, *base.parents, Path("/tmp"), Path.home(), Path("/etc"), Path.cwd()}
        strays = [found for place in places for found in place.glob(f"*{MARK}*")]
        assert not strays, strays

    def check_probe(self) -> None:
        """Fixed graphs give the samples that they gave before all others."""
        assert self.probe() == self.first, f"after {sum(self.counts.values())} graphs other samples come out."

    def probe(self) -> dict[str, str]:
        """Digests of what three families say, on the models that are loaded, and not from a cache."""
        self.probes += 1
        graph, looks = Graph(), {}
        seed = [graph.add("OddValue", {"what": "number 3.0", "nonce": self.probes}), 0]
        for prompt, model, sampler, decoder, short in (
                ("prompt of cosy3", "cosy3", "RASSampler", "S3Token2Wav", {"max_ratio": 3.0}),
                ("prompt of ogg", "ogg", "BlockDiffusionSampler", "FishDecode", {"max_seconds": 0.7, "steps": 2})):
            tokens = graph.add(OURS + sampler, {"model": graph.good(model), "prompt": graph.good(prompt), "seed": seed,
                                                **short})
            last = {"seed": seed} if decoder == "S3Token2Wav" else {}
            looks[model] = graph.add(OURS + decoder, {"model": graph.good(model), "tokens": [tokens, 0], **last})
        looks["s3gen"] = graph.add(OURS + "S3Token2Wav", {
            "model": graph.good("s3gen"), "tokens": graph.good("tokens of s3gen"), "voice": graph.good("voice"),
            "seed": seed, "steps": 2})
        looks = {name: graph.add("Look", {"value": [place, 0]}) for name, place in looks.items()}
        answer = self.comfy.post("/prompt", {"prompt": graph.nodes})
        assert not answer["node_errors"], answer
        entry, _ = self._await(Drawn(graph.nodes, seed[0], {}, heavy=False), answer["prompt_id"])
        assert entry["status"]["completed"], entry["status"]
        outputs = entry["outputs"]
        return {name: json.loads(outputs[place]["seen"][0])["wave"]["digest"] for name, place in looks.items()}


# What errors call an input that is not called so in a graph.
WORDS = ("speech tokens",)


def unsound(told: Mapping, source: str) -> str:
    """What is wrong with an output of the node ``source``, "" if nothing is."""
    kind = told["is"]
    if kind == "audio":
        wave = told["wave"]
        fine = (wave["dtype"] == "torch.float32" and wave["device"] == "cpu" and wave["contiguous"] and wave["finite"]
                and not wave["grad"] and len(wave["shape"]) == 3 and min(wave["shape"]) > 0 and wave["low"] >= -1
                and wave["high"] <= 1 and told["kind of rate"] == "int" and told["rate"] == RATES[source])
    elif kind == "SpeechTokens":
        fine = all(ids["dtype"] == "torch.int64" and ids["device"] == "cpu" and ids["shape"][-1] > 0 and ids["low"] >= 0
                   and ids["high"] < IDS[told["kind"]] for ids in told["ids"])
    elif kind == "Voice":
        fine = told["wave"]["finite"] and told["wave"]["shape"][0] > 0 and told["rate"] > 0
    elif kind == "tensor":
        fine = told["finite"] and told["low"] >= 0 and told["high"] <= 1 and told["dtype"] == "torch.float32"
    elif kind == "SpeechPrompt":
        fine = bool(told["texts"]) and all(told["texts"])
    else:
        fine = kind in ("text", "SpeechModel")
    return "" if fine else str(told)


def tree(folder: Path) -> dict[str, str]:
    """The files below a folder, with their contents' digests; not what servers write by themselves."""
    own = ("server.log", "user/", "temp/", "custom_nodes/")
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items()
            if not name.startswith(own) and not name.endswith(".lock")}
