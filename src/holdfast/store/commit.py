"""Is a write durably there? Asked when its answer was lost, before it is tried again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, assert_never

import msgspec

from holdfast.core.hash_chain import NOTHING, Evidence, digest, joined_evidence, metadata_of, seal_of
from holdfast.core.records import encoded_record, storable
from holdfast.core.states import ExecutionStatus, JobState
from holdfast.errors import CycleError, JobNotFoundError, LeaseLost, StepCancelled, StoreUnavailable
from holdfast.store.commands import (
    Begin,
    Commit,
    End,
    Finish,
    FinishStep,
    Journaled,
    PlanEnding,
    RecordTry,
    ReportProgress,
    RewindTo,
    Write,
)
from holdfast.store.commit_step import EffectTransaction
from holdfast.store.lease import finish, journal_begin
from holdfast.store.session import Session, to_json
from holdfast.store.settle import end_execution, forget_steps


def is_durable(session: Session, one: Write) -> bool:
    """True if the database shows that this write was applied."""
    row = session.run("evidence", exec_id=one.exec_id).fetchone()
    if row is None:
        return False
    status, tries, position, ending = row
    match one:
        case FinishStep():
            return bool(session.first("evidence_step", job_id=one.job_id, position=one.position, exec_id=one.exec_id))
        case Commit():
            return status in ("committed", "done")
        case Finish():
            return bool(status == "done")
        case End():
            return bool(status == "aborted")
        case Begin():
            return status in ("in_progress", "committed", "done")
        case PlanEnding():
            return ending is not None
        case RecordTry():
            return bool(position == one.position and tries >= one.tries)
        case RewindTo():
            # One to the very step that asks for it leaves no trace among the steps.
            if session.first("evidence_unwound", job_id=one.job_id, position=one.position):
                return False
            said = {"step": one.step, "reason": storable(f"rewind: {one.reason}")}
            return bool(session.first("evidence_rewound", job_id=one.job_id, exec_id=one.exec_id, **said))
        case ReportProgress():
            return True  # losing one report loses nothing
    assert_never(one)


# --- The writes of running executions: a batch is one transaction, and each write passes the fence on its own ---

Result = Exception | None
W = TypeVar("W")

NOT_JOURNALED = (FinishStep, RecordTry, ReportProgress)
"""Writes that change no state."""


def jobs_of(batch: Sequence[Write]) -> Iterator[str]:
    """The jobs a batch is about, those that one of them is going to wait for included."""
    for one in batch:
        yield one.job_id
        if isinstance(one, End) and one.wait_for is not None:
            yield one.wait_for


def write(session: Session, batch: Sequence[Write], *, worker_id: str) -> list[Result]:
    """Apply each write of the batch that passes the fence; one answer per write."""
    answers: dict[int, Result] = {}
    steps = _of_kind(batch, FinishStep)
    commits = _of_kind(batch, Commit)
    finishes = _of_kind(batch, Finish)
    if steps:
        _finish_steps(session, steps, answers, worker_id)
    if commits:
        _commit(session, commits, answers, worker_id)
    if finishes:
        finished = finish(session, [one.exec_id for _, one in finishes], actor=worker_id)
        answers.update((i, None if one.exec_id in finished else LeaseLost(one.exec_id)) for i, one in finishes)
    for index, one in enumerate(batch):
        if index not in answers:
            try:
                answers[index] = None if _write_one(session, one, worker_id) else LeaseLost(one.exec_id)
            except (CycleError, JobNotFoundError) as error:
                answers[index] = error
    return [answers[index] for index in range(len(batch))]


def _of_kind(batch: Sequence[Write], kind: type[W]) -> list[tuple[int, W]]:
    return [(index, one) for index, one in enumerate(batch) if type(one) is kind]


def _finish_steps(
    session: Session, steps: Sequence[tuple[int, FinishStep]], answers: dict[int, Result], worker_id: str
) -> None:
    rows = [_step_row(w, w.response, session.now) for _, w in steps]
    written = {row[0] for row in session.fetch_rows("finish_steps", rows, worker=worker_id, now=session.now)}
    for index, one in steps:
        # A step that this very execution has written before is no lost lease: only the answer was lost.
        there = one.exec_id in written or session.first(
            "evidence_step", job_id=one.job_id, position=one.position, exec_id=one.exec_id
        )
        answers[index] = None if there else LeaseLost(one.exec_id)


def _step_row(one: FinishStep | Commit, response: str, now: int) -> tuple[Any, ...]:
    """A finished step under its seal."""
    seal = seal_of(one.job_id, one.position, one.step, one.exec_id, one.tries, one.started_at, now, digest(response))
    return one.job_id, one.exec_id, one.position, one.step, one.tries, one.started_at, response, seal


def _commit(
    session: Session,
    commits: Sequence[tuple[int, Commit]],
    answers: dict[int, Result],
    worker_id: str,
) -> None:
    ids = to_json([w.exec_id for _, w in commits])
    has_effects = any(one.effect is not None for _, one in commits)
    accepted: list[tuple[Commit, str]] = []
    rows = []
    with session.running_effects() if has_effects else nullcontext():
        found = session.run("live", batch=ids, worker=worker_id, now=session.now).fetchall()
        live = {exec_id: (seals, cancelled) for exec_id, seals, cancelled in found}
        for index, one in commits:
            answers[index] = LeaseLost(one.exec_id)
            if one.exec_id not in live:
                continue
            seals, cancelled = live.pop(one.exec_id)  # the same commit twice in one batch is one commit
            if cancelled is not None:
                # Whoever cancelled was told so: after that the job does not commit any more.
                answers[index] = StepCancelled(cancelled)
                continue
            answers[index], response = _apply_effect(session, one, worker_id)
            if answers[index] is None and response is not None:
                row = _step_row(one, response, session.now)
                accepted.append((one, joined_evidence(row[-1] if seals is None else f"{seals},{row[-1]}")))
                rows.append(row)
    if not accepted:
        return
    session.run_rows("finish_steps", rows, worker=worker_id, now=session.now)
    marks = [(one.exec_id, one.code.value) for one, _ in accepted]
    marked = session.fetch_rows("mark_committed", marks, worker=worker_id, now=session.now)
    if len(marked) != len(accepted):
        # The effects are applied and cannot be taken back one by one any more: nothing of this batch may stand.
        raise StoreUnavailable("an execution left its lease between its effect and its commit mark")
    for one, steps in accepted:
        session.journal(
            Journaled(
                job_id=one.job_id,
                actor=worker_id,
                exec_id=one.exec_id,
                job_from=JobState.RUNNING,
                job_to=JobState.RUNNING,
                exec_from=ExecutionStatus.IN_PROGRESS,
                exec_to=ExecutionStatus.COMMITTED,
                step=one.step,
                reason=one.code,
                metadata=metadata_of(Evidence(steps=steps)),
            )
        )


def _apply_effect(session: Session, one: Commit, worker_id: str) -> tuple[Result, str | None]:
    if one.effect is None:
        return None, one.response
    transaction = EffectTransaction(session, one, worker_id)
    try:
        response = one.effect(transaction)
    except Exception as error:
        return transaction.conclude(error), None
    # What it wrote may have to be taken back all the same: then there is no response either.
    answer = transaction.conclude(None)
    return answer, response if answer is None else None


def _write_one(session: Session, one: Write, worker_id: str) -> bool:
    """Apply one of the rarer writes; False if it did not pass the fence."""
    fence = {"exec_id": one.exec_id, "worker": worker_id, "now": session.now}
    match one:
        case RecordTry():
            return bool(
                session.first(
                    "record_try",
                    **fence,
                    position=one.position,
                    tries=one.tries,
                    error=one.error,
                    retry_at=one.retry_at,
                    traceback=one.traceback,
                    failure=encoded_record(one.failure),
                )
            )
        case ReportProgress():
            return bool(session.first("report_progress", **fence, position=one.position, progress=one.progress))
        case Begin():
            return _begin(session, one, worker_id, fence)
        case RewindTo() | PlanEnding() | End():
            status = session.first("touch", **fence)
            if status is None:
                return False
            _write_touched(session, one, ExecutionStatus(status), worker_id)
            return True
        case FinishStep() | Commit() | Finish():
            raise AssertionError("written in bulk")
    assert_never(one)


def _begin(session: Session, one: Begin, worker_id: str, fence: dict[str, Any]) -> bool:
    if session.first("begin", **fence) is None:
        return False
    flow = session.first("job_flow", job_id=one.job_id)
    session.run(
        "insert_definitions", fingerprint=one.fingerprint, flow=flow, definition=one.definition, now=session.now
    )
    session.run("pin_definition", job_id=one.job_id, fingerprint=one.fingerprint)
    reason = f"started under definition {one.fingerprint}"
    begun = journal_begin(one.job_id, one.exec_id, worker_id, reason)
    session.journal(msgspec.structs.replace(begun, metadata=metadata_of(Evidence(definition=one.fingerprint))))
    return True


def _write_touched(session: Session, one: RewindTo | PlanEnding | End, status: ExecutionStatus, worker_id: str) -> None:
    match one:
        case End():
            end_execution(session, one, status=status, actor=worker_id)
        case PlanEnding():
            session.run("plan_ending", job_id=one.job_id, ending=to_json(one.ending))
            failure = encoded_record(one.ending.failure)
            session.run("keep_failure", exec_id=one.exec_id, traceback=one.traceback, failure=failure)
            evidence = Evidence(code=one.ending.code, planned=one.ending.disposition, failure=one.ending.failure)
            _journal_running(session, one, status, worker_id, one.step, f"ending: {one.ending.error}", evidence)
        case RewindTo():
            evidence = Evidence(steps=forget_steps(session, one.job_id, one.position))
            _journal_running(session, one, status, worker_id, one.step, f"rewind: {one.reason}", evidence)


def _journal_running(
    session: Session,
    one: RewindTo | PlanEnding,
    status: ExecutionStatus,
    actor: str,
    step: str | None,
    reason: str,
    evidence: Evidence = NOTHING,
) -> None:
    session.journal(
        Journaled(
            job_id=one.job_id,
            actor=actor,
            exec_id=one.exec_id,
            job_from=JobState.RUNNING,
            job_to=JobState.RUNNING,
            exec_from=status,
            exec_to=status,
            step=step,
            reason=reason,
            metadata=metadata_of(evidence),
        )
    )
