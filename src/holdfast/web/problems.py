"""Errors as they are told over HTTP: problem details (RFC 9457) with a stable code, a hint and the facts.

The status comes from the class of the error and its place in the tree of errors, so that a new class has one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.web")

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:holdfast:problem:"
DETAIL_LIMIT = 4000
RETRY_AFTER = 1
"""Seconds that a client is asked to wait when the database or the server is busy."""

STATUSES: Mapping[type[HoldfastError], int] = {
    errors.HoldfastError: 500,
    errors.BadInput: 400,
    errors.UnknownFlowError: 404,
    errors.RequestInvalidError: 422,
    errors.RequestTooLargeError: 413,
    errors.NotFound: 404,
    errors.JobPrunedError: 410,
    errors.ChangesLostError: 410,
    errors.StateError: 409,
    errors.JobMovedOnError: 412,
    errors.LeaseLost: 409,
    errors.StepStopped: 503,
    errors.WaitTimeout: 504,
    errors.StoreUnavailable: 503,
    errors.StoreReadOnly: 503,
    errors.RowRefused: 409,
}
"""The status of a class is that of its nearest ancestor here."""

REFUSALS: Mapping[str, tuple[int, str]] = {
    "unauthenticated": (401, "Nobody is known by this request."),
    "forbidden": (403, "The scope of whoever asks does not cover this."),
    "reserved-flow": (403, "Jobs of this flow are submitted by a route of their own."),
    "no-such-path": (404, "There is nothing at this path."),
    "method-not-allowed": (405, "Not by this method; `Allow` has those that are."),
    "not-acceptable": (406, "The answer is of another media type than `Accept` takes."),
    "unknown-parameter": (400, "The query or form has a parameter that is not known."),
    "invalid-parameter": (400, "A parameter of the query or form has no such value, or is given twice."),
    "unexpected-body": (400, "This takes no body."),
    "malformed-body": (400, "The body is not JSON."),
    "invalid-body": (422, "The body is JSON, and not what is taken here."),
    "body-too-large": (413, "The body is over the limit."),
    "unsupported-media-type": (415, "The body is of another media type than is taken."),
    "invalid-cursor": (400, "The cursor was not given out with a page."),
    "precondition-required": (428, "This needs an `If-Match`."),
    "invalid-if-match": (400, "`If-Match` is no list of entity tags."),
    "plan-changed": (412, "The plan is not the one that was looked at."),
    "invalid-idempotency-key": (400, "The `Idempotency-Key` is empty, too long or not printable."),
    "idempotency-key-reused": (422, "The `Idempotency-Key` was sent with another request."),
    "idempotency-key-in-progress": (409, "A request with this `Idempotency-Key` is under way."),
    "check-running": (409, "A check is under way already."),
    "no-metrics": (501, "prometheus-client is not installed."),
    "cross-site": (403, "A page of another site has sent this."),
    "unknown-host": (421, "The request is for a host that this server is not."),
    "body-too-slow": (408, "The body came too slowly."),
    "login-refused": (401, "What was given at the login stands for nobody."),
    "no-page": (404, "This server has no page."),
    "too-many-streams": (429, "Too many streams of events are open."),
    "not-ready": (503, "The store cannot be used at the moment."),
    "stopping": (503, "The server is stopping."),
    "overloaded": (503, "Too many requests at once."),
    "internal": (500, "A fault of Holdfast's own; the server's log has it."),
}
"""Code → status and meaning of every problem that is none of the engine's errors."""

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong, for programs (`code`, `facts`) and for people (`detail`, `hint`)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | None = None
    facts: dict[str, Any] = {}


class Refused(Exception):
    """A request is refused for what it is as HTTP, before anything is asked of the engine."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str | None = None,
        facts: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = problem(status, code, detail, hint=hint, facts=facts)
        self.headers = dict(headers or {})


def problem(
    status: int, code: str, detail: str, *, hint: str | None = None, facts: Mapping[str, Any] | None = None
) -> Problem:
    """A problem with the title of its status."""
    return Problem(
        type=TYPE_PREFIX + code,
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail[:DETAIL_LIMIT],
        hint=hint,
        facts=dict(facts or {}),
    )


def code_of(kind: type[BaseException]) -> str:
    """The stable code of a class of errors: JobNotFoundError → job-not-found."""
    return _WORDS.sub("-", kind.__name__.removesuffix("Error")).lower()


def status_of(kind: type[HoldfastError], more: Mapping[type[HoldfastError], int] | None = None) -> int:
    """The status of a class of errors: that of its nearest ancestor in the tables."""
    table = {**STATUSES, **(more or {})}
    return next(table[ancestor] for ancestor in kind.__mro__ if ancestor in table)


def told(error: Exception, more: Mapping[type[HoldfastError], int] | None = None) -> tuple[Problem, Mapping[str, str]]:
    """An error as a problem, with the headers that belong to it. A fault of our own is logged, and not shown."""
    match error:
        case Refused():
            return error.problem, error.headers
        case HoldfastError():
            status = status_of(type(error), more)
            if status == HTTPStatus.INTERNAL_SERVER_ERROR:
                log.error("a request failed: %s", error)
            found = problem(status, code_of(type(error)), str(error), hint=error.hint, facts=_facts_of(error))
            return found, {"Retry-After": str(RETRY_AFTER)} if error.passing else {}
        case _:
            log.error("a request failed by a fault of Holdfast's own", exc_info=error)
            return problem(500, "internal", "something went wrong inside; the server's log has it"), {}


def _facts_of(error: HoldfastError) -> dict[str, Any]:
    """The attributes of the error that JSON can hold; what an error of a job carries is shown with the job."""
    found: dict[str, Any] = dict(getattr(error, "facts", None) or {})
    for name, value in vars(error).items():
        if not name.startswith("_") and name not in ("hint", "facts") and isinstance(value, str | int | float | None):
            found.setdefault(name, value)
    return found
