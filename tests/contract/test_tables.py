"""An application's own tables, in the database of either store."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Engine, Flow, JobState, Run, Tables, Transaction
from holdfast.errors import BadInput, DefinitionError, RowRefused, RowUnreadable, StoreError, StoreTooNew
from holdfast.sql_files import Migration
from holdfast.store.place import ENGINE_TABLES
from holdfast.tables import OpenTables
from tests.support.backends import Backend
from tests.support.processes import join_all, start

FIRST = "-- Things\nCREATE TABLE things (name TEXT PRIMARY KEY, size BIGINT NOT NULL CHECK (size >= 0))"
SECOND = "-- When\nALTER TABLE things ADD COLUMN made_at TIMESTAMP"
INSERT = "INSERT INTO things (name, size) VALUES (:name, :size)"
ALL = "SELECT * FROM things ORDER BY name"


class Thing(msgspec.Struct):
    name: str
    size: int


class Dated(msgspec.Struct):
    name: str
    made_at: datetime


def things(*migrations: str) -> Tables:
    return Tables("things", migrations=migrations or (FIRST,), statements={"all_things": ALL}, known_by=("name",))


@pytest.fixture
def opened(backend: Backend) -> Iterator[OpenTables]:
    with things().open(backend.place) as tables:
        yield tables


def versions(tables: OpenTables) -> list[tuple[Any, ...]]:
    found = tables.run("SELECT version, description FROM things_migrations ORDER BY version")
    return [(version, description.partition(" [")[0]) for version, description in found]


# --- migrations ---


def test_tables_are_made_once_and_brought_up_to_date(backend: Backend) -> None:
    with things().open(backend.place) as before:
        before.run(INSERT, name="a", size=1)
        things().open(backend.place).close()
    with things(FIRST, SECOND).open(backend.place) as after:
        assert versions(after) == [(1, "Things"), (2, "When")]
        assert after.rows(Thing, "all_things") == [Thing("a", 1)]


@pytest.mark.parametrize("are_more", [False, True])
def test_a_migration_that_was_changed_after_it_had_been_applied_is_refused(
    opened: OpenTables, backend: Backend, are_more: bool
) -> None:
    changed = things(FIRST.replace("size", "length"), *([SECOND] if are_more else []))

    with pytest.raises(DefinitionError, match="migration 1 was changed after"):
        changed.open(backend.place)
    with pytest.raises(DefinitionError, match="migration 1 was changed after"):
        changed.are_made(backend.place)
    assert versions(opened) == [(1, "Things")]


def test_how_a_migration_is_laid_out_does_not_count(opened: OpenTables, backend: Backend) -> None:
    things(FIRST.replace("\n", "\n    ") + ";\n", SECOND).open(backend.place).close()

    assert versions(opened) == [(1, "Things"), (2, "When")]


def test_a_migration_of_which_no_digest_is_on_record_is_believed(opened: OpenTables, backend: Backend) -> None:
    opened.run("UPDATE things_migrations SET description = NULL")

    things(FIRST.replace("size", "length"), SECOND).open(backend.place).close()

    assert len(opened.run("SELECT version FROM things_migrations")) == 2


def open_things(place: str) -> None:
    things(FIRST, SECOND).open(place).close()


def test_of_several_processes_at_once_one_migrates(backend: Backend) -> None:
    codes = join_all([start(open_things, backend.place) for _ in range(6)])

    assert codes == [0] * 6
    with things(FIRST, SECOND).open(backend.place) as tables:
        assert versions(tables) == [(1, "Things"), (2, "When")]


def killed_in_migration(place: str) -> None:
    # Asked for behind the statements of the migration, and before the commit.
    Migration.description = property(lambda self: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[assignment]
    things().open(place)


def test_a_process_killed_in_a_migration_leaves_the_tables_as_they_were(backend: Backend) -> None:
    Engine.open(backend.place).close()

    assert join_all([start(killed_in_migration, backend.place)]) == [-signal.SIGKILL]
    with things().open(backend.place) as tables:
        assert versions(tables) == [(1, "Things")]
        assert tables.rows(Thing, "all_things") == []


def test_a_migration_that_fails_changes_nothing(backend: Backend) -> None:
    with things().open(backend.place) as tables:
        with pytest.raises(StoreError):
            things(FIRST, "CREATE TABLE more (x INTEGER);\nCREATE TABLE things (y INTEGER)").open(backend.place)

        assert versions(tables) == [(1, "Things")]
        with pytest.raises(StoreError):
            tables.run("SELECT * FROM more")


@pytest.mark.parametrize(
    "harm",
    ["DROP TABLE journal", "ALTER TABLE jobs RENAME TO mine", "CREATE INDEX own ON jobs (priority)", "COMMIT"],
    ids=lambda text: str(text).split()[0].lower(),
)
def test_a_migration_that_touches_the_engine_or_ends_its_transaction_is_refused(backend: Backend, harm: str) -> None:
    Engine.open(backend.place).close()
    with pytest.raises((DefinitionError, StoreError)):
        things(f"{FIRST};\n{harm}").open(backend.place)

    with Engine.open(backend.place) as engine:
        assert engine.check() == []
    assert not things().are_made(backend.place)


def test_nothing_is_made_by_asking(backend: Backend) -> None:
    assert not things().are_made(backend.place)
    with things().open(backend.place):
        assert things().are_made(backend.place)
        assert not things(FIRST, SECOND).are_made(backend.place)


@pytest.mark.parametrize("name", ["holdfast", "schema"])
def test_the_ledgers_of_others_are_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="engine's own"):
        Tables(name, migrations=[FIRST])
    with pytest.raises(DefinitionError, match="engine's own"):
        Tables("mine", ledger="jobs", migrations=[FIRST])


def test_the_tables_of_the_engine_are_all_reserved(backend: Backend) -> None:
    Engine.open(backend.place).close()
    if backend.name == "sqlite":
        found = backend.query("SELECT name FROM sqlite_master WHERE type = 'table'")
    else:
        found = backend.query("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")

    assert {name for (name,) in found} <= ENGINE_TABLES


def test_what_is_to_read_writes_nothing_and_says_so(opened: OpenTables) -> None:
    with pytest.raises(BadInput):
        opened.row(Thing, INSERT + " RETURNING *", name="a", size=1)

    assert opened.rows(Thing, "all_things") == []


def test_a_colon_in_a_literal_or_a_comment_is_no_parameter(opened: OpenTables) -> None:
    opened.run("INSERT INTO things (name, size) VALUES ('see :Size ''and'' :size', :Size) -- not :this", Size=7)

    assert opened.run("SELECT name, size FROM things /* nor :that */") == [("see :Size 'and' :size", 7)]


def test_tables_of_a_newer_program_are_left_alone(opened: OpenTables, backend: Backend) -> None:
    opened.run("INSERT INTO things_migrations (version, description) VALUES (9, 'of the future')")

    with pytest.raises(StoreTooNew, match="version 9"):
        things().open(backend.place)


@pytest.mark.parametrize("name", ["", "Things", "a-b", "1a", "a" * 49])
def test_a_name_that_cannot_be_a_table_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError):
        Tables(name, migrations=[FIRST])


def test_migrations_are_given_or_in_a_package() -> None:
    with pytest.raises(DefinitionError):
        Tables("things")
    with pytest.raises(DefinitionError):
        Tables("things", migrations=[FIRST], package="holdfast_images.catalog")


# --- rows ---


def test_a_refused_row_changes_nothing(opened: OpenTables) -> None:
    opened.run(INSERT, name="a", size=1)
    for name, size in (("a", 2), ("b", -1), ("c", 2**70), ("d\ud800", 1)):
        with pytest.raises(RowRefused):
            opened.run(INSERT, name=name, size=size)

    assert opened.rows(Thing, ALL) == [Thing("a", 1)]


def test_a_transaction_happens_whole_or_not_at_all(opened: OpenTables) -> None:
    def write_twice() -> None:
        with opened.writing() as session:
            session.run(INSERT, name="a", size=1)
            session.run(INSERT, name="a", size=1)

    with pytest.raises(RowRefused):
        write_twice()

    assert opened.rows(Thing, ALL) == []


def write_inside(outer: OpenTables, inner: OpenTables) -> None:
    with outer.writing() as session:
        session.run(INSERT, name="a", size=1)
        inner.run("SELECT 1")


def test_a_second_writer_of_the_same_thread_is_refused_at_once_on_sqlite(tmp_path: Path) -> None:
    others = Tables("others", migrations=["CREATE TABLE others (name TEXT)"])
    with things().open(tmp_path) as first, others.open(tmp_path) as second:
        for inner in (first, second):
            with pytest.raises(BadInput, match="this thread is writing"):
                write_inside(first, inner)
        first.run(INSERT, name="b", size=2)

        assert [row.name for row in first.rows(Thing, "all_things")] == ["b"]


def test_a_row_that_is_no_record_is_named(opened: OpenTables) -> None:
    class Even(msgspec.Struct):
        name: str
        size: bool

    opened.run(INSERT, name="good", size=1)
    opened.run(INSERT, name="bad", size=7)
    with pytest.raises(RowUnreadable, match="name 'bad'"):
        opened.rows(Even, ALL)
    with opened.reading() as session:
        assert [which for which, _ in session.unreadable(Even, ALL)] == ["name 'bad'"]


def test_times_have_a_zone_on_every_database(backend: Backend) -> None:
    migration = SECOND.replace("TIMESTAMP", "TIMESTAMP WITH TIME ZONE") if backend.name == "postgres" else SECOND
    with things(FIRST, migration).open(backend.place) as tables:
        tables.run("INSERT INTO things (name, size, made_at) VALUES ('a', 1, CURRENT_TIMESTAMP)")
        found = tables.row(Dated, ALL)

    assert found is not None
    assert abs((datetime.now(UTC) - found.made_at).total_seconds()) < 60


def test_a_percent_sign_is_one_with_and_without_parameters(opened: OpenTables) -> None:
    assert opened.run("SELECT '5%' AS share") == [("5%",)]
    assert opened.run("SELECT '5%' AS share WHERE 1 = :one", one=1) == [("5%",)]


def test_one_that_is_not_there_is_none_and_an_unknown_name_is_a_mistake(opened: OpenTables) -> None:
    assert opened.row(Thing, ALL) is None
    with pytest.raises(BadInput, match="no_such"):
        opened.run("no_such")
    with pytest.raises(StoreError):
        opened.run("SELECT * FROM nowhere")


def test_many_threads_share_the_connections(opened: OpenTables) -> None:
    threads = [
        threading.Thread(target=opened.run, args=[INSERT], kwargs={"name": str(n), "size": n}) for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(opened.rows(Thing, ALL)) == 20


# --- with the engine ---


def flow_of(tables: Tables, failures: list[Exception]) -> Flow[Thing, None]:
    def record(run: Run[Thing, None], tx: Transaction) -> None:
        session = tables.on(tx)
        session.run(INSERT, name=run.request.name, size=run.request.size)
        if session.rows(Thing, "all_things") != [run.request]:
            raise AssertionError("what was written is not there")
        if failures:
            raise failures.pop()

    return Flow("keep-thing", request=Thing, response=type(None), tables=[tables]).commit("record", record, retry=2)


@pytest.mark.parametrize("failures", [[], [ValueError("no")]], ids=["at once", "at the second try"])
def test_a_commit_step_writes_once(backend: Backend, failures: list[Exception]) -> None:
    flow = flow_of(things(), list(failures))
    with Engine.open(backend.place, flows=[flow]) as engine, engine.worker():
        state = engine.wait(engine.submit(flow, Thing("a", 1)), timeout=30).state
        rows = engine.tables(flow.tables[0]).rows(Thing, ALL)  # type: ignore[arg-type]

    assert (state, rows) == (JobState.SUCCEEDED, [Thing("a", 1)])


def test_a_refused_row_of_a_commit_step_can_be_dealt_with(backend: Backend) -> None:
    tables = things()
    caught: list[str] = []

    def record(_run: Run[Thing, None], tx: Transaction) -> None:
        session = tables.on(tx)
        session.run(INSERT, name="a", size=1)
        try:
            session.run(INSERT, name="a", size=2)
        except RowRefused as error:
            caught.append(type(error).__name__)
        session.run(INSERT, name="b", size=2)

    flow = Flow("deal", request=Thing, response=type(None), tables=[tables]).commit("record", record)
    with Engine.open(backend.place, flows=[flow]) as engine, engine.worker():
        state = engine.wait(engine.submit(flow, Thing("x", 1)), timeout=30).state
        rows = engine.tables(tables).rows(Thing, ALL)

    assert (state, caught) == (JobState.SUCCEEDED, ["RowRefused"])
    assert [row.name for row in rows] == ["a", "b"]


def test_the_path_of_the_user_is_as_before_behind_a_statement(backend: Backend) -> None:
    if backend.name != "postgres":
        pytest.skip("a file has no search path")
    tables = things()
    paths: list[Any] = []

    def record(_run: Run[Thing, None], tx: Transaction) -> None:
        tx.execute("SET LOCAL search_path TO public, pg_catalog")
        tables.on(tx).run(INSERT, name="a", size=1)
        paths.append(tx.execute("SHOW search_path").fetchone())

    flow = Flow("paths", request=Thing, response=type(None), tables=[tables]).commit("record", record)
    with Engine.open(backend.place, flows=[flow]) as engine, engine.worker():
        engine.wait(engine.submit(flow, Thing("x", 1)), timeout=30)

    assert paths == [("public, pg_catalog",)]


def killed_behind_its_write(place: str) -> None:
    tables = things()

    def record(_run: Run[Thing, None], tx: Transaction) -> None:
        tables.on(tx).run(INSERT, name="a", size=1)
        os.kill(os.getpid(), signal.SIGKILL)

    flow = Flow("keep-thing", request=Thing, response=type(None), tables=[tables]).commit("record", record, retry=2)
    with Engine.open(place, flows=[flow]) as engine, engine.worker(lease=1):
        engine.wait(engine.submit(flow, Thing("a", 1), key="a"), timeout=30)


def test_a_worker_killed_in_a_commit_step_leaves_nothing_and_the_next_writes_once(backend: Backend) -> None:
    codes = join_all([start(killed_behind_its_write, backend.place)])
    flow = flow_of(things(), [])
    with Engine.open(backend.place, flows=[flow]) as engine:
        before = engine.tables(flow.tables[0]).rows(Thing, ALL)  # type: ignore[arg-type]
        job = engine.submit(flow, Thing("a", 1), key="a")  # the one that was killed, as long as it has not ended
        with engine.worker(lease=1):
            state = engine.wait(job, timeout=60).state
        after = engine.tables(flow.tables[0]).rows(Thing, ALL)  # type: ignore[arg-type]

    assert codes == [-signal.SIGKILL]
    assert (before, state, after) == ([], JobState.SUCCEEDED, [Thing("a", 1)])


def test_two_sets_of_tables_cannot_have_one_name(backend: Backend) -> None:
    with Engine.open(backend.place) as engine:
        engine.tables(things())
        with pytest.raises(BadInput, match="things"):
            engine.tables(things())


def test_the_engine_finds_nothing_wrong_with_them(opened: OpenTables, backend: Backend) -> None:
    with Engine.open(backend.place) as engine:
        assert list(engine.findings) == []
        assert engine.check(deep=True) == []


def test_what_is_no_transaction_is_refused() -> None:
    with pytest.raises(BadInput, match="no transaction"):
        things().on(object())  # type: ignore[arg-type]


# --- the first program that anybody reads ---


def test_the_order_of_the_readme_is_taken_on_every_database(backend: Backend, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    [shown] = re.findall(r"^```text output\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = program.replace('Engine.open("state"', f"Engine.open({backend.place!r}")
    runs = [
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
        for _ in range(2)
    ]

    assert [(run.returncode, run.stdout) for run in runs] == [(0, shown)] * 2, runs[0].stderr
