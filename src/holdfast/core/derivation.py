"""What a job's row must say: its state by its executions, which are the truth, and the rest by its journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.core.account import Account, account_of
from holdfast.core.agreement import CLOCK_SLACK_MS, changed_bounds, was_let_go_on
from holdfast.core.chain import chain_faults
from holdfast.core.evidence import TERMS
from holdfast.core.facts import PRUNED_STATE, JobFacts, Rows
from holdfast.core.projection import ExecutionView, project
from holdfast.core.records import JobRecord
from holdfast.core.states import UNFINISHED_STATES, JobState
from holdfast.core.text import storable

Columns = dict[str, Any]


def wrong_columns(facts: JobFacts, now: int) -> Columns:
    """The columns of the job that are wrong, each with what it should be. ValueError: its executions contradict.

    A journal that was edited is believed in nothing.
    """
    job = facts.job
    state = project(ExecutionView(e.attempt, e.status, e.disposition) for e in facts.executions)
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
        should |= dict(_changed(facts, state, max(entry.at for entry in journal)))
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


def _changed(facts: JobFacts, state: JobState, last: int) -> Iterator[tuple[str, Any]]:
    earliest, latest = changed_bounds(facts, state, last)
    if not earliest <= facts.job.updated_at <= latest + CLOCK_SLACK_MS:
        ended = facts.executions[-1].finished_at if facts.executions else None
        yield "updated_at", last if ended is None or state in UNFINISHED_STATES else ended


def _wait(job: JobRecord, rows: Rows, account: Account | None, now: int) -> Columns:
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
