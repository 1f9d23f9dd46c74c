"""What a flow is: a name, a request, a response, and steps in order. The last write of a flow is its commit."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.core.retry import Duration, RetryPolicy, checked_count, exponential, fixed, never, policy_of, seconds_of
from holdfast.core.states import UNFINISHED_STATES, JobState
from holdfast.core.step import Abort, Run, StepOutcome, Transaction, WaitFor
from holdfast.core.values import Codec, Unique, checked_name, codec_of, key_lasts_ms
from holdfast.errors import DefinitionError, JobPrunedError

Req = TypeVar("Req")
Resp = TypeVar("Resp")

StepReturn: TypeAlias = Resp | StepOutcome | None
StepFunction: TypeAlias = Callable[[Run[Req, Resp]], StepReturn[Resp] | Awaitable[StepReturn[Resp]]]
CommitFunction: TypeAlias = Callable[[Run[Req, Resp], Transaction], StepReturn[Resp]]
Cleanup: TypeAlias = Callable[[Run[Req, Resp]], Awaitable[None] | None]

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


class OwnTables(Protocol):
    """Tables of the application, as `holdfast.tables` defines them."""

    name: str

    def open(self, place: Any, *, synchronous: str = ...) -> Any:
        """Make them, or bring them up to date."""
        ...


class Flow(Generic[Req, Resp]):
    """A durable state machine: `Flow(...).start(...).to(...).commit(...)` reads like what it does."""

    def __init__(
        self,
        name: str,
        *,
        request: type[Req],
        response: type[Resp],
        queue: str = "",
        unique: Unique = "unfinished",
        cleanup: Cleanup[Req, Resp] | None = None,
        cleanup_retry: RetryPolicy | int = DEFAULT_CLEANUP_RETRY,
        cleanup_timeout: Duration | None = None,
        initial: Callable[[Req], Resp] | None = None,
        version: str = "1",
        job_retry: RetryPolicy | int = DEFAULT_RETRY,
        crash_limit: int = DEFAULT_CRASH_LIMIT,
        stall_after: Duration = DEFAULT_STALL_AFTER,
        tables: Sequence[OwnTables] = (),
    ) -> None:
        self.name = checked_name(name, "flow")
        self.request_type = request
        self.response_type = response
        self.queue = checked_name(queue, "queue") if queue else ""
        self.unique = unique
        self.cleanup = cleanup
        self.cleanup_is_async = _is_async(cleanup)
        self.version = version
        self.tables = tuple(tables)
        """What the commit step writes to: made before a job of this flow is run, and no part of its definition."""
        with _said_of(f"flow {name}"):
            self.key_lasts_ms = key_lasts_ms(unique)
            self.cleanup_retry = policy_of(cleanup_retry, "cleanup_retry")
            self.cleanup_timeout = _positive(cleanup_timeout, "cleanup_timeout")
            self.job_retry = policy_of(job_retry, "job_retry")
            self.crash_limit = checked_count(crash_limit, "crash_limit", least=1)
            self.stall_after = _positive(stall_after, "stall_after") or DEFAULT_STALL_AFTER
        self._steps: list[Step] = []
        self._definition: Definition | None = None
        self._fingerprint: str | None = None
        self._codecs: dict[str, Codec[Any]] = {}
        with suppress(NameError):
            # A type that names another one, defined further below, is judged when the flow is registered.
            self._check_types()
        self._check_settings(initial)
        self._initial = initial or self._initial_from_type()

    def start(
        self,
        name: str,
        function: StepFunction[Req, Resp],
        *,
        retry: RetryPolicy | int = DEFAULT_RETRY,
        timeout: Duration | None = None,
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
        retry: RetryPolicy | int = DEFAULT_RETRY,
        timeout: Duration | None = None,
    ) -> Flow[Req, Resp]:
        """The next step."""
        if not self._steps:
            raise DefinitionError(f"flow {self.name}: to({name!r}) has nothing before it", hint="begin with .start")
        return self._add(name, function, retry, timeout, is_commit=False)

    def commit(
        self, name: str, function: CommitFunction[Req, Resp], *, retry: RetryPolicy | int = DEFAULT_RETRY
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

    def first_response(self, request: Req) -> Resp:
        """The response before any step has run."""
        return self._initial(request)

    @property
    def request_codec(self) -> Codec[Req]:
        """Writes and reads requests."""
        return self._codec("request", self.request_type)

    @property
    def response_codec(self) -> Codec[Resp]:
        """Writes and reads responses."""
        return self._codec("response", self.response_type)

    def check_complete(self) -> None:
        """Raise DefinitionError unless the flow can run."""
        if not self._steps:
            raise DefinitionError(f"flow {self.name} has no steps", hint="add .start(...)")
        try:
            self._check_types()
        except NameError as error:
            raise DefinitionError(f"flow {self.name}: {error}", hint="define the types it names before it") from None

    def _add(
        self,
        name: str,
        function: Callable[..., Any],
        retry: RetryPolicy | int,
        timeout: Duration | None,
        *,
        is_commit: bool,
    ) -> Flow[Req, Resp]:
        checked_name(name, "step")
        if any(step.name == name for step in self._steps):
            raise DefinitionError(f"flow {self.name} has two steps named {name!r}", hint="give each its own name")
        if self._steps and self._steps[-1].is_commit:
            raise DefinitionError(f"flow {self.name}: {name!r} comes after the commit step, which must be the last")
        with _said_of(f"flow {self.name}: step {name!r}"):
            _check_function(function, "its function", ("run", "tx") if is_commit else ("run",))
            policy, limit = policy_of(retry, "retry"), _positive(timeout, "timeout")
        self._definition = self._fingerprint = None
        self._steps.append(Step(name, function, policy, limit, is_commit, _is_async(function)))
        return self

    def _codec(self, what: str, kind: Any) -> Codec[Any]:
        if what not in self._codecs:
            self._codecs[what] = codec_of(kind, f"flow {self.name}: {what}")
        return self._codecs[what]

    def _check_types(self) -> None:
        """Raise DefinitionError if requests or responses cannot be written, NameError if that cannot be told yet."""
        self._codec("request", self.request_type)
        self._codec("response", self.response_type)

    def _check_settings(self, initial: object) -> None:
        if not isinstance(self.version, str):
            raise DefinitionError(f"flow {self.name}: version {self.version!r} is not text", hint='version="2"')
        if self.job_retry.limits:
            raise DefinitionError(
                f"flow {self.name}: job_retry has limits for errors, but counts executions", hint="give them to a step"
            )
        for what, function in (("cleanup", self.cleanup), ("initial", initial)):
            if function is not None:
                _check_function(function, f"flow {self.name}: {what}", ("run" if what == "cleanup" else "request",))

    def _initial_from_type(self) -> Callable[[Req], Resp]:
        response_type: Any = self.response_type
        if response_type is None or response_type is type(None):
            return lambda _request: None  # type: ignore[return-value]
        try:
            response_type()
        except Exception as error:
            name, problem = getattr(response_type, "__name__", response_type), " ".join(str(error).split())
            raise DefinitionError(
                f"flow {self.name}: {name} cannot be made without arguments ({problem})",
                hint="give its fields defaults, or pass initial=lambda request: ...",
            ) from None
        return lambda _request: response_type()


def _is_async(function: object) -> bool:
    """Is it `async def`, or an object whose `__call__` is?"""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@contextmanager
def _said_of(place: str) -> Iterator[None]:
    """Name the place in a DefinitionError that comes out of here."""
    try:
        yield
    except DefinitionError as error:
        raise DefinitionError(f"{place}: {error}", hint=error.hint) from None


def _positive(duration: Duration | None, what: str) -> float | None:
    if duration is None:
        return None
    amount = seconds_of(duration, what, error=DefinitionError)
    if round(amount * 1000) < 1:
        raise DefinitionError(f"{what} {duration!r} is not positive", hint="a millisecond is the least")
    return amount


def _check_function(function: object, what: str, arguments: tuple[str, ...]) -> None:
    """Raise DefinitionError for what cannot be called with these, or would only make a generator."""
    if not callable(function):
        raise DefinitionError(f"{what} is not a function: {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{what} is a generator, which nobody would run", hint="return in the place of yield")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of a function in C, say: nothing is known
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise DefinitionError(f"{what} cannot be called with ({', '.join(arguments)}): {error}") from None


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


# --- Flows one after the other, as one parent job: the response of each makes the request of the next ---


STAGE_RETRY = exponential(5, delay=0.5)
"""A stage only submits and looks: what fails there is mostly a database that is busy."""


class StageResult(msgspec.Struct, kw_only=True):
    """How one stage of a pipeline ended."""

    job_id: str
    state: str
    outcome: str
    seconds: float
    response: Any = None


class PipelineResponse(msgspec.Struct, kw_only=True):
    """The response of a pipeline: the stages that have ended, in order."""

    stages: dict[str, StageResult] = {}


class PipelineView(Generic[Req]):
    """What the mapping of a stage sees: the pipeline's request and the typed responses so far."""

    def __init__(self, request: Req, responses: dict[str, Any]) -> None:
        self.request = request
        self.responses = responses

    @property
    def previous(self) -> Any:
        """The response of the stage before; None for the first."""
        return next(reversed(self.responses.values()), None)


RequestOf = Callable[[PipelineView[Req]], Any]
KeyOf = Callable[[PipelineView[Req]], str | None]


class Pipeline(Flow[Req, PipelineResponse]):
    """`Pipeline("process", request=R).then(flow_a, request=...).then(flow_b, request=...)`.

    While a stage runs the pipeline holds neither worker nor slot; it goes on when the stage has ended.
    Crash: the child of a stage is submitted once, whatever happens in between.
    """

    def __init__(self, name: str, *, request: type[Req], **settings: Any) -> None:
        super().__init__(name, request=request, response=PipelineResponse, **settings)
        self.stages: dict[str, Flow[Any, Any]] = {}

    def then(
        self,
        flow: Flow[Any, Any],
        *,
        request: RequestOf[Req],
        name: str | None = None,
        key: KeyOf[Req] | None = None,
    ) -> Pipeline[Req]:
        """Run `flow` next, with the request made by `request(view)`, deduplicated by `key(view)`."""
        stage = checked_name(name or flow.name, "stage")
        if stage in self.stages:
            raise DefinitionError(f"pipeline {self.name} has two stages named {stage!r}", hint="pass name=")
        self.stages[stage] = flow

        def run_stage(run: Run[Req, PipelineResponse]) -> PipelineResponse:
            view = PipelineView(run.request, self._responses(run.response))
            child = run.submit_child(stage, flow, request(view), key=key(view) if key else None)
            try:
                result = run.child_result(child)
            except JobPrunedError as error:
                # Its key lasts longer than it was kept: it will not be done again, and its answer is gone.
                raise Abort(f"stage {stage}: {error}") from None
            if result.state in UNFINISHED_STATES:
                raise WaitFor(child)
            if result.state is not JobState.SUCCEEDED:
                reason = result.reason or "no reason recorded"
                raise Abort(f"stage {stage} (job {child}) is {result.state}: {reason}", error=result.error)
            stages = dict(run.response.stages)
            stages[stage] = StageResult(
                job_id=child,
                state=result.state,
                outcome=result.outcome or "completed",
                seconds=result.seconds,
                response=msgspec.json.decode(result.response or "null"),
            )
            return PipelineResponse(stages=stages)

        add = self.to if self._steps else self.start
        add(stage, run_stage, retry=STAGE_RETRY)
        return self

    def _responses(self, response: PipelineResponse) -> dict[str, Any]:
        codecs = {stage: flow.response_codec for stage, flow in self.stages.items()}
        return {stage: codecs[stage].convert(result.response) for stage, result in response.stages.items()}
