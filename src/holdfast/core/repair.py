"""What a job's row must say: its state by its executions, which are the truth, and the rest by its journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.core.facts import PRUNED_STATE, FactRows, Finding, JobFacts
from holdfast.core.hash_chain import TERMS, Account, account_of, chain_faults, hash_of
from holdfast.core.invariants import CLOCK_SLACK_MS, changed_bounds, check_job, was_let_go_on
from holdfast.core.records import JobRecord, JournalEntry, storable
from holdfast.core.states import (
    LIVE_STATUSES,
    STATE_OF_DISPOSITION,
    UNFINISHED_STATES,
    ExecutionOutcome,
    ExecutionStatus,
    JobState,
    is_legal_job_transition,
    project,
)
from holdfast.core.step import path_after_crash

Columns = dict[str, Any]


def wrong_columns(facts: JobFacts, now: int) -> Columns:
    """The columns of the job that are wrong, each with what it should be. ValueError: its executions contradict.

    A journal that was edited is believed in nothing.
    """
    job = facts.job
    state = project(ExecutionOutcome(e.attempt, e.status, e.disposition) for e in facts.executions)
    should: Columns = {"state": state}
    if [e.attempt for e in facts.executions] == list(range(1, len(facts.executions) + 1)):
        should["attempt"] = len(facts.executions)
    journal = facts.journal or ()
    is_sound = bool(journal) and next(chain_faults(journal), None) is None
    account = account_of(journal) if is_sound else Account()
    if is_sound:
        should |= dict(_counts(account))
        should |= dict(_terms(job, account, journal[0].at))
        should |= dict(_wishes(job, account, state))
        should |= dict(_changed(facts, state, journal))
    if facts.rows is not None:
        placed = msgspec.structs.replace(job, **should)
        should |= _wait(placed, facts.rows, account if account.terms is not None else None, now)
    return {name: value for name, value in should.items() if getattr(job, name) != value}


def _counts(account: Account) -> Iterator[tuple[str, Any]]:
    for name in ("failures", "crashes"):
        yield name, getattr(account, name)
        if account.terms is not None:
            yield f"{name}_forgiven", getattr(account, f"{name}_forgiven")


def _terms(job: JobRecord, account: Account, first: int) -> Iterator[tuple[str, Any]]:
    yield "created_at", first
    if account.terms is None:
        return
    for name in TERMS:
        yield name, getattr(account.terms, name)
    if account.definition is not None:
        yield "fingerprint", account.definition
    if not (job.not_before == 0 and account.cancels):
        yield "not_before", account.not_before


def _wishes(job: JobRecord, account: Account, state: JobState) -> Iterator[tuple[str, Any]]:
    wanted = None if job.cancel_reason is None else storable(job.cancel_reason)
    if wanted not in account.cancels and (wanted is not None or state in UNFINISHED_STATES):
        yield "cancel_reason", account.cancelled
    if job.ending is not None and not account.endings:
        yield "ending", None
    elif account.planned is not None and (account.ending or job.ending is not None):
        yield "ending", msgspec.json.encode(account.planned).decode()


def _changed(facts: JobFacts, state: JobState, journal: Sequence[JournalEntry]) -> Iterator[tuple[str, Any]]:
    earliest, latest = changed_bounds(facts, state, journal)
    if not earliest <= facts.job.updated_at <= latest + CLOCK_SLACK_MS:
        ended = facts.executions[-1].finished_at if facts.executions else None
        yield "updated_at", journal[-1].at if ended is None or state in UNFINISHED_STATES else ended


def _wait(job: JobRecord, rows: FactRows, account: Account | None, now: int) -> Columns:
    """For what it waits; what is as it should be is left alone, and so is one that is about to be ended or released."""
    nothing: Columns = {"hold": "none", "waits_for": None}
    if job.state is not JobState.PENDING:
        return nothing
    wanted = job.run_after if account is None and not job.attempt else None if account is None else account.wait_for
    target = rows.others.get(wanted or "")
    is_over = job.waits_for is None and (
        job.cancel_reason is not None or (account is not None and was_let_go_on(rows, account))
    )
    if target is not None and target.state in UNFINISHED_STATES and not is_over:
        return {"hold": "after" if wanted == job.run_after else "child", "waits_for": wanted}
    if job.waits_for is not None:
        is_failed = target is not None and target.state not in (JobState.SUCCEEDED, PRUNED_STATE)
        return {} if is_failed and job.waits_for == wanted else nothing | _until(job, now)
    return _until(job, now) if job.hold == "none" and job.not_before > now + CLOCK_SLACK_MS else {}


def _until(job: JobRecord, now: int) -> Columns:
    return {"hold": "until", "waits_for": None} if job.not_before > now else {}


# --- Findings in, repairs out: legal transitions, rows set to what is true, and a word to an operator about the
# rest.


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
    "progress-ahead": "a stall of it is not seen until then: if it hangs, `holdfast job force JOB pending` ends this",
    "rule-changed": "stop all workers, move the data to a new database, and find out who changed the schema",
    "rule-missing": "stop all workers, move the data to a new database, and find out who dropped it",
    "sqlite-damaged": "stop all workers, look for what damaged the disk or the file, and restore a backup",
    "changed-after-success": f"the result may not be what was committed: compare with a backup, then {_RESTORE}",
}
_GENERAL_ADVICE = f"nothing that is known of the job mends this: {_RESTORE}"


def plan_repairs(findings: Sequence[Finding], facts: Iterable[JobFacts], now: int) -> list[RepairAction]:
    """What to do about these findings, in their order. Every finding is answered by exactly one action."""
    known = {f"job {each.job.job_id}": each for each in facts}
    by_subject: dict[str, list[Finding]] = {}
    for finding in findings:
        by_subject.setdefault(finding.subject, []).append(finding)
    actions = [
        action
        for subject, about in by_subject.items()
        for action in (_plan_job(about, known[subject], now) if subject in known else _plan_unread(subject, about))
    ]
    return list(_with_tables(actions))


def _with_tables(actions: Sequence[RepairAction]) -> Iterator[RepairAction]:
    """A CHECK of jobs that does not hold is about a row that another finding names: one repair answers both."""
    answered = tuple(f for action in actions for f in action.findings if _is_of_jobs(f))
    is_repaired = any(action.kind is RepairKind.REPROJECT for action in actions)
    for action in actions:
        if answered and is_repaired and action.kind is RepairKind.REPROJECT:
            yield msgspec.structs.replace(action, findings=(*action.findings, *answered))
            answered = ()
        elif not (is_repaired and _is_of_jobs(action.findings[0])):
            yield action


def _is_of_jobs(finding: Finding) -> bool:
    return (finding.code, finding.subject) == ("check-failed", "table jobs")


def _plan_unread(subject: str, findings: Sequence[Finding]) -> Iterator[RepairAction]:
    """Of a job whose row cannot be read; if only for a state that does not exist, the executions know the right one."""
    invalid = tuple(finding for finding in findings if finding.code == "invalid-state")
    if invalid and not any(finding.code in AMBIGUOUS_CODES for finding in findings):
        why = "its executions say in which state it is"
        job_id = subject.removeprefix("job ")
        yield RepairAction(kind=RepairKind.REPROJECT, job_id=job_id, why=why, findings=invalid)
        findings = [finding for finding in findings if finding not in invalid]
    yield from map(_unrepairable, findings)


def _plan_job(findings: Sequence[Finding], facts: JobFacts, now: int) -> Iterator[RepairAction]:
    left = list(findings)
    if not any(finding.code in AMBIGUOUS_CODES for finding in (*findings, *check_job(facts, now))):
        for repair in (_reproject(left, facts, now), _take_over(left, facts)):
            if repair is not None and any(finding in left for finding in repair.findings):
                yield repair
                left = [finding for finding in left if finding not in repair.findings]
    for finding in left:
        yield _unrepairable(finding, facts.job.job_id)


def _reproject(findings: Sequence[Finding], facts: JobFacts, now: int) -> RepairAction | None:
    """The job's row is not what its executions and its journal say: it is set to that, whatever it is now."""
    wrong = wrong_columns(facts, now)
    if not wrong:
        return None
    job = msgspec.structs.replace(facts.job, **wrong)
    journal = (*facts.journal, _entry_of_repair(facts.journal, job, now)) if facts.journal else facts.journal
    after = check_job(msgspec.structs.replace(facts, job=job, journal=journal), now)
    mended = tuple(finding for finding in findings if finding not in after)
    if not mended:
        return None
    return RepairAction(
        kind=RepairKind.REPROJECT,
        job_id=job.job_id,
        from_state=facts.job.state,
        to_state=job.state,
        why=f"its executions and its journal say so: {told(facts.job, wrong)}",
        findings=mended,
    )


def told(job: JobRecord, wrong: Mapping[str, object]) -> str:
    """What a repair changes, from what to what."""
    return ", ".join(f"{name} {_plain(getattr(job, name))} → {_plain(value)}" for name, value in wrong.items())


def _plain(value: object) -> str:
    return "none" if value is None else str(value)


def _entry_of_repair(journal: Sequence[JournalEntry], job: JobRecord, now: int) -> JournalEntry:
    last = journal[-1]
    entry = JournalEntry(
        job_id=job.job_id,
        seq=last.seq + 1,
        at=now,
        actor="",
        exec_id=None,
        job_from=last.job_to,
        job_to=job.state,
        exec_from=None,
        exec_to=None,
        step=None,
        reason="",
        metadata="{}",
        prev_hash=last.hash,
        hash="",
    )
    return msgspec.structs.replace(entry, hash=hash_of(entry))


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
