"""Log lines, bound to job and execution: one JSON object each for machines, or text for people."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, TextIO

BOUND_FIELDS = ("job_id", "exec_id", "flow", "step", "tries")
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
        return json.dumps(content, ensure_ascii=False, default=str)


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
        return line


def configure(log_format: str, *, level: int, stream: TextIO | None = None) -> None:
    """Send the log of the whole process, of an app's own loggers too, to `stream`, by default stderr."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


def _timestamp(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, tz=UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _bound(record: logging.LogRecord) -> dict[str, Any]:
    given = {name: getattr(record, name, None) for name in BOUND_FIELDS}
    return {name: value for name, value in given.items() if value is not None}


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts) or None
