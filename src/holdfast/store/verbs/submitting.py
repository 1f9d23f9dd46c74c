"""New jobs: all of a batch or none, with keys, predecessors and parents looked after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.ending import EndCode
from holdfast.core.states import JobState
from holdfast.errors import BadInput, CycleError, JobNotFoundError
from holdfast.store.messages import Journaled, NewJob, Submitted
from holdfast.store.session import Session, to_json
from holdfast.store.verbs.settling import take_out_waiting

ENDED_WITHOUT_SUCCESS = (JobState.FAILED, JobState.QUARANTINED)


def submit(session: Session, jobs: Sequence[NewJob], *, actor: str) -> list[Submitted]:
    """Insert what is new, in the transaction that is open; returns the job that stands for each."""
    answers: list[Submitted] = []
    fresh: list[NewJob] = []
    rows: list[tuple[object, ...]] = []
    doomed: list[tuple[str, str]] = []
    keys: dict[tuple[str, str], str] = {}
    stands_for: dict[str, str] = {}
    for job in jobs:
        existing = _existing(session, job, keys)
        stands_for[job.job_id] = existing or job.job_id
        answers.append(Submitted(existing or job.job_id, created=existing is None))
        if existing is None and job.key is not None:
            keys[job.flow, job.key] = job.job_id
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
        rows.append(
            (job.job_id, job.flow, job.fingerprint, job.key, job.queue, job.priority, hold, job.not_before,
             run_after, waits_for, job.parent, job.failure_limit, job.crash_limit, job.stall_ms)
        )  # fmt: skip
    if fresh:
        _insert(session, fresh, rows, actor=actor)
    for job, answer in zip(jobs, answers, strict=True):
        _link_child(session, job, answer.job_id)
    for job_id, predecessor in doomed:
        reason = f"predecessor {predecessor} had ended without success"
        take_out_waiting(session, job_id, code=EndCode.PREDECESSOR, actor=actor, reason=reason)
    return answers


def _existing(session: Session, job: NewJob, keys: Mapping[tuple[str, str], str]) -> str | None:
    if job.parent is not None and job.child_name is not None:
        child: str | None = session.first("find_child", parent=job.parent, name=job.child_name, round=job.child_round)
        if child is not None:
            return child
    if job.key is None:
        return None
    found: str | None = session.first("find_unfinished_key", flow=job.flow, key=job.key)
    return found or keys.get((job.flow, job.key))


def _predecessor_state(session: Session, job: NewJob, run_after: str) -> JobState:
    # Or it could end unseen between this look and the waiting.
    session.lock_jobs([run_after])
    state = session.first("job_state", job_id=run_after)
    if state is None:
        raise JobNotFoundError(run_after)
    if job.parent is not None and run_after in {row[0] for row in session.run("ancestors", job_id=job.parent)}:
        raise CycleError(
            f"job {job.job_id} would run after {run_after}, its own parent, which may be waiting for it",
            hint="let it run after a sibling instead",
        )
    return JobState(state)


def _insert(session: Session, fresh: Sequence[NewJob], rows: Sequence[tuple[object, ...]], *, actor: str) -> None:
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
    for job in fresh:
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
            )
        )


def _link_child(session: Session, job: NewJob, job_id: str) -> None:
    if job.parent is None or job.child_name is None:
        return
    link = {"parent": job.parent, "name": job.child_name, "round": job.child_round}
    if session.first("find_child", **link) is None:
        session.run("insert_child", **link, job_id=job_id)
