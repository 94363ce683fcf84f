"""What the nodes share: the wires' types, the bar that shows progress, and Cancel."""
from __future__ import annotations

from collections.abc import Callable

import comfy.model_management
import comfy.utils
from comfy_api.latest import io

from ..loader import SpeechModel
from ..wires import SpeechPrompt, SpeechTokens, Voice

CATEGORY = "audio/speech"
MAX_SEED = 2**64 - 1

SpeechModelType = io.Custom("SPEECH_MODEL")
SpeechVoiceType = io.Custom("SPEECH_VOICE")
SpeechTokensType = io.Custom("SPEECH_TOKENS")
SpeechPromptType = io.Custom("SPEECH_PROMPT")

# What each wire of ours carries, and who makes it.
MAKERS = {
    SpeechModel: ("SPEECH_MODEL", "Load Speech Model"),
    Voice: ("SPEECH_VOICE", "a Voice or Voice Library"),
    SpeechPrompt: ("SPEECH_PROMPT", "Encode Speech Prompt"),
    SpeechTokens: ("SPEECH_TOKENS", "a sampler, S3 Tokenize or Encode Fish Codes"),
}


def check_wire(value: object, kind: type, role: str) -> None:
    """ValueError unless ``value`` is what the wire carries: switches and nulls bring nothing, or something else."""
    if not isinstance(value, kind):
        wire, makers = MAKERS[kind]
        found = "nothing" if value is None else type(value).__name__
        raise ValueError(f"{role}: expected {wire}, got {found}; connect {makers}.")


def progress_and_interrupt(every: int = 1) -> Callable[[int, int], None]:
    """A callback (done, total) that raises when the user has pressed Cancel, and moves the node's bar.

    The bar moves at each ``every``-th step and at the last.
    """
    bars: list[comfy.utils.ProgressBar] = []

    def report(done: int, total: int) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        if done % every and done != total:
            return
        if not bars:
            bars.append(comfy.utils.ProgressBar(total))
        bars[0].update_absolute(done, total)

    return report
