"""`holdfast top` in a terminal of its own, over each store and over HTTP: what it shows, its keys, and its end."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import Abort, Engine, Flow, Run
from tests.contract.conftest import BACKENDS
from tests.support.backends import Backend
from tests.support.flows import Answer, Ask
from tests.support.waiting import PATIENCE, eventually

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"
CURSOR = b"\x1b[?25h"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e[red]x"
COMMAND = [sys.executable, "-m", "holdfast.cli"]


class Terminal:
    """A terminal with a command in it, or with a shell; what it has been sent so far."""

    def __init__(self, command: list[str], *, columns: int = 100, lines: int = 30) -> None:
        self.master, slave = pty.openpty()
        self._slave = os.dup(slave)
        self.resize(columns, lines)
        self.before = termios.tcgetattr(slave)
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment |= {"TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)
        self.seen = b""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def keys(self, text: str) -> None:
        self.seen = b""
        os.write(self.master, text.encode())

    def shows(self, text: str | bytes) -> None:
        """Wait for it."""
        wanted = text.encode() if isinstance(text, str) else text

        def is_there() -> bool:
            while select.select([self.master], [], [], 0.05)[0]:
                with suppress(OSError):
                    data = os.read(self.master, 1 << 16)
                    if data:
                        self.seen += data
                        continue
                break
            return wanted in self.seen

        eventually(is_there, f"{text!r} is shown", within=2 * PATIENCE)

    def attributes(self) -> Any:
        return termios.tcgetattr(self._slave)

    def ends(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.master)
        os.close(self._slave)


class House:
    """An engine with a worker, and a job that runs until it is let go."""

    def __init__(self, engine: Engine, place: str) -> None:
        self.engine, self.place = engine, place
        self.release = threading.Event()
        self.flow = Flow("take-order", request=Ask, response=Answer, queue="orders").start("charge-card", self._hold)
        self.failing = Flow("mail", request=Ask, response=Answer).start("send", self._fail)
        engine.register(self.flow)
        engine.register(self.failing)

    def _hold(self, run: Run[Ask, Answer]) -> None:
        run.progress(3, 4, "half of it")
        while not self.release.wait(0.01):
            run.check()

    def _fail(self, _run: Run[Ask, Answer]) -> None:
        raise Abort(HOSTILE)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    backend = BACKENDS[request.param](tmp_path)
    yield backend
    backend.close()


@pytest.fixture
def house(backend: Backend) -> Iterator[House]:
    with Engine.open(backend.place) as engine:
        house = House(engine, backend.place)
        with engine.worker(concurrency=4):
            yield house
            house.release.set()


@pytest.fixture(params=["store", "http"])
def where(request: pytest.FixtureRequest, house: House, tmp_path: Path) -> Iterator[list[str]]:
    """Over the store itself, or over the API of a server."""
    if request.param == "store":
        yield ["--store", store_of(house)]
        return
    path = tmp_path / "web.sock"
    with served(house, path):
        yield ["--url", f"unix:{path}"]


def store_of(house: House) -> str:
    return house.engine.store.url if house.place.startswith("/") else house.place


@contextmanager
def served(house: House, path: Path) -> Iterator[None]:
    command = [*COMMAND, "--store", store_of(house), "serve", "--listen", f"unix:{path}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(path.exists, "the server listens", within=PATIENCE * 2)
        yield
    finally:
        server.terminate()
        server.wait(PATIENCE)


@contextmanager
def top(where: list[str], **size: int) -> Iterator[Terminal]:
    terminal = Terminal([*COMMAND, "top", *where], **size)
    try:
        terminal.shows(ENTERED)
        yield terminal
    finally:
        terminal.close()


def running(house: House) -> str:
    job_id = house.engine.submit(house.flow, Ask(), key="key-of-a-customer")
    eventually(lambda: any(one.progress for one in house.engine.store.running([job_id])), "it runs")
    return job_id


def test_the_house_is_shown_and_changes_by_itself_and_by_keys(house: House, where: list[str]) -> None:
    job_id = running(house)
    with top(where, columns=140) as terminal:
        terminal.shows(job_id)
        terminal.shows("charge-card")
        terminal.shows("75%")
        terminal.shows("orders")
        terminal.seen = b""
        other = house.engine.submit(house.flow, Ask())
        terminal.shows(other)
        terminal.keys("/key:key-of\r")
        terminal.shows("running key:key-of")
        terminal.keys("/colour:red\r")
        terminal.shows("is no part of a filter")
        terminal.keys("\x1b")
        house.engine.wait(house.engine.submit(house.failing, Ask()), timeout=PATIENCE)
        terminal.keys("f")
        terminal.shows("failed quarantined")
        terminal.shows("WHY")
        terminal.keys("?")
        terminal.shows("flow:NAME")
        terminal.keys("q")
        terminal.shows(LEFT)

        assert terminal.ends() == 0
        assert terminal.attributes() == terminal.before
        assert b"\x1b]0;owned" not in terminal.seen


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_gives_the_terminal_back_as_it_was(house: House, end: signal.Signals) -> None:
    running(house)
    with top(["--store", store_of(house)]) as terminal:
        terminal.shows("take-order")
        terminal.process.send_signal(end)
        terminal.shows(LEFT)
        terminal.shows(CURSOR)

        assert terminal.ends() == 0
        assert terminal.attributes() == terminal.before


def test_an_error_gives_the_terminal_back_and_is_told_behind_it(house: House, tmp_path: Path) -> None:
    program = (
        "import sys; from holdfast.cli import top, main; looks = []\n"
        "def look(self, wanted, limit, before=top.StoreSource.look):\n"
        "    looks.append(1)\n"
        "    if len(looks) > 1: raise RuntimeError('planted')\n"
        "    return before(self, wanted, limit)\n"
        "top.StoreSource.look = look\n"
        "sys.exit(main.main())"
    )
    running(house)
    terminal = Terminal([sys.executable, "-c", program, "top", "--store", store_of(house)])
    try:
        terminal.shows("planted")
        shown = terminal.seen

        assert terminal.ends() == 1
        assert shown.index(LEFT) < shown.index(b"planted")
        assert terminal.attributes() == terminal.before
    finally:
        terminal.close()


def test_ctrl_z_gives_the_shell_its_terminal_and_fg_takes_it_again(house: House) -> None:
    running(house)
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"])
    try:
        terminal.keys(f"{' '.join(COMMAND)} top --store '{store_of(house)}'\n")
        terminal.shows(ENTERED)
        terminal.shows("take-order")
        terminal.keys("\x1a")
        terminal.shows(LEFT)
        terminal.shows("Stopped")
        terminal.keys("fg\n")
        terminal.shows(ENTERED)
        terminal.shows("take-order")
        terminal.keys("q")
        terminal.shows(LEFT)
        terminal.keys("exit\n")

        assert terminal.ends() == 0
    finally:
        terminal.close()


def test_it_follows_the_size_of_the_terminal(house: House) -> None:
    job_id = running(house)
    with top(["--store", store_of(house)], columns=80) as terminal:
        terminal.shows(f"…{job_id[-6:]} take-order")
        terminal.seen = b""
        terminal.resize(160, 40)
        terminal.shows(f"{job_id} take-order")

        assert b"\xe2\x80\xa6" + job_id[-6:].encode() not in terminal.seen.rpartition(b"LAST CHANGES")[0]


def test_an_idle_house_costs_next_to_nothing(backend: Backend) -> None:
    with Engine.open(backend.place) as engine:
        place = engine.store.url if backend.name == "sqlite" else backend.place
        with top(["--store", place]) as terminal:
            terminal.shows("no job")
            time.sleep(1)
            before = _cpu_of(terminal.process.pid)
            time.sleep(4)
            spent = _cpu_of(terminal.process.pid) - before

    assert spent <= 0.2  # one look takes some hundredths


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- where there is no terminal ------------------------------------------------------------------------------


def printed(where: list[str], *words: str) -> str:
    wide = {**os.environ, "COLUMNS": "140"}
    done = subprocess.run([*COMMAND, "top", *where, *words], env=wide, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_frame_is_printed_as_plain_text_where_nobody_watches(house: House, where: list[str]) -> None:
    job_id = running(house)
    house.engine.wait(house.engine.submit(house.failing, Ask()), timeout=PATIENCE)
    shown, failed = printed(where), printed(where, "--once", "--filter", "state:failed")
    data = json.loads(printed(where, "--json"))

    assert job_id in shown
    assert "75%" in shown
    assert "\x1b" not in shown + failed
    assert "\u202e" not in failed
    assert "mail" in failed
    assert [row["job"]["job_id"] for row in data["jobs"]["rows"]] == [job_id]
    assert data["overview"]["counts"]["failed"]["count"] == 1


def test_a_place_that_cannot_be_asked_is_an_error_and_not_a_screen(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    for words, told in {
        ("--url", f"unix:{tmp_path}/nobody"): "does not answer",
        ("--url", "ftp://x"): "is not an address",
        ("--url", "http://127.0.0.1:1", "--token-file", str(tmp_path / "empty")): "holds no token",
        ("--token-file", str(tmp_path / "empty")): "without --url",
        ("--state", str(tmp_path / "nothing")): "no Holdfast database",
    }.items():
        done = subprocess.run([*COMMAND, "top", *words], capture_output=True, text=True, check=False)

        assert done.returncode != 0
        assert told in done.stderr
        assert "Traceback" not in done.stderr
