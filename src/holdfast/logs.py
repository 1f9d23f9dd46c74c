"""Log lines, bound to job and execution: one JSON object each for machines, or text for people."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

BOUND_FIELDS = ("job_id", "exec_id", "flow", "step", "tries", "attempt", "worker", "outcome", "seconds")
"""What a record may be bound to, by `extra=` or by `run.log`."""


class JsonFormatter(logging.Formatter):
    """One object per line: ts, level, logger, message, what it is bound to, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line; whatever is in it, the line is one JSON object."""
        content: dict[str, Any] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        content |= _bound(record)
        if (exception := _exception(self, record)) is not None:
            content["exception"] = exception
        return _encodable(json.dumps(content, ensure_ascii=False, default=str))


class TextFormatter(logging.Formatter):
    """`2024-05-01T12:00:00.000Z warning holdfast.run: message (job_id=… step=…)`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, and its traceback below it."""
        bound = " ".join(f"{name}={value}" for name, value in _bound(record).items())
        line = f"{_timestamp(record)} {record.levelname.lower():<7} {record.name}: {record.getMessage()}"
        if bound:
            line += f" ({bound})"
        if (exception := _exception(self, record)) is not None:
            line += f"\n{exception}"
        return _harmless(line)


def configure(log_format: str, *, level: int, stream: TextIO | None = None) -> None:
    """Send the log of the whole process, of an app's own loggers too, to `stream`, by default stderr."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


def _timestamp(record: logging.LogRecord) -> str:
    second = int(record.created)
    return f"{_second(second)}.{int((record.created - second) * 1000):03d}Z"


@lru_cache(maxsize=2)
def _second(second: int) -> str:
    return f"{datetime.fromtimestamp(second, tz=UTC):%Y-%m-%dT%H:%M:%S}"


def _bound(record: logging.LogRecord) -> dict[str, Any]:
    given = record.__dict__
    return {name: given[name] for name in BOUND_FIELDS if given.get(name) is not None}


def _harmless(text: str) -> str:
    """Nothing in it can steer the terminal that shows it; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def _encodable(text: str) -> str:
    """Half characters (of file names, say) spelled out: one of them would cost the whole line."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    parts = []
    if record.exc_text:
        parts.append(record.exc_text)
    elif record.exc_info:
        try:
            parts.append(formatter.formatException(record.exc_info))
        except Exception:  # an exception that cannot be shown must not cost the line that tells of it
            parts.append(f"{getattr(record.exc_info[0], '__name__', 'exception')}: <it cannot be shown>")
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts) or None
