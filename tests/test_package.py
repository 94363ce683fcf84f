"""The published pack: its metadata, what its zip holds, and how ComfyUI, the Manager and the registry take it."""
from __future__ import annotations

import ast
import asyncio
import io
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

from kit.checkout import CHECKOUT, read, shipped, tracked
from speechwright.cosyvoice3 import folder
from speechwright.hearing import folder as hearing
from speechwright.hub import Published
from speechwright.omnifish import checkpoint
from speechwright.s3gen import weights

SHIPPED = shipped()
SHIPPED_PY = [name for name in SHIPPED if name.endswith(".py")]
MAX_ZIP_BYTES, MAX_DEMO_BYTES = 15_000_000, 12_000_000
MAX_BYTES = {".flac": 200_000, ".safetensors": 6_000_000}
MAX_FILE_BYTES = 300_000        # of all other kinds

# Metadata


@pytest.fixture(scope="module")
def metadata():
    """(what ComfyUI makes of pyproject.toml, its project table, its tool.comfy table)."""
    from comfy_config.config_parser import extract_node_configuration, load_pyproject_settings
    raw = load_pyproject_settings(CHECKOUT / "pyproject.toml")
    return extract_node_configuration(str(CHECKOUT)), raw.project, raw.tool["comfy"]


def test_metadata_is_complete(metadata):
    parsed, project, comfy = metadata
    assert (project["name"], comfy["PublisherId"], comfy["DisplayName"]) == (
        "speechwright", "speechwright", "Speechwright")
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    assert project["requires-python"] == ">=3.10" and project["dependencies"] == []
    assert project["authors"] == [{"name": "The Speechwright authors"}] and len(project["description"]) > 40
    assert (CHECKOUT / project["readme"]).is_file() and (CHECKOUT / project["license"]["file"]).is_file()
    # With `web` ComfyUI would serve the help under the project's name too, where the frontend never looks.
    assert comfy.keys() == {"PublisherId", "DisplayName", "Icon", "Banner", "requires-comfyui", "includes", "Models"}
    assert comfy["requires-comfyui"] == ">=0.16.0" and comfy["includes"] == []
    # One classifier that the parsers do not know makes them drop all of its kind.
    assert parsed.project.supported_os == ["OS Independent"]
    assert parsed.project.supported_accelerators == ["GPU :: NVIDIA CUDA", "GPU :: AMD ROCm", "GPU :: Apple Metal"]


def test_addresses_are_of_one_repository(metadata):
    """The registry and ComfyUI read these four names, and no other name of the same thing."""
    parsed, project, _ = metadata
    assert all(parsed.project.urls.model_dump().values())
    repository = project["urls"]["Repository"]
    assert re.fullmatch(r"https://github\.com/[\w-]+/speechwright", repository)
    pages = {name: address.removeprefix(repository) for name, address in project["urls"].items()}
    assert pages == {"Homepage": "", "Repository": "", "Documentation": "/blob/main/README.md", "Issues": "/issues",
                     "Changelog": "/blob/main/CHANGELOG.md"}


def published() -> dict[str, Published]:
    """Place below models/tts -> where the file comes from, of every file that can be fetched."""
    files = {**weights.PUBLISHED, **checkpoint.PUBLISHED, **checkpoint.PUBLISHED_CODECS,
             checkpoint.TOKENIZER: checkpoint.PUBLISHED_TOKENIZER}
    for name, (_, version) in folder.PUBLISHED.items():
        for lm in folder.LMS if version == 3 else (folder.BASE,):
            files |= {f"{name}/{file}": entry for file, entry in folder.published(name, lm).items()}
    for name in hearing.PUBLISHED:
        files |= {f"{name}/{file}": entry for file, entry in hearing.published(name).items()}
    return files


def test_models_are_those_that_the_loader_fetches(metadata):
    models = {model["location"]: model["model_url"] for model in metadata[2]["Models"]}
    assert len(models) == len(metadata[0].tool_comfy.models)
    assert models == {f"models/tts/{place}": f"https://huggingface.co/{entry.repository}/resolve/main/{entry.file}"
                      for place, entry in published().items()}
    assert {name for name in SHIPPED_PY if re.search(r"^PUBLISHED", read(name), re.MULTILINE)} == {
        "s3gen/weights.py", "omnifish/checkpoint.py", "cosyvoice3/folder.py", "hearing/folder.py"}


@pytest.mark.parametrize("field, ratio", [("Icon", 1), ("Banner", 21 / 9)])
def test_pictures_of_the_registry_page_are_in_the_repository(metadata, field, ratio):
    address = metadata[1]["urls"]["Repository"] + "/raw/main/"
    name = metadata[2][field].removeprefix(address)
    assert name in tracked() and (CHECKOUT / name).stat().st_size < 60_000
    header = (CHECKOUT / name).read_bytes()[:24]
    width, height = int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")
    assert header[1:4] == b"PNG" and width / height == pytest.approx(ratio, rel=1e-3)
    assert field == "Banner" or width <= 400


def test_changelog_begins_with_this_version(metadata):
    assert re.search(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE)[1] == metadata[1]["version"]


def test_licence_is_apache_2():
    assert "Apache License" in read("LICENSE") and "Version 2.0, January 2004" in read("LICENSE")


def test_requirements_install_nothing():
    """Packs that list torch or numpy replaced a working CUDA torch, and other packs died with it."""
    lines = read("requirements.txt").splitlines()
    assert lines
    assert [line for line in lines if line.strip() and not line.startswith("#")] == []


# What the zip holds

# Whatever has another name or place is there by accident, or needs a line here.
PLACES = re.compile(
    r"(README|CHANGELOG)\.md|LICENSE|requirements\.txt|pyproject\.toml"
    r"|(\w+/)?\w+\.py"
    r"|web/docs/Speechwright\w+(/[\w-]+)?\.md"
    r"|locales/[\w-]+/(nodeDefs|main|settings|commands)\.json"
    r"|workflows(/api)?/\w+\.json|workflows/\w+\.(jpg|webp)"
    r"|subgraphs/[\w ()]+\.json"            # their names are what the editor shows
    r"|workflows/audio/(README\.md|\w+\.(txt|flac))"
    r"|demo/(README\.md|voice\.(txt|flac)|vocab\.json|merges\.txt|\w+\.safetensors)"
)


@pytest.fixture(scope="module")
def packed() -> zipfile.ZipFile:
    """The zip that `comfy node pack` makes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name in SHIPPED:
            file.write(CHECKOUT / name, name)
    return zipfile.ZipFile(content)


def test_the_zip_is_whole_and_small(packed):
    names = packed.namelist()
    for name in ("__init__.py", "pyproject.toml", "requirements.txt", "README.md", "LICENSE", "CHANGELOG.md"):
        assert name in names
    for name in tracked():
        if re.fullmatch(r"(web|locales|subgraphs)/.*|workflows/(api/|audio/|[^/]*\.(json|jpg|webp)$).*", name):
            assert name in names
    assert len(packed.fp.getvalue()) < MAX_ZIP_BYTES


def test_nothing_is_in_the_zip_that_does_not_belong(packed):
    assert [name for name in packed.namelist() if not PLACES.fullmatch(name)] == []
    assert Counter(map(str.casefold, packed.namelist())).most_common(1)[0][1] == 1      # Windows would lose one
    for entry in packed.infolist():
        most = MAX_BYTES.get(PurePosixPath(entry.filename).suffix, MAX_FILE_BYTES)
        assert 0 < entry.file_size < most, entry.filename
    demo = [entry.file_size for entry in packed.infolist() if entry.filename.startswith("demo/")]
    assert 0 < sum(demo) < MAX_DEMO_BYTES


@pytest.mark.parametrize("name", [
    "tests/kit/tiny.py", "tests/golden/flow.npz", "benchmarks/flow.md", "training/step.json", "docs/design.md",
    "assets/icon.png", ".gitignore", ".ci/run", "CONTRIBUTING.md", "s3gen/__pycache__/flow.cpython-311.pyc",
    "workflows/runner/cli.py", "workflows/audio/ada.wav", "models/flow.pt", "node.zip", "web/docs/notes.md",
])
def test_the_list_of_places_keeps_others_out(name):
    assert not PLACES.fullmatch(name)


def test_files_are_plain():
    """A link or an executable in a zip is what scanners look for, and Windows makes text of it."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "--stage", "-z"]
    listed = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    modes = {entry.split("\t")[1]: entry.split()[0] for entry in listed.split("\0") if entry}
    assert [name for name in SHIPPED if modes[name] != "100644" or (CHECKOUT / name).is_symlink()] == []


def test_a_checkout_without_git_packs_no_more():
    """`comfy node pack` takes all files where git is missing."""
    left_out = set(read(".comfyignore").splitlines())
    assert ".*" in left_out
    assert {line for line in read(".gitignore").splitlines() if not line.startswith(".")} <= left_out


def inner_imports(name: str) -> set[str]:
    """The files of the pack that a file of it imports."""
    found = set()
    for node in ast.walk(ast.parse(read(name), name)):
        if isinstance(node, ast.ImportFrom) and node.level:
            start = Path(name).parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for path in [start, *(start / alias.name for alias in node.names)]:
                found |= {f"{path.as_posix()}.py", f"{path.as_posix()}/__init__.py".removeprefix("./")}
    return found & set(SHIPPED_PY)


def test_every_module_in_the_zip_is_used():
    """What nothing imports is dead, or a tool of ours."""
    reached, ahead = set(), {"__init__.py"}
    while ahead:
        reached |= ahead
        ahead = set().union(*map(inner_imports, ahead)) - reached
    assert sorted(set(SHIPPED_PY) - reached) == []


# How it is taken

TEXT_SUFFIXES = {".py", ".js", ".md", ".json", ".toml", ".txt", ""}
SCANNER = re.compile(
    r"subprocess|os\s*\.\s*(system|popen|environ|getenv)|\.\s*(connect|bind|listen|send|sendall)\s*\("
    r"|aiohttp|ClientSession|\bsockets?\b|urllib|urlopen|githubusercontent|base64|__import__|ctypes|marshal"
    r"|(?<![\w.])(eval|exec)\s*\(",
    re.IGNORECASE)


@pytest.mark.parametrize("name", [name for name in SHIPPED if Path(name).suffix in TEXT_SUFFIXES])
def test_nothing_for_the_scanner_to_flag(name):
    """One hit, even in a help page, keeps a version from everybody who installs with the Manager."""
    assert [match[0] for match in SCANNER.finditer(read(name))] == []


@pytest.mark.parametrize("text", [
    "import subprocess", "os.system('ls')", "OS.Environ['A']", "os.environ.get('A')", "node.connect(0, other)",
    "server.bind (address)", "ws.send(data)", "s.sendall(data)", "aiohttp.ClientSession()", "= eval(text)",
    "exec(code)", "https://raw.githubusercontent.com/a/b/c.png", "base64.b64decode(x)", '__import__("os")', "a socket",
])
def test_the_scanner_finds_what_the_registry_s_does(text):
    assert SCANNER.search(text)


@pytest.mark.parametrize("text", [
    "net.eval()", "the connection (open)", "functools.bind_to(x)", "executed (once)", "send(x)", "evaluate(x)",
])
def test_the_scanner_passes_the_rest(text):
    assert not SCANNER.search(text)


def test_the_registry_s_rules_find_nothing():
    """Its validator looks for exec, eval and several statements a line; here no comment switches that off."""
    rules = re.search(r'^REGISTRY_RULES = "(.*)"$', read("tests/run.py"), re.MULTILINE)[1]
    assert rules == "S102,S307,E702"
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--ignore-noqa", "--select", rules, *SHIPPED_PY]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.fixture(scope="module")
def installed(packed, comfyui_folder, tmp_path_factory):
    """(node id -> title, folder that is served under the pack's folder name) in the genuine ComfyUI."""
    import folder_paths

    import nodes
    target = tmp_path_factory.mktemp("custom_nodes") / "another-name"
    packed.extractall(target)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((nodes, "NODE_CLASS_MAPPINGS"), (nodes, "NODE_DISPLAY_NAME_MAPPINGS"),
                            (nodes, "EXTENSION_WEB_DIRS"), (nodes, "LOADED_MODULE_DIRS"),
                            (folder_paths, "folder_names_and_paths")):
            patch.setattr(owner, name, dict(getattr(owner, name)))
        before = set(nodes.NODE_CLASS_MAPPINGS), set(nodes.EXTENSION_WEB_DIRS)
        assert asyncio.run(nodes.load_custom_node(str(target), ignore=before[0]))
        assert set(nodes.EXTENSION_WEB_DIRS) - before[1] == {"another-name"}
        ids = set(nodes.NODE_CLASS_MAPPINGS) - before[0]
        yield ({node: nodes.NODE_DISPLAY_NAME_MAPPINGS[node] for node in ids},
               Path(nodes.EXTENSION_WEB_DIRS["another-name"]))


def test_comfyui_loads_the_zip_under_another_name(installed):
    titles, web = installed
    assert {path.stem for path in (web / "docs").glob("*.md")} == set(titles)
    assert len(set(titles.values())) == len(titles)


# Of the 3341 packs in the map of ComfyUI-Manager 4.3: all ids that begin like ours, and the patterns by which packs
# claim ids that are not listed, as far as they fit in the middle or at the end of a word.
OTHERS = {
    "Speech Recognition", "SpeechAdvancedParams_AICustomURL", "SpeechGeneration_AICustomURL", "SpeechRecognition",
    "SpeechRecognitionLiam", "SpeechSeparation", "SpeechSynthesis", "SpeechSynthesisLiam",
}
CLAIMED = re.compile(
    r"Gallery-dl|Yt-dlp|Web.*Scraper|HYPIR|FaceDetectionNode|Harronode|ArchAi3D|MiniMax.*BMO|BMO.*MiniMax|Simple String"
    r"|builmenlabo|DeadlineSubmitNode|_jru$|Smart|Inspire$|StFist")


def test_node_ids_are_ours_alone(installed):
    """ComfyUI keeps one of two nodes with the same id; the Manager offers the wrong pack for one that is claimed."""
    ids = set(installed[0])
    assert [node for node in ids if not re.fullmatch(r"Speechwright[A-Z]\w+", node, re.ASCII)] == []
    assert ids & OTHERS == set()
    assert [node for node in ids if CLAIMED.search(node)] == []
