"""Overrides that hold only for the job as it was looked at: one that has moved on is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import Client
from holdfast.core.states import Disposition, JobState
from holdfast.errors import JobMovedOnError, JobNotFoundError
from holdfast.store.rows import new_ulid
from tests.support.bench import Bench

Act = Callable[[Client, str, str], object]

ACTS: dict[str, tuple[JobState, Act]] = {
    "cancel": (JobState.PENDING, lambda c, job, head: c.cancel(job, reason="r", expected_head=head)),
    "reschedule": (
        JobState.PENDING,
        lambda c, job, head: c.reschedule(job, reason="r", priority=3, expected_head=head),
    ),
    "retry": (JobState.FAILED, lambda c, job, head: c.retry(job, reason="r", expected_head=head)),
    "release": (JobState.QUARANTINED, lambda c, job, head: c.release(job, reason="r", expected_head=head)),
    "force failed": (JobState.PENDING, lambda c, job, head: c.force(job, "failed", reason="r", expected_head=head)),
    "force pending": (JobState.RUNNING, lambda c, job, head: c.force(job, "pending", reason="r", expected_head=head)),
    "force again": (JobState.FAILED, lambda c, job, head: c.force(job, "pending", reason="r", expected_head=head)),
}


def in_state(bench: Bench, state: JobState) -> str:
    match state:
        case JobState.PENDING:
            return bench.submit()
        case JobState.RUNNING:
            return bench.running().job.job_id
        case _:
            return bench.ended(Disposition(state.value))


@pytest.mark.parametrize("name", ACTS)
def test_an_override_is_for_the_job_as_it_was_looked_at(bench: Bench, name: str) -> None:
    state, act = ACTS[name]
    job_id, client = in_state(bench, state), Client(bench.store)
    head = bench.journal(job_id)[-1].hash
    stale = "0" * len(head)

    with pytest.raises(JobMovedOnError) as refused:
        act(client, job_id, stale)

    assert (refused.value.job_id, refused.value.expected, refused.value.head) == (job_id, stale, head)
    assert bench.journal(job_id)[-1].hash == head
    act(client, job_id, head)
    assert bench.journal(job_id)[-1].hash != head
    bench.assert_sound()


def test_the_same_override_again_with_the_old_head_is_refused(bench: Bench) -> None:
    job_id, client = bench.submit(), Client(bench.store)
    head = bench.journal(job_id)[-1].hash
    client.cancel(job_id, reason="r", expected_head=head)

    with pytest.raises(JobMovedOnError):
        client.cancel(job_id, reason="r", expected_head=head)
    assert bench.state(job_id) is JobState.FAILED


def test_a_store_verb_refuses_in_its_own_transaction(bench: Bench) -> None:
    job_id = bench.submit()

    with pytest.raises(JobMovedOnError):
        bench.store.fail(job_id, actor="o", reason="r", quarantine=False, expected_head="other")
    with pytest.raises(JobMovedOnError):
        bench.store.restart(job_id, actor="o", reason="r", expected_head="other")
    with pytest.raises(JobNotFoundError):
        bench.store.cancel(new_ulid(1), actor="o", reason="r", expected_head="other")
    assert bench.state(job_id) is JobState.PENDING
