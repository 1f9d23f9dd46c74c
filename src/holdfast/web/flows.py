"""Routes of flows: what is known, how it looks and does, what a deploy would do, and submitting jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.diagram import DiagramFormat, flow_graph
from holdfast.core.flow import Flow
from holdfast.core.states import UNFINISHED_STATES
from holdfast.core.values import WRITING_ERRORS
from holdfast.errors import HoldfastError, UnknownFlowError
from holdfast.store.commands import Submitted
from holdfast.store.job_lists import JobFilter
from holdfast.store.submit import PRIORITY_LIMIT, invalid_request
from holdfast.views import FlowView
from holdfast.views.deploy import DeployPlan, doomed
from holdfast.web.conditions import LONGEST_WAIT, wait_preferred
from holdfast.web.idempotency import once
from holdfast.web.jobs import ResultData, Time, awaited
from holdfast.web.parameters import json_as
from holdfast.web.principal import Scope
from holdfast.web.problems import Refused
from holdfast.web.routes import Call, Reply, Route

RESERVED = "holdfast."
"""Flows of this name are Holdfast's own, and submitted by routes of their own."""
PLANNED = 1000
"""Unfinished jobs that a plan looks at."""

JobId = Annotated[str, Meta(pattern="^[0-7][0-9A-HJKMNP-TV-Z]{25}$")]
Key = Annotated[str, Meta(min_length=1, max_length=512)]
Queue = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]


class FlowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that is known here."""

    name: str
    version: str
    fingerprint: str
    queue: str
    steps: tuple[str, ...]


class FlowList(msgspec.Struct, frozen=True, kw_only=True):
    """The flows that are known here."""

    flows: list[FlowSummary]


class GraphQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to draw."""

    format: DiagramFormat = DiagramFormat.MERMAID


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A drawing of a flow, as text in that format."""

    flow: str
    format: DiagramFormat
    diagram: str


class JobOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job is submitted with, beside its request."""

    key: Key | None = None
    """What the job is known by; a key that is in use gives the job that has it."""
    queue: Queue | None = None
    """Another queue than the flow's own."""
    priority: Annotated[int, Meta(ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT)] = 0
    """Higher goes first."""
    delay: Annotated[float, Meta(ge=0, le=315_360_000)] = 0.0
    """Start no earlier than in so many seconds."""
    not_before: Time = 0
    run_after: JobId | None = None
    """Start only when this job has succeeded."""
    parent: JobId | None = None
    """A job to be noted as its parent, and cancelled with."""


class Submit(JobOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new job; its request is of the flow's request type."""

    request: msgspec.Raw


class SubmittedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job that now stands for what was submitted."""

    job_id: str
    created: bool
    """False if it was there already, under its key."""
    same_request: bool = True
    """False if the job that has the key was submitted with another request."""
    result: ResultData | msgspec.UnsetType = msgspec.UNSET
    """If it was waited for, and has ended in time."""


def _flow(call: Call) -> Flow[Any, Any]:
    name = call.path["flow"]
    found = call.engine.flows.get(name)
    if found is None:
        known = ", ".join(sorted(call.engine.flows)) or "none"
        raise UnknownFlowError(f"flow {name!r} is not registered", hint=f"registered here: {known}")
    return found


def _list(call: Call) -> Reply:
    return Reply(body=FlowList(flows=[_summary(flow) for _, flow in sorted(call.engine.flows.items())]))


def _summary(flow: Flow[Any, Any]) -> FlowSummary:
    return FlowSummary(
        name=flow.name,
        version=flow.version,
        fingerprint=flow.fingerprint,
        queue=flow.queue,
        steps=flow.definition.steps,
    )


def _one(call: Call) -> Reply:
    return Reply(body=call.views.flow(call.path["flow"]))


def _graph(call: Call) -> Reply:
    kind = call.query.format
    flow = _flow(call)
    return Reply(body=Graph(flow=flow.name, format=kind, diagram=flow_graph(flow, kind)))


def _plan(call: Call) -> Reply:
    flow, store = _flow(call), call.engine.store
    wanted = JobFilter(flow=flow.name, states=tuple(UNFINISHED_STATES))
    found = store.list_jobs(wanted, limit=PLANNED + 1)
    jobs = found.jobs[:PLANNED]
    would = list(doomed(store, call.engine.flows, jobs))
    body = DeployPlan(flow=flow.name, looked_at=len(jobs), more=found.more is not None, would_quarantine=would)
    return Reply(body=body)


def _submit(call: Call) -> Reply | Awaitable[Reply]:
    reply = _submitted(call)
    return _with_result(call, reply) if wait_preferred(call.headers) else reply


async def _with_result(call: Call, reply: Reply) -> Reply:
    """The answer with how the job has ended, if it does in time.

    What is on record for an Idempotency-Key is the answer without it: whoever sends the request again waits again, and
    who dies while waiting has lost nothing. Nor has the job by anything that goes wrong here: it is submitted.
    """
    first = reply.body if isinstance(reply.body, SubmittedJob) else msgspec.json.decode(reply.body, type=SubmittedJob)
    try:
        result, headers = await awaited(call, first.job_id)
    except HoldfastError:
        return reply
    body = first if result.state in UNFINISHED_STATES else msgspec.structs.replace(first, result=result)
    return msgspec.structs.replace(reply, body=body, headers={**reply.headers, **headers})


def _submitted(call: Call) -> Reply:
    flow, wish = _flow(call), call.body
    if flow.name.startswith(RESERVED):
        raise Refused(403, "reserved-flow", f"jobs of {flow.name} are not submitted like this", hint="POST /v1/bulk")
    if flow.name in call.services.reserved:
        hint = "they have routes of their own: see /openapi.json"
        raise Refused(403, "reserved-flow", f"jobs of {flow.name} are not submitted like this", hint=hint)
    try:
        request = json_as(bytes(wish.request), flow.request_codec.decode, WRITING_ERRORS)
    except WRITING_ERRORS as error:
        raise invalid_request(flow, error) from None
    client = call.client()

    def make(job_id: str) -> Reply:
        job = client.prepare(
            flow,
            request,
            job_id=job_id,
            key=wish.key,
            queue=wish.queue,
            priority=wish.priority,
            delay=wish.delay,
            not_before=wish.not_before,
            run_after=wish.run_after,
            parent=wish.parent,
        )
        [submitted] = client.store.submit([job], actor=client.actor)
        return submitted_reply(call, submitted)

    return once(call, make, lambda job_id: submitted_reply(call, Submitted(job_id, created=True)))


def submitted_reply(call: Call, submitted: Submitted) -> Reply:
    """The answer about a job that was submitted, or found: where it is."""
    body = SubmittedJob(job_id=submitted.job_id, created=submitted.created, same_request=submitted.same_request)
    headers = {"Location": call.link(f"/v1/jobs/{submitted.job_id}")}
    return Reply(status=201 if submitted.created else 200, body=body, headers=headers)


ROUTES: Sequence[Route] = (
    Route(
        method="GET",
        path="/v1/flows",
        name="listFlows",
        summary="The flows that are known here.",
        tag="flows",
        handler=_list,
        answer=FlowList,
    ),
    Route(
        method="GET",
        path="/v1/flows/{flow}",
        name="getFlow",
        summary="One flow as a machine, with the figures of the last hour.",
        tag="flows",
        handler=_one,
        answer=FlowView,
    ),
    Route(
        method="GET",
        path="/v1/flows/{flow}/graph",
        name="drawFlow",
        summary="A drawing of a flow.",
        tag="flows",
        handler=_graph,
        query=GraphQuery,
        answer=Graph,
    ),
    Route(
        method="GET",
        path="/v1/flows/{flow}/plan",
        name="planDeploy",
        summary="Unfinished jobs that the definition known here would quarantine.",
        tag="flows",
        handler=_plan,
        answer=DeployPlan,
    ),
    Route(
        method="POST",
        path="/v1/flows/{flow}/jobs",
        name="submitJob",
        summary="Add a job.",
        tag="flows",
        handler=_submit,
        scope=Scope.SUBMIT,
        body=Submit,
        answer=SubmittedJob,
        status=201,
        also={200: "A job was there already, under its key."},
        takes=("Idempotency-Key", "Prefer"),
        gives=("Location", "Idempotency-Replayed", "Preference-Applied"),
        problems=(409, 410),
        description="Once this is answered, the job will run. With Prefer: wait=30 the answer has the job's result, if"
        f" it ends in time, for {LONGEST_WAIT:.0f} seconds at most; the status says in any case whether the job is new."
        " The same Idempotency-Key again gets the first answer, with the result as it is then.",
    ),
)
