"""What happens next to a run: from the outcome of a step to the write that records it, and on from there.

No threads and no waiting here: the worker and the test driver both drive runs with these functions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, assert_never

import msgspec

from holdfast.core.ending import CLEANUP_POSITION, EndCode, disposition_after_error
from holdfast.core.flow import Definition, Flow, incompatibility
from holdfast.core.outcomes import (
    Abort,
    Done,
    Handoff,
    Outcome,
    Rewind,
    TryFailed,
    Unrecoverable,
    WaitFor,
    outcome_of_error,
    outcome_of_return,
)
from holdfast.core.records import Ending
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import Disposition, ExecutionStatus
from holdfast.crash_points import SimulatedCrash, crash_point
from holdfast.engine.endings import (
    ERROR_LIMIT,
    committed,
    describe,
    ended,
    failed_for_now,
    given_back,
    refused,
)
from holdfast.engine.following import Gone, Next, Perform, Send, Sleep
from holdfast.engine.run import CommitTransaction, LiveRun, writable
from holdfast.engine.telemetry import Telemetry
from holdfast.errors import (
    CycleError,
    JobNotFoundError,
    LeaseLost,
    StepCancelled,
    StepTimeout,
    WorkerStopping,
)
from holdfast.store.messages import (
    Begin,
    Claim,
    Commit,
    End,
    Finish,
    FinishStep,
    PlanEnding,
    RecordTry,
    ReportProgress,
    RewindTo,
    StoreTransaction,
    Write,
)
from holdfast.store.protocol import Store

PARK_AFTER = 60.0
"""A wait longer than this gives the lease and the queue slot back."""

RESPONSE_LIMIT = 4 << 20


_LAST_WORDS = (End, PlanEnding, RecordTry)
"""Writes that come of a failure. Were a refusal of one of them a failure, it would be followed by the next at once."""
_STEPS_FAULT = (CycleError, JobNotFoundError)
"""Refusals of an end that are the step's own doing: it asked to wait for a job that cannot be waited for."""

_encode = msgspec.json.Encoder().encode


class Executor:
    """Decides; holds nothing but the flows it knows."""

    def __init__(self, store: Store, flows: Mapping[str, Flow[Any, Any]], telemetry: Telemetry) -> None:
        self._store = store
        self._flows = flows
        self._telemetry = telemetry

    def admit(self, claim: Claim, report: Any) -> tuple[LiveRun | None, Next]:
        """A new lease: the run it starts, and what to do first. A job that cannot run here is quarantined."""
        flow = self._flows[claim.job.flow]
        self._telemetry.transition(flow.name, "pending", "running")
        try:
            run = LiveRun(claim, flow, self._store, report)
        except Exception as error:
            return None, Send(
                refused(claim, EndCode.DEFINITION_CHANGED, f"its request or response does not decode: {error}")
            )
        if claim.status is ExecutionStatus.LEASED:
            return run, self._begin(run)
        return run, self._first(run)

    def perform(self, run: LiveRun) -> Next:
        """Run the current step of a run here and now."""
        step = None if run.ending else run.current
        if step is not None and step.is_commit:
            return self.enter_commit(run)
        function = run.flow.cleanup if step is None else step.function
        assert function is not None
        if not self.enter(run):
            return self.conclude(run, self.stopped(run))
        return self.conclude(run, _outcome_of(lambda: function(run.as_saved()), run))

    async def perform_async(self, run: LiveRun) -> Next:
        """The same for an `async def` step."""
        function: Any = run.flow.cleanup if run.ending else run.current.function
        if not self.enter(run):
            return self.conclude(run, self.stopped(run))
        try:
            outcome = outcome_of_return(await function(run.as_saved()), run.response)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            outcome = outcome_of_error(error)
        return self.conclude(run, outcome)

    def enter(self, run: LiveRun) -> bool:
        """Begin a try, unless the run has been asked to stop; a cleanup stops only with its worker."""
        if run.stop_error is not None and (run.ending is None or isinstance(run.stop_error, WorkerStopping)):
            return False
        run.enter(self._store.now(), run.timeout)
        crash_point(f"step.{run.step}", "before")
        return True

    def stopped(self, run: LiveRun) -> Outcome:
        """The outcome of a step that was asked to stop before it began."""
        assert run.stop_error is not None
        run.visits += 1  # the time limit was set for this visit, and must not be found to be that of the next
        return TryFailed(run.stop_error)

    def conclude(self, run: LiveRun, outcome: Outcome) -> Next:
        """The step ended so: what is to be written."""
        if run.inside:
            crash_point(f"step.{run.step}", "after")
            seconds = time.monotonic() - run.step_began
            self._telemetry.step(run.flow.name, run.step, type(outcome).__name__.lower(), seconds)
        following = self._after_step(run, outcome) if run.ending is None else self._after_cleanup(run, outcome)
        run.inside = False
        return following

    def enter_commit(self, run: LiveRun) -> Next:
        """The commit step runs inside the store's transaction, as the effect of the write that commits the job."""
        if not self.enter(run):
            return self.conclude(run, self.stopped(run))
        step = run.current

        def effect(transaction: StoreTransaction) -> str:
            run.load_response()
            tx = CommitTransaction(transaction, self._store.now())
            outcome = _outcome_of(lambda: step.function(run, tx), run)
            if isinstance(outcome, (Done, Handoff)):
                response = run.response if outcome.response is None else outcome.response
                return _checked(run, response)
            raise outcome

        return Send(committed(run, EndCode.COMPLETED, effect=effect))

    def after_write(self, run: LiveRun, write: Write, answer: Exception | None) -> Next:
        """The write was applied (None), refused by the fence, or its effect raised: what comes next."""
        if isinstance(answer, LeaseLost):
            return Gone(lost=True)
        if answer is not None and isinstance(write, _LAST_WORDS) and not isinstance(answer, _STEPS_FAULT):
            return Gone(lost=True)  # the database takes nothing about this run: let the lease run out
        if answer is not None:
            return self.conclude(run, outcome_of_error(answer))
        match write:
            case Begin():
                return self._first(run)
            case FinishStep():
                run.saved_response = write.response
                run.move_to(write.position + 1)
                return Perform()
            case RecordTry():
                run.retry_at = write.retry_at
                return Sleep(write.retry_at)
            case RewindTo():
                run.move_to(write.position)
                return Perform()
            case PlanEnding():
                run.ending = write.ending
                run.tries = 0
                # What the step was stopped for is no reason to stop the cleanup.
                if isinstance(run.stop_error, (StepCancelled, StepTimeout)):
                    run.stop_error = None
                return Perform()
            case Commit():
                self._telemetry.transition(run.flow.name, "running", "committed")
                return Send(Finish(write.job_id, write.exec_id))
            case End() | Finish():
                self._count_end(run, write)
                return Gone()
            case ReportProgress():
                return Perform()
        assert_never(write)

    def abandon(self, run: LiveRun, error: Exception) -> list[Write]:
        """The step did not stop when asked: fence it off, so that nothing it still does can be recorded."""
        if isinstance(error, WorkerStopping):
            return [given_back(run, EndCode.ABANDONED)]
        step = self.conclude(run, TryFailed(error))
        assert isinstance(step, Send)
        write = step.write
        back = given_back(run, EndCode.TIMEOUT)
        match write:
            case RecordTry():
                return [msgspec.structs.replace(back, error=write.error, not_before=write.retry_at)]
            case PlanEnding():
                # The cleanup is left to the next execution, which the abandoned step cannot reach.
                return [write, msgspec.structs.replace(back, position=CLEANUP_POSITION, tries=0)]
            case _:
                return [write]

    # --- inside ---

    def _first(self, run: LiveRun) -> Next:
        if run.job.ending is not None:
            run.ending = msgspec.json.decode(run.job.ending, type=Ending)
            if run.flow.cleanup is None:  # a new version of the flow has none any more
                return Send(ended(run, run.ending, cleaned=True))
            return Perform()
        if run.job.cancel_reason is not None:
            return self._end(run, Disposition.FAILED, EndCode.CANCELLED, run.job.cancel_reason)
        if run.position >= len(run.flow.steps):
            return Send(
                refused(run.claim, EndCode.DEFINITION_CHANGED, "all steps are done, but none of them committed")
            )
        return Perform()

    def _begin(self, run: LiveRun) -> Next:
        definitions = self._store.definitions()
        old = msgspec.json.decode(definitions[run.job.fingerprint], type=Definition)
        done = [step.step for step in self._store.steps(run.job.job_id)]
        new = run.flow.definition
        why = None if run.job.ending else incompatibility(done, old, new)
        if why is not None:
            return Send(refused(run.claim, EndCode.DEFINITION_CHANGED, f"flow {new.flow} changed: {why}"))
        return Send(Begin(run.job.job_id, run.exec_id, new.fingerprint, _encode(new).decode()))

    def _after_step(self, run: LiveRun, outcome: Outcome) -> Next:
        try:
            return self._decide(run, outcome)
        except Exception as error:
            # What the step gave cannot be dealt with. That must end its job: were it to end the worker, the next one
            # would be given the same.
            problem = f"step {run.step} ended in a way that cannot be recorded: {describe(error)}"
            return self._end(run, Disposition.QUARANTINED, EndCode.UNRECOVERABLE, problem)

    def _decide(self, run: LiveRun, outcome: Outcome) -> Next:
        match outcome:
            case Done(response=response):
                return self._done(run, response)
            case Handoff(response=response):
                response = run.response if response is None else response
                return self._encoded(run, lambda text: committed(run, EndCode.HANDOFF, response=text), response)
            case Abort(reason=reason):
                return self._end(run, Disposition.FAILED, EndCode.ABORT, reason)
            case Unrecoverable(reason=reason):
                return self._end(run, Disposition.QUARANTINED, EndCode.UNRECOVERABLE, reason)
            case Rewind():
                return self._rewind(run, outcome)
            case WaitFor(job_id=job_id):
                waiting = given_back(run, EndCode.WAITING)
                return Send(msgspec.structs.replace(waiting, wait_for=job_id, tries=0, error=None))
            case TryFailed(error=error):
                return self._failed(run, error)
        assert_never(outcome)

    def _done(self, run: LiveRun, response: Any) -> Next:
        if run.position == len(run.flow.steps) - 1:
            return self._encoded(run, lambda text: committed(run, EndCode.COMPLETED, response=text), response)
        step = run.current.name

        def finished(text: str) -> Write:
            return FinishStep(run.job.job_id, run.exec_id, run.position, step, run.tries, run.step_started_at, text)

        return self._encoded(run, finished, response)

    def _encoded(self, run: LiveRun, write: Any, response: Any) -> Next:
        try:
            return Send(write(_checked(run, response)))
        except Unrecoverable as error:
            return self._end(run, Disposition.QUARANTINED, EndCode.UNRECOVERABLE, error.reason)

    def _rewind(self, run: LiveRun, outcome: Rewind) -> Next:
        names = run.flow.definition.steps
        if outcome.step not in names[: run.position + 1]:
            problem = f"step {run.step} asked to rewind to {outcome.step!r}, which is not an earlier step"
            return self._end(run, Disposition.QUARANTINED, EndCode.UNRECOVERABLE, problem)
        position = names.index(outcome.step)
        # The response goes back with the steps: what the target step began with is what it gets again.
        earlier = [step for step in run.patiently(self._store.steps) if step.position < position]
        run.saved_response = earlier[-1].response if earlier else None
        run.load_response()
        return Send(RewindTo(run.job.job_id, run.exec_id, position, outcome.step, outcome.reason))

    def _failed(self, run: LiveRun, error: BaseException) -> Next:
        text = describe(error)
        run.last_error = text
        if isinstance(error, WorkerStopping):
            return Send(given_back(run, EndCode.RELEASED))
        if isinstance(error, LeaseLost):
            return Gone(lost=True)
        if isinstance(error, StepCancelled):
            return self._end(run, Disposition.FAILED, EndCode.CANCELLED, str(error))
        policy = run.current.retry
        if not policy.is_used_up(run.tries):
            return self._again(run, policy, text, run.position)
        code = EndCode.TIMEOUT if isinstance(error, StepTimeout) else EndCode.ERROR
        disposition = disposition_after_error(run.job)
        problem = f"step {run.step} failed {run.tries} time(s): {text}"
        if disposition is not Disposition.RETRY:
            return self._end(run, disposition, code, problem)
        failures = run.job.failures - run.job.failures_forgiven
        delay = run.flow.job_retry.delay_before(failures + 2, chance=random.random())
        not_before = self._store.now() + round(delay * 1000)
        return Send(failed_for_now(run, code, problem, not_before=not_before))

    def _again(self, run: LiveRun, policy: RetryPolicy, error: str, position: int) -> Next:
        delay = policy.delay_before(run.tries + 1, chance=random.random())
        retry_at = self._store.now() + round(delay * 1000)
        run.log.warning("try %d failed, next in %.1f s: %s", run.tries, delay, error)
        if delay > PARK_AFTER:
            parked = given_back(run, EndCode.BACKING_OFF)
            return Send(msgspec.structs.replace(parked, error=error, not_before=retry_at))
        return Send(RecordTry(run.job.job_id, run.exec_id, position, run.tries, error, retry_at))

    def _end(self, run: LiveRun, disposition: Disposition, code: EndCode, error: str) -> Next:
        """End the job so: at once if the flow has no cleanup, else after it."""
        ending = Ending(disposition, code, writable(error)[:ERROR_LIMIT])
        if run.flow.cleanup is not None:
            return Send(PlanEnding(run.job.job_id, run.exec_id, ending, run.step))
        return Send(ended(run, ending, cleaned=False))

    def _after_cleanup(self, run: LiveRun, outcome: Outcome) -> Next:
        assert run.ending is not None
        if not isinstance(outcome, TryFailed):
            return Send(ended(run, run.ending, cleaned=True))
        if isinstance(outcome.error, WorkerStopping):
            return Send(given_back(run, EndCode.RELEASED))
        text = describe(outcome.error)
        if not run.flow.cleanup_retry.is_used_up(run.tries):
            return self._again(run, run.flow.cleanup_retry, f"cleanup: {text}", CLEANUP_POSITION)
        problem = f"{run.ending.error}; then cleanup failed {run.tries} time(s): {text}"
        failed = Ending(Disposition.QUARANTINED, EndCode.CLEANUP_FAILED, problem[:ERROR_LIMIT])
        return Send(ended(run, failed, cleaned=False))

    def _count_end(self, run: LiveRun, write: End | Finish) -> None:
        self._telemetry.execution(run.flow.name, time.monotonic() - run.began)
        states = ["running"]
        if isinstance(write, Finish):
            states.append("succeeded")
        else:
            states += [{"retry": "pending"}.get(d.value, d.value) for d in write.path]
        for before, after in pairwise(states):
            self._telemetry.transition(run.flow.name, before, after)


def _outcome_of(call: Callable[[], Any], run: LiveRun) -> Outcome:
    """How a call ended, whether it returned or raised; also the wish to exit, which is not a step's to have."""
    try:
        return outcome_of_return(call(), run.response)
    except SimulatedCrash:
        raise
    except BaseException as error:
        return outcome_of_error(error)


def _checked(run: LiveRun, response: Any) -> str:
    """The response as JSON that is sure to decode again; Unrecoverable if it is not the flow's response type."""
    try:
        text = _encode(response).decode()
        run.response = msgspec.json.decode(text, type=run.flow.response_type)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unrecoverable(f"step {run.step} returned a response that cannot be saved: {error}") from None
    if len(text) > RESPONSE_LIMIT:
        raise Unrecoverable(
            f"step {run.step} returned a response of {len(text):,} bytes, the limit is {RESPONSE_LIMIT:,}"
        )
    return text
