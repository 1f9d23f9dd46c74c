"""Findings in, repairs out: legal transitions only, and what they cannot mend is said to an operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from holdfast.core.ending import path_after_crash
from holdfast.core.invariants import Finding, JobFacts, check_job
from holdfast.core.projection import ExecutionView, project
from holdfast.core.states import (
    LIVE_STATUSES,
    STATE_OF_DISPOSITION,
    ExecutionStatus,
    JobState,
    is_legal_job_transition,
)


class RepairKind(StrEnum):
    """What a repair does."""

    FINISH = "finish"
    GIVE_BACK = "give-back"
    REPROJECT = "reproject"
    UNREPAIRABLE = "unrepairable"


class RepairAction(msgspec.Struct, frozen=True, kw_only=True):
    """One repair of one job, and the findings it answers."""

    kind: RepairKind
    job_id: str | None
    exec_id: str | None = None
    from_state: JobState | None = None
    to_state: JobState | None = None
    why: str
    findings: tuple[Finding, ...]


AMBIGUOUS_CODES = frozenset(
    {
        "commit-twice",
        "duplicate-id",
        "execution-without-disposition",
        "invalid-status",
        "lease-after-commit",
        "lease-twice",
    }
)
"""Findings after which a job's executions no longer say what is true: nothing of the job is repaired."""

_RESTORE = "restore a backup, or export what you need and submit the job again"
_ADVICE: Mapping[str, str] = {
    "commit-twice": f"its effect may have happened twice: compare its effect with both executions, then {_RESTORE}",
    "lease-twice": f"stop all workers, find out which execution did the work, then {_RESTORE}",
    "lease-after-commit": f"stop the worker that holds the lease, its work is not needed; then {_RESTORE}",
    "execution-without-disposition": f"the row was edited by hand: {_RESTORE}",
    "journal-broken": "the history was edited: compare with an exported journal or a backup, and find out who did it",
    "journal-missing": "the history was removed: compare with an exported journal or a backup, and find out who did it",
    "journal-disagrees": "rows were changed behind the journal's back: compare with a backup, and find out who did it",
    "orphan-rows": f"rows were removed by hand: {_RESTORE}",
    "rule-changed": "stop all workers, move the data to a new database, and find out who changed the schema",
    "rule-missing": "stop all workers, move the data to a new database, and find out who dropped it",
    "sqlite-damaged": "stop all workers, look for what damaged the disk or the file, and restore a backup",
    "changed-after-success": f"the result may not be what was committed: compare with a backup, then {_RESTORE}",
}
_GENERAL_ADVICE = f"no legal transition mends this: {_RESTORE}"


def plan_repairs(findings: Sequence[Finding], facts: Iterable[JobFacts], now: int) -> list[RepairAction]:
    """What to do about these findings, in their order. Every finding is answered by exactly one action."""
    known = {f"job {each.job.job_id}": each for each in facts}
    by_subject: dict[str, list[Finding]] = {}
    for finding in findings:
        by_subject.setdefault(finding.subject, []).append(finding)
    return [
        action
        for subject, about in by_subject.items()
        for action in (_plan_job(about, known[subject], now) if subject in known else map(_unrepairable, about))
    ]


def _plan_job(findings: Sequence[Finding], facts: JobFacts, now: int) -> Iterator[RepairAction]:
    job_id = facts.job.job_id
    repair = None
    if not any(finding.code in AMBIGUOUS_CODES for finding in (*findings, *check_job(facts, now))):
        repair = _reproject(findings, facts, now) or _take_over(findings, facts)
    if repair is not None:
        yield repair
    for finding in findings:
        if repair is None or finding not in repair.findings:
            yield _unrepairable(finding, job_id)


def _reproject(findings: Sequence[Finding], facts: JobFacts, now: int) -> RepairAction | None:
    """The stored state is wrong, and the projection can be reached from it by a legal transition."""
    if all(finding.code != "projection-mismatch" for finding in findings):
        return None
    stored = facts.job.state
    projected = project(ExecutionView(e.attempt, e.status, e.disposition) for e in facts.executions)
    if projected is stored or not is_legal_job_transition(stored, projected):
        return None
    repaired = msgspec.structs.replace(facts, job=msgspec.structs.replace(facts.job, state=projected))
    before, after = check_job(facts, now), check_job(repaired, now)
    still_wrong = {finding.code for finding in after if finding not in before}
    mended = {finding for finding in before if finding not in after and finding.code not in still_wrong}
    return RepairAction(
        kind=RepairKind.REPROJECT,
        job_id=facts.job.job_id,
        from_state=stored,
        to_state=projected,
        why=f"its executions are the truth, and they say {projected}",
        findings=tuple(f for f in findings if f in mended or f.code == "projection-mismatch"),
    )


def _take_over(findings: Sequence[Finding], facts: JobFacts) -> RepairAction | None:
    """The lease has run out: a committed execution is finished, another one is given back."""
    expired = tuple(finding for finding in findings if finding.code == "lease-expired")
    job = facts.job
    if not expired or job.state is not JobState.RUNNING:
        return None
    for execution in facts.executions:
        if execution.status is ExecutionStatus.COMMITTED:
            kind, path = RepairKind.FINISH, [JobState.RUNNING, JobState.SUCCEEDED]
            why = "its effect is committed and nobody is finishing it; nothing is repeated"
        elif execution.status in LIVE_STATUSES:
            dispositions = path_after_crash(job)
            kind, path = RepairKind.GIVE_BACK, [JobState.RUNNING, *(STATE_OF_DISPOSITION[d] for d in dispositions)]
            crashes = job.crashes - job.crashes_forgiven + 1
            why = f"its worker is gone, for the {crashes}. time of at most {job.crash_limit}"
        else:
            continue
        if all(is_legal_job_transition(before, after) for before, after in pairwise(path)):
            return RepairAction(
                kind=kind,
                job_id=job.job_id,
                exec_id=execution.exec_id,
                from_state=path[0],
                to_state=path[-1],
                why=why,
                findings=expired,
            )
    return None


def _unrepairable(finding: Finding, job_id: str | None = None) -> RepairAction:
    advice = _ADVICE.get(finding.code, _GENERAL_ADVICE)
    why = f"{finding.subject}: {finding.message}; {advice}"
    return RepairAction(kind=RepairKind.UNREPAIRABLE, job_id=job_id, why=why, findings=(finding,))
