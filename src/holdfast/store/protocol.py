"""What a store can do, in the words of the domain. Every implementation passes the same contract suite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, overload

from holdfast.core.facts import FactPage, Finding, JobFacts
from holdfast.core.progress import CurrentStep
from holdfast.core.records import (
    Backlog,
    Child,
    ExecutionRecord,
    JobRecord,
    JournalEntry,
    QueueEvent,
    QueueRecord,
    StepRecord,
    WorkerRecord,
)
from holdfast.core.states import JobState
from holdfast.store.change_feed import Change
from holdfast.store.commands import Changes, Claim, Held, NewJob, Recovered, Submitted, Write
from holdfast.store.job_lists import Counted, FoundJobs, JobFilter


class Listener(Protocol):
    """Sleeps until something has happened in the store."""

    def wait(self, timeout: float | None) -> bool:
        """Until notified, or a watched descriptor is ready, or the time is up; True unless it was the time."""
        ...

    def watch(self, descriptors: set[int]) -> None:
        """Also wake when one of these descriptors becomes readable."""
        ...

    def wake(self) -> None:
        """Make wait() return now."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class JournalEnd(NamedTuple):
    """How far the journal of a job goes: the number of its last entry."""

    seq: int
    is_open: bool
    """Will there be more? Not if the job has succeeded, but for what an older parent notes of it."""


class Store(Protocol):
    """A database of jobs. Safe to use from several threads; several processes may use one database."""

    url: str
    one_machine: bool
    """Are all users of the store on this machine? Then a process that is not here is nowhere."""

    changes: Changes
    """Who is told of changes of state made through this store."""

    def now(self) -> int:
        """The one clock that judges leases and due times, in milliseconds."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...

    # --- what a client and a worker need ---------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob], *, actor: str) -> list[Submitted]:
        """Add jobs, all or none. A key in use, or a child already submitted, gives the job that is there."""
        ...

    def claim(self, *, worker_id: str, flows: Mapping[str, str], limit: int, lease_ms: int) -> list[Claim]:
        """Lease up to `limit` ready jobs of these flows (name → fingerprint), best first, within queue limits.

        Those whose fingerprint matches are in_progress at once; the others are leased and await Begin or End.
        """
        ...

    def write(
        self, batch: Sequence[Write], *, worker_id: str, lease_ms: int, renew: Callable[[], Sequence[str]] = tuple
    ) -> list[Exception | None]:
        """Apply each write whose execution is live and ours, in one transaction; one answer per write.

        None: applied. LeaseLost: changed nothing. Another exception: raised by that write's effect, which was
        rolled back alone. StoreError raised: nothing of the batch was applied, or evidence() says what was.
        The leases of the executions that `renew()` names at the end of the transaction are renewed in it.
        """
        ...

    def evidence(self, batch: Sequence[Write]) -> list[bool | None]:
        """For each write, is it durably there? Asked after a write whose answer was lost."""
        ...

    def extend_leases(self, *, worker_id: str, lease_ms: int, only: Sequence[str] | None = None) -> list[Held]:
        """Renew the unexpired leases of this worker, or `only` those; returns all executions it still holds."""
        ...

    def recover(self, *, is_dead: Callable[[str], bool], actor: str, steady_now: int | None = None) -> list[Recovered]:
        """Take over what nobody is working on: expired leases, and those whose owner `is_dead` says is gone.

        `steady_now` is what the time would be, had nobody set the clock forward: of a lease that has expired only
        because somebody did, the job is given back and no crash is counted.
        """
        ...

    def announce(self, *, worker_id: str, flows: Sequence[str]) -> None:
        """Make a worker and the flows it registers known; call again now and then."""
        ...

    def retire(self, *, worker_id: str) -> None:
        """Forget a worker."""
        ...

    def next_due(self) -> int | None:
        """When the next delayed job becomes ready."""
        ...

    def listen(self) -> Listener:
        """A listener that wakes whenever any process has changed what may run, or ended a job."""
        ...

    # --- operators ------------------------------------------------------------------------------------

    def cancel(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        children: bool = True,
        seen: JobState | None = None,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = ...,
        dry_run: bool = False,
    ) -> JobState:
        """End the job as failed: at once if nothing has run, else by its worker, after cleanup; its children, too.

        `seen` is the state it was in when the operator looked. With `expected_head`, here and below, the hash that its
        journal ended with then: JobMovedOnError, and nothing is changed, if it ends with another now.
        A dry run answers the same and changes nothing.
        Crash: once the job is cancelled, its children will be.
        """
        ...

    def continue_cancellations(self) -> None:
        """Cancel the children that somebody who died has not come to; recover() does it, too."""
        ...

    def retry(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        from_state: JobState,
        seen: JobState | None = None,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = ...,
        dry_run: bool = False,
    ) -> JobState:
        """failed → pending, or quarantined → pending, with a fresh budget of failures and crashes."""
        ...

    def reschedule(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        not_before: int | None = None,
        priority: int | None = None,
        queue: str | None = None,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = ...,
    ) -> JobState:
        """pending → pending, at another time, in another queue, or with another priority."""
        ...

    def fail(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        quarantine: bool,
        seen: JobState | None = None,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = ...,
    ) -> JobState:
        """End a job as failed or quarantined whatever it is doing, fencing its worker; never a succeeded one."""
        ...

    def restart(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        seen: JobState | None = None,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = ...,
    ) -> JobState:
        """running → failed → pending, fencing its worker; those that wait for the job go on waiting."""
        ...

    def stop_stalled(self, exec_id: str, *, actor: str, not_before: int, reason: str = "") -> bool:
        """Fence a running execution that makes no progress: running → failed → pending (or quarantined)."""
        ...

    def set_queue(
        self,
        name: str,
        *,
        max_running: int | None,
        actor: str | None,
        reason: str = "",
        metadata: Mapping[str, Any] = ...,
    ) -> None:
        """Set a queue's limit; without an actor it is a default that does not overrule an operator's."""
        ...

    def pause_queue(self, name: str, *, actor: str, reason: str, metadata: Mapping[str, Any] = ...) -> None:
        """Start nothing more from this queue; of one that is paused already, nothing changes."""
        ...

    def resume_queue(
        self, name: str, *, actor: str = "client", reason: str = "", metadata: Mapping[str, Any] = ...
    ) -> None:
        """Start jobs from this queue again."""
        ...

    def queue_history(self, name: str, *, limit: int = 100) -> list[QueueEvent]:
        """Who has changed a queue, newest first."""
        ...

    def prune(self, *, before: int, limit: int, actor: str, dry_run: bool) -> list[str]:
        """Remove jobs that ended before that time, keeping the heads of their journals on record."""
        ...

    def backup(self, target: Path, *, schemas: Sequence[str] = ()) -> None:
        """A consistent copy of the database as a new file, while others work; there whole or not at all.

        Of PostgreSQL it is the schema of the store, with the catalog of images, and other `schemas` if they are named.
        """
        ...

    # --- looking --------------------------------------------------------------------------------------

    def job(self, job_id: str) -> JobRecord:
        """One job, or JobNotFoundError."""
        ...

    def full_job_id(self, prefix: str) -> str:
        """The id of the one job that begins so; JobNotFoundError if there is none, BadInput if there are several."""
        ...

    def jobs(
        self,
        *,
        states: Collection[JobState] = (),
        flow: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        limit: int = 100,
    ) -> list[JobRecord]:
        """Jobs, newest first, as they were at one moment: of several states, none is missed on its way between them."""
        ...

    def list_jobs(
        self, wanted: JobFilter, *, beyond: str | None = None, limit: int, newest_first: bool = True
    ) -> FoundJobs:
        """So many of the jobs that are wanted, in the order of their ids, from the first `beyond` an id on.

        Fewer, if too many others would have to be looked at for more; the answer says where to go on then.
        """
        ...

    def count_jobs(self, wanted: JobFilter, *, most: int) -> Counted:
        """How many jobs that is, counted up to `most`, or of so many as can be looked at."""
        ...

    def changes_after(self, place: str | None, *, limit: int) -> list[Change]:
        """The changes of all jobs behind a place, or all: in an order that only grows, none left out.

        ChangesLostError if the place is not one of this store: it was restored from a backup, say.
        """
        ...

    def last_change(self) -> str:
        """The place behind which everything will come that is committed after this call."""
        ...

    def request(self, job_id: str) -> str:
        """The encoded request of a job."""
        ...

    def executions(self, job_id: str) -> list[ExecutionRecord]:
        """All attempts at a job, oldest first."""
        ...

    def steps(self, job_id: str) -> list[StepRecord]:
        """The finished steps of a job, in order."""
        ...

    def executions_of(self, job_ids: Sequence[str]) -> dict[str, list[ExecutionRecord]]:
        """All attempts at these jobs, by job, oldest first; a job without any is not among them."""
        ...

    def steps_of(self, job_ids: Sequence[str]) -> dict[str, list[StepRecord]]:
        """The finished steps of these jobs, by job, in order; without their responses."""
        ...

    # The journal of one job, in order; or that of all, by job and sequence, which need not fit into memory.
    @overload
    def journal(self, job_id: str) -> list[JournalEntry]: ...

    @overload
    def journal(self, job_id: None = None) -> Iterator[JournalEntry]: ...

    def journal_ends(self, *, after: str = "") -> dict[str, JournalEnd]:
        """How far the journal of each job goes, of those whose ids come `after` that.

        Numbers are given under the lock of the job: in whatever order transactions commit, what is behind the last
        number that was seen of a job is new, and nothing before it is.
        """
        ...

    def journal_beyond(self, ends: Mapping[str, int]) -> Iterator[list[JournalEntry]]:
        """The entries of these jobs that are behind these ends, in pages; each job's in order."""
        ...

    def children(self, job_id: str) -> list[Child]:
        """The jobs submitted by this one, latest round only, in order of submission."""
        ...

    def under_way(self) -> list[ExecutionRecord]:
        """Every execution that is leased, in progress or committed but not done."""
        ...

    def running(self, job_ids: Sequence[str]) -> list[CurrentStep]:
        """The current step of each of these jobs that runs."""
        ...

    def last_progress(self, exec_id: str) -> int | None:
        """When an execution last finished a step, reported progress, or started."""
        ...

    def queues(self, *, most: int | None = None) -> list[QueueRecord]:
        """All queues, with how many jobs run and wait in each; counted among the oldest `most` that wait."""
        ...

    def workers(self) -> list[WorkerRecord]:
        """All workers that announced themselves and have not retired."""
        ...

    def definitions(self) -> Mapping[str, str]:
        """Every definition a job was ever pinned to: fingerprint → encoded definition."""
        ...

    def flows_of(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """The flow of each of these jobs that is there."""
        ...

    def unfinished_by_definition(self, flow: str, *, most: int) -> dict[str, int]:
        """Fingerprint → number of unfinished jobs of a flow that are pinned to it; `most` of them are looked at."""
        ...

    def unsettled_counts(self) -> Mapping[tuple[str, str], int]:
        """(flow, state) → number of jobs, but for those that succeeded; costs nothing for these."""
        ...

    def backlog(self, *, most: int | None = None) -> list[Backlog]:
        """What waits in each queue that has pending jobs; counted among the oldest `most` that wait."""
        ...

    def counts(self) -> Mapping[tuple[str, str], int]:
        """(flow, state) → number of jobs."""
        ...

    # --- the guard ------------------------------------------------------------------------------------

    def facts(self) -> Iterator[JobFacts | Finding]:
        """What the invariants are checked against, job by job; a Finding for what cannot even be read."""
        ...

    def fact_page(self, *, after: str, limit: int) -> FactPage:
        """The same for so many jobs, those whose ids come next; in few statements, and as of one moment."""
        ...

    def facts_of(self, job_ids: Collection[str]) -> list[JobFacts | Finding]:
        """The same for just these jobs."""
        ...

    def running_ids(self, *, after: str, limit: int) -> list[str]:
        """The running jobs, in the order of their ids."""
        ...

    def oldest_id(self) -> str | None:
        """The job that comes first in the order of ids."""
        ...

    def newest_ids(self, *, limit: int) -> list[str]:
        """The jobs that were submitted last."""
        ...

    def table_faults(self) -> list[Finding]:
        """Faults of the tables beside the jobs: queues, definitions, workers; waits in a circle."""
        ...

    def missing_rules(self) -> Iterator[Finding]:
        """Tables, indexes, constraints and triggers that somebody has dropped, changed or added."""
        ...

    def reproject(self, job_id: str, *, actor: str, reason: str) -> JobState:
        """Set a stored state that disagrees with the executions right; returns it."""
        ...

    def damage(self, *, most_bytes: int | None) -> list[Finding]:
        """What the database's own check of its pages finds, unless the database is larger than that."""
        ...

    def integrity(self, *, deep: bool) -> Iterator[Finding]:
        """Faults of the database itself: damage, missing rules, faults of the tables beside the jobs."""
        ...

    def pruned_heads(self) -> Mapping[str, str]:
        """The recorded chain heads of jobs that retention has removed."""
        ...
