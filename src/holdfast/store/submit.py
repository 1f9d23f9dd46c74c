"""From a flow and a request to a job that can be submitted: everything is checked here, before anything is written."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.flow import Flow
from holdfast.core.hash_chain import KEY_FOR_EVER, TERMS, Evidence, digest, metadata_of
from holdfast.core.records import storable
from holdfast.core.retry import milliseconds_since_epoch
from holdfast.core.states import JobState
from holdfast.core.step import CLEANUP_POSITION, EndCode
from holdfast.core.values import WRITING_ERRORS, checked_job_id, checked_key, checked_name
from holdfast.errors import (
    BadInput,
    CycleError,
    DefinitionError,
    JobNotFoundError,
    ParentEndedError,
    RequestInvalidError,
    RequestTooLargeError,
)
from holdfast.store.commands import Journaled, NewJob, Submitted
from holdfast.store.session import Session, to_json
from holdfast.store.settle import take_out_waiting

REQUEST_LIMIT = 1 << 20
QUEUE_LIMIT = 1_000_000
"""More jobs than this no fleet runs at once; no limit at all is said by none."""
COUNT_LIMIT = 1_000_000
LONGEST_STALL = 10 * 365 * 86400.0
STALL_GRACE = 60.0
"""What a step gets beyond its timeout: that is to end it, and not the stall detector."""
PRIORITY_LIMIT = 1_000_000


def prepare_job(
    flow: Flow[Any, Any],
    request: Any,
    *,
    job_id: str,
    key: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    not_before: int = 0,
    run_after: str | None = None,
    parent: str | None = None,
    child_name: str | None = None,
    child_round: int = 0,
    request_limit: int = REQUEST_LIMIT,
) -> NewJob:
    """A valid NewJob, or BadInput with what is wrong."""
    flow.check_complete()
    if child_name is not None and (not isinstance(child_name, str) or child_name != storable(child_name)):
        raise BadInput(f"child name {child_name!r} is not a text that can be stored")
    if parent is not None:
        checked_job_id(parent)
    if run_after is not None and checked_job_id(run_after) == job_id:
        raise CycleError(f"job {job_id} would run after itself")
    key = checked_key(key)
    definition = flow.definition
    return NewJob(
        job_id=checked_job_id(job_id),
        flow=flow.name,
        fingerprint=flow.fingerprint,
        definition=msgspec.json.encode(definition).decode(),
        request=encode_request(flow, request, request_limit),
        queue=flow.queue if queue is None else checked_name(queue, "queue"),
        key=key,
        key_lasts_ms=0 if key is None else flow.key_lasts_ms,
        priority=checked_priority(priority),
        not_before=milliseconds_since_epoch(not_before),
        run_after=run_after,
        parent=parent,
        child_name=child_name,
        child_round=child_round,
        failure_limit=_checked_count(flow.job_retry.retries, 0, f"flow {flow.name}: job_retry") + 1,
        crash_limit=_checked_count(flow.crash_limit, 1, f"flow {flow.name}: crash_limit"),
        stall_ms=_stall_ms(flow),
        stall_limits=_stall_limits(flow),
    )


def checked_priority(priority: int) -> int:
    """The priority, or BadInput."""
    if not _is_whole(priority) or abs(priority) > PRIORITY_LIMIT:
        raise BadInput(f"priority {priority!r} is not a whole number within ±{PRIORITY_LIMIT}")
    return priority


def checked_queue(name: str) -> str:
    """`name`, if it may name a queue; the queue without a name is the empty one."""
    return name if name == "" else checked_name(name, "queue")


def checked_limit(queue: str, limit: int | None) -> int | None:
    """`limit`, if so many jobs of a queue may run at once; None is no limit."""
    if limit is not None and (not _is_whole(limit) or not 0 <= limit <= QUEUE_LIMIT):
        raise BadInput(
            f"the limit of queue {queue!r} cannot be {limit!r}",
            hint=f"a whole number from 0 to {QUEUE_LIMIT:,}, or none at all",
        )
    return limit


def _is_whole(number: object) -> bool:
    # True and False are integers to Python, and nobody means them.
    return isinstance(number, int) and not isinstance(number, bool)


def _checked_count(count: int, least: int, what: str) -> int:
    if not _is_whole(count) or not least <= count <= COUNT_LIMIT:
        raise DefinitionError(f"{what} of {count!r} is not a whole number from {least} to {COUNT_LIMIT:,}")
    return count


def _stall_ms(flow: Flow[Any, Any]) -> int:
    if not isinstance(flow.stall_after, int | float) or not flow.stall_after > 0:
        raise DefinitionError(f"flow {flow.name}: stall_after must be a number of seconds", hint="above 0")
    return round(min(flow.stall_after, LONGEST_STALL) * 1000)


def _stall_limits(flow: Flow[Any, Any]) -> str | None:
    """A step that may take longer than the stall limit is given its whole timeout before it is called stalled."""
    timeouts = {position: step.timeout for position, step in enumerate(flow.steps)}
    timeouts[CLEANUP_POSITION] = flow.cleanup_timeout
    limits = {
        str(position): round(min(timeout + STALL_GRACE, LONGEST_STALL) * 1000)
        for position, timeout in timeouts.items()
        if timeout is not None and timeout + STALL_GRACE > flow.stall_after
    }
    return msgspec.json.encode(limits).decode() if limits else None


def encode_request(flow: Flow[Any, Any], request: Any, limit: int) -> str:
    """The request as JSON that is sure to decode again."""
    try:
        encoded, _ = flow.request_codec.checked(request)
    except WRITING_ERRORS as error:
        raise invalid_request(flow, error) from None
    if len(encoded) > limit:
        raise RequestTooLargeError(
            f"flow {flow.name}: the request has {len(encoded):,} bytes, the limit is {limit:,}",
            hint="put large data in a file or a bucket and send its address",
        )
    return encoded.decode()


def refuse_cycles(jobs: Sequence[NewJob]) -> None:
    """Raise CycleError if jobs of one batch would wait for each other for ever."""
    after = {job.job_id: job.run_after for job in jobs if job.run_after is not None}
    harmless: set[str] = set()
    for start in after:
        chain: dict[str, None] = {}
        following: str | None = start
        while following is not None and following not in harmless:
            if following in chain:
                raise CycleError(f"jobs {', '.join(chain)} would run after each other", hint="break the cycle")
            chain[following] = None
            following = after.get(following)
        harmless.update(chain)


def invalid_request(flow: Flow[Any, Any], error: Exception, *, hint: str | None = None) -> RequestInvalidError:
    """The error for a request that is none of the flow's."""
    kind, problem = flow.request_codec.name, " ".join(str(error).split())
    return RequestInvalidError(f"flow {flow.name}: the request is not a valid {kind}: {problem}", hint=hint)


# --- New jobs: all of a batch or none, with keys, predecessors and parents looked after -----------------

log = logging.getLogger("holdfast.store")

ENDED_WITHOUT_SUCCESS = (JobState.FAILED, JobState.QUARANTINED)


def submit(session: Session, jobs: Sequence[NewJob], *, actor: str) -> list[Submitted]:
    """Insert what is new, in the transaction that is open; returns the job that stands for each."""
    answers: list[Submitted] = []
    fresh: list[NewJob] = []
    predecessors: dict[str, str | None] = {}
    rows: list[tuple[object, ...]] = []
    doomed: list[tuple[str, str]] = []
    keys: dict[tuple[str, str], NewJob] = {}
    children: dict[tuple[str, str, int], str] = {}
    stands_for: dict[str, str] = {}
    for job in jobs:
        answer = _existing(session, job, keys) or Submitted(job.job_id, created=True)
        if job.parent is not None and job.child_name is not None:
            first = children.setdefault((job.parent, job.child_name, job.child_round), answer.job_id)
            answer = answer if first == answer.job_id else Submitted(first, created=False)
        stands_for[job.job_id] = answer.job_id
        answers.append(answer)
        if answer.created and job.key is not None:
            keys[job.flow, job.key] = job
    for job, answer in zip(jobs, answers, strict=True):
        if not answer.created:
            continue
        hold, waits_for, run_after = "none", None, job.run_after
        if run_after is not None:
            # A predecessor of the same batch may turn out to be a job that was there under its key.
            run_after = stands_for.get(run_after, run_after)
            is_new = run_after in stands_for and stands_for[run_after] == run_after
            state = JobState.PENDING if is_new else _predecessor_state(session, job, run_after)
            if state is not JobState.SUCCEEDED:
                hold, waits_for = "after", run_after
            if state in ENDED_WITHOUT_SUCCESS:
                doomed.append((job.job_id, run_after))
        if hold == "none" and job.not_before > session.now:
            hold = "until"
        fresh.append(job)
        predecessors[job.job_id] = run_after
        rows.append(
            (job.job_id, job.flow, job.fingerprint, job.key, job.queue, job.priority, hold, job.not_before,
             run_after, waits_for, job.parent, job.failure_limit, job.crash_limit, job.stall_ms,
             job.stall_limits)
        )  # fmt: skip
    if fresh:
        _insert(session, fresh, rows)
        for job in fresh:
            _journal_submitted(session, job, predecessors[job.job_id], actor=actor)
    for job, answer in zip(jobs, answers, strict=True):
        _link_child(session, job, answer, actor=actor)
    for job_id, predecessor in doomed:
        reason = f"predecessor {predecessor} had ended without success"
        take_out_waiting(session, job_id, code=EndCode.PREDECESSOR, actor=actor, reason=reason)
    return answers


def _existing(session: Session, job: NewJob, keys: Mapping[tuple[str, str], NewJob]) -> Submitted | None:
    if job.parent is not None and job.child_name is not None:
        child: str | None = session.first("find_child", parent=job.parent, name=job.child_name, round=job.child_round)
        if child is not None:
            return Submitted(child, created=False)
    if job.parent is not None:
        _refuse_ended_parent(session, job.parent, is_named=job.child_name is not None)
    if job.key is None:
        return None
    if (first := keys.get((job.flow, job.key))) is not None:
        return _answer_of_key(job, first.job_id, request_digest(first.request))
    since = None if job.key_lasts_ms == 0 else -1 if job.key_lasts_ms is None else session.now - job.key_lasts_ms
    rows = session.run("find_key", flow=job.flow, key=job.key, now=session.now, since=since).fetchall()
    if not rows:
        return None
    [(found, request, digest)] = rows
    return _answer_of_key(job, found, digest if request is None else request_digest(request))


def _answer_of_key(job: NewJob, found: str, digest: str | None) -> Submitted:
    same_request = digest is None or digest == request_digest(job.request)
    if not same_request and job.key_lasts_ms != 0:
        # Somebody meant two things by one key, and would take the answer to the first for that to the second.
        log.warning(
            "key %r of flow %s stands for job %s, which has another request: the new one is not run",
            job.key, job.flow, found,
        )  # fmt: skip
    return Submitted(found, created=False, same_request=same_request)


def request_digest(request: str) -> str:
    """What is left of a request in the record of its key; the order of names in an object makes no difference."""
    canonical = msgspec.json.encode(msgspec.json.decode(request), order="deterministic")
    return hashlib.sha256(canonical).hexdigest()[:32]


def _refuse_ended_parent(session: Session, parent: str, *, is_named: bool) -> None:
    """No child escapes the end of its parent: a step that has not heard of it is told here.

    Only a run gives names to children, and a run of a job that has succeeded has lost its lease.
    """
    found = session.run("parent_state", parent=parent).fetchone()
    if found is None:
        return
    state, cancel_reason = found
    is_over = state in ENDED_WITHOUT_SUCCESS or (is_named and state == JobState.SUCCEEDED)
    if is_over or cancel_reason is not None:
        raise ParentEndedError(parent, state, cancel_reason)


def _predecessor_state(session: Session, job: NewJob, run_after: str) -> JobState:
    # Or it could end unseen between this look and the waiting.
    session.lock_jobs([run_after])
    state = session.first("job_state", job_id=run_after) or session.first("pruned_job", job_id=run_after)
    if state is None:
        raise JobNotFoundError(run_after)
    if job.parent is not None and run_after in {row[0] for row in session.run("ancestors", job_id=job.parent)}:
        raise CycleError(
            f"job {job.job_id} would run after {run_after}, its own parent, which may be waiting for it",
            hint="let it run after a sibling instead",
        )
    return JobState(state)


def _insert(session: Session, fresh: Sequence[NewJob], rows: Sequence[tuple[object, ...]]) -> None:
    # In order, so that two who add the same new names never wait for each other.
    for fingerprint, flow, definition in sorted({(j.fingerprint, j.flow, j.definition) for j in fresh}):
        session.run("insert_definitions", fingerprint=fingerprint, flow=flow, definition=definition, now=session.now)
    for name in sorted({job.queue for job in fresh}):
        session.run("insert_queue", name=name)
    taken = session.first("taken_job_id", batch=to_json([job.job_id for job in fresh]))
    if taken is not None or len({job.job_id for job in fresh}) < len(fresh):
        raise BadInput(f"a job with the id {taken} exists already" if taken else "two jobs have the same id")
    session.run_rows("insert_jobs", rows, now=session.now)
    session.run_rows("insert_requests", [(job.job_id, job.request) for job in fresh])
    _take_keys(session, [job for job in fresh if job.key is not None and job.key_lasts_ms != 0])


def _journal_submitted(session: Session, job: NewJob, run_after: str | None, *, actor: str) -> None:
    """The first entry says what the job was submitted with: what is found to be different later was edited."""
    terms = {name: getattr(job, name) for name in TERMS} | {"run_after": run_after}
    evidence = Evidence(
        request=digest(job.request),
        definition=job.fingerprint,
        child=job.child_name,
        round=job.child_round,
        not_before=job.not_before,
        key_until=_key_until(session, job),
        **terms,
    )
    session.journal(
        Journaled(
            job_id=job.job_id,
            actor=actor,
            exec_id=None,
            job_from=None,
            job_to=JobState.PENDING,
            exec_from=None,
            exec_to=None,
            reason="submitted",
            metadata=metadata_of(evidence),
            flow=job.flow,
        )
    )


def _key_until(session: Session, job: NewJob) -> int:
    if job.key is None or job.key_lasts_ms == 0:
        return 0
    return _expiry(session.now, job.key_lasts_ms) or KEY_FOR_EVER


def _take_keys(session: Session, lasting: Sequence[NewJob]) -> None:
    if not lasting:
        return
    # In order, as above.
    rows = [
        (job.flow, job.key or "", job.job_id, request_digest(job.request), _expiry(session.now, job.key_lasts_ms))
        for job in sorted(lasting, key=lambda job: (job.flow, job.key or ""))
    ]
    session.run("free_expired_keys", batch=to_json([row[:2] for row in rows]), now=session.now)
    session.run_rows("insert_keys", rows, now=session.now)


def _expiry(now: int, lasts_ms: int | None) -> int | None:
    return None if lasts_ms is None else now + lasts_ms


def _link_child(session: Session, job: NewJob, answer: Submitted, *, actor: str) -> None:
    if job.parent is None or job.child_name is None:
        return
    link = {"parent": job.parent, "name": job.child_name, "round": job.child_round}
    if session.first("find_child", **link) is not None:
        return
    session.run("insert_child", **link, job_id=answer.job_id)
    if answer.created:
        return
    # It was there before, under its key, and its own journal does not know of this parent.
    session.lock_jobs([job.parent])
    state = JobState(session.first("job_state", job_id=job.parent))
    session.journal(
        Journaled(
            job_id=job.parent,
            actor=actor,
            exec_id=None,
            job_from=state,
            job_to=state,
            exec_from=None,
            exec_to=None,
            reason=f"job {answer.job_id} is its child {job.child_name}",
            metadata=metadata_of(Evidence(child=job.child_name, round=job.child_round, adopted=answer.job_id)),
        )
    )
