"""The clock is one machine's clock: it may be set, in either direction, and nothing may break by it."""

from __future__ import annotations

from holdfast.core.states import JobState
from tests.support.bench import OTHER, Bench, commit, finish, finish_step, give_back, record_try


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
