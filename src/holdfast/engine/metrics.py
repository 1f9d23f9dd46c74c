"""What a worker has done and what waits for it, in Prometheus form. Read at scrape time; costs nothing before."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.core.records import QueueRecord
from holdfast.engine.telemetry import BUCKETS, Telemetry, Timing
from holdfast.store.protocol import Store

log = logging.getLogger("holdfast.metrics")

READ_TIMEOUT = 5.0
Labels = TypeVar("Labels", bound=tuple[str, ...])
_BOUNDS = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]


class EngineCollector(Collector):
    """All metrics of one worker. A store that cannot be read costs its gauges, never the scrape."""

    def __init__(self, telemetry: Telemetry, store: Store) -> None:
        self._telemetry = telemetry
        self._store = store
        # One thread reads for all scrapes: a store keeps a connection for each thread that ever read from it.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-metrics")

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        yield from self._counters()
        yield from self._timings()
        yield from self._gauges()

    def close(self) -> None:
        """Let go of the thread."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _counters(self) -> Iterator[Metric]:
        telemetry = self._telemetry
        yield _counts(
            "holdfast_transitions", "Changes of a job's state.", ("flow", "from", "to"), telemetry.transitions
        )
        yield _counts(
            "holdfast_step_outcomes",
            "Tries of a step, by how they ended.",
            ("flow", "step", "outcome"),
            telemetry.outcomes,
        )
        yield _counts("holdfast_recovered", "Executions taken over.", ("flow", "outcome"), telemetry.recovered)
        findings = {(code,): count for code, count in dict(telemetry.findings).items()}
        yield _counts("holdfast_findings", "Broken invariants found by the guard.", ("code",), findings)
        for name, text, value in (
            ("holdfast_lost_leases", "Executions fenced while they ran here.", telemetry.lost_leases),
            ("holdfast_group_commits", "Durable commits of the writer.", telemetry.group_commits),
            ("holdfast_writes", "Writes that shared these commits.", telemetry.writes),
        ):
            yield CounterMetricFamily(name, text, value=value)

    def _timings(self) -> Iterator[Metric]:
        steps = HistogramMetricFamily(
            "holdfast_step_seconds", "How long tries of a step took.", labels=["flow", "step"]
        )
        for labels, timing in dict(self._telemetry.steps).items():
            _add_timing(steps, labels, timing)
        yield steps
        executions = HistogramMetricFamily("holdfast_execution_seconds", "How long executions took.", labels=["flow"])
        for flow, timing in dict(self._telemetry.executions).items():
            _add_timing(executions, (flow,), timing)
        yield executions

    def _gauges(self) -> Iterator[Metric]:
        reading: Future[tuple[list[QueueRecord], int]] = self._reader.submit(self._read)
        try:
            queues, workers = reading.result(READ_TIMEOUT)
        except Exception as error:
            log.warning("the store cannot be read for metrics: %s", error)
            yield GaugeMetricFamily("holdfast_store_up", "Can the store be read?", value=0)
            return
        yield GaugeMetricFamily("holdfast_store_up", "Can the store be read?", value=1)
        yield GaugeMetricFamily("holdfast_workers", "Workers that have announced themselves.", value=workers)
        yield _gauge("holdfast_queue_running", "Leases that take a slot.", {q.name: q.running for q in queues})
        yield _gauge("holdfast_queue_pending", "Jobs that wait in the queue.", {q.name: q.pending for q in queues})
        limits = {q.name: q.max_running for q in queues if q.max_running is not None}
        yield _gauge("holdfast_queue_limit", "How many may run at once; absent without a limit.", limits)
        paused = {q.name: int(q.paused_at is not None) for q in queues}
        yield _gauge("holdfast_queue_paused", "1 while the queue is paused.", paused)

    def _read(self) -> tuple[list[QueueRecord], int]:
        return self._store.queues(), len(self._store.workers())


class MetricsServer:
    """Serves /metrics over HTTP from a thread of its own, on this machine only unless told otherwise."""

    def __init__(self, telemetry: Telemetry, store: Store, *, port: int, address: str = "127.0.0.1") -> None:
        registry = CollectorRegistry()
        self._collector = EngineCollector(telemetry, store)
        registry.register(self._collector)
        ProcessCollector(registry=registry)
        self._server, self._thread = start_http_server(port, address, registry)
        self.port: int = self._server.server_port
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
        self._collector.close()


def _counts(name: str, text: str, labels: Labels, counts: Mapping[Labels, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    # Copied in one go, because the worker's threads go on counting meanwhile.
    for values, count in dict(counts).items():
        family.add_metric(values, count)
    return family


def _add_timing(family: HistogramMetricFamily, labels: Iterable[str], timing: Timing) -> None:
    cumulative = accumulate(list(timing.counts))
    buckets = [(bound, float(count)) for bound, count in zip(_BOUNDS, cumulative, strict=True)]
    family.add_metric(list(labels), buckets, timing.total)


def _gauge(name: str, text: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["queue"])
    for queue, value in values.items():
        family.add_metric([queue], value)
    return family
