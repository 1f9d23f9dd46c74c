"""Looks at a database a little at a time: what is short or moves at every look, all the rest in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from holdfast.core.facts import Finding
from holdfast.core.names import time_of_ulid, ulid_from
from holdfast.guard.check import findings_of, without_repeats
from holdfast.store.changes import Change
from holdfast.store.protocol import Store

SOME_JOBS = 100
"""Running jobs, and newest ones, that every look is at."""
MOST_CHANGED = 1000
TURN_PAGE = 200
TURN_SECONDS = 0.25
"""How long a look goes on with its turn: at one look a minute, 100,000 jobs are all seen within an hour or two."""
OPEN_SECONDS = 0.05
"""The same for the look at an open, which sees some hundred jobs in that time."""
OPEN_BYTES = 4 << 20
"""A file up to this size is given SQLite's own check at every open."""


class Survey:
    """`look` looks once; a turn through all jobs begins with the check of the database itself and is taken up again.

    The first turn begins at `after`, so that many short-lived processes do not all look at the same jobs.
    """

    def __init__(
        self,
        store: Store,
        *,
        seconds: float = TURN_SECONDS,
        most_bytes: int | None = None,
        after: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._clock = clock
        self._after = after
        self._begun = False
        self._running_after = ""
        self._changed: dict[str, None] = {}

    def note(self, changes: Sequence[Change]) -> None:
        """These jobs have changed: the next look is at them, too."""
        for change in changes[-MOST_CHANGED:]:
            self._changed[change.entry.job_id] = None
        while len(self._changed) > MOST_CHANGED:
            self._changed.pop(next(iter(self._changed)))

    def look(self) -> list[Finding]:
        """Every finding about what this look is at."""
        findings = [*self._store.missing_rules(), *self._store.table_faults()]
        until = self._clock() + self._seconds
        changed, self._changed = self._changed, {}
        ids = {*self._running(), *self._store.newest_ids(limit=SOME_JOBS), *changed}
        findings += findings_of(self._store, self._store.facts_of(ids))
        return without_repeats([*findings, *self._turn(until)])

    def _running(self) -> list[str]:
        ids = self._store.running_ids(after=self._running_after, limit=SOME_JOBS)
        self._running_after = ids[-1] if len(ids) == SOME_JOBS else ""
        return ids

    def _turn(self, until: float) -> list[Finding]:
        findings: list[Finding] = []
        if not self._begun:
            findings += self._store.damage(most_bytes=self._most_bytes)
            self._begun = True
        first = self._after
        has_wrapped = False
        while True:
            page = self._store.fact_page(after=self._after, limit=TURN_PAGE)
            findings += findings_of(self._store, page.facts)
            self._after = page.last or ""
            if page.last is None:
                self._begun = False  # the next turn is a new one
                if not first or has_wrapped:
                    return findings
                has_wrapped = True
            if self._clock() >= until or (has_wrapped and self._after >= first):
                return findings


def look_at_open(store: Store, *, chance: float) -> list[Finding]:
    """What is looked at when a database is opened: the same, for a moment; `chance`, below 1, says where it begins."""
    return Survey(store, seconds=OPEN_SECONDS, most_bytes=OPEN_BYTES, after=_place(store, chance)).look()


def _place(store: Store, chance: float) -> str:
    oldest, newest = store.oldest_id(), store.newest_ids(limit=1)
    if oldest is None or not newest:
        return ""
    first, last = time_of_ulid(oldest), time_of_ulid(newest[0])
    return ulid_from(first + round((last - first) * chance), 0)
