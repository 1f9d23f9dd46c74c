"""The list: which jobs are like this one, why is each where it is, what would happen if one acted on all of them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import msgspec

from holdfast.bulk import ACTED_ON, NAME
from holdfast.core.states import JobState
from holdfast.core.values import checked_job_id, label_of, time_of_ulid
from holdfast.errors import BadInput, HoldfastError
from holdfast.views import BoundedCount, JobFilter, JobPage, JobRow, Views
from holdfast.web.page import words
from holdfast.web.page.frame import Frame, Page, ViewQuery
from holdfast.web.principal import Scope
from holdfast.web.routes import Reply

ROWS = 50
AGES = (
    ("", "any age"),
    ("last-3600", "of the last hour"),
    ("last-86400", "of the last day"),
    ("older-60", "older than 1 min"),
    ("older-3600", "older than 1 h"),
    ("older-86400", "older than 1 day"),
)
UNNAMED = "-"
ALIKE = 3
"""So many errors of one class on a page are worth a sentence."""


class Wanted(ViewQuery, frozen=True, kw_only=True):
    """Which jobs, as an address says it."""

    state: tuple[str, ...] = ()
    q: str = ""
    flow: str = ""
    queue: str = ""
    key: str = ""
    step: str = ""
    age: str = ""

    def filter(self, now: int) -> JobFilter:
        """The same as the store takes it."""
        older, newer = self._ages(now)
        return JobFilter(
            states=tuple(self._states()),
            flow=self.flow or None,
            queue=("" if self.queue == UNNAMED else self.queue) if self.queue else None,
            key_prefix=self.key or None,
            error_text=self.q.strip() or None,
            step=self.step or None,
            older_than=older,
            newer_than=newer,
        )

    def _states(self) -> list[JobState]:
        try:
            return [JobState(state) for state in self.state]
        except ValueError:
            raise BadInput("there is no such state", hint=f"one of {', '.join(JobState)}") from None

    def _ages(self, now: int) -> tuple[int | None, int | None]:
        which, _, seconds = self.age.partition("-")
        if not self.age:
            return None, None
        if which not in ("last", "older") or not seconds.isascii() or not seconds.isdecimal() or len(seconds) > 9:
            raise BadInput("there is no such age", hint=f"one of {', '.join(age for age, _ in AGES if age)}")
        at = now - int(seconds) * words.SECOND
        return (at, None) if which == "older" else (None, at)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """As parameters of an address; what is not given is left out."""
        given = [("state", state) for state in self.state]
        given += [(name, getattr(self, name)) for name in ("q", "flow", "queue", "key", "step", "age")]
        return [(name, value) for name, value in given if value]


class ListQuery(Wanted, frozen=True, kw_only=True):
    """And which part of them."""

    cursor: str = ""
    ids: str = ""
    """The jobs that are on the screen, to be read again: nothing moves while one looks."""


class JobList:
    """What the list shows; each part is read when it is first asked for."""

    def __init__(self, query: ListQuery, views: Views, now: int) -> None:
        self.query = query
        self.filter = query.filter(now)
        self._views = views
        self._now = now
        self._ids = [job_id for job_id in query.ids.split(",") if job_id]

    @cached_property
    def page(self) -> JobPage:
        """This page of them, or those that are on the screen already."""
        if self._ids:
            return JobPage(rows=self._views.rows(self._ids))
        return self._views.jobs(self.filter, cursor=self.query.cursor or None, limit=ROWS)

    @property
    def rows(self) -> Sequence[JobRow]:
        """The jobs."""
        return self.page.rows

    @cached_property
    def total(self) -> BoundedCount:
        """How many match, as far as it is counted."""
        return self._views.count(self.filter)

    @cached_property
    def counts(self) -> list[tuple[str, BoundedCount, bool]]:
        """How many match in each state, and whether that state is chosen."""
        chosen = self.filter.states
        return [
            (state.value, self._views.count(msgspec.structs.replace(self.filter, states=(state,))), state in chosen)
            for state in (
                JobState.PENDING,
                JobState.RUNNING,
                JobState.SUCCEEDED,
                JobState.FAILED,
                JobState.QUARANTINED,
            )
        ]

    @cached_property
    def newer(self) -> BoundedCount:
        """How many match that were submitted since this page was read."""
        first = self._ids[0] if self._ids else ""
        if not first or self.query.cursor:
            return BoundedCount(count=0)
        since = max(time_of_ulid(checked_job_id(first)) + 1, self.filter.newer_than or 0)
        return self._views.count(msgspec.structs.replace(self.filter, newer_than=since))

    @cached_property
    def alike(self) -> tuple[str, int] | None:
        """The class of error that many of those on the page share."""
        kinds = Counter(row.error.type for row in self.rows if row.error is not None)
        [(kind, number)] = kinds.most_common(1) or [("", 0)]
        return (kind, number) if number >= ALIKE else None

    @property
    def can(self) -> list[str]:
        """The actions that are for something that may match."""
        states = set(self.filter.states or JobState)
        return [action for action, its_states in ACTED_ON.items() if states & set(its_states)]

    def why(self, row: JobRow) -> str:
        """Why it is there, in a line."""
        if row.job.state in (JobState.FAILED, JobState.QUARANTINED) and row.error is not None:
            return row.error.text
        if row.progress and row.worker:
            return f"{progress_text(row.progress)}; {label_of(row.worker)}"
        return row.explanation


def progress_text(progress: dict[str, object]) -> str:
    """What a step says of itself: 62 %, 412 of 664, the note."""
    done, total, note = progress.get("done"), progress.get("total"), progress.get("note")
    parts = []
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        parts.append(f"{int(100 * min(done / total, 1))} %, {done:,} of {total:,}")
    elif isinstance(done, int | float):
        parts.append(f"{done:,}")
    if note:
        parts.append(str(note))
    return ", ".join(parts) or "at work"


def show(frame: Frame) -> Reply:
    """The list; an id that is looked for is the job itself."""
    query: ListQuery = frame.call.query
    looked_for = query.q.strip().upper()
    if len(looked_for) == 26:
        try:
            return frame.to(f"/jobs/{frame.engine.store.job(checked_job_id(looked_for)).job_id}")
        except HoldfastError:
            pass  # then it is a text like any other
    flows = sorted({*frame.engine.flows, *(text for text in (query.flow,) if text)} - {NAME})
    queues = [queue.name for queue in frame.engine.store.queues() if queue.name]
    return frame.reply("jobs.html", JobList(query, frame.views, frame.now), flows=flows, queues=queues, ages=AGES)


PAGES: Sequence[Page] = (("GET", "/jobs", show, Scope.READ, ListQuery),)
