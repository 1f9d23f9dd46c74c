"""How a job ended, put together from its records."""

from __future__ import annotations

from holdfast.core.records import JobResult, error_of
from holdfast.core.states import COMMITTED_STATUSES, JobState
from holdfast.store.protocol import Store


def result_of(store: Store, job_id: str) -> JobResult:
    """The result of a job so far: state, outcome, the reason it ended for, its response if it succeeded."""
    job = store.job(job_id)
    executions = store.executions(job_id)
    committed = next((e for e in executions if e.status in COMMITTED_STATUSES), None)
    latest = executions[-1] if executions else None
    response = None
    if job.state is JobState.SUCCEEDED:
        steps = store.steps(job_id)
        response = steps[-1].response if steps else None  # somebody has removed them: see `check`
    began = executions[0].started_at if executions else 0
    ended = (latest.finished_at or 0) if latest else 0
    return JobResult(
        job_id=job_id,
        state=job.state,
        outcome=committed.code if committed else (latest.code if latest else None),
        reason=None if committed or latest is None else latest.error,
        error=None if committed or latest is None else error_of(latest),
        response=response,
        seconds=max(0, ended - began) / 1000,
    )
