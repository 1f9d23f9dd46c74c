"""New jobs: all of a batch or none, with keys, predecessors and parents looked after."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.ending import EndCode
from holdfast.core.evidence import KEY_FOR_EVER, TERMS, Evidence, digest, metadata_of
from holdfast.core.states import JobState
from holdfast.errors import BadInput, CycleError, JobNotFoundError, ParentEndedError
from holdfast.store.messages import Journaled, NewJob, Submitted
from holdfast.store.session import Session, to_json
from holdfast.store.verbs.settling import take_out_waiting

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
