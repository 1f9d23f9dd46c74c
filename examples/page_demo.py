"""The page with everything on it: a server, two workers, six flows and some images, all of them living.

    make demo-page

Works in a temporary directory and needs neither network nor root. It prints an address to open; within a minute every
view moves: jobs that retry, fail and wait, a paused queue, a job that kills its worker until it is quarantined, images
on their way, one that is refused. Ctrl-C ends every process and removes every file.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import pty
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Abort, Engine, Flow, HoldfastError, Pipeline, Run, fixed
from holdfast_images import ImageManager, Settings

HOLDFAST = [sys.executable, "-m", "holdfast_images.cli"]
HERE = Path(__file__).parent
PORT = 8118
WORKERS = 2
IMAGES = ("base", "web", "database", "cache", "runner", "mail", "search", "monitor")
MOST_IMAGES = 8
MEBIBYTE = 1 << 20
BYTES_PER_SECOND = 1_600_000
PR_SET_PDEATHSIG = 1


# --- The flows: what their steps do is to wait, as if somebody else did it, and now and then to go wrong ---


class Task(msgspec.Struct):
    """What is to be done."""

    number: int = 0


class Outcome(msgspec.Struct):
    """What was done."""

    said: str = ""


DemoRun = Run[Task, Outcome]


def work(run: DemoRun, seconds: float) -> None:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        run.progress(round(passed * 100), round(seconds * 100))
        time.sleep(0.1)


def takes(seconds: float, *, fails: float = 0.0, error: type[Exception] = ConnectionError) -> Callable[[DemoRun], None]:
    """A step that takes about so long, and fails so often."""

    def step(run: DemoRun) -> None:
        work(run, seconds * random.uniform(0.5, 1.5))
        if random.random() < fails:
            raise error(f"{run.step}: the other side did not answer")

    return step


def declines(run: DemoRun) -> None:
    work(run, 0.4)
    if run.request.number % 3 == 0:
        raise Abort(f"invoice {run.request.number}: the customer is not known any more")


def kills_its_worker(run: DemoRun) -> None:
    work(run, 3)
    os.kill(os.getpid(), signal.SIGKILL)


def flow(name: str, **options: Any) -> Flow[Task, Outcome]:
    return Flow(name, request=Task, response=Outcome, **options)


def last(run: DemoRun) -> Outcome:
    return Outcome(said=f"{run.request.number} is done")


order = (
    flow("order", queue="orders")
    .start("check", takes(0.3))
    .to("reserve", takes(0.6, fails=0.25), retry=fixed(5, delay=1.5))
    .to("charge", takes(0.8, fails=0.1), retry=fixed(5, delay=3))
    .to("ship", last)
)
report = flow("report", queue="reports").start("collect", takes(4)).to("render", takes(9)).to("send", last)
invoice = flow("invoice").start("look-up", declines).to("write", last)
letter = flow("letter", queue="mail").start("send", takes(0.2)).to("note", last)
legacy = flow("legacy-sync", crash_limit=2).start("talk-to-the-old-system", kills_its_worker).to("note", last)
extract = flow("extract").start("read", takes(2, fails=0.2), retry=fixed(3, delay=2)).to("split", last)
load = flow("load").start("write", takes(3)).to("index", last)
nightly = (
    Pipeline("nightly", request=Task)
    .then(extract, request=lambda view: view.request)
    .then(load, request=lambda view: view.request)
)


def flows() -> list[Flow[Any, Any]]:
    """What the server shows and the workers run: the app of this demonstration, and the flows of images."""
    own: list[Flow[Any, Any]] = [order, report, invoice, letter, legacy, nightly, extract, load]
    return [*own, *ImageManager.open(os.environ["HOLDFAST_STATE"], Settings()).flows]


# --- Images: made here, and given away slowly, so that there is something to see ---


def image_of(name: str, megabytes: int, *, is_hostile: bool = False) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for directory in ("rootfs", "rootfs/etc", "rootfs/usr", "rootfs/var"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        add(tar, "rootfs/etc/hostname", f"{name}\n".encode())
        for number in range(megabytes):
            add(tar, f"rootfs/usr/{number}.dat", random.randbytes(MEBIBYTE))
        if is_hostile:
            add(tar, "rootfs/../../../etc/cron.d/backdoor", b"* * * * * root /tmp/x\n")
    return buffer.getvalue()


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


class SlowSource(BaseHTTPRequestHandler):
    """A server of images behind a thin line."""

    content: dict[str, bytes] = {}  # noqa: RUF012 - filled before it is served

    def do_GET(self) -> None:
        """Give an image away, a little at a time."""
        found = self.content.get(self.path.partition("?")[0])
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(found or b"")))
        self.send_header("ETag", f'"{self.path}"')
        self.end_headers()
        piece = BYTES_PER_SECOND // 10
        with suppress(OSError):
            for start in range(0, len(found or b""), piece):
                self.wfile.write((found or b"")[start : start + piece])
                time.sleep(0.1)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def image_source() -> Iterator[str]:
    for number, name in enumerate(IMAGES):
        SlowSource.content[f"/{name}.tar"] = image_of(name, 8 + 2 * (number % 4))
    SlowSource.content["/vendor.tar"] = image_of("vendor", 1, is_hostile=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowSource)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


# --- The processes: a server, and workers that are started again when a job has killed them ---


class Processes:
    """Everything that was started here. None of it outlives this process, however that ends."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self._environment = environment
        self._log = log
        self._workers: list[subprocess.Popen[bytes]] = []
        self._server: subprocess.Popen[bytes] | None = None
        self.restarted = 0

    def start(self, *words: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
        """One command."""
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own command
                [*HOLDFAST, *words],
                cwd=HERE,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if stderr is None else stderr,
                start_new_session=True,  # a Ctrl-C is for us, who stop it in order
                preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing of it needs a lock
            )

    def serve(self, port: int) -> str:
        """Start the server; the link that lets in once. It gives one only to who has started it on a terminal."""
        terminal, its_end = pty.openpty()
        self._server = self.start("serve", "--listen", f"127.0.0.1:{port}", stderr=its_end)
        os.close(its_end)
        text = ""
        while (found := re.search(r"(http://\S+/login\?link=\S+)", text)) is None:
            try:
                text += os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                raise SystemExit(f"the server did not start:\n{text}") from None
        threading.Thread(target=drain, args=(terminal,), daemon=True).start()
        return found[1]

    def keep_working(self) -> None:
        """Start workers until there are as many as there should be."""
        ended = [worker for worker in self._workers if worker.poll() is not None]
        self.restarted += len(ended)
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        while len(self._workers) < WORKERS:
            self._workers.append(self.start("worker", "--concurrency", "6"))

    @property
    def has_server(self) -> bool:
        """Is it still there?"""
        return self._server is not None and self._server.poll() is None

    def stop(self) -> None:
        """End all of them, and wait until they have ended."""
        started = [*self._workers, *([self._server] if self._server is not None else [])]
        for process in started:
            process.terminate()
        deadline = time.monotonic() + 15
        for process in started:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def drain(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 4096):
            pass
    os.close(terminal)


# --- What happens: something every half second ---


class Life:
    """Submits jobs and images, so that there is always something on its way, and never too much."""

    def __init__(self, state: str, source: str) -> None:
        self._engine = Engine.open(state, flows=flows(), actor="demo")
        self._images = ImageManager.open(state, Settings(), actor="demo")
        self._source = source
        self._count = 0
        for queue, limit in (("orders", 4), ("reports", 1), ("mail", 3), ("downloads", 3), ("unpacking", 2)):
            self._engine.queue(queue, limit=limit)
        self._engine.store.pause_queue("mail", actor="operator:nadia", reason="the mail server moves, back at noon")

    def begin(self) -> None:
        """The first image makes the tables by which the server knows that there are images to be shown."""
        self._process(0)

    def go_on(self) -> None:
        """One half second of it."""
        self._count += 1
        self._submit(order)
        for each, every, first in (
            (invoice, 5, 1),
            (letter, 3, 2),
            (report, 16, 3),
            (nightly, 20, 5),
            (legacy, 240, 12),
        ):
            if self._count % every == first % every and self._waiting(each) < 30:
                self._submit(each)
        if self._count % 14 == 0:
            self._process(self._count // 14)
        if self._count == 10:
            self._images.submit(self._images.request(f"{self._source}/vendor.tar", image_id="vendor"))
        if self._count % 30 == 0:
            self._remove_the_oldest()

    def _submit(self, what: Flow[Any, Any]) -> None:
        self._engine.submit(what, Task(number=self._count), key=f"{what.name}-{self._count}")

    def _waiting(self, what: Flow[Any, Any]) -> int:
        return len(self._engine.store.jobs(flow=what.name, states=("pending",), limit=30))

    def _process(self, number: int) -> None:
        name = IMAGES[number % len(IMAGES)]
        image_id = f"{name}-{1 + number // len(IMAGES)}"
        self._images.submit(self._images.request(f"{self._source}/{name}.tar?v={number}", image_id=image_id))

    def _remove_the_oldest(self) -> None:
        there = self._images.images("completed")
        if len(there) > MOST_IMAGES:
            with suppress(HoldfastError):
                self._images.detached.remove(there[0].image.image_id, force=True)

    def close(self) -> None:
        """Let go of the database."""
        self._images.close()
        self._engine.close()


def port_to_use(wanted: int) -> int:
    """That one, or any that is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
    return wanted


@contextmanager
def directory() -> Iterator[Path]:
    """A temporary directory, and nothing of it afterwards: what was unpacked may be read-only."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-page-"))
    try:
        yield made
    finally:
        for folder, names, _ in os.walk(made):
            for name in names:
                if not os.path.islink(os.path.join(folder, name)):
                    os.chmod(os.path.join(folder, name), 0o700)
        shutil.rmtree(made)


def environment_of(made: Path) -> dict[str, str]:
    """That of the commands: with no settings of this machine's."""
    (made / "config.toml").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    state = str(made / "state")
    return {
        **kept,
        "HOLDFAST_STATE": state,
        "HOLDFAST_CONFIG": str(made / "config.toml"),
        "HOLDFAST_APP": "page_demo:flows",
    }


def demonstrate(made: Path, stop: threading.Event, port: int, seconds: float | None) -> None:
    environment = environment_of(made)
    state = os.environ["HOLDFAST_STATE"] = environment["HOLDFAST_STATE"]
    log = made / "log"
    with ExitStack() as stack:
        life = Life(state, stack.enter_context(image_source()))
        stack.callback(life.close)
        processes = Processes(environment, log)
        stack.callback(processes.stop)
        processes.keep_working()
        life.begin()
        link = processes.serve(port_to_use(port))
        print(f"\n  open, once and within ten minutes:\n\n    {link}\n\n  Ctrl-C ends it all. Log: {log}\n", flush=True)
        until = None if seconds is None else time.monotonic() + seconds
        while not stop.wait(0.5) and processes.has_server and (until is None or time.monotonic() < until):
            life.go_on()
            processes.keep_working()
        print(f"\nstopping; {processes.restarted} worker(s) were killed and started again", flush=True)
    print("every process has ended", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=PORT, help="the port to listen on, if it is free")
    parser.add_argument("--seconds", type=float, help="end by itself after so long")
    given = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    with directory() as made:
        demonstrate(made, stop, given.port, given.seconds)
    print("every file is removed", flush=True)


if __name__ == "__main__":
    main()
