"""Where models and voices lie under ComfyUI: the folders, what is in them, and what is fetched into them."""
from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import folder_paths

from . import hub, voices
from .wires import Voice

FOLDER_KEYS = ("tts", "TTS")    # under models/, and in extra_model_paths.yaml; packs use both
VOICES_KEY = "voices"
SAVING = ".saving.lock"         # in the folder of voices, while one is saved
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")

NO_VOICES = "(none: put NAME.flac and NAME.txt into models/voices)"     # a list without a choice is a node that is dead
MAX_PART, MAX_PATH = 255, 1000  # bytes of a name, and of a path, that systems take
LISTED = 30                     # names that an error tells

OnProgress = Callable[[int, int], None]


def roots(further: Iterable[str] = ()) -> list[Path]:
    """The folders that are searched, each once, the first being where new files belong.

    further: keys of ComfyUI's own folders that are searched after ours, such as "vae".
    """
    return _folders(FOLDER_KEYS, (*FOLDER_KEYS, *further))


def voice_roots() -> list[Path]:
    """The folders of voices in the same manner."""
    return _folders((VOICES_KEY,), (VOICES_KEY,))


def _folders(own: Iterable[str], keys: Iterable[str]) -> list[Path]:
    """ComfyUI's models/KEY for our own keys, then what is registered under all keys."""
    folders = [Path(folder_paths.models_dir, key) for key in own]
    for key in keys:
        if key in folder_paths.folder_names_and_paths:
            folders += map(Path, folder_paths.get_folder_paths(key))
    seen: dict[str, Path] = {}
    for folder in folders:
        seen.setdefault(os.path.realpath(folder), folder)
    return list(seen.values())


def register_folders() -> None:
    """Tell ComfyUI of our folders, beside those that extra_model_paths.yaml names."""
    for key in (*FOLDER_KEYS, VOICES_KEY):
        folder_paths.add_model_folder_path(key, os.path.join(folder_paths.models_dir, key))


def checkpoint_names(first: Iterable[str] = ("s3gen",), further: Iterable[str] = ()) -> list[str]:
    """Checkpoints in all roots as paths relative to theirs, with / on every system.

    Names with one of the words ``first`` come first. further: as of ``roots``.
    """
    words = tuple(first)
    names = {(relative / file).as_posix(): None for _, relative, files in _walk(roots(further)) for file in files
             if file.lower().endswith(SUFFIXES)}
    return sorted(names, key=lambda name: (not any(word in name.lower() for word in words), name.lower(), name))


def folder_names(marks: Iterable[str]) -> list[str]:
    """Folders in all roots that hold a file of one of these names, in the same manner."""
    marks = frozenset(marks)
    names = {relative.as_posix(): None for _, relative, files in _walk(roots()) if marks & set(files)}
    return sorted(names, key=lambda name: (name.lower(), name))


def _walk(folders: Iterable[Path]) -> Iterator[tuple[Path, Path, list[str]]]:
    """Every folder in all roots: the root, the folder relative to it, and the files in it.

    Links are followed, but for those to a folder above themselves. What is hidden is left out: a download that
    has not ended, or what other systems add to a disk.
    """
    for root in folders:
        for folder, below, files in os.walk(root, followlinks=True):
            here = Path(os.path.realpath(folder))
            below[:] = [name for name in below if not name.startswith(".")
                        and not here.is_relative_to(os.path.realpath(os.path.join(folder, name)))]
            usable = [file for file in files if not file.startswith(".")
                      and os.path.exists(os.path.join(folder, file))]       # a link may point nowhere
            yield root, Path(folder).relative_to(root), usable


def inside(name: str, role: str) -> Path:
    """The name as a path below a root. ``ValueError`` where it would lead out of it, or to what is hidden."""
    relative = Path(name.replace("\\", "/"))
    # On Windows C:x is no absolute path, and leads to another disk all the same.
    leads_out = relative.is_absolute() or relative.drive or any(part.startswith(".") for part in relative.parts)
    sizes = [len(part.encode("utf-8", "surrogatepass")) for part in relative.parts]
    too_long = max(sizes, default=0) > MAX_PART or sum(sizes) > MAX_PATH
    if not name.strip() or leads_out or too_long or "\0" in name:
        shown = name if len(name) <= MAX_PART else f"{name[:MAX_PART]}..."
        raise ValueError(f"{role}: {shown!r} is not a path inside models/tts; choose one from the list.")
    return relative


def find_checkpoint(name: str, published: Mapping[str, hub.Published], download: bool = False,
                    on_progress: OnProgress = hub.unwatched, role: str = "checkpoint",
                    further: Iterable[str] = ()) -> Path:
    """The file of that name in the first root that has it.

    role: what errors call it. further: as of ``roots``.
    download: fetch what is published and in no root into the first one; on_progress is told of it (bytes that
    are here, bytes in all). ``FileNotFoundError`` says where was looked and where the file is to be had.
    """
    relative = inside(name, role)
    folders = roots(further)
    for root in folders:
        if (root / relative).is_file():
            return root / relative
    wanted = published.get(relative.as_posix())
    if wanted and download:
        return hub.fetch(wanted, folders[0] / relative, on_progress)
    advice = (f"It is {wanted}: switch `download` on to fetch it, or put it at {folders[0] / relative}" if wanted else
              f"Put the file there, or choose what can be fetched ({'; '.join(map(str, published.values()))})")
    raise FileNotFoundError(f"{role}: {name!r} is in none of {', '.join(map(str, folders))}. {advice}, "
                            "and press R to refresh the list.")


def find_folder(name: str, published: Mapping[str, hub.Published], find: Callable[[Path, str], Path | None],
                download: bool = False, on_progress: OnProgress = hub.unwatched,
                marks: Iterable[str] = ()) -> Path:
    """The folder of that name in the first root that has it, with a file of one of the names ``marks`` if any has.

    download: fetch each published file for which ``find(folder, file)`` is None into it, or into the first root
    where there is no such folder. ``FileNotFoundError`` lists all files of a folder that is nowhere.
    """
    relative = inside(name, "folder")
    folders = roots()
    there = [root / relative for root in folders if (root / relative).is_dir()]
    marked = [folder for folder in there if any((folder / mark).is_file() for mark in marks)]
    folder = next(iter((*marked, *there)), None)
    if folder is None and not (download and published):
        advice = ("Put the folder there, or choose one that can be fetched." if not published else
                  f"It is {next(iter(published.values())).repository} on Hugging Face: switch `download` on to fetch "
                  f"its files, or put them into {folders[0] / relative}: {', '.join(published)}.")
        raise FileNotFoundError(f"folder: {name!r} is in none of {', '.join(map(str, folders))}. {advice}")
    folder = folder or folders[0] / relative
    if download:
        for file, source in published.items():
            if find(folder, file) is None:
                hub.fetch(source, folder / file, on_progress)
    return folder


def voice_names() -> list[str]:
    """The voices in all roots, as paths without suffixes, with / on every system; one word of advice without any."""
    return sorted(_voice_files(), key=lambda name: (name.casefold(), name)) or [NO_VOICES]


def _voice_files() -> dict[str, Path]:
    """Name of a voice, in NFC -> its recording, in the first root that has one."""
    found: dict[str, Path] = {}
    for root, relative, files in _walk(voice_roots()):
        for stem, file in voices.chosen(files).items():
            name = unicodedata.normalize("NFC", (relative / stem).as_posix())
            found.setdefault(name, root / relative / file)
    return found


def find_voice(name: str, node: str) -> Path:
    """The recording of a voice in the list. ``FileNotFoundError`` tells what is there."""
    found, wanted = _voice_files(), unicodedata.normalize("NFC", name)
    path = found.get(wanted) or found.get(wanted.replace("\\", "/"))
    if path is not None:
        return path
    folders = voice_roots()
    if not found:
        raise FileNotFoundError(f"{node}: name: there are no voices yet. Put a recording, such as Ada.flac, into "
                                f"{folders[0]}, and what is said in it into Ada.txt beside it, and press R to refresh "
                                "the list.")
    known = voice_names()
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    raise FileNotFoundError(f"{node}: name: {name!r} is in none of {', '.join(map(str, folders))}. There are: "
                            f"{', '.join(map(repr, known[:LISTED]))}{more}. Choose one of them, or put the recording "
                            "there and press R to refresh the list.")


def voice_stamp(name: str | None) -> str:
    """What changes when the recording of a voice does, or its transcript; "" where there is none."""
    path = None if name is None else _voice_files().get(unicodedata.normalize("NFC", name))
    return "" if path is None else stamp(filter(None, (path, voices.transcript_of(path))))


def save_voice(voice: Voice, overwrite: bool, node: str) -> Path:
    """Write a voice into the first root, as ``voices.save`` does.

    One after the other, also from several processes: two at once could both find the name free, or leave the
    recording of one beside the words of the other.
    """
    folder = voice_roots()[0]
    with ExitStack() as stack:
        with suppress(OSError):         # where nothing can be written, saving says so
            stack.enter_context(hub.alone(folder / SAVING, lambda: None))
            stack.callback(_forget, folder / SAVING)
        return voices.save(voice, folder, overwrite, node, elsewhere=_voice_files().get(voice.name))


def _forget(lock: Path) -> None:
    """Take the file of a lock away while it is held: who waits for it makes a new one. Windows does it afterwards."""
    with suppress(OSError):
        lock.unlink()


def stamp(paths: Iterable[Path]) -> str:
    """What changes when one of these files does: its path, size or time; a missing one counts by its path."""
    told = []
    for path in paths:
        try:
            status = path.stat()
            told.append(f"{path}:{status.st_size}:{status.st_mtime_ns}")
        except OSError:
            told.append(str(path))
    return "\n".join(told)
