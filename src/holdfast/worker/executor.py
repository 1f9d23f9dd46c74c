"""What happens next to a run: from the outcome of a step to the write that records it, and on from there.

No threads and no waiting here: the worker and the test driver both drive runs with these functions.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from typing import Any, assert_never

import msgspec

from holdfast.core.flow import Definition, Flow, incompatibility
from holdfast.core.records import Ending, ErrorRecord, describe, record_of
from holdfast.core.retry import PARK_AFTER, RetryPolicy, wait_before
from holdfast.core.states import UNFINISHED_STATES, Disposition, ExecutionStatus
from holdfast.core.step import (
    CLEANUP_POSITION,
    Abort,
    Done,
    EndCode,
    Handoff,
    Outcome,
    Rewind,
    TryFailed,
    Unrecoverable,
    WaitFor,
    disposition_after_error,
    outcome_of_cleanup,
    outcome_of_error,
)
from holdfast.crash_points import SimulatedCrash, crash_point
from holdfast.errors import (
    CycleError,
    JobNotFoundError,
    LeaseLost,
    StepCancelled,
    StepTimeout,
    WorkerStopping,
    may_pass,
)
from holdfast.store.commands import (
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
from holdfast.worker.endings import (
    Gone,
    Next,
    Perform,
    Send,
    Sleep,
    UnreadableRun,
    checked_response,
    committed,
    ended,
    failed_for_now,
    failure_in,
    failure_of,
    given_back,
    outcome_of,
    outcome_of_async,
    refusal_of,
    refused,
)
from holdfast.worker.run import CommitTransaction, LiveRun, place_of, traceback_of
from holdfast.worker.telemetry import JobLog, Telemetry

POINTLESS_PAUSE = 1.0
"""Before a step is entered again that has asked to wait for a job which had ended already when it began."""


_LAST_WORDS = (End, PlanEnding, RecordTry)
"""Writes that come of a failure. Were a refusal of one of them a failure, it would be followed by the next at once."""
_STEPS_FAULT = (CycleError, JobNotFoundError)
"""Refusals of an end that are the step's own doing: it asked to wait for a job that cannot be waited for."""

_encode = msgspec.json.Encoder().encode


class Executor:
    """Decides; holds nothing but the flows it knows."""

    def __init__(
        self, store: Store, flows: Mapping[str, Flow[Any, Any]], telemetry: Telemetry, worker_id: str = ""
    ) -> None:
        self._store = store
        self._flows = flows
        self._telemetry = telemetry
        self._log = JobLog(worker_id)

    def admit(self, claim: Claim, report: Any) -> tuple[LiveRun | None, Next]:
        """A new lease: the run it starts, and what to do first. A job that cannot run here is quarantined.

        None of the user's code runs here. Raises what may pass if the database is away: then it can be tried again.
        """
        try:
            flow = self._flows[claim.job.flow]
            run = LiveRun(claim, flow, self._store, report)
            following = self._begin(run) if claim.status is ExecutionStatus.LEASED else self._first(run)
        except Exception as error:
            if may_pass(error):
                raise
            problem = f"it cannot be started: {describe(error)}"
            self._log.cannot_run(claim, error, problem)
            return None, Send(refused(claim, EndCode.DEFINITION_CHANGED, problem, traceback_of(error)))
        self._telemetry.claimed(claim, self._store.now())
        self._log.claimed(run)
        return run, following

    def perform(self, run: LiveRun) -> Next:
        """Run the current step of a run here and now."""
        step = None if run.ending else run.current
        if step is not None and step.is_commit:
            return self.enter_commit(run)
        function = run.flow.cleanup if step is None else step.function
        assert function is not None
        if not self.enter(run):
            return self.conclude(run, self.stopped(run))
        refusal = refusal_of(run)
        if refusal is not None:
            return self._refuse(run, refusal)
        return self.conclude(run, outcome_of(lambda: function(run.as_saved()), run))

    async def perform_async(self, run: LiveRun) -> Next:
        """The same for an `async def` step. GeneratorExit comes out of it, and has to be concluded by the caller."""
        function: Any = run.flow.cleanup if run.ending else run.current.function
        if not self.enter(run):
            return self.conclude(run, self.stopped(run))
        refusal = refusal_of(run)
        if refusal is not None:
            return self._refuse(run, refusal)
        return self.conclude(run, await outcome_of_async(function, run))

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
        traceback = failure_of(run, outcome)
        if run.ending is None:
            run.traceback = traceback
            following = self._after_step(run, outcome)
        else:
            following = self._after_cleanup(run, outcome, traceback)
        run.inside = False
        run.let_go_of_frames(outcome)
        return following

    def enter_commit(self, run: LiveRun) -> Next:
        """The commit step runs inside the store's transaction, as the effect of the write that commits the job."""
        if not self.enter(run):
            return self.conclude(run, self.stopped(run))
        step = run.current

        def effect(transaction: StoreTransaction) -> str:
            run.thread, run.step_began = threading.get_ident(), time.monotonic()
            refusal = refusal_of(run)
            if refusal is not None:
                raise Unrecoverable(refusal.problem)
            tx = CommitTransaction(transaction, self._store.now())

            def commit() -> Any:
                run.load_response()  # an effect that was taken back with its batch may have changed it in place
                return step.function(run, tx)

            outcome = outcome_of(commit, run)
            if isinstance(outcome, (Done, Handoff)):
                response = run.response if outcome.response is None else outcome.response
                ended_as = type(outcome).__name__.lower()
                outcome = outcome_of(lambda: checked_response(run, response), run)
                run.committed_as = ended_as, time.monotonic() - run.step_began
            if isinstance(outcome, Done):
                return str(outcome.response)
            try:
                raise outcome
            finally:
                del outcome  # it holds this frame, which holds the transaction

        return Send(committed(run, EndCode.COMPLETED, effect=effect))

    def after_write(self, run: LiveRun, write: Write, answer: Exception | None) -> Next:
        """The write was applied (None), refused by the fence, or its effect raised: what comes next."""
        if isinstance(answer, LeaseLost):
            self._log.refused(run)
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
                run.failures_by_kind.clear()
                # What the step was stopped for is no reason to stop the cleanup.
                if isinstance(run.stop_error, (StepCancelled, StepTimeout)):
                    run.stop_error = None
                return Perform()
            case Commit():
                if write.effect is not None:
                    self._telemetry.step(run.flow.name, write.step, *run.committed_as)
                run.inside = False
                run.end_code = write.code
                return Send(Finish(write.job_id, write.exec_id))
            case End() | Finish():
                self._telemetry.execution(run.flow.name, time.monotonic() - run.began)
                self._log.ended(run, write)
                return Gone()
            case ReportProgress():
                return Perform()
        assert_never(write)

    def abandon(self, run: LiveRun, error: Exception) -> list[Write]:
        """The step did not stop when asked: fence it off, so that nothing it still does can be recorded."""
        run.place = place_of(run)
        error.__traceback__ = None  # the step may have caught it once: that is not where it is now
        if isinstance(error, WorkerStopping):
            return [msgspec.structs.replace(given_back(run, EndCode.ABANDONED), traceback=run.place)]
        step = self.conclude(run, TryFailed(error))
        assert isinstance(step, Send)
        write = step.write
        back = given_back(run, EndCode.TIMEOUT)
        match write:
            case RecordTry():
                return [
                    msgspec.structs.replace(
                        back,
                        error=write.error,
                        not_before=write.retry_at,
                        traceback=write.traceback,
                        failure=write.failure,
                    )
                ]
            case PlanEnding():
                # The cleanup is left to the next execution, which the abandoned step cannot reach.
                return [write, msgspec.structs.replace(back, position=CLEANUP_POSITION, tries=0)]
            case End():
                self._log.ended(run, write)  # nobody waits for the answer to the write of an abandoned step
                return [write]
            case _:
                return [write]

    def give_up(self, claim: Claim, error: BaseException) -> End:
        """The engine itself failed on this job. It is set apart, or the next worker would be given the same."""
        problem = f"the engine could not deal with it: {describe(error)}"
        return refused(claim, EndCode.UNRECOVERABLE, problem, traceback_of(error))

    # --- inside ---

    def _refuse(self, run: LiveRun, refusal: UnreadableRun) -> Next:
        run.inside = False
        return Send(refused(run.claim, refusal.code, refusal.problem, run.traceback))

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
        except SimulatedCrash:
            raise
        except BaseException as error:
            # What the step gave cannot be dealt with. That must end its job: were it to end the worker, the next one
            # would be given the same.
            problem = f"step {run.step} ended in a way that cannot be recorded: {describe(error)}"
            run.traceback = traceback_of(error)
            self._log.try_failed(run, error, problem)
            failure = record_of(error, step=run.step)
            return self._end(run, Disposition.QUARANTINED, EndCode.UNRECOVERABLE, problem, failure)

    def _decide(self, run: LiveRun, outcome: Outcome) -> Next:
        match outcome:
            case Done(response=response):
                return self._done(run, response)
            case Handoff(response=response):
                response = run.response if response is None else response
                return self._encoded(run, lambda text: committed(run, EndCode.HANDOFF, response=text), response)
            case Abort(reason=reason):
                self._log.gave_up(run, outcome)
                return self._end(run, Disposition.FAILED, EndCode.ABORT, reason, failure_in(run, outcome))
            case Unrecoverable(reason=reason):
                self._log.gave_up(run, outcome)
                return self._end(run, Disposition.QUARANTINED, EndCode.UNRECOVERABLE, reason, failure_in(run, outcome))
            case Rewind():
                return self._rewind(run, outcome)
            case WaitFor(job_id=job_id):
                waiting = given_back(run, EndCode.WAITING)
                not_before = self._after_pointless_wait(run, job_id)
                return Send(
                    msgspec.structs.replace(waiting, wait_for=job_id, tries=0, error=None, not_before=not_before)
                )
            case TryFailed(error=error):
                return self._failed(run, error)
        assert_never(outcome)

    def _after_pointless_wait(self, run: LiveRun, awaited: str) -> int:
        """Of a job that had ended before the step began nothing new comes: the step would be entered at once, and ask
        for the same, without end. 0 if it can have seen something else.
        """
        try:
            job = self._store.job(awaited)
        except Exception:
            return 0  # who is not there is found out by the write
        if job.state in UNFINISHED_STATES or job.updated_at >= run.step_started_at:
            return 0
        return self._store.now() + round(POINTLESS_PAUSE * 1000)

    def _done(self, run: LiveRun, response: Any) -> Next:
        if run.position == len(run.flow.steps) - 1:
            return self._encoded(run, lambda text: committed(run, EndCode.COMPLETED, response=text), response)
        step = run.current.name

        def finished(text: str) -> Write:
            return FinishStep(run.job.job_id, run.exec_id, run.position, step, run.tries, run.step_started_at, text)

        return self._encoded(run, finished, response)

    def _encoded(self, run: LiveRun, write: Any, response: Any) -> Next:
        try:
            return Send(write(checked_response(run, response)))
        except Unrecoverable as error:
            failure = failure_in(run, error)
            return self._end(run, Disposition.QUARANTINED, EndCode.UNRECOVERABLE, error.reason, failure)

    def _rewind(self, run: LiveRun, outcome: Rewind) -> Next:
        names = run.flow.definition.steps
        if outcome.step not in names[: run.position + 1]:
            problem = f"step {run.step} asked to rewind to {outcome.step!r}, which is not an earlier step"
            failure = failure_in(run, Unrecoverable(problem))
            return self._end(run, Disposition.QUARANTINED, EndCode.UNRECOVERABLE, problem, failure)
        position = names.index(outcome.step)
        # The response goes back with the steps: what the target step began with is what it gets again.
        earlier = [step for step in run.patiently(self._store.steps) if step.position < position]
        run.saved_response = earlier[-1].response if earlier else None
        run.load_response()
        return Send(RewindTo(run.job.job_id, run.exec_id, position, outcome.step, outcome.reason))

    def _failed(self, run: LiveRun, error: BaseException) -> Next:
        text = describe(error)
        if isinstance(error, WorkerStopping):
            return self._released(run)
        if isinstance(error, LeaseLost):
            return Gone(lost=True)
        if isinstance(error, StepCancelled):
            return self._end(run, Disposition.FAILED, EndCode.CANCELLED, str(error))
        policy = run.current.retry
        if not policy.is_used_up(run.count_failure(policy, error), error):
            return self._again(run, policy, error, text, run.position)
        code = EndCode.TIMEOUT if isinstance(error, StepTimeout) else EndCode.ERROR
        disposition = disposition_after_error(run.job)
        problem = f"step {run.step} failed {run.tries} time(s): {text}"
        self._log.try_failed(run, error, text, last=disposition is not Disposition.RETRY)
        failure = record_of(error, step=run.step, tries=run.tries)
        if disposition is not Disposition.RETRY:
            return self._end(run, disposition, code, problem, failure)
        failures = run.job.failures - run.job.failures_forgiven
        delay = wait_before(run.flow.job_retry, failures + 2, chance=random.random())
        not_before = self._store.now() + round(delay * 1000)
        return Send(failed_for_now(run, code, problem, failure=failure, not_before=not_before))

    def _again(self, run: LiveRun, policy: RetryPolicy, error: BaseException, text: str, position: int) -> Next:
        delay = wait_before(policy, run.tries + 1, chance=random.random())
        retry_at = run.sleep(self._store.now(), delay)
        self._log.try_failed(run, error, text, delay=delay)
        failure = record_of(error, step=run.step, tries=run.tries)
        if delay > PARK_AFTER:
            parked = given_back(run, EndCode.BACKING_OFF)
            parked = msgspec.structs.replace(parked, error=text, not_before=retry_at, traceback=run.traceback)
            return Send(msgspec.structs.replace(parked, failure=failure))
        return Send(RecordTry(run.job.job_id, run.exec_id, position, run.tries, text, retry_at, run.traceback, failure))

    def _released(self, run: LiveRun) -> Next:
        run.retry_at = run.due_at(self._store.now())
        return Send(given_back(run, EndCode.RELEASED))

    def _end(
        self, run: LiveRun, disposition: Disposition, code: EndCode, error: str, failure: ErrorRecord | None = None
    ) -> Next:
        """End the job so: at once if the flow has no cleanup, else after it."""
        ending = Ending(disposition, code, error, failure)
        if run.flow.cleanup is not None:
            return Send(PlanEnding(run.job.job_id, run.exec_id, ending, run.step, run.traceback))
        return Send(ended(run, ending, cleaned=False))

    def _after_cleanup(self, run: LiveRun, outcome: Outcome, traceback: str | None) -> Next:
        assert run.ending is not None
        cleaned = outcome_of_cleanup(outcome)
        if isinstance(cleaned, Done):
            return Send(ended(run, run.ending, cleaned=True))
        if isinstance(cleaned.error, WorkerStopping):
            return self._released(run)
        text = describe(cleaned.error)
        run.add_traceback_of_cleanup(traceback or traceback_of(cleaned.error))
        policy = run.flow.cleanup_retry
        if not policy.is_used_up(run.count_failure(policy, cleaned.error), cleaned.error):
            return self._again(run, policy, cleaned.error, f"cleanup: {text}", CLEANUP_POSITION)
        self._log.try_failed(run, cleaned.error, f"cleanup: {text}")
        problem = f"{run.ending.error}; then cleanup failed {run.tries} time(s): {text}"
        failed = Ending(Disposition.QUARANTINED, EndCode.CLEANUP_FAILED, problem, run.ending.failure)
        return Send(ended(run, failed, cleaned=False))
