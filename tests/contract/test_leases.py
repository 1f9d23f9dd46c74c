"""Leases: renewed while they last, told what operators want, counted by nobody but the database."""

from __future__ import annotations

from holdfast.core.states import ExecutionStatus
from tests.support.bench import LEASE_MS, OLD, OPERATOR, OTHER, WORKER, Bench, begin, commit, end, finish


def extend(bench: Bench, worker: str = WORKER) -> dict[str, str | None]:
    held = bench.store.extend_leases(worker_id=worker, lease_ms=LEASE_MS)
    return {one.exec_id: one.cancel_reason for one in held}


def test_a_renewed_lease_lasts_as_long_as_a_new_one(bench: Bench) -> None:
    claim = bench.running()
    for _ in range(5):
        bench.clock.advance(LEASE_MS / 1000 - 1)
        assert extend(bench) == {claim.exec_id: None}

    bench.apply(commit(claim))

    assert bench.latest(claim.job.job_id).lease_expires_at == bench.clock() + LEASE_MS


def test_a_lease_that_has_run_out_cannot_be_renewed(bench: Bench) -> None:
    claim = bench.running()
    bench.expire()

    held = extend(bench)

    assert held == {}
    assert bench.latest(claim.job.job_id).lease_expires_at < bench.clock()
    assert bench.recover() == ["given back"]


def test_a_worker_renews_only_its_own(bench: Bench) -> None:
    mine, theirs = bench.running(WORKER), bench.running(OTHER)
    bench.clock.advance(20)

    assert extend(bench, WORKER) == {mine.exec_id: None}
    assert bench.latest(theirs.job.job_id).lease_expires_at == bench.clock() + LEASE_MS - 20_000
    assert extend(bench, OTHER) == {theirs.exec_id: None}


def test_everything_under_way_is_held_and_nothing_else(bench: Bench) -> None:
    bench.submit(**OLD)
    leased = bench.take()
    running = bench.running()
    committed = bench.committed()
    ended = bench.running()
    bench.apply(end(ended))
    done = bench.committed()
    bench.apply(finish(done))

    assert set(extend(bench)) == {leased.exec_id, running.exec_id, committed.exec_id}
    assert {e.exec_id for e in bench.store.under_way()} == {leased.exec_id, running.exec_id, committed.exec_id}


def test_a_worker_hears_of_a_cancel_when_it_renews(bench: Bench) -> None:
    claim, another = bench.running(), bench.running()
    bench.store.cancel(claim.job.job_id, actor=OPERATOR, reason="wrong image")

    assert extend(bench) == {claim.exec_id: "wrong image", another.exec_id: None}


def test_a_lease_can_be_begun_until_the_last_moment(bench: Bench) -> None:
    bench.submit(**OLD)
    claim = bench.take()
    bench.clock.now += LEASE_MS - 1

    bench.apply(begin(claim))

    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS


def test_a_lease_of_its_own_length_is_given_to_each_claim(bench: Bench) -> None:
    bench.submit()
    claim = bench.take(lease_ms=5)
    bench.clock.now += 5

    assert bench.recover() == ["given back"]
    assert bench.status(claim) is ExecutionStatus.ABORTED
