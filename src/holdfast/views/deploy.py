"""What the flows that are known here would do to jobs that were submitted under older definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.flow import Definition, Flow, incompatibility
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState
from holdfast.store.protocol import Store


class DoomedJob(msgspec.Struct, frozen=True):
    """A job that could not go on under the definitions of the app."""

    job_id: str
    flow: str
    state: JobState
    reason: str


class DeployPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker with these definitions would refuse to go on with."""

    flow: str
    looked_at: int
    """Unfinished jobs, newest first."""
    more: bool
    """Are there older ones that were not looked at?"""
    would_quarantine: list[DoomedJob]


def doomed(store: Store, registered: Mapping[str, Flow[Any, Any]], jobs: Sequence[JobRecord]) -> Iterator[DoomedJob]:
    """Those of the jobs that a worker with these flows would quarantine, and why."""
    pinned = {key: msgspec.json.decode(text, type=Definition) for key, text in store.definitions().items()}
    for job in jobs:
        flow = registered.get(job.flow)
        why = None if flow is None else _obstacle(store, flow, job, pinned[job.fingerprint])
        if why is not None:
            yield DoomedJob(job.job_id, job.flow, job.state, why)


def _obstacle(store: Store, flow: Flow[Any, Any], job: JobRecord, old: Definition) -> str | None:
    """Why the worker would refuse the job; it looks at the same things in the same order."""
    steps = store.steps(job.job_id)
    try:
        flow.request_codec.decode(store.request(job.job_id))
        if steps:
            flow.response_codec.decode(steps[-1].response)
    except msgspec.MsgspecError as error:
        return f"its request or response does not decode: {error}"
    # A job on its way down needs its cleanup only.
    if job.ending is not None or job.fingerprint == flow.fingerprint:
        return None
    return incompatibility([step.step for step in steps], old, flow.definition)
