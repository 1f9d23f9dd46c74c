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
│   └── QueueNotFoundError
├── StateError                    the job is not where the call needs it
│   ├── InvalidStateTransitionError
│   ├── StateTransitionRaceError    somebody else was faster; look again
│   ├── KeyInUseError               another unfinished job holds the key
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
    ├── StoreCorrupt
    ├── StoreForeign                the file is not Holdfast's
    ├── StoreTooNew                 written by a newer Holdfast
    └── StoreUnsafe                 the place cannot keep what it promises
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Base of every error; `hint` says what to do next, when there is something to do."""

    hint: str | None = None

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


class QueueNotFoundError(NotFound):
    """There is no such queue."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {queue!r} not found", hint="list what is there: holdfast queues list")
        self.queue = queue


class StateError(HoldfastError):
    """The job is not in a state that allows this."""


class InvalidStateTransitionError(StateError):
    """The table of legal transitions does not have this one."""

    def __init__(self, from_state: str, to_state: str, *, subject: str = "job", hint: str | None = None) -> None:
        super().__init__(f"invalid transition of {subject}: {from_state} → {to_state}", hint=hint)
        self.from_state = from_state
        self.to_state = to_state


class StateTransitionRaceError(StateError):
    """The state changed between looking and writing."""


class KeyInUseError(StateError):
    """Another unfinished job of the flow holds the same key."""


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

    def __init__(self, job_id: str, state: str, reason: str | None) -> None:
        super().__init__(
            f"job {job_id} is {state}: {reason or 'no reason recorded'}",
            hint=f"see what happened: holdfast job show {job_id}",
        )
        self.job_id = job_id
        self.state = state
        self.reason = reason


class WaitTimeout(HoldfastError):
    """The job had not ended when the patience of wait() did."""


class StoreError(HoldfastError):
    """The database could not do what was asked."""


class StoreUnavailable(StoreError):
    """The database cannot be used at the moment; the same call may work later."""


class StoreBusy(StoreUnavailable):
    """Another process held the database for longer than the busy timeout."""


class StoreFull(StoreUnavailable):
    """The disk, or the database's page limit, is full."""


class StoreReadOnly(StoreError):
    """The database or its directory cannot be written."""


class StoreCorrupt(StoreError):
    """The file is damaged."""


class StoreForeign(StoreError):
    """The file is not a Holdfast database."""


class StoreTooNew(StoreError):
    """The database was written by a newer Holdfast than this one."""


class StoreUnsafe(StoreError):
    """The file system or the settings cannot keep the promised durability."""
