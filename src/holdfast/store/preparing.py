"""From a flow and a request to a job that can be submitted: everything is checked here, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.flow import Flow
from holdfast.core.names import checked_job_id, checked_key, checked_name
from holdfast.errors import BadInput, CycleError, RequestInvalidError, RequestTooLargeError
from holdfast.store.messages import NewJob

REQUEST_LIMIT = 1 << 20
PRIORITY_LIMIT = 1_000_000
LATEST = 1 << 53
"""Times beyond this are not exact in JSON."""


def prepare_job(
    flow: Flow[Any, Any],
    request: Any,
    *,
    job_id: str,
    key: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    not_before: int = 0,
    run_after: str | None = None,
    parent: str | None = None,
    child_name: str | None = None,
    child_round: int = 0,
    request_limit: int = REQUEST_LIMIT,
) -> NewJob:
    """A valid NewJob, or BadInput with what is wrong."""
    flow.check_complete()
    if not isinstance(priority, int) or abs(priority) > PRIORITY_LIMIT:
        raise BadInput(f"priority {priority!r} is not a whole number within ±{PRIORITY_LIMIT}")
    if not isinstance(not_before, int) or not 0 <= not_before < LATEST:
        raise BadInput(f"not_before {not_before!r} is not a time in milliseconds since 1970")
    if parent is not None:
        checked_job_id(parent)
    if run_after is not None and checked_job_id(run_after) == job_id:
        raise CycleError(f"job {job_id} would run after itself")
    definition = flow.definition
    timeouts = [step.timeout for step in flow.steps if step.timeout is not None]
    # A step that may take longer than the stall limit is given its whole timeout before it is called stalled.
    stall_after = max([flow.stall_after, *(timeout + 60.0 for timeout in timeouts)])
    return NewJob(
        job_id=checked_job_id(job_id),
        flow=flow.name,
        fingerprint=flow.fingerprint,
        definition=msgspec.json.encode(definition).decode(),
        request=encode_request(flow, request, request_limit),
        queue=flow.queue if queue is None else checked_name(queue, "queue"),
        key=checked_key(key),
        priority=priority,
        not_before=not_before,
        run_after=run_after,
        parent=parent,
        child_name=child_name,
        child_round=child_round,
        failure_limit=flow.job_retry.retries + 1,
        crash_limit=flow.crash_limit,
        stall_ms=round(stall_after * 1000),
    )


def encode_request(flow: Flow[Any, Any], request: Any, limit: int) -> str:
    """The request as JSON that is sure to decode again."""
    try:
        encoded = msgspec.json.encode(request)
        msgspec.json.decode(encoded, type=flow.request_type)
    except (msgspec.ValidationError, msgspec.DecodeError, TypeError, ValueError, OverflowError) as error:
        raise RequestInvalidError(
            f"flow {flow.name}: the request is not a valid {_name_of(flow.request_type)}: {error}"
        ) from None
    if len(encoded) > limit:
        raise RequestTooLargeError(
            f"flow {flow.name}: the request has {len(encoded):,} bytes, the limit is {limit:,}",
            hint="put large data in a file or a bucket and send its address",
        )
    return encoded.decode()


def refuse_cycles(jobs: Sequence[NewJob]) -> None:
    """Raise CycleError if jobs of one batch would wait for each other for ever."""
    after = {job.job_id: job.run_after for job in jobs if job.run_after is not None}
    harmless: set[str] = set()
    for start in after:
        chain: dict[str, None] = {}
        following: str | None = start
        while following is not None and following not in harmless:
            if following in chain:
                raise CycleError(f"jobs {', '.join(chain)} would run after each other", hint="break the cycle")
            chain[following] = None
            following = after.get(following)
        harmless.update(chain)


def _name_of(request_type: Any) -> str:
    return getattr(request_type, "__name__", None) or str(request_type)
