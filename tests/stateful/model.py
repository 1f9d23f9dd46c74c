"""What a store should do, in memory and in as few words as possible. It knows nothing of SQL or of `core`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

LIVE = ("leased", "in_progress")
COMMITTED = ("committed", "done")
UNFINISHED = ("pending", "running")
ENDED = ("failed", "quarantined")


@dataclass
class Execution:
    exec_id: str
    owner: str
    expires: int
    status: str
    meaning: str = ""


@dataclass
class Job:
    job_id: str
    flow: str
    queue: str
    key: str | None
    priority: int
    run_after: str | None
    parent: str | None
    failure_limit: int
    crash_limit: int
    not_before: int = 0
    hold: str = "none"
    waits_for: str | None = None
    failures: int = 0
    forgiven_failures: int = 0
    crashes: int = 0
    forgiven_crashes: int = 0
    cancelled: bool = False
    ending: bool = False
    key_lasts_ms: int | None = 0
    created_at: int = 0
    steps: list[str] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    ended_at: int = 0

    @property
    def state(self) -> str:
        if any(e.status == "done" for e in self.executions):
            return "succeeded"
        if any(e.status in (*LIVE, "committed") for e in self.executions):
            return "running"
        return self.executions[-1].meaning if self.executions else "pending"

    @property
    def live(self) -> Execution | None:
        return next((e for e in self.executions if e.status in LIVE), None)

    @property
    def committed(self) -> Execution | None:
        return next((e for e in self.executions if e.status in COMMITTED), None)


@dataclass
class Queue:
    limit: int | None = None
    by_operator: bool = False
    paused: bool = False


class Model:
    def __init__(self, now: int) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.queues: dict[str, Queue] = {}
        self.children: dict[tuple[str, str], str] = {}
        self.effects: dict[str, int] = {}
        self.keys: dict[tuple[str, str], tuple[str, int | None]] = {}
        """Of keys that last: the job, which may be forgotten, and until when."""

    # --- submitting ---

    def holder(self, flow: str, key: str | None) -> Job | None:
        """The unfinished job that has this key."""
        matching = (j for j in self.jobs.values() if key and (j.flow, j.key) == (flow, key) and j.state in UNFINISHED)
        return next(matching, None)

    def found(self, job: Job) -> str | None:
        """The job that a new one would be a second of."""
        if job.key is None:
            return None
        holder = self.holder(job.flow, job.key)
        if holder is not None:
            return holder.job_id
        lasting = self.keys.get((job.flow, job.key))
        if lasting is not None and (lasting[1] is None or lasting[1] > self.now):
            return lasting[0]
        known = [j for j in self.jobs.values() if (j.flow, j.key) == (job.flow, job.key)]
        last = max(known, key=lambda j: j.job_id, default=None)
        if last is None or job.key_lasts_ms == 0:
            return None
        young = job.key_lasts_ms is None or last.created_at + job.key_lasts_ms > self.now
        return last.job_id if young else None

    def add(self, job: Job) -> None:
        self.jobs[job.job_id] = job
        job.created_at = self.now
        if job.key is not None and job.key_lasts_ms != 0:
            expires = None if job.key_lasts_ms is None else self.now + job.key_lasts_ms
            self.keys[job.flow, job.key] = (job.job_id, expires)
        self.queues.setdefault(job.queue, Queue())
        predecessor = self.jobs.get(job.run_after or "")
        if predecessor is not None and predecessor.state != "succeeded":
            job.hold, job.waits_for = "after", predecessor.job_id
        elif job.not_before > self.now:
            job.hold = "until"
        if predecessor is not None and predecessor.state in ENDED:
            self.take_out(job, "failed")

    # --- claiming ---

    def running_in(self, queue: str) -> int:
        return sum(1 for job in self.jobs.values() if job.queue == queue and job.live)

    def claimable(self, flows: set[str], limit: int) -> list[Job]:
        """What a claim must give, in order."""
        for job in self.jobs.values():
            if job.state == "pending" and job.hold == "until" and job.not_before <= self.now:
                job.hold = "none"
        chosen: list[Job] = []
        free = {
            name: queue.limit - self.running_in(name) for name, queue in self.queues.items() if queue.limit is not None
        }
        for job in sorted(self.jobs.values(), key=lambda j: (-j.priority, j.job_id)):
            ready = job.state == "pending" and job.hold == "none" and job.flow in flows
            if not ready or self.queues[job.queue].paused or len(chosen) == limit:
                continue
            if job.queue in free:
                if free[job.queue] <= 0:
                    continue
                free[job.queue] -= 1
            chosen.append(job)
        return chosen

    # --- ending ---

    def abort(
        self, job: Job, path: list[str], *, crashed: bool = False, not_before: int = 0, waits_for: Job | None = None
    ) -> None:
        """The live execution ends, the job goes through the states of the path."""
        execution = job.live
        assert execution is not None
        execution.status, execution.meaning = "aborted", path[-1]
        if crashed:
            job.crashes += 1
        else:
            job.failures += path[0] == "failed"
        job.not_before, job.hold, job.waits_for = not_before, "none", None
        if job.cancelled and not job.ending:
            job.not_before = 0  # it was cancelled meanwhile, and is to be cleaned up at once
        elif waits_for is not None and waits_for.state in UNFINISHED:
            job.hold, job.waits_for = "child", waits_for.job_id
        elif path[-1] == "pending" and not_before > self.now:
            job.hold = "until"
        if path[-1] in ENDED:
            self.settle(job)

    def settle(self, job: Job) -> None:
        """The job has ended without success."""
        job.ending = job.cancelled = False
        job.ended_at = self.now
        for other in list(self.waiting_for(job)):
            if other.hold == "child":
                other.hold, other.waits_for = "none", None
            else:
                self.take_out(other, "failed")

    def take_out(self, job: Job, meaning: str) -> None:
        """A job that never ran ends at once, under an execution of the engine's own."""
        job.executions.append(Execution("", "", 0, "aborted", meaning))
        job.failures += 1
        job.hold, job.waits_for, job.not_before = "none", None, 0
        self.settle(job)

    def succeed(self, job: Job) -> None:
        execution = job.committed
        assert execution is not None
        execution.status = "done"
        job.ended_at = self.now
        for other in list(self.waiting_for(job)):
            other.waits_for = None
            other.hold = "until" if other.not_before > self.now else "none"

    def waiting_for(self, job: Job) -> Iterator[Job]:
        return (j for j in self.jobs.values() if j.waits_for == job.job_id and j.state == "pending")

    def path_after_crash(self, job: Job) -> list[str]:
        again = job.crashes - job.forgiven_crashes + 1 < job.crash_limit
        return ["pending"] if again else ["failed", "quarantined"]

    # --- cancelling ---

    def cancel(self, job: Job) -> None:
        """The job is to end, and what only it has asked for with it."""
        waited_for = self.jobs.get(job.waits_for or "") if job.hold == "child" else None
        if job.state == "pending" and not job.executions:
            self.take_out(job, "failed")
        elif job.state != "failed":
            job.cancelled = True
            if job.state == "pending":
                job.hold, job.waits_for, job.not_before = "none", None, 0
        self.cancel_children(job, waited_for)

    def cancel_children(self, job: Job, waited_for: Job | None) -> None:
        linked = {child for (parent, _), child in self.children.items() if parent == job.job_id}
        wanted = [j for j in self.jobs.values() if j.parent == job.job_id or j.job_id in linked or j is waited_for]
        for other in sorted(wanted, key=lambda j: j.job_id, reverse=True):
            if self.is_wanted_by_nobody_but(job, other):
                self.cancel(other)

    def is_wanted_by_nobody_but(self, job: Job, other: Job) -> bool:
        if other.state not in UNFINISHED or other.cancelled or other.parent is None or other.committed:
            return False
        parents = {parent for (parent, _), child in self.children.items() if child == other.job_id} | {other.parent}
        live = [j for j in self.jobs.values() if j is not job and j.state in UNFINISHED and not j.cancelled]
        if any(j.job_id in parents for j in live):
            return False
        return job.job_id in parents or not any(j.waits_for == other.job_id for j in live)

    # --- forgetting ---

    def may_be_pruned(self, job: Job) -> bool:
        if job.state in UNFINISHED:
            return False
        unfinished = [j for j in self.jobs.values() if j.state in UNFINISHED]
        if any(job.job_id in (j.run_after, j.waits_for) for j in unfinished):
            return False
        parents = {parent for (parent, _), child in self.children.items() if child == job.job_id}
        return not any(j.job_id in parents for j in unfinished)

    def forget_queues(self) -> None:
        """Those that no job is in, and that nobody has said anything about."""
        named = {job.queue for job in self.jobs.values()}
        self.queues = {
            name: queue
            for name, queue in self.queues.items()
            if name in named or queue.limit is not None or queue.by_operator or queue.paused
        }

    def forget(self, job_id: str) -> None:
        del self.jobs[job_id]
        self.children = {k: v for k, v in self.children.items() if v != job_id and k[0] != job_id}
