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
