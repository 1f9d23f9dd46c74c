"""The clock is one machine's clock: it may be set, in either direction, and nothing may break by it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from holdfast import guard
from holdfast.core.facts import JobFacts
from holdfast.core.repair import wrong_columns
from holdfast.core.states import JobState
from tests.support.bench import (
    OPERATOR,
    OTHER,
    WORKER,
    Bench,
    commit,
    end,
    finish,
    finish_step,
    give_back,
    plan_ending,
    record_try,
    report_progress,
)


def test_a_clock_set_back_during_a_job_breaks_no_invariant(bench: Bench) -> None:
    claim = bench.running()
    bench.clock.advance(-3600)
    bench.apply(finish_step(claim))
    bench.apply(record_try(claim, position=1))
    bench.apply(commit(claim, position=1))
    bench.apply(finish(claim))

    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED
    bench.assert_sound()


def test_a_clock_set_back_between_attempts_breaks_no_invariant(bench: Bench) -> None:
    bench.apply(give_back(bench.running()))
    bench.clock.advance(-3600)
    claim = bench.take()
    bench.apply(commit(claim))
    bench.clock.advance(-3600)
    bench.apply(finish(claim))

    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED
    bench.assert_sound()


def test_a_clock_set_forward_costs_leases_but_no_effect_twice(bench: Bench) -> None:
    claim = bench.running()
    bench.clock.advance(86_400)

    [answer] = bench.write(commit(claim))

    assert answer is not None
    assert bench.recover() == ["given back"]
    bench.apply(commit(bench.take(OTHER)), worker=OTHER)
    bench.assert_sound()


def test_a_commit_slower_than_its_lease_counts_because_nobody_could_come_between(bench: Bench) -> None:
    claim = bench.running()

    def slow(_tx: object) -> str:
        bench.clock.advance(3600)
        return "{}"

    bench.apply(commit(claim, slow))
    bench.apply(finish(claim))

    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED
    bench.assert_sound()


def test_ids_made_while_the_clock_stands_still_keep_their_order(bench: Bench) -> None:
    jobs = [bench.submit() for _ in range(200)]

    assert jobs == sorted(jobs)
    assert [claim.job.job_id for claim in bench.claim(limit=200)] == jobs


def test_jobs_that_end_together_have_each_its_own_time(bench: Bench) -> None:
    bench.clock.advance(3600)
    early = bench.committed()
    bench.clock.advance(-3600)
    late = bench.committed()

    bench.apply(finish(early), finish(late))

    for claim in (early, late):
        assert bench.job(claim.job.job_id).updated_at == bench.latest(claim.job.job_id).finished_at
    bench.assert_sound()


def test_a_key_that_another_job_took_before_the_clock_was_set_back_is_not_missing(bench: Bench) -> None:
    bench.submit_one(key="k", key_lasts_ms=60_000)
    bench.apply(end(bench.take()))
    bench.clock.advance(3600)
    bench.submit_one(key="k", key_lasts_ms=60_000)
    bench.clock.advance(-3600)

    assert list(guard.check(bench.store, deep=False)) == []


def lives(bench: Bench) -> Iterator[str]:
    """Jobs in all their ways, from one verb to the next."""
    first = bench.submit()
    yield "submitted"
    after = bench.submit(run_after=first)
    yield "a job after it submitted"
    claim = bench.take()
    yield "claimed"
    bench.write(report_progress(claim))
    yield "progress reported"
    bench.write(record_try(claim))
    yield "a try recorded"
    bench.write(finish_step(claim))
    yield "a step finished"
    bench.store.cancel(after, actor=OPERATOR, reason="not needed")
    yield "the job after it cancelled"
    bench.write(give_back(claim))
    yield "given back"
    bench.recover()
    yield "recovered"
    if bench.state(first) is JobState.RUNNING:
        # It was given back behind its lease, and the clock has been before the end of that ever since.
        bench.recover(WORKER)
        yield "taken over from the dead"
    bench.store.reschedule(first, actor=OPERATOR, reason="first", priority=3)
    yield "another rank"
    again = bench.claim(limit=1)
    yield "claimed again"
    for claim in again:
        bench.write(plan_ending(claim))
        yield "an ending planned"
        bench.write(end(claim))
        yield "failed"
    if bench.state(first) is JobState.FAILED:
        bench.store.retry(first, actor=OPERATOR, reason="again", from_state=JobState.FAILED)
        yield "brought back"
    for claim in bench.claim():
        bench.write(commit(claim, position=claim.position))
        yield "committed"
        bench.write(finish(claim))
        yield "finished"


@pytest.mark.parametrize("number", range(4))
def test_a_clock_that_jumps_between_any_two_verbs_breaks_no_invariant(
    bench: Bench, rng: random.Random, number: int
) -> None:
    walked = []
    for verb in lives(bench):
        bench.clock.advance(rng.choice([-7200, -3600, -1, 0, 1, 3600]))
        walked.append((verb, bench.clock()))

        assert bench.findings() == [], walked
        for facts in bench.store.facts():
            assert isinstance(facts, JobFacts)
            assert wrong_columns(facts, bench.clock()) == {}, walked
    bench.clock.advance(86_400)
    bench.recover()

    bench.assert_sound()
