"""Voices as files: ``NAME.flac`` (or another kind of sound) and beside it ``NAME.txt`` with what is said in it.

``voice_of`` is the one place that says which recordings make a voice. Files are read and written with PyAV, which
needs no other library of codecs; ``files`` knows the folders.
"""
from __future__ import annotations

import io
import logging
import os
import re
import unicodedata
import uuid
from collections.abc import Iterable
from pathlib import Path

import torch

from . import text
from .audio import Clip, check_speech, one_clip, still_sample
from .needed import needed
from .wires import Voice

MIN_VOICE_SECONDS = 0.1     # the least that a speaker encoder can measure
MAX_VOICE_SECONDS = 30.0    # what models were trained to hear at once; more is words that they leave out
TRIM_FROM_SECONDS = 24.0    # where the end of a long recording is looked for
SPARE_SECONDS = 1.0         # that are kept of a longer file, so that it is seen to be longer

# The order in which files of one name are taken. What Save Voice writes is first, so that it is what is found.
SUFFIXES = (".flac", ".wav", ".ogg", ".opus", ".m4a", ".mp3")
TRANSCRIPTS = (".txt", ".reference.txt")
MAX_TRANSCRIPT_BYTES = 2**16        # of half a minute it is a few hundred

FLAC_BITS = 24
MAX_NAME_BYTES = 200                # file systems take 255, of which suffixes need some
_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
# What Windows takes for devices, also with a suffix.
_DEVICES = frozenset(("CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$",
                      *(port + digit for port in ("COM", "LPT") for digit in "0123456789¹²³")))

logger = logging.getLogger(__name__)


def voice_of(clip: Clip, transcript: str, name: str, role: str, seconds: float | None = None) -> Voice:
    """The voice of a recording; text and name are cleaned.

    seconds: of the recording that ``clip`` is the beginning of, if it is longer. Beyond 30 s it is cut at a silence,
    with a warning; but with a transcript, which cannot be cut with it, that is a ``ValueError``, as is all that
    ``check_speech`` refuses. ``role`` is what errors call it.
    """
    transcript, seconds = text.clean(transcript).strip(), clip.seconds if seconds is None else seconds
    if seconds > MAX_VOICE_SECONDS:
        if transcript:
            raise ValueError(f"{role}: the recording is {seconds:.2f} s long, and one with a transcript may have "
                             f"{MAX_VOICE_SECONDS:g} s, 5 to 10 s at best. Shorten it and its transcript alike, or "
                             "leave the transcript out.")
        clip = Clip(clip.wave[: still_sample(clip, TRIM_FROM_SECONDS, MAX_VOICE_SECONDS)].clone(), clip.rate_hz)
        logger.warning("%s: the recording is %.1f s long; its first %.1f s are used, up to a silence: a voice has at "
                       "most %g s.", role, seconds, clip.seconds, MAX_VOICE_SECONDS)
    check_speech(clip, role, MIN_VOICE_SECONDS)
    return Voice(clip, transcript, text.clean(name).strip())


def chosen(names: Iterable[str]) -> dict[str, str]:
    """Of the files in one folder those that are voices: the voice's name, in NFC -> the file.

    Of several with one name the kind that comes first in ``SUFFIXES``.
    """
    found: dict[str, str] = {}
    for _, stem, name in sorted((_rank(stem, suffix, name), stem, name) for stem, suffix, name in _sounds(names)):
        found.setdefault(stem, name)
    return found


def _sounds(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Name of the voice, suffix as it is written and file, of all that are sound by their names."""
    parted = [(*os.path.splitext(name), name) for name in names]
    return [(_shown(stem), suffix, name) for stem, suffix, name in parted if suffix.lower() in SUFFIXES]


def _rank(stem: str, suffix: str, name: str) -> tuple[int, bool]:
    """The kind; then a name that is spelled as Save Voice does."""
    return SUFFIXES.index(suffix.lower()), name != stem + suffix.lower()


def _shown(name: str) -> str:
    """A file's name as text: in NFC, whatever the disk holds. A byte that is no UTF-8 becomes a question mark."""
    return unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode("utf-8"))


def transcript_of(recording: Path) -> Path | None:
    """The transcript beside a recording: ``NAME.txt``, else ``NAME.reference.txt``; None where there is none.

    Where there is also a voice ``NAME.reference``, its ``.txt`` is its own.
    """
    names = os.listdir(recording.parent)
    stem, stems = _shown(recording.stem), {stem for stem, _, _ in _sounds(names)}
    texts = {_shown(name)[: -len(".txt")]: name for name in sorted(names) if name.lower().endswith(".txt")}
    for whose in (stem, None if f"{stem}.reference" in stems else f"{stem}.reference"):
        if whose in texts:
            return recording.parent / texts[whose]
    return None


def load(recording: Path, node: str) -> Voice:
    """The voice of a file, called as the file is; its transcript is "" where no file holds it.

    ``ValueError`` and ``OSError`` name the file; so do those of ``voice_of``.
    """
    role = f"{node}: {recording}"
    beside = transcript_of(recording)
    words = "" if beside is None else read_transcript(beside, node)
    clip, seconds = read(recording, role)
    return voice_of(clip, words, _shown(recording.stem), role, seconds)


def read_transcript(path: Path, node: str) -> str:
    """The text of a file in UTF-8, with or without a byte order mark."""
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= MAX_TRANSCRIPT_BYTES else b""
    except OSError as error:
        raise OSError(f"{node}: {path}: the transcript cannot be read ({error.strerror}). Put it there again, or "
                      "delete it.") from error
    if size > MAX_TRANSCRIPT_BYTES:
        raise ValueError(f"{node}: {path}: {size:,} bytes are no transcript; put there what is said in the recording, "
                         f"at most {MAX_TRANSCRIPT_BYTES:,} bytes.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{node}: {path}: the transcript is not in UTF-8 (byte {error.start} is "
                         f"{raw[error.start]:#04x}); save it in UTF-8.") from error


def read(path: Path, role: str) -> tuple[Clip, float]:
    """The beginning of a file with sound, a little more than the 30 s that a voice may have, and the length of all
    in seconds."""
    with needed("av", role):
        import av
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ValueError(f"{role}: the file is empty (0 bytes); put the recording there again.")
            waveform, rate_hz, samples = _decode(file, role)
    except av.FFmpegError as error:
        raise ValueError(f"{role}: this cannot be read as sound ({error.strerror}). If it plays elsewhere, convert it "
                         "to WAV or FLAC.") from error
    except OSError as error:
        raise OSError(f"{role}: the file cannot be read ({error.strerror}). See that it is there and that ComfyUI may "
                      "read it.") from error
    return one_clip({"waveform": waveform, "sample_rate": rate_hz}, role), samples / rate_hz


def _decode(file: io.BufferedReader, role: str) -> tuple[torch.Tensor, int, int]:
    """(1, C, T) in the file's own kind of sample, its rate in Hz, and how many samples the whole file has."""
    import av

    kept: list[torch.Tensor] = []
    form, samples = None, 0
    with av.open(file) as container:
        for frame in container.decode(audio=0) if container.streams.audio else ():
            found = frame.sample_rate, frame.layout.nb_channels, frame.format.packed.name
            form = form or found
            if found != form:
                raise ValueError(f"{role}: the sound changes amid the file from {form[0]} Hz and {form[1]} channels to "
                                 f"{found[0]} Hz and {found[1]}; convert it to WAV or FLAC.")
            if samples <= (MAX_VOICE_SECONDS + SPARE_SECONDS) * found[0]:
                block = torch.from_numpy(frame.to_ndarray())
                kept.append(block if frame.format.is_planar else block.reshape(-1, found[1]).T)   # (C, t)
            samples += frame.samples
    if not samples:
        raise ValueError(f"{role}: the file holds no sound; put a recording there.")
    return torch.cat(kept, dim=1)[None], form[0], samples


def safe_name(name: str, role: str) -> str:
    """The name as every system takes it for a file: no path, no device, not hidden, at most 200 bytes, in NFC.

    What cannot stay becomes a low line. ``ValueError`` where nothing is left.
    """
    readable = " ".join(text.clean(_shown(name)).split())
    safe = _NOT_IN_NAMES.sub("_", readable).strip(". ")
    if safe.split(".")[0].rstrip().upper() in _DEVICES:
        safe = f"_{safe}"
    safe = text.clean(safe.encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore")).rstrip(". ")
    if not safe:
        raise ValueError(f"{role}: {name!r} leaves nothing to call a file by; write a name of letters or digits.")
    return safe


def save(voice: Voice, folder: Path, overwrite: bool, node: str, elsewhere: Path | None = None) -> Path:
    """Write a voice, whose name is safe, as ``NAME.flac`` and ``NAME.txt``; the path of the first.

    The clip keeps its rate, in 24 bits, so that what is loaded is the clip to 2**-24 of full scale. ``elsewhere`` is
    what the library finds under this name so far, if anything. ``FileExistsError`` where the name is taken, unless
    ``overwrite``; then files of another kind stay, and the new ones come before them. ``OSError`` in words where
    nothing can be written. Each file is complete when it gets its name, the transcript first; if the second fails,
    the first is as it was.
    """
    recording, words = folder / f"{voice.name}.flac", folder / f"{voice.name}.txt"
    taken = _taken(folder, voice.name)
    if elsewhere is not None and elsewhere not in taken:
        taken.append(elsewhere)
    if taken and not overwrite:
        raise FileExistsError(f"{node}: there is {taken[0]} already. Give the voice another name, or switch "
                              "`overwrite` on.")
    data = flac(voice.clip, node)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace_both(recording, data, words, voice.transcript.encode())
    except OSError as error:
        raise OSError(f"{node}: {recording} cannot be written ({error.strerror}). See that ComfyUI may write into "
                      f"{folder}, that it is a folder and that the disk has room.") from error
    for other in taken:
        if other not in (recording, words):
            logger.warning("%s: %s stays and is not used: %s comes before it.", node, other, recording.name)
    logger.info("%s: saved as %s.", node, recording)
    return recording


def _taken(folder: Path, name: str) -> list[Path]:
    """The files in ``folder`` that are of the voice ``name``, or would be; dangling links too."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    sounds = [file for stem, _, file in _sounds(names) if stem == name]
    texts = [file for file in names if _shown(file).removeprefix(name).lower() in TRANSCRIPTS]
    # Where case does not count, another spelling is the same file.
    same = [file for file in (f"{name}.flac", f"{name}.txt") if os.path.lexists(folder / file)]
    return [folder / file for file in dict.fromkeys((*sounds, *texts, *same))]


def _replace_both(recording: Path, data: bytes, words: Path, transcript: bytes) -> None:
    """Put both files in their places, or neither."""
    new = {path: path.with_name(f".{uuid.uuid4().hex}.part") for path in (recording, words)}
    old = words.read_bytes() if words.is_file() else None
    try:
        _write(new[recording], data)
        _write(new[words], transcript)
        os.replace(new[words], words)
        try:
            os.replace(new[recording], recording)
        except OSError:
            if old is None:
                words.unlink()
            else:
                _write(new[words], old)
                os.replace(new[words], words)
            raise
    finally:
        for path in new.values():
            path.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    """A new file, on the disk before it gets its name."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def flac(clip: Clip, node: str) -> bytes:
    """A clip as FLAC, mono, 24 bits, at its own rate. Louder than full scale is lowered, with a warning."""
    wave, peak = clip.wave.detach(), float(clip.wave.abs().max())
    if peak > 1:
        logger.warning("%s: the recording peaks at %.3g, which no file holds; it is saved at 1/%.3g of its volume.",
                       node, peak, peak)
        wave = wave / peak
    full = 2 ** (FLAC_BITS - 1)
    # Steps of 24 bits are whole numbers that float32 holds; the encoder takes them in the upper bits of 32.
    steps = (wave * full).round().clamp(-full, full - 1).to(torch.int32) << (32 - FLAC_BITS)
    buffer = io.BytesIO()
    with needed("av", node):
        import av
    with av.open(buffer, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=clip.rate_hz, options={"bits_per_raw_sample": str(FLAC_BITS)})
        stream.layout, stream.format = "mono", "s32"
        frame = av.AudioFrame.from_ndarray(steps[None].numpy(), format="s32", layout="mono")
        frame.sample_rate = clip.rate_hz
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()
