"""Jobs for tests of the pure core: a life told through legal transitions, and strategies that draw such lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from holdfast.core.facts import JobFacts
from holdfast.core.hash_chain import GENESIS, hash_of
from holdfast.core.progress import RunningRow
from holdfast.core.records import ExecutionRecord, JobRecord, JournalEntry
from holdfast.core.states import (
    STATE_OF_DISPOSITION,
    TERMINAL_EXECUTION_STATUSES,
    Disposition,
    ExecutionOutcome,
    ExecutionStatus,
    JobState,
    check_execution_transition,
    check_job_transition,
)
from holdfast.core.step import PATH_AFTER_FAILURE, PATH_GIVEN_BACK, EndCode

JOB_ID = "01HZZZZZZZZZZZZZZZZZZZZZZZ"
START = 1_700_000_000_000
LEASE_MS = 30_000
OWNER = "host-a:4711:99:boot:4026531836:n0"

replace = msgspec.structs.replace


def a_job(state: JobState = JobState.PENDING, **fields: Any) -> JobRecord:
    """A job in that state, otherwise plain."""
    return JobRecord(**{"job_id": JOB_ID, "flow": "demo", "fingerprint": "f0", "state": state} | fields)


def an_execution(status: ExecutionStatus, *, attempt: int = 1, **fields: Any) -> ExecutionRecord:
    """An execution with that status, otherwise plain."""
    plain: dict[str, Any] = {
        "exec_id": f"exec-{attempt}",
        "job_id": JOB_ID,
        "attempt": attempt,
        "queue": "",
        "status": status,
        "lease_owner": OWNER,
        "lease_expires_at": START + LEASE_MS,
        "started_at": START,
        "progressed_at": START,
    }
    if status is ExecutionStatus.ABORTED:
        plain["disposition"] = Disposition.RETRY
    if status in TERMINAL_EXECUTION_STATUSES:
        plain["finished_at"] = START + 1
    return ExecutionRecord(**plain | fields)


def a_row(**fields: Any) -> RunningRow:
    """A running job in the second of three steps, as the database shows it."""
    plain: dict[str, Any] = {
        "job_id": JOB_ID,
        "exec_id": "exec-1",
        "attempt": 1,
        "lease_owner": OWNER,
        "started_at": START,
        "position": 0,
        "tries": 0,
        "retry_at": None,
        "progressed_at": START,
        "progress": None,
        "ending": None,
        "definition": '{"flow":"demo","version":"","steps":["one","two","three"]}',
        "last_position": 0,
        "last_finished_at": START + 5,
        "code_before": None,
        "position_before": None,
        "tries_before": None,
        "failures": 0,
        "crashes": 0,
    }
    return RunningRow(**plain | fields)


class Life:
    """One job from its submission on. Only legal transitions are possible, and each is journaled."""

    def __init__(self) -> None:
        self.now = START
        self.job = a_job(created_at=START, updated_at=START)
        self.executions: list[ExecutionRecord] = []
        self.journal: list[JournalEntry] = []
        self._append(None, JobState.PENDING)

    @property
    def facts(self) -> JobFacts:
        return JobFacts(job=self.job, executions=tuple(self.executions), journal=tuple(self.journal))

    @property
    def views(self) -> list[ExecutionOutcome]:
        return [ExecutionOutcome(e.attempt, e.status, e.disposition) for e in self.executions]

    def lease(self) -> None:
        attempt = len(self.executions) + 1
        self.now += 1
        self.executions.append(
            an_execution(
                ExecutionStatus.LEASED, attempt=attempt, started_at=self.now, lease_expires_at=self.now + LEASE_MS
            )
        )
        self.job = replace(self.job, attempt=attempt)
        self._move_job(JobState.RUNNING, None, ExecutionStatus.LEASED)

    def begin(self) -> None:
        self._move(ExecutionStatus.IN_PROGRESS, JobState.RUNNING)

    def commit(self) -> None:
        self._move(ExecutionStatus.COMMITTED, JobState.RUNNING)

    def finish(self) -> None:
        self._move(ExecutionStatus.DONE, JobState.SUCCEEDED, finished_at=self.now + 1)

    def abort(self, path: tuple[Disposition, ...] = PATH_GIVEN_BACK, code: EndCode = EndCode.CRASHED) -> None:
        first, *rest = path
        end = {"disposition": first, "code": code, "finished_at": self.now + 1}
        self._move(ExecutionStatus.ABORTED, STATE_OF_DISPOSITION[first], **end)
        for disposition in rest:
            self.redispose(disposition)

    def redispose(self, disposition: Disposition) -> None:
        self.now += 1
        self.executions[-1] = replace(self.executions[-1], disposition=disposition)
        self._move_job(STATE_OF_DISPOSITION[disposition], ExecutionStatus.ABORTED, ExecutionStatus.ABORTED)

    def possible(self) -> list[Callable[[], None]]:
        """What can happen next."""
        if not self.executions or self.job.state is JobState.PENDING:
            return [self.lease]
        match self.executions[-1].status:
            case ExecutionStatus.LEASED:
                return [self.begin, *self._aborts()]
            case ExecutionStatus.IN_PROGRESS:
                return [self.commit, *self._aborts()]
            case ExecutionStatus.COMMITTED:
                return [self.finish]
            case ExecutionStatus.DONE:
                return []
        return [lambda: self.redispose(Disposition.RETRY)]

    def _aborts(self) -> list[Callable[[], None]]:
        paths = [PATH_GIVEN_BACK, *PATH_AFTER_FAILURE.values()]
        return [lambda path=path: self.abort(path) for path in paths]  # type: ignore[misc]

    def _move(self, status: ExecutionStatus, job_to: JobState, **fields: Any) -> None:
        self.now += 1
        before = self.executions[-1].status
        check_execution_transition(before, status)
        self.executions[-1] = replace(self.executions[-1], status=status, progressed_at=self.now, **fields)
        self._move_job(job_to, before, status)

    def _move_job(self, to: JobState, exec_from: ExecutionStatus | None, exec_to: ExecutionStatus) -> None:
        before = self.job.state
        check_job_transition(before, to)
        self.job = replace(self.job, state=to, updated_at=self.now)
        self._append(before, to, exec_id=self.executions[-1].exec_id, exec_from=exec_from, exec_to=exec_to)

    def _append(self, job_from: JobState | None, job_to: JobState, **fields: Any) -> None:
        content: dict[str, Any] = {
            "job_id": JOB_ID,
            "seq": len(self.journal) + 1,
            "at": self.now,
            "actor": OWNER,
            "exec_id": None,
            "job_from": job_from,
            "job_to": job_to,
            "exec_from": None,
            "exec_to": None,
            "step": None,
            "reason": "",
            "metadata": "{}",
            "prev_hash": self.journal[-1].hash if self.journal else GENESIS,
            "hash": "",
        }
        entry = JournalEntry(**content | fields)
        self.journal.append(replace(entry, hash=hash_of(entry)))


@st.composite
def lives(draw: st.DrawFn, *, min_events: int = 0, max_events: int = 15) -> Life:
    """Any life a job can legally have had until now."""
    life = Life()
    for choice in draw(st.lists(st.integers(0, 5), min_size=min_events, max_size=max_events)):
        events = life.possible()
        if events:
            events[choice % len(events)]()
    return life


def codes(findings: list[Any]) -> set[str]:
    """The codes of findings."""
    return {finding.code for finding in findings}
