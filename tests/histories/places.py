"""Where the database of a history is, and the side door to it: plain SQL, past all code of the engine."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg

from holdfast import Engine
from tests.histories.clock import ShiftedClock, TrueClock
from tests.histories.plan import Plan
from tests.histories.proxy import Network
from tests.histories.shapes import EFFECTS_TABLE, FIXED_LIMIT, FIXED_QUEUE, MOVING_LIMIT, MOVING_QUEUE
from tests.support.postgres_server import PostgresServer

EFFECTS = f"CREATE TABLE {EFFECTS_TABLE} (job_id TEXT NOT NULL, exec_id TEXT NOT NULL, n BIGINT NOT NULL)"
SCHEMA, USER_SCHEMA = "history", "history_user"
SMALL_DISK_MB = 48


class Place(Protocol):
    """A database that a history runs on."""

    url: str
    """What the processes of the history open."""

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of a statement, by the names of their columns."""
        ...

    def execute(self, sql: str) -> None:
        """Run a statement as a shell would."""
        ...


class SqlitePlace:
    """A file, on a disk of its own if the disk is to be full."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "holdfast.db"
        self.url = f"sqlite:///{self.path}"

    def query(self, sql: str) -> list[dict[str, Any]]:
        return sqlite_rows(self.path, sql)

    def execute(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=30)) as connection:
            connection.execute(sql)


def sqlite_rows(path: Path, sql: str) -> list[dict[str, Any]]:
    """Rows of a file, read over a connection of its own."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


class PostgresPlace:
    """A server of its own, reached by everybody but this side door through a network that can be cut."""

    def __init__(self, server: PostgresServer, network: Network) -> None:
        self.server = server
        self.network = network
        path = f"?holdfast_schema={SCHEMA}&options=-csearch_path%3D{USER_SCHEMA}"
        self.url = server.url_of("postgres", port=network.port) + path
        self.execute(f"CREATE SCHEMA {USER_SCHEMA}")

    def query(self, sql: str) -> list[dict[str, Any]]:
        with self._shell() as shell:
            return shell.execute(sql.encode()).fetchall()

    def execute(self, sql: str) -> None:
        with self._shell() as shell:
            shell.execute(sql.encode())

    @contextmanager
    def _shell(self) -> Iterator[psycopg.Connection[dict[str, Any]]]:
        rows: Any = psycopg.rows.dict_row
        with psycopg.connect(self.server.url, autocommit=True, row_factory=rows) as connection:
            connection.execute(f"SET search_path TO {USER_SCHEMA}, {SCHEMA}".encode())
            yield connection


@contextmanager
def placed(plan: Plan, directory: Path, clock: ShiftedClock | TrueClock) -> Iterator[Place]:
    """The place of a plan, with the tables and the limits that its flows need."""
    making = _postgres(plan, clock) if plan.store == "postgres" else _sqlite(plan, directory)
    with making as place:
        with Engine.open(place.url) as engine:
            engine.queue(FIXED_QUEUE, limit=FIXED_LIMIT)
            engine.queue(MOVING_QUEUE, limit=MOVING_LIMIT)
        place.execute(EFFECTS)
        yield place


@contextmanager
def _sqlite(plan: Plan, directory: Path) -> Iterator[Place]:
    state = directory / "state"
    state.mkdir()
    if not plan.small_disk:
        yield SqlitePlace(state)
        return
    disk = directory / "disk"
    disk.mkdir()
    image = directory / "disk.ext4"
    subprocess.run(["truncate", "-s", f"{SMALL_DISK_MB}M", str(image)], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True, env={**os.environ, "PATH": _PATH})
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    try:
        yield SqlitePlace(disk)
    finally:
        for path in disk.glob("holdfast.db*"):
            if path.is_file():
                shutil.copy(path, state)  # for whoever looks at what is left of a failed history
        subprocess.run(["umount", str(disk)], check=True)
        image.unlink()


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@contextmanager
def _postgres(plan: Plan, clock: ShiftedClock | TrueClock) -> Iterator[Place]:
    server = PostgresServer()
    before = dict(os.environ)
    os.environ.update(clock.environment)  # the server's own clock judges leases
    try:
        server.start()
        network = Network(server.port, random.Random(plan.seed))
        try:
            yield PostgresPlace(server, network)
        finally:
            network.close()
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.close()
