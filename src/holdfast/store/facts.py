"""Jobs with every row that belongs to them, a page at a time: some ten statements for a thousand jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.facts import PRUNED_STATE, FactPage, FactRows, Finding, JobFacts, Link, Other, StepFacts, error
from holdfast.core.flow import Definition
from holdfast.core.hash_chain import evidence_in
from holdfast.core.records import ExecutionRecord, JobRecord, JournalEntry
from holdfast.core.states import JobState
from holdfast.store.session import Session

PAGE = 1000
"""Jobs read at once: a compromise between statements and memory."""
IDS = 500
"""Ids in one statement."""


class StoredJob(JobRecord, frozen=True, kw_only=True, array_like=True):
    """A row of jobs, its columns in the order of the fields."""


class ExecutionRow(ExecutionRecord, frozen=True, kw_only=True, array_like=True):
    """A row of executions; SQLite has numbers for truth values."""

    interrupted: bool | int = False  # type: ignore[assignment]


class JournalRow(JournalEntry, frozen=True, kw_only=True, array_like=True):
    """A row of the journal."""


class RequestRow(msgspec.Struct, frozen=True, array_like=True):
    """The digest of a request."""

    job_id: str
    digest: str


class PrunedRow(msgspec.Struct, frozen=True, array_like=True):
    """A job that is on record as pruned."""

    job_id: str


class Table(msgspec.Struct, frozen=True):
    """A table, and how its rows are read as facts: by which column they belong to a job, in which order."""

    name: str
    kind: type[msgspec.Struct]
    column: str = "job_id"
    order: str = ""
    content: str = ""
    """The column of which only the digest is read."""


JOBS = Table("jobs", StoredJob)
EXECUTIONS = Table("executions", ExecutionRow, order="attempt")
JOURNAL = Table("journal", JournalRow, order="seq")
REQUESTS = Table("requests", RequestRow, content="request")
STEPS = Table("steps", StepFacts, order="position", content="response")
CHILDREN = Table("children", Link, "parent", "name, round")
PARENTS = Table("children", Link, "job_id", "parent, name, round")
PRUNED = Table("pruned", PrunedRow)
OTHERS = Table("jobs", Other)
# msgspec prepares a type at its first use and does so without a lock: two threads that come first crash the process.
for _table in (JOBS, EXECUTIONS, JOURNAL, REQUESTS, STEPS, CHILDREN, PRUNED, OTHERS):
    msgspec.json.Decoder(list[_table.kind])  # type: ignore[name-defined]

BELONGING = (REQUESTS, EXECUTIONS, STEPS, JOURNAL, CHILDREN)
"""What must not be there without its job."""


class Span(msgspec.Struct, frozen=True):
    """Which jobs: those after one and up to another, or just these."""

    after: str = ""
    last: str | None = None
    ids: tuple[str, ...] | None = None

    def condition(self, column: str) -> tuple[str, dict[str, str]]:
        """As SQL, and its parameters."""
        if self.ids is not None:
            names = {"id_" + "abcdefghij"[n // 100] + "abcdefghij"[n // 10 % 10] + "abcdefghij"[n % 10]: one
                     for n, one in enumerate(self.ids)}  # fmt: skip
            return f"{column} IN ({', '.join(f':{name}' for name in names)})", names
        if self.last is None:
            return f"{column} > :after", {"after": self.after}
        return f"{column} > :after AND {column} <= :last", {"after": self.after, "last": self.last}


def page_after(session: Session, after: str, limit: int = PAGE) -> FactPage:
    """The jobs that come next in the order of their ids, and rows among them that belong to none."""
    ids, problem = _next_ids(session, "jobs", after, limit)
    if problem is not None:
        return _page_in_spite_of(session, problem, after, limit)
    last = ids[-1] if len(ids) == limit else None
    return FactPage(_Reading(session, Span(after, last), ids).facts(), last)


def chosen(session: Session, ids: Iterable[str]) -> list[JobFacts | Finding]:
    """Just these jobs, as far as they are there."""
    wanted = sorted(set(ids))
    parts = [wanted[start : start + IDS] for start in range(0, len(wanted), IDS)]
    return [one for part in parts for one in _Reading(session, Span(ids=tuple(part)), part).facts()]


def _page_in_spite_of(session: Session, problem: str, after: str, limit: int) -> FactPage:
    """The table of jobs is damaged hereabouts: the ids are in other tables, too, and each job is tried by itself."""
    faults: list[JobFacts | Finding] = [
        error("unreadable-rows", "table jobs", f"its rows after {after!r} cannot be read in order: {problem}")
    ]
    for table in ("requests", "executions", "journal"):
        ids, also = _next_ids(session, table, after, limit)
        if also is None:
            facts = [one for job_id in ids for one in _Reading(session, Span(ids=(job_id,)), [job_id]).facts()]
            return FactPage([*faults, *facts], ids[-1] if len(ids) == limit else None)
    return FactPage(faults, None)


def _next_ids(session: Session, table: str, after: str, limit: int) -> tuple[list[str], str | None]:
    sql = f"SELECT DISTINCT job_id FROM {table} WHERE job_id > :after ORDER BY job_id LIMIT :limit"
    rows, problem = session.attempt(sql, {"after": after, "limit": limit})
    return [str(row[0]) for row in rows], problem


class _Reading:
    """The rows of a span, by table and job, and what could not be read of them."""

    def __init__(self, session: Session, span: Span, ids: Sequence[str]) -> None:
        self._session = session
        self._span = span
        self._ids = ids
        self._faults: list[Finding] = []
        self._unread: dict[str, set[str]] = {}
        """By table, the jobs of which something could not be read."""

    def facts(self) -> list[JobFacts | Finding]:
        """Of each job that can be read; what is wrong with the rows before."""
        jobs = self._rows(JOBS)
        executions = self._rows(EXECUTIONS)
        journal = self._rows(JOURNAL)
        requests = self._rows(REQUESTS)
        steps = self._rows(STEPS)
        children = self._rows(CHILDREN)
        parents = self._rows(PARENTS)
        pruned = self._rows(PRUNED)
        listed = [found[0] for found in jobs.values()]
        around = _Around(self, listed, children, journal)
        for job_id, found in jobs.items():
            if len(found) > 1:
                self._fault("duplicate-id", f"job {job_id}", f"there are {len(found)} jobs with this id")
        nobody: tuple[str | None, int] = (None, 0)
        facts = [
            JobFacts(
                job=job,
                executions=tuple(executions.get(job.job_id, ())),
                journal=tuple(journal.get(job.job_id, ())),
                rows=FactRows(
                    request=requests[job.job_id][0].digest if job.job_id in requests else None,
                    has_request=job.job_id in requests or self._is_unread(REQUESTS, job.job_id),
                    steps=self._unless_unread(STEPS, job.job_id, steps),
                    children=self._unless_unread(CHILDREN, job.job_id, children),
                    parents=self._unless_unread(PARENTS, job.job_id, parents),
                    others=around.others,
                    brought_back=around.brought_back,
                    key_holder=holder,
                    key_taken_at=taken_at,
                    pruned=job.job_id in pruned,
                    has_queue=job.queue in around.queues,
                    definition=around.definitions.get(job.fingerprint),
                    has_definition=job.fingerprint in around.definitions,
                ),
            )
            for job in listed
            for holder, taken_at in [around.keys.get((job.flow, job.key or ""), nobody)]
            if not self._is_unread(EXECUTIONS, job.job_id) and not self._is_unread(JOURNAL, job.job_id)
        ]
        if self._span.ids is None:
            found_in = (requests, executions, steps, journal, children)
            for table, rows in zip(BELONGING, found_in, strict=True):
                self._report_orphans(table, rows, jobs, pruned)
        return [*self._faults, *facts]

    def _report_orphans(
        self, table: Table, rows: Iterable[str], jobs: Mapping[str, object], pruned: Mapping[str, object]
    ) -> None:
        for job_id in rows:
            if job_id not in jobs and not self._is_unread(JOBS, job_id):
                why = "was pruned" if job_id in pruned else "does not exist"
                self._fault("orphan-rows", f"{table.name} of job {job_id}", f"belong to a job that {why}")

    def rows_of(self, table: Table, ids: Iterable[str]) -> list[Any]:
        """Rows of other jobs."""
        wanted = sorted(ids)
        parts = [tuple(wanted[start : start + IDS]) for start in range(0, len(wanted), IDS)]
        return [one for part in parts for one in self._converted(table, self._select(table, Span(ids=part))[0])]

    def about(self, sql: str, values: Iterable[str], **parameters: str) -> list[Any]:
        """The rows of a statement about just these values."""
        wanted = sorted(values)
        rows: list[Any] = []
        for start in range(0, len(wanted), IDS):
            condition, names = Span(ids=tuple(wanted[start : start + IDS])).condition("")
            rows += self._session.attempt(sql + condition, {**names, **parameters})[0]
        return rows

    def _rows(self, table: Table) -> dict[str, list[Any]]:
        """By the id in the table's column. Where it cannot be read in order, each job is tried by itself."""
        raw, problem = self._select(table, self._span)
        if problem is not None:
            raw = self._read_singly(table, problem)
        grouped: dict[str, list[Any]] = {}
        column = table.column
        for one in self._converted(table, raw):
            grouped.setdefault(getattr(one, column), []).append(one)
        return grouped

    def _read_singly(self, table: Table, problem: str) -> list[Any]:
        raw: list[Any] = []
        unread = self._unread.setdefault(_key(table), set())
        for job_id in self._ids:
            rows, why = self._select(table, Span(ids=(job_id,)))
            raw += rows
            if why is not None:
                unread.add(job_id)
        if len(unread) == len(self._ids):
            where = f"the jobs after {self._span.after!r}" if self._span.ids is None else f"job {self._ids[0]}"
            self._fault("unreadable-rows", f"table {table.name}", f"nothing of {where} can be read: {problem}")
            return raw
        for job_id in sorted(unread):
            self._fault("unreadable-rows", f"job {job_id}", f"its rows in {table.name} cannot be read: {problem}")
        if not unread:
            self._fault("unreadable-rows", f"table {table.name}", f"its rows cannot be read in order: {problem}")
        return raw

    def _select(self, table: Table, span: Span) -> tuple[list[Any], str | None]:
        condition, parameters = span.condition(table.column)
        special = {
            "digest": self._session.digest_of(table.content) if table.content else "",
            "unsealed": f"CASE WHEN seal = '' THEN {table.content} END",
        }
        columns = ", ".join(special.get(field, field) for field in table.kind.__struct_fields__)
        order = ", ".join(filter(None, [table.column, table.order]))
        sql = f"SELECT {columns} FROM {table.name} WHERE {condition} ORDER BY {order}"
        return self._session.attempt(sql, parameters)

    def _converted(self, table: Table, raw: list[Any]) -> list[Any]:
        try:
            return msgspec.convert(raw, list[table.kind])  # type: ignore[name-defined]
        except msgspec.ValidationError:
            return [one for one in (self._one(table, row) for row in raw) if one is not None]

    def _one(self, table: Table, row: tuple[Any, ...]) -> Any:
        fields = table.kind.__struct_fields__
        try:
            return msgspec.convert(row, table.kind)
        except msgspec.ValidationError as fault:
            job_id = str(row[fields.index(table.column)])
            self._unread.setdefault(_key(table), set()).add(job_id)
            # msgspec knows an array, whose columns have numbers: `$[7]`.
            what, _, where = str(fault).partition(" - at `$[")
            column = fields[int(where.rstrip("]`"))] if where else "?"
            message = f"{column} in {table.name} has a value that cannot be: {what}"
            if table is JOBS and column == "state":
                self._fault("invalid-state", f"job {job_id}", message)
            elif "enum value" in what:
                self._fault("invalid-status", f"job {job_id}", message)
            else:
                self._fault("unreadable-row", f"job {job_id}", message)
            return None

    def _unless_unread(self, table: Table, job_id: str, rows: Mapping[str, list[Any]]) -> tuple[Any, ...] | None:
        return None if self._is_unread(table, job_id) else tuple(rows.get(job_id, ()))

    def _is_unread(self, table: Table, job_id: str) -> bool:
        return job_id in self._unread.get(_key(table), ())

    def _fault(self, code: str, subject: str, message: str) -> None:
        self._faults.append(error(code, subject, message))


class _Around:
    """What the jobs of a page refer to."""

    def __init__(
        self,
        reading: _Reading,
        jobs: Sequence[JobRecord],
        children: Mapping[str, Sequence[Link]],
        journal: Mapping[str, Sequence[JournalEntry]],
    ) -> None:
        wanted = {link.job_id for links in children.values() for link in links}
        waited_for: set[str] = set()
        for job in jobs:
            wanted.update(filter(None, (job.waits_for, job.run_after, job.parent)))
            if job.state == JobState.PENDING and job.attempt:
                said = (evidence_in(entry.metadata) for entry in journal.get(job.job_id, ()))
                waited_for.update(one.wait_for for one in said if one is not None and one.wait_for is not None)
        wanted |= waited_for
        self.others: dict[str, Other] = {job.job_id: Other(job.job_id, job.state, job.parent) for job in jobs}
        for other in reading.rows_of(OTHERS, wanted - self.others.keys()):
            self.others[other.job_id] = other
        # A key that lasts stands for a job that may have been pruned, and is the child of who asks for it all the same.
        for gone in reading.rows_of(PRUNED, wanted - self.others.keys()):
            self.others[gone.job_id] = Other(gone.job_id, PRUNED_STATE, None)
        self.brought_back: dict[str, int] = {}
        brought_back = reading.about(
            "SELECT job_id, at, metadata FROM journal WHERE job_to = :pending AND metadata LIKE :forgiven AND job_id",
            waited_for,
            pending=JobState.PENDING.value,
            forgiven='%"forgiven"%',
        )
        for job_id, at, metadata in brought_back:
            evidence = evidence_in(metadata)
            if evidence is not None and evidence.forgiven:
                self.brought_back[job_id] = max(at, self.brought_back.get(job_id, at))
        queues = reading.about("SELECT name FROM queues WHERE name", {job.queue for job in jobs})
        self.queues = {name for (name,) in queues}
        definitions = reading.about(
            "SELECT fingerprint, definition FROM definitions WHERE fingerprint", {job.fingerprint for job in jobs}
        )
        self.definitions = {fingerprint: decoded_definition(text) for fingerprint, text in definitions}
        keys: dict[str, set[str]] = {}
        for job in jobs:
            if job.key is not None:
                keys.setdefault(job.flow, set()).add(job.key)
        self.keys: dict[tuple[str, str], tuple[str, int]] = {
            (flow, key): (job_id, taken_at)
            for flow, wanted_keys in keys.items()
            for key, job_id, taken_at in reading.about(
                "SELECT key, job_id, taken_at FROM keys WHERE flow = :flow AND key", wanted_keys, flow=flow
            )
        }


@lru_cache(maxsize=1024)
def decoded_definition(text: str) -> Definition | None:
    """A definition as it is stored, None if it is none."""
    try:
        return msgspec.json.decode(text, type=Definition)
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError):
        return None


def _key(table: Table) -> str:
    return f"{table.name}.{table.column}"
