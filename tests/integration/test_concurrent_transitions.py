"""Concurrent transitions: threads and processes at once on one database; nothing lost, nothing doubled."""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Engine, JobState
from holdfast.core.states import JobState as State
from holdfast.errors import StateError
from tests.integration.conftest import OpenEngine
from tests.support.backends import SqliteBackend
from tests.support.bench import OPERATOR, Bench, SettableClock, commit, effect_of, end
from tests.support.flows import Ask
from tests.support.processes import (
    claim_and_commit,
    join_all,
    kill,
    logging_flow,
    most_at_once,
    run_worker,
    start,
    submit_numbers,
    submit_same_key,
)
from tests.support.waiting import eventually

Effects = Callable[[], list[str]]


@pytest.fixture
def bench(state: Path) -> Bench:
    clock = SettableClock()
    return Bench(SqliteBackend(state).open(clock), clock)


def in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    """All of them at once; what each has returned, or the error."""
    answers: list[object] = [None] * count
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            answers[number] = work(number)
        except Exception as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def test_threads_that_claim_at_once_share_the_jobs_without_overlap(bench: Bench) -> None:
    jobs = bench.store.submit([bench.new_job() for _ in range(100)], actor="client")

    answers = in_threads(8, lambda n: [claim for _ in range(20) for claim in bench.claim(f"w{n}", limit=2)])

    claimed = [claim.job.job_id for each in answers for claim in each]  # type: ignore[attr-defined]
    assert sorted(claimed) == sorted(job.job_id for job in jobs)
    bench.assert_sound()


def test_threads_that_commit_the_same_execution_leave_one_effect(bench: Bench, effects: Effects) -> None:
    claim = bench.running()

    answers = in_threads(8, lambda _n: bench.write(commit(claim, effect_of(claim)))[0])

    assert answers.count(None) == 1
    assert effects() == [claim.job.job_id]
    bench.assert_sound()


def test_threads_that_do_everything_to_one_job_leave_it_in_one_state(bench: Bench) -> None:
    """Operators and workers at the same job: each call is refused or taken, and the journal tells a legal story."""
    claim = bench.running(failure_limit=99, crash_limit=99)
    job_id = claim.job.job_id

    def act(number: int) -> object:
        for turn in range(30):
            try:
                match (number + turn) % 6:
                    case 0:
                        bench.store.fail(job_id, actor=OPERATOR, reason="x", quarantine=bool(turn % 2))
                    case 1:
                        bench.store.retry(job_id, actor=OPERATOR, reason="x", from_state=State.FAILED)
                    case 2:
                        bench.store.retry(job_id, actor=OPERATOR, reason="x", from_state=State.QUARANTINED)
                    case 3:
                        for one in bench.claim(f"w{number}"):
                            bench.write(end(one), worker=f"w{number}")
                    case 4:
                        bench.store.recover(is_dead=lambda _owner: True, actor="guard")
                    case _:
                        bench.store.cancel(job_id, actor=OPERATOR, reason="x")
            except StateError:
                pass
        return None

    answers = in_threads(6, act)

    assert answers == [None] * 6
    bench.assert_sound()


def test_of_threads_that_submit_one_key_one_creates_the_job(bench: Bench) -> None:
    answers = in_threads(10, lambda _n: bench.submit_one(key="k"))

    assert len({answer.job_id for answer in answers}) == 1  # type: ignore[attr-defined]
    assert sum(answer.created for answer in answers) == 1  # type: ignore[attr-defined]


def test_of_processes_that_submit_one_key_one_creates_the_job(state: Path, bench: Bench) -> None:
    answers = multiprocessing.get_context("spawn").Queue()
    codes = join_all([start(submit_same_key, str(state), "k", answers) for _ in range(4)])
    got = [answers.get(timeout=10) for _ in range(4)]

    assert codes == [0] * 4
    assert len({job_id for job_id, _ in got}) == 1
    assert sum(created for _, created in got) == 1


def test_processes_that_claim_and_commit_at_once_do_every_job_once(state: Path, bench: Bench, effects: Effects) -> None:
    total = 300
    jobs = bench.store.submit([bench.new_job() for _ in range(total)], actor="client")
    codes = join_all([start(claim_and_commit, str(state), f"process-{n}", total) for n in range(3)])

    workers = Counter(bench.latest(job.job_id).lease_owner for job in jobs)
    assert codes == [0] * 3
    assert effects() == sorted(job.job_id for job in jobs)
    assert bench.store.counts() == {("demo", "succeeded"): total}
    assert all(len(bench.store.executions(job.job_id)) == 1 for job in jobs)
    assert sum(workers.values()) == total
    bench.assert_sound()


def test_a_limit_of_one_is_never_exceeded_by_any_number_of_processes(
    open_engine: OpenEngine, state: Path, effects: Effects
) -> None:
    flow = logging_flow(str(state))
    engine = open_engine(flow)
    engine.queue("q", limit=1)
    jobs = [engine.submit(flow, Ask("x", n)) for n in range(30)]
    codes = join_all([start(run_worker, str(state), 0.005, 4, 10.0) for _ in range(3)])

    assert codes == [0] * 3
    assert most_at_once(state) == 1
    assert effects() == sorted(jobs)


def _done(engine: Engine) -> int:
    return engine.store.counts().get(("logging", "succeeded"), 0)


def test_workers_that_are_killed_again_and_again_lose_nothing_and_double_nothing(
    open_engine: OpenEngine, state: Path, effects: Effects
) -> None:
    flow = logging_flow(str(state))
    flow_limit = 2
    engine = open_engine(flow)
    engine.queue("q", limit=flow_limit)
    jobs = [engine.submit(flow, Ask("x", n)) for n in range(40)]
    submitter = start(submit_numbers, str(state), 100, 20)
    for _ in range(4):
        victim = start(run_worker, str(state), 0.02, 4, 30.0)
        done = _done(engine)
        eventually(lambda: _done(engine) > done, "it has begun")  # noqa: B023 - called before `done` changes
        kill(victim)
    last = start(run_worker, str(state), 0.02, 4, 30.0)
    codes = join_all([submitter, last])

    everything = engine.store.jobs(limit=1000)
    assert codes == [0, 0]
    assert len(everything) == 60
    assert {job.state for job in everything} == {JobState.SUCCEEDED}
    assert set(jobs) <= {job.job_id for job in everything}
    assert effects() == sorted(job.job_id for job in everything)


def test_two_workers_of_one_process_share_the_work(open_engine: OpenEngine, state: Path, effects: Effects) -> None:
    flow = logging_flow(str(state))
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask("x", n)) for n in range(60)]
    with engine.worker(concurrency=4), engine.worker(concurrency=4):
        states = {engine.wait(job_id, timeout=60).state for job_id in jobs}

    owners = {engine.store.executions(job_id)[0].lease_owner for job_id in jobs}
    assert states == {JobState.SUCCEEDED}
    assert len(owners) <= 2
    assert effects() == sorted(jobs)


def test_a_job_may_be_finished_and_submitted_again_under_its_key_while_others_do_the_same(
    open_engine: OpenEngine, state: Path
) -> None:
    flow = logging_flow(str(state))
    engine = open_engine(flow)

    def submit_and_wait(_number: int) -> list[str]:
        jobs = []
        for _ in range(5):
            job_id = engine.submit(flow, Ask("same"), key="k")
            engine.wait(job_id, timeout=60)
            jobs.append(job_id)
        return jobs

    with engine.worker(concurrency=4):
        answers = in_threads(4, submit_and_wait)

    assert all(isinstance(answer, list) for answer in answers), answers
    assert most_at_once(state) == 1


def test_a_store_used_by_many_threads_is_closed_without_harm(tmp_path: Path) -> None:
    with Engine.open(tmp_path / "shared") as engine:
        answers = in_threads(10, lambda _n: [engine.store.counts() for _ in range(20)])

        assert all(isinstance(answer, list) for answer in answers)
