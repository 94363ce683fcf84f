"""The S3 speech-token stack: tokenizer, speaker encoder, mel, and S3Token2Wav of Chatterbox and CosyVoice 2."""
from . import checkpoint, demo, model, pipeline, weights

__all__ = ["checkpoint", "demo", "model", "pipeline", "weights"]
