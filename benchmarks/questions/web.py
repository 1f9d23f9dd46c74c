"""What does HTTP add, how soon is a change heard of, what does a page cost a worker, how slow is a list?"""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import flows
from measuring.figures import Figure, Settings, figure, percentile
from measuring.workers import drain

from holdfast import Engine
from holdfast.store.open import open_store
from holdfast.views import Views
from questions.fleet import server_on_disk
from tests.support.listed import fill

HERE = Path(__file__).resolve().parent.parent
STARTED_WITHIN = 60.0
REFRESH = 1.0
"""A page looks again at what has changed no more often."""
LOST_OR_DOUBLED = "jobs lost or doubled over HTTP"
LISTS = {
    "everything": "newer_than=0",
    "a state": "state=failed",
    "a flow": "flow=mail",
    "a rare flow": "flow=yearly-report",
    "a rare queue": "queue=attic",
    "a rare key": "key_prefix=audit-",
    "a step": "step=convert",
    "a rare error": "error_text=moon",
    "a rare error of the failed": "error_text=moon&state=failed",
    "a flow in a queue": "flow=mail&queue=slow",
    "old ones": "older_than=1000",
}


class Connection(http.client.HTTPConnection):
    """Kept open, over a unix socket: no network is measured."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=STARTED_WITHIN)
        self._path = path

    def connect(self) -> None:
        """To the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def ask(self, method: str, target: str, body: Any = None) -> bytes:
        """The body of the answer; RuntimeError if it is a refusal."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        self.request(method, target, json.dumps(body) if body is not None else None, headers)
        answer = self.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {target}: {answer.status} {data[:300]!r}")
        return data


@contextmanager
def served(place: str) -> Iterator[str]:
    """A server in a process of its own: the path of its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/web.sock"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        words = ["--store", place, "--app", "measuring.flows:ALL", "serve", "--listen", f"unix:{path}"]
        command = [sys.executable, "-m", "holdfast.cli", *words]
        server = subprocess.Popen(command, cwd=HERE, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            until = time.monotonic() + STARTED_WITHIN
            while not os.path.exists(path):
                if server.poll() is not None or time.monotonic() > until:
                    assert server.stderr is not None
                    raise RuntimeError(f"the server has not started: {server.stderr.read()[-500:]!r}")
                time.sleep(0.02)
            yield path
        finally:
            server.terminate()
            server.communicate()


@contextmanager
def engine_and_server(settings: Settings) -> Iterator[tuple[Engine, str]]:
    with (
        tempfile.TemporaryDirectory(dir=settings.directory) as folder,
        Engine.open(folder, flows=flows.ALL) as engine,
        served(engine.store.url) as path,
    ):
        yield engine, path


def _rate(number: int, act: Any) -> float:
    began = time.perf_counter()
    for each in range(number):
        act(each)
    return number / (time.perf_counter() - began)


def submits(settings: Settings) -> Iterator[Figure]:
    """One after the other, each durable: over one connection, and by the client in this process."""
    jobs = settings.pick(100, 500)
    over_http, by_client, posted = [], [], 0
    with engine_and_server(settings) as (engine, path):
        connection, target = Connection(path), f"/v1/flows/{flows.one_step.name}/jobs"

        def post(number: int) -> None:
            connection.ask("POST", target, {"request": {"number": number}})

        for _ in range(settings.repeat):
            by_client.append(_rate(jobs, lambda number: engine.submit(flows.one_step, flows.Work(number))))
            over_http.append(_rate(jobs, post))
            posted += jobs
        there = sum(engine.store.counts().values())
        connection.close()
    yield figure(
        "serve-submit", "submits, one at a time", over_http, "jobs/s", besides=by_client, ratio_to="the client"
    )
    yield figure("serve-submit", LOST_OR_DOUBLED, [abs(there - 2 * posted)], "jobs")


def reads(settings: Settings) -> Iterator[Figure]:
    """One job with all of it, and a page of fifty."""
    number = settings.pick(200, 1000)
    with engine_and_server(settings) as (engine, path):
        job_ids = [engine.submit(flows.one_step, flows.Work(each)) for each in range(100)]
        connection, views = Connection(path), Views(engine)
        cases = {
            "one job": (
                lambda each: connection.ask("GET", f"/v1/jobs/{job_ids[each % 100]}"),
                lambda each: views.job(job_ids[each % 100]),
            ),
            "a page of 50": (lambda _: connection.ask("GET", "/v1/jobs?limit=50"), lambda _: views.jobs(limit=50)),
        }
        for name, (over_http, by_views) in cases.items():
            served_rates, own_rates = [], []
            for _ in range(settings.repeat):
                own_rates.append(_rate(number // 4, by_views))
                served_rates.append(_rate(number // 4, over_http))
            yield figure("serve-read", name, served_rates, "reads/s", besides=own_rates, ratio_to="the views")
        connection.close()


def events(settings: Settings) -> Iterator[Figure]:
    """From the commit of a submit in another process to its event in a client's hands."""
    jobs = settings.pick(50, 300)
    p50, p99 = [], []
    with engine_and_server(settings) as (engine, path), listening(path) as heard:
        for _ in range(settings.repeat):
            delays = []
            for number in range(jobs):
                job_id = engine.submit(flows.one_step, flows.Work(number))
                committed = time.perf_counter()
                delays.append((heard.when(job_id) - committed) * 1e3)
                time.sleep(0.002 * (number % 7))
            p50.append(percentile(delays, 0.5))
            p99.append(percentile(delays, 0.99))
    yield figure("serve-events", "commit to event, p50", p50, "ms")
    yield figure("serve-events", "commit to event, p99", p99, "ms")


class Heard:
    """The events of a stream, and when they came."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._at: dict[str, float] = {}
        self.count = 0

    def tell(self, data: bytes) -> None:
        """A piece of the stream."""
        now = time.perf_counter()
        with self._news:
            for line in data.split(b"\n"):
                if line.startswith(b"data:") and b'"job"' in line:
                    self.count += 1
                    self._at.setdefault(json.loads(line[5:])["job"], now)
            self._news.notify_all()

    def when(self, job_id: str) -> float:
        """When the first event of this job came."""
        with self._news:
            if not self._news.wait_for(lambda: job_id in self._at, 30):
                raise RuntimeError("an event has not come")
            return self._at[job_id]


@contextmanager
def listening(path: str) -> Iterator[Heard]:
    """A client of the stream of events."""
    heard, ready = Heard(), threading.Event()
    stream = Connection(path)

    def listen() -> None:
        stream.request("GET", "/v1/events")
        answer = stream.getresponse()
        ready.set()
        rest = b""
        try:
            while data := answer.read1(1 << 16):
                whole, newline, rest = (rest + data).rpartition(b"\n")
                heard.tell(whole + newline)
        except (OSError, ValueError, http.client.HTTPException):
            pass  # closed below

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    ready.wait(STARTED_WITHIN)
    try:
        yield heard
    finally:
        if stream.sock is not None:
            stream.sock.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def beside_a_worker(settings: Settings) -> Iterator[Figure]:
    """Flows of five steps by a worker in this process, with a page open in another one, and without."""
    jobs = settings.pick(400, 2000)
    times: list[list[float]] = [[], []]
    cpu: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory(dir=settings.directory) as folder, Engine.open(folder, flows=flows.ALL) as engine:
        drain(engine, flows.five_steps, jobs, 64)
        for _ in range(settings.repeat):
            alone = drain(engine, flows.five_steps, jobs, 64)
            with served(engine.store.url) as path, a_page(path):
                watched = drain(engine, flows.five_steps, jobs, 64)
            for index, run in enumerate((alone, watched)):
                times[index].append(run.seconds / run.jobs * 1e6)
                cpu[index].append(run.cpu_seconds / run.jobs * 1e6)
    note = "the page's reader is a process of its own, on the same cores"
    for name, (alone_values, watched_values) in {"time": times, "CPU of the worker": cpu}.items():
        yield figure(
            "serve-worker",
            f"{name} per flow with one page open",
            watched_values,
            "us",
            besides=alone_values,
            ratio_to="none open",
            at_most=1.05,
            note=note if name == "time" else "",
        )


@contextmanager
def a_page(path: str) -> Iterator[None]:
    """A page that is open: a stream of events, and the house looked at again when there was one. In a process."""
    program = (
        "import sys, time; sys.path[:0] = sys.argv[2].split(':')\n"
        "from questions.web import Connection, REFRESH, listening\n"
        "page = Connection(sys.argv[1])\n"
        "with listening(sys.argv[1]) as heard:\n"
        "    print('open', flush=True)\n"
        "    seen = -1\n"
        "    while True:\n"
        "        time.sleep(REFRESH)\n"
        "        if heard.count != seen:\n"
        "            seen = heard.count\n"
        "            page.ask('GET', '/')\n"
    )
    command = [sys.executable, "-c", program, path, ":".join(sys.path)]
    page = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE)
    try:
        assert page.stdout is not None
        if page.stdout.readline() != b"open\n":
            raise RuntimeError("the page has not opened")
        yield
        if page.poll() is not None:
            raise RuntimeError("the page was closed")
    finally:
        page.kill()
        page.wait()


def lists(settings: Settings) -> Iterator[Figure]:
    """Every kind of list, on both stores, over HTTP; the slowest one is told by its name."""
    jobs = settings.pick(50_000, 1_000_000)
    with tempfile.TemporaryDirectory(dir=settings.directory) as folder:
        place = f"sqlite:///{folder}/holdfast.db"
        open_store(place).close()
        fill(f"{folder}/holdfast.db", jobs)
        yield from _listed(place, "SQLite", jobs, settings)
    with server_on_disk(settings) as server:
        place = f"{server.url}?holdfast_schema=listed"
        open_store(place).close()
        fill(f"{server.url}?options=-csearch_path%3Dlisted", jobs)
        yield from _listed(place, "PostgreSQL", jobs, settings)


def _listed(place: str, store: str, jobs: int, settings: Settings) -> Iterator[Figure]:
    with served(place) as path:
        connection = Connection(path)
        for question in ("/v1/jobs?", "/v1/jobs/count?"):
            slowest, name = _slowest(connection, question, settings.repeat * 2)
            what = "list" if "count" not in question else "count"
            note = f"the slowest of {len(LISTS)}: {name}; aim below 100 ms"
            yield figure("serve-list", f"{what} at {jobs:,} on {store}", slowest, "ms", note=note)
        connection.close()


def _slowest(connection: Connection, question: str, times: int) -> tuple[Sequence[float], str]:
    taken = {}
    for name, query in LISTS.items():
        connection.ask("GET", question + query)
        taken[name] = [
            1e3 / _rate(1, lambda _, query=query: connection.ask("GET", question + query)) for _ in range(times)
        ]
    name = max(taken, key=lambda each: statistics.median(taken[each]))
    return taken[name], name
