"""Why a job is where it is: one stable code, one sentence for a person, and the facts behind them.

An ended job is explained by its last execution. A running one by what keeps it from getting on, in this order:
its effect is committed (nothing but the last mark is missing), its worker is gone or its lease has run out (then nobody
reads a wish to cancel or a time to retry), it is being cancelled, it backs off; else it simply runs.

A pending one by what would have to pass first. What it waits for comes before its time, because the time is looked
at only afterwards; then what takes a person (a paused queue, no worker) before what passes by itself (a full queue).
A wish to cancel comes last: what holds up the job holds up its cleanup, too. All other reasons are in `also`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, assert_never

import msgspec

from holdfast.core.progress import CurrentStep
from holdfast.core.records import Ending, ExecutionRecord, JobRecord, QueueRecord, error_of, unreadable_of
from holdfast.core.states import LIVE_STATUSES, ExecutionStatus, JobState
from holdfast.core.step import EndCode
from holdfast.core.values import label_of

Detail: TypeAlias = str | int | dict[str, Any] | None

HOLDERS_NAMED = 5
"""How many holders of a full queue are named in the sentence."""

_LAST_TIME = 253_402_300_799_999  # the end of the year 9999, where datetime ends


class ReasonCode(StrEnum):
    """Why; stable, for programs to rely on."""

    RUNNING = "running"
    FINALIZING = "finalizing"
    LEASE_EXPIRED = "lease-expired"
    WORKER_GONE = "worker-gone"
    CANCELLING = "cancelling"
    BACKING_OFF = "backing-off"
    WAITING_FOR_JOB = "waiting-for-job"
    WAITING_FOR_CHILD = "waiting-for-child"
    SCHEDULED = "scheduled"
    QUEUE_PAUSED = "queue-paused"
    NO_WORKER = "no-worker"
    QUEUE_FULL = "queue-full"
    READY = "ready"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREDECESSOR_FAILED = "predecessor-failed"
    QUARANTINED = "quarantined"
    DEFINITION_CHANGED = "definition-changed"
    INCONSISTENT = "inconsistent"


class ExplainFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to explain one job."""

    job: JobRecord
    executions: tuple[ExecutionRecord, ...] = ()
    predecessor: JobRecord | None = None
    queue: QueueRecord | None = None
    queue_holders: tuple[ExecutionRecord, ...] = ()
    live_flows: frozenset[str] = frozenset()
    tries_allowed: int | None = None
    current: CurrentStep | None = None
    owner_is_gone: bool = False
    """Is the process that holds the lease known to have ended?"""
    now: int

    @property
    def latest(self) -> ExecutionRecord | None:
        """The attempt that speaks for the job."""
        return max(self.executions, key=lambda execution: execution.attempt, default=None)


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is where it is."""

    code: ReasonCode
    sentence: str
    details: dict[str, Detail]


class _Reason(NamedTuple):
    code: ReasonCode
    sentence: str
    details: Mapping[str, Detail]


_READY = _Reason(ReasonCode.READY, "Nothing is in its way: it starts when a worker is free.", {})


def explain(facts: ExplainFacts) -> Explanation:
    """The first reason why the job is where it is; the others are named in `details["also"]`."""
    job = facts.job
    first, *others = [*_unreadable(facts), *_reasons(facts)]
    details: dict[str, Detail] = {"job": job.job_id, "flow": job.flow, "state": job.state, "attempt": job.attempts}
    details |= first.details
    details["also"] = ", ".join(reason.code for reason in others) or None
    return Explanation(code=first.code, sentence=first.sentence, details=details)


def _unreadable(facts: ExplainFacts) -> Iterator[_Reason]:
    unreadable = unreadable_of(facts.job)
    if unreadable is not None:
        sentence = f"Its row cannot be read, and nobody works on it: {unreadable}; see: holdfast check"
        yield _Reason(ReasonCode.INCONSISTENT, sentence, {"unreadable": unreadable})


def iso_utc(milliseconds: int) -> str:
    """A time for people: 2024-05-01T12:00:00Z."""
    return f"{_second(milliseconds)}Z"


def iso_utc_precise(milliseconds: int) -> str:
    """The same with its milliseconds, where times are compared: 2024-05-01T12:00:00.000Z."""
    return f"{_second(milliseconds)}.{min(max(milliseconds, 0), _LAST_TIME) % 1000:03d}Z"


def _second(milliseconds: int) -> str:
    bounded = min(max(milliseconds, 0), _LAST_TIME)
    return datetime.fromtimestamp(bounded // 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _reasons(facts: ExplainFacts) -> list[_Reason]:
    match facts.job.state:
        case JobState.PENDING:
            return list(_obstacles_to_start(facts)) or [_READY]
        case JobState.RUNNING:
            return [_while_running(facts)]
        case JobState.SUCCEEDED:
            return [_succeeded(facts)]
        case JobState.FAILED:
            return [_failed(facts)]
        case JobState.QUARANTINED:
            return [_quarantined(facts)]
        case unknown:
            assert_never(unknown)


# --- ended -----------------------------------------------------------------------------------------------


def _succeeded(facts: ExplainFacts) -> _Reason:
    done = next((e for e in facts.executions if e.status is ExecutionStatus.DONE), None)
    at = done.finished_at if done else None
    when = f" at {iso_utc(at)}" if at is not None else ""
    return _Reason(ReasonCode.SUCCEEDED, f"It succeeded{when}.", {"finished_at": at})


def _failed(facts: ExplainFacts) -> _Reason:
    retry = f"to try again: holdfast job retry {facts.job.job_id}"
    code, error, details = _how_it_ended(facts)
    if code == EndCode.PREDECESSOR:
        details["predecessor"] = facts.job.run_after
        sentence = f"It never started, because job {facts.job.run_after}, which it was to run after, did not succeed."
        return _Reason(ReasonCode.PREDECESSOR_FAILED, sentence, details)
    if code == EndCode.CANCELLED:
        return _Reason(ReasonCode.CANCELLED, f"It was cancelled: {error}; {retry}.", details)
    return _Reason(ReasonCode.FAILED, f"It failed: {error}; {retry}{_where(facts)}.{_hint(details)}", details)


def _quarantined(facts: ExplainFacts) -> _Reason:
    code, error, details = _how_it_ended(facts)
    if code == EndCode.DEFINITION_CHANGED:
        sentence = f"Its flow's definition changed in a way it cannot go on with: {error}."
        return _Reason(ReasonCode.DEFINITION_CHANGED, sentence, details)
    tries = f"after {facts.job.attempts} attempt(s)"
    sentence = f"It is quarantined {tries} ({code}): {error}{_where(facts)}.{_hint(details)}"
    return _Reason(ReasonCode.QUARANTINED, sentence, details)


def _where(facts: ExplainFacts) -> str:
    """Where to look for more than the error says."""
    if facts.latest is None or facts.latest.traceback is None:
        return ""
    return f"; where it failed: holdfast job show {facts.job.job_id}"


def _how_it_ended(facts: ExplainFacts) -> tuple[str | None, str, dict[str, Detail]]:
    latest = facts.latest
    if latest is None:
        return None, "no execution is on record", {"end_code": None, "error": None}
    error = latest.error or "no reason recorded"
    record = error_of(latest)
    details: dict[str, Detail] = {"end_code": latest.code, "error": latest.error, "finished_at": latest.finished_at}
    if record is not None:
        details |= {"error_type": record.type, "hint": record.hint, "facts": record.facts}
    return latest.code, error, details


def _hint(details: Mapping[str, Detail]) -> str:
    """What the error itself says can be done."""
    hint = details.get("hint")
    return f" Hint: {hint}." if hint else ""


# --- running ---------------------------------------------------------------------------------------------


def _while_running(facts: ExplainFacts) -> _Reason:
    for execution in facts.executions:
        if execution.status is ExecutionStatus.COMMITTED:
            sentence = "Its effect is committed; only the last mark is missing, and recovery sets it if need be."
            return _Reason(ReasonCode.FINALIZING, sentence, _lease(execution))
    for execution in facts.executions:
        if execution.status in LIVE_STATUSES:
            return _under_lease(facts, execution)
    sentence = "It is stored as running, but nothing is under way; see what is wrong: holdfast check."
    return _Reason(ReasonCode.INCONSISTENT, sentence, {})


def _under_lease(facts: ExplainFacts, execution: ExecutionRecord) -> _Reason:
    owner = label_of(execution.lease_owner)
    until = iso_utc(execution.lease_expires_at)
    details = _lease(execution)
    if facts.owner_is_gone:
        sentence = f"Its worker, {owner}, is gone: its process has ended; the next worker to look takes it over."
        return _Reason(ReasonCode.WORKER_GONE, sentence, details | _place(facts))
    if execution.lease_expires_at <= facts.now:
        sentence = f"Its lease, held by {owner}, ran out at {until}; the next worker to look takes it over."
        return _Reason(ReasonCode.LEASE_EXPIRED, sentence, details | _place(facts))
    ending = _ending(facts.job)
    if ending is not None:
        sentence = f"It is being ended by {owner} ({ending}); its cleanup has to finish first."
        return _Reason(ReasonCode.CANCELLING, sentence, details | {"ending": ending})
    if execution.retry_at is not None and execution.retry_at > facts.now:
        return _backing_off_from_step(facts, execution, execution.retry_at)
    sentence = (
        f"{owner} has been working on it since {iso_utc(execution.started_at)}{_at_step(facts)} and holds the lease "
        f"until {until}."
    )
    return _Reason(ReasonCode.RUNNING, sentence, details | _place(facts))


def _at_step(facts: ExplainFacts) -> str:
    """Which step it is in, since when, and how far."""
    current = facts.current
    if current is None or current.step is None:
        return ""
    of = f" ({current.number} of {current.steps})" if current.number is not None else ""
    allowed = f" of {facts.tries_allowed}" if facts.tries_allowed is not None else ""
    again = f", try {current.tries + 1}{allowed}" if current.tries else ""
    share = share_done(current.progress)
    so_far = f", {share}" if share else ""
    return f", is in step {current.step}{of} since {iso_utc(current.since)}{again}{so_far}"


def share_done(progress: Mapping[str, Any] | None) -> str:
    """How far a step says it is: `45 % (9 of 20), note`; what it has not said is left out."""
    if progress is None:
        return ""
    done, total, note = progress.get("done"), progress.get("total"), progress.get("note")
    parts = []
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        parts.append(f"{100 * done / total:.0f} % ({done:g} of {total:g})")
    elif done is not None:
        parts.append(f"{done:g}" if isinstance(done, int | float) else str(done))
    return ", ".join([*parts, str(note)] if note else parts)


def _place(facts: ExplainFacts) -> dict[str, Detail]:
    current = facts.current
    if current is None:
        return {"step": None, "progress": None}
    return {
        "step": current.step,
        "step_number": current.number,
        "steps": current.steps,
        "step_since": current.since,
        "tries": current.tries,
        "progress": current.progress,
    }


def _lease(execution: ExecutionRecord) -> dict[str, Detail]:
    return {
        "execution": execution.exec_id,
        "owner": label_of(execution.lease_owner),
        "lease_expires_at": execution.lease_expires_at,
    }


# --- pending ---------------------------------------------------------------------------------------------


def _obstacles_to_start(facts: ExplainFacts) -> Iterator[_Reason]:
    """In the order in which they have to pass."""
    job = facts.job
    if job.waits_for is not None:
        yield _waiting(facts, job.waits_for)
    if job.hold != "none" and job.not_before > facts.now:
        yield _not_yet(facts)
    if facts.queue is not None and facts.queue.paused_at is not None:
        yield _queue_paused(facts.queue, facts.queue.paused_at)
    if job.flow not in facts.live_flows:
        sentence = f"No live worker registers the flow {job.flow!r}; start one that does: holdfast worker."
        yield _Reason(ReasonCode.NO_WORKER, sentence, {})
    if (
        facts.queue is not None
        and facts.queue.max_running is not None
        and facts.queue.running >= facts.queue.max_running
    ):
        yield _queue_full(facts.queue, facts.queue.max_running, facts.queue_holders)
    ending = _ending(job)
    if ending is not None:
        sentence = f"It is to be ended ({ending}) as soon as a worker has run its cleanup."
        yield _Reason(ReasonCode.CANCELLING, sentence, {"ending": ending})


def _waiting(facts: ExplainFacts, waits_for: str) -> _Reason:
    other = facts.predecessor
    is_known = other is not None and other.job_id == waits_for
    described = f"({other.flow}), which is {other.state}" if other is not None and is_known else "(not in the database)"
    details: dict[str, Detail] = {
        "waits_for": waits_for,
        "waits_for_state": other.state if other and is_known else None,
    }
    if facts.job.hold == "child":
        return _Reason(ReasonCode.WAITING_FOR_CHILD, f"It waits for its child, job {waits_for} {described}.", details)
    return _Reason(ReasonCode.WAITING_FOR_JOB, f"It runs after job {waits_for} {described}.", details)


def _not_yet(facts: ExplainFacts) -> _Reason:
    job, latest = facts.job, facts.latest
    if latest is not None and latest.code == EndCode.BACKING_OFF:
        return _backing_off_from_step(facts, latest, job.not_before)
    if latest is not None and (latest.error is not None or latest.code not in {EndCode.WAITING, EndCode.RELEASED}):
        failures = job.failures - job.failures_forgiven
        error = latest.error or latest.code or "no reason recorded"
        sentence = (
            f"It backs off until {iso_utc(job.not_before)} "
            f"({failures} of {job.failure_limit} failures so far): {error}."
        )
        details: dict[str, Detail] = {
            "until": job.not_before,
            "tries": failures,
            "tries_allowed": job.failure_limit,
            "error": latest.error,
        }
        return _Reason(ReasonCode.BACKING_OFF, sentence, details)
    sentence = f"It is not to start before {iso_utc(job.not_before)}."
    return _Reason(ReasonCode.SCHEDULED, sentence, {"until": job.not_before})


def _queue_paused(queue: QueueRecord, since: int) -> _Reason:
    sentence = f"{_name_of(queue)} was paused by {queue.paused_by} at {iso_utc(since)}: {queue.paused_reason}."
    details: dict[str, Detail] = {
        "queue": queue.name,
        "paused_by": queue.paused_by,
        "paused_reason": queue.paused_reason,
        "paused_at": since,
    }
    return _Reason(ReasonCode.QUEUE_PAUSED, sentence, details)


def _queue_full(queue: QueueRecord, limit: int, holders: tuple[ExecutionRecord, ...]) -> _Reason:
    named = [f"job {e.job_id} ({label_of(e.lease_owner)})" for e in holders]
    shown = ", ".join(named[:HOLDERS_NAMED])
    more = f" and {len(named) - HOLDERS_NAMED} more" if len(named) > HOLDERS_NAMED else ""
    held_by = f", held by {shown}{more}" if named else ""
    sentence = f"{_name_of(queue)} is full: {queue.running} of {limit} slots are taken{held_by}."
    details: dict[str, Detail] = {
        "queue": queue.name,
        "running": queue.running,
        "max_running": limit,
        "holders": ", ".join(named) or None,
    }
    return _Reason(ReasonCode.QUEUE_FULL, sentence, details)


# --- said in more than one place --------------------------------------------------------------------------


def _backing_off_from_step(facts: ExplainFacts, execution: ExecutionRecord, until: int) -> _Reason:
    of = f" of {facts.tries_allowed}" if facts.tries_allowed is not None else ""
    error = execution.error or "no error recorded"
    step = f"step {facts.current.step}" if facts.current is not None and facts.current.step else "a step"
    sentence = f"Try {execution.tries}{of} of {step} failed ({error}); the next one is due at {iso_utc(until)}."
    details: dict[str, Detail] = {
        "step": facts.current.step if facts.current is not None else None,
        "until": until,
        "tries": execution.tries,
        "tries_allowed": facts.tries_allowed,
        "error": execution.error,
    }
    return _Reason(ReasonCode.BACKING_OFF, sentence, details)


def _ending(job: JobRecord) -> str | None:
    """How the job is going to end, if that is settled already."""
    if job.ending is None:
        return f"cancelled: {job.cancel_reason}" if job.cancel_reason is not None else None
    try:
        ending = msgspec.json.decode(job.ending, type=Ending)
    except msgspec.MsgspecError:
        return job.ending
    return f"{ending.code}: {ending.error}"


def _name_of(queue: QueueRecord) -> str:
    return f"Queue {queue.name!r}" if queue.name else "The queue without a name"
