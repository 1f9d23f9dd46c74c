"""Routes of maintenance: findings, repairs, stalled jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast import guard
from holdfast.client import given
from holdfast.core.progress import StallVerdict
from holdfast.core.values import label_of
from holdfast.web.background_check import BackgroundCheck, CheckReport, Plan
from holdfast.web.conditions import etag, expected_heads
from holdfast.web.flows import JobId
from holdfast.web.jobs import Reason
from holdfast.web.principal import Scope
from holdfast.web.problems import Refused
from holdfast.web.routes import Call, Reply, Route


class CheckWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check of every invariant and every job."""

    deep: bool = False
    """Read every page of the database as well."""


class RepairedLine(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of an action."""

    line: str
    is_done: bool


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of the plan, action by action."""

    done: list[RepairedLine]


class StalledJob(msgspec.Struct, frozen=True, kw_only=True):
    """A running job without progress: slow ones have used up half of their patience, stalled ones all of it."""

    job_id: str
    exec_id: str
    verdict: StallVerdict
    owner: str
    progressed_at: int | None


class StalledJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Running jobs that are slow or stalled."""

    stalled: list[StalledJob]


class RecoverWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of what is stalled, and why."""

    reason: Reason
    jobs: Annotated[list[JobId], Meta(max_length=1000)] = []
    """Only these; without any, all that are stalled."""


class RecoveredJobs(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that were stopped, and will be tried again."""

    recovered: list[str]


def _findings(call: Call) -> Reply:
    return Reply(body=call.service(BackgroundCheck).findings())


def _check(call: Call) -> Reply:
    body = call.service(BackgroundCheck).start(deep=call.body.deep)
    return Reply(body=body, headers={"Location": call.link("/v1/findings"), "Retry-After": "1"})


def _plan(call: Call) -> Reply:
    plan = call.service(BackgroundCheck).plan()
    return Reply(body=plan, headers=etag(plan.tag))


def _repair(call: Call) -> Reply:
    check = call.service(BackgroundCheck)
    plan, wanted = check.plan(), expected_heads(call.headers)
    if wanted and plan.tag not in wanted:
        raise Refused(412, "plan-changed", "this is not the plan any more", hint="look again: GET /v1/repair")
    done = check.apply(plan, actor=call.actor)
    return Reply(body=Repairs(done=[RepairedLine(line=one.line, is_done=one.is_done) for one in done]))


def _stalls(call: Call) -> Reply:
    store = call.engine.store
    found = [
        StalledJob(
            job_id=one.job_id,
            exec_id=one.exec_id,
            verdict=verdict,
            owner=label_of(one.lease_owner),
            progressed_at=store.last_progress(one.exec_id),
        )
        for one, verdict in guard.stalled(store)
    ]
    return Reply(body=StalledJobs(stalled=found))


def _recover(call: Call) -> Reply:
    wish: RecoverWish = call.body
    store = call.engine.store
    for job_id in wish.jobs:
        store.job(job_id)  # one that does not exist is an error, and not just not stalled
    recovered = guard.stop_stalled(store, actor=call.actor, reason=given(wish.reason), only=wish.jobs or None)
    return Reply(body=RecoveredJobs(recovered=recovered))


def _route(method: str, path: str, name: str, summary: str, handler: Any, answer: Any, **more: Any) -> Route:
    return Route(
        method=method, path=path, name=name, summary=summary, tag="maintenance", handler=handler, answer=answer, **more
    )


ROUTES: Sequence[Route] = (
    _route("GET", "/v1/findings", "getFindings", "What the last check has found.", _findings, CheckReport),
    _route(
        "POST",
        "/v1/findings",
        "startCheck",
        "Check every invariant and every job, in the background.",
        _check,
        CheckReport,
        scope=Scope.OPERATE,
        body=CheckWish,
        status=202,
        gives=("Location", "Retry-After"),
        problems=(409,),
    ),
    _route("GET", "/v1/repair", "planRepair", "What should be done about it.", _plan, Plan, gives=("ETag",)),
    _route(
        "POST",
        "/v1/repair",
        "applyRepair",
        "Carry out the plan that was looked at.",
        _repair,
        Repairs,
        scope=Scope.ADMIN,
        takes=("If-Match",),
        problems=(412, 428),
    ),
    _route("GET", "/v1/stalls", "listStalls", "Running jobs without progress.", _stalls, StalledJobs),
    _route(
        "POST",
        "/v1/stalls/recover",
        "recoverStalls",
        "Stop stalled jobs, and let them try again.",
        _recover,
        RecoveredJobs,
        scope=Scope.OPERATE,
        body=RecoverWish,
        problems=(404, 410),
    ),
)
