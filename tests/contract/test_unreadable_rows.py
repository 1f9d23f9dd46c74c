"""A row that somebody has written past the rules costs its own job: the others are claimed, recovered, listed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast import Client
from holdfast.core.explain import ReasonCode
from holdfast.core.records import unreadable_of
from holdfast.core.states import Disposition, JobState
from holdfast.core.step import EndCode
from holdfast.errors import RowUnreadable
from tests.support.backends import Backend, Shell, SqliteBackend, is_refusal, on_sqlite
from tests.support.bench import OPERATOR, OTHER, WORKER, Bench, commit, end, finish, finish_step, give_back

Spoil = Callable[[Bench, Shell], str]


@contextmanager
def behind_the_rules(backend: Backend) -> Iterator[Shell]:
    """A shell in which no rule holds; they hold again afterwards."""
    with backend.shell() as shell:
        put_back = backend.without_triggers(shell)
        try:
            yield shell
        finally:
            put_back()


def edited(change: str) -> Spoil:
    def spoil(bench: Bench, shell: Shell) -> str:
        job_id = bench.submit(priority=5)
        shell.execute(f"UPDATE jobs SET {change} WHERE job_id = '{job_id}'")
        return job_id

    return spoil


def stored_as_pending(make: Callable[[Bench], str]) -> Spoil:
    def spoil(bench: Bench, shell: Shell) -> str:
        job_id = make(bench)
        shell.execute(f"UPDATE jobs SET state = 'pending', priority = 5 WHERE job_id = '{job_id}'")
        return job_id

    return spoil


def without_request(bench: Bench, shell: Shell) -> str:
    job_id = bench.submit(priority=5)
    shell.execute(f"DELETE FROM requests WHERE job_id = '{job_id}'")
    return job_id


SPOILS: dict[str, Spoil] = {
    "an ending that is no ending": edited("ending = 'garbage'"),
    "an ending that lacks a part": edited("""ending = '{"code": "error"}'"""),
    "attempts that never were": edited("attempt = 3"),
    "no request": without_request,
    "a succeeded job stored as pending": stored_as_pending(lambda bench: bench.succeeded()),
    "a committed job stored as pending": stored_as_pending(lambda bench: bench.committed().job.job_id),
    "a running job stored as pending": stored_as_pending(lambda bench: bench.running(WORKER).job.job_id),
    "a failed job stored as pending": stored_as_pending(lambda bench: bench.ended()),
}
MISTYPED = {
    "a text for a number": edited("priority = 'high'"),
    "a float for a number": edited("crash_limit = 2.5"),
    "a blob for a number": edited("stall_ms = x'00ff'"),
    "a blob for a text": edited("key = x'00ff'"),
    "a text that is not UTF-8": edited("ending = cast(x'c328ff' AS TEXT)"),
    "an id that is not UTF-8": edited("job_id = cast(x'c328ff' AS TEXT)"),
}


def check_that_the_others_go_on(bench: Bench, bad: str) -> list[str]:
    """Two good jobs are claimed and end; what claims were given besides."""
    good = {bench.submit() for _ in range(2)}
    claims = bench.claim()
    others = [claim for claim in claims if claim.job.job_id not in good]
    mine = [claim for claim in claims if claim.job.job_id in good]
    assert {claim.job.job_id for claim in mine} == good
    bench.apply(*(commit(claim) for claim in mine))
    bench.apply(*(finish(claim) for claim in mine))
    assert {bench.state(job_id) for job_id in good} == {JobState.SUCCEEDED}
    assert good <= {job.job_id for job in bench.store.jobs()}
    assert bad not in {claim.job.job_id for claim in bench.claim()}
    return [claim.job.job_id for claim in others]


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_job_that_cannot_be_claimed_keeps_nobody_from_claiming_the_others(
    bench: Bench, backend: Backend, spoil: Spoil
) -> None:
    with behind_the_rules(backend) as shell:
        bad = spoil(bench, shell)

    assert bad not in check_that_the_others_go_on(bench, bad)


@on_sqlite
@pytest.mark.parametrize("kind", MISTYPED)
@pytest.mark.parametrize("strict", [False, True])
def test_a_value_of_another_type_keeps_nobody_from_claiming_the_others(
    bench: Bench, backend: Backend, kind: str, strict: bool
) -> None:
    """A table that has become strict takes no change of a row that was spoiled before, not even its end."""
    assert isinstance(backend, SqliteBackend)
    with behind_the_rules(backend) as shell:
        bad = MISTYPED[kind](bench, shell)
    if not strict:
        with backend.shell() as shell:
            backend.without_types(shell)

    assert check_that_the_others_go_on(bench, bad) == []
    # Where the rules allow it, the job is quarantined; a row that takes no change is left alone.
    pending = bench.store.jobs(states=[JobState.PENDING])
    left_alone = kind == "an id that is not UTF-8" or (strict and kind != "a text that is not UTF-8")
    assert len(pending) == int(left_alone)


@pytest.mark.parametrize("spoil", ["an ending that is no ending", "an ending that lacks a part", "no request"])
def test_a_job_that_cannot_be_read_is_quarantined_with_the_reason(bench: Bench, backend: Backend, spoil: str) -> None:
    with behind_the_rules(backend) as shell:
        bad = SPOILS[spoil](bench, shell)

    assert bench.claim() == []
    latest = bench.latest(bad)
    assert (latest.code, latest.disposition) == (EndCode.UNREADABLE, Disposition.QUARANTINED)
    assert "cannot be read" in (latest.error or "")
    assert bench.states(bad) == ["pending", "running", "failed", "quarantined"]


@pytest.mark.parametrize(
    "make",
    [lambda bench: bench.committed().job.job_id, lambda bench: bench.succeeded()],
    ids=["committed", "done"],
)
def test_a_job_that_has_committed_is_not_run_again_whatever_its_state_says(
    bench: Bench, backend: Backend, make: Callable[[Bench], str]
) -> None:
    with behind_the_rules(backend) as shell:
        job_id = stored_as_pending(make)(bench, shell)

    assert bench.claim() == []
    assert len(bench.store.executions(job_id)) == 1


def test_a_retried_job_with_a_commit_in_its_past_is_not_run_again(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    bench.apply(give_back(claim))
    again = bench.take()
    bench.apply(give_back(again))
    with behind_the_rules(backend) as shell:
        shell.execute("UPDATE executions SET status = 'done', disposition = NULL WHERE attempt = 1")

    assert bench.claim() == []
    assert len(bench.store.executions(claim.job.job_id)) == 2


def test_what_is_set_apart_is_said_once_and_not_tried_at_every_claim(
    bench: Bench, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    with behind_the_rules(backend) as shell:
        bad = stored_as_pending(lambda bench: bench.succeeded())(bench, shell)
    with caplog.at_level(logging.ERROR, "holdfast.store"):
        for _ in range(5):
            bench.claim()

    assert [bad in record.getMessage() for record in caplog.records] == [True]


# --- recovery, leases, those who wait ----------------------------------------------------------------------


def test_one_execution_that_cannot_be_recovered_keeps_nobody_from_recovering_the_others(
    bench: Bench, backend: Backend
) -> None:
    bad, good = bench.running(), bench.running()
    with behind_the_rules(backend) as shell:
        shell.execute(f"UPDATE jobs SET state = 'succeeded' WHERE job_id = '{bad.job.job_id}'")
    bench.expire()

    assert bench.recover() == ["given back"]
    assert bench.recover() == []
    assert bench.state(good.job.job_id) is JobState.PENDING


@on_sqlite
def test_the_job_of_a_dead_worker_that_cannot_be_read_is_quarantined(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    with behind_the_rules(backend) as shell:
        shell.execute("UPDATE jobs SET crash_limit = 'many'")
    assert isinstance(backend, SqliteBackend)
    with backend.shell() as shell:
        backend.without_types(shell)
    bench.expire()

    assert bench.recover() == ["quarantined"]
    assert bench.latest(claim.job.job_id).code == EndCode.UNREADABLE


@on_sqlite
def test_one_lease_that_cannot_be_renewed_keeps_nobody_from_renewing_the_others(bench: Bench, backend: Backend) -> None:
    bad, good = bench.running(), bench.running()
    with behind_the_rules(backend) as shell:
        shell.execute(f"UPDATE executions SET tries = 'many' WHERE exec_id = '{bad.exec_id}'")
    bench.clock.advance(10)

    held = bench.store.extend_leases(worker_id=WORKER, lease_ms=30_000, only=[bad.exec_id, good.exec_id])

    assert [one.exec_id for one in held] == [good.exec_id]
    assert bench.latest(good.job.job_id).lease_expires_at == bench.clock() + 30_000


def test_one_dependent_that_cannot_be_ended_keeps_nobody_from_ending_the_others(bench: Bench, backend: Backend) -> None:
    first = bench.running()
    bad, *others = (bench.submit(run_after=first.job.job_id) for _ in range(3))
    with behind_the_rules(backend) as shell:
        shell.execute(f"UPDATE jobs SET attempt = 7 WHERE job_id = '{bad}'")
        shell.execute(
            "INSERT INTO executions (exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, "
            f"progressed_at, started_at) VALUES ('x', '{bad}', 8, '', 'leased', 'nobody', 1, 1, 1)"
        )

    bench.apply(end(first))

    assert {bench.state(job_id) for job_id in others} == {JobState.FAILED}


def test_one_job_that_cannot_be_pruned_keeps_nobody_from_pruning_the_others(bench: Bench, backend: Backend) -> None:
    bad, good = bench.ended(), bench.ended()
    with behind_the_rules(backend) as shell:
        shell.execute(f"DELETE FROM journal WHERE job_id = '{bad}'")
    bench.clock.advance(10)

    assert bench.store.prune(before=bench.clock(), limit=10, actor=OPERATOR, dry_run=False) == [good]
    assert [job.job_id for job in bench.store.jobs()] == [bad]


# --- looking -----------------------------------------------------------------------------------------------


@on_sqlite
def test_what_can_be_read_of_a_spoiled_row_is_shown(bench: Bench, backend: Backend) -> None:
    claim = bench.running(queue="q")
    other = bench.submit()
    bench.apply(finish_step(claim))
    bench.store.announce(worker_id=OTHER, flows=["demo"])
    with behind_the_rules(backend) as shell:
        shell.execute(f"UPDATE jobs SET priority = 'high' WHERE job_id = '{claim.job.job_id}'")
        shell.execute("UPDATE executions SET tries = 'many', lease_expires_at = 'tomorrow'")
        shell.execute("UPDATE steps SET tries = x'00'")
        shell.execute("UPDATE queues SET max_running = 'two'")
        shell.execute("UPDATE workers SET flows = 'garbage', seen_at = 'now'")
        shell.execute("UPDATE journal SET at = 'now' WHERE seq = 1")

    jobs = {job.job_id: job for job in bench.store.jobs()}
    assert set(jobs) == {claim.job.job_id, other}
    assert "priority" in (unreadable_of(jobs[claim.job.job_id]) or "")
    assert unreadable_of(jobs[other]) is None
    assert bench.job(claim.job.job_id).queue == "q"
    for records in (
        bench.store.executions(claim.job.job_id),
        bench.store.under_way(),
        bench.store.steps(claim.job.job_id),
        [queue for queue in bench.store.queues() if queue.name == "q"],
        bench.store.workers(),
        [entry for entry in bench.store.journal() if entry.seq == 1],
    ):
        assert records
        assert all(unreadable_of(record) for record in records)
    assert bench.store.workers()[0].flows == ()


@on_sqlite
def test_a_job_whose_row_cannot_be_read_is_explained(bench: Bench, backend: Backend) -> None:
    job_id = bench.submit()
    with behind_the_rules(backend) as shell:
        shell.execute("UPDATE jobs SET priority = 'high'")

    explanation = Client(bench.store).explain(job_id)

    assert explanation.code is ReasonCode.INCONSISTENT
    assert "priority" in explanation.sentence


@on_sqlite
def test_who_acts_on_a_spoiled_row_is_told_so(bench: Bench, backend: Backend) -> None:
    job_id = bench.submit()
    with behind_the_rules(backend) as shell:
        shell.execute("UPDATE jobs SET priority = 'high'")

    with pytest.raises(RowUnreadable, match=job_id):
        bench.store.cancel(job_id, actor=OPERATOR, reason="no")


@on_sqlite
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE jobs SET priority = 'high'",
        "UPDATE jobs SET not_before = 1.5",
        "UPDATE jobs SET crash_limit = x'00'",
        "UPDATE queues SET max_running = 1.5",
        "UPDATE queues SET max_running = 'two'",
        "UPDATE executions SET lease_expires_at = 'tomorrow'",
        "INSERT INTO workers VALUES ('w', '[]', 'now', 1)",
    ],
)
def test_a_shell_cannot_put_another_type_into_a_column(bench: Bench, backend: Backend, statement: str) -> None:
    bench.running()
    with backend.shell() as shell, pytest.raises(Exception) as refused:
        shell.execute(statement)

    assert is_refusal(refused.value)


@on_sqlite
def test_a_limit_that_is_no_whole_number_is_never_exceeded(bench: Bench, backend: Backend) -> None:
    for _ in range(3):
        bench.submit(queue="q")
    other = bench.submit(queue="r")
    with behind_the_rules(backend) as shell:
        shell.execute("UPDATE queues SET max_running = 1.5 WHERE name = 'q'")

    claims = [claim.job for claim in bench.claim()]

    assert sum(job.queue == "q" for job in claims) == 1
    assert other in [job.job_id for job in claims]
