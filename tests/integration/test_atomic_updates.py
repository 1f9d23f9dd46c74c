"""Atomic updates: each change of state is one transaction, and a crash in it leaves all of it or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.states import Disposition, JobState
from holdfast.crash_points import set_hook
from tests.support.backends import SqliteBackend
from tests.support.bench import (
    EFFECTS_TABLE,
    OLD,
    OPERATOR,
    Bench,
    SettableClock,
    begin,
    commit,
    effect_of,
    end,
    finish,
    finish_step,
    plan_ending,
    record_try,
    rewind_to,
)


class DiedError(BaseException):
    """The process died here. A base exception, so that nothing on the way can take it for an error of its own."""


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "other")
    yield backend
    set_hook(None)
    backend.close()


@pytest.fixture
def bench(backend: SqliteBackend) -> Bench:
    clock = SettableClock()
    return Bench(backend.open(clock), clock)


def die_at(side: str) -> None:
    def hook(name: str) -> None:
        if name.endswith(side):
            raise DiedError(name)

    set_hook(hook)


def everything(backend: SqliteBackend) -> dict[str, list[tuple[object, ...]]]:
    tables = [
        name
        for (name,) in backend.query("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    ]
    return {table: backend.query(f"SELECT * FROM {table}") for table in tables}


Change = Callable[[Bench], object]


def changes() -> dict[str, Callable[[Bench], Change]]:
    """Each prepares a job and returns the change to be interrupted."""

    def submit(bench: Bench) -> Change:
        after = bench.submit()
        return lambda b: b.store.submit([b.new_job(key="k", run_after=after), b.new_job()], actor="x")

    def claim(bench: Bench) -> Change:
        for _ in range(3):
            bench.submit()
        return lambda b: b.claim()

    def write(
        make: Callable[..., object], *, committed: bool = False, leased: bool = False
    ) -> Callable[[Bench], Change]:
        def prepare(bench: Bench) -> Change:
            if leased:
                bench.submit(**OLD)
                one = bench.take()
            else:
                one = bench.running()
                bench.submit(run_after=one.job.job_id)
                bench.apply(finish_step(one))
            if committed:
                bench.apply(commit(one, position=1))
            return lambda b: b.apply(make(one))  # type: ignore[arg-type]

        return prepare

    def recover(bench: Bench) -> Change:
        bench.running()
        bench.committed()
        bench.expire()
        return lambda b: b.recover()

    def operator(verb: Callable[[Bench, str], object], state: str) -> Callable[[Bench], Change]:
        def prepare(bench: Bench) -> Change:
            if state == "pending":
                job_id = bench.submit()
            elif state == "running":
                job_id = bench.running().job.job_id
            else:
                job_id = bench.ended(Disposition(state))
            return lambda b: verb(b, job_id)

        return prepare

    def prune(bench: Bench) -> Change:
        bench.succeeded()
        return lambda b: b.store.prune(before=b.clock() + 1, limit=9, actor=OPERATOR, dry_run=False)

    return {
        "submit": submit,
        "claim": claim,
        "begin": write(begin, leased=True),
        "finish step": write(lambda c: finish_step(c, 1, "two")),
        "record try": write(record_try),
        "rewind": write(rewind_to),
        "plan ending": write(plan_ending),
        "end": write(end),
        "commit with effect": write(lambda c: commit(c, effect_of(c), position=1)),
        "finish": write(finish, committed=True),
        "recover": recover,
        "cancel": operator(lambda b, j: b.store.cancel(j, actor=OPERATOR, reason="x"), "pending"),
        "fail": operator(lambda b, j: b.store.fail(j, actor=OPERATOR, reason="x", quarantine=True), "running"),
        "retry": operator(
            lambda b, j: b.store.retry(j, actor=OPERATOR, reason="x", from_state=JobState.FAILED), "failed"
        ),
        "prune": prune,
    }


@pytest.mark.parametrize("name", changes())
def test_a_change_that_was_cut_off_before_its_commit_left_no_trace(
    bench: Bench, backend: SqliteBackend, name: str
) -> None:
    backend.execute(EFFECTS_TABLE)
    change = changes()[name](bench)
    before = everything(backend)
    die_at("before-commit")
    with pytest.raises(DiedError):
        change(bench)
    set_hook(None)

    assert everything(backend) == before
    bench.assert_sound()
    change(bench)
    bench.assert_sound()
    assert everything(backend) != before


@pytest.mark.parametrize("name", changes())
def test_a_change_that_was_cut_off_after_its_commit_is_whole(bench: Bench, backend: SqliteBackend, name: str) -> None:
    backend.execute(EFFECTS_TABLE)
    change = changes()[name](bench)
    before = everything(backend)
    die_at("after-commit")
    with pytest.raises(DiedError):
        change(bench)
    set_hook(None)

    assert everything(backend) != before
    bench.assert_sound()
    reopened = Bench(backend.open(bench.clock), bench.clock)
    reopened.assert_sound()


def test_a_batch_of_writes_is_one_transaction(bench: Bench) -> None:
    claims = [bench.running() for _ in range(5)]
    die_at("before-commit")
    with pytest.raises(DiedError):
        bench.write(*(finish_step(claim) for claim in claims[:3]), commit(claims[3]), end(claims[4]))
    set_hook(None)

    assert [bench.store.steps(claim.job.job_id) for claim in claims] == [[]] * 5
    assert {bench.state(claim.job.job_id) for claim in claims} == {JobState.RUNNING}
