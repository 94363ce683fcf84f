"""OGG TTS: text to the codes of Fish Audio's 44.1 kHz codec by block diffusion, and the codec itself."""
