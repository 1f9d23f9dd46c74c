"""Texts of others (errors, reasons, notes) made fit for every database: nothing fails to be stored for its text."""

from __future__ import annotations

ERROR_LIMIT = 4000
ACTOR_LIMIT = 300


def storable(text: str) -> str:
    """The text with NUL characters made visible and half characters (from file names, say) spelled out."""
    if "\0" in text:
        text = text.replace("\0", "␀")
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def error_text(text: str) -> str:
    """The same, and not longer than an error may be."""
    return storable(text)[:ERROR_LIMIT]


def actor_text(actor: str) -> str:
    """The same for the name of who acts, which is in an index."""
    return storable(actor)[:ACTOR_LIMIT]


def describe(error: BaseException) -> str:
    """An error for people and for the journal, whatever its own methods do."""
    try:
        kind = type(error).__name__
        text = str(error)
    except BaseException:  # an error that cannot even be printed is no reason to fall over
        kind, text = getattr(type(error), "__qualname__", "Error"), ""
    return error_text(f"{kind}: {text}" if text else kind)
