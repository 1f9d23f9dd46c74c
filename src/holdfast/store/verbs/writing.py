"""The writes of running executions: a batch is one transaction, and each write passes the fence on its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, assert_never

from holdfast.core.outcomes import TryFailed
from holdfast.core.states import ExecutionStatus, JobState
from holdfast.errors import BadInput, CycleError, JobNotFoundError, LeaseLost, StoreUnavailable
from holdfast.store.messages import (
    Begin,
    Commit,
    End,
    Finish,
    FinishStep,
    Journaled,
    NewJob,
    PlanEnding,
    RecordTry,
    ReportProgress,
    RewindTo,
    Submitted,
    Write,
)
from holdfast.store.session import Rows, Session, to_json, without_nul
from holdfast.store.verbs.claiming import finish, journal_begin
from holdfast.store.verbs.settling import end_execution
from holdfast.store.verbs.submitting import submit

Result = Exception | None
W = TypeVar("W")

NOT_JOURNALED = (FinishStep, RecordTry, ReportProgress)
"""Writes that change no state."""

_TRANSACTION_CONTROL = re.compile(
    r"(?:[\s;\ufeff]|--[^\n]*\n|/\*.*?\*/)*(begin|commit|end|rollback|savepoint|release|attach|detach|vacuum|pragma)\b",
    re.IGNORECASE | re.DOTALL,
)


class EffectEndedTransaction(Exception):
    """An effect failed in a way that made the database give up the whole transaction, and the batch with it."""

    def __init__(self, write: Commit, error: Exception, cause: BaseException) -> None:
        super().__init__(str(error))
        self.write = write
        self.error = error
        self.cause = cause


class EffectTransaction:
    """What a commit step writes through. A savepoint is set at its first use, so unused ones cost nothing."""

    def __init__(self, session: Session, actor: str) -> None:
        self._session = session
        self._actor = actor
        self._savepoint = False
        self._ended = False
        self._rows: list[Rows] = []
        self._journal_mark = session.journal_mark()

    def execute(self, sql: str, parameters: Any = ()) -> Rows:
        """Run one statement."""
        self._prepare(sql)
        rows = self._session.execute_effect(sql, parameters)
        self._rows.append(rows)
        return rows

    def executemany(self, sql: str, parameters: Any) -> Rows | None:
        """Run one statement for each set of parameters."""
        self._prepare(sql)
        return self._session.execute_effect_many(sql, parameters)

    def submit_job(self, job: NewJob) -> Submitted:
        """Submit a job that exists only if this transaction commits."""
        self._prepare("")
        return self._session.submit_in_effect(lambda: submit(self._session, [job], actor=self._actor)[0])

    def keep(self) -> None:
        """The effect has succeeded."""
        self._end()
        if self._savepoint:
            self._session.keep_effect()

    def undo(self) -> None:
        """The effect has failed: take back what it wrote, and nothing else of the batch."""
        self._end()
        if self._savepoint:
            self._session.undo_effect()
            self._session.drop_journal_after(self._journal_mark)

    def _end(self) -> None:
        # A statement that is still being read keeps a savepoint from being released.
        self._ended = True
        for rows in self._rows:
            rows.close()

    def _prepare(self, sql: str) -> None:
        if self._ended:
            raise BadInput("this transaction has ended", hint="use tx only inside the commit step that it was given to")
        if _TRANSACTION_CONTROL.match(sql):
            raise BadInput(
                f"a commit step may not run {sql.split(maxsplit=1)[0].upper()!r}",
                hint="the engine commits: effect and job together",
            )
        if not self._savepoint:
            self._session.begin_effect()
            self._savepoint = True


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
    rows = [(w.job_id, w.exec_id, w.position, w.step, w.tries, w.started_at, w.response) for _, w in steps]
    written = {row[0] for row in session.fetch_rows("finish_steps", rows, worker=worker_id, now=session.now)}
    for index, one in steps:
        # A step that this very execution has written before is no lost lease: only the answer was lost.
        there = one.exec_id in written or session.first(
            "evidence_step", job_id=one.job_id, position=one.position, exec_id=one.exec_id
        )
        answers[index] = None if there else LeaseLost(one.exec_id)


def _commit(
    session: Session,
    commits: Sequence[tuple[int, Commit]],
    answers: dict[int, Result],
    worker_id: str,
) -> None:
    ids = to_json([w.exec_id for _, w in commits])
    has_effects = any(one.effect is not None for _, one in commits)
    accepted: list[Commit] = []
    rows = []
    with session.running_effects() if has_effects else nullcontext():
        live = {row[0] for row in session.run("live", batch=ids, worker=worker_id, now=session.now).fetchall()}
        for index, one in commits:
            answers[index] = LeaseLost(one.exec_id)
            if one.exec_id not in live:
                continue
            live.discard(one.exec_id)  # the same commit twice in one batch is one commit
            answers[index], response = _apply_effect(session, one, worker_id)
            if answers[index] is None:
                accepted.append(one)
                rows.append((one.job_id, one.exec_id, one.position, one.step, one.tries, one.started_at, response))
    if not accepted:
        return
    session.run_rows("finish_steps", rows, worker=worker_id, now=session.now)
    marks = [(one.exec_id, one.code.value) for one in accepted]
    marked = session.fetch_rows("mark_committed", marks, worker=worker_id, now=session.now)
    if len(marked) != len(accepted):
        # The effects are applied and cannot be taken back one by one any more: nothing of this batch may stand.
        raise StoreUnavailable("an execution left its lease between its effect and its commit mark")
    for one in accepted:
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
            )
        )


def _apply_effect(session: Session, one: Commit, worker_id: str) -> tuple[Result, str | None]:
    if one.effect is None:
        return None, one.response
    transaction = EffectTransaction(session, worker_id)
    try:
        response = one.effect(transaction)
        transaction.keep()
    except Exception as error:
        # The engine hands a step's own error on inside its outcome.
        cause = error.error if isinstance(error, TryFailed) else error
        if not session.is_open() or session.is_lost_connection(cause):
            raise EffectEndedTransaction(one, error, cause) from error
        transaction.undo()
        return error, None
    return None, response


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
                    error=without_nul(one.error),
                    retry_at=one.retry_at,
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
    session.journal(journal_begin(one.job_id, one.exec_id, worker_id, reason))
    return True


def _write_touched(session: Session, one: RewindTo | PlanEnding | End, status: ExecutionStatus, worker_id: str) -> None:
    match one:
        case End():
            end_execution(session, one, status=status, actor=worker_id)
        case PlanEnding():
            session.run("plan_ending", job_id=one.job_id, ending=to_json(one.ending))
            _journal_running(session, one, status, worker_id, one.step, f"ending: {one.ending.error}")
        case RewindTo():
            session.run("forget_steps", job_id=one.job_id, position=one.position)
            _journal_running(session, one, status, worker_id, one.step, f"rewind: {one.reason}")


def _journal_running(
    session: Session, one: RewindTo | PlanEnding, status: ExecutionStatus, actor: str, step: str | None, reason: str
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
        )
    )
