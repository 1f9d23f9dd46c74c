"""The house: does everything move? If not: which queue, host or finding, since when, and who paused what."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from holdfast.core.facts import Finding, Severity
from holdfast.core.states import JobState
from holdfast.core.values import label_of, parse_worker_id
from holdfast.views import BoundedCount, Overview, QueueView, SlowView, Views, WorkerView
from holdfast.web.page import words
from holdfast.web.page.frame import Frame, Page
from holdfast.web.page.shared import SharedReadings
from holdfast.web.principal import Scope
from holdfast.web.routes import Reply, Services

OLD_MS = 4 * words.MINUTE
"""Whoever has waited so long for a slot wants a look."""


class WorkerLine(NamedTuple):
    """A worker as the house shows it."""

    host: str
    pid: str
    worker: WorkerView
    crashes: int


class HousePage:
    """What the house shows; each part is read when it is first asked for."""

    def __init__(
        self, overview: Overview, views: Views, findings: Sequence[Finding], checked_at: int, now: int
    ) -> None:
        self.overview = overview
        self.findings = findings
        self.checked_at = checked_at
        self._views = views
        self._now = now

    def count(self, state: str) -> BoundedCount:
        """How many jobs are in this state."""
        return self.overview.counts[state]

    @cached_property
    def queues(self) -> list[QueueView]:
        """The queues, those that want a look first."""
        return sorted(self.overview.queues, key=lambda one: (one.queue.paused_at is None, one.queue.name))

    @cached_property
    def paused(self) -> list[QueueView]:
        """Those that nothing starts in."""
        return [one for one in self.overview.queues if one.queue.paused_at is not None]

    @cached_property
    def workers(self) -> list[WorkerLine]:
        """The workers that are there, by host; those that are gone only if there is no other of their host."""
        lines = []
        for one in self.overview.workers:
            worker = parse_worker_id(one.worker.worker_id)
            host = worker.host if worker else label_of(one.worker.worker_id)
            pid = str(worker.pid) if worker else ""
            lines.append(WorkerLine(host, pid, one, self.overview.crashes.get(host, 0)))
        live = {line.host for line in lines if line.worker.live}
        newest: dict[str, WorkerLine] = {}
        for line in lines:
            if line.host not in live:
                newest[line.host] = line
        shown = [line for line in lines if line.worker.live or newest.get(line.host) is line]
        return sorted(shown, key=lambda line: (line.host, line.pid))

    @cached_property
    def live_workers(self) -> int:
        """How many are there."""
        return sum(one.live for one in self.overview.workers)

    @cached_property
    def hosts(self) -> int:
        """On how many hosts."""
        return len({line.host for line in self.workers if line.worker.live})

    @cached_property
    def crashes(self) -> int:
        """Workers' deaths that jobs have survived in the last hour."""
        return sum(self.overview.crashes.values())

    @cached_property
    def oldest_waiting(self) -> int | None:
        """Since when the first of those that could start could."""
        return min((one.backlog.oldest_at for one in self.overview.queues if one.backlog.oldest_at), default=None)

    @cached_property
    def waits(self) -> list[tuple[int, str]]:
        """What pending jobs wait for."""
        paused = sum(one.backlog.ready for one in self.paused)
        ready = sum(one.backlog.ready for one in self.overview.queues) - paused
        parts = [
            (ready, "could start"),
            (sum(one.backlog.waiting for one in self.overview.queues), "wait for another job"),
            (sum(one.backlog.scheduled for one in self.overview.queues), "scheduled"),
            (paused, "paused"),
        ]
        return [(number, why) for number, why in parts if number]

    @cached_property
    def slow(self) -> list[SlowView]:
        """Running jobs that get nowhere."""
        return self._views.slow()

    @cached_property
    def stalled(self) -> list[SlowView]:
        """Those that are to be recovered."""
        return [one for one in self.slow if one.stalled]

    @property
    def to_look_at(self) -> int:
        """Findings and stalled jobs."""
        return len(self.findings) + len(self.stalled)

    @property
    def verdict(self) -> str:
        """The first words: does everything move?"""
        pending, running = (self.count(state).count for state in (JobState.PENDING, JobState.RUNNING))
        if any(one.severity is Severity.ERROR for one in self.findings):
            return "Something is wrong with the database."
        if pending and not self.live_workers:
            return f"Nothing moves: no worker is live, and {words.jobs(self.count(JobState.PENDING))} wait."
        if self.stalled:
            return f"{words.jobs(len(self.stalled))} got stuck."
        if running:
            return "Everything moves."
        return "All is quiet." if not pending else "Nothing runs at the moment."

    def is_late(self, queue: QueueView) -> bool:
        """Has somebody waited here for too long?"""
        return queue.backlog.oldest_at is not None and self._now - queue.backlog.oldest_at > OLD_MS

    @cached_property
    def spark(self) -> str:
        """The throughput of the last hour as a line, in a box of 120 by 40."""
        values = self.overview.throughput
        most = max(*values, 1)
        step = 120 / (len(values) - 1)
        return "L".join(f"{at * step:.1f} {38 - 34 * value / most:.1f}" for at, value in enumerate(values))


class LastCheck:
    """The last check that was asked for on the page, or what was found when the store was opened."""

    def __init__(self, services: Services) -> None:
        self.at = services.engine.store.now()
        self.findings: Sequence[Finding] = services.engine.findings


def show(frame: Frame) -> Reply:
    """The house."""
    last = frame.call.service(LastCheck)
    overview = frame.call.service(SharedReadings).get("overview", frame.views.overview)
    return frame.reply("house.html", HousePage(overview, frame.views, last.findings, last.at, frame.now))


PAGES: Sequence[Page] = (("GET", "/", show, Scope.READ, None),)
