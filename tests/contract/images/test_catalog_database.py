"""The catalog in the engine's database: migrations, the engine's transaction, processes at once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine, JobState, Run, Transaction
from holdfast.errors import StoreForeign
from holdfast.store.connection_pool import MAX_IDLE
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.catalog.tables import CATALOG
from holdfast_images.errors import CatalogUnavailable, CatalogUnusable, ImageBusy
from tests.support.flows import Answer, Ask, AskFlow
from tests.support.images.catalog_places import CatalogPlace, SqlitePlace, make_place
from tests.support.processes import join_all, start

DESCRIPTIONS = [
    (1, "Initial schema (images, unpacked_images, snapshots tables)"),
    (2, "Add image_locks table for concurrency control"),
    (3, "Add verified files, refusals and reserved device ids"),
    (4, "Add where verified files came from"),
    (5, "Add the identity of the catalog"),
    (6, "Add which machine has the name of a host"),
    (7, "Add new content of images, and what their sources said"),
]
MIGRATIONS = "SELECT version, description FROM schema_migrations ORDER BY version"
ON_SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


def sqlite_of(place: CatalogPlace) -> SqlitePlace:
    assert isinstance(place, SqlitePlace)
    return place


# --- migrations ---


def test_the_migrations_are_recorded_with_their_descriptions(catalog: Catalog, place: CatalogPlace) -> None:
    Catalog.open(place.url).close()

    assert place.execute(MIGRATIONS) == DESCRIPTIONS


def open_and_reserve(url: str, image_id: str, answers: Any) -> None:
    with Catalog.open(url) as catalog:
        answers.put(catalog.reserve_device_id(image_id, range(100)))


def test_eight_processes_migrate_once_and_reserve_eight_ids(place: CatalogPlace) -> None:
    from tests.support.processes import _context

    answers = _context.Queue()
    codes = join_all([start(open_and_reserve, place.url, f"img-{number}", answers) for number in range(8)])

    assert codes == [0] * 8
    assert sorted(answers.get() for _ in range(8)) == list(range(8))
    assert place.execute(MIGRATIONS) == DESCRIPTIONS


@ON_SQLITE
@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_an_older_catalog_is_brought_up_to_date_with_its_rows(place: CatalogPlace, version: int) -> None:
    Engine.open(place.url).close()
    with closing(sqlite3.connect(sqlite_of(place).path)) as connection:
        connection.execute(
            "CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, "
            "applied_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, description TEXT)"
        )
        for migration in CATALOG.migrations("sqlite")[:version]:
            connection.executescript(migration.sql)
            connection.execute(
                "INSERT INTO schema_migrations (version, description) VALUES (?, ?)",
                (migration.version, migration.description),
            )
        connection.execute(
            "INSERT INTO images (image_id, s3_key, local_path, size_bytes, download_status) "
            "VALUES ('old', 'k', '/p', 1, 'completed')"
        )
        connection.commit()
    with Catalog.open(place.url) as catalog:
        image = catalog.check_image_downloaded("k")
        catalog.acquire_image_lock("old", "me")

    assert image is not None
    assert image.image_id == "old"
    assert place.execute(MIGRATIONS) == DESCRIPTIONS


def test_a_newer_catalog_is_left_alone(catalog: Catalog, place: CatalogPlace) -> None:
    place.execute("INSERT INTO schema_migrations (version, description) VALUES (99, 'of the future')")

    with pytest.raises(CatalogUnusable, match="99"):
        Catalog.open(place.url)


@ON_SQLITE
def test_the_tables_have_the_very_columns_of_the_schema(catalog: Catalog, place: CatalogPlace) -> None:
    columns = {
        table: [row[1] for row in place.execute(f"PRAGMA table_info({table})")]
        for table in ("images", "unpacked_images", "snapshots", "image_locks", "schema_migrations")
    }
    indexes = {row[0] for row in place.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}

    assert columns == {
        "images": "id image_id s3_key local_path checksum size_bytes download_status activation_status created_at "
        "downloaded_at activated_at updated_at".split(),
        "unpacked_images": "id image_id device_id device_name device_path size_bytes file_count layout_verified "
        "created_at unpacked_at updated_at".split(),
        "snapshots": "id image_id snapshot_id snapshot_name device_path origin_device_id active created_at "
        "deactivated_at updated_at".split(),
        "image_locks": ["image_id", "locked_at", "locked_by"],
        "schema_migrations": ["version", "applied_at", "description"],
    }
    assert {f"idx_images_{name}" for name in columns["images"] if f"idx_images_{name}" in indexes} == {
        "idx_images_image_id",
        "idx_images_s3_key",
        "idx_images_download_status",
        "idx_images_activation_status",
        "idx_images_downloaded_at",
    }
    assert sum(name.startswith("idx_unpacked_images_") for name in indexes) == 4
    assert sum(name.startswith("idx_snapshots_") for name in indexes) == 6
    assert "idx_image_locks_locked_at" in indexes


@ON_SQLITE
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE images SET download_status = 'nonsense'",
        "UPDATE images SET activation_status = 'nonsense'",
        "UPDATE images SET size_bytes = -1",
        "UPDATE unpacked_images SET layout_verified = 2",
        "UPDATE unpacked_images SET size_bytes = -1",
        "UPDATE unpacked_images SET file_count = -1",
        "UPDATE unpacked_images SET device_id = 'other'",
        "DELETE FROM unpacked_images",
        "UPDATE snapshots SET active = 2",
        "INSERT INTO device_reservations (device_id, image_id) VALUES (16777216, 'a')",
    ],
)
def test_a_stray_shell_cannot_break_the_rules(catalog: Catalog, place: CatalogPlace, statement: str) -> None:
    catalog.store_image_metadata("a", "k", "/p", "c", 1)
    catalog.store_unpacked_image("a", "1", "thin-1", "/x", 1, 1)
    catalog.register_snapshot("a", "2", "snap-a", "/y", "1")

    with pytest.raises(sqlite3.IntegrityError):
        place.execute(statement)


# --- settings of the connections ---


@ON_SQLITE
@pytest.mark.parametrize("synchronous, value", [("FULL", 2), ("NORMAL", 1)])
def test_every_connection_has_the_promised_settings(place: CatalogPlace, synchronous: str, value: int) -> None:
    opened = CATALOG.open(place.url, synchronous=synchronous)
    wanted = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": value, "cache_size": -10000}
    wanted |= {"busy_timeout": 5000, "temp_store": 2, "mmap_size": 268435456}
    with opened.database.reading() as connection:
        got = {pragma: connection.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in wanted}
    opened.close()

    assert got == wanted


@ON_SQLITE
def test_the_file_of_another_application_is_refused_and_left_alone(place: CatalogPlace) -> None:
    with closing(sqlite3.connect(sqlite_of(place).path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")

    with pytest.raises(StoreForeign):
        Catalog.open(place.url)
    assert place.execute("SELECT name FROM sqlite_master") == [("theirs",)]


@ON_SQLITE
def test_a_database_that_others_hold_is_worth_another_try(catalog: Catalog, place: CatalogPlace) -> None:
    with closing(sqlite3.connect(sqlite_of(place).path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CatalogUnavailable, match="locked"):
            catalog.acquire_image_lock("a", "me")
        other.execute("ROLLBACK")
    catalog.acquire_image_lock("a", "me")

    assert catalog.is_image_locked("a")


@ON_SQLITE
def test_a_process_without_descriptors_may_try_again(place: CatalogPlace) -> None:
    Catalog.open(place.url).close()
    asked = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, place.url], capture_output=True, text=True, check=False
    )

    assert asked.stdout.strip() == "CatalogUnavailable", asked.stderr


WITHOUT_DESCRIPTORS = """
import os, resource, sys
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.errors import ImageError

catalog = Catalog.open(sys.argv[1])
catalog.ping()
catalog._tables.database.pool.drop_idle()
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    pass
try:
    catalog.ping()
except ImageError as error:
    os.write(1, type(error).__name__.encode())
"""


@ON_SQLITE
def test_a_file_that_is_gone_is_nothing_to_try_again(catalog: Catalog, place: CatalogPlace) -> None:
    catalog._tables.database.pool.drop_idle()
    sqlite_of(place).path.unlink()
    with pytest.raises(CatalogUnusable, match="unable to open"):
        catalog.ping()


@ON_SQLITE
def test_an_error_that_has_ended_the_transaction_is_told_as_it_is(catalog: Catalog) -> None:
    broken = sqlite3.OperationalError("disk I/O error")
    broken.sqlite_errorcode = sqlite3.SQLITE_IOERR

    def read() -> None:
        with catalog._reading(), catalog._tables.database.reading() as connection:
            connection.execute("ROLLBACK")  # as SQLite does it on its own
            raise broken

    with pytest.raises(CatalogUnavailable, match="disk I/O error"):
        read()


@ON_SQLITE
@pytest.mark.parametrize("form", ["{0}", "{0}/holdfast.db", "sqlite:///{0}", "sqlite:///{0}/holdfast.db"])
def test_a_place_is_the_same_to_the_engine_and_to_the_catalog(place: CatalogPlace, form: str) -> None:
    with Engine.open(form.format(place.url)), Catalog.open(form.format(place.url)) as catalog:
        catalog.acquire_image_lock("a", "me")

    assert place.execute("SELECT image_id FROM image_locks") == [("a",)]


# --- with the engine ---


def catalog_flow(catalog: Catalog, failures: list[str]) -> AskFlow:
    """A flow whose commit step records an image, an unpacked one and a snapshot, and may fail after that."""

    def save(run: Run[Ask, Answer], tx: Transaction) -> None:
        name = run.request.name
        catalog.store_image_metadata(name, f"key-{name}", "/p", "c", 1, tx=tx)
        catalog.store_unpacked_image(name, "1", "thin-1", "/d", 1, 1, tx=tx)
        catalog.register_snapshot(name, "2", "snap", "/s", "1", tx=tx)
        catalog.release_image_lock(name, "me", tx=tx)
        if failures:
            raise ValueError(failures.pop())

    flow: AskFlow = AskFlow("catalog", request=Ask, response=Answer)
    return flow.start("one", lambda run: None).commit("save", save)


@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_step_writes_with_its_job_or_not_at_all(catalog: Catalog, place: CatalogPlace, fails: bool) -> None:
    catalog.acquire_image_lock("a", "me")
    flow = catalog_flow(catalog, ["no"] if fails else [])
    with Engine.open(place.url, flows=[flow]) as engine, engine.worker(concurrency=1):
        result = engine.wait(engine.submit(flow, Ask("a")), timeout=20)

    assert (result.state is JobState.SUCCEEDED) == (not fails)
    assert len(catalog.list_images()) == len(catalog.list_active_snapshots()) == (0 if fails else 1)
    assert catalog.is_image_locked("a") == fails


def test_the_engine_finds_nothing_wrong_with_our_tables(catalog: Catalog, place: CatalogPlace) -> None:
    catalog.store_image_metadata("a", "k", "/p", "c", 1)
    with Engine.open(place.url) as engine:
        findings = list(engine.findings)
        deep = list(engine.store.integrity(deep=True))
        engine.refuse_broken_rules()

    assert findings == []
    assert deep == []


@ON_SQLITE
def test_holdfast_check_finds_nothing_wrong_with_our_tables(catalog: Catalog, place: CatalogPlace) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "--state", place.url, "check", "--deep"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


# --- processes at once ---


def fight_for_lock(url: str, owner: str, answers: Any) -> None:
    with Catalog.open(url) as catalog:
        try:
            catalog.acquire_image_lock("img", owner)
            answers.put(owner)
        except ImageBusy:
            answers.put(None)


def inherit_lock(url: str, owner: str, answers: Any) -> None:
    with Catalog.open(url) as catalog:
        answers.put(catalog.take_over_image_lock("img", "dead", owner))


def test_of_many_processes_one_gets_the_lock(catalog: Catalog, place: CatalogPlace) -> None:
    from tests.support.processes import _context

    answers = _context.Queue()
    codes = join_all([start(fight_for_lock, place.url, f"p{number}", answers) for number in range(6)])
    winners = [answer for answer in (answers.get() for _ in range(6)) if answer]

    assert codes == [0] * 6
    assert [lock.locked_by for lock in catalog.list_image_locks()] == winners
    assert len(winners) == 1


def test_of_many_heirs_one_inherits_the_lock(catalog: Catalog, place: CatalogPlace) -> None:
    from tests.support.processes import _context

    catalog.acquire_image_lock("img", "dead")
    answers = _context.Queue()
    codes = join_all([start(inherit_lock, place.url, f"p{number}", answers) for number in range(6)])

    assert codes == [0] * 6
    assert sorted(answers.get() for _ in range(6)) == [False] * 5 + [True]


# --- many hosts ---


def test_two_hosts_of_a_fleet_have_rows_of_their_own(tmp_path: Path) -> None:
    place = make_place("postgres", tmp_path)
    with Catalog.open(place.url, host="one") as one, Catalog.open(place.url, host="two") as two:
        for catalog in (one, two):
            catalog.store_image_metadata("a", "k", f"/{id(catalog)}", "c", 1)
            catalog.acquire_image_lock("a", "me")
            assert catalog.reserve_device_id("a", [5]) == 5
        one.store_unpacked_image("a", "5", "thin-5", "/x", 1, 1)
        one.register_snapshot("a", "6", "snap-a", "/y", "5")
        two.release_image_lock("a")

        assert [len(catalog.list_images()) for catalog in (one, two)] == [1, 1]
        assert [len(catalog.list_active_snapshots()) for catalog in (one, two)] == [1, 0]
        assert [catalog.is_image_locked("a") for catalog in (one, two)] == [True, False]
        assert one.violations() == two.violations() == []
        two.delete_image("a")
        assert len(one.list_images()) == 1


def test_connections_are_used_again(catalog: Catalog) -> None:
    for _ in range(20):
        catalog.ping()

    assert catalog._tables.database.pool.idle <= MAX_IDLE
