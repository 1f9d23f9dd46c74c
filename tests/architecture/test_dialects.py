"""The two dialects say the same of states and transitions."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from holdfast.core.states import (
    COMMITTED_STATUSES,
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    LIVE_STATUSES,
    UNFINISHED_STATES,
    Disposition,
    ExecutionStatus,
    JobState,
    disposition_transitions,
)

PAIR = re.compile(r"'(\w+)>(\w+)'")
WORD = re.compile(r"'(\w+)'")


def migration() -> str:
    folder = resources.files("holdfast.store.postgres").joinpath("migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def part(begin: str, end: str) -> str:
    # The last one: a later migration takes the place of what an earlier one made.
    _, found, rest = migration().rpartition(begin)
    assert found, f"{begin!r} is not in the migration"
    return rest.partition(end)[0]


@pytest.mark.parametrize(
    "table, column, values",
    [
        ("jobs", "state", JobState),
        ("executions", "status", ExecutionStatus),
        ("executions", "disposition", Disposition),
    ],
)
def test_a_check_lists_exactly_the_values_there_are(table: str, column: str, values: type[JobState]) -> None:
    [listed] = re.findall(rf"CHECK \({column} IN \(([^)]*)\)\)", part(f"CREATE TABLE {table} (", "\n);"))

    assert WORD.findall(listed) == [value.value for value in values]


def test_the_trigger_lists_exactly_the_legal_transitions_of_jobs() -> None:
    listed = PAIR.findall(part("CREATE TRIGGER jobs_move_legally ", "EXECUTE"))

    assert len(listed) == len(set(listed))
    assert set(listed) == {(s.value, t.value) for s, targets in JOB_TRANSITIONS.items() for t in targets if s is not t}


def test_the_trigger_lists_exactly_the_legal_transitions_of_executions() -> None:
    listed = PAIR.findall(part("CREATE TRIGGER executions_move_legally ", "EXECUTE"))

    legal = {(s.value, t.value) for s, targets in EXECUTION_TRANSITIONS.items() for t in targets}
    assert len(listed) == len(set(listed))
    assert set(listed) == legal | {(old.value, new.value) for old, new in disposition_transitions()}


def test_the_index_of_keys_covers_exactly_the_unfinished_states() -> None:
    [listed] = re.findall(r"IN \(([^)]*)\)", part("INDEX jobs_key ", ";"))

    assert set(WORD.findall(listed)) == {str(value) for value in UNFINISHED_STATES}


@pytest.mark.parametrize(
    "index, column, values",
    [
        ("executions_one_commit", "disposition", LIVE_STATUSES | COMMITTED_STATUSES),
        ("executions_under_way", "finished_at", LIVE_STATUSES | {ExecutionStatus.COMMITTED}),
    ],
)
def test_a_partial_index_covers_exactly_the_statuses_it_is_about(
    index: str, column: str, values: frozenset[ExecutionStatus]
) -> None:
    """By a column that a CHECK ties to the status, and that changes less often."""
    [others] = re.findall(
        rf"CHECK \(\(status (.*)\) = \({column} IS NOT NULL\)\)", part("CREATE TABLE executions (", "\n);")
    )

    assert part(f"INDEX {index} ", ";").endswith(f"WHERE {column} IS NULL")
    assert {ExecutionStatus(word) for word in WORD.findall(others)} == set(ExecutionStatus) - values
