"""A store on any SQL database: each verb opens its transaction here and is spelled out in a module of verbs/."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import overload

from holdfast.core.facts import FactPage, Finding, JobFacts
from holdfast.core.progress import CurrentStep
from holdfast.core.records import (
    Backlog,
    Child,
    ExecutionRecord,
    JobRecord,
    JournalEntry,
    QueueRecord,
    StepRecord,
    WorkerRecord,
)
from holdfast.core.states import JobState
from holdfast.core.values import ulid_bounds
from holdfast.errors import BadInput, JobNotFoundError, StoreUnavailable
from holdfast.store import change_feed, commit, facts, integrity, job_lists, lease, submit
from holdfast.store.commands import Changes, NewJob, Submitted, Write
from holdfast.store.commit import is_durable
from holdfast.store.commit_step import EffectEndedTransaction
from holdfast.store.protocol import JournalEnd
from holdfast.store.rows import running_steps, shown, workers_shown
from holdfast.store.session import Session, to_json
from holdfast.store.verbs import OperatorVerbs

UNLIMITED = 1 << 62
JOURNAL_PAGE = 1000
IDS_NAMED = 3
"""Of several jobs that begin alike."""
ENDS_PAGE = 10_000
BEYOND_PAGE = 500


class SqlStore(OperatorVerbs):
    """The verbs of protocol.Store over two kinds of transactions, which a database provides."""

    now: Callable[[], int]
    changes: Changes

    # --- clients and workers ---

    def submit(self, jobs: Sequence[NewJob], *, actor: str) -> list[Submitted]:
        with self.writing("submit") as session:
            submitted = submit.submit(session, jobs, actor=actor)
        self._submitted_here = True
        self.tell_waiting(session, actor=actor)
        return submitted

    def write(
        self, batch: Sequence[Write], *, worker_id: str, lease_ms: int, renew: Callable[[], Sequence[str]] = tuple
    ) -> list[Exception | None]:
        refused: dict[int, Exception] = {}
        while True:
            todo = [(index, one) for index, one in enumerate(batch) if index not in refused]
            try:
                answers = self._write([one for _, one in todo], worker_id, lease_ms, renew) if todo else []
            except EffectEndedTransaction as ended:
                self.refuse_passing(ended)
                refused[next(index for index, one in todo if one is ended.write)] = ended.error
            else:
                applied = dict(zip((index for index, _ in todo), answers, strict=True))
                return [refused[index] if index in refused else applied[index] for index in range(len(batch))]

    @abstractmethod
    def refuse_passing(self, ended: EffectEndedTransaction) -> None:
        """Raise StoreUnavailable if what ended the transaction of an effect is the database's affair and will pass."""

    def _write(
        self, batch: Sequence[Write], worker_id: str, lease_ms: int, renew: Callable[[], Sequence[str]]
    ) -> list[Exception | None]:
        session: Session | None = None
        try:
            with self.writing("write." + "+".join(sorted({type(one).__name__ for one in batch}))) as session:
                session.lock_jobs(commit.jobs_of(batch))
                session.expect_journal(one.job_id for one in batch if not isinstance(one, commit.NOT_JOURNALED))
                answers = commit.write(session, batch, worker_id=worker_id)
                if due := renew():
                    lease.renew(session, due, worker_id=worker_id, expires=self.now() + lease_ms)
        except StoreUnavailable:
            self.changes.doubt(session.journaled if session else ())
            raise
        self.tell_waiting(session, actor=worker_id, rounds=1)
        return answers

    def evidence(self, batch: Sequence[Write]) -> list[bool | None]:
        with self.reading(consistent=True) as session:
            answers: list[bool | None] = [is_durable(session, one) for one in batch]
        self.changes.resolve(answers)
        return answers

    def announce(self, *, worker_id: str, flows: Sequence[str]) -> None:
        with self.writing("announce") as session:
            worker = {"worker": worker_id, "flows": to_json(list(flows)), "now": session.now}
            if session.first("announce_again", **worker) is None:
                session.run("announce", **worker)
                session.changed_work = True  # other workers will want to watch this one

    def retire(self, *, worker_id: str) -> None:
        with self.writing("retire") as session:
            session.run("retire", worker=worker_id)

    def next_due(self) -> int | None:
        with self.reading() as session:
            due = session.first("next_due")
            return due if isinstance(due, int) else None

    # --- looking ---

    def job(self, job_id: str) -> JobRecord:
        with self.reading() as session:
            cursor = session.run("job", job_id=job_id)
            found = shown(JobRecord, cursor, cursor.fetchall())
            if not found:
                raise integrity.not_found(session, job_id)
        return found[0]

    def full_job_id(self, prefix: str) -> str:
        bounds = ulid_bounds(prefix)
        if bounds is None:
            return prefix
        with self.reading() as session:
            rows = session.run("job_ids_between", first=bounds[0], last=bounds[1], limit=IDS_NAMED + 1)
            found = [str(row[0]) for row in rows]
        if not found:
            raise JobNotFoundError(prefix)
        if len(found) > 1:
            more = ", …" if len(found) > IDS_NAMED else ""
            raise BadInput(
                f"several jobs begin with {prefix}: {', '.join(found[:IDS_NAMED])}{more}", hint="give more of the id"
            )
        return found[0]

    def jobs(
        self,
        *,
        states: Collection[JobState] = (),
        flow: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        limit: int = 100,
    ) -> list[JobRecord]:
        wanted = {"flow": flow, "queue": queue, "key": key}
        given = {name: value for name, value in wanted.items() if value is not None}
        with self.reading() as session:
            return shown(JobRecord, session.select_jobs(given, states, limit))

    def list_jobs(
        self, wanted: job_lists.JobFilter, *, beyond: str | None = None, limit: int, newest_first: bool = True
    ) -> job_lists.FoundJobs:
        with self.reading() as session:
            return job_lists.Listing(session, wanted, beyond=beyond, newest_first=newest_first).jobs(limit)

    def count_jobs(self, wanted: job_lists.JobFilter, *, most: int) -> job_lists.Counted:
        with self.reading() as session:
            return job_lists.Listing(session, wanted).count(most)

    def request(self, job_id: str) -> str:
        with self.reading() as session:
            request: str | None = session.first("request", job_id=job_id)
        if request is None:
            raise JobNotFoundError(job_id)
        return request

    def executions(self, job_id: str) -> list[ExecutionRecord]:
        with self.reading() as session:
            return shown(ExecutionRecord, session.run("executions", job_id=job_id))

    def steps(self, job_id: str) -> list[StepRecord]:
        with self.reading() as session:
            return shown(StepRecord, session.run("steps", job_id=job_id))

    def executions_of(self, job_ids: Sequence[str]) -> dict[str, list[ExecutionRecord]]:
        found: dict[str, list[ExecutionRecord]] = {}
        with self.reading() as session:
            for one in shown(ExecutionRecord, session.run("executions_of", batch=to_json(job_ids))):
                found.setdefault(one.job_id, []).append(one)
        return found

    def steps_of(self, job_ids: Sequence[str]) -> dict[str, list[StepRecord]]:
        found: dict[str, list[StepRecord]] = {}
        with self.reading() as session:
            for one in shown(StepRecord, session.run("steps_of", batch=to_json(job_ids))):
                found.setdefault(one.job_id, []).append(one)
        return found

    @overload
    def journal(self, job_id: str) -> list[JournalEntry]: ...

    @overload
    def journal(self, job_id: None = None) -> Iterator[JournalEntry]: ...

    def journal(self, job_id: str | None = None) -> list[JournalEntry] | Iterator[JournalEntry]:
        if job_id is None:
            return self._whole_journal()
        with self.reading() as session:
            return shown(JournalEntry, session.run("journal_of", job_id=job_id))

    def _whole_journal(self) -> Iterator[JournalEntry]:
        last: tuple[str, int] = ("", 0)
        while True:
            with self.reading() as session:
                rows = session.run("journal_page", job_id=last[0], seq=last[1], limit=JOURNAL_PAGE)
                page = shown(JournalEntry, rows)
            yield from page
            if len(page) < JOURNAL_PAGE:
                return
            last = (page[-1].job_id, page[-1].seq)

    def journal_ends(self, *, after: str = "") -> dict[str, JournalEnd]:
        ends: dict[str, JournalEnd] = {}
        last: str | None = after
        while last is not None:
            with self.reading() as session:
                page = session.run("journal_ends", after=last, limit=ENDS_PAGE).fetchall()
            # Of a job without a journal, somebody has removed it: see `check`.
            ends.update((job_id, JournalEnd(seq or 0, bool(is_open))) for job_id, seq, is_open in page)
            last = page[-1][0] if len(page) == ENDS_PAGE else None
        return ends

    def journal_beyond(self, ends: Mapping[str, int]) -> Iterator[list[JournalEntry]]:
        jobs = list(ends.items())
        for start in range(0, len(jobs), BEYOND_PAGE):
            batch = to_json(jobs[start : start + BEYOND_PAGE])
            with self.reading() as session:
                page = shown(JournalEntry, session.run("journal_beyond", batch=batch))
            yield page

    def changes_after(self, place: str | None, *, limit: int) -> list[change_feed.Change]:
        with self.reading() as session:
            return change_feed.after(session, place, limit)

    def last_change(self) -> str:
        with self.reading() as session:
            return change_feed.last(session)

    def children(self, job_id: str) -> list[Child]:
        with self.reading() as session:
            return shown(Child, session.run("children", parent=job_id))

    def under_way(self) -> list[ExecutionRecord]:
        with self.reading() as session:
            return shown(ExecutionRecord, session.run("under_way"))

    def running(self, job_ids: Sequence[str]) -> list[CurrentStep]:
        with self.reading() as session:
            return running_steps(session, job_ids)

    def last_progress(self, exec_id: str) -> int | None:
        with self.reading() as session:
            progressed: int | None = session.first("last_progress", exec_id=exec_id)
            return progressed

    def queues(self, *, most: int | None = None) -> list[QueueRecord]:
        with self.reading() as session:
            return shown(QueueRecord, session.run("queues", most=UNLIMITED if most is None else most))

    def workers(self) -> list[WorkerRecord]:
        with self.reading() as session:
            return workers_shown(session.run("workers"))

    def definitions(self) -> Mapping[str, str]:
        with self.reading() as session:
            return dict(session.run("definitions").fetchall())

    def flows_of(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        with self.reading() as session:
            return dict(session.run("flows_of", batch=to_json(job_ids)).fetchall())

    def unfinished_by_definition(self, flow: str, *, most: int) -> dict[str, int]:
        with self.reading() as session:
            return dict(session.run("unfinished_by_definition", flow=flow, most=most).fetchall())

    def unsettled_counts(self) -> Mapping[tuple[str, str], int]:
        with self.reading() as session:
            return {(str(flow), str(state)): count for flow, state, count in session.run("unsettled_counts")}

    def backlog(self, *, most: int | None = None) -> list[Backlog]:
        with self.reading() as session:
            return shown(Backlog, session.run("backlog", now=session.now, most=UNLIMITED if most is None else most))

    def counts(self) -> Mapping[tuple[str, str], int]:
        with self.reading() as session:
            return {(flow, state): count for flow, state, count in session.run("counts")}

    @abstractmethod
    def looking(self) -> AbstractContextManager[Session]:
        """For reading facts, which are of one moment."""

    def facts(self) -> Iterator[JobFacts | Finding]:
        after: str | None = ""
        while after is not None:
            page = self.fact_page(after=after, limit=facts.PAGE)
            yield from page.facts
            after = page.last

    def fact_page(self, *, after: str, limit: int) -> FactPage:
        with self.looking() as session:
            return facts.page_after(session, after, limit)

    def facts_of(self, job_ids: Collection[str]) -> list[JobFacts | Finding]:
        with self.looking() as session:
            return facts.chosen(session, job_ids)

    def running_ids(self, *, after: str, limit: int) -> list[str]:
        with self.reading() as session:
            return [row[0] for row in session.run("running_ids", after=after, limit=limit)]

    def oldest_id(self) -> str | None:
        with self.reading() as session:
            oldest: str | None = session.first("oldest_id")
            return oldest

    def newest_ids(self, *, limit: int) -> list[str]:
        with self.reading() as session:
            return [row[0] for row in session.run("newest_ids", limit=limit)]

    def table_faults(self) -> list[Finding]:
        with self.looking() as session:
            return list(integrity.tables(session, with_pruned=False))

    def pruned_heads(self) -> Mapping[str, str]:
        with self.reading() as session:
            return dict(session.run("pruned_heads").fetchall())
