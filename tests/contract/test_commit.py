"""Exactly once: the effect, the mark, the response and the journal are one transaction, or none of them is there."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast.core.states import ExecutionStatus, JobState
from holdfast.errors import BadInput, JobNotFoundError, LeaseLost, StepCancelled, StoreError, StoreUnavailable
from holdfast.store.commands import StoreTransaction
from tests.support.backends import Backend, PostgresBackend, on_postgres, on_sqlite
from tests.support.bench import (
    EFFECTS_TABLE,
    OPERATOR,
    OTHER,
    Bench,
    commit,
    effect_of,
    end,
    failing_effect,
    finish,
    finish_step,
    record_try,
)


@pytest.fixture(autouse=True)
def effects_table(bench: Bench, backend: Backend) -> None:
    backend.execute(EFFECTS_TABLE)


def effects(backend: Backend) -> list[str]:
    return [str(row[0]) for row in backend.query("SELECT exec_id FROM effects ORDER BY exec_id")]


def test_an_effect_is_there_with_the_commit(bench: Bench, backend: Backend) -> None:
    claim = bench.running()

    bench.apply(commit(claim, effect_of(claim, '{"size":1}')))

    assert bench.status(claim) is ExecutionStatus.COMMITTED
    assert effects(backend) == [claim.exec_id]
    assert bench.store.steps(claim.job.job_id)[-1].response == '{"size":1}'
    bench.assert_sound()


def test_an_effect_that_fails_is_taken_back_and_its_error_is_the_answer(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    error = ValueError("out of stock")

    answers = bench.write(commit(claim, failing_effect(claim, error)))

    assert answers == [error]
    assert effects(backend) == []
    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS
    assert bench.store.steps(claim.job.job_id) == []
    bench.assert_sound()


def test_after_a_failed_effect_the_same_execution_may_try_again(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    bench.write(commit(claim, failing_effect(claim, ValueError("busy"))))

    bench.apply(commit(claim, effect_of(claim)))

    assert effects(backend) == [claim.exec_id]


def test_one_failing_effect_of_a_batch_leaves_the_others_in_peace(bench: Bench, backend: Backend) -> None:
    first, bad, last, step, ended = (bench.running() for _ in range(5))
    error = ValueError("no")

    answers = bench.write(
        commit(first, effect_of(first)),
        commit(bad, failing_effect(bad, error)),
        finish_step(step),
        commit(last, effect_of(last)),
        end(ended),
    )

    assert answers == [None, error, None, None, None]
    assert effects(backend) == sorted([first.exec_id, last.exec_id])
    assert [bench.status(claim).value for claim in (first, bad, last)] == ["committed", "in_progress", "committed"]
    bench.assert_sound()


def test_a_late_commit_does_not_even_run_its_effect(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    bench.expire()
    ran: list[str] = []

    def effect(tx: StoreTransaction) -> str:
        ran.append(claim.exec_id)
        return effect_of(claim)(tx)

    [answer] = bench.write(commit(claim, effect))

    assert isinstance(answer, LeaseLost)
    assert ran == []
    assert effects(backend) == []


@pytest.mark.parametrize("handed_off", [False, True], ids=["commit step", "handoff"])
def test_a_job_does_not_commit_after_its_cancel_was_acknowledged(
    bench: Bench, backend: Backend, handed_off: bool
) -> None:
    """However late its worker hears of it."""
    claim, other = bench.running(), bench.running()
    bench.store.cancel(claim.job.job_id, actor=OPERATOR, reason="not needed")

    mine = commit(claim) if handed_off else commit(claim, effect_of(claim))
    answers = bench.write(mine, commit(other, effect_of(other)))

    assert isinstance(answers[0], StepCancelled)
    assert str(answers[0]) == "not needed"
    assert answers[1] is None
    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS
    assert effects(backend) == [other.exec_id]
    bench.assert_sound()


def test_of_two_executions_only_one_leaves_an_effect(bench: Bench, backend: Backend) -> None:
    late = bench.running()
    bench.crash()
    winner = bench.take(OTHER)
    bench.apply(commit(winner, effect_of(winner)), worker=OTHER)

    [answer] = bench.write(commit(late, effect_of(late)))

    assert isinstance(answer, LeaseLost)
    assert effects(backend) == [winner.exec_id]


def test_the_same_commit_twice_in_one_batch_leaves_one_effect(bench: Bench, backend: Backend) -> None:
    claim = bench.running()

    with suppress(StoreError):
        bench.write(commit(claim, effect_of(claim)), commit(claim, effect_of(claim)))

    assert len(effects(backend)) <= 1
    assert bench.findings() == []


def test_an_effect_sees_what_it_has_written(bench: Bench) -> None:
    claim = bench.running()
    seen: list[int] = []

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        seen.append(tx.execute("SELECT count(*) FROM effects").fetchone()[0])
        return "{}"

    bench.apply(commit(claim, effect))

    assert seen == [1]


def test_others_do_not_see_an_effect_before_its_commit(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    seen: list[list[str]] = []

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        seen.append(effects(backend))
        return "{}"

    bench.apply(commit(claim, effect))

    assert seen == [[]]


def test_a_statement_that_fails_can_be_caught_by_the_effect(bench: Bench, backend: Backend) -> None:
    claim = bench.running()

    def effect(tx: StoreTransaction) -> str:
        with pytest.raises(Exception):  # noqa: B017 - each database has its own error for it
            tx.execute("INSERT INTO no_such_table VALUES (1)")
        return effect_of(claim)(tx)

    bench.apply(commit(claim, effect))

    assert effects(backend) == [claim.exec_id]


def test_many_rows_can_be_written_with_one_statement(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    insert = f"INSERT INTO effects (job_id, exec_id) VALUES ({backend.parameter}, {backend.parameter})"

    def effect(tx: StoreTransaction) -> str:
        tx.executemany(insert, [("a", str(n)) for n in range(3)])
        return "{}"

    bench.apply(commit(claim, effect))

    assert effects(backend) == ["0", "1", "2"]


CONTROL = [
    "COMMIT",
    "commit",
    "  ROLLBACK",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "END",
    "SAVEPOINT mine",
    "RELEASE effect",
    "ROLLBACK TO effect",
    "-- harmless\nCOMMIT",
    "/* harmless */ COMMIT",
    "/* a */ /* b */ -- c\n COMMIT",
    ";COMMIT",
    "\ufeffCOMMIT",
    "PRAGMA user_version = 7",
    "ATTACH ':memory:' AS other",
    "VACUUM",
]


@pytest.mark.parametrize("statement", CONTROL)
def test_an_effect_cannot_commit_or_roll_back_by_itself(bench: Bench, backend: Backend, statement: str) -> None:
    claim = bench.running()

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        tx.execute(statement)
        return "{}"

    [answer] = bench.write(commit(claim, effect))

    assert isinstance(answer, Exception)
    assert not isinstance(answer, LeaseLost)
    assert effects(backend) == []
    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS
    bench.assert_sound()


def test_control_of_the_transaction_is_refused_with_a_hint(bench: Bench) -> None:
    claim = bench.running()

    [answer] = bench.write(commit(claim, lambda tx: str(tx.execute("COMMIT"))))

    assert isinstance(answer, BadInput)
    assert answer.hint


def test_a_transaction_kept_after_its_effect_is_refused(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    kept: list[StoreTransaction] = []

    def effect(tx: StoreTransaction) -> str:
        kept.append(tx)
        return "{}"

    bench.apply(commit(claim, effect))
    with pytest.raises(BadInput):
        effect_of(claim)(kept[0])

    assert effects(backend) == []


def test_an_effect_that_uses_the_store_itself_is_refused_instead_of_waiting_for_itself(bench: Bench) -> None:
    claim = bench.running()

    def effect(_tx: StoreTransaction) -> str:
        bench.submit()
        return "{}"

    [answer] = bench.write(commit(claim, effect))

    assert isinstance(answer, BadInput)
    assert answer.hint is not None
    assert "tx" in answer.hint
    assert bench.store.counts() == {("demo", "running"): 1}


def test_an_effect_may_look_at_jobs(bench: Bench) -> None:
    claim = bench.running()
    seen: list[JobState] = []

    def effect(_tx: StoreTransaction) -> str:
        seen.append(bench.state(claim.job.job_id))
        return "{}"

    bench.apply(commit(claim, effect))

    assert seen == [JobState.RUNNING]


# --- jobs submitted by an effect ---------------------------------------------------------------------------


def test_a_job_submitted_by_an_effect_exists_with_the_commit(bench: Bench) -> None:
    claim = bench.running()
    following = bench.new_job()

    def effect(tx: StoreTransaction) -> str:
        assert tx.submit_job(following).created
        return "{}"

    bench.apply(commit(claim, effect))

    assert bench.state(following.job_id) is JobState.PENDING
    assert bench.journal(following.job_id)[0].job_to == "pending"
    bench.assert_sound()


def test_a_job_submitted_by_an_effect_that_fails_does_not_exist(bench: Bench) -> None:
    claim = bench.running()
    following = bench.new_job(queue="new", fingerprint="f-9")

    def effect(tx: StoreTransaction) -> str:
        tx.submit_job(following)
        raise ValueError("no")

    [answer] = bench.write(commit(claim, effect))

    assert isinstance(answer, ValueError)
    with pytest.raises(JobNotFoundError):
        bench.job(following.job_id)
    assert list(bench.store.journal(following.job_id)) == []
    assert "f-9" not in bench.store.definitions()
    bench.assert_sound()


def test_a_job_submitted_by_an_effect_is_deduplicated_by_its_key(bench: Bench) -> None:
    there = bench.submit(key="k", flow="other")
    claim = bench.running()
    answers: list[tuple[str, bool]] = []

    def effect(tx: StoreTransaction) -> str:
        submitted = tx.submit_job(bench.new_job(key="k", flow="other"))
        answers.append((submitted.job_id, submitted.created))
        return "{}"

    bench.apply(commit(claim, effect))

    assert answers == [(there, False)]


def test_the_journal_of_one_failed_effect_does_not_mix_with_that_of_another(bench: Bench) -> None:
    bad, good = bench.running(), bench.running()
    job_of_bad, job_of_good = bench.new_job(), bench.new_job()

    def failing(tx: StoreTransaction) -> str:
        tx.submit_job(job_of_bad)
        raise ValueError("no")

    def working(tx: StoreTransaction) -> str:
        tx.submit_job(job_of_good)
        return "{}"

    bench.write(commit(bad, failing), commit(good, working))

    assert list(bench.store.journal(job_of_bad.job_id)) == []
    assert [entry.seq for entry in bench.store.journal(job_of_good.job_id)] == [1]
    bench.assert_sound()


def test_a_commit_without_any_use_of_the_transaction_is_a_commit(bench: Bench) -> None:
    claim = bench.running()

    bench.apply(commit(claim, lambda _tx: '{"a":1}'))
    bench.apply(finish(claim))

    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED


def test_a_cursor_left_open_by_an_effect_does_not_keep_the_commit_from_happening(
    bench: Bench, backend: Backend
) -> None:
    insert = f"INSERT INTO effects (job_id, exec_id) VALUES ({backend.parameter}, {backend.parameter})"
    claim, another = bench.running(), bench.running()
    kept: list[object] = []

    def effect(tx: StoreTransaction) -> str:
        tx.executemany(insert, [("a", str(n)) for n in range(9)])
        cursor = tx.execute("SELECT exec_id FROM effects")
        cursor.fetchone()
        kept.append(cursor)
        returning = tx.execute(
            "INSERT INTO effects (job_id, exec_id) SELECT 'b', exec_id FROM effects RETURNING exec_id"
        )
        returning.fetchone()
        kept.append(returning)
        return "{}"

    [answer] = bench.write(commit(claim, effect))
    bench.apply(record_try(another))

    assert answer is None
    assert bench.status(claim) is ExecutionStatus.COMMITTED


@on_sqlite
def test_a_statement_that_gives_up_the_whole_transaction_fails_its_own_commit_only(
    bench: Bench, backend: Backend
) -> None:
    """`INSERT OR ROLLBACK`, or a trigger that raises ROLLBACK, ends the engine's transaction under its feet."""
    backend.execute("CREATE TABLE once (n INTEGER PRIMARY KEY)", "INSERT INTO once VALUES (1)")
    bad, good = bench.running(), bench.running()

    def effect(tx: StoreTransaction) -> str:
        effect_of(bad)(tx)
        tx.execute("INSERT OR ROLLBACK INTO once VALUES (1)")
        return "{}"

    [answer] = bench.write(commit(bad, effect))
    bench.apply(commit(good, effect_of(good)))

    assert isinstance(answer, Exception)
    assert effects(backend) == [good.exec_id]
    assert bench.status(bad) is ExecutionStatus.IN_PROGRESS
    bench.assert_sound()


# --- a server's own ways to end a transaction ---------------------------------------------------------------


@on_postgres
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1; COMMIT",
        "INSERT INTO effects VALUES ('a', 'b'); COMMIT; BEGIN",
        "START TRANSACTION",
        "ABORT",
        "PREPARE TRANSACTION 'x'",
        "SET search_path TO pg_catalog",
        "RESET ALL",
        "DISCARD ALL",
        "DO $$ BEGIN COMMIT; END $$",
    ],
)
def test_an_effect_cannot_end_the_transaction_of_a_server(bench: Bench, backend: Backend, statement: str) -> None:
    claim, another = bench.running(), bench.running()

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        tx.execute(statement)
        return "{}"

    [answer, other] = bench.write(commit(claim, effect), commit(another, effect_of(another)))

    assert isinstance(answer, Exception)
    assert other is None
    assert effects(backend) == [another.exec_id]
    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS
    bench.assert_sound()


@on_postgres
def test_a_percent_sign_is_a_percent_sign_where_there_are_no_parameters(bench: Bench) -> None:
    claim = bench.running()

    bench.apply(commit(claim, lambda tx: str(tx.execute("SELECT 'a' LIKE 'a%'").fetchone()[0]).lower()))

    assert bench.store.steps(claim.job.job_id)[-1].response == "true"


@on_postgres
def test_an_effect_finds_the_tables_of_its_user_and_not_those_of_the_store(
    bench: Bench, backend: PostgresBackend
) -> None:
    claim, another = bench.running(), bench.running()
    paths: list[str] = []

    def effect(tx: StoreTransaction) -> str:
        paths.append(tx.execute("SHOW search_path").fetchone()[0])
        tx.submit_job(bench.new_job())
        paths.append(tx.execute("SHOW search_path").fetchone()[0])
        return effect_of(claim)(tx)

    bench.apply(commit(claim, effect), commit(another, effect_of(another)))

    assert paths == [backend.user_schema] * 2
    assert backend.query(f"SELECT count(*) FROM {backend.user_schema}.effects") == [(2,)]


@on_postgres
def test_a_connection_killed_inside_an_effect_takes_the_batch_along_and_it_can_be_written_again(
    bench: Bench, backend: PostgresBackend
) -> None:
    claim, another = bench.running(), bench.running()

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        backend.server.kill_backends(f"pid = {tx.execute('SELECT pg_backend_pid()').fetchone()[0]}")
        tx.execute("SELECT 1")
        return "{}"

    batch = [commit(another, effect_of(another)), commit(claim, effect)]
    with pytest.raises(StoreUnavailable):
        bench.write(*batch)

    assert bench.store.evidence(batch) == [False, False]
    assert effects(backend) == []
    bench.apply(commit(another, effect_of(another)), commit(claim, effect_of(claim)))
    assert effects(backend) == sorted([claim.exec_id, another.exec_id])
    bench.assert_sound()
