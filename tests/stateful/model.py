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

    # --- submitting ---

    def holder(self, flow: str, key: str | None) -> Job | None:
        """The unfinished job that has this key."""
        matching = (j for j in self.jobs.values() if key and (j.flow, j.key) == (flow, key) and j.state in UNFINISHED)
        return next(matching, None)

    def add(self, job: Job) -> None:
        self.jobs[job.job_id] = job
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

    # --- forgetting ---

    def may_be_pruned(self, job: Job) -> bool:
        if job.state in UNFINISHED:
            return False
        unfinished = [j for j in self.jobs.values() if j.state in UNFINISHED]
        if any(job.job_id in (j.run_after, j.waits_for) for j in unfinished):
            return False
        parents = {parent for (parent, _), child in self.children.items() if child == job.job_id}
        return not any(j.job_id in parents for j in unfinished)

    def forget(self, job_id: str) -> None:
        del self.jobs[job_id]
        self.children = {k: v for k, v in self.children.items() if v != job_id and k[0] != job_id}
