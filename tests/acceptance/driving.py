"""Drives the real command, as a user does: a process, its arguments, its two streams and its exit code."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

SOURCES = Path(__file__).parents[2] / "src"
PATIENCE = 30.0

APP = """
import os
import time

import msgspec

from holdfast import Abort, Flow, Pipeline, exponential


class Greeting(msgspec.Struct):
    name: str
    times: int = 1


def prepare(run):
    run.log.info("preparing")
    return f"hello {run.request.name}"


def say(run, tx):
    return run.response + "!" * run.request.times


def give_up(run):
    raise Abort("no use")


def break_down(run):
    raise ValueError("broken [red]\\x1b[31m")


def wait_for_file(run):
    run.log.info("waiting")
    while not os.path.exists(run.request.name):
        run.check()
        time.sleep(0.005)
    return "opened"


def wait_deafly(run):
    run.log.info("not listening")
    while not os.path.exists(run.request.name):
        time.sleep(0.005)
    return "opened"


def measure(run):
    run.log.info("measuring")
    while not os.path.exists(run.request.name):
        run.progress(9, 20, "metres")
        time.sleep(0.005)
    return "measured"


async def prepare_later(run):
    return "later"


greet = Flow("greet", request=Greeting, response=str).start("prepare", prepare).commit("say", say)
later = Flow("later", request=Greeting, response=str, queue="errands").start("prepare", prepare_later)
doomed = Flow("doomed", request=Greeting, response=str).start("try", give_up)
broken = Flow("broken", request=Greeting, response=str).start("try", break_down)
patient = exponential(3, delay=3600, cap=3600)
shaky = Flow("shaky", request=Greeting, response=str).start("try", break_down, retry=patient)
gate = Flow("gate", request=Greeting, response=str)
gate.start("prepare", prepare).to("wait", wait_for_file).commit("say", say)
deaf = Flow("deaf", request=Greeting, response=str, stall_after=0.2).start("wait", wait_deafly)
meter = Flow("meter", request=Greeting, response=str)
meter.start("prepare", prepare).to("measure", measure).commit("say", say)
both = Pipeline("both", request=Greeting).then(greet, request=lambda view: view.request)
flows = [greet, later, doomed, broken, shaky, gate, deaf, meter, both]
"""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """stdout as JSON."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error object on stderr."""
        return json.loads(self.err)["error"]


class Holdfast:
    """The command `holdfast` in a directory of its own, with an app and a state."""

    def __init__(self, directory: Path, app: str = APP) -> None:
        self.directory = directory
        self.state = directory / "state"
        (directory / "app.py").write_text(app)
        self.environment = {
            "HOLDFAST_APP": "app:flows",
            "HOLDFAST_STATE": str(self.state),
            "PATH": os.environ["PATH"],
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": str(SOURCES),
        }

    def __call__(
        self, *words: str | Path, stdin: bytes = b"", command: Sequence[str] = (), **environment: str | None
    ) -> Ended:
        """Run a command to its end; `command` takes the place of `holdfast`."""
        done = subprocess.run(
            [*command, *map(str, words)] if command else self.command(*words),
            cwd=self.directory,
            env=self._with(environment),
            input=stdin,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *words: str | Path, **more: Any) -> str:
        """stdout of a command that has to succeed."""
        ended = self(*words, **more)
        assert ended.code == 0, ended
        return ended.out

    def json(self, *words: str | Path, **more: Any) -> Any:
        """The JSON a command that has to succeed writes."""
        return json.loads(self.ok(*words, "--json", **more))

    def submit(self, flow: str = "greet", request: str = '{"name": "you"}', *words: str) -> str:
        """Submit a job; returns its id."""
        return self.ok("submit", flow, request, *words).strip()

    def run_all(self) -> None:
        """Run everything that can run."""
        self.ok("worker", "--exit-when-idle", "-q")

    def worker(self, *words: str, **environment: str | None) -> RunningWorker:
        """A worker in the background, ready to run jobs."""
        return RunningWorker(self.command("worker", *words), cwd=self.directory, environment=self._with(environment))

    def content(self) -> str:
        """Everything in the database: equal before and after means that nothing was changed."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            return "\n".join(connection.iterdump())

    @property
    def database(self) -> Path:
        """The file of the database."""
        return self.state / "holdfast.db"

    def drop_trigger(self, name: str) -> None:
        """Take one of the rules away."""
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute(f"DROP TRIGGER {name}")

    def tamper(self, *statements: str) -> None:
        """Do what a careless hand with a database shell would, rules dropped and put back included."""
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = 1")
            triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for name, _ in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(statement)
            for _, sql in triggers:
                connection.execute(sql)

    def until(self, is_true: Callable[[Any], bool], *words: str | Path) -> Any:
        """Ask a command again until its JSON is as it should be: for what only time brings about."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            ended = self(*words, "--json")
            if is_true(ended.data):
                return ended.data
        raise AssertionError(f"not in time: {words}")

    @staticmethod
    def command(*words: str | Path) -> list[str]:
        """The command line."""
        return [sys.executable, "-m", "holdfast.cli", *map(str, words)]

    def _with(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        environment = {**self.environment, **changes}
        return {name: value for name, value in environment.items() if value is not None}


class RunningWorker:
    """A worker process; its log is read by a thread, so that a test can wait for a line of it."""

    def __init__(self, command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        self.wait_for("ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def wait_for(self, text: str) -> str:
        """The first line of the log that has this text in it, as soon as it is there."""
        with self._news:
            found = self._news.wait_for(lambda: self._ended or self._line(text), PATIENCE)
        line = self._line(text)
        assert line is not None, f"{text!r} did not come ({'ended' if found else 'timeout'}): {self.lines}"
        return line

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The log so far, of a worker that writes JSON."""
        return [json.loads(line) for line in self.lines]

    def _line(self, text: str) -> str | None:
        return next((line for line in list(self.lines) if text in line), None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()
