"""Queues: a limit counted from leases, pause and resume, times to start at; the same for every process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from threading import Timer
from typing import Any

import pytest

from holdfast.core.records import QueueRecord
from holdfast.core.states import Disposition, JobState
from holdfast.core.step import EndCode
from holdfast.errors import BadInput, QueueNotFoundError
from holdfast.store.commands import Write
from tests.support.backends import Backend, Shell, on_postgres
from tests.support.bench import OPERATOR, OTHER, WORKER, Bench, commit, definition_of, end, finish, give_back


def queue(bench: Bench, name: str = "q") -> QueueRecord:
    [found] = [queue for queue in bench.store.queues() if queue.name == name]
    return found


def limit(bench: Bench, max_running: int | None, *, actor: str | None = None) -> None:
    bench.store.set_queue("q", max_running=max_running, actor=actor)


@contextmanager
def locked_by_a_shell(backend: Backend, name: str) -> Iterator[Shell]:
    """Somebody looks at the row of a queue FOR UPDATE, and leaves the prompt open."""
    with backend.shell() as shell:
        shell.execute("BEGIN")
        shell.execute(f"SELECT * FROM queues WHERE name = '{name}' FOR UPDATE")
        yield shell


# --- limits ------------------------------------------------------------------------------------------------


def test_no_more_jobs_run_than_the_limit_allows(bench: Bench) -> None:
    limit(bench, 2)
    jobs = [bench.submit(queue="q") for _ in range(5)]

    assert [claim.job.job_id for claim in bench.claim()] == jobs[:2]
    assert bench.claim(OTHER) == []
    assert (queue(bench).running, queue(bench).pending) == (2, 3)


@pytest.mark.parametrize("ending", ["failed", "given back", "committed", "crashed"])
def test_a_slot_is_free_as_soon_as_the_execution_has_ended(bench: Bench, ending: str) -> None:
    limit(bench, 1)
    claim = bench.running(queue="q")
    bench.submit(queue="q")
    assert bench.claim() == []
    if ending == "crashed":
        bench.crash()
    else:
        ends: dict[str, Write] = {"failed": end(claim), "given back": give_back(claim), "committed": commit(claim)}
        bench.apply(ends[ending])

    assert len(bench.claim()) == 1
    assert queue(bench).running == 1


def test_an_expired_lease_holds_its_slot_until_recovery_has_fenced_it(bench: Bench) -> None:
    """Freed before it is fenced, the slot would be given to a second worker while the first one still works."""
    limit(bench, 1)
    bench.running(queue="q")
    bench.submit(queue="q")
    bench.expire()

    assert bench.claim(OTHER) == []
    bench.recover()
    assert len(bench.claim(OTHER)) == 1


def test_the_limit_holds_for_resumed_jobs_too(bench: Bench) -> None:
    limit(bench, 3)
    for _ in range(5):
        bench.submit(queue="q")
    bench.claim()
    bench.crash()

    assert len(bench.claim()) == 3


def test_the_limit_is_the_same_for_all_processes(bench: Bench, backend: Backend) -> None:
    limit(bench, 2)
    another = Bench(backend.open(bench.clock), bench.clock)
    for _ in range(6):
        bench.submit(queue="q")

    claims = [bench.claim(WORKER, limit=1), another.claim(OTHER, limit=5), bench.claim(WORKER), another.claim(OTHER)]

    assert [len(each) for each in claims] == [1, 1, 0, 0]


def test_one_full_queue_does_not_hold_up_another(bench: Bench) -> None:
    limit(bench, 1)
    bench.running(queue="q")
    bench.submit(queue="q", priority=100)
    other = bench.submit(queue="other")

    assert [claim.job.job_id for claim in bench.claim()] == [other]


def test_a_queue_of_one_flow_does_not_hold_up_another_flow_in_the_same_queue(bench: Bench) -> None:
    for _ in range(200):
        bench.submit(queue="q", flow="nobody-runs-this", priority=5)
    mine = bench.submit(queue="q")

    assert [claim.job.job_id for claim in bench.claim(limit=5)] == [mine]


@on_postgres
def test_a_shell_that_holds_a_queue_does_not_hold_up_the_others(bench: Bench, backend: Backend) -> None:
    limit(bench, 5)
    bench.store.set_queue("r", max_running=5, actor=None)
    held, limited, unlimited = (bench.submit(queue=name) for name in ("q", "r", ""))
    with locked_by_a_shell(backend, "q"):
        claimed = {claim.job.job_id for claim in bench.claim()}
        found_later = bench.claim()

    assert claimed == {limited, unlimited}
    assert found_later == []
    assert bench.take().job.job_id == held


@on_postgres
def test_a_claim_waits_a_moment_for_one_who_counts_the_same_queue(bench: Bench, backend: Backend) -> None:
    limit(bench, 5)
    job_id = bench.submit(queue="q")
    with locked_by_a_shell(backend, "q") as shell:
        counted = Timer(0.04, lambda: shell.execute("ROLLBACK"))
        counted.start()
        claims = bench.claim()
        counted.join()

    assert [claim.job.job_id for claim in claims] == [job_id]


def test_a_limit_of_nothing_stops_the_queue(bench: Bench) -> None:
    limit(bench, 0)
    bench.submit(queue="q")

    assert bench.claim() == []


def test_a_limit_can_be_raised_and_lowered_while_jobs_run(bench: Bench) -> None:
    limit(bench, 1)
    for _ in range(6):
        bench.submit(queue="q")
    first = bench.claim()
    limit(bench, 3, actor=OPERATOR)
    raised = bench.claim()
    limit(bench, 1, actor=OPERATOR)
    bench.apply(end(first[0]))
    lowered = bench.claim()
    for claim in raised:
        bench.apply(end(claim))

    assert (len(first), len(raised), len(lowered)) == (1, 2, 0)
    assert len(bench.claim()) == 1


def test_a_limit_can_be_taken_away(bench: Bench) -> None:
    limit(bench, 1)
    for _ in range(4):
        bench.submit(queue="q")

    limit(bench, None, actor=OPERATOR)

    assert len(bench.claim()) == 4
    assert queue(bench).max_running is None


def test_the_word_of_an_operator_stays_above_that_of_the_code(bench: Bench) -> None:
    limit(bench, 5)
    limit(bench, 2, actor=OPERATOR)
    limit(bench, 7)

    assert (queue(bench).max_running, queue(bench).limit_by) == (2, OPERATOR)


def test_the_code_may_change_its_own_limit(bench: Bench) -> None:
    limit(bench, 5)
    limit(bench, 7)

    assert (queue(bench).max_running, queue(bench).limit_by) == (7, None)


def test_a_negative_limit_is_refused_as_bad_input(bench: Bench) -> None:
    limit(bench, 5)

    with pytest.raises(BadInput):
        limit(bench, -1, actor=OPERATOR)

    assert queue(bench).max_running == 5


# --- pause and resume --------------------------------------------------------------------------------------


def test_nothing_starts_from_a_paused_queue_and_everything_after_it_is_resumed(bench: Bench) -> None:
    job_id = bench.submit(queue="q")
    bench.store.pause_queue("q", actor=OPERATOR, reason="maintenance")
    paused, claims = queue(bench), bench.claim()
    bench.store.resume_queue("q")

    assert (paused.paused_by, paused.paused_reason, paused.paused_at) == (OPERATOR, "maintenance", bench.clock())
    assert claims == []
    assert (queue(bench).paused_at, queue(bench).paused_by, queue(bench).paused_reason) == (None, None, None)
    assert [claim.job.job_id for claim in bench.claim()] == [job_id]


def test_what_runs_in_a_paused_queue_may_finish(bench: Bench) -> None:
    claim = bench.running(queue="q")
    bench.store.pause_queue("q", actor=OPERATOR, reason="maintenance")

    bench.apply(commit(claim))
    bench.apply(finish(claim))

    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED


def test_a_paused_queue_is_not_resumed_by_a_crash(bench: Bench) -> None:
    bench.running(queue="q")
    bench.store.pause_queue("q", actor=OPERATOR, reason="maintenance")
    bench.crash()

    assert bench.claim() == []


def test_pausing_and_resuming_twice_is_the_same_as_once(bench: Bench) -> None:
    bench.submit(queue="q")
    for _ in range(2):
        bench.store.pause_queue("q", actor=OPERATOR, reason="maintenance")
    for _ in range(2):
        bench.store.resume_queue("q")

    assert len(bench.claim()) == 1


def test_a_queue_that_does_not_exist_is_not_found(bench: Bench) -> None:
    with pytest.raises(QueueNotFoundError):
        bench.store.pause_queue("nowhere", actor=OPERATOR, reason="x")
    with pytest.raises(QueueNotFoundError):
        bench.store.resume_queue("nowhere")
    with pytest.raises(QueueNotFoundError):
        bench.store.set_queue("nowhere", max_running=1, actor=OPERATOR)

    assert bench.store.queues() == []


# --- times -------------------------------------------------------------------------------------------------


def test_a_job_does_not_start_before_its_time(bench: Bench) -> None:
    due = bench.clock() + 60_000
    job_id = bench.submit(not_before=due)
    bench.clock.now = due - 1
    too_early, next_due = bench.claim(), bench.store.next_due()
    bench.clock.now = due

    assert (too_early, next_due) == ([], due)
    assert [claim.job.job_id for claim in bench.claim()] == [job_id]
    assert bench.store.next_due() is None


def test_a_time_that_has_passed_is_no_obstacle(bench: Bench) -> None:
    job_id = bench.submit(not_before=bench.clock() - 5)

    assert [claim.job.job_id for claim in bench.claim()] == [job_id]


def test_the_earliest_of_all_times_is_the_next(bench: Bench) -> None:
    bench.submit(not_before=bench.clock() + 9000)
    bench.submit(not_before=bench.clock() + 3000)
    bench.submit()

    assert bench.store.next_due() == bench.clock() + 3000


def test_a_job_that_backs_off_starts_again_in_time(bench: Bench) -> None:
    claim = bench.running(failure_limit=9)
    bench.apply(end(claim, (Disposition.FAILED, Disposition.RETRY), not_before=bench.clock() + 5000))
    too_early = bench.claim()
    bench.clock.advance(5)

    assert too_early == []
    assert bench.take().attempt == 2


def test_a_job_that_backs_off_does_not_hold_up_the_others_of_its_queue(bench: Bench) -> None:
    limit(bench, 1)
    claim = bench.running(queue="q", priority=9)
    ready = bench.submit(queue="q")
    bench.apply(give_back(claim, EndCode.BACKING_OFF, not_before=bench.clock() + 3_600_000))

    assert [claim.job.job_id for claim in bench.claim()] == [ready]


def test_a_due_job_is_promoted_even_if_nobody_here_runs_its_flow(bench: Bench) -> None:
    bench.submit(flow="other", not_before=bench.clock() + 10)
    bench.clock.advance(1)
    bench.claim()

    assert bench.store.next_due() is None
    assert len(bench.claim(flows={"other": definition_of("1", "other")["fingerprint"]})) == 1


def test_a_limit_that_is_no_whole_number_is_refused(bench: Bench) -> None:
    limit(bench, 5)
    wrong: list[Any] = [1.5, 2.0, True, "2", "two", -1, 10**30, float("nan"), float("inf"), b"2", []]

    for max_running, actor in product(wrong, [None, OPERATOR]):
        with pytest.raises(BadInput):
            limit(bench, max_running, actor=actor)
        assert queue(bench).max_running == 5


def test_a_queue_that_cannot_be_named_so_is_refused(bench: Bench) -> None:
    wrong: list[Any] = ["a b", "q\0", "q\udcff", "x" * 200, 7, None]

    for name in wrong:
        with pytest.raises(BadInput):
            bench.store.set_queue(name, max_running=1, actor=None)

    assert bench.store.queues() == []
