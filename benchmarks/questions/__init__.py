"""One question to the engine per module; each yields figures."""
