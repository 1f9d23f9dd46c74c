"""Pitfalls 5 to 8: recovery and claims."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Flow, JobState
from holdfast.core.values import parse_worker_id
from holdfast.errors import StoreBusy
from holdfast.store import liveness
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, Tally, flow_of, note, write_effect

Effects = Callable[[], list[str]]


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
    assert [liveness.is_dead(worker_id) for worker_id in ids] == [False, False, False]
    assert liveness.is_dead(another_start), "the same pid, but another process"
    assert liveness.is_dead(another_boot), "the same pid, but another life of the machine"


@pytest.mark.parametrize("number", [24, 13, 5], ids=["too many open files", "permission denied", "input/output error"])
def test_06_what_cannot_be_known_is_not_dead(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A worker that has run out of file descriptors must not declare everybody else dead, nor itself."""
    me = liveness.new_worker_id()

    def unreadable(*_args: object, **_kwargs: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_text", unreadable)

    assert not liveness.is_dead(me)


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
