"""Submit, wait, steer, look: everything a user of jobs needs, without running any."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from holdfast.core.explain import ExplainFacts, Explanation, ReasonCode, explain
from holdfast.core.flow import Flow
from holdfast.core.records import JobRecord, JobResult, JournalEntry, WorkerRecord, storable
from holdfast.core.retry import milliseconds_since_epoch, seconds_of, time_since
from holdfast.core.states import LIVE_STATUSES, UNFINISHED_STATES, JobState, check_job_transition
from holdfast.errors import (
    BadInput,
    InvalidStateTransitionError,
    JobFailed,
    JobMovedOnError,
    JobNotFoundError,
    ReasonRequiredError,
    UnknownFlowError,
    WaitTimeout,
)
from holdfast.store.commands import NewJob, Submitted
from holdfast.store.journal import JournalFeed, JournalFilter, follow, result_of
from holdfast.store.liveness import is_dead, is_live
from holdfast.store.operator import log_refusal
from holdfast.store.protocol import Store
from holdfast.store.rows import new_ulid
from holdfast.store.submit import REQUEST_LIMIT, checked_priority, checked_queue, prepare_job, refuse_cycles
from holdfast.store.verbs import NO_METADATA

Req = TypeVar("Req")
Resp = TypeVar("Resp")

log = logging.getLogger("holdfast.client")

LONGEST_SLEEP = 5.0
TELL_AFTER = 5.0
"""Seconds that one waits for a job before asking why it has not ended."""
TELL_EVERY = 10.0
METADATA_LIMIT = 16 << 10
REASON_LIMIT = 4000
"""Characters: a bulk action writes its reason into the journal of every job."""


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

    def acting_as(self, actor: str) -> Client:
        """A client of the same store, flows and limits, whose actions are journaled as those of somebody else."""
        return Client(self.store, self._flows.values(), actor=actor, request_limit=self._request_limit)

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
        delay: float | timedelta = 0.0,
        not_before: int | datetime = 0,
        run_after: str | None = None,
        parent: str | None = None,
    ) -> str:
        """Add a job and return its id; with a key that stands for a job, the id of that job.

        Crash: once this has returned, the job will run.
        """
        return self.submit_or_find(
            flow,
            request,
            key=key,
            queue=queue,
            priority=priority,
            delay=delay,
            not_before=not_before,
            run_after=run_after,
            parent=parent,
        ).job_id

    def submit_or_find(self, flow: Flow[Req, Any] | str, request: Req, **options: Any) -> Submitted:
        """The same with the options of prepare; says whether a job was added, or found under its key."""
        [submitted] = self.store.submit([self.prepare(flow, request, **options)], actor=self.actor)
        return submitted

    def prepare(
        self,
        flow: Flow[Req, Any] | str,
        request: Req,
        *,
        job_id: str | None = None,
        delay: float | timedelta = 0.0,
        not_before: int | datetime = 0,
        **options: Any,
    ) -> NewJob:
        """A checked job for submit_many; takes the options of submit, and an id if others refer to it."""
        found = self._flow(flow)
        return prepare_job(
            found,
            request,
            job_id=job_id or new_ulid(self.store.now()),
            not_before=self._start_time(not_before, delay),
            request_limit=self._request_limit,
            **options,
        )

    def _start_time(self, not_before: int | datetime, delay: float | timedelta) -> int:
        earliest, seconds = milliseconds_since_epoch(not_before), seconds_of(delay, "delay")
        return max(earliest, self.store.now() + round(seconds * 1000)) if seconds else earliest

    def submit_many(self, jobs: Sequence[NewJob]) -> list[str]:
        """Add prepared jobs, all or none, in one transaction; returns the id that stands for each."""
        refuse_cycles(jobs)
        return [one.job_id for one in self.store.submit(jobs, actor=self.actor)]

    # --- waiting ---

    def wait(
        self,
        job_id: str,
        timeout: float | timedelta | None = None,
        *,
        told: Callable[[Explanation], None] | None = None,
    ) -> JobResult:
        """Wait for the end of a job, whatever it is; WaitTimeout if that takes too long.

        Without a timeout it waits as long as that takes. Why the job does not end is told to `told`, or logged if
        nobody is there who could run it: after some seconds, and whenever the reason has changed.
        """
        deadline = None if timeout is None else time.monotonic() + seconds_of(timeout, "timeout")
        if self.store.job(job_id).state not in UNFINISHED_STATES:
            return result_of(self.store, job_id)
        signs = _SignsOfLife(lambda: self.explain(job_id), told)
        listener = self.store.listen()
        try:
            while (state := self.store.job(job_id).state) in UNFINISHED_STATES:
                left = LONGEST_SLEEP if deadline is None else min(LONGEST_SLEEP, deadline - time.monotonic())
                if left <= 0:
                    raise WaitTimeout(f"job {job_id} is still {state}", hint=f"why: holdfast job explain {job_id}")
                signs.show()
                listener.wait(left)
        finally:
            listener.close()
        return result_of(self.store, job_id)

    def result(self, flow: Flow[Any, Resp], job_id: str, timeout: float | timedelta | None = None) -> Resp:
        """Wait for a job to succeed and return its response; JobFailed if it does not."""
        result = self.wait(job_id, timeout)
        if result.state is not JobState.SUCCEEDED:
            raise JobFailed(job_id, result.state, result.reason, result.error)
        return flow.response_codec.decode(result.response or "null")

    # --- steering: asked for again, each gives the same answer and changes nothing. With `expected_head`, the hash that
    # the job's journal ended with when somebody looked, one that has moved on is left alone: JobMovedOnError ---

    def cancel(
        self,
        job_id: str,
        *,
        reason: str,
        children: bool = True,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
        dry_run: bool = False,
    ) -> JobState:
        """End a job as failed, after its cleanup, and with it its unfinished children; returns the state it is in now.

        A child that another job has asked for, too, goes on. Crash: once the job is cancelled, its children will be.
        """
        return self.store.cancel(
            job_id,
            actor=self.actor,
            reason=given(reason),
            children=children,
            seen=self.store.job(job_id).state,
            expected_head=expected_head,
            metadata=checked_metadata(metadata),
            dry_run=dry_run,
        )

    def retry(
        self,
        job_id: str,
        *,
        reason: str,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
        dry_run: bool = False,
    ) -> JobState:
        """Try a failed job again; returns the state it is in now."""
        return self._retry(job_id, JobState.FAILED, reason, expected_head, metadata, dry_run=dry_run)

    def release(
        self,
        job_id: str,
        *,
        reason: str,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
        dry_run: bool = False,
    ) -> JobState:
        """Let a quarantined job go on; returns the state it is in now."""
        return self._retry(job_id, JobState.QUARANTINED, reason, expected_head, metadata, dry_run=dry_run)

    def _retry(
        self,
        job_id: str,
        from_state: JobState,
        reason: str,
        expected_head: str | None,
        metadata: Mapping[str, Any],
        *,
        dry_run: bool,
    ) -> JobState:
        return self.store.retry(
            job_id,
            actor=self.actor,
            reason=given(reason),
            from_state=from_state,
            seen=self.store.job(job_id).state,
            expected_head=expected_head,
            metadata=checked_metadata(metadata),
            dry_run=dry_run,
        )

    def reschedule(
        self,
        job_id: str,
        *,
        reason: str,
        delay: float | timedelta | None = None,
        not_before: int | datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> JobState:
        """Give a pending job another start, priority or queue; what is not given stays as it is."""
        if delay is None and not_before is None and priority is None and queue is None:
            raise BadInput("nothing is given to be changed", hint="give delay, not_before, priority or queue")
        start = None if delay is None and not_before is None else self._start_time(not_before or 0, delay or 0.0)
        return self.store.reschedule(
            job_id,
            actor=self.actor,
            reason=given(reason),
            not_before=start,
            priority=None if priority is None else checked_priority(priority),
            queue=None if queue is None else checked_queue(queue),
            expected_head=expected_head,
            metadata=checked_metadata(metadata),
        )

    def force(
        self,
        job_id: str,
        to: JobState | str,
        *,
        reason: str,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
        dry_run: bool = False,
    ) -> Sequence[JobState]:
        """Put a job into another state through legal transitions; returns the states it goes through.

        Success cannot be forced: only a commit makes a job succeed.
        """
        to = _checked_state(to)
        job = self.store.job(job_id)
        head = self.store.journal(job_id)[-1].hash if expected_head is not None else None
        if head is not None and expected_head not in (None, head):
            raise JobMovedOnError(job_id, expected=str(expected_head), head=head)
        path = _forced_path(job, to)
        if dry_run or len(path) == 1:
            given(reason)
            return path
        seen = job.state
        by: Any = {"actor": self.actor, "reason": given(reason), "metadata": checked_metadata(metadata), "seen": seen}
        by["expected_head"] = expected_head
        if to is not JobState.PENDING:
            self.store.fail(job_id, quarantine=to is JobState.QUARANTINED, **by)
        elif seen is JobState.RUNNING:
            self.store.restart(job_id, **by)
        else:
            self.store.retry(job_id, from_state=seen, **by)
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
        current = next(iter(self.store.running([job_id])), None)
        position = executions[-1].position if executions else 0
        if current is not None and current.number is not None:
            position = current.number - 1
        tries = flow.steps[position].retry.most_tries if flow and 0 <= position < len(flow.steps) else None
        facts = ExplainFacts(
            job=job,
            executions=executions,
            predecessor=self._job_or_none(waits_for),
            queue=queue,
            queue_holders=holders,
            live_flows=frozenset(name for worker in self.live_workers() for name in worker.flows),
            tries_allowed=tries,
            current=current,
            owner_is_gone=current is not None and is_dead(current.worker, one_machine=self.store.one_machine),
            now=self.store.now(),
        )
        return explain(facts)

    def journal(
        self,
        job_id: str | None = None,
        *,
        since: int | datetime | timedelta | None = None,
        actor: str | None = None,
        flow: str | None = None,
    ) -> list[JournalEntry]:
        """The entries of the journal of one job, or of all: since a time (or for so long), of an actor, of a flow."""
        wanted = self._wanted(job_id, since, actor, flow)
        return JournalFeed(self.store, wanted, from_now=False).look()

    def follow_journal(
        self,
        job_id: str | None = None,
        *,
        since: int | datetime | timedelta | None = None,
        actor: str | None = None,
        flow: str | None = None,
        stop_when: Callable[[], bool] = lambda: False,
    ) -> Iterator[JournalEntry]:
        """The same entries, and then each new one as it is committed: none is left out, and none is given twice.

        Of all jobs and without `since` it begins with what is committed after this call. It ends when `stop_when`,
        which is asked whenever all that is there was given, says so, or when the iterator is closed.
        """
        wanted = self._wanted(job_id, since, actor, flow)
        feed = JournalFeed(self.store, wanted, from_now=job_id is None and since is None)
        return follow(self.store, feed, stop_when=stop_when)

    def _wanted(
        self, job_id: str | None, since: int | datetime | timedelta | None, actor: str | None, flow: str | None
    ) -> JournalFilter:
        if job_id is not None and not self.store.journal(job_id):
            self.store.job(job_id)  # raises, and knows whether retention has removed it
        start = 0 if since is None else time_since(since, now=self.store.now())
        return JournalFilter(job_id=job_id, since=start, actor=actor, flow=flow)

    def live_workers(self) -> list[WorkerRecord]:
        """The workers that are there, as far as can be known from here."""
        now, one_machine = self.store.now(), self.store.one_machine
        return [worker for worker in self.store.workers() if is_live(worker, now=now, one_machine=one_machine)]

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


def _checked_state(state: JobState | str) -> JobState:
    try:
        return JobState(state)
    except ValueError:
        raise BadInput(f"there is no state {state!r}", hint=f"one of {', '.join(JobState)}") from None


def given(reason: str) -> str:
    """The reason of an operator, who has to give one, and a short one."""
    if not isinstance(reason, str) or not reason.strip():
        raise ReasonRequiredError("an override needs a reason", hint="say why: it goes into the journal")
    if len(reason) > REASON_LIMIT:
        hint = f"{REASON_LIMIT:,} at most: say where the rest is to be read"
        raise BadInput(f"the reason has {len(reason):,} characters", hint=hint)
    return storable(reason.strip())


def checked_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """What goes into the journal beside the reason: an object of JSON that is not too large."""
    try:
        encoded = msgspec.json.encode(metadata)
        again = msgspec.json.decode(encoded, type=dict[str, Any])
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"metadata cannot be written as a JSON object: {error}") from None
    if len(encoded) > METADATA_LIMIT:
        raise BadInput(f"metadata has {len(encoded):,} bytes, the limit is {METADATA_LIMIT:,}")
    return again


class _SignsOfLife:
    """Tells why a job that is waited for has not ended: after a while, and then whenever the reason is another one."""

    def __init__(self, explain: Callable[[], Explanation], told: Callable[[Explanation], None] | None) -> None:
        self._explain = explain
        self._told = told
        self._code: str | None = None
        self._due = time.monotonic() + TELL_AFTER

    def show(self) -> None:
        """Look, if it is time to."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + TELL_EVERY
        explanation = self._explain()
        if explanation.code == self._code:
            return
        self._code = explanation.code
        if self._told is not None:
            self._told(explanation)
        elif explanation.code is ReasonCode.NO_WORKER:
            job_id = explanation.details.get("job")
            log.warning("waiting for job %s: %s", job_id, explanation.sentence, extra={"job_id": job_id})


def _forced_path(job: JobRecord, to: JobState) -> list[JobState]:
    """The states a forced job goes through; raises if the tables have no such way."""
    try:
        return _legal_path(job, to)
    except InvalidStateTransitionError as error:
        log_refusal(job.job_id, error)
        raise


def _legal_path(job: JobRecord, to: JobState) -> list[JobState]:
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
