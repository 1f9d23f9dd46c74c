"""A lock that somebody forgot keeps back what needs it, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from holdfast.core.states import JobState
from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.store.commands import Claim, StoreTransaction, Write
from tests.support.backends import PostgresBackend, on_postgres
from tests.support.bench import (
    EFFECTS_TABLE,
    OTHER,
    WORKER,
    Bench,
    commit,
    effect_of,
    end,
    finish,
    finish_step,
    give_back,
    plan_ending,
    record_try,
    rewind_to,
)

pytestmark = on_postgres

PROMPT = 5.0
"""Far less than anybody would wait for a lock who waits for it, and ample for a busy machine."""


@contextmanager
def held(backend: PostgresBackend, statement: str) -> Iterator[None]:
    """A shell that has run a statement and gone for lunch."""
    with psycopg.connect(backend.server.url) as shell:
        shell.execute(f"SET search_path TO {backend.schema}".encode())
        shell.execute(statement.encode())
        yield
        shell.rollback()


def is_kept_back(answer: Exception | None) -> bool:
    return isinstance(answer, StoreUnavailable) and answer.passing


@pytest.mark.parametrize("table, column", [("jobs", "job_id"), ("executions", "job_id"), ("steps", "job_id")])
@pytest.mark.parametrize("size", [2, 40])
def test_a_held_row_keeps_back_the_write_that_needs_it_only(
    bench: Bench, backend: PostgresBackend, table: str, column: str, size: int
) -> None:
    claims = [bench.running() for _ in range(size)]
    bench.apply(*(finish_step(claim) for claim in claims))
    unlucky = claims[size // 3]
    writes: list[Write] = [rewind_to(claim) for claim in claims]

    with held(backend, f"SELECT * FROM {table} WHERE {column} = '{unlucky.job.job_id}' FOR UPDATE"):
        began = time.monotonic()
        answers = bench.write(*writes)
        took = time.monotonic() - began
        later = bench.running()
        bench.apply(finish_step(later))

    assert [is_kept_back(answer) for answer in answers] == [claim is unlucky for claim in claims]
    assert took < PROMPT
    bench.apply(rewind_to(unlucky))
    assert all(bench.store.steps(claim.job.job_id) == [] for claim in claims)
    bench.assert_sound()


def test_every_kind_of_write_is_kept_back_alone_and_made_once_afterwards(
    bench: Bench, backend: PostgresBackend
) -> None:
    backend.execute(EFFECTS_TABLE)
    makers: list[Callable[[Claim], Write]] = [
        finish_step,
        record_try,
        rewind_to,
        plan_ending,
        end,
        give_back,
        lambda c: commit(c, effect_of(c)),
    ]
    unlucky = [bench.running() for _ in makers]
    lucky = [bench.running() for _ in makers]
    writes: list[Write] = []
    for make, one, other in zip(makers, unlucky, lucky, strict=True):
        writes += [make(one), make(other)]
    ids = ", ".join(f"'{claim.job.job_id}'" for claim in unlucky)

    with held(backend, f"SELECT * FROM jobs WHERE job_id IN ({ids}) FOR UPDATE"):
        answers = bench.write(*writes)

    assert [is_kept_back(answer) for answer in answers[::2]] == [True] * len(makers)
    # With so many held, some that are free may have to wait for the next attempt; none of them is refused.
    assert all(answer is None or is_kept_back(answer) for answer in answers[1::2])
    again = [write for write, answer in zip(writes, answers, strict=True) if answer is not None]
    assert bench.write(*again) == [None] * len(again)
    assert len(backend.query("SELECT exec_id FROM effects")) == 2
    bench.assert_sound()


def test_writes_of_one_execution_stay_in_their_order(bench: Bench, backend: PostgresBackend) -> None:
    unlucky, lucky = bench.running(), bench.running()
    batch: list[Write] = [plan_ending(unlucky), finish_step(lucky), give_back(unlucky)]
    answers: list[Exception | None] = []

    with held(backend, f"SELECT * FROM jobs WHERE job_id = '{unlucky.job.job_id}' FOR UPDATE"):
        writing = threading.Thread(target=lambda: answers.extend(bench.write(*batch)))
        writing.start()
        time.sleep(0.25)
    writing.join(30)

    planned, step, ended = answers
    assert step is None
    assert is_kept_back(ended) or planned is None


def test_a_held_dependent_keeps_nothing_back(bench: Bench, backend: PostgresBackend) -> None:
    failed, beside, done = bench.running(), bench.running(), bench.committed()
    waiting = bench.submit(run_after=failed.job.job_id)

    with held(backend, f"SELECT * FROM jobs WHERE job_id = '{waiting}' FOR UPDATE"):
        began = time.monotonic()
        bench.apply(end(failed), end(beside), finish(done))
        took = time.monotonic() - began
        recovered = bench.recover()

    assert took < PROMPT
    assert recovered == []
    bench.recover()
    assert bench.state(waiting) is JobState.FAILED
    bench.assert_sound()


def test_a_locked_table_is_busy_for_all_and_loses_nothing(bench: Bench, backend: PostgresBackend) -> None:
    claims = [bench.running() for _ in range(100)]
    writes = [finish_step(claim) for claim in claims]

    with held(backend, "LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"):
        began = time.monotonic()
        answers = bench.write(*writes)
        took = time.monotonic() - began

    assert all(is_kept_back(answer) for answer in answers)
    assert took < 3 * PROMPT
    bench.apply(*writes)
    bench.assert_sound()


def test_evidence_of_a_job_that_somebody_holds_cannot_be_told_yet(bench: Bench, backend: PostgresBackend) -> None:
    unlucky, lucky, gone = bench.running(), bench.running(), bench.running()
    bench.apply(finish_step(lucky))
    missing = commit(gone)
    missing = type(missing)(**{name: getattr(missing, name) for name in missing.__struct_fields__} | {"job_id": "none"})

    with held(backend, f"SELECT * FROM jobs WHERE job_id = '{unlucky.job.job_id}' FOR UPDATE"):
        evidence = bench.store.evidence([finish_step(unlucky), finish_step(lucky), missing])

    assert evidence == [None, True, False]


@pytest.mark.parametrize("table", ["jobs", "executions", "queues"])
def test_a_held_row_keeps_nobody_from_claiming_renewing_and_recovering(
    bench: Bench, backend: PostgresBackend, table: str
) -> None:
    held_job = bench.submit(queue="held")
    unlucky = bench.take()
    dead = bench.running(OTHER)
    free = bench.submit(queue="free")
    where = "name = 'held'" if table == "queues" else f"job_id = '{held_job}'"

    with held(backend, f"SELECT * FROM {table} WHERE {where} FOR UPDATE"):
        began = time.monotonic()
        claimed = [claim.job.job_id for claim in bench.claim()]
        renewed = {one.exec_id for one in bench.store.extend_leases(worker_id=WORKER, lease_ms=60_000)}
        recovered = bench.recover(OTHER)
        took = time.monotonic() - began

    assert free in claimed
    assert unlucky.exec_id in renewed
    assert recovered == ["given back"]
    assert bench.state(dead.job.job_id) is JobState.PENDING
    assert took < PROMPT


def test_a_commit_step_whose_submit_meets_a_lock_is_not_to_blame(bench: Bench, backend: PostgresBackend) -> None:
    backend.execute(EFFECTS_TABLE)
    bench.submit(queue="mail")
    unlucky, lucky = bench.take(), bench.running()

    def effect(tx: StoreTransaction) -> str:
        effect_of(unlucky)(tx)
        try:
            tx.submit_job(bench.new_job(queue="mail"))
        except psycopg.Error:
            pass
        return "{}"

    with held(backend, "SELECT * FROM queues WHERE name = 'mail' FOR UPDATE"):
        answers = bench.write(commit(unlucky, effect), commit(lucky, effect_of(lucky)))

    assert isinstance(answers[0], StoreBusy)
    assert answers[1] is None
    bench.apply(commit(unlucky, effect))
    assert len(backend.query("SELECT exec_id FROM effects")) == 2
    bench.assert_sound()
