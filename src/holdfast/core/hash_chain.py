"""The journal's hash chain: each entry's hash covers its content and the hash before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.core.records import Ending, ErrorRecord, JournalEntry
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import CRASH_CODES

GENESIS = ""
"""What the first entry of a job has in the place of a previous hash."""

_encode = msgspec.json.Encoder().encode


def entry_hash(
    prev_hash: str,
    job_id: str,
    seq: int,
    at: int,
    actor: str,
    exec_id: str | None,
    job_from: str | None,
    job_to: str,
    exec_from: str | None,
    exec_to: str | None,
    step: str | None,
    reason: str,
    metadata: str,
) -> str:
    """The hash of one entry with this content."""
    content = _encode(
        (prev_hash, job_id, seq, at, actor, exec_id, job_from, job_to, exec_from, exec_to, step, reason, metadata)
    )
    return hashlib.sha256(content).hexdigest()


def hash_of(entry: JournalEntry) -> str:
    """The hash this entry should carry."""
    return entry_hash(
        entry.prev_hash,
        entry.job_id,
        entry.seq,
        entry.at,
        entry.actor,
        entry.exec_id,
        entry.job_from,
        entry.job_to,
        entry.exec_from,
        entry.exec_to,
        entry.step,
        entry.reason,
        entry.metadata,
    )


def chain_faults(entries: Iterable[JournalEntry]) -> Iterator[str]:
    """Every fault in one job's journal, given in order of seq: edits, gaps, breaks."""
    expected_seq, prev_hash, prev_state = 1, GENESIS, None
    for entry in entries:
        where = f"job {entry.job_id} entry {entry.seq}"
        if entry.seq != expected_seq:
            yield f"{where}: expected entry {expected_seq}, so entries are missing"
        elif entry.prev_hash != prev_hash:
            yield f"{where}: does not follow the entry before it"
        elif entry.job_from != prev_state:
            yield f"{where}: starts from {entry.job_from}, but the job was {prev_state}"
        if entry.hash != hash_of(entry):
            yield f"{where}: its content was changed after it was written"
        expected_seq, prev_hash, prev_state = entry.seq + 1, entry.hash, entry.job_to


# --- What the journal says about rows beside it, so that an edited request, step or setting is found by the check ---

DIGEST_LENGTH = 32
"""Hex digits: 128 bits, which nobody meets by chance or finds a second text for."""

NO_STEPS = "0"
"""The evidence of a job without finished steps."""

KEY_FOR_EVER = -1


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an entry's metadata may say; an older version, and another kind of entry, leaves out the most of it."""

    request: str | None = None
    """A digest of the request."""
    definition: str | None = None
    """The fingerprint that the job is pinned to from here on."""
    flow: str | None = None
    key: str | None = None
    queue: str = ""
    priority: int = 0
    run_after: str | None = None
    parent: str | None = None
    child: str | None = None
    """Its name as a child of `parent`; in an entry of the parent, that of the child it has adopted."""
    round: int = 0
    key_until: int = 0
    """Until when its key stands for it whatever becomes of it; KEY_FOR_EVER, or 0 if only until it has ended."""
    adopted: str | None = None
    """The job that was there already and became a child of this one."""
    failure_limit: int = 1
    crash_limit: int = 5
    stall_ms: int = 600_000
    stall_limits: str | None = None
    not_before: int = 0
    code: str | None = None
    """Why the execution ended, or is going to."""
    failure: ErrorRecord | None = None
    """The error it ended with, or is going to."""
    planned: Disposition | None = None
    """What the end that is planned means for the job."""
    steps: str | None = None
    """The finished steps at this point: their number, and a digest of their seals."""
    wait_for: str | None = None
    """The job that this one waits for from here on."""
    forgiven: bool = False
    """The failures and crashes up to here are forgiven."""
    rescheduled: dict[str, tuple[str | int, str | int]] | None = None
    """What an operator has changed of the start, the queue and the priority: from what, to what."""
    repaired: str | None = None
    """What a repair has set right: the columns, with what was there."""


TERMS = (
    "flow",
    "key",
    "queue",
    "priority",
    "run_after",
    "parent",
    "failure_limit",
    "crash_limit",
    "stall_ms",
    "stall_limits",
)
"""What a job is submitted with; an operator may reschedule it, and nothing else changes it later."""

NOTHING = Evidence()
_decoder = msgspec.json.Decoder(Evidence)


def evidence_in(metadata: str) -> Evidence | None:
    """What the metadata of an entry says; None if it is not of the engine's making."""
    if metadata == "{}":
        return NOTHING
    try:
        return _decoder.decode(metadata)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None


def metadata_of(evidence: Evidence) -> str:
    """The metadata of an entry that says this."""
    return _encode(evidence).decode()


def digest(text: str) -> str:
    """Of a request or a response."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def seal_of(
    job_id: str,
    position: int,
    step: str,
    exec_id: str,
    tries: int,
    started_at: int,
    finished_at: int,
    response_digest: str,
) -> str:
    """The seal of a finished step: a digest of its row."""
    content = _encode((job_id, position, step, exec_id, tries, started_at, finished_at, response_digest))
    return hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]


def steps_evidence(seals: Sequence[str]) -> str:
    """The evidence of finished steps with these seals, in order."""
    return f"{len(seals)}:{digest(','.join(seals))}" if seals else NO_STEPS


def joined_evidence(seals: str | None) -> str:
    """The same for seals as a statement gathers them: joined by commas, None if there are none."""
    return NO_STEPS if seals is None else f"{seals.count(',') + 1}:{digest(seals)}"


def count_in(evidence: str) -> int:
    """How many finished steps that is."""
    return int(evidence.partition(":")[0])


# --- What a job's journal adds up to: how its rows must look if nobody has written past the rules -------

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
