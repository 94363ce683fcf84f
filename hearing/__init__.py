"""Speech to text with the Whisper and Moonshine classes of transformers: their folders, and what they hear."""
from . import folder, pipeline

__all__ = ["folder", "pipeline"]
