"""Routes of jobs: the list, one job with all of it, its journal with proof, waiting for it, and steering it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.client import REASON_LIMIT
from holdfast.core.explain import Explanation
from holdfast.core.hash_chain import chain_faults
from holdfast.core.progress import CurrentStep
from holdfast.core.records import Child, ErrorRecord, ExecutionRecord, JobRecord, JournalEntry, StepRecord
from holdfast.core.states import UNFINISHED_STATES, JobState
from holdfast.errors import BadInput, JobMovedOnError
from holdfast.store.job_lists import JobFilter
from holdfast.store.journal import result_of
from holdfast.store.submit import PRIORITY_LIMIT
from holdfast.views import PAGE_LIMIT, BoundedCount, JobPage, JobView
from holdfast.web.conditions import LONGEST_WAIT, etag, expected_heads, link_headers, wait_preferred
from holdfast.web.job_waits import JobWaits
from holdfast.web.principal import Scope
from holdfast.web.problems import Refused
from holdfast.web.routes import Call, Reply, Route

ENTRIES_LIMIT = 1000

Reason = Annotated[str, Meta(min_length=1, max_length=REASON_LIMIT, description="Why: it goes into the journal.")]
Time = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since 1970, UTC."""
Limit = Annotated[int, Meta(ge=1, le=PAGE_LIMIT)]
Text = Annotated[str, Meta(max_length=512)]


# --- what is asked -----------------------------------------------------------------------------------------


class JobsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs: all that is given has to be true of them."""

    state: tuple[JobState, ...] = ()
    flow: Text | None = None
    queue: Text | None = None
    key_prefix: Text | None = None
    error_text: Text | None = None
    """In the last error, in either case."""
    older_than: Time | None = None
    """Submitted before this time."""
    newer_than: Time | None = None
    """Submitted at this time or later."""
    step: Text | None = None
    """The step that it is in, or will go on with."""

    @property
    def filter(self) -> JobFilter:
        """The same for the store."""
        return JobFilter(
            states=self.state,
            flow=self.flow,
            queue=self.queue,
            key_prefix=self.key_prefix,
            error_text=self.error_text,
            older_than=self.older_than,
            newer_than=self.newer_than,
            step=self.step,
        )


class JobListQuery(JobsQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, and which page."""

    limit: Limit = 50
    after: Annotated[str, Meta(max_length=100)] | None = None
    """A cursor: `next` or `previous` of another page."""


class JournalQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries."""

    limit: Annotated[int, Meta(ge=1, le=ENTRIES_LIMIT)] = 100
    after: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """Only those behind the entry of this number."""


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's wish, and why."""

    reason: Reason
    dry_run: bool = False
    """Say what it would do, and change nothing."""
    metadata: dict[str, Any] = {}
    """Goes into the journal beside the reason: the number of a ticket, say."""


class Cancel(Override, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a job, after its cleanup."""

    children: bool = True
    """Cancel its unfinished children with it."""


class Force(Override, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another state, at once and without cleanup, through legal transitions only."""

    to: JobState


_CHANGES = ("delay", "not_before", "priority", "queue")


class _Rescheduled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    reason: Reason
    metadata: dict[str, Any] = {}
    delay: Annotated[float, Meta(ge=0, le=315_360_000)] | msgspec.UnsetType = msgspec.UNSET
    """Start no earlier than in so many seconds; 0 is now."""
    not_before: Time | msgspec.UnsetType = msgspec.UNSET
    priority: Annotated[int, Meta(ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT)] | msgspec.UnsetType = msgspec.UNSET
    queue: Annotated[str, Meta(pattern="^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=100)] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    """Another queue; the empty text is the queue without a name."""


Reschedule = Annotated[
    _Rescheduled,
    Meta(
        title="Reschedule",
        description="Another start, priority or queue of a pending job; what is not given stays as it is.",
        extra_json_schema={"anyOf": [{"required": [each]} for each in _CHANGES]},
    ),
]


# --- what is answered --------------------------------------------------------------------------------------


class StepData(msgspec.Struct, frozen=True, kw_only=True):
    """A finished step."""

    position: int
    step: str
    exec_id: str
    tries: int
    started_at: int
    finished_at: int
    response: Any
    """What the job's response was after it."""


class ExecutionData(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a job; its error as data."""

    execution: ExecutionRecord
    error: ErrorRecord | None = None


class JobData(msgspec.Struct, frozen=True, kw_only=True):
    """All of one job; its ETag is `head`."""

    job: JobRecord
    request: Any
    explanation: Explanation
    executions: list[ExecutionData]
    steps: list[StepData]
    current: CurrentStep | None
    children: list[Child]
    parent: str | None
    head: str
    """The hash of the last entry of its journal: it changes with the job."""
    entries: int
    """Of its journal."""


class ResultData(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands: its state, and once it has ended, how and with what answer."""

    job_id: str
    state: JobState
    outcome: str | None = None
    reason: str | None = None
    error: ErrorRecord | None = None
    response: Any = None
    seconds: float = 0.0


class JournalPage(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of a job's journal, in order, with their hashes."""

    job_id: str
    entries: list[JournalEntry]
    next: int | None = None
    """The number to ask for as `after`, if there are more."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Does the chain of a job's journal hold?"""

    job_id: str
    entries: int
    head: str
    holds: bool
    faults: list[str]


class Steered(msgspec.Struct, frozen=True, kw_only=True):
    """A job after it was steered; with a dry run, the state that it would be in."""

    job_id: str
    state: JobState
    dry_run: bool = False
    cancel_reason: str | None = None
    """It will be ended as soon as a worker has run its cleanup."""


class Forced(msgspec.Struct, frozen=True, kw_only=True):
    """The states that a job went through; with a dry run, would go through."""

    job_id: str
    path: list[JobState]
    dry_run: bool = False


def raw(encoded: str | None) -> Any:
    """Stored JSON as a part of more JSON; text that is not JSON stays text."""
    if encoded is None:
        return None
    try:
        msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        return encoded
    return msgspec.Raw(encoded.encode())


def job_data(view: JobView) -> JobData:
    """A job as it is answered."""
    return JobData(
        job=view.job,
        request=raw(view.request),
        explanation=view.explanation,
        executions=[ExecutionData(execution=one.execution, error=one.error) for one in view.executions],
        steps=[_step_data(step) for step in view.steps],
        current=view.current,
        children=view.children,
        parent=view.job.parent,
        head=view.head,
        entries=view.entries,
    )


def _step_data(step: StepRecord) -> StepData:
    return StepData(
        position=step.position,
        step=step.step,
        exec_id=step.exec_id,
        tries=step.tries,
        started_at=step.started_at,
        finished_at=step.finished_at,
        response=raw(step.response),
    )


# --- looking ------------------------------------------------------------------------------------------------


def _list(call: Call) -> Reply:
    query: JobListQuery = call.query
    try:
        page = call.views.jobs(query.filter, query.after, query.limit)
    except BadInput as error:
        raise Refused(400, "invalid-cursor", str(error), hint=error.hint) from None
    return Reply(body=page, headers=link_headers(call, next=page.next, prev=page.previous))


def _count(call: Call) -> Reply:
    return Reply(body=call.views.count(call.query.filter))


def _one(call: Call) -> Reply:
    view = call.views.job(call.path["job_id"])
    return Reply(body=job_data(view), headers=etag(view.head))


async def awaited(call: Call, job_id: str) -> tuple[ResultData, dict[str, str]]:
    """How a job stands, waited for as is preferred, if not too many wait; and the header that says that it was."""
    seconds, headers = wait_preferred(call.headers), {}
    result = await call.in_thread(lambda: result_of(call.engine.store, job_id))
    if seconds and result.state in UNFINISHED_STATES and await call.service(JobWaits).until_ended(job_id, seconds):
        headers["Preference-Applied"] = f"wait={seconds:.0f}"
        result = await call.in_thread(lambda: result_of(call.engine.store, job_id))
    return ResultData(**{**msgspec.structs.asdict(result), "response": raw(result.response)}), headers


async def _result(call: Call) -> Reply:
    job_id = call.path["job_id"]
    result, headers = await awaited(call, job_id)
    if result.state not in UNFINISHED_STATES:
        return Reply(body=result, headers=headers)
    headers |= {"Retry-After": "1", "Location": call.link(f"/v1/jobs/{job_id}/result")}
    return Reply(status=202, body=result, headers=headers)


def _explain(call: Call) -> Reply:
    return Reply(body=call.engine.explain(call.path["job_id"]))


def _journal(call: Call) -> Reply:
    job_id, query = call.path["job_id"], call.query
    store = call.engine.store
    pages = store.journal_beyond({job_id: query.after})
    found: list[JournalEntry] = []
    for page in pages:
        found += page
        if len(found) > query.limit:
            break
    if not found:
        store.job(job_id)  # raises, if there is no such job
    entries = found[: query.limit]
    following = entries[-1].seq if len(found) > query.limit else None
    cursor = None if following is None else str(following)
    body = JournalPage(job_id=job_id, entries=entries, next=following)
    return Reply(body=body, headers=link_headers(call, next=cursor))


def _verify(call: Call) -> Reply:
    job_id = call.path["job_id"]
    entries = call.engine.store.journal(job_id)
    if not entries:
        call.engine.store.job(job_id)
    faults = list(chain_faults(entries))
    head = entries[-1].hash if entries else ""
    return Reply(body=Proof(job_id=job_id, entries=len(entries), head=head, holds=not faults, faults=faults))


# --- steering -----------------------------------------------------------------------------------------------


def _expected(call: Call) -> str | None:
    """The head that the job has to have, by If-Match; None for whatever it has."""
    heads = expected_heads(call.headers)
    if not heads:
        return None
    job_id = call.path["job_id"]
    now = _head(call)
    if now not in heads:
        raise JobMovedOnError(job_id, expected=heads[0], head=now)
    return now


def _head(call: Call) -> str:
    entries = call.engine.store.journal(call.path["job_id"])
    if not entries:
        call.engine.store.job(call.path["job_id"])
    return entries[-1].hash if entries else ""


def _steered(call: Call, state: JobState, *, dry_run: bool = False) -> Reply:
    job = call.engine.store.job(call.path["job_id"])
    body = Steered(
        job_id=job.job_id,
        state=state if dry_run else job.state,
        dry_run=dry_run,
        cancel_reason=job.cancel_reason,
    )
    return Reply(body=body, headers=etag(_head(call)))


def _cancel(call: Call) -> Reply:
    wish: Cancel = call.body
    state = call.client().cancel(
        call.path["job_id"],
        reason=wish.reason,
        children=wish.children,
        expected_head=_expected(call),
        metadata=wish.metadata,
        dry_run=wish.dry_run,
    )
    return _steered(call, state, dry_run=wish.dry_run)


def _retry(call: Call) -> Reply:
    return _bring_back(call, call.client().retry)


def _release(call: Call) -> Reply:
    return _bring_back(call, call.client().release)


def _bring_back(call: Call, action: Callable[..., JobState]) -> Reply:
    wish: Override = call.body
    state = action(
        call.path["job_id"],
        reason=wish.reason,
        expected_head=_expected(call),
        metadata=wish.metadata,
        dry_run=wish.dry_run,
    )
    return _steered(call, state, dry_run=wish.dry_run)


def _force(call: Call) -> Reply:
    wish: Force = call.body
    path = call.client().force(
        call.path["job_id"],
        wish.to,
        reason=wish.reason,
        expected_head=_expected(call),
        metadata=wish.metadata,
        dry_run=wish.dry_run,
    )
    body = Forced(job_id=call.path["job_id"], path=list(path), dry_run=wish.dry_run)
    return Reply(body=body, headers=etag(_head(call)))


def _reschedule(call: Call) -> Reply:
    wish: _Rescheduled = call.body
    changes = {name: value for name in _CHANGES if (value := getattr(wish, name)) is not msgspec.UNSET}
    state = call.client().reschedule(
        call.path["job_id"],
        reason=wish.reason,
        expected_head=_expected(call),
        metadata=wish.metadata,
        **changes,
    )
    return _steered(call, state)


def _look(path: str, name: str, summary: str, handler: Callable[[Call], Any], answer: Any, **more: Any) -> Route:
    return Route(
        method="GET", path=path, name=name, summary=summary, tag="jobs", handler=handler, answer=answer, **more
    )


def _override(verb: str, name: str, summary: str, handler: Callable[[Call], Any], body: Any, answer: Any) -> Route:
    return Route(
        method="POST",
        path=f"/v1/jobs/{{job_id}}/{verb}",
        name=name,
        summary=summary,
        tag="jobs",
        handler=handler,
        scope=Scope.OPERATE,
        body=body,
        answer=answer,
        takes=("If-Match",),
        gives=("ETag",),
        problems=(409, 410, 412, 428),
        body_limit=64 << 10,
    )


ROUTES: Sequence[Route] = (
    _look("/v1/jobs", "listJobs", "A page of jobs, newest first.", _list, JobPage, query=JobListQuery, gives=("Link",)),
    _look(
        "/v1/jobs/count", "countJobs", "How many jobs, counted up to a limit.", _count, BoundedCount, query=JobsQuery
    ),
    _look("/v1/jobs/{job_id}", "getJob", "All of one job.", _one, JobData, gives=("ETag",), problems=(410,)),
    _look(
        "/v1/jobs/{job_id}/result",
        "getResult",
        "How a job stands; with Prefer: wait=30 once it has ended.",
        _result,
        ResultData,
        also={202: "It has not ended yet."},
        takes=("Prefer",),
        gives=("Preference-Applied", "Retry-After", "Location"),
        problems=(410,),
        description=f"Waits for {LONGEST_WAIT:.0f} seconds at most. If too many wait already, it answers at once.",
    ),
    _look(
        "/v1/jobs/{job_id}/explain", "explainJob", "Why the job is where it is.", _explain, Explanation, problems=(410,)
    ),
    _look(
        "/v1/jobs/{job_id}/journal",
        "getJournal",
        "The journal of a job, with its hashes.",
        _journal,
        JournalPage,
        query=JournalQuery,
        gives=("Link",),
        problems=(410,),
    ),
    _look("/v1/jobs/{job_id}/verify", "verifyJob", "Does the hash chain hold?", _verify, Proof, problems=(410,)),
    _override("cancel", "cancelJob", "End a job, and its unfinished children with it.", _cancel, Cancel, Steered),
    _override("retry", "retryJob", "Try a failed job again, with a fresh budget.", _retry, Override, Steered),
    _override("release", "releaseJob", "Let a quarantined job go on.", _release, Override, Steered),
    _override("force", "forceJob", "Put a job into another state, without cleanup.", _force, Force, Forced),
    _override(
        "reschedule",
        "rescheduleJob",
        "Give a pending job another start, priority or queue.",
        _reschedule,
        Reschedule,
        Steered,
    ),
)
