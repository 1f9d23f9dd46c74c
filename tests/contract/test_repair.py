"""Executions are the truth: whatever somebody has written into the row of a job, a repair makes it right again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import guard as repair
from holdfast.core.facts import JobFacts
from holdfast.core.repair import RepairKind, wrong_columns
from holdfast.core.states import Disposition, JobState
from holdfast.guard import check
from tests.contract.test_edits import DAY, scene, without_checks
from tests.support.backends import Backend
from tests.support.bench import OPERATOR, Bench

MAKING: dict[JobState, Callable[[Bench], str]] = {
    JobState.PENDING: lambda bench: bench.submit(),
    JobState.RUNNING: lambda bench: bench.running().job.job_id,
    JobState.SUCCEEDED: lambda bench: bench.succeeded(),
    JobState.FAILED: lambda bench: bench.ended(),
    JobState.QUARANTINED: lambda bench: bench.ended(Disposition.QUARANTINED),
}
WRONG = [(true, stored) for true in JobState for stored in [*JobState, "gone"] if stored != true]


def edit(backend: Backend, *statements: str) -> None:
    """Write past every rule, and put the rules back."""
    with backend.shell() as shell:
        if backend.name == "sqlite" or any("gone" in one or "-1" in one for one in statements):
            without_checks(backend, shell)
        put_back = backend.without_triggers(shell)
        for statement in statements:
            shell.execute(statement)
        put_back()


def faults(bench: Bench) -> list[str]:
    """What is wrong with the jobs; that a test took a CHECK away for good is its own affair."""
    return [finding.code for finding in check(bench.store, deep=False) if finding.code != "rule-missing"]


@pytest.mark.sampled("true", "stored")
@pytest.mark.parametrize("true, stored", WRONG)
def test_a_wrong_state_is_made_right_wherever_it_leads(
    bench: Bench, backend: Backend, true: JobState, stored: str
) -> None:
    job_id = MAKING[true](bench)
    edit(backend, f"UPDATE jobs SET state = '{stored}' WHERE job_id = '{job_id}'")
    assert faults(bench) != []

    planned = [action for action in repair.plan(bench.store) if action.job_id == job_id]
    done = repair.apply(bench.store, planned, actor=OPERATOR)

    assert {action.kind for action in planned} == {RepairKind.REPROJECT}
    assert [one.line for one in done if not one.is_done] == []
    assert bench.state(job_id) is true
    assert faults(bench) == []
    last = bench.journal(job_id)[-1]
    assert last.reason.startswith("reprojected: ")
    assert (last.actor, f"state {stored} → {true}" in last.metadata) == (OPERATOR, True)


@pytest.mark.parametrize(
    "change",
    [
        "attempt = -1",
        "attempt = 7",
        "failures = 7, crashes = 9",
        "failures_forgiven = 3",
        "priority = 9",
        "queue = 'q'",
        "stall_ms = 1, crash_limit = 1000, failure_limit = 1000",
        "created_at = 1",
        "updated_at = 1",
        "hold = 'child', waits_for = 'nobody'",
        "cancel_reason = 'x'",
        "ending = 'garbage'",
    ],
)
def test_what_the_journal_knows_is_put_back(bench: Bench, backend: Backend, change: str) -> None:
    jobs = scene(bench)
    before = {name: bench.job(job_id) for name, job_id in jobs.items()}
    edit(backend, f"UPDATE jobs SET {change}")
    assert faults(bench) != []

    done = repair.apply(bench.store, repair.plan(bench.store), actor=OPERATOR)

    assert [one.line for one in done if not one.is_done and "schema constraint" not in one.line] == []
    assert faults(bench) == []
    for name, job_id in jobs.items():
        now, was = bench.job(job_id), before[name]
        changed = {field for field in was.__struct_fields__ if getattr(now, field) != getattr(was, field)}
        assert changed <= {"updated_at"}, name


def test_nothing_is_derived_otherwise_for_a_sound_job(bench: Bench) -> None:
    scene(bench)

    wrong = {
        one.job.job_id: wrong_columns(one, bench.clock()) for one in bench.store.facts() if isinstance(one, JobFacts)
    }
    assert set(map(str, wrong.values())) == {"{}"}


def test_a_job_whose_executions_contradict_is_left_alone(bench: Bench, backend: Backend) -> None:
    job_id = bench.ended()
    edit(
        backend,
        "DROP INDEX executions_one_commit",
        "UPDATE executions SET status = 'done', disposition = NULL",
        "INSERT INTO executions (exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, progressed_at,"
        f" started_at) VALUES ('x', '{job_id}', 2, '', 'committed', 'x', 1, 1, 1)",
    )

    kinds = {action.kind for action in repair.plan(bench.store) if action.job_id == job_id}
    assert kinds == {RepairKind.UNREPAIRABLE}


def test_a_job_that_was_repaired_goes_on(bench: Bench, backend: Backend) -> None:
    job_id = bench.submit()
    edit(backend, f"UPDATE jobs SET state = 'succeeded', not_before = {DAY} WHERE job_id = '{job_id}'")
    assert bench.claim() == []

    repair.apply(bench.store, repair.plan(bench.store), actor=OPERATOR)

    assert bench.take().job.job_id == job_id


def test_one_that_cannot_be_repaired_keeps_no_other_from_it(bench: Bench, backend: Backend) -> None:
    other = bench.succeeded()
    first = bench.ended(key="k")
    bench.submit(key="k")
    edit(
        backend,
        f"UPDATE executions SET disposition = 'retry' WHERE job_id = '{first}'",
        f"UPDATE jobs SET state = 'failed' WHERE job_id = '{other}'",
    )

    done = repair.apply(bench.store, repair.plan(bench.store), actor=OPERATOR)

    assert bench.state(first) is JobState.FAILED
    assert bench.state(other) is JobState.SUCCEEDED
    assert any(first in one.line for one in done if not one.is_done)
