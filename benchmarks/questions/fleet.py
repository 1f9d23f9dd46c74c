"""On PostgreSQL: what do 1, 2 and 4 worker processes drain, beside raw psycopg on the same server?"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from measuring import flows
from measuring.figures import Figure, Settings, figure
from measuring.raw import RESPONSE
from measuring.workers import Drained, WorkerProcess, submit, wait_until

from holdfast import Engine
from tests.support.postgres_server import PostgresServer

PROCESSES = (1, 2, 4)
QUEUE = "bench"
CONCURRENCY = 128
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
    jobs = settings.pick(600, 3000)
    with server_on_disk(settings) as server:
        for processes in PROCESSES:
            rates, ratios, groups, cpu = [], [], [], []
            for _ in range(settings.repeat):
                seconds, done = _drain(server, jobs, processes)
                writes, commits = sum(one.writes for one in done), sum(one.group_commits for one in done)
                groups.append(writes / max(1, commits))
                rates.append(jobs / seconds)
                cpu.append(sum(one.cpu_seconds for one in done) / jobs * 1e6)
                ratios.append(raw_seconds(server, writes, groups[-1]) / seconds)
            note = f"{sum(groups) / len(groups):.1f} writes per commit, {sorted(cpu)[len(cpu) // 2]:,.0f} us CPU each"
            name = f"five-step flows, {processes} processes"
            yield figure("fleet", name, rates, "flows/s", ratios=ratios, ratio_to=RAW, note=note)
            yield figure("fleet", f"steps, {processes} processes", [5 * rate for rate in rates], "steps/s")
        commits = [1 / (raw_seconds(server, 200, 1.0) / 200) for _ in range(settings.repeat)]
        yield figure("fleet", "raw psycopg, one row per commit", commits, "commits/s")


def start(settings: Settings) -> Iterator[Figure]:
    """From a submit to the success of its job, run by a worker in another process that was idle."""
    with server_on_disk(settings) as server, _engine(server) as (engine, place):
        worker = WorkerProcess(place)
        worker.wait_until_ready()
        took = []
        for number in range(settings.pick(20, 60)):
            time.sleep(0.05)
            began = time.perf_counter()
            engine.wait(engine.submit(flows.one_step, flows.Work(number)), timeout=60)
            took.append(1000 * (time.perf_counter() - began))
        worker.stop()
    yield figure("fleet-start", "submit to success, another process", took, "ms")


def _drain(server: PostgresServer, jobs: int, processes: int) -> tuple[float, list[Drained]]:
    with _engine(server) as (engine, place), psycopg.connect(server.url, autocommit=True) as looking:
        submit(engine, flows.five_steps, jobs)
        # All processes are up and idle before the first claim: they start on one word.
        engine.store.pause_queue(QUEUE, actor="benchmark", reason="until all workers are there")
        workers = [WorkerProcess(place, concurrency=CONCURRENCY) for _ in range(processes)]
        for worker in workers:
            worker.wait_until_ready()
        schema = place.partition("holdfast_schema=")[2]
        unsettled = f"SELECT EXISTS (SELECT 1 FROM {schema}.jobs WHERE state IN ('pending', 'running'))"
        began = time.perf_counter()
        engine.store.resume_queue(QUEUE)
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
