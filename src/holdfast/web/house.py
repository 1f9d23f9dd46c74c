"""Routes of the house: is it alive, what is in it, queues, workers, changes, and bulk actions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast import __version__
from holdfast.bulk import Action, Bulk, BulkPreview
from holdfast.client import checked_metadata, given
from holdfast.core.records import QueueEvent
from holdfast.core.states import JobState
from holdfast.errors import HoldfastError, QueueNotFoundError
from holdfast.store.commands import Submitted
from holdfast.store.job_lists import JobFilter
from holdfast.store.submit import QUEUE_LIMIT
from holdfast.views import Change, Overview, QueueView, WorkerView
from holdfast.web.conditions import link_headers
from holdfast.web.flows import SubmittedJob, submitted_reply
from holdfast.web.idempotency import once
from holdfast.web.jobs import Reason, Text, Time
from holdfast.web.principal import Scope
from holdfast.web.problems import RETRY_AFTER, Refused
from holdfast.web.routes import Call, Reply, Route, Services

log = logging.getLogger("holdfast.web")

# --- is it there? -------------------------------------------------------------------------------------------


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Is the server there?"""

    status: str
    version: str = __version__


def _livez(_call: Call) -> Reply:
    return Reply(body=ServerHealth(status="alive"))


def _readyz(call: Call) -> Reply:
    try:
        call.engine.store.last_change()
    except HoldfastError as error:
        # Everybody may ask, and is not told where the database is.
        log.warning("the store cannot be used: %s", error)
        raise Refused(
            503, "not-ready", "the store cannot be used", headers={"Retry-After": str(RETRY_AFTER)}
        ) from error
    return Reply(body=ServerHealth(status="ready"))


class Metrics:
    """What is waiting and running, in Prometheus form; a worker's own figures are at its own address."""

    def __init__(self, services: Services) -> None:
        if find_spec("prometheus_client") is None:
            raise Refused(501, "no-metrics", "prometheus-client is not installed", hint="pip install holdfast[metrics]")
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - of an extra

        from holdfast.worker.metrics import EngineCollector  # noqa: PLC0415 - as above
        from holdfast.worker.telemetry import Telemetry  # noqa: PLC0415 - as above

        self._collector = EngineCollector(Telemetry(), services.engine.store)
        registry = CollectorRegistry()
        registry.register(self._collector)
        self._latest: Callable[[], bytes] = lambda: generate_latest(registry)

    def text(self) -> bytes:
        """All of them, as they are now."""
        return self._latest()

    def close(self) -> None:
        """Let go of the collector's thread."""
        self._collector.close()


def _metrics(call: Call) -> Reply:
    return Reply(body=call.service(Metrics).text())


def _stats(call: Call) -> Reply:
    return Reply(body=call.views.overview())


# --- what changes -------------------------------------------------------------------------------------------


PLACE = r"^[0-9]{1,18}\.[0-9A-Za-z]{1,26}\.[0-9]{1,18}\.[0-9a-f]{0,64}$"
"""What a place in the order of changes looks like; see holdfast.store.change_feed."""


class ChangesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which changes."""

    after: Annotated[str, Meta(pattern=PLACE)] | None = None
    """The `number` of a change; without it, from the beginning."""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ChangePage(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of all jobs, in an order that only grows: who goes on behind the last one misses none."""

    changes: list[Change]
    last: str
    """Go on behind it, also if there is nothing yet."""


def _changes(call: Call) -> Reply:
    query: ChangesQuery = call.query
    # The end first: what is committed while the page is read comes behind it, and is asked for again.
    end = call.views.last_change()
    found = call.views.changes(query.after, query.limit)
    last = found[-1].number if found else (query.after or end)
    more = last if len(found) == query.limit else None
    return Reply(body=ChangePage(changes=found, last=last), headers=link_headers(call, next=more))


# --- queues and workers -------------------------------------------------------------------------------------


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """Every queue."""

    queues: list[QueueView]


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Every worker that has announced itself."""

    workers: list[WorkerView]


class QueueHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Who has changed a queue, newest first."""

    queue: str
    events: list[QueueEvent]


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many events."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class QueueWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a queue, and why."""

    reason: Reason
    metadata: dict[str, Any] = {}


class QueueChange(QueueWish, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many of its jobs may run at once, over all processes."""

    limit: Annotated[int, Meta(ge=0, le=QUEUE_LIMIT)] | None
    """Null lifts the limit."""


def _queues(call: Call) -> Reply:
    return Reply(body=Queues(queues=call.views.queues()))


def _queue(call: Call) -> Reply:
    name = call.path["queue"]
    found = next((one for one in call.views.queues() if one.queue.name == name), None)
    if found is None:
        raise QueueNotFoundError(name)
    return Reply(body=found)


def _history(call: Call) -> Reply:
    name = call.path["queue"]
    _queue(call)
    return Reply(body=QueueHistory(queue=name, events=call.engine.store.queue_history(name, limit=call.query.limit)))


def _limit(call: Call) -> Reply:
    wish: QueueChange = call.body
    _changed(call, call.engine.store.set_queue, wish, max_running=wish.limit)
    return _queue(call)


def _pause(call: Call) -> Reply:
    _changed(call, call.engine.store.pause_queue, call.body)
    return _queue(call)


def _resume(call: Call) -> Reply:
    _changed(call, call.engine.store.resume_queue, call.body)
    return _queue(call)


def _changed(call: Call, change: Callable[..., None], wish: QueueWish, **more: Any) -> None:
    reason, metadata = given(wish.reason), checked_metadata(wish.metadata)
    _queue(call)  # only one that is there
    change(call.path["queue"], actor=call.actor, reason=reason, metadata=metadata, **more)


def _workers(call: Call) -> Reply:
    return Reply(body=Workers(workers=call.views.workers()))


# --- bulk actions -------------------------------------------------------------------------------------------


class Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs: all that is given has to be true of them. Nothing given is all jobs."""

    states: tuple[JobState, ...] = ()
    flow: Text | None = None
    queue: Text | None = None
    key_prefix: Text | None = None
    error_text: Text | None = None
    older_than: Time | None = None
    newer_than: Time | None = None
    step: Text | None = None

    @property
    def jobs(self) -> JobFilter:
        """The same for the store."""
        return JobFilter(**msgspec.structs.asdict(self))


class BulkQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action, and what it would be done to."""

    action: Action
    filter: Filter


class BulkWish(BulkQuestion, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action on all that matches now, in the background."""

    reason: Reason
    per_second: Annotated[float, Meta(ge=0.01, le=1000)] = 50.0
    """No faster than that."""


def _preview(call: Call) -> Reply:
    question: BulkQuestion = call.body
    return Reply(body=call.bulk.preview(question.filter.jobs, question.action))


def _bulk(call: Call) -> Reply:
    wish: BulkWish = call.body
    bulk = Bulk(call.client())

    def make(job_id: str) -> Reply:
        made = bulk.submit(
            wish.filter.jobs,
            wish.action,
            reason=wish.reason,
            actor=call.actor,
            per_second=wish.per_second,
            job_id=job_id,
        )
        return submitted_reply(call, Submitted(made, created=True))

    return once(call, make, lambda job_id: submitted_reply(call, Submitted(job_id, created=True)))


def _get(path: str, name: str, summary: str, handler: Callable[[Call], Any], answer: Any, **more: Any) -> Route:
    tag = more.pop("tag", "house")
    return Route(method="GET", path=path, name=name, summary=summary, tag=tag, handler=handler, answer=answer, **more)


def _act(method: str, path: str, name: str, summary: str, handler: Callable[[Call], Any], **more: Any) -> Route:
    given: Mapping[str, Any] = {"scope": Scope.OPERATE, "tag": "house", "body_limit": 64 << 10, **more}
    return Route(method=method, path=path, name=name, summary=summary, handler=handler, **given)


ROUTES: Sequence[Route] = (
    _get("/livez", "livez", "Is the process alive?", _livez, ServerHealth, scope=None, tag="health"),
    _get("/readyz", "readyz", "Can the store be read?", _readyz, ServerHealth, scope=None, tag="health"),
    _get(
        "/metrics",
        "metrics",
        "Figures in Prometheus form.",
        _metrics,
        str,
        media_type="text/plain; version=0.0.4; charset=utf-8",
        problems=(501,),
        tag="health",
    ),
    _get("/v1/stats", "stats", "The house at a glance, of bounded cost.", _stats, Overview),
    _get(
        "/v1/changes",
        "listChanges",
        "Every committed change of all jobs, in order.",
        _changes,
        ChangePage,
        query=ChangesQuery,
        gives=("Link",),
        problems=(410,),
    ),
    _get("/v1/queues", "listQueues", "Every queue, and what waits in it.", _queues, Queues),
    _get("/v1/queues/{queue}", "getQueue", "One queue; - is the one without a name.", _queue, QueueView),
    _get(
        "/v1/queues/{queue}/history",
        "getQueueHistory",
        "Who has changed a queue, newest first.",
        _history,
        QueueHistory,
        query=HistoryQuery,
    ),
    _act("PATCH", "/v1/queues/{queue}", "limitQueue", "Set a limit.", _limit, body=QueueChange, answer=QueueView),
    _act(
        "POST",
        "/v1/queues/{queue}/pause",
        "pauseQueue",
        "Start nothing more.",
        _pause,
        body=QueueWish,
        answer=QueueView,
    ),
    _act("POST", "/v1/queues/{queue}/resume", "resumeQueue", "Start again.", _resume, body=QueueWish, answer=QueueView),
    _get("/v1/workers", "listWorkers", "Every worker, and what it holds.", _workers, Workers),
    _act(
        "POST",
        "/v1/bulk/preview",
        "previewBulk",
        "What an action on all that matches would do.",
        _preview,
        scope=Scope.READ,
        body=BulkQuestion,
        answer=BulkPreview,
        tag="bulk",
    ),
    _act(
        "POST",
        "/v1/bulk",
        "submitBulk",
        "Act on all that matches, as a job with progress.",
        _bulk,
        body=BulkWish,
        answer=SubmittedJob,
        status=201,
        takes=("Idempotency-Key",),
        gives=("Location", "Idempotency-Replayed"),
        problems=(409,),
        tag="bulk",
    ),
)
