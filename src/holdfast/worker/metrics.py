"""What a worker has done and what waits for it, in Prometheus form. Read at scrape time; costs nothing before."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.core.records import Backlog, QueueRecord, describe
from holdfast.store.liveness import is_live
from holdfast.store.protocol import Store
from holdfast.worker.telemetry import BUCKETS, Telemetry, Timing

log = logging.getLogger("holdfast.metrics")

READ_TIMEOUT = 5.0
OwnGauge: TypeAlias = tuple[str, str, Sequence[str], Mapping[tuple[str, ...], float]]
"""Name, meaning, labels, and values by those of the labels."""
Gauges: TypeAlias = Callable[[], Iterable[OwnGauge]]
_BOUNDS = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]


_Timings: TypeAlias = dict[tuple[str, ...], tuple[list[int], float]]


class _StoreReading(NamedTuple):
    """What a scrape asks the store for."""

    now: int
    queues: list[QueueRecord]
    backlog: Mapping[str, Backlog]
    jobs: Mapping[tuple[str, str], int]
    workers: int


class EngineCollector(Collector):
    """All metrics of one worker. A store that cannot be read costs its gauges, never the scrape.

    `gauges` are those of the application; if they cannot be had, the others are told all the same.
    """

    def __init__(self, telemetry: Telemetry, store: Store, gauges: Gauges = tuple) -> None:
        self._telemetry = telemetry
        self._store = store
        self._own = gauges
        # One thread reads for all scrapes: a store keeps a connection for each thread that ever read from it.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-metrics")

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        yield from self._counters()
        yield from self._timings()
        yield from self._gauges()
        yield from self._own_gauges()

    def close(self) -> None:
        """Let go of the thread."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _counters(self) -> Iterator[Metric]:
        telemetry = self._telemetry
        with telemetry.reading():
            labelled = (
                ("transitions", "Changes of a job's state.", ("flow", "from", "to"), dict(telemetry.transitions)),
                ("execution_ends", "Executions, by why they ended.", ("flow", "code"), dict(telemetry.ends)),
                ("step_outcomes", "Tries of a step, by how they ended.", ("flow", "step", "outcome"),
                 dict(telemetry.outcomes)),
                ("recovered", "Executions taken over.", ("flow", "outcome"), dict(telemetry.recovered)),
                ("findings", "Broken invariants found by the guard.", ("code",), _alone(telemetry.findings)),
                ("worker_faults", "Unexpected errors that the worker went on after.", ("part",),
                 _alone(telemetry.faults)),
            )  # fmt: skip
            plain = (
                ("lost_leases", "Executions fenced while they ran here.", telemetry.lost_leases),
                ("group_commits", "Durable commits of the writer.", telemetry.group_commits),
                ("writes", "Writes that shared these commits.", telemetry.writes),
            )
        for name, text, labels, counts in labelled:
            family = CounterMetricFamily(f"holdfast_{name}", text, labels=labels)
            for values, count in counts.items():
                family.add_metric(values, count)
            yield family
        for name, text, value in plain:
            yield CounterMetricFamily(f"holdfast_{name}", text, value=value)

    def _timings(self) -> Iterator[Metric]:
        telemetry = self._telemetry
        with telemetry.reading():
            steps: _Timings = {labels: _copied(timing) for labels, timing in telemetry.steps.items()}
            executions: _Timings = {(flow,): _copied(timing) for flow, timing in telemetry.executions.items()}
            waits: _Timings = {(flow,): _copied(timing) for flow, timing in telemetry.waits.items()}
        yield _histogram("holdfast_step_seconds", "How long tries of a step took.", ("flow", "step"), steps)
        yield _histogram("holdfast_execution_seconds", "How long executions took.", ("flow",), executions)
        waited = "How long jobs waited for their first start, since they were submitted or due."
        yield _histogram("holdfast_wait_seconds", waited, ("flow",), waits)

    def _gauges(self) -> Iterator[Metric]:
        reading: Future[_StoreReading] = self._reader.submit(self._read)
        try:
            found = reading.result(READ_TIMEOUT)
        except Exception as error:
            reading.cancel()  # or scrapes would queue up behind one that hangs
            log.warning("the store cannot be read for metrics: %s", describe(error))
            yield GaugeMetricFamily("holdfast_store_up", "Can the store be read?", value=0)
            return
        yield GaugeMetricFamily("holdfast_store_up", "Can the store be read?", value=1)
        yield GaugeMetricFamily("holdfast_workers", "Workers that are there.", value=found.workers)
        jobs = GaugeMetricFamily("holdfast_jobs", "Jobs by state, but for succeeded ones.", labels=["flow", "state"])
        for labels, count in found.jobs.items():
            jobs.add_metric(labels, count)
        yield jobs
        yield from _queue_gauges(found)

    def _own_gauges(self) -> Iterator[Metric]:
        reading: Future[list[OwnGauge]] = self._reader.submit(lambda: list(self._own()))
        try:
            found = reading.result(READ_TIMEOUT)
        except Exception as error:
            reading.cancel()
            log.warning("the application's gauges cannot be read: %s", describe(error))
            return
        for name, meaning, names, values in found:
            family = GaugeMetricFamily(name, meaning, labels=names)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family

    def _read(self) -> _StoreReading:
        store = self._store
        now, one_machine = store.now(), store.one_machine
        return _StoreReading(
            now=now,
            queues=store.queues(),
            backlog={one.queue: one for one in store.backlog()},
            jobs=store.unsettled_counts(),
            workers=sum(is_live(worker, now=now, one_machine=one_machine) for worker in store.workers()),
        )


def _queue_gauges(found: _StoreReading) -> Iterator[Metric]:
    queues = found.queues
    backlog = {queue.name: found.backlog.get(queue.name, Backlog(queue=queue.name)) for queue in queues}
    yield _gauge("holdfast_queue_running", "Leases that take a slot.", {q.name: q.running for q in queues})
    ready = {name: one.ready for name, one in backlog.items()}
    yield _gauge("holdfast_queue_pending", "Jobs that could start now.", ready)
    scheduled = {name: one.scheduled for name, one in backlog.items()}
    yield _gauge("holdfast_queue_scheduled", "Jobs whose time has not come.", scheduled)
    waiting = {name: one.waiting for name, one in backlog.items()}
    yield _gauge("holdfast_queue_waiting", "Jobs that wait for another job.", waiting)
    ages = {
        name: 0.0 if one.oldest_at is None else max(0, found.now - one.oldest_at) / 1000
        for name, one in backlog.items()
    }
    yield _gauge("holdfast_queue_oldest_seconds", "How long the first job that could start has waited.", ages)
    limits = {q.name: q.max_running for q in queues if q.max_running is not None}
    yield _gauge("holdfast_queue_limit", "How many may run at once; absent without a limit.", limits)
    paused = {q.name: int(q.paused_at is not None) for q in queues}
    yield _gauge("holdfast_queue_paused", "1 while the queue is paused.", paused)


def _alone(counts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(label,): count for label, count in counts.items()}


def _copied(timing: Timing) -> tuple[list[int], float]:
    return list(timing.counts), timing.total


def _histogram(name: str, text: str, labels: Sequence[str], timings: _Timings) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, (counts, total) in timings.items():
        buckets = [(bound, float(count)) for bound, count in zip(_BOUNDS, accumulate(counts), strict=True)]
        family.add_metric(list(values), buckets, total)
    return family


def _gauge(name: str, text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["queue"])
    for queue, value in values.items():
        family.add_metric([queue], value)
    return family


# --- HTTP for those who watch a worker: /metrics, and whether it is well (/healthz) and takes work (/readyz) ---

Look = Callable[[], Sequence[str]]
_JSON = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]


class MetricsServer:
    """Serves from threads of its own, on this machine only unless told otherwise.

    `problems` says what is wrong with the worker, `unready` what keeps it from taking work.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        store: Store,
        *,
        port: int,
        address: str = "127.0.0.1",
        problems: Look = tuple,
        unready: Look = tuple,
        gauges: Gauges = tuple,
    ) -> None:
        registry = CollectorRegistry()
        self._collector = EngineCollector(telemetry, store, gauges)
        registry.register(self._collector)
        ProcessCollector(registry=registry)
        self._metrics: Any = make_wsgi_app(registry)
        self._looks = {"/healthz": problems, "/readyz": unready}
        self._server = make_server(address, port, self._answer, _server_for(address), _Quiet)
        self.port: int = self._server.server_port
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="holdfast-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
        self._collector.close()

    def _answer(self, environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environment.get("PATH_INFO", "")
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environment, start)
            return answer
        look = self._looks.get(path)
        if look is None:
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there are /metrics, /healthz and /readyz\n"]
        problems = list(look())
        start("503 Service Unavailable" if problems else "200 OK", list(_JSON))
        return [msgspec.json.encode({"status": "failing" if problems else "ok", "problems": problems}) + b"\n"]


def _server_for(address: str) -> type[WSGIServer]:
    class Server(ThreadingMixIn, WSGIServer):
        """One thread for each request: a scrape that waits for the store keeps nobody from asking how we are."""

        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    return Server


class _Quiet(WSGIRequestHandler):
    timeout = 10  # of somebody who connects and says nothing

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it has
        """Nothing: who scrapes is of no interest to the log."""
