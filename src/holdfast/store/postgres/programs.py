"""PostgreSQL's own client programs: found, in a version that fits the server, and run without showing a password."""

from __future__ import annotations

import glob
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import SettingsError, StoreError

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
