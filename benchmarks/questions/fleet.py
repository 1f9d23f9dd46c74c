"""On PostgreSQL: what do 1, 2 and 4 worker processes drain, beside raw psycopg, and how soon does a job begin?"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from measuring import flows
from measuring.figures import Figure, Settings, figure, percentile
from measuring.raw import RESPONSE
from measuring.workers import Drained, WorkerProcess, submit, wait_until

from holdfast import Engine, Flow
from tests.support.postgres_server import PostgresServer

PROCESSES = (1, 2, 4)
CONCURRENCY = 128
WARM_UP = 10
IDLE_PAUSE = 0.05
"""Before each submit, so that the worker is asleep again."""
RAW = "raw psycopg, one connection, same groups"


@contextmanager
def server_on_disk(settings: Settings) -> Iterator[PostgresServer]:
    """A server whose commits reach the disk that is measured."""
    os.chmod(settings.directory, 0o711)  # the server runs as another user, which has to get through
    server = PostgresServer(settings.directory)
    try:
        server.start()
        yield server
    finally:
        server.close()


def fleet(settings: Settings) -> Iterator[Figure]:
    """Five empty steps: the database is the limit, and the round trips to it."""
    with server_on_disk(settings) as server:
        for processes in PROCESSES:
            yield from _rates(
                "fleet", flows.five_steps, "flows/s", settings.pick(600, 3000), processes, server, settings
            )
        commits = [1 / (raw_seconds(server, 200, 1.0) / 200) for _ in range(settings.repeat)]
        yield figure("fleet", "raw psycopg, one row per commit", commits, "commits/s")


def noop(settings: Settings) -> Iterator[Figure]:
    """Jobs that do nothing: one plain step."""
    with server_on_disk(settings) as server:
        for processes in PROCESSES:
            jobs = settings.pick(2000, 10_000)
            yield from _rates("fleet-noop", flows.one_step, "jobs/s", jobs, processes, server, settings)


def start(settings: Settings) -> Iterator[Figure]:
    """One job at a time, run by a worker in another process that was idle: to its first line, and to its success."""
    started: list[list[float]] = []
    succeeded: list[float] = []
    for _ in range(settings.repeat):
        with (
            tempfile.NamedTemporaryFile(dir=settings.directory) as stamps,
            server_on_disk(settings) as server,
            _engine(server) as (engine, place),
        ):
            worker = WorkerProcess(place, **{flows.STAMP_FILE: stamps.name})
            worker.wait_until_ready()
            begun, took = _one_by_one(engine, settings.pick(60, 300))
            worker.stop()
            lines = [line.split() for line in Path(stamps.name).read_text().splitlines()]
            entered = {int(number): int(at) for number, at in lines}
        # The first few are those with which connections are opened and statements planned.
        started.append([(entered[number] - at) / 1e6 for number, at in enumerate(begun) if number >= WARM_UP])
        succeeded += took[WARM_UP:]
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        values = [percentile(one, share) for one in started]
        yield figure("fleet-start", f"submit to first line, another process, {label}", values, "ms")
    yield figure("fleet-start", "submit to success, another process", succeeded, "ms")


def _one_by_one(engine: Engine, jobs: int) -> tuple[list[int], list[float]]:
    begun, took = [], []
    for number in range(jobs + WARM_UP):
        time.sleep(IDLE_PAUSE)
        begun.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        engine.wait(engine.submit(flows.stamped, flows.Work(number)), timeout=60)
        took.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC) - begun[-1]) / 1e6)
    return begun, took


def _rates(
    question: str,
    flow: Flow[Any, Any],
    unit: str,
    jobs: int,
    processes: int,
    server: PostgresServer,
    settings: Settings,
) -> Iterator[Figure]:
    rates, ratios, groups, cpu = [], [], [], []
    for _ in range(settings.repeat):
        seconds, done = _drain(server, flow, jobs, processes)
        writes, commits = sum(one.writes for one in done), sum(one.group_commits for one in done)
        groups.append(writes / max(1, commits))
        rates.append(jobs / seconds)
        cpu.append(sum(one.cpu_seconds for one in done) / jobs * 1e6)
        ratios.append(raw_seconds(server, writes, groups[-1]) / seconds)
    note = f"{sum(groups) / len(groups):.1f} writes per commit, {sorted(cpu)[len(cpu) // 2]:,.0f} us CPU each"
    name = f"{flow.name} {unit.partition('/')[0]}, {processes} processes"
    yield figure(question, name, rates, unit, ratios=ratios, ratio_to=RAW, note=note)
    if len(flow.steps) > 1:
        steps = [rate * len(flow.steps) for rate in rates]
        yield figure(question, f"steps, {processes} processes", steps, "steps/s")


def _drain(server: PostgresServer, flow: Flow[Any, Any], jobs: int, processes: int) -> tuple[float, list[Drained]]:
    with _engine(server) as (engine, place), psycopg.connect(server.url, autocommit=True) as looking:
        submit(engine, flow, jobs)
        # All processes are up and idle before the first claim: they start on one word.
        engine.store.pause_queue(flow.queue, actor="benchmark", reason="until all workers are there")
        workers = [WorkerProcess(place, concurrency=CONCURRENCY) for _ in range(processes)]
        for worker in workers:
            worker.wait_until_ready()
        schema = place.partition("holdfast_schema=")[2]
        unsettled = f"SELECT EXISTS (SELECT 1 FROM {schema}.jobs WHERE state IN ('pending', 'running'))"
        began = time.perf_counter()
        engine.store.resume_queue(flow.queue)
        wait_until(lambda: looking.execute(unsettled.encode()).fetchone() == (False,), pause=0.01)
        seconds = time.perf_counter() - began
        return seconds, [worker.stop() for worker in workers]


@contextmanager
def _engine(server: PostgresServer) -> Iterator[tuple[Engine, str]]:
    place = f"{server.url}?holdfast_schema=b_{secrets.token_hex(4)}"
    with Engine.open(place, flows=flows.ALL) as engine:
        yield engine, place


def raw_seconds(server: PostgresServer, writes: int, group: float) -> float:
    """How long one connection takes for so many rows of a step, so many per commit; psycopg's own fastest way."""
    table = f"raw_{secrets.token_hex(4)}"
    insert = f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %s, %s, %s)".encode()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {table} (job_id TEXT, position BIGINT, step TEXT, exec_id TEXT, tries BIGINT,"
            " started_at BIGINT, finished_at BIGINT, response TEXT, PRIMARY KEY (job_id, position))".encode()
        )
        rows = [(f"{number:026d}", number % 5, "step", f"{number:026d}", 1, 1, 1, RESPONSE) for number in range(writes)]
        began = time.perf_counter()
        done, due = 0, 0.0
        while done < writes:
            due += group
            until = min(writes, max(done + 1, round(due)))
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(insert, rows[done:until])
            done = until
        return time.perf_counter() - began
