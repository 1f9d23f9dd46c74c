"""PostgreSQL's own client programs: found, in a version that fits the server, and run without showing a password."""

from __future__ import annotations

import glob
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import SettingsError, StateError, StoreCorrupt, StoreError, StoreForeign
from holdfast.store.open import new_file
from holdfast.store.postgres.connection import translated_errors
from holdfast.store.postgres.schema import LOCK

ELSEWHERE = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
"""Where packages of several versions go, beside PATH."""
CONNECT_TIMEOUT = 10
LINES_SHOWN = 5
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")


def run(name: str, *arguments: str, server: int, url: str | None = None) -> str:
    """What a program says on stdout; StoreError with its last words if it fails."""
    environment = {**os.environ, "LC_ALL": "C"}
    secrets: list[str] = []
    if url is not None:
        options = conninfo_to_dict(url)
        if options.pop("sslpassword", None) is not None:
            # libpq takes it from a command line or a file of services only.
            raise SettingsError(
                f"{name} cannot be given the sslpassword of the URL without showing it",
                hint=f"use a key without a passphrase for this, or run {name} yourself",
            )
        password = options.pop("password", None)
        if password is not None:
            environment["PGPASSWORD"] = str(password)
            secrets.append(str(password))
        arguments = (f"--dbname={make_conninfo('', **_timed(options))}", "--no-password", *arguments)
    done = subprocess.run(  # noqa: S603 - PostgreSQL's own, and no shell
        [_found(name, server), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        said = "; ".join(done.stderr.strip().splitlines()[-LINES_SHOWN:]) or f"exit code {done.returncode}"
        for secret in secrets:
            said = said.replace(secret, "***")
        raise StoreError(f"{name} failed: {said}")
    return done.stdout


def _timed(options: dict[str, Any]) -> dict[str, Any]:
    return {"connect_timeout": CONNECT_TIMEOUT, "application_name": "holdfast", **options}


def _found(name: str, server: int) -> str:
    """The program of the server's version, or the next newer one: older ones refuse, much newer ones say too much."""
    fitting: dict[int, str] = {}
    older: list[str] = []
    for path in _candidates(name):
        version = _version_of(path)
        if version is not None and version >= server:
            fitting.setdefault(version, path)
        elif version is not None:
            older.append(f"{path} is of version {version}")
    if fitting:
        return fitting[min(fitting)]
    raise SettingsError(
        f"{name} of PostgreSQL {server} or newer is needed{', and ' + '; '.join(older) if older else ''}",
        hint=f"install PostgreSQL's client programs (Debian: postgresql-client-{server}), or put them into PATH",
    )


def _candidates(name: str) -> Iterator[str]:
    places = [place for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    for pattern in ELSEWHERE:
        places += sorted(glob.glob(pattern))
    for place in dict.fromkeys(places):
        path = Path(place, name)
        if path.is_file() and os.access(path, os.X_OK):
            yield str(path)


@cache
def _version_of(path: str) -> int | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=30)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stdout)
    return int(found[1]) if found else None


# --- Backups of a schema by PostgreSQL's own programs, and restores into an empty one -------------------

LOCK_WAIT = "15s"
STORE_TABLES = frozenset({"holdfast_migrations", "jobs", "executions", "journal", "requests", "steps"})
SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_TABLE = re.compile(r"\d+; \d+ \d+ TABLE (?!DATA )(\S+) (\S+) ")
_SCHEMA = re.compile(r"\d+; \d+ \d+ (?:SCHEMA -|COMMENT - SCHEMA) (\S+) ")

OBJECTS = """
SELECT count(*) FROM (
    SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s)::oid
    UNION ALL SELECT 1 FROM pg_proc WHERE pronamespace = to_regnamespace(%(schema)s)::oid
    UNION ALL SELECT 1 FROM pg_type WHERE typnamespace = to_regnamespace(%(schema)s)::oid
) AS objects
"""


class Dump(NamedTuple):
    """A backup, as its table of contents describes it."""

    lines: list[str]
    store: str
    """The schema of the store."""
    schemas: list[str]
    """All schemas that it has something of."""


def backup(url: str, schema: str, target: Path, *, server: int, others: Sequence[str]) -> None:
    """Dump the schema of the store, and others, as of one moment; durable under its name or not there at all.

    The password is handed on in the environment: a command line can be read by everybody on the machine.
    """
    for name in others:
        if not SCHEMA_NAME.fullmatch(name):
            raise SettingsError(f"{name!r} cannot be the name of a schema", hint="lower-case letters, digits and '_'")
    chosen = [f"--schema={name}" for name in dict.fromkeys([schema, *others])]
    with new_file(target) as partial:
        run(
            "pg_dump",
            "--format=custom",
            "--strict-names",
            f"--lock-wait-timeout={LOCK_WAIT}",
            f"--file={partial}",
            *chosen,
            server=server,
            url=url,
        )
        _contents(partial, server)


def restore(url: str, schema: str, source: Path, *, verify: Callable[[], None]) -> None:
    """Fill the schema of the store, which must be empty or missing, from a backup; then `verify` looks at it.

    Crash: pg_restore works in one transaction, so the schema is whole or as it was.
    """
    if not source.is_file():
        raise SettingsError(f"there is no file {source}", hint="name a file that holdfast backup has made")
    with translated_errors(), psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        server = connection.info.server_version // 10_000
        dump = _contents(source, server)
        if dump.store != schema:
            raise SettingsError(
                f"{source} is a backup of the schema {dump.store}, and the store is in {schema}",
                hint=f"restore it where it came from: ?holdfast_schema={dump.store} in the URL",
            )
        # A worker that starts meanwhile waits, and then finds the restored store instead of making a new one.
        connection.execute(LOCK, (schema,))
        there = [name for name in dump.schemas if _exists(connection, name)]
        _refuse_filled(connection, there)
        _run_restore(url, source, dump, there, server)
    try:
        verify()
    except BaseException as error:
        if there:
            raise StoreCorrupt(
                f"what was restored is not to be used: {error}",
                hint=f"start no worker on it, and empty what was filled: {', '.join(dump.schemas)}",
            ) from error
        _drop(url, dump.schemas)
        raise


def _contents(source: Path, server: int) -> Dump:
    lines = run("pg_restore", "--list", str(source), server=server).splitlines()
    tables: dict[str, set[str]] = {}
    for line in lines:
        if (found := _TABLE.match(line)) is not None:
            tables.setdefault(found[1], set()).add(found[2])
    named = {found[1] for line in lines if (found := _SCHEMA.match(line)) is not None}
    stores = [name for name, known in tables.items() if known >= STORE_TABLES]
    if len(stores) != 1:
        raise StoreForeign(f"{source} is not a backup of Holdfast", hint="name a file that holdfast backup has made")
    return Dump(lines, stores[0], sorted(named | set(tables)))


def _run_restore(url: str, source: Path, dump: Dump, there: Sequence[str], server: int) -> None:
    # A schema that is there cannot be created, and its owner's comment on it is not ours to set.
    wanted = [line for line in dump.lines if (found := _SCHEMA.match(line)) is None or found[1] not in there]
    # The order of changes is by transactions of the server that they were made on: here it begins anew.
    wanted = [line for line in wanted if f" TABLE DATA {dump.store} changes " not in line]
    with tempfile.NamedTemporaryFile("w", prefix="holdfast-restore-") as contents:
        contents.write("\n".join(wanted) + "\n")
        contents.flush()
        run(
            "pg_restore",
            "--single-transaction",
            "--exit-on-error",
            "--no-owner",
            f"--use-list={contents.name}",
            str(source),
            server=server,
            url=url,
        )


def _exists(connection: psycopg.Connection[Any], schema: str) -> bool:
    row = connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (schema,)).fetchone()
    return bool(row and row[0])


def _refuse_filled(connection: psycopg.Connection[Any], schemas: Sequence[str]) -> None:
    for schema in schemas:
        row = connection.execute(OBJECTS, {"schema": schema}).fetchone()
        if row is not None and row[0]:
            raise StateError(
                f"the schema {schema} is not empty",
                hint=f"restore into an empty database, or stop all workers and move it aside: "
                f"ALTER SCHEMA {schema} RENAME TO {schema}_before",
            )


def _drop(url: str, schemas: Sequence[str]) -> None:
    """Take a restored store back that is not sound: nothing of it was there before."""
    with translated_errors(), psycopg.connect(url, connect_timeout=10) as connection:
        for schema in schemas:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
