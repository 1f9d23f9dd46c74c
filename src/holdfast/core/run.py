"""What a step sees of the job it works for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.core.records import Child, JobRecord, JobResult

if TYPE_CHECKING:
    import logging

Req = TypeVar("Req", covariant=True)
Resp = TypeVar("Resp")


class Run(Protocol[Req, Resp]):
    """One execution of one job, as given to each of its steps."""

    response: Resp
    """The response so far. Change it or return a new one; it is saved when the step has finished."""

    @property
    def request(self) -> Req:
        """What the job was submitted with."""
        ...

    @property
    def job(self) -> JobRecord:
        """The job as it was when this execution began."""
        ...

    @property
    def exec_id(self) -> str:
        """This execution: the fencing token."""
        ...

    @property
    def step(self) -> str:
        """The step that is running."""
        ...

    @property
    def tries(self) -> int:
        """Which try of this step this is; the first is 1."""
        ...

    @property
    def interrupted(self) -> bool:
        """Was this step entered before by an execution that died in it? Then look for leftovers."""
        ...

    @property
    def deadline(self) -> float | None:
        """Seconds left before the step's timeout, None without one."""
        ...

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger bound to job and execution."""
        ...

    def check(self) -> None:
        """Raise StepStopped if the step should stop: timed out, cancelled, worker stopping, lease lost."""
        ...

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report progress: shown to operators, and proof to the stall detector that the step is alive."""
        ...

    def effect(self, name: str) -> AbstractContextManager[None]:
        """Mark an outside effect, so that the crash explorer kills the run on both sides of it."""
        ...

    def submit_child(self, name: str, flow: Any, request: Any, *, key: str | None = None) -> str:
        """Submit a job for this one, at most once per `name`; returns its id, again after a crash too."""
        ...

    def children(self) -> Sequence[Child]:
        """The jobs this one has submitted, with their present states."""
        ...

    def child_result(self, job_id: str) -> JobResult:
        """How another job stands, and what it answered if it has succeeded."""
        ...


class Transaction(Protocol):
    """The open transaction a commit step gets: what is written here is committed with the job, or not at all."""

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run one statement; returns a cursor."""
        ...

    def executemany(self, sql: str, parameters: Any) -> Any:
        """Run one statement for each set of parameters."""
        ...

    def submit(self, flow: Any, request: Any, *, key: str | None = None) -> str:
        """Submit another job that exists only if this transaction commits."""
        ...
