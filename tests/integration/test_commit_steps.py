"""Commit steps: the user's tables and the job are one transaction, and jobs submitted there come with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import Engine, Flow, JobState, Transaction, fixed
from holdfast.errors import BadInput, DefinitionError
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Tally, flow_of, note, write_effect

Effects = Callable[[], list[str]]


def committing(save: Callable[[AskRun, Transaction], object], name: str = "flow", **settings: object) -> AskFlow:
    flow: AskFlow = Flow(name, request=Ask, response=Answer)
    return flow.start("one", note("one")).commit("save", save, **settings)  # type: ignore[arg-type]


def test_a_job_submitted_in_a_commit_exists_with_it_and_runs(open_engine: OpenEngine) -> None:
    following = flow_of(note("following"), "following")
    submitted: list[str] = []

    def save(run: AskRun, tx: Transaction) -> None:
        submitted.append(tx.submit(following, Ask("next", 2)))

    flow = committing(save)
    engine = open_engine(flow, following)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=20)
        result = engine.wait(submitted[0], timeout=20)

    assert result.state is JobState.SUCCEEDED


def test_a_job_submitted_in_a_commit_that_fails_never_exists(open_engine: OpenEngine) -> None:
    following = flow_of(note("following"), "following")
    tally = Tally()

    def save(run: AskRun, tx: Transaction) -> None:
        tx.submit(following, Ask())
        if tally.add("save") < 3:
            raise ValueError("no")

    flow = committing(save, retry=fixed(5, delay=0.01))
    engine = open_engine(flow, following)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=20)

    assert len(engine.store.jobs(flow="following")) == 1


def test_a_bad_request_submitted_in_a_commit_is_an_error_of_the_step(open_engine: OpenEngine, effects: Effects) -> None:
    following = flow_of(note("following"), "following")

    def save(run: AskRun, tx: Transaction) -> None:
        write_effect(run, tx)
        tx.submit(following, {"number": "many"})

    flow = committing(save)
    engine = open_engine(flow, following)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert "RequestInvalidError" in (result.reason or "")
    assert effects() == []


def calls_of_the_engine(engine: Engine, flow: AskFlow, run: AskRun) -> dict[str, Callable[[], object]]:
    return {
        "engine.submit": lambda: engine.submit(flow, Ask()),
        "engine.cancel": lambda: engine.cancel(run.job.job_id, reason="x"),
        "run.submit_child": lambda: run.submit_child("kid", flow, Ask()),
    }


@pytest.mark.parametrize("call", ["engine.submit", "engine.cancel", "run.submit_child"])
def test_writing_around_the_transaction_is_refused_at_once_instead_of_waiting_for_itself(
    open_engine: OpenEngine, call: str
) -> None:
    errors: list[Exception] = []

    def save(run: AskRun, tx: Transaction) -> None:
        try:
            calls_of_the_engine(engine, flow, run)[call]()
        except BadInput as error:
            errors.append(error)
            raise

    flow = committing(save)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert errors[0].hint is not None  # type: ignore[attr-defined]
    assert "tx." in errors[0].hint  # type: ignore[attr-defined]
    assert len(engine.store.jobs()) == 1


@pytest.mark.only_sqlite
def test_another_engine_on_the_same_database_gives_up_instead_of_waiting_for_ever(open_engine: OpenEngine) -> None:
    """It cannot know that the transaction it waits for waits for it; the busy timeout ends that."""
    tally = Tally()

    def save(run: AskRun, tx: Transaction) -> None:
        tally.add("save")
        write_effect(run, tx)
        other.submit(flow, Ask())

    flow = committing(save)
    engine = open_engine(flow)
    other = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(lease=30):
        result = engine.wait(job_id, timeout=40)

    assert result.state is JobState.QUARANTINED
    assert "StoreBusy" in (result.reason or "")


def test_many_commits_at_once_share_transactions_and_lose_nothing(open_engine: OpenEngine, effects: Effects) -> None:
    tally = Tally()

    def save(run: AskRun, tx: Transaction) -> None:
        write_effect(run, tx)
        if run.request.number % 7 == 0 and run.tries == 1:
            tally.add("failed once")
            raise ValueError("no")

    flow = committing(save, retry=fixed(3, delay=0.01))
    engine = open_engine(flow)
    jobs = engine.submit_many([engine.prepare(flow, Ask("x", n)) for n in range(200)])
    with engine.worker(**QUICK) as worker:
        states = {engine.wait(job_id, timeout=60).state for job_id in jobs}

    assert states == {JobState.SUCCEEDED}
    assert effects() == sorted(jobs)
    assert tally.count("failed once") == 29
    assert worker.telemetry.group_commits < worker.telemetry.writes


def test_one_commit_step_that_poisons_its_transaction_does_not_stop_the_worker(
    open_engine: OpenEngine, effects: Effects
) -> None:
    """A statement that rolls everything back must fail its own job, and not be tried for ever with all the others."""

    def poison(run: AskRun, tx: Transaction) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS once (n INTEGER PRIMARY KEY)")
        tx.execute("INSERT OR IGNORE INTO once VALUES (1)")
        tx.execute("INSERT OR ROLLBACK INTO once VALUES (1)")

    bad, good = committing(poison, "bad"), committing(write_effect, "good")
    engine = open_engine(bad, good)
    first = engine.submit(bad, Ask())
    with engine.worker(stop_grace=1, lease=3):
        result = engine.wait(first, timeout=20)
        other = engine.submit(good, Ask())
        after = engine.wait(other, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert after.state is JobState.SUCCEEDED
    assert effects() == [other]


def test_an_async_commit_step_is_refused_when_the_flow_is_made() -> None:
    async def save(run: AskRun, tx: Transaction) -> None:
        pass

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    with pytest.raises(DefinitionError):
        flow.start("one", note("one")).commit("save", save)  # type: ignore[arg-type]

    assert [step.name for step in flow.steps] == ["one"]


def test_an_effect_sees_its_own_writes_and_what_was_committed_before(open_engine: OpenEngine) -> None:
    def save(run: AskRun, tx: Transaction) -> Answer:
        write_effect(run, tx)
        return Answer(total=tx.execute("SELECT count(*) FROM effects").fetchone()[0])

    flow = committing(save)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(5)]
    with engine.worker(**QUICK):
        totals = sorted(engine.result(flow, job_id, timeout=20).total for job_id in jobs)

    assert totals == [1, 2, 3, 4, 5]
