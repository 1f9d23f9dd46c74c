"""Looking: what the store shows to clients, operators and the guard."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

import pytest

from holdfast.core.facts import Finding, JobFacts
from holdfast.core.states import Disposition, JobState
from holdfast.errors import JobNotFoundError
from holdfast.store.commands import FlowChange
from holdfast.store.rows import new_ulid
from tests.support.backends import Backend, SqliteBackend, on_sqlite
from tests.support.bench import OPERATOR, OTHER, WORKER, Bench, commit, end, finish_step, give_back, record_try
from tests.support.waiting import eventually


def test_an_unknown_job_is_not_found(bench: Bench) -> None:
    with pytest.raises(JobNotFoundError):
        bench.store.job(new_ulid(1))
    with pytest.raises(JobNotFoundError):
        bench.store.request(new_ulid(1))

    assert bench.store.executions(new_ulid(1)) == []
    assert bench.store.steps(new_ulid(1)) == []
    assert bench.store.children(new_ulid(1)) == []
    assert list(bench.store.journal(new_ulid(1))) == []


def test_of_running_jobs_the_current_step_is_known(bench: Bench) -> None:
    one, two = bench.running(), bench.running()
    bench.apply(finish_step(one), record_try(two))
    ended, waiting = bench.succeeded(), bench.submit()
    found = {step.job_id: step for step in bench.store.running([one.job.job_id, two.job.job_id, ended, waiting])}

    assert set(found) == {one.job.job_id, two.job.job_id}
    assert (found[one.job.job_id].number, found[two.job.job_id].number) == (2, 1)
    assert (found[one.job.job_id].tries, found[two.job.job_id].tries) == (0, 1)
    assert {step.worker for step in found.values()} == {WORKER}
    assert bench.store.running([]) == []


def test_flows_are_looked_up_by_job(bench: Bench) -> None:
    one, two = bench.submit(flow="demo"), bench.submit(flow="other")

    assert bench.store.flows_of([one, two, new_ulid(1)]) == {one: "demo", two: "other"}


def test_changes_are_told_once_they_are_durable(bench: Bench) -> None:
    told: list[tuple[str, str | None, str]] = []

    def observe(changes: Sequence[FlowChange]) -> None:
        told.extend((change.flow, change.entry.job_from, change.entry.job_to) for change in changes)

    bench.store.changes.observe(observe)
    bench.store.changes.observe(observe)
    bench.store.changes.forget(observe)
    failed = bench.ended(Disposition.QUARANTINED)
    dependent = bench.submit(flow="other")
    bench.store.fail(dependent, actor=OPERATOR, reason="no", quarantine=False)
    bench.store.changes.forget(observe)
    bench.submit()

    assert told == [
        ("demo", None, "pending"),
        ("demo", "pending", "running"),
        ("demo", "running", "running"),
        ("demo", "running", "failed"),
        ("demo", "failed", "quarantined"),
        ("other", None, "pending"),
        ("other", "pending", "running"),
        ("other", "running", "failed"),
    ]
    assert bench.store.job(failed).state is JobState.QUARANTINED


def test_an_observer_that_fails_disturbs_nobody(bench: Bench) -> None:
    def fail(_changes: Sequence[FlowChange]) -> None:
        raise ValueError("not today")

    bench.store.changes.observe(fail)
    job_id = bench.submit()

    assert bench.store.job(job_id).state is JobState.PENDING


def test_jobs_are_listed_newest_first_and_by_what_is_asked_for(bench: Bench) -> None:
    done = bench.succeeded(queue="q", key="k")
    failed = bench.ended(Disposition.FAILED)
    running = bench.running(flow="demo", queue="q").job.job_id
    pending = bench.submit(flow="other", key="k")

    def ids(**fields: object) -> list[str]:
        return [job.job_id for job in bench.store.jobs(**fields)]  # type: ignore[arg-type]

    assert ids() == [pending, running, failed, done]
    assert ids(limit=2) == [pending, running]
    assert ids(states=[JobState.SUCCEEDED]) == [done]
    assert ids(states=[JobState.FAILED]) == [failed]
    assert ids(states=[JobState.QUARANTINED]) == []
    assert ids(states=[JobState.PENDING, JobState.RUNNING]) == [pending, running]
    assert ids(states=[JobState.PENDING, JobState.SUCCEEDED]) == [pending, done]
    assert ids(flow="other") == [pending]
    assert ids(queue="q") == [running, done]
    assert ids(key="k") == [pending, done]
    assert ids(key="k", states=[JobState.PENDING]) == [pending]


def test_jobs_are_counted_by_flow_and_state(bench: Bench) -> None:
    bench.succeeded()
    bench.succeeded()
    bench.ended()
    bench.submit(flow="other")

    assert bench.store.counts() == {("demo", "succeeded"): 2, ("demo", "failed"): 1, ("other", "pending"): 1}


def test_executions_are_listed_oldest_first(bench: Bench) -> None:
    job_id = bench.submit()
    for _ in range(3):
        bench.apply(give_back(bench.take()))

    assert [e.attempt for e in bench.store.executions(job_id)] == [1, 2, 3]


def test_the_journal_of_all_jobs_is_ordered_by_job_and_sequence(bench: Bench) -> None:
    for _ in range(3):
        bench.running()

    entries = [(entry.job_id, entry.seq) for entry in bench.store.journal()]
    assert entries == sorted(entries)
    assert len(entries) == 9


def test_the_last_sign_of_progress_of_an_execution(bench: Bench) -> None:
    claim = bench.running()
    started = bench.store.last_progress(claim.exec_id)
    bench.clock.advance(1)
    bench.apply(finish_step(claim))
    after_step = bench.store.last_progress(claim.exec_id)
    bench.clock.advance(1)
    bench.apply(record_try(claim, position=1))

    assert (started, after_step) == (bench.clock() - 2000, bench.clock() - 1000)
    assert bench.store.last_progress(claim.exec_id) == bench.clock()
    assert bench.store.last_progress("nothing") is None


def test_a_step_finished_by_an_earlier_attempt_is_no_progress_of_this_one(bench: Bench) -> None:
    first = bench.running()
    bench.apply(finish_step(first))
    bench.apply(give_back(first))
    bench.clock.advance(5)
    second = bench.take()

    assert bench.store.last_progress(second.exec_id) == bench.clock()


def test_workers_are_known_from_their_announcement_until_they_retire(bench: Bench) -> None:
    bench.store.announce(worker_id=WORKER, flows=["demo", "other"])
    bench.clock.advance(5)
    bench.store.announce(worker_id=OTHER, flows=[])
    bench.store.announce(worker_id=WORKER, flows=["demo"])

    [one, two] = bench.store.workers()
    assert (one.worker_id, one.flows) == (WORKER, ("demo",))
    assert (one.started_at, one.seen_at) == (bench.clock() - 5000, bench.clock())
    assert (two.worker_id, two.flows) == (OTHER, ())

    bench.store.retire(worker_id=WORKER)
    bench.store.retire(worker_id="unknown")
    assert [worker.worker_id for worker in bench.store.workers()] == [OTHER]


# --- the guard's view --------------------------------------------------------------------------------------


def test_facts_hold_all_there_is_about_every_job(bench: Bench) -> None:
    done, running = bench.succeeded(), bench.running()
    pending = bench.submit()

    facts = {f.job.job_id: f for f in bench.store.facts() if not isinstance(f, Finding)}

    assert set(facts) == {done, running.job.job_id, pending}
    assert [e.exec_id for e in facts[running.job.job_id].executions] == [running.exec_id]
    assert [entry.hash for entry in facts[done].journal or ()] == [entry.hash for entry in bench.journal(done)]
    assert facts[pending].executions == ()


def test_running_and_newest_jobs_are_found_without_a_look_at_the_others(bench: Bench) -> None:
    bench.succeeded()
    running = [bench.running().job.job_id for _ in range(3)]
    bench.clock.advance(1)
    newest = bench.submit()

    assert bench.store.running_ids(after="", limit=9) == running
    assert bench.store.running_ids(after=running[0], limit=1) == running[1:2]
    assert bench.store.newest_ids(limit=1) == [newest]


def test_facts_of_chosen_jobs_are_those_of_the_whole_look(bench: Bench) -> None:
    wanted = [bench.succeeded(), bench.submit(parent=bench.submit())]
    bench.submit()

    chosen = [one for one in bench.store.facts_of([*wanted, "unknown"]) if isinstance(one, JobFacts)]
    whole = {one.job.job_id: one for one in bench.store.facts() if isinstance(one, JobFacts)}

    assert [one.job.job_id for one in chosen] == sorted(wanted)
    for one in chosen:
        assert one.rows is not None
        assert (one.job, one.executions, one.journal, one.rows.steps) == (
            whole[one.job.job_id].job,
            whole[one.job.job_id].executions,
            whole[one.job.job_id].journal,
            one.rows.steps,
        )


def test_facts_come_page_by_page_without_gap_or_repeat(bench: Bench) -> None:
    bench.store.submit([bench.new_job() for _ in range(1107)], actor="client")

    found = [one.job.job_id for one in bench.store.facts() if isinstance(one, JobFacts)]

    assert found == sorted(bench.store.newest_ids(limit=9999))
    assert len(found) == 1107


def test_facts_are_of_one_moment_even_while_others_write(bench: Bench, backend: Backend) -> None:
    another = Bench(backend.open(bench.clock), bench.clock)
    bench.store.submit([bench.new_job() for _ in range(600)], actor="client")
    seen: list[JobState] = []
    for facts in bench.store.facts():
        assert not isinstance(facts, Finding)
        if not seen:
            another.claim(limit=600)
        seen.append(facts.job.state)

    assert set(seen) == {JobState.PENDING}


def test_looking_inside_a_look_is_allowed(bench: Bench) -> None:
    for _ in range(3):
        bench.submit()
    counts = []
    for facts in bench.store.facts():
        assert not isinstance(facts, Finding)
        assert bench.job(facts.job.job_id).state is JobState.PENDING
        counts.append(len(list(bench.store.facts())))

    assert counts == [3, 3, 3]


def test_a_look_that_was_not_finished_does_not_hold_up_the_next(bench: Bench) -> None:
    for _ in range(3):
        bench.submit()
    unfinished = bench.store.facts()
    next(unfinished)

    bench.claim()

    try:
        assert bench.store.evidence([]) == []
        assert {job.state for job in bench.store.jobs()} == {JobState.RUNNING}
    finally:
        unfinished.close()  # type: ignore[attr-defined]


def test_a_healthy_database_has_no_faults(bench: Bench) -> None:
    bench.succeeded()
    bench.ended()
    bench.running()

    assert list(bench.store.integrity(deep=True)) == []


# --- listening ---------------------------------------------------------------------------------------------

NEWS = {
    "submit": lambda bench, _claim: bench.submit(),
    "an end": lambda bench, claim: bench.apply(end(claim)),
    "a give-back": lambda bench, claim: bench.apply(give_back(claim)),
    "a cancel": lambda bench, claim: bench.store.cancel(claim.job.job_id, actor=OPERATOR, reason="x"),
    "a limit": lambda bench, _claim: bench.store.set_queue("", max_running=4, actor=OPERATOR),
    "a resume": lambda bench, _claim: bench.store.resume_queue(""),
}


@pytest.mark.parametrize("news", NEWS.values(), ids=NEWS)
def test_a_listener_in_another_process_is_woken_by_news(bench: Bench, backend: Backend, news: object) -> None:
    claim = bench.running()
    listener = backend.open(bench.clock).listen()
    try:
        assert not listener.wait(0)
        news(bench, claim)  # type: ignore[operator]

        assert listener.wait(5)
    finally:
        listener.close()


def test_a_finish_wakes_those_who_wait_for_the_job(bench: Bench) -> None:
    from tests.support.bench import finish

    claim = bench.committed()
    listener = bench.store.listen()
    try:
        bench.apply(finish(claim))

        assert listener.wait(5)
    finally:
        listener.close()


def test_a_listener_sleeps_while_nothing_happens(bench: Bench) -> None:
    claim = bench.running()
    listener = bench.store.listen()
    try:
        bench.store.extend_leases(worker_id=WORKER, lease_ms=1000)
        bench.apply(finish_step(claim))
        bench.apply(commit(claim, position=1))

        assert not listener.wait(0.05)
    finally:
        listener.close()


def test_a_listener_can_be_woken_from_another_thread(bench: Bench) -> None:
    listener = bench.store.listen()
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(listener.wait(None)))
    thread.start()
    try:
        listener.wake()
        thread.join(10)

        assert woken == [True]
    finally:
        listener.close()


def test_news_that_came_before_the_wait_are_not_missed(bench: Bench) -> None:
    listener = bench.store.listen()
    try:
        bench.submit()

        assert listener.wait(5)
        assert not listener.wait(0)
    finally:
        listener.close()


def test_every_listener_hears_the_news_however_quickly_it_came(bench: Bench) -> None:
    """The notifier must not overlook a listener that began within the same tick of the clock as another one."""
    missed = 0
    for _ in range(100):
        first = bench.store.listen()
        bench.submit()
        second = bench.store.listen()
        bench.submit()
        missed += not second.wait(0.2)
        first.close()
        second.close()

    assert missed == 0


@on_sqlite
def test_a_listener_is_heard_of_even_if_the_time_of_its_directory_does_not_show_it(
    bench: Bench, backend: SqliteBackend
) -> None:
    """Most kernels stamp files only every few milliseconds: two changes within one tick look like one."""
    directory = backend.path.with_name("holdfast.db.wake")
    first = bench.store.listen()
    bench.submit()
    stamp = directory.stat()
    second = bench.store.listen()
    os.utime(directory, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    try:
        bench.submit()

        assert first.wait(1)
        assert second.wait(1)
    finally:
        first.close()
        second.close()


@on_sqlite
def test_what_is_durable_is_not_called_a_failure_because_nobody_could_be_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its commit a submit that raises would be submitted again, and a claim that raises would be forgotten."""
    listener = bench.store.listen()

    def too_many(*_args: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", too_many)
        patch.setattr(os, "stat", too_many)
        job_id = bench.submit()
        bench.store.cancel(job_id, actor=OPERATOR, reason="x")
    listener.close()

    assert bench.state(job_id) is JobState.FAILED


def test_listeners_may_come_and_go_while_others_notify(bench: Bench, backend: Backend) -> None:
    """A listener is made in two steps; a notifier that comes in between must not take it away."""
    errors: list[BaseException] = []
    stop = threading.Event()
    store = backend.open(bench.clock)

    def notify() -> None:
        try:
            while not stop.is_set():
                store.resume_queue("q")
        except BaseException as error:
            errors.append(error)

    bench.submit(queue="q")
    threads = [threading.Thread(target=notify) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            listeners = [bench.store.listen() for _ in range(3)]
            for listener in listeners:
                listener.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)

    assert errors == []


def test_a_listener_that_died_does_not_disturb_the_others(bench: Bench, backend: Backend) -> None:
    import subprocess
    import sys

    script = (
        "import os, sys; from holdfast.store.open import open_store;"
        f"open_store({backend.place!r}).listen(); print('listening', flush=True); os.kill(os.getpid(), 9)"
    )
    died = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    listener = bench.store.listen()
    try:
        bench.submit()

        assert b"listening" in died.stdout
        assert died.returncode == -9
        assert eventually(lambda: listener.wait(0.1), "the living listener hears it")
    finally:
        listener.close()


def test_a_store_may_be_read_from_many_threads_without_piling_up_open_files(bench: Bench) -> None:
    job_id = bench.submit()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(60):
        thread = threading.Thread(target=lambda: bench.store.job(job_id))
        thread.start()
        thread.join()

    assert len(os.listdir("/proc/self/fd")) - before < 30


def test_the_backlog_tells_what_could_start_from_what_could_not(bench: Bench) -> None:
    now = bench.store.now()
    bench.submit(queue="q")
    first = bench.submit(queue="q")
    bench.submit(queue="q", not_before=now + 60_000)
    bench.submit(queue="q", run_after=first)
    bench.submit(queue="later", not_before=now + 60_000)
    found = {one.queue: one for one in bench.store.backlog()}

    assert (found["q"].ready, found["q"].scheduled, found["q"].waiting) == (2, 1, 1)
    assert found["q"].oldest_at == now
    assert (found["later"].ready, found["later"].scheduled, found["later"].oldest_at) == (0, 1, None)


def test_jobs_are_counted_by_state_but_for_succeeded_ones(bench: Bench) -> None:
    bench.succeeded()
    bench.ended(Disposition.FAILED)
    bench.ended(Disposition.QUARANTINED)
    bench.submit(flow="other")

    assert bench.store.unsettled_counts() == {
        ("demo", "failed"): 1,
        ("demo", "quarantined"): 1,
        ("other", "pending"): 1,
    }
