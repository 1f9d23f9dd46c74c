"""The journal of all jobs as it grows: every committed entry once, none left out.

There is no order of commits to go by: on PostgreSQL a transaction may commit long after one that began later. But the
entries of one job are numbered without gaps under its lock. So what is new is what is behind the last number known of
each job. To look for it everywhere costs one look-up in an index for each job that there is; most looks pass over the
jobs that have succeeded, of which there may be millions, and whose journals are at their end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import msgspec

from holdfast.core.records import JobResult, JournalEntry, error_of
from holdfast.core.states import COMMITTED_STATUSES, JobState
from holdfast.core.values import label_of
from holdfast.store.protocol import JournalEnd, Store

FLOWS_AT_ONCE = 1000
REST = 20
"""Looks of a kind are so many times as far apart as the last one took: a large store is not kept busy by them."""
SHORTEST_REST, LONGEST_REST = 0.02, 30.0
LEAST_BETWEEN = 2.0
"""Seconds between two looks everywhere."""
SLOW_LOOK = 1.0
"""Claims wake nobody, and a wake-up may be lost."""


class JournalFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries are wanted."""

    job_id: str | None = None
    since: int = 0
    actor: str | None = None
    """As it is stored, or as it is shown."""
    flow: str | None = None

    def takes(self, entry: JournalEntry) -> bool:
        """But for the flow, which an entry does not name."""
        return (
            entry.at >= self.since
            and self.job_id in (None, entry.job_id)
            and (self.actor is None or self.actor in (entry.actor, label_of(entry.actor)))
        )


class JournalFeed:
    """What is new in a journal since the last look."""

    def __init__(self, store: Store, wanted: JournalFilter, *, from_now: bool) -> None:
        self._store = store
        self._wanted = wanted
        self._ends: dict[str, int] = {}
        self._open: set[str] = set()
        """Jobs that had not succeeded when they were last seen: what is new is in their journals, or in new ones."""
        self._newest = ""
        if from_now:
            self._known(store.journal_ends())

    def look(self, *, everywhere: bool = True) -> list[JournalEntry]:
        """What has been committed since the last look, in the order of its times.

        Not `everywhere`, it costs nothing for jobs that have succeeded, and sees what was added to one of those, or was
        submitted under an id older than the newest, only with the next look everywhere.
        """
        found: list[JournalEntry] = []
        for page in self._store.journal_beyond(self._grown(everywhere=everywhere)):
            for entry in page:
                self._ends[entry.job_id] = max(entry.seq, self._ends.get(entry.job_id, 0))
                (self._open.discard if entry.job_to == JobState.SUCCEEDED else self._open.add)(entry.job_id)
            found += _chosen(self._store, self._wanted, page)
        return _in_order(found)

    def _grown(self, *, everywhere: bool) -> dict[str, int]:
        """The jobs to look at, and how much of their journals is known."""
        if self._wanted.job_id is not None:
            return {self._wanted.job_id: self._ends.get(self._wanted.job_id, 0)}
        if not everywhere:
            new = self._store.journal_ends(after=self._newest)
            self._newest = max(new, default=self._newest)
            return {job_id: self._ends.get(job_id, 0) for job_id in [*self._open, *new]}
        before = self._ends
        ends = self._store.journal_ends()
        # Those that retention has removed are forgotten: their ids are not given again.
        self._known({job_id: end._replace(seq=before.get(job_id, 0)) for job_id, end in ends.items()})
        return {job_id: before.get(job_id, 0) for job_id, end in ends.items() if end.seq > before.get(job_id, 0)}

    def _known(self, ends: Mapping[str, JournalEnd]) -> None:
        self._ends = {job_id: end.seq for job_id, end in ends.items()}
        self._open = {job_id for job_id, end in ends.items() if end.is_open}
        self._newest = max(ends, default=self._newest)


def follow(store: Store, feed: JournalFeed, *, stop_when: Callable[[], bool]) -> Iterator[JournalEntry]:
    """Every new entry, until `stop_when` says so, which is asked when all that was found has been given."""
    everywhere_at = time.monotonic()
    with closing(store.listen()) as listener:
        while True:
            began = time.monotonic()
            everywhere = began >= everywhere_at
            found = feed.look(everywhere=everywhere)
            took = time.monotonic() - began
            if everywhere:
                everywhere_at = began + max(took * REST, LEAST_BETWEEN)
            yield from found
            if stop_when():
                return
            time.sleep(SHORTEST_REST if everywhere else min(max(took * REST, SHORTEST_REST), LONGEST_REST))
            listener.wait(SLOW_LOOK)


def _chosen(store: Store, wanted: JournalFilter, page: Sequence[JournalEntry]) -> list[JournalEntry]:
    """Those of these entries that are wanted."""
    taken = [entry for entry in page if wanted.takes(entry)]
    if wanted.flow is None:
        return taken
    flows = _flows_of(store, sorted({entry.job_id for entry in taken}))
    return [entry for entry in taken if flows.get(entry.job_id) == wanted.flow]


def _flows_of(store: Store, job_ids: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for start in range(0, len(job_ids), FLOWS_AT_ONCE):
        found |= store.flows_of(job_ids[start : start + FLOWS_AT_ONCE])
    return found


def _in_order(found: Sequence[JournalEntry]) -> list[JournalEntry]:
    """By time; those of one job in their own order, also if the clock was set back between them."""
    latest: dict[str, int] = {}
    times: list[tuple[int, str, int]] = []
    for entry in found:
        latest[entry.job_id] = max(entry.at, latest.get(entry.job_id, 0))
        times.append((latest[entry.job_id], entry.job_id, entry.seq))
    return [entry for _, entry in sorted(zip(times, found, strict=True), key=lambda pair: pair[0])]


# --- How a job ended, put together from its records -----------------------------------------------------


def result_of(store: Store, job_id: str) -> JobResult:
    """The result of a job so far: state, outcome, the reason it ended for, its response if it succeeded."""
    job = store.job(job_id)
    executions = store.executions(job_id)
    committed = next((e for e in executions if e.status in COMMITTED_STATUSES), None)
    latest = executions[-1] if executions else None
    response = None
    if job.state is JobState.SUCCEEDED:
        steps = store.steps(job_id)
        response = steps[-1].response if steps else None  # somebody has removed them: see `check`
    began = executions[0].started_at if executions else 0
    ended = (latest.finished_at or 0) if latest else 0
    return JobResult(
        job_id=job_id,
        state=job.state,
        outcome=committed.code if committed else (latest.code if latest else None),
        reason=None if committed or latest is None else latest.error,
        error=None if committed or latest is None else error_of(latest),
        response=response,
        seconds=max(0, ended - began) / 1000,
    )
