"""A commit effect never outlives its job: whatever ends the transaction ends the commit step, caught or not."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from holdfast.core.states import ExecutionStatus
from holdfast.errors import BadInput, JobNotFoundError, LeaseLost, StoreBusy, StoreUnavailable
from holdfast.store.commands import StoreTransaction
from tests.contract.test_full_disk import limit_pages
from tests.support.backends import Backend, PostgresBackend, on_postgres, on_sqlite
from tests.support.bench import EFFECTS_TABLE, Bench, commit, effect_of, end, finish_step
from tests.support.waiting import PATIENCE, eventually

POSTGRES_SESSION = "holdfast.store.postgres.session.PostgresSession"
ON_CONFLICT = "CREATE TABLE once (n INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)"
TRIGGER = "CREATE TRIGGER refuse BEFORE INSERT ON watched BEGIN SELECT RAISE(ROLLBACK, 'not today'); END"

ENDING = {
    "or rollback": "INSERT OR ROLLBACK INTO plain VALUES (1)",
    "on conflict rollback": "INSERT INTO once VALUES (1)",
    "raise rollback": "INSERT INTO watched VALUES (1)",
    "update or rollback": "UPDATE OR ROLLBACK plain SET n = 1 WHERE n = 2",
    "with returning": "INSERT OR ROLLBACK INTO plain VALUES (1) RETURNING n",
}


@pytest.fixture(autouse=True)
def tables(bench: Bench, backend: Backend) -> None:
    backend.execute(EFFECTS_TABLE)
    if backend.name == "sqlite":
        backend.execute(
            "CREATE TABLE plain (n INTEGER PRIMARY KEY)",
            "INSERT INTO plain VALUES (1), (2)",
            ON_CONFLICT,
            "INSERT INTO once VALUES (1)",
            "CREATE TABLE watched (n INTEGER)",
            TRIGGER,
        )


def effects(backend: Backend) -> list[str]:
    return [str(row[0]) for row in backend.query("SELECT exec_id FROM effects ORDER BY exec_id")]


def go_on_with_execute(tx: StoreTransaction) -> None:
    tx.execute("INSERT INTO effects VALUES ('late', 'late')")


def go_on_with_many(tx: StoreTransaction) -> None:
    tx.executemany("INSERT INTO effects VALUES (?, ?)", [("late", "late")])


@on_sqlite
@pytest.mark.parametrize("statement", ENDING.values(), ids=ENDING.keys())
@pytest.mark.parametrize("go_on", [go_on_with_execute, go_on_with_many, lambda _tx: None])
def test_an_effect_that_catches_the_end_of_its_transaction_leaves_nothing(
    bench: Bench, backend: Backend, statement: str, go_on: Callable[[StoreTransaction], None]
) -> None:
    first, bad, last, step, ended = (bench.running() for _ in range(5))

    def effect(tx: StoreTransaction) -> str:
        effect_of(bad)(tx)
        with suppress(sqlite3.Error):
            tx.execute(statement)
        with suppress(Exception):
            go_on(tx)
        return "{}"

    answers = bench.write(
        commit(first, effect_of(first)),
        commit(bad, effect),
        commit(last, effect_of(last)),
        finish_step(step),
        end(ended),
    )

    assert isinstance(answers.pop(1), Exception)
    assert answers == [None] * 4
    assert effects(backend) == sorted([first.exec_id, last.exec_id])
    assert bench.status(bad) is ExecutionStatus.IN_PROGRESS
    bench.assert_sound()


@on_sqlite
@pytest.mark.parametrize("statement", ENDING.values(), ids=ENDING.keys())
def test_nothing_is_run_behind_the_end_of_a_transaction(bench: Bench, backend: Backend, statement: str) -> None:
    claim = bench.running()
    following = bench.new_job()
    refused: list[BaseException] = []

    def effect(tx: StoreTransaction) -> str:
        with suppress(sqlite3.Error):
            tx.execute(statement)
        calls: list[Callable[[], object]] = [
            lambda: tx.execute("INSERT INTO effects VALUES ('late', 'late')"),
            lambda: tx.executemany("INSERT INTO effects VALUES (?, ?)", [("late", "late")]),
            lambda: tx.submit_job(following),
            lambda: tx.execute("BEGIN"),
        ]
        for call in calls:
            try:
                call()
            except Exception as error:
                refused.append(error)
        return "{}"

    [answer] = bench.write(commit(claim, effect))

    assert isinstance(answer, Exception)
    assert len(refused) == 4
    assert effects(backend) == []
    with pytest.raises(JobNotFoundError):
        bench.job(following.job_id)
    bench.assert_sound()


@on_sqlite
def test_the_end_may_come_from_the_code_that_gives_the_parameters(bench: Bench, backend: Backend) -> None:
    claim = bench.running()

    def effect(tx: StoreTransaction) -> str:
        def rows() -> Iterator[tuple[str, str]]:
            yield ("a", "1")
            with suppress(sqlite3.Error):
                tx.execute("INSERT OR ROLLBACK INTO plain VALUES (1)")
            yield ("a", "2")

        with suppress(Exception):
            tx.executemany("INSERT INTO effects VALUES (?, ?) RETURNING exec_id", rows())
        return "{}"

    [answer] = bench.write(commit(claim, effect))

    assert isinstance(answer, Exception)
    assert effects(backend) == []


@on_sqlite
def test_an_effect_that_catches_a_full_disk_is_run_again_when_there_is_room(bench: Bench, backend: Backend) -> None:
    claim, other = bench.running(), bench.running()
    limit_pages(bench, 3)

    def effect(tx: StoreTransaction) -> str:
        with suppress(sqlite3.Error):
            tx.execute("INSERT INTO effects VALUES ('big', '" + "x" * 1_000_000 + "')")
        with suppress(Exception):
            tx.execute("INSERT INTO effects VALUES ('small', 'small')")
        return "{}"

    with pytest.raises(StoreUnavailable):
        bench.write(commit(claim, effect), finish_step(other))
    limit_pages(bench, -1)

    assert effects(backend) == []
    bench.apply(commit(claim, effect), finish_step(other))
    assert len(effects(backend)) == 2
    bench.assert_sound()


@on_postgres
@pytest.mark.parametrize("statement", ["-- a\rCOMMIT", "/* a /* b */ */ COMMIT", "; ;COMMIT", "/*/**/*/ROLLBACK"])
def test_a_control_statement_behind_comments_is_refused(bench: Bench, backend: Backend, statement: str) -> None:
    claim, another = bench.running(), bench.running()

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        with suppress(BadInput):
            tx.execute(statement)
        return "{}"

    assert bench.write(commit(claim, effect), commit(another, effect_of(another))) == [None, None]
    assert effects(backend) == sorted([claim.exec_id, another.exec_id])
    bench.assert_sound()


@on_postgres
def test_an_aborted_transaction_can_be_gone_on_with_as_on_any_other_database(bench: Bench, backend: Backend) -> None:
    claim = bench.running()

    def effect(tx: StoreTransaction) -> str:
        for statement in ("SELECT 1/0", "COPY effects TO STDOUT", "/* */ copy effects FROM stdin", "CALL nothing()"):
            with pytest.raises(Exception):  # noqa: B017 - each has its own error
                tx.execute(statement)
        return effect_of(claim)(tx)

    [answer] = bench.write(commit(claim, effect))

    assert answer is None
    assert effects(backend) == [claim.exec_id]


@on_postgres
def test_an_effect_that_ends_its_connection_every_time_is_not_tried_for_ever(bench: Bench, backend: Backend) -> None:
    bad, good = bench.running(), bench.running()
    answers: list[Exception | None] = []

    def effect(tx: StoreTransaction) -> str:
        tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return "{}"

    for _ in range(10):
        with suppress(StoreUnavailable):
            answers = bench.write(commit(bad, effect), commit(good, effect_of(good)))
            break

    assert isinstance(answers[0], Exception)
    assert answers[1] is None
    assert effects(backend) == [good.exec_id]
    bench.assert_sound()


# --- cursors --------------------------------------------------------------------------------------------------


def test_rows_of_executemany_that_nobody_has_read_keep_nothing_from_going_on(bench: Bench, backend: Backend) -> None:
    insert = f"INSERT INTO effects VALUES ('a', {backend.parameter}) RETURNING exec_id"
    bad, good, step = bench.running(), bench.running(), bench.running()
    kept: list[object] = []

    def effect(tx: StoreTransaction) -> str:
        kept.append(tx.executemany(insert, [("1",), ("2",)]))
        raise ValueError("not wanted")

    answers = bench.write(commit(bad, effect), commit(good, effect_of(good)), finish_step(step))

    assert isinstance(answers[0], ValueError)
    assert answers[1:] == [None, None]
    assert effects(backend) == [good.exec_id]


@on_sqlite
def test_rows_left_unread_by_parameters_that_fail_keep_nothing_from_going_on(bench: Bench, backend: Backend) -> None:
    bad, good = bench.running(), bench.running()
    kept: list[BaseException] = []

    def effect(tx: StoreTransaction) -> str:
        def rows() -> Iterator[tuple[str]]:
            yield ("1",)
            raise ValueError("no more")

        try:
            tx.executemany("INSERT INTO effects VALUES ('a', ?) RETURNING exec_id", rows())
        except ValueError as error:
            kept.append(error)
        return "{}"

    assert bench.write(commit(bad, effect), commit(good, effect_of(good))) == [None, None]
    assert effects(backend) == sorted(["1", good.exec_id])


def test_the_connection_is_out_of_reach_of_an_effect(bench: Bench, backend: Backend) -> None:
    claim = bench.running()

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        tx.execute("SELECT 1").connection.commit()
        return "{}"

    [answer] = bench.write(commit(claim, effect))

    assert isinstance(answer, AttributeError)
    assert effects(backend) == []


def test_rows_have_what_a_cursor_has_for_reading(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    seen: list[object] = []

    def effect(tx: StoreTransaction) -> str:
        inserted = tx.execute("INSERT INTO effects VALUES ('a', '1'), ('a', '2'), ('a', '3'), ('a', '4')")
        seen.append(inserted.rowcount)
        rows = tx.execute("SELECT exec_id FROM effects ORDER BY exec_id")
        seen.append(rows.description[0][0])
        seen.append(next(rows))
        seen.append(rows.fetchmany(2))
        seen.append(list(rows))
        seen.append(rows.fetchone())
        return "{}"

    bench.apply(commit(claim, effect))

    assert seen == [4, "exec_id", ("1",), [("2",), ("3",)], [("4",)], None]


def test_rows_are_of_no_use_after_the_effect(bench: Bench) -> None:
    claim = bench.running()
    kept: list[object] = []

    def effect(tx: StoreTransaction) -> str:
        kept.append(tx.execute("SELECT 1 UNION ALL SELECT 2"))
        return "{}"

    bench.apply(commit(claim, effect))
    with pytest.raises(BadInput):
        kept[0].fetchone()  # type: ignore[attr-defined]


# --- threads --------------------------------------------------------------------------------------------------


class Lingering(Sequence[str]):
    """Parameters that are being looked at when the effect ends, and for a moment after that."""

    def __init__(self) -> None:
        self.looked_at, self.over = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        if index > 1:
            raise IndexError
        self.looked_at.set()
        self.over.wait(0.5)
        return "late"


def test_a_thread_that_an_effect_leaves_behind_is_inside_its_transaction_or_refused(
    bench: Bench, backend: Backend
) -> None:
    bad, good = bench.running(), bench.running()
    lingering = Lingering()
    left: list[threading.Thread] = []
    refusals: list[BaseException] = []

    def go_on(tx: StoreTransaction) -> None:
        insert = f"INSERT INTO effects VALUES ({backend.parameter}, {backend.parameter})"
        tx.execute(insert, lingering)
        lingering.over.wait(PATIENCE)
        try:
            tx.execute(insert, ("later", "later"))
        except BadInput as error:
            refusals.append(error)

    def effect(tx: StoreTransaction) -> str:
        left.append(threading.Thread(target=go_on, args=(tx,)))
        left[0].start()
        assert lingering.looked_at.wait(PATIENCE)
        raise ValueError("not wanted")

    answers = bench.write(commit(bad, effect), commit(good, effect_of(good)))
    lingering.over.set()
    left[0].join(PATIENCE)

    assert isinstance(answers[0], ValueError)
    assert answers[1] is None
    assert len(refusals) == 1
    assert effects(backend) == [good.exec_id]
    bench.assert_sound()


@on_sqlite
def test_an_effect_that_waits_for_a_thread_which_waits_for_it_fails(
    bench: Bench, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.sqlite.database.TURN", 0.2)
    claim = bench.running()
    found: list[BaseException] = []

    def submit() -> None:
        try:
            bench.submit()
        except StoreBusy as error:
            found.append(error)

    def effect(tx: StoreTransaction) -> str:
        thread = threading.Thread(target=submit)
        thread.start()
        thread.join(PATIENCE)
        raise found[0]

    [answer] = bench.write(commit(claim, effect))

    assert isinstance(answer, StoreBusy)
    bench.apply(commit(claim, effect_of(claim)))
    bench.assert_sound()


# --- what an effect does to the connection ends with it -------------------------------------------------------


@on_postgres
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT set_config('search_path', 'pg_catalog', false)",
        "SET LOCAL ROLE pg_monitor",
        "SELECT set_config('role', 'pg_monitor', false)",
        "SELECT set_config('session_authorization', 'harmless', false)",
        "SET LOCAL session_replication_role = replica",
        "SELECT set_config('default_transaction_read_only', 'on', false)",
        "SELECT set_config('statement_timeout', '1', false)",
        "SET LOCAL lock_timeout = 1",
        "SET CONSTRAINTS ALL DEFERRED",
        "CREATE TEMP TABLE jobs (job_id text)",
        "CREATE TEMP TABLE executions AS SELECT 1 AS exec_id",
        "LISTEN something",
    ],
)
def test_what_an_effect_sets_does_not_reach_the_engine(bench: Bench, backend: PostgresBackend, statement: str) -> None:
    claim, beside = bench.running(), bench.running()
    with suppress(Exception):
        backend.server.execute("CREATE ROLE harmless")

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        tx.execute(statement)
        return "{}"

    bench.apply(commit(claim, effect), commit(beside, effect_of(beside)))
    for _ in range(12):  # one of them is on the same connection
        later = bench.running()
        bench.apply(finish_step(later))
        bench.apply(commit(later, effect_of(later), position=1))

    assert len(effects(backend)) == 14
    assert bench.status(claim) is ExecutionStatus.COMMITTED
    bench.assert_sound()


@on_postgres
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_advisory_lock(7)",
        "SELECT pg_try_advisory_lock(7)",
        "DECLARE held CURSOR WITH HOLD FOR SELECT 1",
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_what_an_effect_holds_is_given_back_with_its_transaction(
    bench: Bench, backend: PostgresBackend, statement: str, fails: bool
) -> None:
    claim = bench.running()

    def effect(tx: StoreTransaction) -> str:
        tx.execute(statement)
        if fails:
            raise ValueError("not wanted")
        return "{}"

    bench.write(commit(claim, effect))

    held = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"
    eventually(lambda: not backend.query(held), "the server has given its locks back")
    for _ in range(12):  # one of them is on the same connection
        later = bench.running()
        bench.write(commit(later, effect))
        assert bench.status(later) is (ExecutionStatus.IN_PROGRESS if fails else ExecutionStatus.COMMITTED)
    bench.assert_sound()


@on_sqlite
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TEMP TABLE jobs (job_id text)",
        "CREATE TEMPORARY VIEW executions AS SELECT 1 AS exec_id",
        "CREATE TABLE temp.steps (a)",
        "/* x */ CREATE /* y */ TEMP TRIGGER t BEFORE INSERT ON main.journal BEGIN SELECT RAISE(IGNORE); END",
    ],
)
def test_a_temporary_table_does_not_hide_the_engines(bench: Bench, backend: Backend, statement: str) -> None:
    claim, beside = bench.running(), bench.running()

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        tx.execute(statement)
        return "{}"

    answers = bench.write(commit(claim, effect), commit(beside, effect_of(beside)))
    later = bench.running()
    bench.apply(finish_step(later))

    assert answers == [None, None]
    assert len(effects(backend)) == 2
    assert not isinstance(answers[0], LeaseLost)
    bench.assert_sound()


# --- what is no fault of the step -----------------------------------------------------------------------------


def test_an_effect_that_has_to_be_postponed_leaves_no_commit(
    bench: Bench, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that cannot be read for a moment, met and caught by the step while the transaction stays open."""
    postponed, good = bench.running(), bench.running()
    kind = "holdfast.store.sqlite.store.SqliteSession" if backend.name == "sqlite" else POSTGRES_SESSION
    monkeypatch.setattr(f"{kind}.passing", lambda _self, error: StoreBusy("sick") if "1" in str(error) else None)

    def effect(tx: StoreTransaction) -> str:
        effect_of(postponed)(tx)
        with suppress(Exception):
            tx.execute("SELECT no_such_function_1()")
        return "{}"

    answers = bench.write(commit(postponed, effect), commit(good, effect_of(good)))

    assert isinstance(answers[0], StoreBusy)
    assert answers[1] is None
    assert bench.status(postponed) is ExecutionStatus.IN_PROGRESS
    assert effects(backend) == [good.exec_id]
    bench.assert_sound()
