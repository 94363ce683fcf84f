"""The door for sound: ComfyUI's AUDIO to clips and back, resampling, joints.

Inside the pack a recording is a ``Clip``: mono, float32, on the CPU, at its own rate. What is odd about a
user's audio (stereo, integers, a lazy mapping, a rate such as 44100.0, NaN) is dealt with here, once.
"""
from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# (number of a piece, room for it (T,)) -> how many samples of the room it has filled
Fill = Callable[[int, Tensor], int]

logger = logging.getLogger(__name__)

MIN_RATE_HZ = 2_000             # below, the second formant of vowels is lost: a wrong number, not a recording
MAX_RATE_HZ = 768_000           # the fastest audio converters on sale
LARGEST_SAMPLE = 2.0**31        # floats beyond fit no scale of audio, not even 32-bit integers cast to float
SILENCE_DBFS = -72.0            # 8 steps of 16 bits: below are dither and the noise of a muted track
QUIET_DBFS = -40.0              # speech that peaks lower is audible, but near the noise of most microphones
CLIPPED_LEVEL = 0.9999          # the largest 16-bit sample is 0.99997
CLIPPED_SHARE = 0.01            # even a sine at full scale stays below; a mastered recording far below
MAX_KERNEL_ELEMENTS = 2**20     # 4 MB; the usual rates need at most 0.3 million, 44101 -> 24000 needs 10**9
BLOCK_SAMPLES = 2**22           # resampled at a time, 95 s at 44.1 kHz: long recordings need little extra
STILL_MS = 20                   # how long the stillest stretch is, at which a recording is cut
MAX_FADE_MS = 10_000            # longer is a slip, such as samples given as milliseconds
TAIL_FRAME_MS = 20              # in which loudness is measured: more than a period of the lowest voice
TAIL_DB = -50.0                 # below a piece's loudest frame: an s at the end of a word is 30 to 40 below a vowel
TAIL_S = 0.15                   # of silence that stays where speech goes on, as between sentences
TAIL_BEFORE_PAUSE_S = 0.05      # and where a written pause follows: the last sound dies away


@dataclass(frozen=True, eq=False)
class Clip:
    """A mono recording: ``wave`` (T,) float32 on the CPU, nominally within +-1, at ``rate_hz``."""
    wave: Tensor
    rate_hz: int

    def __post_init__(self) -> None:
        assert self.wave.ndim == 1 and self.wave.dtype == torch.float32 and self.wave.device.type == "cpu"

    @property
    def seconds(self) -> float:
        return self.wave.shape[0] / self.rate_hz


def clips(audio: Mapping | None, role: str) -> list[Clip]:
    """ComfyUI AUDIO, one mono clip per batch row (mean over channels).

    ``audio`` is any mapping with "waveform" (B, C, T) and "sample_rate"; ``role`` names the input in errors.
    An error that a lazy mapping raises when it is read passes through; all else is a ValueError.
    """
    if audio is None:
        raise ValueError(f"{role}: there is no audio; connect a recording (a video without an audio track "
                         "gives none).")
    if not isinstance(audio, Mapping):
        raise ValueError(f"{role}: expected AUDIO, got {type(audio).__name__}; connect an AUDIO output, "
                         "such as Load Audio's.")
    wave, rate_hz = _entry(audio, "waveform", role), _rate(_entry(audio, "sample_rate", role), role)
    if not isinstance(wave, Tensor):
        raise ValueError(f"{role}: the waveform is of type {type(wave).__name__}; AUDIO carries a tensor.")
    if wave.ndim != 3 or 0 in wave.shape:
        raise ValueError(f"{role}: expected (batch, channels, samples), each at least 1, "
                         f"got {tuple(wave.shape)}; give a recording that holds sound.")
    wave = _to_float(wave, role)                                    # (B, C, T)
    bad = int((~wave.isfinite()).sum())
    if bad:
        raise ValueError(f"{role}: {bad} of {wave.numel()} samples are NaN or infinite; "
                         "the node or file that the recording comes from is at fault.")
    low, high = wave.aminmax()
    peak = max(-float(low), float(high))
    if peak > LARGEST_SAMPLE:
        raise ValueError(f"{role}: the largest sample is {peak:.3g}; audio as floats is within -1 to 1.")
    return [Clip(row, rate_hz) for row in wave.mean(dim=1)]         # (B, C, T) -> (B, T)


def one_clip(audio: Mapping | None, role: str) -> Clip:
    """The only recording of ``audio``. ValueError for a batch of several."""
    found = clips(audio, role)
    if len(found) > 1:
        raise ValueError(f"{role}: the audio is a batch of {len(found)} recordings, and one is needed; "
                         "pick one of them, or run the node once for each.")
    return found[0]


def check_speech(clip: Clip, role: str, min_seconds: float) -> None:
    """ValueError when ``clip`` is shorter than ``min_seconds`` or silent.

    Warns when it is overdriven, clipped or very quiet.
    """
    samples, needed = clip.wave.shape[0], max(1, math.ceil(min_seconds * clip.rate_hz))
    if samples < needed:
        unit = "sample" if samples == 1 else "samples"
        raise ValueError(f"{role}: {samples} {unit} ({clip.seconds:.3f} s at {clip.rate_hz} Hz); "
                         f"give at least {needed / clip.rate_hz:.3g} s of speech.")
    level_dbfs = peak_dbfs(clip.wave)
    if level_dbfs < SILENCE_DBFS:
        raise ValueError(f"{role}: the recording is silent (nothing above {SILENCE_DBFS:.0f} dBFS in "
                         f"{clip.seconds:.2f} s); check that the right track is connected and not muted.")
    magnitude = clip.wave.abs()
    peak, clipped = float(magnitude.max()), float((magnitude >= CLIPPED_LEVEL).float().mean())
    if peak > 1:
        logger.warning("%s: the recording peaks at %.3g; audio as floats is within -1 to 1. "
                       "Lower its volume.", role, peak)
    elif clipped > CLIPPED_SHARE:
        logger.warning("%s: %.1f %% of the samples are at full scale: the recording is clipped, and the "
                       "voice will sound rough.", role, 100 * clipped)
    elif level_dbfs < QUIET_DBFS:
        logger.warning("%s: the recording is very quiet (its peak is %.0f dBFS); raise its volume.",
                       role, level_dbfs)


def dbfs(level: float) -> float:
    """An amplitude, of which 1 is full scale, in decibels; -inf for 0."""
    return 20 * math.log10(level) if level > 0 else -math.inf


def peak_dbfs(wave: Tensor) -> float:
    """How loud (T,) is at its loudest. A constant offset is no sound, whatever its size."""
    return dbfs(float((wave - wave.mean()).abs().max()))


def still_sample(clip: Clip, start_s: float, end_s: float) -> int:
    """Where to cut a recording of at least ``end_s``: the middle of the stillest 20 ms between the two times."""
    start, end = int(start_s * clip.rate_hz), int(end_s * clip.rate_hz)
    span = max(1, clip.rate_hz * STILL_MS // 1000)
    step = max(1, span // 2)
    energy = torch.nn.functional.avg_pool1d(clip.wave[start:end].square()[None], span, stride=step)[0]
    return start + int(energy.argmin()) * step + span // 2


def resample(wave: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """(..., T) float at ``from_hz`` -> (..., T') at ``to_hz``; the same tensor when the rates are equal.

    torchaudio's windowed sinc (Hann, 6 zero crossings, rolloff 0.99), bit for bit. With o : n the ratio of
    the rates in lowest terms, T' is ceil(n T / o); torchaudio computes that in float32, so a long clip may
    lack the last sample. Its kernel has n (2 w + o) elements, too many for rates such as 44101; there scipy's
    polyphase filter steps in, with the same length.
    """
    if from_hz <= 0 or to_hz <= 0:
        raise ValueError(f"cannot resample from {from_hz} Hz to {to_hz} Hz; rates are positive.")
    if from_hz == to_hz or wave.shape[-1] == 0:
        return wave
    divisor = math.gcd(from_hz, to_hz)
    o, n = from_hz // divisor, to_hz // divisor
    half_width = math.ceil(6 * o / (min(o, n) * 0.99))
    if n * (2 * half_width + o) > MAX_KERNEL_ELEMENTS:
        return _resample_polyphase(wave, o, n)
    if wave.shape[-1] <= BLOCK_SAMPLES:
        return _torchaudio_resample(wave, o, n)
    return _resample_blocks(wave, o, n, half_width)


def to_comfy(waves: Sequence[Tensor], rate_hz: int) -> dict:
    """(T_i,) tensors -> AUDIO {"waveform": (B, 1, T) float32 CPU, "sample_rate"}, zero-padded to the longest.

    Samples beyond +-1 are clamped, with a warning: files cannot hold them. RuntimeError for NaN or infinity,
    since that is a model's doing and not the user's. A single row that is as it should be is handed over, not
    copied.
    """
    if not waves:
        raise ValueError("there is no audio to return: 0 rows.")
    for index, wave in enumerate(waves):
        if wave.ndim != 1 or wave.shape[0] == 0:
            raise ValueError(f"audio row {index}: expected (samples,), at least 1, got {tuple(wave.shape)}.")
    rows = [wave.detach().to("cpu", torch.float32).contiguous() for wave in waves]
    loud = [_check_row(row, index) for index, row in enumerate(rows)]
    if len(rows) == 1:
        batch = rows[0][None, None]
        return {"waveform": batch.clamp(-1, 1) if loud[0] else batch, "sample_rate": int(rate_hz)}
    batch = torch.zeros(len(rows), 1, max(row.shape[0] for row in rows), dtype=torch.float32, device="cpu")
    for place, row in zip(batch[:, 0], rows):
        place[: row.shape[0]] = row
    return {"waveform": batch.clamp_(-1, 1), "sample_rate": int(rate_hz)}


def join(waves: Sequence[Tensor], pauses_s: Sequence[float], rate_hz: int, fade_ms: float) -> Tensor:
    """Pieces (T_i,) in order, piece i followed by ``pauses_s[i]`` seconds of silence -> (T,).

    ``pauses_s`` has an entry for each joint, or one more for silence at the end. T is exactly the sum of all
    T_i and of all ``round(pause * rate_hz)``. Nothing overlaps: edges at a joint rise and fall in a straight
    line over ``fade_ms``, so neighbours differ by no more than within the pieces plus the fade's slope.
    Pieces shorter than the fade get the same slope and stay below full volume. The very first and last edge
    are left alone: a single piece comes back as it is.
    """
    if not waves:
        raise ValueError("there is nothing to join: 0 pieces.")
    if len(pauses_s) not in (len(waves) - 1, len(waves)):
        raise ValueError(f"{len(waves)} pieces have {len(waves) - 1} joints, but {len(pauses_s)} pauses "
                         "are given.")
    gaps = [_pause_samples(pause, rate_hz) for pause in pauses_s] + [0] * (len(waves) - len(pauses_s))
    if len(waves) == 1 and gaps == [0]:
        return waves[0]

    def fill(index: int, room: Tensor) -> int:
        count = waves[index].shape[0]
        room[:count] = waves[index]
        return count

    row = waves[0].new_empty(sum(wave.shape[0] for wave in waves) + sum(gaps))
    return _laid(row, fill, gaps, 0, _fade_samples(fade_ms, rate_hz), None)


def join_row(fill: Fill, pieces: Sequence, most: int, rate_hz: int, fade_ms: float) -> Tensor:
    """Pieces of speech with the silence before and behind each (``lead_s``, ``pause_s``) -> (T,) float32 on the CPU.

    ``fill`` is asked for one piece after another, of ``most`` samples in all, and writes each where it belongs: there
    is the row, and no second copy of a long text. They are joined as by ``join``, after what is silent at the end of
    a piece has gone where another piece or a pause follows, see ``sounding``: the row ends as its last piece does, and
    a single piece stays as it is.
    """
    before = [piece.lead_s for piece in pieces]
    gaps = [_pause_samples(piece.pause_s + lead_s, rate_hz) for piece, lead_s in zip(pieces, [*before[1:], 0.0])]
    lead, fade = _pause_samples(before[0], rate_hz), _fade_samples(fade_ms, rate_hz)
    row = torch.empty(lead + most + sum(gaps), device="cpu", dtype=torch.float32)
    return _laid(row, fill, gaps, lead, fade, rate_hz)


def sounding(wave: Tensor, rate_hz: int, keep_s: float) -> int:
    """How many samples of (T,) are left without the silence at its end but for ``keep_s`` seconds of it.

    Silent are frames that lie ``TAIL_DB`` below the loudest one of the piece, or below what can be heard at all; a
    constant offset is no sound. Of a piece that is silent, all is left.
    """
    samples, frame = wave.shape[0], rate_hz * TAIL_FRAME_MS // 1000
    if samples < frame:
        return samples
    power = wave[samples % frame :].unfold(0, frame, frame).var(dim=1, correction=0)    # without copies of the wave
    audible, loudest = 10 ** (SILENCE_DBFS / 10), float(power.max())
    if not loudest > audible:
        return samples
    heard = (power > max(audible, loudest * 10 ** (TAIL_DB / 10))).nonzero()
    return min(samples, samples % frame + frame * (1 + int(heard[-1])) + round(keep_s * rate_hz))


def _entry(audio: Mapping, key: str, role: str) -> object:
    """One value of ``audio``, read by index alone: lazy mappings decode a file on each access."""
    try:
        return audio[key]
    except KeyError as error:
        if error.args != (key,):
            raise
        raise ValueError(f"{role}: the input has no {key!r}, and AUDIO holds 'waveform' and 'sample_rate'; connect an "
                         "AUDIO output, such as Load Audio's.") from error


def _rate(value: object, role: str) -> int:
    """A sample rate as a plain int; 44100.0 and integers of numpy or torch are welcome."""
    try:
        rate_hz = int(value)
        exact = not isinstance(value, bool) and bool(rate_hz == value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        exact = False
    if not exact or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise ValueError(f"{role}: the sample rate is {value!r}; expected a whole number of Hz "
                         f"from {MIN_RATE_HZ} to {MAX_RATE_HZ}.")
    return rate_hz


def _to_float(wave: Tensor, role: str) -> Tensor:
    """Any sample format -> float32 on the CPU, integers scaled by their full range."""
    wave = wave.detach().cpu()
    if wave.is_floating_point():
        return wave.float()
    if wave.dtype == torch.uint8:
        return (wave.float() - 128) / 128                           # as in WAV files, where 128 is silence
    if wave.dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        return wave.float() / -torch.iinfo(wave.dtype).min
    raise ValueError(f"{role}: samples of type {wave.dtype} are not audio; "
                     "give floats within -1 to 1, signed integers or unsigned bytes.")


def _torchaudio_resample(wave: Tensor, o: int, n: int) -> Tensor:
    """Builds its kernel anew each time: 0.2 to 2 ms for the usual rates, too little to keep kernels for."""
    try:
        from torchaudio.functional import resample as sinc_resample
    except ImportError as error:
        raise ImportError("resampling needs torchaudio, which ComfyUI's requirements install; "
                          "run `pip install torchaudio` in ComfyUI's environment.") from error
    return sinc_resample(wave.contiguous(), o, n)                   # it flattens with view


def _resample_blocks(wave: Tensor, o: int, n: int, half_width: int) -> Tensor:
    """A long (..., T) in blocks of whole periods of o samples, with the filter's reach on either side."""
    samples = wave.shape[-1]
    periods = BLOCK_SAMPLES // o
    before = math.ceil(half_width / o) * o
    result = wave.new_empty(*wave.shape[:-1], math.ceil(n * samples / o))
    for start in range(0, samples, periods * o):
        stop = start + periods * o + half_width + o                 # zeros past the end, as torchaudio pads
        block = wave[..., max(0, start - before):min(stop, samples)]
        block = torch.nn.functional.pad(block, (max(0, before - start), max(0, stop - samples)))
        first = start // o * n
        out = result[..., first:first + periods * n]
        skipped = before // o * n
        out.copy_(_torchaudio_resample(block, o, n)[..., skipped:skipped + out.shape[-1]])
    return result


def _resample_polyphase(wave: Tensor, o: int, n: int) -> Tensor:
    """scipy's polyphase filter on the CPU: its memory grows with o and n, not with their product."""
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise ImportError(f"resampling from {o} to {n} Hz needs scipy, which ComfyUI's requirements install; "
                          "run `pip install scipy` in ComfyUI's environment.") from error
    out = resample_poly(wave.detach().cpu().numpy(), n, o, axis=-1)
    return torch.from_numpy(out).to(wave)


def _check_row(row: Tensor, index: int) -> bool:
    """Whether a row has samples beyond +-1, which is logged."""
    low, high = row.aminmax()
    peak = max(-float(low), float(high))
    if not math.isfinite(peak):                                     # aminmax hands a NaN on
        bad = int((~row.isfinite()).sum())
        raise RuntimeError(f"audio row {index}: {bad} of {row.shape[0]} samples from the model are NaN "
                           "or infinite; load it in fp32, or check its file and the settings.")
    if peak > 1:
        logger.warning("audio row %d peaks at %.3g and is clamped to 1.", index, peak)
    return peak > 1


def _laid(row: Tensor, fill: Fill, gaps: Sequence[int], lead: int, fade: int, trim_at_hz: int | None) -> Tensor:
    """Pieces behind ``lead`` samples of silence and with gaps behind, in ``row`` as far as it is needed."""
    row[:lead] = 0
    end, last = lead, len(gaps) - 1
    for index, gap in enumerate(gaps):
        begin, followed = end, gap > 0 or index < last
        end += fill(index, row[end:])
        if followed and trim_at_hz:
            end = begin + sounding(row[begin:end], trim_at_hz, TAIL_BEFORE_PAUSE_S if gap else TAIL_S)
        _fade(row[begin:end], fade, rises=index > 0, falls=followed)
        row[end : end + gap] = 0
        end += gap
    return row[:end]


def _pause_samples(pause_s: float, rate_hz: int) -> int:
    if not 0 <= pause_s < math.inf:
        raise ValueError(f"a pause of {pause_s} s cannot be; pauses are 0 s or longer.")
    return round(pause_s * rate_hz)


def _fade_samples(fade_ms: float, rate_hz: int) -> int:
    if not 0 <= fade_ms <= MAX_FADE_MS:
        raise ValueError(f"joint_fade: {fade_ms} ms is not possible; give 0 to {MAX_FADE_MS} ms.")
    return round(fade_ms * rate_hz / 1000)


def _fade(wave: Tensor, fade: int, rises: bool, falls: bool) -> None:
    """Straight edges of ``fade`` samples, in place; the smaller of two gains, so the slope is never steeper.

    Gains stand at half steps: two edges that meet differ by at most one step of the fade.
    """
    samples = wave.shape[0]
    ramp = (torch.arange(min(fade, samples), device=wave.device, dtype=wave.dtype) + 0.5) / max(fade, 1)
    if rises:
        risen = min(len(ramp), samples // 2 if falls else samples)
        wave[:risen] *= ramp[:risen]
    if falls:
        fallen = min(len(ramp), samples - samples // 2 if rises else samples)
        wave[samples - fallen :] *= ramp[:fallen].flip(0)
