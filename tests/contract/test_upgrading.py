"""A database of an older version, with jobs in every state: the next open brings it up to date, and all goes on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.core.states import ExecutionStatus, JobState
from holdfast.guard import check, look_at_open
from holdfast.store.commands import Claim
from tests.support.backends import Backend
from tests.support.bench import OPERATOR, Bench, SettableClock, commit, end, finish, finish_step

OLDER_DATABASES = Path(__file__).parent / "older"
OLDER = [tuple(file.stem.split("-")) for file in sorted(OLDER_DATABASES.glob("*.sql"))]
"""Store and schema version of each database that an earlier Holdfast has written: a dump, and what is in it as JSON."""


class OldJobs(msgspec.Struct):
    """A job in each state, and an execution in each status, made by a process that is gone."""

    succeeded: str
    failed: str
    quarantined: str
    tried_again: Claim
    leased: Claim
    running: Claim
    committed: Claim
    pending: str
    waiting: str
    now: int

    def states(self) -> dict[str, JobState]:
        """What each must be, before and after."""
        ended = {
            self.succeeded: JobState.SUCCEEDED,
            self.failed: JobState.FAILED,
            self.quarantined: JobState.QUARANTINED,
        }
        under_way = (self.tried_again, self.leased, self.running, self.committed)
        return {
            **ended,
            **{claim.job.job_id: JobState.RUNNING for claim in under_way},
            **dict.fromkeys((self.pending, self.waiting), JobState.PENDING),
        }

    def statuses(self) -> dict[str, ExecutionStatus]:
        """Of those that are under way."""
        return {
            self.tried_again.exec_id: ExecutionStatus.IN_PROGRESS,
            self.leased.exec_id: ExecutionStatus.LEASED,
            self.running.exec_id: ExecutionStatus.IN_PROGRESS,
            self.committed.exec_id: ExecutionStatus.COMMITTED,
        }


@pytest.fixture
def old_jobs(backend: Backend, version: str, clock: SettableClock) -> OldJobs:
    """What that version has left."""
    described, _, dump = (OLDER_DATABASES / f"{backend.name}-{version}.sql").read_text().partition("\n")
    backend.restore(dump)
    jobs = msgspec.json.decode(described.removeprefix("-- "), type=OldJobs)
    clock.now = jobs.now
    return jobs


of_every_older_version = pytest.mark.parametrize("backend, version", OLDER, indirect=["backend"])


def assert_whole(bench: Bench) -> None:
    assert [*look_at_open(bench.store, chance=0.5), *check(bench.store, deep=True)] == []
    bench.assert_sound()


@of_every_older_version
def test_every_job_is_what_it_was(backend: Backend, old_jobs: OldJobs, clock: SettableClock) -> None:
    bench = Bench(backend.open(clock), clock)

    assert {job.job_id: job.state for job in bench.store.jobs()} == old_jobs.states()
    assert {one.exec_id: one.status for one in bench.store.under_way()} == old_jobs.statuses()
    assert_whole(bench)


@of_every_older_version
def test_what_was_under_way_goes_on_to_its_end(backend: Backend, old_jobs: OldJobs, clock: SettableClock) -> None:
    bench = Bench(backend.open(clock), clock)
    bench.apply(commit(old_jobs.running, position=1), finish(old_jobs.committed), end(old_jobs.leased))
    bench.apply(finish(old_jobs.running))
    bench.apply(commit(old_jobs.tried_again), finish_step(take(bench, old_jobs.pending)))
    succeed(bench, take(bench, old_jobs.waiting))
    ended = {job.job_id: job.state for job in bench.store.jobs(states=[JobState.SUCCEEDED])}

    assert set(ended) == {
        old_jobs.succeeded,
        old_jobs.committed.job.job_id,
        old_jobs.running.job.job_id,
        old_jobs.waiting,
    }
    assert bench.state(old_jobs.leased.job.job_id) is JobState.FAILED
    assert_whole(bench)


@of_every_older_version
def test_what_nobody_works_on_any_more_is_recovered(backend: Backend, old_jobs: OldJobs, clock: SettableClock) -> None:
    bench = Bench(backend.open(clock), clock)
    bench.expire()

    assert sorted(bench.recover()) == ["finished", "given back", "given back", "given back"]
    assert bench.state(old_jobs.committed.job.job_id) is JobState.SUCCEEDED
    assert bench.state(old_jobs.running.job.job_id) is JobState.PENDING
    assert_whole(bench)


@of_every_older_version
def test_what_has_ended_can_be_tried_again_and_removed(
    backend: Backend, old_jobs: OldJobs, clock: SettableClock
) -> None:
    bench = Bench(backend.open(clock), clock)
    bench.store.retry(old_jobs.failed, actor=OPERATOR, reason="x", from_state=JobState.FAILED)
    bench.store.retry(old_jobs.quarantined, actor=OPERATOR, reason="x", from_state=JobState.QUARANTINED)
    succeed(bench, take(bench, old_jobs.failed))
    succeed(bench, take(bench, old_jobs.quarantined))
    clock.advance(1)
    gone = bench.store.prune(before=clock(), limit=9, actor=OPERATOR, dry_run=False)

    assert sorted(gone) == sorted([old_jobs.succeeded, old_jobs.failed, old_jobs.quarantined])
    assert set(bench.store.pruned_heads()) == set(gone)
    assert_whole(bench)


def take(bench: Bench, job_id: str) -> Claim:
    """Claim the best job, which must be this one."""
    claim = bench.take()
    assert claim.job.job_id == job_id
    return claim


def succeed(bench: Bench, claim: Claim) -> None:
    bench.apply(commit(claim))
    bench.apply(finish(claim))
