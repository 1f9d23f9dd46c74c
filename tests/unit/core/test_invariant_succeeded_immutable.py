"""Succeeded jobs do not change."""

from __future__ import annotations

from holdfast.core.invariants import check_job, check_succeeded_is_final
from holdfast.core.states import ExecutionStatus
from tests.support.facts import Life, an_execution, codes, replace


def a_succeeded_life() -> Life:
    life = Life()
    life.lease()
    life.begin()
    life.commit()
    life.finish()
    return life


def test_a_succeeded_job_left_alone_is_healthy() -> None:
    life = a_succeeded_life()

    assert check_job(life.facts, life.now + 10**9) == []


def test_an_attempt_after_success_is_found() -> None:
    life = a_succeeded_life()
    late = an_execution(ExecutionStatus.ABORTED, attempt=2)
    facts = replace(life.facts, executions=(*life.executions, late))

    assert codes(list(check_succeeded_is_final(facts, life.now))) == {"changed-after-success"}


def test_a_write_after_success_is_found() -> None:
    life = a_succeeded_life()
    facts = replace(life.facts, job=replace(life.job, updated_at=life.now + 1))
    [finding] = check_job(facts, life.now)

    assert finding.code == "changed-after-success"


def test_attempts_before_the_one_that_succeeded_are_history() -> None:
    life = Life()
    life.lease()
    life.abort()
    life.lease()
    life.begin()
    life.commit()
    life.finish()

    assert check_job(life.facts, life.now) == []
