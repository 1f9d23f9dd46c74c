"""What a worker has done and what waits for it, in Prometheus form. Read at scrape time; costs nothing before."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.core.records import Backlog, QueueRecord
from holdfast.core.text import describe
from holdfast.engine.telemetry import BUCKETS, Telemetry, Timing
from holdfast.store.processes import is_live
from holdfast.store.protocol import Store

log = logging.getLogger("holdfast.metrics")

READ_TIMEOUT = 5.0
_BOUNDS = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]


_Timings: TypeAlias = dict[tuple[str, ...], tuple[list[int], float]]


class _Reading(NamedTuple):
    """What a scrape asks the store for."""

    now: int
    queues: list[QueueRecord]
    backlog: Mapping[str, Backlog]
    jobs: Mapping[tuple[str, str], int]
    workers: int


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
        reading: Future[_Reading] = self._reader.submit(self._read)
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

    def _read(self) -> _Reading:
        store = self._store
        now, one_machine = store.now(), store.one_machine
        return _Reading(
            now=now,
            queues=store.queues(),
            backlog={one.queue: one for one in store.backlog()},
            jobs=store.unsettled_counts(),
            workers=sum(is_live(worker, now=now, one_machine=one_machine) for worker in store.workers()),
        )


def _queue_gauges(found: _Reading) -> Iterator[Metric]:
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
