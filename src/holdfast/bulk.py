"""One action on every job that a filter matches, as a durable job of its own: progress, cancel and resume as of any.

What is acted on is what matched when it was submitted: a job that has changed since is passed over, and so is one in
whose journal this very action has been. So whoever goes on after a crash may begin anew, and acts on no job twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec

from holdfast.client import Client, given
from holdfast.core.flow import Flow
from holdfast.core.records import JobRecord, JournalEntry
from holdfast.core.retry import exponential
from holdfast.core.states import JobState
from holdfast.core.step import Run, Transaction
from holdfast.errors import BadInput, JobMovedOnError, JobNotFoundError, RowUnreadable, StateError
from holdfast.store.job_lists import JobFilter
from holdfast.store.session import GIVEN
from holdfast.views.records import BoundedCount
from holdfast.views.views import Views

Action = Literal["retry", "release", "cancel"]

NAME = "holdfast.bulk"
"""Of the flow, and of its queue, of which one job runs at a time."""
ACTED_ON: dict[str, tuple[JobState, ...]] = {
    "retry": (JobState.FAILED,),
    "release": (JobState.QUARANTINED,),
    "cancel": (JobState.PENDING, JobState.RUNNING),
}
PAGE = 200
SAMPLES = 5
REFUSALS_KEPT = 20
MARK = "bulk"
"""Under which each entry of an action in a journal names the job that acts."""
SLOWEST, FASTEST = 0.01, 1000.0
"""Jobs per second; one that were slower would be taken for stalled."""
PATIENCE = exponential(20)
"""With a database that is busy or away for a while: minutes, and what was done is not done again."""
LONGEST_NAP = 0.1


class BulkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, to what, why, and how fast."""

    action: Action
    filter: JobFilter
    reason: str
    actor: str
    as_of: int
    """What has changed since is passed over."""
    per_second: float


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A job that could not be acted on, and why."""

    job_id: str
    message: str


class BulkResponse(msgspec.Struct, kw_only=True):
    """What was done, counted by the try that came to the end: what one before it did is not counted again."""

    total: BoundedCount = BoundedCount(count=0)
    """What matched in the beginning."""
    done: int = 0
    passed_over: int = 0
    """They had changed since the action was submitted."""
    refused: int = 0
    refusals: list[Refusal] = []
    """The first of them."""


class BulkPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What an action would do."""

    counts: dict[str, BoundedCount]
    """What matches, by state."""
    acted_on: BoundedCount
    refused: BoundedCount
    """They match, and are in a state that the action is not for."""
    samples: list[JobRecord]
    """The newest of those that would be acted on."""


class Bulk:
    """Bulk actions of a client; registers their flow, so that an engine's worker runs them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._store = client.store
        self._views = Views(client)
        self.flow: Flow[BulkRequest, BulkResponse] = client.flows.get(NAME) or (
            Flow(NAME, request=BulkRequest, response=BulkResponse, queue=NAME)
            .start("count", self._count, retry=PATIENCE)
            .to("apply", self._apply, retry=PATIENCE)
            .commit("report", _report)
        )
        client.register(self.flow)

    def preview(self, wanted: JobFilter, action: Action) -> BulkPreview:
        """How many jobs match in each state, which of them the action is for, and some of these."""
        states = _states_of(action)
        counts = {state.value: self._counted(wanted, (state,)) for state in wanted.states or tuple(JobState)}
        meant = _narrowed(wanted, states, before=None)
        others = [count for state, count in counts.items() if JobState(state) not in states]
        return BulkPreview(
            counts=counts,
            acted_on=BoundedCount(count=0) if meant is None else self._counted(meant, meant.states),
            refused=BoundedCount(count=sum(one.count for one in others), capped=any(one.capped for one in others)),
            samples=[] if meant is None else self._store.list_jobs(meant, limit=SAMPLES).jobs,
        )

    def submit(
        self,
        wanted: JobFilter,
        action: Action,
        *,
        reason: str,
        actor: str | None = None,
        per_second: float = 50.0,
        job_id: str | None = None,
    ) -> str:
        """Act on all that matches now, in the background and not faster than that; the id of the job that does it."""
        _states_of(action)
        if not SLOWEST <= per_second <= FASTEST:
            raise BadInput(f"{per_second} jobs per second cannot be kept to", hint=f"from {SLOWEST:g} to {FASTEST:g}")
        request = BulkRequest(
            action=action,
            filter=wanted,
            reason=given(reason),
            actor=actor or self._client.actor,
            as_of=self._store.now(),
            per_second=per_second,
        )
        self._store.set_queue(NAME, max_running=1, actor=None)
        return self._client.submit_or_find(self.flow, request, job_id=job_id).job_id

    # --- the steps ---

    def _count(self, run: Run[BulkRequest, BulkResponse]) -> None:
        meant = _meant(run.request)
        run.response.total = BoundedCount(count=0) if meant is None else self._counted(meant, meant.states)

    def _apply(self, run: Run[BulkRequest, BulkResponse]) -> None:
        request = run.request
        response = run.response = BulkResponse(total=run.response.total)
        pace = _Pace(request.per_second)
        for job in self._matching(request):
            run.check()
            if job.job_id == run.job.job_id:
                continue  # it would cancel itself, and never come to an end
            if self._act(job, request, run.job.job_id, response):
                pace.keep(run)
            handled = response.done + response.passed_over + response.refused
            run.progress(handled, max(response.total.count, handled), f"{request.action}: {response.done}")

    def _matching(self, request: BulkRequest) -> Iterator[JobRecord]:
        """The newest first, page by page behind the last one: what joins the matching meanwhile is older news."""
        meant = _meant(request)
        beyond: str | None = None
        while meant is not None:
            found = self._store.list_jobs(meant, beyond=beyond, limit=PAGE)
            yield from found.jobs
            if found.more is None:
                return
            beyond = found.more

    def _act(self, job: JobRecord, request: BulkRequest, own_id: str, response: BulkResponse) -> bool:
        """Was anything asked of the store, so that the pace is to be kept?"""
        journal = self._store.journal(job.job_id)
        if not journal or _has_been(journal, own_id) or not _is_meant(journal, request):
            response.passed_over += 1
            return False
        try:
            self._ask(job, request, own_id, journal[-1].hash)
            response.done += 1
        except (JobMovedOnError, JobNotFoundError):
            response.passed_over += 1
        except (StateError, RowUnreadable) as error:
            response.refused += 1
            if len(response.refusals) < REFUSALS_KEPT:
                response.refusals = [*response.refusals, Refusal(job_id=job.job_id, message=str(error))]
        return True

    def _ask(self, job: JobRecord, request: BulkRequest, own_id: str, head: str) -> None:
        reason, metadata = request.reason, {MARK: own_id}
        if request.action == "cancel":
            # A running job moves on all the time, and is to be cancelled all the same.
            self._store.cancel(job.job_id, actor=request.actor, reason=reason, metadata=metadata)
            return
        self._store.retry(
            job.job_id,
            actor=request.actor,
            reason=reason,
            from_state=job.state,
            expected_head=head,
            metadata=metadata,
        )

    def _counted(self, wanted: JobFilter, states: tuple[JobState, ...]) -> BoundedCount:
        return self._views.count(msgspec.structs.replace(wanted, states=states))


class _Pace:
    """So many a second, counted from the first one."""

    def __init__(self, per_second: float) -> None:
        self._each = 1 / per_second
        self._next = time.monotonic()

    def keep(self, run: Run[BulkRequest, BulkResponse]) -> None:
        """Wait until the next one is due; StepStopped if the step is to stop meanwhile."""
        self._next = max(self._next + self._each, time.monotonic() - 1)
        while (left := self._next - time.monotonic()) > 0:
            run.check()
            time.sleep(min(left, LONGEST_NAP))


def _report(_run: Run[BulkRequest, BulkResponse], _tx: Transaction) -> None:
    """What was done is in the response."""


def _has_been(journal: Sequence[JournalEntry], own_id: str) -> bool:
    """Is this action on record in the journal? That it is told by its time is not enough: clocks are set back."""
    return any(own_id in entry.metadata and _given_with(entry).get(MARK) == own_id for entry in journal)


def _given_with(entry: JournalEntry) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(entry.metadata, type=dict[str, Any]).get(GIVEN)
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_meant(journal: Sequence[JournalEntry], request: BulkRequest) -> bool:
    """Has nothing happened to the job since, but that it went on running, if it is to be cancelled?"""
    states = _states_of(request.action)
    since = [entry for entry in journal if entry.at > request.as_of]
    return not since or (request.action == "cancel" and all(entry.job_from in states for entry in since))


def _states_of(action: str) -> tuple[JobState, ...]:
    if action not in ACTED_ON:
        raise BadInput(f"there is no bulk action {action!r}", hint=f"one of {', '.join(get_args(Action))}")
    return ACTED_ON[action]


def _meant(request: BulkRequest) -> JobFilter | None:
    return _narrowed(request.filter, _states_of(request.action), before=request.as_of + 1)


def _narrowed(wanted: JobFilter, states: tuple[JobState, ...], *, before: int | None) -> JobFilter | None:
    """The filter, of the jobs that the action is for and that were there; None if that is none."""
    chosen = tuple(state for state in states if state in (wanted.states or states))
    if not chosen:
        return None
    older = wanted.older_than if before is None else min(before, wanted.older_than or before)
    return msgspec.structs.replace(wanted, states=chosen, older_than=older)
