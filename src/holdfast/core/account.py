"""What a job's journal adds up to: how its rows must look if nobody has written past the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.ending import CRASH_CODES
from holdfast.core.error_record import ErrorRecord
from holdfast.core.evidence import Evidence, evidence_in
from holdfast.core.records import Ending, JournalEntry
from holdfast.core.states import ExecutionStatus, JobState

CANCEL_REQUESTED = "cancel requested: "
ENDING_PLANNED = "ending: "


class Account(msgspec.Struct):
    """The sum of a journal. An entry of an older version says less, and then less can be compared."""

    terms: Evidence | None = None
    """What the job was submitted with; None if an older version has submitted it."""
    definition: str | None = None
    failures: int = 0
    crashes: int = 0
    failures_forgiven: int = 0
    crashes_forgiven: int = 0
    not_before: int = 0
    queue: str | None = None
    """Where it is; None if an older version has submitted it."""
    queues: dict[str, str | None] = msgspec.field(default_factory=dict)
    """Where it was when each execution began."""
    wait_for: str | None = None
    wait_since: int = 0
    cancels: set[str] = msgspec.field(default_factory=set)
    cancelled: str | None = None
    """Asked for, and nothing has ended since."""
    endings: int = 0
    ending: bool = False
    """Planned, and nothing has ended since."""
    planned: Ending | None = None
    """What was planned last; None if an older version has planned it."""
    claims: dict[str, JournalEntry] = msgspec.field(default_factory=dict)
    sealing: set[str] = msgspec.field(default_factory=set)
    """The executions whose worker seals the steps it finishes."""
    ends: dict[str, tuple[JournalEntry, str | None]] = msgspec.field(default_factory=dict)
    """The end of each execution, and its code."""
    failures_of: dict[str, ErrorRecord | None] = msgspec.field(default_factory=dict)
    """The error that each execution ended with."""
    dispositions: dict[str, str] = msgspec.field(default_factory=dict)
    commits: dict[str, JournalEntry] = msgspec.field(default_factory=dict)
    steps: str | None = None
    """The last evidence of finished steps."""
    adding: set[str] = msgspec.field(default_factory=set)
    """The executions that may have finished steps since."""
    adopted: set[tuple[str | None, int, str]] = msgspec.field(default_factory=set)
    states: set[str] = msgspec.field(default_factory=set)


def account_of(journal: Sequence[JournalEntry]) -> Account:
    """Add up a journal, given in order."""
    account = Account()
    for entry in journal:
        evidence = evidence_in(entry.metadata)
        if evidence is not None:
            _add(account, entry, evidence)
    return account


def _add(account: Account, entry: JournalEntry, evidence: Evidence) -> None:
    if entry.job_from is None and evidence.request is not None:
        account.terms = evidence
        account.not_before = evidence.not_before
        account.queue = evidence.queue
        account.wait_for = evidence.run_after
    if evidence.definition is not None:
        account.definition = evidence.definition
    if evidence.adopted is not None:
        account.adopted.add((evidence.child, evidence.round, evidence.adopted))
    if entry.exec_id is not None:
        _add_execution(account, entry, entry.exec_id, evidence)
    elif entry.reason.startswith(CANCEL_REQUESTED):
        account.cancelled = entry.reason.removeprefix(CANCEL_REQUESTED)
        account.cancels.add(account.cancelled)
        account.not_before, account.wait_for = 0, None
    if evidence.rescheduled is not None:
        _reschedule(account, evidence.rescheduled)
    if evidence.forgiven:
        account.failures_forgiven, account.crashes_forgiven = account.failures, account.crashes
        account.not_before, account.wait_for = 0, evidence.wait_for
        account.cancelled = None
        account.ending = False
    if evidence.steps is not None:
        account.steps = evidence.steps
        is_live = entry.exec_to in (ExecutionStatus.LEASED, ExecutionStatus.IN_PROGRESS)
        account.adding = {entry.exec_id} if is_live and entry.exec_id else set()


def _reschedule(account: Account, changes: Mapping[str, tuple[str | int, str | int]]) -> None:
    if account.terms is not None:
        known = {name: after for name, (_, after) in changes.items() if name in ("queue", "priority")}
        account.terms = msgspec.structs.replace(account.terms, **known)
    if "not_before" in changes:
        account.not_before = int(changes["not_before"][1])
    if "queue" in changes:
        before, after = map(str, changes["queue"])
        account.queues = {one: before if queue is None else queue for one, queue in account.queues.items()}
        account.queue = after


def _add_execution(account: Account, entry: JournalEntry, exec_id: str, evidence: Evidence) -> None:
    if entry.exec_from is None:
        account.claims[exec_id] = entry
        account.queues[exec_id] = account.queue
        account.adding.add(exec_id)
        account.wait_for = None
        if evidence.steps is not None:
            account.sealing.add(exec_id)
    elif entry.exec_to == ExecutionStatus.COMMITTED:
        account.commits[exec_id] = entry
    elif entry.exec_to in (ExecutionStatus.ABORTED, ExecutionStatus.DONE):
        if entry.exec_from != ExecutionStatus.ABORTED:
            account.ends[exec_id] = (entry, evidence.code)
            account.failures_of[exec_id] = evidence.failure
            if entry.exec_to == ExecutionStatus.ABORTED:
                account.not_before, account.wait_for = evidence.not_before, evidence.wait_for
                account.wait_since = entry.at
            if evidence.code in CRASH_CODES:
                account.crashes += 1
            elif entry.job_to == JobState.FAILED:
                account.failures += 1
        account.dispositions[exec_id] = entry.job_to
        account.cancelled = None
        account.ending = False
    elif entry.exec_from == entry.exec_to and entry.reason.startswith(ENDING_PLANNED):
        account.endings += 1
        account.ending = True
        account.planned = None
        if evidence.planned is not None and evidence.code is not None:
            error = entry.reason.removeprefix(ENDING_PLANNED)
            account.planned = Ending(evidence.planned, evidence.code, error, evidence.failure)
