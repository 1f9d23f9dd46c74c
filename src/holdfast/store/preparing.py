"""From a flow and a request to a job that can be submitted: everything is checked here, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.codec import WRITING_ERRORS
from holdfast.core.duration import milliseconds_since_epoch
from holdfast.core.ending import CLEANUP_POSITION
from holdfast.core.flow import Flow
from holdfast.core.names import checked_job_id, checked_key, checked_name
from holdfast.core.text import storable
from holdfast.errors import BadInput, CycleError, DefinitionError, RequestInvalidError, RequestTooLargeError
from holdfast.store.messages import NewJob

REQUEST_LIMIT = 1 << 20
QUEUE_LIMIT = 1_000_000
"""More jobs than this no fleet runs at once; no limit at all is said by none."""
COUNT_LIMIT = 1_000_000
LONGEST_STALL = 10 * 365 * 86400.0
STALL_GRACE = 60.0
"""What a step gets beyond its timeout: that is to end it, and not the stall detector."""
PRIORITY_LIMIT = 1_000_000


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
    if child_name is not None and (not isinstance(child_name, str) or child_name != storable(child_name)):
        raise BadInput(f"child name {child_name!r} is not a text that can be stored")
    if parent is not None:
        checked_job_id(parent)
    if run_after is not None and checked_job_id(run_after) == job_id:
        raise CycleError(f"job {job_id} would run after itself")
    key = checked_key(key)
    definition = flow.definition
    return NewJob(
        job_id=checked_job_id(job_id),
        flow=flow.name,
        fingerprint=flow.fingerprint,
        definition=msgspec.json.encode(definition).decode(),
        request=encode_request(flow, request, request_limit),
        queue=flow.queue if queue is None else checked_name(queue, "queue"),
        key=key,
        key_lasts_ms=0 if key is None else flow.key_lasts_ms,
        priority=checked_priority(priority),
        not_before=milliseconds_since_epoch(not_before),
        run_after=run_after,
        parent=parent,
        child_name=child_name,
        child_round=child_round,
        failure_limit=_checked_count(flow.job_retry.retries, 0, f"flow {flow.name}: job_retry") + 1,
        crash_limit=_checked_count(flow.crash_limit, 1, f"flow {flow.name}: crash_limit"),
        stall_ms=_stall_ms(flow),
        stall_limits=_stall_limits(flow),
    )


def checked_priority(priority: int) -> int:
    """The priority, or BadInput."""
    if not _is_whole(priority) or abs(priority) > PRIORITY_LIMIT:
        raise BadInput(f"priority {priority!r} is not a whole number within ±{PRIORITY_LIMIT}")
    return priority


def checked_queue(name: str) -> str:
    """`name`, if it may name a queue; the queue without a name is the empty one."""
    return name if name == "" else checked_name(name, "queue")


def checked_limit(queue: str, limit: int | None) -> int | None:
    """`limit`, if so many jobs of a queue may run at once; None is no limit."""
    if limit is not None and (not _is_whole(limit) or not 0 <= limit <= QUEUE_LIMIT):
        raise BadInput(
            f"the limit of queue {queue!r} cannot be {limit!r}",
            hint=f"a whole number from 0 to {QUEUE_LIMIT:,}, or none at all",
        )
    return limit


def _is_whole(number: object) -> bool:
    # True and False are integers to Python, and nobody means them.
    return isinstance(number, int) and not isinstance(number, bool)


def _checked_count(count: int, least: int, what: str) -> int:
    if not _is_whole(count) or not least <= count <= COUNT_LIMIT:
        raise DefinitionError(f"{what} of {count!r} is not a whole number from {least} to {COUNT_LIMIT:,}")
    return count


def _stall_ms(flow: Flow[Any, Any]) -> int:
    if not isinstance(flow.stall_after, int | float) or not flow.stall_after > 0:
        raise DefinitionError(f"flow {flow.name}: stall_after must be a number of seconds", hint="above 0")
    return round(min(flow.stall_after, LONGEST_STALL) * 1000)


def _stall_limits(flow: Flow[Any, Any]) -> str | None:
    """A step that may take longer than the stall limit is given its whole timeout before it is called stalled."""
    timeouts = {position: step.timeout for position, step in enumerate(flow.steps)}
    timeouts[CLEANUP_POSITION] = flow.cleanup_timeout
    limits = {
        str(position): round(min(timeout + STALL_GRACE, LONGEST_STALL) * 1000)
        for position, timeout in timeouts.items()
        if timeout is not None and timeout + STALL_GRACE > flow.stall_after
    }
    return msgspec.json.encode(limits).decode() if limits else None


def encode_request(flow: Flow[Any, Any], request: Any, limit: int) -> str:
    """The request as JSON that is sure to decode again."""
    try:
        encoded, _ = flow.request_codec.checked(request)
    except WRITING_ERRORS as error:
        raise invalid_request(flow, error) from None
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


def invalid_request(flow: Flow[Any, Any], error: Exception, *, hint: str | None = None) -> RequestInvalidError:
    """The error for a request that is none of the flow's."""
    kind, problem = flow.request_codec.name, " ".join(str(error).split())
    return RequestInvalidError(f"flow {flow.name}: the request is not a valid {kind}: {problem}", hint=hint)
