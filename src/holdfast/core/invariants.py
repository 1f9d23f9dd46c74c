"""What must be true, as pure functions over a job's facts. Each check reports; none stops at the first fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from holdfast.core.agreement import check_agreement
from holdfast.core.chain import chain_faults
from holdfast.core.facts import Finding, JobFacts, Severity, error, warning
from holdfast.core.projection import ExecutionView, project
from holdfast.core.states import COMMITTED_STATUSES, LIVE_STATUSES, ExecutionStatus, JobState

__all__ = ["CHECKS", "Finding", "JobFacts", "Severity", "check_job"]


def check_projection(facts: JobFacts, now: int) -> Iterator[Finding]:
    """A job is in exactly one state: the one its executions say."""
    try:
        projected = project(ExecutionView(e.attempt, e.status, e.disposition) for e in facts.executions)
    except ValueError as fault:
        yield _error("execution-without-disposition", facts, str(fault))
        return
    if projected != facts.job.state:
        yield _error("projection-mismatch", facts, f"stored as {facts.job.state}, but its executions say {projected}")


def check_single_commit(facts: JobFacts, now: int) -> Iterator[Finding]:
    """INV_001: at most one execution of a job is committed or done."""
    committed = [e for e in facts.executions if e.status in COMMITTED_STATUSES]
    if len(committed) > 1:
        yield _error("commit-twice", facts, f"{len(committed)} executions are committed or done")


def check_single_lease(facts: JobFacts, now: int) -> Iterator[Finding]:
    """At most one execution of a job is live, and none once the job has committed."""
    live = [e for e in facts.executions if e.status in LIVE_STATUSES]
    if len(live) > 1:
        yield _error("lease-twice", facts, f"{len(live)} executions hold a lease")
    if live and any(e.status in COMMITTED_STATUSES for e in facts.executions):
        yield _error("lease-after-commit", facts, "an execution holds a lease although the job has committed")


def check_running_has_lease(facts: JobFacts, now: int) -> Iterator[Finding]:
    """A running job has a live lease; one that has run out is recovery's to take."""
    if facts.job.state is not JobState.RUNNING:
        return
    under_way = [e for e in facts.executions if e.status in LIVE_STATUSES or e.status is ExecutionStatus.COMMITTED]
    if not under_way:
        yield _error("running-without-lease", facts, "running, but no execution is under way")
    elif all(e.lease_expires_at <= now for e in under_way):
        ago = (now - max(e.lease_expires_at for e in under_way)) // 1000
        yield _warning("lease-expired", facts, f"its lease ran out {ago} s ago and nobody has taken it over yet")


def check_attempts(facts: JobFacts, now: int) -> Iterator[Finding]:
    """Attempts only grow: numbered from 1 without gaps or repeats, and the job knows the last."""
    attempts = [e.attempt for e in facts.executions]
    if attempts != list(range(1, len(attempts) + 1)):
        yield _error("attempts-not-monotonic", facts, f"attempts are {attempts}")
    if facts.job.attempt != len(attempts):
        yield _error("attempt-count", facts, f"job says {facts.job.attempt} attempts, there are {len(attempts)}")
    if facts.job.attempt < 0 or facts.job.failures < 0 or facts.job.crashes < 0:
        yield _error("negative-count", facts, "attempts, failures or crashes are negative")


def check_succeeded_is_final(facts: JobFacts, now: int) -> Iterator[Finding]:
    """Nothing happens to a job after it has succeeded."""
    for execution in facts.executions:
        if execution.status is ExecutionStatus.DONE and execution.finished_at is not None:
            later = [e.attempt for e in facts.executions if e.attempt > execution.attempt]
            if later:
                yield _error("changed-after-success", facts, f"attempts {later} came after the one that succeeded")
            if facts.job.updated_at > execution.finished_at:
                yield _error("changed-after-success", facts, "the job was changed after it had succeeded")


def check_journal(facts: JobFacts, now: int) -> Iterator[Finding]:
    """INV_003: the journal is whole, unedited, and ends where the job is."""
    if facts.journal is None:
        return
    for fault in chain_faults(facts.journal):
        yield _error("journal-broken", facts, fault)
    if not facts.journal:
        yield _error("journal-missing", facts, "no journal entry at all")
        return
    if facts.journal[-1].job_to != facts.job.state:
        yield _error(
            "journal-disagrees", facts, f"stored as {facts.job.state}, journal ends at {facts.journal[-1].job_to}"
        )
    journaled: dict[str, str] = {}
    for entry in facts.journal:
        if entry.exec_id and entry.exec_to:
            journaled[entry.exec_id] = entry.exec_to
    for execution in facts.executions:
        said = journaled.get(execution.exec_id)
        if said != execution.status:
            yield _error(
                "journal-disagrees", facts, f"execution {execution.exec_id} is {execution.status}, journal says {said}"
            )


Check = Callable[[JobFacts, int], Iterator[Finding]]

CHECKS: Sequence[Check] = (
    check_projection,
    check_single_commit,
    check_single_lease,
    check_running_has_lease,
    check_attempts,
    check_succeeded_is_final,
    check_journal,
    check_agreement,
)


def check_job(facts: JobFacts, now: int) -> list[Finding]:
    """Every finding of every check about one job."""
    return [finding for check in CHECKS for finding in check(facts, now)]


def _error(code: str, facts: JobFacts, message: str) -> Finding:
    return error(code, f"job {facts.job.job_id}", message)


def _warning(code: str, facts: JobFacts, message: str) -> Finding:
    return warning(code, f"job {facts.job.job_id}", message)
