"""Keys that last: the ended job stays the answer, for ever or for a period, past retention and against every race."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from holdfast.core.states import Disposition, JobState
from holdfast.errors import JobPrunedError
from holdfast.guard import check
from holdfast.store import submit as submitting
from holdfast.store.commands import StoreTransaction, Submitted
from holdfast.store.session import Session
from tests.support.backends import Backend, is_refusal, on_postgres
from tests.support.bench import OPERATOR, Bench, SettableClock, commit, finish

FOREVER: dict[str, Any] = {"key": "k", "key_lasts_ms": None}
AN_HOUR: dict[str, Any] = {"key": "k", "key_lasts_ms": 3_600_000}
UNFINISHED: dict[str, Any] = {"key": "k"}
ENDINGS = [None, Disposition.FAILED, Disposition.QUARANTINED]


def ended(bench: Bench, disposition: Disposition | None, **fields: Any) -> str:
    return bench.succeeded(**fields) if disposition is None else bench.ended(disposition, **fields)


def is_refused(backend: Backend, statement: str) -> bool:
    with backend.shell() as shell:
        try:
            shell.execute(statement)
        except Exception as error:
            return is_refusal(error)
    return False


def prune(bench: Bench) -> list[str]:
    return bench.store.prune(before=bench.clock() + 1, limit=100, actor=OPERATOR, dry_run=False)


@pytest.mark.parametrize("disposition", ENDINGS)
@pytest.mark.parametrize("lasting", [FOREVER, AN_HOUR])
def test_a_key_that_lasts_gives_the_ended_job_however_it_ended(
    bench: Bench, disposition: Disposition | None, lasting: dict[str, Any]
) -> None:
    first = ended(bench, disposition, **lasting)

    assert bench.submit_one(**lasting) == Submitted(first, created=False)
    assert len(bench.store.jobs()) == 1


def test_a_key_for_ever_is_not_free_after_a_hundred_years(bench: Bench) -> None:
    first = bench.succeeded(**FOREVER)
    bench.clock.advance(100 * 365 * 86400)

    assert bench.submit_one(**FOREVER).job_id == first


def test_a_key_for_a_period_is_free_when_that_is_over_and_then_taken_for_another(bench: Bench) -> None:
    first = bench.succeeded(**AN_HOUR)
    bench.clock.advance(3599)
    still = bench.submit_one(**AN_HOUR)
    bench.clock.advance(1)
    second = bench.submit_one(**AN_HOUR)
    claim = bench.take()
    bench.apply(commit(claim))
    bench.apply(finish(claim))
    bench.clock.advance(3599)
    third = bench.submit_one(**AN_HOUR)

    assert (still.job_id, still.created) == (first, False)
    assert second.created
    assert (third.job_id, third.created) == (second.job_id, False)


def test_a_job_that_outlives_the_period_of_its_key_still_has_it(bench: Bench) -> None:
    claim = bench.running(**AN_HOUR)
    bench.clock.advance(7200)

    assert bench.submit_one(**AN_HOUR) == Submitted(claim.job.job_id, created=False)


@pytest.mark.parametrize("disposition", [Disposition.FAILED, Disposition.QUARANTINED])
def test_an_operator_reopens_the_job_that_has_the_key(bench: Bench, disposition: Disposition) -> None:
    first = bench.ended(disposition, **FOREVER)
    bench.store.retry(first, actor=OPERATOR, reason="x", from_state=JobState(disposition.value))

    assert bench.submit_one(**FOREVER) == Submitted(first, created=False)
    assert bench.state(first) is JobState.PENDING


def test_a_key_that_lasts_belongs_to_its_flow(bench: Bench) -> None:
    bench.succeeded(**FOREVER)

    assert bench.submit_one(flow="another", **FOREVER).created


def test_a_batch_finds_what_lasts_and_what_it_adds_itself(bench: Bench) -> None:
    there = bench.succeeded(**FOREVER)
    batch = [bench.new_job(**{**FOREVER, "key": key}) for key in ("b", "k", "a", "b")]
    answers = bench.store.submit(batch, actor="client")

    assert [one.created for one in answers] == [True, False, True, False]
    assert answers[1].job_id == there
    assert answers[3].job_id == answers[0].job_id


def test_a_batch_that_is_refused_takes_no_key(bench: Bench) -> None:
    there = bench.submit()
    with pytest.raises(Exception, match="exists already"):
        bench.store.submit([bench.new_job(**FOREVER), bench.new_job(job_id=there)], actor="client")

    assert bench.submit_one(**FOREVER).created


# --- retention ---


@pytest.mark.parametrize("disposition", ENDINGS)
def test_a_key_for_ever_outlives_its_job(bench: Bench, disposition: Disposition | None) -> None:
    first = ended(bench, disposition, **FOREVER)
    assert prune(bench) == [first]

    assert bench.submit_one(**FOREVER) == Submitted(first, created=False)
    assert bench.submit_one(request='{"n":2}', **FOREVER) == Submitted(first, created=False, same_request=False)
    with pytest.raises(JobPrunedError) as gone:
        bench.job(first)
    assert gone.value.state == ("succeeded" if disposition is None else disposition.value)
    bench.assert_sound()


def test_a_key_for_a_period_outlives_its_job_until_the_period_is_over(bench: Bench, backend: Backend) -> None:
    first = bench.succeeded(**AN_HOUR)
    prune(bench)
    still = bench.submit_one(**AN_HOUR)
    bench.clock.advance(3600)
    prune(bench)

    assert still.job_id == first
    assert backend.query("SELECT count(*) FROM keys") == [(0,)]
    assert bench.submit_one(**AN_HOUR).created


def test_a_job_may_run_after_one_that_succeeded_and_was_removed(bench: Bench) -> None:
    first = bench.succeeded(**FOREVER)
    prune(bench)
    again = bench.new_job(**FOREVER)
    bench.store.submit([again, after := bench.new_job(run_after=again.job_id)], actor="client")

    assert bench.submit_one(**FOREVER).job_id == first
    assert bench.take().job.job_id == after.job_id


def test_a_job_after_one_that_failed_and_was_removed_fails(bench: Bench) -> None:
    failed = bench.ended(Disposition.FAILED)
    prune(bench)
    after = bench.submit(run_after=failed)

    assert bench.state(after) is JobState.FAILED


# --- other definitions of the flow, and other requests ---


@pytest.mark.parametrize("later", [FOREVER, AN_HOUR])
def test_a_flow_that_makes_keys_last_finds_the_jobs_from_before(bench: Bench, later: dict[str, Any]) -> None:
    first = bench.succeeded(**UNFINISHED)
    bench.clock.advance(1800)

    assert bench.submit_one(**later) == Submitted(first, created=False)
    bench.clock.advance(1800)
    assert bench.submit_one(**later).created is (later is AN_HOUR)


def test_of_several_jobs_from_before_the_last_one_has_the_key(bench: Bench) -> None:
    bench.succeeded(**UNFINISHED)
    bench.clock.advance(1)
    last = bench.ended(Disposition.FAILED, **UNFINISHED)

    assert bench.submit_one(**FOREVER).job_id == last


def test_what_was_promised_for_a_key_is_not_taken_back_by_another_definition(bench: Bench) -> None:
    first = bench.succeeded(**FOREVER)

    assert bench.submit_one(**UNFINISHED).job_id == first
    assert bench.submit_one(**AN_HOUR).job_id == first


@pytest.mark.parametrize("lasting", [FOREVER, AN_HOUR, UNFINISHED])
def test_another_request_under_the_key_is_told(bench: Bench, lasting: dict[str, Any]) -> None:
    first = bench.submit(request='{"a":1,"b":[2]}', **lasting)

    assert bench.submit_one(request='{ "b": [2], "a": 1 }', **lasting) == Submitted(first, created=False)
    assert bench.submit_one(request='{"a":1,"b":[3]}', **lasting) == Submitted(first, created=False, same_request=False)


@pytest.mark.parametrize("lasting, warnings", [(FOREVER, 1), (AN_HOUR, 1), (UNFINISHED, 0)])
def test_another_request_under_a_key_that_lasts_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, lasting: dict[str, Any], warnings: int
) -> None:
    first = bench.submit(**lasting)
    bench.submit(**lasting)
    with caplog.at_level(logging.WARNING, "holdfast.store"):
        bench.submit(request='{"n":2}', **lasting)

    assert [first in record.getMessage() for record in caplog.records] == [True] * warnings


# --- commit steps and children ---


def test_a_commit_step_finds_what_lasts_and_takes_keys_with_its_commit(bench: Bench) -> None:
    there = bench.succeeded(**FOREVER)
    answers: list[Submitted] = []

    def effect(tx: StoreTransaction) -> str:
        answers.append(tx.submit_job(bench.new_job(**FOREVER)))
        answers.append(tx.submit_job(bench.new_job(**{**FOREVER, "key": "new"})))
        return "{}"

    claim = bench.running()
    bench.apply(commit(claim, effect))

    assert answers[0] == Submitted(there, created=False)
    assert answers[1].created
    assert bench.submit_one(**{**FOREVER, "key": "new"}).job_id == answers[1].job_id


def test_a_commit_step_that_fails_gives_its_keys_back(bench: Bench) -> None:
    def effect(tx: StoreTransaction) -> str:
        tx.submit_job(bench.new_job(**FOREVER))
        raise ValueError("no")

    bench.write(commit(bench.running(), effect))

    assert bench.submit_one(**FOREVER).created


def test_a_child_under_a_key_that_lasts_is_the_job_that_is_there(bench: Bench) -> None:
    there = bench.succeeded(**FOREVER)
    parent = bench.running().job.job_id
    answer = bench.submit_one(parent=parent, child_name="c", **FOREVER)

    assert answer == Submitted(there, created=False)
    assert [child.job_id for child in bench.store.children(parent)] == [there]


def test_a_child_may_be_a_job_that_was_removed(bench: Bench) -> None:
    there = bench.succeeded(**FOREVER)
    prune(bench)
    parent = bench.running().job.job_id
    first = bench.submit_one(parent=parent, child_name="c", **FOREVER)
    again = bench.submit_one(parent=parent, child_name="c", **FOREVER)

    assert first == again == Submitted(there, created=False)
    assert check(bench.store, deep=True) == []


# --- the rules of the database ---


@pytest.mark.parametrize("lasting", [FOREVER, AN_HOUR])
def test_the_database_refuses_a_second_job_under_a_key_that_lasts(
    bench: Bench, backend: Backend, lasting: dict[str, Any]
) -> None:
    bench.succeeded(**lasting)
    columns = "job_id, flow, fingerprint, key, created_at, updated_at"
    row = f"'01ARZ3NDEKTSV4RRFFQ69G5FAV', 'demo', 'f-demo', 'k', {bench.clock()}, {bench.clock()}"

    assert is_refused(backend, f"INSERT INTO jobs ({columns}) VALUES ({row})")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE keys SET job_id = 'x'",
        "UPDATE keys SET expires_at = 1",
        "DELETE FROM keys",
        "INSERT INTO keys VALUES ('demo', 'other', 'nobody', 'd', 1, NULL)",
        "INSERT INTO keys SELECT flow, key, job_id, 'd', 1, NULL FROM keys",
    ],
)
def test_the_record_of_a_key_for_ever_does_not_change(bench: Bench, backend: Backend, statement: str) -> None:
    bench.succeeded(**FOREVER)
    before = backend.query("SELECT * FROM keys")

    assert is_refused(backend, statement)
    assert backend.query("SELECT * FROM keys") == before


@pytest.mark.parametrize(
    "edit",
    ["UPDATE keys SET job_id = 'nobody'", "UPDATE keys SET flow = 'other'", "UPDATE keys SET key = 'other'"],
)
def test_the_check_finds_a_key_that_was_given_to_another_job(bench: Bench, backend: Backend, edit: str) -> None:
    bench.succeeded(**FOREVER)
    assert check(bench.store, deep=True) == []
    with backend.shell() as shell:
        put_back = backend.without_triggers(shell)
        shell.execute(edit)
        put_back()

    assert [finding.code for finding in check(bench.store, deep=True)] == ["orphan-rows", "key-missing"]


@pytest.mark.parametrize("lasting", [FOREVER, AN_HOUR])
def test_many_who_submit_at_once_get_one_job(backend: Backend, clock: SettableClock, lasting: dict[str, Any]) -> None:
    benches = [Bench(backend.open(clock), clock) for _ in range(6)]
    keys = [f"k{number}" for number in range(20)]
    answers: list[list[Submitted]] = []
    together = threading.Barrier(len(benches))

    def submit(bench: Bench, order: int) -> None:
        together.wait(30)
        mine = keys if order % 2 else keys[::-1]
        found = {key: bench.submit_one(**{**lasting, "key": key}) for key in mine}
        answers.append([found[key] for key in keys])

    threads = [threading.Thread(target=submit, args=(bench, order)) for order, bench in enumerate(benches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert len(answers) == len(benches)
    for one in zip(*answers, strict=True):
        assert len({answer.job_id for answer in one}) == 1
        assert sum(answer.created for answer in one) == 1
    assert len(benches[0].store.jobs(limit=1000)) == len(keys)


@on_postgres
def test_a_race_is_lost_also_to_a_job_that_has_ended_already(
    backend: Backend, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between look and insert the key is taken, and its job runs to its end: only the record of the key shows."""
    bench, other = (Bench(backend.open(clock), clock) for _ in range(2))
    look = submitting._existing
    winner: list[str] = []

    def look_and_be_overtaken(session: Session, *arguments: Any) -> Submitted | None:
        found = look(session, *arguments)
        if not winner:
            winner.append("")
            winner[0] = other.succeeded(**FOREVER)
        return found

    monkeypatch.setattr(submitting, "_existing", look_and_be_overtaken)
    answer = bench.submit_one(**FOREVER)

    assert answer == Submitted(winner[0], created=False)
