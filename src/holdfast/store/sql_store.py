"""A store on any SQL database: each verb opens its transaction here and is spelled out in a module of verbs/."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec

from holdfast.core.invariants import Finding, JobFacts
from holdfast.core.records import (
    Child,
    ExecutionRecord,
    JobRecord,
    JournalEntry,
    QueueRecord,
    StepRecord,
    WorkerRecord,
)
from holdfast.core.states import JobState
from holdfast.errors import BadInput, JobNotFoundError, QueueNotFoundError
from holdfast.store.messages import Claim, Held, NewJob, Recovered, Submitted, Write
from holdfast.store.rows import executions_of, job_of, jobs_of, journal_of, queues_of, record_of, steps_of
from holdfast.store.session import Session, to_json
from holdfast.store.verbs import checking, claiming, operating, retention, submitting, writing
from holdfast.store.verbs.evidence import is_durable

JOURNAL_PAGE = 1000


class SqlStore(ABC):
    """The verbs of protocol.Store over two kinds of transactions, which a database provides."""

    now: Callable[[], int]
    _submitted_here = False
    """Set by a submit and reset by the next claim, which then has no need to look whether anything is ready."""

    @abstractmethod
    def writing(self, verb: str) -> AbstractContextManager[Session]:
        """A write transaction: committed at the end with its journal, or rolled back whole."""

    @abstractmethod
    def reading(self, *, consistent: bool = False) -> AbstractContextManager[Session]:
        """For reading; if `consistent`, all reads in it see one state of the database."""

    # --- clients and workers ---

    def submit(self, jobs: Sequence[NewJob], *, actor: str) -> list[Submitted]:
        with self.writing("submit") as session:
            submitted = submitting.submit(session, jobs, actor=actor)
        self._submitted_here = True
        return submitted

    def claim(self, *, worker_id: str, flows: Mapping[str, str], limit: int, lease_ms: int) -> list[Claim]:
        if limit < 1:
            return []
        # Looking first keeps an idle worker from taking locks, and from waiting for them.
        if not self._submitted_here and not self._has_ready():
            return []
        self._submitted_here = False
        with self.writing("claim") as session:
            return claiming.claim(session, worker_id=worker_id, flows=flows, limit=limit, lease_ms=lease_ms)

    def write(
        self, batch: Sequence[Write], *, worker_id: str, lease_ms: int, renew: Callable[[], Sequence[str]] = tuple
    ) -> list[Exception | None]:
        refused: dict[int, Exception] = {}
        while True:
            todo = [(index, one) for index, one in enumerate(batch) if index not in refused]
            try:
                answers = self._write([one for _, one in todo], worker_id, lease_ms, renew) if todo else []
            except writing.EffectEndedTransaction as ended:
                self.refuse_passing(ended.cause)
                refused[next(index for index, one in todo if one is ended.write)] = ended.error
            else:
                applied = dict(zip((index for index, _ in todo), answers, strict=True))
                return [refused[index] if index in refused else applied[index] for index in range(len(batch))]

    @abstractmethod
    def refuse_passing(self, error: BaseException) -> None:
        """Raise StoreUnavailable for an error that is the database's and will pass."""

    def _write(
        self, batch: Sequence[Write], worker_id: str, lease_ms: int, renew: Callable[[], Sequence[str]]
    ) -> list[Exception | None]:
        with self.writing("write." + "+".join(sorted({type(one).__name__ for one in batch}))) as session:
            session.lock_jobs(writing.jobs_of(batch))
            session.expect_journal(one.job_id for one in batch if not isinstance(one, writing.NOT_JOURNALED))
            answers = writing.write(session, batch, worker_id=worker_id)
            if due := renew():
                claiming.renew(session, due, worker_id=worker_id, expires=self.now() + lease_ms)
        return answers

    def evidence(self, batch: Sequence[Write]) -> list[bool]:
        with self.reading(consistent=True) as session:
            return [is_durable(session, one) for one in batch]

    def extend_leases(self, *, worker_id: str, lease_ms: int, only: Sequence[str] | None = None) -> list[Held]:
        with self.writing("extend-leases") as session:
            return claiming.extend_leases(session, worker_id=worker_id, lease_ms=lease_ms, only=only)

    def recover(self, *, is_dead: Callable[[str], bool], actor: str) -> list[Recovered]:
        with self.reading() as session:
            owners: dict[str, int] = dict(session.run("owners").fetchall())
            now = session.now
        dead = [owner for owner in owners if is_dead(owner)]
        if not dead and not any(expires <= now for expires in owners.values()):
            return []
        recovered: list[Recovered] = []
        while True:
            with self.writing("recover") as session:
                batch = claiming.recover(session, dead=dead, actor=actor)
            recovered += batch
            if len(batch) < claiming.RECOVERY_BATCH:
                return recovered

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
            due: int | None = session.first("next_due")
            return due

    # --- operators ---

    def cancel(self, job_id: str, *, actor: str, reason: str) -> JobState:
        with self.writing("cancel") as session:
            session.changed_work = True  # whoever runs the job has to hear of it
            return operating.cancel(session, job_id, actor=actor, reason=reason)

    def retry(self, job_id: str, *, actor: str, reason: str, from_state: JobState) -> None:
        with self.writing("retry") as session:
            operating.retry(session, job_id, actor=actor, reason=reason, from_state=from_state)

    def fail(self, job_id: str, *, actor: str, reason: str, quarantine: bool) -> None:
        with self.writing("fail") as session:
            operating.fail(session, job_id, actor=actor, reason=reason, quarantine=quarantine)

    def restart(self, job_id: str, *, actor: str, reason: str) -> None:
        with self.writing("restart") as session:
            operating.restart(session, job_id, actor=actor, reason=reason)

    def stop_stalled(self, exec_id: str, *, actor: str, not_before: int, reason: str = "") -> bool:
        with self.writing("stop-stalled") as session:
            return operating.stop_stalled(session, exec_id, actor=actor, not_before=not_before, reason=reason)

    def reproject(self, job_id: str, *, actor: str, reason: str) -> JobState:
        with self.writing("reproject") as session:
            return operating.reproject(session, job_id, actor=actor, reason=reason)

    def set_queue(self, name: str, *, max_running: int | None, actor: str | None) -> None:
        if max_running is not None and max_running < 0:
            raise BadInput(f"the limit of queue {name!r} cannot be {max_running}", hint="0 or more, or none at all")
        with self.writing("set-queue") as session:
            session.changed_work = True
            if actor is None:
                session.run("default_limit", name=name, max_running=max_running)
            elif session.first("set_limit", name=name, max_running=max_running, actor=actor) is None:
                raise QueueNotFoundError(name)

    def pause_queue(self, name: str, *, actor: str, reason: str) -> None:
        with self.writing("pause-queue") as session:
            if session.first("pause_queue", name=name, actor=actor, reason=reason, now=session.now) is None:
                raise QueueNotFoundError(name)

    def resume_queue(self, name: str) -> None:
        with self.writing("resume-queue") as session:
            session.changed_work = True
            if session.first("resume_queue", name=name) is None:
                raise QueueNotFoundError(name)

    def prune(self, *, before: int, limit: int, actor: str, dry_run: bool) -> list[str]:
        if dry_run:
            with self.reading() as session:
                return [job.job_id for job in jobs_of(session.run("prunable", before=before, limit=limit))]
        with self.writing("prune") as session:
            return retention.prune(session, before=before, limit=limit, actor=actor)

    # --- looking ---

    def job(self, job_id: str) -> JobRecord:
        with self.reading() as session:
            row = session.run("job", job_id=job_id).fetchone()
        if row is None:
            raise JobNotFoundError(job_id)
        return job_of(row)

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
            return jobs_of(session.select_jobs(given, states, limit))

    def request(self, job_id: str) -> str:
        with self.reading() as session:
            request: str | None = session.first("request", job_id=job_id)
        if request is None:
            raise JobNotFoundError(job_id)
        return request

    def executions(self, job_id: str) -> list[ExecutionRecord]:
        with self.reading() as session:
            return executions_of(session.run("executions", job_id=job_id))

    def steps(self, job_id: str) -> list[StepRecord]:
        with self.reading() as session:
            return steps_of(session.run("steps", job_id=job_id))

    def journal(self, job_id: str | None = None) -> Iterator[JournalEntry]:
        last: tuple[str, int] = ("", 0)
        while True:
            with self.reading() as session:
                if job_id is not None:
                    rows = session.run("journal_of", job_id=job_id)
                else:
                    rows = session.run("journal_page", job_id=last[0], seq=last[1], limit=JOURNAL_PAGE)
                page = [journal_of(rows, row) for row in rows]
            yield from page
            if job_id is not None or len(page) < JOURNAL_PAGE:
                return
            last = (page[-1].job_id, page[-1].seq)

    def children(self, job_id: str) -> list[Child]:
        with self.reading() as session:
            cursor = session.run("children", parent=job_id)
            return [record_of(Child, cursor, row) for row in cursor]

    def under_way(self) -> list[ExecutionRecord]:
        with self.reading() as session:
            return executions_of(session.run("under_way"))

    def last_progress(self, exec_id: str) -> int | None:
        with self.reading() as session:
            progressed: int | None = session.first("last_progress", exec_id=exec_id)
            return progressed

    def queues(self) -> list[QueueRecord]:
        with self.reading() as session:
            return queues_of(session.run("queues"))

    def workers(self) -> list[WorkerRecord]:
        with self.reading() as session:
            return [
                WorkerRecord(worker_id=w, flows=tuple(msgspec.json.decode(f)), started_at=started, seen_at=seen)
                for w, f, started, seen in session.run("workers")
            ]

    def definitions(self) -> Mapping[str, str]:
        with self.reading() as session:
            return dict(session.run("definitions").fetchall())

    def counts(self) -> Mapping[tuple[str, str], int]:
        with self.reading() as session:
            return {(flow, state): count for flow, state, count in session.run("counts")}

    def facts(self, *, unsettled_only: bool) -> Iterator[JobFacts | Finding]:
        with self.reading(consistent=True) as session:
            yield from checking.facts(session, unsettled_only=unsettled_only)

    def pruned_heads(self) -> Mapping[str, str]:
        with self.reading() as session:
            return dict(session.run("pruned_heads").fetchall())

    def _has_ready(self) -> bool:
        with self.reading() as session:
            return bool(session.first("has_ready", now=session.now))
