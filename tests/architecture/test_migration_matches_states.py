"""The SQLite schema says the same as the tables in core/states.py, and the same as the projection in Python."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import resources
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.states import (
    COMMITTED_STATUSES,
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    LIVE_STATUSES,
    TERMINAL_EXECUTION_STATUSES,
    UNFINISHED_STATES,
    Disposition,
    ExecutionOutcome,
    ExecutionStatus,
    JobState,
    disposition_transitions,
    project,
)

PAIR = re.compile(r"'(\w+)>(\w+)'")
WORD = re.compile(r"'(\w+)'")


def schema() -> sqlite3.Connection:
    """A database in memory with all migrations applied. Foreign keys are off: the tests insert single rows."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrations = resources.files("holdfast.store.sqlite").joinpath("migrations")
    for file in sorted(migrations.iterdir(), key=lambda each: each.name):
        if file.name.endswith(".sql"):
            connection.executescript(file.read_text(encoding="utf-8"))
    return connection


def definition(connection: sqlite3.Connection, name: str) -> str:
    [(sql,)] = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchall()
    return str(sql)


def drop_triggers(connection: sqlite3.Connection) -> list[str]:
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    return [sql for _, sql in triggers]


def insert_job(connection: sqlite3.Connection, state: JobState, *, attempt: int = 0) -> None:
    connection.execute(
        "INSERT INTO jobs (job_id, flow, fingerprint, state, attempt, created_at, updated_at) "
        "VALUES ('j', 'demo', 'f', ?, ?, 0, 0)",
        (state, attempt),
    )


def insert_execution(connection: sqlite3.Connection, row: ExecutionOutcome) -> None:
    finished_at = 1 if row.status in TERMINAL_EXECUTION_STATUSES else None
    connection.execute(
        "INSERT INTO executions (exec_id, job_id, attempt, queue, status, disposition, lease_owner, lease_expires_at, "
        "progressed_at, started_at, finished_at) VALUES (?, 'j', ?, '', ?, ?, 'w', 9, 0, 0, ?)",
        (f"e{row.attempt}", row.attempt, row.status, row.disposition, finished_at),
    )


def is_accepted(connection: sqlite3.Connection, sql: str, parameters: tuple[object, ...] = ()) -> bool:
    try:
        connection.execute(sql, parameters)
    except sqlite3.IntegrityError:
        return False
    return True


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = schema()
    yield connection
    connection.close()


# --- the lists in the SQL --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table, column, values",
    [
        ("jobs", "state", JobState),
        ("executions", "status", ExecutionStatus),
        ("executions", "disposition", Disposition),
    ],
)
def test_a_check_lists_exactly_the_values_there_are(
    database: sqlite3.Connection, table: str, column: str, values: type[JobState]
) -> None:
    [listed] = re.findall(rf"CHECK \(({column} = '[^)]*)\)", definition(database, table))

    assert listed == " OR ".join(f"{column} = '{value.value}'" for value in values)


def test_the_trigger_lists_exactly_the_legal_transitions_of_jobs(database: sqlite3.Connection) -> None:
    listed = PAIR.findall(definition(database, "jobs_transition_is_legal"))

    assert len(listed) == len(set(listed))
    assert set(listed) == {(s.value, t.value) for s, targets in JOB_TRANSITIONS.items() for t in targets if s is not t}


def test_the_trigger_lists_exactly_the_legal_transitions_of_executions(database: sqlite3.Connection) -> None:
    listed = PAIR.findall(definition(database, "executions_transition_is_legal"))

    legal = {(s.value, t.value) for s, targets in EXECUTION_TRANSITIONS.items() for t in targets}
    assert len(listed) == len(set(listed))
    assert set(listed) == legal | {(old.value, new.value) for old, new in disposition_transitions()}


@pytest.mark.parametrize(
    "index, values",
    [
        ("executions_one_commit", COMMITTED_STATUSES),
        ("executions_one_live", LIVE_STATUSES),
        ("executions_under_way", LIVE_STATUSES | {ExecutionStatus.COMMITTED}),
        ("jobs_key", UNFINISHED_STATES),
    ],
)
def test_a_partial_index_covers_exactly_the_states_it_is_about(
    database: sqlite3.Connection, index: str, values: frozenset[str]
) -> None:
    [listed] = re.findall(r"IN \(([^)]*)\)", definition(database, index))

    assert set(WORD.findall(listed)) == {str(value) for value in values}


# --- what the database does ------------------------------------------------------------------------------

REPRESENTATIVE = {
    JobState.PENDING: (ExecutionStatus.ABORTED, Disposition.RETRY),
    JobState.RUNNING: (ExecutionStatus.IN_PROGRESS, None),
    JobState.SUCCEEDED: (ExecutionStatus.DONE, None),
    JobState.FAILED: (ExecutionStatus.ABORTED, Disposition.FAILED),
    JobState.QUARANTINED: (ExecutionStatus.ABORTED, Disposition.QUARANTINED),
}


def takes(state: JobState, row: ExecutionOutcome, sql: str, parameters: tuple[object, ...]) -> bool:
    """Is a statement accepted by a database that holds one job in this state, with this execution?"""
    with closing(schema()) as database:
        triggers = drop_triggers(database)
        insert_job(database, state, attempt=1)
        insert_execution(database, row)
        for trigger in triggers:
            database.execute(trigger)
        return is_accepted(database, sql, parameters)


def test_a_job_moves_to_its_projection_and_only_legally() -> None:
    accepted = {
        (source, target)
        for source, target in product(JobState, JobState)
        if takes(source, ExecutionOutcome(1, *REPRESENTATIVE[target]), "UPDATE jobs SET state = ?", (target,))
    }

    # A succeeded job is refused every write, the one that changes nothing too.
    legal = {(source, target) for source in JobState for target in JOB_TRANSITIONS[source]}
    assert accepted == {(source, target) for source, target in legal if source is not JobState.SUCCEEDED}


def test_a_state_that_is_not_the_projection_cannot_be_written() -> None:
    accepted = [
        (stored, written)
        for stored, written in product(JobState, JobState)
        if stored is not written
        if takes(stored, ExecutionOutcome(1, *REPRESENTATIVE[stored]), "UPDATE jobs SET state = ?", (written,))
    ]

    assert accepted == []


def test_an_execution_moves_only_legally() -> None:
    accepted = set()
    for source, target in product(ExecutionStatus, ExecutionStatus):
        row = ExecutionOutcome(1, source, Disposition.RETRY if source is ExecutionStatus.ABORTED else None)
        disposition = Disposition.RETRY if target is ExecutionStatus.ABORTED else None
        finished_at = 1 if target in TERMINAL_EXECUTION_STATUSES else None
        move = "UPDATE executions SET status = ?, disposition = ?, finished_at = ?"
        if source is not target and takes(project([row]), row, move, (target, disposition, finished_at)):
            accepted.add((source, target))

    assert accepted == {(source, target) for source, targets in EXECUTION_TRANSITIONS.items() for target in targets}


JOB_COLUMNS = "(job_id, flow, fingerprint, key, created_at, updated_at)"
EXECUTION_COLUMNS = (
    "(exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, progressed_at, started_at)"
)
ROWS = {
    "jobs": f"jobs {JOB_COLUMNS} VALUES ('j', 'demo', 'f', 'key', 0, 0)",
    "requests": "requests VALUES ('j', '{}')",
    "journal": "journal VALUES ('j', 1, 0, 'a', NULL, NULL, 'pending', NULL, NULL, NULL, '', '{}', '', 'h')",
    "executions": f"executions {EXECUTION_COLUMNS} VALUES ('e', 'j', 1, '', 'leased', 'w', 9, 0, 0)",
    "pruned": "pruned VALUES ('p', 'demo', 'failed', 0, 1, 'head', 0, 'a')",
}
REPLACEMENTS = ROWS | {
    "a job by its key": f"jobs {JOB_COLUMNS} VALUES ('k', 'demo', 'f', 'key', 0, 0)",
    "an execution by its id": f"executions {EXECUTION_COLUMNS} VALUES ('e', 'j', 2, '', 'leased', 'w', 9, 0, 0)",
    "a lease": f"executions {EXECUTION_COLUMNS} VALUES ('e2', 'j', 2, '', 'leased', 'w', 9, 0, 0)",
}


@pytest.mark.parametrize("row", REPLACEMENTS.values(), ids=REPLACEMENTS.keys())
def test_replacing_a_row_is_no_way_around_the_rules(database: sqlite3.Connection, row: str) -> None:
    # What is there already is put there past the rule for new rows of pruned; the rule is put back for the test.
    [(rule,)] = database.execute("SELECT sql FROM sqlite_master WHERE name = 'pruned_is_true'")
    database.execute("DROP TRIGGER pruned_is_true")
    for existing in ROWS.values():
        database.execute(f"INSERT INTO {existing}")
    database.execute(rule)

    assert not is_accepted(database, f"INSERT OR REPLACE INTO {row}")


# --- projection: SQL = Python ----------------------------------------------------------------------------


def a_row(attempt: int, status: ExecutionStatus, disposition: Disposition) -> ExecutionOutcome:
    return ExecutionOutcome(attempt, status, disposition if status is ExecutionStatus.ABORTED else None)


histories = st.lists(
    st.builds(a_row, st.integers(1, 1000), st.sampled_from(ExecutionStatus), st.sampled_from(Disposition)),
    max_size=10,
    unique_by=lambda row: row.attempt,
)


@pytest.fixture(scope="module")
def lawless_database() -> Iterator[sqlite3.Connection]:
    """The schema without triggers and unique indexes, so that any history can be put in."""
    connection = schema()
    drop_triggers(connection)
    connection.execute("DROP INDEX executions_one_commit")
    connection.execute("DROP INDEX executions_one_live")
    insert_job(connection, JobState.PENDING)
    yield connection
    connection.close()


@given(executions=histories)
def test_the_projection_in_sql_equals_the_one_in_python(
    lawless_database: sqlite3.Connection, executions: list[ExecutionOutcome]
) -> None:
    lawless_database.execute("DELETE FROM executions")
    for execution in executions:
        insert_execution(lawless_database, execution)
    [(state,)] = lawless_database.execute("SELECT state FROM job_projection WHERE job_id = 'j'").fetchall()

    assert state == project(executions)
