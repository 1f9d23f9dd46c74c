"""An error as data: what a failed step leaves in the database, and what whoever asks gets back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.text import ERROR_LIMIT, storable

HINT_LIMIT = 1000
FACTS_LIMIT = 8 << 10
"""Bytes of the facts as JSON. Facts that are larger, or are no JSON, are left out: the message has to do."""


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error that ended a job or failed a try: its class, its message, what to do next, and its facts."""

    type: str
    """The name of the exception's class; `Abort` or `Unrecoverable` if the step gave only a reason."""
    message: str
    hint: str | None = None
    facts: dict[str, Any] = {}
    """The exception's attribute `facts`, if it has one: for programs that decide by more than the class."""
    step: str | None = None
    tries: int = 0
    """How often the step was tried; 0 if trying again was not the question."""

    @property
    def text(self) -> str:
        """One line for people: the class and the message."""
        return f"{self.type}: {self.message}" if self.message else self.type


def record_of(error: BaseException, *, step: str | None = None, tries: int = 0) -> ErrorRecord:
    """The record of an exception, whatever its own methods do."""
    try:
        message = str(error)
    except BaseException:  # an error that cannot even be printed is no reason to fall over
        message = ""
    return ErrorRecord(
        type=storable(type(error).__name__)[:HINT_LIMIT],
        message=storable(message)[:ERROR_LIMIT],
        hint=_hint_of(error),
        facts=_facts_of(error),
        step=step,
        tries=tries,
    )


def _hint_of(error: BaseException) -> str | None:
    try:
        hint = getattr(error, "hint", None)
        return storable(hint)[:HINT_LIMIT] if isinstance(hint, str) else None
    except BaseException:  # a property of somebody else's class may raise anything
        return None


def _facts_of(error: BaseException) -> dict[str, Any]:
    """The facts as they will be read again: decoded from the JSON that is stored."""
    try:
        facts = getattr(error, "facts", None)
        if not isinstance(facts, Mapping):
            return {}
        encoded = msgspec.json.encode(dict(facts))
        decoded = msgspec.json.decode(encoded, type=dict[str, Any]) if len(encoded) <= FACTS_LIMIT else {}
    except BaseException:  # neither may what cannot be encoded
        return {}
    facts_stored: dict[str, Any] = _storable(decoded)
    return facts_stored


def _storable(value: Any) -> Any:
    """The same with every text made fit for the database: PostgreSQL takes no NUL, not even in JSON."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(key): _storable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_storable(each) for each in value]
    return value


_decode = msgspec.json.Decoder(ErrorRecord).decode
_encode = msgspec.json.Encoder().encode


def encoded_record(record: ErrorRecord | None) -> str | None:
    """The record as it is stored."""
    return None if record is None else _encode(record).decode()


def decoded_record(text: str | None) -> ErrorRecord | None:
    """The record that was stored; None if there is none, or none that can be read (`check` tells)."""
    if text is None:
        return None
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None
