"""Which jobs a list shows: pages by id, newest first, and counts that stop early, at a bounded cost however many jobs.

Conditions that one index answers are read straight from it. What is left is tried on the jobs that come next in an
index: on all of them if an index has few, else on the next `LOOK`; the answer says how far it has looked, and where to
go on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast.core.records import JobRecord
from holdfast.core.states import JobState
from holdfast.core.values import ulid_from
from holdfast.store.rows import shown
from holdfast.store.session import ResultRows, Session, storable_texts, to_json

FIRST_ID, LAST_ID = "", "~"
"""Before and behind every id."""
LOOK = 5_000
"""So many jobs are looked at for one answer, where no index knows those that are wanted."""
FIRST_LOOK = 500
"""So many at first: what is common is among them."""
FENCE = 2 * LOOK
"""More than there can be up to the job that was the last of `LOOK` a moment ago."""
UNSETTLED = tuple(state for state in JobState if state is not JobState.SUCCEEDED)


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs of which all that is given here is true."""

    states: tuple[JobState, ...] = ()
    flow: str | None = None
    queue: str | None = None
    key_prefix: str | None = None
    error_text: str | None = None
    """In the last error, in either case; a job that has succeeded has none."""
    older_than: int | None = None
    """Submitted before this time, by the time that its id begins with."""
    newer_than: int | None = None
    """Submitted at this time or later."""
    step: str | None = None
    """The step that it is in, or will go on with; a job that has succeeded is in none."""
    job_ids: tuple[str, ...] = ()
    """One of these; none given are all."""


class FoundJobs(NamedTuple):
    """Jobs of a list, in their order."""

    jobs: list[JobRecord]
    more: str | None = None
    """The id behind which to go on; None if there is nothing more."""
    looked: int | None = None
    """So many jobs were looked at and no more, though there are more to look at."""


class Counted(NamedTuple):
    """How many jobs were found."""

    jobs: int
    looked: int | None = None
    """As of what is found."""


class _Index(NamedTuple):
    """What one index answers about `jobs AS j`: all that one of these conditions is true of, in the order of ids."""

    conditions: tuple[str, ...] = ("true",)
    by_key: bool = False
    """In the order of keys instead."""


EVERYTHING = _Index()


class Listing:
    """The jobs that a filter wants, from behind an id on."""

    def __init__(
        self, session: Session, wanted: JobFilter, *, beyond: str | None = None, newest_first: bool = True
    ) -> None:
        self._session = session
        self._newest_first, self._direction = newest_first, "DESC" if newest_first else "ASC"
        # One bound on each side: SQLite goes by the first that it is told of, and would look at all up to that.
        first, last = _first_id_at(wanted.newer_than, FIRST_ID), _first_id_at(wanted.older_than, LAST_ID)
        self._from, self._to = "j.job_id >= :first", "j.job_id < :last"
        if newest_first:
            last = min(last, beyond or LAST_ID)
        elif beyond is not None and beyond >= first:
            self._from, first = "j.job_id > :first", beyond
        self._is_bounded = (first, last) != (FIRST_ID, LAST_ID)
        self._parameters: dict[str, Any] = {"first": first, "last": last}
        self._indexes: list[_Index] = []
        self._others: list[str] = []
        self._want(wanted)
        self._parameters = storable_texts(self._parameters)

    def jobs(self, limit: int) -> FoundJobs:
        """So many of them."""
        by = next((one for one in self._indexes if not one.by_key), EVERYTHING)
        is_all = not self._left(by)
        jobs = self._select(by, limit=limit, look=limit if is_all else FIRST_LOOK)
        if len(jobs) == limit:
            return FoundJobs(jobs, jobs[-1].job_id)
        if is_all:
            return FoundJobs(jobs)
        few, end = self._index_of_few(), None
        if few is None:
            end = self._numbered(by, LOOK)
        jobs = self._select(few or by, limit=limit, look=FENCE, end=end)
        if len(jobs) == limit:
            return FoundJobs(jobs, jobs[-1].job_id)
        return FoundJobs(jobs, end, None if end is None else LOOK)

    def count(self, most: int) -> Counted:
        """How many they are, up to `most`."""
        by = next(iter(self._indexes), EVERYTHING)
        if not self._left(by):  # an index has all of it
            return Counted(self._count(by, most=most, look=most))
        few = self._index_of_few()
        if few is not None:
            return Counted(self._count(few, most=most, look=FENCE))
        by = next((one for one in self._indexes if not one.by_key), EVERYTHING)
        end = self._numbered(by, LOOK)
        jobs = self._count(by, most=most, look=FENCE, end=end)
        return Counted(jobs, LOOK if end is not None and jobs < most else None)

    # --- what is wanted ---

    def _want(self, wanted: JobFilter) -> None:
        """What an index answers, the most telling first, and what none does."""
        if wanted.job_ids:
            self._parameters["job_ids"] = to_json(wanted.job_ids)
            self._indexes.append(_Index((f"j.job_id {_ONE_OF[self._session.dialect]}",)))
        if wanted.key_prefix:
            self._indexes.append(_Index((self._key_begins(wanted.key_prefix),), by_key=True))
        states = set(wanted.states or (UNSETTLED if wanted.error_text or wanted.step else ()))
        if states and states != set(JobState):
            self._indexes.append(_Index(tuple(self._state_is(state) for state in JobState if state in states)))
        for name, value in (("queue", wanted.queue), ("flow", wanted.flow)):
            if value is not None:
                self._parameters[name] = value
                self._indexes.append(_Index((f"j.{name} = :{name}",)))
        if wanted.error_text:
            self._parameters["pattern"] = f"%{_escaped(wanted.error_text)}%"
            self._others.append(_ERROR)
        if wanted.step:
            self._others.append(self._next_is(wanted.step))

    def _state_is(self, state: JobState) -> str:
        # PostgreSQL knows that what is one thing is no other, and told so, it expects fewer. SQLite wants to be told.
        is_told = self._session.dialect == "sqlite" and state in UNSETTLED
        return f"j.state = '{state.value}'{_UNSETTLED if is_told else ''}"

    def _key_begins(self, prefix: str) -> str:
        at_least, below = self._key_operators
        self._parameters["key"] = prefix
        sql = f"j.key IS NOT NULL AND j.key {at_least} :key"
        if (end := _behind(prefix)) is not None:
            self._parameters["key_end"] = end
            sql += f" AND j.key {below} :key_end"
        return sql

    @property
    def _key_operators(self) -> tuple[str, str]:
        """By code points, whatever the language of the database: those of text_pattern_ops."""
        return ("~>=~", "~<~") if self._session.dialect == "postgres" else (">=", "<")

    def _next_is(self, step: str) -> str:
        """By the place of the step in the definitions that have it: none is decoded for each job."""
        cases = []
        for number, (fingerprint, position) in enumerate(_places_of(step, self._session.run("definitions"))):
            self._parameters[f"definition_{number}"] = fingerprint
            cases.append(f"WHEN :definition_{number} THEN {position}")
        return _STEP.format(place=f"CASE j.fingerprint {' '.join(cases)} END") if cases else "1 = 0"

    # --- how it is found ---

    def _left(self, by: _Index) -> list[str]:
        """What this index does not answer."""
        wider = [f"({' OR '.join(one.conditions)})" for one in self._indexes if one is not by]
        bounds = [self._from, self._to] if by.by_key and self._is_bounded else []
        return wider + [f"({one})" for one in self._others] + bounds

    def _index_of_few(self) -> _Index | None:
        """One that has so few of these jobs that all of them are looked at."""
        return next((one for one in (*self._indexes, EVERYTHING) if self._numbered(one, LOOK) is None), None)

    def _numbered(self, by: _Index, number: int) -> str | None:
        """The job that comes at this place in this index, counted from 1."""
        sql = f"SELECT n.job_id FROM ({self._source(by, 'j.job_id')}) AS n LIMIT 1 OFFSET :skipped"  # noqa: S608
        row = self._run(sql, look=number, skipped=number - 1).fetchone()
        return None if row is None else str(row[0])

    def _select(self, by: _Index, *, limit: int, look: int, end: str | None = None) -> list[JobRecord]:
        order = f" ORDER BY j.job_id {self._direction}"
        found = f"{self._wanted(by, 'j.job_id', end)}{order if by.by_key else ''} LIMIT :limit"
        # Whole rows are read of those that are found, and not of all that are looked at.
        sql = f"SELECT j.* FROM jobs AS j WHERE j.job_id IN ({found}){order}"  # noqa: S608
        return shown(JobRecord, self._run(sql, limit=limit, look=look, end=end))

    def _count(self, by: _Index, *, most: int, look: int, end: str | None = None) -> int:
        sql = f"SELECT count(*) FROM ({self._wanted(by, 'j.job_id', end)} LIMIT :limit) AS found"  # noqa: S608
        return int(self._run(sql, limit=most, look=look, end=end).fetchone()[0])

    def _wanted(self, by: _Index, columns: str, end: str | None = None) -> str:
        """What is wanted of the next `look` jobs of this index, or those up to one of them, in its order.

        That the inner list has a limit of its own keeps a planner from taking another way to it.
        """
        left = self._left(by)
        source = self._source(by, "j.*" if left else columns, end)
        return f"SELECT {columns} FROM ({source}) AS j WHERE {' AND '.join(left) or 'true'}"  # noqa: S608

    def _source(self, by: _Index, columns: str, end: str | None = None) -> str:
        begin, until = self._from, self._to
        if end is not None:
            begin, until = ("j.job_id >= :end", until) if self._newest_first else (begin, "j.job_id <= :end")
        bounds, order = f"{begin} AND {until}", f"ORDER BY job_id {self._direction} LIMIT :look"
        if by.by_key:
            bounds = "true"  # it has no order of ids: any number of keys might be looked at in vain
            order = f"ORDER BY j.key{' USING ~<~' if self._session.dialect == 'postgres' else ''} LIMIT :look"
        each = [f"SELECT {columns} FROM jobs AS j WHERE {bounds} AND {one} {order}" for one in by.conditions]  # noqa: S608
        if len(each) == 1:
            return each[0]
        return f"{' UNION ALL '.join(f'SELECT * FROM ({one}) AS b' for one in each)} {order}"  # noqa: S608

    def _run(self, sql: str, **values: Any) -> ResultRows:
        return self._session.run_planned(sql, {**self._parameters, **values})


_ONE_OF = {
    "sqlite": "IN (SELECT value FROM json_each(:job_ids))",
    "postgres": "= ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:job_ids AS jsonb))))",
}
_UNSETTLED = " AND j.state <> 'succeeded'"
"""As the index of these says it."""
_ERROR = (
    "j.state <> 'succeeded' AND j.attempt > 0 AND EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = j.job_id"
    " AND e.attempt = j.attempt AND lower(e.error) LIKE lower(CAST(:pattern AS TEXT)) ESCAPE '!')"
)
_STEP = (
    "j.state <> 'succeeded' AND {place} ="
    " coalesce((SELECT max(s.position) FROM steps AS s WHERE s.job_id = j.job_id), -1) + 1"
)


class _Steps(msgspec.Struct):
    steps: tuple[str, ...]


def _places_of(step: str, definitions: Iterable[Any]) -> Iterator[tuple[str, int]]:
    """The definitions that have this step, and where."""
    for fingerprint, text in definitions:
        try:
            steps = msgspec.json.decode(text, type=_Steps).steps
        except msgspec.MsgspecError:
            continue  # an edit past the rules: `check` finds it
        if step in steps:
            yield fingerprint, steps.index(step)


def _first_id_at(time: int | None, otherwise: str) -> str:
    return otherwise if time is None else ulid_from(max(time, 0), 0)


def _behind(prefix: str) -> str | None:
    """The first text behind all that begin so, if there is one."""
    known = prefix.rstrip(chr(sys.maxunicode))
    if not known:
        return None
    following = ord(known[-1]) + 1
    return known[:-1] + chr(0xE000 if following == 0xD800 else following)  # no database takes half of a pair


def _escaped(text: str) -> str:
    return "".join(f"!{character}" if character in "!%_" else character for character in text)
