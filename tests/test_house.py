"""What the pack's files are made of: imports, calls and texts."""
from __future__ import annotations

import ast
import re
import sys
import warnings
from pathlib import Path

import av
import numpy as np
import pytest

from kit.checkout import CHECKOUT, read, shipped, tracked

SHIPPED = shipped()
SHIPPED_PY = [name for name in SHIPPED if name.endswith(".py")]
TRACKED = tracked()
TEXT_SUFFIXES = {".py", ".md", ".json", ".toml", ".txt", ".sh", ".yaml", ".yml", ".js", ""}
TEXTS = [name for name in TRACKED if Path(name).suffix in TEXT_SUFFIXES and "golden/" not in name]
MAX_LINES = 400
COMFYUI = {"comfy", "comfy_api", "folder_paths"}


def tree(name: str) -> ast.Module:
    return ast.parse(read(name), name)


def dotted(node: ast.AST) -> str:
    """``torch.random.seed`` for that expression; what is called or indexed on the way counts as ()."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "()"


def imported(name: str) -> set[str]:
    """The top-level modules that a file imports by absolute name."""
    modules = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module.split(".")[0])
    return modules


# What a user installs


@pytest.mark.parametrize("name", SHIPPED_PY)
def test_imports_are_what_comfyui_brings(name):
    named = set(re.findall(r"^#   (\w+)", read("requirements.txt"), re.MULTILINE))
    assert {"torch", "torchaudio", "numpy"} <= named
    assert imported(name) - set(sys.stdlib_module_names) - COMFYUI - named == set()


@pytest.mark.parametrize("name", SHIPPED_PY)
def test_only_the_nodes_and_the_loader_know_comfyui(name):
    if name not in ("loader.py", "files.py") and not name.startswith("nodes/"):
        assert imported(name) & COMFYUI == set()


@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_grammar_of_every_python_that_we_claim(minor):
    assert f"Programming Language :: Python :: 3.{minor}" in read("pyproject.toml")
    for name in TRACKED:
        if name.endswith(".py"):
            ast.parse(read(name), name, feature_version=(3, minor))


# What came to Python after 3.10, by its dotted name, or by its own where an instance has it.
NEWER_NAMES = {
    *(f"typing.{name}" for name in (
        "assert_never", "assert_type", "dataclass_transform", "LiteralString", "Never", "NotRequired", "override",
        "ReadOnly", "Required", "reveal_type", "Self", "TypeAliasType", "TypeIs", "TypeVarTuple", "Unpack")),
    *(f"enum.{name}" for name in ("StrEnum", "EnumCheck", "FlagBoundary", "ReprEnum", "member", "nonmember", "verify")),
    *(f"asyncio.{name}" for name in ("Barrier", "QueueShutDown", "Runner", "TaskGroup", "timeout", "timeout_at")),
    *(f"math.{name}" for name in ("cbrt", "exp2", "fma", "sumprod")),
    *(f"os.{name}" for name in ("process_cpu_count", "listdrives")),
    "ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError", "contextlib.chdir",
    "copy.replace", "datetime.UTC", "functools.Placeholder", "glob.translate", "hashlib.file_digest",
    "inspect.getmembers_static", "itertools.batched", "logging.getHandlerByName", "logging.getHandlerNames",
    "logging.getLevelNamesMapping", "operator.call", "queue.ShutDown", "random.binomialvariate", "re.NOFLAG",
    "sys.activate_stack_trampoline", "sys.exception", "sys.monitoring", "threading.setprofile_all_threads", "tomllib",
    "types.get_original_bases", "warnings.deprecated",
    ".add_note", ".from_uri", ".full_match", ".is_junction"}
NEWER_ARGUMENTS = {"case_sensitive", "delete_on_close", "onexc", "recurse_symlinks", "skip_file_prefixes", "walk_up"}


def too_new(source: str) -> list[str]:
    """What Python 3.10's library has not got, of all that a source names."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node), f".{node.attr}"]
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Call):
            found += [word.arg for word in node.keywords if word.arg in NEWER_ARGUMENTS]
        found += [name for name in names if name in NEWER_NAMES]
    return found


@pytest.mark.parametrize("name", [name for name in TRACKED if name.endswith(".py")])
def test_the_library_of_the_oldest_python_has_all_names(name):
    """The grammar may be old and the names new: `from typing import Self` ended an import on 3.10 alone."""
    assert too_new(read(name)) == []


@pytest.mark.parametrize("source", [
    "import tomllib", "from tomllib import loads", "from typing import Any, Self", "import typing\nx: typing.Self",
    "from enum import StrEnum", "from datetime import UTC, datetime", "import itertools\nitertools.batched([], 2)",
    "raise ExceptionGroup('', [])", "error.add_note('')", "import shutil\nshutil.rmtree('x', onexc=print)"])
def test_names_of_newer_libraries_are_found(source):
    assert too_new(source)


@pytest.mark.parametrize("source", [
    "from .typing import Self", "from itertools import chain, pairwise", "import os\nos.walk('.')", "self.batched()",
    "zip([], [], strict=True)", "from datetime import timezone\ntimezone.utc"])
def test_names_of_old_libraries_pass(source):
    assert too_new(source) == []


@pytest.mark.parametrize("source", ["try: pass\nexcept* ValueError: pass", "def f[T](x: T) -> T: return x",
                                    "type X = int"])
def test_newer_grammar_is_found(source):
    with pytest.raises(SyntaxError):
        ast.parse(source, feature_version=(3, 10))


def test_sources_compile_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in TRACKED:
            if name.endswith(".py"):
                compile(read(name), name, "exec", dont_inherit=True)


# What a user runs

FORBIDDEN_CALLS = re.compile(
    r"^(eval|exec|compile|print|__import__)$"
    r"|^torchaudio\.(load|save|info)$"                  # they need torchcodec, which is not there
    r"|^(torch|torch\.random|torch\.cuda|np\.random|numpy\.random|random)\.(manual_seed\w*|seed)$"
    r"|\.cuda$|empty_cache$|unload_all_models$"         # ComfyUI decides what is where
    r"|^os\.(system|popen|getenv|environ\.\w+)$|^(os|subprocess)\.(spawn|exec|Popen|run)\w*$"
    r"|^torch\.set_num_\w+$|^logging\.basicConfig$|^sys\.path\.\w+$|^warnings\.(simplefilter|filterwarnings)$"
)
FORBIDDEN_MODULES = {
    "subprocess", "socket", "ssl", "http", "urllib", "requests", "aiohttp", "httpx", "ctypes", "imp", "aifc",
    "audioop", "distutils", "pkg_resources", "dill", "marshal", "shelve",
}


@pytest.mark.parametrize("name", SHIPPED_PY)
def test_no_call_that_reaches_beyond_the_pack(name):
    found = [f"line {node.lineno}: {dotted(node.func)}" for node in ast.walk(tree(name))
             if isinstance(node, ast.Call) and FORBIDDEN_CALLS.search(dotted(node.func))]
    assert found == []
    assert imported(name) & FORBIDDEN_MODULES == set()


@pytest.mark.parametrize("name", SHIPPED_PY)
def test_files_are_read_as_tensors_alone(name):
    """``torch.load`` without the switch ran whatever a stranger had put into the file."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Call):
            switches = {word.arg: word.value for word in node.keywords}
            safe = switches.get("weights_only")
            if safe is not None or dotted(node.func) == "torch.load":
                assert isinstance(safe, ast.Constant) and safe.value is True, f"line {node.lineno}"
            assert "trust_remote_code" not in switches, f"line {node.lineno}"


@pytest.mark.parametrize("name", SHIPPED_PY)
def test_no_device_is_taken_for_granted(name):
    """Which one computes is asked of ComfyUI; that it is a GPU may be compared, and is never said."""
    nodes = list(ast.walk(tree(name)))
    compared = {id(part) for node in nodes if isinstance(node, ast.Compare) for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            assert dotted(node) not in ("torch.cuda", "torch.mps", "torch.backends.mps"), f"line {node.lineno}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in compared:
            assert not re.fullmatch(r"(cuda|mps|xpu)(:\d+)?", node.value), f"line {node.lineno}"


@pytest.mark.parametrize("name", SHIPPED_PY)
def test_text_files_are_read_as_what_they_are(name):
    """Where files are not UTF-8 unless somebody says so, a voice's transcript was an error, or other letters."""
    for node in ast.walk(tree(name)):
        if not isinstance(node, ast.Call) or "encoding" in {word.arg for word in node.keywords}:
            continue
        called = dotted(node.func)
        assert not called.endswith((".read_text", ".write_text")), f"line {node.lineno}"
        if called in ("open", "io.open") or called.endswith(".open") and isinstance(node.func.value, ast.Call):
            modes = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            assert any(isinstance(mode, str) and "b" in mode for mode in modes), f"line {node.lineno}"


@pytest.mark.parametrize("call", [
    "eval(x)", "torchaudio.load(p)", "torch.manual_seed(0)", "np.random.seed(0)", "net.to(x).cuda()",
    "os.environ.get('A')", "sys.path.insert(0, p)", "torch.cuda.manual_seed_all(1)",
])
def test_the_search_for_calls_finds_them(call):
    assert FORBIDDEN_CALLS.search(dotted(ast.parse(call, mode="eval").body.func))


@pytest.mark.parametrize("call", ["net.eval()", "rng.manual_seed(0)", "re.compile(x)", "torch.load(p)"])
def test_the_search_for_calls_passes_the_rest(call):
    assert not FORBIDDEN_CALLS.search(dotted(ast.parse(call, mode="eval").body.func))


# What stands in the files


@pytest.mark.parametrize("name", ["ada", "bruno"])
def test_voices_of_the_examples_are_fit_for_them(name):
    path = CHECKOUT / "workflows" / "audio" / f"{name}.flac"
    with av.open(path) as file:
        rate_hz, channels = file.streams.audio[0].rate, file.streams.audio[0].channels
        samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    assert (rate_hz, channels) == (24000, 1) and 3 <= len(samples) / rate_hz <= 6
    assert 20 * np.log10(np.abs(samples.astype(float)).max() / 2**15) == pytest.approx(-3, abs=0.1)
    assert path.stat().st_size < 300_000
    words = path.with_suffix(".txt").read_text(encoding="utf-8").split()
    assert 10 <= len(words) <= 20 and words[-1].endswith(".")


HELP_PAGES = [name for name in SHIPPED if name.startswith("web/docs/")]


@pytest.mark.parametrize("page", HELP_PAGES)
def test_help_pages_quote_errors_as_they_are(page):
    """Whoever searches the page for what ComfyUI has shown must find it."""
    source = "".join(map(read, SHIPPED_PY))
    table = read(page).split("## When it stops")[1]
    cells = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    quotes = [quote for cell in cells for quote in re.findall(r"\*(.+?)\*", cell)]
    words = [part.strip() for quote in quotes for part in quote.split("...") if part.strip()]
    assert words and [part for part in words if part not in source] == []


COMMAND = re.compile(r"^python (\S+\.py)(?: ([^#\n]*))?", re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_commands_exist(page):
    commands = COMMAND.findall("\n".join(re.findall(r"```sh\n(.*?)```", read(page), re.DOTALL)))
    assert commands
    for script, arguments in commands:
        assert script in TRACKED
        folder = Path(script).parts[0]
        source = "".join(read(name) for name in TRACKED if re.match(rf"{folder}/.*\.py$", name))
        assert [word for word in re.findall(r"--[\w-]+", arguments) if f'"{word}"' not in source] == []
        workflow = re.match(r"\w+(?= |$)", arguments)
        if script == "workflows/run.py" and workflow:
            assert f"workflows/api/{workflow[0]}.json" in TRACKED


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", read(page))
    assert links
    assert [link for link in links if not (CHECKOUT / link).exists()] == []


def test_letters_are_told():
    rows = set(re.findall(r"^\| `([A-Z])` \|", read("README.md"), re.MULTILINE))
    assert rows == set("BTFLKCMDHVS")


@pytest.mark.parametrize("name", [name for name in TRACKED if name.endswith(".py")])
def test_files_stay_short(name):
    assert len(read(name).splitlines()) <= MAX_LINES


FOREIGN = re.compile(
    r"(?<![\w.~}])/(?:work|root|home)/|\b(?:TODO|FIXME|XXX)\b|(?i:\bissue\s*#?\d)"
    r"|pypi\.org|pythonhosted|\bsession [0-9a-f]{4}"
)


@pytest.mark.parametrize("name", TEXTS)
def test_no_trace_of_where_it_was_written(name):
    if name != "tests/test_house.py":
        assert [match[0] for match in FOREIGN.finditer(read(name))] == []
