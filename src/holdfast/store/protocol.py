"""What a store can do, in the words of the domain. Every implementation passes the same contract suite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

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
from holdfast.store.messages import Claim, Held, NewJob, Recovered, Submitted, Write


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


class Store(Protocol):
    """A database of jobs. Safe to use from several threads; several processes may use one database."""

    url: str
    one_machine: bool
    """Are all users of the store on this machine? Then a process that is not here is nowhere."""

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

    def evidence(self, batch: Sequence[Write]) -> list[bool]:
        """For each write, is it durably there? Asked after a write whose answer was lost."""
        ...

    def extend_leases(self, *, worker_id: str, lease_ms: int, only: Sequence[str] | None = None) -> list[Held]:
        """Renew the unexpired leases of this worker, or `only` those; returns all executions it still holds."""
        ...

    def recover(self, *, is_dead: Callable[[str], bool], actor: str) -> list[Recovered]:
        """Take over what nobody is working on: expired leases, and those whose owner `is_dead` says is gone."""
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

    def cancel(self, job_id: str, *, actor: str, reason: str) -> JobState:
        """End the job as failed: at once if nothing has run, else by its worker, after cleanup."""
        ...

    def retry(self, job_id: str, *, actor: str, reason: str, from_state: JobState) -> None:
        """failed → pending, or quarantined → pending, with a fresh budget of failures and crashes."""
        ...

    def fail(self, job_id: str, *, actor: str, reason: str, quarantine: bool) -> None:
        """End a job as failed or quarantined whatever it is doing, fencing its worker; never a succeeded one."""
        ...

    def restart(self, job_id: str, *, actor: str, reason: str) -> None:
        """running → failed → pending, fencing its worker; those that wait for the job go on waiting."""
        ...

    def stop_stalled(self, exec_id: str, *, actor: str, not_before: int, reason: str = "") -> bool:
        """Fence a running execution that makes no progress: running → failed → pending (or quarantined)."""
        ...

    def set_queue(self, name: str, *, max_running: int | None, actor: str | None) -> None:
        """Set a queue's limit; without an actor it is a default that does not overrule an operator's."""
        ...

    def pause_queue(self, name: str, *, actor: str, reason: str) -> None:
        """Start nothing more from this queue."""
        ...

    def resume_queue(self, name: str) -> None:
        """Start jobs from this queue again."""
        ...

    def prune(self, *, before: int, limit: int, actor: str, dry_run: bool) -> list[str]:
        """Remove jobs that ended before that time, keeping the heads of their journals on record."""
        ...

    def backup(self, target: Path) -> None:
        """A consistent copy of the database as a new file, while others work."""
        ...

    # --- looking --------------------------------------------------------------------------------------

    def job(self, job_id: str) -> JobRecord:
        """One job, or JobNotFoundError."""
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

    def request(self, job_id: str) -> str:
        """The encoded request of a job."""
        ...

    def executions(self, job_id: str) -> list[ExecutionRecord]:
        """All attempts at a job, oldest first."""
        ...

    def steps(self, job_id: str) -> list[StepRecord]:
        """The finished steps of a job, in order."""
        ...

    def journal(self, job_id: str | None = None) -> Iterator[JournalEntry]:
        """The journal of one job, or of all, ordered by job and sequence."""
        ...

    def children(self, job_id: str) -> list[Child]:
        """The jobs submitted by this one, latest round only, in order of submission."""
        ...

    def under_way(self) -> list[ExecutionRecord]:
        """Every execution that is leased, in progress or committed but not done."""
        ...

    def last_progress(self, exec_id: str) -> int | None:
        """When an execution last finished a step, reported progress, or started."""
        ...

    def queues(self) -> list[QueueRecord]:
        """All queues, with how many jobs run and wait in each."""
        ...

    def workers(self) -> list[WorkerRecord]:
        """All workers that announced themselves and have not retired."""
        ...

    def definitions(self) -> Mapping[str, str]:
        """Every definition a job was ever pinned to: fingerprint → encoded definition."""
        ...

    def counts(self) -> Mapping[tuple[str, str], int]:
        """(flow, state) → number of jobs."""
        ...

    # --- the guard ------------------------------------------------------------------------------------

    def facts(self, *, unsettled_only: bool) -> Iterator[JobFacts | Finding]:
        """What the invariants are checked against, job by job; a Finding for a job that cannot even be read.

        `unsettled_only` gives the running jobs without their journals, and costs nothing for finished ones.
        """
        ...

    def missing_rules(self) -> Iterator[Finding]:
        """Constraints and triggers that somebody has dropped or changed."""
        ...

    def reproject(self, job_id: str, *, actor: str, reason: str) -> JobState:
        """Set a stored state that disagrees with the executions right; returns it."""
        ...

    def integrity(self, *, deep: bool) -> Iterator[Finding]:
        """Faults of the database itself: damage, missing rules, impossible values, orphans."""
        ...

    def pruned_heads(self) -> Mapping[str, str]:
        """The recorded chain heads of jobs that retention has removed."""
        ...
