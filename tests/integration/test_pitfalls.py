"""How other durable engines lost, duplicated or stranded work: each of their failures, tried here.

One test (or a few) for each, named after what happened there. What cannot happen on SQLite is in the table at the end.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Engine, Flow, JobState, Rewind, WaitFor, fixed
from holdfast.core.ending import EndCode
from holdfast.core.states import Disposition
from holdfast.core.worker_id import parse_worker_id
from holdfast.crash_points import set_hook
from holdfast.errors import KeyInUseError, LeaseLost, StoreBusy
from holdfast.sql_files import load_statements
from holdfast.store import processes as identity
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.backends import SqliteBackend
from tests.support.bench import (
    LEASE_MS,
    OPERATOR,
    OTHER,
    WORKER,
    Bench,
    SettableClock,
    commit,
    effect_of,
    end,
    finish,
    finish_step,
    give_back,
)
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, Tally, flow_of, note, raises, write_effect
from tests.support.processes import join_all, kill, logging_flow, most_at_once, run_worker, start
from tests.support.waiting import eventually

Effects = Callable[[], list[str]]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(state: Path) -> Bench:
    clock = SettableClock()
    return Bench(SqliteBackend(state).open(clock), clock)


# --- 1 to 4: late attempts and limits ------------------------------------------------------------------------


def test_01_a_late_attempt_does_not_overwrite_the_end_that_a_newer_one_has_written(bench: Bench) -> None:
    """A first attempt that was taken for dead comes back and reports a failure after the second has succeeded."""
    late = bench.running(WORKER)
    bench.crash()
    newer = bench.take(OTHER)
    bench.apply(commit(newer), worker=OTHER)
    bench.apply(finish(newer), worker=OTHER)

    answers = bench.write(end(late), give_back(late), finish_step(late), commit(late))

    assert all(isinstance(answer, LeaseLost) for answer in answers)
    assert bench.state(late.job.job_id) is JobState.SUCCEEDED


def test_02_a_blip_of_the_heartbeat_does_not_free_a_slot_twice(bench: Bench) -> None:
    """A heartbeat comes late, several processes release the same lock, and a job limited to one runs many times."""
    bench.store.set_queue("q", max_running=1, actor=None)
    blip = bench.running(queue="q")
    for _ in range(10):
        bench.submit(queue="q")
    bench.expire()
    recovered = [bench.recover(WORKER) for _ in range(5)]
    renewed = bench.store.extend_leases(worker_id=WORKER, lease_ms=LEASE_MS)
    bench.write(give_back(blip), end(blip))
    claims = [claim for worker in ("a", "b", "c") for claim in bench.claim(worker)]

    assert recovered == [["given back"], [], [], [], []]
    assert renewed == []
    assert len(claims) == 1


def test_03_a_limit_holds_after_a_kill_whoever_starts_first(
    open_engine: OpenEngine, state: Path, effects: Effects
) -> None:
    """Workers that started before the slots of the dead were sorted out ran more jobs than the limit allows."""
    flow = logging_flow(str(state))
    engine = open_engine(flow)
    engine.queue("q", limit=1)
    jobs = [engine.submit(flow, Ask("x", n)) for n in range(12)]
    victim = start(run_worker, str(state), 0.05, 4, 600.0)
    eventually(lambda: (state / "log").exists() and "end" in (state / "log").read_text(), "the victim works")
    kill(victim)
    codes = join_all([start(run_worker, str(state), 0.02, 4, 600.0) for _ in range(3)])

    # The victim never wrote the end of its last step, so that step is the one the log cannot close.
    killed = {line.split()[2] for line in (state / "log").read_text().splitlines() if line.startswith("begin")}
    ended = {line.split()[2] for line in (state / "log").read_text().splitlines() if line.startswith("end")}
    assert codes == [0, 0, 0]
    assert most_at_once(state) <= 1 + len(killed - ended)
    assert effects() == sorted(jobs)


def test_04_the_slot_of_a_dead_worker_is_free_at_once(open_engine: OpenEngine, state: Path) -> None:
    """The limit stayed taken after a worker had died, and everything behind it waited for the whole lease."""
    flow = logging_flow(str(state), 60)
    engine = open_engine(flow)
    engine.queue("q", limit=1)
    engine.submit(flow, Ask())
    victim = start(run_worker, str(state), 60.0, 1, 3600.0)
    eventually((state / "log").exists, "the victim works")
    kill(victim)
    quick = flow_of(note("quick"), "quick", queue="q")
    other = open_engine(quick)
    began = time.monotonic()
    with other.worker(lease=3600, recovery_interval=60):
        result = other.wait(other.submit(quick, Ask(), priority=9), timeout=30)

    assert result.state is JobState.SUCCEEDED
    assert time.monotonic() - began < 10


# --- 5 to 8: recovery and claims -----------------------------------------------------------------------------


def test_05_a_database_that_is_away_during_recovery_strands_nothing(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was restarted while jobs were being recovered; the error was logged, and that was all."""
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    dead = "elsewhere:1:1:boot:1:dead"
    engine.store.claim(worker_id=dead, flows={flow.name: flow.fingerprint}, limit=1, lease_ms=300)
    original, calls = engine.store.recover, Tally()

    def recover(*args: object, **kwargs: object) -> object:
        if 1 < calls.add("recover") < 4:
            raise StoreBusy("the database is restarting")
        return original(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.store, "recover", recover)
    with engine.worker(lease=1, recovery_interval=0.2):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert calls.count("recover") >= 4


def test_06_no_process_can_be_mistaken_for_the_one_before_it(open_engine: OpenEngine) -> None:
    """In a rolling deploy the old process had the same id as the new one, and claimed what that had just recovered."""
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    with engine.worker(**QUICK) as one, engine.worker(**QUICK) as two:
        ids = [one.worker_id, two.worker_id]
    with engine.worker(**QUICK) as three:
        ids.append(three.worker_id)
    me = parse_worker_id(ids[0])
    assert me is not None
    another_start = ids[0].replace(f":{me.start}:", f":{me.start - 1}:")
    another_boot = ids[0].replace(me.boot, "0" * len(me.boot))

    assert len(set(ids)) == 3
    assert [identity.is_dead(worker_id) for worker_id in ids] == [False, False, False]
    assert identity.is_dead(another_start), "the same pid, but another process"
    assert identity.is_dead(another_boot), "the same pid, but another life of the machine"


@pytest.mark.parametrize("number", [24, 13, 5], ids=["too many open files", "permission denied", "input/output error"])
def test_06_what_cannot_be_known_is_not_dead(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A worker that has run out of file descriptors must not declare everybody else dead, nor itself."""
    me = identity.new_worker_id()

    def unreadable(*_args: object, **_kwargs: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_text", unreadable)

    assert not identity.is_dead(me)


def test_07_recovery_gives_back_and_never_runs_what_it_has_not_claimed(
    open_engine: OpenEngine, effects: Effects
) -> None:
    """A list of pending work, read once and used twice, made recovery run jobs that another worker had claimed."""
    tally = Tally()
    flow = flow_of(lambda run: tally.add(run.exec_id) and None)
    engines = [open_engine(flow) for _ in range(3)]
    dead = "elsewhere:1:1:boot:1:dead"
    jobs = [engines[0].submit(flow, Ask()) for _ in range(20)]
    engines[0].store.claim(worker_id=dead, flows={flow.name: flow.fingerprint}, limit=20, lease_ms=1)
    time.sleep(0.01)
    with engines[0].worker(**QUICK), engines[1].worker(**QUICK), engines[2].worker(**QUICK):
        states = {engines[0].wait(job_id, timeout=30).state for job_id in jobs}

    assert states == {JobState.SUCCEEDED}
    assert len(tally.events) == len(set(tally.events)) == 20
    assert effects() == sorted(jobs)
    assert {engines[0].store.job(job_id).attempt for job_id in jobs} == {2}


def test_08_one_bad_job_of_a_batch_does_not_leave_the_others_claimed_and_forgotten(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that could not be decoded broke the loop that started the rest of its batch."""
    import msgspec

    class Strict(msgspec.Struct):
        name: str
        wanted: int

    bad: Flow[Strict, Answer] = Flow("bad", request=Strict, response=Answer)
    bad.start("one", lambda run: None).commit("save", write_effect)
    good = flow_of(note("good"), "good")
    old = flow_of(note("x"), "bad")
    client = open_engine(old)
    jobs = [client.submit(old if n == 3 else good, Ask()) for n in range(8)]
    engine = open_engine(bad, good)
    original, calls = engine.store.write, Tally()

    def write(batch: object, **kwargs: object) -> object:
        if calls.add("write") == 1:
            raise StoreBusy("just now")
        return original(batch, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.store, "write", write)
    with engine.worker(lease=2, recovery_interval=0.3):
        results = [engine.wait(job_id, timeout=20) for job_id in jobs]

    assert [result.state for result in results].count(JobState.SUCCEEDED) == 7
    assert results[3].state is JobState.QUARANTINED


# --- 9 to 12: duplicates, forgetting, locks, deploys -----------------------------------------------------------


def test_09_the_duplicate_that_lost_stops_and_does_not_go_on_with_later_steps(open_engine: OpenEngine) -> None:
    """The loser was given the winner's result and went on with the next steps as if it had won."""
    gate, tally = Gate(), Tally()

    def first(run: AskRun) -> None:
        if not run.interrupted:
            gate.pass_through()

    def second(run: AskRun) -> None:
        tally.add(run.exec_id)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("first", first).to("second", second).commit("save", write_effect)
    one, two = open_engine(flow), open_engine(flow)
    job_id = one.submit(flow, Ask())
    with one.worker(**QUICK) as loser:
        gate.wait_for_arrival()
        two.store.recover(is_dead=lambda _owner: True, actor="blip")
        with two.worker(**QUICK):
            two.wait(job_id, timeout=20)
            gate.open()
            eventually(lambda: loser.active == 0)
            time.sleep(0.2)

    winner = two.store.executions(job_id)[-1].exec_id
    assert tally.events == [winner]


def test_10_a_key_that_was_forgotten_runs_anew_and_returns_no_old_result(open_engine: OpenEngine) -> None:
    """A half-finished cleanup of history let a reused id return the old result without running."""
    tally = Tally()

    def step(run: AskRun) -> Answer:
        return Answer(total=tally.add("ran"))

    flow = flow_of(step)
    engine = open_engine(flow)
    with engine.worker(**QUICK):
        first = engine.submit(flow, Ask(), key="k")
        engine.wait(first, timeout=20)
        engine.store.prune(before=engine.store.now() + 1, limit=9, actor=OPERATOR, dry_run=False)
        second = engine.submit(flow, Ask(), key="k")
        answer = engine.result(flow, second, timeout=20)

    assert first != second
    assert answer.total == 2


def test_10_a_prune_that_was_cut_off_has_removed_all_of_a_job_or_nothing(bench: Bench) -> None:
    job_id = bench.succeeded()

    def die(name: str) -> None:
        if name == "prune.before-commit":
            raise KeyboardInterrupt

    set_hook(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.store.prune(before=bench.clock() + 1, limit=9, actor=OPERATOR, dry_run=False)
    finally:
        set_hook(None)

    assert bench.state(job_id) is JobState.SUCCEEDED
    assert bench.store.pruned_heads() == {}
    bench.assert_sound()


@pytest.mark.parametrize("verb", ["steps", "definitions", "children", "job", "next_due", "workers", "announce"])
def test_11_a_locked_database_at_any_read_is_no_failure_of_a_job(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """`database is locked` in a read before the loop that tries again became a terminal failure."""
    tally = Tally()

    def back(run: AskRun) -> None:
        # What a step asks itself is an error of the step, which is tried again by its policy.
        run.children()
        run.child_result(run.job.job_id)
        if tally.add("back") == 1:
            raise Rewind("one")

    def version(*names: str) -> AskFlow:
        flow: AskFlow = Flow("flow", request=Ask, response=Answer)
        flow.start("one", note("one")).to("back", back, retry=fixed(2, delay=0.01))
        for name in names:
            flow.to(name, note(name))
        return flow.commit("save", write_effect)

    old, new = version(), version("more")
    job_id = open_engine(old).submit(old, Ask())
    engine = open_engine(new)
    original, calls = getattr(engine.store, verb), Tally()

    def locked(*args: object, **kwargs: object) -> object:
        mine = threading.current_thread().name.startswith("holdfast")
        if mine and calls.add(verb) in (1, 3):
            raise StoreBusy("database is locked")
        return original(*args, **kwargs)

    monkeypatch.setattr(engine.store, verb, locked)
    monkeypatch.setattr("holdfast.engine.worker.ANNOUNCE_INTERVAL", 0.1)
    with engine.worker(lease=2, recovery_interval=0.3, stop_grace=1):
        result = engine.wait(job_id, timeout=20)
        eventually(lambda: calls.count(verb), "it was asked, and was locked")

    assert result.state is JobState.SUCCEEDED, result.reason


def test_12_new_code_in_a_step_does_not_strand_jobs_and_a_changed_flow_says_so(open_engine: OpenEngine) -> None:
    """The version was a hash of the source: each deploy stranded what was running, unseen, its slots taken."""
    gate = Gate()

    def version(last: Callable[[AskRun], object], name: str = "two") -> AskFlow:
        flow: AskFlow = Flow("flow", request=Ask, response=Answer, queue="q")
        return flow.start("one", note("one")).to(name, last).commit("save", write_effect)  # type: ignore[arg-type]

    old = version(gate.pass_through)
    engine = open_engine(old)
    engine.queue("q", limit=1)
    jobs = [engine.submit(old, Ask()) for _ in range(2)]
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
    same_names = version(note("rewritten"))
    later = open_engine(same_names)
    with later.worker(**QUICK):
        first = later.wait(jobs[0], timeout=20)
        later.wait(jobs[1], timeout=20)
    under_way = engine.submit(old, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
    changed: AskFlow = Flow("flow", request=Ask, response=Answer, queue="q")
    last = open_engine(changed.start("renamed", note("renamed")).commit("save", write_effect))
    with last.worker(**QUICK):
        stranded = last.wait(under_way, timeout=20)
        next_one = last.wait(last.submit(changed, Ask()), timeout=20)

    assert same_names.fingerprint == old.fingerprint
    assert first.state is JobState.SUCCEEDED
    assert (stranded.state, stranded.outcome) == (JobState.QUARANTINED, EndCode.DEFINITION_CHANGED)
    assert "flow flow changed" in (stranded.reason or "")
    assert next_one.state is JobState.SUCCEEDED, "its slot is free"


# --- 13 to 16: rescue ------------------------------------------------------------------------------------------


def test_13_rescue_is_neither_hours_late_nor_too_early(open_engine: OpenEngine) -> None:
    """A fixed time after which jobs are rescued is too long for the dead and too short for the slow."""
    slow = flow_of(lambda run: time.sleep(2.0), "slow")
    quick = flow_of(note("quick"), "quick")
    engine = open_engine(slow, quick)
    dead = f"{identity.new_worker_id().rsplit(':', 5)[0]}:999999999:1:{identity.boot_id()}:{identity.pid_namespace()}:x"
    orphan = engine.submit(quick, Ask())
    engine.store.claim(worker_id=dead, flows={"quick": quick.fingerprint}, limit=1, lease_ms=86_400_000)
    working = engine.submit(slow, Ask())
    with engine.worker(lease=0.6, recovery_interval=0.1):
        rescued = engine.wait(orphan, timeout=5)
        finished = engine.wait(working, timeout=20)

    assert (rescued.state, finished.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert engine.store.job(working).attempt == 1


def test_14_a_job_that_its_living_worker_does_not_know_of_is_not_kept_for_ever(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of jobs were `running` for months, although a rescuer was there: their worker lived and renewed.

    Here the answer to a claim is lost after its commit, while the worker is busy with another job.
    """
    gate = Gate()
    keeper = flow_of(gate.pass_through, "keeper")
    flow = flow_of(note("work"))
    engine = open_engine(flow, keeper)
    original, lost = engine.store.claim, Tally()

    def claim(*args: object, **kwargs: object) -> object:
        claims = original(*args, **kwargs)  # type: ignore[arg-type]
        if any(one.job.flow == flow.name for one in claims) and lost.add("answer") == 1:
            raise StoreBusy("the answer was lost")
        return claims

    monkeypatch.setattr(engine.store, "claim", claim)
    with engine.worker(lease=1.0, recovery_interval=0.2, stop_grace=1):
        engine.submit(keeper, Ask())
        gate.wait_for_arrival()
        forgotten = [engine.submit(flow, Ask()) for _ in range(3)]
        states = [engine.wait(job_id, timeout=15).state for job_id in forgotten]
        gate.open()

    assert lost.count("answer") >= 2
    assert states == [JobState.SUCCEEDED] * 3


def test_15_a_dead_worker_is_found_by_its_leases_even_if_its_row_is_gone(bench: Bench) -> None:
    """The row of the dead worker was removed first, and then nothing pointed to its jobs any more."""
    bench.store.announce(worker_id=WORKER, flows=["demo"])
    claim = bench.running(WORKER)
    bench.store.retire(worker_id=WORKER)
    bench.expire()

    assert bench.recover() == ["given back"]
    assert bench.state(claim.job.job_id) is JobState.PENDING


def test_15_a_worker_that_comes_back_under_the_same_name_does_not_hide_what_died(bench: Bench) -> None:
    claim = bench.running(WORKER)
    bench.expire()
    bench.store.announce(worker_id=WORKER, flows=["demo"])
    held = bench.store.extend_leases(worker_id=WORKER, lease_ms=LEASE_MS)

    assert held == []
    assert bench.recover() == ["given back"]
    assert bench.job(claim.job.job_id).crashes == 1


def test_16_rescue_needs_no_free_slot_and_no_job_of_its_own(open_engine: OpenEngine) -> None:
    """The job that was to rescue stalled jobs had stalled itself."""
    gate = Gate()
    hung = flow_of(lambda run: gate.pass_through(), "hung")
    quick = flow_of(note("quick"), "quick")
    engine = open_engine(hung, quick)
    engine.submit(hung, Ask())
    with engine.worker(concurrency=1, lease=60, recovery_interval=0.2, stop_grace=0.2):
        gate.wait_for_arrival()
        orphan = engine.submit(quick, Ask())
        dead = "elsewhere:1:1:boot:1:dead"
        engine.store.claim(worker_id=dead, flows={"quick": quick.fingerprint}, limit=1, lease_ms=200)
        eventually(lambda: engine.store.job(orphan).state is JobState.PENDING, "rescued by a worker that is full")
        gate.open()

    assert engine.store.job(orphan).crashes == 1


# --- 17 to 20: waiting, uniqueness, heartbeats, shutdown -------------------------------------------------------


def test_17_a_retry_far_in_the_future_does_not_hold_up_what_shares_its_queue(open_engine: OpenEngine) -> None:
    """A job scheduled for later was the head of its lock, and every ready job behind it waited."""
    bad = flow_of(raises(ValueError("no")), "bad", queue="q", job_retry=fixed(3, delay=3600))
    good = flow_of(note("good"), "good", queue="q")
    engine = open_engine(bad, good)
    engine.queue("q", limit=1)
    later = engine.submit(bad, Ask(), priority=99)
    with engine.worker(**QUICK):
        eventually(lambda: engine.store.job(later).failures == 1)
        result = engine.wait(engine.submit(good, Ask()), timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert engine.store.job(later).state is JobState.PENDING


def test_18_a_key_in_any_state_does_not_wedge_the_promotion_of_the_others(bench: Bench) -> None:
    """A uniqueness rule that ignored one state made one statement fail, and with it the promotion of all jobs."""
    bench.succeeded(key="k")
    bench.ended(key="k")
    failed = bench.ended(key="k")
    due = bench.submit(key="k", not_before=bench.clock() + 1000)
    others = [bench.submit(not_before=bench.clock() + 1000, key=f"other-{n}") for n in range(20)]
    with pytest.raises(KeyInUseError):
        bench.store.retry(failed, actor=OPERATOR, reason="x", from_state=JobState.FAILED)
    bench.clock.advance(2)

    claimed = [claim.job.job_id for claim in bench.claim()]

    assert claimed == [due, *others]
    bench.assert_sound()


def test_19_an_event_loop_that_is_busy_costs_no_lease(open_engine: OpenEngine) -> None:
    """The heartbeat was sent from the loop that the jobs were blocking, and a live job was picked again."""

    async def blocks_the_loop(run: AskRun) -> Answer:
        time.sleep(1.5)  # noqa: ASYNC251 - the very mistake this is about
        await asyncio.sleep(0)
        return Answer(total=1)

    flow = flow_of(blocks_the_loop)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(2)]
    with engine.worker(lease=0.6, recovery_interval=0.1) as worker:
        states = [engine.wait(job_id, timeout=20).state for job_id in jobs]

    assert states == [JobState.SUCCEEDED] * 2
    assert [engine.store.job(job_id).attempt for job_id in jobs] == [1, 1]
    assert worker.telemetry.lost_leases == 0


def test_20_a_shutdown_is_no_failed_attempt_and_is_not_held_up(open_engine: OpenEngine) -> None:
    """The interruption by a deploy was counted as a failure; and a job that ignored its cancel blocked the shutdown."""
    listens, deaf = Gate(), Gate()
    polite = flow_of(listens.pass_through, "polite")
    rude = flow_of(lambda run: deaf.pass_through(), "rude")
    engine = open_engine(polite, rude)
    jobs = [engine.submit(polite, Ask()), engine.submit(rude, Ask())]
    with engine.worker(lease=30, stop_grace=0.3):
        listens.wait_for_arrival()
        deaf.wait_for_arrival()
        began = time.monotonic()
    took = time.monotonic() - began
    deaf.open()

    records = [engine.store.job(job_id) for job_id in jobs]
    assert took < 5
    assert [(job.state, job.failures, job.crashes) for job in records] == [(JobState.PENDING, 0, 0)] * 2


# --- 21 to 24: crash loops, lost jobs, half writes, full disks -------------------------------------------------

SUICIDE = """
import sys
from holdfast import Engine
from tests.integration.test_pitfalls import suicidal_flow

flow = suicidal_flow()
with Engine.open(sys.argv[1], flows=[flow]) as engine, engine.worker(concurrency=1):
    engine.wait(sys.argv[2], timeout=30)
"""


def suicidal_flow() -> AskFlow:
    """Its step brings down the process, as the kernel does when memory runs out."""

    def step(run: AskRun) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return flow_of(step, "suicidal", crash_limit=3, retry=fixed(50))


def test_21_a_job_that_kills_its_worker_again_and_again_is_quarantined(open_engine: OpenEngine, state: Path) -> None:
    """A job that got its process killed was delivered again for ever, because only exceptions were counted."""
    flow = suicidal_flow()
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    codes = [
        subprocess.run([sys.executable, "-c", SUICIDE, state, job_id], cwd=ROOT, check=False, timeout=60).returncode
        for _ in range(3)
    ]
    engine.store.recover(is_dead=identity.is_dead, actor="guard")
    last = subprocess.run([sys.executable, "-c", SUICIDE, state, job_id], cwd=ROOT, check=False, timeout=60)

    job = engine.store.job(job_id)
    assert codes == [-signal.SIGKILL] * 3
    assert last.returncode == 0, "a fourth worker does not touch it any more"
    assert (job.state, job.crashes, job.attempt) == (JobState.QUARANTINED, 3, 3)
    assert engine.store.executions(job_id)[-1].code == EndCode.CRASHED


@pytest.mark.parametrize("point", ["claim.before-commit", "claim.after-commit"])
def test_22_a_job_taken_from_the_queue_by_a_process_that_dies_is_not_lost(bench: Bench, point: str) -> None:
    """Jobs were deleted when they were taken, or read as due and then put into the queue by a process that died."""
    ready = bench.submit()
    due = bench.submit(not_before=bench.clock() + 10)
    bench.clock.advance(1)

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    set_hook(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.claim()
    finally:
        set_hook(None)
    bench.expire()
    bench.recover()

    assert sorted(claim.job.job_id for claim in bench.claim(OTHER)) == sorted([ready, due])
    bench.assert_sound()


@pytest.mark.parametrize("side", ["before-commit", "after-commit"])
def test_23_pause_is_one_fact_that_can_always_be_taken_back(bench: Bench, side: str) -> None:
    """A flag and a status said different things about a pause, and then neither pause nor unpause worked."""
    bench.submit(queue="q")

    def die(name: str) -> None:
        if name.endswith(side):
            raise KeyboardInterrupt

    def pause() -> None:
        bench.store.pause_queue("q", actor=OPERATOR, reason="x")

    def resume() -> None:
        bench.store.resume_queue("q")

    for verb in (pause, resume):
        set_hook(die)
        try:
            with pytest.raises(KeyboardInterrupt):
                verb()
        finally:
            set_hook(None)
        [queue] = [queue for queue in bench.store.queues() if queue.name == "q"]
        assert (queue.paused_at is None) == (queue.paused_by is None) == (queue.paused_reason is None)
    bench.store.pause_queue("q", actor=OPERATOR, reason="x")
    paused = bench.claim()
    bench.store.resume_queue("q")

    assert paused == []
    assert len(bench.claim()) == 1


@pytest.mark.parametrize("point", ["write.Commit.before-commit", "write.Commit.after-commit"])
def test_23_history_and_state_are_written_together_or_not_at_all(bench: Bench, effects: Effects, point: str) -> None:
    """A crash between the table of events and the table of states left the two telling different stories."""
    claim = bench.running()

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    set_hook(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.write(commit(claim, effect_of(claim)))
    finally:
        set_hook(None)

    journaled = [entry.exec_to for entry in bench.journal(claim.job.job_id)]
    committed = point.endswith("after-commit")
    assert ("committed" in journaled) is committed
    assert (bench.status(claim) == "committed") is committed
    assert len(effects()) == committed
    bench.assert_sound()


def test_24_history_can_be_forgotten_when_the_disk_is_already_full(bench: Bench) -> None:
    """Nothing was ever removed, the disk was full, and then nobody could connect to remove anything."""
    for _ in range(50):
        bench.succeeded(request='{"data":"' + "x" * 3000 + '"}')
    writer = bench.store._database._writer  # type: ignore[attr-defined]
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")

    removed = bench.store.prune(before=bench.clock() + 1, limit=50, actor=OPERATOR, dry_run=False)

    assert len(removed) == 50
    assert bench.state(bench.submit()) is JobState.PENDING
    bench.assert_sound()


HOT = [
    "has_ready",
    "promote_due",
    "ready_queues",
    "ready_jobs",
    "owners",
    "orphaned",
    "held",
    "extend_leases",
    "next_due",
]


@pytest.mark.parametrize("name", HOT)
def test_24_no_question_that_is_asked_all_the_time_looks_at_finished_jobs(bench: Bench, state: Path, name: str) -> None:
    """Counting over finished rows, again and again, became the most expensive query of the database."""
    bench.succeeded()
    bench.ended(Disposition.FAILED)
    bench.ended(Disposition.QUARANTINED)
    statement = load_statements("holdfast.store", "sqlite")[name]
    with closing(sqlite3.connect(state / "holdfast.db")) as shell:
        parameters = dict.fromkeys(re.findall(r":([a-z_]+)", statement), 1) | {"dead": "[]", "flows": "[]"}
        plan = [row[3] for row in shell.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        small = indexes_without_finished_jobs(shell)

    touching = [line for line in plan if re.search(r"\b(jobs|executions|j|e)\b", line) and "json_each" not in line]
    assert touching
    scanned = [line for line in touching if line.startswith("SCAN")]
    assert [line for line in scanned if line.rpartition("INDEX ")[2] not in small] == [], plan


def indexes_without_finished_jobs(shell: sqlite3.Connection) -> set[str]:
    """Of a database whose jobs have all ended: the indexes that say which rows they have, and have none of them."""
    indexes = shell.execute(
        "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE%'"
    )
    return {
        name
        for name, table, sql in indexes.fetchall()
        if shell.execute(f"SELECT count(*) FROM {table} WHERE {sql.partition(' WHERE ')[2]}").fetchone() == (0,)
    }


def test_24_the_price_of_a_job_does_not_grow_with_the_number_of_finished_ones(bench: Bench) -> None:
    """The same cycle of claim, commit and finish, counted in steps of the database engine's virtual machine."""
    writer = bench.store._database._writer  # type: ignore[attr-defined]

    def price() -> int:
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        bench.submit()
        writer.set_progress_handler(count, 10)
        claim = bench.take()
        bench.apply(commit(claim))
        bench.apply(finish(claim))
        writer.set_progress_handler(None, 0)
        return steps

    before = price()
    claims = []
    for _ in range(3):
        bench.store.submit([bench.new_job() for _ in range(300)], actor="client")
        claims = bench.claim(limit=300)
        bench.apply(*(commit(claim) for claim in claims))
        bench.apply(*(finish(claim) for claim in claims))
    after = price()

    assert len(claims) == 300
    assert after <= before * 1.5 + 20, (before, after)


# --- and the others --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whom", ["itself", "its parent"])
def test_a_job_cannot_wait_for_what_only_itself_could_bring_about(open_engine: OpenEngine, whom: str) -> None:
    """A run was suspended until a result came that only the run itself could have produced."""

    def step(run: AskRun) -> None:
        raise WaitFor(run.job.job_id if whom == "itself" else run.job.parent or "")

    child = flow_of(step, "child")

    def parent_step(run: AskRun) -> None:
        kid = run.submit_child("kid", child, Ask())
        if run.child_result(kid).state in (JobState.PENDING, JobState.RUNNING):
            raise WaitFor(kid)

    parent: AskFlow = Flow("parent", request=Ask, response=Answer)
    parent.start("wait", parent_step).commit("save", write_effect)
    engine = open_engine(parent, child)
    job_id = engine.submit(parent, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    [kid] = engine.store.children(job_id)
    assert result.state is JobState.SUCCEEDED
    assert kid.state is JobState.QUARANTINED
    assert "CycleError" in (engine.wait(kid.job_id).reason or "")


def test_a_backup_taken_in_the_middle_of_everything_comes_to_life_again(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    """A snapshot taken during a transition was restored as a machine that looked healthy and never moved again."""
    gate = Gate()
    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).to("slow", gate.pass_through).commit("save", write_effect)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(3)]
    with engine.worker(lease=1.0):
        gate.wait_for_arrival()
        engine.store.backup(tmp_path / "copy.db")
        gate.open()
        for job_id in jobs:
            engine.wait(job_id, timeout=20)
    with Engine.open(tmp_path / "copy.db", flows=[flow]) as copy:
        running = [copy.store.job(job_id).state for job_id in jobs]
        with copy.worker(lease=1.0, recovery_interval=0.2):
            states = [copy.wait(job_id, timeout=20).state for job_id in jobs]

    assert JobState.RUNNING in running
    assert states == [JobState.SUCCEEDED] * 3


def test_of_many_triggers_at_the_same_moment_one_makes_the_transition(bench: Bench) -> None:
    """Two threads looked at the state, both found the transition allowed, and both made it."""
    job_id = bench.ended()
    barrier, passed = threading.Barrier(8), Tally()

    def retry() -> None:
        barrier.wait()
        bench.store.retry(job_id, actor=OPERATOR, reason="x", from_state=JobState.FAILED)
        passed.add("answered")

    threads = [threading.Thread(target=retry) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert passed.count("answered") == 8, "the wish of each has come true"
    assert bench.states(job_id) == ["pending", "running", "failed", "pending"]


def test_work_that_goes_on_after_its_timeout_is_recorded_nowhere(open_engine: OpenEngine, effects: Effects) -> None:
    """The timeout fired, the work went on all the same, and it was started a second time next to the first."""
    gate, tally = Gate(), Tally()

    def step(run: AskRun) -> Answer:
        if tally.add("entered") == 1:
            gate.pass_through()
            tally.add("late")
            return Answer(trail=["first"])
        assert run.interrupted, "the second must know that a first one may still be at it"
        gate.open()
        eventually(lambda: tally.count("late"))
        return Answer(trail=["second"])

    flow = flow_of(step, timeout=0.5, retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=30)

    assert answer.trail == ["second"]
    assert effects() == [job_id]


def test_a_lock_held_by_somebody_else_is_waited_for_by_every_part_of_a_worker(
    open_engine: OpenEngine, state: Path
) -> None:
    """`database is locked`, said to a heartbeat, cost the lease of a job that was at work."""
    gate = Gate()
    flow = flow_of(gate.pass_through)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(lease=3.0, recovery_interval=0.2) as worker:
        gate.wait_for_arrival()
        with closing(sqlite3.connect(state / "holdfast.db", isolation_level=None)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            time.sleep(1.5)
            shell.execute("ROLLBACK")
        gate.open()
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert engine.store.job(job_id).attempt == 1
    assert worker.telemetry.lost_leases == 0


def test_a_reader_that_never_ends_its_transaction_holds_up_nobody(open_engine: OpenEngine, state: Path) -> None:
    """A session left idle in a transaction froze the dequeuing of queues that had nothing to do with it."""
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    engine.submit(flow, Ask())
    with closing(sqlite3.connect(state / "holdfast.db", isolation_level=None)) as shell:
        shell.execute("BEGIN")
        before = shell.execute("SELECT count(*) FROM jobs").fetchone()
        with engine.worker(**QUICK):
            states = {engine.wait(engine.submit(flow, Ask()), timeout=20).state for _ in range(5)}
        after = shell.execute("SELECT count(*) FROM jobs").fetchone()

    assert states == {JobState.SUCCEEDED}
    assert before == after == (1,)


# What cannot happen on SQLite, or not here, and why:
#
# | pitfall                                       | why not                                                         |
# |-----------------------------------------------|-----------------------------------------------------------------|
# | 5, as a restart of the database server        | there is no server; a database that is away is StoreUnavailable |
# | 10, cleanup interrupted between two databases | jobs, steps, journal and `pruned` are one database and go in    |
# |                                               | one transaction                                                 |
# | NOTIFY takes a global lock at commit          | wake-ups are bytes in FIFOs, written after the commit           |
# | an idle writer freezes unrelated queues       | there is one write lock for all; who waits for it is told       |
# |                                               | StoreBusy after the busy timeout and tries again                |
