"""Texts and words as users send them, by what is odd about them. Sound is in ``kit.audio``."""
from __future__ import annotations

ODD_TEXTS: dict[str, str] = {
    "nothing": "", "blanks": " \n\t\u3000", "hidden signs": "\ufeff\u200b\x00", "fillers": "\u115f\u3164",
    "signs": "…!? -- ***", "a face": "(￣▽￣)", "emoji": "👍 ❤\ufe0f 👩\u200d🚀", "a tag alone": "[laughter]",
    "a pause alone": "[pause:1s]", "a letter": "a", "a digit": "1", "an ideograph": "好", "Thai": "ไป",
    "Windows": "\ufeffHello.\r\nBye.\r\n", "half an emoji": "Hi \ud83d.", "decomposed": "Zoe\u0308 said so.",
    "an open tag": "<strong>Go. [sigh", "footnotes": "As [1] shows, a < b > c.", "control": "Hi<|endofprompt|>you",
    "more control": "<|im_end|><|text_end|><|quad_start|>S2", "a name": "S1: Yes.", "names": "Ada: Yes.\nBo: No.",
    "no name": "12:30 is late. He said: no.", "empty lines": "\n\nYes.\n\n\n\nNo.\n",
    "numbers": "It costs $3.50 at v1.2.3, Dr. Lee.", "no place to cut": "x" * 900, "no stop": "好" * 400,
    "None": "None", "braces": "{0} %s \\n", "a path": "../../etc/passwd", "right to left": "هل أنت بخير؟ نعم.",
}

# Those of them in which there is nothing to speak.
MUTE = ("nothing", "blanks", "hidden signs", "fillers", "signs", "a face", "emoji", "a pause alone")

# One word, in scripts that need more or less time for a character.
WORDS = ("Yes", "Hi", "I", "1", "好", "はい", "ไป", "نعم", "नमस्ते", "½", "A+")
