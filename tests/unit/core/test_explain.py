"""Every job can be explained: a stable code, a sentence, and the facts behind them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.explain import ExplainFacts, Explanation, ReasonCode, explain, iso_utc
from holdfast.core.progress import current_step
from holdfast.core.records import Ending, ExecutionRecord, JobRecord, QueueRecord
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import EndCode
from tests.support.facts import JOB_ID, LEASE_MS, START, Life, a_job, a_row, an_execution, lives, replace

OTHER = "01HYYYYYYYYYYYYYYYYYYYYYYY"
LATER = START + 90_000  # 2023-11-14T22:14:50Z
R = ReasonCode


def explained(job: JobRecord, *executions: ExecutionRecord, **facts: Any) -> Explanation:
    plain: dict[str, Any] = {"now": START, "live_flows": frozenset({"demo"}), "queue": QueueRecord(name="")}
    return explain(ExplainFacts(job=job, executions=executions, **plain | facts))


def ended(code: EndCode, error: str | None = None, **fields: Any) -> ExecutionRecord:
    return an_execution(ExecutionStatus.ABORTED, code=code, error=error, **fields)


# --- ended -----------------------------------------------------------------------------------------------


def test_a_succeeded_job_says_since_when() -> None:
    answer = explained(a_job(JobState.SUCCEEDED), an_execution(ExecutionStatus.DONE, finished_at=LATER))

    assert answer.code is R.SUCCEEDED
    assert answer.sentence == "It succeeded at 2023-11-14T22:14:50Z."


@pytest.mark.parametrize(
    "state, end_code, code",
    [
        (JobState.FAILED, EndCode.ABORT, R.FAILED),
        (JobState.FAILED, EndCode.FORCED, R.FAILED),
        (JobState.FAILED, EndCode.CANCELLED, R.CANCELLED),
        (JobState.FAILED, EndCode.PREDECESSOR, R.PREDECESSOR_FAILED),
        (JobState.QUARANTINED, EndCode.UNRECOVERABLE, R.QUARANTINED),
        (JobState.QUARANTINED, EndCode.ERROR, R.QUARANTINED),
        (JobState.QUARANTINED, EndCode.DEFINITION_CHANGED, R.DEFINITION_CHANGED),
    ],
)
def test_an_ended_job_is_explained_by_its_last_execution(state: JobState, end_code: EndCode, code: ReasonCode) -> None:
    job = a_job(state, attempt=2, run_after=OTHER)
    answer = explained(job, ended(EndCode.CRASHED), ended(end_code, "disk on fire", attempt=2))

    assert answer.code is code
    assert answer.details["end_code"] == end_code
    assert ("disk on fire" if code is not R.PREDECESSOR_FAILED else OTHER) in answer.sentence


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.QUARANTINED, JobState.SUCCEEDED])
def test_an_ended_job_without_a_record_of_its_end_is_still_explained(state: JobState) -> None:
    assert explained(a_job(state)).code == state.value


# --- running ---------------------------------------------------------------------------------------------


def test_a_running_job_says_who_works_on_it_and_until_when_the_lease_holds() -> None:
    answer = explained(a_job(JobState.RUNNING), an_execution(ExecutionStatus.IN_PROGRESS))

    assert answer.code is R.RUNNING
    assert "pid 4711 on host-a" in answer.sentence
    assert iso_utc(START + LEASE_MS) in answer.sentence
    assert answer.details["lease_expires_at"] == START + LEASE_MS


def test_a_worker_whose_process_has_ended_outweighs_its_lease() -> None:
    answer = explained(a_job(JobState.RUNNING), an_execution(ExecutionStatus.IN_PROGRESS), owner_is_gone=True)

    assert answer.code is R.WORKER_GONE
    assert "pid 4711 on host-a, is gone" in answer.sentence


def test_a_running_job_says_which_step_it_is_in_and_how_far() -> None:
    current = current_step(a_row(progress='{"step":"two","done":1,"total":4,"note":"slowly"}', tries=2, position=1))
    running = an_execution(ExecutionStatus.IN_PROGRESS)
    answer = explained(a_job(JobState.RUNNING), running, current=current, tries_allowed=5)

    assert f"is in step two (2 of 3) since {iso_utc(START + 5)}, try 3 of 5, 25 % (1 of 4), slowly" in answer.sentence
    assert answer.details["progress"] == {"step": "two", "done": 1, "total": 4, "note": "slowly"}


def test_a_failed_job_says_where_its_traceback_is() -> None:
    traced = explained(a_job(JobState.FAILED), ended(EndCode.ABORT, "no", traceback="Traceback ..."))
    untraced = explained(a_job(JobState.FAILED), ended(EndCode.ABORT, "no"))

    assert f"where it failed: holdfast job show {JOB_ID}" in traced.sentence
    assert "job show" not in untraced.sentence


def test_a_committed_job_is_being_finalized_even_after_its_lease() -> None:
    answer = explained(a_job(JobState.RUNNING), an_execution(ExecutionStatus.COMMITTED), now=START + LEASE_MS)

    assert answer.code is R.FINALIZING


def test_a_lease_that_ran_out_outweighs_a_wish_to_cancel_and_a_retry() -> None:
    execution = an_execution(ExecutionStatus.IN_PROGRESS, retry_at=LATER * 2)
    answer = explained(a_job(JobState.RUNNING, cancel_reason="typo"), execution, now=START + LEASE_MS)

    assert answer.code is R.LEASE_EXPIRED
    assert "held by pid 4711 on host-a, ran out at" in answer.sentence


def test_a_job_being_cancelled_says_why_before_it_says_that_it_backs_off() -> None:
    execution = an_execution(ExecutionStatus.IN_PROGRESS, retry_at=LATER)
    answer = explained(a_job(JobState.RUNNING, cancel_reason="typo"), execution)

    assert answer.code is R.CANCELLING
    assert "cancelled: typo" in answer.sentence


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PENDING])
def test_a_job_on_its_way_down_says_how_it_will_end(state: JobState) -> None:
    ending = msgspec.json.encode(Ending(Disposition.FAILED, "abort", "no such bucket")).decode()
    executions = [an_execution(ExecutionStatus.IN_PROGRESS)] if state is JobState.RUNNING else []
    answer = explained(a_job(state, ending=ending), *executions)

    assert answer.code is R.CANCELLING
    assert answer.details["ending"] == "abort: no such bucket"


def test_an_ending_that_cannot_be_read_is_shown_as_it_is() -> None:
    assert explained(a_job(ending="{]")).details["ending"] == "{]"


@pytest.mark.parametrize("allowed, said", [(5, "Try 2 of 5 of a step"), (None, "Try 2 of a step")])
def test_a_step_that_backs_off_says_until_when_which_try_and_why(allowed: int | None, said: str) -> None:
    execution = an_execution(ExecutionStatus.IN_PROGRESS, tries=2, retry_at=LATER, error="ConnectionError: reset")
    answer = explained(a_job(JobState.RUNNING), execution, tries_allowed=allowed)

    assert answer.code is R.BACKING_OFF
    assert answer.sentence.startswith(said)
    assert "ConnectionError: reset" in answer.sentence
    assert iso_utc(LATER) in answer.sentence


def test_a_retry_that_is_due_is_running() -> None:
    execution = an_execution(ExecutionStatus.IN_PROGRESS, tries=2, retry_at=START)

    assert explained(a_job(JobState.RUNNING), execution).code is R.RUNNING


def test_a_running_job_with_nothing_under_way_is_called_inconsistent() -> None:
    assert explained(a_job(JobState.RUNNING)).code is R.INCONSISTENT


# --- pending ---------------------------------------------------------------------------------------------


def test_a_job_with_nothing_in_its_way_is_ready() -> None:
    answer = explained(a_job())

    assert answer.code is R.READY
    assert answer.details["also"] is None


@pytest.mark.parametrize("hold, code", [("after", R.WAITING_FOR_JOB), ("child", R.WAITING_FOR_CHILD)])
def test_a_waiting_job_names_the_job_it_waits_for(hold: str, code: ReasonCode) -> None:
    other = a_job(JobState.RUNNING, job_id=OTHER, flow="fetch")
    answer = explained(a_job(hold=hold, waits_for=OTHER), predecessor=other)

    assert answer.code is code
    assert f"job {OTHER} (fetch), which is running" in answer.sentence
    assert answer.details["waits_for_state"] == "running"


@pytest.mark.parametrize("predecessor", [None, a_job(job_id="01HXXXXXXXXXXXXXXXXXXXXXXX")])
def test_a_job_that_waits_for_one_nobody_knows_says_so(predecessor: JobRecord | None) -> None:
    answer = explained(a_job(hold="after", waits_for=OTHER), predecessor=predecessor)

    assert f"job {OTHER} (not in the database)" in answer.sentence


def test_a_job_submitted_for_later_is_scheduled() -> None:
    answer = explained(a_job(hold="until", not_before=LATER))

    assert answer.code is R.SCHEDULED
    assert answer.sentence == "It is not to start before 2023-11-14T22:14:50Z."


def test_a_job_whose_time_has_come_is_ready() -> None:
    assert explained(a_job(hold="until", not_before=START)).code is R.READY


def test_a_time_that_was_waived_does_not_hold_the_job() -> None:
    assert explained(a_job(hold="none", not_before=LATER)).code is R.READY


def test_a_job_that_failed_and_will_be_tried_again_backs_off() -> None:
    job = a_job(hold="until", not_before=LATER, failures=4, failures_forgiven=2, failure_limit=3, attempt=4)
    answer = explained(job, ended(EndCode.ERROR, "OSError: no space", attempt=4))

    assert answer.code is R.BACKING_OFF
    assert "(2 of 3 failures so far): OSError: no space" in answer.sentence


def test_a_job_that_gave_its_slot_back_while_a_step_backs_off_says_which_try() -> None:
    latest = ended(EndCode.BACKING_OFF, "TimeoutError", tries=3)
    answer = explained(a_job(hold="until", not_before=LATER), latest, tries_allowed=6)

    assert answer.code is R.BACKING_OFF
    assert "Try 3 of 6" in answer.sentence


@pytest.mark.parametrize("code", [EndCode.WAITING, EndCode.RELEASED])
def test_a_job_that_only_stopped_is_scheduled_and_not_backing_off(code: EndCode) -> None:
    assert explained(a_job(hold="until", not_before=LATER), ended(code)).code is R.SCHEDULED


def test_a_paused_queue_says_by_whom_and_why() -> None:
    queue = QueueRecord(name="downloads", paused_at=START, paused_by="alice", paused_reason="bucket is moving")
    answer = explained(a_job(queue="downloads"), queue=queue)

    assert answer.code is R.QUEUE_PAUSED
    assert answer.sentence == "Queue 'downloads' was paused by alice at 2023-11-14T22:13:20Z: bucket is moving."


def test_a_full_queue_says_who_holds_the_slots() -> None:
    queue = QueueRecord(name="downloads", max_running=1, running=1)
    holder = an_execution(ExecutionStatus.IN_PROGRESS, job_id=OTHER)
    answer = explained(a_job(queue="downloads"), queue=queue, queue_holders=(holder,))

    assert answer.code is R.QUEUE_FULL
    assert "1 of 1 slots are taken, held by job " + OTHER + " (pid 4711 on host-a)" in answer.sentence


def test_many_holders_are_counted_in_the_sentence_and_listed_in_the_details() -> None:
    queue = QueueRecord(name="downloads", max_running=8, running=8)
    holders = tuple(an_execution(ExecutionStatus.LEASED, job_id=f"job-{n}") for n in range(8))
    answer = explained(a_job(queue="downloads"), queue=queue, queue_holders=holders)

    assert "and 3 more" in answer.sentence
    assert "job-7" not in answer.sentence
    assert "job-7" in str(answer.details["holders"])


@pytest.mark.parametrize("running, limit, code", [(0, 0, R.QUEUE_FULL), (1, 2, R.READY), (9, None, R.READY)])
def test_a_queue_is_full_when_its_limit_is_reached(running: int, limit: int | None, code: ReasonCode) -> None:
    assert explained(a_job(), queue=QueueRecord(name="", running=running, max_running=limit)).code is code


def test_a_flow_nobody_registers_needs_a_worker() -> None:
    answer = explained(a_job(), live_flows=frozenset({"other"}))

    assert answer.code is R.NO_WORKER
    assert "'demo'" in answer.sentence


def test_obstacles_are_named_in_the_order_in_which_they_have_to_pass() -> None:
    queue = QueueRecord(name="q", max_running=0, paused_at=START, paused_by="alice", paused_reason="x")
    job = a_job(queue="q", hold="after", waits_for=OTHER, not_before=LATER, cancel_reason="typo")
    answer = explained(job, queue=queue, live_flows=frozenset())

    assert answer.code is R.WAITING_FOR_JOB
    assert answer.details["also"] == "scheduled, queue-paused, no-worker, queue-full, cancelling"


# --- any job ---------------------------------------------------------------------------------------------

CODES_OF_STATE = {
    JobState.PENDING: {
        R.WAITING_FOR_JOB, R.WAITING_FOR_CHILD, R.SCHEDULED, R.BACKING_OFF, R.QUEUE_PAUSED, R.NO_WORKER, R.QUEUE_FULL,
        R.CANCELLING, R.READY,
    },
    JobState.RUNNING: {
        R.RUNNING, R.FINALIZING, R.WORKER_GONE, R.LEASE_EXPIRED, R.CANCELLING, R.BACKING_OFF, R.INCONSISTENT,
    },
    JobState.SUCCEEDED: {R.SUCCEEDED},
    JobState.FAILED: {R.FAILED, R.CANCELLED, R.PREDECESSOR_FAILED},
    JobState.QUARANTINED: {R.QUARANTINED, R.DEFINITION_CHANGED},
}  # fmt: skip
moments = st.integers(0, 10**17)
texts = st.none() | st.text(max_size=20)


@given(lives(), st.data())
def test_every_job_has_one_explanation_that_can_be_sent_as_json(life: Life, data: st.DataObject) -> None:
    hold = data.draw(st.sampled_from(["none", "until", "after", "child"]))
    job = replace(
        life.job,
        hold=hold,
        waits_for=OTHER if hold in {"after", "child"} else None,
        not_before=data.draw(moments),
        cancel_reason=data.draw(texts),
        ending=data.draw(texts),
    )
    facts = ExplainFacts(
        job=job,
        executions=tuple(life.executions),
        queue=QueueRecord(name="", max_running=data.draw(st.none() | st.integers(0, 2)), running=1),
        live_flows=data.draw(st.sampled_from([frozenset(), frozenset({"demo"})])),
        now=data.draw(moments),
    )
    answer = explain(facts)

    assert answer == explain(facts)
    assert answer.code in CODES_OF_STATE[job.state]
    assert answer.sentence.endswith(".")
    assert answer.details["job"] == JOB_ID
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Explanation) == answer


def test_every_code_belongs_to_a_state() -> None:
    assert set().union(*CODES_OF_STATE.values()) == set(ReasonCode)


@given(st.integers(-(10**20), 10**20))
def test_any_number_can_be_shown_as_a_time(milliseconds: int) -> None:
    assert len(iso_utc(milliseconds)) == len("2023-11-14T22:13:20Z")


def test_times_are_utc() -> None:
    assert iso_utc(0) == "1970-01-01T00:00:00Z"
    assert iso_utc(START) == "2023-11-14T22:13:20Z"
