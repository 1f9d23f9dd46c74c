"""The audit trail: whatever happened to a job can be read from its journal, in order, with who and why."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Abort, JobState, fixed
from holdfast.core.hash_chain import chain_faults
from holdfast.core.states import EXECUTION_TRANSITIONS, JOB_TRANSITIONS, ExecutionStatus
from holdfast.guard import check
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Ask, flow_of, note, raises


def test_a_life_can_be_read_from_its_journal(open_engine: OpenEngine) -> None:
    flow = flow_of(raises(ValueError("no"), Abort("enough"), None), job_retry=fixed(1, delay=0.01))
    engine = open_engine(flow, actor="client:web")
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK) as worker:
        engine.wait(job_id, timeout=20)
        operator = open_engine(flow, actor="operator:alice")
        operator.retry(job_id, reason="the disk is back")
        engine.wait(job_id, timeout=20)

    journal = list(engine.store.journal(job_id))
    moves = [(e.job_from, e.job_to) for e in journal if e.job_from != e.job_to]
    assert moves == [
        (None, "pending"),
        ("pending", "running"),
        ("running", "failed"),
        ("failed", "pending"),
        ("pending", "running"),
        ("running", "failed"),
        ("failed", "pending"),
        ("pending", "running"),
        ("running", "succeeded"),
    ]
    assert [entry.seq for entry in journal] == list(range(1, len(journal) + 1))
    assert journal[0].actor == "client:web"
    assert {entry.actor for entry in journal} == {"client:web", "operator:alice", worker.worker_id}
    assert [entry.reason for entry in journal if entry.actor == "operator:alice"] == ["the disk is back"]
    assert any("enough" in entry.reason for entry in journal)


def test_every_journaled_transition_is_in_the_tables(open_engine: OpenEngine) -> None:
    good = flow_of(note("x"), "good")
    bad = flow_of(raises(ValueError("no")), "bad", job_retry=fixed(2, delay=0.01))
    engine = open_engine(good, bad)
    jobs = [engine.submit(good, Ask()), engine.submit(bad, Ask()), engine.submit(good, Ask(), delay=60)]
    engine.cancel(jobs[2], reason="x")
    with engine.worker(**QUICK):
        for job_id in jobs:
            engine.wait(job_id, timeout=20)

    for entry in engine.store.journal():
        if entry.job_from is not None:
            assert JobState(entry.job_to) in JOB_TRANSITIONS[JobState(entry.job_from)]
        if entry.exec_from is not None and entry.exec_from != entry.exec_to:
            before, after = ExecutionStatus(entry.exec_from), ExecutionStatus(entry.exec_to or "")
            assert after in EXECUTION_TRANSITIONS[before]


def test_the_chain_of_every_job_is_whole_and_of_its_own(open_engine: OpenEngine) -> None:
    flow = flow_of(note("x"))
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(20)]
    with engine.worker(**QUICK):
        for job_id in jobs:
            engine.wait(job_id, timeout=20)

    heads = set()
    for job_id in jobs:
        journal = list(engine.store.journal(job_id))
        assert list(chain_faults(journal)) == []
        assert {entry.job_id for entry in journal} == {job_id}
        heads.add(journal[-1].hash)
    assert len(heads) == 20


def test_what_was_refused_is_not_journaled(open_engine: OpenEngine) -> None:
    flow = flow_of(note("x"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=20)
    before = list(engine.store.journal(job_id))
    for attempt in (engine.cancel, engine.retry, engine.release):
        with pytest.raises(Exception, match="transition"):
            attempt(job_id, reason="x")

    assert list(engine.store.journal(job_id)) == before


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE journal SET actor = 'nobody' WHERE seq = 3",
        "UPDATE journal SET at = at + 1 WHERE seq = 2",
        "UPDATE journal SET metadata = '{}' WHERE exec_to = 'aborted'",
        "DELETE FROM journal WHERE seq = 3",
        "DELETE FROM journal WHERE seq = (SELECT max(seq) FROM journal)",
        "UPDATE journal SET seq = 99 WHERE seq = 2",
    ],
)
def test_an_edit_behind_the_triggers_is_found_by_the_check(open_engine: OpenEngine, tmp_path: Path, edit: str) -> None:
    from holdfast import Engine

    flow = flow_of(raises(Abort("no")))
    with Engine.open(tmp_path / "edited", flows=[flow]) as engine:
        job_id = engine.submit(flow, Ask())
        with engine.worker(**QUICK):
            engine.wait(job_id, timeout=20)
    with closing(sqlite3.connect(tmp_path / "edited" / "holdfast.db", isolation_level=None)) as shell:
        triggers = shell.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            shell.execute(f"DROP TRIGGER {name}")
        shell.execute(edit)
        for _, sql in triggers:
            shell.execute(sql)
    with Engine.open(tmp_path / "edited", flows=[flow]) as engine:
        findings = check(engine.store, deep=False)

    assert {finding.code for finding in findings} & {"journal-broken", "journal-disagrees"}
    assert all(job_id in finding.subject for finding in findings)
