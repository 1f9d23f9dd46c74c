"""Who is measured: a peer, on a store, with its settings. Each measurement is a process and a database of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import psycopg

from measuring.environments import PEERS, NotMeasured, python_of, version_of
from tests.support.postgres_server import PostgresServer

STAMPS = "HOLDFAST_BENCH_STAMPS"
PATIENCE = 600.0


class Contestant(msgspec.Struct, frozen=True):
    """`five` and `noop` are how many flows and jobs it drains: some seconds' worth."""

    peer: str
    name: str
    store: Literal["sqlite", "postgres"]
    setting: str = ""
    five: int = 0
    noop: int = 0
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """For the report."""
        store = {"sqlite": "SQLite", "postgres": "PostgreSQL"}[self.store]
        words = [self.name, version_of(self.peer), "on", store + (f" ({self.setting})" if self.setting else "")]
        return " ".join(filter(None, words))


class Program:
    """A program of a peer, in the environment of the peer; it is told to stop at the end, and killed if it does not."""

    def __init__(self, one: Contestant, measure: str, place: str, *options: str, **variables: str) -> None:
        self._one = one
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the program
        self._process = subprocess.Popen(
            [python_of(one.peer), str(PEERS / one.peer / "program.py"), measure, place, *options],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**_environment(), **dict(one.variables), **variables},
            text=True,
        )

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def answer(self) -> Any:
        """What it says last, when it has ended by itself."""
        with self._patience():
            output, _ = self._process.communicate()
        if self._process.returncode != 0 or not output.strip():
            raise self._failure(f"ended with code {self._process.returncode}")
        return json.loads(output.splitlines()[-1])

    def wait_for(self, word: str) -> None:
        """Until it says this word."""
        assert self._process.stdout is not None
        with self._patience():
            said = self._process.stdout.readline().strip()
        if said != word:
            raise self._failure(f"did not say {word!r}")

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._errors.close()

    def _failure(self, what: str) -> NotMeasured:
        self._errors.seek(0)
        last = [line for line in self._errors.read().splitlines() if line.strip()][-1:]
        return NotMeasured(f"{PEERS.name}/{self._one.peer}/program.py {what}: {' '.join(last)}")

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """It is killed if it takes too long, and what waits for it goes on."""
        timer = Timer(PATIENCE, self._process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _environment() -> dict[str, str]:
    """Without a path to modules of ours: a peer has what was installed for it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class Ground:
    """Where contestants meet: one directory on one disk, and one PostgreSQL server on it. Who fails once is out."""

    def __init__(self, directory: str, server: PostgresServer, peers: set[str]) -> None:
        self._directory = directory
        self._server = server
        self._peers = peers
        self.out: dict[str, str] = {}
        """Who could not be measured, and why."""

    def taking_part(self, *ones: Contestant) -> list[Contestant]:
        """Those that were asked for and have not failed."""
        return [one for one in ones if one.peer in self._peers and one.title not in self.out]

    @contextmanager
    def turn_of(self, one: Contestant) -> Iterator[str]:
        """An empty directory, or the URL of an empty database; removed at the end. A failure of a peer is noted."""
        try:
            with self._directory_for(one) if one.store == "sqlite" else self._database() as place:
                yield place
        except NotMeasured as reason:
            if one.peer == "holdfast":
                raise
            self.out[one.title] = str(reason)

    @contextmanager
    def stamps(self) -> Iterator[Path]:
        """The name of a file for programs to write to."""
        with tempfile.TemporaryDirectory(dir=self._directory) as folder:
            yield Path(folder) / "stamps"

    def _directory_for(self, one: Contestant) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix=f"{one.peer}-", dir=self._directory)

    @contextmanager
    def _database(self) -> Iterator[str]:
        name = f"bench_{secrets.token_hex(6)}"
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
            try:
                yield self._server.url_of("postgres", database=name)
            finally:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


class Values(dict[str, list[float]]):
    """One value per round, by contestant."""

    def add(self, one: Contestant, value: float) -> None:
        """The value of this round."""
        self.setdefault(one.title, []).append(value)

    def beside(self, ours: Contestant, others: Sequence[Contestant]) -> Iterator[tuple[Contestant, list[float]]]:
        """Those others whose values stand beside ours, round by round."""
        for one in others:
            if len(self.get(one.title, [])) == len(self[ours.title]):
                yield one, self[one.title]
