"""Faults that only the database can show: damage, missing rules, impossible values, orphaned rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from holdfast.core.invariants import Finding, JobFacts, Severity
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.store.sqlite.rows import executions_of, job_of, journal_of
from holdfast.store.sqlite.session import SQL

PAGE = 500
_EXCEPT_PRUNED = "AND job_id NOT IN (SELECT job_id FROM pruned)"


def integrity(connection: sqlite3.Connection, expected_schema: dict[str, str], *, deep: bool) -> Iterator[Finding]:
    """Every fault found; `deep` adds SQLite's own check of every page."""
    pragma = "integrity_check" if deep else "quick_check"
    for (line,) in connection.execute(f"PRAGMA {pragma}"):
        if line != "ok":
            yield _fault("sqlite-damaged", "database", line)
    yield from missing_rules(connection, expected_schema)
    yield from _impossible_values(connection)
    yield from _orphans(connection)


def schema_of(connection: sqlite3.Connection) -> dict[str, str]:
    """name → SQL of every index, trigger, view and table."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: sql for name, sql in rows if not name.startswith("sqlite_")}


def missing_rules(connection: sqlite3.Connection, expected: dict[str, str]) -> Iterator[Finding]:
    """What the migrations made and somebody has dropped or changed."""
    present = schema_of(connection)
    for name, sql in expected.items():
        if name not in present:
            yield _fault("rule-missing", f"schema {name}", "is gone: somebody has dropped it")
        elif present[name] != sql:
            yield _fault("rule-changed", f"schema {name}", "is not what the migrations made")


def _impossible_values(connection: sqlite3.Connection) -> Iterator[Finding]:
    states, statuses, dispositions = (
        ", ".join(f"'{member.value}'" for member in kind) for kind in (JobState, ExecutionStatus, Disposition)
    )
    for job_id, count in connection.execute("SELECT job_id, count(*) FROM jobs GROUP BY job_id HAVING count(*) > 1"):
        yield _fault("duplicate-id", f"job {job_id}", f"there are {count} jobs with this id")
    for exec_id, count in connection.execute(
        "SELECT exec_id, count(*) FROM executions GROUP BY exec_id HAVING count(*) > 1"
    ):
        yield _fault("duplicate-id", f"execution {exec_id}", f"there are {count} executions with this id")
    for job_id, state in connection.execute(f"SELECT job_id, state FROM jobs WHERE state NOT IN ({states})"):
        yield _fault("invalid-status", f"job {job_id}", f"state {state!r} does not exist")
    for exec_id, status, disposition in connection.execute(
        f"SELECT exec_id, status, disposition FROM executions "
        f"WHERE status NOT IN ({statuses}) OR disposition NOT IN ({dispositions})"
    ):
        yield _fault("invalid-status", f"execution {exec_id}", f"{status!r} with {disposition!r} does not exist")
    for job_id, attempt in connection.execute(
        "SELECT job_id, attempt FROM jobs WHERE attempt < 0 OR failures < 0 OR crashes < 0"
    ):
        yield _fault("negative-count", f"job {job_id}", f"attempt {attempt}, failures or crashes are negative")
    for job_id, stored, projected in connection.execute(
        "SELECT j.job_id, j.state, p.state FROM jobs AS j JOIN job_projection AS p ON p.job_id = j.job_id "
        f"WHERE j.state <> p.state AND j.state IN ({states})"
    ):
        yield _fault("projection-mismatch", f"job {job_id}", f"stored as {stored}, but its executions say {projected}")


def _orphans(connection: sqlite3.Connection) -> Iterator[Finding]:
    for table in ("requests", "executions", "steps", "journal"):
        rows = connection.execute(
            f"SELECT DISTINCT job_id FROM {table} WHERE job_id NOT IN (SELECT job_id FROM jobs) {_EXCEPT_PRUNED}"
        )
        for (job_id,) in rows:
            yield _fault("orphan-rows", f"{table} of job {job_id}", "belong to a job that does not exist")
    for job_id, other in connection.execute(
        "SELECT job_id, waits_for FROM jobs WHERE waits_for IS NOT NULL AND waits_for NOT IN (SELECT job_id FROM jobs)"
    ):
        yield _fault("orphan-rows", f"job {job_id}", f"waits for job {other}, which does not exist")
    for (job_id,) in connection.execute("SELECT job_id FROM jobs WHERE job_id NOT IN (SELECT job_id FROM requests)"):
        yield _fault("orphan-rows", f"job {job_id}", "has lost its request")


def facts(connection: sqlite3.Connection, *, unsettled_only: bool) -> Iterator[JobFacts | Finding]:
    """Job by job what the invariants need; the journal too, unless only running jobs are looked at."""
    statement = "fact_running" if unsettled_only else "fact_jobs"
    after = ""
    while True:
        parameters = {"after": after, "limit": PAGE}
        rows = connection.execute(SQL[statement], parameters).fetchall()
        for row in rows:
            try:
                yield _facts_of(connection, row, with_journal=not unsettled_only)
            except msgspec.ValidationError as error:
                yield _fault("unreadable-row", f"job {row[0]}", f"has a value that cannot be: {error}")
        if len(rows) < PAGE:
            return
        after = rows[-1][0]


def _facts_of(connection: sqlite3.Connection, row: tuple[object, ...], *, with_journal: bool) -> JobFacts:
    job = job_of(row)
    journal = None
    if with_journal:
        cursor = connection.execute(SQL["journal_of"], {"job_id": job.job_id})
        journal = tuple(journal_of(cursor, entry) for entry in cursor)
    executions = executions_of(connection.execute(SQL["executions"], {"job_id": job.job_id}))
    return JobFacts(job=job, executions=tuple(executions), journal=journal)


def _fault(code: str, subject: str, message: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, subject=subject, message=message)
