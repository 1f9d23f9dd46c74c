"""What a page, an API and a terminal show of a store: lists, one job, flows with figures, the house.

Whatever is asked, the cost is bounded: pages go by key, counts stop early, and figures are of the newest jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from holdfast.client import Client
from holdfast.core.explain import ExplainFacts, explain
from holdfast.core.flow import Definition
from holdfast.core.progress import CLEANUP, CurrentStep, StallVerdict, stall_limit, stall_verdict
from holdfast.core.records import Backlog, Child, ExecutionRecord, JobRecord, JournalEntry, QueueRecord, error_of
from holdfast.core.states import LIVE_STATUSES, JobState
from holdfast.core.values import checked_job_id
from holdfast.errors import BadInput, InvalidKeyError, JobNotFoundError, UnknownFlowError
from holdfast.store.change_feed import Change
from holdfast.store.job_lists import JobFilter
from holdfast.store.liveness import is_dead, is_live
from holdfast.views.figures import (
    HOUR,
    MINUTE,
    StepFigures,
    add_ends,
    add_handoffs,
    add_steps,
    crashes_by_host,
    ended_badly,
    nodes_of,
    p95_of,
)
from holdfast.views.records import (
    BoundedCount,
    Edge,
    ExecutionView,
    FlowView,
    JobPage,
    JobRow,
    JobView,
    OlderDefinition,
    Overview,
    QueueView,
    SlowView,
    StepView,
    WaysOut,
    WorkerView,
)

COUNT_CAP = 10_000
"""Nothing is counted further than to here."""
PAGE_LIMIT = 500
SLOW_SHOWN = 50
IDLE_MS = 5_000
"""Whoever got somewhere within this time is not called slow."""
BACKLOG_LOOK = 20_000
"""So many of the oldest jobs that wait are counted, queue by queue."""
SAMPLE = 2_000
"""Of the jobs submitted in the last hour, the newest so many are what statistics are made of."""


class _House(NamedTuple):
    """What the explanations of many jobs have in common."""

    queues: dict[str, QueueRecord]
    under_way: list[ExecutionRecord]
    live_flows: frozenset[str]
    now: int


class Views:
    """What is to be seen of the store of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._store = client.store

    # --- the list ---

    def jobs(self, wanted: JobFilter | None = None, cursor: str | None = None, limit: int = 50) -> JobPage:
        """A page of the jobs that are wanted, newest first, from the beginning or from a cursor on."""
        if not 1 <= limit <= PAGE_LIMIT:
            raise BadInput(f"a page cannot have {limit} jobs", hint=f"from 1 to {PAGE_LIMIT}")
        wanted = wanted or JobFilter()
        backwards, beyond = _position_in(cursor)
        found = self._store.list_jobs(wanted, beyond=beyond, limit=limit + 1, newest_first=not backwards)
        more, jobs = len(found.jobs) > limit, found.jobs[:limit]
        if backwards:
            jobs.reverse()
        first, last = (jobs[0].job_id, jobs[-1].job_id) if jobs else (None, None)
        onward = (first if backwards else last) if more else found.more
        back = (last if backwards else first) if beyond is not None else None
        before, behind = (onward, back) if backwards else (back, onward)
        return JobPage(
            rows=self._rows(jobs),
            previous=before and f"b{before}",
            next=behind and f"f{behind}",
            looked=found.looked,
        )

    def rows(self, job_ids: Sequence[str]) -> list[JobRow]:
        """These jobs as a list shows them, in this order; those that are gone are left out."""
        if len(job_ids) > PAGE_LIMIT:
            raise BadInput(f"a page cannot have {len(job_ids)} jobs", hint=f"at most {PAGE_LIMIT}")
        found = self._store.list_jobs(JobFilter(job_ids=tuple(job_ids)), limit=PAGE_LIMIT).jobs if job_ids else []
        there = {job.job_id: job for job in found}
        return self._rows([there[job_id] for job_id in job_ids if job_id in there])

    def count(self, wanted: JobFilter | None = None) -> BoundedCount:
        """How many jobs that is, as far as it is counted."""
        found = self._store.count_jobs(wanted or JobFilter(), most=COUNT_CAP + 1)
        capped = found.jobs > COUNT_CAP or found.looked is not None
        return BoundedCount(count=min(found.jobs, COUNT_CAP), capped=capped, looked=found.looked)

    def _rows(self, jobs: Sequence[JobRecord]) -> list[JobRow]:
        current = {one.job_id: one for one in self._store.running([job.job_id for job in jobs])}
        executions = self._store.executions_of([job.job_id for job in jobs])
        house = self._house(with_queues=any(job.state is JobState.PENDING for job in jobs))
        return [self._row(job, current.get(job.job_id), executions.get(job.job_id, ()), house) for job in jobs]

    def _row(
        self, job: JobRecord, current: CurrentStep | None, executions: Sequence[ExecutionRecord], house: _House
    ) -> JobRow:
        waits_for = job.waits_for or job.run_after
        facts = ExplainFacts(
            job=job,
            executions=tuple(executions),
            predecessor=self._job_or_none(waits_for) if job.state is JobState.PENDING else None,
            queue=house.queues.get(job.queue),
            queue_holders=tuple(e for e in house.under_way if e.queue == job.queue and e.status in LIVE_STATUSES),
            live_flows=house.live_flows,
            current=current,
            owner_is_gone=current is not None and is_dead(current.worker, one_machine=self._store.one_machine),
            now=house.now,
        )
        return JobRow(
            job=job,
            step=current.step if current else None,
            tries=current.tries if current else 0,
            progress=current.progress if current else None,
            worker=current.worker if current else None,
            error=error_of(executions[-1]) if executions and job.state is not JobState.SUCCEEDED else None,
            explanation=explain(facts).sentence,
        )

    def _house(self, *, with_queues: bool) -> _House:
        return _House(
            queues={queue.name: queue for queue in self._store.queues(most=0)} if with_queues else {},
            under_way=self._store.under_way() if with_queues else [],
            live_flows=frozenset(name for worker in self._client.live_workers() for name in worker.flows),
            now=self._store.now(),
        )

    # --- one job ---

    def job(self, job_id: str) -> JobView:
        """All of one job; JobNotFoundError if there is none."""
        job = self._store.job(job_id)
        steps = self._store.steps(job_id)
        journal = self._store.journal(job_id)
        executions = [
            ExecutionView(
                execution=one, steps=[step for step in steps if step.exec_id == one.exec_id], error=error_of(one)
            )
            for one in self._store.executions(job_id)
        ]
        return JobView(
            job=job,
            request=self._store.request(job_id),
            explanation=self._client.explain(job_id),
            executions=executions,
            current=next(iter(self._store.running([job_id])), None),
            children=self._store.children(job_id),
            parent=self._job_or_none(job.parent),
            head=journal[-1].hash if journal else "",
            entries=len(journal),
            steps=steps,
        )

    def journal(self, job_id: str) -> list[JournalEntry]:
        """The journal of one job, with its hashes."""
        return self._client.journal(job_id)

    def children(self, job_id: str) -> list[Child]:
        """The jobs that one has asked for."""
        return self._store.children(job_id)

    def _job_or_none(self, job_id: str | None) -> JobRecord | None:
        try:
            return self._store.job(job_id) if job_id else None
        except JobNotFoundError:
            return None  # retention has removed it

    # --- what changes ---

    def changes(self, after: str | None = None, limit: int = 500) -> list[Change]:
        """The changes of all jobs behind one of them, or all that are on record: none is left out, however often asked.

        ChangesLostError if `after` is not of this store.
        """
        return self._store.changes_after(after, limit=limit)

    def last_change(self) -> str:
        """To be given to `changes`: behind it is what is committed from now on."""
        return self._store.last_change()

    # --- flows ---

    def flows(self) -> list[FlowView]:
        """Every flow that is registered here, or that a job was ever pinned to."""
        return [self.flow(name) for name in self.flow_names()]

    def flow_names(self) -> list[str]:
        """Their names."""
        stored = (_definition(text) for text in self._store.definitions().values())
        return sorted({*self._client.flows, *(one.flow for one in stored if one is not None)})

    def flow(self, name: str) -> FlowView:
        """One flow as a machine, with the figures of the last hour; UnknownFlowError if nothing is known of it."""
        flow = self._client.flows.get(name)
        definition = flow.definition if flow is not None else self._stored_definition(name)
        now = self._store.now()
        recent = self._store.list_jobs(JobFilter(flow=name, newer_than=now - HOUR), limit=SAMPLE).jobs
        steps = {step: StepFigures() for step in (*definition.steps, CLEANUP)}
        edges: Counter[tuple[str, str]] = Counter()
        handoffs: Counter[tuple[str, str]] = Counter()
        finished = self._store.steps_of([job.job_id for job in recent])
        for rows in finished.values():
            add_steps(steps, edges, rows, now)
        add_handoffs(handoffs, definition.steps, recent, finished)
        failures = add_ends(steps, definition.steps, recent, self._store.executions_of(ended_badly(recent)))
        self._add_running(steps, name)
        ends = Counter(job.state for job in recent)
        has_cleanup = flow is None or flow.cleanup is not None
        return FlowView(
            name=name,
            version=definition.version,
            fingerprint=definition.fingerprint,
            steps=nodes_of(flow) if flow is not None else [StepView(name=one, kind="step") for one in definition.steps],
            statistics=[figures.summed(step) for step, figures in steps.items() if step != CLEANUP or has_cleanup],
            edges=[
                Edge(source=one, target=other, count=edges[one, other]) for one, other in pairwise(definition.steps)
            ],
            ways_out=WaysOut(
                succeeded=ends[JobState.SUCCEEDED],
                failed=ends[JobState.FAILED],
                quarantined=ends[JobState.QUARANTINED],
            ),
            older=self._older(definition),
            sampled=len(recent) == SAMPLE,
            registered=flow is not None,
            entered=len(recent),
            pending=self.count(JobFilter(flow=name, states=(JobState.PENDING,))),
            handoffs=[Edge(source=one, target=other, count=number) for (one, other), number in handoffs.items()],
            crashes=sum(job.crashes for job in recent),
            failures=failures,
            p95_ms=p95_of(recent),
        )

    def _add_running(self, steps: dict[str, StepFigures], flow: str) -> None:
        running = self._store.list_jobs(JobFilter(flow=flow, states=(JobState.RUNNING,)), limit=SAMPLE).jobs
        for current in self._store.running([job.job_id for job in running]):
            if current.step in steps:
                steps[current.step].running += 1
                steps[current.step].retrying += current.tries > 0

    def _stored_definition(self, name: str) -> Definition:
        """The one that the newest job of the flow is pinned to, or any that one was ever pinned to."""
        stored = self._store.definitions()
        newest = [stored.get(job.fingerprint) for job in self._store.list_jobs(JobFilter(flow=name), limit=1).jobs]
        found = (_definition(text) for text in (*newest, *stored.values()))
        definition = next((one for one in found if one is not None and one.flow == name), None)
        if definition is None:
            known = ", ".join(sorted(self._client.flows)) or "none"
            raise UnknownFlowError(f"flow {name!r} is not registered", hint=f"registered here: {known}")
        return definition

    def _older(self, current: Definition) -> list[OlderDefinition]:
        found = []
        pinned = self._store.unfinished_by_definition(current.flow, most=COUNT_CAP + 1)
        definitions = self._store.definitions() if pinned.keys() - {current.fingerprint} else {}
        for fingerprint, jobs in pinned.items():
            if fingerprint == current.fingerprint:
                continue
            definition = _definition(definitions.get(fingerprint))
            found.append(
                OlderDefinition(
                    fingerprint=fingerprint,
                    version=definition.version if definition else "?",
                    steps=definition.steps if definition else (),
                    jobs=BoundedCount(count=min(jobs, COUNT_CAP), capped=sum(pinned.values()) > COUNT_CAP),
                )
            )
        return found

    # --- the house ---

    def queues(self) -> list[QueueView]:
        """Every queue, with what waits in it among the oldest jobs that wait."""
        backlog = {one.queue: one for one in self._store.backlog(most=BACKLOG_LOOK)}
        queues = self._store.queues(most=BACKLOG_LOOK)
        looked = BACKLOG_LOOK if sum(queue.pending for queue in queues) >= BACKLOG_LOOK else None
        return [
            QueueView(queue=queue, backlog=backlog.get(queue.name, Backlog(queue=queue.name)), looked=looked)
            for queue in queues
        ]

    def workers(self) -> list[WorkerView]:
        """Every worker that has announced itself."""
        now, one_machine = self._store.now(), self._store.one_machine
        leases = Counter(one.lease_owner for one in self._store.under_way())
        return [
            WorkerView(
                worker=worker, live=is_live(worker, now=now, one_machine=one_machine), leases=leases[worker.worker_id]
            )
            for worker in self._store.workers()
        ]

    def slow(self) -> list[SlowView]:
        """Running jobs that get nowhere: slow, or stalled; of a bounded number of them."""
        now = self._store.now()
        running = self._store.list_jobs(JobFilter(states=(JobState.RUNNING,)), limit=SAMPLE).jobs
        jobs = {job.job_id: job for job in running}
        found = []
        for current in self._store.running(list(jobs)):
            since, job = max(current.progressed_at, current.since), jobs[current.job_id]
            limit = stall_limit(job, current)
            verdict = stall_verdict(progressed_at=since, now=now, stall_ms=limit, retry_at=current.retry_at)
            is_slow = verdict is StallVerdict.SLOW and now - since > IDLE_MS
            if is_slow or verdict is StallVerdict.STALLED:
                found.append(
                    SlowView(
                        job_id=job.job_id,
                        flow=job.flow,
                        step=current.step,
                        worker=current.worker,
                        since=since,
                        stalled=verdict is StallVerdict.STALLED,
                    )
                )
        return sorted(found, key=lambda one: one.since)[:SLOW_SHOWN]

    def overview(self) -> Overview:
        """Everything at once, of bounded cost."""
        now = self._store.now()
        recent = self._store.list_jobs(JobFilter(newer_than=now - HOUR), limit=SAMPLE).jobs
        throughput = [0] * 60
        for job in recent:
            ago = (now - job.updated_at) // MINUTE
            if job.state not in (JobState.PENDING, JobState.RUNNING) and 0 <= ago < 60:
                throughput[59 - ago] += 1
        running = self._store.list_jobs(JobFilter(states=(JobState.RUNNING,)), limit=SAMPLE).jobs
        quarantined = self._store.list_jobs(JobFilter(states=(JobState.QUARANTINED,)), limit=SAMPLE).jobs
        ends = Counter(job.state for job in recent)
        return Overview(
            queues=self.queues(),
            workers=self.workers(),
            counts={state.value: self.count(JobFilter(states=(state,))) for state in JobState},
            findings=list(getattr(self._client, "findings", ())),
            throughput=throughput,
            last_hour=WaysOut(
                succeeded=ends[JobState.SUCCEEDED],
                failed=ends[JobState.FAILED],
                quarantined=ends[JobState.QUARANTINED],
            ),
            p95_ms=p95_of(recent),
            retrying=sum(one.tries > 0 for one in self._store.running([job.job_id for job in running])),
            crashes=crashes_by_host(self._store.executions_of([job.job_id for job in recent if job.crashes])),
            oldest_quarantined_at=min((job.updated_at for job in quarantined), default=None),
        )


def _definition(text: str | None) -> Definition | None:
    try:
        return msgspec.json.decode(text, type=Definition) if text else None
    except msgspec.MsgspecError:
        return None


def _position_in(cursor: str | None) -> tuple[bool, str | None]:
    """Does the cursor go backwards, and behind which job does the page begin?"""
    if not cursor:
        return False, None
    refusal = BadInput("this cursor was not given out with a page", hint="begin again without one")
    if cursor[0] not in "fb":
        raise refusal
    try:
        return cursor[0] == "b", checked_job_id(cursor[1:])
    except InvalidKeyError:
        raise refusal from None
