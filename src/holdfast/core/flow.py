"""What a flow is: a name, a request, a response, and steps in order. The last write of a flow is its commit."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from holdfast.core.names import checked_name
from holdfast.core.outcomes import StepOutcome
from holdfast.core.retry import RetryPolicy, fixed, never
from holdfast.core.run import Run, Transaction
from holdfast.errors import DefinitionError

Req = TypeVar("Req")
Resp = TypeVar("Resp")

StepReturn: TypeAlias = Resp | StepOutcome | None
StepFunction: TypeAlias = Callable[[Run[Req, Resp]], StepReturn[Resp] | Awaitable[StepReturn[Resp]]]
CommitFunction: TypeAlias = Callable[[Run[Req, Resp], Transaction], StepReturn[Resp]]
Cleanup: TypeAlias = Callable[[Run[Req, Resp]], object]

DEFAULT_RETRY = never()
DEFAULT_CLEANUP_RETRY = fixed(2)
DEFAULT_STALL_AFTER = 600.0
DEFAULT_CRASH_LIMIT = 5


class Step(msgspec.Struct, frozen=True):
    """One named stage of a flow."""

    name: str
    function: Callable[..., Any]
    retry: RetryPolicy
    timeout: float | None
    is_commit: bool
    is_async: bool


class Definition(msgspec.Struct, frozen=True):
    """What is pinned to each job of a flow: enough to tell whether it can go on under another definition."""

    flow: str
    version: str
    steps: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """A short hash of the definition."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class Flow(Generic[Req, Resp]):
    """A durable state machine: `Flow(...).start(...).to(...).commit(...)` reads like what it does."""

    def __init__(
        self,
        name: str,
        *,
        request: type[Req],
        response: type[Resp],
        queue: str = "",
        cleanup: Cleanup[Req, Resp] | None = None,
        cleanup_retry: RetryPolicy = DEFAULT_CLEANUP_RETRY,
        cleanup_timeout: float | None = None,
        initial: Callable[[Req], Resp] | None = None,
        version: str = "1",
        job_retry: RetryPolicy = DEFAULT_RETRY,
        crash_limit: int = DEFAULT_CRASH_LIMIT,
        stall_after: float = DEFAULT_STALL_AFTER,
    ) -> None:
        self.name = checked_name(name, "flow")
        self.request_type = request
        self.response_type = response
        self.queue = checked_name(queue, "queue") if queue else ""
        self.cleanup = cleanup
        self.cleanup_is_async = _is_async(cleanup)
        self.cleanup_retry = cleanup_retry
        self.cleanup_timeout = cleanup_timeout
        self.version = version
        self.job_retry = job_retry
        self.crash_limit = crash_limit
        self.stall_after = stall_after
        self._steps: list[Step] = []
        self._definition: Definition | None = None
        self._fingerprint: str | None = None
        self._initial = initial or self._initial_from_type()
        if crash_limit < 1 or stall_after <= 0:
            raise DefinitionError(f"flow {name}: crash_limit must be at least 1 and stall_after positive")

    def start(
        self,
        name: str,
        function: StepFunction[Req, Resp],
        *,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout: float | None = None,
    ) -> Flow[Req, Resp]:
        """The first step."""
        if self._steps:
            previous = self._steps[-1].name
            raise DefinitionError(f"flow {self.name}: start({name!r}) comes after {previous!r}", hint="use .to")
        return self._add(name, function, retry, timeout, is_commit=False)

    def to(
        self,
        name: str,
        function: StepFunction[Req, Resp],
        *,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout: float | None = None,
    ) -> Flow[Req, Resp]:
        """The next step."""
        if not self._steps:
            raise DefinitionError(f"flow {self.name}: to({name!r}) has nothing before it", hint="begin with .start")
        return self._add(name, function, retry, timeout, is_commit=False)

    def commit(
        self, name: str, function: CommitFunction[Req, Resp], *, retry: RetryPolicy = DEFAULT_RETRY
    ) -> Flow[Req, Resp]:
        """The last step: its effect on the database and the commit of the job are one transaction."""
        if _is_async(function):
            raise DefinitionError(
                f"flow {self.name}: commit step {name!r} is async, but it runs while the database is locked for it",
                hint="do slow work in a step before, and keep the commit step a plain function",
            )
        return self._add(name, function, retry, None, is_commit=True)

    @property
    def steps(self) -> Sequence[Step]:
        """The steps, in order."""
        return self._steps

    @property
    def definition(self) -> Definition:
        """What is pinned to each job."""
        if self._definition is None:
            self._definition = Definition(self.name, self.version, tuple(step.name for step in self._steps))
        return self._definition

    @property
    def fingerprint(self) -> str:
        """Hash of the definition."""
        if self._fingerprint is None:
            self._fingerprint = self.definition.fingerprint
        return self._fingerprint

    def position_of(self, step: str) -> int:
        """The index of the step of that name."""
        for position, candidate in enumerate(self._steps):
            if candidate.name == step:
                return position
        names = ", ".join(self.definition.steps)
        raise DefinitionError(f"flow {self.name} has no step {step!r}", hint=f"it has: {names}")

    def first_response(self, request: Req) -> Resp:
        """The response before any step has run."""
        return self._initial(request)

    def check_complete(self) -> None:
        """Raise DefinitionError unless the flow can run."""
        if not self._steps:
            raise DefinitionError(f"flow {self.name} has no steps", hint="add .start(...)")
        for kind in (self.request_type, self.response_type):
            # Also because msgspec prepares a type at its first use, which must not happen in two threads at once.
            try:
                msgspec.json.Decoder(kind)
            except (TypeError, NameError) as error:
                raise DefinitionError(
                    f"flow {self.name}: {kind!r} cannot be written as JSON: {error}",
                    hint="use a msgspec.Struct, a dataclass or plain types",
                ) from None

    def _add(
        self, name: str, function: Callable[..., Any], retry: RetryPolicy, timeout: float | None, *, is_commit: bool
    ) -> Flow[Req, Resp]:
        checked_name(name, "step")
        if any(step.name == name for step in self._steps):
            raise DefinitionError(f"flow {self.name} has two steps named {name!r}", hint="give each its own name")
        if self._steps and self._steps[-1].is_commit:
            raise DefinitionError(f"flow {self.name}: {name!r} comes after the commit step, which must be the last")
        if timeout is not None and timeout <= 0:
            raise DefinitionError(f"flow {self.name}: timeout of {name!r} must be positive")
        if not callable(function):
            raise DefinitionError(f"flow {self.name}: step {name!r} is not a function")
        self._definition = self._fingerprint = None
        self._steps.append(Step(name, function, retry, timeout, is_commit, _is_async(function)))
        return self

    def _initial_from_type(self) -> Callable[[Req], Resp]:
        response_type: Any = self.response_type
        if response_type is None or response_type is type(None):
            return lambda _request: None  # type: ignore[return-value]
        try:
            response_type()
        except TypeError as error:
            raise DefinitionError(
                f"flow {self.name}: {response_type.__name__} cannot be made without arguments ({error})",
                hint="give its fields defaults, or pass initial=lambda request: ...",
            ) from None
        return lambda _request: response_type()


def _is_async(function: object) -> bool:
    """Is it `async def`, or an object whose `__call__` is?"""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def incompatibility(done: Sequence[str], old: Definition, new: Definition) -> str | None:
    """Why a job with these finished steps cannot go on under `new`, or None if it can.

    Steps that have not run may change; steps that have run must still be the first ones.
    """
    if not done:
        return None
    if old.version != new.version:
        return f"version changed from {old.version!r} to {new.version!r} after {len(done)} step(s) had finished"
    for position, name in enumerate(done):
        now = new.steps[position] if position < len(new.steps) else None
        if now != name:
            return f"finished step {position + 1} was {name!r} and is now {now!r}"
    if len(done) == len(new.steps):
        return f"all {len(done)} finished steps are there, but nothing is left to commit"
    return None
