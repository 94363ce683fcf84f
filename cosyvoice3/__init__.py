"""CosyVoice 2 and 3: text to speech tokens by a language model, on top of the tokens and voices of S3Gen."""
from . import demo, folder, generate, prompt, tokenizer

__all__ = ["demo", "folder", "generate", "prompt", "tokenizer"]
