"""Every error Holdfast raises. The class tells the caller what can be done about it.

HoldfastError
├── BadInput                      nothing was changed; correct the call
│   ├── DefinitionError             the flow itself is wrong
│   ├── UnknownFlowError            no such flow is registered here
│   ├── RequestInvalidError         the request is not of the flow's request type
│   ├── RequestTooLargeError        the request is over the size limit
│   ├── InvalidKeyError             the key is empty, too long or unprintable
│   ├── CycleError                  jobs would wait for each other for ever
│   ├── ReasonRequiredError         an operator's override needs a reason
│   └── SettingsError               a setting is missing or wrong
├── NotFound
│   ├── JobNotFoundError
│   │   └── JobPrunedError            it has ended, and retention has removed it
│   ├── QueueNotFoundError
│   ├── TokenNotFoundError
│   └── ChangesLostError            the place in the order of changes is of another store; begin anew
├── StateError                    the job is not where the call needs it
│   ├── InvalidStateTransitionError
│   ├── StateTransitionRaceError    somebody else was faster; look again
│   ├── JobMovedOnError             the job has changed since the caller looked; look again
│   ├── KeyInUseError               another unfinished job holds the key
│   ├── TokenNameInUseError         another token that is not revoked has the name
│   ├── ParentEndedError            a job that has ended, or is being cancelled, gets no more children
│   └── PredecessorFailedError      the job it runs after has not succeeded
├── LeaseLost                     this execution is no longer ours: stop, write nothing
├── StepStopped                   a step was asked to stop
│   ├── StepTimeout
│   ├── StepCancelled
│   └── WorkerStopping
├── JobFailed                     raised by wait(): the job ended without success
├── WaitTimeout                   raised by wait(): the job has not ended yet
└── StoreError
    ├── StoreUnavailable            passing: try again
    │   ├── StoreBusy
    │   └── StoreFull
    ├── StoreReadOnly
    ├── RowRefused                  a rule of a table refuses a row; nothing was changed
    ├── RowUnreadable               one row is not what it must be; the others can be read
    ├── StoreCorrupt
    ├── StoreForeign                the file is not Holdfast's
    ├── StoreTooNew                 written by a newer Holdfast
    └── StoreUnsafe                 the place cannot keep what it promises
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.records import ErrorRecord


class HoldfastError(Exception):
    """Base of every error; `hint` says what to do next, when there is something to do."""

    hint: str | None = None
    passing = False
    """Is it the database's affair, and may the same call work later? Then no job is to blame: wait, and try again."""

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class BadInput(HoldfastError):
    """The call is wrong and changed nothing."""


class DefinitionError(BadInput):
    """A flow was declared in a way that cannot run."""


class UnknownFlowError(BadInput):
    """No flow of that name is registered."""


class RequestInvalidError(BadInput):
    """The request is not what the flow's request type says."""


class RequestTooLargeError(BadInput):
    """The encoded request is over the size limit."""


class InvalidKeyError(BadInput):
    """A key, queue or job name is empty, too long or not printable."""


class CycleError(BadInput):
    """The jobs would wait for one another and never start."""


class ReasonRequiredError(BadInput):
    """An override was asked for without saying why."""


class SettingsError(BadInput):
    """A setting is missing, unknown or out of range."""


class NotFound(HoldfastError):
    """What was named does not exist."""


class JobNotFoundError(NotFound):
    """There is no such job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} not found", hint="list what is there: holdfast jobs")
        self.job_id = job_id


class JobPrunedError(JobNotFoundError):
    """The job has ended, and retention has removed it: how it ended is on record, its answer is not."""

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(job_id)
        self.args = (f"job {job_id} ended as {state}, and retention has removed it",)
        self.hint = "keep ended jobs for longer: --keep of the worker, or prune --older-than"
        self.state = state


class QueueNotFoundError(NotFound):
    """There is no such queue."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {queue!r} not found", hint="list what is there: holdfast queues list")
        self.queue = queue


class TokenNotFoundError(NotFound):
    """There is no such token."""

    def __init__(self, token: str) -> None:
        super().__init__(f"token {token!r} not found", hint="list what is there: holdfast token list")
        self.token = token


class ChangesLostError(NotFound):
    """A place in the order of changes is not one of this store: it was restored, or another one takes its place."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"the order of changes does not reach {place}",
            hint="look at everything again, and go on from the last change",
        )
        self.place = place


class StateError(HoldfastError):
    """The job is not in a state that allows this."""


class InvalidStateTransitionError(StateError):
    """The table of legal transitions does not have this one."""

    def __init__(self, from_state: str, to_state: str, *, subject: str = "job", hint: str | None = None) -> None:
        super().__init__(f"invalid transition of {subject}: {from_state} → {to_state}", hint=hint)
        self.from_state = from_state
        self.to_state = to_state


class StateTransitionRaceError(StateError):
    """The state changed between looking and writing; `state` is what it is now, if that is known."""

    def __init__(self, message: str = "", *, state: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.state = state


class JobMovedOnError(StateError):
    """The job's journal has another head than the caller expected; nothing was changed."""

    def __init__(self, job_id: str, *, expected: str, head: str) -> None:
        super().__init__(
            f"job {job_id} has changed since it was looked at", hint=f"look again: holdfast job show {job_id}"
        )
        self.job_id = job_id
        self.expected = expected
        self.head = head
        """The hash that its journal ends with now."""


class KeyInUseError(StateError):
    """Another unfinished job of the flow holds the same key."""


class TokenNameInUseError(StateError):
    """Another token that is not revoked has the name; the journal would not tell them apart."""

    def __init__(self, token: str) -> None:
        super().__init__(
            f"there is a token {token!r} already", hint=f"choose another name, or: holdfast token revoke {token}"
        )
        self.token = token


class ParentEndedError(StateError):
    """A child was submitted for a job that has ended or is being cancelled; `reason` is why it is, if it is."""

    def __init__(self, parent: str, state: str, reason: str | None) -> None:
        how = state if reason is None else f"being cancelled: {reason}"
        super().__init__(f"job {parent} gets no more children: it is {how}")
        self.parent = parent
        self.reason = reason


class PredecessorFailedError(StateError):
    """The job runs after another one that has ended without success."""


class LeaseLost(HoldfastError):
    """The execution was fenced: its lease ended or passed to another. Its write changed nothing."""

    def __init__(self, exec_id: str) -> None:
        super().__init__(f"execution {exec_id} has lost its lease; nothing was written")
        self.exec_id = exec_id


class StepStopped(HoldfastError):
    """Raised inside a step that should stop what it is doing."""


class StepTimeout(StepStopped):
    """The step ran longer than its timeout."""


class StepCancelled(StepStopped):
    """An operator cancelled the job."""


class WorkerStopping(StepStopped):
    """The worker is shutting down; the job will go on elsewhere."""


class JobFailed(HoldfastError):
    """The job waited for ended as failed or quarantined."""

    def __init__(self, job_id: str, state: str, reason: str | None, error: ErrorRecord | None = None) -> None:
        super().__init__(
            f"job {job_id} is {state}: {reason or 'no reason recorded'}",
            hint=(error.hint if error is not None else None) or f"see what happened: holdfast job show {job_id}",
        )
        self.job_id = job_id
        self.state = state
        self.reason = reason
        self.error = error
        """The error that the job ended with, as data."""


class WaitTimeout(HoldfastError):
    """The job had not ended when the patience of wait() did."""


class StoreError(HoldfastError):
    """The database could not do what was asked."""


class StoreUnavailable(StoreError):
    """The database cannot be used at the moment; the same call may work later."""

    passing = True


class StoreBusy(StoreUnavailable):
    """Another process held the database, or a row, for longer than we wait; nothing was changed."""


class StoreFull(StoreUnavailable):
    """The disk, or the database's page limit, is full."""


class StoreReadOnly(StoreError):
    """The database or its directory cannot be written."""

    passing = True


class RowRefused(StoreError):
    """A rule of an application's own table refuses a row: a key, a check, a reference, a type. Nothing was changed."""


class RowUnreadable(StoreError, ValueError):
    """A row has values that no version of Holdfast writes: the job it is about is set apart, the others go on."""

    hint = "see what is wrong: holdfast check"


class StoreCorrupt(StoreError):
    """The file is damaged, or cannot be read."""

    passing = True


class StoreForeign(StoreError):
    """The file is not a Holdfast database."""

    passing = True


class StoreTooNew(StoreError):
    """The database was written by a newer Holdfast than this one."""


class StoreUnsafe(StoreError):
    """The file system or the settings cannot keep the promised durability."""


def may_pass(error: BaseException) -> bool:
    """Is it no fault of the call? True for what a machine runs out of for a moment, too: descriptors, memory."""
    return error.passing if isinstance(error, HoldfastError) else isinstance(error, (OSError, MemoryError))
