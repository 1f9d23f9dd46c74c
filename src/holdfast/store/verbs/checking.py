"""Faults that only the rows themselves can show: impossible values, orphans, jobs that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.core.invariants import Finding, JobFacts, Severity
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.store.rows import executions_of, job_of, journal_of
from holdfast.store.session import Session

PAGE = 500


def impossible_values(session: Session) -> Iterator[Finding]:
    """Ids used twice, states that do not exist, counts below zero, states that are not the projection."""
    states, statuses, dispositions = (
        ", ".join(f"'{member.value}'" for member in kind) for kind in (JobState, ExecutionStatus, Disposition)
    )
    run = session.connection.execute
    for job_id, count in run("SELECT job_id, count(*) FROM jobs GROUP BY job_id HAVING count(*) > 1"):
        yield fault("duplicate-id", f"job {job_id}", f"there are {count} jobs with this id")
    for exec_id, count in run("SELECT exec_id, count(*) FROM executions GROUP BY exec_id HAVING count(*) > 1"):
        yield fault("duplicate-id", f"execution {exec_id}", f"there are {count} executions with this id")
    for job_id, state in run(f"SELECT job_id, state FROM jobs WHERE state NOT IN ({states})"):
        yield fault("invalid-status", f"job {job_id}", f"state {state!r} does not exist")
    for exec_id, status, disposition in run(
        f"SELECT exec_id, status, disposition FROM executions "
        f"WHERE status NOT IN ({statuses}) OR disposition NOT IN ({dispositions})"
    ):
        yield fault("invalid-status", f"execution {exec_id}", f"{status!r} with {disposition!r} does not exist")
    for job_id, attempt in run("SELECT job_id, attempt FROM jobs WHERE attempt < 0 OR failures < 0 OR crashes < 0"):
        yield fault("negative-count", f"job {job_id}", f"attempt {attempt}, failures or crashes are negative")
    for job_id, stored, projected in run(
        "SELECT j.job_id, j.state, p.state FROM jobs AS j JOIN job_projection AS p ON p.job_id = j.job_id "
        f"WHERE j.state <> p.state AND j.state IN ({states})"
    ):
        yield fault("projection-mismatch", f"job {job_id}", f"stored as {stored}, but its executions say {projected}")


def orphans(session: Session) -> Iterator[Finding]:
    """Rows whose job is not there, and jobs that have lost what belongs to them."""
    run = session.connection.execute
    for table in ("requests", "executions", "steps", "journal"):
        rows = run(
            f"SELECT DISTINCT job_id FROM {table} WHERE job_id NOT IN (SELECT job_id FROM jobs) "
            "AND job_id NOT IN (SELECT job_id FROM pruned)"
        )
        for (job_id,) in rows:
            yield fault("orphan-rows", f"{table} of job {job_id}", "belong to a job that does not exist")
    for job_id, other in run(
        "SELECT job_id, waits_for FROM jobs WHERE waits_for IS NOT NULL AND waits_for NOT IN (SELECT job_id FROM jobs)"
    ):
        yield fault("orphan-rows", f"job {job_id}", f"waits for job {other}, which does not exist")
    for (job_id,) in run("SELECT job_id FROM jobs WHERE job_id NOT IN (SELECT job_id FROM requests)"):
        yield fault("orphan-rows", f"job {job_id}", "has lost its request")


def facts(session: Session, *, unsettled_only: bool) -> Iterator[JobFacts | Finding]:
    """Job by job what the invariants need; the journal too, unless only running jobs are looked at."""
    statement = "fact_running" if unsettled_only else "fact_jobs"
    after = ""
    while True:
        rows = session.run(statement, after=after, limit=PAGE).fetchall()
        for row in rows:
            try:
                yield _facts_of(session, row, with_journal=not unsettled_only)
            except msgspec.ValidationError as error:
                yield fault("unreadable-row", f"job {row[0]}", f"has a value that cannot be: {error}")
        if len(rows) < PAGE:
            return
        after = rows[-1][0]


def fault(code: str, subject: str, message: str) -> Finding:
    """A finding that is an error."""
    return Finding(code=code, severity=Severity.ERROR, subject=subject, message=message)


def _facts_of(session: Session, row: tuple[object, ...], *, with_journal: bool) -> JobFacts:
    job = job_of(row)
    journal = None
    if with_journal:
        cursor = session.run("journal_of", job_id=job.job_id)
        journal = tuple(journal_of(cursor, entry) for entry in cursor)
    executions = executions_of(session.run("executions", job_id=job.job_id))
    return JobFacts(job=job, executions=tuple(executions), journal=journal)
