"""Repairs are legal transitions, and every finding gets an answer."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.facts import Finding, JobFacts, Severity
from holdfast.core.invariants import check_job
from holdfast.core.repair import AMBIGUOUS_CODES, RepairAction, RepairKind, plan_repairs
from holdfast.core.states import Disposition, ExecutionStatus, JobState, project
from holdfast.core.step import PATH_AFTER_FAILURE
from tests.support.facts import JOB_ID, LEASE_MS, START, Life, a_job, an_execution, codes, lives, replace

LATE = START + 100 * LEASE_MS


def plan(facts: JobFacts, now: int = START) -> list[RepairAction]:
    return plan_repairs(check_job(facts, now), [facts], now)


@given(lives())
def test_a_healthy_job_needs_no_repair(life: Life) -> None:
    assert plan(life.facts, life.now) == []


@given(lives(), st.sampled_from(JobState), st.booleans(), st.integers(-1, 3), st.booleans())
def test_every_finding_is_answered_by_exactly_one_action(
    life: Life, stored: JobState, is_late: bool, counted: int, cut: bool
) -> None:
    journal = tuple(life.journal[:-1] if cut else life.journal)
    broken = replace(life.facts, job=replace(life.job, state=stored, attempt=counted), journal=journal)
    now = LATE if is_late else life.now
    findings = check_job(broken, now)
    actions = plan_repairs(findings, [broken], now)

    assert Counter(f for action in actions for f in action.findings) == Counter(findings)


@given(lives(), st.sampled_from(JobState), st.booleans())
def test_a_stored_state_becomes_what_the_executions_say_and_nothing_else(
    life: Life, stored: JobState, is_late: bool
) -> None:
    broken = replace(life.facts, job=replace(life.job, state=stored))
    actions = plan(broken, LATE if is_late else life.now)

    jumps = [action for action in actions if action.kind is RepairKind.REPROJECT]
    assert all(action.from_state is stored and action.to_state is project(life.views) for action in jumps)


@given(lives(), st.sampled_from(JobState))
def test_no_wrong_state_is_beyond_repair(life: Life, stored: JobState) -> None:
    broken = replace(life.facts, job=replace(life.job, state=stored))
    kinds = {action.kind for action in plan(broken, life.now)}

    assert kinds == (set() if stored is life.job.state else {RepairKind.REPROJECT})


def test_a_commit_nobody_finishes_is_finished() -> None:
    life = Life()
    life.lease()
    life.begin()
    life.commit()
    [action] = plan(life.facts, LATE)

    assert (action.kind, action.exec_id) == (RepairKind.FINISH, "exec-1")
    assert (action.from_state, action.to_state) == (JobState.RUNNING, JobState.SUCCEEDED)


@pytest.mark.parametrize("begun", [False, True])
def test_a_job_whose_lease_ran_out_is_given_back(begun: bool) -> None:
    life = Life()
    life.lease()
    if begun:
        life.begin()
    [action] = plan(life.facts, LATE)

    assert (action.kind, action.exec_id, action.job_id) == (RepairKind.GIVE_BACK, "exec-1", JOB_ID)
    assert (action.from_state, action.to_state) == (JobState.RUNNING, JobState.PENDING)


def test_a_job_in_a_crash_loop_is_not_given_back_but_quarantined() -> None:
    life = Life()
    life.lease()
    facts = replace(life.facts, job=replace(life.job, crashes=7, crashes_forgiven=3, crash_limit=5))
    [action] = plan(facts, LATE)

    assert (action.kind, action.to_state) == (RepairKind.GIVE_BACK, JobState.QUARANTINED)


def test_a_mended_state_answers_what_follows_from_it() -> None:
    life = Life()
    life.lease()
    life.abort(PATH_AFTER_FAILURE[Disposition.RETRY])
    broken = replace(life.facts, job=replace(life.job, state=JobState.RUNNING))
    [action] = plan(broken, life.now)

    assert action.kind is RepairKind.REPROJECT
    assert codes(list(action.findings)) == {"projection-mismatch", "running-without-lease", "journal-disagrees"}


def test_a_journal_that_agrees_with_nobody_stays_a_matter_for_an_operator() -> None:
    life = Life()
    life.lease()
    cut = replace(life.facts, job=replace(life.job, state=JobState.PENDING), journal=tuple(life.journal[:1]))
    actions = plan(cut, life.now)

    assert [action.kind for action in actions] == [RepairKind.REPROJECT, RepairKind.UNREPAIRABLE]
    assert codes(list(actions[1].findings)) == {"journal-disagrees"}


def test_a_journal_that_ends_in_a_third_state_is_led_on_from_there() -> None:
    life = Life()
    life.lease()
    life.abort(PATH_AFTER_FAILURE[Disposition.RETRY])
    broken = replace(life.facts, job=replace(life.job, state=JobState.QUARANTINED), journal=tuple(life.journal[:-1]))
    actions = plan(broken, life.now)

    assert [action.kind for action in actions] == [RepairKind.REPROJECT]
    assert codes(list(actions[0].findings)) == {"projection-mismatch", "journal-disagrees"}


def test_a_mismatch_found_by_the_database_in_its_own_words_is_answered_by_the_same_repair() -> None:
    broken = JobFacts(job=a_job(JobState.FAILED), executions=())
    own_words = Finding(
        code="projection-mismatch", severity=Severity.ERROR, subject=f"job {JOB_ID}", message="said by the database"
    )
    [action] = plan_repairs([own_words, *check_job(broken, START)], [broken], START)

    assert (action.kind, action.to_state) == (RepairKind.REPROJECT, JobState.PENDING)
    assert own_words in action.findings


@pytest.mark.parametrize(
    "statuses",
    [
        (ExecutionStatus.DONE, ExecutionStatus.COMMITTED),
        (ExecutionStatus.LEASED, ExecutionStatus.IN_PROGRESS),
        (ExecutionStatus.COMMITTED, ExecutionStatus.IN_PROGRESS),
    ],
)
def test_nothing_is_done_to_a_job_whose_executions_contradict_each_other(statuses: tuple[ExecutionStatus, ...]) -> None:
    executions = tuple(an_execution(status, attempt=attempt) for attempt, status in enumerate(statuses, 1))
    broken = JobFacts(job=a_job(JobState.RUNNING, attempt=2), executions=executions)
    actions = plan(broken, LATE)

    assert {action.kind for action in actions} == {RepairKind.UNREPAIRABLE}
    assert codes([f for action in actions for f in action.findings]) & AMBIGUOUS_CODES


def test_an_unreadable_execution_does_not_break_the_plan() -> None:
    silent = an_execution(ExecutionStatus.ABORTED, disposition=None)
    broken = JobFacts(job=a_job(attempt=1), executions=(silent,))
    mismatch = Finding(
        code="projection-mismatch", severity=Severity.ERROR, subject=f"job {JOB_ID}", message="said by the database"
    )
    [action] = plan_repairs([mismatch], [broken], START)

    assert action.kind is RepairKind.UNREPAIRABLE


@pytest.mark.parametrize(
    "code, advice",
    [("journal-broken", "exported journal"), ("commit-twice", "twice"), ("orphan-row", "restore a backup")],
)
def test_what_cannot_be_mended_comes_with_advice(code: str, advice: str) -> None:
    finding = Finding(code=code, severity=Severity.ERROR, subject="table steps", message="3 rows have no job")
    [action] = plan_repairs([finding], [], START)

    assert (action.kind, action.job_id, action.to_state) == (RepairKind.UNREPAIRABLE, None, None)
    assert "table steps: 3 rows have no job" in action.why
    assert advice in action.why


def test_one_broken_job_does_not_keep_another_from_being_mended() -> None:
    other = "01HYYYYYYYYYYYYYYYYYYYYYYY"
    done = tuple(an_execution(ExecutionStatus.DONE, attempt=attempt) for attempt in (1, 2))
    wreck = JobFacts(job=a_job(JobState.SUCCEEDED, attempt=2), executions=done)
    execution = an_execution(ExecutionStatus.IN_PROGRESS, job_id=other)
    expired = JobFacts(job=a_job(JobState.RUNNING, job_id=other, attempt=1), executions=(execution,))
    findings = [*check_job(wreck, LATE), *check_job(expired, LATE)]
    actions = plan_repairs(findings, [wreck, expired], LATE)

    assert {(action.job_id, action.kind) for action in actions} == {
        (JOB_ID, RepairKind.UNREPAIRABLE),
        (other, RepairKind.GIVE_BACK),
    }
