"""Texts of others (errors, reasons, notes) made fit for every database: nothing fails to be stored for its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.core.states import Disposition, ExecutionStatus, JobState, attempts
from holdfast.core.values import Codec

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


# --- An error as data: what a failed step leaves in the database, and what whoever asks gets back -------

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


# --- What the store hands out: plain, immutable, JSON-ready. Times are milliseconds since 1970, UTC -----

Resp = TypeVar("Resp")


class _Answers(Protocol[Resp]):
    """As much of a flow as its answers need."""

    @property
    def response_codec(self) -> Codec[Resp]: ...


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One job, as stored."""

    job_id: str
    flow: str
    fingerprint: str
    state: JobState
    key: str | None = None
    queue: str = ""
    priority: int = 0
    hold: str = "none"
    not_before: int = 0
    run_after: str | None = None
    waits_for: str | None = None
    parent: str | None = None
    attempt: int = 0
    """How many executions it has had: it grows with each, also after a wait or a graceful stop."""
    failures: int = 0
    failures_forgiven: int = 0
    failure_limit: int = 1
    crashes: int = 0
    crashes_forgiven: int = 0
    crash_limit: int = 5
    stall_ms: int = 600_000
    cancel_reason: str | None = None
    ending: str | None = None
    created_at: int = 0
    updated_at: int = 0
    stall_limits: str | None = None

    @property
    def attempts(self) -> int:
        """Which try of the job it is in, or goes on with; waits and graceful stops cost none."""
        return attempts(self.state, executions=self.attempt, failures=self.failures, crashes=self.crashes)


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a job, as stored."""

    exec_id: str
    job_id: str
    attempt: int
    """1, 2, 3 … per job: the number of the execution."""
    queue: str
    status: ExecutionStatus
    lease_owner: str
    lease_expires_at: int
    started_at: int
    """When it was leased: a claim leases and starts in one transaction, unless the definitions have to be compared."""
    disposition: Disposition | None = None
    code: str | None = None
    error: str | None = None
    position: int = 0
    tries: int = 0
    interrupted: bool = False
    retry_at: int | None = None
    progressed_at: int = 0
    progress: str | None = None
    finished_at: int | None = None
    traceback: str | None = None
    failure: str | None = None
    """The error as data (JSON of an ErrorRecord); `error` says it in words."""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One finished step of a job."""

    job_id: str
    position: int
    step: str
    exec_id: str
    tries: int
    started_at: int
    finished_at: int
    response: str


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change of state: who, when, what, from, to, why; chained to the one before by hash."""

    job_id: str
    seq: int
    at: int
    actor: str
    exec_id: str | None
    job_from: str | None
    job_to: str
    exec_from: str | None
    exec_to: str | None
    step: str | None
    reason: str
    metadata: str
    prev_hash: str
    hash: str


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One queue and how full it is."""

    name: str
    max_running: int | None = None
    limit_by: str | None = None
    paused_at: int | None = None
    paused_by: str | None = None
    paused_reason: str | None = None
    running: int = 0
    pending: int = 0


class QueueEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a queue: who, when, what (pause, resume, limit), from, to, why."""

    queue: str
    seq: int
    at: int
    actor: str
    action: str
    before: str | None
    after: str | None
    reason: str
    metadata: str


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The pending jobs of one queue."""

    queue: str
    ready: int = 0
    """They could start now, if there is room for them and the queue is not paused."""
    scheduled: int = 0
    """Their time has not come: scheduled for later, or waiting for the next try."""
    waiting: int = 0
    """They wait for another job."""
    oldest_at: int | None = None
    """Since when the first of those that could start could: submitted, due, or given back."""


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process that has announced itself."""

    worker_id: str
    flows: tuple[str, ...]
    started_at: int
    seen_at: int


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A job submitted by another job."""

    name: str
    job_id: str
    flow: str
    state: JobState


def error_of(execution: ExecutionRecord) -> ErrorRecord | None:
    """The error that an execution ended with, as data; the end code is the type of one that no step has raised."""
    if execution.error is None:
        return None
    return decoded_record(execution.failure) or ErrorRecord(type=execution.code or "error", message=execution.error)


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job is going to end once its cleanup has run."""

    disposition: Disposition
    code: str
    error: str
    failure: ErrorRecord | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "error", error_text(self.error))


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands: its state, and once it has ended, how and with what answer."""

    job_id: str
    state: JobState
    outcome: str | None = None
    reason: str | None = None
    error: ErrorRecord | None = None
    """The error it ended with, as data; `reason` says it in words."""
    response: str | None = None
    seconds: float = 0.0

    def decode(self, flow: _Answers[Resp]) -> Resp | None:
        """The response of a job of this flow that has succeeded, as the flow's own type; None of any other."""
        return None if self.response is None else flow.response_codec.decode(self.response)


def unreadable_of(record: msgspec.Struct) -> str | None:
    """What of a row could not be read; None for a record that is whole."""
    unreadable: str | None = getattr(record, "unreadable", None)
    return unreadable
