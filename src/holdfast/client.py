"""Submit, wait, steer, look: everything a user of jobs needs, without running any."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from holdfast.core.explain import ExplainFacts, Explanation, explain
from holdfast.core.flow import Flow
from holdfast.core.records import JobRecord, JobResult, WorkerRecord
from holdfast.core.states import LIVE_STATUSES, UNFINISHED_STATES, JobState, check_job_transition
from holdfast.errors import (
    BadInput,
    InvalidStateTransitionError,
    JobFailed,
    JobNotFoundError,
    ReasonRequiredError,
    UnknownFlowError,
    WaitTimeout,
)
from holdfast.store.identifiers import new_ulid
from holdfast.store.messages import NewJob
from holdfast.store.preparing import REQUEST_LIMIT, prepare_job, refuse_cycles
from holdfast.store.processes import is_dead
from holdfast.store.protocol import Store
from holdfast.store.results import result_of

Req = TypeVar("Req")
Resp = TypeVar("Resp")

LONGEST_SLEEP = 5.0
LONGEST_DELAY = 100 * 365 * 86400.0
SEEN_WITHIN_MS = 90_000


class Client:
    """A user's view of one store."""

    def __init__(
        self,
        store: Store,
        flows: Iterable[Flow[Any, Any]] = (),
        *,
        actor: str = "client",
        request_limit: int = REQUEST_LIMIT,
    ) -> None:
        self.store = store
        self.actor = actor
        self._request_limit = request_limit
        self._flows: dict[str, Flow[Any, Any]] = {}
        for flow in flows:
            self.register(flow)

    def register(self, flow: Flow[Any, Any]) -> None:
        """Make a flow known here, so that it can be submitted by name, and run."""
        flow.check_complete()
        known = self._flows.get(flow.name)
        if known is not None and known is not flow:
            raise BadInput(f"two different flows are named {flow.name!r}", hint="rename one of them")
        self._flows[flow.name] = flow

    @property
    def flows(self) -> Mapping[str, Flow[Any, Any]]:
        """The flows known here, by name."""
        return self._flows

    # --- submitting ---

    def submit(
        self,
        flow: Flow[Req, Any] | str,
        request: Req,
        *,
        key: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        not_before: int = 0,
        run_after: str | None = None,
        parent: str | None = None,
    ) -> str:
        """Add a job and return its id; with a key in use, the id of the job that has it.

        Crash: once this has returned, the job will run.
        """
        job = self.prepare(
            flow,
            request,
            key=key,
            queue=queue,
            priority=priority,
            not_before=self._start_time(not_before, delay),
            run_after=run_after,
            parent=parent,
        )
        return self.submit_many([job])[0]

    def _start_time(self, not_before: int, delay: float) -> int:
        if not 0 <= delay <= LONGEST_DELAY:
            raise BadInput(f"delay {delay!r} is not a number of seconds between 0 and {LONGEST_DELAY:,.0f}")
        return max(not_before, self.store.now() + round(delay * 1000)) if delay else not_before

    def prepare(self, flow: Flow[Req, Any] | str, request: Req, *, job_id: str | None = None, **options: Any) -> NewJob:
        """A checked job for submit_many; takes the options of submit, and an id if others refer to it."""
        found = self._flow(flow)
        job_id = job_id or new_ulid(self.store.now())
        return prepare_job(found, request, job_id=job_id, request_limit=self._request_limit, **options)

    def submit_many(self, jobs: Sequence[NewJob]) -> list[str]:
        """Add prepared jobs, all or none, in one transaction; returns the id that stands for each."""
        refuse_cycles(jobs)
        return [one.job_id for one in self.store.submit(jobs, actor=self.actor)]

    # --- waiting ---

    def wait(self, job_id: str, timeout: float | None = None) -> JobResult:
        """Wait for the end of a job, whatever it is; WaitTimeout if that takes too long."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if (state := self.store.job(job_id).state) not in UNFINISHED_STATES:
            return result_of(self.store, job_id)
        listener = self.store.listen()
        try:
            while (state := self.store.job(job_id).state) in UNFINISHED_STATES:
                left = LONGEST_SLEEP if deadline is None else min(LONGEST_SLEEP, deadline - time.monotonic())
                if left <= 0:
                    raise WaitTimeout(f"job {job_id} is still {state}", hint=f"why: holdfast job explain {job_id}")
                listener.wait(left)
        finally:
            listener.close()
        return result_of(self.store, job_id)

    def result(self, flow: Flow[Any, Resp], job_id: str, timeout: float | None = None) -> Resp:
        """Wait for a job to succeed and return its response; JobFailed if it does not."""
        result = self.wait(job_id, timeout)
        if result.state is not JobState.SUCCEEDED:
            raise JobFailed(job_id, result.state, result.reason)
        return msgspec.json.decode(result.response or "null", type=flow.response_type)

    # --- steering ---

    def cancel(self, job_id: str, *, reason: str) -> JobState:
        """End a job as failed, after its cleanup; returns the state it is in now."""
        return self.store.cancel(job_id, actor=self.actor, reason=_given(reason))

    def retry(self, job_id: str, *, reason: str) -> None:
        """Try a failed job again."""
        self.store.retry(job_id, actor=self.actor, reason=_given(reason), from_state=JobState.FAILED)

    def release(self, job_id: str, *, reason: str) -> None:
        """Let a quarantined job go on."""
        self.store.retry(job_id, actor=self.actor, reason=_given(reason), from_state=JobState.QUARANTINED)

    def force(self, job_id: str, to: JobState, *, reason: str, dry_run: bool = False) -> Sequence[JobState]:
        """Put a job into another state through legal transitions; returns the states it goes through.

        Success cannot be forced: only a commit makes a job succeed.
        """
        job = self.store.job(job_id)
        path = _forced_path(job, to)
        _given(reason)
        if dry_run or len(path) == 1:
            return path
        if to is JobState.PENDING:
            if job.state is JobState.RUNNING:
                self.store.restart(job_id, actor=self.actor, reason=reason)
            else:
                self.store.retry(job_id, actor=self.actor, reason=reason, from_state=job.state)
        else:
            self.store.fail(job_id, actor=self.actor, reason=reason, quarantine=to is JobState.QUARANTINED)
        return path

    # --- looking ---

    def explain(self, job_id: str) -> Explanation:
        """Why the job is where it is: a stable code and a sentence."""
        job = self.store.job(job_id)
        executions = tuple(self.store.executions(job_id))
        waits_for = job.waits_for or job.run_after
        queue = next((queue for queue in self.store.queues() if queue.name == job.queue), None)
        holders = tuple(e for e in self.store.under_way() if e.queue == job.queue and e.status in LIVE_STATUSES)
        flow = self._flows.get(job.flow)
        position = executions[-1].position if executions else 0
        tries = flow.steps[position].retry.retries + 1 if flow and 0 <= position < len(flow.steps) else None
        facts = ExplainFacts(
            job=job,
            executions=executions,
            predecessor=self._job_or_none(waits_for),
            queue=queue,
            queue_holders=holders,
            live_flows=frozenset(name for worker in self.live_workers() for name in worker.flows),
            tries_allowed=tries,
            now=self.store.now(),
        )
        return explain(facts)

    def live_workers(self) -> list[WorkerRecord]:
        """The workers that are there, as far as can be known from here."""
        return [worker for worker in self.store.workers() if self._is_live(worker)]

    def _is_live(self, worker: WorkerRecord) -> bool:
        if is_dead(worker.worker_id, one_machine=self.store.one_machine):
            return False
        # Of a worker on another machine only its own word is known, which it gives every 30 seconds.
        return self.store.one_machine or self.store.now() - worker.seen_at <= SEEN_WITHIN_MS

    def _job_or_none(self, job_id: str | None) -> JobRecord | None:
        try:
            return self.store.job(job_id) if job_id else None
        except JobNotFoundError:
            return None  # retention has removed it

    def _flow(self, flow: Flow[Any, Any] | str) -> Flow[Any, Any]:
        if isinstance(flow, Flow):
            return flow
        found = self._flows.get(flow)
        if found is None:
            known = ", ".join(sorted(self._flows)) or "none"
            raise UnknownFlowError(f"flow {flow!r} is not registered", hint=f"registered here: {known}")
        return found


def _given(reason: str) -> str:
    if not reason or not reason.strip():
        raise ReasonRequiredError("an override needs a reason", hint="say why: it goes into the journal")
    return reason.strip().encode("utf-8", "backslashreplace").decode()


def _forced_path(job: JobRecord, to: JobState) -> list[JobState]:
    """The states a forced job goes through; raises if the tables have no such way."""
    if job.state is to:
        return [to]
    if to in (JobState.SUCCEEDED, JobState.RUNNING):
        raise InvalidStateTransitionError(job.state, to, hint="only a worker can make a job run or succeed")
    paths = {
        (JobState.PENDING, JobState.FAILED): [JobState.RUNNING, JobState.FAILED],
        (JobState.PENDING, JobState.QUARANTINED): [JobState.RUNNING, JobState.FAILED, JobState.QUARANTINED],
        (JobState.RUNNING, JobState.PENDING): [JobState.FAILED, JobState.PENDING],
        (JobState.RUNNING, JobState.QUARANTINED): [JobState.FAILED, JobState.QUARANTINED],
    }
    path = [job.state, *paths.get((job.state, to), [to])]
    for before, after in pairwise(path):
        check_job_transition(before, after)
    return path
