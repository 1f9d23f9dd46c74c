"""What goes into a store and what comes out of a claim. Writes name their execution and are fenced by it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.core.records import Ending, ErrorRecord, JobRecord, error_text
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import EndCode
from holdfast.sql_files import Dialect


def _clean(message: msgspec.Struct, field: str) -> None:
    """Texts of others become storable where they enter a message, so that no caller can forget it."""
    text = getattr(message, field)
    if text is not None:
        msgspec.structs.force_setattr(message, field, error_text(text))


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be submitted. `delay_ms` and `not_before` (absolute) keep it from starting earlier."""

    job_id: str
    flow: str
    fingerprint: str
    definition: str
    request: str
    queue: str = ""
    key: str | None = None
    key_lasts_ms: int | None = 0
    """How long the key stands for this job after its submission, even if the job has ended; None is for ever."""
    priority: int = 0
    not_before: int = 0
    run_after: str | None = None
    parent: str | None = None
    child_name: str | None = None
    child_round: int = 0
    failure_limit: int = 1
    crash_limit: int = 5
    stall_ms: int = 600_000
    stall_limits: str | None = None


class Submitted(msgspec.Struct, frozen=True):
    """The job that now stands for what was submitted.

    `created` is False if it was there already, under its key or as a child; `same_request` is False if the job that has
    the key was submitted with another request.
    """

    job_id: str
    created: bool
    same_request: bool = True


class StoreTransaction(Protocol):
    """The open transaction, as the effect of a Commit gets it."""

    dialect: Dialect

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run one statement; transaction control is refused."""
        ...

    def execute_own(self, sql: str, parameters: Any = ()) -> Any:
        """The same for a statement about tables beside the engine's, in the schema of these."""
        ...

    def executemany(self, sql: str, parameters: Any) -> Any:
        """Run one statement for each set of parameters."""
        ...

    def submit_job(self, job: NewJob) -> Submitted:
        """Submit a job that exists only if this transaction commits."""
        ...


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One job under a new lease, with all that is needed to go on with it."""

    job: JobRecord
    exec_id: str
    attempt: int
    status: ExecutionStatus
    request: str
    position: int
    response: str | None
    tries: int
    interrupted: bool


class Begin(msgspec.Struct, frozen=True):
    """leased → in_progress, under a definition that differs from the pinned one but is compatible."""

    job_id: str
    exec_id: str
    fingerprint: str
    definition: str


class FinishStep(msgspec.Struct, frozen=True):
    """The step at `position` is done, the next one is entered; `response` is the response so far."""

    job_id: str
    exec_id: str
    position: int
    step: str
    tries: int
    started_at: int
    response: str


class RecordTry(msgspec.Struct, frozen=True):
    """A try of the step failed; the next one is due at `retry_at`."""

    job_id: str
    exec_id: str
    position: int
    tries: int
    error: str
    retry_at: int
    traceback: str | None = None
    failure: ErrorRecord | None = None

    def __post_init__(self) -> None:
        _clean(self, "error")


class RewindTo(msgspec.Struct, frozen=True):
    """Forget the steps from `position` on; the run goes on there."""

    job_id: str
    exec_id: str
    position: int
    step: str
    reason: str

    def __post_init__(self) -> None:
        _clean(self, "reason")


class PlanEnding(msgspec.Struct, frozen=True):
    """The job will end so, but its cleanup has to run first; a later execution takes over from here."""

    job_id: str
    exec_id: str
    ending: Ending
    step: str | None
    traceback: str | None = None


class End(msgspec.Struct, frozen=True, kw_only=True):
    """→ aborted, through the given dispositions one after the other."""

    job_id: str
    exec_id: str
    path: tuple[Disposition, ...]
    code: EndCode
    error: str | None = None
    step: str | None = None
    position: int = 0
    tries: int = 0
    not_before: int = 0
    wait_for: str | None = None
    forget_steps: bool = False
    traceback: str | None = None
    failure: ErrorRecord | None = None

    def __post_init__(self) -> None:
        _clean(self, "error")


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """in_progress → committed: the effect, the response, the mark and the journal are one transaction.

    `effect` runs inside the transaction and returns the encoded response; without one, `response` is it.
    """

    job_id: str
    exec_id: str
    position: int
    step: str
    tries: int
    started_at: int
    code: EndCode
    response: str | None = None
    effect: Callable[[StoreTransaction], str] | None = None


class Finish(msgspec.Struct, frozen=True):
    """committed → done."""

    job_id: str
    exec_id: str


class ReportProgress(msgspec.Struct, frozen=True):
    """The step is alive, and this far."""

    job_id: str
    exec_id: str
    position: int
    progress: str


Write: TypeAlias = Begin | FinishStep | RecordTry | RewindTo | PlanEnding | End | Commit | Finish | ReportProgress


class Held(msgspec.Struct, frozen=True):
    """An execution whose lease is still ours, and whether an operator wants it stopped."""

    exec_id: str
    cancel_reason: str | None


class Recovered(msgspec.Struct, frozen=True):
    """What recovery did with one execution: finished after its commit, given back, or quarantined."""

    job_id: str
    exec_id: str
    flow: str
    owner: str
    outcome: str


class Journaled(msgspec.Struct, frozen=True):
    """One change to be journaled; the store adds sequence, hashes and time."""

    job_id: str
    actor: str
    exec_id: str | None
    job_from: str | None
    job_to: str
    exec_from: str | None
    exec_to: str | None
    step: str | None = None
    reason: str = ""
    metadata: str = "{}"
    flow: str = ""
    """Of the job, where it is at hand; not stored, but told to observers, who look it up otherwise."""


# --- Tells whoever asked of every change of state that became durable through this store ----------------
#
# Taken from the journal entries of each transaction, after its COMMIT: what changes a state is journaled, and what is
# journaled is told, so that no verb can be forgotten.

log = logging.getLogger("holdfast.changes")

MOST_REMEMBERED = 20_000


class FlowChange(NamedTuple):
    """One journal entry, and the flow of its job; empty if that could not be found out."""

    flow: str
    entry: Journaled


Observer: TypeAlias = Callable[[Sequence[FlowChange]], None]


class Changes:
    """The observers of one store. Costs nothing while there are none."""

    def __init__(self, flows_of: Callable[[Sequence[str]], Mapping[str, str]]) -> None:
        self._flows_of = flows_of
        self._observers: Counter[Observer] = Counter()
        self._lock = threading.Lock()
        self._flows: dict[str, str] = {}
        self._doubtful: dict[int, Sequence[Journaled]] = {}

    def observe(self, observer: Observer) -> None:
        """Tell this one from now on, in the thread that has made the change. One that asks twice is told once."""
        with self._lock:
            self._observers[observer] += 1

    def forget(self, observer: Observer) -> None:
        """Take one `observe` back."""
        with self._lock:
            self._observers[observer] -= 1
            self._observers = +self._observers

    def tell(self, entries: Sequence[Journaled]) -> None:
        """These entries are durable."""
        observers = list(self._observers)
        if not observers or not entries:
            return
        changes = self._with_flows(entries)
        for observer in observers:
            try:
                observer(changes)
            except Exception:  # whoever only looks must not disturb who works
                log.exception("an observer of changes failed")

    def doubt(self, entries: Sequence[Journaled]) -> None:
        """The answer to this thread's COMMIT of these was lost."""
        self._doubtful[threading.get_ident()] = entries

    def resolve(self, answers: Sequence[bool | None]) -> None:
        """Evidence for what this thread doubted: a transaction of which anything is there is there whole."""
        if None in answers and True not in answers:
            return  # it is not known yet
        entries = self._doubtful.pop(threading.get_ident(), ())
        if True in answers:
            self.tell(entries)

    def _with_flows(self, entries: Sequence[Journaled]) -> list[FlowChange]:
        known = self._flows
        if len(known) > MOST_REMEMBERED:
            known.clear()
        known.update((entry.job_id, entry.flow) for entry in entries if entry.flow)
        unknown = {entry.job_id for entry in entries if entry.job_id not in known}
        found = self._looked_up(sorted(unknown)) if unknown else {}
        changes = [FlowChange(known.get(e.job_id) or found.get(e.job_id, ""), e) for e in entries]
        for entry in entries:
            if entry.job_to != JobState.RUNNING:
                known.pop(entry.job_id, None)
        return changes

    def _looked_up(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        try:
            return self._flows_of(job_ids)
        except Exception as error:
            log.warning("cannot find out the flows of %d job(s): %s", len(job_ids), error)
            return {}
